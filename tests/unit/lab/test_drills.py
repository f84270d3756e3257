"""The drills of the lab, without machines: scenarios that can be played, and what a result comes
to.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ftstan.client import NatsLogin
from ftstan.drill.judge import judge
from ftstan.drill.ledger import Read
from ftstan.drill.remote import RemoteGroup
from ftstan.drill.report import as_dict
from ftstan.drill.result import Result
from ftstan.drill.scenario import load
from ftstan.drill.selftest import clean_ledger
from ftstan.drill.workload import Access
from lab.drills import DRILLS, Drill, outcome, scenario
from lab.image import ADDRESSES, Image
from lab.lab import Lab
from lab.machines import Machine, Machines

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.drill.ledger import Record
    from ftstan.drill.scenario import Scenario

BY_NAME = {drill.name: drill for drill in DRILLS}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab on paper, below a path that a shell would take apart."""
    place = tmp_path / "a place"
    place.mkdir()
    image = Image(place / "disk", place / "kernel", place / "initrd", place / "key", "paper")
    machines = Machines(place, {name: Machine(name, image, place, place) for name in ADDRESSES})
    made = Lab(place, machines, print)
    made.write_inventory()
    return made


def written(lab: Lab, drill: Drill) -> Scenario:
    file = lab.state / "scenario.yaml"
    file.write_text(yaml.safe_dump(scenario(lab, drill)))
    return load(str(file))


@pytest.mark.parametrize("drill", DRILLS, ids=lambda drill: drill.name)
def test_each_drill_of_the_lab_can_be_played(lab: Lab, drill: Drill) -> None:
    made = written(lab, drill)
    assert made.name == drill.name
    assert [member.monitor for member in made.members] == [
        "http://127.0.0.1:22722",
        "http://127.0.0.1:22723",
    ]
    assert made.servers == ("nats://127.0.0.1:22712", "nats://127.0.0.1:22713")
    # Guests are slow, and some have to boot.
    assert all(step.within_s >= 120 for step in made.steps)


def test_commands_reach_their_machine_whole(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a scenario, a shell and ssh: braces, quotes and blanks arrive as they were meant."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$0.said"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = written(lab, BY_NAME["cut-storage"])
    (step,) = made.steps
    group = RemoteGroup(made, Access(made.servers, made.cluster, made.group, NatsLogin()))
    asyncio.run(group.begin(step, "b"))
    words = (tmp_path / "ssh.said").read_text().splitlines()
    assert f"IdentityFile={lab.state / 'key'}" in words
    assert words[-3:-1] == ["22703", "root@127.0.0.1"]
    assert "'{ type filter hook output priority 0; }' && nft add rule" in words[-1]
    asyncio.run(group.finish(step, "b"))
    assert (tmp_path / "ssh.said").read_text().endswith("nft delete table inet drill\n")


def result(records: list[Record], *failures: str) -> dict[str, Any]:
    return as_dict(Result("drill", "", 0, 1, judge(records), failures))


def test_a_clean_result_is_an_outcome_with_its_figures() -> None:
    fault = result(clean_ledger())["outages"][0]["t"] / 1e6
    found = outcome(BY_NAME["kill"], result(clean_ledger()), 0, [fault - 9, fault + 0.1])
    assert found.passed
    assert (found.acked, found.lost, found.twice) == (40, 0, 0)
    assert found.takeover_s == (0.2,)
    assert found.figures == {"store taken after": "0.1 s", "without acks": "20.5 s"}


def test_what_was_lost_or_came_too_late_or_was_not_fenced_fails_the_stage() -> None:
    lossy = [
        record
        for record in clean_ledger()
        if not (isinstance(record, Read) and record.sequence == 40)
    ]
    lost = outcome(BY_NAME["switchover"], result(lossy, "no takeover"), 0, [])
    assert lost.lost == 1
    assert "no takeover" in lost.failures
    fault = result(clean_ledger())["outages"][0]["t"] / 1e6
    freeze = BY_NAME["freeze-host"]
    for taken, said in (([fault + 20.5], "20.5 s"), ([fault - 1], "-")):
        late = outcome(freeze, result(clean_ledger()), freeze.fenced, taken)
        assert late.failures == (f"the store was taken after {said}, allowed are 20 s",)
    assert outcome(freeze, result(clean_ledger()), freeze.fenced, [fault + 11]).passed
    (failure,) = outcome(freeze, result(clean_ledger()), freeze.fenced - 1, [fault + 11]).failures
    assert "status 75" in failure
