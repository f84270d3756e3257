"""A load generator over one raw NATS connection: frames are prepared in bulk, answers are only counted."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ftstan.clock import SystemClock
from ftstan.nats.link import Link
from ftstan.wire import messages
from ftstan.wire.frames import Parser, pub_frame

_CHUNK = 256

CONN_ID = b"bench-connection"
CHANNEL = b"bench"


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` messages in ``seconds``."""

    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Messages per second."""
        return self.count / self.seconds


class Generator:
    """Sends prepared frames and counts what comes back; at most ``window`` are unanswered."""

    def __init__(self, url: str, window: int = 4096) -> None:
        self._link = Link([url], name="bench", clock=SystemClock())
        self._link.connect(5.0)
        self._parser = Parser(self._link.max_payload)
        self._window = window
        self._buffer = bytearray(1 << 20)

    def write(self, data: bytes) -> None:
        """Send protocol bytes as they are."""
        self._link.send(data, 10.0)

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def read(self) -> int:
        """The number of messages that have arrived."""
        n = self._link.recv_into(memoryview(self._buffer))
        return self._parser.count_messages(memoryview(self._buffer)[:n]) if n else 0

    def request(self, subject: bytes, payload: bytes, inbox: bytes) -> bytes:
        """One request; returns the payload of the answer."""
        self.write(b"SUB %b 9\r\n" % inbox + pub_frame(subject, inbox, payload))
        parser = Parser(self._link.max_payload)
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            n = self._link.recv_into(memoryview(self._buffer))
            for event in parser.feed(memoryview(self._buffer)[:n]):
                if event[0] == "MSG":
                    self.write(b"UNSUB 9\r\n")
                    return bytes(event[4])
            time.sleep(0.001)
        raise TimeoutError("no answer")

    def connect(self) -> bytes:
        """Register with the server under test; returns its publish prefix. Acks are counted from here on."""
        request = messages.ConnectRequest(
            client_id=b"bench", heartbeat_inbox=b"bench.heartbeats", protocol=1, conn_id=CONN_ID
        )
        answer = self.request(b"_STAN.discover.test-cluster", messages.encode(request), b"bench.connect")
        self.write(b"SUB bench.acks 1\r\n")
        prefix: bytes = messages.parse(messages.ConnectResponse, answer).pub_prefix
        return prefix

    def publish(self, prefix: bytes, *, count: int, size: int, start: int) -> Rate:
        """Publish and wait for every ack."""
        return self.run(publishes(prefix, CONN_ID, count=count, size=size, start=start))

    def replay(self, count: int) -> Rate:
        """Subscribe from the first message with a window for all, and wait for ``count`` messages."""
        inbox = b"bench.replay.%d" % time.monotonic_ns()
        request = messages.SubscriptionRequest(
            client_id=b"bench",
            subject=CHANNEL,
            inbox=inbox,
            max_in_flight=2 * count,
            ack_wait_in_secs=3600,
            start_position=messages.StartPosition.FIRST,
        )
        self.write(b"SUB %b 7\r\n" % inbox)
        payload = messages.encode(request)
        started = time.perf_counter()
        self.write(pub_frame(b"_STAN.sub.test-cluster", b"bench.unread", payload))
        got = 0
        while got < count:
            got += self._wait()
        rate = Rate(count, time.perf_counter() - started)
        self.write(b"UNSUB 7\r\n")
        return rate

    def run(self, frames: list[bytes]) -> Rate:
        """Send every frame, wait for as many answers."""
        sent = answered = 0
        total = len(frames)
        chunks = [b"".join(frames[i : i + _CHUNK]) for i in range(0, total, _CHUNK)]
        started = time.perf_counter()
        for i, chunk in enumerate(chunks):
            while sent - answered > self._window - _CHUNK:
                answered += self._wait()
            self.write(chunk)
            sent = min((i + 1) * _CHUNK, total)
            answered += self.read()
        while answered < total:
            answered += self._wait()
        return Rate(total, time.perf_counter() - started)

    def _wait(self) -> int:
        n = self.read()
        if not n:
            time.sleep(0.0001)
        return n


def publishes(prefix: bytes, conn_id: bytes, *, count: int, size: int, start: int) -> list[bytes]:
    """PUB frames of ``count`` STAN publishes of ``size`` bytes, acked on the subject ``bench.acks``."""
    subject = prefix + b"." + CHANNEL
    body = b"x" * size
    return [
        pub_frame(
            subject,
            b"bench.acks",
            messages.encode(
                messages.PubMsg(
                    client_id=b"bench", guid=b"g%021d" % (start + i), subject=CHANNEL, data=body, conn_id=conn_id
                )
            ),
        )
        for i in range(count)
    ]
