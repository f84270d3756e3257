"""What the dashboard shows of one node: the group, its owners, what the store holds, and who lags
behind.

On the control loop, like the other pages (``node/pages.py``), and bounded whatever the store holds:
of channels and subscriptions those with trouble, and those furthest behind.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Protocol

from ftstan.base.errors import FtstanError
from ftstan.ft.history import cause_text
from ftstan.monitor.answers import shown
from ftstan.nats import tasks
from ftstan.node.peers import SILENT_S
from ftstan.node.recent import STEP_S, Recent

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from ftstan.admin.protocol import EpochEntry
    from ftstan.base.states import NodeStatus
    from ftstan.broker.views import CensusRow, Counters, SubRow
    from ftstan.ft.digest import Member as GroupMember
    from ftstan.node.cluster_peers import SeenNode
    from ftstan.node.context import Context

_CHANNELS: Final = 50
_SUBS: Final = 50
#: Channels whose subscriptions are looked at, and how many of each.
_LOOKED_AT: Final = 20
_EPOCHS: Final = 12
_MILLI: Final = 1_000_000
#: A channel is at a limit when it has so much of what that allows: the oldest go in portions.
_AT_LIMIT: Final = 0.95


class Looks(Protocol):
    """What the other pages have looked up (``pages.Pages``)."""

    async def census(self) -> tuple[Counters, list[CensusRow]]:
        """Recent counters and figures of all channels."""
        ...

    async def channel_subs(
        self, names: Sequence[bytes], most: int | None = None
    ) -> list[tuple[bytes, SubRow]]:
        """The subscriptions of these channels; of each channel at most ``most``."""
        ...


class Overview:
    """Figures for the dashboard of ``node``."""

    def __init__(self, node: Context, pages: Looks) -> None:
        self._node = node
        self._pages = pages
        self.recent = Recent(node, pages)
        self._epochs: tuple[EpochEntry, ...] = ()
        self._epochs_of = -1
        self._reading: asyncio.Task[None] | None = None

    async def page(self) -> dict[str, object]:
        """The figures (``docs/monitoring.md``, figures of the dashboard)."""
        node = self._node
        status = await node.status.refreshed()
        counters, rows = await self._pages.census()
        self._refresh_epochs(status.holder_epoch)
        serving = node.plane.serving
        commits = serving.commits if serving is not None else None
        ranked = sorted(rows, key=_rank)
        self.recent.quarantined = sum(row.quarantined for row in rows)
        return {
            "now_ms": node.clock.wall_ns() // _MILLI,
            "node": status.to_json(),
            "verdict": self.recent.judged(status),
            "members": self._members(status),
            "room": node.protection.room._asdict() if node.protection.room is not None else None,
            # By channel they have names that are no text, and no bound: the metrics tell them.
            "counters": asdict(counters) | {"dead_letters": sum(counters.dead_letters.values())},
            "commits": {
                "count": commits.cumulative()[-1] if commits is not None else 0,
                "seconds": commits.sum if commits is not None else 0.0,
            },
            "totals": {
                "clients": counters.clients,
                "channels": counters.channels,
                "subscriptions": sum(row.subs for row in rows),
                "msgs": sum(row.msgs for row in rows),
                "bytes": sum(row.size for row in rows),
                "pending": sum(row.pending for row in rows),
                "stalled": sum(row.stalled for row in rows),
                "quarantined": self.recent.quarantined,
            },
            "channels": [_channel(row) for row in ranked[:_CHANNELS]],
            "subscriptions": await self._subscriptions(ranked),
            "epochs": [_epoch(entry) for entry in self._epochs],
        }

    def _members(self, status: NodeStatus) -> list[dict[str, object]]:
        node = self._node
        if node.group is not None:
            return [_told(member) for member in node.group.peers.members]
        if node.cluster is not None:
            return [_told_node(seen) for seen in node.cluster.peers.known(status)]
        return []

    def history(self, since_ms: int) -> dict[str, object]:
        """The points of the last hour behind ``since_ms`` (Unix milliseconds), oldest first."""
        return {
            "now_ms": self._node.clock.wall_ns() // _MILLI,
            "step_s": STEP_S,
            "points": [list(point) for point in self.recent.points(since_ms)],
        }

    async def _subscriptions(self, ranked: Sequence[CensusRow]) -> list[dict[str, object]]:
        lasts = {row.name: row.last for row in [row for row in ranked if row.subs][:_LOOKED_AT]}
        try:
            subs = await self._pages.channel_subs(list(lasts), most=_SUBS * 4)
        except FtstanError:
            # A channel that was deleted and is being opened again: the next page has it.
            return []
        # A message of a queue group goes to one member: the group is as far as the foremost of
        # them.
        reached: dict[tuple[bytes, bytes], int] = {}
        for name, row in subs:
            if row.queue:
                reached[name, row.queue] = max(reached.get((name, row.queue), 0), row.last_sent)
        found = [
            (max(lasts[name] - reached.get((name, row.queue), row.last_sent), 0), name, row)
            for name, row in subs
        ]
        found.sort(
            key=lambda item: (
                not item[2].stalled,
                -item[0],
                -item[2].pending,
                item[1],
                item[2].client_id,
            )
        )
        return [_sub(lag, name, row) for lag, name, row in found[:_SUBS]]

    # ---- epochs
    # ----------------------------------------------------------------------------------------------

    def _refresh_epochs(self, newest: int) -> None:
        """Storage is asked beside the page, and only when there is something new."""
        if self._node.owner is None or newest == self._epochs_of or self._reading is not None:
            return
        self._reading = tasks.aside(self._read_epochs(newest), "epochs of the dashboard")
        self._reading.add_done_callback(self._read)

    async def _read_epochs(self, newest: int) -> None:
        with contextlib.suppress(FtstanError):
            self._epochs = await self._node.member.history(_EPOCHS)
            self._epochs_of = newest

    def _read(self, _task: asyncio.Task[None]) -> None:
        self._reading = None


def _rank(row: CensusRow) -> tuple[bool, bool, bool, int, int, bytes]:
    return (
        not row.quarantined,
        not _unread(row),
        not row.stalled,
        -row.lag,
        -row.pending,
        row.name,
    )


def _unread(row: CensusRow) -> int:
    """Messages that the last reader had not been sent when limits removed them."""
    return max(row.lag - row.msgs, 0)


def _is_full(row: CensusRow) -> bool:
    """Whether each message that comes removes an old one, or will soon."""
    limits = row.limits
    return 0 < limits.max_msgs * _AT_LIMIT <= row.msgs or (
        0 < limits.max_bytes * _AT_LIMIT <= row.size
    )


def _told(member: GroupMember) -> dict[str, object]:
    return {**asdict(member), "present": member.silent_s <= SILENT_S}


def _told_node(seen: SeenNode) -> dict[str, object]:
    status = seen.status
    return {
        "server": status.server,
        "host": status.host,
        "monitor": status.monitor,
        "state": status.state,
        "role": status.role,
        "phase": status.activity,
        "version": status.version,
        "lag_messages": -1,
        "lag_s": -1.0,
        "silent_s": seen.silent_s,
        "name": status.node_id,
        "present": seen.silent_s <= SILENT_S,
    }


def _channel(row: CensusRow) -> dict[str, object]:
    return {
        "name": shown(row.name),
        "msgs": row.msgs,
        "bytes": row.size,
        "last": row.last,
        "subs": row.subs,
        "pending": row.pending,
        "stalled": row.stalled,
        "lag": row.lag,
        "quarantined": row.quarantined,
        "moved": row.moved,
        "full": _is_full(row),
        "unread": _unread(row),
    }


def _sub(lag: int, channel: bytes, row: SubRow) -> dict[str, object]:
    return {
        "client": shown(row.client_id),
        "channel": shown(channel),
        "durable": shown(row.durable),
        "queue": shown(row.queue),
        "pending": row.pending,
        "max": row.max_in_flight,
        "lag": lag,
        "stalled": row.stalled,
        "offline": row.is_offline,
    }


def _epoch(entry: EpochEntry) -> dict[str, object]:
    return {
        "epoch": entry.epoch,
        "server": entry.server,
        "name": entry.name,
        "host": entry.host,
        "since_ms": entry.since_ns // _MILLI,
        "until_ms": entry.until_ns // _MILLI,
        "cause": cause_text(entry),
    }
