"""One scripted session of NATS clients and a fake core, played straight against a nats-server and
through the listener in front of one; what every connection hears is compared.

A ``Play`` has the connections of one session. Every step is followed by a round of PINGs on all
connections, so that all it causes has come before the next one: the transcripts are equal to the
byte, but for INFO.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ftstan.front.listener import Front, free_port
from ftstan.nats.binary import binary_path
from ftstan.nats.listener_tls import make
from tests.tls_pipe import TlsPipe, greeted

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from ftstan.config.options import ServerTlsOptions

HOST = "127.0.0.1"
PATIENCE_S = 10.0
CORE = "core"
LOGIN = {"verbose": False, "pedantic": False, "headers": True, "protocol": 1}
HELLO = b"CONNECT " + json.dumps(LOGIN).encode() + b"\r\n"
MAX_PAYLOAD = 2000
MAX_LINE = 512

_INFO = re.compile(rb"INFO [^\r\n]*\r\n")
#: A nats-server reads the line of a message a second time when the rest has come with another read
#: (its buffer may have 64 bytes), and complains a second time to a pedantic client. So how often it
#: does is open.
_TOLD_TWICE = b"-ERR 'Invalid Publish Subject'\r\n"


class Nats:
    """A nats-server with a configuration of its own; ended by its pid."""

    def __init__(
        self, *, proxy: bool, max_pending: int = 8 << 20, tls: ServerTlsOptions | None = None
    ) -> None:
        self.tls = tls
        keys = f'cert_file: "{tls.cert_file}", key_file: "{tls.key_file}"' if tls else ""
        self.port = free_port()
        self._place = tempfile.TemporaryDirectory(prefix="roads-")
        conf = Path(self._place.name, "nats.conf")
        conf.write_text(
            f"host: {HOST}\nport: {self.port}\nmax_payload: {MAX_PAYLOAD}\n"
            f"max_control_line: {MAX_LINE}\nmax_pending: {max_pending}\n"
            'write_deadline: "5s"\n'
            + ("proxy_protocol: true\n" if proxy else "")
            + (f"tls {{ {keys}, timeout: {tls.timeout} }}\n" if tls else "")
        )
        self._process = subprocess.Popen(
            [binary_path(), "-c", str(conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection((HOST, self.port), 1).close()
            except OSError:
                assert time.monotonic() < end, "no nats-server"
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._place.cleanup()


class Wire:
    """A raw connection that remembers what it hears."""

    def __init__(self, sock: socket.socket | TlsPipe) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE_S)
        self.heard = bytearray()
        self.is_over = False
        self.is_stuck = False
        self.asked = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                data = self.sock.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                data = b""
            with self._changed:
                self.heard += data
                self.is_over = not data
                self._changed.notify_all()
                if not data:
                    return

    def send(self, data: bytes, piece: int = 0) -> None:
        """Send, in pieces if there is a size of them."""
        self.asked += _pings(data)
        with contextlib.suppress(OSError):
            if not piece:
                self.sock.sendall(data)
                return
            if isinstance(self.sock, socket.socket) and self.sock.family == socket.AF_INET:
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(data), piece):
                self.sock.sendall(data[at : at + piece])
                time.sleep(0.0003)

    def wait(self, what: bytes, count: int = 1, patience: float = PATIENCE_S) -> bool:
        """Whether it hears something so often before it is over."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.is_over or self.heard.count(what) >= count, patience
            ) and (self.heard.count(what) >= count)

    def wait_for_end(self, patience: float = PATIENCE_S) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.is_over, patience)

    def sync(self, patience: float) -> None:
        """Wait until all has been read and answered that was sent before."""
        if self.is_over or self.is_stuck:
            return
        self.send(b"PING\r\n")
        done = self.wait(b"PONG\r\n", self.asked, patience) or self.is_over
        if not done:
            self.is_stuck = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self.sock.close()

    def transcript(self) -> list[bytes]:
        """What it has heard, but for INFO, and how it stands."""
        ends = [b"<over>"] * self.is_over + [b"<stuck>"] * self.is_stuck
        return _in_order(_INFO.sub(b"", bytes(self.heard))) + ends


def _items(text: bytes) -> list[bytes]:
    """Lines, each with the payload that belongs to it."""
    items = []
    at = 0
    while at < len(text):
        end = text.find(b"\n", at) + 1 or len(text)
        line = text[at:end]
        if line.startswith((b"MSG ", b"HMSG ")):
            end += int(line.split()[-1]) + 2
        # Of the server's own PINGs nobody knows when they come.
        if line != b"PING\r\n":
            items.append(text[at:end])
        at = end
    return items


def _pings(text: bytes) -> int:
    """How many PINGs are among what a client sends."""
    count = at = 0
    while (end := text.find(b"\n", at) + 1) > 0:
        line = text[at:end].upper()
        count += line.startswith(b"PING")
        at = end
        if line.startswith((b"PUB", b"HPUB")) and (size := line.split()[-1]).isdigit():
            at += int(size) + 2
    return count


def _in_order(text: bytes) -> list[bytes]:
    """Items; copies of one message for several subscriptions by sid: their order is open. What may
    be told twice is there once.
    """

    def message(item: bytes) -> object:
        if not item.startswith((b"MSG ", b"HMSG ")):
            return object()
        words = item.split(b" ", 3)
        return words[1], words[3]

    items: list[bytes] = []
    for _, copies in itertools.groupby(_items(text), message):
        items += sorted(copies)
    pairs = zip(items, [b"", *items], strict=False)
    return [item for item, former in pairs if item != _TOLD_TWICE or item != former]


