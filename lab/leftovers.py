"""The stage ``leftovers``: a name that an NFS client keeps for an open file refuses nothing, and
nothing of ours stays.

A Linux client does not remove a file that a process of its host has open: it renames it to ``.nfs``
and a number until the last close, for ever if the host dies first (a *silly rename*).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lab import pair
from lab.lab import CLUSTER, DATASTORE
from lab.machines import until
from lab.stages import Outcome

if TYPE_CHECKING:
    from lab.lab import Lab
    from lab.machines import Machine

_HELD = "lab.held"
_OTHER = "lab.other"
#: Five slices of the lab's 200.
_MESSAGES = 1000
_HOLDER = "lab-holder.service"
_SOON_S = 60.0
_RESTART_S = 300.0


def leftovers(lab: Lab) -> Outcome:
    """A channel that cannot be removed while its file is open, and a host that dies with its slices
    open.
    """
    pair.until_whole(lab)
    (active,) = pair.active(lab)
    (other,) = (machine for machine in lab.machines.members if machine is not active)
    failures: list[str] = []
    _publish(lab, active, _HELD, _MESSAGES)
    _publish(lab, active, _OTHER, 1)
    failures += _left(active, "while slices are made")
    other.ssh("systemctl stop ftstan.service")
    try:
        failures += _held(lab, active)
    finally:
        other.ssh("systemctl start ftstan.service")
    pair.until_whole(lab)
    # Whoever serves now: its host dies with slices open.
    (active,) = pair.active(lab)
    (other,) = (machine for machine in lab.machines.members if machine is not active)
    _publish(lab, active, _HELD, _MESSAGES)
    lab.say(f"  the host of {active.name} is killed")
    active.kill()
    taken = until(lambda: pair.answers(other, "/active"), "the other node that serves", _RESTART_S)
    failures += _left(other, "after its host died")
    last = _last(other, _HELD)
    if last != _MESSAGES:
        failures.append(
            f"{_HELD} ends with sequence {last}, and {_MESSAGES} messages were acknowledged"
        )
    active.start()
    active.wait()
    pair.until_whole(lab)
    failures += _left(other, "after its host came back")
    return Outcome(
        acked=2 * _MESSAGES + 2,
        takeover_s=(taken,),
        figures={"slices with one name": str(len(_find(other, "-path '*/msgs.*.dat'")))},
        failures=tuple(failures),
    )


def _held(lab: Lab, active: Machine) -> list[str]:
    """Delete a channel of which a process has a slice open, and restart the only server
    meanwhile.
    """
    file = _find(active, f"-path '*/{_HELD}/msgs.*.dat'")[0]
    active.ssh(
        f"systemd-run --quiet --unit={_HOLDER} -p User=ftstan sh -c 'exec sleep infinity < "
        f"{file}' && sleep 1 && "
        f"systemctl is-active {_HOLDER}"
    )
    failures = []
    try:
        lab.say(f"  a process holds {file}; its channel is deleted, and the server is killed")
        active.ssh(f"{_ctl('channel delete')} --yes --force --dir {DATASTORE} {_HELD}", limit_s=300)
        kept = _find(active, "-name '.nfs*'")
        if not kept:
            failures.append("the client kept no name for a file that is open: nothing was proved")
        active.ssh("systemctl kill -s KILL ftstan.service")
        until(lambda: not pair.answers(active, "/active"), "the end of the server", _SOON_S)
        until(lambda: pair.answers(active, "/active"), "the server that was killed", _RESTART_S)
        complaint = f'channel "{_HELD}" cannot be removed'
        if not int(
            active.ssh(f"journalctl -u ftstan -o cat --no-pager | grep -c '{complaint}' || true")
        ):
            failures.append(f"the server did not say: {complaint}")
        _publish(lab, active, _OTHER, 1)
        if _find(active, "-name '.nfs*'") != kept:
            failures.append("the name went while the file was open")
    finally:
        active.ssh(f"systemctl stop {_HOLDER}")
    until(
        lambda: not _find(active, f"-path '*{_HELD}*'"), "the end of the deleted channel", _SOON_S
    )
    return failures + _left(active, "after the file was closed")


def _left(machine: Machine, when: str) -> list[str]:
    """Names that a client keeps, and slices that have two names."""
    wrong = [*_find(machine, "-name '.nfs*'"), *_find(machine, "-path '*/msgs.*' -links +1")]
    return [f"{when}: {name} is there" for name in wrong]


def _find(machine: Machine, what: str) -> list[str]:
    return sorted(machine.ssh(f"find {DATASTORE} {what}").split())


def _last(machine: Machine, channel: str) -> int:
    """The last sequence of a channel."""
    info = json.loads(machine.ssh(f"{_ctl('channel info')} --output json {channel}"))
    return int(info["channel"]["last_seq"])


def _publish(lab: Lab, machine: Machine, channel: str, count: int) -> None:
    """Publish so many messages there, all of which are acknowledged. Raises ``LabError``."""
    lab.say(f"  publishing {count} messages into {channel}")
    machine.ssh(f"yes message | head -n {count} | {_ctl('pub')} --lines {channel}", limit_s=600)


def _ctl(verb: str) -> str:
    return f"ftstanctl {verb} --cluster {CLUSTER}"
