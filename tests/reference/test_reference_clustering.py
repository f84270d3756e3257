"""The chapter of the v0.10.0 README about clustering, played by its commands and its files.

Two things are not as they stand there. Each start has ``-cluster_preview``, without which this mode
is refused by name (``test_reference_v10.py``). And the separate NATS server of the commands is one
of three, with JetStream: the log has three copies (``docs/clustering.md``).
"""

from __future__ import annotations

import re
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.ft.client import StanClient
from tests.ft.cluster import LEADS
from tests.ft.operator import run
from tests.processes import CLUSTER, HOST, free_ports, until
from tests.reference.documents import V10 as README

if TYPE_CHECKING:
    from tests.processes import Server
    from tests.reference.moved import Moved

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

FOO = b"foo"
_WAIT_S = 90.0
_NODE = re.compile(r"Cluster Node ID : (\S+)")


def nats_servers(moved: Moved) -> str:
    """NATS servers that hold the log, one of them where the document has its own; its URL."""
    routes = free_ports(3)
    urls = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
    ports = (moved.port(4222), 0, 0)
    for number, (route, port) in enumerate(zip(routes, ports, strict=True)):
        directory = moved.stage.directory / f"js{number}"
        settings = (
            f"server_name: x{number}\n"
            f'jetstream {{ store_dir: "{directory}" }}\n'
            f"cluster {{ name: ext, listen: {HOST}:{route}, routes: [{urls}] }}\n"
        )
        moved.stage.nats(f"ext{number}", port=port, settings=settings)
    return f"nats://{HOST}:{moved.port(4222)}"


def start(moved: Moved, command: str, name: str) -> Server:
    return moved.start(command, name=name, add=["-cluster_preview"])


def healthy(url: str, count: int, cluster: str = CLUSTER) -> Any:
    """What ``ftstanctl cluster status`` says of a cluster of so many nodes, one of which leads."""
    words = ("--server", url, "--cluster", cluster, "--expect", str(count), "--timeout", "3")
    said = run("cluster", "status", *words, "--output", "json")

    def is_healthy() -> bool:
        nonlocal said
        said = run("cluster", "status", *words, "--output", "json")
        return said.status == 0

    until(is_healthy, f"{count} nodes of which one leads", _WAIT_S)
    return said.json


def leader_of(said: Any) -> str:
    (leader,) = [node["node_id"] for node in said["nodes"] if node["role"] == "Leader"]
    return str(leader)


def client_of(port: int, name: str, cluster: str = CLUSTER) -> StanClient:
    client = StanClient(port, name, cluster=cluster)
    client.connect()
    return client


def node_id(server: Server) -> str:
    server.wait_for("Cluster Node ID : ")
    found = _NODE.search(server.text())
    assert found is not None
    return found[1]


def end(server: Server) -> None:
    server.signal(signal.SIGKILL)
    server.status()


@README.example(5, 6)
def test_three_nodes_are_a_cluster_and_a_fourth_joins(
    moved: Moved,
) -> None:
    url = nats_servers(moved)
    servers = {
        name: start(moved, command, name)
        for name, command in zip("abc", README.lines(5), strict=True)
    }
    said = healthy(url, 3)
    assert {node["node_id"] for node in said["nodes"]} == {"a", "b", "c"}
    client_of(moved.port(4222), "one").publish(FOO, *(b"%d" % n for n in range(50)))

    (command,) = README.lines(6)
    joined = start(moved, command, "d")
    name = node_id(joined)
    assert re.fullmatch(r"\w{22}", name)
    # From then on the leader waits for it.
    until(lambda: name in healthy(url, 4)["members"], "the fourth to be a member", _WAIT_S)
    # The id is recovered on restart.
    end(joined)
    servers[name] = start(moved, command, "d-again")
    assert node_id(servers[name]) == name

    # Less than a majority down: the others serve what was acknowledged.
    leader = leader_of(healthy(url, 4))
    end(servers.pop(leader))
    until(lambda: any(LEADS in s.text() for s in servers.values()), "another leader", _WAIT_S)
    read = client_of(moved.port(4222), "two").read_to(FOO, 50)
    assert list(read.values()) == [b"%d" % n for n in range(50)]


@README.example(7, 8, 9, 11)
def test_three_files_make_a_cluster_of_three_hosts_and_a_node_without_its_log_is_refused(
    moved: Moved,
) -> None:
    servers = {}
    for number, (block, node) in enumerate(zip((7, 8, 9), "abc", strict=True), 1):
        host = f"host{number}"
        moved.file(f"{host}/server.conf", README[block], host)
        servers[node] = moved.start(
            "nats-streaming-server -c server.conf",
            host=host,
            name=host,
            add=["-cluster_preview"],
            place=host,
        )
    ports = {node: server.port for node, server in servers.items()}
    said = healthy(f"nats://{HOST}:{ports['a']}", 3, "mycluster")
    leader = leader_of(said)
    # A client of a follower's host reaches the leader through the routes.
    other = next(node for node in "abc" if node != leader)
    client_of(ports[other], "one", "mycluster").publish(FOO, b"1", b"2")
    directories = {node: moved.path(f"host{n}") for n, node in enumerate("abc", 1)}
    for node, directory in directories.items():
        assert (directory / "store" / "server.dat").exists()
        assert (directory / "mycluster" / node / "jetstream").is_dir()

    end(servers[leader])
    until(
        lambda: any(LEADS in s.text() for node, s in servers.items() if node != leader),
        "another leader",
        _WAIT_S,
    )
    assert client_of(ports[other], "two", "mycluster").read_to(FOO, 2) == {1: b"1", 2: b"2"}

    # Its directory of the log was not on the mounted volume.
    shutil.rmtree(directories[leader] / "mycluster")
    again = moved.start(
        "nats-streaming-server -c server.conf",
        host=f"host{'abc'.index(leader) + 1}",
        name="again",
        add=["-cluster_preview"],
        place=f"host{'abc'.index(leader) + 1}",
    )
    assert again.status(_WAIT_S) == 1
    (line,) = README.lines(11)
    assert line.replace("mycluster/a", f"mycluster/{leader}") in again.text()


@README.example(10)
def test_one_seed_founds_a_cluster_that_others_join_and_a_second_seed_founds_no_other(
    moved: Moved,
) -> None:
    url = nats_servers(moved)
    seed, second, third = README.lines(10)
    servers = [start(moved, seed, "a")]
    servers[0].wait_for(LEADS, within=_WAIT_S)
    servers += [start(moved, second, "b"), start(moved, third, "c")]
    names = {node_id(server) for server in servers}
    assert len(names) == 3
    assert {node["node_id"] for node in healthy(url, 3)["nodes"]} == names
    client_of(moved.port(4222), "one").publish(FOO, b"1")
    # The original's seeds both end, because they cannot know who is right. There is one log here.
    other = start(moved, seed.replace("store-a", "store-e"), "e")
    said = healthy(url, 4)
    assert node_id(other) in {node["node_id"] for node in said["nodes"]}
    assert client_of(moved.port(4222), "two").read_to(FOO, 1) == {1: b"1"}
