"""What a node of a cluster shows of the others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from ftstan.admin.protocol import Answer, encode_answer
from ftstan.base.clock import ManualClock
from ftstan.base.states import Clustering, ClusterRole, NodeState, NodeStatus
from ftstan.node.cluster_peers import ClusterPeers
from ftstan.node.recent import Recent
from tests.unit.admin.test_protocol import STATUS

MEMBERS = ("a", "b", "c")


def node(name: str, role: ClusterRole = ClusterRole.FOLLOWER, trouble: str = "") -> NodeStatus:
    return replace(
        STATUS,
        server=f"server-{name}",
        group="",
        node_id=name,
        state=NodeState.CLUSTERED,
        role=role,
        serving=role is ClusterRole.LEADER,
        clustering=Clustering("x", "a", 7, 7, 7, trouble, MEMBERS),
    )


def answer(status: NodeStatus) -> bytes:
    return encode_answer(Answer(ok=True, status=status))


async def nobody(_question: bytes) -> list[bytes]:
    return []


def test_nodes_that_answer_no_more_stay_until_they_were_removed() -> None:
    clock = ManualClock()
    peers = ClusterPeers(nobody, clock)
    own = node("b")
    assert [seen.status.node_id for seen in peers.known(own)] == ["b"]
    peers.take([answer(node("a", ClusterRole.LEADER)), answer(node("c")), answer(own), b"noise"])
    clock.advance(20.0)
    peers.take([answer(node("a", ClusterRole.LEADER))])
    found = [(seen.status.node_id, seen.silent_s) for seen in peers.known(own)]
    assert found == [("a", 0.0), ("b", 0.0), ("c", 20.0)]
    assert own.clustering is not None
    left = replace(own, clustering=replace(own.clustering, members=("a", "b")))
    assert [seen.status.node_id for seen in peers.known(left)] == ["a", "b"]


def test_a_cluster_is_judged_by_all_that_answer() -> None:
    clock = ManualClock()
    peers = ClusterPeers(nobody, clock)
    quiet = SimpleNamespace(look=lambda: None, known=peers.known)
    context: Any = SimpleNamespace(
        group=None,
        cluster=SimpleNamespace(peers=quiet),
        clock=clock,
        protection=SimpleNamespace(room=None),
    )
    recent = Recent(context, cast("Any", None))
    own = node("b")
    alone = recent.judged(own)
    assert (alone["health"], alone["present"], alone["expected"]) == ("healthy", 1, 3)
    peers.take([answer(node("a", ClusterRole.LEADER)), answer(node("c", trouble="no room"))])
    told = recent.judged(own)
    assert (told["health"], told["present"], told["expected"]) == ("degraded", 3, 3)
    clock.advance(20.0)
    peers.take([answer(node("a", ClusterRole.LEADER))])
    told = recent.judged(own)
    assert told["problems"] == ["c does not answer"]
    assert (told["present"], told["expected"]) == (2, 3)
