"""What has come in time is heard before the timer that would count it as missing, however long
storage took meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import Broker, BrokerOptions
from ftstan.node.pipeline import Serving
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from ftstan.wire.nuid import Nuid
from tests.compat.driver import SUBJECTS, connect_request, pub_msg

if TYPE_CHECKING:
    import pytest


class Wire:
    """A link whose other end is the test."""

    connected = True
    pending = False
    leftover = b""
    max_payload = 1 << 20
    url_shown = "nats"

    def __init__(self) -> None:
        self.to_server = bytearray()
        self.said = bytearray()

    def fileno(self) -> int:
        return 1

    def send(self, data: bytes, _: float) -> None:
        self.said += bytes(data)

    def recv_into(self, place: memoryview) -> int:
        n = min(len(self.to_server), len(place))
        place[:n] = self.to_server[:n]
        del self.to_server[:n]
        return n

    def close(self) -> None:
        raise AssertionError


class Stalls(MemoryStore):
    """Its next commit takes long."""

    stall = 0.0
    clock: ManualClock

    def commit(self) -> dict:  # type: ignore[type-arg]
        self.clock.advance(self.stall)
        self.stall = 0.0
        return super().commit()


def frame(sid: int, subject: str | bytes, payload: bytes, reply: bytes = b"") -> bytes:
    name = subject.encode() if isinstance(subject, str) else subject
    words = b" ".join(w for w in (b"MSG", name, b"%d" % sid, reply, b"%d" % len(payload)) if w)
    return words + b"\r\n" + payload + b"\r\n"


def test_a_client_that_answers_in_time_keeps_its_id_when_storage_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    store = Stalls()
    store.clock = clock
    broker = Broker(store, SUBJECTS, BrokerOptions(), Nuid())
    broker.recover(store.recover(), clock.wall_ns(), round(clock.mono() * 1e9))
    wire = Wire()
    server = Serving(store, broker, wire, clock, "t", suspicion_s=60)  # type: ignore[arg-type]
    feed = broker.feed

    def timed(*words: object) -> int:
        """Applying takes as long as it does."""
        before = time.perf_counter()
        end = feed(*words)  # type: ignore[arg-type]
        clock.advance(time.perf_counter() - before)
        return end

    monkeypatch.setattr(server, "broker", _With(broker, timed))
    server.open_link()
    wire.to_server += b"PONG\r\n"
    server.turn(readable=True)
    wire.to_server += frame(2, SUBJECTS.discovery, connect_request(b"me", b"hb.me", b"c1"), b"r1")
    server.turn(readable=True)
    first = broker.clients.get(b"me")
    assert first is not None
    # Somebody else asks for the id; the client is asked, and answers behind what others publish.
    wire.said.clear()
    wire.to_server += frame(2, SUBJECTS.discovery, connect_request(b"me", b"hb.2", b"c2"), b"r2")
    server.turn(readable=True)
    asked = wire.said.split(b"PUB hb.me ", 1)[1].split(b" ", 1)[0]
    one = pub_msg(b"g", b"foo", b"x" * 100, client_id=b"me")
    # Somebody whose client was closed goes on publishing: that costs more than a publish.
    other = pub_msg(b"g", b"foo", b"x" * 100, client_id=b"gone")
    wire.to_server += frame(1, f"{SUBJECTS.publish}.foo", one, b"a") * 10
    store.stall = 0.6
    server.turn(readable=True)
    # It arrived while the disk was slow: well within half a second.
    wire.to_server += frame(1, f"{SUBJECTS.publish}.foo", other, b"a") * 20_000
    wire.to_server += frame(8, bytes(asked), b"")
    for _ in range(400):
        server.turn(readable=bool(wire.to_server))
        if not wire.to_server and server._end == server._start:
            break
    assert broker.clients.get(b"me") is first
    answers = [part.split(b"\r\n", 2)[1] for part in bytes(wire.said).split(b"PUB r2 ")[1:]]
    assert len(answers) == 1
    assert messages.parse(messages.ConnectResponse, answers[0]).error


class _With:
    """A broker whose ``feed`` is another one."""

    def __init__(self, broker: Broker, feed: object) -> None:
        object.__setattr__(self, "_broker", broker)
        object.__setattr__(self, "feed", feed)

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._broker, name, value)
