"""Servers of tests that need not load the program: forked from a process that has.

Half of the processor time of the suite was that of modules being loaded, by a thousand servers.
Each worker of a run has one process that has loaded what a server loads, and has no thread; a
server is a fork of it that becomes what ``python -m ftstan.cli.server`` is: same words, directory,
environment, output, process group. What differs is what ``/proc`` shows as its command line and its
first environment: a test of those has its server executed (``Stage.server(executed=True)``). Starts
as users make them are what drills, demos, packages, embedding programs and ``tests/compat`` make.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from typing import IO, TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: What servers load, sooner or later.
_LOADED = ("admin", "base", "broker", "config", "front", "ft", "monitor", "nats", "node", "wire")
_STORES = ("ftstan.stores.memory", "ftstan.stores.file")
_LARGEST = 1 << 17


class ForkedProcess:
    """A fork, with what ``subprocess.Popen`` has for who started it."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, server: ForkServer, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._pidfd = pidfd

    def poll(self) -> int | None:
        """The exit status, negative for a signal; ``None`` while it runs."""
        if self.returncode is None:
            self._server.hear(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end, seconds. Raises ``subprocess.TimeoutExpired``."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired("a forked server", timeout)
            self._server.hear(left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def ended(self, status: int) -> None:
        """Told by the fork server, whose child it is."""
        self.returncode = status
        os.close(self._pidfd)


class ForkServer:
    """The process from which servers are forked. Any thread may use it."""

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(its.fileno())],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                process_group=0,
            )
        self._socket = ours
        self._lock = threading.RLock()
        self._forks: dict[int, ForkedProcess] = {}
        self._new: list[ForkedProcess] = []
        atexit.register(self.close)

    def close(self) -> None:
        """No more forks."""
        self._socket.close()
        self._process.wait()

    def start(
        self, words: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path
    ) -> ForkedProcess:
        """Fork a server with the ``words`` of its command, whose output is appended to ``log``."""
        request = json.dumps([list(words), dict(environment), str(directory)]).encode()
        with self._lock, log.open("ab") as output:
            socket.send_fds(self._socket, [request], [output.fileno()])
            while not self._new:
                self.hear(60)
            return self._new.pop()

    def hear(self, within: float) -> None:
        """Take what it says of its forks, waiting for it for at most ``within`` seconds."""
        if not select.select([self._socket], [], [], within)[0]:
            return
        with self._lock:
            while select.select([self._socket], [], [], 0)[0]:
                data, fds, _, _ = socket.recv_fds(self._socket, 256, 1)
                if not data:
                    raise RuntimeError("the process that servers of tests are forked from ended")
                pid, status = json.loads(data)
                if fds:
                    self._forks[pid] = ForkedProcess(self, pid, fds[0])
                    self._new.append(self._forks[pid])
                else:
                    self._forks.pop(pid).ended(status)


def _load() -> None:
    """Load what servers load, and start nothing."""
    names = [*_STORES, *(f"ftstan.{name}" for name in _LOADED)]
    for name in names:
        module = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            importlib.import_module(found.name)
    for name in ("answers", "server", "serving"):
        importlib.import_module(f"ftstan.cli.{name}")


def _serve(asked: socket.socket) -> None:
    """Fork whenever that is asked for, and tell how forks end, until nobody asks any more."""
    running: dict[int, int] = {}
    poll = select.poll()
    poll.register(asked, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                pid = running.pop(fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                poll.unregister(fd)
                os.close(fd)
                asked.send(json.dumps([pid, status]).encode())
                continue
            data, outputs, _, _ = socket.recv_fds(asked, _LARGEST, 1)
            if not data:
                return
            (output,) = outputs
            pid = os.fork()
            if pid == 0:
                words, environment, directory = json.loads(data)
                _become_server(words, environment, directory, output)
            os.close(output)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            socket.send_fds(asked, [json.dumps([pid, 0]).encode()], [pidfd])


def _become_server(
    words: list[str], environment: dict[str, str], directory: str, output: int
) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(directory)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1024)
        os.environ.clear()
        os.environ.update(environment)
        server = importlib.import_module("ftstan.cli.server")
        sys.argv = [str(server.__file__), *words]
        status = server.main()
        sys.stdout.flush()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:  # noqa: BLE001  # as Python does
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    """Be the process that servers are forked from."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    _load()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1
    _serve(asked)


if __name__ == "__main__":
    main()
