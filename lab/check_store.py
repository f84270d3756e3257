"""The stage ``check-store``: what ``ftstanctl check-store`` says of real NFS: one host, two, one of
them frozen.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from lab.errors import LabError
from lab.lab import MOUNT
from lab.machines import LEASE_S
from lab.stages import Outcome

if TYPE_CHECKING:
    import subprocess

    from lab.lab import Lab
    from lab.machines import Machine

_DIRECTORY = f"{MOUNT}/check"
_COMMAND = f"sudo -u ftstan ftstanctl check-store {_DIRECTORY}"
#: Two hosts that are emulated find each other late, and take their turns slowly.
_PEER = f"{_COMMAND} --peer --contend 10 --wait 400"
_FROZEN_S = 3 * LEASE_S
_CANNOT_TELL = 3
_LIMIT_S = 900.0


def check_store(lab: Lab) -> Outcome:
    """Each host alone, then both, and one of them is frozen while it holds the lock."""
    frozen, other = lab.machines.members
    other.ssh(f"install -d -o ftstan -g ftstan {_DIRECTORY}")
    figures = {}
    failures = []
    for host in lab.machines.members:
        lab.say(f"  check-store on {host.name}")
        report = _report(lab, host, host.popen(f"{_COMMAND} --output json"))
        figures[host.name] = str(report["verdict"])
        failures += _bad(report)
    lab.say(f"  check-store --peer on both; {frozen.name} is to be frozen")
    watching = other.popen(f"{_PEER} --output json")
    held = frozen.popen(f"{_PEER} --freeze")
    try:
        _wait_for("freeze this host now", held)
        time.sleep(3.0)
        lab.say(f"  {frozen.name} is frozen for {_FROZEN_S} s")
        frozen.freeze()
        time.sleep(_FROZEN_S)
    finally:
        frozen.thaw()
    report = _report(lab, other, watching)
    held.communicate(timeout=_LIMIT_S)
    frozen.set_clock()
    figures["both"] = str(report["verdict"])
    failures += _bad(report)
    moved = [
        float(x["figures"]["frozen_s"]) for x in report["findings"] if "frozen_s" in x["figures"]
    ]
    for x in report["takeover"]:
        figures[str(x["event"])] = f"{x['seconds']:.1f} s"
    if not moved:
        failures.append(f"the lock of {frozen.name}, frozen for {_FROZEN_S} s, did not move")
    return Outcome(takeover_s=tuple(moved), figures=figures, failures=tuple(failures))


def _report(lab: Lab, host: Machine, running: subprocess.Popen[str]) -> dict[str, Any]:
    """What a run with ``--output json`` says at its end. Raises ``LabError``."""
    said, _ = running.communicate(timeout=_LIMIT_S)
    if running.returncode >= _CANNOT_TELL or "{" not in said:
        raise LabError(
            f"check-store on {host.name} ended with status {running.returncode}: "
            f"{said.strip()[-500:]}"
        )
    report: dict[str, Any] = json.loads(said[said.index("{") :])
    name = f"{report['mode']}-{host.name}.json"
    (lab.evidence("check-store") / name).write_text(json.dumps(report, indent=1), encoding="utf-8")
    return report


def _bad(report: dict[str, Any]) -> list[str]:
    return [f"{x['check']}: {x['text']}" for x in report["findings"] if x["outcome"] == "bad"]


def _wait_for(text: str, running: subprocess.Popen[str]) -> None:
    """Read until a line has the text. Raises ``LabError`` with everything that was said instead."""
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if text in line:
            return
    raise LabError(f"check-store --freeze ended early: {''.join(lines).strip()[-500:]}")
