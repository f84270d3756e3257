"""An asyncio client for NATS Streaming (STAN) servers, ftstan and the original alike:
``docs/client.md``.

``connect`` gives a ``Connection``; it publishes, subscribes, outlives restarts and failovers, and
needs no thread. What can go wrong is one tree of errors below ``ClientError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.client.connection import Connection
from ftstan.client.errors import (
    ClientError,
    ClientIdTakenError,
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    ConnectRefusedError,
    ConnectTimeoutError,
    DrainTimeoutError,
    HandlerError,
    InvalidArgumentError,
    LoginError,
    NatsUnreachableError,
    NotAllowedError,
    PublishError,
    PublishRefusedError,
    PublishTimeoutError,
    PublishUnknownError,
    ReplacedError,
    RequestError,
    RequestRefusedError,
    RequestTimeoutError,
    SubscriptionClosedError,
    SubscriptionLostError,
)
from ftstan.client.message import Message
from ftstan.client.options import NatsLogin, SessionOptions, Start
from ftstan.client.subscription import Subscription
from ftstan.wire.subjects import DISCOVER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = [
    "ClientError",
    "ClientIdTakenError",
    "ConnectError",
    "ConnectRefusedError",
    "ConnectTimeoutError",
    "Connection",
    "ConnectionClosedError",
    "ConnectionLostError",
    "DrainTimeoutError",
    "HandlerError",
    "InvalidArgumentError",
    "LoginError",
    "Message",
    "NatsLogin",
    "NatsUnreachableError",
    "NotAllowedError",
    "PublishError",
    "PublishRefusedError",
    "PublishTimeoutError",
    "PublishUnknownError",
    "ReplacedError",
    "RequestError",
    "RequestRefusedError",
    "RequestTimeoutError",
    "Start",
    "Subscription",
    "SubscriptionClosedError",
    "SubscriptionLostError",
    "connect",
]


async def connect(
    cluster_id: str,
    client_id: str,
    *,
    servers: str | Sequence[str] = "nats://127.0.0.1:4222",
    login: NatsLogin | None = None,
    name: str = "",
    discover_prefix: str = DISCOVER_PREFIX,
    timeout: float = 10.0,  # noqa: ASYNC109  # it bounds tries, and is part of the errors' texts
    request_timeout: float = 5.0,
    ack_timeout: float | None = 30.0,
    max_in_flight: int = 16384,
    max_in_flight_bytes: int = 64 << 20,
    ping_interval: int = 5,
    ping_max_out: int = 12,
    reconnect: bool = True,
    republish: bool = False,
    republish_after: float = 2.0,
    on_connection_lost: Callable[[ConnectionLostError], Awaitable[None]] | None = None,
    on_reconnected: Callable[[], Awaitable[None]] | None = None,
    on_error: Callable[[ClientError], Awaitable[None]] | None = None,
) -> Connection:
    """Connect to the streaming server of a cluster id, as ``client_id`` (letters, digits, ``-`` and
    ``_``).

    All times are in seconds.

    - ``servers``: addresses of NATS servers, ``nats://host:4222``; give those of every member of a
      group. Others that they tell of are learned. ``login``: user, token, credentials, TLS.
      ``name``: what NATS shows of the connection.
    - ``discover_prefix``: as the server has it.
    - ``timeout``: how long the first connect may take; tries go on until then. ``request_timeout``:
      the same for a subscribe, unsubscribe or close.
    - ``ack_timeout``: how long a publish waits for its ack; ``None``: for ever. ``max_in_flight``,
      ``max_in_flight_bytes``: how many publishes, and bytes of them, may be without an ack; the
      next one waits.
    - ``ping_interval`` (whole seconds), ``ping_max_out``: the session counts as lost when for
      ``ping_interval * (ping_max_out + 1)`` no ping was answered; choose more than the longest
      takeover to live through.
    - ``reconnect``: a session that was lost is made again. ``republish``: publishes without an ack
      are sent again, under the same guid, when service comes back and every ``republish_after``;
      exactly once where the server's ``-dedup_window`` holds what all clients publish meanwhile,
      else at least once.
    - ``on_connection_lost(error)``, ``on_reconnected()``, ``on_error(error)``: coroutine functions.
      The first is told each time a session is lost. The last gets failures that belong to no call,
      such as those of subscribers' callbacks; without it they go to the event loop's handler of
      exceptions.

    Raises ``InvalidArgumentError``, ``NatsUnreachableError``, ``LoginError``, ``NotAllowedError``,
    ``ConnectTimeoutError``, ``ConnectRefusedError``, ``ClientIdTakenError``.
    """
    options = SessionOptions(
        cluster_id=cluster_id,
        client_id=client_id,
        discover_prefix=discover_prefix,
        timeout=timeout,
        request_timeout=request_timeout,
        ack_timeout=ack_timeout,
        max_in_flight=max_in_flight,
        max_in_flight_bytes=max_in_flight_bytes,
        ping_interval=ping_interval,
        ping_max_out=ping_max_out,
        reconnect=reconnect,
        republish=republish,
        republish_after=republish_after,
        on_connection_lost=on_connection_lost,
        on_reconnected=on_reconnected,
        on_error=on_error,
    )
    addresses = [servers] if isinstance(servers, str) else list(servers)
    connection = Connection(
        addresses, login or NatsLogin(), options, name or f"stan-{cluster_id}-{client_id}"
    )
    await connection.open()
    return connection
