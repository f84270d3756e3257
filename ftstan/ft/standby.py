"""A member that waits: a pure state machine that says when to try the store lock. No clock, socket or file.

Theory of operation. Events come in with the time (seconds of ``Clock.mono``); actions go out, to be done in order:

- **Suspicion.** Each heartbeat of the group restarts an interval. When it ends, the lock is tried. A starting node
  listens only briefly. A stray, foreign or malformed message restarts nothing.
- **Polling.** Among our own nodes the lock is also tried every 50 ms or so, because the kernel knows of a dead owner
  long before silence tells it. Not in a mixed group: original servers expect their own cadence.
- **Released.** An owner that stopped on purpose says so: try now.
- **Gates.** No attempt without NATS, while paused, after stop, on a datastore that is not the group's, or while another
  member was named as the successor. They are checked again when a try is granted: a node that may not serve gives the
  lock back before it touched anything.
- One attempt at a time. Its answer may take for ever (storage hangs): past the deadline that is reported, not feared.

A granted lock ends the machine's work with ``Activate``; the driver claims the epoch (``ft/epoch.py``) and serves.

====================  ==========================================  ===============================
event                 while waiting                               while a try is under way
====================  ==========================================  ===============================
``Started``           first try after ``first_listen``            cannot be
``HeartbeatHeard``    suspicion restarts                          suspicion restarts
``ReleasedHeard``     try now                                     once more if it comes back busy
``TimerFired``        try if suspicion or poll is due             past its deadline: report once
``TryDone`` granted   cannot be                                   ``Activate``, or give it back
``TryDone`` other     cannot be                                   note it, wait again
``NatsDown``          timers stop                                 a grant will be given back
``YieldTo``           nothing for a while                         a grant will be given back
``ActivationLost``    back to waiting                             cannot be
``Stopped``           nothing any more                            a grant will be given back
====================  ==========================================  ===============================
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.ft.cadence import POLL_SPREAD, SPREAD, FtTiming, RateLimit, spread
from ftstan.ft.mixed import Belief
from ftstan.ft.states import NodeState, Phase

if TYPE_CHECKING:
    import random

    from ftstan.ft.heartbeat import Heartbeat
    from ftstan.ft.subjects import Released


class Level(enum.StrEnum):
    """How loud a log line is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


# --- what happens ---


@dataclass(frozen=True, slots=True)
class Started:
    """The node is ready to stand by."""


@dataclass(frozen=True, slots=True)
class HeartbeatHeard:
    """A heartbeat arrived on the group's subject (decoded; what does not decode is not an event)."""

    beat: Heartbeat


@dataclass(frozen=True, slots=True)
class ReleasedHeard:
    """An owner says that it has let go of the lock."""

    released: Released


@dataclass(frozen=True, slots=True)
class NatsUp:
    """The connection to NATS works."""


@dataclass(frozen=True, slots=True)
class NatsDown:
    """The connection to NATS is lost."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The operator wants this node not to take over."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The operator takes that back."""


@dataclass(frozen=True, slots=True)
class YieldTo:
    """Another member was named as the successor: hold back for ``seconds``, or until somebody serves."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """The datastore's id as read from our own directory: 16 bytes, or empty if no ftstan server ever owned it.

    ``None``: it could not be read. ``mixed``: whether original servers may be members, as recorded there; ``None`` if
    that does not count, because the operator has said it to this node.
    """

    store_id: bytes | None
    mixed: bool | None = None


class TryResult(enum.Enum):
    """How an attempt at the lock ended."""

    GRANTED = enum.auto()
    BUSY = enum.auto()
    FAULT = enum.auto()


@dataclass(frozen=True, slots=True)
class TryDone:
    """The answer to ``TryLock``. ``error`` is the text of a fault.

    ``store_id`` is what the directory says (as in ``StoreSeen``): read behind every grant, else optional.
    """

    result: TryResult
    store_id: bytes | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the last ``SetTimer`` has come; too early or too often does no harm."""


