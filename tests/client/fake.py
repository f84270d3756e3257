"""A NATS server, and a streaming server behind it, that do what a test tells them.

Both live on the test's event loop.

``FakeNats`` routes messages between connections and to handlers. ``FakeStan`` answers a client's
requests, keeps what it heard, and says nothing by itself but what its switches ask for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Coroutine
from typing import Any

from ftstan.wire import messages
from ftstan.wire.codec import encode_msg_proto
from ftstan.wire.nuid import Nuid
from tests.compat.players.natswire import HOST, LIMIT, Operation, read
from tests.lateness import LateError
from tests.processes import CLUSTER, PATIENCE_S

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
_nuid = Nuid().next


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine function, run on a loop of its own.

    Nothing of it may be left running.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def whole() -> None:
            await asyncio.wait_for(test(*args, **kwargs), 3 * PATIENCE_S)
            # Tasks that were cancelled last get the turn that they need.
            for _ in range(10):
                await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert [task for task in left if "FakeNats" not in repr(task)] == []

        asyncio.run(whole())

    # Fixtures are found by the signature of what is wrapped.
    return run


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for what happens on this loop or elsewhere; fails with ``what`` when it does not."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_S
    while not condition():
        if loop.time() >= end:
            raise LateError(f"waited {PATIENCE_S:g} s in vain for {what}")
        await asyncio.sleep(0.005)


class _Client:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.subjects: dict[str, str] = {}
        self.options: dict[str, Any] = {}

    def hears(self, subject: str) -> list[str]:
        return [sid for sid, wanted in self.subjects.items() if _matches(wanted, subject)]

    def message(
        self, sid: str, subject: str, reply: str, payload: bytes, header: bytes = b""
    ) -> None:
        words = [subject, sid] + ([reply] if reply else [])
        if header:
            words += [str(len(header)), str(len(header) + len(payload))]
            self.writer.write(
                b"HMSG " + " ".join(words).encode() + b"\r\n" + header + payload + b"\r\n"
            )
        else:
            words += [str(len(payload))]
            self.writer.write(b"MSG " + " ".join(words).encode() + b"\r\n" + payload + b"\r\n")


def _matches(wanted: str, subject: str) -> bool:
    if wanted.endswith(".>"):
        return subject.startswith(wanted[:-1])
    head, star, _ = wanted.rpartition(".*")
    return subject == wanted or (bool(star) and subject.rpartition(".")[0] == head)


Handler = Callable[[Operation], None]


class FakeNats:
    """``silent``: what is published vanishes, without a handler and without "no responders"."""

    def __init__(self) -> None:
        self.port = 0
        self.clients: list[_Client] = []
        self.connects = 0
        self.silent = False
        self.headers = True
        self.max_payload = 1 << 20
        self.everything: Handler | None = None
        """Gets what no connection listens to, if no handler does."""
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port, limit=LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and cut every connection."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut every connection; what they were sent last may be lost."""
        for client in self.clients:
            client.writer.transport.abort()
        self.clients.clear()

    def serve(self, subject: str, handler: Handler) -> None:
        self._handlers[subject] = handler

    def forget(self, subject: str) -> None:
        self._handlers.pop(subject, None)

    def wanted(self) -> set[str]:
        """The subjects that are listened to."""
        return {subject for client in self.clients for subject in client.subjects.values()}

    def publish(self, subject: str, payload: bytes, reply: str = "", header: bytes = b"") -> bool:
        """Deliver to whoever listens; tells whether anybody does."""
        heard = False
        for client in self.clients:
            for sid in client.hears(subject):
                client.message(sid, subject, reply, payload, header)
                heard = True
        return heard

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        client = _Client(writer)
        self.connects += 1
        info = {
            "version": "2.10.0",
            "proto": 1,
            "headers": self.headers,
            "max_payload": self.max_payload,
        }
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        try:
            while operation := await read(reader):
                self._take(client, operation)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            if client in self.clients:
                self.clients.remove(client)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _take(self, client: _Client, operation: Operation) -> None:
        match operation.name:
            case "CONNECT":
                client.options = operation.options
                self.clients.append(client)
            case "PING":
                client.writer.write(b"PONG\r\n")
            case "SUB":
                client.subjects[operation.sid] = operation.subject
            case "UNSUB":
                client.subjects.pop(operation.sid, None)
            case "PUB" | "HPUB":
                self._route(client, operation)

    def _route(self, client: _Client, operation: Operation) -> None:
        if self.silent:
            return
        handler = next(
            (h for s, h in self._handlers.items() if _matches(s, operation.subject)), None
        )
        if handler is None and not any(other.hears(operation.subject) for other in self.clients):
            handler = self.everything
        if handler is not None:
            handler(operation)
        elif (
            not self.publish(operation.subject, operation.payload or b"", operation.reply)
            and operation.reply
        ):
            for sid in client.hears(operation.reply) if self.headers else []:
                client.message(sid, operation.reply, "", b"", NO_RESPONDERS)


