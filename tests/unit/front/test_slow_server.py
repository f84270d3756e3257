"""The order of two roads, with a NATS server that takes its time where it hurts: the test is the
server.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from ftstan.front.listener import LOOPBACK, Front
from tests.unit.front.sessions import LOGIN

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

INFO = b'INFO {"server_id":"x","max_payload":1000}\r\n'
_QUIET_S = 0.15


class Stage:
    """A listener, both ends of the core and of one client."""

    def __init__(self) -> None:
        self.front = Front(LOOPBACK, 0, max_line=0, max_pending=1 << 20)
        self.server = socket.create_server((LOOPBACK, self.front.server_port))
        self.front.be_direct(on=True)
        self.front.serve(on=True)
        self.front.listen()
        self.core = self.front.attach(socket.create_connection((LOOPBACK, self.front.server_port)))
        self.core_up, _ = self.server.accept()
        self.core.sendall(LOGIN + b"PING\r\nSUB core.> 1\r\n")
        self.core_up.sendall(INFO)
        expect(self.core_up, LOGIN + b"PING\r\nSUB core.> 1\r\n")
        self.core_up.sendall(b"PONG\r\n")
        expect(self.core, INFO + b"PONG\r\n")
        self.client = socket.create_connection((LOOPBACK, self.front.port))
        self.up, _ = self.server.accept()
        line = b"PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\n"
        expect(self.up, line % (self.client.getsockname()[1], self.front.port))
        self.up.sendall(INFO)
        expect(self.client, INFO)
        self.client.sendall(LOGIN + b"PING\r\n")
        expect(self.up, LOGIN + b"PING\r\n")
        self.up.sendall(b"PONG\r\n")
        expect(self.client, b"PONG\r\n")

    def close(self) -> None:
        for sock in (self.core, self.core_up, self.client, self.up, self.server):
            sock.close()
        self.front.stop()


def expect(sock: socket.socket, data: bytes) -> None:
    """These bytes come, and for a moment no others."""
    sock.settimeout(20)
    got = b""
    while len(got) < len(data):
        more = sock.recv(len(data) - len(got))
        assert more, got
        got += more
    assert got == data
    nothing(sock, 0.01)


def nothing(sock: socket.socket, seconds: float = _QUIET_S) -> None:
    sock.settimeout(seconds)
    with pytest.raises(TimeoutError):
        sock.recv(1000)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def test_a_subscription_waits_for_what_the_core_has_sent_to_nobody(stage: Stage) -> None:
    stage.core.sendall(b"PUB in.0 1\r\na\r\nPING\r\n")
    expect(stage.core_up, b"PUB in.0 1\r\na\r\nPING\r\n")
    stage.client.sendall(b"SUB in.0 7\r\nPING\r\n")
    expect(stage.core_up, b"PING\r\n")
    nothing(stage.up)
    # The answer to the core's own says nothing of it.
    stage.core_up.sendall(b"PONG\r\n")
    expect(stage.core, b"PONG\r\n")
    nothing(stage.up)
    stage.core_up.sendall(b"PONG\r\n")
    expect(stage.up, b"SUB in.0 7\r\nPING\r\n")
    nothing(stage.core)
    stage.core.sendall(b"PUB in.0 r 1\r\nb\r\n")
    expect(stage.client, b"MSG in.0 7 r 1\r\nb\r\n")
    nothing(stage.core_up)


def test_a_publish_waits_for_what_went_the_other_way(stage: Stage) -> None:
    stage.front.be_direct(on=False)
    stage.client.sendall(b"PUB core.a 1\r\na\r\n")
    expect(stage.up, b"PUB core.a 1\r\na\r\n")
    stage.front.be_direct(on=True)
    stage.client.sendall(b"PING\r\nPUB core.a 1\r\nb\r\nPING\r\n")
    expect(stage.up, b"PING\r\nPING\r\n")
    stage.up.sendall(b"PONG\r\n")
    expect(stage.client, b"PONG\r\n")
    nothing(stage.core)
    stage.up.sendall(b"PONG\r\n")
    nothing(stage.client)
    expect(stage.core_up, b"PING\r\n")
    nothing(stage.core)
    stage.core_up.sendall(b"MSG core.a 1 1\r\na\r\nPONG\r\n")
    expect(stage.core, b"MSG core.a 1 1\r\na\r\nMSG core.a 1 1\r\nb\r\n")
    expect(stage.up, b"PING\r\n")
    stage.client.sendall(b"PUB core.a 1\r\nc\r\n")
    expect(stage.core, b"MSG core.a 1 1\r\nc\r\n")
    nothing(stage.up)


def test_who_waits_goes_on_when_the_core_leaves(stage: Stage) -> None:
    stage.core.sendall(b"PUB in.0 1\r\na\r\n")
    expect(stage.core_up, b"PUB in.0 1\r\na\r\n")
    stage.client.sendall(b"SUB in.0 7\r\n")
    expect(stage.core_up, b"PING\r\n")
    stage.core.close()
    expect(stage.up, b"SUB in.0 7\r\n")
    stage.client.sendall(b"PUB core.a 1\r\na\r\n")
    expect(stage.up, b"PUB core.a 1\r\na\r\n")


def test_nobody_is_heard_before_the_nats_server_has_let_them_in(stage: Stage) -> None:
    late = socket.create_connection((LOOPBACK, stage.front.port))
    up, _ = stage.server.accept()
    with late, up:
        late.sendall(LOGIN + b"SUB in.0 7\r\nPUB core.a 1\r\na\r\n")
        port = late.getsockname()[1]
        proxied = b"PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\n" % (port, stage.front.port)
        expect(up, proxied)
        up.sendall(INFO)
        expect(late, INFO)
        expect(up, LOGIN + b"PING\r\n")
        stage.core.sendall(b"PUB in.0 1\r\na\r\n")
        expect(stage.core_up, b"PUB in.0 1\r\na\r\n")
        nothing(stage.core)
        up.sendall(b"-ERR 'Authorization Violation'\r\n")
        up.close()
        late.settimeout(20)
        assert late.recv(1000) == b"-ERR 'Authorization Violation'\r\n"
        assert late.recv(1000) == b""
    nothing(stage.core)


def test_what_was_limited_and_delivered_is_not_delivered_again(stage: Stage) -> None:
    stage.client.sendall(b"SUB in.0 7\r\nUNSUB 7 2\r\n")
    expect(stage.up, b"SUB in.0 7\r\nUNSUB 7 2\r\n")
    stage.core.sendall(b"PUB in.0 1\r\na\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\na\r\n")
    stage.up.sendall(b"MSG in.0 7 1\r\nb\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\nb\r\n")
    # It knows of one only.
    expect(stage.up, b"UNSUB 7\r\nPING\r\n")
    stage.up.sendall(b"MSG in.0 7 1\r\nc\r\nMSG in.1 8 1\r\nd\r\n")
    expect(stage.client, b"MSG in.1 8 1\r\nd\r\n")
    stage.client.sendall(b"SUB in.0 7\r\n")
    expect(stage.up, b"SUB in.0 7\r\n")
    stage.up.sendall(b"MSG in.0 7 1\r\ne\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\ne\r\n")


def forbidden(stage: Stage) -> None:
    """The client has a subscription, and a message of the core is with the NATS server."""
    stage.client.sendall(b"SUB in.0 7\r\n")
    expect(stage.up, b"SUB in.0 7\r\n")
    stage.front.forbid()
    stage.core.sendall(b"PUB in.0 1\r\na\r\n")
    expect(stage.core_up, b"PUB in.0 1\r\na\r\n")


def test_what_is_said_directly_again_waits_for_what_is_on_its_way(stage: Stage) -> None:
    forbidden(stage)
    stage.front.allow()
    expect(stage.core_up, b"PING\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nb\r\n")
    # The NATS server has not read all of the core's.
    nothing(stage.up)
    stage.core_up.sendall(b"PONG\r\n")
    expect(stage.up, b"PING\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nc\r\n")
    nothing(stage.client)
    # The answer to its PING comes behind that, and the subscription is not the one that was meant.
    stage.client.sendall(b"UNSUB 9\r\nPING\r\nUNSUB 7\r\nSUB in.1 7\r\n")
    expect(stage.up, b"UNSUB 9\r\n")
    stage.up.sendall(b"MSG in.0 7 1\r\na\r\nPONG\r\n")
    expect(stage.client, b"".join(b"MSG in.0 7 1\r\n%b\r\n" % text for text in (b"a", b"b", b"c")))
    expect(stage.up, b"PING\r\nUNSUB 7\r\nSUB in.1 7\r\n")
    stage.up.sendall(b"PONG\r\n")
    expect(stage.client, b"PONG\r\n")
    stage.core.sendall(b"PUB in.1 1\r\nd\r\n")
    expect(stage.client, b"MSG in.1 7 1\r\nd\r\n")
    nothing(stage.core_up)


def test_what_waits_counts_when_it_is_said(stage: Stage) -> None:
    forbidden(stage)
    stage.front.allow()
    expect(stage.core_up, b"PING\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nb\r\nPUB in.0 1\r\nc\r\n")
    stage.core_up.sendall(b"PONG\r\n")
    expect(stage.up, b"PING\r\n")
    stage.client.sendall(b"UNSUB 7 2\r\n")
    expect(stage.up, b"UNSUB 7 2\r\n")
    stage.up.sendall(b"MSG in.0 7 1\r\na\r\nPONG\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\na\r\nMSG in.0 7 1\r\nb\r\n")
    expect(stage.up, b"UNSUB 7\r\nPING\r\n")
    assert stage.front.status().direct_out == 1


def test_nobody_waits_for_a_core_that_has_gone(stage: Stage) -> None:
    forbidden(stage)
    stage.front.allow()
    expect(stage.core_up, b"PING\r\n")
    stage.client.sendall(b"SUB in.1 8\r\n")
    nothing(stage.up)
    stage.core.close()
    expect(stage.up, b"PING\r\n")
    stage.up.sendall(b"MSG in.0 7 1\r\na\r\nPONG\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\na\r\n")
    expect(stage.up, b"SUB in.1 8\r\n")


def test_who_would_hear_things_in_another_order_is_ended(stage: Stage) -> None:
    forbidden(stage)
    stage.front.allow()
    expect(stage.core_up, b"PING\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nb\r\n")
    nothing(stage.client)
    stage.front.forbid()
    stage.client.settimeout(20)
    assert stage.client.recv(1000) == b""


def test_who_has_nothing_waiting_stays_when_the_road_is_forbidden_once_more(stage: Stage) -> None:
    forbidden(stage)
    stage.front.allow()
    expect(stage.core_up, b"PING\r\n")
    stage.core_up.sendall(b"PONG\r\n")
    expect(stage.up, b"PING\r\n")
    stage.client.sendall(b"SUB in.1 8\r\n")
    nothing(stage.up)
    stage.front.forbid()
    expect(stage.up, b"SUB in.1 8\r\n")
    stage.core.sendall(b"PUB in.0 1\r\nb\r\n")
    expect(stage.core_up, b"PUB in.0 1\r\nb\r\n")
    stage.up.sendall(b"MSG in.0 7 1\r\na\r\nPONG\r\nMSG in.0 7 1\r\nb\r\n")
    expect(stage.client, b"MSG in.0 7 1\r\na\r\nMSG in.0 7 1\r\nb\r\n")
