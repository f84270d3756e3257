"""Nodes of a replicated cluster on hosts whose network is cut, in both directions or in one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.ft.cluster import LEADS, NODES
from tests.ft.load import CHANNEL
from tests.ft.network import NATS_PORT, Network
from tests.processes import until

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

FENCED = 75
ROUTES_PORT = 6222
CUT_S = 6.0


class Hosts:
    """A node on each host."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.network = Network(stage, list(NODES))
        self.servers: dict[str, Server] = {}
        for node in NODES:
            self.start(node)

    def start(self, node: str, life: int = 1) -> None:
        routes = [f"nats://{self.network.addresses[name]}:{ROUTES_PORT}" for name in NODES]
        path = self._stage.directory / node
        self.servers[node] = self._stage.server(
            f"{node}-{life}",
            *("-a", "0.0.0.0", "-store", "file", "-dir", str(path / "store")),
            *("-clustered", "-cluster_preview", "-cluster_node_id", node),
            *("-cluster_peers", ",".join(NODES), "-cluster_log_path", str(path / "log")),
            *("-cluster", f"nats://0.0.0.0:{ROUTES_PORT}", "-routes", ",".join(routes)),
            port=NATS_PORT,
            wrap=self.network.enter(node),
        )

    def leader(self, but: str = "") -> str:
        def found() -> str:
            leading = [
                node
                for node, server in self.servers.items()
                if node != but and server.running and LEADS in server.text()
            ]
            return leading[0] if leading else ""

        until(found, "a leader", 90.0)
        return found()

    def client(self, node: str, name: str) -> StanClient:
        with self.network.on(node):
            client = StanClient(NATS_PORT, name)
        client.connect()
        return client


@pytest.mark.parametrize(("hears", "speaks"), [(False, False), (True, False), (False, True)])
def test_a_leader_that_is_cut_off_acknowledges_nothing_and_is_replaced(
    stage: Stage, *, hears: bool, speaks: bool
) -> None:
    hosts = Hosts(stage)
    leader = hosts.leader()
    survivor = next(node for node in NODES if node != leader)
    client = hosts.client(survivor, "outside")
    inside = hosts.client(leader, "inside")
    client.publish(CHANNEL, b"before")
    hosts.network.cut(leader, hears=hears, speaks=speaks)
    (lost,) = inside.offer(CHANNEL, b"to the one that is cut off")
    hosts.leader(but=leader)

    def is_acked() -> bool:
        (waiting,) = client.offer(CHANNEL, b"after")
        client.nats.read(2.0)
        return waiting in client.acks

    until(is_acked, "an ack", 90.0)
    inside.nats.read(1.0)
    assert lost not in inside.acks
    hosts.network.heal(leader)
    assert hosts.servers[leader].status(120.0) == FENCED
    hosts.start(leader, 2)
    hosts.servers[leader].wait_for("Cluster Log Path")
    data = [*hosts.client(survivor, "reader").read_all(CHANNEL).values()]
    assert data[0] == b"before"
    assert b"after" in data


def test_a_follower_that_is_cut_off_does_not_lead_and_catches_up(stage: Stage) -> None:
    hosts = Hosts(stage)
    leader = hosts.leader()
    away, other = (node for node in NODES if node != leader)
    client = hosts.client(other, "outside")
    client.publish(CHANNEL, b"before")
    hosts.network.cut(away)
    end = time.monotonic() + CUT_S
    sent = [b"before"]
    while time.monotonic() < end:
        sent.append(b"%d" % len(sent))
        client.publish(CHANNEL, sent[-1])
    assert LEADS not in hosts.servers[away].text()
    hosts.network.heal(away)
    reader = hosts.client(away, "reader")
    assert [*reader.read_all(CHANNEL).values()][: len(sent)] == sent
