"""Several groups on one NATS network, each with a directory of its own: none hears, answers or
moves another.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.heartbeat import decode_heartbeat
from ftstan.ft.subjects import decode_released, group_subject, heartbeat_subject
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.load import CHANNEL
from tests.ft.operator import Operator
from tests.ft.test_pair import owner_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes


@dataclass
class Pair:
    """A group of two with a directory of its own; ``a`` is active."""

    cluster: str
    group: str
    store: Path
    a: Server
    b: Server

    @property
    def ids(self) -> set[str]:
        return {server.serverz()["server_id"] for server in (self.a, self.b) if server.running}

    def operator(self, nats: Nats) -> Operator:
        return Operator(nats.url, self.store, self.cluster, self.group)

    def is_as_it_was(self) -> bool:
        states = [self.a.ft_status, self.b.ft_status]
        return states == [200, 204] and owner_of(self.store).epoch == 1


def start(stage: Stage, nats: Nats, cluster: str, group: str) -> Pair:
    store = stage.directory / f"{cluster}-{group}"

    def member(name: str) -> Server:
        words = ["-store", "file", "-dir", str(store), "-ft_group", group, "-ns", nats.url]
        return stage.server(f"{cluster}-{group}-{name}", *words, cluster=cluster)

    a = member("a")
    a.wait_until_active()
    b = member("b")
    b.wait_until_standing_by()
    return Pair(cluster, group, store, a, b)


class Listener:
    """Hears everything that the members of one group say to each other."""

    def __init__(self, nats: Nats, pair: Pair) -> None:
        self.connection = NatsConnection(nats.port)
        self.beats: list[str] = []
        self.released: list[str] = []
        self.connection.listen(heartbeat_subject(pair.cluster, pair.group), self._on_beat)
        self.connection.listen(group_subject(pair.cluster, pair.group), self._on_message)
        self.connection.flush()

    def _on_beat(self, arrived: Arrived) -> None:
        beat = decode_heartbeat(arrived.payload)
        assert beat is not None
        self.beats.append(beat.server_id)

    def _on_message(self, arrived: Arrived) -> None:
        released = decode_released(arrived.payload)
        if released is not None:
            self.released.append(released.server_id)

    def hear(self, beats: int) -> None:
        """Listen until so many more heartbeats came."""
        wanted = len(self.beats) + beats
        self.connection.pump(lambda: len(self.beats) >= wanted, f"{beats} heartbeats")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # Two clusters that call their groups the same.
        (("east", "group"), ("west", "group")),
        # Two groups of one cluster id, as partitions have them.
        (("shop", "orders"), ("shop", "stock")),
    ],
    ids=["clusters", "groups"],
)
def test_what_happens_in_one_group_leaves_the_other_alone(
    stage: Stage, first: tuple[str, str], second: tuple[str, str]
) -> None:
    nats = stage.nats()
    one = start(stage, nats, *first)
    two = start(stage, nats, *second)
    ears = Listener(nats, one), Listener(nats, two)

    # Heartbeats stay in their group.
    for ear in ears:
        ear.hear(2)
    assert set(ears[0].beats) == {owner_of(one.store).server_id}
    assert set(ears[1].beats) == {owner_of(two.store).server_id}
    assert owner_of(one.store).store_id != owner_of(two.store).store_id

    # So do questions: each group is asked and answers by itself.
    for pair in (one, two):
        said = pair.operator(nats).status("--expect", "2", "--timeout", "60")
        assert (said.status, {node["server"] for node in said.json["nodes"]}) == (0, pair.ids)
        again = pair.operator(nats).status()
        assert len(again.json["nodes"]) == 2

    # The key of one group is nothing to the other.
    foreign = Operator(nats.url, one.store, two.cluster, two.group).change("switchover")
    assert foreign.status == 1
    assert "is not sealed with this group's key" in foreign.err

    # A switchover, a stop and a kill in one group.
    assert one.operator(nats).change("switchover", "--wait", "60").status == 0
    assert one.a.status() == 75
    ears[1].hear(2)
    assert two.is_as_it_was()
    third = stage.server(
        "third",
        *("-store", "file", "-dir", str(one.store), "-ft_group", one.group, "-ns", nats.url),
        cluster=one.cluster,
    )
    third.wait_until_standing_by()
    stopped = owner_of(one.store).server_id
    one.b.signal(signal.SIGTERM)
    assert one.b.status() == 143
    third.wait_until_active()
    ears[0].hear(1)
    ears[1].hear(2)
    assert ears[0].released[-1] == stopped
    assert ears[1].released == []
    third.kill()
    # Longer than any silence that a standby bears.
    time.sleep(2)
    assert two.is_as_it_was()
    assert set(ears[1].beats) == {owner_of(two.store).server_id}
    assert one.operator(nats).status().status == 2
    assert two.operator(nats).status("--expect", "2", "--timeout", "60").status == 0


def test_clients_of_two_clusters_keep_what_is_theirs_across_a_takeover_in_one(stage: Stage) -> None:
    nats = stage.nats()
    one = start(stage, nats, "east", "group")
    two = start(stage, nats, "west", "group")
    clients = {pair.cluster: StanClient(nats.port, cluster=pair.cluster) for pair in (one, two)}
    for cluster, client in clients.items():
        client.connect()
        client.publish(CHANNEL, f"{cluster} 1".encode())
    one.a.kill()
    one.b.wait_until_active()
    for cluster, client in clients.items():
        client.publish(CHANNEL, f"{cluster} 2".encode())
        assert client.read_to(CHANNEL, 2) == {
            1: f"{cluster} 1".encode(),
            2: f"{cluster} 2".encode(),
        }
    assert two.is_as_it_was()
