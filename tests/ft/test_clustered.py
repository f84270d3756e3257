"""A replicated cluster of three processes: nothing that was acknowledged is lost, whatever is
killed, stopped, emptied or deleted; and who does not lead does not acknowledge.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.cluster.beats import decode_report
from ftstan.cluster.names import question_subject, stream_name
from ftstan.config.options import LinkOptions
from ftstan.nats.jetstream import JetStream
from ftstan.nats.link import Link
from tests.ft.client import NatsConnection, StanClient
from tests.ft.cluster import NODES, Cluster
from tests.ft.load import CHANNEL, Load
from tests.lateness import LateError
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER, HOST, READY, until

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes

FENCED = 75


def api(cluster: Cluster, node: str) -> JetStream:
    link = Link(
        [f"nats://{HOST}:{cluster.port(node)}"],
        name="operator",
        options=LinkOptions(**cluster.login(node)),
        clock=SystemClock(),
    )
    js = JetStream(link, SystemClock())
    js.connect(5.0)
    return js


def make_again(cluster: Cluster, node: str, config: dict[str, Any]) -> None:
    """Make the stream with these settings, as soon as JetStream can."""
    js = api(cluster, node)

    def made() -> bool:
        with contextlib.suppress(NatsError):
            js.api(f"STREAM.CREATE.{stream_name(CLUSTER)}", config, 5.0)
            return True
        return False

    until(made, "the stream to be made again", 60.0)


def contents(cluster: Cluster, node: str) -> list[tuple[int, int, bytes]]:
    """What a node's datastore holds, read by the original's rules."""
    channel = read_store(cluster.store(node)).channels[CHANNEL]
    return [(m.sequence, m.timestamp, m.data) for m in channel.messages.values()]


_READ_S = 90.0
_AGAIN_S = 0.3


def client_of(cluster: Cluster, node: str, name: str) -> StanClient:
    client = StanClient(cluster.port(node), name)
    client.connect()
    return client


def read_all(cluster: Cluster, node: str, name: str = "reader") -> dict[int, bytes]:
    """All messages, read through ``node``.

    On a machine without time for its heartbeats another node may lead before all is read, and the
    former leader has ended: as its unit would, this starts it again. One that is about to end may
    seem to lead for a moment more, while its NATS server is gone.
    """
    end = time.monotonic() + _READ_S
    while time.monotonic() < end:
        with contextlib.suppress(NatsError):
            return client_of(cluster, node, name).read_all(CHANNEL)
        time.sleep(_AGAIN_S)
        cluster.start_ended()
        node = cluster.leader()
        name += "-"
    raise LateError("no node leads for long enough to be read")


def test_a_killed_leader_is_replaced_and_nothing_acked_is_lost(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    load = Load()
    survivor = cluster.others(leader)[0]
    load.join(client_of(cluster, survivor, "one"))
    load.run(2000)
    cluster.kill(leader)
    load.read_rest()
    load.give_up()
    second = cluster.leader(but=leader)
    assert second != leader
    load.join(client_of(cluster, survivor, "two"))
    load.run(2000)
    load.settle()
    cluster.start(leader)
    load.judge_at_least_once(read_all(cluster, survivor))
    cluster.wait_until_level()
    cluster.stop()
    copies = [contents(cluster, node) for node in NODES]
    assert copies[0] == copies[1] == copies[2]


def test_a_leader_that_was_stopped_through_a_takeover_acknowledges_nothing(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    survivor = cluster.others(leader)[0]
    client = client_of(cluster, survivor, "one")
    client.publish(CHANNEL, b"before")
    cluster.stand_still(leader)
    lost = client.offer(CHANNEL, b"to the one that stands still")
    cluster.leader(but=leader)
    client.publish(CHANNEL, b"after")
    cluster.servers[leader].signal(signal.SIGCONT)
    assert cluster.servers[leader].status() == FENCED
    assert "another node leads this cluster now" in cluster.servers[leader].text()
    client.nats.read(1.0)
    assert lost[0] not in client.acks
    assert list(read_all(cluster, survivor).values())[:2] == [b"before", b"after"]


def test_all_three_killed_and_started_again_have_everything_that_was_acked(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    load = Load()
    load.join(client_of(cluster, leader, "one"))
    load.run(3000)
    cluster.kill(*NODES)
    load.read_last_acks()
    cluster.start()
    leader = cluster.leader()
    load.judge_at_least_once(read_all(cluster, leader))


def test_a_node_whose_disk_was_emptied_is_filled_from_the_log(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    client = client_of(cluster, leader, "one")
    client.publish(CHANNEL, *(b"%d" % n for n in range(500)))
    # Not the one whose NATS server leads the stream: without it nobody can append for a while, and
    # on a busy machine another node leads then.
    leads = stream_leader(cluster, leader)
    emptied = next(node for node in cluster.others(leader) if not leads.endswith(f"-{node}"))
    cluster.kill(emptied)
    shutil.rmtree(stage.directory / emptied)
    client.publish(CHANNEL, *(b"%d" % n for n in range(500, 700)))
    cluster.start(emptied)
    cluster.servers[emptied].wait_for("Cluster Log Path")
    client.publish(CHANNEL, *(b"%d" % n for n in range(700, 800)))
    cluster.wait_until_level()
    cluster.stop()
    copies = [contents(cluster, node) for node in NODES]
    assert [data for _, _, data in copies[0]] == [b"%d" % n for n in range(800)]
    assert copies[0] == copies[1] == copies[2]


def stream_leader(cluster: Cluster, node: str) -> str:
    """The NATS server that leads the stream, by its name."""
    js = api(cluster, node)
    leaders: list[str] = []

    def has_leader() -> bool:
        # None is named while one is elected.
        found = js.api(f"STREAM.INFO.{stream_name(CLUSTER)}", {}, 5.0)
        leaders.append(found["cluster"].get("leader", ""))
        return bool(leaders[-1])

    until(has_leader, "a leader of the stream")
    return leaders[-1]


def is_level(cluster: Cluster, node: str) -> bool:
    """Whether JetStream's copies of the log are all there."""
    told = api(cluster, node).api(f"STREAM.INFO.{stream_name(CLUSTER)}", {}, 5.0)["cluster"]
    return all(copy["current"] and not copy.get("lag") for copy in told["replicas"])


