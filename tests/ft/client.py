"""A STAN client on a raw NATS connection, for tests that must see every message: one thread, no
reconnecting.

Nothing happens behind the test's back: bytes are read only inside ``pump`` and what calls it.
Heartbeats are answered there. Everything that arrived is kept, so that a second ack or a second
content cannot hide.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ftstan.base.clock import SystemClock
from ftstan.config.options import LinkOptions
from ftstan.nats.link import Link
from ftstan.wire import messages
from ftstan.wire.codec import decode_msg_proto
from ftstan.wire.frames import Parser, pub_frame
from ftstan.wire.messages import StartPosition
from ftstan.wire.nuid import Nuid
from ftstan.wire.subjects import Subjects
from tests.lateness import LateError
from tests.processes import CLUSTER, HOST, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

_SEND_S = 10.0
_ANSWER_S = 15.0
"""How long an answer is waited for until the request is repeated: a repeated connect that was only
slow is refused.
"""
_NUID = Nuid()


@dataclass(frozen=True, slots=True)
class Arrived:
    """One NATS message. ``nobody``: NATS says that nobody listens where the request went."""

    subject: bytes
    reply: bytes
    payload: bytes
    nobody: bool = False


class NatsConnection:
    """A NATS connection to a loopback port."""

    _open: ClassVar[set[NatsConnection]] = set()

    @classmethod
    def close_all(cls) -> None:
        """Close what a test left open."""
        for connection in list(cls._open):
            connection.close()

    def __init__(self, port: int, **login: Any) -> None:
        self._link = Link(
            [f"nats://{HOST}:{port}"],
            name="test",
            options=LinkOptions(**login),
            clock=SystemClock(),
        )
        self._link.connect(_ANSWER_S)
        self._open.add(self)
        self.max_payload = self._link.max_payload
        self._parser = Parser(self.max_payload)
        self._handlers: dict[int, Callable[[Arrived], None]] = {}
        self._buffer = bytearray(1 << 20)
        self._pongs = 0
        self._prefix = b"_INBOX." + _NUID.next().encode()
        self._serial = 0
        self._take(self._link.leftover)

    def close(self) -> None:
        self._open.discard(self)
        self._link.close()

    def inbox(self) -> bytes:
        """A fresh subject."""
        self._serial += 1
        return b"%b.%d" % (self._prefix, self._serial)

    def listen(self, subject: bytes | str, handler: Callable[[Arrived], None]) -> int:
        """Subscribe; ``handler`` is called from ``pump``. Returns the sid."""
        sid = len(self._handlers) + 1
        self._handlers[sid] = handler
        name = subject.encode() if isinstance(subject, str) else subject
        self.send(b"SUB %b %d\r\n" % (name, sid))
        return sid

    def publish(self, subject: bytes | str, payload: bytes, reply: bytes = b"") -> None:
        self.send(
            pub_frame(subject.encode() if isinstance(subject, str) else subject, reply, payload)
        )

    def send(self, data: bytes) -> None:
        """Send protocol bytes as they are."""
        self._link.send(data, _SEND_S)

    def request(self, subject: str, payload: bytes, seconds: float = PATIENCE_S) -> Arrived | None:
        """The first answer, ``None`` if none came in time."""
        inbox = self.inbox()
        answers: list[Arrived] = []
        sid = self.listen(inbox, answers.append)
        self.publish(subject, payload, inbox)
        end = time.monotonic() + seconds
        while not answers and time.monotonic() < end:
            self.read(0.05)
        self.send(b"UNSUB %d\r\n" % sid)
        return answers[0] if answers else None

    def pump(self, done: Callable[[], object], what: str) -> None:
        """Read until ``done``; fails with ``what`` when that does not happen."""
        end = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() >= end:
                raise LateError(f"waited {PATIENCE_S:g} s in vain for {what}")
            self.read(0.05)

    def flush(self) -> None:
        """Return when the NATS server has processed everything sent, and everything before its
        answer was read.
        """
        want = self._pongs + 1
        self.send(b"PING\r\n")
        self.pump(lambda: self._pongs >= want, "NATS to answer a PING")

    def read(self, seconds: float) -> None:
        """Take what arrives, waiting at most ``seconds`` for the first of it."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        if poll.poll(seconds * 1000):
            with memoryview(self._buffer) as view:
                got = self._link.recv_into(view)
                self._take(bytes(view[:got]))

    def _take(self, data: bytes) -> None:
        for event in self._parser.feed(data):
            match event:
                case ("MSG", subject, sid, reply, payload):
                    self._handlers[sid](Arrived(subject, reply, payload))
                case ("HMSG", subject, sid, reply, headers, payload):
                    self._handlers[sid](
                        Arrived(subject, reply, payload, headers.startswith(b"NATS/1.0 503"))
                    )
                case ("PING",):
                    self.send(b"PONG\r\n")
                case ("PONG",):
                    self._pongs += 1
                case ("-ERR", text):
                    raise AssertionError(f"nats-server: {text.decode()}")


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery."""

    sequence: int
    data: bytes
    timestamp: int
    redelivered: bool


@dataclass(slots=True)
class Subscription:
    """What a subscription got, in order. ``ack_inbox`` is where its acks go."""

    channel: bytes
    ack_inbox: bytes = b""
    received: list[Message] = field(default_factory=list)

    @property
    def sequences(self) -> list[int]:
        return [message.sequence for message in self.received]

    def has(self, count: int) -> bool:
        """Whether at least so many messages have come."""
        return len(self.received) >= count


class StanClient:
    """One client id.

    ``acks``: guid -> how often it was acked; ``errors``: guid -> texts of error acks.
    """

    def __init__(
        self, port: int, client_id: str = "me", *, cluster: str = CLUSTER, **login: Any
    ) -> None:
        self.nats = NatsConnection(port, **login)
        self.client_id = client_id.encode()
        self.conn_id = _NUID.next().encode()
        self.acks: dict[bytes, int] = {}
        self.errors: dict[bytes, list[str]] = {}
        self.heartbeats = 0
        self._subjects = Subjects.for_cluster(cluster)
        self._acks_inbox = self.nats.inbox()
        self._heartbeat_inbox = self.nats.inbox()
        self.nats.listen(self._acks_inbox, self._on_pub_ack)
        self.nats.listen(self._heartbeat_inbox, self._on_heartbeat)

    def connect(self) -> messages.ConnectResponse:
        """Register; must be accepted. While nobody serves the request is repeated."""
        answer = self.ask_to_connect()
        assert answer.error == b"", answer.error
        return answer

    def ask_to_connect(self) -> messages.ConnectResponse:
        """The answer to a ConnectRequest, whatever it is."""
        request = messages.encode(
            messages.ConnectRequest(
                client_id=self.client_id,
                heartbeat_inbox=self._heartbeat_inbox,
                conn_id=self.conn_id,
                protocol=1,
            )
        )
        return messages.parse(
            messages.ConnectResponse, self._ask(self._subjects.discovery, request)
        )

    def move(self, port: int, **login: Any) -> None:
        """Go on with the same identity on a new NATS connection, as a client does that
        reconnects.
        """
        self.nats.close()
        self.nats = NatsConnection(port, **login)
        self.nats.listen(self._acks_inbox, self._on_pub_ack)
        self.nats.listen(self._heartbeat_inbox, self._on_heartbeat)

    def close(self) -> None:
        """Unregister and disconnect."""
        self._ask(
            self._subjects.close, messages.encode(messages.CloseRequest(client_id=self.client_id))
        )
        self.nats.close()

    def ping(self) -> str:
        """The error text, empty when the server knows this connection."""
        answer = self._ask(
            self._subjects.pings, messages.encode(messages.Ping(conn_id=self.conn_id))
        )
        return messages.parse(messages.PingResponse, answer).error.decode()

    def settle_acks(self) -> None:
        """Return when the server has noted what it delivered here, and the acks for it, where a
        kill does not reach.

        Notes follow their batch's answers, and the first ping may be in one batch with the acks:
        hence the second.
        """
        for _ in range(2):
            assert self.ping() == ""

    # Publishing

    def offer(
        self, channel: bytes, *payloads: bytes, guids: list[bytes] | None = None
    ) -> list[bytes]:
        """Publish in one write without waiting for acks; gives the guids."""
        guids = guids or [_NUID.next().encode() for _ in payloads]
        frames = [
            pub_frame(
                self._subjects.publish.encode() + b"." + channel,
                self._acks_inbox,
                messages.encode(
                    messages.PubMsg(
                        client_id=self.client_id,
                        conn_id=self.conn_id,
                        guid=guid,
                        subject=channel,
                        data=payload,
                    )
                ),
            )
            for guid, payload in zip(guids, payloads, strict=True)
        ]
        self.nats.send(b"".join(frames))
        return guids

    def publish(self, channel: bytes, *payloads: bytes) -> list[bytes]:
        """Publish, and wait until all are acked."""
        guids = self.offer(channel, *payloads)
        self.nats.pump(lambda: all(guid in self.acks for guid in guids), f"acks ({self.errors})")
        return guids

    def settle(self, guids: list[bytes]) -> None:
        """Wait until each of ``guids`` was answered, well or not."""
        self.nats.pump(
            lambda: all(guid in self.acks or guid in self.errors for guid in guids),
            "answers to publishes",
        )

    # Subscribing

    def subscribe(
        self,
        channel: bytes,
        *,
        durable: bytes = b"",
        start: StartPosition.ValueType = StartPosition.FIRST,
        max_in_flight: int = 1024,
        ack_wait: int = 30,
        acks: bool = True,
    ) -> Subscription:
        """Subscribe; must be accepted. With ``acks`` each message is acked as it arrives."""
        subscription = Subscription(channel)
        inbox = self.nats.inbox()

        def on_message(arrived: Arrived) -> None:
            sequence, _, _, data, timestamp, redelivered, _ = decode_msg_proto(arrived.payload)
            subscription.received.append(Message(sequence, data, timestamp, redelivered))
            if acks:
                self.ack(subscription, sequence)

        self.nats.listen(inbox, on_message)
        request = messages.SubscriptionRequest(
            client_id=self.client_id,
            subject=channel,
            inbox=inbox,
            durable_name=durable,
            start_position=start,
            max_in_flight=max_in_flight,
            ack_wait_in_secs=ack_wait,
        )
        answer = messages.parse(
            messages.SubscriptionResponse,
            self._ask(self._subjects.subscribe, messages.encode(request)),
        )
        assert answer.error == b"", answer.error
        subscription.ack_inbox = answer.ack_inbox
        # Messages may come before the answer that says where to ack them.
        if acks:
            for message in subscription.received:
                self.ack(subscription, message.sequence)
        return subscription

    def end_subscription(
        self, channel: bytes, subscription: Subscription, durable: bytes = b""
    ) -> str:
        """Close it, a durable stays behind offline; returns the error, empty on success."""
        request = messages.UnsubscribeRequest(
            client_id=self.client_id,
            subject=channel,
            inbox=subscription.ack_inbox,
            durable_name=durable,
        )
        answer = messages.parse(
            messages.SubscriptionResponse,
            self._ask(self._subjects.sub_close, messages.encode(request)),
        )
        return answer.error.decode()

    def ack(self, subscription: Subscription, *sequences: int) -> None:
        """Acknowledge; does nothing while the ack inbox is not known."""
        if subscription.ack_inbox:
            for sequence in sequences:
                ack = messages.encode(messages.Ack(subject=subscription.channel, sequence=sequence))
                self.nats.publish(subscription.ack_inbox, ack)

    def read_to(self, channel: bytes, last: int) -> dict[int, bytes]:
        """Everything stored up to the sequence ``last``, which must be there without a gap."""
        subscription = self.subscribe(channel)
        self.nats.pump(
            lambda: subscription.received and subscription.received[-1].sequence >= last,
            f"sequence {last} of {channel.decode()} (have {subscription.sequences[-1:]})",
        )
        assert subscription.sequences == list(range(1, len(subscription.received) + 1))
        return {message.sequence: message.data for message in subscription.received}

    def read_all(self, channel: bytes) -> dict[int, bytes]:
        """Everything stored up to a message that this publishes: sequence -> payload."""
        marker = b"marker " + _NUID.next().encode()
        self.publish(channel, marker)
        subscription = self.subscribe(channel)
        self.nats.pump(
            lambda: any(m.data == marker for m in subscription.received[-1024:]), "the marker"
        )
        assert subscription.sequences == list(range(1, len(subscription.received) + 1))
        return {message.sequence: message.data for message in subscription.received}

    # Arriving

    def _ask(self, subject: str, payload: bytes) -> bytes:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            answer = self.nats.request(subject, payload, _ANSWER_S)
            if answer is not None and not answer.nobody:
                return answer.payload
        raise AssertionError(f"nobody answers on {subject}")

    def _on_pub_ack(self, arrived: Arrived) -> None:
        if arrived.nobody:
            return
        ack = messages.parse(messages.PubAck, arrived.payload)
        if ack.error:
            self.errors.setdefault(ack.guid, []).append(ack.error.decode())
        else:
            self.acks[ack.guid] = self.acks.get(ack.guid, 0) + 1

    def _on_heartbeat(self, arrived: Arrived) -> None:
        self.heartbeats += 1
        self.nats.publish(arrived.reply, b"")
