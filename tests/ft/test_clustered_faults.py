"""Faults of single nodes of a replicated cluster, and of its log: damage, a full disk, processes
that stand still, a stream that somebody purged or edited, another cluster with the same id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from ftstan.cluster.names import stream_name
from tests.ft.client import StanClient
from tests.ft.cluster import LEADS, NODES, Cluster
from tests.ft.load import CHANNEL
from tests.ft.test_clustered import FENCED, api, client_of, contents, read_all
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER, HOST, children, free_ports, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Stage

pytestmark = pytest.mark.processes

#: A datastore that is full soon.
SMALL = 'mount -t tmpfs -o size=12M tmpfs "$0" && shift 0 && exec "$@"'


def rot(store: Path, data: bytes) -> None:
    """Change bytes of one message on the disk, as a server does not that has the file open."""
    for file in (store / CHANNEL.decode()).glob("msgs.*.dat"):
        at = file.read_bytes().find(data)
        if at >= 0:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(b"rott")
            return
    raise AssertionError(f"no file holds {data!r}")


def test_a_leader_that_meets_damage_ends_and_copies_the_channel_from_another_node(
    stage: Stage,
) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    survivor = cluster.others(leader)[0]
    data = [b"message %d of all" % n for n in range(300)]
    client_of(cluster, survivor, "one").publish(CHANNEL, *data)
    cluster.wait_until_level()
    rot(cluster.store(leader), b"message 150 of")
    # The reader passes over nothing: another node leads, and has it all.
    reader = client_of(cluster, survivor, "two")
    subscription = reader.subscribe(CHANNEL)
    assert cluster.servers[leader].status() == FENCED
    assert 'channel "orders" is damaged on this node' in cluster.servers[leader].text()
    cluster.start(leader)
    cluster.leader(but=leader)
    reader.nats.pump(lambda: subscription.has(300), "all messages")
    assert [message.data for message in subscription.received[:300]] == data
    cluster.servers[leader].wait_for("was copied up to entry")
    cluster.wait_until_level()
    cluster.stop()
    copies = [contents(cluster, node) for node in NODES]
    assert copies[0] == copies[1] == copies[2]


def test_a_follower_whose_disk_is_full_ends_and_nobody_else(stage: Stage) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts a file system")
    cluster = Cluster(stage)
    for node in NODES:
        cluster.store(node).mkdir(parents=True)
    cluster.wraps["n3"] = ["unshare", "-m", "sh", "-c", SMALL, str(cluster.store("n3"))]
    # Who leads first is n1 or n2: the third comes when they have founded nothing without it.
    cluster.start()
    leader = cluster.leader()
    if leader == "n3":
        cluster.stop("n3")
        leader = cluster.leader(but="n3")
        cluster.start("n3")
    cluster.wait_until_level()
    client = client_of(cluster, leader, "one")
    data = [b"%d" % n + b"x" * (200 << 10) for n in range(100)]
    client.publish(CHANNEL, *data)
    assert cluster.servers["n3"].status() == FENCED
    assert "the local store refused what the log has" in cluster.servers["n3"].text()
    client.publish(CHANNEL, b"behind it")
    # With room it begins anew, from the log.
    del cluster.wraps["n3"]
    cluster.start("n3")
    cluster.wait_until_level()
    cluster.stop()
    copies = [contents(cluster, node) for node in NODES]
    assert [held for _, _, held in copies[0]] == [*data, b"behind it"]
    assert copies[0] == copies[1] == copies[2]


@pytest.mark.parametrize("who", ["child", "both"])
def test_a_leader_whose_nats_server_stands_still_is_replaced_or_goes_on_with_another_child(
    stage: Stage, who: str
) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    survivor = cluster.others(leader)[0]
    client = client_of(cluster, survivor, "one")
    client.publish(CHANNEL, b"before")
    server = cluster.servers[leader]
    stopped = children(server.pid)
    if who == "both":
        cluster.stand_still(leader)
    for child in stopped:
        os.kill(child, signal.SIGSTOP)
    if who == "both":
        cluster.leader(but=leader)

    def is_acked() -> bool:
        # What waited in a route to the server that stood still goes with it.
        (waiting,) = client.offer(CHANNEL, b"after")
        client.nats.read(2.0)
        return waiting in client.acks

    until(is_acked, "an ack", 60.0)
    for child in stopped:
        # A server ends a child that does not answer, and starts another one.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
    if who == "both":
        server.signal(signal.SIGCONT)
    if any(LEADS in cluster.servers[other].text() for other in cluster.others(leader)):
        assert server.status(120.0) == FENCED
    cluster.start_ended()
    cluster.wait_until_level()
    assert [*read_all(cluster, survivor).values()][:2] == [b"before", b"after"]


def test_a_stream_that_somebody_purged_costs_followers_a_copy_and_nobody_a_message(
    stage: Stage,
) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    client = client_of(cluster, leader, "one")
    away = cluster.others(leader)[0]
    client.publish(CHANNEL, b"0")
    cluster.wait_until_level()
    cluster.kill(away)
    for number in range(1, 20):
        client.publish(CHANNEL, b"%d" % number)
    api(cluster, leader).api(f"STREAM.PURGE.{stream_name(CLUSTER)}", {}, 5.0)
    client.publish(CHANNEL, b"behind it")
    cluster.start(away)
    cluster.servers[away].wait_for("was copied up to entry")
    cluster.wait_until_level()
    cluster.stop()
    copies = [contents(cluster, node) for node in NODES]
    assert [data for _, _, data in copies[0]] == [*(b"%d" % n for n in range(20)), b"behind it"]
    assert copies[0] == copies[1] == copies[2]


def test_a_stream_that_somebody_edited_is_served_by_nobody(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    client = client_of(cluster, leader, "one")
    client.publish(CHANNEL, b"acked")
    js = api(cluster, leader)
    stream = stream_name(CLUSTER)
    found = js.api(f"STREAM.INFO.{stream}", {}, 5.0)["config"]
    js.api(f"STREAM.UPDATE.{stream}", found | {"max_msgs": 3}, 5.0)
    assert cluster.servers[leader].status() == FENCED
    text = "the settings of the stream FTSTAN_test-cluster were changed: max_msgs is 3 instead of"
    assert text in cluster.servers[leader].text()

    # Set back, it is the log as before.
    def is_set_back() -> bool:
        # While JetStream elects, nobody answers.
        with contextlib.suppress(NatsError):
            other = api(cluster, cluster.others(leader)[0])
            return bool(other.api(f"STREAM.UPDATE.{stream}", found, 5.0))
        return False

    until(is_set_back, "JetStream to take the settings", 60.0)
    cluster.start_ended()
    leader = cluster.leader()
    assert next(iter(read_all(cluster, leader).values())) == b"acked"


def test_a_node_of_another_cluster_with_the_same_id_is_refused(stage: Stage) -> None:
    cluster = Cluster(stage)
    cluster.start()
    leader = cluster.leader()
    client_of(cluster, leader, "one").publish(CHANNEL, b"of the first")
    cluster.wait_until_level()
    cluster.stop()
    # A second one is founded with the id of the first, and a node of that comes back beside it.
    kept = stage.directory / "kept"
    shutil.copytree(stage.directory / "n1", kept)
    for node in NODES:
        shutil.rmtree(stage.directory / node)
    cluster.start()
    leader = cluster.leader()
    client_of(cluster, leader, "two").publish(CHANNEL, b"of the second")
    cluster.wait_until_level()
    route, port = free_ports(2)
    (kept / "store" / "cluster.id").write_text("n4\n")
    stranger = stage.server(
        "stranger",
        *("-store", "file", "-dir", str(kept / "store"), "-clustered", "-cluster_preview"),
        *("-cluster_node_id", "n4", "-cluster_log_path", str(kept / "log")),
        *("-cluster", f"nats://{HOST}:{route}", "-routes", cluster.routes()),
        port=port,
    )
    assert stranger.status(60.0) in (1, FENCED)
    assert "it is not the log that this node has read" in stranger.text()
    assert next(iter(read_all(cluster, leader).values())) == b"of the second"


def external(stage: Stage, room: int) -> list[str]:
    """Three external NATS servers with so many bytes for JetStream; their URLs."""
    routes = free_ports(3)
    urls = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
    found = []
    for number, port in enumerate(routes):
        directory = stage.directory / f"js{number}"
        settings = (
            f"server_name: x{number}\n"
            f'jetstream {{ store_dir: "{directory}", max_file: {room} }}\n'
            f"cluster {{ name: ext, listen: {HOST}:{port}, routes: [{urls}] }}\n"
        )
        found.append(stage.nats(f"ext{number}", settings=settings).url)
    return found


def test_without_room_in_jetstream_nothing_is_acked_and_nothing_acked_is_lost(
    stage: Stage,
) -> None:
    urls = external(stage, 3 << 20)
    servers = {}
    for node, url in zip(NODES, urls, strict=True):
        path = stage.directory / node
        servers[node] = stage.server(
            node,
            *("-store", "file", "-dir", str(path / "store"), "-ns", url),
            *("-clustered", "-cluster_preview", "-cluster_node_id", node),
            *("-cluster_peers", ",".join(NODES), "-cluster_log_path", str(path / "log")),
        )
    until(lambda: any(LEADS in s.text() for s in servers.values()), "a leader", 60.0)
    port = int(urls[0].rpartition(":")[2])
    client = StanClient(port, "one")
    client.connect()
    payloads = [b"%d" % n + b"x" * (100 << 10) for n in range(60)]
    guids = client.offer(CHANNEL, *payloads)
    waits = "an append to the log waits: "
    until(lambda: any(waits in s.text() for s in servers.values()), "a full log", 60.0)
    client.nats.read(1.0)
    acked = [p for guid, p in zip(guids, payloads, strict=True) if guid in client.acks]
    assert 0 < len(acked) < len(payloads)
    leader = next(node for node in NODES if waits in servers[node].text())
    for server in servers.values():
        server.signal(signal.SIGKILL)
        server.status()
    held = read_store(stage.directory / leader / "store").channels[CHANNEL]
    assert {m.data for m in held.messages.values()} >= set(acked)


def test_a_nats_server_without_jetstream_is_named(stage: Stage) -> None:
    plain = stage.nats("plain")
    words = ("-store", "file", "-clustered", "-cluster_preview", "-cluster_bootstrap")
    alone = stage.server(
        "alone",
        *(*words, "-ns", plain.url, "-cluster_node_id", "n1"),
        *("-dir", str(stage.directory / "s"), "-cluster_log_path", str(stage.directory / "l")),
    )
    alone.wait_for("cluster: nobody answers for JetStream (STREAM.INFO.FTSTAN_test-cluster)")
