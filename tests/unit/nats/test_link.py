"""The data plane's socket, against a server written for the test and against a real one."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.config.options import LinkOptions
from ftstan.nats.embedded import NatsServerChild, NatsServerOptions
from ftstan.nats.link import ConnectionLostError, Link
from tests.processes import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INFO = {"server_id": "X", "max_payload": 77, "headers": True}


class Peer:
    """One accepted connection of a scripted NATS server."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._file = sock.makefile("rb")
        self.hello: dict[str, Any] = {}

    def line(self) -> bytes:
        return self._file.readline()

    def greet(self, info: dict[str, Any] = INFO, answer: bytes = b"PONG\r\n") -> None:
        self.socket.sendall(b"INFO " + json.dumps(info).encode() + b"\r\n")
        self.hello = json.loads(self.line().removeprefix(b"CONNECT "))
        assert self.line() == b"PING\r\n"
        self.socket.sendall(answer)

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextmanager
def server(*scripts: Callable[[Peer], None]) -> Iterator[tuple[str, list[Peer]]]:
    """A listener that plays one script for each connection; yields its URL and the peers so far."""
    peers: list[Peer] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            for script in scripts:
                peer = Peer(listener.accept()[0])
                peers.append(peer)
                script(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"nats://127.0.0.1:{listener.getsockname()[1]}", peers
        finally:
            thread.join()
            for peer in peers:
                peer.close()


def link_to(*urls: str, **options: Any) -> Link:
    return Link(urls, name="_NSS-c-general", options=LinkOptions(**options), clock=SystemClock())


def read(link: Link) -> bytes:
    # Not select(): a long suite may have more than 1024 files open.
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    poll.poll(20_000)
    buffer = bytearray(4096)
    return bytes(buffer[: link.recv_into(memoryview(buffer))])


def unused_url() -> str:
    return f"nats://127.0.0.1:{free_ports(1)[0]}"


def test_the_handshake_says_who_we_are_and_keeps_what_was_read_behind_it() -> None:
    def script(peer: Peer) -> None:
        peer.greet(answer=b"+OK\r\nPING\r\nPONG\r\nMSG a 1 1\r\nx\r\n")
        assert peer.line() == b"PONG\r\n"

    with server(script) as (url, peers):
        link = link_to(url, user="u", password="p")
        link.connect(10)
        assert link.connected
        assert (link.info["server_id"], link.max_payload) == ("X", 77)
        assert link.leftover == b"MSG a 1 1\r\nx\r\n"
        assert link.url_shown == url
        link.close()
        assert link.fileno() == -1
    hello = peers[0].hello
    assert hello.pop("version")
    assert hello == {
        "verbose": False,
        "pedantic": False,
        "lang": "python-ftstan",
        "name": "_NSS-c-general",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "echo": True,
        "user": "u",
        "pass": "p",
    }


def test_a_token_in_the_url_wins_and_is_not_shown() -> None:
    with server(Peer.greet) as (url, peers):
        link = link_to(url.replace("nats://", "nats://s3cret@"), user="u", password="p")
        link.connect(10)
        assert "s3cret" not in link.url_shown
        assert "[REDACTED]" in link.url_shown
        link.close()
    assert peers[0].hello["auth_token"] == "s3cret"
    assert "user" not in peers[0].hello


def test_headers_are_not_asked_of_a_server_without_them() -> None:
    with server(lambda peer: peer.greet(info={})) as (url, peers):
        link = link_to(url)
        link.connect(10)
        assert link.max_payload == 1024 * 1024
        link.close()
    assert (peers[0].hello["headers"], peers[0].hello["no_responders"]) == (False, False)


def test_a_refusal_is_told_in_the_servers_words() -> None:
    with server(lambda peer: peer.greet(answer=b"-ERR 'Authorization Violation'\r\n")) as (url, _):
        link = link_to(url)
        with pytest.raises(NatsError, match=r"^nats: Authorization Violation \(nats://") as caught:
            link.connect(10)
        assert "-auth" in caught.value.hint
        assert not link.connected


@pytest.mark.parametrize(
    "greeting", [b"220 smtp.example ESMTP\r\n", b"INFO nonsense\r\n", b"INFO []\r\n"]
)
def test_something_that_is_not_nats_is_recognized(greeting: bytes) -> None:
    with (
        server(lambda peer: peer.socket.sendall(greeting)) as (url, _),
        pytest.raises(NatsError, match="not speak NATS"),
    ):
        link_to(url).connect(10)


def test_every_url_is_tried_once_and_its_reason_told() -> None:
    first = unused_url()
    second = unused_url()
    with pytest.raises(NatsError) as caught:
        link_to(first, second.replace("nats://", "nats://u:s3cret@")).connect(10)
    text = str(caught.value)
    assert text.startswith(
        f"nats: no servers available for connection: {first}: connection refused; "
    )
    assert text.count("refused") == 2
    assert "s3cret" not in text


def test_the_second_url_serves_when_the_first_does_not() -> None:
    with server(Peer.greet) as (url, _):
        link = link_to(unused_url(), url)
        link.connect(10)
        assert link.url_shown == url
        link.close()


def test_a_refusal_tells_more_than_an_unreachable_server() -> None:
    with server(lambda peer: peer.greet(answer=b"-ERR 'Authorization Violation'\r\n")) as (url, _):
        link = link_to(unused_url(), url, unused_url())
        with pytest.raises(NatsError, match="Authorization Violation"):
            link.connect(10)


@pytest.mark.slow
def test_a_silent_server_leaves_time_for_the_next_one() -> None:
    with server(lambda _: None) as (silent, _), server(Peer.greet) as (url, _):
        link = link_to(silent, url)
        link.connect(2)
        assert link.url_shown == url
        link.close()


def test_a_server_that_closes_during_the_handshake_is_not_available() -> None:
    with server(lambda peer: peer.socket.shutdown(socket.SHUT_RDWR)) as (url, _):
        link = link_to(url)
        with pytest.raises(NatsError, match=r"no servers available .*closed by the server"):
            link.connect(10)


def test_a_link_that_is_finished_waits_for_the_server_to_read_everything() -> None:
    """It drops what the server says meanwhile, and is back as soon as the server has closed its
    side.
    """
    heard = bytearray()

    def script(peer: Peer) -> None:
        peer.greet()
        peer.socket.sendall(b"MSG a 1 4\r\nmore\r\n" * 20_000)
        while data := peer.socket.recv(1 << 16):
            heard.extend(data)
        peer.socket.shutdown(socket.SHUT_RDWR)

    with server(script) as (url, _):
        link = link_to(url)
        link.connect(10)
        link.send(b"PUB a 1\r\nx\r\n" * 1000, 10)
        # Whoever waited for all of it would run into the limit of the test.
        link.finish(3600)
        assert not link.connected
        link.finish(3600)
    assert heard.count(b"PUB") == 1000


def test_a_server_that_does_not_close_is_not_waited_for() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        assert gone.wait(20)

    with server(script) as (url, _):
        link = link_to(url)
        link.connect(10)
        link.finish(0.1)
        assert link.fileno() == -1
        gone.set()


def test_reading_returns_zero_when_nothing_has_arrived_and_fails_when_the_server_is_gone() -> None:
    with server(Peer.greet) as (url, peers):
        link = link_to(url)
        link.connect(10)
        assert link.recv_into(memoryview(bytearray(10))) == 0
        peers[0].socket.sendall(b"PING\r\n")
        assert read(link) == b"PING\r\n"
        peers[0].socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionLostError, match="closed by the server"):
            read(link)
        assert not link.connected
        assert link.fileno() == -1


