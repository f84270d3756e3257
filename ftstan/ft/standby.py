"""A member that waits: a pure state machine that says when to try the store lock.

No clock, socket or file.

Theory of operation. Events come in with the time (seconds of ``Clock.mono``); actions go out, to be
done in order:

- **Suspicion.** Each heartbeat of the group restarts an interval. When it ends, the lock is tried.
  A starting node listens only briefly. A stray, foreign or malformed message restarts nothing, nor
  does, unless the group is mixed, a heartbeat without an epoch: anybody could send it.
- **Polling.** Among our own nodes the lock is also tried every 50 ms or so, because the kernel
  knows of a dead owner long before silence tells it. Not in a mixed group: original servers expect
  their own cadence.
- **Released.** An owner that stopped on purpose says so: try now.
- **Gates.** No attempt without NATS, while paused, after stop, on a datastore that is not the
  group's (``ft/identity.py``), or while another member was named as the successor. They are checked
  again when a try is granted: a node that may not serve gives the lock back before it touched
  anything.
- **First start.** Where nothing shows that our directory is the group's, a whole interval of
  silence comes before the first attempt: a share that is not mounted must not become a second store
  of a group that is alive.
- **Stealing**, if the operator wants it: an owner whose lock stays and who is silent on NATS and
  storage for long (``ft/steal.py``) is replaced without its lock. While the new owner has none, the
  others poll for it slowly; when it stops before it has one, it says so on storage, and is replaced
  at once.
- One attempt at a time. Its answer may take for ever (storage hangs): past the deadline that is
  reported, not feared.

A granted lock ends the machine's work with ``Activate``, a stolen store with ``Steal``; the driver
claims the epoch (``ft/epoch.py``) and serves.

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
``Retimed``           polls by it, from the next one on           polls by it, from the next one
``YieldTo``           nothing for a while (0: no longer)          a grant will be given back
``ActivationLost``    back to waiting                             cannot be
``Stopped``           nothing any more                            a grant will be given back
====================  ==========================================  ===============================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.ratelimit import RateLimit
from ftstan.base.states import NodeState, Phase
from ftstan.ft.epoch_records import Cause
from ftstan.ft.events import (
    Action,
    Activate,
    ActivationFailed,
    ActivationLost,
    Event,
    HeartbeatHeard,
    Level,
    Log,
    NatsDown,
    NatsUp,
    Paused,
    ReadStore,
    ReleasedHeard,
    ReleaseLock,
    Resumed,
    Retimed,
    SetTimer,
    Started,
    Steal,
    Stopped,
    StoreSeen,
    TimerFired,
    TryDone,
    TryLock,
    TryResult,
    YieldTo,
)
from ftstan.ft.heartbeat_trust import original_counts, owner_counts, says_something
from ftstan.ft.holdback import HoldBack
from ftstan.ft.identity import GroupStore, stranger_line
from ftstan.ft.lock_retry import BackOff, Polls
from ftstan.ft.mixed import MixedModeEstimate
from ftstan.ft.steal import StealTimer, refused_lines, taking_line
from ftstan.ft.timing import POLL_SPREAD, SPREAD, FtTiming, spread

if TYPE_CHECKING:
    import random

    from ftstan.ft.heartbeat import Heartbeat
    from ftstan.ft.subjects import Released

__all__ = [
    "Action",
    "Activate",
    "ActivationFailed",
    "ActivationLost",
    "Event",
    "HeartbeatHeard",
    "Level",
    "Log",
    "NatsDown",
    "NatsUp",
    "Paused",
    "ReadStore",
    "ReleaseLock",
    "ReleasedHeard",
    "Resumed",
    "Retimed",
    "SetTimer",
    "Standby",
    "Started",
    "Steal",
    "Stopped",
    "StoreSeen",
    "TimerFired",
    "TryDone",
    "TryLock",
    "TryResult",
    "YieldTo",
]


class Standby:
    """The machine. ``handle`` takes an event and the time and returns what to do, in order.

    ``mixed`` is the operator's word whether original servers may be in the group, ``None`` what the
    record says. ``server_id`` is our own, so that our echo counts for nothing. ``store_id`` is what
    was read from the directory before (as in ``StoreSeen``).
    """

    def __init__(
        self,
        server_id: str,
        rng: random.Random,
        timing: FtTiming | None = None,
        *,
        mixed: bool | None = None,
        store_id: bytes | None = None,
    ) -> None:
        self._server_id = server_id
        self._rng = rng
        self._timing = timing or FtTiming()
        # Drawn once: members that differ by their whole life do not meet at the lock again and
        # again.
        self._missed = spread(rng, self._timing.hb_missed_interval, SPREAD)
        self._group = MixedModeEstimate(mixed)
        self._store = GroupStore(store_id)
        self._silence = StealTimer(self._timing.steal_after, 2 * self._missed)
        self._polls = Polls(rng, self._timing)
        self._hold = HoldBack()
        self._blind = self._faulty = False
        self._reading = self._started = False
        self._top_epoch = 0
        self._state = NodeState.STANDBY
        self._nats = self._paused = False
        self._suspect_at: float | None = None
        self._look_at: float | None = None
        self._try_since: float | None = None
        self._try_suspects = self._try_again = self._try_late = False
        self._released_by = 0
        self._late_at = 0.0
        self._back_off = BackOff(rng)
        self._timer: float | None = None
        self._busy_notice = RateLimit()
        self._fault_notice = RateLimit()
        self._late_notice = RateLimit()
        self._store_notice = RateLimit()

    @property
    def state(self) -> NodeState:
        """The state as monitoring shows it."""
        return self._state

    @property
    def mixed(self) -> bool:
        """Whether original servers are, or may be, members of the group."""
        return self._group.mixed

    @property
    def heard_under(self) -> int | None:
        """The epoch under which a heartbeat of one of them came last, 0 for none.

        ``None``: under the newest.
        """
        return self._group.heard_under

    @property
    def paused(self) -> bool:
        """Whether the operator paused this member."""
        return self._paused

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
        if self._back_off.until is not None:
            return Phase.BACKING_OFF
        if self._paused:
            return Phase.PAUSED
        if not self._nats:
            return Phase.WAITING_FOR_NATS
        if self._store.is_wrong:
            return Phase.WRONG_STORE
        if self._try_since is not None and self._try_suspects:
            return Phase.TRYING
        return Phase.LISTENING

    def may_succeed(self, store_id: bytes, now: float) -> bool:
        """Whether this member would take over the store ``store_id`` now, if it were free."""
        return self._store.own == store_id and self._may_try(now)

    def may_follow(self, store_id: bytes, now: float) -> bool:
        """Whether an owner that plans to go may count on this member to take over ``store_id``
        now.
        """
        could = (
            not self._blind and not self._faulty and (self._polls.owner_has_lock or self._may_steal)
        )
        return could and self.may_succeed(store_id, now)

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
            case ActivationLost(why, refused):
                return self._activation_lost(why, now, refused=refused)
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
                self._silence.broken()
            case Paused():
                self._paused = True
                self._silence.broken()
            case Resumed():
                self._paused = False
                self._listen(now)
            case YieldTo(seconds):
                self._hold.named(seconds, now, due=self._suspects(now) or self._polls.is_due(now))
            case StoreSeen(store_id):
                self._reading = False
                self._blind = store_id is None
                if store_id is None:
                    return self._unseen(event.error, now)
                actions = [
                    *self._record_seen(event, now),
                    *self._store_seen(store_id, now, served=event.served),
                ]
                self._look_past_fault(now)
                return actions
            case Retimed(timing):
                self._timing = timing
                self._polls.retime(timing)
            case HeartbeatHeard(beat):
                return self._heard(beat, now)
            case ReleasedHeard(released):
                return self._released(released, now)
            case TimerFired():
                return self._timer_fired(now)
        return []

    # --- hearing ---

    def _heard(self, beat: Heartbeat, now: float) -> list[Action]:
        if not says_something(beat, self._server_id):
            return []
        if not beat.is_ours:
            self._group.hear()
            self._silence.broken()
            self._store.heard_original(beat.server_id)
            if original_counts(mixed=self.mixed, store_id=self._store.own):
                self._suspect_at = now + self._missed
            return self._read_store() if self._store.is_wrong else []
        was_wrong = self._store.is_wrong
        if not self._store.heard(beat):
            if self._store.own is None:
                self._suspect_at = now + self._missed
            # Perhaps the store was born, or mounted, after we looked: look again before anybody is
            # alarmed.
            return [*self._stranger(beat, now), *self._read_store()]
        if was_wrong:
            self._listen(now)
        if beat.epoch > self._top_epoch:
            self._hold.followed()
            self._released_by = 0
        if owner_counts(beat, self._top_epoch):
            self._top_epoch = beat.epoch
            self._suspect_at = now + self._missed
            self._silence.broken()
            self._polls.heed(now, held=beat.has_lock, mixed=self.mixed)
        return []

    def _stranger(self, beat: Heartbeat, now: float) -> list[Action]:
        """Another datastore is served under our group's name, although an owner of ours was
        heard.
        """
        if not self._store.is_proven or not self._store_notice.allow(now):
            return []
        return [Log(Level.ERROR, stranger_line(beat))]

    def _released(self, released: Released, now: float) -> list[Action]:
        if released.server_id == self._server_id or released.epoch < self._top_epoch:
            return []
        if self._store.own and released.store_id != self._store.own:
            return []
        self._top_epoch = self._released_by = released.epoch
        if not self._polls.owner_has_lock:
            # Somebody else may have it still: the attempt has to look what storage says of that.
            self._suspect_at = now
        self._polls.owner_has_lock = True
        self._silence.broken()
        if self._try_since is not None:
            # The attempt under way may have been refused before the owner let go.
            self._try_again = True
            return []
        return self._try(now)

    def _read_store(self) -> list[Action]:
        if self._reading:
            return []
        self._reading = True
        return [ReadStore()]

    def _unseen(self, error: str, now: float) -> list[Action]:
        if not error or not self._fault_notice.allow(now):
            return []
        return [Log(Level.ERROR, f"ft: this server could not take over now: {error}")]

    def _store_seen(self, store_id: bytes, now: float, *, served: bool) -> list[Action]:
        was_wrong = self._store.is_wrong
        if self._store.seen(store_id, served=served):
            self._top_epoch = 0
        if not self._store.is_wrong:
            if was_wrong:
                self._listen(now)
            return []
        return [Log(Level.ERROR, self._store.complaint())] if self._store_notice.allow(now) else []

    def _record_seen(self, seen: StoreSeen, now: float) -> list[Action]:
        recorded = seen.owner.ft_mixed if seen.owner is not None else None
        if seen.store_id == b"" and self._store.expected is None:
            # No record, and none was ever seen: whoever has served from there, if anybody, was an
            # original server.
            recorded = seen.served
        # A filler is no record of an owner: its writer may have died before it was one.
        epoch = seen.owner.epoch if seen.owner is not None and not seen.owner.is_filler else 0
        return self._mixed(self._group.read(recorded, epoch), now)

    def _mixed(self, change: str, now: float) -> list[Action]:
        if change and self._started and self._nats:
            self._polls.after(now, mixed=self.mixed)
        return [Log(Level.INFO, change)] if change else []

    # --- trying ---

    def _timer_fired(self, now: float) -> list[Action]:
        if self._try_since is not None:
            return self._still_trying(self._try_since, now)
        if self._back_off.is_over(now):
            return self._try(now)
        suspects = self._suspects(now)
        polls = self._polls.is_due(now)
        looks = self._is_listening and self._look_at is not None and now >= self._look_at
        if looks:
            self._look_after(now)
        if suspects and self._store.is_wrong:
            self._suspect_at = now + self._missed
            looks = True
        looking = self._read_store() if looks else []
        return [*looking, *self._try(now)] if suspects or polls else looking

    def _suspects(self, now: float) -> bool:
        return self._suspect_at is not None and now >= self._suspect_at

    def _try(self, now: float) -> list[Action]:
        if not self._may_try(now):
            return []
        self._try_since = now
        self._late_at = now + self._timing.try_deadline
        self._try_suspects = self._suspects(now)
        self._try_again = False
        if not self._try_suspects:
            return [TryLock()]
        return [
            TryLock(suspicious=True, expect=self._store.expected, served=self._store.must_be_served)
        ]

    def _still_trying(self, since: float, now: float) -> list[Action]:
        if now < self._late_at:
            return []
        self._try_late = True
        self._late_at = now + self._timing.try_deadline
        if not self._late_notice.allow(now):
            return []
        text = f"ft: storage has not answered for {now - since:.0f}s: waiting for storage lock"
        return [Log(Level.WARNING, text)]

    @property
    def _is_listening(self) -> bool:
        return self._started and self._nats and not self._paused

    def _may_try(self, now: float) -> bool:
        return (
            self._state is NodeState.STANDBY
            and now >= self._hold.until
            and self._back_off.until is None
            and self._is_listening
            and not self._store.is_wrong
        )

    def _try_done(self, done: TryDone, now: float) -> list[Action]:
        if self._try_since is None:
            unasked = done.result is TryResult.GRANTED and self._state is not NodeState.ACTIVE
            return [ReleaseLock()] if unasked else []
        suspected = self._try_suspects
        again = self._try_again
        self._try_since = None
        self._try_suspects = self._try_again = self._try_late = False
        if done.store_id is not None:
            self._blind = False
        actions = (
            self._store_seen(done.store_id, now, served=done.served)
            if done.store_id is not None
            else []
        )
        if done.result is TryResult.GRANTED:
            if self._may_try(now):
                self._state = NodeState.ACTIVE
                self._hold.tried()
                return [*actions, Activate(*self._cause(suspected=suspected))]
            self._listen(now)
            return [*actions, ReleaseLock()]
        self._hold.tried()
        self._polls.answered()
        if suspected:
            self._suspect_at = now + self._missed
        if done.result is TryResult.FAULT:
            # No quick polling of a storage that fails; suspicion tries again.
            self._polls.at = None
            self._faulty = True
            self._silence.broken()
            return [*actions, *self._fault(done, now)]
        self._faulty = False
        self._polls.after(now, mixed=self.mixed)
        if again:
            return [*actions, *self._try(now)]
        if suspected and done.result is TryResult.BUSY:
            return [*actions, *self._refused(done, now)]
        return actions

    def _look_past_fault(self, now: float) -> None:
        """Storage has failed an attempt, and can be read: ask for the lock again, whatever is heard
        meanwhile.
        """
        if self._faulty and self._try_since is None and self._store.expected is not None:
            # In a mixed group nobody asks while an owner is heard.
            self._faulty = not self.mixed
            if self._polls.at is None:
                self._polls.after(now, mixed=self.mixed)

    def _fault(self, done: TryDone, now: float) -> list[Action]:
        if not self._fault_notice.allow(now):
            return []
        text = (
            "ft: error attempting to get the store lock: ft: fatal error getting the store "
            f"lock: {done.error}"
        )
        return [Log(Level.ERROR, f"{text}; {done.hint}" if done.hint else text)]

    def _refused(self, done: TryDone, now: float) -> list[Action]:
        """Nobody was heard, and the lock is held: whoever has it is named, and replaced if the
        operator wants that.
        """
        gone = self._silence.refused(done.owner, done.watch, now)
        if gone and done.owner is not None and self._may_steal and self._may_try(now):
            self._state = NodeState.ACTIVE
            return [Log(Level.WARNING, taking_line(done.owner, gone)), Steal()]
        if not self._busy_notice.allow(now):
            return []
        return [Log(Level.INFO, line) for line in refused_lines(done.owner)]

    @property
    def _may_steal(self) -> bool:
        """Whether to take the store without its lock. Never from an original: it obeys no epoch."""
        return self._timing.steal_after > 0 and not (self.mixed or self._group.heard)

    def _cause(self, *, suspected: bool) -> tuple[Cause, int]:
        if self._released_by:
            return Cause.RELEASED, self._released_by
        return (Cause.SILENCE if suspected else Cause.LOCK_FREE), self._top_epoch

    def _activation_lost(self, why: str, now: float, *, refused: bool) -> list[Action]:
        if self._state is not NodeState.ACTIVE:
            return []
        self._state = NodeState.STANDBY
        self._listen(now)
        if refused:
            pause = self._back_off.begin(now)
            text = (
                f"ft: this server could not become active: {why}; standing by, next try in "
                f"{pause:.1f}s"
            )
            return [Log(Level.ERROR, text)]
        # Whatever took the store from us is alive: give it a whole interval to be heard.
        self._polls.at = None
        return [Log(Level.WARNING, f"ft: going back to standby: {why}")]

    # --- timers ---

    def _listen(self, now: float, *, first: bool = False) -> None:
        """Start to wait for the active.

        The ``first`` time, the lock is tried after a brief silence already.
        """
        if not (self._started and self._nats):
            return
        self._suspect_at = now + self._missed
        self._look_after(now)
        if not first:
            self._polls.after(now, mixed=self.mixed)
        elif self._store.expected is not None:
            self._polls.first(now)

    def _look_after(self, now: float) -> None:
        self._look_at = now + spread(self._rng, self._timing.look_interval, POLL_SPREAD)

    def _next_timer(self) -> float | None:
        if self._state is not NodeState.STANDBY:
            return None
        if self._try_since is not None:
            return self._late_at
        if not self._is_listening:
            return None
        if self._back_off.until is not None:
            return self._back_off.until
        poll_at = None if self._store.is_wrong else self._polls.at
        times = [at for at in (self._suspect_at, poll_at, self._look_at) if at is not None]
        return max(min(times), self._hold.until) if times else None
