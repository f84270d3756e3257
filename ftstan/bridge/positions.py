"""Durables and durable queue groups of a channel, as the JetStream consumers that stand where they
stood.

Read from the datastore's files. A consumer begins at the lowest sequence that was not acknowledged:
JetStream cannot be told of single ones behind it, so what was acknowledged there comes again, and
is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import ConfigError
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.feed import DURABLE
from ftstan.bridge.target import ASK_S
from ftstan.nats.jetstream import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.bridge.target import Target
    from ftstan.stores.interface import StoredSub

_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]")
_NANOSECONDS: Final = 1_000_000_000
_EXISTS: Final = 10148
_MISSING: Final = 10014


@dataclass(frozen=True, slots=True)
class Position:
    """Where a durable or a durable queue group stands, and the consumer for it.

    ``start``: the first sequence that the consumer gives; ``pending``: delivered and not
    acknowledged; ``again``: acknowledged, and given again. ``max_in_flight`` is that of all members
    of a group together.
    """

    consumer: str
    client_id: str
    durable: str
    queue: str
    start: int
    pending: int
    again: int
    ack_wait: int
    max_in_flight: int

    def config(self) -> dict[str, Any]:
        """The settings of the consumer."""
        return {
            "durable_name": self.consumer,
            "name": self.consumer,
            "ack_policy": "explicit",
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self.start,
            "ack_wait": self.ack_wait * _NANOSECONDS,
            "max_ack_pending": self.max_in_flight,
            "max_deliver": -1,
            "replay_policy": "instant",
        }


def positions(subs: Iterable[StoredSub]) -> list[Position]:
    """The positions that can be moved, by the names of their consumers.

    Left out are subscriptions that end with their clients, and the bridge's own. Raises
    ``ConfigError`` if two come to one name.
    """
    groups: dict[tuple[str, str, str], list[StoredSub]] = {}
    for sub in subs:
        key = _key(sub)
        if key is not None:
            groups.setdefault(key, []).append(sub)
    found: dict[str, Position] = {}
    for key in sorted(groups):
        position = _position(key, groups[key])
        other = found.setdefault(position.consumer, position)
        if other is not position:
            raise ConfigError(
                f'"{_shown(other)}" and "{_shown(position)}" would be one consumer, '
                f'"{position.consumer}"',
                hint="make their consumers by hand: nats consumer add",
            )
    return list(found.values())


def _key(sub: StoredSub) -> tuple[str, str, str] | None:
    """Client, durable and queue group; ``None`` for what is not moved."""
    state = sub.state
    if state.queue:
        # Only a durable group outlives its members: its name is that of the durable, and the
        # group's behind a colon.
        durable, colon, queue = _text(state.queue).partition(":")
        return ("", durable, queue) if colon else None
    if not state.durable_name or _text(state.durable_name) == DURABLE:
        return None
    return _text(state.client_id), _text(state.durable_name), ""


def _position(key: tuple[str, str, str], subs: list[StoredSub]) -> Position:
    client_id, durable, queue = key
    last = max(sub.state.last_sent for sub in subs)
    pending = set().union(*(sub.pending for sub in subs))
    start = min(pending, default=last + 1)
    # A member that left has no part in what the group may have in flight.
    members = [sub for sub in subs if not sub.state.is_closed] or subs
    return Position(
        _REFUSED.sub("_", "_".join(filter(None, (client_id, durable, queue)))),
        client_id,
        durable,
        queue,
        start,
        len(pending),
        last + 1 - start - len(pending),
        max(sub.state.ack_wait_secs for sub in subs),
        sum(sub.state.max_in_flight for sub in members),
    )


def make(target: Target, stream: str, position: Position) -> bool:
    """Make the consumer; tells whether it is new. One that is there and is the same stays.

    Raises ``BridgeError`` if there is another one of its name, ``NatsError``.
    """
    try:
        told = target.js.api(f"CONSUMER.INFO.{stream}.{position.consumer}", {}, ASK_S)
    except ApiError as error:
        if error.code != _MISSING:
            raise
    else:
        found = told.get("config") or {}
        wanted = position.config()
        wrong = [key for key in wanted if found.get(key) != wanted[key]]
        if not wrong:
            return False
        raise BridgeError(
            f'the stream "{stream}" has another consumer "{position.consumer}": '
            + ", ".join(f"{key} is {found.get(key)}, not {wanted[key]}" for key in wrong),
            hint=f"if nobody uses it: nats consumer rm {stream} {position.consumer}",
        )
    request = {"stream_name": stream, "config": position.config(), "action": "create"}
    try:
        target.js.api(f"CONSUMER.CREATE.{stream}.{position.consumer}", request, ASK_S)
    except ApiError as error:
        raise BridgeError(
            f'the consumer "{position.consumer}": {error.text}',
            hint="somebody else has made it meanwhile"
            if error.code == _EXISTS
            else "see the limits of JetStream's account, and the log of the NATS server",
        ) from error
    return True


def _shown(position: Position) -> str:
    return " ".join(filter(None, (position.client_id, position.durable, position.queue)))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
