"""Attacks on the planned hand-over: its messages lost, late, doubled and replayed, links cut,
members hit right then.

What is asked by name is asked of clients: that no publish of a planned hand-over goes without an
answer, and that none is stored twice. The rest is judged by the ledger, as in every history
(``docs/ft.md``, planned hand-over).
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from ftstan.ft.subjects import group_subject
from ftstan.stores.interface import ClientInfo
from ftstan.wire.pb import stan_pb2 as pb
from tests.sim import nats
from tests.sim.ft.group import Group, Shape, numbers_of
from tests.sim.ft.nodes import CLUSTER
from tests.sim.ft.shapes import (
    LIMITS,
    LOCAL,
    NETWORK,
    NETWORK_FAILING,
    NETWORK_REPEATS,
    RAISING,
    REPEATS,
)
from tests.sim.ft.test_named import group_of, move, serve_with_all
from tests.sim.model import Violation
from tests.sim.nats import Packet, SimControl

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.ft.nodes import Node

pytestmark = pytest.mark.usefixtures("quiet")

OURS = group_subject(CLUSTER, "group")
HAND_OVER = ("leaving", "subscribed", "took", "released")


class Wire:
    """What stands between members: each message of the group's own subject passes ``rule``.

    ``rule`` says after how many seconds copies of it arrive, and what they say; empty: it is lost.
    """

    def __init__(
        self,
        group: Group,
        rule: Callable[[dict[str, object]], list[tuple[float, dict[str, object]]]],
    ) -> None:
        self.group = group
        self.rule = rule
        self.heard: list[Packet] = []
        self._late: list[tuple[float, int, Packet]] = []
        self._number = 0
        self._route = group.hub._route
        group.hub._route = self._pass  # type: ignore[method-assign]

    def _pass(self, packet: Packet) -> None:
        if packet.subject != OURS or packet.reply:
            self._route(packet)
            return
        try:
            fields = json.loads(packet.data)
        except ValueError:
            fields = {}
        if fields.get("type") not in HAND_OVER:
            self._route(packet)
            return
        self.heard.append(packet)
        for seconds, said in self.rule(fields):
            self.later(seconds, replace(packet, data=json.dumps(said).encode()))

    def later(self, seconds: float, packet: Packet) -> None:
        if not seconds:
            self._route(packet)
            return
        self._number += 1
        heapq.heappush(self._late, (self.group.clock.mono() + seconds, self._number, packet))

    def turn(self) -> None:
        while self._late and self._late[0][0] <= self.group.clock.mono():
            self._route(heapq.heappop(self._late)[2])


class Publisher:
    """A client that publishes and never repeats: what nobody answers stays in ``open``."""

    def __init__(self, group: Group, name: str = "steady") -> None:
        self.group = group
        self.name = name
        self.open: dict[bytes, float] = {}
        self.answers: Counter[bytes] = Counter()
        self.errors: list[str] = []
        self.ready = False
        self._connection = group.hub.connect(None, self._on_packet)
        for sid, subject in enumerate(("hb", "acks", "reply")):
            self._connection.sent.append(("SUB", (str(sid + 1), f"{name}.{subject}")))
        self._prefix = ""

    def connect(self) -> None:
        request = pb.ConnectRequest(
            client_id=self.name.encode(),
            heartbeat_inbox=f"{self.name}.hb".encode(),
            protocol=1,
            conn_id=f"{self.name}-conn".encode(),
            ping_interval=5,
            ping_max_out=3,
        )
        name = self.name.encode()
        self.group.ledger.clients.values[name] = ClientInfo(
            name, name + b".hb", name + b"-conn", 1, 5, 3
        )
        self.send(f"_STAN.discover.{CLUSTER}", request.SerializeToString(), f"{self.name}.reply")

    def send(self, subject: str, data: bytes, reply: str = "") -> None:
        self.group.hub.publish(self._connection, Packet(subject, reply, data))

    def publish(self, guid: bytes = b"", channel: str = "channel.0") -> bytes:
        serial = self.group.serial()
        guid = guid or b"g%d" % serial
        self.open[guid] = self.group.clock.mono()
        data = b"%d:" % serial
        message = pb.PubMsg(
            client_id=self.name.encode(),
            guid=guid,
            subject=channel.encode(),
            data=data,
            conn_id=f"{self.name}-conn".encode(),
        )
        self.group.ledger.once.add(data)
        self.send(f"{self._prefix}.{channel}", message.SerializeToString(), f"{self.name}.acks")
        return guid

    def _on_packet(self, sid: str, packet: Packet) -> None:
        match sid:
            case "1":
                self.send(packet.reply, b"")
            case "2":
                ack = pb.PubAck.FromString(packet.data)
                self.open.pop(ack.guid, None)
                self.answers[ack.guid] += 1
                if ack.error:
                    self.errors.append(ack.error.decode())
            case _:
                response = pb.ConnectResponse.FromString(packet.data)
                self._prefix = response.pub_prefix.decode()
                self.ready = not response.error


def publisher(group: Group) -> Publisher:
    """A publisher that is connected."""
    client = Publisher(group)
    client.connect()
    assert move(group, lambda: client.ready, steps=50)
    return client


def run(
    group: Group, seconds: float, *also: Callable[[], object], step: float = 0.01, calls: int = 200
) -> None:
    """Everybody moves in small steps."""
    end = group.clock.mono() + seconds
    while group.clock.mono() < end:
        for each in also:
            each()
        group._move_clients()
        for node in group.nodes:
            node.spend(calls)
        group.pass_time(step)


def settled(group: Group, client: Publisher, *also: Callable[[], object]) -> set[bytes]:
    """Wait for the answers of what is open; returns what nobody answers."""
    run(group, 6, *also)
    return set(client.open)


def pair(group: Group) -> tuple[Node, Node]:
    """The owner and the standby of a group of two."""
    owner = serve_with_all(group)
    return owner, next(node for node in group.nodes if node is not owner)


@pytest.mark.parametrize("seed", range(6))
def test_a_standby_that_reads_two_questions_at_once_keeps_every_publish(seed: int) -> None:
    with group_of(replace(LOCAL, members=2), seed) as group:
        owner, standby = pair(group)
        client = publisher(group)
        standby.paused = True
        owner.switchover()
        run(group, 0.35, client.publish)
        standby.paused = False
        run(group, 1.5, client.publish)
        assert move(group, lambda: standby.serving)
        assert settled(group, client) == set()
        assert set(client.answers.values()) == {1}


class RoughGroup(Group):
    """A group that hands over most of the time, and whose members hear each other badly."""

    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, shape)
        self._noise = random.Random(f"noise {seed}")
        self.healed = False
        self._ambushes: list[Callable[[], object]] = []
        self.wire = Wire(self, self._rule)

    def _rule(self, fields: dict[str, object]) -> list[tuple[float, dict[str, object]]]:
        if self.healed:
            return [(0.0, fields)]
        rng = self._noise
        if rng.random() < 0.2:
            self._ambushes.append(rng.choice(self._at_a_hand_over()))
        said = dict(fields)
        if self.seed % 5 == 0:
            # A release that numbered no searches.
            said.pop("search", None)
        fate = rng.random()
        if fate < 0.15:
            self.met["hand-over messages lost"] += 1
            return []
        if fate < 0.3:
            self.met["hand-over messages doubled"] += 1
            return [(0.0, said), (rng.choice((0.0, 0.05, 0.4, 1.5, 6.0)), said)]
        if fate < 0.5:
            self.met["hand-over messages late"] += 1
            return [(rng.choice((0.02, 0.1, 0.3, 0.6, 2.0)), said)]
        return [(0.0, said)]

    def _move_clients(self) -> None:
        super()._move_clients()
        ambushes = self._ambushes
        self._ambushes = []
        for ambush in ambushes:
            self.met["ambushes"] += 1
            ambush()

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.wire.turn()

    def _at_a_hand_over(self) -> list[Callable[[], object]]:
        """What hits exactly then."""
        links: list[Callable[[], object]] = [self._drop_link] * 5
        common = [
            self._kill,
            self._pause,
            self._pause_at_a_call,
            self._stall,
            self._switch_mixed,
            self._stop,
        ]
        return [
            *links,
            *common,
            self._delete,
            self._purge,
            self.claimers_die,
            self._lose_lock,
            self._partition,
        ]

    def _drop_link(self) -> None:
        """A member's link for clients, or for the group, is cut; what was on its way is lost."""
        node = self._noise.choice(self.nodes)
        link = node.link if self._noise.random() < 0.7 else node._control
        connection = link._connection if link is not None else None
        if connection is not None:
            self.met["links dropped at a hand-over"] += 1
            self.hub.close(connection, lose=True)

    def _faults(self) -> list[Callable[[], object]]:
        handing = [
            self._switch_over,
            self._switch_to,
            self._stop,
            self._stop_serving,
            self._twice,
            self._replay,
        ]
        return [*(handing * 4), self._drop_link, *super()._faults()]

    def _stop_serving(self) -> None:
        node = self.serving()
        if node is not None:
            node.stopping = True

    def _switch_to(self) -> None:
        node = self.serving()
        to = self._noise.choice(self.nodes)
        if node is not None:
            node.ask(lambda: node.product.member.switchover(to.name))

    def _twice(self) -> None:
        self._switch_to()
        self._noise.choice((self._switch_to, self._stop_serving, self._switch_mixed))()

    def _replay(self) -> None:
        if self.wire.heard:
            self.met["hand-over messages replayed"] += 1
            self.hub._process(
                self.hub.connect(None, lambda *_: None),
                "PUB",
                self._noise.choice(self.wire.heard[-30:]),
            )

    def heal(self) -> None:
        self.healed = True
        super().heal()


