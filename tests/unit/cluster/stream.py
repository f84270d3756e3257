"""A stream in memory that behaves as JetStream may: answers that are lost, entries that arrive
late, a stream that is cut, deleted and made again, or edited.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftstan.cluster.names import question_subject
from ftstan.nats.jetstream import (
    END_OF_BATCH,
    NOT_FOUND,
    ApiError,
    Appended,
    Batch,
    Unknown,
    WrongLast,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.nats.jetstream import Answer


@dataclass
class Stream:
    """What all nodes share. ``faults``: what happens to the next appends, in turn.

    ``lost``: it is taken, and its answer does not come; ``dropped``: it is not taken, and no
    answer comes; ``late``: as dropped, and it arrives when ``deliver_late`` is called.
    """

    config: dict[str, Any] | None = None
    entries: list[tuple[str, bytes]] = field(default_factory=list)
    faults: deque[str] = field(default_factory=deque)
    late: list[Callable[[], object]] = field(default_factory=list)
    hidden: int = 0
    """Entries at the end that the copies do not have yet."""
    purged: int = 0
    """Entries at the beginning that are gone."""

    def exists(self) -> bool:
        return self.config is not None

    def append(self, subject: str, data: bytes, last: int) -> Appended | WrongLast:
        if last != len(self.entries):
            return WrongLast(len(self.entries))
        self.entries.append((subject, data))
        return Appended(len(self.entries))

    def deliver_late(self) -> list[object]:
        late = self.late
        self.late = []
        return [one() for one in late]


class FakeLink:
    max_payload = 1 << 20
    pending = False

    def fileno(self) -> int:
        return -1


class FakeJetStream:
    """One node's client of ``stream``. ``reports``: what the others answer to a question."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.link = FakeLink()
        self.connected = True
        self.reports: list[Answer] = []
        self.on_message: Callable[[bytes], None] = lambda _payload: None
        self.waiting: deque[bytes] = deque()
        """Beats that have arrived and were not read."""

    def connect(self, _seconds: float) -> None:
        self.connected = True

    def close(self) -> None:
        self.connected = False

    def drain(self) -> bool:
        came = bool(self.waiting)
        while self.waiting:
            self.on_message(self.waiting.popleft())
        return came

    def ask(self, subject: str, *_rest: object) -> list[Answer]:
        assert subject == question_subject("cid")
        self.drain()
        return self.reports

    def api(self, what: str, request: dict[str, Any], _seconds: float) -> dict[str, Any]:
        stream = self.stream
        if what.startswith("STREAM.CREATE."):
            if stream.config is not None:
                if stream.config == request:
                    return {"config": request}
                raise ApiError("exists", 10058)
            stream.config = {key: held for key, held in request.items() if key != "first_seq"}
            stream.purged = request.get("first_seq", 1) - 1
            stream.entries = [("", b"")] * stream.purged
            return {"config": request}
        if stream.config is None:
            raise ApiError("no stream", 10059)
        if what.startswith("STREAM.PURGE."):
            stream.purged = max(stream.purged, request["seq"] - 1)
        last = len(stream.entries)
        state = {
            "messages": last - stream.purged,
            "first_seq": stream.purged + 1,
            "last_seq": last,
            "bytes": sum(len(data) for _, data in stream.entries[stream.purged :]),
        }
        return {"config": dict(stream.config), "state": state}

    def append(
        self, _stream: str, subject: str, data: bytes, last: int, _seconds: float
    ) -> Appended | WrongLast | Unknown:
        stream = self.stream
        if stream.config is None or subject not in stream.config["subjects"]:
            return Unknown("no server leads the stream now")
        fault = stream.faults.popleft() if stream.faults else ""
        if fault == "late":
            stream.late.append(lambda: stream.append(subject, data, last))
        if fault in ("late", "dropped"):
            return Unknown("no answer")
        said = stream.append(subject, data, last)
        return Unknown("no answer") if fault == "lost" else said

    def get(self, _stream: str, sequence: int, most: int, _bytes: int, _seconds: float) -> Batch:
        end = len(self.stream.entries) - self.stream.hidden
        rows = [
            (number, *self.stream.entries[number - 1])
            for number in range(max(sequence, self.stream.purged + 1), end + 1)[:most]
        ]
        return Batch(rows, END_OF_BATCH if rows else NOT_FOUND)
