"""What an active Go-rules peer does for clients: connect, ping, close and publish
(``docs/compat/protocol.md`` §3-5).

Not covered: subscriptions, which stay in the store as they are, and heartbeats to clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING

from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from tests.oracle.godecode import UndecodableError, Value, decode
from tests.oracle.goheartbeat import encode
from tests.oracle.golog import log, panic
from tests.oracle.goview import GoClient
from tests.oracle.gowriter import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tests.oracle.gowriter import GoWriter

BATCH = 1024
PROBE_S = 0.5
_CLIENT_ID = re.compile(rb"[a-zA-Z0-9_-]+")
_INVALID_PUBLISH = b"stan: invalid publish request"

Publish = tuple[str, dict[str, Value]]
"""Reply subject and the decoded message."""


class Serving:
    """Client requests on ``general``, publisher acks on ``send``.

    Publishes go through one I/O loop in batches.
    """

    def __init__(self, store: GoWriter, general: Client, send: Client) -> None:
        self._store = store
        self._general = general
        self._send = send
        self._connections = {c.conn_id: c for c in store.clients.values() if c.conn_id}
        self._publishes: asyncio.Queue[Publish | None] = asyncio.Queue()
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe to the subjects that the store names."""
        self._loop = asyncio.create_task(self._io_loop())
        info = self._store.info
        discovery = os.fsdecode(info.discovery)
        await self._listen(discovery, self._connect)
        await self._listen(f"{discovery}.pings", self._ping)
        await self._listen(f"{os.fsdecode(info.publish)}.>", self._publish)
        await self._listen(os.fsdecode(info.close), self._close)
        await self._general.flush()

    async def stop(self) -> None:
        """Let the I/O loop end its batch."""
        if self._loop is not None:
            self._publishes.put_nowait(None)
            await self._loop

    async def _listen(self, subject: str, handler: Callable[[Msg], Awaitable[None]]) -> None:
        await self._general.subscribe(
            subject, cb=handler, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    # Clients

    async def _connect(self, msg: Msg) -> None:
        try:
            request = decode("ConnectRequest", msg.data)
        except UndecodableError as bad:
            request = {**bad.partial, "heartbeat_inbox": b""}
        name = _blob(request, "client_id")
        inbox = _blob(request, "heartbeat_inbox")
        error = b""
        if not inbox:
            error = b"stan: invalid connection request"
        elif not _CLIENT_ID.fullmatch(name):
            error = b"stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
        elif name in self._store.clients and await self._lives(self._store.clients[name]):
            error = b"stan: clientID already registered"
        if error:
            await msg.respond(encode("ConnectResponse", error=error))
            return
        if name in self._store.clients:
            self._forget(name)
        client = GoClient(
            name,
            inbox,
            _blob(request, "conn_id"),
            int(request["protocol"]),
            int(request["ping_interval"]),
            int(request["ping_max_out"]),
        )
        self._store.add_client(client)
        if client.conn_id:
            self._connections[client.conn_id] = client
        await msg.respond(self._welcome(client))

    def _welcome(self, client: GoClient) -> bytes:
        info = self._store.info
        pings: dict[str, Value] = {}
        if client.protocol >= 1:
            pings = {
                "ping_requests": info.discovery + b".pings",
                "ping_interval": client.ping_interval,
                "ping_max_out": client.ping_max_out,
            }
        return encode(
            "ConnectResponse",
            pub_prefix=info.publish,
            sub_requests=info.subscribe,
            unsub_requests=info.unsubscribe,
            close_requests=info.close,
            sub_close_requests=info.sub_close,
            protocol=1,
            **pings,
        )

    async def _lives(self, client: GoClient) -> bool:
        try:
            await self._general.request(os.fsdecode(client.hb_inbox), b"", timeout=PROBE_S)
        except (NoRespondersError, NatsTimeoutError):
            return False
        return True

    def _forget(self, name: bytes) -> None:
        self._connections.pop(self._store.clients[name].conn_id, None)
        self._store.delete_client(name)

    async def _ping(self, msg: Msg) -> None:
        with contextlib.suppress(UndecodableError):
            known = decode("Ping", msg.data)["conn_id"] in self._connections
            error = b"" if known else b"client has been replaced or is no longer registered"
            await msg.respond(encode("PingResponse", error=error))

    async def _close(self, msg: Msg) -> None:
        try:
            name = _blob(decode("CloseRequest", msg.data), "client_id")
        except UndecodableError:
            await msg.respond(encode("CloseResponse", error=b"stan: invalid close request"))
            return
        if name not in self._store.clients:
            await msg.respond(encode("CloseResponse", error=b"stan: unknown clientID"))
            return
        self._forget(name)
        await msg.respond(encode("CloseResponse"))

    # Publishes

    async def _publish(self, msg: Msg) -> None:
        try:
            request = decode("PubMsg", msg.data)
        except UndecodableError as bad:
            await self._ack(msg.reply, _blob(bad.partial, "guid"), _INVALID_PUBLISH)
            return
        connection = _blob(request, "conn_id")
        known = (
            connection in self._connections
            if connection
            else _blob(request, "client_id") in self._store.clients
        )
        if known and _blob(request, "guid") and _legal(_blob(request, "subject")):
            self._publishes.put_nowait((msg.reply, request))
        else:
            await self._ack(msg.reply, _blob(request, "guid"), _INVALID_PUBLISH)

    async def _io_loop(self) -> None:
        while (first := await self._publishes.get()) is not None:
            batch = [first]
            more = True
            while len(batch) < BATCH and more and not self._publishes.empty():
                following = self._publishes.get_nowait()
                more = following is not None
                if following is not None:
                    batch.append(following)
            # In a thread: heartbeats go on whatever the disk does.
            answers = await asyncio.to_thread(self._store_batch, batch)
            for (reply, request), error in zip(batch, answers, strict=True):
                await self._ack(reply, _blob(request, "guid"), error)
            if not more:
                return

    def _store_batch(self, batch: list[Publish]) -> list[bytes]:
        """Store and flush; the error text of each publish, empty when it is stored."""
        answers: list[bytes] = []
        touched: dict[bytes, None] = {}
        for _, request in batch:
            channel = _blob(request, "subject")
            try:
                if self._store.store(channel, _blob(request, "reply"), _blob(request, "data")):
                    log("INF", f'Channel "{os.fsdecode(channel)}" has been created')
            except StoreError as error:
                answers.append(str(error).encode("utf-8", "surrogateescape"))
            else:
                touched[channel] = None
                answers.append(b"")
        try:
            self._store.flush(touched)
        except OSError as error:
            panic(f"unable to flush msg store: {error}")
        return answers

    async def _ack(self, reply: str, guid: bytes, error: bytes = b"") -> None:
        if reply:
            await self._send.publish(reply, encode("PubAck", guid=guid, error=error))


def _blob(fields: dict[str, Value], name: str) -> bytes:
    value = fields[name]
    assert isinstance(value, bytes)
    return value


def _legal(channel: bytes) -> bool:
    tokens = channel.split(b".")
    return all(tokens) and not any(mark in channel for mark in (b"/", b"*", b">"))
