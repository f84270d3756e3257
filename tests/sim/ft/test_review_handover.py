"""Planned hand-overs at their worst moments: each test is a schedule that somebody wrote against
them.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import RefusedError
from ftstan.wire.pb import stan_pb2 as pb
from tests.sim.ft.gopeer import interlude
from tests.sim.ft.group import Group, Shape
from tests.sim.ft.shapes import LOCAL, MIXED
from tests.sim.nats import SimLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.node.handover_buffer import HandoverBuffer
    from tests.sim.ft.clients import Client
    from tests.sim.ft.nodes import Node

pytestmark = pytest.mark.usefixtures("quiet")

PAIR = replace(LOCAL, members=2)


@contextmanager
def group_of(shape: Shape, seed: int = 1) -> Iterator[Group]:
    """A group; at the end two more owners must find what was promised, and nothing twice."""
    group = Group(seed, shape)
    try:
        yield group
        group.heal()
        last = group.serve()
        last.kill()
        group._bury(last)
        group.serve()
    finally:
        group.end()


def buffer_of(node: Node) -> HandoverBuffer | None:
    return node.product.plane.handover_buffer


def run_until(
    group: Group, what: Callable[[], bool], *nodes: Node, seconds: float = 0.005, steps: int = 2000
) -> None:
    """Let ``nodes`` move, in small steps, until it holds."""
    for _ in range(steps):
        if what():
            return
        for node in nodes:
            node.spend(60)
            group.hub.flow()
        group.clock.advance(seconds)
        for node in nodes:
            node.wake()
    raise AssertionError("it never came to that")


def publisher(group: Group) -> Client:
    return next(client for client in group.clients if client.is_connected)


def pair(group: Group) -> tuple[Node, Node]:
    """The owner, and a standby that waits."""
    owner = group.serve()
    standby = next(node for node in group.nodes if node is not owner)
    for _ in range(100):
        for node in group.nodes:
            node.spend(60)
        group.pass_time(0.05)
    return owner, standby


def answered_meanwhile(
    group: Group, owner: Node, standby: Node, publish: Callable[[], None]
) -> None:
    """A stop of the owner.

    What ``publish`` sends reaches both, and the owner answers it before it leaves.
    """
    owner.stopping = True
    # The buffer is open, and the owner has not heard of it.
    for _ in range(2000):
        if buffer_of(standby) is not None:
            break
        owner.wake()
        owner.spend(20)
        group.hub.flow()
        standby.spend(60)
        group.clock.advance(0.001)
    assert buffer_of(standby) is not None
    publish()
    group.hub.flow()
    run_until(group, lambda: bool(owner.ended), owner, standby, seconds=0.0005)
    assert owner.ended == "stopped"


def test_what_the_owner_answered_is_left_out_however_late_the_successor_comes_to_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through TLS a read gives 16 KiB at most, and storage lets the successor wait for more than
    two seconds.

    What the former owner has answered then still lies in the socket.
    """
    receive = SimLink.recv_into
    monkeypatch.setattr(
        SimLink, "recv_into", lambda self, buffer: receive(self, buffer[: 16 << 10])
    )
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        client = publisher(group)

        def burst() -> None:
            # The successor's data plane waits for storage, at the lock for instance; its control
            # thread goes on.
            standby.stalled_until = standby.clock.mono() + 0.2
            for _ in range(4000):
                client.publish(b"channel.0")

        answered_meanwhile(group, owner, standby, burst)
        standby.stop_before = lambda _call, _args: standby.store is not None
        for _ in range(4000):
            if standby.paused:
                break
            standby.spend(3)
            group.hub.flow()
            group.clock.advance(0.0005)
        assert standby.paused
        group.clock.advance(2.6)
        standby.paused = False
        run_until(group, lambda: standby.serving, standby)


def test_what_an_original_server_answered_between_two_owners_is_not_stored_again() -> None:
    """In a mixed group the lock goes to an original server first, which records no epoch.

    Then the successor has it.
    """
    with group_of(replace(MIXED, members=2, channels=1)) as group:
        owner, standby = pair(group)
        client = publisher(group)

        def stall() -> None:
            # Storage lets the successor wait: the original has the lock first.
            standby.stalled_until = standby.clock.mono() + 60

        answered_meanwhile(group, owner, standby, stall)
        # What the original is about to store, as a client published it: it reaches the successor's
        # buffer as well.
        data = b"go %d" % (group._serial + 1)
        message = pb.PubMsg(
            client_id=client.id,
            guid=b"one",
            subject=b"channel.0",
            data=data,
            conn_id=client._info.conn_id,
        )
        client._send(client._subject_of(b"channel.0"), message.SerializeToString(), client._acks)
        group.ledger.once.add(data)
        group.hub.flow()
        assert not standby.epoch
        assert interlude(group, Random(1)) > 0
        standby.stalled_until = 0.0
        run_until(group, lambda: standby.serving, standby, seconds=0.002)