class Play:
    """The connections of one session; ``front`` is None where it is played straight."""

    def __init__(
        self,
        nats: Nats,
        *,
        fronted: bool,
        core: bool = True,
        max_pending: int = 8 << 20,
        tls: ServerTlsOptions | None = None,
        context: ssl.SSLContext | None = None,
        piece: int = 0,
    ) -> None:
        self.nats = nats
        self.tls = tls
        self.context = context
        self.piece = piece
        self.front: Front | None = None
        self.wires: dict[str, Wire] = {}
        self.past: dict[str, list[bytes]] = {}
        self.lives = 0
        self.patience = PATIENCE_S
        if fronted:
            self.front = Front(HOST, 0, max_line=MAX_LINE, max_pending=max_pending)
            self.front.server_port = nats.port
            if tls is not None:
                self.front.use_tls(make(tls))
            self.front.serve(on=True)
            self.front.listen()
            self.front.be_direct(on=True)
        if core:
            self.attach()

    def attach(self) -> None:
        """The core connects, if need be again."""
        self.close(CORE)
        if self.front is not None:
            up = socket.create_connection((HOST, self.nats.port), PATIENCE_S)
            self._add(CORE, self.front.attach(up))
        else:
            self._add(CORE, self._dial(self.nats.port))
        self.wires[CORE].send(HELLO)
        self.wires[CORE].sync(self.patience)

    def open(self, name: str, hello: bytes = HELLO) -> Wire:
        port = self.front.port if self.front is not None else self.nats.port
        wire = self._add(name, self._dial(port))
        if hello:
            if self.tls is None:
                wire.wait(b"INFO ")
            wire.send(hello)
            wire.sync(self.patience)
        return wire

    def _dial(self, port: int) -> socket.socket | TlsPipe:
        if self.tls is None:
            return socket.create_connection((HOST, port), PATIENCE_S)
        sock, _ = greeted(HOST, port)
        return TlsPipe(sock, self.context, piece=self.piece)

    def _add(self, name: str, sock: socket.socket | TlsPipe) -> Wire:
        if name in self.wires:
            self.close(name)
        self.wires[name] = Wire(sock)
        return self.wires[name]

    def close(self, name: str) -> None:
        wire = self.wires.pop(name, None)
        if wire is not None:
            text = wire.transcript()
            wire.close()
            self.lives += 1
            self.past[f"{name} {self.lives}"] = text

    def sync(self, first: str) -> None:
        """All that the first has sent has been heard, and all that was sent before."""
        for name in sorted(self.wires, key=lambda name: (name != first, name != CORE)):
            self.wires[name].sync(self.patience)

    def play(self, step: Sequence[object]) -> None:
        """One step: what to do, with which connection, and more of it."""
        what, *more = step
        if what == "open":
            self.open(*more)  # type: ignore[arg-type]
        elif what == "close":
            self.close(str(more[0]))
        elif what == "attach":
            self.attach()
        elif what == "direct":
            if self.front is not None:
                self.front.be_direct(on=bool(more[0]))
        elif what == "allow":
            if self.front is not None:
                (self.front.allow if more[0] else self.front.forbid)()
        elif (wire := self.wires.get(str(more[0]))) is not None:
            if what == "half":
                with contextlib.suppress(OSError):
                    wire.sock.shutdown(socket.SHUT_WR)
                wire.wait_for_end(self.patience)
            elif what == "end":
                # It says something that ends it.
                wire.send(*more[1:])  # type: ignore[arg-type]
                wire.wait_for_end(self.patience)
            else:
                wire.send(*more[1:])  # type: ignore[arg-type]
        self.sync(str(more[0]) if more else CORE)

    def stop(self) -> dict[str, list[bytes]]:
        """What every connection has heard."""
        for name in list(self.wires):
            self.close(name)
        if self.front is not None:
            self.front.stop()
        return self.past


class Roads:
    """Two nats-servers: one alone, one behind the listener."""

    def __init__(self, tls: ServerTlsOptions | None = None) -> None:
        self.tls = tls
        self.straight = Nats(proxy=False, tls=tls)
        self.behind = Nats(proxy=True)

    def stop(self) -> None:
        self.straight.stop()
        self.behind.stop()

    def compare(
        self,
        steps: Sequence[Sequence[object]],
        *,
        core: bool = True,
        direct: int = 0,
        patience: float = PATIENCE_S,
        context: ssl.SSLContext | None = None,
        piece: int = 0,
    ) -> None:
        """Play on both roads. ``direct``: how many messages must not have passed the server;
        ``piece``: bytes of TLS that clients send at once.
        """
        results = []
        taken = 0
        for nats in (self.straight, self.behind):
            play = Play(
                nats,
                fronted=nats is self.behind,
                core=core,
                tls=self.tls,
                context=context,
                piece=piece if nats is self.behind else 0,
            )
            play.patience = patience
            try:
                for step in steps:
                    play.play(step)
                if play.front is not None:
                    status = play.front.status()
                    taken = status.direct_in + status.direct_out
            finally:
                results.append(play.stop())
        straight, fronted = results
        for name in straight:
            wanted, had = straight[name], fronted[name]
            if name.startswith("core"):
                # One that is followed by another has been closed here, or there before.
                wanted, had = ([one for one in ones if one != b"<over>"] for ones in (wanted, had))
            at = next(
                (
                    i
                    for i, (one, other) in enumerate(zip(wanted, had, strict=False))
                    if one != other
                ),
                min(len(wanted), len(had)),
            )
            assert had == wanted, (
                f"{name}, item {at}: straight {wanted[at : at + 4]}, fronted {had[at : at + 4]}"
            )
        assert taken >= direct, "not direct"
