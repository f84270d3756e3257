"""A publisher that never pauses: one publish every few milliseconds, each with its own guid, sent
and ack times kept.

It goes on through a takeover as a client of the original does: same client id, same connection id,
no new connect. What is not acknowledged is not sent again, so that what a takeover costs can be
counted.
"""

from __future__ import annotations

import itertools
import math
import select
import time
from dataclasses import dataclass, field

from ftstan.base.clock import SystemClock
from ftstan.nats.link import Link
from ftstan.wire import messages
from ftstan.wire.frames import Parser, pub_frame
from ftstan.wire.subjects import Subjects

CLUSTER = "bench-cluster"

_CLIENT = b"bench"
_CONN_ID = b"bench-connection"
_ACKS = b"bench.acks"
_HEARTBEATS = b"bench.heartbeats"
_ANSWERS = b"bench.answers"
_GUID_FIELD = b"\x0a"
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Record:
    """What happened, in seconds of ``time.monotonic``: ``sent`` and ``acked`` by publish number."""

    sent: list[float] = field(default_factory=list)
    acked: dict[int, float] = field(default_factory=dict)

    def first_ack_after(self, at: float) -> float | None:
        """When the first ack behind ``at`` arrived."""
        return min((t for t in self.acked.values() if t > at), default=None)

    def unanswered(self, start: float, end: float) -> int:
        """Publishes sent between two times that were never acknowledged."""
        return sum(start <= t < end and n not in self.acked for n, t in enumerate(self.sent))

    def longest_silence(self, start: float, end: float) -> float:
        """The longest time without an ack between two times."""
        times = sorted(t for t in self.acked.values() if start <= t <= end)
        edges = [start, *times, end]
        return max(b - a for a, b in itertools.pairwise(edges))


class Publisher:
    """Publishes to ``channels`` in turn, one message of ``size`` bytes every ``every`` seconds."""

    def __init__(self, url: str, channels: list[bytes], *, every: float, size: int) -> None:
        self.record = Record()
        self._link = Link([url], name="bench", clock=SystemClock())
        self._link.connect(5.0)
        self._parser = Parser(self._link.max_payload)
        self._buffer = bytearray(1 << 16)
        self._channels = channels
        self._every = every
        self._body = b"x" * size
        self._poll = select.poll()
        self._poll.register(self._link.fileno(), select.POLLIN)
        self._answers: list[bytes] = []
        self._prefix = b""
        self._next = time.monotonic()
        self._send(b"SUB %b 1\r\nSUB %b 2\r\nSUB %b 3\r\n" % (_ACKS, _HEARTBEATS, _ANSWERS))

    def connect(self) -> None:
        """Register with the server."""
        request = messages.ConnectRequest(
            client_id=_CLIENT, heartbeat_inbox=_HEARTBEATS, protocol=1, conn_id=_CONN_ID
        )
        discovery = Subjects.for_cluster(CLUSTER).discovery.encode()
        self._send(pub_frame(discovery, _ANSWERS, messages.encode(request)))
        end = time.monotonic() + _PATIENCE_S
        while not self._answers:
            if time.monotonic() > end:
                raise TimeoutError("the server does not answer a connect request")
            self._read(0.01)
        response = messages.parse(messages.ConnectResponse, self._answers[0])
        if response.error:
            raise RuntimeError(response.error.decode())
        self._prefix = response.pub_prefix
        self._next = time.monotonic()

    def run_for(self, seconds: float) -> None:
        """Go on publishing for this long."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self._step(now)

    def run_until_acked(self, since: float, patience: float = _PATIENCE_S) -> float:
        """Go on publishing until a publish that was sent after ``since`` is acked.

        Returns when that was.
        """
        end = time.monotonic() + patience
        first = len(self.record.sent)
        while first and self.record.sent[first - 1] > since:
            first -= 1
        while True:
            for n in range(first, len(self.record.sent)):
                if n in self.record.acked:
                    return self.record.acked[n]
            if time.monotonic() > end:
                raise TimeoutError("no publish is acknowledged any more")
            self._step(time.monotonic())

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def _step(self, now: float) -> None:
        if now >= self._next:
            self._publish()
            # Behind a pause of this process it goes on from now: no burst, which would hide what it
            # measures.
            self._next = max(self._next + self._every, now)
        self._read(max(self._next - time.monotonic(), 0.0))

    def _publish(self) -> None:
        n = len(self.record.sent)
        channel = self._channels[n % len(self._channels)]
        message = messages.PubMsg(
            client_id=_CLIENT, guid=b"%022d" % n, subject=channel, data=self._body, conn_id=_CONN_ID
        )
        self.record.sent.append(time.monotonic())
        self._send(pub_frame(self._prefix + b"." + channel, _ACKS, messages.encode(message)))

    def _send(self, data: bytes) -> None:
        self._link.send(data, 5.0)

    def _read(self, seconds: float) -> None:
        # Rounded up: a publish a little late is better than a generator that spins while servers
        # need the processor.
        if not self._poll.poll(math.ceil(seconds * 1000)):
            return
        with memoryview(self._buffer) as view:
            n = self._link.recv_into(view)
            events = self._parser.feed(view[:n])
        now = time.monotonic()
        for event in events:
            if event[0] == "PING":
                self._send(b"PONG\r\n")
            elif event[0] == "MSG":
                _, subject, _, reply, payload = event[:5]
                self._take(bytes(subject), bytes(reply), bytes(payload), now)

    def _take(self, subject: bytes, reply: bytes, payload: bytes, now: float) -> None:
        if subject == _HEARTBEATS:
            self._send(pub_frame(reply, b"", b""))
        elif subject == _ANSWERS:
            self._answers.append(payload)
        elif len(payload) == 24 and payload.startswith(_GUID_FIELD):
            self.record.acked.setdefault(int(payload[2:]), now)
