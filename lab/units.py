"""The stage ``units``: the service as systemd sees it on real hosts, on NFS: ready, fed, confined,
and archiving.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from lab import pair
from lab.lab import ARCHIVED, CLUSTER, SPOOL
from lab.machines import until
from lab.stages import Outcome

if TYPE_CHECKING:
    from lab.lab import Lab
    from lab.machines import Machine

_PROPERTIES = (
    "ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "User", "Result",
    "WatchdogTimestampMonotonic",
)  # fmt: skip
_PIPELINE = "/usr/lib/ftstan/current/bin/python -m ftstan.cli.pipeline.command"
_MOST_EXPOSED = 1.5
_FED_WITHIN_S = 20.0
_MESSAGES = 1000


def units(lab: Lab) -> Outcome:
    """Both services, and what the limits of a channel remove."""
    pair.until_whole(lab)
    (active,) = pair.active(lab)
    figures: dict[str, str] = {}
    failures: list[str] = []
    for machine in lab.machines.members:
        shown = properties(machine.ssh(f"systemctl show ftstan.service -p {','.join(_PROPERTIES)}"))
        failures += [f"{machine.name}: {text}" for text in unfit(shown, serves=machine is active)]
        owners = machine.ssh(f"ps -o user= -p {shown['MainPID']} --ppid {shown['MainPID']}").split()
        if set(owners) != {"ftstan"}:
            failures.append(
                f"{machine.name}: processes of the service belong to "
                f"{', '.join(sorted(set(owners)))}"
            )
        exposure = exposed(machine.ssh("systemd-analyze security --no-pager ftstan.service"))
        if exposure > _MOST_EXPOSED:
            failures.append(
                f"{machine.name}: systemd-analyze security says {exposure}, more than "
                f"{_MOST_EXPOSED}"
            )
        figures |= {machine.name: shown["StatusText"], "exposure": f"{exposure}"}
    figures["watchdog fed"] = f"after {_fed(active):.1f} s"
    figures["slices in the spool"] = str(_archived(lab, active))
    return Outcome(figures=figures, failures=tuple(failures))


def properties(text: str) -> dict[str, str]:
    """What ``systemctl show`` prints."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, _, value in pairs}


def unfit(shown: dict[str, str], *, serves: bool) -> list[str]:
    """What is not as it should be in a service that runs."""
    state = "FT_ACTIVE" if serves else "FT_STANDBY"
    wanted = {"ActiveState": "active", "SubState": "running", "User": "ftstan", "Result": "success"}
    found = [
        f"{key} is {shown[key]}, not {value}"
        for key, value in wanted.items()
        if shown[key] != value
    ]
    if not shown["StatusText"].startswith(state):
        found.append(f"the status is {shown['StatusText']!r}, and the node is {state}")
    return found


def exposed(text: str) -> float:
    """The overall exposure that ``systemd-analyze security`` prints at its end; 10 is the worst."""
    levels = re.findall(r"Overall exposure level for \S+: ([\d.]+)", text)
    return float(levels[-1]) if levels else 10.0


def _fed(active: Machine) -> float:
    """Seconds until the owner fed its watchdog again. Raises ``LabError``."""

    def last() -> str:
        return active.ssh(
            "systemctl show ftstan.service -p WatchdogTimestampMonotonic --value"
        ).strip()

    before = last()
    return until(lambda: last() != before, "the watchdog's food", _FED_WITHIN_S)


def _archived(lab: Lab, active: Machine) -> int:
    """Publish more than a channel keeps.

    The number of slices that the script of the active has put into the spool.
    """
    # Once for a spool, from any host that sees it; the hosts of the lab have no Spark, and need
    # none for this.
    active.ssh(f"cd / && sudo -u ftstan {_PIPELINE} archive-script --spool {SPOOL}")
    lab.say(f"  publishing {_MESSAGES} messages into {ARCHIVED}")
    active.ssh(
        f"yes message | head -n {_MESSAGES} | ftstanctl pub --lines --cluster {CLUSTER} {ARCHIVED}",
        limit_s=600,
    )

    def taken() -> int:
        return int(active.ssh(f"find {SPOOL} -user ftstan -name '*.dat*' | wc -l"))

    until(lambda: taken() > 0, "a slice in the spool", 120.0)
    time.sleep(5.0)
    return taken()
