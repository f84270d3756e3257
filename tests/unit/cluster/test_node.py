"""What operators ask of one node of a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import RefusedError
from ftstan.cluster.access import ClusterAccess
from ftstan.cluster.beats import Report
from ftstan.cluster.entry import Op, Operation
from ftstan.cluster.follower import Stage
from ftstan.cluster.members import is_alone, without_others
from ftstan.cluster.purging import KnownNodes
from ftstan.config.limits import Limits
from ftstan.config.options import ServerOptions, StoreLimits
from ftstan.node.clustered import ClusterNode
from ftstan.node.member import NodeMember
from tests.unit.cluster.test_replica import FOO, LOG, Life, block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ftstan.cluster.replica import Replica


class Access(ClusterAccess):
    """A node's part of the cluster, without a datastore of its own."""

    def __init__(self, replica: Replica | None = None, path: str = "", *nodes: str) -> None:
        self.node_id = "a"
        self._replica = replica
        self.changes: dict[str, bool] = {}
        self._nodes = KnownNodes(path, nodes, lambda: self.changes)

    def change_node(self, node: str, *, is_in: bool) -> None:
        self.changes[node] = is_in


class Control:
    """Stands in for the control connection. ``reports``: what nodes answer to a question."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        self.reports: list[Report] = []

    async def ask(self, *_args: object) -> list[bytes]:
        return [one.encode() for one in self.reports]


class Node:
    """Stands in for the server around it."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.presented = SimpleNamespace()
        self.control_class = Control
        self.plane = SimpleNamespace(serving=None, follower=None)
        self.cluster: ClusterNode | None = None
        self.stopping = asyncio.Event()
        self.ended: list[int] = []

    def is_serving(self) -> bool:
        return True

    def request_step_down(self, _to: str, status: int = 75) -> None:
        self.ended.append(status)

    async def call(self, function: Callable[[], Any]) -> Any:
        return function()


def made(access: Access, limits: StoreLimits | None = None) -> tuple[Node, ClusterNode]:
    """In a running loop."""
    # With another server's login none is looked up.
    options = ServerOptions(nats_servers=("nats://h:1",), limits=limits or StoreLimits())
    node: Any = Node(options)
    cluster = node.cluster = ClusterNode(node, cast("Any", None), access, (), cast("Any", None))
    return node, cluster


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    found = Life(tmp_path, 1)
    yield found
    found.kill()


def of(most: int) -> StoreLimits:
    return StoreLimits(channel=replace(StoreLimits().channel, max_msgs=most))


@pytest.mark.parametrize("early", [False, True], ids=["follows", "recovers"])
def test_a_reload_that_raises_limits_counts_on_a_node_that_follows(life: Life, early: bool) -> None:
    async def reload() -> None:
        node, cluster = made(Access(None if early else life.replica), of(10))
        member = NodeMember(cast("Any", node), cast("Any", None), cast("Any", None))
        assert await member.set_limits(of(1000))
        if early:
            cluster._access._replica = life.replica
            cluster._follow(cast("Any", None))

    life.replica.set_limits(Limits(of(10)))
    life.leader()
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 5)))
    asyncio.run(reload())
    life.batch(Operation(Op.PUBLISH, FOO, block(6, 105)))
    assert life.messages() == list(range(1, 106))


def test_all_nodes_but_the_leader_are_removed_by_the_word_of_an_operator_alone(
    tmp_path: Path,
) -> None:
    async def remove() -> None:
        access = Access(None, str(tmp_path), "a", "b", "c")
        around, cluster = made(access)
        own = Report("a", LOG.hex(), 7, 1, 1, leads=True)
        cluster._follower = cast("Any", SimpleNamespace(stage=Stage.LEADING, report=lambda: own))
        assert await cluster.remove(b"*") == b"+OK"
        assert access.changes == {}
        with pytest.raises(RefusedError, match="invalid node ID"):
            await cluster.change_node("*", is_in=True)
        await cluster.change_node("*", is_in=False)
        assert access.changes == {"*": False}
        assert around.ended == []

    asyncio.run(remove())


def test_who_is_alone_knows_of_no_other_node_not_even_of_one_that_is_new(tmp_path: Path) -> None:
    changes = without_others(("a", "b"), "a")
    nodes = KnownNodes(str(tmp_path), ("a", "b", "c"), lambda: changes)
    assert is_alone(changes, "a")
    assert sorted(nodes.members) == ["a"]
    assert nodes.is_removed("c")
    assert nodes.is_removed("new")
    changes["c"] = True
    assert not is_alone(changes, "a")
    assert sorted(nodes.members) == ["a", "c"]
    assert not is_alone({"b": False, "c": False, "a": True}, "a")
    assert not is_alone({}, "a")


@pytest.mark.parametrize(
    ("nodes", "trouble", "node", "refusal"),
    [
        ("a", "", "a", "is the last one of the cluster"),
        ("abc", "looking for the log", "a", "no other node follows"),
        ("ab", None, "a", "no other node follows"),
        ("abc", "", "a", ""),
        ("ab", None, "b", ""),
    ],
)
def test_a_node_without_which_nobody_could_lead_is_not_removed(
    tmp_path: Path, nodes: str, trouble: str | None, node: str, refusal: str
) -> None:
    async def remove() -> None:
        access = Access(None, str(tmp_path), *nodes)
        around, cluster = made(access)
        own = Report("a", LOG.hex(), 7, 1, 1, leads=True)
        cluster._follower = cast("Any", SimpleNamespace(stage=Stage.LEADING, report=lambda: own))
        if trouble is not None:
            other = Report("b", LOG.hex(), 7, 1, 1, trouble=trouble)
            cast("Any", cluster)._control.reports = [own, other]
        if refusal:
            with pytest.raises(RefusedError, match=refusal):
                await cluster.change_node(node, is_in=False)
            said = await cluster.remove(node.encode())
            assert refusal in said.decode()
            assert (access.changes, around.ended) == ({}, [])
        else:
            await cluster.change_node(node, is_in=False)
            assert access.changes == {node: False}
            assert around.ended == ([0] if node == "a" else [])

    asyncio.run(remove())


@pytest.mark.parametrize(
    ("waits_s", "is_leaderless", "is_heard"),
    [(2.0, False, True), (4.0, False, False), (4.0, True, True), (13.0, True, False)],
)
def test_a_leader_that_waits_is_silent_but_not_while_copies_of_the_log_elect(
    waits_s: float, is_leaderless: bool, is_heard: bool
) -> None:
    async def well() -> bool:
        access: Any = Access(None)
        access._log = SimpleNamespace(is_leaderless=is_leaderless)
        made_node: Any
        made_node, cluster = made(access)
        made_node.clock = ManualClock()
        made_node.clock.advance(100.0)
        since = made_node.clock.mono() - waits_s
        made_node.plane.serving = SimpleNamespace(batch_since=since)
        made_node.protection = SimpleNamespace(may_beat=True)
        return cluster._is_well()

    assert asyncio.run(well()) == is_heard