ROUGH = (
    LOCAL,
    replace(REPEATS, options=LIMITS.options),
    replace(LIMITS, dedup=1000),
    NETWORK,
    replace(RAISING, dedup=1000),
    NETWORK_REPEATS,
    NETWORK_FAILING,
)


def rough_history(seed: int) -> Counter[str]:
    shape = replace(
        ROUGH[seed % len(ROUGH)], members=2 + seed // len(ROUGH) % 3, faults=0.5, turns=60
    )
    with numbers_of(shape):
        group = RoughGroup(seed, shape)
        try:
            for _ in range(shape.turns):
                group.turn()
            group.heal()
            group.stop(group.serve())
            group.serve()
        except Violation as violation:
            raise Violation(f"{violation} [seed={seed}, shape={shape}]") from violation
        finally:
            group.end()
        return group.met


def test_hand_overs_whose_messages_are_lost_late_doubled_and_replayed_break_no_promise() -> None:
    met: Counter[str] = Counter()
    for seed in (*range(100), 3098):
        met += rough_history(seed)
    assert met["hand-overs with publishes kept"] > 30
    assert all(
        met[f"hand-over messages {fate}"] for fate in ("lost", "late", "doubled", "replayed")
    )
    assert met["links dropped at a hand-over"] > 30


def test_a_forged_question_leaves_no_successor_that_hears_no_publishes() -> None:
    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        client = publisher(group)
        asked: list[dict[str, object]] = []

        def forge(fields: dict[str, object]) -> list[tuple[float, dict[str, object]]]:
            if fields["type"] == "leaving":
                asked.append(fields)
            elif fields["type"] == "took" and asked:
                forged = {**asked.pop(), "publishes": "nowhere"}
                return [(0.0, forged), (0.1, fields)]
            return [(0.0, fields)]

        wire = Wire(group, forge)
        owner.switchover()
        run(group, 1.5, wire.turn)
        assert move(group, lambda: standby.serving)
        client.open.clear()
        run(group, 0.1, client.publish)
        # The group's own clients have to be heard, too: ``group_of`` waits for that.
        assert settled(group, client) == set()


