"""Row ``idle clients``: what clients cost that are connected and do nothing, through the listener
and straight to the NATS server.

Raw connections: each has logged in and subscribed to an inbox of its own, and answers the PINGs of
the NATS server.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from typing import Final, Self

from benchmarks.processes import ftstan, precise_cpu_seconds, resident_mb
from ftstan.base.sizes import size_of
from ftstan.drill.ports import LOOPBACK
from ftstan.drill.processes import children

_READY: Final = "Streaming Server is ready"
#: Descriptors that a client costs the server: two, of the half of all that clients may have.
_FILES: Final = 4
_SPARE: Final = 512
#: Connecting at the same time.
_AT_ONCE: Final = 200
_PATIENCE_S: Final = 60.0
_MIB: Final = 1 << 20
#: The NATS server asks each client once, soon after its login; the listener looks once a second
#: what memory nobody needs. Whoever measures for less time waits no longer than that.
_SETTLE_S: Final = 5.0
_LOGIN: Final = (
    b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\nSUB idle.%d 1\r\nPING\r\n'
)
_WAYS: Final = {"through the listener": (), "-direct=false": ("-direct=false",)}


def run(clients: int, seconds: float) -> None:
    """Measure and print. As many ``clients`` as the limit of open files allows."""
    settle = min(_SETTLE_S, seconds)
    count = min(clients, (_raised(_FILES * clients + _SPARE) - _SPARE) // _FILES)
    if count < clients:
        print(f"{count:,} idle clients: the limit of open files allows no more", flush=True)
    for what, words in _WAYS.items():
        with ftstan("memory", "", *words) as server:
            server.wait_for(_READY)
            pids = server.pid, children(server.pid)[0]
            time.sleep(settle)
            empty = [resident_mb(pid) for pid in pids]
            with Idlers(server.port) as idlers:
                idlers.connect(count)
                idlers.rest(settle)
                full = [resident_mb(pid) for pid in pids]
                before = [precise_cpu_seconds(pid) for pid in pids]
                idlers.rest(seconds)
                used = [precise_cpu_seconds(pid) for pid in pids]
        ours, nats = (
            f"{size_of((f - e) * _MIB / count)} a client (RSS {size_of(f * _MIB)}), "
            f"{(u - b) / seconds * 100:.2f} % CPU"
            for e, f, b, u in zip(empty, full, before, used, strict=True)
        )
        print(f"{count:,} idle clients, {what}: server {ours}; nats-server {nats}", flush=True)


def _raised(files: int) -> int:
    """Have the limit of open files at ``files``, or as near to that as is allowed; returns it.

    The servers inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:
        # Beyond the hard one root alone may go.
        for new in ((files, max(files, hard)), (min(files, hard), hard)):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, new)
                break
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Idlers:
    """Raw clients. Raises ``RuntimeError`` if the server ends one, ``TimeoutError``."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._poll = selectors.DefaultSelector()
        self._waiting = 0

    def connect(self, count: int) -> None:
        """Connect so many, and wait until the NATS server has let them in."""
        for start in range(0, count, _AT_ONCE):
            for number in range(start, min(start + _AT_ONCE, count)):
                sock = socket.create_connection((LOOPBACK, self._port), _PATIENCE_S)
                sock.sendall(_LOGIN % number)
                sock.setblocking(False)
                self._poll.register(sock, selectors.EVENT_READ)
                self._waiting += 1
            deadline = time.monotonic() + _PATIENCE_S
            while self._waiting:
                self._turn(1.0)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self._waiting} clients were not let in")

    def rest(self, seconds: float) -> None:
        """Do nothing but answer."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._turn(left)

    def _turn(self, seconds: float) -> None:
        for key, _ in self._poll.select(seconds):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            said = sock.recv(65536)
            if not said or b"-ERR" in said:
                raise RuntimeError(f"a client was ended: {said!r}")
            self._waiting -= said.count(b"PONG\r\n")
            if b"PING\r\n" in said:
                sock.sendall(b"PONG\r\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._poll.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._poll.close()
