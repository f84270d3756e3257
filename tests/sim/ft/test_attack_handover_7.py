"""Attacks on planned hand-overs: what is asked between two of the owner's UNSUB lines, and links
that break while the successor recovers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.admin.protocol import Verb
from ftstan.base import log
from ftstan.base.errors import NatsError
from ftstan.node.pipeline import Serving
from ftstan.wire.pb import stan_pb2 as pb
from tests.sim.ft.shapes import LOCAL
from tests.sim.ft.test_attack_handover import Publisher, pair, publisher, run
from tests.sim.ft.test_named import group_of, move
from tests.sim.nats import Packet

if TYPE_CHECKING:
    from tests.sim.ft.group import Group
    from tests.sim.ft.nodes import Node
    from tests.sim.nats import Connection

pytestmark = pytest.mark.usefixtures("quiet")

PAIR = replace(LOCAL, members=2)


def is_gone(node: Node) -> bool:
    serving = node.product.plane.serving
    return serving is None or serving._has_left


def kept(group: Group, owner: Node, standby: Node, client: Publisher) -> list[bytes]:
    """Let the owner leave; returns publishes that only the successor has, which recovers."""
    owner.switchover()
    standby.stop_before = lambda call, _args: call == "listdir" and standby.epoch > owner.epoch
    assert move(group, lambda: is_gone(owner), steps=400)
    guids = [client.publish() for _ in range(3)]
    assert move(group, lambda: standby.paused, steps=400)
    return guids


def test_whatever_unsub_line_a_publish_and_a_close_come_between_the_publish_is_stored() -> None:
    """Each of several clients publishes and closes at once, each behind another UNSUB line."""
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        clients = []
        for i in range(24):
            client = Publisher(group, f"leaver-{i}")
            client.connect()
            clients.append(client)
        assert move(group, lambda: all(client.ready for client in clients), steps=50)
        waiting = list(clients)
        process = group.hub._process

        def step(connection: Connection, verb: str, what: Any) -> None:
            process(connection, verb, what)
            link = owner.link
            if verb == "UNSUB" and link is not None and connection is link._connection and waiting:
                client = waiting.pop()
                client.publish()
                group.ledger.clients.leaving.add(client.name.encode())
                request = pb.CloseRequest(client_id=client.name.encode())
                close = Packet(closes, f"{client.name}.gone", request.SerializeToString())
                client._connection.sent.append(("PUB", close))
                while client._connection.sent:
                    process(client._connection, *client._connection.sent.popleft())

        serving = owner.product.plane.serving
        assert serving is not None
        closes = serving.broker.subjects.close
        group.hub._process = step  # type: ignore[method-assign]
        owner.switchover()
        assert move(group, lambda: standby.serving)
        run(group, 1)
        assert len(waiting) < len(clients) - 4
        sent = [client for client in clients if client not in waiting]
        assert [client.name for client in sent if client.open] == []
        assert [client.errors for client in sent if client.errors] == []


def test_publishes_that_were_kept_and_go_with_the_link_are_counted() -> None:
    """The successor's link breaks while it recovers: nobody has answered, and the operator is
    told.
    """
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        client = publisher(group)
        guids = kept(group, owner, standby, client)
        group.hub.cut(standby.member)
        group.hub.heal(standby.member)
        standby.paused = False
        assert move(group, lambda: standby.serving)
        run(group, 1)
        assert set(guids) <= set(client.open)
        assert standby.product.unanswered >= len(guids)


@pytest.mark.parametrize(("cause", "mixed"), [("word", False), ("word", True), ("storage", False)])
def test_an_owner_whose_last_word_is_lost_makes_files_tidy_for_an_original_only(
    monkeypatch: pytest.MonkeyPatch, cause: str, *, mixed: bool
) -> None:
    """Nobody is served from then on, and its successor waits for the store."""
    tidied: list[bool] = []
    told: list[str] = []
    stop = Serving.stop

    def stopped(self: Serving, *, tidy: bool = True) -> None:
        tidied.append(tidy)
        stop(self, tidy=tidy)

    async def lost(_payload: bytes) -> None:
        raise NatsError("nats: connection closed")

    monkeypatch.setattr(Serving, "stop", stopped)
    monkeypatch.setattr(log.stream, "warning", lambda text, **_: told.append(text))
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        client = publisher(group)
        if mixed:
            group.switch_mixed(owner, on=True)
            run(group, 1)
        product = owner.product.group
        assert product is not None
        owner.switchover()
        assert move(group, lambda: bool(owner.successor), steps=400)
        if cause == "word":
            monkeypatch.setattr(product._handover, "_send", lost)
            why = "nats: connection closed"
        else:
            client.publish()
            owner.stalled_until = owner.clock.mono() + 3
            why = "what had come was not stored and answered within 2 s"
        assert move(group, lambda: bool(owner.ended))
        assert tidied == [mixed]
        assert f"ft: the hand-over is not seamless, publishers have to repeat: {why}" in told
        assert move(group, lambda: standby.serving)


@pytest.mark.parametrize("cut", [True, False])
def test_an_owner_that_serves_nobody_prepares_nothing_before_it_stops(
    monkeypatch: pytest.MonkeyPatch, *, cut: bool
) -> None:
    prepared: list[Serving] = []

    def prepare(self: Serving) -> bool:
        prepared.append(self)
        return False

    monkeypatch.setattr(Serving, "prepare_stop", prepare)
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        # Nobody follows.
        standby.kill()
        group._bury(standby)
        group._start_at[standby.member] = group.clock.mono() + 60
        if cut:
            group.hub.cut(owner.member)
            assert move(group, lambda: not owner.serving)
        owner.stopping = True
        assert move(group, lambda: bool(owner.ended))
        assert bool(prepared) is not cut


def test_a_purge_right_behind_the_owners_last_answer_is_found_by_its_successor() -> None:
    with group_of(PAIR) as group:
        owner, standby = pair(group)
        client = publisher(group)
        for _ in range(5):
            client.publish()
        run(group, 1)
        asked: list[str] = []

        def purge() -> None:
            if not asked and is_gone(owner) and owner.product.plane.serving is not None:
                asked.append("purge")
                owner.administer(Verb.PURGE, "channel.0", keep=0, up_to=0)

        owner.switchover()
        assert move(group, lambda: standby.serving, also=purge)
        assert asked
