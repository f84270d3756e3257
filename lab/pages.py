"""The stage ``pages``: an operator who has only ``docs/operate.md`` types its commands on the
hosts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lab import pair
from lab.errors import LabError
from lab.lab import CLUSTER, DATASTORE, GROUP
from lab.machines import MEMBERS
from lab.stages import ROOT, Outcome, Stage

if TYPE_CHECKING:
    from lab.lab import Lab
    from lab.machines import Machine

_PAGE = "docs/operate.md"
#: Blocks, by a line in them, that are typed on a host that stands by; in this order.
_BLOCKS = (
    "ftstanctl server ls",
    "systemctl reload ftstan",
    "umount /nss",
    "ftstanctl server drain host1 --dir",
)

#: Commands that end with status 1, and what they say then, as the page tells.
_DOUBTS = {"ftstanctl ft status --expect 1": "degraded: no standby could take over"}


def pages(lab: Lab) -> Outcome:
    """Looking, reloading, another mount with a switchover, a member that leaves and comes back."""
    text = (ROOT / _PAGE).read_text(encoding="utf-8")
    typed = 0
    failures: list[str] = []
    for line_in in _BLOCKS:
        pair.until_whole(lab)
        (host,) = (machine for machine in lab.machines.members if pair.answers(machine, "/standby"))
        for line in block(text, line_in):
            lab.say(f"  {host.name}: {line}")
            doubt = _DOUBTS.get(line, "")
            try:
                _type(lab, host, line)
            except LabError as error:
                if not doubt or doubt not in error.text:
                    failures.append(f"{line}: {error.text}")
            else:
                if doubt:
                    failures.append(f"{line}: it did not say {doubt!r}")
            typed += 1
    # Whoever drained a member starts it again, or removes it from the inventory.
    host.ssh("systemctl enable --now ftstan.service")
    pair.until_whole(lab)
    return Outcome(figures={"commands typed": str(typed)}, failures=tuple(failures))


def block(text: str, line: str) -> list[str]:
    """The lines of the page's block of commands that has this one. Raises ``LabError``."""
    for found in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        lines = [one.strip() for one in found.splitlines() if one.strip()]
        if any(one.startswith(line) for one in lines):
            return lines
    raise LabError(f"{_PAGE} has no block with {line!r}")


def command(line: str, here: str, there: str) -> str:
    """The line for the lab: its names, its datastore, and the servers' user where the page asks for
    it.
    """
    for theirs, ours in (("host1", here), ("host2", there), ("/nss/orders", DATASTORE)):
        line = line.replace(theirs, ours)
    servers = ",".join(f"nats://{name}:4222" for name in MEMBERS)
    known = f"export FTSTAN_SERVERS={servers} FTSTAN_CLUSTER_ID={CLUSTER} FTSTAN_GROUP={GROUP}"
    user = "sudo -E -u ftstan " if "--dir" in line or " store " in line else ""
    return f"cd / && {known} && {user}{line}"


def _type(lab: Lab, host: Machine, line: str) -> None:
    (other,) = (machine.name for machine in lab.machines.members if machine is not host)
    if line.startswith("ftstanctl ft ") and "--expect 1" not in line:
        # A reader of the page sees that a member is not there yet, and waits.
        pair.until_whole(lab)
    host.ssh(command(line, host.name, other), limit_s=600)


STAGE = Stage(
    "pages", "the commands of docs/operate.md, typed on the hosts", pages, ("lab/pages.py", _PAGE)
)
