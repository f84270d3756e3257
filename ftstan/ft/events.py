"""What happens to a standby and what it does about it: the words between the machine and its
driver.

Events go in, actions come out, in order; ``ft/standby.py`` says which follow which.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.ft.epoch_records import Cause

if TYPE_CHECKING:
    from ftstan.ft.epoch_records import EpochRecord
    from ftstan.ft.heartbeat import Heartbeat
    from ftstan.ft.subjects import Released
    from ftstan.ft.timing import FtTiming


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
    """A heartbeat arrived on the group's subject (decoded; what does not decode is not an
    event).
    """

    beat: Heartbeat


@dataclass(frozen=True, slots=True)
class ReleasedHeard:
    """An owner announced that it released the lock."""

    released: Released


@dataclass(frozen=True, slots=True)
class NatsUp:
    """The connection to NATS works."""


@dataclass(frozen=True, slots=True)
class NatsDown:
    """The connection to NATS is lost."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The operator told this node not to take over."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The operator ended the pause."""


@dataclass(frozen=True, slots=True)
class YieldTo:
    """Another member was named as the successor: hold back for ``seconds``, or until somebody
    serves.

    As long as was said before, if that was longer. 0: the one that was named does not follow, hold
    back no longer.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """The datastore's id as read from our own directory: 16 bytes, or empty if no ftstan server
    ever owned it.

    ``None``: it could not be read, and ``error`` says why. ``owner`` is the newest epoch record, if
    there is one; ``served``: whether anybody, perhaps an original server, has served from there.
    """

    store_id: bytes | None
    owner: EpochRecord | None = None
    served: bool = True
    error: str = ""


@dataclass(frozen=True, slots=True)
class Retimed:
    """The intervals are others from now on: our path leads to a share that was mounted since."""

    timing: FtTiming


class TryResult(enum.Enum):
    """How an attempt at the lock ended."""

    GRANTED = enum.auto()
    BUSY = enum.auto()
    FAULT = enum.auto()
    NOT_ASKED = enum.auto()
    """The directory does not show the expected datastore; nothing was locked or created."""


@dataclass(frozen=True, slots=True)
class TryDone:
    """The answer to ``TryLock``. ``error`` is the text of a fault, ``hint`` what to do about it.

    ``store_id``, ``owner`` and ``served`` are what the directory shows (as in ``StoreSeen``): read
    behind every grant and under suspicion, as ``watch`` is: what an owner rewrites every second,
    ``None`` if it could not be read.
    """

    result: TryResult
    store_id: bytes | None = None
    error: str = ""
    hint: str = ""
    owner: EpochRecord | None = None
    served: bool = True
    watch: bytes | None = None


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of the last ``SetTimer`` has come; too early or too often does no harm."""


@dataclass(frozen=True, slots=True)
class ActivationLost:
    """The driver could not activate, and gave the lock back: stand by again.

    ``why`` is for the log.

    ``refused``: storage was the reason, and may be for every member: no try for 1 s, 2 s ... 60 s.
    """

    why: str
    refused: bool = False


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
    | Retimed
    | TryDone
    | TimerFired
    | ActivationLost
    | ActivationFailed
    | Stopped
)

# --- what to do about it ---


@dataclass(frozen=True, slots=True)
class TryLock:
    """Try the store lock once, without waiting, and answer with ``TryDone``.

    ``suspicious``: nobody was heard, so look at the directory first, and make a missing lock file.
    ``expect``: the id that the directory has to show then; ``None``: any, or none. ``served``:
    somebody must have served from it.
    """

    suspicious: bool = False
    expect: bytes | None = None
    served: bool = False


@dataclass(frozen=True, slots=True)
class ReadStore:
    """Read the datastore's id from our directory and answer with ``StoreSeen``."""


@dataclass(frozen=True, slots=True)
class ReleaseLock:
    """Give the lock back; nothing was written under it."""


@dataclass(frozen=True, slots=True)
class Activate:
    """The lock is ours and every gate is open: claim the epoch and serve.

    ``cause`` and ``after`` are notes for the epoch's record (why, and which epoch owned the store
    before), no other action.
    """

    cause: Cause = field(default=Cause.LOCK_FREE, compare=False)
    after: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Steal:
    """The owner is silent and keeps the lock: claim the next epoch without it, and serve."""


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send ``TimerFired`` at ``at`` (seconds); replaces the timer before."""

    at: float


Action = TryLock | ReadStore | ReleaseLock | Activate | Steal | Log | SetTimer
