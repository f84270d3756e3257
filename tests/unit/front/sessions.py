"""The same sessions through the listener and straight at a NATS server."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from ftstan.front.listener import LOOPBACK, Front, free_port
from ftstan.nats.binary import binary_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 20.0
LOGIN = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
_PING = re.compile(rb"PING[^\r]*\r\n")
_MSG = re.compile(rb"(H?MSG) (\S+) (\S+) (?:(\S+) )?(?:(\d+) )?(\d+)")


@dataclass(frozen=True)
class Message:
    """What one MSG or HMSG said."""

    subject: bytes
    sid: bytes
    reply: bytes
    payload: bytes


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
    """A NATS server, with the listener in front of it or without."""

    server: subprocess.Popen[bytes]
    port: int
    front: Front | None = None
    _peers: list[Peer] = field(default_factory=list)

    def core(self, lines: bytes = b"") -> Peer:
        """The core connects, and subscribes."""
        sock = socket.create_connection((LOOPBACK, self.port))
        if self.front is not None:
            sock = self.front.attach(sock)
        peer = Peer(sock)
        peer.send(lines)
        peer.settle()
        return self._with(peer)

    def client(self, login: bytes = LOGIN) -> Peer:
        port = self.front.port if self.front is not None else self.port
        return self._with(Peer(socket.create_connection((LOOPBACK, port)), login))

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
        if self.front is not None:
            self.front.stop()
        self.server.kill()
        self.server.wait()


def place(directory: Path, *, behind: bool, settings: str = "", **front: int) -> Place:
    """Start one. ``settings``: more of the NATS server's file."""
    listener = None
    port = free_port()
    if behind:
        listener = Front(
            LOOPBACK,
            0,
            max_line=front.get("max_line", 0),
            max_pending=front.get("max_pending", 64 << 20),
        )
        port = listener.server_port
    directory.mkdir(exist_ok=True)
    (directory / "nats.conf").write_text(
        f'host: "{LOOPBACK}"\nport: {port}\n{settings}\n'
        + ("proxy_protocol: true\n" if behind else "")
    )
    with open(os.devnull, "wb") as silent:
        server = subprocess.Popen(
            [binary_path(), "-c", str(directory / "nats.conf")], stdout=silent, stderr=silent
        )
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((LOOPBACK, port)).close()
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)
    if listener is not None:
        listener.serve(on=True)
        listener.be_direct(on=True)
        listener.listen()
    return Place(server, port, listener)


def both(directory: Path, settings: str = "") -> Iterator[tuple[Place, Place]]:
    """The listener in front of a NATS server, and a NATS server."""
    with (
        place(directory / "through", behind=True, settings=settings) as through,
        place(directory / "straight", behind=False, settings=settings) as straight,
    ):
        yield through, straight
