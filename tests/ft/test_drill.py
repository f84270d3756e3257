"""Short drills on real groups: a kill and a switchover under supervisord, and nodes that are
reached by commands.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from ftstan.client import NatsLogin
from ftstan.drill import ledger
from ftstan.drill.ledger import Fault, Owner, Publish, Read
from ftstan.drill.local import CLUSTER, GROUP, LocalGroup
from ftstan.drill.play import Play
from ftstan.drill.remote import RemoteGroup
from ftstan.drill.scenario import read
from ftstan.drill.workload import Access
from ftstan.version import __version__
from tests.processes import alive, until

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.drill.result import Result
    from ftstan.drill.scenario import Scenario
    from tests.processes import Child, Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

SHORT = """\
text: Short.
workload: {{rate: 100, publishers: 1, queue: 2}}
settle: 300ms
faults: [{fault}]
"""


class Quiet:
    """Somebody who keeps what a drill says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, text: str) -> None:
        pass


def drill(stage: Stage, fault: str, more: str = "") -> tuple[Child, Path]:
    """A drill as it is started by hand, and where it keeps its things."""
    file = stage.directory / "short.yaml"
    file.write_text(SHORT.format(fault=fault) + more)
    out = stage.directory / "run"
    words = [
        sys.executable,
        "-m",
        "ftstan.cli.ctl",
        "drill",
        str(file),
        "--out",
        str(out),
        "--output",
        "json",
    ]
    return stage.run("drill", [*words, "--junit", str(stage.directory / "j.xml")]), out


def said(child: Child) -> dict[str, Any]:
    found = re.search(r"^\{.*\}$", child.text(), re.MULTILINE)
    assert found is not None, child.tail()
    page: dict[str, Any] = json.loads(found[0])
    return page


def test_a_short_drill_of_a_cluster_is_passed_and_judges_who_led(stage: Stage) -> None:
    child, out = drill(stage, "kill, switchover", "clustered: true\n")
    assert child.status(300.0) == 0, child.tail()
    page = said(child)
    assert page["passed"]
    assert [row["fault"] for row in page["takeovers"]] == ["kill", "switchover"]
    assert len(page["setting"]["nodes"]) == 3
    # Epochs are those of the log, so that of two leaders each would be seen.
    owners = [r for r in ledger.read(str(out / "ledger")) if isinstance(r, Owner)]
    led = list(dict.fromkeys((owner.epoch, owner.node) for owner in owners))
    assert [epoch for epoch, _ in led] == sorted({owner.epoch for owner in owners})
    assert len(led) == 3


@pytest.mark.parametrize("fault", ["kill", "switchover"])
def test_a_short_local_drill_is_passed_and_leaves_its_evidence(stage: Stage, fault: str) -> None:
    child, out = drill(stage, fault)
    assert child.status() == 0, child.tail()
    page = said(child)
    assert page["passed"]
    (takeover,) = page["takeovers"]
    assert takeover["fault"] == fault
    assert [row["count"] for row in page["unavailability_ms"]] == [1]
    assert page["acked"] > 0
    # An operator's report: where, and what was measured.
    host = socket.gethostname()
    assert [(node["host"], node["version"]) for node in page["setting"]["nodes"]] == [
        (host, __version__)
    ] * 2
    assert ET.parse(stage.directory / "j.xml").getroot().get("failures") == "0"  # ours
    assert "passed" in (out / "report.html").read_text()
    records = list(ledger.read(str(out / "ledger")))
    # The owners said which epochs they have: without that nobody could see two of them.
    assert len({record.epoch for record in records if isinstance(record, Owner)}) == 2
    assert {record.epoch for record in records if isinstance(record, Read)} == {1, 2}
    status = {"kill": "ENDED {} (SIGKILL)", "switchover": "FENCED {} (75)"}[fault]
    assert status.format(takeover["former"]) in (out / "logs" / "ends.log").read_text()


def test_a_drill_that_is_ended_leaves_nothing_running(stage: Stage) -> None:
    child, out = drill(stage, "{do: pause, for: 600s}")
    until(
        lambda: "pause of" in (child.text() + _ledger_text(out)) or _paused(out),
        "the fault to begin",
    )
    pids = _pids(out)
    assert len(pids) == 3
    child.signal(signal.SIGTERM)
    assert child.status() == 130, child.tail()
    assert [pid for pid in pids if alive(pid)] == []


def _ledger_text(out: Path) -> str:
    path = out / "ledger" / "drill.jsonl"
    return path.read_text() if path.exists() else ""


def _pids(out: Path) -> list[int]:
    """Both nodes and the NATS server, as supervisord's log names them."""
    text = (out / "logs" / "supervisord.log").read_text()
    return [int(pid) for pid in re.findall(r"spawned: '(?:a|b|nats)' with pid (\d+)", text)]


