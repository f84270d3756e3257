"""Attacks on planned hand-overs: two at once, a backlog in the way, successors that cannot follow,
words that lie.
"""

from __future__ import annotations

import contextlib
import errno
import select
import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.bounds import MAX_ID
from ftstan.ft.events import HeartbeatHeard, TimerFired, TryLock, YieldTo
from ftstan.ft.handover import Leaving, encode
from ftstan.ft.heartbeat import Heartbeat, encode_heartbeat
from ftstan.ft.subjects import Released, encode_released, group_subject, heartbeat_subject
from ftstan.node.pipeline import Serving
from ftstan.wire.frames import pub_frame
from ftstan.wire.pb import stan_pb2 as pb
from tests.sim.ft.nodes import CLUSTER
from tests.sim.ft.shapes import LOCAL
from tests.sim.ft.test_attack_handover import Publisher, Wire, pair, publisher, run, settled
from tests.sim.ft.test_named import group_of, move, serve_with_all
from tests.sim.ft.test_review_handover import answered_meanwhile
from tests.sim.nats import Packet, SimLink
from tests.unit.ft.test_standby import BUSY, PEER
from tests.unit.ft.test_standby import Node as Standby
from tests.unit.nats.test_link import Peer, link_to, server
from tests.unit.node.test_pipeline_pause import Everything

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.ft.group import Group
    from tests.sim.ft.nodes import Node

pytestmark = pytest.mark.usefixtures("quiet")


def three(group: Group) -> tuple[Node, list[Node]]:
    """The owner, and two members that stand by."""
    owner = serve_with_all(group)
    return owner, [node for node in group.nodes if node is not owner]


def publishing(client: Publisher) -> Callable[[], None]:
    """One publish in each step."""

    def publish() -> None:
        client.publish()

    return publish


# ---- a second stop within the first
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["recovering", "opening"])
def test_a_successor_that_is_stopped_before_it_serves_leaves_no_publish_without_an_answer(
    when: str,
) -> None:
    """A rolling restart: the member that has just been chosen is the next one to go, and a third
    one stands by.
    """
    with group_of(replace(LOCAL, members=3)) as group:
        owner, (chosen, _) = three(group)
        client = publisher(group)
        owner.ask(lambda: owner.product.member.switchover(chosen.name))

        def reached() -> bool:
            serving = chosen.product.plane.serving
            if when == "recovering":
                return chosen.epoch > owner.epoch and serving is None
            return serving is not None and not serving.ready

        for _ in range(4000):
            client.publish()
            for node in group.nodes:
                node.spend(5)
            group.hub.flow()
            group.pass_time(0.001)
            if reached():
                break
        assert reached()
        chosen.stopping = True
        epoch = chosen.epoch
        assert move(
            group,
            lambda: any(n.serving and n.epoch > epoch for n in group.nodes),
            also=publishing(client),
        )
        assert settled(group, client) == set()


@pytest.mark.parametrize("when", ["named", "searching"])
def test_a_successor_that_is_stopped_before_the_owner_has_left_follows_all_the_same(
    when: str,
) -> None:
    """The operator's switchover has been answered, or is about to be."""
    with group_of(replace(LOCAL, members=3)) as group:
        owner, others = three(group)
        client = publisher(group)
        owner.ask(lambda: owner.product.member.switchover(others[0].name))
        chosen = others[0]

        def reached() -> bool:
            if when == "searching":
                return (
                    chosen.product.group is not None and chosen.product.group._handover.takes_over
                )
            return owner.successor == chosen.name

        assert move(group, reached, steps=400, also=publishing(client))
        assert not chosen.epoch
        chosen.stopping = True
        epoch = owner.epoch
        assert move(
            group,
            lambda: any(n.serving and n.epoch > epoch + 1 for n in group.nodes),
            also=publishing(client),
        )
        assert chosen.ended == "stopped"
        assert settled(group, client) == set()


