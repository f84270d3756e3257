"""Clients and a NATS server in one object, for a ``Broker`` without sockets and clocks.

``Driver`` feeds the broker the frames that a NATS server would send it, takes every batch down the
whole road (apply, stage, commit, confirm, conclude, emit), and reads what comes out. It routes by
the subscriptions that the broker really made, so a message to a subject that nobody subscribed to
is lost, as on a real network. Time moves only in ``wait``. It knows nothing of the broker's
insides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.broker.bounds import MAX_ID
from ftstan.broker.broker import Broker, BrokerOptions
from ftstan.stores.memory import MemoryStore
from ftstan.wire import codec, messages
from ftstan.wire.nuid import Nuid
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.stores.interface import Store

CLUSTER = "tc"
SUBJECTS = Subjects.for_cluster(CLUSTER)
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Out:
    """One message that left the broker, ``at`` seconds after the driver was made."""

    at: float
    subject: bytes
    reply: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Delivery:
    """A MsgProto on a subscription's inbox."""

    at: float
    sequence: int
    data: bytes
    redelivered: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True)
class PubAck:
    """A publisher's ack."""

    guid: bytes
    error: bytes = b""


@dataclass(slots=True)
class Driver:
    """A broker on ``store``.

    ``alive``: heartbeat inboxes whose clients answer every request at once; ``absent``: those on
    which nobody listens, which NATS says at once.
    """

    store: Store = field(default_factory=MemoryStore)
    options: BrokerOptions = field(default_factory=BrokerOptions)
    clock: ManualClock = field(default_factory=ManualClock)
    alive: set[bytes] = field(default_factory=set)
    absent: set[bytes] = field(default_factory=set)
    out: list[Out] = field(default_factory=list)
    """Everything that ever left, in order."""
    broker: Broker = field(init=False)
    subs: dict[int, bytes] = field(init=False, default_factory=dict)
    """What the broker has subscribed to: sid -> subject."""
    _input: bytearray = field(init=False, default_factory=bytearray)
    _start: float = field(init=False)
    _serial: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._start = self.clock.mono()
        self.broker = Broker(self.store, SUBJECTS, self.options, Nuid())
        self.broker.recover(self.store.recover(), self.clock.wall_ns(), self.now)
        self.open_link()

    @property
    def now(self) -> int:
        return round(self.clock.mono() * SECOND)

    # The link

    def open_link(self) -> None:
        """A new connection: only what is subscribed to now counts."""
        self.subs.clear()
        self._read_output(self.broker.subscribe_lines())

    def frame(self, subject: bytes | str, payload: bytes, reply: bytes = b"") -> None:
        """Queue a message for the next batch, for every subscription that matches."""
        name = subject.encode() if isinstance(subject, str) else subject
        for sid, pattern in self.subs.items():
            if _matches(pattern, name):
                words = b" ".join(
                    w for w in (b"MSG", name, b"%d" % sid, reply, b"%d" % len(payload)) if w
                )
                self._input += words + b"\r\n" + payload + b"\r\n"

    def status(self, subject: bytes, headers: bytes = b"NATS/1.0 503\r\n\r\n") -> None:
        """Queue a message that has nothing but headers."""
        for sid, pattern in self.subs.items():
            if _matches(pattern, subject):
                self._input += b"HMSG %b %d %d %d\r\n%b\r\n" % (
                    subject,
                    sid,
                    len(headers),
                    len(headers),
                    headers,
                )

    def raw(self, data: bytes) -> None:
        """Queue bytes as they are."""
        self._input += data

    # The road

    def run(self, *, lost: bool = False) -> list[Out]:
        """Take what is queued, and what that causes, down the road.

        With ``lost``, the link breaks before emit.
        """
        before = len(self.out)
        self._feed()
        self.broker.run_timers(self.clock.wall_ns(), self.now)
        while True:
            more = self._commit()
            if lost:
                self.broker.link_lost(self.now)
                return []
            self._emit()
            self.broker.inactivity.delete_due()
            if not (more or self._input or self.broker.has_work):
                return self.out[before:]
            self._feed()
            self.broker.run_timers(self.clock.wall_ns(), self.now)

    def turn(self) -> None:
        """One turn of the loop, whatever there is left for the next one."""
        self._feed()
        self.broker.run_timers(self.clock.wall_ns(), self.now)
        self._commit()
        self._emit()

    def _feed(self) -> None:
        data = bytes(self._input)
        self._input = bytearray()
        end = self.broker.feed(data, 0, len(data), self.clock.wall_ns(), self.now)
        assert end == len(data) or self.broker.is_full
        self._input[:0] = data[end:]

    def _commit(self) -> bool:
        self.broker.stage()
        window = self.broker.window
        if window is not None and (fresh := window.staged()):
            self.store.remember(fresh, window.known)
        failed = self.store.commit()
        self.store.confirm()
        if window is not None:
            window.committed(failed)
        return self.broker.conclude(failed)

    def _emit(self) -> None:
        broker = self.broker
        self._read_output(b"".join((broker.replies, broker.deliveries, broker.acks)))
        broker.sent()
        self.store.write_events()

    def _read_output(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            end = data.index(b"\r\n", at)
            verb, *words = data[at:end].split(b" ")
            at = end + 2
            match verb, words:
                case b"SUB", [subject, sid]:
                    self.subs[int(sid)] = subject
                case b"UNSUB", [sid]:
                    self.subs.pop(int(sid), None)
                case b"PUB", [subject, *reply, size]:
                    payload = data[at : at + int(size)]
                    assert data[at + int(size) : at + int(size) + 2] == b"\r\n"
                    at += int(size) + 2
                    self._leave(Out(self._seconds(), subject, b"".join(reply), payload))
                case _:
                    raise AssertionError(
                        f"not what a NATS client may send: {data[at - 80 : end]!r}"
                    )

    def _leave(self, message: Out) -> None:
        self.out.append(message)
        if message.subject in self.alive and message.reply:
            self.frame(message.reply, b"")
        elif message.subject in self.absent and message.reply:
            self.status(message.reply)

    def _seconds(self) -> float:
        return round(self.clock.mono() - self._start, 6)

    def wait(self, seconds: float) -> list[Out]:
        """Let time pass, running every timer at its time; gives what left meanwhile."""
        before = len(self.out)
        self.run()
        end = self.clock.mono() + seconds
        while (due := self.broker.timers.next) is not None and due <= round(end * SECOND):
            self.clock.advance(max((due - self.now) / SECOND, 0))
            self.run()
        self.clock.advance(max(end - self.clock.mono(), 0))
        self.run()
        return self.out[before:]

    # What clients do

    def call(self, subject: str, payload: bytes) -> bytes | None:
        """A request in a batch of its own; its answer, ``None`` if there is none."""
        reply = self.reply()
        self.frame(subject, payload, reply)
        answers = [o.payload for o in self.run() if o.subject == reply]
        assert len(answers) <= 1
        return answers[0] if answers else None

    def reply(self) -> bytes:
        """A fresh reply subject."""
        self._serial += 1
        return b"_INBOX.reply.%d" % self._serial

    def connect(
        self, client_id: bytes = b"me", *, alive: bool = True, conn_id: bytes | None = None
    ) -> None:
        """A client that must be accepted, with the heartbeat inbox ``hb.<id>`` and the connection
        id ``conn.<id>``.
        """
        inbox = b"hb." + client_id
        if alive:
            self.alive.add(inbox)
        request = connect_request(
            client_id, inbox, b"conn." + client_id if conn_id is None else conn_id
        )
        answer = messages.parse(
            messages.ConnectResponse, self.call(SUBJECTS.discovery, request) or b""
        )
        assert (answer.error, answer.pub_prefix) == (b"", SUBJECTS.publish.encode())

    def publish(
        self, *data: bytes, channel: bytes = b"foo", client_id: bytes = b"me"
    ) -> list[PubAck]:
        """Publish in one batch; the acks in the order in which they came.

        A guid is its data, cut if need be.
        """
        before = len(self.out)
        for d in data:
            self.offer(d, channel=channel, client_id=client_id)
        self.run()
        return pub_acks(self.out[before:])

    def offer(self, data: bytes, *, channel: bytes = b"foo", client_id: bytes = b"me") -> None:
        """Queue a publish for the next batch."""
        payload = pub_msg(data[:MAX_ID], channel, data, conn_id=b"conn." + client_id)
        self.frame(SUBJECTS.publish.encode() + b"." + channel, payload, b"_STAN.acks." + client_id)

    def subscribe(
        self,
        channel: bytes = b"foo",
        *,
        client_id: bytes = b"me",
        inbox: bytes = b"in",
        durable: bytes = b"",
        queue: bytes = b"",
        start: int = messages.StartPosition.FIRST,
        max_in_flight: int = 1024,
        ack_wait: int = 30,
        sequence: int = 0,
        delta: int = 0,
    ) -> bytes:
        """Subscribe, which must be accepted; gives the ack inbox."""
        request = messages.SubscriptionRequest(
            client_id=client_id,
            subject=channel,
            inbox=inbox,
            durable_name=durable,
            q_group=queue,
            start_position=messages.StartPosition.ValueType(start),
            max_in_flight=max_in_flight,
            ack_wait_in_secs=ack_wait,
            start_sequence=sequence,
            start_time_delta=delta,
        )
        answer = self.call(SUBJECTS.subscribe, messages.encode(request))
        response = messages.parse(messages.SubscriptionResponse, answer or b"")
        assert (response.error, len(response.ack_inbox)) == (b"", 29)
        return response.ack_inbox

    def ack(self, ack_inbox: bytes, *sequences: int, channel: bytes = b"foo") -> list[Out]:
        """Acknowledge in one batch; gives what that caused."""
        for sequence in sequences:
            self.frame(ack_inbox, messages.encode(messages.Ack(subject=channel, sequence=sequence)))
        return self.run()

    def leave(
        self, subject: str, ack_inbox: bytes, *, channel: bytes = b"foo", client_id: bytes = b"me"
    ) -> messages.SubscriptionResponse:
        """An UnsubscribeRequest on ``subject``, which says whether it unsubscribes or closes."""
        request = messages.UnsubscribeRequest(client_id=client_id, subject=channel, inbox=ack_inbox)
        answer = self.call(subject, messages.encode(request))
        assert answer is not None
        return messages.parse(messages.SubscriptionResponse, answer)

    def close(self, client_id: bytes = b"me") -> bytes:
        """A CloseRequest; the error text, empty on success."""
        answer = self.call(
            SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=client_id))
        )
        assert answer is not None
        return messages.parse(messages.CloseResponse, answer).error

    def ping(self, conn_id: bytes) -> bytes | None:
        """A Ping; the error text, empty on success, ``None`` without an answer."""
        answer = self.call(SUBJECTS.pings, messages.encode(messages.Ping(conn_id=conn_id)))
        return None if answer is None else messages.parse(messages.PingResponse, answer).error


