"""Schedules and strangers that the listener has to stand: the test is the NATS server."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from ftstan.front.listener import LOOPBACK
from tests.unit.front.sessions import LOGIN
from tests.unit.front.test_slow_server import INFO, Stage, expect, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

_RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def reset(sock: socket.socket) -> None:
    """End it as a process that is killed does, with bytes that it has not read."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


def attach(stage: Stage) -> tuple[socket.socket, socket.socket]:
    """A core that connects anew, and is let in; returns both ends."""
    core = stage.front.attach(socket.create_connection((LOOPBACK, stage.front.server_port)))
    up, _ = stage.server.accept()
    core.sendall(LOGIN + b"PING\r\nSUB core.> 1\r\n")
    up.sendall(INFO)
    expect(up, LOGIN + b"PING\r\nSUB core.> 1\r\n")
    up.sendall(b"PONG\r\n")
    expect(core, INFO + b"PONG\r\n")
    return core, up


def test_a_fence_stands_behind_what_came_in_the_same_read(stage: Stage) -> None:
    before = b"SUB core.a 7\r\nPUB core.a 1\r\na\r\nUNSUB 7\r\n"
    stage.client.sendall(before + b"PUB core.a 1\r\nb\r\n")
    # The answer to a PING in front of "a" would say nothing of it.
    expect(stage.up, before + b"PING\r\n")


def test_a_fence_is_not_passed_by_an_answer_to_an_older_one(stage: Stage) -> None:
    stage.front.be_direct(on=False)
    stage.client.sendall(b"PUB core.a 1\r\na\r\n")
    expect(stage.up, b"PUB core.a 1\r\na\r\n")
    stage.front.be_direct(on=True)
    stage.client.sendall(b"PUB core.a 1\r\nb\r\n")
    expect(stage.up, b"PING\r\n")
    stage.core.close()
    # It may be held until the PING is answered, or go on: then that answer is older than "b".
    stage.up.settimeout(0.3)
    gone_on = b""
    with contextlib.suppress(TimeoutError):
        gone_on = stage.up.recv(1000)
    core, core_up = attach(stage)
    with core, core_up:
        stage.client.sendall(b"PUB core.a 1\r\nc\r\n")
        nothing(stage.up)
        stage.up.sendall(b"PONG\r\n")
        if gone_on:
            assert gone_on == b"PUB core.a 1\r\nb\r\n"
            # The NATS server has not read "b" yet: the core must not be asked before it has.
            nothing(core_up)
            expect(stage.up, b"PING\r\n")


def test_the_former_core_s_answer_opens_no_fence_of_the_next_one(stage: Stage) -> None:
    stage.core.sendall(b"PUB in.0 1\r\na\r\n")
    expect(stage.core_up, b"PUB in.0 1\r\na\r\n")
    stage.client.sendall(b"SUB in.0 7\r\n")
    expect(stage.core_up, b"PING\r\n")
    # It leaves by itself: its other half stands until the NATS server has read all.
    stage.core.close()
    expect(stage.up, b"SUB in.0 7\r\n")
    core, core_up = attach(stage)
    with core, core_up:
        core.sendall(b"PUB in.1 1\r\nb\r\n")
        expect(core_up, b"PUB in.1 1\r\nb\r\n")
        stage.client.sendall(b"SUB in.1 8\r\n")
        expect(core_up, b"PING\r\n")
        stage.core_up.sendall(b"PONG\r\n")
        nothing(stage.up)
        core_up.sendall(b"PONG\r\n")
        expect(stage.up, b"SUB in.1 8\r\n")


def test_nobody_is_connected_a_second_time_without_a_name(stage: Stage) -> None:
    with socket.create_connection((LOOPBACK, stage.front.port)) as client:
        up, _ = stage.server.accept()
        line = b"PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\n"
        expect(up, line % (client.getsockname()[1], stage.front.port))
        # Killed while the connection waited to be greeted: else the client says where it is from.
        reset(up)
        client.settimeout(20)
        assert client.recv(10) == b""


def test_a_limit_that_is_reached_is_withdrawn_behind_its_subscription(stage: Stage) -> None:
    stage.core.sendall(b"PUB in.0 1\r\na\r\n")
    expect(stage.core_up, b"PUB in.0 1\r\na\r\n")
    stage.client.sendall(b"SUB in.0 7\r\nUNSUB 7 1\r\n")
    expect(stage.core_up, b"PING\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nb\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\nb\r\n")
    stage.core_up.sendall(b"PONG\r\n")
    # An UNSUB in front of the SUB leaves the NATS server with a subscription.
    expect(stage.up, b"SUB in.0 7\r\nUNSUB 7 1\r\nUNSUB 7\r\nPING\r\n")


def test_many_limits_that_are_reached_are_remembered(stage: Stage) -> None:
    count = 40
    lines = b"".join(b"SUB in.%d %d\r\nUNSUB %d 1\r\n" % (n, n, n) for n in range(count))
    stage.client.sendall(lines)
    expect(stage.up, lines)
    stage.core.sendall(b"".join(b"PUB in.%d 1\r\na\r\n" % n for n in range(count)))
    expect(stage.client, b"".join(b"MSG in.%d %d 1\r\na\r\n" % (n, n) for n in range(count)))
    ended = [b"UNSUB %d\r\n" % n for n in range(count)]
    expect(stage.up, ended[0] + b"PING\r\n" + b"".join(ended[1:]))
    # They were on their way before that came.
    stage.up.sendall(b"".join(b"MSG in.%d %d 1\r\nb\r\n" % (n, n) for n in range(count)))
    nothing(stage.client)
