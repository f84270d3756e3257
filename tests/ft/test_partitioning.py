"""Partitions as processes: several servers of one cluster id, each with channels of its own."""

from __future__ import annotations

import re
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.wire import messages, partition
from ftstan.wire.partition import Sender
from ftstan.wire.subjects import Subjects
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.load import Load
from tests.ft.test_pair import owner_of
from tests.processes import CLUSTER, HOST, READY, free_ports, until, wait_for_mesh

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes

SUBJECTS = Subjects.for_cluster(CLUSTER)
LISTS = partition.subject(CLUSTER)
SILENCE_S = 1.0
"""How long nothing must come where nothing may."""


def part(stage: Stage, name: str, channels: str, *words: str, **more: Any) -> Server:
    """A server that serves ``channels`` (names between commas) alone. Does not wait."""
    entries = "\n".join(f'        "{entry}": {{}}' for entry in channels.split(",") if entry)
    file = stage.directory / f"{name}.conf"
    file.write_text(
        f"partitioning: true\nstore_limits: {{\n    channels: {{\n{entries}\n    }}\n}}\n"
    )
    return stage.server(name, "-sc", str(file), *words, **more)


def two(stage: Stage, nats: Nats) -> tuple[Server, Server]:
    a = part(stage, "a", "foo,bar.*", "-ns", nats.url)
    b = part(stage, "b", "baz,bar.x.y", "-ns", nats.url)
    for server in (a, b):
        server.wait_for(READY)
    return a, b


def client_of(nats: Nats, name: str = "me") -> StanClient:
    client = StanClient(nats.port, name)
    client.connect()
    return client


class Peer:
    """Another partition, as far as the exchange goes.

    ``asked``: the lists that were sent; ``answers`` to give.
    """

    def __init__(self, nats: Nats, sender: Sender, *answers: bytes | None) -> None:
        self.connection = NatsConnection(nats.port)
        self.sender = sender
        self.answers = list(answers)
        self.asked: list[Arrived] = []
        self.connection.listen(LISTS, self.asked.append)
        self.connection.flush()

    def wait_for_list(self) -> tuple[Sender, list[bytes]]:
        """The next list that a server sends."""
        before = len(self.asked)
        self.connection.pump(lambda: len(self.asked) > before, "a list of channels")
        sender, names = partition.decode(self.asked[-1].payload)
        return sender, partition.decode_names(names)

    def answer(self, offender: bytes | None) -> None:
        """Answer the last list."""
        self.connection.publish(self.asked[-1].reply, partition.reply(self.sender, offender))
        self.connection.flush()

    def ask(self, *names: bytes) -> bytes:
        """Send a list and give the answer, of which there must be one."""
        (payload,) = partition.requests(self.sender, names, 1 << 20)
        answers = self._send(payload)
        self.connection.pump(lambda: answers, "an answer")
        self._listen_on()
        assert len(answers) == 1
        return answers[0].payload

    def is_ignored(self, payload: bytes) -> bool:
        """Whether nobody answers this in the place of a list."""
        answers = self._send(payload)
        self._listen_on()
        return not answers

    def _send(self, payload: bytes) -> list[Arrived]:
        inbox = self.connection.inbox()
        answers = list[Arrived]()
        self.connection.listen(inbox, answers.append)
        self.connection.publish(LISTS, payload, inbox)
        return answers

    def _listen_on(self) -> None:
        end = time.monotonic() + SILENCE_S
        while time.monotonic() < end:
            self.connection.read(0.05)


# ---- one cluster of two
# --------------------------------------------------------------------------------------------


def test_two_partitions_are_one_cluster_to_their_clients(stage: Stage) -> None:
    nats = stage.nats()
    two(stage, nats)
    client = client_of(nats)
    channels = (b"foo", b"bar.a", b"baz", b"bar.x.y")
    for channel in channels:
        client.publish(channel, b"1 " + channel, b"2 " + channel)
    for channel in channels:
        assert client.read_to(channel, 2) == {1: b"1 " + channel, 2: b"2 " + channel}
    assert client.ping() == ""
    assert set(client.acks.values()) == {1}