@dataclass(frozen=True, slots=True)
class ActivationLost:
    """The driver could not activate, wrote nothing and gave the lock back: stand by again. ``why`` is for the log."""

    why: str


@dataclass(frozen=True, slots=True)
class ActivationFailed:
    """The driver could not activate, and the process will end."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The node shuts down."""


Event = (
    Started
    | HeartbeatHeard
    | ReleasedHeard
    | NatsUp
    | NatsDown
    | Paused
    | Resumed
    | YieldTo
    | StoreSeen
    | TryDone
    | TimerFired
    | ActivationLost
    | ActivationFailed
    | Stopped
)

# --- what to do about it ---


@dataclass(frozen=True, slots=True)
class TryLock:
    """Try the store lock once, without waiting, and answer with ``TryDone``."""


@dataclass(frozen=True, slots=True)
class ReadStore:
    """Read the datastore's id from our directory and answer with ``StoreSeen``."""


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    """Give the lock back; nothing was written under it."""


@dataclass(frozen=True, slots=True)
class Activate:
    """The lock is ours and every gate is open: claim the epoch and serve."""


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send ``TimerFired`` at ``at`` (seconds); replaces the timer before."""

    at: float


Action = TryLock | ReadStore | ReleaseLock | Activate | Log | SetTimer


class Standby:
    """The machine. ``handle`` takes an event and the time and returns what to do, in order.

    ``mixed`` says that original servers may be in the group; hearing one of them sets it. ``server_id`` is our own, so
    that our echo counts for nothing. ``store_id`` is what was read from the directory before (as in ``StoreSeen``).
    ``group`` is what this node holds true of the group.
    """

    def __init__(
        self,
        server_id: str,
        rng: random.Random,
        timing: FtTiming | None = None,
        *,
        mixed: bool = False,
        store_id: bytes | None = None,
    ) -> None:
        self._server_id = server_id
        self._rng = rng
        self._timing = timing or FtTiming()
        # Drawn once: members that differ by their whole life do not meet at the lock again and again.
        self._missed = spread(rng, self._timing.hb_missed_interval, SPREAD)
        self.group = Belief(mixed=mixed)
        self._own_store = store_id
        self._group_store: bytes | None = None
        self._stranger: Heartbeat | None = None
        self._proven = self._reading = False
        self._top_epoch = 0
        self._state = NodeState.STANDBY
        self._started = False
        self._nats = self._paused = False
        self._yield_until = float("-inf")
        self._suspect_at: float | None = None
        self._poll_at: float | None = None
        self._try_since: float | None = None
        self._try_suspects = self._try_again = self._try_late = False
        self._late_at = 0.0
        self._timer: float | None = None
        self._busy_notice, self._fault_notice = RateLimit(), RateLimit()
        self._late_notice, self._store_notice = RateLimit(), RateLimit()

    @property
    def state(self) -> NodeState:
        """The state as monitoring shows it."""
        return self._state

    @property
    def phase(self) -> Phase:
        """What the node is doing, for people."""
        if self._state is not NodeState.STANDBY:
            ended = {NodeState.ACTIVE: Phase.ACTIVE, NodeState.SHUTDOWN: Phase.STOPPED}
            return ended.get(self._state, Phase.FAILED)
        if self._try_late:
            return Phase.WAITING_FOR_STORAGE
        if not self._started:
            return Phase.STARTING
        if self._paused:
            return Phase.PAUSED
        if not self._nats:
            return Phase.WAITING_FOR_NATS
        if self._is_wrong_store():
            return Phase.WRONG_STORE
        if self._try_since is not None and self._try_suspects:
            return Phase.TRYING
        return Phase.LISTENING

    def may_succeed(self, store_id: bytes, now: float) -> bool:
        """Whether this member would take over the store ``store_id`` now, if it were free."""
        return self._own_store == store_id and self._may_try(now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at ``now`` seconds."""
        if isinstance(event, TimerFired):
            # The driver's timer is spent, even if it fired a hair too early.
            self._timer = None
        actions = self._react(event, now)
        at = self._next_timer()
        if at is not None and at != self._timer:
            actions.append(SetTimer(at))
        self._timer = at
        return actions

    def _react(self, event: Event, now: float) -> list[Action]:
        match event:
            case Stopped():
                self._state = NodeState.SHUTDOWN
            case ActivationFailed():
                self._state = NodeState.FAILED
            case ActivationLost(why):
                return self._activation_lost(why, now)
            case TryDone():
                return self._try_done(event, now)
            case Started():
                self._started = True
                self._listen(now, first=True)
                return [Log(Level.INFO, "Starting in standby mode")]
            case NatsUp():
                if not self._nats:
                    self._nats = True
                    self._listen(now, first=self._suspect_at is None)
            case NatsDown():
                self._nats = False
            case Paused():
                self._paused = True
            case Resumed():
                self._paused = False
                self._listen(now)
            case YieldTo(seconds):
                self._yield_until = now + seconds
                self._listen(now)
            case StoreSeen(store_id, mixed):
                self._reading = False
                return [*self._mixed(self.group.read(mixed), now), *self._store_seen(store_id, now)]
            case HeartbeatHeard(beat):
                return self._heard(beat, now)
            case ReleasedHeard(released):
                return self._released(released, now)
            case TimerFired():
                return self._timer_fired(now)
        return []

    # --- hearing ---

    def _heard(self, beat: Heartbeat, now: float) -> list[Action]:
        if beat.server_id == self._server_id or beat.time_error:
            return []
        if not beat.is_ours:
            self._suspect_at = now + self._missed
            return self._mixed(self.group.hear(), now)
        self._group_store = beat.store_id
        if self._own_store is None:
            self._suspect_at = now + self._missed
            return self._read_store()
        if beat.store_id != self._own_store:
            # Perhaps the store was born after we looked: look again before anybody is alarmed.
            self._stranger = beat
            return self._read_store()
        self._proven, self._stranger = True, None
        if beat.epoch > self._top_epoch:
            self._yield_until = float("-inf")
        if beat.epoch >= self._top_epoch:
            # A former owner that does not know it yet must not keep the group waiting.
            self._top_epoch = beat.epoch
            self._suspect_at = now + self._missed
        return []

    def _released(self, released: Released, now: float) -> list[Action]:
        if released.server_id == self._server_id or released.epoch < self._top_epoch:
            return []
        if self._own_store and released.store_id != self._own_store:
            return []
        self._top_epoch = released.epoch
        if self._try_since is not None:
            # The attempt under way may have been refused before the owner let go.
            self._try_again = True
            return []
        return self._try(now)

    def _mixed(self, change: str, now: float) -> list[Action]:
        if change and self._started and self._nats:
            self._poll_after(now)
        return [Log(Level.INFO, change)] if change else []

    def _read_store(self) -> list[Action]:
        if self._reading:
            return []
        self._reading = True
        return [ReadStore()]

    def _store_seen(self, store_id: bytes | None, now: float) -> list[Action]:
        if store_id is None:
            return []
        was_wrong = self._is_wrong_store()
        if store_id != self._own_store:
            self._own_store, self._proven, self._top_epoch = store_id, False, 0
        if store_id and store_id == self._group_store:
            self._proven = True
        if was_wrong and not self._is_wrong_store():
            self._listen(now)
        stranger, self._stranger = self._stranger, None
        if stranger is None or stranger.store_id == store_id or not self._store_notice.allow(now):
            return []
        text = (
            f'ft: serverID "{stranger.server_id}" is active in this group on the datastore {stranger.store_id.hex()}, '
            f"but the one of this server is {store_id.hex() or 'unused so far'}: all members must share one datastore; "
            "check that the storage is mounted here"
        )
        return [Log(Level.ERROR, text)]

    def _is_wrong_store(self) -> bool:
        """Whether the group serves another datastore than ours.

        Once we have heard an owner of our own datastore, a heartbeat with another id is a stranger's, and stops nobody.
        """
        known = self._group_store is not None and self._own_store is not None
        return known and not self._proven and self._group_store != self._own_store

    # --- trying ---

    def _timer_fired(self, now: float) -> list[Action]:
        if self._try_since is not None:
            return self._still_trying(self._try_since, now)
        suspects = self._suspect_at is not None and now >= self._suspect_at
        polls = self._poll_at is not None and now >= self._poll_at
        if suspects and self._is_wrong_store():
            self._suspect_at = now + self._missed
            return self._read_store()
        return self._try(now) if suspects or polls else []

    def _try(self, now: float) -> list[Action]:
        if not self._may_try(now):
            return []
        self._try_since, self._late_at = now, now + self._timing.try_deadline
        self._try_suspects = self._suspect_at is not None and now >= self._suspect_at
        self._try_again = False
        return [TryLock()]

    def _still_trying(self, since: float, now: float) -> list[Action]:
        if now < self._late_at:
            return []
        self._try_late, self._late_at = True, now + self._timing.try_deadline
        if not self._late_notice.allow(now):
            return []
        text = f"ft: storage has not answered for {now - since:.0f}s: waiting for storage lock"
        return [Log(Level.WARNING, text)]

    def _may_try(self, now: float) -> bool:
        return (
            self._state is NodeState.STANDBY
            and now >= self._yield_until
            and self._started
            and self._nats
            and not self._paused
            and not self._is_wrong_store()
        )

    def _try_done(self, done: TryDone, now: float) -> list[Action]:
        if self._try_since is None:
            unasked = done.result is TryResult.GRANTED and self._state is not NodeState.ACTIVE
            return [ReleaseLock()] if unasked else []
        suspected, again = self._try_suspects, self._try_again
        self._try_since = None
        self._try_suspects = self._try_again = self._try_late = False
        actions = self._store_seen(done.store_id, now) if done.store_id is not None else []
        if done.result is TryResult.GRANTED:
            if self._may_try(now):
                self._state = NodeState.ACTIVE
                return [*actions, Activate()]
            self._listen(now)
            return [*actions, ReleaseLock()]
        if suspected:
            self._suspect_at = now + self._missed
        if done.result is TryResult.FAULT:
            # No quick polling of a storage that fails; suspicion tries again.
            self._poll_at = None
            if self._fault_notice.allow(now):
                text = (
                    f"ft: error attempting to get the store lock: ft: fatal error getting the store lock: {done.error}"
                )
                actions.append(Log(Level.ERROR, text))
            return actions
        self._poll_after(now)
        if again:
            return [*actions, *self._try(now)]
        if suspected and self._busy_notice.allow(now):
            actions.append(Log(Level.INFO, "ft: unable to get store lock at this time, going back to standby"))
        return actions

    def _activation_lost(self, why: str, now: float) -> list[Action]:
        if self._state is not NodeState.ACTIVE:
            return []
        self._state = NodeState.STANDBY
        self._listen(now)
        # Whatever took the store from us is alive: give it a whole interval to be heard.
        self._poll_at = None
        return [Log(Level.WARNING, f"ft: going back to standby: {why}")]

    # --- timers ---

    def _listen(self, now: float, *, first: bool = False) -> None:
        """Start to wait for the active; the ``first`` time, the lock is tried after a brief silence already."""
        if not (self._started and self._nats):
            return
        self._suspect_at = now + self._missed
        if first:
            self._poll_at = now + spread(self._rng, self._timing.first_listen, SPREAD)
        else:
            self._poll_after(now)

    def _poll_after(self, now: float) -> None:
        wait = spread(self._rng, self._timing.poll_interval, POLL_SPREAD)
        self._poll_at = None if self.group.mixed else now + wait

    def _next_timer(self) -> float | None:
        if self._state is not NodeState.STANDBY:
            return None
        if self._try_since is not None:
            return self._late_at
        if not self._started or not self._nats or self._paused:
            return None
        times = [at for at in (self._suspect_at, None if self._is_wrong_store() else self._poll_at) if at is not None]
        return max(min(times), self._yield_until) if times else None
