"""A NATS server behind the listener, and raw connections of clients and of a core."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from ftstan.front.listener import LOOPBACK, Front
from ftstan.nats.binary import binary_path

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 20.0
LOGIN = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
#: What the core of a test listens to.
CORE = b"SUB core.> 1\r\nSUB acks.* 2\r\nSUB one 3\r\n"
_PING = re.compile(rb"PING[^\r]*\r\n")
_MSG = re.compile(rb"(H?MSG) (\S+) (\S+) (?:(\S+) )?(?:(\d+) )?(\d+)")


@dataclass(frozen=True)
class Message:
    """What one MSG or HMSG said."""

    subject: bytes
    sid: bytes
    reply: bytes
    payload: bytes


def pub(subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    """A message to publish."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


class ClosedError(Exception):
    """The connection has been ended by the other side."""


class Peer:
    """A raw connection that has heard ``lines`` and ``messages``."""

    def __init__(self, sock: socket.socket, login: bytes = LOGIN) -> None:
        self._sock = sock
        with contextlib.suppress(OSError):  # the core has no TCP
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(PATIENCE_S)
        self._read = b""
        self.lines: list[bytes] = []
        self.messages: list[Message] = []
        self.is_over = False
        self._pongs = 0
        self._pings = 0
        self.send(login)

    def send(self, data: bytes) -> None:
        if not self.is_over:
            self._pings += len(_PING.findall(data))
            try:
                self._sock.sendall(data)
            except OSError:
                self._drain()

    def settle(self) -> None:
        """Hear all that is there now."""
        if self.is_over:
            return
        self.send(b"PING\r\n")
        try:
            while self._pongs < self._pings:
                self._hear()
        except (ClosedError, OSError):
            self._drain()

    def wait_for(self, count: int) -> None:
        """Hear so many messages in all."""
        end = time.monotonic() + PATIENCE_S
        while len(self.messages) < count:
            assert time.monotonic() < end, f"{len(self.messages)} of {count}"
            self._hear()

    def end(self) -> None:
        """Hear what is left until the other side has ended it."""
        with contextlib.suppress(ClosedError, OSError):
            while True:
                self._hear()
        self._drain()

    def close(self) -> None:
        self.is_over = True
        self._sock.close()

    def _drain(self) -> None:
        self.is_over = True
        with contextlib.suppress(ClosedError, OSError):
            while True:
                self._hear()
        self._sock.close()

    def _more(self) -> None:
        data = self._sock.recv(1 << 20)
        if not data:
            raise ClosedError
        self._read += data

    def _hear(self) -> None:
        while b"\r\n" not in self._read:
            self._more()
        line, _, self._read = self._read.partition(b"\r\n")
        if found := _MSG.fullmatch(line):
            size = int(found[6])
            while len(self._read) < size + 2:
                self._more()
            self.messages.append(Message(found[2], found[3], found[4] or b"", self._read[:size]))
            assert self._read[size : size + 2] == b"\r\n"
            self._read = self._read[size + 2 :]
        elif line == b"PONG":
            self._pongs += 1
        elif line == b"PING":
            self.send(b"PONG\r\n")
        elif not line.startswith(b"INFO "):
            self.lines.append(line)


@dataclass
class Place:
    """A NATS server with the listener in front of it."""

    server: subprocess.Popen[bytes]
    front: Front
    _peers: list[Peer] = field(default_factory=list)

    def core(self, lines: bytes = b"") -> Peer:
        """The core connects, and subscribes."""
        server = socket.create_connection((LOOPBACK, self.front.server_port))
        peer = Peer(self.front.attach(server))
        peer.send(lines)
        peer.settle()
        return self._with(peer)

    def client(self, login: bytes = LOGIN) -> Peer:
        return self._with(Peer(socket.create_connection((LOOPBACK, self.front.port)), login))

    def _with(self, peer: Peer) -> Peer:
        self._peers.append(peer)
        return peer

    def leave(self) -> None:
        """Everybody goes."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.front.stop()
        self.server.kill()
        self.server.wait()


def place(
    directory: Path, *, settings: str = "", max_line: int = 0, max_pending: int = 64 << 20
) -> Place:
    """Start one. ``settings``: more of the NATS server's file."""
    front = Front(LOOPBACK, 0, max_line=max_line, max_pending=max_pending)
    directory.mkdir(exist_ok=True)
    configuration = directory / "nats.conf"
    configuration.write_text(
        f'host: "{LOOPBACK}"\nport: {front.server_port}\n{settings}\nproxy_protocol: true\n'
    )
    with open(os.devnull, "wb") as silent:
        server = subprocess.Popen(
            [binary_path(), "-c", str(configuration)], stdout=silent, stderr=silent
        )
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((LOOPBACK, front.server_port)).close()
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)
    front.serve(on=True)
    front.be_direct(on=True)
    front.listen()
    return Place(server, front)
