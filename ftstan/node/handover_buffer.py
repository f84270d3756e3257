"""What a successor keeps while the owner is leaving: the bytes of publishes that arrive before the
store is ours.

Lives on the data plane's thread, and is its station while there is nothing to serve. It parses only
as much as it must: the bytes go to the broker as they came, once it is known which of them the
owner has answered (``ft/handover.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import NatsError, WireError
from ftstan.base.sizes import size_of
from ftstan.wire.frames import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.base.clock import Clock
    from ftstan.ft.handover import PublishKey
    from ftstan.nats.link import Link
    from ftstan.node.reserved_link import ReservedLink

#: Bytes that are kept at most. What arrives beyond that makes the buffer worthless: it is dropped
#: as a whole.
LIMIT: Final = 64 << 20
_IDLE_S: Final = 3600.0
_OPEN_S: Final = 1.0
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class BufferedPublishes:
    """What came before we owned the store. ``data``: from the link.

    ``answered``: publishes in it to leave out, and how many copies of each.
    ``pongs``: answers to PINGs of the buffer that are in ``data``, or still on their way.
    ``rows``: the subjects and sids that it was subscribed under.
    """

    data: bytes
    answered: dict[PublishKey, int]
    pongs: int
    rows: tuple[tuple[bytes, int], ...]


class HandoverBuffer:
    """Keeps what arrives on the link that will serve. Not open yet after construction.

    ``rows``: subjects and sids, those under which the broker will subscribe.
    """

    def __init__(self, link: Link, clock: Clock, rows: Sequence[tuple[bytes, int]]) -> None:
        self.link = link
        self.rows = rows
        self.broken = ""
        """Why what was kept cannot be used; empty while it can."""
        self._clock = clock
        self._data = bytearray()
        self._dropped = 0
        self._chunk = bytearray(_CHUNK)
        self._reserved: ReservedLink | None = None
        """What keeps the link when nothing is kept any more."""

    def open(self) -> None:
        """Subscribe, and return when NATS has processed it.

        Raises ``NatsError``; the link is closed then.

        Nobody would read it: what piled up in it would be taken for new when this server serves one
        day.
        """
        try:
            self._open()
        except WireError as error:
            self.link.close()
            raise NatsError(error.text) from error
        except BaseException:
            self.link.close()
            raise

    def _open(self) -> None:
        end = self._clock.mono() + _OPEN_S
        link = self.link
        if not link.connected:
            link.connect(_OPEN_S)
        self._data += link.leftover
        link.send(b"".join(b"SUB %b %d\r\n" % row for row in self.rows) + b"PING\r\n", _OPEN_S)
        parser = Parser(link.max_payload)
        events = parser.feed(bytes(self._data))
        while not any(event[0] == "PONG" for event in events):
            left = end - self._clock.mono()
            if left <= 0:
                raise NatsError("nats: timeout")
            link.wait(left)
            at = len(self._data)
            self._read()
            events = parser.feed(bytes(memoryview(self._data)[at:]))

    def fileno(self) -> int:
        """The descriptor that is read; -1 when it is closed."""
        return self.link.fileno()

    @property
    def pending(self) -> bool:
        """Whether bytes wait of which ``poll`` on the descriptor says nothing."""
        return self.link.pending

    def timeout(self) -> float:
        """Seconds until work is due even if no bytes arrive."""
        return self._reserved.timeout() if self._reserved is not None else _IDLE_S

    def turn(self, *, readable: bool) -> None:
        """Keep what has arrived."""
        if self._reserved is not None:
            self._reserved.turn(readable=readable)
            return
        if not readable or self.broken:
            return
        try:
            self._read()
        except NatsError as error:
            self.broken = error.text

    def _read(self) -> None:
        with memoryview(self._chunk) as view:
            while n := self.link.recv_into(view):
                self._data += view[:n]
                if len(self._data) > LIMIT:
                    self.broken = f"more than {size_of(LIMIT)} arrived"
                    self.leave_link()
                    return
                if n < len(view):
                    return

    def leave_link(self) -> ReservedLink:
        """Let go of what was kept; returns what keeps the link from now on."""
        if self._reserved is None:
            # Late: this module is loaded with each server, that one with members of groups.
            from ftstan.node.reserved_link import ReservedLink  # noqa: PLC0415

            unfinished = self._forget()
            self._reserved = ReservedLink(self.link, self._clock)
            self._reserved.take_back(unfinished, [sid for _, sid in self.rows])
        return self._reserved

    def give_up(self, why: str) -> int:
        """Let go of what was kept; returns how many publishes that were in all.

        The link is left as it is.
        """
        self.broken = self.broken or why
        self._forget()
        # What came behind the limit, until NATS had heard that nobody wants it.
        behind = self._reserved.dropped if self._reserved is not None else 0
        return self._dropped + behind

    def _forget(self) -> bytes:
        """Count what was kept, and forget it; returns the beginning of a frame at its end."""
        data = self._data
        self._data = bytearray()
        count, unfinished = counted(data, self.link.max_payload, self.rows)
        self._dropped += count
        return unfinished

    def hand_on(self, answered: dict[PublishKey, int]) -> BufferedPublishes:
        """Give everything to who serves from now on; the link stays as it is."""
        data = bytes(self._data)
        self._data = bytearray()
        return BufferedPublishes(data, answered, pongs=1, rows=tuple(self.rows))


def count_publishes(data: bytes, max_payload: int, rows: Sequence[tuple[bytes, int]]) -> int:
    """How many whole messages for the sids of ``rows`` are in bytes from the link."""
    return counted(data, max_payload, rows)[0]


def counted(
    data: bytes | bytearray, max_payload: int, rows: Sequence[tuple[bytes, int]]
) -> tuple[int, bytes]:
    """The same, and the bytes at the end that are no whole frame yet; nothing of what is not the
    NATS protocol.
    """
    sids = {sid for _, sid in rows}
    parser = Parser(max_payload)
    count = 0
    try:
        # In pieces: each frame becomes an object, and there may be a million.
        for at in range(0, len(data), _CHUNK):
            events = parser.feed(data[at : at + _CHUNK])
            count += sum(event[0] in {"MSG", "HMSG"} and event[2] in sids for event in events)
    except WireError:
        return 0, b""
    return count, parser.unfinished