def test_a_successor_that_is_stopped_in_a_hurry_counts_what_it_drops() -> None:
    with group_of(replace(LOCAL, members=3)) as group:
        owner, (chosen, _) = three(group)
        client = publisher(group)
        owner.ask(lambda: owner.product.member.switchover(chosen.name))
        assert move(group, lambda: chosen.epoch > owner.epoch, steps=4000, also=publishing(client))
        chosen.stopping = True
        chosen._within_loop(lambda: chosen.product.request_stop(15))
        assert move(group, lambda: bool(chosen.ended), also=publishing(client))
        assert chosen.ended == "stopped"
        assert chosen.product.unbridged > 0


# ---- subscribers
# --------------------------------------------------------------------------------------------------


class Reader(Publisher):
    """A client with subscriptions, which notes what they get and acknowledges what it is told
    to.
    """

    def __init__(self, group: Group, name: str = "reader") -> None:
        super().__init__(group, name)
        self.got: list[tuple[str, int, bool]] = []
        self.ack_inboxes: dict[str, str] = {}
        self.subjects: dict[str, str] = {}
        self.responses: list[pb.SubscriptionResponse] = []
        self.connects: list[pb.ConnectResponse] = []
        self.acknowledges = True
        self._inboxes: dict[str, str] = {}

    def _on_packet(self, sid: str, packet: Packet) -> None:
        if sid == "3" and packet.subject == f"{self.name}.reply":
            response = pb.ConnectResponse.FromString(packet.data)
            self.connects.append(response)
            if not response.error:
                self.subjects = {
                    "subscribe": response.sub_requests.decode(),
                    "unsubscribe": response.unsub_requests.decode(),
                    "close": response.sub_close_requests.decode(),
                }
        if sid in self._inboxes:
            inbox = self._inboxes[sid]
            message = pb.MsgProto.FromString(packet.data)
            self.got.append((inbox, message.sequence, message.redelivered))
            if self.acknowledges:
                self.ack(inbox, message.subject, message.sequence)
            return
        if sid == "sub":
            inbox = packet.subject.rpartition("-")[2]
            answer = pb.SubscriptionResponse.FromString(packet.data)
            self.responses.append(answer)
            if not answer.error:
                self.ack_inboxes[inbox] = answer.ack_inbox.decode()
            return
        super()._on_packet(sid, packet)

    def ack(self, inbox: str, channel: bytes, sequence: int) -> None:
        if inbox in self.ack_inboxes:
            self.send(
                self.ack_inboxes[inbox],
                pb.Ack(subject=channel, sequence=sequence).SerializeToString(),
            )

    def subscribe(
        self,
        inbox: str,
        *,
        durable: bytes = b"",
        queue: bytes = b"",
        most: int = 10,
        ack_wait: int = 5,
    ) -> None:
        if inbox not in self._inboxes.values():
            sid = f"in.{inbox}"
            self._inboxes[sid] = inbox
            self._connection.sent.append(("SUB", (sid, inbox)))
            self._connection.sent.append(("SUB", ("sub", f"{self.name}.sub.>")))
        name = self.name.encode()
        stored = durable + b":" + queue if durable and queue else durable
        self.group.ledger.asked_subs[inbox.encode()] = (name, inbox.encode(), most, stored)
        request = pb.SubscriptionRequest(
            client_id=name,
            subject=b"channel.0",
            q_group=queue,
            inbox=inbox.encode(),
            max_in_flight=most,
            ack_wait_in_secs=ack_wait,
            durable_name=durable,
            start_position=pb.FIRST,
        )
        self.send(
            self.subjects["subscribe"], request.SerializeToString(), f"{self.name}.sub.x-{inbox}"
        )


def reader(group: Group, name: str = "reader") -> Reader:
    client = Reader(group, name)
    client.connect()
    assert move(group, lambda: client.ready, steps=50)
    return client


