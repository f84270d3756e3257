"""Real servers under a service manager: what it is told, when they wait, and what the unit lets
them do.

The manager is a socket of the test; the unit's filter of system calls is the kernel's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.node.starts import COUNT_NAME
from tests.ft.client import StanClient
from tests.lateness import LateError
from tests.processes import HOST, PATIENCE_S, READY, ROOT, children, free_ports, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ft.mounts import Frozen
    from tests.processes import Child, Stage

pytestmark = pytest.mark.processes

UNIT = ROOT / "systemd" / "ftstan.service"


class Manager:
    """The end of ``NOTIFY_SOCKET`` that listens."""

    def __init__(self, directory: Path, watchdog_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "notify"))
        self._socket.settimeout(60)
        self.runtime = directory / "run"
        self.runtime.mkdir()
        self.wrap = [
            "env",
            f"NOTIFY_SOCKET={directory}/notify",
            f"WATCHDOG_USEC={round(watchdog_s * 1e6)}",
            f"RUNTIME_DIRECTORY={self.runtime}",
        ]

    def next(self) -> str:
        return self._socket.recv(4096).decode()

    def wait_for(self, beginning: str) -> list[str]:
        """Everything that was said up to the first that begins so, which is the last of the
        list.
        """
        heard = [self.next()]
        deadline = time.monotonic() + PATIENCE_S
        while not heard[-1].startswith(beginning):
            if time.monotonic() >= deadline:
                raise LateError(f"waited in vain for {beginning!r}, heard {heard[-20:]}")
            heard.append(self.next())
        return heard

    def drain(self) -> None:
        """Forget what was said up to now."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(4096)
        self._socket.settimeout(60)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(stage: Stage) -> Iterator[Manager]:
    manager = Manager(stage.directory, watchdog_s=2)
    yield manager
    manager.close()


def test_a_start_that_waits_for_storage_says_so_and_is_ready_when_storage_answers(
    stage: Stage, frozen: Frozen, manager: Manager
) -> None:
    frozen.freeze()
    stage.file_server("server", wrap=[*frozen.volume.wrap, *manager.wrap])
    before = manager.wait_for("EXTEND_TIMEOUT_USEC=")
    assert "READY=1" not in before
    assert "READY=1" not in manager.wait_for("EXTEND_TIMEOUT_USEC=")
    frozen.thaw()
    assert "STATUS=STANDALONE: serving" in manager.wait_for("READY=1")


def test_a_standby_stays_and_feeds_the_watchdog_while_storage_hangs_and_takes_over_behind_it(
    stage: Stage, frozen: Frozen, manager: Manager
) -> None:
    nats = stage.nats()
    active = stage.member("active", "-ns", nats.url, wrap=frozen.volume.wrap)
    active.wait_until_active()
    standby = stage.member("standby", "-ns", nats.url, wrap=[*frozen.volume.wrap, *manager.wrap])
    manager.wait_for("READY=1")
    frozen.freeze()
    active.wait_for("[FTL]")
    manager.drain()
    for _ in range(4):
        assert not any(word.startswith("STOPPING") for word in manager.wait_for("WATCHDOG=1"))
    assert standby.running
    frozen.thaw()
    manager.wait_for("STATUS=FT_ACTIVE: serving, epoch 2")
    standby.wait_until_active()


def failing(stage: Stage, manager: Manager, name: str) -> Child:
    """A server whose configuration is not there."""
    words = [
        *manager.wrap,
        sys.executable,
        "-m",
        "ftstan.cli.server",
        "-c",
        str(stage.directory / "none.conf"),
    ]
    return stage.run(name, words)


def test_starts_that_fail_make_the_next_one_wait_and_a_stop_ends_that_wait(
    stage: Stage, manager: Manager
) -> None:
    first = failing(stage, manager, "first")
    assert first.status() == 1
    assert "waiting" not in first.text()
    second = failing(stage, manager, "second")
    assert second.status() == 1
    assert "the last start failed: waiting 1s" in second.text()
    assert (manager.runtime / COUNT_NAME).read_text() == "2"
    (manager.runtime / COUNT_NAME).write_text("9")
    waiting = failing(stage, manager, "waiting")
    waiting.wait_for("the last 9 starts failed: waiting 15s")
    waiting.signal(signal.SIGTERM)
    assert waiting.status() == 143
    assert list(manager.runtime.iterdir()) == []


def test_a_fenced_server_may_be_back_at_once(stage: Stage, manager: Manager) -> None:
    """Status 75, here after losing NATS: the next start waits for nothing."""
    nats = stage.nats()
    member = stage.member("member", "-ns", nats.url, "-ft_nats_timeout", "1s", wrap=manager.wrap)
    member.wait_until_active()
    nats.kill()
    assert member.status() == 75
    assert list(manager.runtime.iterdir()) == []


def nats_of(server: Child) -> int:
    """Process id of its nats-server; archive scripts are its children, too, and come and go."""
    for pid in children(server.pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/comm").read_text() == "nats-server\n":
                return pid
    raise AssertionError(f"no nats-server\n{server.tail()}")


def test_a_pair_serves_archives_and_fails_over_within_the_system_calls_of_the_unit(
    stage: Stage,
) -> None:
    wrap = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    wrap += [sys.executable, "-m", "tests.ft.filtered", str(UNIT)]
    archived = stage.directory / "archived"
    script = stage.directory / "archive.sh"
    script.write_text(
        f'#!/bin/sh\nset -e\nmkdir -p {archived}\ncp "$2" {archived}\nrm -f "$2" "$3"\n'
    )
    script.chmod(0o755)
    limits = [
        "-file_slice_max_msgs",
        "5",
        "-file_slice_archive_script",
        str(script),
        "-max_msgs",
        "5",
    ]
    route_a, route_b = (f"nats://{HOST}:{port}" for port in free_ports(2))
    a = stage.member("a", *limits, "-cluster", route_a, "-routes", route_b, wrap=wrap)
    a.wait_until_active()
    b = stage.member("b", *limits, "-cluster", route_b, "-routes", route_a, wrap=wrap)
    b.wait_until_standing_by()
    client = StanClient(a.port, "me")
    client.connect()
    client.publish(b"orders", *(b"%d" % n for n in range(30)))
    a.wait_for(READY)
    until(archived.exists, f"the archive script\n{a.tail()}")
    os.kill(nats_of(a), signal.SIGKILL)
    a.wait_for("nats-server is running again")
    a.signal(signal.SIGHUP)
    a.wait_for("eload")
    a.signal(signal.SIGTERM)
    assert a.status() == 143
    b.wait_until_active()
    assert [line for server in (a, b) for line in server.lines() if "not permitted" in line] == []
