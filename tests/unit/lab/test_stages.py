"""The lab's own book-keeping: which stages are run again, what one came to, the inventory, the
table. No machines.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.drill.inventory import read_inventory
from lab import playbooks, table, units
from lab.catalogue import PRODUCT, STAGES
from lab.errors import LabError
from lab.image import Image
from lab.lab import Lab
from lab.machines import Machines
from lab.running import run
from lab.stages import Book, Entry, Outcome, Stage, chosen, play, sources_of, within

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def passing(_lab: Lab) -> Outcome:
    return Outcome(acked=1200, lost=0, twice=0, takeover_s=(1.25, 11.0), figures={"rate": "20/s"})


def impossible(_lab: Lab) -> Outcome:
    raise LabError("no machine", hint="start one")


def slow(_lab: Lab) -> Outcome:
    while True:
        time.sleep(0.01)


def stage(
    name: str = "kill", run: Callable[[Lab], Outcome] = passing, limit_s: float = 60.0
) -> Stage:
    return Stage(name, "a stage", run, limit_s=limit_s)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    monkeypatch.setattr("lab.machines.SOCKETS", tmp_path / "run")
    image = Image(
        tmp_path / "disk", tmp_path / "vmlinuz", tmp_path / "initrd", tmp_path / "key", "x"
    )
    return Machines.of(image, tmp_path)


@pytest.fixture
def lab(tmp_path: Path, machines: Machines) -> Lab:
    return Lab(tmp_path, machines, lambda _text: None)


def test_a_stage_that_has_passed_is_kept_over_runs_and_is_old_when_its_sources_change(
    tmp_path: Path, lab: Lab
) -> None:
    entry = play(stage(), lab, "sources")
    Book(tmp_path / "book.json").note(entry)
    book = Book(tmp_path / "book.json")
    assert book.entries == {"kill": entry}
    assert book.passed(stage(), "sources")
    assert not book.passed(stage(), "others")
    assert not book.passed(stage("stop"), "sources")


def test_new_machines_have_passed_nothing(tmp_path: Path, lab: Lab) -> None:
    book = Book(tmp_path / "book.json")
    book.note(play(stage(), lab, "sources"))
    book.forget()
    assert Book(tmp_path / "book.json").entries == {}


def test_a_stage_that_could_not_be_run_has_failed_and_says_why(tmp_path: Path, lab: Lab) -> None:
    entry = play(stage(run=impossible), lab, "sources")
    assert entry.outcome.failures == ("no machine (start one)",)
    book = Book(tmp_path / "book.json")
    book.note(entry)
    assert not book.passed(stage(), "sources")


def test_a_stage_that_takes_too_long_has_failed(lab: Lab) -> None:
    entry = play(stage(run=slow, limit_s=0.05), lab, "sources")
    assert entry.outcome.failures == ("not done after 0.05 s",)
    with within(60.0):
        pass  # the clock of the stage before is not running any more


def test_stages_are_chosen_by_name_or_from_one_on() -> None:
    stages = [stage(name) for name in ("one", "two", "three")]
    assert chosen(stages, [], "") == stages
    assert chosen(stages, ["three", "one"], "") == [stages[0], stages[2]]
    assert chosen(stages, [], "two") == stages[1:]
    with pytest.raises(LabError, match="there is no stage 'four'") as found:
        chosen(stages, ["four"], "")
    assert found.value.hint == "stages: one, two, three"


def test_a_change_of_any_file_below_a_source_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "roles").mkdir()
    (tmp_path / "roles" / "main.yml").write_text("a")
    before = sources_of(["roles"], tmp_path)
    (tmp_path / "roles" / "main.yml").write_text("b")
    assert sources_of(["roles"], tmp_path) != before
    with pytest.raises(LabError, match=r"nothing\.yml is named as a source"):
        sources_of(["nothing.yml"], tmp_path)


def test_the_stages_have_different_names_and_sources_that_exist() -> None:
    assert len({stage.name for stage in STAGES}) == len(STAGES)
    assert all(sources_of([*stage.sources, *PRODUCT]) for stage in STAGES)


def test_the_inventory_tells_ansible_and_drills_how_each_host_is_reached(lab: Lab) -> None:
    lab.write_inventory()
    hosts = read_inventory(str(lab.inventory), "ftstan")
    assert [host["name"] for host in hosts] == ["a", "b"]
    for host in hosts:
        machine = lab.machines[host["name"]]
        assert host["ansible_host"] == "127.0.0.1"
        reached = [machine.ssh_port, machine.nats_port, machine.monitor_port]
        assert [host["ansible_port"], host["nats_port"], host["monitor_port"]] == [
            str(port) for port in reached
        ]
        assert host["ftstan_datastore"] == "/nss/lab"


def test_machines_have_ports_of_their_own(machines: Machines) -> None:
    ports = [
        p for m in machines.by_name.values() for p in (m.ssh_port, m.nats_port, m.monitor_port)
    ]
    assert len(set(ports)) == 9


def test_a_machine_that_is_not_there_has_no_process_and_is_ended_without_complaint(
    machines: Machines,
) -> None:
    assert machines["a"].pid is None
    machines["a"].kill()
    with pytest.raises(LabError, match="a: stop: "):
        machines["a"].freeze()


def test_the_process_of_somebody_else_is_not_taken_for_a_machine(
    machines: Machines, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir(exist_ok=True)
    (next((tmp_path / "run").iterdir()) / "a.pid").write_text("1")
    assert machines["a"].pid is None


def test_the_table_shows_every_stage_with_what_the_ledger_said_and_why_one_failed(lab: Lab) -> None:
    stages = [stage("kill"), stage("stop", impossible), stage("boot")]
    entries = {x.name: play(x, lab, "") for x in stages[:2]}
    kill, stop, boot = table.rows(stages, entries)
    assert kill == ("kill", "passed", "1,200", "0", "0", "1.2 s, 11.0 s", "0.0 min", "rate 20/s")
    assert stop[:2] == ("stop", "FAILED")
    assert boot[:2] == ("boot", "not run")
    assert table.plain(stages, entries).splitlines()[-1] == "stop: no machine (start one)"
    assert (
        table.markdown(stages, entries)
        .splitlines()[2]
        .startswith("| kill | passed | 1,200 | 0 | 0 |")
    )


def event(kind: str, **more: object) -> str:
    return json.dumps({"_event": kind, "task": {"name": "Install"}, **more})


def test_a_recap_names_what_changed_and_what_failed() -> None:
    told: list[str] = []
    lines = [
        "[WARNING]: something\n",
        event("v2_playbook_on_task_start"),
        event("v2_runner_on_ok", hosts={"a": {"changed": True}, "b": {"changed": False}}),
        event("v2_runner_on_failed", hosts={"b": {"msg": "no space", "stderr": "left"}}),
        event("v2_playbook_on_stats", stats={"a": {"changed": 2}, "b": {"changed": 1}}),
    ]
    recap = playbooks.follow(lines, told.append)
    assert told == ["Install"]
    assert recap.changed == ["a: Install"]
    assert recap.failed == ["b: Install: no space / left"]
    assert recap.count("changed") == 3


def test_a_service_that_is_not_ready_or_not_its_own_user_is_unfit() -> None:
    text = (
        "ActiveState=active\nSubState=running\nUser=ftstan\nResult=success\n"
        "StatusText=FT_ACTIVE: serving, epoch 3\n"
    )
    assert units.unfit(units.properties(text), serves=True) == []
    assert units.unfit(units.properties(text), serves=False) == [
        "the status is 'FT_ACTIVE: serving, epoch 3', and the node is FT_STANDBY"
    ]
    assert units.unfit(units.properties(text.replace("ftstan", "root")), serves=True) == [
        "User is root, not ftstan"
    ]
    assert units.exposed("→ Overall exposure level for ftstan.service: 1.3 OK") == 1.3
    assert units.exposed("") == 10.0


def test_a_command_that_fails_says_its_last_words() -> None:
    with pytest.raises(LabError, match=r"^sh ended with status 3: out\nlast$"):
        run(["sh", "-c", "echo out; echo last >&2; exit 3"])
    with pytest.raises(LabError, match=r"^slow: no end after 0\.05 s$"):
        run(["sleep", "5"], "slow", limit_s=0.05)
    with pytest.raises(LabError, match=r"^no-such-command: No such file"):
        run(["no-such-command"])


def test_entries_are_what_was_written(tmp_path: Path) -> None:
    entry = Entry("kill", "x", 1.0, 2.0, Outcome(takeover_s=(1.0,), failures=("lost",)))
    Book(tmp_path / "book.json").note(entry)
    assert Book(tmp_path / "book.json").entries["kill"] == entry
    assert not entry.outcome.passed
