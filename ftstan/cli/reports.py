"""How far behind readers are: figures of ``ftstanctl sub report`` and ``ftstanctl channel report``,
made of the rows that servers give. Pure.

Rows of channels and subscriptions are those of ``docs/admin.md``. Members of a queue group share
the messages of their channel: what one of them has not got, another may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Row = dict[str, Any]


def state_of(row: Row) -> str:
    """What a subscription does: ``offline``, ``stalled`` or ``live``."""
    return "offline" if row["is_offline"] else "stalled" if row["is_stalled"] else "live"


def subscription_report(channels: Iterable[Row], subscriptions: Iterable[Row]) -> list[Row]:
    """The subscriptions, the one that is the furthest behind first.

    Each row has besides: ``state``; ``lag``, stored messages that were not sent to it;
    ``oldest_unread``, the sequence of the first of them, 0 for none; ``lost_to_limits``, messages
    that the limits removed before they were sent. Ages in seconds, ``None`` where they are not
    known (also from servers of releases that do not tell them): ``oldest_unread_age_s``,
    ``last_ack_age_s``.
    """
    known = {row["name"]: row for row in channels}
    subs = list(subscriptions)
    reached: dict[tuple[str, str], int] = {}
    for row in subs:
        if row["queue_name"]:
            group = (row["channel"], row["queue_name"])
            reached[group] = max(reached.get(group, 0), row["last_sent"])
    rows = []
    for row in subs:
        # Without its channel (it was just deleted) nothing can be behind.
        channel = known.get(row["channel"], {"first_seq": 0, "last_seq": 0})
        sent: int = reached.get((row["channel"], row["queue_name"]), 0) or row["last_sent"]
        unread = max(sent + 1, channel["first_seq"])
        lag = max(channel["last_seq"] - unread + 1, 0)
        rows.append(
            row
            | {
                "state": state_of(row),
                "lag": lag,
                "oldest_unread": unread if lag else 0,
                "lost_to_limits": max(channel["first_seq"] - 1 - sent, 0),
                "oldest_unread_age_s": row.get("oldest_unread_age_s") if lag else None,
                "last_ack_age_s": row.get("last_ack_age_s"),
            }
        )
    return sorted(rows, key=lambda row: (-row["lost_to_limits"], -row["lag"], *_named(row)))


def channel_report(channels: Iterable[Row], subscriptions: Iterable[Row]) -> list[Row]:
    """The channels, the one with the reader that is the furthest behind first.

    Each row has besides: ``lag``, ``lost_to_limits`` and ``oldest_unread_age_s`` of its worst
    subscription, ``last_ack_age_s`` of the one that acknowledged last, and how many of them are
    ``stalled``.
    """
    given = list(channels)
    start: Row = {
        "lag": 0,
        "lost_to_limits": 0,
        "stalled": 0,
        "oldest_unread_age_s": None,
        "last_ack_age_s": None,
    }
    found = {row["name"]: row | start for row in given}
    for sub in subscription_report(given, subscriptions):
        row = found.get(sub["channel"])
        if row is not None:
            row["lag"] = max(row["lag"], sub["lag"])
            row["lost_to_limits"] = max(row["lost_to_limits"], sub["lost_to_limits"])
            row["stalled"] += sub["state"] == "stalled"
            for age, worst in (("oldest_unread_age_s", max), ("last_ack_age_s", min)):
                row[age] = worst((a for a in (row[age], sub[age]) if a is not None), default=None)
    return sorted(
        found.values(), key=lambda row: (-row["lost_to_limits"], -row["lag"], row["name"])
    )


def _named(row: Row) -> tuple[str, int]:
    return row["channel"], row["id"]
