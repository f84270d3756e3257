"""The stage ``upgrade``: ``upgrade.yml`` puts the next release of the package on both hosts, while
clients publish.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from lab import drills, playbooks
from lab.packages import package
from lab.stages import Stage

if TYPE_CHECKING:
    from lab.lab import Lab
    from lab.stages import Outcome

_RELEASE = "2"
_DRILL = drills.Drill(
    "upgrade",
    "upgrade.yml under load: the next release on both hosts",
    ({"do": "upgrade", "within": "1500s"},),
)
#: The release whose files the service has mapped, as the playbook itself looks for it.
_RUNS = (
    r"grep -om1 '/usr/lib/ftstan/[^/]*' /proc/$(systemctl show -p MainPID --value "
    r"ftstan.service)/maps"
)


def upgrade(lab: Lab) -> Outcome:
    """Everything of a drill, and behind it both services run the new release."""
    lab.write_inventory()
    new = package(lab, _RELEASE)
    outcome = drills.play(lab, _DRILL, {"upgrade": command(lab, str(new))})
    run = {
        machine.name: machine.ssh(_RUNS).strip().rpartition("/")[2]
        for machine in lab.machines.members
    }
    old = [
        f"{name} runs {version}"
        for name, version in run.items()
        if not version.endswith(f"-{_RELEASE}")
    ]
    return replace(outcome, failures=(*outcome.failures, *old), figures={**outcome.figures, **run})


def command(lab: Lab, new: str) -> str:
    """The shell command that runs the playbook, for a scenario."""
    log = lab.evidence(_DRILL.name) / "upgrade.jsonl"
    variables = {
        key: value
        for key, value in playbooks.environment(lab.state).items()
        if key not in os.environ
    }
    words = ["env", *(f"{key}={value}" for key, value in variables.items())]
    words += playbooks.command(lab, "upgrade", "-e", f"ftstan_package_file={new}")
    return drills.braced(f"{shlex.join(words)} > {shlex.quote(str(log))} 2>&1")


STAGE = Stage(_DRILL.name, _DRILL.text, upgrade, (*drills.SOURCES, "lab/upgrade.py"))
