"""What the answers of a group mean, and who could take over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import RefusedError
from ftstan.base.states import NodeState, Phase
from ftstan.ft.health import (
    Health,
    find_active,
    find_node,
    find_standby,
    find_successor,
    judge,
    silent_holder,
)
from tests.unit.admin.test_protocol import STATUS

if TYPE_CHECKING:
    from ftstan.base.states import NodeStatus

ACTIVE = replace(
    STATUS,
    server="AAA1",
    host="a",
    state=NodeState.ACTIVE,
    phase=Phase.ACTIVE,
    serving=True,
    epoch=3,
)
STANDBY = replace(STATUS, server="BBB1", host="b", state=NodeState.STANDBY, phase=Phase.LISTENING)
OTHER = replace(STANDBY, server="BBC1", host="c")
PAUSED = replace(STANDBY, server="PPP1", host="p", phase=Phase.PAUSED, paused=True)
RECOVERING = replace(ACTIVE, state=NodeState.STANDBY, phase=Phase.RECOVERING, serving=False)
HANGING = replace(STANDBY, server="HHH1", host="h", phase=Phase.WAITING_FOR_STORAGE)


def test_one_that_serves_and_one_that_waits_are_healthy() -> None:
    assert judge([ACTIVE, STANDBY]).health is Health.HEALTHY
    assert judge([STANDBY, OTHER, ACTIVE], expect=3).problems == ()


@pytest.mark.parametrize(
    ("nodes", "expect", "problems"),
    [
        ([ACTIVE], 0, ["no standby could take over"]),
        (
            [ACTIVE, PAUSED],
            0,
            ["no standby could take over", "PPP1 on p is paused by the operator"],
        ),
        ([ACTIVE, STANDBY, HANGING], 0, ["HHH1 on h is waiting for storage lock"]),
        ([ACTIVE, STANDBY], 3, ["2 of 3 members answered"]),
        (
            [ACTIVE, replace(ACTIVE, server="ZZZ1"), STANDBY],
            0,
            ["2 members say that they serve: AAA1 on a, ZZZ1 on a"],
        ),
        (
            [ACTIVE, replace(STANDBY, store_id="cd" * 16)],
            0,
            ["members have different datastores: abababab, cdcdcdcd"],
        ),
    ],
)
def test_a_group_that_lacks_something_is_degraded_and_says_what(
    nodes: list[NodeStatus], expect: int, problems: list[str]
) -> None:
    verdict = judge(nodes, expect)
    assert verdict.health is Health.DEGRADED
    assert list(verdict.problems) == problems


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ([], "no member answered"),
        ([STANDBY, OTHER], "nobody serves"),
        ([RECOVERING, STANDBY], "nobody serves; AAA1 on a is recovering"),
    ],
)
def test_a_group_in_which_nobody_serves_is_unserved(nodes: list[NodeStatus], first: str) -> None:
    verdict = judge(nodes)
    assert verdict.health is Health.UNSERVED
    assert verdict.problems[0] == first


HOLDER = "epoch 7 of server a on host a pid 9 since 2026-11-14T02:11:09Z"


@pytest.mark.parametrize(
    ("nodes", "holder"),
    [
        ([replace(STANDBY, holder_epoch=6, holder="epoch 6 of server old"),
          replace(OTHER, holder_epoch=7, holder=HOLDER)], HOLDER),
        ([replace(STANDBY, holder_epoch=0, holder="")], ""),
        ([], ""),
        # It answers: what it is doing is told of it.
        ([replace(STANDBY, holder_epoch=7, holder=HOLDER),
          replace(RECOVERING, epoch=7, holder_epoch=7, holder=HOLDER)], ""),
    ],
)  # fmt: skip
def test_who_took_the_datastore_last_and_does_not_answer_is_known_to_the_others(
    nodes: list[NodeStatus], holder: str
) -> None:
    assert silent_holder(nodes) == holder


def test_exit_statuses_are_those_of_the_documentation() -> None:
    assert [int(health) for health in (Health.HEALTHY, Health.DEGRADED, Health.UNSERVED)] == [
        0,
        1,
        2,
    ]


def test_of_two_that_say_they_serve_the_higher_epoch_is_asked() -> None:
    newer = replace(ACTIVE, server="NEW1", epoch=4)
    assert find_active([ACTIVE, newer]) == find_active([newer, ACTIVE]) == newer
    assert find_active([RECOVERING, STANDBY]) is None


@pytest.mark.parametrize(
    ("word", "found"),
    [("AAA1", ACTIVE), ("AA", ACTIVE), ("BBB", STANDBY), ("c", OTHER), ("a", ACTIVE)],
)
def test_a_member_is_named_by_its_id_the_beginning_of_it_or_its_host(
    word: str, found: NodeStatus
) -> None:
    assert find_node([ACTIVE, STANDBY, OTHER], word) == found


def test_a_member_is_named_by_its_name_which_wins_over_ids() -> None:
    named = replace(OTHER, name="AAA1")
    assert find_node([ACTIVE, STANDBY, named], "AAA1") == named
    assert (named.called, STANDBY.called) == ("AAA1", "BBB1 on b")


def test_an_id_wins_over_the_beginning_of_another() -> None:
    longer = replace(STANDBY, server="AAA12")
    assert find_node([longer, ACTIVE], "AAA1") == ACTIVE


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("BB", '"BB" means 2 members: BBB1 on b (server BBB1), BBC1 on c (server BBC1)'),
        ("nobody", 'no member "nobody" answered'),
    ],
)
def test_a_name_that_is_not_exactly_one_member_is_refused(word: str, error: str) -> None:
    with pytest.raises(RefusedError) as caught:
        find_node([ACTIVE, STANDBY, OTHER], word)
    assert caught.value.text == error
    assert caught.value.hint


def test_anybody_may_succeed_unless_one_is_named() -> None:
    assert find_successor([ACTIVE, STANDBY, OTHER], ACTIVE, "") is None
    assert find_successor([ACTIVE, STANDBY, OTHER], ACTIVE, "BBC") == OTHER


@pytest.mark.parametrize(
    ("nodes", "word", "error"),
    [
        ([ACTIVE], "", "no standby could take over"),
        ([ACTIVE, PAUSED, HANGING], "", "no standby could take over"),
        ([ACTIVE, STANDBY], "AAA1", "AAA1 on a is the active one already"),
        ([ACTIVE, STANDBY], "XYZ", 'no member "XYZ" answered'),
        ([ACTIVE, PAUSED], "PPP1", "PPP1 on p is paused"),
        ([ACTIVE, HANGING], "h", "HHH1 on h cannot take over: it is waiting for storage lock"),
    ],
)
def test_a_successor_that_could_not_take_over_is_refused_before_anybody_is_asked(
    nodes: list[NodeStatus], word: str, error: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        find_successor(nodes, ACTIVE, word)
    assert caught.value.text == error
    assert caught.value.hint


def test_without_a_name_the_only_standby_is_meant() -> None:
    assert find_standby([ACTIVE, PAUSED], "") == PAUSED
    assert find_standby([ACTIVE, STANDBY], "AAA") == ACTIVE
    assert find_standby([RECOVERING, STANDBY], "") == STANDBY
    for nodes in ([ACTIVE], [ACTIVE, STANDBY, OTHER]):
        with pytest.raises(RefusedError, match="standbys answered: name one"):
            find_standby(nodes, "")
