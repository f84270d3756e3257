"""What a user chooses: how NATS is reached, how a session behaves, where a subscription starts and
how it is fed.

Values are checked when they are given, so that a mistake is an ``InvalidArgumentError`` of the
caller and never a refusal by some server later. Nothing here opens a socket or reads a clock.
"""

from __future__ import annotations

import inspect
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ftstan.client.errors import InvalidArgumentError
from ftstan.wire.messages import StartPosition
from ftstan.wire.subjects import DISCOVER_PREFIX, publishable, valid_channel, valid_client_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ftstan.client.errors import ClientError, ConnectionLostError

_NS = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_INT32 = (1 << 31) - 1
_MAX_INT64 = (1 << 63) - 1
_LONGEST_NAME = 256
_CREDENTIALS = re.compile(rb"BEGIN NATS USER JWT")
_SEED = re.compile(rb"\A\s*SU[A-Z2-7]{56}\s*\Z")
_SHOWN_OF_A_NAME = 40


def tls_context(
    *, ca: str = "", cert: str = "", key: str = "", insecure: bool = False
) -> ssl.SSLContext | None:
    """The ``tls`` of a ``NatsLogin`` from files; ``None`` if nothing was asked for.

    Raises ``OSError`` for files that cannot be used.

    ``ca``: authorities that the server's certificate is checked with, instead of the system's;
    ``cert``, ``key``: our own certificate; ``insecure``: the server's certificate is not checked.
    """
    if not (ca or cert or insecure):
        return None
    tls = ssl.create_default_context(cafile=ca or None)
    if cert:
        tls.load_cert_chain(cert, key or None)
    if insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


@dataclass(frozen=True, slots=True, repr=False)
class NatsLogin:
    """How NATS servers are reached and who we say we are; handed to nats-py as it is.

    ``tls``: used where a server asks for TLS or the address begins with ``tls://``; the default
    verifies against the system's authorities. ``user_credentials``: path of a ``.creds`` file;
    ``nkeys_seed``: path of a seed file. Files are read anew at every connect.
    """

    user: str | None = None
    password: str | None = None
    token: str | None = None
    user_credentials: str | Path | None = None
    nkeys_seed: str | None = None
    tls: ssl.SSLContext | None = None
    tls_hostname: str | None = None
    tls_handshake_first: bool = False

    def arguments(self) -> dict[str, Any]:
        """What was given, by the names that nats-py has for it.

        Raises ``InvalidArgumentError`` for a file of credentials that cannot be read or is none.
        """
        if self.user_credentials is not None:
            # The library would look for the line in a file without it for ever.
            _check_holds(
                self.user_credentials,
                _CREDENTIALS,
                "is no file of NATS credentials",
                "nsc generate creds makes one",
            )
        if self.nkeys_seed is not None:
            _check_holds(
                self.nkeys_seed,
                _SEED,
                "holds no seed of an nkey",
                "a user's seed begins with SU and stands alone: ftstanctl key nkey makes one",
            )
        given = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in given.items() if value is not None}

    def __repr__(self) -> str:
        return f"NatsLogin({', '.join(name for name in self.__slots__ if getattr(self, name))})"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session behaves.

    Times in seconds; see ``ftstan.client.connect`` for what each one means.
    """

    cluster_id: str
    client_id: str
    discover_prefix: str = DISCOVER_PREFIX
    timeout: float = 10.0
    request_timeout: float = 5.0
    ack_timeout: float | None = 30.0
    max_in_flight: int = 16384
    max_in_flight_bytes: int = 64 << 20
    ping_interval: int = 5
    ping_max_out: int = 12
    reconnect: bool = True
    republish: bool = False
    republish_after: float = 2.0
    on_connection_lost: Callable[[ConnectionLostError], Awaitable[None]] | None = None
    on_reconnected: Callable[[], Awaitable[None]] | None = None
    on_error: Callable[[ClientError], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        if not valid_client_id(self.client_id.encode()):
            raise InvalidArgumentError(
                f"client id {self.client_id!r} cannot be used",
                hint="it consists of letters, digits, - and _",
            )
        if not publishable(self.discovery.encode()):
            raise InvalidArgumentError(
                f"cluster id {self.cluster_id!r} cannot be used",
                hint="it is part of a NATS subject: no blanks, no * or >",
            )
        for name in (
            "timeout",
            "request_timeout",
            "republish_after",
            "max_in_flight",
            "max_in_flight_bytes",
        ):
            positive(name, getattr(self, name))
        if self.ack_timeout is not None:
            positive("ack_timeout", self.ack_timeout)
        for name in ("on_connection_lost", "on_reconnected", "on_error"):
            callback = getattr(self, name)
            if callback is not None and not inspect.iscoroutinefunction(callback):
                raise InvalidArgumentError(
                    f"{name} is no coroutine function", hint="define it with `async def`"
                )
        whole("ping_interval", self.ping_interval, 0)
        whole("ping_max_out", self.ping_max_out, 0)

    @property
    def discovery(self) -> str:
        """The subject that a connect request goes to."""
        return f"{self.discover_prefix}.{self.cluster_id}"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new subscription begins; made by the class methods.

    A durable that exists goes on where it was instead.

    Source: ``docs/compat/protocol.md``, "Subscribe".
    """

    position: StartPosition.ValueType
    number: int = 0
    """Sequence; or nanoseconds back from the server's now.

    Or, with ``absolute``, nanoseconds since 1970.
    """
    absolute: bool = False

    @classmethod
    def new(cls) -> Start:
        """Only what is published from now on."""
        return cls(StartPosition.NEW_ONLY)

    @classmethod
    def last(cls) -> Start:
        """The last message that is stored, and what follows."""
        return cls(StartPosition.LAST_RECEIVED)

    @classmethod
    def first(cls) -> Start:
        """Everything that is stored."""
        return cls(StartPosition.FIRST)

    @classmethod
    def sequence(cls, number: int) -> Start:
        """From this sequence on; one beyond the end means only new messages."""
        whole("sequence", number, 0, _MAX_INT64)
        return cls(StartPosition.SEQUENCE_START, number)

    @classmethod
    def ago(cls, delta: timedelta | float) -> Start:
        """From the first message that is not older than ``delta`` (seconds, or a ``timedelta``)."""
        span = delta if isinstance(delta, timedelta) else timedelta(seconds=delta)
        if span < timedelta():
            raise InvalidArgumentError(
                f"a start {span} ago lies in the future", hint="give a positive time"
            )
        return cls(StartPosition.TIME_DELTA_START, _nanoseconds(span))

    @classmethod
    def time(cls, when: datetime) -> Start:
        """From the first message at this time or later.

        Reckoned by this machine's clock when the request is sent.
        """
        if when.tzinfo is None:
            raise InvalidArgumentError(
                f"start time {when.isoformat()} has no time zone",
                hint="for example datetime.now(tz=UTC)",
            )
        return cls(StartPosition.TIME_DELTA_START, _nanoseconds(when - _EPOCH), absolute=True)

    def delta(self, now_ns: int) -> int:
        """Nanoseconds back from now; 0 where no time was given.

        ``now_ns``: nanoseconds since 1970.
        """
        if self.position != StartPosition.TIME_DELTA_START:
            return 0
        return max(now_ns - self.number, 0) if self.absolute else self.number

    def asked(self, elapsed_ns: int) -> Start:
        """The same for a request that is sent again, ``elapsed_ns`` after the first one."""
        return self if self.position == StartPosition.LAST_RECEIVED else self.again(elapsed_ns)

    def again(self, elapsed_ns: int) -> Start:
        """Where a subscription starts that asked for this one ``elapsed_ns`` ago and has not got a
        message since.
        """
        if self.position in {StartPosition.NEW_ONLY, StartPosition.LAST_RECEIVED}:
            # What was published since is new to it; a difference of times does not care about
            # clocks that differ.
            return Start(StartPosition.TIME_DELTA_START, elapsed_ns)
        if self.position == StartPosition.TIME_DELTA_START and not self.absolute:
            return Start(self.position, self.number + elapsed_ns)
        return self


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """How a subscription is fed.

    ``ack_wait``: seconds until the server sends again what was not acknowledged.
    """

    channel: str
    queue: str = ""
    durable: str = ""
    start: Start = Start(StartPosition.NEW_ONLY)
    max_in_flight: int = 1024
    ack_wait: int = 30
    manual_acks: bool = False

    def __post_init__(self) -> None:
        check_channel(self.channel)
        whole("max_in_flight", self.max_in_flight, 1)
        whole("ack_wait", self.ack_wait, 1)
        if self.queue and ":" in self.durable:
            raise InvalidArgumentError(
                f"durable name {self.durable!r} of a queue group contains a colon",
                hint="choose one without",
            )

    @property
    def plain(self) -> bool:
        """Whether the server keeps nothing of it beyond the session, and feeds it alone."""
        return not self.queue and not self.durable


