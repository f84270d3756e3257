"""Judging an owner's vital signs: may it beat, must it leave, must it die?

Pure: no clock, thread, socket or file.

Called often, with what the other threads publish. Time counts only while this process runs: after a
pause (SIGSTOP, a stopped virtual machine) every running probe looks old, although nobody waited for
it.

==============================  ==========================  =======================================
vital sign                      late                        very late
==============================  ==========================  =======================================
a probe of the storage          no heartbeats               the process ends, without storage
the oldest batch not committed  no heartbeats               the process ends, without storage
the oldest call to the storage  no heartbeats               the process ends, without storage
taking the store                                            the process ends, without storage
NATS, in a group                                            a clean stop, if storage answers
==============================  ==========================  =======================================
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ftstan.ft.deadlines import (
    BATCH_DIE_S,
    BATCH_QUIET_S,
    CALL_DIE_S,
    CALL_QUIET_S,
    JUDGE_EVERY_S,
    LATE_TURN_S,
    PROBE_DIE_S,
    PROBE_QUIET_S,
    SLOW_BATCH_DIE_S,
    TAKE_DIE_S,
)


class GuardVerdict(enum.Enum):
    """What an owner must do.

    ``QUIET``: send no heartbeats; ``LEAVE``: stop cleanly; ``DIE``: end at once.
    """

    FINE = enum.auto()
    QUIET = enum.auto()
    LEAVE = enum.auto()
    DIE = enum.auto()


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is known at one moment.

    Times are seconds of ``Clock.mono``, ``None`` while nothing is under way.

    ``probe_since``: the start of the running probe; ``batch_since``: of the oldest batch that is
    not committed; ``call``: which call of the data plane's storage is the oldest that has not
    returned, if that is known; ``reachable``: whether NATS connects us with clients.
    ``taking_since``: when storage last answered this node, which has the lock or claims an epoch,
    and is no owner yet.
    """

    probe_since: float | None = None
    batch_since: float | None = None
    call: object = None
    reachable: bool = True
    taking_since: float | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """``why``: one line for the operator; empty unless the verdict has changed."""

    verdict: GuardVerdict
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Hang:
    """What may hang, in words, for how many seconds it has, and how many make the owner quiet, and
    end.
    """

    what: str
    age: float
    quiet_s: float
    die_s: float


class _Stopwatch:
    """How long one thing has been under way, in the guard's own time."""

    def __init__(self) -> None:
        self._what: object = None
        self._start = 0.0

    def age(self, what: object, time: float) -> float:
        if what is None:
            self._what = None
            return 0.0
        if what != self._what:
            self._what = what
            self._start = time
        return time - self._start


class Guard:
    """The judge of one activation.

    ``nats_timeout`` is in seconds; 0: being cut off from NATS is no reason to leave.
    """

    def __init__(self, nats_timeout: float = 0.0, *, sees_calls: bool = False) -> None:
        """``sees_calls``: ``Vitals.call`` says which call hangs, if one does."""
        self._nats_timeout = nats_timeout
        self._sees_calls = sees_calls
        self._last: float | None = None
        self._time = 0.0
        self._probe = _Stopwatch()
        self._batch = _Stopwatch()
        self._call = _Stopwatch()
        self._taking = _Stopwatch()
        self._nats = _Stopwatch()
        self._verdict = GuardVerdict.FINE
        self._longest = 0.0

    @property
    def quiet(self) -> bool:
        """Whether no heartbeat may be sent."""
        return self._verdict is not GuardVerdict.FINE

    def judge(self, vitals: Vitals, now: float) -> Judgement:
        """Look at the vital signs at ``now`` seconds."""
        if self._last is not None:
            gone = now - self._last
            self._time += gone if gone < LATE_TURN_S else JUDGE_EVERY_S
        self._last = now
        probe = self._probe.age(vitals.probe_since, self._time)
        call = self._call.age(vitals.call, self._time)
        batch = self._batch.age(vitals.batch_since, self._time)
        hangs = (
            _Hang(
                f"storage has not answered for {probe:.0f}s",
                probe,
                PROBE_QUIET_S,
                PROBE_DIE_S,
            ),
            _Hang(
                f"a call to the storage has not returned for {call:.0f}s",
                call,
                CALL_QUIET_S,
                CALL_DIE_S,
            ),
            _Hang(
                f"a batch has not been committed for {batch:.0f}s",
                batch,
                BATCH_QUIET_S,
                SLOW_BATCH_DIE_S if self._sees_calls else BATCH_DIE_S,
            ),
        )
        taking = self._taking.age(vitals.taking_since, self._time)
        if taking >= TAKE_DIE_S:
            self._verdict = GuardVerdict.DIE
            return Judgement(self._verdict, _hangs_with_lock(taking))
        # What waits for storage cannot read what NATS has said meanwhile.
        heard = vitals.reachable or vitals.batch_since is not None
        cut_off = self._nats.age(None if heard else "cut off", self._time)
        before = self._verdict
        dies = next((hang for hang in hangs if hang.age >= hang.die_s), None)
        worst = dies or next((hang for hang in hangs if hang.age >= hang.quiet_s), None)
        if worst is not None:
            self._longest = max(self._longest, *(hang.age for hang in hangs))
            self._verdict = GuardVerdict.QUIET if dies is None else GuardVerdict.DIE
        # While storage hangs a clean stop is not possible.
        elif self._nats_timeout and cut_off >= self._nats_timeout:
            self._verdict = GuardVerdict.LEAVE
        else:
            self._verdict = GuardVerdict.FINE
        if self._verdict is before:
            return Judgement(self._verdict)
        return Judgement(self._verdict, self._why(before, worst, cut_off))

    def _why(self, before: GuardVerdict, worst: _Hang | None, cut_off: float) -> str:
        if worst is not None:
            if self._verdict is GuardVerdict.DIE:
                return (
                    f"{worst.what}: this server ends, another one may see the storage in better "
                    "shape; check the storage"
                )
            return (
                f"{worst.what}: no heartbeats until it answers; this server ends after "
                f"{worst.die_s:.0f}s of silence"
            )
        longest = self._longest
        self._longest = 0.0
        if self._verdict is GuardVerdict.LEAVE:
            return (
                f"cut off from NATS for {cut_off:.0f}s while the storage answers: this "
                "server stops, so that a "
                "member that NATS reaches can take over; check the NATS server and the network"
            )
        return (
            f"storage answers again after {longest:.0f}s: all is well"
            if before is GuardVerdict.QUIET
            else ""
        )


def _hangs_with_lock(seconds: float) -> str:
    return (
        f"storage has not answered for {seconds:.0f}s, while this server took the datastore: it "
        "ends, so that another one can have the lock; check the storage"
    )
