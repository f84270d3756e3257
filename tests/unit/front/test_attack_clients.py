"""One client of the listener against all others, and clients that wait for a core that hangs."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.front.listener import LOOPBACK
from tests.memory import grown_since, resident
from tests.unit.front.sessions import Place, place
from tests.unit.front.test_slow_server import Stage, expect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

_BLANKS = b" " * (1 << 20)
_TIMES = 64


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


@pytest.fixture
def through(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path / "through") as made:
        yield made


def _blanks(through: Place, verb: bytes) -> socket.socket:
    """A connection that has not logged in, and has sent blanks behind a verb."""
    sock = socket.create_connection((LOOPBACK, through.front.port))
    sock.settimeout(2)
    with contextlib.suppress(OSError):
        sock.sendall(verb)
        for _ in range(_TIMES):
            sock.sendall(_BLANKS)
    return sock


@pytest.mark.parametrize("verb", [b"PUB", b"PING", b"SUB"])
def test_blanks_behind_a_verb_do_not_fill_the_memory(through: Place, verb: bytes) -> None:
    before = resident()
    with _blanks(through, verb):
        assert grown_since(before) < 16 << 20


def test_many_queue_groups_of_one_client_do_not_stop_all_others(through: Place) -> None:
    core = through.core(b"SUB core.> 1\r\n")
    greedy = through.client()
    greedy.send(b"".join(b"SUB in.a group%d %d\r\n" % (i, i) for i in range(4000)))
    greedy.settle()
    other = through.client()
    other.settle()
    core.send(b"PUB in.a 1\r\nx\r\n" * 10)
    core.settle()
    other.settle()
    greedy.settle()
    # Each group has a member, which gets each message; who that is the NATS server finds out.
    assert len(greedy.messages) == 40_000
    assert through.front.status().direct_out == 0
    assert [what for what, _ in through.front.read_events()] == ["crowd"]


def test_who_waits_for_a_core_that_hangs_goes_on_when_it_serves_no_more(stage: Stage) -> None:
    message = b"PUB core.a 1000\r\n" + b"x" * 1000 + b"\r\n"
    stage.client.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while True:
            stage.client.sendall(message * 100)
    # Another member of the group has taken over; this one's core reads nothing.
    stage.front.be_direct(on=False)
    stage.up.settimeout(5)
    assert stage.up.recv(1000)


def test_what_a_client_sent_before_it_left_is_not_dropped_while_it_is_held(stage: Stage) -> None:
    stage.front.be_direct(on=False)
    stage.client.sendall(b"PUB core.a 1\r\na\r\n")
    expect(stage.up, b"PUB core.a 1\r\na\r\n")
    stage.front.be_direct(on=True)
    stage.client.sendall(b"PUB core.a 1\r\nb\r\n")
    expect(stage.up, b"PING\r\n")
    # It closes without reading what is there: the listener is told while it holds the connection.
    stage.up.sendall(b"PING\r\n")
    time.sleep(0.1)
    stage.client.close()
    stage.up.settimeout(2)
    assert stage.up.recv(1000) == b"PUB core.a 1\r\nb\r\n"