def refused_switchover(group: Group, owner: Node, standby: Node) -> None:
    """A switchover during which NATS takes more than two seconds for what the standby sends on its
    data link.
    """
    owner.switchover()
    since: float | None = None
    for _ in range(2000):
        owner.wake()
        owner.spend(20)
        connection = standby.link._connection if standby.link is not None else None
        sent = list(connection.sent) if connection is not None else []
        if connection is not None:
            connection.sent.clear()
        group.hub.flow()
        if connection is not None:
            connection.sent.extend(sent)
            since = since or group.clock.mono()
        standby.wake()
        standby.spend(60)
        if since is not None and group.clock.mono() - since > 2.4:
            break
        group.clock.advance(0.01)
    assert since is not None
    group.hub.flow()
    end = group.clock.mono() + 6
    run_until(group, lambda: group.clock.mono() > end, owner, standby, seconds=0.02)
    # The operator was refused; the owner serves on, as it should.
    assert owner.serving
    assert buffer_of(standby) is None


def publish_and_wait(group: Group, owner: Node, standby: Node) -> None:
    client = publisher(group)
    acked = group.ledger.acked
    for _ in range(10):
        client.publish(b"channel.0")
    group.hub.flow()
    run_until(group, lambda: group.ledger.acked >= acked + 10, owner, standby)


def test_a_standby_that_could_not_follow_stores_nothing_again_when_the_owner_dies_later() -> None:
    """NATS answers the standby's subscription late: it gives up, and is subscribed all the same."""
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        refused_switchover(group, owner, standby)
        publish_and_wait(group, owner, standby)
        owner.kill()
        group._bury(owner)
        run_until(group, lambda: standby.serving, standby, seconds=0.02)


def test_a_standby_that_could_not_follow_stores_nothing_again_at_the_next_hand_over() -> None:
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        refused_switchover(group, owner, standby)
        publish_and_wait(group, owner, standby)
        answered_meanwhile(group, owner, standby, lambda: None)
        run_until(group, lambda: standby.serving, standby, seconds=0.02)


def test_a_standby_that_could_not_follow_listens_to_nobody() -> None:
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        refused_switchover(group, owner, standby)
        link = standby.link
        assert link is not None
        # It keeps the connection, for another day.
        run_until(group, lambda: link.subscriptions == 0, standby)


def test_a_publish_with_a_very_long_guid_does_not_change_the_status_of_a_stop() -> None:
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        client = publisher(group)

        def long_guid() -> None:
            message = pb.PubMsg(
                client_id=client.id,
                guid=b"g" * 70_000,
                subject=b"channel.0",
                data=b"",
                conn_id=client._info.conn_id,
            )
            # Nobody who is registered has to send it: it is noted before it is looked at.
            message.conn_id = b"nobody"
            client._send(
                client._subject_of(b"channel.0"), message.SerializeToString(), client._acks
            )

        answered_meanwhile(group, owner, standby, long_guid)
        assert owner.why == "status 143"


def test_a_publish_sent_twice_is_not_stored_three_times() -> None:
    """A client that repeats under the same guid, no window: two copies at most."""
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        client = publisher(group)
        before = group.serial()

        def twice() -> None:
            client.publish(b"channel.0")
            sent = [what for what in client._connection.sent if what[0] == "PUB"][-1]
            group.ledger.once.clear()
            client._connection.sent.append(sent)

        answered_meanwhile(group, owner, standby, twice)
        run_until(group, lambda: standby.serving, standby)
        run_until(group, lambda: not standby.product.plane.serving._more, standby)  # type: ignore[union-attr]
        for _ in range(50):
            standby.spend(60)
            group.hub.flow()
            group.clock.advance(0.05)
        places = [
            p
            for key, ps in group.ledger.placed.items()
            if key.startswith(b"%d:" % (before + 1))
            for p in ps
        ]
        assert len(places) <= 2


def test_of_two_switchovers_that_name_different_members_one_is_refused() -> None:
    """Both are asked for at once.

    The store goes to one of the two, and the other operator is told so.
    """
    with group_of(replace(LOCAL, members=3)) as group:
        owner, _ = pair(group)
        others = [node for node in group.nodes if node is not owner]
        done: list[str] = []

        def asked(name: str) -> None:
            async def ask() -> None:
                try:
                    await owner.product.member.switchover(name)
                except RefusedError:
                    return
                done.append(name)

            owner.ask(ask)

        for node in others:
            asked(node.name)
        run_until(group, lambda: bool(owner.ended), *group.nodes, seconds=0.0005)
        assert len(done) == 1


def test_a_recovery_of_more_than_ten_seconds_still_answers_what_was_kept() -> None:
    """The owner has let go at once; the successor's storage is slow."""
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        client = publisher(group)
        answered_meanwhile(group, owner, standby, lambda: None)
        assert buffer_of(standby) is not None
        client.publish(b"channel.0")
        group.hub.flow()
        standby.stop_before = lambda call, _args: call == "listdir" and standby.epoch > 0
        run_until(group, lambda: standby.paused, standby, seconds=0.0005)
        standby.paused = False
        standby.stalled_until = standby.clock.mono() + 11
        run_until(group, lambda: standby.serving, standby, seconds=0.02)
        for _ in range(50):
            standby.spend(60)
            group.hub.flow()
            group.clock.advance(0.01)
        assert standby.product.unbridged == 0
        assert b"channel.0" in standby.told