def connect_request(
    client_id: bytes, inbox: bytes, conn_id: bytes = b"", protocol: int = 1
) -> bytes:
    """A ConnectRequest that asks for pings every 5 s, at most 3 unanswered."""
    return messages.encode(
        messages.ConnectRequest(
            client_id=client_id,
            heartbeat_inbox=inbox,
            protocol=protocol,
            conn_id=conn_id,
            ping_interval=5,
            ping_max_out=3,
        )
    )


def pub_msg(
    guid: bytes, channel: bytes, data: bytes, *, client_id: bytes = b"", conn_id: bytes = b""
) -> bytes:
    """A PubMsg."""
    return messages.encode(
        messages.PubMsg(client_id=client_id, guid=guid, subject=channel, data=data, conn_id=conn_id)
    )


def pub_acks(out: Iterable[Out]) -> list[PubAck]:
    """The publisher acks among ``out``."""
    found = [
        messages.parse(messages.PubAck, o.payload)
        for o in out
        if o.subject.startswith(b"_STAN.acks.")
    ]
    return [PubAck(a.guid, a.error) for a in found]


def deliveries(out: Iterable[Out], inbox: bytes = b"in") -> list[Delivery]:
    """The messages among ``out`` that went to ``inbox``."""
    found = []
    for o in out:
        if o.subject == inbox:
            sequence, _, _, data, _, redelivered, count = codec.decode_msg_proto(o.payload)
            found.append(Delivery(o.at, sequence, data, redelivered, count))
    return found


def sequences(out: Iterable[Out], inbox: bytes = b"in") -> list[int]:
    """Sequences of the messages that went to ``inbox``."""
    return [d.sequence for d in deliveries(out, inbox)]


def _matches(pattern: bytes, subject: bytes) -> bool:
    want = pattern.split(b".")
    have = subject.split(b".")
    if want[-1] == b">":
        want, have = want[:-1], have[: len(want) - 1] if len(have) >= len(want) else []
        if not have:
            return False
    return len(want) == len(have) and all(w in (b"*", h) for w, h in zip(want, have, strict=True))
