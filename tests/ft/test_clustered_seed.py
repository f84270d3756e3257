"""The way of one server's datastore into a replicated cluster, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.ft.cluster import NODES, Cluster
from tests.ft.load import CHANNEL
from tests.ft.operator import run
from tests.ft.test_clustered import client_of, contents
from tests.ft.test_clustered_operators import operate, status
from tests.lateness import LateError
from tests.processes import CLUSTER, READY

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes


def left_alone(cluster: Cluster) -> str:
    """Remove all nodes but the one that leads, and stop it; returns it.

    On a machine without time another one may come to lead before that.
    """
    for _ in range(5):
        leader = cluster.leader()
        key = str(cluster.store(leader) / "admin.key")
        said = operate(cluster, leader, "remove", "--others", "--yes", "--admin-key", key)
        if said.status == 0:
            cluster.stop(leader)
            return leader
        cluster.start_ended()
    raise LateError("no node leads for long enough to be left alone")


def test_a_server_becomes_a_cluster_and_a_server_again(stage: Stage) -> None:
    cluster = Cluster(stage)
    store = cluster.store("n1")
    alone = stage.server("alone", "-store", "file", "-dir", str(store))
    alone.wait_for(READY)
    client = StanClient(alone.port, "one")
    client.connect()
    durable = client.subscribe(CHANNEL, durable=b"d", acks=False, ack_wait=30)
    client.publish(CHANNEL, *(b"%d" % n for n in range(300)))
    client.nats.pump(lambda: durable.has(100), "messages")
    client.ack(durable, *range(1, 51))
    client.settle_acks()
    words = (str(store), "--node-id", "n1", "--log-path", str(cluster.log("n1")))
    refused = run("cluster", "seed", *words)
    assert refused.status == 3
    assert "is in use" in refused.err
    cluster.servers["n1"] = alone
    cluster.stop("n1")
    said = run("cluster", "seed", *words, "--output", "json")
    assert said.status == 0, said
    assert (said.json["cluster"], said.json["messages"], said.json["clients"]) == (CLUSTER, 300, 1)

    # Sequences, durables and clients go on.
    cluster.start()
    for node in ("n2", "n3"):
        cluster.servers[node].wait_for("was copied up to entry")
    # Its node begins the log; whoever has copied it may be copied, and lead.
    leader = cluster.leader()
    again = client_of(cluster, leader, "one")
    resumed = again.subscribe(CHANNEL, durable=b"d", acks=True, ack_wait=30)
    again.nats.pump(lambda: resumed.has(250), "what was not acknowledged")
    assert {m.sequence for m in resumed.received} == set(range(51, 301))
    second = client_of(cluster, cluster.others(leader)[0], "two")
    second.publish(CHANNEL, b"300")
    cluster.wait_until_level()
    killed = leader
    cluster.kill(killed)
    leader = cluster.leader(but=killed)
    other = client_of(cluster, leader, "one-again")
    assert list(other.read_all(CHANNEL).values())[:301] == [b"%d" % n for n in range(301)]
    cluster.start(killed)
    cluster.wait_until_level()

    # The way back: the node that leads is stopped when no other one can lead any more. Stopped
    # last, beside nodes that are silent, it knows nothing of what they may do.
    others = [node for node in NODES if node != leader]
    cluster.stop(*others)
    cluster.stop(leader)
    where = (str(cluster.store(leader)), "--log-path", str(cluster.log(leader)))
    refused = run("cluster", "leave", *where)
    assert refused.status == 1
    assert "others could lead after it" in refused.err
    cluster.start()
    leader = left_alone(cluster)
    others = [node for node in NODES if node != leader]
    # The others are there, and nobody leads.
    said = status(cluster, others[0])
    assert said.status == 2
    assert {node["node_id"] for node in said.json["nodes"]} == set(others)
    cluster.stop(*others)
    held = contents(cluster, leader)
    where = (str(cluster.store(leader)), "--log-path", str(cluster.log(leader)))
    behind = (str(cluster.store(others[0])), "--log-path", str(cluster.log(others[0])))
    refused = run("cluster", "leave", *behind)
    assert refused.status == 1
    assert "others could lead after it" in refused.err
    said = run("cluster", "leave", *where, "--output", "json")
    assert said.status == 0, said
    assert said.json["messages"] == len(held)
    back = stage.server("back", "-store", "file", "-dir", str(cluster.store(leader)))
    back.wait_for(READY)
    reader = StanClient(back.port, "three")
    reader.connect()
    assert list(reader.read_all(CHANNEL).values())[:301] == [b"%d" % n for n in range(301)]
    assert contents(cluster, leader)[: len(held)] == held
