"""What a successor keeps while the owner is leaving."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.nats.embedded import NatsServerChild, NatsServerOptions
from ftstan.nats.link import Link
from ftstan.node import handover_buffer as module
from ftstan.node.handover_buffer import HandoverBuffer
from ftstan.wire.frames import Parser, pub_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK = SystemClock()


@pytest.fixture
def url() -> Iterator[str]:
    loop = asyncio.new_event_loop()
    child = NatsServerChild(NatsServerOptions(cluster_id="c", host="127.0.0.1", port=-1))
    loop.run_until_complete(child.start())
    yield child.client_url
    loop.run_until_complete(child.stop())
    loop.close()


def link_to(url: str) -> Link:
    return Link([url], name="test", clock=CLOCK)


def publish(url: str, *payloads: bytes) -> None:
    sender = link_to(url)
    sender.connect(5.0)
    sender.send(
        b"".join(pub_frame(b"pub.foo", b"reply", payload) for payload in payloads) + b"PING\r\n",
        5.0,
    )
    parser = Parser()
    buffer = bytearray(4096)
    while not any(
        event[0] == "PONG"
        for event in parser.feed(bytes(buffer[: sender.recv_into(memoryview(buffer))]))
    ):
        pass
    sender.close()


def keep(buffer: HandoverBuffer, count: int) -> list[bytes]:
    """Let the buffer read until ``count`` messages are there; hands them on."""
    end = CLOCK.mono() + 20
    while CLOCK.mono() < end:
        buffer.turn(readable=True)
        kept = [
            event[4] for event in Parser(1 << 20).feed(bytes(buffer._data)) if event[0] == "MSG"
        ]
        if len(kept) >= count:
            break
    return kept


def test_what_is_published_after_open_is_kept_as_it_came_and_the_link_goes_on(url: str) -> None:
    buffer = HandoverBuffer(link_to(url), CLOCK, [(b"pub.>", 1)])
    buffer.open()
    publish(url, b"one", b"two\r\nPONG\r\n")
    assert keep(buffer, 2) == [b"one", b"two\r\nPONG\r\n"]
    ahead = buffer.hand_on({(b"x", b"foo"): 2})
    events = Parser(1 << 20).feed(ahead.data)
    assert [event[0] for event in events if event[0] != "INFO"] == ["PONG", "MSG", "MSG"]
    assert (ahead.pongs, ahead.answered) == (1, {(b"x", b"foo"): 2})
    assert buffer.link.connected
    buffer.link.close()


def test_giving_up_counts_what_was_kept_and_leaves_the_link(url: str) -> None:
    buffer = HandoverBuffer(link_to(url), CLOCK, [(b"pub.>", 1)])
    buffer.open()
    publish(url, b"one", b"two", b"three")
    keep(buffer, 3)
    assert buffer.give_up("why") == 3
    assert (buffer.broken, buffer.link.connected) == ("why", True)
    assert buffer.give_up("another") == 3
    buffer.link.close()


def test_more_than_the_limit_makes_all_of_it_worthless(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 1 << 20)
    buffer = HandoverBuffer(link_to(url), CLOCK, [(b"pub.>", 1)])
    buffer.open()
    publish(url, *[bytes(100_000)] * 20)
    end = CLOCK.mono() + 20
    while not buffer.broken and CLOCK.mono() < end:
        buffer.turn(readable=True)
    assert buffer.broken == "more than 1.0 MiB arrived"
    assert buffer.link.connected
    assert buffer.give_up("too late") >= 10
    buffer.link.close()


def test_what_arrives_behind_the_limit_is_counted_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT", 1 << 20)
    monkeypatch.setattr(module, "_CHUNK", 1 << 18)
    buffer = HandoverBuffer(link_to(url), CLOCK, [(b"pub.>", 1)])
    buffer.open()
    # All of it is on its way before any of it is read.
    publish(url, *[bytes(100_000)] * 20)
    end = CLOCK.mono() + 20
    while not buffer.broken and CLOCK.mono() < end:
        buffer.turn(readable=True)
    while buffer.leave_link()._drops and CLOCK.mono() < end:
        buffer.turn(readable=True)
    assert buffer.broken == "more than 1.0 MiB arrived"
    assert buffer.give_up("too late") == 20
    buffer.link.close()


def test_a_lost_link_makes_all_of_it_worthless(url: str) -> None:
    buffer = HandoverBuffer(link_to(url), CLOCK, [(b"pub.>", 1)])
    buffer.open()
    buffer.link.close()
    buffer.turn(readable=True)
    assert buffer.broken
