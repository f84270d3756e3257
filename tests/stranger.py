"""Another account of this host that has the port of the NATS server: it greets as that does, and
writes down what it is told.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, Self

import pytest

if TYPE_CHECKING:
    from pathlib import Path

#: Who is nobody; only root can become it.
NOBODY: Final = 65534
_PATIENCE_S: Final = 20.0
_PROGRAM: Final = """
import os, socket, sys, threading
port, path, uid, host = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
told = open(path, "ab", buffering=0)
if uid >= 0:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
is_six = ":" in host
family = socket.AF_INET6 if is_six else socket.AF_INET
server = socket.create_server((host, port), family=family, dualstack_ipv6=is_six)
told.write(b"listening\\n")

def serve(sock):
    sock.sendall(b'INFO {"server_id":"x","max_payload":1000}\\r\\n')
    try:
        while data := sock.recv(65536):
            told.write(data)
            if b"PING" in data:
                sock.sendall(b"PONG\\r\\n")
    except ConnectionError:
        pass
    told.write(b"over\\n")

while True:
    sock, _ = server.accept()
    threading.Thread(target=serve, args=(sock,), daemon=True).start()
"""


class Stranger:
    """It listens on ``port``; ``uid`` -1: as ourselves."""

    def __init__(
        self, place: Path, port: int, uid: int = NOBODY, *, host: str = "127.0.0.1"
    ) -> None:
        if uid >= 0 and os.geteuid() != 0:
            pytest.fail("being somebody else needs root: run the suite as root", pytrace=False)
        self._told = place / f"told-{uid}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(port), str(self._told), str(uid), host]
        )
        self.wait_for(b"listening\n")

    @property
    def told(self) -> bytes:
        """What it has heard so far."""
        return self._told.read_bytes() if self._told.exists() else b""

    def wait_for(self, what: bytes) -> None:
        """Return when it has heard this."""
        end = time.monotonic() + _PATIENCE_S
        while what not in self.told:
            assert time.monotonic() < end, self.told
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
