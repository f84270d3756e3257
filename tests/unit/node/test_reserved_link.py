"""The connection that a standby keeps for the day on which it serves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from ftstan.base.clock import ManualClock, SystemClock
from ftstan.nats.link import Link
from ftstan.nats.pulse import ANSWER_WITHIN_S, ASK_AFTER_S
from ftstan.node import handover_buffer
from ftstan.node.handover import Handover
from ftstan.node.handover_buffer import HandoverBuffer
from ftstan.node.reserved_link import ReservedLink
from tests.processes import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
            with contextlib.suppress(OSError):  # of who has left again
                self._greet(client)

    def _greet(self, client: socket.socket) -> None:
        client.settimeout(10)
        client.sendall(INFO + self.refusal)
        if self.refusal:
            client.close()
            return
        read = b""
        while not read.endswith(b"PING\r\n"):
            if not (more := client.recv(4096)):
                client.close()
                return
            read += more
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


def reach(reserved: ReservedLink, clock: ManualClock | SystemClock) -> None:
    """One attempt to connect, to its end."""
    reserved.turn(readable=False)
    while (begun := reserved._reach) is not None:
        until(lambda begun=begun: begun.is_over, "an open connection")  # type: ignore[misc]
        if isinstance(clock, ManualClock):
            clock.advance(reserved.timeout())
        until(lambda: reserved.timeout() == 0, "the next look")
        reserved.turn(readable=False)


def connected(server: Server, clock: ManualClock) -> tuple[Link, ReservedLink]:
    link = link_to(server)
    reserved = ReservedLink(link, clock)
    reach(reserved, clock)
    assert link.connected
    until(lambda: server.clients, "the server's side")
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
        if not link.connected:
            break
    assert not link.connected
    assert reserved.timeout() > 0


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


@pytest.mark.slow
def test_where_the_answer_does_not_come_the_link_is_closed(server: Server) -> None:
    link = link_to(server)
    clock = SystemClock()
    reserved = ReservedLink(link, clock)
    reach(reserved, clock)
    end = clock.mono() + 20
    while not reserved._asked and clock.mono() < end:
        reserved.turn(readable=False)
    assert reserved._asked
    began = clock.mono()
    reserved.hand_on()
    assert not link.connected
    assert clock.mono() - began < 5


@pytest.mark.parametrize(
    "words",
    [
        b"MSG a 1 2\r\nhi\r\n",
        b"-ERR 'Stale'\r\n",
        b"\0\0\r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b"INFO " + b"[" * 3000 + b"\r\n",
    ],
)
def test_a_link_on_which_something_else_arrives_is_made_anew(
    server: Server, clock: ManualClock, words: bytes
) -> None:
    link, reserved = connected(server, clock)
    server.say(words)
    arrives(link, reserved)
    assert not link.connected
    assert 0 < reserved.timeout() < 1
    clock.advance(reserved.timeout())
    reach(reserved, clock)
    assert link.connected


@pytest.mark.parametrize("told", [b"null", b"{}", b'"x"', b"-1"])
def test_a_limit_that_is_none_changes_nothing(
    server: Server, clock: ManualClock, told: bytes
) -> None:
    link, reserved = connected(server, clock)
    server.say(b'INFO {"max_payload":%b}\r\n' % told)
    arrives(link, reserved)
    assert link.connected
    assert link.max_payload == 1048576


def test_a_server_that_ends_each_connection_is_asked_ever_less_often(
    server: Server, clock: ManualClock
) -> None:
    server.behind = b"-ERR 'Go Away'\r\n"
    link = link_to(server)
    reserved = ReservedLink(link, clock)
    waits = []
    for made in range(1, 6):
        reach(reserved, clock)
        until(lambda made=made: len(server.clients) == made, "the server's side")  # type: ignore[misc]
        if link.connected:
            arrives(link, reserved)
        assert not link.connected
        waits.append(reserved.timeout())
        clock.advance(reserved.timeout())
    assert waits == [0.25, 0.5, 1, 2, 4]


def test_a_name_that_is_looked_up_for_long_holds_nothing_up(
    server: Server, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    real = socket.create_connection

    def slow(*where: Any) -> socket.socket:
        looked.wait(20)
        return real(*where)

    monkeypatch.setattr(socket, "create_connection", slow)
    link = link_to(server)
    reserved = ReservedLink(link, clock)
    began = time.monotonic()
    for _ in range(50):
        reserved.turn(readable=False)
        assert 0 < reserved.timeout() < 1
        clock.advance(reserved.timeout())
    reserved.hand_on()
    assert time.monotonic() - began < 10
    assert not link.connected
    looked.set()


# ---- back from who has subscribed
# --------------------------------------------------------------------------------------------------


def test_a_link_that_comes_back_is_kept_and_what_is_on_its_way_is_dropped(
    server: Server, clock: ManualClock
) -> None:
    link, reserved = connected(server, clock)
    reserved.hand_on()
    buffer = HandoverBuffer(link, clock, [(b"pub.>", 7)])
    server.say(b"PONG\r\nMSG pub.a 7 3\r\none\r\nMSG pub.a 7 30\r\ntwo")
    buffer.open()
    assert server.hear() == b"SUB pub.> 7\r\nPING\r\n"

    def kept() -> bool:
        buffer.turn(readable=True)
        return len(buffer._data) > 40

    until(kept, "what was published")
    reserved = buffer.leave_link()
    assert buffer.give_up("for a test") == 1
    assert server.hear() == b"UNSUB 7\r\nPING\r\n"
    server.say(b"x" * 27 + b"\r\nMSG pub.a 7 5\r\nthree\r\nPONG\r\nPI")

    def drained() -> bool:
        arrives(link, reserved)
        return reserved._parser.unfinished == b"PI"

    until(drained, "the end")
    assert link.connected
    assert len(server.clients) == 1
    reserved.hand_on()
    assert link.leftover == b"PI"
    # And from here on a message is nobody's again.
    server.say(b"NG\r\nMSG pub.a 7 4\r\nfour\r\n")
    again = ReservedLink(link, clock)
    again._parser.feed(link.leftover)
    arrives(link, again)
    assert not link.connected


def test_messages_as_large_as_the_server_takes_are_dropped_too(
    server: Server, clock: ManualClock
) -> None:
    link, _ = connected(server, clock)
    server.say(b'INFO {"max_payload":8388608}\r\n')
    again = ReservedLink(link, clock)
    arrives(link, again)
    assert link.max_payload == 8388608
    large = b"MSG a 7 2097152\r\n" + bytes(2097152) + b"\r\n"
    back = ReservedLink(link, clock)
    back.take_back(large[:100], [7])
    threading.Thread(target=lambda: server.say(large[100:] + b"-ERR 'no'\r\nPONG\r\n")).start()

    def settled() -> bool:
        arrives(link, back)
        assert link.connected
        return not back._asked

    until(settled, "the answer behind a large message")
    back.hand_on()
    assert link.connected


def test_a_buffer_that_is_full_goes_on_reading_and_keeps_the_link(
    server: Server, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover_buffer, "LIMIT", 100)
    link, reserved = connected(server, clock)
    reserved.hand_on()
    buffer = HandoverBuffer(link, clock, [(b"pub.>", 7)])
    server.say(b"PONG\r\n")
    buffer.open()
    server.hear()
    server.say(b"MSG pub.a 7 30\r\n%b\r\n" % bytes(30) * 3 + b"MSG pub")
    link.wait(10)

    def broken() -> bool:
        buffer.turn(readable=True)
        return bool(buffer.broken)

    until(broken, "more than it keeps")
    assert server.hear() == b"UNSUB 7\r\nPING\r\n"
    server.say(b".a 7 2\r\nhi\r\nPONG\r\n")
    link.wait(10)
    buffer.turn(readable=True)
    assert buffer.timeout() < 1
    assert buffer.leave_link()._asked == 0
    # The one behind the limit, too.
    assert buffer.give_up("for a test") == 4
    assert link.connected


def test_a_name_that_cannot_be_one_is_told_and_the_next_server_is_tried(
    server: Server, clock: ManualClock, capfd: pytest.CaptureFixture[str]
) -> None:
    link = Link(["nats://a..b:4222", server.url], name="test", clock=SystemClock())
    reserved = ReservedLink(link, clock)
    reach(reserved, clock)
    assert not link.connected
    assert "a..b:4222" in capfd.readouterr().err
    assert reserved.timeout() == 0
    reach(reserved, clock)
    assert link.connected


def test_a_machine_without_room_for_a_thread_keeps_its_standby(
    server: Server, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    link = link_to(server)
    reserved = ReservedLink(link, clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        reserved.turn(readable=False)
        assert not link.connected
    clock.advance(reserved.timeout())
    reach(reserved, clock)
    assert link.connected


@pytest.mark.parametrize("serves", [False, True])
def test_who_drops_late_leaves_the_link_of_who_serves_alone(
    server: Server, clock: ManualClock, *, serves: bool
) -> None:
    link, reserved = connected(server, clock)
    reserved.hand_on()
    buffer = HandoverBuffer(link, clock, [(b"pub.>", 7)])
    server.say(b"PONG\r\nMSG pub.a 7 3\r\none\r\n")
    buffer.open()
    server.hear()
    node = MagicMock()
    node.plane.handover_buffer = buffer
    node.plane.serving = object() if serves else None
    node.plane.reserved = None
    node.stopping.is_set.return_value = False
    node.unbridged = 0

    async def call(function: Callable[[], int]) -> int:
        return function()

    node.call = call
    handover = Handover(node, MagicMock(), lambda: 1 << 20)
    assert asyncio.run(handover._count_dropped("for a test")) == 1
    assert node.plane.handover_buffer is None
    assert link.connected
    server.clients[-1].settimeout(0.2)
    if serves:
        assert node.plane.reserved is None
        with pytest.raises(TimeoutError):
            server.hear()
    else:
        assert node.plane.reserved is buffer.leave_link()
        assert server.hear() == b"UNSUB 7\r\nPING\r\n"


def test_who_subscribes_anew_waits_until_nothing_of_the_former_is_on_its_way(
    server: Server, clock: ManualClock
) -> None:
    link, reserved = connected(server, clock)
    reserved.hand_on()
    back = ReservedLink(link, clock)
    back.take_back(b"", [7])
    threading.Timer(0.05, lambda: server.say(b"MSG a 7 2\r\nhi\r\nPONG\r\n")).start()
    back.hand_on()
    assert link.connected
    assert link.leftover == b""
    assert link.recv_into(memoryview(bytearray(100))) == 0


def test_where_there_is_no_room_it_tries_again_and_tells_it_once(
    server: Server, clock: ManualClock, capfd: pytest.CaptureFixture[str]
) -> None:
    server.refusal = b"-ERR 'maximum connections exceeded'\r\n"
    link = link_to(server)
    reserved = ReservedLink(link, clock)
    waits = []
    for _ in range(7):
        reach(reserved, clock)
        waits.append(reserved.timeout())
        clock.advance(reserved.timeout())
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 8]
    server.refusal = b""
    reach(reserved, clock)
    assert link.connected
    told = [line for line in capfd.readouterr().err.splitlines() if "would serve" in line]
    assert len(told) == 2
    assert "maximum connections exceeded" in told[0]
    assert told[1].endswith("ft: the connection to NATS on which this member would serve is there")
