"""Those who do not read, those who may not, and servers that come and go."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.front.listener import LOOPBACK
from tests.memory import grown_since, resident
from tests.processes import until
from tests.unit.front.sessions import CORE, LOGIN, ClosedError, Peer, Place, place, pub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

_PENDING = 4 << 20
_BLOCK = b"x" * 50_000


@pytest.fixture
def through(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path / "through", max_pending=_PENDING) as made:
        yield made


def test_who_does_not_read_is_ended_alone(through: Place) -> None:
    core = through.core(CORE)
    deaf, other = through.client(), through.client()
    for client in (deaf, other):
        client.send(b"SUB in.%d 1\r\n" % (client is deaf))
        client.settle()
    for n in range(200):
        core.send(pub(b"in.1", _BLOCK))
        core.send(pub(b"in.0", b"%d" % n))
    other.wait_for(200)
    core.settle()
    assert [m.payload for m in other.messages] == [b"%d" % n for n in range(200)]
    front = through.front
    until(lambda: front.status().slow == 1, "the slow one has been noticed")
    (event,) = front.read_events()
    assert event[0] == "slow"
    with contextlib.suppress(ClosedError, OSError):
        while True:
            deaf.wait_for(len(deaf.messages) + 1)
    assert len(deaf.messages) < 200
    other.settle()
    assert not other.is_over


def test_a_core_that_does_not_read_holds_up_who_publishes_to_it_and_nobody_else(
    through: Place,
) -> None:
    core = through.core(CORE)
    publisher, other, third = through.client(), through.client(), through.client()
    third.send(b"SUB in.0 1\r\n")
    third.settle()
    before = resident()
    count = 2000

    def publish() -> None:
        for n in range(count):
            publisher.send(pub(b"core.a", b"%d" % n + _BLOCK))

    said = threading.Thread(target=publish)
    said.start()
    time.sleep(0.5)
    # 100 MB are offered, of which 4 wait here.
    assert grown_since(before) < 60 << 20
    for n in range(50):
        other.send(pub(b"in.0", b"%d" % n))
        other.settle()
    third.wait_for(50)
    assert said.is_alive()
    core.wait_for(count)
    said.join()
    assert [m.payload[:-50_000] for m in core.messages] == [b"%d" % n for n in range(count)]


def headed(subject: bytes, payload: bytes) -> bytes:
    """A message with headers: it goes through the NATS server."""
    return b"HPUB %b 12 %d\r\nNATS/1.0\r\n\r\n%b\r\n" % (subject, 12 + len(payload), payload)


@pytest.mark.parametrize("publish_one", [pub, headed], ids=["directly", "through the server"])
def test_who_has_little_waiting_does_not_wait_behind_who_has_much(
    through: Place, publish_one: Callable[[bytes, bytes], bytes]
) -> None:
    through.front.make_room(64 << 10)
    core = through.core(CORE)
    flood, other = through.client(), through.client()
    # The NATS server keeps no more than ``_PENDING`` for one connection.
    count = 10_000 if publish_one is pub else 3_000

    def publish() -> None:
        for n in range(0, count, 10):
            flood.send(
                b"".join(
                    publish_one(b"core.flood", b"%d" % m + _BLOCK[:1000]) for m in range(n, n + 10)
                )
            )

    said = threading.Thread(target=publish)
    said.start()
    if publish_one is pub:
        until(lambda: through.front.status().direct_in > 100, "something waits")
        time.sleep(0.3)
        assert said.is_alive()
    else:
        said.join()
        time.sleep(0.3)
    for n in range(10):
        other.send(pub(b"core.other", b"%d" % n))
        other.settle()
    core.wait_for(count + 10)
    said.join()
    places = [n for n, m in enumerate(core.messages) if m.subject == b"core.other"]
    # 10 MB are offered. Those before it waited at three places of this size.
    assert places[-1] < 500
    heard = [
        m.payload.removeprefix(b"NATS/1.0\r\n\r\n")
        for m in core.messages
        if m.subject == b"core.flood"
    ]
    assert heard == [b"%d" % n + _BLOCK[:1000] for n in range(count)]


def test_a_core_that_hangs_keeps_nobody_from_being_answered_by_the_nats_server(
    through: Place,
) -> None:
    through.front.make_room(64 << 10)
    core = through.core(CORE)
    flood, other = through.client(), through.client()
    flood.send(headed(b"core.flood", _BLOCK[:1000]) * 3000)
    flood.settle()
    # Both roads: it is read on when the NATS server has answered behind what is for the core.
    other.send(headed(b"core.other", b"1") + pub(b"core.other", b"2"))
    other.settle()
    assert not other.is_over
    core.wait_for(3002)
    heard = [m.payload[-1:] for m in core.messages if m.subject == b"core.other"]
    assert heard == [b"1", b"2"]


def test_all_who_have_much_waiting_get_on(through: Place) -> None:
    through.front.make_room(64 << 10)
    core = through.core(CORE)
    floods = [through.client() for _ in range(4)]
    count = 2000

    def publish(number: int) -> None:
        for n in range(count):
            floods[number].send(pub(b"core.%d" % number, b"%d" % n + _BLOCK[:2000]))

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    core.wait_for(4 * count)
    for thread in threads:
        thread.join()
    left = dict.fromkeys(range(4), count)
    for message in core.messages:
        left[int(message.subject[5:])] -= 1
        if not min(left.values()):
            break
    assert max(left.values()) < count - count // 10


def test_a_ping_is_answered_behind_what_came_before_it(through: Place) -> None:
    core = through.core(CORE)
    client = through.client()
    for n in range(300):
        client.send(pub(b"core.a", b"%d" % n))
        client.settle()
        # Without a wait: it lies in the socket.
        core.settle()
        assert len(core.messages) == n + 1


def test_who_is_not_let_in_is_not_heard(tmp_path: Path) -> None:
    login = LOGIN.replace(b"}", b',"user":"u","pass":"%b"}')
    with place(
        tmp_path / "through", settings='authorization { user: "u", password: "p" }'
    ) as through:
        server = socket.create_connection((LOOPBACK, through.front.server_port))
        core = Peer(through.front.attach(server), login % b"p")
        core.send(CORE)
        core.settle()
        for bad in (login % b"x", LOGIN, b""):
            stranger = through.client(bad + b"SUB in.0 1\r\n" + pub(b"core.a", b"stranger"))
            core.send(pub(b"in.0", b"secret"))
            stranger.end()
            assert stranger.messages == []
            assert any(b"Authorization" in line for line in stranger.lines)
        friend = through.client(login % b"p" + b"SUB in.0 1\r\n" + pub(b"core.a", b"friend"))
        friend.settle()
        core.send(pub(b"in.0", b"answer"))
        core.settle()
        friend.settle()
        assert [m.payload for m in core.messages] == [b"friend"]
        assert [m.payload for m in friend.messages] == [b"answer"]
        core.close()


def test_clients_wait_for_a_nats_server_that_is_not_there(through: Place) -> None:
    front = through.front
    front.serve(on=False)
    waiting = socket.create_connection((LOOPBACK, front.port))
    waiting.settimeout(0.3)
    with pytest.raises(TimeoutError):
        waiting.recv(1)
    front.serve(on=True)
    waiting.settimeout(20)
    assert waiting.recv(5) == b"INFO "
    waiting.close()


@pytest.mark.parametrize("room", [4 << 20, 16 << 10])
def test_publishers_whose_road_changes_all_the_time_keep_their_order(
    through: Place, room: int
) -> None:
    front = through.front
    front.make_room(room)
    core = through.core(CORE)
    publishers = [through.client() for _ in range(4)]
    tap = through.client()
    count = 4000

    def publish(number: int) -> None:
        for n in range(0, count, 20):
            said = b"".join(
                pub(b"core.%d" % number, b"%d %d" % (number, m)) for m in range(n, n + 20)
            )
            publishers[number].send(said)
            time.sleep(0.001)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    turn = 0
    while any(thread.is_alive() for thread in threads):
        turn += 1
        front.be_direct(on=turn % 3 != 0)
        tap.send(b"SUB core.> %d\r\n" % turn if turn % 2 else b"UNSUB %d\r\n" % (turn - 1))
        time.sleep(0.003)
    for thread in threads:
        thread.join()
    core.wait_for(4 * count)
    assert len(core.messages) == 4 * count
    for number in range(4):
        heard = [m.payload for m in core.messages if m.subject == b"core.%d" % number]
        assert heard == [b"%d %d" % (number, n) for n in range(count)]
    status = front.status()
    assert status.direct_in > count // 10
    assert status.passed_in > count // 4


def test_answers_keep_their_order_while_their_reader_subscribes_anew(through: Place) -> None:
    core = through.core(CORE)
    client = through.client()
    stop = threading.Event()

    def answer() -> None:
        n = 0
        while not stop.is_set():
            core.send(b"".join(pub(b"in.0", b"%d" % m) for m in range(n, n + 10)))
            n += 10
            time.sleep(0.0005)

    thread = threading.Thread(target=answer)
    thread.start()
    for turn in range(1, 150):
        client.send(b"SUB in.0 %d\r\n" % turn)
        client.settle()
        client.send(b"UNSUB %d\r\n" % turn)
    stop.set()
    thread.join()
    client.settle()
    for turn in range(1, 150):
        heard = [int(m.payload) for m in client.messages if m.sid == b"%d" % turn]
        assert heard == list(range(heard[0], heard[0] + len(heard))) if heard else True
    assert len(client.messages) > 20


def test_answers_keep_their_order_while_the_road_is_forbidden_and_allowed(through: Place) -> None:
    front = through.front
    core = through.core(CORE)
    clients = [through.client() for _ in range(3)]
    for n, client in enumerate(clients):
        client.send(b"SUB in.%d 1\r\nSUB in.all 2\r\n" % n)
        client.settle()
    stop = threading.Event()
    count = 0

    def answer() -> None:
        nonlocal count
        while not stop.is_set():
            said = b"".join(
                pub(b"in.all" if m % 3 else b"in.%d" % (m // 3 % 3), b"%d" % m)
                for m in range(count, count + 30)
            )
            core.send(said)
            count += 30
            time.sleep(0.0005)

    thread = threading.Thread(target=answer)
    thread.start()
    for turn in range(150):
        front.forbid()
        time.sleep(0.003)
        front.allow()
        for client in clients:
            # Its answer says that it has caught up: nobody is ended by the next turn.
            client.send(b"SUB more.%d %d\r\n" % (turn, turn + 10))
            client.settle()
    stop.set()
    thread.join()
    core.settle()
    for n, client in enumerate(clients):
        client.settle()
        assert not client.is_over
        heard = [int(m.payload) for m in client.messages]
        assert heard == [m for m in range(count) if m % 3 or m // 3 % 3 == n]
    status = front.status()
    assert status.direct_out > 1000
    assert status.passed_out > 1000


def test_where_a_message_is_sought_among_thousands_the_nats_server_does_that(
    through: Place,
) -> None:
    core = through.core(CORE)
    front = through.front
    crowd, client = through.client(), through.client()
    crowd.send(b"".join(b"SUB *.x%d %d\r\n" % (n, n) for n in range(5000)))
    crowd.settle()
    client.send(b"SUB in.0 1\r\n")
    client.settle()
    for n in range(20):
        client.send(pub(b"core.a", b"%d" % n))
        core.send(pub(b"in.0", b"%d" % n))
    client.settle()
    core.settle()
    client.settle()
    assert [m.payload for m in core.messages] == [b"%d" % n for n in range(20)]
    assert [m.payload for m in client.messages] == [b"%d" % n for n in range(20)]
    assert [what for what, _ in front.read_events()] == ["crowd"]
    assert front.status().direct_in + front.status().direct_out == 0


def test_thousands_come_and_go_and_nothing_stays(through: Place) -> None:
    core = through.core(CORE)
    front = through.front
    files = len(os.listdir("/proc/self/fd"))
    for turn in range(20):
        clients = [socket.create_connection((LOOPBACK, front.port)) for _ in range(50)]
        for n, client in enumerate(clients):
            client.sendall(LOGIN + b"SUB in.%d 1\r\nPING\r\n" % n + pub(b"core.a", b"x"))
            if n % 3 == turn % 3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if n % 2:
                client.recv(10)
            client.close()
    until(lambda: front.status().connections == 0, "everybody has gone")
    until(lambda: len(os.listdir("/proc/self/fd")) <= files, "no descriptor stays")
    core.settle()
    assert not core.is_over
