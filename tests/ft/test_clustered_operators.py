"""Operators look at a real cluster and steer it: ``ftstanctl cluster``, and the original's requests
to add and remove nodes.
"""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cluster.names import stream_name
from tests.ft.client import NatsConnection, StanClient
from tests.ft.cluster import NODES, Cluster
from tests.ft.load import CHANNEL
from tests.ft.operator import Said, run
from tests.ft.test_clustered import api, client_of, read_all, stream_leader
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER, HOST, READY, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Stage

pytestmark = pytest.mark.processes

STEPPED_DOWN = 75
#: For machines that are busy with other tests.
WAIT_S = 60.0
START_S = 180.0


def operate(cluster: Cluster, node: str, verb: str, *words: str) -> Said:
    """``ftstanctl cluster <verb>``, asked through the NATS server of ``node``."""
    where = ["--server", f"nats://{HOST}:{cluster.port(node)}", "--cluster", CLUSTER]
    return run("cluster", verb, *where, "--timeout", "3", *words)


def status(cluster: Cluster, node: str, *words: str) -> Said:
    return operate(cluster, node, "status", "--output", "json", *words)


def wait_for_status(cluster: Cluster, node: str, wanted: Callable[[Said], bool]) -> Said:
    said = status(cluster, node)

    def is_wanted() -> bool:
        nonlocal said
        said = status(cluster, node)
        return wanted(said)

    until(is_wanted, "the status that is expected", WAIT_S)
    return said


def leader_of(said: Said) -> str:
    found = [n["node_id"] for n in said.json["nodes"] if n["role"] == "Leader" and n["serving"]]
    return found[0] if found else ""


def begin(cluster: Cluster) -> str:
    """Start all nodes; the leader of a healthy cluster.

    Who loses its lead on a machine without time for its heartbeats is started again, as by a unit.
    """
    cluster.start()
    said: Said | None = None

    def healthy() -> bool:
        nonlocal said
        cluster.start_ended()
        said = status(cluster, NODES[0])
        return said.status == 0

    until(healthy, "a healthy cluster", START_S)
    assert said is not None
    return leader_of(said)


def test_status_shows_every_node_and_what_is_missing(stage: Stage) -> None:
    cluster = Cluster(stage)
    leader = begin(cluster)
    said = wait_for_status(cluster, leader, lambda said: said.status == 0)
    assert (said.json["health"], said.json["problems"]) == ("healthy", [])
    assert said.json["members"] == list(NODES)
    nodes = {node["node_id"]: node for node in said.json["nodes"]}
    assert set(nodes) == set(NODES)
    for name, node in nodes.items():
        expected = ("Leader", True) if name == leader else ("Follower", False)
        assert (node["role"], node["serving"]) == expected
        assert (node["state"], node["pid"]) == ("CLUSTERED", cluster.servers[name].pid)
        assert node["clustering"]["leader"] == leader
        assert node["clustering"]["trouble"] == ""
    client_of(cluster, leader, "one").publish(CHANNEL, b"1", b"2")
    cluster.wait_until_level()
    table = operate(cluster, leader, "status", "--expect", "3")
    assert table.status == 0, table
    head, *rows, verdict = table.out.splitlines()
    assert head.split() == ["NODE", "ROLE", "HOST", "ENTRY", "BEHIND", "STORED", "NOTE"]
    assert [row.split()[0] for row in rows] == list(NODES)
    assert verdict == "healthy"
    # Not the one whose NATS server leads the stream: this is no test of an election.
    away, other = sorted(
        cluster.others(leader), key=lambda node: stream_leader(cluster, leader).endswith(node)
    )
    cluster.kill(away)
    copies = "2 of 3 copies of the log are whole"
    missing = wait_for_status(cluster, leader, lambda said: copies in said.json["problems"])
    assert missing.status == 1
    assert missing.json["problems"] == [f"{away} does not answer", copies]
    assert status(cluster, leader, "--expect", "4").json["problems"][-1] == "2 of 4 nodes answered"
    cluster.kill(other)
    # A leader that nobody confirms says so for as long as it waits, and then ends.
    cluster.kill(leader)
    cluster.start(other)
    cluster.servers[other].wait_for("Cluster Log Path")
    unserved = wait_for_status(cluster, other, lambda said: said.status == 2)
    assert unserved.json["health"] == "unserved"
    assert unserved.json["problems"][0] == "nobody leads"
    refused = operate(cluster, other, "stepdown", "--dir", str(cluster.store(other)))
    assert (refused.status, refused.out) == (2, "")
    assert "nobody leads" in refused.err


