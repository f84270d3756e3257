"""The faults that a drill knows: their names, what they do, what each needs, what is expected of
the group.

A table and nothing else; who carries a fault out is a driver (``local.py``, ``remote.py``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Expect(enum.StrEnum):
    """What a fault must lead to.

    ``ANY``: both are right, the storage and the group's options decide.
    """

    TAKEOVER = "takeover"
    SAME = "same"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    ``lasts``: it has a beginning and an end, with a duration of ``usual_s`` unless the scenario
    says another. ``ends``: the process of the node ends by it. ``safe``: may be done to a group in
    production. ``remote``: a group on one host has nothing that it could be done to. ``boots``:
    hosts start again, and their service managers the nodes. ``clusters``: replicated clusters know
    it, too. ``directory``: it is done to the files of a datastore. ``database``: it is done to a
    database, and there to whoever owns it.
    """

    text: str
    expect: Expect
    lasts: bool = False
    usual_s: float = 0.0
    ends: bool = False
    safe: bool = False
    remote: bool = False
    boots: bool = False
    clusters: bool = False
    directory: bool = False
    database: bool = False


KINDS = {
    "kill": FaultKind("SIGKILL to the node's process", Expect.TAKEOVER, ends=True, clusters=True),
    "stop": FaultKind("SIGTERM to the node's process", Expect.TAKEOVER, ends=True, clusters=True),
    "switchover": FaultKind(
        "ftstanctl ft switchover, or cluster stepdown",
        Expect.TAKEOVER,
        ends=True,
        safe=True,
        clusters=True,
    ),
    "pause": FaultKind(
        "SIGSTOP for a while, then SIGCONT", Expect.ANY, lasts=True, usual_s=3.0, clusters=True
    ),
    "kill-nats": FaultKind("SIGKILL to the NATS server", Expect.ANY),
    "partition": FaultKind(
        "the node is cut off from NATS for a while", Expect.ANY, lasts=True, usual_s=8.0
    ),
    "unlink-lock": FaultKind(
        "the lock file is removed", Expect.TAKEOVER, ends=True, directory=True
    ),
    "fill-disk": FaultKind(
        "the storage has no room for a while",
        Expect.ANY,
        lasts=True,
        usual_s=3.0,
        directory=True,
    ),
    "slow-storage": FaultKind(
        "the storage answers in fits and starts for a while",
        Expect.ANY,
        lasts=True,
        usual_s=4.0,
        directory=True,
    ),
    "freeze-storage": FaultKind(
        "the storage does not answer for a while",
        Expect.ANY,
        lasts=True,
        usual_s=2.0,
        directory=True,
    ),
    "kill-sessions": FaultKind("the database ends the owner's sessions", Expect.ANY, database=True),
    "rolling-restart": FaultKind(
        "every node is stopped and started, standbys first",
        Expect.TAKEOVER,
        ends=True,
        clusters=True,
    ),
    "freeze-host": FaultKind(
        "the node's host stands still for a while",
        Expect.TAKEOVER,
        lasts=True,
        usual_s=30.0,
        remote=True,
    ),
    "kill-host": FaultKind(
        "the node's host loses its power, and has it again after a while",
        Expect.TAKEOVER,
        lasts=True,
        usual_s=20.0,
        ends=True,
        remote=True,
        boots=True,
    ),
    "cut-storage": FaultKind(
        "the node's host is cut off from the storage for a while",
        Expect.TAKEOVER,
        lasts=True,
        usual_s=30.0,
        remote=True,
    ),
    "restart-storage": FaultKind("the file server is restarted", Expect.ANY, remote=True),
    "reboot-all": FaultKind(
        "all hosts are restarted at the same time",
        Expect.TAKEOVER,
        ends=True,
        remote=True,
        boots=True,
    ),
    "upgrade": FaultKind("a command goes over the whole group", Expect.TAKEOVER, remote=True),
}

#: Those that need a file system of their own under the local group.
STORAGE = frozenset({"fill-disk", "slow-storage", "freeze-storage"})
