"""What the answers of a cluster's nodes add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftstan.base.errors import RefusedError
from ftstan.base.states import Clustering, NodeStatus
from ftstan.cluster.health import find_leader, find_successor, judge, judge_alone, members
from ftstan.ft.health import Health

THREE = ("a", "b", "c")


def node(name: str, role: str = "Follower", *, trouble: str = "", read: int = 7) -> NodeStatus:
    leads = role == "Leader"
    return NodeStatus(
        cluster="cid",
        group="",
        server=f"S{name}",
        host="h",
        pid=1,
        state="CLUSTERED",
        phase="active" if leads else "following the leader",
        serving=leads,
        paused=False,
        mixed=False,
        epoch=1,
        holder_epoch=1,
        holder="",
        store_id="",
        probe_age=None,
        warm_lag=None,
        uptime=1.0,
        version="0",
        role=role,
        node_id=name,
        clustering=Clustering("following", "a", read, read, read, trouble, THREE),
    )


LEADER = node("a", "Leader")
FOLLOWERS = [node("b"), node("c")]


@pytest.mark.parametrize(
    ("nodes", "expect", "health", "problems"),
    [
        ([LEADER, *FOLLOWERS], 0, Health.HEALTHY, ()),
        ([LEADER, *FOLLOWERS], 3, Health.HEALTHY, ()),
        ([LEADER, *FOLLOWERS], 4, Health.DEGRADED, ("3 of 4 nodes answered",)),
        ([LEADER, node("b")], 0, Health.DEGRADED, ("c does not answer",)),
        (
            [LEADER, node("b", trouble="it has no log"), node("c", "Candidate")],
            0,
            Health.DEGRADED,
            ("b: it has no log", "c: following"),
        ),
        (
            [
                replace(LEADER, clustering=Clustering("leading", "a", members=THREE, copies=2)),
                *FOLLOWERS,
            ],
            0,
            Health.DEGRADED,
            ("2 of 3 copies of the log are whole",),
        ),
        # One that was removed is nobody's problem.
        ([LEADER, *FOLLOWERS, node("d", trouble="removed")], 0, Health.HEALTHY, ()),
        (FOLLOWERS, 0, Health.UNSERVED, ("nobody leads", "a does not answer")),
        (
            [replace(LEADER, serving=False, phase="recovering"), *FOLLOWERS],
            0,
            Health.UNSERVED,
            ("nobody leads; a is recovering",),
        ),
        (
            [LEADER, node("b", "Leader", read=9), node("c")],
            0,
            Health.DEGRADED,
            ("2 nodes say that they lead: a, b",),
        ),
        (
            [LEADER, *FOLLOWERS, replace(node("c"), server="another", host="h9")],
            0,
            Health.DEGRADED,
            ("2 servers have the id c (h, h9): stop all but one",),
        ),
        ([], 0, Health.UNSERVED, ("no node answered",)),
    ],
)
def test_a_cluster_is_judged_by_who_leads_and_who_follows(
    nodes: list[NodeStatus], expect: int, health: Health, problems: tuple[str, ...]
) -> None:
    verdict = judge(nodes, expect)
    assert (verdict.health, verdict.problems) == (health, problems)


def test_of_two_that_say_so_the_one_leads_that_has_written_more() -> None:
    other = node("b", "Leader", read=9)
    assert find_leader([LEADER, other]) is other
    assert find_leader(FOLLOWERS) is None
    assert members([LEADER, other]) == THREE


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("a", "a leads already"),
        ("d", "d cannot lead: it does not follow"),
        ("c", "c cannot lead: it does not follow"),
    ],
)
def test_who_cannot_lead_is_refused(word: str, text: str) -> None:
    nodes = [LEADER, node("b"), node("c", trouble="behind")]
    assert find_successor(nodes, LEADER, "") == ""
    assert find_successor(nodes, LEADER, "b") == "b"
    with pytest.raises(RefusedError) as raised:
        find_successor(nodes, LEADER, word)
    assert raised.value.text == text


@pytest.mark.parametrize(
    ("one", "health", "problems"),
    [
        (LEADER, Health.HEALTHY, ()),
        (node("b"), Health.HEALTHY, ()),
        (
            replace(LEADER, clustering=Clustering("leading", "a", copies=1)),
            Health.DEGRADED,
            ("1 of 3 copies of the log are whole",),
        ),
        (
            node("b", trouble="it has another log"),
            Health.DEGRADED,
            ("this node does not follow: it has another log",),
        ),
        (node("b", "Candidate"), Health.UNSERVED, ("this node is following",)),
        (
            replace(LEADER, serving=False, phase="recovering"),
            Health.UNSERVED,
            ("this node is recovering",),
        ),
    ],
)
def test_a_node_says_how_it_is_without_the_others(
    one: NodeStatus, health: Health, problems: tuple[str, ...]
) -> None:
    verdict = judge_alone(one)
    assert (verdict.health, verdict.problems) == (health, problems)


def test_a_leader_alone_has_no_successor() -> None:
    with pytest.raises(RefusedError) as raised:
        find_successor([LEADER], LEADER, "")
    assert raised.value.text == "no other node follows"