@pytest.mark.xfail(
    strict=True,
    reason="what the owner answered before the successor subscribed is named, too: a repeat "
    "within 2 s is left out",
)
def test_a_publish_that_is_repeated_right_after_a_hand_over_is_answered() -> None:
    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        client = publisher(group)
        # The owner looks for a successor, which does not hear it yet: what it answers now it names
        # later.
        standby.paused = True
        owner.switchover()
        run(group, 0.1)
        client.publish(b"again")
        assert move(group, lambda: not client.open, owner)
        standby.paused = False
        assert move(group, lambda: standby.serving)
        client.publish(b"again")
        assert settled(group, client) == set()


@pytest.mark.parametrize("most", [1 << 20, 64 << 10])
def test_a_hand_over_names_all_it_answered_however_little_a_nats_message_carries(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = SimControl.publish

    async def refuse(self: SimControl, subject: str, data: bytes, reply: str = "") -> None:
        if len(data) > most:
            raise NatsError("nats: maximum payload exceeded")
        await send(self, subject, data, reply)

    monkeypatch.setattr(SimControl, "publish", refuse)
    monkeypatch.setattr(nats, "MAX_PAYLOAD", most)
    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        client = publisher(group)
        standby.paused = True
        owner.switchover()

        def many() -> None:
            for _ in range(10):
                client.publish(b"%d-" % group.serial() + b"g" * 1000)

        run(group, 0.2, many)
        standby.paused = False
        run(group, 1.0, many)
        assert move(group, lambda: standby.serving)
        assert settled(group, client) == set()
        assert set(client.answers.values()) == {1}


def test_a_store_in_which_originals_were_recorded_meanwhile_is_not_taken_without_its_lock() -> None:
    with group_of(replace(LOCAL, members=2, steal_after=2)) as group:
        owner, standby = pair(group)
        # The owner is silent, and the standby has made up its mind; then the owner wakes up and the
        # operator speaks.
        owner.paused = True
        standby.stop_before = lambda call, args: call == "open" and "ft.claim." in str(args[1])
        assert move(group, lambda: standby.paused, standby)
        owner.paused = False
        owner.ask(lambda: owner.product.member.set_mixed(on=True))
        assert move(
            group, lambda: owner.product.group is not None and owner.product.group.mixed, owner
        )
        group.stop(owner)
        top = group.ledger.top
        standby.first = next(fiber for fiber in standby._fibers if fiber.name == "data plane")
        standby.paused = False
        run(group, 0.5)
        assert (standby.ended, group.met["stores taken without the lock"]) == ("", 0), top
