"""The stages that hurt the pair under load: each is a scenario for ``ftstanctl drill``, played and
judged on this host.

A scenario is written out complete, beside its evidence, so that it can be played again by hand.
Rates are low, since the guests are slow; what is judged besides the ledger is lease arithmetic,
never speed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from lab.errors import LabError
from lab.lab import CLUSTER, DATASTORE, GROUP
from lab.machines import LEASE_S, MEMBERS, STORAGE
from lab.pair import until_whole
from lab.playbooks import process
from lab.stages import ROOT, Outcome, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lab.lab import Lab
    from lab.machines import Machine

SOURCES = ("lab/drills.py", "lab/hurt.py", "lab/machines.py", "ftstan/drill", "ftstan/client")

_CANNOT = 3
_RATE = 20
_FENCED = "status=75/TEMPFAIL"
_TAKEN = "STREAM: Server is active"
#: Longer than the lease, so that a host which is away loses its lock, and there is time to see the
#: other one serve.
_AWAY = {"for": f"{3 * LEASE_S}s"}
#: What a lease may take beyond its seconds: the file server looks for expired ones at intervals, a
#: standby polls, and the command that begins the fault has to start first.
_LEASE_SLACK_S = 10.0
#: Until a node must be back, also where its host has to boot: a guest's Python takes seconds to
#: start.
_BACK = "400s"
_CUT = (
    "nft add table inet drill && nft add chain inet drill out '{ type filter hook output "
    "priority 0; }' && "
    "nft add rule inet drill out tcp dport 2049 drop"
)


@dataclass(frozen=True, slots=True)
class Drill:
    """A stage. ``faults`` as in a scenario; ``lock_s``: nobody may wait longer for the store.

    ``fenced``: so many times, at least, a node must end with status 75.
    """

    name: str
    text: str
    faults: tuple[dict[str, str], ...]
    lock_s: float | None = None
    fenced: int = 0

    def stage(self) -> Stage:
        """The stage that plays it."""
        return Stage(self.name, self.text, lambda lab: play(lab, self), SOURCES)


def _faults(kind: str, times: int, **more: str) -> tuple[dict[str, str], ...]:
    return ({"do": kind, "within": _BACK, **more},) * times


DRILLS = (
    Drill("kill", "SIGKILL to the active, twice", _faults("kill", 2), lock_s=_LEASE_SLACK_S),
    Drill("stop", "the active is stopped", _faults("stop", 1)),
    Drill("switchover", "an operator moves the service, twice", _faults("switchover", 2)),
    Drill(
        "rolling-restart",
        "every node is restarted, the standby first",
        _faults("rolling-restart", 1),
    ),
    Drill(
        "freeze-host",
        "the active's host stands still for three leases, twice; it comes back as a standby",
        _faults("freeze-host", 2, **_AWAY),
        lock_s=LEASE_S + _LEASE_SLACK_S,
        fenced=2,
    ),
    Drill(
        "kill-host",
        "the active's host loses its power, and boots again",
        _faults("kill-host", 1, **_AWAY),
        lock_s=LEASE_S + _LEASE_SLACK_S,
    ),
    Drill(
        "restart-storage",
        "the NFS server is restarted, twice; nothing is lost, whoever serves afterwards",
        _faults("restart-storage", 2),
    ),
    Drill(
        "cut-storage",
        "the active is cut off from port 2049 for three leases",
        _faults("cut-storage", 1, **_AWAY),
        fenced=1,
    ),
    Drill(
        "reboot-all",
        "all three machines are reset at once, and one node serves without anybody's help",
        _faults("reboot-all", 1),
    ),
)


def scenario(lab: Lab, drill: Drill, commands: dict[str, str] | None = None) -> dict[str, Any]:
    """What ``ftstanctl drill`` plays. ``commands``: further ones."""
    storage = lab.machines.storage
    reached = braced(shlex.join(["ssh", *storage.ssh_options()]))
    there = f"{reached} -p {{ansible_port}} root@127.0.0.1 "
    hurt = braced(shlex.join([sys.executable, "-m", "lab.hurt", "--state", str(lab.state)]))
    known = {
        "kill": there + _quoted("systemctl kill -s KILL ftstan"),
        "stop": there + _quoted("systemctl stop ftstan"),
        "start": there + _quoted("systemctl start ftstan"),
        "freeze-host": f"{hurt} freeze {{name}}",
        # Commands of operators carry the time: what a time service would do to a host that had
        # stood still.
        "thaw-host": f"{hurt} thaw {{name}} && {hurt} set-clock {{name}}",
        "kill-host": f"{hurt} kill {{name}}",
        "start-host": f"{hurt} start {{name}}",
        "cut-storage": there + _quoted(_CUT),
        "heal-storage": there + _quoted("nft delete table inet drill"),
        "restart-storage": braced(shlex.join(storage.ssh_words("systemctl restart nfs-server"))),
        "reboot-all": f"{hurt} reset {STORAGE} {' '.join(MEMBERS)}",
    }
    return {
        "name": drill.name,
        "text": drill.text,
        "driver": "remote",
        "cluster": CLUSTER,
        "group": GROUP,
        "servers": [f"nats://127.0.0.1:{machine.nats_port}" for machine in lab.machines.members],
        "inventory": {
            "file": str(lab.inventory),
            "group": "ftstan",
            "monitor": "http://127.0.0.1:{monitor_port}",
        },
        "commands": known | (commands or {}),
        "workload": {
            "channels": ["drill"],
            "publishers": 2,
            "rate": _RATE,
            "in_flight": 16,
            "durables": 1,
            "queue": 1,
        },
        "settle": "10s",
        "faults": list(drill.faults),
    }


def _quoted(command: str) -> str:
    return braced(shlex.quote(command))


def braced(text: str) -> str:
    """A text that stands for itself in a command of a scenario."""
    return text.replace("{", "{{").replace("}", "}}")


def play(lab: Lab, drill: Drill, commands: dict[str, str] | None = None) -> Outcome:
    """Play a drill, and judge it. Raises ``LabError`` if it could not be played.

    ``commands``: of further faults.
    """
    until_whole(lab)
    evidence = lab.evidence(drill.name)
    file = evidence / "scenario.yaml"
    key = evidence / "admin.key"
    file.write_text(
        yaml.safe_dump(scenario(lab, drill, commands), sort_keys=False), encoding="utf-8"
    )
    key.touch(mode=0o600)
    key.write_text(lab.machines.members[0].ssh(f"cat {DATASTORE}/admin.key"), encoding="utf-8")
    run = evidence / time.strftime("%Y%m%d-%H%M%S")
    before = _fenced(lab)
    words = [
        sys.executable,
        "-m",
        "ftstan.cli.ctl",
        "drill",
        str(file),
        "--out",
        str(run),
        "--admin-key",
        str(key),
    ]
    last = ""
    with process(words, cwd=ROOT, environment={**os.environ}) as playing:
        assert playing.stdout is not None
        for line in playing.stdout:
            last = line.rstrip() or last
            lab.say(f"  {line.rstrip()}")
        status = playing.wait()
    _keep_journals(lab, evidence)
    if status == _CANNOT or not (run / "result.json").exists():
        raise LabError(
            f"drill {drill.name} could not be played (status {status}): {last}", hint=f"see {run}"
        )
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    taken = sorted(t for machine in lab.machines.members for t in taken_at(machine))
    return outcome(drill, result, _fenced(lab) - before, taken)


def outcome(drill: Drill, result: dict[str, Any], fenced: int, taken: Sequence[float]) -> Outcome:
    """What a stage came to.

    ``result``: as ``ftstanctl drill`` keeps it. ``fenced``: ends with status 75 meanwhile.
    ``taken``: when nodes took the store, seconds since 1970, sorted; also before the drill.
    """
    broken = {breach["rule"]: breach["count"] for breach in result["breaches"]}
    takeovers = tuple(row["active_ms"] / 1e3 for row in result["takeovers"])
    failures = [
        f"{x['text']}: {x['count']}, such as {x['examples'][0]}" for x in result["breaches"]
    ]
    failures += result["failures"]
    faults = [outage["t"] / 1e6 for outage in result["outages"]]
    waits = [next((t - fault for t in taken if t > fault), None) for fault in faults]
    if drill.lock_s is not None:
        late = [x for x in waits if x is None or x > drill.lock_s]
        failures += [
            f"the store was taken after {_seconds(x)}, allowed are {drill.lock_s:g} s" for x in late
        ]
    if fenced < drill.fenced:
        failures.append(
            f"{fenced} ends with status 75, and there should be {drill.fenced} of nodes that "
            "lost the store"
        )
    away = [row["ms"] / 1e3 for row in result["outages"] if row["ms"] is not None]
    figures = {
        "store taken after": ", ".join(map(_seconds, waits)),
        "without acks": ", ".join(map(_seconds, away)),
    }
    if fenced > 0:
        figures["fenced (75)"] = str(fenced)
    return Outcome(
        acked=result["acked"],
        lost=broken.get("stored", 0),
        twice=broken.get("once", 0),
        takeover_s=takeovers,
        figures=figures,
        failures=tuple(failures),
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def taken_at(machine: Machine) -> list[float]:
    """When a node there took the store, by this host's clock: seconds since 1970, to about a
    second.

    What follows, the recovery, is slow on an emulated processor and says nothing of leases.
    """
    asked = time.time()
    now, *lines = machine.ssh(
        f"date +%s.%N; journalctl -u ftstan -o short-unix --no-pager | grep '{_TAKEN}' || true"
    ).split("\n")
    behind = (asked + time.time()) / 2 - float(now)
    return [float(line.split()[0]) + behind for line in lines if line]


def _fenced(lab: Lab) -> int:
    """How often nodes have ended with status 75 since their hosts booted."""
    count = f"journalctl -u ftstan -o cat | grep -c {_FENCED} || true"
    return sum(int(machine.ssh(count)) for machine in lab.machines.members)


def _keep_journals(lab: Lab, evidence: Path) -> None:
    for machine in lab.machines.by_name.values():
        what = "-k -u nfs-server" if machine.name == STORAGE else "-u ftstan"
        said = machine.ssh(f"journalctl {what} -o short-precise -n 2000 --no-pager")
        (evidence / f"{machine.name}.journal").write_text(said, encoding="utf-8")


def stages(drills: Sequence[Drill] = DRILLS) -> tuple[Stage, ...]:
    """All of them, in their order: first what happens every week, at last what happens once."""
    return tuple(drill.stage() for drill in drills)
