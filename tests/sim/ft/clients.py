"""The clients of a simulated group: they speak the protocol with whoever answers, and tell the
ledger what they heard.

A client knows nothing of epochs. What it gets is marked by the hub with the process that sent it
and the epoch under which that process was then, so that the ledger can hold every later owner to
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ftstan.base.errors import WireError
from ftstan.stores.interface import ClientInfo
from ftstan.wire.pb import stan_pb2 as pb
from tests.sim.ft.ledger import Taken
from tests.sim.ft.nodes import CLUSTER
from tests.sim.model import Violation
from tests.sim.nats import Packet

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.ft.group import Group
    from tests.sim.ft.ledger import Generation
    from tests.sim.ft.nodes import Node

_AGAIN_S = 2.0
_MOST_OPEN = 12
#: Bytes of a message beside its serial number.
_SMALL = (0, 5, 300, 700)
_LARGE = (*_SMALL, 6000)


@dataclass(slots=True)
class _Publish:
    """One that was not answered yet."""

    channel: bytes
    message: bytes
    publish: bytes
    sent_at: float
    tries: int = 1


@dataclass(slots=True)
class _Subscription:
    """One that was asked for. ``ack_inbox``: empty until it was answered."""

    channel: bytes
    inbox: bytes
    request: bytes
    asked_at: float
    durable: bytes
    ack_inbox: str = ""
    life: Generation | None = None
    leaving: bool = False


class Client:
    """One client. ``repeats``: a publish without an answer is sent again, under the same guid."""

    def __init__(self, group: Group, serial: int, *, repeats: bool) -> None:
        self.group = group
        self.ledger = group.ledger
        self.id = b"client-%d" % serial
        self._rng = group.client_rng
        self._repeats = repeats
        self._hub = group.hub
        self._connection = group.hub.connect(None, self._on_packet)
        self._handlers: dict[str, Callable[[Packet], None]] = {}
        self._sids: dict[str, str] = {}
        self._subjects: pb.ConnectResponse | None = None
        self._asked_at = float("-inf")
        self._connects = 0
        self._open: dict[bytes, _Publish] = {}
        self._subs: dict[bytes, _Subscription] = {}
        self._closing_at: float | None = None
        self.gone = False
        conn = b"conn-%d" % serial
        self._info = ClientInfo(self.id, b"hb.%d" % serial, conn, 1, 5, 3)
        self._listen(f"hb.{serial}", lambda packet: self._send(packet.reply, b""))
        self._listen(f"pubacks.{serial}", self._on_pub_ack)

    # ---- talking
    # ----------------------------------------------------------------------------------------------

    def _listen(self, subject: str, handler: Callable[[Packet], None]) -> None:
        sid = str(len(self._handlers) + 1)
        self._handlers[sid] = handler
        self._sids[subject] = sid
        self._connection.sent.append(("SUB", (sid, subject)))

    def _on_packet(self, sid: str, packet: Packet) -> None:
        self._handlers[sid](packet)

    def _send(self, subject: str, data: bytes, reply: str = "", tag: object = None) -> None:
        self._hub.publish(self._connection, Packet(subject, reply, data, tag))

    def _ask(self, subject: str, data: bytes, then: Callable[[Packet], None]) -> None:
        inbox = f"reply.{self.group.serial()}"
        self._listen(inbox, then)
        self._send(subject, data, inbox)

    @property
    def is_connected(self) -> bool:
        """Whether it can publish."""
        return self._subjects is not None and self._closing_at is None and not self.gone

    # ---- one turn
    # ----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Do something, and repeat what nobody has answered."""
        now = self.group.clock.mono()
        if self._subjects is None:
            if now - self._asked_at >= _AGAIN_S:
                self._connect(now)
            return
        if self._closing_at is not None:
            if now - self._closing_at >= _AGAIN_S:
                self._close(now)
            return
        self._repeat(now)
        rng = self._rng
        shape = self.group.shape
        for _ in range(rng.randint(0, 2)):
            if len(self._open) < _MOST_OPEN:
                self.publish(b"channel.%d" % rng.randrange(shape.channels))
        if rng.random() < 0.25 and len(self._subs) < 4:
            self._subscribe(b"channel.%d" % rng.randrange(shape.channels), now)
        elif rng.random() < 0.08:
            self._unsubscribe()
        elif rng.random() < 0.03 and not self._subs:
            self._close(now)

    def _repeat(self, now: float) -> None:
        for guid, publish in list(self._open.items()):
            if now - publish.sent_at < _AGAIN_S:
                continue
            if self._repeats and publish.tries < 4:
                publish.tries += 1
                publish.sent_at = now
                self.group.met["publishes repeated"] += 1
                self._send(self._subject_of(publish.channel), publish.message, self._acks)
            else:
                # Nobody has answered: whether it is stored is not known.
                del self._open[guid]
        for sub in list(self._subs.values()):
            if not sub.ack_inbox and now - sub.asked_at >= 2 * _AGAIN_S:
                # Not known either: it may be there, and is not used.
                del self._subs[sub.inbox]

    @property
    def _acks(self) -> str:
        return "pubacks." + self.id.decode().rpartition("-")[2]

    def _subject_of(self, channel: bytes) -> str:
        assert self._subjects is not None
        return f"{self._subjects.pub_prefix.decode()}.{channel.decode()}"

    # ---- requests
    # ----------------------------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        self._asked_at = now
        self._connects += 1
        self.ledger.clients.values[self.id] = self._info
        info = self._info
        request = pb.ConnectRequest(
            client_id=info.client_id,
            heartbeat_inbox=info.hb_inbox,
            protocol=info.protocol,
            conn_id=info.conn_id,
            ping_interval=info.ping_interval,
            ping_max_out=info.ping_max_out,
        )
        self._ask(f"_STAN.discover.{CLUSTER}", request.SerializeToString(), self._on_connected)

    def _on_connected(self, packet: Packet) -> None:
        response = pb.ConnectResponse.FromString(packet.data)
        if response.error:
            # An earlier request of ours was carried out and its answer was lost. Another client
            # comes instead.
            self.gone = True
            self._refused("connects", response.error.decode(), packet)
        elif self._subjects is None:
            self._subjects = response
            self.ledger.answer_clients({self.id}, set(), _epoch(packet))

    def _close(self, now: float) -> None:
        assert self._subjects is not None
        self._closing_at = now
        self.ledger.clients.leaving.add(self.id)
        request = pb.CloseRequest(client_id=self.id)
        self._ask(
            self._subjects.close_requests.decode(), request.SerializeToString(), self._on_closed
        )

    def _on_closed(self, packet: Packet) -> None:
        if not pb.CloseResponse.FromString(packet.data).error:
            # A second request to connect may wait for the client of the first one to answer, and be
            # carried out now.
            self.ledger.answer_clients(
                set(), {self.id} if self._connects == 1 else set(), _epoch(packet)
            )
        self.gone = True

    def _subscribe(self, channel: bytes, now: float) -> None:
        assert self._subjects is not None
        serial = self.group.serial()
        inbox = b"inbox.%d" % serial
        durable = b"durable.%d" % serial if self._rng.random() < 0.8 else b""
        request = pb.SubscriptionRequest(
            client_id=self.id,
            subject=channel,
            inbox=inbox,
            max_in_flight=self._rng.choice((1, 5, 20)),
            ack_wait_in_secs=self._rng.choice((1, 2, 5)),
            durable_name=durable,
            start_position=self._rng.choice((pb.NEW_ONLY, pb.FIRST)),
        )
        sub = _Subscription(channel, inbox, request.SerializeToString(), now, durable)
        self._subs[inbox] = sub
        self.ledger.asked_subs[inbox] = (self.id, inbox, request.max_in_flight, durable)
        self._listen(inbox.decode(), partial(self._on_message, sub))
        self._ask(
            self._subjects.sub_requests.decode(), sub.request, partial(self._on_subscribed, sub)
        )

    def _on_subscribed(self, sub: _Subscription, packet: Packet) -> None:
        response = pb.SubscriptionResponse.FromString(packet.data)
        life = _life(sub.channel, packet)
        if response.error or life is None or sub.inbox not in self._subs:
            self._subs.pop(sub.inbox, None)
            return
        sub.ack_inbox = response.ack_inbox.decode()
        sub.life = life
        if self._connects > 1 and not sub.durable:
            # An owner that stood still behind both requests may take the second one for another
            # client of this id.
            life.subs.leaving.add(sub.inbox)
        self.ledger.answer_subs(life, {sub.inbox}, set(), _epoch(packet))

    def _unsubscribe(self) -> None:
        known = sorted(i for i, s in self._subs.items() if s.ack_inbox and not s.leaving)
        if not known or self._subjects is None:
            return
        sub = self._subs[self._rng.choice(known)]
        sub.leaving = True
        if sub.life is not None:
            sub.life.subs.leaving.add(sub.inbox)
        request = pb.UnsubscribeRequest(
            client_id=self.id, subject=sub.channel, inbox=sub.ack_inbox.encode()
        )
        self._ask(
            self._subjects.unsub_requests.decode(),
            request.SerializeToString(),
            partial(self._on_gone, sub),
        )

    def _on_gone(self, sub: _Subscription, packet: Packet) -> None:
        life = _life(sub.channel, packet)
        if not pb.SubscriptionResponse.FromString(packet.data).error and life is not None:
            self.ledger.answer_subs(life, set(), {sub.inbox}, _epoch(packet))
        self._subs.pop(sub.inbox, None)

    # ---- messages
    # ----------------------------------------------------------------------------------------------

    def publish(self, channel: bytes) -> None:
        """Publish a message that nobody has published before."""
        serial = self.group.serial()
        publish = b"%d:" % serial + b"x" * self._rng.choice(
            _LARGE if self.group.shape.large else _SMALL
        )
        guid = (b"ft1.%d" if self._repeats else b"g%d") % serial
        message = pb.PubMsg(
            client_id=self.id, guid=guid, subject=channel, data=publish, conn_id=self._info.conn_id
        ).SerializeToString()
        self.ledger.once.add(publish)
        self._open[guid] = _Publish(channel, message, publish, self.group.clock.mono())
        self._send(self._subject_of(channel), message, self._acks)

    def _on_pub_ack(self, packet: Packet) -> None:
        ack = pb.PubAck.FromString(packet.data)
        publish = self._open.pop(ack.guid, None)
        if publish is None:
            return
        if ack.error:
            self._refused("publishes", ack.error.decode(), packet)
            return
        self.ledger.told(publish.publish, _process(packet), _epoch(packet))
        _process(packet).told.add(publish.channel)

    def _refused(self, what: str, error: str, packet: Packet) -> None:
        """Storage refuses nothing while it is well: then somebody else has meddled with what was
        written.
        """
        process = _process(packet)
        self.group.met[f"{what} refused"] += 1
        if not error.startswith("stan: ") and not process.faulty:
            raise Violation(f"{process} refused without a fault: {error}")

    def _on_message(self, sub: _Subscription, packet: Packet) -> None:
        try:
            message = pb.MsgProto.FromString(packet.data)
        except WireError as error:
            raise Violation(f"{sub.inbox!r} got what is no message: {packet.data!r}") from error
        life = _life(sub.channel, packet)
        if life is None:
            return
        message.redelivered = False
        message.redelivery_count = 0
        self.ledger.deliver(life, message.sequence, message.SerializeToString(), _epoch(packet))
        self.group.met["deliveries"] += 1
        if sub.ack_inbox and self._rng.random() < 0.8:
            taken = Taken(life, sub.inbox, message.sequence, _epoch(packet))
            ack = pb.Ack(subject=sub.channel, sequence=message.sequence)
            self._send(sub.ack_inbox, ack.SerializeToString(), tag=taken)


def _life(channel: bytes, packet: Packet) -> Generation | None:
    """The life of the channel that the sender spoke of."""
    assert isinstance(packet.tag, tuple)
    lives: dict[bytes, Generation] = packet.tag[2]
    return lives.get(channel)


def _process(packet: Packet) -> Node:
    assert isinstance(packet.tag, tuple)
    process: Node = packet.tag[0]
    return process


def _epoch(packet: Packet) -> int:
    assert isinstance(packet.tag, tuple)
    epoch: int = packet.tag[1]
    return epoch
