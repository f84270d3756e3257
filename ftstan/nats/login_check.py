"""Trying the streaming server's own login and its rights on the ``nats-server`` that a start would
give it.

A ``nats-server`` with the logins and the TLS of the configuration listens on a port of its own for
a moment; nothing else of the configuration is handed to it: it meets no other server, and takes no
port that a running server has.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError, NatsError
from ftstan.nats.credentials import own
from ftstan.nats.generated import child_options
from ftstan.nats.launch import client_url, launch
from ftstan.nats.link import Link

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions
    from ftstan.nats.generated import NatsServerOptions
    from ftstan.nats.launch import Launched

#: What of the NATS half decides on a login.
_LOGINS: Final = frozenset(
    {
        *("authorization", "accounts", "no_auth_user", "system_account"),
        *("operator", "resolver", "resolver_preload", "trusted_keys"),
    }
)
_START_WITHIN_S: Final = 10.0
_CONNECT_WITHIN_S: Final = 5.0
_PAUSE_S: Final = 0.02
_MOST_OUTPUT: Final = 1 << 16
_DENIED: Final = re.compile(
    rb"-ERR 'Permissions Violation for (Publish|Subscription) to \"([^\"]+)\""
)
#: Its last line, of a log or before there is one.
_FATAL: Final = re.compile(rb"(?:\[FTL\] |nats-server: )([^\n]+)")


@dataclass(frozen=True, slots=True)
class Needs:
    """The subjects that a streaming server cannot do without."""

    hears: tuple[str, ...]
    says: tuple[str, ...]


def check_own_login(options: ServerOptions, needs: Needs) -> None:
    """Connect as a start would, and say and hear what it needs.

    Raises ``NatsError`` if that server would not let us in, or not let us do that. With external
    NATS servers, and where everybody is let in and no TLS is asked for, there is nothing to try.
    """
    # Without the log of a node: its directories are not ours to make, and a node may run on them.
    told = child_options(replace(options, clustered=False))
    settings = {key: value for key, value in told.settings.items() if key in _LOGINS}
    guarded = settings or told.user or told.password or told.token or told.tls.enabled
    guarded = guarded or options.link.secure or options.link.client_cert or options.link.client_ca
    if options.nats_servers or not guarded:
        return
    launched = launch(replace(told, settings=settings, cluster_listen="", routes=(), port=-1))
    try:
        _connect(options, told, _port(launched), needs)
    finally:
        launched.output.close()
        launched.process.kill()
        launched.process.wait()
        launched.remove_files()


def _port(launched: Launched) -> int:
    launched.open_gate()
    end = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < end and launched.process.poll() is None:
        if port := launched.ports().get("nats", 0):
            return port
        time.sleep(_PAUSE_S)
    why = _last_words(launched)
    raise NatsError(
        f"nats-server did not start with these logins and this TLS{f': {why}' if why else ''}",
        hint="correct that"
        if why
        else "start the server with -DV: its log says why; is the address of this host?",
    )


def _last_words(launched: Launched) -> str:
    """Why a ``nats-server`` that ended did, as far as it said so."""
    if launched.process.poll() is None:
        return ""
    launched.output.release()
    with launched.output.take() as output:
        found = _FATAL.findall(output.read(_MOST_OUTPUT) or b"")
    return found[-1].decode("utf-8", "replace").strip() if found else ""


def _connect(options: ServerOptions, told: NatsServerOptions, port: int, needs: Needs) -> None:
    link = Link(
        [client_url(told.host, port)],
        name="check",
        clock=SystemClock(),
        options=own(options),
    )
    try:
        link.connect(_CONNECT_WITHIN_S)
    except FtstanError as error:
        raise NatsError(
            f"the embedded NATS server would refuse the streaming server: {error}",
            hint=error.hint
            or "give the streaming server a login and TLS of its own (docs/security.md)",
        ) from error
    else:
        _try(link, needs)
    finally:
        link.close()


def _try(link: Link, needs: Needs) -> None:
    """Subscribe and publish as the server will, and see what is refused. Nobody else is there."""
    lines = [f"SUB {subject} {sid}\r\n" for sid, subject in enumerate(needs.hears, 1)]
    lines += [f"PUB {subject} 0\r\n\r\n" for subject in needs.says]
    link.send("".join([*lines, "PING\r\n"]).encode(), _CONNECT_WITHIN_S)
    got = bytes(link.leftover)
    buffer = memoryview(bytearray(_MOST_OUTPUT))
    end = time.monotonic() + _CONNECT_WITHIN_S
    while not got.endswith(b"PONG\r\n") and time.monotonic() < end:
        link.wait(end - time.monotonic())
        got += buffer[: link.recv_into(buffer)]
    denied = [
        f"{'publish to' if what == b'Publish' else 'subscribe to'} {subject.decode()}"
        for what, subject in _DENIED.findall(got)
    ]
    if denied:
        raise NatsError(
            "the embedded NATS server would not let the streaming server "
            f"{', '.join(sorted(set(denied)))}",
            hint="give its user the permissions of SERVER in docs/security.md",
        )
