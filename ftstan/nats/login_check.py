"""Trying the streaming server's own login on the ``nats-server`` that a start would give it.

A ``nats-server`` with the logins and the TLS of the configuration listens on a port of its own for
a moment; nothing else of the configuration is handed to it: it meets no other server, and takes no
port that a running server has.
"""

from __future__ import annotations

import time
from dataclasses import replace
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


def check_own_login(options: ServerOptions) -> None:
    """Connect as a start would. Raises ``NatsError`` if that server would not let us in.

    With external NATS servers, and where everybody is let in, there is nothing to try.
    """
    told = child_options(options)
    settings = {key: value for key, value in told.settings.items() if key in _LOGINS}
    guarded = settings or told.user or told.password or told.token or told.tls.enabled
    if options.nats_servers or not guarded:
        return
    launched = launch(replace(told, settings=settings, cluster_listen="", routes=(), port=-1))
    try:
        _connect(options, told, _port(launched))
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
    raise NatsError(
        "nats-server did not start with these logins and this TLS",
        hint="start the server with -DV: its log says why; is the address of this host?",
    )


def _connect(options: ServerOptions, told: NatsServerOptions, port: int) -> None:
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
    finally:
        link.close()
