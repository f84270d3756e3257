"""The data plane's own connection to NATS: a raw socket for one plain thread, every wait with a
deadline.

It does the handshake and then only moves bytes; frames are read and written elsewhere. Nothing is
buffered while it is down, nothing is sent again, and a connection that failed half way through a
write is closed: what follows would be read in the middle of a frame. The caller reconnects, every
``RECONNECT_WAIT_S``, for ever.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import NatsError
from ftstan.base.log import errno_text
from ftstan.config.options import LinkOptions
from ftstan.nats import tls
from ftstan.nats.connect import connect_json
from ftstan.nats.peer import check_peer
from ftstan.nats.url import NatsUrl, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.base.clock import Clock

#: Seconds between two attempts of a caller that reconnects (``docs/compat/nats.md``).
RECONNECT_WAIT_S = 0.25

#: How the error of a link that reached none of its servers begins (``docs/compat/nats.md``).
NO_SERVERS = "nats: no servers available for connection: "

_BUFFER_BYTES = 4 * 1024 * 1024
_MAX_LINE = 1024 * 1024
_DEFAULT_MAX_PAYLOAD = 1024 * 1024
_DROP_BYTES = 64 * 1024
#: For each address of a server that a thread tries.
_REACH_S = 2.0
# A peer that vanished without a word (power, cable): noticed after 25 s of silence, or 30 s of
# unacknowledged data.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_USER_TIMEOUT_MS = 30_000


class ConnectionLostError(NatsError):
    """The link is down: the server closed it, the network failed, or it took no bytes until the
    deadline.
    """


class UnreachableError(NatsError):
    """No NATS server answered."""


class LoginRefusedError(NatsError):
    """A NATS server that answered does not let this login in."""


class Link:
    """One connection at a time to one of ``urls``. Not thread-safe.

    ``name``: the connection's name in NATS monitoring. ``options``: login and TLS; credentials
    written in a URL win over its user, password and token. After ``connect``: ``info`` is the
    server's INFO, ``max_payload`` its limit in bytes, ``leftover`` what was read behind the
    handshake (parse it first), ``url_shown`` the redacted URL.
    """

    def __init__(
        self,
        urls: Sequence[str | NatsUrl],
        *,
        name: str,
        clock: Clock,
        options: LinkOptions = LinkOptions(),  # noqa: B008  # frozen
    ) -> None:
        self._urls = [url if isinstance(url, NatsUrl) else parse_url(url) for url in urls]
        self._name = name
        self._options = options
        self._clock = clock
        self._socket: socket.socket | tls.TlsSocket | None = None
        self._tls: tls.TlsSocket | None = None
        self._poll = select.poll()
        self._is_cut = False
        self.connected = False
        """Whether the link was up at the last call."""
        self._fd = -1
        self.info: dict[str, Any] = {}
        self.max_payload = _DEFAULT_MAX_PAYLOAD
        self.leftover = b""
        self.url_shown = self._urls[0].shown
        self.through: Callable[[socket.socket], socket.socket] | None = None
        """What takes each new connection and gives another one, with the same server behind it."""

    def fileno(self) -> int:
        """Return the socket's descriptor for ``poll``; -1 while not connected."""
        return self._fd

    @property
    def pending(self) -> bool:
        """Whether bytes wait of which ``poll`` on the descriptor says nothing: TLS reads ahead."""
        return self._tls is not None and self._tls.pending()

    def renew(self, options: LinkOptions) -> None:
        """Present ``options`` from the next connection on. Any thread may call it."""
        self._options = options

    def hello(self, then: bytes) -> bytes:
        """What may be sent to the first of ``urls`` before it has said a word, if it is known to
        have neither TLS nor a nonce to sign: the login and ``then``.
        """
        return _login(self._name, self._urls[0], self._options, {"headers": True}) + then

    @property
    def servers(self) -> int:
        """How many ``urls`` there are."""
        return len(self._urls)

    def reach(self) -> Reach:
        """Begin to open a connection to the first of ``urls``, for a caller that must not wait."""
        return Reach(self._urls[0])

    def connect(
        self,
        timeout: float,
        then: bytes = b"",
        *,
        opened: socket.socket | None = None,
        reached: socket.socket | None = None,
    ) -> None:
        """Try each URL once, all within ``timeout`` seconds (name resolution apart), and return
        with the link up.

        ``then`` is sent with the login, and holds a round trip earlier than what is sent later. Its
        answers are in ``leftover``, or still on their way. ``opened`` is a connection to the first
        of ``urls``, on which ``hello(then)`` has been sent. ``reached`` is one on which nothing
        has: no other server is tried then.

        Raises ``NatsError``: a server's own refusal if there was one (``nats: Authorization
        Violation``), else ``UnreachableError``, ``nats: no servers available for connection`` with
        the reason for each URL.
        """
        self.close()
        end = self._clock.mono() + timeout
        failures: list[NatsError] = []
        for left in range(1 if reached is not None else len(self._urls), 0, -1):
            url = self._urls[0]
            share = max(end - self._clock.mono(), 0.0) / left
            try:
                self._dial(url, self._clock.mono() + share, then, opened, reached)
            except NatsError as error:
                failures.append(error)
                self.next_url()
                opened = None
            else:
                self.url_shown = url.shown
                return
        for failure in failures:
            if not isinstance(failure, UnreachableError):
                raise failure
        raise UnreachableError(
            NO_SERVERS + "; ".join(str(failure) for failure in failures),
            hint="start the NATS server, or correct -ns",
        )

    def wait(self, seconds: float) -> None:
        """Return when something has arrived, or the link is lost, or after ``seconds``."""
        if self._socket is not None and not self.pending:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(math.ceil(seconds * 1000))

    def recv_into(self, buffer: memoryview) -> int:
        """Read what has arrived into ``buffer`` (not empty); 0 means nothing has.

        Raises ``ConnectionLostError``.
        """
        if self._socket is None:
            raise ConnectionLostError("nats: not connected")
        try:
            got = self._socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(_reason(error)) from error
        if got == 0:
            raise self._lost("closed by the server")
        return got

    def send(self, data: bytes | bytearray | memoryview, deadline_s: float) -> None:
        """Send all of ``data``, waiting at most ``deadline_s`` seconds for the server to take it.

        Raises ``ConnectionLostError``; the link is closed then, and how much was sent is unknown.
        """
        if self._socket is None:
            raise ConnectionLostError("nats: not connected")
        end = 0.0
        done = 0
        with memoryview(data) as view:
            while done < len(view):
                try:
                    done += self._socket.send(view[done:])
                    continue
                except BlockingIOError:
                    pass
                except OSError as error:
                    raise self._lost(_reason(error)) from error
                now = self._clock.mono()
                end = end or now + deadline_s
                if not self._writable(end - now):
                    raise self._lost(f"the server took no more bytes for {deadline_s:g} s")

    def cut(self) -> None:
        """End the connection for good, from any thread, while its owner may hang: the server hears
        of it at once.
        """
        self._is_cut = True
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the link; harmless when it is not up."""
        if self._socket is not None:
            self._poll.unregister(self._socket)
            self._socket.close()
            self._socket = self._tls = None
            self.connected = False
            self._fd = -1
        self.leftover = b""

    def finish(self, seconds: float) -> None:
        """Close the link when the server has read all that was sent, or after ``seconds``.

        What it says meanwhile is dropped. With bytes that nobody read, a close makes the kernel
        reset the connection and throw away what is still on its way to the server.
        """
        end = self._clock.mono() + seconds
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        dropped = memoryview(bytearray(_DROP_BYTES))
        # The server closes its side behind the last byte that it read.
        while self.connected and (left := end - self._clock.mono()) > 0:
            self.wait(left)
            with contextlib.suppress(ConnectionLostError):
                self.recv_into(dropped)
        self.close()

    def _writable(self, seconds: float) -> bool:
        return seconds > 0 and bool(self._poll.poll(math.ceil(seconds * 1000)))

    def _lost(self, why: str) -> ConnectionLostError:
        self.close()
        # The server that failed goes to the end of the queue.
        self.next_url()
        return ConnectionLostError(f"nats: connection to {self.url_shown} lost: {why}")

    def next_url(self) -> None:
        """Try the next of ``urls`` first from now on."""
        self._urls.append(self._urls.pop(0))

    def _dial(
        self,
        url: NatsUrl,
        end: float,
        then: bytes,
        opened: socket.socket | None,
        reached: socket.socket | None,
    ) -> None:
        try:
            sock = (
                opened
                or reached
                or socket.create_connection((url.host, url.port), self._remaining(end))
            )
            _prepare(sock)
            if self.through is not None and opened is None:
                sock = self.through(sock)
        except OSError as error:
            raise UnreachableError(f"{url.shown}: {_reason(error)}") from error
        handshake = _Handshake(sock, url, end, self._clock)
        try:
            info = handshake.run(self._name, self._options, None if opened is not None else then)
            handshake.socket.setblocking(False)
        except OSError as error:
            handshake.socket.close()
            if handshake.must_show and tls.is_end(error):
                raise tls.refused(url, self._options) from error
            if isinstance(error, ssl.SSLError):
                raise tls.explain(error, url, self._options) from error
            raise UnreachableError(f"{url.shown}: {_reason(error)}") from error
        except BaseException:
            handshake.socket.close()
            raise
        self._socket = handshake.socket
        self._tls = self._socket if isinstance(self._socket, tls.TlsSocket) else None
        self._poll.register(self._socket, select.POLLOUT)
        self.connected = True
        self._fd = self._socket.fileno()
        if self._is_cut:
            self.close()
            raise NatsError("nats: this link was cut")
        self.info = info
        self.max_payload = max_payload(info)
        self.leftover = bytes(handshake.buffer)

    def take_info(self, text: bytes) -> None:
        """An INFO that came later. Raises ``ConnectionLostError`` for what is none."""
        info: object = None
        with contextlib.suppress(ValueError, RecursionError):
            info = json.loads(text)
        if not isinstance(info, dict):
            raise ConnectionLostError(
                f"{self.url_shown} does not speak NATS: it said INFO {text[:40]!r}"
            )
        self.info = info
        self.max_payload = max_payload(info, self.max_payload)

    def _remaining(self, end: float) -> float:
        # Zero would mean "do not block" to the socket; a deadline that has passed still gets one
        # short try.
        return max(end - self._clock.mono(), 0.001)


class Reach:
    """A TCP connection that is being opened on a thread: names may be looked up for minutes."""

    def __init__(self, url: NatsUrl) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._is_over = False
        self._is_left = False
        self._socket: socket.socket | None = None
        self._why = ""
        thread = threading.Thread(target=self._open, name="nats-reach", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no room for one more
            self._why = str(error)
            self._is_over = True

    @property
    def is_over(self) -> bool:
        """Whether ``take`` has an answer."""
        return self._is_over

    def take(self) -> socket.socket:
        """The connection, once it ``is_over``. Raises ``UnreachableError``."""
        if self._socket is None:
            raise UnreachableError(f"{self._url.shown}: {self._why}")
        return self._socket

    def leave(self) -> None:
        """Nobody wants it any more."""
        with self._lock:
            self._is_left = True
            if self._socket is not None:
                self._socket.close()

    def _open(self) -> None:
        made = None
        try:
            made = socket.create_connection((self._url.host, self._url.port), _REACH_S)
        except OSError as error:
            self._why = _reason(error)
        except ValueError as error:  # of a name that is none
            self._why = str(error)
        with self._lock:
            self._socket = made
            self._is_over = True
            if made is not None and self._is_left:
                made.close()


def max_payload(info: dict[str, Any], default: int = _DEFAULT_MAX_PAYLOAD) -> int:
    """The limit in bytes that a server's INFO names."""
    found = info.get("max_payload")
    return found if isinstance(found, int) and found > 0 else default


