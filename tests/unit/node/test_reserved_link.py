"""The connection that a standby keeps for the day on which it serves."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock, SystemClock
from ftstan.nats.link import Link
from ftstan.nats.pulse import ANSWER_WITHIN_S, ASK_AFTER_S
from ftstan.node.reserved_link import ReservedLink

if TYPE_CHECKING:
    from collections.abc import Iterator

INFO = b'INFO {"server_id":"x","max_payload":1048576}\r\n'


class Server:
    """A NATS server of few words: it lets in whoever comes, and says what the test wants."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self.listener.getsockname()[1]}"
        self.refusal = b""
        self.behind = b""
        """What follows the handshake in the same breath."""
        self.clients: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            client.settimeout(10)
            client.sendall(INFO + self.refusal)
            if self.refusal:
                client.close()
                continue
            read = b""
            while not read.endswith(b"PING\r\n"):
                read += client.recv(4096)
            client.sendall(b"PONG\r\n" + self.behind)
            self.clients.append(client)

    def say(self, data: bytes) -> None:
        self.clients[-1].sendall(data)

    def hear(self) -> bytes:
        return self.clients[-1].recv(4096)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()
        for client in self.clients:
            client.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def link_to(server: Server) -> Link:
    return Link([server.url], name="test", clock=SystemClock())


def connected(server: Server, clock: ManualClock) -> tuple[Link, ReservedLink]:
    link = link_to(server)
    reserved = ReservedLink(link, clock)
    reserved.turn(readable=False)
    assert link.connected
    while not server.clients:
        pass
    return link, reserved


def arrives(link: Link, reserved: ReservedLink) -> None:
    link.wait(10)
    reserved.turn(readable=True)


def test_it_connects_at_once_and_answers_the_server(server: Server, clock: ManualClock) -> None:
    link, reserved = connected(server, clock)
    server.say(b"PING\r\n")
    arrives(link, reserved)
    assert server.hear() == b"PONG\r\n"
    server.say(b'INFO {"max_payload":4096}\r\n')
    arrives(link, reserved)
    assert link.max_payload == 4096
    assert link.connected


def test_what_came_behind_the_handshake_is_read_too(server: Server, clock: ManualClock) -> None:
    server.behind = b"PING\r\nPI"
    link, reserved = connected(server, clock)
    # It may be in the handshake's bytes, or come behind them.
    while link.fileno() >= 0 and not reserved._parser.unfinished:
        arrives(link, reserved)
    assert server.hear() == b"PONG\r\n"
    reserved.hand_on()
    assert link.connected
    assert link.leftover == b"PI"


def test_a_silent_server_is_asked_and_one_that_does_not_answer_is_left(
    server: Server, clock: ManualClock
) -> None:
    link, reserved = connected(server, clock)
    clock.advance(ASK_AFTER_S)
    assert reserved.timeout() == 0
    reserved.turn(readable=False)
    assert server.hear() == b"PING\r\n"
    server.say(b"PONG\r\n")
    arrives(link, reserved)
    for _ in range(20):
        clock.advance(0.5)
        reserved.turn(readable=False)
    assert len(server.clients) > 1 or not link.connected


def test_time_in_which_nobody_looked_does_not_count(server: Server, clock: ManualClock) -> None:
    link, reserved = connected(server, clock)
    clock.advance(ASK_AFTER_S)
    reserved.turn(readable=False)
    clock.advance(10 * ANSWER_WITHIN_S)
    reserved.turn(readable=False)
    assert link.connected
    assert len(server.clients) == 1


def test_nobody_is_given_a_link_with_an_answer_on_its_way(
    server: Server, clock: ManualClock
) -> None:
    link, reserved = connected(server, clock)
    clock.advance(ASK_AFTER_S)
    reserved.turn(readable=False)
    threading.Timer(0.05, lambda: server.say(b"PONG\r\nPI")).start()
    reserved.hand_on()
    assert link.connected
    assert link.leftover == b"PI"
    assert link.recv_into(memoryview(bytearray(100))) == 0


def test_where_the_answer_does_not_come_the_link_is_closed(server: Server) -> None:
    link = link_to(server)
    clock = SystemClock()
    reserved = ReservedLink(link, clock)
    reserved.turn(readable=False)
    end = clock.mono() + 20
    while not reserved._asked and clock.mono() < end:
        reserved.turn(readable=False)
    began = clock.mono()
    reserved.hand_on()
    assert not link.connected
    assert clock.mono() - began < 5


@pytest.mark.parametrize("words", [b"MSG a 1 2\r\nhi\r\n", b"-ERR 'Stale'\r\n", b"\0\0\r\n"])
def test_a_link_on_which_something_else_arrives_is_made_anew(
    server: Server, clock: ManualClock, words: bytes
) -> None:
    link, reserved = connected(server, clock)
    server.say(words)
    arrives(link, reserved)
    assert not link.connected
    assert reserved.timeout() == 0
    reserved.turn(readable=False)
    assert link.connected


def test_where_there_is_no_room_it_tries_again_and_tells_it_once(
    server: Server, clock: ManualClock, capfd: pytest.CaptureFixture[str]
) -> None:
    server.refusal = b"-ERR 'maximum connections exceeded'\r\n"
    link = link_to(server)
    reserved = ReservedLink(link, clock)
    waits = []
    for _ in range(6):
        reserved.turn(readable=False)
        waits.append(reserved.timeout())
        clock.advance(reserved.timeout())
    assert waits == [0.5, 1, 2, 4, 8, 8]
    server.refusal = b""
    reserved.turn(readable=False)
    assert link.connected
    told = [line for line in capfd.readouterr().err.splitlines() if "would serve" in line]
    assert len(told) == 2
    assert "maximum connections exceeded" in told[0]
    assert told[1].endswith("ft: the connection to NATS on which this member would serve is there")
