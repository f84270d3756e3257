"""A planned hand-over between real processes: no publish goes without an answer, and none is stored
twice.
"""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.handover import Leaving, Message, Subscribed, Took, decode, encode
from ftstan.ft.subjects import Released, encode_released, group_subject
from ftstan.node.context import EXIT_FENCED
from ftstan.wire.subjects import Subjects
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.operator import Operator
from tests.ft.test_pair import owner_of
from tests.processes import CLUSTER, GROUP, until

if TYPE_CHECKING:
    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes

PUBLISHES = Subjects.for_cluster(CLUSTER).publish_all


class Observer:
    """Hears and says what members say to each other."""

    def __init__(self, nats: Nats) -> None:
        self.connection = NatsConnection(nats.port)
        self.heard: list[Message] = []
        self.connection.listen(group_subject(CLUSTER, GROUP), self._note)
        self.connection.flush()

    def _note(self, arrived: Arrived) -> None:
        message = decode(arrived.payload)
        if message is not None:
            self.heard.append(message)

    def say(self, payload: bytes) -> None:
        self.connection.publish(group_subject(CLUSTER, GROUP), payload)
        self.connection.flush()

    def wait_for(self, kind: type[Message]) -> Message:
        self.connection.pump(
            lambda: any(isinstance(m, kind) for m in self.heard), f"a message {kind.__name__}"
        )
        return next(m for m in self.heard if isinstance(m, kind))


def test_a_stop_under_load_leaves_no_publish_without_an_answer_and_stores_none_twice(
    stage: Stage,
) -> None:
    nats = stage.nats()
    active, standby = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    load = Load()
    load.join(client)
    for number in range(4):
        load.run(500)
        active.signal(signal.SIGTERM)
        load.run(3000)
        assert active.status() == 143
        standby.wait_until_active()
        active = standby
        standby = stage.member(f"n{number}", "-ns", nats.url)
        standby.wait_until_standing_by()
    load.settle()
    client.nats.flush()
    assert load.unanswered == 0
    reader = StanClient(nats.port, "reader")
    reader.connect()
    load.judge(reader.read_all(CHANNEL))


def test_the_owner_names_its_successor_and_every_publish_that_it_took_meanwhile(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    observer = Observer(nats)
    owner = owner_of(stage.store)
    a.signal(signal.SIGTERM)
    took = observer.wait_for(Took)
    assert isinstance(took, Took)
    assert observer.heard[0] == Leaving(owner.server_id, owner.epoch, owner.store_id, PUBLISHES)
    # It is asked for until somebody answers: a standby that has just started may not have heard it.
    answers = [message for message in observer.heard if not isinstance(message, Leaving)]
    name = f"{socket.gethostname()}:{b.monitor}"
    assert answers[0] == Subscribed(
        b.serverz()["server_id"], owner.epoch, owner.store_id, name=name
    )
    assert (took.successor, took.part, took.parts) == (b.serverz()["server_id"], 0, 1)
    b.wait_until_active()


def test_a_successor_that_is_not_told_what_was_answered_stores_nothing_of_what_it_kept(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"one")
    observer = Observer(nats)
    owner = owner_of(stage.store)
    # As an owner that dies in the middle of a hand-over would leave it: announced, and then
    # silence.
    observer.say(encode(Leaving(owner.server_id, owner.epoch, owner.store_id, PUBLISHES)))
    observer.wait_for(Subscribed)
    client.publish(CHANNEL, b"two")
    a.kill()
    b.wait_until_active()
    client.publish(CHANNEL, b"three")
    assert client.read_to(CHANNEL, 3) == {1: b"one", 2: b"two", 3: b"three"}
    assert set(client.acks.values()) == {1}
    until(
        lambda: "1 publishes that arrived during a hand-over are not answered" in b.text(),
        "the count of them",
    )


def test_a_hand_over_that_another_owner_came_between_is_not_used(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    observer = Observer(nats)
    owner = owner_of(stage.store)
    stale = Leaving(owner.server_id, owner.epoch + 7, owner.store_id, PUBLISHES)
    observer.say(encode(stale))
    observer.wait_for(Subscribed)
    client.publish(CHANNEL, b"one")
    took = Took(
        owner.server_id, owner.epoch + 7, owner.store_id, b.serverz()["server_id"], 0, 1, ()
    )
    observer.say(encode(took))
    a.kill()
    b.wait_until_active()
    client.publish(CHANNEL, b"two")
    assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}
    assert set(client.acks.values()) == {1}


def test_a_member_that_was_not_named_holds_back_until_the_named_one_serves(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    c = stage.member("c", "-ns", nats.url)
    c.wait_until_standing_by()
    observer = Observer(nats)
    owner = owner_of(stage.store)
    named = c.serverz()["server_id"]
    observer.say(encode(Leaving(owner.server_id, owner.epoch, owner.store_id, PUBLISHES, named)))
    observer.say(encode(Took(owner.server_id, owner.epoch, owner.store_id, named, 0, 1, ())))
    a.kill()
    observer.say(encode_released(Released(owner.server_id, owner.epoch, owner.store_id)))
    c.wait_until_active()
    assert b.ft_status == 204
    # It comes back as soon as the named one is gone as well.
    c.kill()
    b.wait_until_active()


def test_garbage_on_the_groups_subject_changes_nothing(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    observer = Observer(nats)
    owner = owner_of(stage.store)
    foreign = Leaving("somebody", owner.epoch, bytes(16), PUBLISHES)
    for payload in (
        b"",
        b"{}",
        b'{"type":"leaving"}',
        b'{"type":"took","keys":7}',
        b"\xff" * 100,
        encode(foreign),
    ):
        observer.say(payload)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"one")
    assert not [m for m in observer.heard if isinstance(m, Subscribed)]
    assert (a.ft_status, b.ft_status) == (200, 204)
    assert "rror" not in a.text() + b.text()


def test_a_successor_says_how_long_ago_the_owner_was_asked_to_hand_over(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)

    def age(server: Server) -> float | None:
        told: float | None = json.loads(server.get("/streaming/ftz")[1])["handover_age"]
        return told

    assert (age(a), age(b)) == (None, None)
    began = time.monotonic()
    said = Operator(nats.url, stage.store).change("switchover")
    assert said.status == 0, said
    told = age(b)
    assert told is not None
    # Behind the start of the command, and no more once it is old.
    assert 0 < told < time.monotonic() - began
    # One that took over from a dead owner followed no request.
    assert a.status() == EXIT_FENCED
    c = stage.member("c", "-ns", nats.url)
    c.wait_until_standing_by()
    b.kill()
    c.wait_until_active()
    assert age(c) is None