def page(cluster: Cluster, node: str, path: str) -> dict[str, Any]:
    code, body = cluster.servers[node].get(f"/streaming/{path}")
    assert code == HTTPStatus.OK
    found: dict[str, Any] = json.loads(body)
    return found


def test_the_pages_of_a_follower_show_what_it_has(stage: Stage) -> None:
    cluster = Cluster(stage)
    leader = begin(cluster)
    follower = cluster.others(leader)[0]
    client = client_of(cluster, leader, "one")
    durable = client.subscribe(CHANNEL, durable=b"d", acks=False, ack_wait=60)
    client.publish(CHANNEL, *(b"%d" % number for number in range(10)))
    client.nats.pump(lambda: durable.has(10), "the messages")
    client.ack(durable, 1, 2, 3)
    client.settle_acks()
    cluster.wait_until_level()
    name = CHANNEL.decode()
    whole = f"channelsz?channel={name}&subs=1"

    def shown(node: str) -> dict[str, Any]:
        found = page(cluster, node, whole)
        for sub in found["subscriptions"]:
            # The log has acks with the next batch.
            del sub["last_sent"], sub["pending_count"]
        return {key: value for key, value in found.items() if key not in ("now", "server_id")}

    def has_acks() -> bool:
        (sub,) = page(cluster, follower, whole)["subscriptions"]
        return (sub["last_sent"], sub["pending_count"]) == (10, 7)

    until(has_acks, "what was acknowledged, on the page of a follower", WAIT_S)
    assert shown(follower) == shown(leader)
    ours, theirs = (page(cluster, node, "serverz") for node in (follower, leader))
    for key in ("cluster_id", "state", "clients", "subscriptions", "channels", "total_msgs"):
        assert ours[key] == theirs[key], key
    assert (ours["role"], ours["total_msgs"]) == ("Follower", 10)
    assert page(cluster, follower, "channelsz")["names"] == [name]
    clients = page(cluster, follower, "clientsz?client=one&subs=1")
    assert [*clients["subscriptions"]] == [name]
    assert page(cluster, follower, "storez")["total_msgs"] == 10
    status, _ = cluster.servers[follower].get("/streaming/isFTActive")
    assert status == HTTPStatus.NO_CONTENT


def test_the_dashboard_of_each_node_shows_all_of_them(stage: Stage) -> None:
    cluster = Cluster(stage)
    leader = begin(cluster)

    def rows(node: str) -> dict[str, str]:
        code, body = cluster.servers[node].get("/dashboard/data")
        assert code == HTTPStatus.OK
        data = json.loads(body)
        if data["verdict"]["health"] != "healthy" or data["verdict"]["present"] != len(NODES):
            return {}
        return {row["name"]: row["role"] for row in data["members"] if row["present"]}

    roles = {node: "Leader" if node == leader else "Follower" for node in NODES}
    for node in NODES:
        # The first look asks the others.
        until(partial(_are, rows, node, roles), "all nodes on the page", WAIT_S)


def _are(rows: Callable[[str], dict[str, str]], node: str, wanted: dict[str, str]) -> bool:
    return rows(node) == wanted


