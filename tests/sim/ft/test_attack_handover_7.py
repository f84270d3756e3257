"""Attacks on planned hand-overs: what is asked between two of the owner's UNSUB lines, and links
that break while the successor recovers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.admin.protocol import Verb
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
