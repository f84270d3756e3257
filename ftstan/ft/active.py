"""What the active of a group does with heartbeats: a pure state machine.

No clock, socket, file or thread.

**A heartbeat never stops anyone.** A message can be forged, late or from a process that woke up
from the dead; so what is heard can make this node look at storage (``ConfirmNow``), and storage
decides. Only original servers obey heartbeats: of two actives the one with the *older* activation
time survives there, so once one was heard, ours carry a time that is older than theirs
(``docs/compat/ft.md``).

======================================  ==========================================================
heard (``heartbeat_trust.Sender``)      done
======================================  ==========================================================
our own echo                            nothing; our rhythm is not disturbed
``SUCCESSOR``                           ``ConfirmNow``
``FORMER``                              a log line; a heartbeat at once, so that it asks storage
``STRANGER``                            a log line
``ORIGINAL``                            a log line; ``ConfirmNow``, at most twice an interval
``UNREADABLE``                          a log line; a heartbeat at once
======================================  ==========================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftstan.base.ratelimit import RateLimit
from ftstan.ft.heartbeat import BeatPhase, Heartbeat, encode_heartbeat
from ftstan.ft.heartbeat_trust import Sender, sender
from ftstan.ft.mixed import ORIGINAL_PATIENCE_S
from ftstan.ft.standby import HeartbeatHeard, Level, Log, SetTimer, Started, Stopped, TimerFired
from ftstan.ft.timing import SPREAD, FtTiming, spread

if TYPE_CHECKING:
    import random

_OLDER_BY_NS = 1_000_000_000
_OLDEST_NS = -62_135_596_800 * 1_000_000_000
"""The year 1: nothing older is said, whatever was heard."""

_HICCUP_S = 0.025

_DOUBT_SHARE = 0.5
"""Confirms for heartbeats without an epoch are at least this share apart: anybody can send them,
one looks like all.
"""

_REACTION_SHARE = 0.1
"""Answers to heartbeats are at least this share of the interval apart: a flood must not be answered
by a flood.
"""


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The activation entered another phase."""

    phase: BeatPhase


@dataclass(frozen=True, slots=True)
class EpochRaised:
    """This owner took a higher epoch while it served."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Storage says that the store is still ours: the answer to ``ConfirmNow``.

    There is no other answer but the end.
    """


@dataclass(frozen=True, slots=True)
class LockRegained:
    """An owner that took the store without its lock has it now."""


Event = (
    Started
    | HeartbeatHeard
    | PhaseChanged
    | EpochRaised
    | Confirmed
    | LockRegained
    | TimerFired
    | Stopped
)


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Publish ``payload`` on the group's heartbeat subject, without a reply subject."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class ConfirmNow:
    """Confirm the epoch and verify the lock; answer with ``Confirmed``, or end as fenced."""


Action = SendHeartbeat | ConfirmNow | Log | SetTimer