def test_nobody_answers_for_a_channel_that_nobody_serves(stage: Stage) -> None:
    nats = stage.nats()
    two(stage, nats)
    client = client_of(nats)
    client.offer(b"nobody", b"lost")
    client.offer(b"bar", b"lost")
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"nobody", inbox=b"in", max_in_flight=1, ack_wait_in_secs=30
    )
    assert client.nats.request(SUBJECTS.subscribe, messages.encode(request), SILENCE_S) is None
    assert (client.acks, client.errors) == ({}, {})


@pytest.mark.parametrize(("channels", "offender"), [("bar.>", r"bar\.(>|x\.y)"), ("*.a", r"\*\.a")])
def test_a_third_server_with_a_channel_of_the_others_ends_and_they_go_on(
    stage: Stage, channels: str, offender: str
) -> None:
    nats = stage.nats()
    servers = two(stage, nats)
    third = part(stage, "third", channels, "-ns", nats.url)
    assert third.status() == 1
    fatal = [line for line in third.lines() if line.startswith("[FTL]")]
    assert len(fatal) == 1
    text = (
        rf'\[FTL\] STREAM: Failed to start: channel "{offender}" causes conflict with channels '
        rf'on server "\w{{22}}"'
    )
    assert re.fullmatch(text, fatal[0])
    assert READY not in third.text()
    assert all(server.running for server in servers)


def test_a_partitioned_server_without_channels_does_not_start(stage: Stage) -> None:
    nats = stage.nats()
    server = part(stage, "a", "", "-ns", nats.url)
    assert server.status() == 1
    assert "[FTL] STREAM: Failed to start: stan: no configured channel" in server.lines()


# ---- the exchange
# --------------------------------------------------------------------------------------------------


def test_a_list_is_answered_byte_for_byte_as_by_the_original(stage: Stage) -> None:
    nats = stage.nats()
    peer = Peer(nats, Sender(b"Gv6m3Rpu8U4wfDhDbjJHq5"))
    server = part(stage, "a", "foo,bar.*", "-ns", nats.url)
    sender, names = peer.wait_for_list()
    assert (
        peer.asked[-1].payload
        == partition.requests(Sender(sender.server_id), [b"foo", b"bar.*"], 1 << 20)[0]
    )
    assert (len(sender.server_id), sender.store_id, names) == (22, b"", [b"foo", b"bar.*"])
    server.wait_for(READY)
    head = b"\x08\x04\x12\x16" + sender.server_id
    assert peer.ask(b"baz", b"qux") == head
    assert peer.ask(b"baz", b"bar.>") == head + b"\x1a\x05bar.>"
    assert peer.is_ignored(b"")
    assert peer.is_ignored(b"\x08\x04\x12\x02me\x1a\x03\x09\x00x")
    assert peer.is_ignored(b"\x0f")
    assert peer.is_ignored(partition.requests(Sender(sender.server_id), [b"foo"], 1 << 20)[0])
    server.wait_for("Error processing partitioning request: ")
    assert server.running


def test_an_objection_that_comes_late_still_ends_the_server(stage: Stage) -> None:
    nats = stage.nats()
    peer = Peer(nats, Sender(b"somebody"))
    server = part(stage, "a", "foo", "-store", "file", "-dir", str(stage.store), "-ns", nats.url)
    peer.wait_for_list()
    server.wait_for(READY)
    client = client_of(nats)
    client.publish(b"foo", b"acked")
    peer.answer(b"foo")
    assert server.status() == 1
    text = (
        '[FTL] STREAM: Partitioning error: channel "foo" causes conflict with channels on server '
        '"somebody"'
    )
    assert [line for line in server.lines() if line.startswith("[FTL]")] == [text]
    # It stopped cleanly: what was acked is served by the next one.
    peer.connection.close()
    again = part(stage, "again", "foo", "-store", "file", "-dir", str(stage.store), "-ns", nats.url)
    again.wait_for(READY)
    assert client_of(nats, "reader").read_to(b"foo", 1) == {1: b"acked"}


