"""What a node is and does at one moment: its state, its phase, and ``NodeStatus``, which has all of
it.

``NodeState`` is what ``/streaming/serverz`` has always shown (``docs/compat/ft.md``); ``Phase`` is
our finer word for what a node is doing right now. Nothing here decides anything.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any, Final


class NodeState(enum.StrEnum):
    """The ``state`` of monitoring, spelled as existing dashboards expect it.

    A server that has not answered clients yet is a ``STANDBY``, a standalone one too: the original
    has no word for it, and this is the one that readers take as alive and not serving.
    """

    STANDALONE = "STANDALONE"
    STANDBY = "FT_STANDBY"
    ACTIVE = "FT_ACTIVE"
    CLUSTERED = "CLUSTERED"
    FAILED = "FAILED"
    SHUTDOWN = "SHUTDOWN"


class ClusterRole(enum.StrEnum):
    """The ``role`` of monitoring, for a node of a replicated cluster."""

    LEADER = "Leader"
    FOLLOWER = "Follower"
    CANDIDATE = "Candidate"
    SHUTDOWN = "Shutdown"


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
    FOLLOWING = "following the leader"
    RECOVERING = "recovering"
    ACTIVE = "active"
    STOPPED = "stopped"
    FAILED = "failed"


#: What a standby does that nothing holds back.
READY_PHASES: Final = frozenset({Phase.LISTENING, Phase.TRYING})


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a warm standby is behind: messages that it has not read ahead, and for how long."""

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """Channels that a recovery has read, and how many it found."""

    channels: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class Clustering:
    """A node of a cluster and the log, as it sees them.

    ``stage``: what it does with the log, in words. ``leader``: the node that leads by the last
    leader record that it has read. ``read``: the last entry that it has read or written,
    ``stored``: up to which entry its store is complete and synced, ``seen``: the furthest entry
    that it has heard of. ``trouble``: why it does not follow. ``members``: the nodes that it knows
    of. ``copies``: whole copies of the log among JetStream's three, as a leader saw them last; 0 if
    it does not know. ``epoch``: the entry by which ``leader`` leads; 0 if nobody ever did.
    """

    stage: str = ""
    leader: str = ""
    read: int = 0
    stored: int = 0
    seen: int = 0
    trouble: str = ""
    members: tuple[str, ...] = ()
    copies: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node, as it sees itself: made by ``node/status.py``, rendered by whatever shows a node.

    ``state`` and ``phase`` are words of ``NodeState`` and ``Phase``, or words of the release that
    sent them. ``serving``: it answers clients now. ``epoch`` is the one that it owns (0: none),
    ``holder`` the newest epoch's record in words. ``probe_age`` is in seconds since storage last
    answered, ``None`` if it never did; ``warm_lag`` is ``None`` unless the node keeps warm.
    ``store_id`` is hexadecimal, empty for a store without one; ``monitor`` the URL of its pages,
    empty for none. ``partitioned``: others of its cluster serve other channels. ``fit``: the group
    is mixed, and an original server could follow this owner now. ``trouble``: what it backs off
    after. ``storage_late``: it owns the store, and sends no heartbeats because storage is late.
    ``name`` is the member's, which a restart keeps; empty from releases that had none.
    ``switchover_at_ns``: when it is to hand over (Unix nanoseconds), 0 for no such plan.
    ``role`` and ``node_id``: of a node of a replicated cluster, empty for others; ``clustering``:
    ``None`` for others, and for one that has not recovered yet.
    """

    cluster: str
    group: str
    server: str
    host: str
    pid: int
    state: str
    phase: str
    serving: bool
    paused: bool
    mixed: bool
    epoch: int
    holder_epoch: int
    holder: str
    store_id: str
    probe_age: float | None
    warm_lag: Lag | None
    uptime: float
    version: str
    monitor: str = ""
    partitioned: bool = False
    fit: bool = False
    trouble: str = ""
    storage_late: bool = False
    role: str = ""
    node_id: str = ""
    recovery: Recovery = Recovery()
    name: str = ""
    switchover_at_ns: int = 0
    clustering: Clustering | None = None

    @property
    def called(self) -> str:
        """The member's name as people see it."""
        return self.name or (f"{self.server} on {self.host}" if self.host else self.server)

    @property
    def is_ft_active(self) -> bool:
        """Whether it is the member of a group that answers clients."""
        return self.state == NodeState.ACTIVE and self.serving

    @property
    def owns_store(self) -> bool:
        """Whether it is the one that serves its group, or that will when it has recovered."""
        return self.state == NodeState.ACTIVE or self.epoch > 0

    @property
    def can_take_over(self) -> bool:
        """Whether it is a standby, or a node that follows, and nothing holds it back."""
        if self.clustering is not None:
            return self.role == ClusterRole.FOLLOWER and not self.clustering.trouble
        return self.state == NodeState.STANDBY and self.phase in READY_PHASES

    @property
    def activity(self) -> str:
        """What it is doing, with what is known about that: the phase in full."""
        if self.storage_late:
            return "waiting for storage"
        if self.serving:
            return "serving"
        if self.clustering is not None and self.phase == Phase.FOLLOWING:
            return self.clustering.trouble or self.clustering.stage
        if self.phase == Phase.BACKING_OFF:
            return f"{self.phase} {self.trouble}".rstrip()
        if self.phase == Phase.RECOVERING and self.recovery.channels < self.recovery.of:
            return f"{self.phase} ({self.recovery.channels} of {self.recovery.of} channels)"
        return self.phase

    @property
    def line(self) -> str:
        """State, activity and epoch, for people."""
        if not self.group and self.state == NodeState.STANDBY:
            # It stands by for nobody: it has yet to begin.
            return self.activity
        epoch = f", epoch {self.epoch}" if self.group and self.epoch else ""
        return f"{self.state}: {self.activity}{epoch}"

    def to_json(self) -> dict[str, Any]:
        """As it stands in messages, on pages and in ``--output json``."""
        return asdict(self)
