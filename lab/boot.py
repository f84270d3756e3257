"""The stage ``boot``: both hosts start at once, and their file server comes late. Nobody helps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lab import pair
from lab.stages import Outcome

if TYPE_CHECKING:
    from lab.lab import Lab

#: A mount that is tried at boot has two minutes by default, and systemd gives it 90 s: the server
#: comes behind both.
_LATE_S = 200.0


def boot(lab: Lab) -> Outcome:
    """Power fails everywhere; the file server is back long after the hosts.

    It ends in one active, by itself.
    """
    pair.until_whole(lab)
    lab.machines.storage.kill()
    for host in lab.machines.members:
        host.kill()
    for host in lab.machines.members:
        host.start()
    for host in lab.machines.members:
        seconds = host.wait()
        lab.say(f"  {host.name} has booted after {seconds:.0f} s, without its file server")
    time.sleep(_LATE_S)
    states = {
        host.name: host.ssh("systemctl is-active ftstan.service; true").strip()
        for host in lab.machines.members
    }
    lab.say(f"  the service meanwhile: {states}")
    failures = [
        f"{name}: the service is active without its storage"
        for name, x in states.items()
        if x == "active"
    ]
    lab.machines.storage.start()
    lab.machines.storage.wait()
    seconds = pair.until_whole(lab)
    figures = {
        "mount late by": f"{_LATE_S:.0f} s",
        "whole after the server's boot": f"{seconds:.0f} s",
    }
    return Outcome(figures=figures, failures=tuple(failures))
