"""What a service manager hears: the datagrams of ``sd_notify``, on a path and on an abstract
name.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import TYPE_CHECKING

import pytest

from ftstan.node import notify
from ftstan.node.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A manager's socket, and how its address is written in the environment."""
    name = (
        str(tmp_path / "notify") if request.param == "path" else f"@ftstan-{secrets.token_hex(8)}"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if name.startswith("@") else name)
        sock.settimeout(60)
        yield sock, name


def heard(sock: socket.socket) -> list[str]:
    sock.setblocking(False)
    found = []
    try:
        while True:
            found.append(sock.recv(4096).decode())
    except BlockingIOError:
        return found


def test_every_kind_of_news_is_one_datagram(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready()
    notifier.alive()
    notifier.extend(1.5)
    notifier.stopping()
    assert heard(sock) == ["READY=1", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=1500000", "STOPPING=1"]
    notifier.close()
    notifier.ready()
    assert heard(sock) == []


def test_the_status_is_one_line_and_sent_when_it_changes(
    manager: tuple[socket.socket, str],
) -> None:
    sock, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    for text in ("one", "one", "two\nREADY=1", "one"):
        notifier.status(text)
    assert heard(sock) == ["STATUS=one", "STATUS=two READY=1", "STATUS=one"]
    notifier.close()


def test_children_do_not_inherit_the_address() -> None:
    environment = {
        "NOTIFY_SOCKET": "/nowhere",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "PATH": "/bin",
    }
    Notifier(environment).close()
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_is_ours_if_it_names_us_or_nobody(
    environment: dict[str, str], seconds: float
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/nowhere", **environment})
    assert notifier.watchdog_s == seconds
    notifier.close()


def test_without_a_manager_nothing_is_said_and_nothing_fails() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "1000"})
    assert notifier.watchdog_s == 0.0
    notifier.ready()
    notifier.status("x")
    notifier.close()


def test_a_manager_that_is_gone_is_one_warning_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines: list[str] = []

    class Log:
        def warning(self, text: str) -> None:
            lines.append(text)

    monkeypatch.setattr(notify, "log", Log())
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    notifier.ready()
    notifier.alive()
    assert len(lines) == 1
    assert "service manager" in lines[0]
    notifier.close()
