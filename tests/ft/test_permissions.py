"""The permissions recipe of ``docs/security.md``: loaded as it stands, every subject tried as every
user.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.config.options import LinkOptions
from ftstan.nats.link import Link
from ftstan.wire import messages
from ftstan.wire.frames import Parser
from tests.compat.players import recordings
from tests.compat.players.replay import Replay
from tests.compat.players.sessions import Outcome
from tests.compat.players.verdicts import judged
from tests.compat.test_node_client import NodeClient
from tests.ft.client import NatsConnection, StanClient
from tests.ft.operator import Operator
from tests.processes import READY, ROOT, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Nats, Server, Stage

pytestmark = [pytest.mark.processes, pytest.mark.node]

PASSWORDS = {"stan": "s", "operator": "o", "client": "c", "publisher": "p", "subscriber": "r"}

_REQUESTS = (
    "_STAN.discover.test-cluster",
    "_STAN.discover.test-cluster.pings",
    "_STAN.close.test-cluster",
)
_SUBSCRIBING = ("_STAN.sub.test-cluster", "_STAN.unsub.test-cluster", "_STAN.subclose.test-cluster")
_GROUP = ("_STAN.ft.test-cluster.test-group", "_FTSTAN.ft.test-cluster.test-group")
_CHANNELS = ("_STAN.pub.test-cluster.orders.new", "_STAN.pub.test-cluster.other")
_PARTITIONS = (
    "_STAN.part.test-cluster",
    "_FTSTAN.part.test-cluster",
    "_FTSTAN.move.test-cluster",
)
_REST = (
    "_FTSTAN.ctl.test-cluster.x",
    *_PARTITIONS,
    "_STAN.acks.x",
    "_INBOX.x",
    "_STAN.ft.other.test-group",
    "_STAN.pub.other.foo",
    "foo",
    "$SYS.REQ.SERVER.PING",
)
SUBJECTS = (*_REQUESTS, *_SUBSCRIBING, *_GROUP, *_CHANNELS, *_REST)

#: What each user may publish to, and subscribe to; everything else of ``SUBJECTS`` is refused.
PUBLISH = {
    "stan": {*_GROUP, "_STAN.discover.test-cluster", "_STAN.close.test-cluster", *_PARTITIONS}
    | {"_STAN.acks.x", "_INBOX.x"},
    "operator": {"_FTSTAN.ft.test-cluster.test-group", "_FTSTAN.ctl.test-cluster.x"},
    "client": {*_REQUESTS, *_SUBSCRIBING, *_CHANNELS, "_INBOX.x"},
    "publisher": {*_REQUESTS, "_STAN.pub.test-cluster.orders.new", "_INBOX.x"},
    "subscriber": {*_REQUESTS, *_SUBSCRIBING, "_INBOX.x"},
}
SUBSCRIBE = {
    "stan": {
        *_REQUESTS,
        *_SUBSCRIBING,
        *_GROUP,
        *_CHANNELS,
        "_FTSTAN.ctl.test-cluster.x",
        *_PARTITIONS,
    }
    | {"_INBOX.x"},
    "operator": {"_INBOX.x"},
    "client": {"_INBOX.x", "_STAN.acks.x"},
    "publisher": {"_INBOX.x", "_STAN.acks.x"},
    "subscriber": {"_INBOX.x"},
}


def recipes() -> list[str]:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    return re.findall(r"```\n(authorization \{\n.*?)```", page, re.DOTALL)


def recipe() -> str:
    exact, _ = recipes()
    return exact


@pytest.fixture
def nats(stage: Stage) -> Nats:
    return stage.nats(settings=recipe())


def login(user: str) -> dict[str, Any]:
    return {"user": user, "password": PASSWORDS[user]}


def as_server() -> tuple[str, ...]:
    return ("-user", "stan", "-pass", PASSWORDS["stan"])


def verdicts(nats: Nats, user: str) -> tuple[set[str], set[str]]:
    """The subjects of ``SUBJECTS`` that ``user`` may publish to, and subscribe to."""
    link = Link([nats.url], name=user, clock=SystemClock(), options=LinkOptions(**login(user)))
    link.connect(30)
    lines = [f"PUB {subject} 0\r\n\r\n" for subject in SUBJECTS]
    lines += [f"SUB {subject} {sid}\r\n" for sid, subject in enumerate(SUBJECTS, 1)]
    link.send(("".join(lines) + "PING\r\n").encode(), 30)
    parser = Parser(link.max_payload)
    refused = []
    buffer = memoryview(bytearray(1 << 16))
    events = parser.feed(link.leftover)
    while not any(event[0] == "PONG" for event in events):
        refused += [event[1].decode() for event in events if event[0] == "-ERR"]
        events = parser.feed(buffer[: link.recv_into(buffer)])
    refused += [event[1].decode() for event in events if event[0] == "-ERR"]
    link.close()
    found = [
        re.search(r'Violation for (Publish|Subscription) to "([^"]+)"', text) for text in refused
    ]
    assert all(found), refused
    no = {(match[1], match[2]) for match in found if match is not None}
    return (
        {subject for subject in SUBJECTS if ("Publish", subject) not in no},
        {subject for subject in SUBJECTS if ("Subscription", subject) not in no},
    )


@pytest.mark.parametrize("user", PASSWORDS)
def test_a_user_may_do_what_its_part_needs_and_nothing_else(nats: Nats, user: str) -> None:
    assert verdicts(nats, user) == (PUBLISH[user], SUBSCRIBE[user])


def test_the_least_keeps_clients_from_speaking_for_the_servers_and_allows_all_else(
    stage: Stage,
) -> None:
    _, least = recipes()
    nats = stage.nats(settings=least)
    members = {subject for subject in SUBJECTS if subject.startswith(("_STAN.ft.", "_STAN.part."))}
    ours = {subject for subject in SUBJECTS if subject.startswith("_FTSTAN.")}
    may = {user: verdicts(nats, user) for user in ("stan", "operator", "client")}
    assert may["stan"] == (set(SUBJECTS), set(SUBJECTS))
    assert may["operator"] == (set(SUBJECTS) - members, set(SUBJECTS))
    # Who hears a question of servers can answer it: with an objection that ends a partition.
    clients = set(SUBJECTS) - members - ours
    assert may["client"] == (clients, clients)
    a, b = pair(stage, nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(b"foo", b"from somebody who names no user")
    said = Operator(nats.url, stage.store).change("switchover", "--user", "operator", "--pass", "o")
    assert said.status == 0, said
    b.wait_for(READY)
    assert list(client.read_to(b"foo", 1).values()) == [b"from somebody who names no user"]
    for server in (a, b):
        assert "Permissions Violation" not in server.text()


def pair(stage: Stage, nats: Nats) -> tuple[Server, Server]:
    a = stage.member("a", "-ns", nats.url, *as_server())
    a.wait_until_active()
    b = stage.member("b", "-ns", nats.url, *as_server())
    b.wait_until_standing_by()
    return a, b


def test_a_group_its_clients_and_its_operator_need_no_more_than_the_recipe(
    stage: Stage, nats: Nats
) -> None:
    a, b = pair(stage, nats)
    node = NodeClient(stage)
    node.connect("c", nats.port, user="client", **{"pass": "c"})
    node.publish("c", "one", channel="orders.new")
    node.subscribe("c", "s", channel="orders.new", all=True)
    node.wait_for("s", [1])
    said = Operator(nats.url, stage.store).change("switchover", "--user", "operator", "--pass", "o")
    assert said.status == 0, said
    b.wait_for(READY)
    node.publish("c", "two", channel="orders.new")
    node.wait_for_news("s", [1, 2])
    node.close("c")
    # A standalone server looks for a rival first; that is in the recipe, too.
    for member in (a, b):
        member.end()
    lone = stage.file_server("lone", "-ns", nats.url, *as_server())
    lone.wait_for(READY)
    for server in (a, b, lone):
        assert "Permissions Violation" not in server.text()
    assert "Violation" not in nats.text()


def test_publish_rights_are_per_channel_and_a_publisher_cannot_subscribe(
    stage: Stage, nats: Nats
) -> None:
    stage.server("server", "-ns", nats.url, *as_server()).wait_for(READY)
    publisher = StanClient(nats.port, "publisher", **login("publisher"))
    publisher.connect()
    publisher.publish(b"orders.new", b"allowed")
    publisher.offer(b"other", b"denied")
    with pytest.raises(
        AssertionError,
        match=r"Permissions Violation for Publish to \"_STAN\.pub\.test-cluster\.other\"",
    ):
        publisher.nats.flush()
    until(
        lambda: 'Subject "_STAN.pub.test-cluster.other"' in nats.text(), "the NATS server to say so"
    )
    reader = StanClient(nats.port, "reader", **login("subscriber"))
    reader.connect()
    got = reader.subscribe(b"other")
    orders = reader.subscribe(b"orders.new")
    reader.nats.pump(lambda: orders.has(1), "the message that was allowed")
    assert got.received == []


def test_a_publisher_cannot_name_another_channel_inside_its_message(
    stage: Stage, nats: Nats
) -> None:
    server = stage.server("server", "-ns", nats.url, *as_server())
    server.wait_for(READY)
    publisher = StanClient(nats.port, "publisher", **login("publisher"))
    publisher.connect()
    message = messages.PubMsg(
        client_id=b"publisher",
        conn_id=publisher.conn_id,
        guid=b"g",
        subject=b"admin.secret",
        data=b"past the rights",
    )
    answer = publisher.nats.request("_STAN.pub.test-cluster.orders.new", messages.encode(message))
    assert answer is not None
    refused = messages.parse(messages.PubAck, answer.payload)
    assert b"published on the subject of another channel" in refused.error
    until(
        lambda: "another channel than that of its subject" in server.text(), "the server to say so"
    )


def test_who_may_subscribe_may_read_every_channel_and_hears_the_deliveries_of_all(
    stage: Stage, nats: Nats
) -> None:
    stage.server("server", "-ns", nats.url, *as_server()).wait_for(READY)
    overheard: list[bytes] = []
    spy = NatsConnection(nats.port, **login("subscriber"))
    spy.listen("_INBOX.>", lambda arrived: overheard.append(arrived.payload))
    spy.flush()
    client = StanClient(nats.port, "client", **login("client"))
    client.connect()
    got = client.subscribe(b"secret")
    client.publish(b"secret", b"for the client alone")
    client.nats.pump(lambda: got.has(1), "the delivery")
    spy.pump(
        lambda: any(b"for the client alone" in payload for payload in overheard),
        "what was overheard",
    )
    reader = StanClient(nats.port, "reader", **login("subscriber"))
    reader.connect()
    every = reader.subscribe(b"secret")
    reader.nats.pump(lambda: every.has(1), "the same channel")


def test_what_one_client_does_to_another_is_limited_by_subjects_and_by_nothing_else(
    stage: Stage, nats: Nats
) -> None:
    """The table of ``docs/security.md``: a client id is a name, and no secret."""
    stage.server("server", "-ns", nats.url, *as_server()).wait_for(READY)
    victim = StanClient(nats.port, "victim", **login("client"))
    victim.connect()
    durable = victim.subscribe(b"orders.new", durable=b"mine")
    victim.nats.flush()
    publisher = NatsConnection(nats.port, **login("publisher"))

    def forged(channel: bytes) -> bytes:
        return messages.encode(
            messages.PubMsg(client_id=b"victim", guid=channel, subject=channel, data=b"forged")
        )

    # In its name, on channels that the publisher may publish on.
    answer = publisher.request("_STAN.pub.test-cluster.orders.new", forged(b"orders.new"))
    assert answer is not None
    assert messages.parse(messages.PubAck, answer.payload).error == b""
    victim.nats.pump(lambda: durable.has(1), "what was published in its name")
    # Its durable: for who may publish to the subject of unsubscribes, and knows the inbox.
    request = messages.encode(
        messages.UnsubscribeRequest(
            client_id=b"victim",
            subject=b"orders.new",
            inbox=durable.ack_inbox,
            durable_name=b"mine",
        )
    )
    publisher.publish("_STAN.unsub.test-cluster", request)
    with pytest.raises(
        AssertionError, match=r"Permissions Violation for Publish to \"_STAN\.unsub\.test-cluster\""
    ):
        publisher.flush()
    subscriber = NatsConnection(nats.port, **login("subscriber"))
    answer = subscriber.request("_STAN.unsub.test-cluster", request)
    assert answer is not None
    assert answer.payload == b""
    # Itself: every client needs the subject, for itself.
    closer = NatsConnection(nats.port, **login("subscriber"))
    answer = closer.request(
        "_STAN.close.test-cluster", messages.encode(messages.CloseRequest(client_id=b"victim"))
    )
    assert answer is not None
    assert answer.payload == b""
    assert victim.ping() != ""


@pytest.mark.parametrize(
    "name",
    ["publish-ok", "durable-lifecycle", "queue-group", "duplicate-client-dead", "heartbeats"],
)
def test_recorded_clients_do_all_that_they_did_with_the_rights_of_a_client(
    tmp_path: Path, name: str
) -> None:
    scenario = recordings.scenarios()[name]
    # Who gives no name is a client: what was recorded did not log in.
    scenario = replace(scenario, nats_conf=f"{recipe()}no_auth_user: client\n")

    async def play() -> Outcome:
        replay = Replay(scenario, tmp_path / "session", flags=as_server())
        await asyncio.wait_for(replay.run(), 300)
        return Outcome(replay.transcript.lines, "", 1, 0.0, replay.slower)

    outcome = asyncio.run(play())
    assert [problem for item in judged(name) if (problem := outcome.problem(item))] == []
    assert "Violation" not in (tmp_path / "session" / "nats.log").read_text()
