"""What ``subs.dat`` says of a channel's subscriptions: their positions now, and the events that it
still has, in order.

The file has an order and no times, and begins anew whenever it is compacted or a server takes the
store over: older events are gone. It reads; it never repairs, and says where it could not read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError, WireError
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.reading import NEVER_OURS
from ftstan.stores.file.tools.source import Source
from ftstan.stores.file.tools.statereading import SUB_KINDS, read_state
from ftstan.stores.protos import decode_sub
from ftstan.wire import messages
from ftstan.wire.pb import stan_internal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.file.tools.statereading import Typed
    from ftstan.stores.interface import SubState

_WORDS = {
    records.SUB_NEW: "new",
    records.SUB_UPDATE: "update",
    records.SUB_DELETE: "delete",
    records.SUB_MSG: "sent",
    records.SUB_ACK: "acked",
}

#: A place in the file that holds no record.
UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Event:
    """One record, and where its subscription stands behind it.

    ``offset``: of the record in the file; ``event``: new, update, delete, sent, acked or
    unreadable; ``sequence``: of the message that was sent or acknowledged, else 0; ``last_sent``:
    the highest sequence sent to the subscription; ``in_flight``: sent and not acknowledged;
    ``behind``: how far ``last_sent`` is below that of the channel's furthest subscription.
    """

    offset: int
    event: str
    subscription: str
    sequence: int
    last_sent: int
    in_flight: int
    behind: int


@dataclass(slots=True)
class Position:
    """A subscription, or a queue group with all its members.

    ``members``: what was sent to each, by id, and not acknowledged; ``closed``: those that no
    client has open; ``sent_to``: the last sequence that was sent to each; ``left_at``: to those
    that are gone.
    """

    name: str
    kind: str
    members: dict[int, set[int]] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    sent_to: dict[int, int] = field(default_factory=dict)
    left_at: int = 0

    @property
    def last_sent(self) -> int:
        """The highest sequence that was sent to any member."""
        return max(self.left_at, *self.sent_to.values()) if self.sent_to else self.left_at

    @property
    def online(self) -> bool:
        """Whether a client has it open."""
        return bool(self.members.keys() - self.closed)

    @property
    def pending(self) -> set[int]:
        """What was sent and not acknowledged."""
        return set().union(*self.members.values())


class Replay:
    """The positions of a channel's subscriptions while its records are taken, one after the
    other.
    """

    def __init__(self) -> None:
        self.positions: dict[str, Position] = {}
        self._of_id: dict[int, Position] = {}
        self._furthest = 0

    def events(self, typed: Typed) -> Iterator[Event]:
        """Take the records of a file."""
        broken = [*typed.bad, *([typed.tail] if typed.tail else [])]
        places = sorted(
            [*((bad.start, 0, b"") for bad in broken), *typed.rows], key=lambda row: row[0]
        )
        for offset, kind, payload in places:
            word = _WORDS.get(kind, UNREADABLE)
            try:
                sub_id, sequence = self._take(kind, payload)
            except WireError:
                word = UNREADABLE
                sub_id = 0
                sequence = 0
            position = self._of_id.get(sub_id, _NOBODY)
            yield Event(
                offset,
                word,
                position.name,
                sequence,
                position.last_sent,
                sum(len(pending) for pending in position.members.values()),
                max(self._furthest - position.last_sent, 0) if position is not _NOBODY else 0,
            )
            if kind == records.SUB_DELETE:
                self._forget(sub_id)

    def _take(self, kind: int, payload: bytes) -> tuple[int, int]:
        if kind in (records.SUB_NEW, records.SUB_UPDATE):
            state = decode_sub(payload)
            self._put(state, anew=kind == records.SUB_NEW)
            return state.sub_id, 0
        if kind == records.SUB_DELETE:
            return messages.parse(pb.SubStateDelete, payload).id, 0
        if kind not in (records.SUB_MSG, records.SUB_ACK):
            return 0, 0
        update = messages.parse(pb.SubStateUpdate, payload)
        position = self._of_id.get(update.id)
        if position is not None:
            pending = position.members[update.id]
            if kind == records.SUB_ACK:
                pending.discard(update.seqno)
            else:
                pending.add(update.seqno)
                self._sent(position, update.id, max(position.sent_to[update.id], update.seqno))
        return update.id, update.seqno

    def _put(self, state: SubState, *, anew: bool) -> None:
        name, kind = label(state)
        position = self.positions.setdefault(name, Position(name, kind))
        self._of_id[state.sub_id] = position
        if anew:
            position.members[state.sub_id] = set()
        else:
            position.members.setdefault(state.sub_id, set())
        (position.closed.add if state.is_closed else position.closed.discard)(state.sub_id)
        self._sent(position, state.sub_id, state.last_sent)

    def _sent(self, position: Position, sub_id: int, sequence: int) -> None:
        position.sent_to[sub_id] = sequence
        self._furthest = max(self._furthest, sequence)

    def _forget(self, sub_id: int) -> None:
        position = self._of_id.pop(sub_id, None)
        if position is not None:
            del position.members[sub_id]
            position.closed.discard(sub_id)
            position.left_at = max(position.left_at, position.sent_to.pop(sub_id))
            if not position.members:
                del self.positions[position.name]


_NOBODY = Position("", "")


def label(state: SubState) -> tuple[str, str]:
    """How people call a subscription, and its kind: queue, durable or plain."""
    if state.queue:
        return _text(state.queue), "queue"
    if state.durable_name:
        return f"{_text(state.client_id)}/{_text(state.durable_name)}", "durable"
    return f"{_text(state.client_id)} {_text(state.inbox)}", "plain"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def read(path: str, channel: str, polynomial: int) -> Typed:
    """The records of a channel's ``subs.dat``. Raises ``StoreError``."""
    disk = LocalDisk()
    try:
        dirfd = os.open(
            os.path.join(path, channel), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        )
        try:
            return read_state(
                Source(disk, dirfd, records.Crc(polynomial), NEVER_OURS),
                dirfd,
                "subs.dat",
                SUB_KINDS,
            )
        finally:
            os.close(dirfd)
    except OSError as error:
        raise StoreError(
            f"{path}: subscriptions of channel {channel}: {error.strerror or error}",
            hint="check its permissions",
        ) from error