class Active:
    """The machine. ``beat`` is what we say of ourselves: server id, activation time, epoch and
    store id.

    ``original_ns``: the oldest activation time that was heard of an original server before, if any.
    """

    def __init__(
        self,
        beat: Heartbeat,
        rng: random.Random,
        timing: FtTiming | None = None,
        *,
        original_ns: int | None = None,
    ) -> None:
        timing = timing or FtTiming()
        self._beat = replace(beat, phase=BeatPhase.ACTIVATING)
        if original_ns is not None:
            self._be_older_than(original_ns)
        self._payload = encode_heartbeat(self._beat)
        self._interval = spread(rng, timing.hb_interval, SPREAD)
        self._asleep_after = timing.hb_missed_interval
        self._missed_after = max(self._interval + _HICCUP_S, ORIGINAL_PATIENCE_S)
        self._running = False
        self._heard_original = False
        self._next_beat = 0.0
        self._last_beat = self._last_confirm = float("-inf")
        self._in_doubt = False
        self._claims = RateLimit()
        self._strangers = RateLimit()
        self._times = RateLimit()

    @property
    def heard_original(self) -> bool:
        """Whether a heartbeat of an original server has come."""
        return self._heard_original

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at ``now`` seconds; what to do comes back, in order."""
        match event:
            case Started():
                self._running = True
                return self._send(now)
            case Stopped():
                self._running = False
            case PhaseChanged(phase):
                self._say(replace(self._beat, phase=phase))
            case EpochRaised(epoch):
                self._say(replace(self._beat, epoch=epoch))
            case LockRegained():
                self._say(replace(self._beat, has_lock=True))
            case TimerFired() if self._running:
                return self._timer_fired(now)
            case Confirmed() if self._running and self._in_doubt:
                self._in_doubt = False
                return self._answer(now)
            case HeartbeatHeard(beat) if self._running and beat.server_id != self._beat.server_id:
                return self._heard(beat, now)
            case _:
                pass
        return []

    def _timer_fired(self, now: float) -> list[Action]:
        if now < self._next_beat:
            return [SetTimer(self._next_beat)]
        # A process that was paused long enough to be given up asks storage before it says "active"
        # once more: an original server that owns the store by now would obey our older time and
        # die.
        late = (
            now - self._next_beat > self._asleep_after or now - self._last_beat > self._missed_after
        )
        asked = self._confirm(now) if late else []
        if not self._in_doubt:
            return self._send(now)
        self._next_beat = now + self._interval
        return [*asked, SetTimer(self._next_beat)]

    def _heard(self, beat: Heartbeat, now: float) -> list[Action]:
        match sender(beat, self._beat):
            case Sender.UNREADABLE:
                line = f"Error decoding activation time: {beat.time_error}"
                return [*self._log(self._times, line, now), *self._answer(now)]
            case Sender.STRANGER:
                line = (
                    f'ft: serverID "{beat.server_id}" is active in this group on another datastore '
                    f"({beat.store_id.hex()}, ours is {self._beat.store_id.hex()}): all members "
                    "must share one"
                )
                return self._log(self._strangers, line, now)
            case Sender.SUCCESSOR:
                return self._confirm(now)
            case Sender.FORMER:
                return [*self._claim(beat, now), *self._answer(now)]
            case Sender.ORIGINAL:
                self._heard_original = True
                self._be_older_than(beat.activated_ns)
                # Confirmed first: if the store is not ours any more, the rightful owner must not be
                # told to go.
                return [*self._claim(beat, now), *self._confirm(now, _DOUBT_SHARE)]

    def _claim(self, beat: Heartbeat, now: float) -> list[Action]:
        line = f'ft: serverID "{beat.server_id}" claims to be active'
        return self._log(self._claims, line, now)

    def _confirm(self, now: float, share: float = _REACTION_SHARE) -> list[Action]:
        """Ask storage, and send no heartbeat until it has answered."""
        if self._in_doubt or now - self._last_confirm < share * self._interval:
            return []
        self._in_doubt = True
        self._last_confirm = now
        return [ConfirmNow()]

    def _answer(self, now: float) -> list[Action]:
        too_soon = now - self._last_beat < _REACTION_SHARE * self._interval
        return [] if too_soon or self._in_doubt else self._send(now)

    def _send(self, now: float) -> list[Action]:
        self._last_beat = now
        self._next_beat = now + self._interval
        return [SendHeartbeat(self._payload), SetTimer(self._next_beat)]

    def _be_older_than(self, original_ns: int) -> None:
        """The older of two actives survives in an original server's eyes: let that be the one with
        the store.
        """
        if original_ns <= self._beat.activated_ns:
            self._say(replace(self._beat, activated_ns=max(original_ns - _OLDER_BY_NS, _OLDEST_NS)))

    def _say(self, beat: Heartbeat) -> None:
        self._beat = beat
        self._payload = encode_heartbeat(beat)

    @staticmethod
    def _log(limit: RateLimit, line: str, now: float) -> list[Action]:
        return [Log(Level.ERROR, line)] if limit.allow(now) else []
