"""What a member knows of the others: who does not answer any more stays, and says so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from ftstan.base.states import NodeState, Phase
from ftstan.ft.digest import MOST_MEMBERS, Member, Members
from ftstan.ft.health import Health
from ftstan.node.peers import SILENT_S, Peers
from ftstan.node.recent import group_verdict
from tests.unit.admin.test_protocol import STATUS

DAY_S = 86_400.0
ME = replace(
    STATUS,
    server="me",
    host="a",
    monitor="http://a:1",
    state=NodeState.ACTIVE,
    phase=Phase.ACTIVE,
    serving=True,
    epoch=3,
)
OTHER = Member("other", "b", "http://b:1", NodeState.STANDBY, Phase.LISTENING)


class Group:
    """A member that hears what a test tells it, at times that the test gives."""

    def __init__(self) -> None:
        self.now = 0.0
        clock = SimpleNamespace(mono=lambda: self.now)
        node = SimpleNamespace(clock=clock, status=SimpleNamespace(now=lambda: ME))
        self.peers = Peers(cast("Any", node), cast("Any", None), cast("Any", None))

    def hear(self, *members: Member) -> None:
        self.peers.hear(Members("o", 3, b"", members))

    def silent(self) -> dict[str, float]:
        return {member.server: member.silent_s for member in self.peers.members}


def test_one_that_does_not_answer_stays_with_the_time_since_it_did() -> None:
    group = Group()
    group.hear(replace(OTHER, silent_s=2.0))
    group.now = 60.0
    assert group.silent() == {"me": 0.0, "other": 62.0}


def test_one_that_started_again_takes_the_place_of_its_former_self() -> None:
    group = Group()
    group.hear(OTHER, replace(OTHER, server="again"))
    assert set(group.silent()) == {"me", "again"}


def test_one_without_pages_that_started_again_does_when_its_former_self_is_silent() -> None:
    group = Group()
    plain = replace(OTHER, monitor="")
    group.hear(plain, replace(plain, server="beside it"))
    assert set(group.silent()) == {"me", "other", "beside it"}
    group.hear(replace(plain, silent_s=SILENT_S + 1), replace(plain, server="again"))
    assert set(group.silent()) == {"me", "again"}


def test_one_that_was_retired_is_not_missed_for_ever() -> None:
    group = Group()
    group.hear(OTHER)
    group.now = 6 * DAY_S
    assert set(group.silent()) == {"me", "other"}
    group.now = 8 * DAY_S
    assert set(group.silent()) == {"me"}


def test_of_very_many_that_answer_so_many_are_kept() -> None:
    group = Group()
    group.hear(*(replace(OTHER, server=f"s{i}", monitor=f"http://b:{i}") for i in range(999)))
    assert len(group.peers._known) <= 2 * MOST_MEMBERS
    assert len(group.peers.members) == MOST_MEMBERS


def test_the_verdict_is_that_of_ft_status_with_a_line_for_each_absent_one() -> None:
    active = Member("me", "a", "", NodeState.ACTIVE, Phase.ACTIVE)
    assert group_verdict([active, OTHER]).health is Health.HEALTHY
    gone = group_verdict([active, replace(OTHER, silent_s=SILENT_S + 1)])
    assert gone.health is Health.DEGRADED
    assert gone.problems == ("no standby could take over", "other on b does not answer")
    third = replace(OTHER, server="third", host="c", monitor="", silent_s=SILENT_S + 1)
    assert group_verdict([active, OTHER, third]).health is Health.DEGRADED
    paused = group_verdict([active, replace(OTHER, phase=Phase.PAUSED)])
    assert paused.health is Health.DEGRADED
    nobody = group_verdict([replace(active, silent_s=SILENT_S + 1), OTHER])
    assert nobody.health is Health.UNSERVED
    assert nobody.problems == ("nobody serves", "me on a does not answer")
