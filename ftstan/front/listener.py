"""The listener in front of the embedded NATS server, as the rest of the program sees it.

Clients can connect as soon as there is a ``Front``: they are greeted when ``listen`` is called, and
wait in the kernel's queue until then.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

from ftstan.front.switch import Switch

_BACKLOG: Final = 4096
_COMMAND: Final = struct.Struct("@ciiq")
#: Bytes from the core to the listener's thread, if the machine allows it; in the other direction
#: ``make_room`` decides.
_CORE_BYTES: Final = 4 << 20
#: Where the NATS server behind it listens.
LOOPBACK: Final = "127.0.0.1"
_DEFAULT_LINE: Final = 4096
#: Between two looks whether the thread has obeyed.
_LOOK_S: Final = 0.001
#: The first and the last port of outgoing connections.
_OUTGOING: Final = "/proc/sys/net/ipv4/ip_local_port_range"
#: So many below it are tried, so often.
_BELOW: Final = 5_000
_TRIES: Final = 50


@dataclass(frozen=True, slots=True)
class FrontStatus:
    """Numbers of a listener since its start.

    ``direct_in``: messages that clients published and the core got directly; ``direct_out``: those
    of the core that clients got directly. ``passed_in`` and ``passed_out``: messages through the
    NATS server. ``connections``: clients that are there; ``passing``: those of them whose
    messages all go through the NATS server; ``encrypted``: those with TLS. ``slow``: ended because
    they did not read; ``not_shaken``: because their handshake failed.
    """

    is_direct: bool
    connections: int
    passing: int
    direct_in: int
    direct_out: int
    passed_in: int
    passed_out: int
    slow: int
    encrypted: int
    not_shaken: int


class Front:
    """One listener and its thread. ``port`` is where clients connect.

    ``max_line`` and ``max_pending``: what the NATS server is configured with, 0 for what it does by
    itself; ``pending``: that default of ours.
    """

    def __init__(self, host: str, port: int, *, max_line: int, max_pending: int) -> None:
        """Open the port. Raises ``OSError``."""
        self._socket = _listening(host, max(port, 0))
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self.choose_server_port()
        self._is_on = False
        self._is_forbidden = False
        self._ordering = threading.Lock()
        self._orders = 0
        self._commands, self._obeyed = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.events, self._told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """A descriptor with a line for whatever is to be logged."""
        self._switch = Switch(
            commands=self._commands,
            words=self._told,
            max_line=max_line or _DEFAULT_LINE,
            max_pending=max_pending,
        )
        self._thread = threading.Thread(target=self._switch.run, name="front", daemon=True)
        self._thread.start()

    def choose_server_port(self) -> None:
        """Choose a port for the NATS server, before it listens."""
        self.server_port = free_port()
        """Where the NATS server is to listen, on the loopback."""

    @property
    def address(self) -> str:
        """Where clients connect, as it is shown."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def attach(self, server: socket.socket) -> socket.socket:
        """Take a connection of the core to the NATS server on which nothing has been said yet, and
        return what the core uses in its place.

        There is one such connection: a new one ends the former. Raises ``OSError``.
        """
        ours, theirs = socket.socketpair()
        with contextlib.suppress(OSError):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CORE_BYTES)
        theirs.setblocking(False)
        server.setblocking(False)
        self._order(b"C", theirs.detach(), server.detach())
        return ours

    def listen(self) -> None:
        """Serve clients from now on, also those that have connected already."""
        if self._socket.fileno() >= 0:
            self._order(b"L", self._socket.detach())

    def serve(self, *, on: bool) -> None:
        """Whether the NATS server is there. New clients wait as long as it is not: somebody else
        may have its port.
        """
        self._order(b"S", self.server_port if on else 0)

    def pause(self) -> None:
        """Greet nobody until ``resume``: new clients wait, and those are ended that have connected
        and heard nothing yet. Returns when that holds.

        What a greeting says of TLS, and what is done then, is never from two configurations so.
        """
        self.begin_pause()
        self.finish_pause()

    def begin_pause(self) -> None:
        """Order it, and do not wait."""
        self._order(b"P", 1)

    def finish_pause(self) -> None:
        """Return when what was ordered so far holds."""
        while self._obeyed >= 0 and self._switch.obeyed < self._orders:
            time.sleep(_LOOK_S)

    def resume(self) -> None:
        """Greet those who come from now on, and those who wait."""
        self._order(b"P", 0)

    def use_tls(self, made: int) -> None:
        """End TLS of those who come from now on with what ``openssl.make`` has made, which is the
        listener's from then on; 0: they speak plainly.
        """
        self._order(b"T", place=made)

    def close_port(self) -> None:
        """Take no new clients any more; those that are there stay."""
        if self._socket.fileno() >= 0:
            self._socket.close()
        else:
            self._order(b"N")

    def be_direct(self, *, on: bool) -> None:
        """Whether what clients publish goes to the core directly, where it listens for it."""
        self._is_on = on
        self._order(b"D", on)

    def hold(self, *, on: bool) -> None:
        """Keep what clients publish to the core, until it is known whether the NATS server is to
        judge it: then ``forbid``, or nothing, and in either case ``hold(on=False)``.
        """
        self._order(b"H", on)

    def forbid(self) -> None:
        """Let everything pass through the NATS server, until ``allow``."""
        self._is_forbidden = True
        self._order(b"F")

    def allow(self) -> None:
        """Take back ``forbid``. Everything keeps its order: what is sent directly from now on waits
        for what is on its way. It changes nothing where the listener has given up by itself.
        """
        if self._is_forbidden:
            self._order(b"A")
            # Until that has been obeyed, the switch says so.
            self._is_forbidden = False

    @property
    def is_forbidden(self) -> bool:
        """Whether everything passes through the NATS server."""
        return self._is_forbidden or self._switch.is_forbidden

    @property
    def is_forbidden_for_good(self) -> bool:
        """Whether the listener has given up by itself."""
        return self._switch.is_crowded

    def set_max_line(self, size: int) -> None:
        """Bytes of a line's argument that the NATS server takes from now on, 0 for what it does by
        itself.
        """
        self._order(b"M", size or _DEFAULT_LINE)

    def make_room(self, size: int) -> None:
        """How many bytes may wait for the core, and as many in the kernel's buffer, until clients
        are read no further; a client that has little there is read on.
        """
        self._order(b"R", size)

    def status(self) -> FrontStatus:
        """Its numbers as of now."""
        switch = self._switch
        is_forbidden = self.is_forbidden
        connections = switch.connections
        return FrontStatus(
            is_direct=self._is_on and not is_forbidden,
            connections=connections,
            passing=connections if is_forbidden else switch.passing,
            direct_in=switch.direct_in,
            direct_out=switch.direct_out,
            passed_in=switch.passed_in,
            passed_out=switch.passed_out,
            slow=switch.slow,
            encrypted=switch.encrypted,
            not_shaken=switch.not_shaken,
        )

    def read_events(self) -> list[tuple[str, str]]:
        """What has happened: ``slow``, ``full``, ``crowd`` or ``tls``, and which client's address,
        for ``tls`` with the reason; ``stranger``, and the NATS server's address; ``unseen``, if the
        kernel does not tell whose that is. None may be missing but when there were very many.
        """
        with contextlib.suppress(BlockingIOError):
            lines = os.read(self.events, 65536).decode("ascii", "replace").splitlines()
            return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]
        return []

    def stop(self) -> None:
        """End every connection and the thread. Harmless when it is over."""
        with self._ordering:
            # Whoever orders from now on must not write to a descriptor that is closed, or another's
            # already.
            obeyed = self._obeyed
            self._obeyed = -1
            if obeyed < 0:
                return
            os.write(obeyed, _COMMAND.pack(b"Q", 0, -1, 0))
        self._thread.join()
        self._socket.close()
        for end in (self._commands, obeyed, self.events, self._told):
            os.close(end)

    def _order(self, what: bytes, number: int = 0, other: int = -1, *, place: int = 0) -> None:
        with self._ordering:
            if self._obeyed < 0:
                return
            self._orders += 1
            os.write(self._obeyed, _COMMAND.pack(what, number, other, place))


def free_port() -> int:
    """A port of the loopback that nobody uses now, and that the kernel gives to no outgoing
    connection: the NATS server is to have it again whenever it is started anew.
    """
    with contextlib.suppress(OSError, ValueError), open(_OUTGOING, encoding="ascii") as file:
        first = int(file.read().split()[0])
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                return _bound(random.randrange(max(first - _BELOW, 1024), first))
    return _bound(0)


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, port))
        got: int = probe.getsockname()[1]
        return got


def _listening(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(
        host.strip("[]") or None,
        port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV,
    )
    family, kind, proto, _, address = found[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and address[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
