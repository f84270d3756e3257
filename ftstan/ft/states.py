"""What a member of a group can be, in the words that monitoring and operators know.

``NodeState`` is what ``/streaming/serverz`` has always shown (``docs/compat/ft.md``); ``Phase`` is our finer word for
what a node is doing right now. Nothing here decides anything.
"""

from __future__ import annotations

import enum


class NodeState(enum.StrEnum):
    """The ``state`` of monitoring, spelled as existing dashboards expect it."""

    STANDBY = "FT_STANDBY"
    ACTIVE = "FT_ACTIVE"
    FAILED = "FAILED"
    SHUTDOWN = "SHUTDOWN"


class Phase(enum.StrEnum):
    """What the node is doing, for people: shown beside ``NodeState``, never parsed."""

    STARTING = "starting"
    WAITING_FOR_NATS = "waiting for NATS"
    LISTENING = "listening for the active server"
    TRYING = "trying the store lock"
    WAITING_FOR_STORAGE = "waiting for storage lock"
    WRONG_STORE = "not the group's datastore"
    PAUSED = "paused by the operator"
    BACKING_OFF = "backing off after"
    RECOVERING = "recovering"
    ACTIVE = "active"
    STOPPED = "stopped"
    FAILED = "failed"
