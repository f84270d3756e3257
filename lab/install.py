"""The stages of the installation: bare hosts become a pair on NFS, by nothing but the package and
``site.yml``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lab import pair, playbooks
from lab.packages import package
from lab.stages import Outcome

if TYPE_CHECKING:
    from lab.lab import Lab
    from lab.playbooks import Recap

_TRACES = (
    "ls -d /usr/lib/ftstan /etc/ftstan /etc/systemd/system/ftstan.service.d 2>/dev/null; getent "
    "passwd ftstan"
)


def look(lab: Lab) -> Outcome:
    """``site.yml --check`` on bare hosts: it tells what it would do, and does nothing."""
    recap, seconds = _site(lab, "--check")
    found = [
        (machine.name, machine.ssh(f"{_TRACES}; true").split()) for machine in lab.machines.members
    ]
    failures = [
        f"{name}: site.yml --check left {', '.join(traces)}" for name, traces in found if traces
    ]
    if not recap.changed:
        failures.append("site.yml --check had nothing to do on bare hosts")
    return Outcome(
        figures={"would change": f"{recap.count('changed')}", "in": seconds},
        failures=tuple(failures),
    )


def install(lab: Lab) -> Outcome:
    """``site.yml``: behind it one node serves, and the other stands by."""
    recap, seconds = _site(lab)
    pair.until_whole(lab)
    version = lab.machines["a"].ssh("ftstanctl version").strip()
    return Outcome(
        figures={"changed": f"{recap.count('changed')}", "in": seconds, "version": version}
    )


def again(lab: Lab) -> Outcome:
    """``site.yml`` once more: nothing is changed."""
    return _unchanged(lab)


def look_again(lab: Lab) -> Outcome:
    """``site.yml --check`` on hosts that are as they should be: nothing is announced."""
    return _unchanged(lab, "--check")


def _unchanged(lab: Lab, *words: str) -> Outcome:
    recap, seconds = _site(lab, *words)
    figures = {"changed": f"{recap.count('changed')}", "in": seconds}
    return Outcome(figures=figures, failures=tuple(f"changed {task}" for task in recap.changed))


def _site(lab: Lab, *words: str) -> tuple[Recap, str]:
    lab.write_inventory()
    given = f"ftstan_package_file={package(lab)}"
    lab.say(f"  site.yml {' '.join(words)}")
    began = time.monotonic()
    recap = playbooks.play(lab, "site", "-e", given, *words)
    return recap, f"{time.monotonic() - began:.0f} s"