def first_entry(cluster: Cluster, node: str) -> int:
    told = api(cluster, node).api(f"STREAM.INFO.{stream_name(CLUSTER)}", {}, 5.0)
    return int(told["state"]["first_seq"])


def test_a_node_that_was_away_or_emptied_copies_the_store_where_the_log_was_purged(
    stage: Stage,
) -> None:
    cluster = Cluster(stage, "-cluster_log_max_bytes", "1")
    cluster.start()
    leader = cluster.leader()
    # Not the one that leads the stream: this is no test of an election.
    away, other = sorted(
        cluster.others(leader), key=lambda node: stream_leader(cluster, leader).endswith(node)
    )
    client = client_of(cluster, leader, "one")
    durable = client.subscribe(CHANNEL, durable=b"d", acks=False, ack_wait=30)
    client.publish(CHANNEL, b"0")
    cluster.wait_until_level()
    cluster.kill(away)
    # One entry of the log for each: enough to be worth a purge.
    for number in range(1, 250):
        client.publish(CHANNEL, b"%d" % number)
    client.nats.pump(lambda: durable.has(200), "the messages")
    until(lambda: first_entry(cluster, leader) > 100, "a purge", 60.0)
    cluster.start(away)
    cluster.servers[away].wait_for(f"the store of node {other} was copied up to entry")
    cluster.wait_until_level()
    cluster.kill(away)
    shutil.rmtree(stage.directory / away)
    cluster.start(away)
    cluster.servers[away].wait_for("was copied up to entry")
    client.publish(CHANNEL, b"250")
    cluster.wait_until_level()
    # JetStream's copy of the emptied node comes back on its own.
    until(lambda: is_level(cluster, leader), "all copies of the log", 60.0)
    cluster.kill(leader)
    second = cluster.leader(but=leader)
    read = client_of(cluster, second, "two").read_all(CHANNEL)
    # The reader's own mark comes last.
    assert dict(list(read.items())[:-1]) == {number + 1: b"%d" % number for number in range(251)}
    cluster.start(leader)
    cluster.wait_until_level()
    cluster.stop()
    copies = [contents(cluster, node) for node in NODES]
    assert copies[0] == copies[1] == copies[2]