def test_a_leader_that_steps_down_is_followed_by_the_node_that_is_named(stage: Stage) -> None:
    cluster = Cluster(stage)
    leader = begin(cluster)
    cluster.wait_until_level()
    target, other = cluster.others(leader)
    client = client_of(cluster, target, "one")
    client.publish(CHANNEL, b"before")
    key = ("--dir", str(cluster.store(leader)))
    for word, text in ((leader, "leads already"), ("nobody", "nobody cannot lead")):
        refused = operate(cluster, leader, "stepdown", "--to", word, *key)
        assert (refused.status, refused.out) == (1, "")
        assert text in refused.err
    wrong = stage.directory / "wrong.key"
    wrong.write_text("ab" * 32 + "\n", encoding="ascii")
    wrong.chmod(0o600)
    refused = operate(cluster, target, "stepdown", "--admin-key", str(wrong))
    assert refused.status == 1, refused
    assert cluster.servers[leader].running
    # Asked through another server, for the leader's own ends with it.
    words = ("--to", target, "--wait", str(WAIT_S), "--output", "json")
    said = operate(cluster, other, "stepdown", *words, *key)
    assert said.status == 0, said
    assert (said.json["from"], said.json["to"]) == (leader, target)
    assert cluster.servers[leader].status() == STEPPED_DOWN
    text = cluster.servers[leader].text()
    assert "server lost leadership, performing leader stepdown actions" in text
    assert "finished leader stepdown actions" in text
    client.publish(CHANNEL, b"after")
    cluster.start(leader)
    assert list(read_all(cluster, target).values())[:2] == [b"before", b"after"]
    wait_for_status(cluster, target, lambda said: said.status == 0)


def test_a_node_that_is_gone_for_good_is_replaced_by_a_new_one(stage: Stage) -> None:
    cluster = Cluster(stage, spare=("n4",))
    leader = begin(cluster)
    cluster.wait_until_level()
    leads = stream_leader(cluster, leader)
    gone = next(node for node in cluster.others(leader) if not leads.endswith(f"-{node}"))
    client = client_of(cluster, leader, "one")
    client.publish(CHANNEL, *(b"%d" % number for number in range(100)))
    cluster.kill(gone)
    cluster.start("n4")
    cluster.servers["n4"].wait_for("Cluster Log Path")
    key = ("--dir", str(cluster.store(leader)))
    refused = operate(cluster, leader, "remove", "nobody", *key)
    assert (refused.status, refused.out) == (1, "")
    assert "nobody is no node of cluster" in refused.err
    assert operate(cluster, leader, "add", "n4", *key).out == "n4: added\n"
    assert operate(cluster, leader, "remove", gone, *key).out == f"{gone}: removed\n"
    members = sorted({*NODES, "n4"} - {gone})
    said = wait_for_status(cluster, leader, lambda said: said.status == 0)
    assert said.json["members"] == members
    cluster.servers[leader].wait_for(f"the copy of the log on ftstan-{CLUSTER}-{gone} moves")
    until(lambda: copies_of(cluster, leader) == set(members), "all copies of the log", WAIT_S)
    # Now one of the first three may go, too.
    cluster.kill(leader)
    second = cluster.leader(but=leader)
    assert second != gone
    values = list(read_all(cluster, second).values())
    assert values[:100] == [b"%d" % number for number in range(100)]


def copies_of(cluster: Cluster, node: str) -> set[str]:
    """Ids of the nodes whose NATS servers hold a whole copy of the log."""
    told = api(cluster, node).api(f"STREAM.INFO.{stream_name(CLUSTER)}", {}, 5.0)["cluster"]
    current = [copy["name"] for copy in told.get("replicas", ()) if copy["current"]]
    return {name.rpartition("-")[2] for name in (*current, told["leader"])}