class FakeStan:
    """A streaming server. ``heard``: every request in order; ``acks``: sequences by ack inbox.

    Switches: ``answers_connects``, ``acks_publishes``, ``answers_pings``, ``answers_subscribes``;
    errors, empty for none: ``connect_error``, ``publish_error``, ``subscribe_error``,
    ``ping_error``, ``close_error``.
    """

    def __init__(self, nats: FakeNats, *, protocol: int = 1) -> None:
        self.nats = nats
        self.protocol = protocol
        self.heard: list[tuple[str, Any]] = []
        self.acks: dict[str, list[int]] = {}
        self.inboxes: list[str] = []
        self.ack_inboxes: list[str] = []
        self.connect_replies: list[str] = []
        self.publish_replies: list[str] = []
        self.answers_connects = self.acks_publishes = self.answers_pings = (
            self.answers_subscribes
        ) = True
        self.connect_error = self.publish_error = self.subscribe_error = self.ping_error = (
            self.close_error
        ) = ""
        self.start()

    def start(self) -> None:
        """Listen."""
        for subject, handler in self._subjects().items():
            self.nats.serve(subject, handler)

    def stop(self) -> None:
        """Listen no more: NATS says that nobody does."""
        for subject in self._subjects():
            self.nats.forget(subject)
        for inbox in self.ack_inboxes:
            self.nats.forget(inbox)

    def _subjects(self) -> dict[str, Handler]:
        return {
            f"_STAN.discover.{CLUSTER}.pings": self._on_ping,
            f"_STAN.discover.{CLUSTER}": self._on_connect,
            "_STAN.pub.x.>": self._on_publish,
            "_STAN.sub.x": self._on_subscribe,
            "_STAN.unsub.x": functools.partial(self._on_end, "unsubscribe"),
            "_STAN.subclose.x": functools.partial(self._on_end, "close"),
            "_STAN.close.x": self._on_close,
        }

    def of(self, kind: str) -> list[Any]:
        """The requests of one kind."""
        return [request for heard, request in self.heard if heard == kind]

    def deliver(
        self,
        sequence: int,
        data: bytes = b"",
        *,
        channel: str = "foo",
        timestamp: int = 0,
        again: int = 0,
        inbox: int = -1,
    ) -> bool:
        """Send a message to an inbox, by default the newest one; tells whether anybody listens."""
        payload = encode_msg_proto(
            sequence, channel.encode(), b"", data, timestamp or 1_000_000_000 + sequence
        )
        if again:
            payload += bytes([0x30, 1, 0x38, again])
        return self.nats.publish(self.inboxes[inbox], payload)

    def beat(self, on_answer: Callable[[Operation], None]) -> None:
        """Send a heartbeat to the newest session."""
        reply = f"_INBOX.{_nuid()}"
        self.nats.serve(reply, on_answer)
        self.nats.publish(self.of("connect")[-1].heartbeat_inbox.decode(), b"", reply)

    def _on_connect(self, operation: Operation) -> None:
        request = messages.parse(messages.ConnectRequest, operation.payload or b"")
        self.heard.append(("connect", request))
        self.connect_replies.append(operation.reply)
        if not self.answers_connects:
            return
        if self.connect_error:
            self._answer(operation, messages.ConnectResponse(error=self.connect_error.encode()))
            return
        response = messages.ConnectResponse(
            pub_prefix=b"_STAN.pub.x", sub_requests=b"_STAN.sub.x", unsub_requests=b"_STAN.unsub.x",
            close_requests=b"_STAN.close.x", sub_close_requests=b"_STAN.subclose.x",
            protocol=self.protocol,
        )  # fmt: skip
        if self.protocol:
            response.ping_requests = f"_STAN.discover.{CLUSTER}.pings".encode()
            response.ping_interval = request.ping_interval
            response.ping_max_out = request.ping_max_out
        self._answer(operation, response)

    def _on_ping(self, operation: Operation) -> None:
        self.heard.append(("ping", messages.parse(messages.Ping, operation.payload or b"")))
        if self.answers_pings:
            self._answer(operation, messages.PingResponse(error=self.ping_error.encode()))

    def _on_publish(self, operation: Operation) -> None:
        publish = messages.parse(messages.PubMsg, operation.payload or b"")
        self.heard.append(("publish", publish))
        self.publish_replies.append(operation.reply)
        if self.acks_publishes:
            self._answer(
                operation, messages.PubAck(guid=publish.guid, error=self.publish_error.encode())
            )

    def _on_subscribe(self, operation: Operation) -> None:
        request = messages.parse(messages.SubscriptionRequest, operation.payload or b"")
        self.heard.append(("subscribe", request))
        if not self.answers_subscribes:
            return
        if self.subscribe_error:
            self._answer(
                operation, messages.SubscriptionResponse(error=self.subscribe_error.encode())
            )
            return
        inbox = f"_INBOX.{_nuid()}"
        self.inboxes.append(request.inbox.decode())
        self.ack_inboxes.append(inbox)
        self.acks[inbox] = []
        self.nats.serve(inbox, self._on_ack)
        self._answer(operation, messages.SubscriptionResponse(ack_inbox=inbox.encode()))

    def _on_ack(self, operation: Operation) -> None:
        self.acks[operation.subject].append(
            messages.parse(messages.Ack, operation.payload or b"").sequence
        )

    def _on_end(self, how: str, operation: Operation) -> None:
        self.heard.append(
            (how, messages.parse(messages.UnsubscribeRequest, operation.payload or b""))
        )
        if operation.reply:
            self._answer(operation, messages.SubscriptionResponse())

    def _on_close(self, operation: Operation) -> None:
        self.heard.append(
            ("goodbye", messages.parse(messages.CloseRequest, operation.payload or b""))
        )
        self._answer(operation, messages.CloseResponse(error=self.close_error.encode()))

    def _answer(self, operation: Operation, answer: Any) -> None:
        self.nats.publish(operation.reply, messages.encode(answer))


async def stan() -> FakeStan:
    """A streaming server on a NATS server of its own."""
    nats = FakeNats()
    await nats.open()
    return FakeStan(nats)