def check_channel(channel: str) -> None:
    """Raise ``InvalidArgumentError`` unless ``channel`` may name a channel and can be put on the
    wire.
    """
    try:
        name = channel.encode()
    except UnicodeEncodeError:
        name = b""
    if not valid_channel(name) or not publishable(name):
        raise InvalidArgumentError(
            f"{channel!r} cannot name a channel",
            hint="words between single dots; no /, no blanks, no wildcards",
        )


def check_name(name: str) -> None:
    """Raise ``InvalidArgumentError`` unless ``name`` may name a message: nothing, or up to 256
    printable characters.
    """
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidArgumentError(
            f"{name[:_SHOWN_OF_A_NAME]!r} cannot name a message",
            hint=f"at most {_LONGEST_NAME} printable characters",
        )


def _check_holds(path: str | Path, what: re.Pattern[bytes], otherwise: str, hint: str) -> None:
    try:
        with open(path, "rb") as file:
            holds = what.search(file.read()) is not None
    except OSError as error:
        raise InvalidArgumentError(
            f"{path}: {error.strerror}", hint="check the path of the credentials"
        ) from error
    if not holds:
        raise InvalidArgumentError(f"{path} {otherwise}", hint=hint)


def positive(name: str, value: float) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` is above 0."""
    if not value > 0:
        raise InvalidArgumentError(f"{name} is {value}", hint="it must be above 0")


def whole(name: str, value: int, least: int, most: int = _MAX_INT32) -> None:
    """Raise ``InvalidArgumentError`` unless ``value`` is a whole number in these bounds."""
    # The interface is typed; a fraction would only fail much later, inside the encoding of a
    # request.
    if not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgumentError(
            f"{name} is {value}", hint=f"it must be a whole number from {least} to {most}"
        )


def _nanoseconds(span: timedelta) -> int:
    return (span.days * 86400 + span.seconds) * _NS + span.microseconds * 1000
