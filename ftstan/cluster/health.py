"""What the answers of a cluster's nodes mean: who leads, is anything missing, and who could lead.

Pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftstan.base.errors import RefusedError
from ftstan.base.states import ClusterRole
from ftstan.ft.health import GroupVerdict, Health

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ftstan.base.states import NodeStatus


COPIES: Final = 3
"""Of the log, which JetStream keeps."""


def find_leader(nodes: Sequence[NodeStatus]) -> NodeStatus | None:
    """The node that leads and serves; of several, the one that has written most."""
    return max(
        (n for n in nodes if n.role == ClusterRole.LEADER and n.serving),
        key=lambda n: n.clustering.read if n.clustering is not None else 0,
        default=None,
    )


def members(nodes: Sequence[NodeStatus]) -> tuple[str, ...]:
    """The nodes of the cluster, as the one that leads knows them; else as anybody does."""
    leader = find_leader(nodes)
    known = [leader] if leader is not None else nodes
    return tuple(
        sorted({m for n in known if n.clustering is not None for m in n.clustering.members})
    )


def judge(nodes: Sequence[NodeStatus], expect: int = 0) -> GroupVerdict:
    """Judge a cluster by the nodes that answered.

    ``expect``: how many there should be, 0 if nobody says.
    """
    leader = find_leader(nodes)
    leading = [n for n in nodes if n.role == ClusterRole.LEADER]
    problems: list[str] = []
    if not nodes:
        problems.append("no node answered")
    elif leader is None:
        problems.append("nobody leads" + "".join(f"; {n.node_id} is {n.phase}" for n in leading))
    if len(leading) > 1:
        problems.append(
            f"{len(leading)} nodes say that they lead: {', '.join(n.node_id for n in leading)}"
        )
    problems += _claimed_twice(nodes)
    known = members(nodes)
    there = {n.node_id for n in nodes}
    problems += [f"{node} does not answer" for node in known if node not in there]
    problems += [
        f"{n.node_id}: {n.activity}"
        for n in nodes
        if n.node_id in known and n.role != ClusterRole.LEADER and not can_lead(n)
    ]
    if leader is not None:
        problems += _short_of_copies(leader)
    if nodes and len(nodes) < expect:
        problems.append(f"{len(nodes)} of {expect} nodes answered")
    if leader is None:
        return GroupVerdict(Health.UNSERVED, tuple(problems))
    return GroupVerdict(Health.DEGRADED if problems else Health.HEALTHY, tuple(problems))


def judge_alone(node: NodeStatus) -> GroupVerdict:
    """Judge a node by what it says itself, without the others."""
    if can_lead(node):
        return GroupVerdict(Health.HEALTHY, ())
    if node.role == ClusterRole.FOLLOWER:
        return GroupVerdict(Health.DEGRADED, (f"this node does not follow: {node.activity}",))
    if node.role != ClusterRole.LEADER or not node.serving:
        return GroupVerdict(Health.UNSERVED, (f"this node is {node.activity}",))
    problems = tuple(_short_of_copies(node))
    return GroupVerdict(Health.DEGRADED if problems else Health.HEALTHY, problems)


def _claimed_twice(nodes: Sequence[NodeStatus]) -> Iterator[str]:
    """Ids that several servers give as theirs: each follows and counts as the same one."""
    servers: dict[str, dict[str, str]] = {}
    for node in nodes:
        servers.setdefault(node.node_id, {})[node.server] = node.host or node.server
    for node_id, found in servers.items():
        if len(found) > 1:
            places = ", ".join(sorted(found.values()))
            yield f"{len(found)} servers have the id {node_id} ({places}): stop all but one"


def _short_of_copies(leader: NodeStatus) -> Iterator[str]:
    copies = leader.clustering.copies if leader.clustering is not None else 0
    if 0 < copies < COPIES:
        yield f"{copies} of {COPIES} copies of the log are whole"


def can_lead(node: NodeStatus) -> bool:
    """Whether it is a follower that nothing holds back."""
    said = node.clustering
    return node.role == ClusterRole.FOLLOWER and said is not None and not said.trouble


def find_successor(nodes: Sequence[NodeStatus], leader: NodeStatus, word: str) -> str:
    """The id of the node that is to lead after ``leader``: ``word``, empty for any.

    Raises ``RefusedError``: nobody could, or not that one.
    """
    ready = [n.node_id for n in nodes if n.server != leader.server and can_lead(n)]
    if word == leader.node_id:
        raise RefusedError(f"{word} leads already", hint="name a follower, or none for any")
    if not ready or (word and word not in ready):
        raise RefusedError(
            f"{word} cannot lead: it does not follow" if word else "no other node follows",
            hint=f"these do: {', '.join(ready)}"
            if ready
            else "start another node first; see ftstanctl cluster status",
        )
    return word
