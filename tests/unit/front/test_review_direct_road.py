"""Schedules that once broke the order of two roads, or let somebody take them who may not: the test
is the NATS server.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.front.listener import LOOPBACK
from tests.unit.front.sessions import CORE, LOGIN, PATIENCE_S, place, pub
from tests.unit.front.test_slow_server import INFO, Stage, expect, forbidden, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

_CROWD = 100_000
_REQUESTS = 1000


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def returned(stage: Stage) -> None:
    """The direct road is allowed again, and the client's PING is under way."""
    forbidden(stage)
    stage.front.allow()
    expect(stage.core_up, b"PING\r\n")
    stage.core_up.sendall(b"PONG\r\n")
    expect(stage.up, b"PING\r\n")


def test_a_client_hears_no_answer_to_a_ping_of_a_former_return(stage: Stage) -> None:
    returned(stage)
    stage.front.forbid()
    stage.front.allow()
    expect(stage.up, b"PING\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nb\r\n")
    stage.up.sendall(b"PONG\r\n")
    nothing(stage.client)
    stage.up.sendall(b"MSG in.0 7 1\r\na\r\nPONG\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\na\r\nMSG in.0 7 1\r\nb\r\n")
    stage.client.sendall(b"PING\r\n")
    expect(stage.up, b"PING\r\n")
    stage.up.sendall(b"PONG\r\n")
    expect(stage.client, b"PONG\r\n")


def test_the_answer_to_a_ping_of_a_former_return_opens_no_fence(stage: Stage) -> None:
    returned(stage)
    stage.front.forbid()
    stage.client.sendall(b"PUB core.a 1\r\na\r\n")
    expect(stage.up, b"PUB core.a 1\r\na\r\n")
    stage.front.allow()
    expect(stage.up, b"PING\r\n")
    stage.client.sendall(b"PUB core.a 1\r\nb\r\n")
    expect(stage.up, b"PING\r\n")
    # It stands in front of "a".
    stage.up.sendall(b"PONG\r\n")
    nothing(stage.core_up)
    stage.up.sendall(b"PONG\r\nPONG\r\n")
    expect(stage.core_up, b"PING\r\n")
    stage.core_up.sendall(b"MSG core.a 1 1\r\na\r\nPONG\r\n")
    expect(stage.core, b"MSG core.a 1 1\r\na\r\nMSG core.a 1 1\r\nb\r\n")
    nothing(stage.client)


def test_a_client_s_own_request_does_not_end_its_direct_road(stage: Stage) -> None:
    stage.front.be_direct(on=False)
    request = b"PUB core.a in.0 1\r\n%b\r\n"
    stage.client.sendall(b"SUB in.0 7\r\n" + request % b"a")
    expect(stage.up, b"SUB in.0 7\r\n" + request % b"a")
    stage.front.be_direct(on=True)
    stage.client.sendall(request % b"b")
    expect(stage.up, b"PING\r\n")
    # The NATS server has told the client first.
    stage.up.sendall(b"PONG\r\n")
    expect(stage.core_up, b"PING\r\n")
    heard = b"MSG core.a 1 in.0 1\r\n%b\r\n"
    stage.core_up.sendall(heard % b"a" + b"PONG\r\n")
    expect(stage.core, heard % b"a" + heard % b"b")
    stage.core.sendall(b"PUB in.0 1\r\nc\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\nc\r\n")


def test_nothing_overtakes_what_is_kept_when_a_client_s_own_request_comes(stage: Stage) -> None:
    forbidden(stage)
    request = b"PUB core.a in.0 1\r\n%b\r\n"
    stage.client.sendall(request % b"x")
    expect(stage.up, request % b"x")
    stage.front.allow()
    expect(stage.core_up, b"PING\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nb\r\n")
    nothing(stage.core_up)
    stage.client.sendall(request % b"y")
    expect(stage.up, b"PING\r\n")
    stage.up.sendall(b"PONG\r\n")
    nothing(stage.core_up)
    stage.core_up.sendall(b"MSG core.a 1 in.0 1\r\nx\r\nPONG\r\n")
    expect(stage.core_up, b"PING\r\n")
    expect(stage.core, b"MSG core.a 1 in.0 1\r\nx\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nc\r\n")
    # Through the NATS server it could come in front of "b".
    nothing(stage.core_up)


def test_who_was_ended_by_the_nats_server_is_not_heard_by_not_reading(stage: Stage) -> None:
    block = b"MSG in.0 7 20000\r\n" + b"x" * 20_000 + b"\r\n"
    sent = 0
    is_read = True
    while is_read:
        stage.up.sendall(block)
        sent += 1
        end = time.monotonic() + 2
        while is_read and stage.front.status().passed_out < sent:
            is_read = time.monotonic() < end
            time.sleep(0.001)
    # Its login has been taken away.
    stage.up.close()
    nothing(stage.core, 0.5)
    stage.client.sendall(b"PUB core.a 1\r\na\r\n")
    nothing(stage.core, 0.5)
    stage.client.settimeout(PATIENCE_S)
    got = 0
    with contextlib.suppress(ConnectionError):
        while more := stage.client.recv(1 << 20):
            got += len(more)
    assert got >= (sent - 1) * len(block)


def test_what_comes_directly_does_not_keep_the_core_from_hearing_the_nats_server(
    stage: Stage,
) -> None:
    stage.core.sendall(b"PUB in.0 1\r\na\r\n")
    expect(stage.core_up, b"PUB in.0 1\r\na\r\n")
    other = socket.create_connection((LOOPBACK, stage.front.port))
    up, _ = stage.server.accept()
    with other, up:
        line = b"PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\n"
        expect(up, line % (other.getsockname()[1], stage.front.port))
        up.sendall(INFO)
        expect(other, INFO)
        other.sendall(LOGIN + b"PING\r\n")
        expect(up, LOGIN + b"PING\r\n")
        up.sendall(b"PONG\r\n")
        expect(other, b"PONG\r\n")
        # As much as may wait; ``max_pending`` is 1 MiB here.
        stage.client.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while True:
                stage.client.sendall(pub(b"core.a", b"x" * 1000) * 50)
        other.sendall(b"SUB in.0 7\r\n")
        expect(stage.core_up, b"PING\r\n")
        stage.core_up.sendall(b"PONG\r\n")
        expect(up, b"SUB in.0 7\r\n")


def test_a_crowd_costs_nothing_for_requests_that_come_through_the_nats_server(
    tmp_path: Path,
) -> None:
    with place(tmp_path / "through") as through:
        core = through.core(CORE)
        crowd, client = through.client(), through.client()
        through.front.forbid()
        for start in range(0, _CROWD, 10_000):
            numbers = range(start, start + 10_000)
            crowd.send(b"".join(b"SUB *.x%d %d\r\n" % (n, n) for n in numbers))
            crowd.settle()
        before = time.process_time()
        client.send(pub(b"core.a", b"", b"in.0") * _REQUESTS)
        core.wait_for(_REQUESTS)
        # Looking for it among all of these takes half a millisecond, in which nobody is served.
        assert time.process_time() - before < _REQUESTS * 0.0002
        assert [what for what, _ in through.front.read_events()] == ["crowd"]
        assert through.front.is_forbidden_for_good
