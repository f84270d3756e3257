"""Which statements of the index must hold in which session, and the few that need not, each with
its reason.
"""

from __future__ import annotations

from tests.compat.players import recordings
from tests.compat.players.recordings import SCOPES, Item, Scenario
from tests.compat.players.sessions import PROGRAM, scenario_of

_ITS_SUBJECT = (
    "permissions are on subjects: a publish for another channel than that of its subject is refused"
)

#: Statements that do not hold on purpose; each has a test of what holds instead.
DIFFERENT = {
    "ft-failover-kill/4": "our members also listen to a subject of their own",
    "ft-failover-term/4": "our members also listen to a subject of their own",
    "ft-failover-term/9": "a member that stops hands over before its process ends: there is no "
    "gap to fall into",
    "ft-failover-term/15": "what was published in that gap is stored, so the next message has "
    "the next sequence",
    "ft-two-actives/1": "a heartbeat never ends a server: storage says who owns it",
    "ft-two-actives/2": "a heartbeat never ends a server: storage says who owns it",
    "ft-two-actives/6": "both log that the other has another datastore, also while garbage comes",
    "ft-two-actives/8": "a heartbeat never ends a server: storage says who owns it",
    **dict.fromkeys((f"publish-ok/{n}" for n in range(13, 18)), _ITS_SUBJECT),
    "publish-errors/28": "what could not be delivered is refused: acknowledged, it would stop "
    "every subscription",
    "partitioning/22": "a partition says nothing about a connection that it does not know: "
    "clients would give up",
}

#: What an active says to the claim of another is for the log; nothing rests on it, and no time is
#: promised.
UNPROMISED = {"ft-two-actives/4", "ft-two-actives/5", "ft-two-actives/7"}


def runs_program(scenario: Scenario) -> bool:
    """Whether we run the client program of the scenario: that of Node, not the old ones of Go and
    of Python.
    """
    return scenario.name.startswith("node-")


def sessions() -> list[str]:
    """All that are played.

    Those of the Node client twice: its recorded lines, and the program itself.
    """
    names = list(recordings.scenarios())
    return [
        *names,
        *(f"{name}{PROGRAM}" for name in names if runs_program(recordings.scenarios()[name])),
    ]


def judged(session: str) -> list[Item]:
    """The statements that must hold in a session."""
    scenario = scenario_of(session)
    scopes = set(SCOPES) if session.endswith(PROGRAM) else set(SCOPES) - {"program"}
    return [
        item
        for item in scenario.items
        if item.scope in scopes and item.key not in DIFFERENT and item.key not in UNPROMISED
    ]