def _paused(out: Path) -> bool:
    """Whether one of the nodes is stopped."""
    if not (out / "logs" / "supervisord.log").exists():
        return False
    for pid in _pids(out):
        if alive(pid):
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    return True
    return False


def test_nodes_that_somebody_else_runs_are_hurt_by_commands_and_the_channel_goes_afterwards(
    stage: Stage,
) -> None:
    result, lines = _remote_drill(
        stage, "faults: [kill, switchover]", "commands: {kill: '@signalProcess {name} KILL'}"
    )
    assert result.passed, lines
    assert {outage.fault for outage in result.verdict.outages} == {"kill", "switchover"}
    records = _records(stage)
    assert {record.channel for record in records if isinstance(record, Publish)} == {"drill.once"}
    assert [record.ends_epoch for record in records if isinstance(record, Fault)] == [True, True]
    assert not (stage.directory / "host" / "store" / "drill.once").exists()


HOST_FAULTS = """\
faults:
  - {do: kill-host, for: 1s}
  - {do: freeze-host, for: 1s, expect: same}
  - {do: restart-storage, expect: same}
  - reboot-all
"""

HOST_COMMANDS = """\
commands:
  kill-host: "@stopProcess {name}"
  start-host: "@startProcess {name}"
  start: "false"
  freeze-host: "@signalProcess {name} STOP"
  thaw-host: "@signalProcess {name} CONT"
  restart-storage: "true"
  reboot-all: "@stopProcess a b nats && sleep 2 && @startProcess nats b a"
"""


def test_hosts_are_hurt_by_commands_and_whoever_starts_them_again_starts_the_nodes(
    stage: Stage,
) -> None:
    """Of two nodes and a NATS server that are gone at the same time nobody stays away, clients
    included.
    """
    result, lines = _remote_drill(stage, HOST_FAULTS, HOST_COMMANDS)
    assert result.passed, lines
    found = [
        (record.fault, record.ends_epoch) for record in _records(stage) if isinstance(record, Fault)
    ]
    assert found == [
        ("kill-host", True),
        ("freeze-host", False),
        ("restart-storage", False),
        ("reboot-all", True),
    ]
    away = {outage.fault: outage.ms or 0.0 for outage in result.verdict.outages}
    assert away["reboot-all"] > 2000
    assert [switch.fault for switch in result.verdict.switches] == [
        "start",
        "kill-host",
        "reboot-all",
    ]


def _remote_drill(stage: Stage, faults: str, commands: str) -> tuple[Result, str]:
    """The group is a local drill's; the drill that is tested knows only addresses and commands.

    ``@`` in a command: a word of supervisord, for the programs named behind it; a word in capitals
    is a signal.
    """
    for name in ("host", "run"):
        os.mkdir(stage.directory / name)
    script = stage.directory / "ask.py"
    script.write_text(ASK)

    async def both() -> tuple[Result, str]:
        host = LocalGroup(read("faults: [kill]\n", "host.yaml"), str(stage.directory / "host"))
        try:
            await host.prepare()
            told = Quiet()
            ask = f"{sys.executable} {script} {host.socket} "
            scenario = _remote(host, f"{faults}\n{commands.replace('@', ask)}")
            group = RemoteGroup(scenario, _access(host))
            await _until_answered(group)
            result = await Play(scenario, group, str(stage.directory / "run"), told, "once").run()
            served = "\n".join(told.lines)
        finally:
            await host.end()
        return result, served

    return asyncio.run(both())


ASK = """\
import sys
from ftstan.supervised.rpc import call

socket, method, *words = sys.argv[1:]
signals = [word for word in words if word.isupper()]
for name in words[: len(words) - len(signals)]:
    call(socket, method, name, *signals)
"""


def _records(stage: Stage) -> list[ledger.Record]:
    return list(ledger.read(str(stage.directory / "run" / "ledger")))


async def _until_answered(group: RemoteGroup) -> None:
    for _ in range(600):
        try:
            await group.prepare()
        except Exception:  # noqa: BLE001  # the last one is the test's
            await asyncio.sleep(0.1)
        else:
            return
    await group.prepare()


def _remote(host: LocalGroup, rest: str) -> Scenario:
    nodes = "".join(f"  - {{name: {x.name}, monitor: '{x.monitor}'}}\n" for x in host.members)
    text = (
        f"driver: remote\ncluster: {CLUSTER}\ngroup: {GROUP}\nservers: "
        f"[{host.access.servers[0]}]\nnodes:\n{nodes}"
    )
    return read(
        f"{text}workload: {{rate: 100, publishers: 1, queue: 0}}\nsettle: 200ms\n{rest}",
        "remote.yaml",
    )


def _access(host: LocalGroup) -> Access:
    local = host.access
    return Access(local.servers, CLUSTER, GROUP, NatsLogin(), local.environment, local.key_words)