def test_the_requests_of_the_original_add_and_remove_nodes(stage: Stage) -> None:
    cluster = Cluster(stage, "-cluster_allow_add_remove_node")
    leader = begin(cluster)
    cluster.wait_until_level()
    stranger = NatsConnection(cluster.port(leader))

    def ask(verb: str, node: bytes) -> bytes:
        answer = stranger.request(f"_STAN.raft.{CLUSTER}.node.{verb}", node)
        assert answer is not None
        return answer.payload

    assert ask("add", b"") == b'-ERR adding node "": invalid node ID'
    assert ask("remove", b"") == b"+OK"
    assert ask("remove", b"unknown") == b"+OK"
    removed, other = cluster.others(leader)
    assert ask("remove", removed.encode()) == b"+OK"
    assert f'Removed node "{removed}"' in cluster.servers[leader].text()
    left = sorted([leader, other])
    said = wait_for_status(cluster, leader, lambda said: said.json["members"] == left)
    assert said.status == 0
    assert ask("add", removed.encode()) == b"+OK"
    # It remembers, also over a restart.
    assert ask("remove", removed.encode()) == b"+OK"
    assert ask("remove", leader.encode()) == b"+OK"
    assert cluster.servers[leader].status() == 0
    assert cluster.leader(but=leader) == other
    stranger = NatsConnection(cluster.port(other))
    said = wait_for_status(cluster, other, lambda said: leader_of(said) == other)
    assert said.json["members"] == [other]
    for node in (removed, leader):
        assert ask("add", node.encode()) == b"+OK"
    cluster.start(leader)
    said = wait_for_status(cluster, other, lambda said: said.status == 0)
    assert said.json["members"] == list(NODES)


def test_nobody_hears_those_requests_without_the_option(stage: Stage) -> None:
    cluster = Cluster(stage)
    leader = begin(cluster)
    stranger = NatsConnection(cluster.port(leader))
    answer = stranger.request(f"_STAN.raft.{CLUSTER}.node.remove", b"n1")
    assert answer is None or answer.payload == b""
    assert status(cluster, leader).json["members"] == list(NODES)


def test_a_backup_holds_what_the_cluster_has_and_serves_alone(stage: Stage) -> None:
    cluster = Cluster(stage)
    leader = begin(cluster)
    client = client_of(cluster, leader, "one")
    durable = client.subscribe(CHANNEL, durable=b"d", acks=False, ack_wait=60)
    client.publish(CHANNEL, *(b"%d" % number for number in range(300)))
    client.nats.pump(lambda: durable.has(1), "a message")
    cluster.wait_until_level()
    target = stage.directory / "backup"
    login = ("--log-path", str(cluster.log(leader)))
    for words, text in (
        ((str(cluster.store(leader)), *login), "is not empty"),
        ((str(target), *login, "--node", "nobody"), "node nobody cannot be copied now"),
        ((str(target), "--log-path", str(stage.directory)), "the login of the log cannot be read"),
        # Clients do not reach the log.
        ((str(target),), "no node answers that could be copied"),
    ):
        refused = operate(cluster, leader, "backup", *words)
        assert (refused.status, refused.out) in ((1, ""), (3, "")), refused
        assert text in refused.err
    assert not target.exists()
    assert not (stage.directory / "backup.unfinished").exists()
    said = operate(cluster, leader, "backup", str(target), *login, "--output", "json")
    assert said.status == 0, said
    assert said.json["node"] in cluster.others(leader)
    assert (said.json["channels"], said.json["messages"]) == (1, 300)
    cluster.stop()
    copied = read_store(target).channels[CHANNEL]
    data = [m.data for m in copied.messages.values()]
    assert data == [b"%d" % number for number in range(300)]
    ours, theirs = contents_of(target), contents_of(cluster.store(leader))
    assert ours == theirs
    alone = stage.server("alone", "-store", "file", "-dir", str(target))
    alone.wait_for(READY)
    reader = StanClient(alone.port, "two")
    reader.connect()
    assert list(reader.read_all(CHANNEL).values())[:300] == data


def contents_of(store: Path) -> list[tuple[int, int, bytes]]:
    channel = read_store(store).channels[CHANNEL]
    return [(m.sequence, m.timestamp, m.data) for m in channel.messages.values()]
