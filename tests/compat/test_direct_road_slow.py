"""The listener under clients and a core that do not read, and under traffic that does not end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.compat.roads import CORE, HELLO, HOST, Nats, Play, Wire
from tests.memory import grown_since, resident

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PENDING = 1 << 20
PAYLOAD = 1500


@pytest.fixture(scope="module")
def nats() -> Iterator[Nats]:
    one = Nats(proxy=True)
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def play(nats: Nats) -> Iterator[Play]:
    one = Play(nats, fronted=True, max_pending=MAX_PENDING)
    try:
        yield one
    finally:
        one.stop()


def pub(subject: str, number: int, size: int = PAYLOAD) -> bytes:
    return f"PUB {subject} {size}\r\n{number:0{size}}\r\n".encode()


def deaf_client(play: Play, subscribe: bytes) -> socket.socket:
    """A client that has subscribed and reads nothing from then on."""
    assert play.front is not None
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((HOST, play.front.port))
    sock.settimeout(10)
    sock.sendall(HELLO + subscribe + b"PING\r\n")
    text = b""
    while b"PONG\r\n" not in text:
        text += sock.recv(4096)
    return sock


class DeafCore:
    """A core that subscribes, and reads nothing until it is told to."""

    def __init__(self, play: Play, subscribe: bytes) -> None:
        assert play.front is not None
        self.sock = play.front.attach(socket.create_connection((HOST, play.nats.port)))
        self.sock.settimeout(10)
        self.sock.sendall(HELLO + subscribe + b"PING\r\n")
        text = b""
        while b"PONG\r\n" not in text:
            text += self.sock.recv(4096)

    def hear(self) -> Wire:
        return Wire(self.sock)


@pytest.mark.parametrize("inboxes", [1, 2])
def test_a_client_that_does_not_read_is_ended_alone(play: Play, inboxes: int) -> None:
    assert play.front is not None
    deaf = deaf_client(play, b"".join(b"SUB box %d\r\n" % i for i in range(inboxes)))
    other = play.open("a")
    other.send(b"SUB box 9\r\nSUB own 8\r\n")
    play.sync("a")
    count = 9000
    for number in range(count):
        play.wires[CORE].send(pub("box", number))
    play.wires[CORE].send(pub("own", 0))
    assert other.wait(b"MSG own 8", patience=20)
    assert not other.is_over
    assert other.heard.count(b"MSG box 9 ") == count
    assert play.front.status().slow == 1
    with contextlib.suppress(ConnectionResetError):
        while deaf.recv(1 << 16):
            pass
    deaf.close()
    assert play.front.status().connections == 1
    assert [what for what, _ in play.front.read_events()] == ["slow"]


def test_a_core_that_does_not_read_holds_up_who_publishes_to_it_and_nobody_else(
    nats: Nats,
) -> None:
    play = Play(nats, fronted=True, core=False, max_pending=MAX_PENDING)
    try:
        core = DeafCore(play, b"SUB in 1\r\n")
        writers = [play.open(f"w{i}") for i in range(3)]
        play.open("quiet")
        before = resident()
        count = 9000
        threads = [
            threading.Thread(target=lambda w=w: [w.send(pub("in", i)) for i in range(count)])
            for w in writers
        ]
        for thread in threads:
            thread.start()
        time.sleep(1)
        quiet = play.wires["quiet"]
        for _ in range(50):
            quiet.sync(5)
        assert not quiet.is_stuck
        fresh = play.open("fresh")
        assert not fresh.is_stuck
        assert grown_since(before) < 64 << 20
        wire = core.hear()
        wire.wait(b"MSG in 1 ", 3 * count, 30)
        for thread in threads:
            thread.join()
        numbers = [int(line) for line in bytes(wire.heard).split(b"\r\n") if line.isdigit()]
        assert len(numbers) == 3 * count
        assert sorted(numbers) == sorted(list(range(count)) * 3)
        wire.close()
    finally:
        play.stop()


def test_each_publisher_keeps_its_order_behind_a_core_that_does_not_read(nats: Nats) -> None:
    play = Play(nats, fronted=True, core=False)
    try:
        core = DeafCore(play, b"SUB in.* 1\r\n")
        writers = {f"w{i}": play.open(f"w{i}") for i in range(3)}
        count = 4000

        def write(name: str) -> None:
            for number in range(count):
                writers[name].send(pub(f"in.{name}", number))

        threads = [threading.Thread(target=write, args=(name,)) for name in writers]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        wire = core.hear()
        wire.wait(b"MSG in.", 3 * count, 30)
        for thread in threads:
            thread.join()
        lines = bytes(wire.heard).split(b"\r\n")
        for name in writers:
            head = f"MSG in.{name} 1 ".encode()
            got = [int(lines[i + 1]) for i, line in enumerate(lines) if line.startswith(head)]
            assert got == list(range(count))
        wire.close()
    finally:
        play.stop()


def test_a_client_subscribes_while_the_core_does_not_read(nats: Nats) -> None:
    play = Play(nats, fronted=True, core=False)
    try:
        core = DeafCore(play, b"SUB in 1\r\n")
        writer = play.open("w")

        def write() -> None:
            for number in range(9000):
                writer.send(pub("in", number))

        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(0.5)
        # For nobody here: the next SUB waits until the nats-server has read it.
        core.sock.sendall(pub("no.body", 1))
        time.sleep(0.1)
        play.patience = 3
        client = play.open("a", HELLO + b"SUB box 1\r\n")
        is_stuck = client.is_stuck
        wire = core.hear()
        wire.wait(b"MSG in 1", 9000)
        thread.join()
        wire.close()
        assert not is_stuck
    finally:
        play.stop()


def test_a_client_subscribes_while_the_core_publishes_to_others_without_end(play: Play) -> None:
    is_over = threading.Event()

    def flood() -> None:
        data = pub("no.body", 1, 10) * 20000
        while not is_over.is_set():
            play.wires[CORE].send(data)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        play.patience = 3
        waits = []
        for i in range(5):
            began = time.monotonic()
            client = play.open(f"c{i}", HELLO + b"SUB box 1\r\n")
            assert not client.is_stuck
            waits.append(time.monotonic() - began)
    finally:
        is_over.set()
        thread.join()
    assert max(waits) < 5


@pytest.mark.parametrize("seconds", [2.0])
def test_order_is_kept_while_the_road_changes_under_traffic(play: Play, seconds: float) -> None:
    assert play.front is not None
    core = play.wires[CORE]
    core.send(b"SUB in.* 1\r\n")
    names = ["a", "b"]
    for name in names:
        play.open(name)
    play.sync(CORE)
    is_over = threading.Event()
    sent = dict.fromkeys(names, 0)

    def write(name: str) -> None:
        while not is_over.is_set():
            burst = b"".join(pub(f"in.{name}", sent[name] + i, 20) for i in range(10))
            play.wires[name].send(burst)
            sent[name] += 10
            time.sleep(0.0005)

    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    on = False
    tap = play.open("tap")
    while time.monotonic() < end:
        play.front.be_direct(on=on)
        on = not on
        time.sleep(0.01)
        tap.send(b"SUB in.> 1\r\n" if on else b"UNSUB 1\r\n")
        time.sleep(0.01)
    play.front.be_direct(on=True)
    is_over.set()
    for thread in threads:
        thread.join()
    assert core.wait(b"MSG in.", sum(sent.values()), 20)
    status = play.front.status()
    assert status.direct_in
    assert status.passed_in
    lines = bytes(core.heard).split(b"\r\n")
    for name in names:
        head = f"MSG in.{name} 1 ".encode()
        got = [int(lines[i + 1]) for i, line in enumerate(lines) if line.startswith(head)]
        assert got == list(range(sent[name]))
