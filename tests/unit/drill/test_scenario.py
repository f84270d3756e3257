"""Scenarios: what they may say, and where a mistake is told to stand.

Inventories and the drills that are shipped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import ConfigError
from ftstan.drill import catalogue
from ftstan.drill.errors import ScenarioError
from ftstan.drill.faults import KINDS, Expect
from ftstan.drill.inventory import read_inventory
from ftstan.drill.scenario import (
    COMMANDS,
    LOCAL,
    REMOTE,
    Member,
    Scenario,
    in_database,
    in_directory,
    load,
    read,
)

if TYPE_CHECKING:
    from pathlib import Path

REMOTE_HEAD = """\
driver: remote
cluster: c
group: g
servers: [nats://a:4222]
nodes:
  - name: a
    monitor: http://a:8222
  - name: b
    monitor: http://b:8222
"""


def wrong(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        read(text, "s.yaml")
    assert caught.value.hint
    return caught.value.text.splitlines()


def test_a_short_scenario_means_a_pair_and_the_usual_load() -> None:
    scenario = read("faults: [kill]\n", "dir/short.yaml")
    assert (scenario.name, scenario.driver, scenario.repeat) == ("short", LOCAL, 1)
    assert [member.name for member in scenario.members] == ["a", "b"]
    (step,) = scenario.steps
    assert (step.kind, step.node, step.expect) == ("kill", "active", Expect.TAKEOVER)


def test_a_cluster_has_three_nodes_and_needs_no_group() -> None:
    scenario = read("clustered: true\nfaults: [kill, stop, pause, switchover]\n", "short.yaml")
    assert scenario.clustered
    assert [member.name for member in scenario.members] == ["a", "b", "c"]
    third = "  - name: c\n    monitor: http://c:8222\nclustered: true\nfaults: [switchover]\n"
    assert read(REMOTE_HEAD.replace("group: g\n", "") + third, "s.yaml").group == ""


def test_everything_can_be_said() -> None:
    scenario = read(
        """\
name: long
nodes: [x, y, z]
workload: {channels: [a, b], publishers: 3, rate: 50, size: 10, in_flight: 7, durables: 2, queue: 0}
faults:
  - {do: pause, node: x, for: 1500ms, expect: same, within: 10}
  - {do: kill, node: standby}
repeat: 4
settle: 500ms
max_unavailable: 3s
options: ["-ft_poll_interval=20ms"]
volume_mib: 128
""",
        "s.yaml",
    )
    assert scenario.members == tuple(Member(name, words={"name": name}) for name in "xyz")
    first, second = scenario.steps
    assert (first.node, first.for_s, first.expect, first.within_s) == ("x", 1.5, Expect.SAME, 10.0)
    # Nobody has to take over for a standby.
    assert second.expect is Expect.ANY
    assert scenario.workload.channels == ("a", "b")
    assert (scenario.settle_s, scenario.max_unavailable_s, scenario.volume_mib) == (0.5, 3.0, 128)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("fautls: [kill]\n", 's.yaml:1:1: unknown key "fautls"; did you mean "faults"?'),
        (
            "faults:\n  - kil\n",
            's.yaml:2:5: "do" cannot be "kil"; did you mean "kill"?; it is one of',
        ),
        (
            "faults:\n  - do: kill\n    four: 3s\n",
            's.yaml:3:5: unknown key "four" in faults; did you mean "for"?',
        ),
        ("faults:\n  - do: kill\n    for: 3s\n", 's.yaml:3:5: "kill" takes no "for"'),
        (
            "faults:\n  - do: pause\n    for: soon\n",
            's.yaml:3:5: "for" must be a duration such as 3s or 500ms',
        ),
        (
            "faults:\n  - do: pause\n    for: 1m\n",
            's.yaml:3:5: "for" must be a duration of a day at most; a minute is 60s',
        ),
        ("faults:\n  - do: kill\n    node: q\n", 's.yaml:3:5: "node" cannot be "q"'),
        ("faults:\n  - for: 1s\n", 's.yaml:2:5: a fault needs "do"'),
        ("faults: [kill]\nrepeat: 0\n", 's.yaml:2:1: "repeat" must be 1 to 10000'),
        ("faults: [kill]\nrepeat: often\n", 's.yaml:2:1: "repeat" must be a whole number'),
        ("faults: [kill]\nnodes: 1\n", "s.yaml:2:1: a group has 2 to 9 nodes"),
        (
            "clustered: yes\nfaults: [kill, unlink-lock]\n",
            's.yaml:2:16: "unlink-lock" is for groups, not for clusters',
        ),
        ("clustered: true\nnodes: 5\nfaults: [kill]\n", "s.yaml:2:1: a cluster has 3 nodes"),
        (
            "faults: [kill]\nnodes: [a, a]\n",
            "s.yaml:2:1: a group has two nodes or more, each with a name of its own",
        ),
        (
            "faults: [kill]\nworkload:\n  rat: 3\n",
            's.yaml:3:3: unknown key "rat" in workload; did you mean "rate"?',
        ),
        (
            "faults: [kill]\nworkload: {channels: [a, b], publishers: 1}\n",
            "s.yaml:2:1: 2 channels need as many publishers",
        ),
        (
            "faults:\n  - {do: kill-sessions, node: standby}\n",
            's.yaml:2:25: "kill-sessions" takes no "node": it is done to the owner',
        ),
        ("faults: [kill]\nservers: [x]\n", 's.yaml:2:1: "servers" is for driver: remote'),
        ("nodes: 2\n", 's.yaml:1:1: "faults" must be a list of faults'),
        ("faults: [kill\n", "s.yaml:2:1: "),
        (
            REMOTE_HEAD + "faults:\n  - kill\n",
            's.yaml:11:5: "kill" needs a command "kill" under "commands"',
        ),
        (
            REMOTE_HEAD + "faults: [kill-host]\ncommands: {kill-host: x}\n",
            's.yaml:10:10: "kill-host" needs a command "start-host"',
        ),
        ("faults: [kill, freeze-host]\n", 's.yaml:1:16: "freeze-host" is for driver: remote'),
        (
            REMOTE_HEAD + "faults: [switchover]\nvolume_mib: 3\n",
            's.yaml:11:1: "volume_mib" is for driver: local',
        ),
        ("driver: remote\nfaults: [switchover]\n", 's.yaml:1:1: driver: remote needs "cluster"'),
    ],
)
def test_a_mistake_is_told_with_its_line_and_the_word_that_was_meant(text: str, line: str) -> None:
    assert any(told.startswith(line) for told in wrong(text)), wrong(text)


def test_all_mistakes_are_told_at_once() -> None:
    assert len(wrong("fautls: 1\nrepeat: 0\nfaults:\n  - kil\n")) == 3


def test_only_a_switchover_is_safe_in_production() -> None:
    commands = "commands: {kill: ssh}\n"
    lines = wrong(
        REMOTE_HEAD + commands + "production_safe: true\nfaults:\n  - switchover\n  - kill\n"
    )
    assert lines == ['s.yaml:14:5: "kill" is not safe in production; only switchover is']
    assert read(
        REMOTE_HEAD + "production_safe: true\nfaults: [switchover]\n", "s.yaml"
    ).production_safe


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *(
            (
                f"faults: [kill, {kind}]\n",
                f's.yaml:1:16: "{kind}" is done to a directory; this group stores in a database',
            )
            for kind in ("unlink-lock", "fill-disk", "slow-storage", "freeze-storage")
        ),
        (
            "clustered: true\nfaults: [kill]\n",
            "s.yaml: clustered: the nodes of a cluster store in directories",
        ),
        (
            REMOTE_HEAD + "faults: [switchover]\n",
            "s.yaml: driver: remote: its nodes have their own store",
        ),
        *(
            (
                f'options: ["{word}"]\nfaults: [kill]\n',
                f's.yaml: options: "{word.partition("=")[0]}" is the drill\'s to say',
            )
            for word in ("-sql_source=x", "--sql_source_file=x", "-st=file", "-c=x", "-cid=x")
        ),
    ],
)
def test_what_no_group_in_a_database_can_play_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        in_database(read(text, "s.yaml"), "postgres")
    assert caught.value.text == told


def test_other_faults_and_options_are_played_in_a_database() -> None:
    kinds = [kind for kind, known in KINDS.items() if not known.remote and not known.directory]
    text = f'options: ["-ft_steal_after=5s", "-sql_no_caching"]\nfaults: [{", ".join(kinds)}]\n'
    scenario = read(text, "s.yaml")
    assert in_database(scenario, "postgres").database == "postgres"
    with pytest.raises(ScenarioError) as caught:
        in_directory(scenario)
    assert re.fullmatch(r's.yaml:2:\d+: "kill-sessions" is done to a database', caught.value.text)
    assert "--sql-driver" in caught.value.hint
    assert in_directory(read("faults: [unlink-lock, fill-disk]\n", "s.yaml")).needs_volume


def test_every_fault_has_its_commands_and_a_remote_node_can_be_hurt_in_every_way() -> None:
    assert set(COMMANDS) == set(KINDS)
    names = sorted({name for names in COMMANDS.values() for name in names})
    commands = "commands:\n" + "".join(f"  {name}: echo {{name}}\n" for name in names)
    scenario = read(REMOTE_HEAD + commands + f"faults: [{', '.join(KINDS)}]\n", "s.yaml")
    assert len(scenario.steps) == len(KINDS)


def test_a_file_that_is_not_there_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file") as caught:
        load(str(tmp_path / "missing.yaml"))
    assert "--list" in caught.value.hint


# ---- inventories
# --------------------------------------------------------------------------------------------------

INI = """\
# hosts
[ftstan]
a ansible_host=10.0.0.1 zone=left
b ansible_host=10.0.0.2

[ftstan:vars]
monitor_port=8222

[all:children]
ftstan

[other]
c
"""

YAML = """\
all:
  vars: {monitor_port: 8222}
  children:
    ftstan:
      hosts:
        a: {ansible_host: 10.0.0.1, zone: left}
        b: {ansible_host: 10.0.0.2}
    other:
      hosts:
        c:
"""


@pytest.mark.parametrize(("name", "text"), [("hosts.ini", INI), ("hosts.yml", YAML)])
def test_nodes_come_from_an_inventory(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    hosts = read_inventory(str(tmp_path / name), "ftstan")
    assert [host["name"] for host in hosts] == ["a", "b"]
    assert hosts[0] == {
        "name": "a",
        "ansible_host": "10.0.0.1",
        "zone": "left",
        "monitor_port": "8222",
    }
    file = tmp_path / "s.yaml"
    file.write_text(
        f"driver: remote\ncluster: c\ngroup: g\nservers: [nats://a]\nfaults: [switchover]\n"
        f"inventory: {{file: {name}, group: ftstan, monitor: "
        f"'http://{{ansible_host}}:{{monitor_port}}'}}\n"
    )
    assert [member.monitor for member in load(str(file)).members] == [
        "http://10.0.0.1:8222",
        "http://10.0.0.2:8222",
    ]


def test_an_inventory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text(INI)
    with pytest.raises(ConfigError, match="has no hosts in group 'none'"):
        read_inventory(str(tmp_path / "hosts.ini"), "none")
    file = tmp_path / "s.yaml"
    head = "driver: remote\ncluster: c\ngroup: g\nservers: [nats://a]\nfaults: [switchover]\n"
    file.write_text(
        f"{head}inventory: {{file: hosts.ini, group: ftstan, monitor: 'http://{{rack}}'}}\n"
    )
    with pytest.raises(ScenarioError, match="'rack' is no variable of a host"):
        load(str(file))
    file.write_text(f"{head}inventory: {{file: gone.ini}}\n")
    with pytest.raises(ScenarioError, match=r"s.yaml:6:1: inventory .*gone.ini"):
        load(str(file))


# ---- what is shipped
# -------------------------------------------------------------------------------------------------


def test_every_fault_has_a_drill_of_its_own_that_is_shipped() -> None:
    drills = {scenario.name: scenario for scenario in catalogue.shipped()}
    here = {kind for kind in KINDS if not KINDS[kind].remote}
    assert here | {"mixed", "production", "hosts", "cluster", "database"} == set(drills)
    assert all({step.kind for step in drills[kind].steps} == {kind} for kind in here)
    assert {step.kind for step in drills["hosts"].steps} == set(KINDS) - here
    assert all(KINDS[step.kind].clusters for step in drills["cluster"].steps)
    assert in_database(drills["database"], "postgres").database == "postgres"
    assert {step.kind for step in drills["database"].steps} >= {
        kind for kind in here if KINDS[kind].database
    }
    assert all(scenario.text for scenario in drills.values())


def test_the_drill_for_production_is_safe_and_has_a_channel_of_its_own() -> None:
    scenario: Scenario = load(catalogue.find("production"))
    assert scenario.production_safe
    assert scenario.driver == REMOTE
    assert {step.kind for step in scenario.steps} == {"switchover"}
    assert scenario.workload.channels == ("ftstan-drill",)


def test_a_word_is_a_file_first_and_a_shipped_drill_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert catalogue.find("kill").endswith("drills/kill.yaml")
    (tmp_path / "kill").write_text("faults: [stop]\n")
    assert catalogue.find("kill") == "kill"
    assert catalogue.find("./other") == "./other"