def test_a_strange_answer_keeps_a_server_from_starting_and_does_not_end_one_that_serves(
    stage: Stage,
) -> None:
    nats = stage.nats()
    peer = Peer(nats, Sender(b"somebody"))
    server = part(stage, "a", "foo", "-ns", nats.url)
    peer.wait_for_list()
    peer.connection.publish(peer.asked[-1].reply, b"\x0f")
    peer.connection.flush()
    server.wait_for("unable to decode partitioning response: ")
    if READY in server.text():
        assert client_of(nats).ping() == ""
    else:
        assert server.status() == 1


@pytest.mark.parametrize("channel", ["shared", "*.b"])
def test_two_servers_with_one_channel_find_out_when_their_nats_servers_are_joined(
    stage: Stage, channel: str
) -> None:
    route_a, route_b = free_ports(2)
    a_nats = stage.nats("nats-a", settings=_cluster(route_a))
    b_nats = stage.nats("nats-b", settings=_cluster(route_b))
    a = part(stage, "a", f"only.a,{channel}", "-ns", a_nats.url)
    b = part(stage, "b", "only.b.too,shared,a.*", "-ns", b_nats.url)
    a.wait_for(READY)
    b.wait_for(READY)
    (stage.directory / "nats-a.conf").write_text(_cluster(route_a, f"nats://{HOST}:{route_b}"))
    a_nats.signal(signal.SIGHUP)
    until(lambda: not (a.running and b.running), "one of the two to end")
    ended = [server for server in (a, b) if not server.running]
    for server in ended:
        assert server.status() == 1
        assert "[FTL] STREAM: Partitioning error: channel " in server.text()


def _cluster(port: int, *routes: str) -> str:
    listed = ", ".join(f'"{route}"' for route in routes)
    return f'cluster {{ name: joined, listen: "{HOST}:{port}", routes: [{listed}] }}\n'


# ---- partitions that come and go
# -----------------------------------------------------------------------------------


def test_a_partition_that_is_added_or_started_anew_drops_no_client(stage: Stage) -> None:
    nats = stage.nats()
    # Heartbeats come often and may be late: this client answers them only while it waits for
    # something.
    beats = ("-hbi", "500ms", "-hbt", "60s")
    a = part(stage, "a", "foo", "-ns", nats.url, *beats)
    a.wait_for(READY)
    client = client_of(nats)
    sub = client.subscribe(b"foo")
    for number, name in enumerate(("b", "b-again"), 1):
        b = part(stage, name, "bar", "-ns", nats.url, *beats)
        b.wait_for(READY)
        assert client.ping() == ""
        # It has told the newcomer who its clients are.
        client.publish(b"bar", name.encode())
        assert client.read_to(b"bar", 1) == {1: name.encode()}
        heard = client.heartbeats
        client.nats.pump(partial(_has_heard, client, heard + 4), "heartbeats")
        client.publish(b"foo", name.encode())
        client.nats.pump(partial(sub.has, number), "the message")
        assert client.ping() == ""
        b.kill()
    assert (a.running, client.errors, sub.sequences) == (True, {}, [1, 2])


def _has_heard(client: StanClient, heartbeats: int) -> bool:
    return client.heartbeats > heartbeats


# ---- with fault tolerance
# ------------------------------------------------------------------------------------------


