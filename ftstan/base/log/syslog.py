"""Syslog, local or remote, in the frames of the original: tag, process id and text.

No pid, date or level of a line.

A daemon that goes away is asked again with growing pauses; lines meanwhile are lost (``writer.py``
counts them). Every call may block for ``_TIMEOUT_S``: never on a thread that serves.

``logging.handlers.SysLogHandler`` does not serve: it has no timeout, does not see that a daemon
behind TCP has gone, and refuses text that is no UTF-8.

Source: ``docs/compat/logging.md`` (syslog).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.base.log.files import encoded

if TYPE_CHECKING:
    from ftstan.base.log.levels import Level

#: Where a local daemon listens, the first that answers.
LOCAL_PATHS = ("/dev/log", "/var/run/syslog", "/var/run/log")

_DAEMON = 3 << 3
_TIMEOUT_S = 2.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_HINT = "start the syslog daemon, or log to a file (-l) or to standard error"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens.

    ``network``: ``udp``, ``tcp`` or ``unix``; ``place``: ``host:port`` or a path.

    ``network`` empty: the local one.
    """

    network: str = ""
    place: str = ""


def parse_address(url: str) -> Address:
    """Read the URL of ``-r``: ``udp://host:port``, ``tcp://host:port``, ``unix:///path``.

    Raises ``ConfigError`` with the original's texts.
    """
    found = _SCHEME.fullmatch(url)
    if found is None:
        if url.startswith(":"):
            raise ConfigError(
                f'parse "{url}": missing protocol scheme', hint="write it as udp://host:port"
            )
        if ":" in url.partition("/")[0]:
            raise ConfigError(
                f'parse "{url}": first path segment in URL cannot contain colon',
                hint="write it as udp://host:port",
            )
    scheme, rest = (found[1].lower(), found[2]) if found is not None else ("", url)
    if scheme not in ("udp", "tcp", "unix"):
        raise ConfigError(
            f'error invalid network type: "{scheme}"',
            hint="use udp://host:port, tcp://host:port or unix:///path",
        )
    host, slash, path = rest.removeprefix("//").partition("/")
    return Address(scheme, f"{slash}{path}" if scheme == "unix" else host.rpartition("@")[2])


class Syslog:
    """A connection to a daemon. ``tag``: the program's name in each message.

    Raises ``ConfigError`` when there is no daemon to connect to.
    """

    def __init__(self, address: Address, tag: str) -> None:
        self._address = address
        self._tag = tag
        self._host = socket.gethostname()
        self._pause = _FIRST_PAUSE_S
        self._not_before = 0.0
        self._socket: socket.socket | None = None
        try:
            self._socket = _connect(address)
        except OSError as error:
            raise ConfigError(
                f'error connecting to syslog: "{_words(address, error)}"', hint=_HINT
            ) from error

    def write(self, level: Level, text: str) -> None:
        """Send one message. Raises ``OSError`` when it is lost."""
        data = encoded(f"{self._head(level)}{self._tag}[{os.getpid()}]: {text}\n")
        if self._socket is not None and not _has_ended(self._socket):
            with contextlib.suppress(OSError):
                self._socket.sendall(data)
                return
        self._connect_again().sendall(data)

    def close(self) -> None:
        """No line follows."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _head(self, level: Level) -> str:
        if not self._address.network:
            return f"<{_DAEMON | level.severity}>{time.strftime('%b %e %H:%M:%S')} "
        zone = time.strftime("%z")
        # "Z" for a zone without offset, as RFC 3339 and the original write it.
        offset = "Z" if zone == "+0000" else f"{zone[:3]}:{zone[3:]}"
        return f"<{level.severity}>{time.strftime('%Y-%m-%dT%H:%M:%S')}{offset} {self._host} "

    def _connect_again(self) -> socket.socket:
        self.close()
        now = time.monotonic()
        if now < self._not_before:
            raise OSError(None, "syslog is not there")
        self._not_before = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        self._socket = _connect(self._address)
        self._pause = _FIRST_PAUSE_S
        return self._socket


def _has_ended(sock: socket.socket) -> bool:
    """Whether the daemon has closed the connection: what is sent after that is lost without an
    error.
    """
    if sock.type != socket.SOCK_STREAM:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    try:
        # A daemon has nothing to say to us: what can be read is the end.
        return bool(poll.poll(0)) and sock.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _connect(address: Address) -> socket.socket:
    match address.network:
        case "tcp" | "udp":
            return _connect_inet(address)
        case "unix":
            return _connect_unix(address.place)
        case _:
            for path in LOCAL_PATHS:
                with contextlib.suppress(OSError):
                    return _connect_unix(path)
            raise OSError(None, "Unix syslog delivery error")


def _connect_inet(address: Address) -> socket.socket:
    host, colon, port = address.place.rpartition(":")
    if not colon or not port.isdigit():
        raise OSError(None, f"address {address.place}: missing port in address")
    kind = socket.SOCK_STREAM if address.network == "tcp" else socket.SOCK_DGRAM
    failed = OSError(None, "no such host")
    # Port 0 and more than there are: the system's own words, as for every other address.
    try:
        found = socket.getaddrinfo(host.strip("[]") or "localhost", int(port), type=kind)
    except (socket.gaierror, OverflowError) as error:
        raise OSError(None, f"lookup {host}: no such host") from error
    for family, _, protocol, _, place in found:
        try:
            return _connected(socket.socket(family, kind, protocol), place)
        except OSError as error:
            failed = error
    raise failed


def _connect_unix(path: str) -> socket.socket:
    try:
        return _connected(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), path)
    except OSError as error:
        if error.errno != errno.EPROTOTYPE:
            raise
    return _connected(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)


def _connected(sock: socket.socket, place: object) -> socket.socket:
    try:
        sock.settimeout(_TIMEOUT_S)
        sock.connect(place)  # type: ignore[arg-type]  # what getaddrinfo gives, or a path
    except OSError:
        sock.close()
        raise
    return sock


def _words(address: Address, error: OSError) -> str:
    """What the original says about a connection that fails."""
    why = error.strerror or str(error)
    if error.errno is None:
        return why if not address.network else f"dial {address.network}: {why}"
    return f"dial {address.network} {address.place}: connect: {why[:1].lower()}{why[1:]}"