@pytest.mark.parametrize("most", [10, 100_000])
def test_a_reader_with_a_long_way_to_go_does_not_make_publishers_wait_for_a_hand_over(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits into one emit takes 40 ms on its way to NATS.

    A reader may have a hundred of those in flight.
    """
    send = SimLink.send

    def slow(self: SimLink, data: bytes | bytearray | memoryview, deadline: float) -> None:
        send(self, data, deadline)
        if len(data) > 8 << 10:
            self._park(lambda: False, 0.04)

    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        client = publisher(group)
        late = reader(group)
        for _ in range(1000):
            client.publish(b"%d-" % group.serial() + b"g" * 1000)
        run(group, 2)
        assert not client.open
        assert owner.product.plane.serving is not None
        owner.product.plane.serving.most_delivered = 8 << 10
        monkeypatch.setattr(SimLink, "send", slow)
        late.acknowledges = False
        late.subscribe("inbox.late", most=most)
        run(group, 0.1)
        owner.switchover()
        for _ in range(1000):
            if standby.serving:
                break
            run(group, 0.01, client.publish)
        assert standby.serving
        assert settled(group, client) == set()


# ---- who follows ---


@pytest.mark.parametrize("seed", range(3))
def test_of_three_members_the_one_that_was_named_follows(seed: int) -> None:
    """Both that stand by keep what is published.

    The other one holds back for five seconds once one is named.
    """
    with group_of(replace(LOCAL, members=3), seed) as group:
        owner, others = three(group)
        client = publisher(group)
        owner.stopping = True
        assert move(group, lambda: bool(owner.successor), steps=100, also=publishing(client))
        named = next(node for node in others if node.name == owner.successor)
        # Storage lets it wait for a moment when it comes to take over.
        assert move(group, lambda: bool(owner.ended), owner, also=publishing(client))
        named.stalled_until = named.clock.mono() + 0.3
        assert move(
            group, lambda: any(node.serving and node.epoch > owner.epoch for node in group.nodes)
        )
        assert settled(group, client) == set()
        assert named.epoch > owner.epoch


@pytest.mark.parametrize("seed", range(3))
def test_a_former_owner_that_is_started_again_at_once_does_not_overtake_its_successor(
    seed: int,
) -> None:
    """It has not heard whom it named, and its successor's storage is slow."""
    with group_of(replace(LOCAL, members=2), seed) as group:
        owner, standby = pair(group)
        client = publisher(group)
        owner.switchover()
        assert move(group, lambda: bool(owner.successor), steps=100, also=publishing(client))
        assert move(group, lambda: bool(owner.ended), owner, also=publishing(client))
        group._start_at[owner.member] = group.clock.mono()
        standby.stalled_until = standby.clock.mono() + 3
        run(group, 4, client.publish)
        assert len({node.name for node in group.nodes} - {owner.name, standby.name}) == 1
        assert move(
            group, lambda: any(node.serving and node.epoch > owner.epoch for node in group.nodes)
        )
        assert standby.serving
        assert settled(group, client) == set()


def test_when_the_member_that_was_named_dies_another_one_waits_no_longer_than_said() -> None:
    with group_of(replace(LOCAL, members=3)) as group:
        owner, others = three(group)
        owner.stopping = True
        assert move(group, lambda: bool(owner.successor), steps=100)
        named = next(node for node in others if node.name == owner.successor)
        assert move(group, lambda: bool(owner.ended), owner)
        named.kill()
        group._bury(named)
        for node in (owner, named):
            group._start_at[node.member] = group.clock.mono() + 60
        assert outage(group, owner) < 6


# ---- successors that cannot follow
# -----------------------------------------------------------------------------------


def outage(group: Group, former: Node, *, most: float = 60.0) -> float:
    """Seconds from the end of ``former`` until somebody serves under a higher epoch."""
    assert move(group, lambda: bool(former.ended), steps=2000)
    since = group.clock.mono()
    epoch = former.epoch
    for _ in range(round(most / 0.01)):
        if any(node.serving and node.epoch > epoch for node in group.nodes):
            break
        run(group, 0.01)
    return group.clock.mono() - since


def test_the_store_of_an_owner_without_its_lock_is_handed_over_at_once() -> None:
    """Its former holder stands still and keeps the lock.

    The operator moves the store on from where it was taken to.
    """
    with group_of(replace(LOCAL, members=3, steal_after=20)) as group:
        holder, others = three(group)
        holder.paused = True
        assert move(
            group,
            lambda: any(node.serving and node.epoch > holder.epoch for node in group.nodes),
            *others,
        )
        owner = group.serve()
        assert owner is not holder
        run(group, 3)
        owner.switchover()
        assert outage(group, owner) < 2


def test_a_stop_of_an_owner_without_its_lock_is_followed_at_once() -> None:
    with group_of(replace(LOCAL, members=3, steal_after=20)) as group:
        holder, others = three(group)
        holder.paused = True
        assert move(
            group,
            lambda: any(node.serving and node.epoch > holder.epoch for node in group.nodes),
            *others,
        )
        owner = group.serve()
        client = publisher(group)
        group._start_at[owner.member] = group.clock.mono() + 60
        owner.stopping = True
        assert move(group, lambda: bool(owner.ended), also=publishing(client))
        assert outage(group, owner) < 1
        assert holder.paused
        assert settled(group, client) == set()


def test_a_standby_that_has_said_that_it_could_not_take_over_is_not_chosen() -> None:
    """It hears everything on NATS and can read nothing in the datastore; another one can."""
    with group_of(replace(LOCAL, members=3)) as group:
        owner, (broken, other) = three(group)
        broken.faulty = True
        on_call = broken.disk.on_call
        assert on_call is not None

        def refuse(number: int, call: str, arguments: tuple[object, ...]) -> None:
            on_call(number, call, arguments)
            if call in {"open", "open_dir", "pread", "stat"}:
                raise OSError(errno.EIO, "Input/output error")

        broken.disk.on_call = refuse
        # It looks once in ten seconds, and tells that it could not take over now.
        run(group, 25, step=0.05)
        client = publisher(group)
        # It is the first that answers.
        wire = Wire(
            group,
            lambda said: [
                (0.05 if said.get("server") not in {broken.name, owner.name} else 0.0, said)
            ],
        )
        group._start_at[owner.member] = group.clock.mono() + 60
        owner.stopping = True
        for _ in range(5000):
            if owner.ended:
                break
            run(group, 0.01, wire.turn, client.publish)
        assert owner.successor == other.name
        assert move(
            group, lambda: any(node.serving and node.epoch > owner.epoch for node in group.nodes)
        )
        broken.disk.on_call = on_call
        assert settled(group, client) == set()


def without_its_lock(group: Group) -> tuple[Node, Node]:
    """The owner, which took the store from a member that stands still and keeps the lock.

    And who stands by.
    """
    holder, others = three(group)
    holder.paused = True
    assert move(
        group,
        lambda: any(node.serving and node.epoch > holder.epoch for node in group.nodes),
        *others,
    )
    owner = group.serve()
    run(group, 3)
    return owner, next(node for node in others if node is not owner)


@pytest.mark.parametrize("how", ["stop", "switchover", "unheard"])
def test_who_follows_an_owner_without_its_lock_is_followed_in_the_same_way(how: str) -> None:
    """Twice; also where nobody hears that the store is free."""
    with group_of(replace(LOCAL, members=3, steal_after=20)) as group:
        owner, standby = without_its_lock(group)
        if how == "unheard":
            Wire(group, lambda said: [] if said.get("type") == "released" else [(0.0, said)])
        for _ in range(2):
            member = owner.member
            if how == "switchover":
                owner.switchover()
            else:
                owner.stopping = True
            assert outage(group, owner) < (2 if how != "unheard" else 5)
            assert standby.serving
            run(group, 4)
            owner = standby
            standby = next(n for n in group.nodes if n.member == member and not n.ended)


def test_forged_words_do_not_take_the_store_from_an_owner_without_its_lock() -> None:
    with group_of(replace(LOCAL, members=3, steal_after=20)) as group:
        owner, standby = without_its_lock(group)
        activation = owner.product.owner.present if owner.product.owner is not None else None
        assert activation is not None
        forger = group.hub.connect(None, lambda *_: None)
        for _ in range(40):
            word = encode_released(Released(owner.name, activation.epoch, activation.store_id))
            group.hub.publish(forger, Packet(group_subject(CLUSTER, "group"), "", word))
            run(group, 0.25)
        assert owner.serving
        assert standby.epoch < owner.epoch


# ---- words that lie
# --------------------------------------------------------------------------------------------------


def test_heartbeats_and_names_together_delay_no_try_of_a_lock_beyond_what_is_documented() -> None:
    """However often others are named, at most 15 s lie between two attempts at the lock
    (``docs/ft.md``).
    """
    node = Standby()
    node.stand_by()
    tried = [node.now]
    for _ in range(1200):
        node.now += 0.1
        if round(node.now * 10) % 10 == 0:
            node.on(HeartbeatHeard(PEER))
            node.on(YieldTo(5.0))
        if any(isinstance(action, TryLock) for action in node.on(TimerFired())):
            tried.append(node.now)
            node.on(BUSY)
    tried.append(node.now)
    assert max(b - a for a, b in pairwise(tried)) < 16


def test_forged_words_do_not_keep_a_group_from_replacing_its_owner() -> None:
    """Somebody repeats the last heartbeat of an owner that died, and asks for a successor in its
    name.
    """
    with group_of(replace(LOCAL, members=3)) as group:
        owner, _ = three(group)
        activation = owner.product.owner.present if owner.product.owner is not None else None
        assert activation is not None
        beat = Heartbeat(owner.name, activation.since_ns, activation.epoch, activation.store_id)
        question = Leaving(
            owner.name, activation.epoch, activation.store_id, "anything", to="NOBODY"
        )
        forger = group.hub.connect(None, lambda *_: None)

        def forge() -> None:
            group.hub.publish(
                forger, Packet(heartbeat_subject(CLUSTER, "group"), "", encode_heartbeat(beat))
            )
            group.hub.publish(forger, Packet(group_subject(CLUSTER, "group"), "", encode(question)))

        owner.kill()
        group._bury(owner)
        end = group.clock.mono() + 60
        while group.clock.mono() < end and not any(node.serving for node in group.nodes):
            forge()
            run(group, 0.2, step=0.05)
        assert any(node.serving for node in group.nodes)


# ---- requests that the owner has begun
# -------------------------------------------------------------------------------


def test_a_client_whose_connect_the_owner_has_begun_to_look_at_is_answered() -> None:
    """Its id is in use, so the owner asks the older one whether it lives.

    Meanwhile it hands over.
    """
    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        # Nobody answers for the older client.
        group.hub.close(publisher(group)._connection)
        again = Reader(group, "steady")
        owner.switchover()
        again.connect()
        group.hub.flow()
        while not standby.serving:
            run(group, 0.01)
        run(group, 5)
        assert again.connects


# ---- the last bytes
# --------------------------------------------------------------------------------------------------


class Answering(Everything):
    """A broker that answers when it has read what NATS had for it: deliveries, and the ack of a
    publish behind them.
    """

    def feed(self, *given: object) -> int:
        data, start, end = given[:3]
        assert isinstance(data, bytearray)
        assert isinstance(start, int)
        assert isinstance(end, int)
        if b"PONG" in data[start:end]:
            self.link_events.append((4, b""))
            self.deliveries = pub_frame(b"inbox", b"", bytes(400 << 10))
            self.acks = pub_frame(b"pubacks", b"", b"the last answer")
            self.output_size = len(self.deliveries) + len(self.acks)
        return end

    def sent(self) -> None:
        self.deliveries = self.acks = b""
        self.output_size = 0


@pytest.mark.parametrize("unread", [False, True])
def test_a_link_that_is_closed_behind_a_hand_over_still_carries_every_answer(
    *, unread: bool
) -> None:
    """NATS is busy for a moment, and a client's answer to a heartbeat comes when nobody reads any
    more.
    """
    heard = bytearray()
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        while not peer.line().startswith(b"PING"):
            pass
        peer.socket.sendall(b"PONG\r\n")
        assert left.wait(20)
        if unread:
            peer.socket.sendall(b"MSG _INBOX.x.1 7 0\r\n\r\n")
        answered.set()
        assert gone.wait(20)
        with contextlib.suppress(OSError):
            while data := peer.socket.recv(1 << 20):
                heard.extend(data)

    left = threading.Event()
    answered = threading.Event()
    with server(script) as (url, _):
        link = link_to(url)
        link.connect(10)
        broker = Answering(ManualClock())
        broker.output_size = 0
        serving = Serving(broker, broker, link, broker.clock, "test", suspicion_s=60)  # type: ignore[arg-type]
        taken = serving.leave()
        readable = select.poll()
        readable.register(link, select.POLLIN)

        def turn() -> None:
            while not taken.done():
                readable.poll(1000)
                serving.turn(readable=True)
            left.set()
            assert answered.wait(20)
            time.sleep(0.05)
            # As a stop does it (``Node._stop``).
            serving.stop(tidy=False)
            link.finish(1)

        turn()
        gone.set()
    assert heard.endswith(b"the last answer\r\n")


# ---- refused, and then in earnest
# ------------------------------------------------------------------------------------


def test_a_stop_right_behind_a_switchover_that_was_refused_is_followed() -> None:
    """The member that the operator names is away.

    So the operator stops the owner, and another one stands by.
    """
    with group_of(replace(LOCAL, members=3)) as group:
        owner, (away, _) = three(group)
        client = publisher(group)
        away.kill()
        group._bury(away)
        group._start_at[away.member] = group.clock.mono() + 60
        owner.ask(lambda: owner.product.member.switchover(away.name))
        run(group, 2.5, client.publish)
        assert owner.serving
        assert not owner.successor
        group._start_at[owner.member] = group.clock.mono() + 60
        owner.stopping = True
        assert move(group, lambda: bool(owner.ended), also=publishing(client))
        since = group.clock.mono()
        assert move(
            group, lambda: any(node.serving and node.epoch > owner.epoch for node in group.nodes)
        )
        waited = group.clock.mono() - since
        assert (waited < 1, settled(group, client)) == (True, set()), waited


@pytest.mark.parametrize("by_name", [False, True])
def test_a_switchover_right_behind_one_that_was_refused_is_carried_out(*, by_name: bool) -> None:
    with group_of(replace(LOCAL, members=3)) as group:
        owner, (away, other) = three(group)
        away.kill()
        group._bury(away)
        group._start_at[away.member] = group.clock.mono() + 60
        owner.ask(lambda: owner.product.member.switchover(away.name))
        run(group, 2.5)
        assert owner.serving
        owner.ask(lambda: owner.product.member.switchover(other.name if by_name else ""))
        assert move(group, lambda: other.serving, steps=60)


@pytest.mark.parametrize("fault", ["no guid", "a guid that is too long", "not a PubMsg"])
def test_a_publish_without_a_guid_is_refused_once(fault: str) -> None:
    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        client = publisher(group)

        def unnamed(data: bytes = b"x") -> None:
            guid = b"g" * (MAX_ID + 1) if fault == "a guid that is too long" else b""
            message = pb.PubMsg(
                client_id=b"steady",
                guid=guid,
                subject=b"channel.0",
                data=data,
                conn_id=b"steady-conn",
            )
            sent = b"\xff" + data if fault == "not a PubMsg" else message.SerializeToString()
            client.send(f"{client._prefix}.channel.0", sent, "steady.acks")

        answered_meanwhile(group, owner, standby, unnamed)
        assert move(group, lambda: standby.serving)
        # Another one, which nobody has answered.
        unnamed(b"y")
        run(group, 1)
        assert client.answers[b""] == 2
