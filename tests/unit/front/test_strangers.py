"""Another account has the port of the NATS server while that is started again: it is told nothing
but whose connection it is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.front.listener import LOOPBACK, Front, free_port
from ftstan.front.peer import is_ours
from tests import unseen
from tests.stranger import NOBODY, Stranger
from tests.unit.front.sessions import LOGIN, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

#: Says whose the greeting at an address is.
_LOOK = """
import encodings.idna, socket, sys
from ftstan.front.peer import is_ours
from tests.unseen import blind
blind(files=sys.argv[3] == "True")
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
assert sock.recv(1000)
print(is_ours(sock.fileno()))
"""
#: Two clients of a listener, of which both say their login.
_SERVE = """
import encodings.idna, socket
from ftstan.front.listener import LOOPBACK, Front
from tests.unseen import blind
blind(files=True)
front = Front(LOOPBACK, 0, max_line=0, max_pending=1 << 20)
front.serve(on=True)
front.listen()
server = socket.create_server((LOOPBACK, front.server_port))
for _ in range(2):
    client = socket.create_connection((LOOPBACK, front.port))
    client.sendall(b"CONNECT {}\\r\\n")
    up, _ = server.accept()
    up.recv(1000)
    up.sendall(b"INFO {}\\r\\n")
    up.settimeout(20)
    print(up.recv(1000), client.recv(1000))
print(front.read_events())
front.stop()
"""

SECRET = LOGIN.replace(b"{", b'{"pass":"hunter2",')


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front(LOOPBACK, 0, max_line=0, max_pending=1 << 20)
    made.serve(on=True)
    made.listen()
    yield made
    made.stop()


def is_ended(sock: socket.socket) -> bool:
    """Whether the other side ends it, and has said nothing."""
    sock.settimeout(PATIENCE_S)
    try:
        return sock.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_a_stranger_is_told_no_login_of_clients(front: Front, tmp_path: Path) -> None:
    with Stranger(tmp_path, front.server_port) as stranger:
        client = socket.create_connection((LOOPBACK, front.port))
        client.sendall(SECRET + b"PING\r\n")
        assert is_ended(client)
        stranger.wait_for(b"over\n")
        told = stranger.told.splitlines()
    assert told[0] == b"listening"
    assert told[1].startswith(b"PROXY TCP4")
    assert told[2:] == [b"over"]
    end = time.monotonic() + PATIENCE_S
    while not (events := front.read_events()):
        assert time.monotonic() < end
    assert events[0] == ("stranger", f"{LOOPBACK} {front.server_port}")
    assert front.status().connections == 0


def test_a_stranger_is_told_no_login_of_the_core(front: Front, tmp_path: Path) -> None:
    with Stranger(tmp_path, front.server_port) as stranger:
        core = front.attach(socket.create_connection((LOOPBACK, front.server_port)))
        # It may have been ended already.
        with contextlib.suppress(BrokenPipeError):
            core.sendall(SECRET + b"PING\r\n")
        assert is_ended(core)
        stranger.wait_for(b"over\n")
        assert stranger.told == b"listening\nover\n"


def test_a_server_of_our_account_is_told_all(front: Front, tmp_path: Path) -> None:
    with Stranger(tmp_path, front.server_port, uid=-1) as ours:
        client = socket.create_connection((LOOPBACK, front.port))
        client.sendall(SECRET + b"PING\r\n")
        ours.wait_for(b"hunter2")
        client.close()


def test_nothing_is_said_to_who_has_not_greeted(front: Front) -> None:
    with socket.create_server((LOOPBACK, front.server_port)) as server:
        core = front.attach(socket.create_connection((LOOPBACK, front.server_port)))
        up, _ = server.accept()
        core.sendall(SECRET)
        client = socket.create_connection((LOOPBACK, front.port))
        client.sendall(SECRET)
        up_of_client, _ = server.accept()
        assert up_of_client.recv(1000).endswith(b"%d\r\n" % front.port)
        for sock in (up, up_of_client):
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.recv(1000)
        # Who leaves before the greeting leaves nothing behind.
        core.close()
        assert is_ended(up)
        client.close()
        up_of_client.sendall(b"INFO {}\r\n")
        up_of_client.settimeout(PATIENCE_S)
        assert up_of_client.recv(1000) == SECRET
        assert up_of_client.recv(1000) == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_our_own_sockets_are_ours(host: str) -> None:
    with socket.create_server((host, 0), family=family_of(host)) as server:
        ours = socket.create_connection(server.getsockname()[:2])
        theirs, _ = server.accept()
        theirs.sendall(b"x")
        assert is_ours(ours.fileno()) is True
        # It has gone: nobody reads what is said to it, and what it has said may be heard.
        theirs.close()
        assert is_ours(ours.fileno()) is True
        ours.close()


def test_who_listens_on_all_addresses_is_ours() -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        ours = socket.create_connection((LOOPBACK, server.getsockname()[1]))
        theirs, _ = server.accept()
        theirs.sendall(b"x")
        assert is_ours(ours.fileno()) is True
        ours.close()
        theirs.close()


def test_the_socket_of_another_account_is_not_ours(tmp_path: Path) -> None:
    port = free_port()
    with Stranger(tmp_path, port, NOBODY), socket.create_connection((LOOPBACK, port)) as sock:
        assert sock.recv(1000).startswith(b"INFO")
        assert is_ours(sock.fileno()) is False


@pytest.mark.parametrize(
    ("host", "listens"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "::"), ("::1", "::1"), ("::ffff:127.0.0.1", "::")],
)
@pytest.mark.parametrize(("uid", "said"), [(-1, "True\n"), (NOBODY, "False\n")])
def test_without_sock_diag_the_tables_tell(
    tmp_path: Path, host: str, listens: str, uid: int, said: str
) -> None:
    port = free_port()
    with Stranger(tmp_path, port, uid, host=listens):
        assert unseen.run(_LOOK, host, port, False) == said


def test_where_the_kernel_does_not_tell_nobody_is_said_to_be_a_stranger(tmp_path: Path) -> None:
    port = free_port()
    with Stranger(tmp_path, port):
        assert unseen.run(_LOOK, LOOPBACK, port, True) == "None\n"


def test_clients_are_served_where_the_kernel_does_not_tell_and_that_is_told_once() -> None:
    served = r"b'CONNECT {}\r\n' b'INFO {}\r\n'" + "\n"
    assert unseen.run(_SERVE) == served * 2 + "[('unseen', ' 0')]\n"


def test_a_client_waits_for_a_nats_server_that_is_not_there_yet(front: Front) -> None:
    client = socket.create_connection((LOOPBACK, front.port))
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1000)
    with socket.create_server((LOOPBACK, front.server_port)) as server:
        server.settimeout(PATIENCE_S)
        up, _ = server.accept()
        up.sendall(b"INFO {}\r\n")
        client.settimeout(PATIENCE_S)
        assert client.recv(1000) == b"INFO {}\r\n"
        up.close()
    client.close()


def test_orders_while_it_stops_reach_no_descriptor_that_is_closed(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    close = os.close

    def ordering(fd: int) -> None:
        close(fd)
        closed.append(fd)
        front.resume()

    with monkeypatch.context() as patch:
        patch.setattr("ftstan.front.listener.os.close", ordering)
        front.stop()
        front.stop()
    assert len(closed) == len(set(closed)) == 4


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
