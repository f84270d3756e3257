"""A recorded session turned round: our client does what the recorded one did, the recorded server
answers it.

Each line that a client sent becomes the call of ``ftstan.client`` that should send the same; what
our client then sends is compared with what was recorded, field by field, but for what every client
chooses anew (guids, inboxes, connection ids). Each line that a server sent is sent to our client at
that place, with the names that ours chose; what the call gives, raises or hands out is compared
with what the line says. Hand-made nonsense of raw recordings that the client cannot be made to send
is left out, and told: ``refused_here`` is what the client refuses by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message as ProtobufMessage

import ftstan.client
from ftstan.client import ClientError, InvalidArgumentError, Message, Start
from ftstan.wire import messages
from ftstan.wire.codec import decode_msg_proto, encode_pub_ack
from tests.client.fake import NO_RESPONDERS, FakeNats, until
from tests.compat.players.lines import HEARTBEAT, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.compat.players.natswire import Operation

_LONG_S = 120.0

_INBOX = re.compile(r"_INBOX\.\w+")

M = TypeVar("M", bound=ProtobufMessage)


@dataclass(slots=True, eq=False)
class _Sub:
    """``inbox`` and ``ours``: where its messages go in the recording, and here."""

    inbox: str
    ours: str
    received: list[Message]
    subscription: ftstan.client.Subscription | None = None
    ack_inbox: str = ""


@dataclass(slots=True, eq=False)
class _Session:
    conn: str
    client_id: bytes
    conn_id: bytes
    heartbeat_inbox: str
    heartbeats: str
    """Our inbox of heartbeats."""
    pings: str
    """Our inbox of ping answers."""
    client: ftstan.client.Connection | None = None
    subs: list[_Sub] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return self.client is not None and not self.client.closed


@dataclass(slots=True)
class _Asked:
    line: Line
    reply: str
    call: asyncio.Task[Any]
    done: Callable[[Any], None]


class Turned:
    """``problems``: what was not as recorded; ``compared``: how many lines of each kind were."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = [line for line in lines if line.of_client]
        self.nats = FakeNats()
        self.problems: list[str] = []
        self.compared: dict[str, int] = {}
        self.refused_here: list[Line] = []
        self._heard: list[Operation] = []
        self._asked: dict[tuple[str, str], _Asked] = {}
        self._sessions: list[_Session] = []
        self._publishes: dict[bytes, tuple[str, str, asyncio.Future[str]]] = {}

    async def play(self) -> None:
        await self.nats.open()
        self.nats.everything = self._hear
        for line in self.lines:
            if line.dir == "c2s" and line.op == "PUB" and line.fields is not None:
                await self._client_line(line)
            elif line.delivered:
                await self._server_line(line)
            elif line.op == "CLOSE":
                for session in self._sessions:
                    if session.conn == line.conn:
                        await self._end(session)
        for asked in self._asked.values():
            asked.call.cancel()
            with contextlib.suppress(asyncio.CancelledError, ClientError):
                await asked.call
        for session in self._sessions:
            await self._end(session)
        await self.nats.close()

    def accepted_there(self) -> list[str]:
        """Ids of what our client refuses to send although the recorded server did not mind."""
        return [line.id for line in self.refused_here if self._accepted(line)]

    def _accepted(self, line: Line) -> bool:
        guid = line.value("guid")
        answers = [
            other
            for other in self.lines
            if other.delivered
            and other.subject == line.reply
            and other.n > line.n
            and other.value("guid") == guid
        ]
        return bool(answers) and not answers[0].value("error")

    # What a client did

    async def _client_line(self, line: Line) -> None:
        request = messages.parse(getattr(messages, line.type), line.payload or b"")
        match line.type:
            case "ConnectRequest":
                await self._connect(line, request)
            case "PubMsg":
                await self._publish(line, request)
            case "SubscriptionRequest":
                await self._subscribe(line, request)
            case "UnsubscribeRequest":
                await self._end_subscription(line, request)
            case "Ack":
                await self._ack(line, request)
            case "CloseRequest":
                for session in self._of(line.conn, request.client_id):
                    assert session.client is not None
                    await self._ask(line, session.client.close(), messages.CloseRequest)

    async def _connect(self, line: Line, request: messages.ConnectRequest) -> None:
        prefix, _, cluster = line.subject.rpartition(".")
        before = self.nats.wanted()
        call = ftstan.client.connect(
            cluster,
            request.client_id.decode("utf-8", "replace"),
            servers=self.nats.url,
            discover_prefix=prefix,
            timeout=_LONG_S,
            request_timeout=_LONG_S,
            ack_timeout=None,
            ping_interval=request.ping_interval,
            ping_max_out=request.ping_max_out,
            reconnect=False,
        )

        def done(client: Any) -> None:
            session.client = client
            self._sessions.append(session)

        ours = await self._ask(line, call, messages.ConnectRequest, done)
        if ours is None:
            return
        heartbeats = ours.heartbeat_inbox.decode()
        (pings,) = (
            s for s in self.nats.wanted() - before if s != heartbeats and _INBOX.fullmatch(s)
        )
        session = _Session(
            line.conn,
            request.client_id,
            request.conn_id,
            request.heartbeat_inbox.decode(),
            heartbeats,
            pings,
        )
        self._compare(line, request, ours, "client_id", "ping_interval", "ping_max_out")

    async def _publish(self, line: Line, request: messages.PubMsg) -> None:
        session = next(
            (
                s
                for s in self._sessions
                if (s.client_id, s.conn_id) == (request.client_id, request.conn_id) and s.open
            ),
            None,
        )
        if (
            session is None
            or not request.guid
            or not line.subject.endswith(f".{request.subject.decode('latin-1')}")
        ):
            return
        assert session.client is not None
        try:
            answer = await session.client.publish_async(
                request.subject.decode("utf-8", "replace"), request.data, reply=request.reply
            )
        except InvalidArgumentError:
            self.refused_here.append(line)
            return
        heard = await self._hears(line)
        ours = messages.parse(messages.PubMsg, heard.payload or b"")
        self._compare(line, request, ours, "client_id", "subject", "data", "reply")
        if heard.subject != line.subject:
            self.problems.append(f"{line.shown()}: published on {heard.subject}")
        self._publishes[request.guid] = (ours.guid.decode(), heard.reply, answer)

    async def _subscribe(self, line: Line, request: messages.SubscriptionRequest) -> None:
        received: list[Message] = []

        async def handler(message: Message) -> None:
            received.append(message)

        start = Start(request.start_position, request.start_sequence or request.start_time_delta)
        for session in self._of(line.conn, request.client_id):
            assert session.client is not None
            call = session.client.subscribe(
                request.subject.decode("utf-8", "replace"),
                handler,
                start=start,
                durable=request.durable_name.decode(),
                queue=request.q_group.decode(),
                max_in_flight=request.max_in_flight,
                ack_wait=request.ack_wait_in_secs,
                manual_acks=True,
            )
            sub = _Sub(request.inbox.decode(), "", received)
            ours = await self._ask(
                line,
                call,
                messages.SubscriptionRequest,
                functools.partial(setattr, sub, "subscription"),
            )
            if ours is not None:
                sub.ours = ours.inbox.decode()
                session.subs.append(sub)
                self._compare(
                    line, request, ours, "client_id", "subject", "q_group", "durable_name",
                    "max_in_flight",
                    "ack_wait_in_secs", "start_position", "start_sequence", "start_time_delta",
                )  # fmt: skip

    async def _end_subscription(self, line: Line, request: messages.UnsubscribeRequest) -> None:
        for session in self._of(line.conn, request.client_id):
            for sub in session.subs:
                subscription = sub.subscription
                if (
                    subscription is None
                    or subscription.closed
                    or sub.ack_inbox != request.inbox.decode()
                    or subscription.channel.encode() != request.subject
                ):
                    continue
                end = subscription.close if "subclose" in line.subject else subscription.unsubscribe
                ours = await self._ask(line, end(_LONG_S), messages.UnsubscribeRequest)
                assert ours is not None
                self._compare(line, request, ours, "client_id", "subject", "inbox")

    async def _ack(self, line: Line, request: messages.Ack) -> None:
        for session in self._sessions:
            for sub in session.subs if session.open else []:
                message = next((m for m in sub.received if m.sequence == request.sequence), None)
                if sub.ack_inbox != line.subject or message is None or sub.subscription is None:
                    continue
                # The list that the callback appends to.
                sub.received[:] = [m for m in sub.received if m.sequence != request.sequence]
                if sub.subscription.closed or request.subject.decode() != message.channel:
                    continue
                await message.ack()
                heard = await self._hears(line)
                if (heard.subject, heard.payload) != (line.subject, line.payload):
                    self.problems.append(
                        f"{line.shown()}: acked on {heard.subject} {heard.payload!r}"
                    )
                self._count("Ack")

    # What the server said

    async def _server_line(self, line: Line) -> None:
        asked = self._asked.pop((line.conn, line.subject), None)
        if asked is not None:
            await self._answer(asked, line)
            return
        if line.kind == HEARTBEAT:
            await self._heartbeat(line)
            return
        if line.type == "PubAck" and line.payload is not None:
            await self._pub_ack(line)
        elif line.type == "PingResponse":
            await self._ping_answer(line)
        elif line.type == "MsgProto":
            await self._delivery(line)

    async def _answer(self, asked: _Asked, line: Line) -> None:
        if line.hdr:
            self.nats.publish(asked.reply, b"", header=NO_RESPONDERS)
            await self._hears(asked.line)
            asked.call.cancel()
            self._count("nobody")
            return
        self.nats.publish(asked.reply, line.payload or b"")
        expected = line.value("error") or ""
        try:
            result = await asyncio.wait_for(asked.call, _LONG_S)
        except ClientError as error:
            if str(error) != expected:
                self.problems.append(f"{line.shown()}: {error!r}")
        else:
            if expected:
                self.problems.append(f"{line.shown()}: was taken for success")
                return
            asked.done(result)
            if line.value("ack_inbox"):
                for session in self._sessions:
                    for sub in session.subs:
                        if sub.subscription is result:
                            sub.ack_inbox = line.value("ack_inbox")
        self._count(line.type)

    async def _heartbeat(self, line: Line) -> None:
        for session in self._sessions:
            if (
                session.heartbeat_inbox == line.subject
                and session.conn == line.conn
                and session.open
            ):
                self.nats.publish(session.heartbeats, line.payload or b"", line.reply)
                heard = await self._hears(line)
                if (heard.subject, heard.payload) != (line.reply, b""):
                    self.problems.append(
                        f"{line.shown()}: answered {heard.subject} {heard.payload!r}"
                    )
                self._count(HEARTBEAT)

    async def _pub_ack(self, line: Line) -> None:
        ack = messages.parse(messages.PubAck, line.payload or b"")
        if ack.guid not in self._publishes:
            return
        guid, acks, answer = self._publishes.pop(ack.guid)
        self.nats.publish(acks, encode_pub_ack(guid.encode(), ack.error))
        try:
            given = await asyncio.wait_for(answer, _LONG_S)
            outcome = "" if given == guid else f"guid {given}"
        except ClientError as error:
            outcome = str(error)
        if outcome != ack.error.decode():
            self.problems.append(f"{line.shown()}: {outcome!r}")
        self._count("PubAck")

    async def _ping_answer(self, line: Line) -> None:
        for session in self._sessions:
            if session.conn != line.conn or not session.open:
                continue
            assert session.client is not None
            self.nats.publish(session.pings, line.payload or b"")
            if line.value("error"):
                await until(
                    functools.partial(getattr, session.client, "closed"), "the end of the session"
                )
                with contextlib.suppress(ClientError):
                    await session.client.publish("x", b"")
                    self.problems.append(f"{line.shown()}: the session goes on")
            self._count("PingResponse")

    async def _delivery(self, line: Line) -> None:
        sequence, channel, reply, data, timestamp, redelivered, count = decode_msg_proto(
            line.payload or b""
        )
        for session in self._sessions:
            for sub in session.subs:
                closed = sub.subscription is not None and sub.subscription.closed
                if sub.inbox != line.subject or not session.open or closed:
                    continue
                had = len(sub.received)
                self.nats.publish(sub.ours, line.payload or b"")
                await until(functools.partial(self._more, sub, had), "the message")
                if self._heard:
                    # It was acknowledged before, and is acknowledged again.
                    if not redelivered or self._heard.pop().subject != sub.ack_inbox:
                        self.problems.append(f"{line.shown()}: not handed out")
                    continue
                got = sub.received[-1]
                expected = (channel.decode(), sequence, data, timestamp, redelivered, count, reply)
                handed = (got.channel, got.sequence, got.data, got.timestamp, got.redelivered)
                if expected != (*handed, got.redelivery_count, got.reply):
                    self.problems.append(f"{line.shown()}: handed out as {got}")
                self._count("MsgProto")

    def _more(self, sub: _Sub, had: int) -> bool:
        return len(sub.received) > had or bool(self._heard)

    # Beneath

    def _of(self, conn: str, client_id: bytes) -> list[_Session]:
        """The newest open session of a client id on a connection, if there is one."""
        return [
            s for s in self._sessions if s.conn == conn and s.client_id == client_id and s.open
        ][-1:]

    async def _ask(
        self,
        line: Line,
        call: Coroutine[Any, Any, Any],
        kind: type[M],
        done: Callable[[Any], None] = lambda _: None,
    ) -> M | None:
        """Make a call that asks the server.

        Gives what it asks, ``None`` if the client refuses by itself.
        """
        task = asyncio.create_task(call)
        await until(lambda: self._heard or task.done(), f"our client to send: {line.shown()}")
        if task.done() and isinstance(task.exception(), InvalidArgumentError):
            self.refused_here.append(line)
            return None
        heard = await self._hears(line)
        if heard.subject != line.subject:
            self.problems.append(f"{line.shown()}: asked on {heard.subject}")
        self._asked[line.conn, line.reply] = _Asked(line, heard.reply, task, done)
        return messages.parse(kind, heard.payload or b"")

    def _hear(self, operation: Operation) -> None:
        if operation.subject.endswith(".pings"):
            self.nats.publish(operation.reply, b"")
        else:
            self._heard.append(operation)

    async def _hears(self, line: Line) -> Operation:
        await until(lambda: self._heard, f"our client to send: {line.shown()}")
        return self._heard.pop(0)

    def _compare(self, line: Line, recorded: Any, ours: Any, *names: str) -> None:
        for name in names:
            if getattr(recorded, name) != getattr(ours, name):
                self.problems.append(f"{line.shown()}: {name} is {getattr(ours, name)!r}")
        self._count(line.type)

    def _count(self, kind: str) -> None:
        self.compared[kind] = self.compared.get(kind, 0) + 1

    async def _end(self, session: _Session) -> None:
        if session.open:
            assert session.client is not None
            await session.client._finish(
                ftstan.client.ConnectionClosedError("the recorded client is gone")
            )
