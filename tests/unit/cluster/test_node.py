"""What operators ask of one node of a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.cluster.access import ClusterAccess
from ftstan.cluster.entry import Op, Operation
from ftstan.config.limits import Limits
from ftstan.config.options import ServerOptions, StoreLimits
from ftstan.node.clustered import ClusterNode
from ftstan.node.member import NodeMember
from tests.unit.cluster.test_replica import FOO, Life, block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ftstan.cluster.replica import Replica


class Access(ClusterAccess):
    """A node's part of the cluster, without a datastore of its own."""

    def __init__(self, replica: Replica | None = None) -> None:
        self.node_id = "a"
        self._replica = replica


class Control:
    """Stands in for the control connection."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass


class Node:
    """Stands in for the server around it."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.presented = SimpleNamespace()
        self.control_class = Control
        self.plane = SimpleNamespace(serving=None, follower=None)
        self.cluster: ClusterNode | None = None

    async def call(self, function: Callable[[], Any]) -> Any:
        return function()


def made(access: Access, limits: StoreLimits | None = None) -> tuple[Node, ClusterNode]:
    """In a running loop."""
    # With another server's login none is looked up.
    options = ServerOptions(nats_servers=("nats://h:1",), limits=limits or StoreLimits())
    node: Any = Node(options)
    cluster = node.cluster = ClusterNode(node, cast("Any", None), access, ())
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