def test_a_link_that_is_cut_while_its_owner_hangs_ends_for_good() -> None:
    with server(Peer.greet) as (url, peers):
        link = link_to(url)
        link.connect(10)
        # From another thread: the owner's hangs in storage, and comes back some time.
        cutter = threading.Thread(target=link.cut)
        cutter.start()
        cutter.join()
        # The server knows at once, and gives what is for us to others.
        assert peers[0].line() == b""
        with pytest.raises(ConnectionLostError):
            link.send(b"PUB late 1\r\nx\r\n", 10)
        with pytest.raises(ConnectionLostError, match="not connected"):
            link.send(b"PUB late 1\r\nx\r\n", 10)


def test_a_link_that_was_cut_connects_no_more() -> None:
    with server(Peer.greet) as (url, _):
        link = link_to(url)
        link.cut()
        with pytest.raises(NatsError, match="this link was cut"):
            link.connect(10)
        assert not link.connected


def test_everything_is_sent_even_when_the_server_reads_slowly() -> None:
    size = 30_000_000
    received = 0

    def script(peer: Peer) -> None:
        nonlocal received
        peer.greet()
        while received < size:
            received += len(peer.socket.recv(100_000))

    with server(script) as (url, _):
        link = link_to(url)
        link.connect(10)
        link.send(bytearray(size), 60)
    assert received == size
    link.close()


def test_a_server_that_stops_reading_loses_the_link_at_the_deadline() -> None:
    with server(Peer.greet) as (url, _):
        link = link_to(url)
        link.connect(10)
        with pytest.raises(ConnectionLostError, match="took no more bytes"):
            link.send(bytes(60_000_000), 0.1)
        assert not link.connected


def test_a_deadline_of_zero_sends_what_fits_and_does_not_wait() -> None:
    with server(Peer.greet) as (url, _):
        link = link_to(url)
        link.connect(10)
        link.send(b"PING\r\n", 0)
        with pytest.raises(ConnectionLostError):
            link.send(bytes(60_000_000), 0)


def test_nothing_is_kept_while_not_connected() -> None:
    link = link_to("nats://127.0.0.1:1")
    with pytest.raises(ConnectionLostError, match="not connected"):
        link.send(b"PING\r\n", 1)
    with pytest.raises(ConnectionLostError, match="not connected"):
        link.recv_into(memoryview(bytearray(1)))


def test_the_server_that_was_lost_is_the_last_to_be_tried_again() -> None:
    with server(Peer.greet, Peer.greet) as (first, peers), server(Peer.greet) as (second, _):
        link = link_to(first, second)
        link.connect(10)
        peers[0].socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ConnectionLostError):
            read(link)
        link.connect(10)
        assert link.url_shown == second
        link.close()
        link_to(first).connect(10)


@pytest.mark.processes
def test_the_link_comes_back_after_the_real_server_was_killed() -> None:
    async def work() -> None:
        child = NatsServerChild(NatsServerOptions(cluster_id="c", host="127.0.0.1", port=-1))
        await child.start()
        link = link_to(child.client_url)
        link.connect(10)
        assert link.info["max_payload"] == link.max_payload
        link.send(b"SUB a 1\r\nPUB a 2\r\nhi\r\n", 5)
        assert b"MSG a 1 2\r\nhi\r\n" in link.leftover + read(link)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ConnectionLostError):
            read(link)
        while not link.connected:
            try:
                link.connect(1)
            except NatsError:
                await asyncio.sleep(0.02)
        link.send(b"PING\r\n", 5)
        assert b"PONG" in link.leftover + read(link)
        link.close()
        await child.stop()

    asyncio.run(asyncio.wait_for(work(), 60))