class Mesh:
    """The example of the reference: partitions ``foo`` and ``bar``, each a pair, and a full mesh of
    NATS servers.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._routes = dict(zip(("foo1", "foo2", "bar1", "bar2"), free_ports(4), strict=True))

    def store(self, group: str) -> Path:
        return self.stage.directory / f"{group}data"

    def member(self, name: str) -> Server:
        group = name[:3]
        others = [port for other, port in self._routes.items() if other != name]
        return part(
            self.stage,
            name,
            f"{group}.>",
            *("-store", "file", "-dir", str(self.store(group)), "-ft_group_name", group),
            *("-cluster", f"nats://{HOST}:{self._routes[name]}"),
            *("-routes", ",".join(f"nats://{HOST}:{port}" for port in others)),
        )

    def pair(self, group: str) -> tuple[Server, Server]:
        active = self.member(f"{group}1")
        active.wait_until_active()
        standby = self.member(f"{group}2")
        standby.wait_until_standing_by()
        return active, standby


def test_each_of_two_partitions_fails_over_while_the_other_serves(stage: Stage) -> None:
    mesh = Mesh(stage)
    foo1, foo2 = mesh.pair("foo")
    bar1, bar2 = mesh.pair("bar")
    wait_for_mesh([foo1, foo2, bar1, bar2])
    # A client of each pair's standby host: its NATS server stays when the active dies.
    client = StanClient(foo2.port, "one")
    other = StanClient(bar2.port, "two")
    for one in (client, other):
        until(partial(_is_known_to_both, one), "the four NATS servers to be one")
    foo = Load(b"foo.orders")
    bar = Load(b"bar.orders")
    foo.join(client)
    bar.join(other)
    foo.run(300)
    bar.run(300)

    foo1.kill()
    bar.run(300)
    bar.settle()
    foo2.wait_until_active()
    foo.read_rest()
    foo.give_up()
    foo.run(300)
    assert (bar1.ft_status, bar2.ft_status, owner_of(mesh.store("bar")).epoch) == (200, 204, 1)

    bar1.kill()
    foo.run(300)
    foo.settle()
    bar2.wait_until_active()
    bar.read_rest()
    bar.give_up()
    bar.run(300)
    bar.settle()
    assert (foo2.running, foo2.ft_status, owner_of(mesh.store("foo")).epoch) == (True, 200, 2)
    assert client.ping() == other.ping() == ""
    reader = StanClient(bar2.port, "reader")
    reader.connect()
    foo.judge(reader.read_all(b"foo.orders"))
    bar.judge(reader.read_all(b"bar.orders"))


def _is_known_to_both(client: StanClient) -> bool:
    """Whether the client is registered with both partitions, as one that connects when the mesh is
    whole.
    """
    answers: list[Arrived] = []
    inbox = client.nats.inbox()
    sid = client.nats.listen(inbox, answers.append)
    client.ask_to_connect()
    client.nats.publish(
        SUBJECTS.pings, messages.encode(messages.Ping(conn_id=client.conn_id)), inbox
    )
    client.nats.read(0.2)
    client.nats.read(0.2)
    client.nats.send(b"UNSUB %d\r\n" % sid)
    return len([a for a in answers if a.payload == b""]) == 2


def test_a_standby_neither_asks_nor_answers_and_asks_when_it_takes_over(stage: Stage) -> None:
    nats = stage.nats()
    peer = Peer(nats, Sender(b"somebody"))
    words = ("-store", "file", "-dir", str(stage.store), "-ft_group_name", "g", "-ns", nats.url)
    a = part(stage, "a", "foo", *words)
    first, _ = peer.wait_for_list()
    a.wait_until_active()
    b = part(stage, "b", "foo", *words)
    b.wait_until_standing_by()
    assert partition.decode(peer.ask(b"bar"))[0] == first
    assert [partition.decode(a.payload)[0] for a in peer.asked] == [first, peer.sender]
    a.kill()
    second, names = peer.wait_for_list()
    b.wait_until_active()
    assert names == [b"foo"]
    assert (len(first.store_id), second.store_id) == (16, first.store_id)
    assert second.server_id != first.server_id


def test_a_former_owner_that_still_answers_does_not_end_its_successor(stage: Stage) -> None:
    nats = stage.nats()
    peer = Peer(nats, Sender(b"somebody"))
    words = ("-store", "file", "-dir", str(stage.store), "-ft_group_name", "g", "-ns", nats.url)
    a = part(stage, "a", "foo", *words)
    former, _ = peer.wait_for_list()
    a.wait_until_active()
    a.kill()
    peer.sender = former
    b = part(stage, "b", "foo", *words)
    peer.wait_for_list()
    peer.answer(b"foo")
    b.wait_until_active()
    # Both directions: the successor does not object to who owned its store before.
    assert partition.decode(peer.ask(b"foo"))[1] == b""
    assert client_of(nats).ping() == ""
    assert b.running


def test_a_conflict_at_a_takeover_ends_the_one_that_takes_over(stage: Stage) -> None:
    nats = stage.nats()
    words = ("-store", "file", "-dir", str(stage.store), "-ft_group_name", "g", "-ns", nats.url)
    a = part(stage, "a", "foo", *words)
    a.wait_until_active()
    b = part(stage, "b", "foo,bar", *words)
    b.wait_until_standing_by()
    other = part(stage, "other", "bar", "-ns", nats.url)
    other.wait_for(READY)
    a.kill()
    assert b.status() == 1
    assert '[FTL] STREAM: Failed to start: channel "bar" causes conflict' in b.text()
    assert other.running


def test_a_stop_of_one_partition_under_load_leaves_no_publish_without_an_answer(
    stage: Stage,
) -> None:
    nats = stage.nats()
    channels = (b"orders", b"o.zed", b"o.a")
    words = ("-store", "file", "-dir", str(stage.store), "-ft_group_name", "g", "-ns", nats.url)
    # Two entries overlap: each publish on o.zed comes twice to whoever listens.
    listed = "orders,o.*,*.zed"
    active = part(stage, "a", listed, *words)
    active.wait_until_active()
    standby = part(stage, "b", listed, *words)
    standby.wait_until_standing_by()
    other = part(stage, "other", "elsewhere", "-ns", nats.url)
    other.wait_for(READY)
    client = client_of(nats)
    loads = [Load(channel) for channel in channels]
    publishers = [client_of(nats, f"publisher-{number}") for number in range(len(channels))]
    for load, publisher in zip(loads, publishers, strict=True):
        load.join(publisher)
        load.run(200)
    active.signal(signal.SIGTERM)
    for load in loads * 3:
        load.run(300)
    client.publish(b"elsewhere", b"not disturbed")
    assert active.status() == 143
    standby.wait_until_active()
    for load in loads:
        load.settle()
        assert load.unanswered == 0
    reader = client_of(nats, "reader")
    for load, channel in zip(loads, channels, strict=True):
        load.judge(reader.read_all(channel))


def test_the_lines_of_a_start_are_those_of_the_original_with_the_list_behind_the_limits(
    stage: Stage,
) -> None:
    nats = stage.nats()
    file = stage.directory / "s.conf"
    file.write_text(
        'partitioning: true\nstore_limits { channels { foo { max_msgs: 5 }, "bar.>" { } } }\n'
    )
    server = stage.server("a", "-sc", str(file), "-ns", nats.url)
    server.wait_for(READY)
    lines = [line.removeprefix("[INF] STREAM: ") for line in server.lines()]
    assert lines[lines.index("Recovering the state...") :] == [
        "Recovering the state...",
        "No recovered state",
        "Message store is MEMORY",
        "---------- Store Limits ----------",
        "Channels:                  100 *",
        "--------- Channels Limits --------",
        "  Subscriptions:          1000 *",
        "  Messages     :       1000000 *",
        "  Bytes        :     976.56 MB *",
        "  Age          :     unlimited *",
        "  Inactivity   :     unlimited *",
        "-------- List of Channels --------",
        "bar.>",
        "foo",
        " |-> Messages                    5",
        "----------------------------------",
        "Streaming Server is ready",
    ]


def test_debug_lines_name_the_root_of_the_publish_subjects(stage: Stage) -> None:
    nats = stage.nats()
    server = part(stage, "a", "foo,bar", "-SD", "-ns", nats.url)
    server.wait_for(READY)
    said = [line for line in server.lines() if "Publish subject" in line]
    assert said == ["[DBG] STREAM: Publish subjects root:      _STAN.pub.test-cluster"]