def test_without_a_majority_nothing_is_acked_and_service_resumes_with_it(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    client = client_of(cluster, leader, "one")
    client.publish(CHANNEL, b"before")
    others = cluster.others(leader)
    cluster.kill(*others)
    waiting = client.offer(CHANNEL, b"without a majority")
    client.nats.read(6.0)
    assert not client.errors
    assert waiting[0] not in client.acks
    cluster.start(others[0])
    client.nats.pump(lambda: waiting[0] in client.acks, "the ack")
    assert set(read_all(cluster, leader).values()) >= {b"before", b"without a majority"}


def test_a_stream_that_somebody_deleted_is_never_replaced_by_an_empty_one(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    client = client_of(cluster, leader, "one")
    client.publish(CHANNEL, b"acked")
    # Clients cannot: the log is in an account of its own.
    stranger = NatsConnection(cluster.port(leader))
    answers: list[bytes] = []
    inbox = stranger.inbox()
    stranger.listen(inbox, lambda arrived: answers.append(arrived.payload))
    stranger.publish(f"$JS.API.STREAM.DELETE.{stream_name(CLUSTER)}", b"{}", inbox)
    stranger.publish(question_subject(CLUSTER), b"", inbox)
    stranger.read(1.0)
    assert not any(decode_report(answer) for answer in answers)
    client.publish(CHANNEL, b"acked, too")
    js = api(cluster, leader)
    found = js.api(f"STREAM.INFO.{stream_name(CLUSTER)}", {}, 5.0)["config"]
    js.api(f"STREAM.DELETE.{stream_name(CLUSTER)}", {}, 5.0)
    lost = client.offer(CHANNEL, b"into nothing")
    assert cluster.servers[leader].status() == FENCED
    assert "somebody deleted it" in cluster.servers[leader].text()
    assert lost[0] not in client.acks
    # The same settings again: the old leader's place in it is taken by nobody, and nobody serves.
    other = cluster.others(leader)[0]
    make_again(cluster, other, found)
    cluster.start(leader)
    until(
        lambda: any("lost entries" in s.text() for s in cluster.servers.values()), "a refusal", 60.0
    )
    leaders = [
        n for n, s in cluster.servers.items() if n != leader and "finished leader" in s.text()
    ]
    assert leaders == []


def test_a_datastore_that_was_not_clustered_is_refused(stage: Stage) -> None:
    cluster = Cluster(stage)
    alone = stage.server("alone", "-store", "file", "-dir", str(cluster.store("n1")))
    alone.wait_for(READY)
    client = StanClient(alone.port, "one")
    client.connect()
    client.publish(CHANNEL, b"before")
    cluster.servers["n1"] = alone
    cluster.stop("n1")
    cluster.start("n1")
    assert cluster.servers["n1"].status() == 1
    refusal = "stan: cannot restart server in clustered mode if it was not previously clustered"
    assert f"STREAM: Failed to start: {refusal}" in cluster.servers["n1"].text()
    shutil.rmtree(cluster.store("n1"))


def test_a_node_whose_log_directory_is_empty_is_refused(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    client_of(cluster, leader, "one").publish(CHANNEL, b"acked")
    follower = cluster.others(leader)[0]
    cluster.wait_until_level()
    cluster.kill(follower)
    shutil.rmtree(cluster.log(follower))
    cluster.start(follower)
    assert cluster.servers[follower].status() == 1
    text = f'streaming state was recovered but cluster log path "{cluster.log(follower)}" is empty'
    assert text in cluster.servers[follower].text()


def test_messages_as_large_as_nats_takes_survive_a_leader(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    survivor = cluster.others(leader)[0]
    client = client_of(cluster, survivor, "one")
    large = [b"%d" % n + b"x" * ((1 << 20) - 400) for n in range(5)]
    client.publish(CHANNEL, *large)
    cluster.kill(leader)
    cluster.leader(but=leader)
    assert list(read_all(cluster, survivor).values())[:5] == large


def test_a_clean_stop_of_the_leader_hands_over_durables_and_what_they_have_not_acked(
    stage: Stage,
) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    survivor = cluster.others(leader)[0]
    client = client_of(cluster, survivor, "one")
    durable = client.subscribe(CHANNEL, durable=b"d", acks=False, ack_wait=1)
    client.publish(CHANNEL, b"1", b"2", b"3")
    client.nats.pump(lambda: durable.has(3), "the messages")
    client.ack(durable, 1, 2)
    client.settle_acks()
    cluster.stop(leader)
    cluster.leader(but=leader)
    before = len(durable.received)
    client.nats.pump(lambda: len(durable.received) > before, "a redelivery")
    assert {m.sequence for m in durable.received[before:]} == {3}
    assert client.ping() == ""