class _Handshake:
    """INFO, TLS, CONNECT, PING, PONG on a blocking socket.

    ``buffer`` holds what was read and not consumed.
    """

    def __init__(self, sock: socket.socket, url: NatsUrl, end: float, clock: Clock) -> None:
        self.socket: socket.socket | tls.TlsSocket = sock
        self._raw = sock
        self._url = url
        self._end = end
        self._clock = clock
        self.must_show = False
        """Whether TLS stands, with a server that asks for a certificate of ours."""
        self.buffer = bytearray()

    def run(self, name: str, options: LinkOptions, then: bytes | None) -> dict[str, Any]:
        """Return the server's INFO once it has accepted us; ``then`` is sent with the login.

        ``None``: both were sent already.

        Raises ``NatsError``, ``OSError``.
        """
        info = self._info(self._line())
        if then is not None:
            # What goes through the listener is judged there.
            if options.of_child and self._raw.family != socket.AF_UNIX:
                check_peer(self._raw, self._url)
            self._log_in(name, options, info, then)
        while True:
            line = self._line()
            if line == b"PONG":
                return info
            if line == b"PING":
                self._send(b"PONG\r\n")
            elif line.startswith(b"INFO "):
                info = self._info(line)
            elif line.startswith(b"-ERR"):
                raise self._refusal(line[4:].strip().strip(b"'").decode("utf-8", "replace"))

    def _log_in(self, name: str, options: LinkOptions, info: dict[str, Any], then: bytes) -> None:
        """Go on with TLS if that is to be, and say who we are."""
        if tls.must_upgrade(info, self._url, options):
            context = tls.client_context(options)
            # Nothing that came in plain text behind the INFO may count as having come through TLS.
            self.buffer.clear()
            self._arm()
            self.socket = tls.TlsSocket(
                self._raw, context, tls.server_name(self._url.host, options)
            )
            self.must_show = bool(info.get("tls_verify"))
        self._send(_login(name, self._url, options, info) + then)

    def _info(self, line: bytes) -> dict[str, Any]:
        parsed: object = None
        if line.startswith(b"INFO "):
            with contextlib.suppress(ValueError):
                parsed = json.loads(line[5:])
        if not isinstance(parsed, dict):
            raise NatsError(
                f"{self._url.shown} does not speak NATS: it said {line[:40]!r}", hint="correct -ns"
            )
        return parsed

    def _refusal(self, text: str) -> NatsError:
        told = f"nats: {text} ({self._url.shown})"
        if text.lower().startswith("authorization"):
            return LoginRefusedError(
                told,
                hint="give what this NATS server expects: -user and -pass, -auth, nkey_seed_file "
                "or credentials",
            )
        return NatsError(told)

    def _line(self) -> bytes:
        while True:
            end = self.buffer.find(b"\r\n")
            if end >= 0:
                line = bytes(self.buffer[:end])
                del self.buffer[: end + 2]
                return line
            if len(self.buffer) > _MAX_LINE:
                raise NatsError(
                    f"{self._url.shown} does not speak NATS: a line of more than {_MAX_LINE} bytes"
                )
            self._arm()
            chunk = self.socket.recv(65536)
            if not chunk:
                raise ConnectionResetError("closed by the server during the handshake")
            self.buffer += chunk

    def _send(self, data: bytes) -> None:
        self._arm()
        self.socket.sendall(data)

    def _arm(self) -> None:
        remaining = self._end - self._clock.mono()
        if remaining <= 0:
            raise TimeoutError("no answer in time")
        self.socket.settimeout(remaining)


def _login(name: str, url: NatsUrl, options: LinkOptions, info: dict[str, Any]) -> bytes:
    return b"CONNECT " + connect_json(name, url, options, info) + b"\r\nPING\r\n"


def _prepare(sock: socket.socket) -> None:
    """Set what a link wants of the kernel; closes ``sock`` if that fails."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        _grow(sock, socket.SO_SNDBUF, "/proc/sys/net/core/wmem_max")
        _grow(sock, socket.SO_RCVBUF, "/proc/sys/net/core/rmem_max")
    except OSError:
        sock.close()
        raise


def _grow(sock: socket.socket, option: int, limit_file: str) -> None:
    # Setting a size ends the kernel's own tuning, and a size above the limit is cut to it: asking
    # for more than the machine allows would leave less than not asking.
    with contextlib.suppress(OSError, ValueError), open(limit_file, encoding="ascii") as file:
        if int(file.read()) >= _BUFFER_BYTES:
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):  # its numbers are not errno's
        return str(error.strerror).lower()
    if isinstance(error, ssl.SSLError):
        return tls.reason(error)
    return errno_text(error)
