"""Attacks on takeovers: storage that stops answering whoever has just got the lock, originals in
between, floods of words.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

import ftstan.node.node
from ftstan.base.errors import NatsError, StoreError
from ftstan.ft.handover import Took, encode
from ftstan.ft.heartbeat import Heartbeat, encode_heartbeat
from ftstan.ft.subjects import heartbeat_subject
from tests.sim.ft.nodes import CLUSTER
from tests.sim.ft.shapes import LOCAL, NETWORK
from tests.sim.ft.test_attack_handover import pair, publisher, settled
from tests.sim.ft.test_attack_handover_3 import outage, publishing, three
from tests.sim.ft.test_named import group_of, move
from tests.sim.nats import Packet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.node.handover_buffer import BufferedPublishes
    from ftstan.node.pipeline import Serving
    from tests.sim.ft.group import Group, Shape
    from tests.sim.ft.nodes import Node
    from tests.sim.nats import Connection

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("shape", [LOCAL, NETWORK], ids=["local", "network"])
@pytest.mark.parametrize("where", ["behind the lock", "claiming"])
def test_who_hangs_in_storage_with_the_lock_makes_room_for_others(where: str, shape: Shape) -> None:
    """It is no owner yet, and hears NATS; storage answers the third member."""
    with group_of(replace(shape, members=3)) as group:
        owner, others = three(group)
        hung: list[Node] = []

        def hang(node: Node, call: str, args: tuple[object, ...]) -> bool:
            product = node.product.owner
            if not hung and product is not None and product.lock.held:
                claims = any(str(word).startswith("ft.claim") for word in args)
                if claims or where == "behind the lock":
                    hung.append(node)
                    node.stalled_until = node.clock.mono() + 600
            return False

        for node in others:
            node.stop_before = lambda call, args, node=node: hang(node, call, args)
        group._start_at[owner.member] = group.clock.mono() + 1000
        owner.kill()
        group._bury(owner)
        group._start_at[owner.member] = group.clock.mono() + 1000
        assert move(group, lambda: bool(hung), *others)
        epoch = owner.epoch
        since = group.clock.mono()
        group._start_at[hung[0].member] = since + 1000
        assert move(
            group,
            lambda: any(node.serving and node.epoch > epoch for node in group.nodes),
            steps=1200,
        ), "nobody serves"
        assert group.clock.mono() - since < 35


def test_a_flood_of_heartbeats_of_ever_other_epochs_does_not_keep_the_lock_from_being_polled() -> (
    None
):
    """Each of them may mean that the owner has recorded something new."""
    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        stranger = b"s" * 16
        looks: list[float] = []
        product = standby.product.owner
        assert product is not None
        look = product.look

        def noted() -> object:
            looks.append(group.clock.mono())
            return look()

        product.look = noted  # type: ignore[method-assign, assignment]
        forger = group.hub.connect(None, lambda *_: None)
        group._start_at[owner.member] = group.clock.mono() + 1000
        for number in range(2000):
            beat = encode_heartbeat(Heartbeat("forger", 1, 10 + number, stranger))
            group.hub.publish(forger, Packet(heartbeat_subject(CLUSTER, "group"), "", beat))
        owner.kill()
        group._bury(owner)
        group._start_at[owner.member] = group.clock.mono() + 1000
        assert move(group, lambda: standby.serving, standby, steps=100)
        assert len(looks) < 20


def test_a_successor_whose_storage_refuses_it_keeps_nobody_waiting_for_it() -> None:
    """Its former owner is started again at once, has not heard whom it named, and could serve."""
    with group_of(replace(LOCAL, members=2)) as group:
        owner, standby = pair(group)
        client = publisher(group)

        def refuse(**_: object) -> NoReturn:
            raise StoreError("read-only file system", hint="remount it")

        product = standby.product.owner
        assert product is not None
        product.activate = refuse  # type: ignore[method-assign]
        owner.switchover()
        assert move(group, lambda: bool(owner.successor), steps=100, also=publishing(client))
        assert move(group, lambda: bool(owner.ended), owner, also=publishing(client))
        group._start_at[owner.member] = group.clock.mono()
        assert outage(group, owner) < 2
        assert not standby.epoch
        del product.activate
        settled(group, client)


@contextlib.contextmanager
def crowded(group: Group) -> Iterator[Callable[[], None]]:
    """The NATS server is full meanwhile; gives what lets those in who wait, as places become
    free.
    """
    hub = group.hub
    connect = hub.connect
    most = len(hub.connections)

    def let_in(*arguments: object) -> Connection:
        if len(hub.connections) >= most:
            raise NatsError("nats: maximum connections exceeded")
        return connect(*arguments)  # type: ignore[arg-type]

    def push() -> None:
        with contextlib.suppress(NatsError):
            while True:
                let_in(None, lambda *_: None)

    hub.connect = let_in  # type: ignore[method-assign, assignment]
    yield push
    hub.connect = connect  # type: ignore[method-assign]


def test_a_nats_server_that_is_full_keeps_nobody_from_taking_over() -> None:
    """``max_connections``: clients wait for every place that somebody leaves."""
    with group_of(replace(LOCAL, members=3)) as group:
        owner, _ = three(group)
        with crowded(group) as push:
            group._start_at[owner.member] = group.clock.mono() + 1000
            owner.kill()
            group._bury(owner)
            group._start_at[owner.member] = group.clock.mono() + 1000
            served = move(
                group,
                lambda: any(n.serving and n.epoch > owner.epoch for n in group.nodes),
                also=push,
            )
            assert served


def test_who_was_not_chosen_in_a_hand_over_keeps_its_place_and_takes_over_next() -> None:
    with group_of(replace(LOCAL, members=3)) as group:
        owner, others = three(group)
        client = publisher(group)
        with crowded(group) as push:

            def step() -> None:
                push()
                client.publish()

            group._start_at[owner.member] = group.clock.mono() + 10_000
            owner.switchover()
            assert move(
                group,
                lambda: any(n.serving and n.epoch > owner.epoch for n in group.nodes),
                also=step,
            )
            chosen = next(node for node in others if node.serving)
            third = next(node for node in others if node is not chosen)
            chosen.kill()
            group._bury(chosen)
            group._start_at[chosen.member] = group.clock.mono() + 10_000
            assert move(group, lambda: third.serving and third.epoch > chosen.epoch, also=step)


@pytest.mark.parametrize("seed", range(4))
def test_what_comes_between_the_last_word_of_the_owner_and_the_start_is_read_by_who_serves(
    seed: int,
) -> None:
    """A partition waits there until it knows the others."""
    with group_of(replace(LOCAL, members=2), seed) as group:
        owner, standby = pair(group)
        client = publisher(group)
        settled_before = standby.product.partitioning.settled
        waited: list[float] = []

        async def settle() -> None:
            began = group.clock.mono()
            await asyncio.sleep(2)
            waited.append(group.clock.mono() - began)
            await settled_before()

        standby.product.partitioning.settled = settle  # type: ignore[method-assign]
        assert standby.link is not None
        number = standby.link.fileno()
        owner.switchover()
        assert move(
            group,
            lambda: standby.serving and standby.epoch > owner.epoch,
            also=publishing(client),
        )
        assert waited[0] > 1.9
        assert standby.link.fileno() == number
        assert settled(group, client) == set()


@pytest.mark.parametrize("stops", [False, True])
def test_a_hand_over_that_is_dropped_leaves_no_link_subscribed_and_unread(
    monkeypatch: pytest.MonkeyPatch, *, stops: bool
) -> None:
    kept: list[bool] = []
    opened = ftstan.node.node.Node._open

    def opening(
        self: ftstan.node.node.Node, serving: Serving, ahead: BufferedPublishes | None
    ) -> None:
        assert self.link is not None
        has_keeper = self.plane.reserved is not None or self.plane.handover_buffer is not None
        kept.append(has_keeper or ahead is not None or not self.link.connected)
        opened(self, serving, ahead)

    monkeypatch.setattr("ftstan.node.node.Node._open", opening)
    # The owner's last word never comes.
    monkeypatch.setattr(
        "ftstan.node.handover.encode",
        lambda message: b"{}" if isinstance(message, Took) else encode(message),
    )
    with group_of(replace(LOCAL, members=3)) as group:
        owner, (chosen, _) = three(group)
        client = publisher(group)
        owner.ask(lambda: owner.product.member.switchover(chosen.name))
        assert move(
            group,
            lambda: chosen.epoch > owner.epoch and chosen.product.plane.serving is None,
            steps=4000,
            also=publishing(client),
        )
        chosen.stopping = stops
        assert move(
            group,
            lambda: chosen.serving or bool(chosen.ended),
            steps=4000,
            also=publishing(client),
        )
        assert chosen.product.unbridged > 0
    assert len(kept) > 1
    assert all(kept)
