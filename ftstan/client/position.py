"""How far a subscription has got, as its own client knows it: for going on in a new session, and
against repeats.

A plain subscription ends with its session on the server's side. In the next session it begins at
the lowest sequence that was not acknowledged, for what the server had sent may have been lost on
its way; of what comes then, what was acknowledged is not handed out again. It begins one earlier
where it can, at a message that it knows: that one shows whether the channel is still the same, for
a memory server that was started anew has begun to count from 1.

Of durables and queue groups the server keeps the position. Only the newest acknowledged messages
are remembered here, so that one whose ack was lost on its way is acknowledged again and not handed
out again.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from ftstan.client.options import Start
from ftstan.wire.messages import StartPosition

if TYPE_CHECKING:
    from ftstan.client.message import Message
    from ftstan.client.options import SubscribeOptions

#: How many acknowledged messages a durable or queue subscription remembers, for each message that
#: may be in flight.
REMEMBERED_FOR_EACH: Final = 4

#: How many separate stretches of acknowledged messages a plain subscription remembers: expired
#: messages leave gaps.
STRETCHES: Final = 10_000


class PositionVerdict(Enum):
    """What to do with a message that has come."""

    HAND_OUT = auto()
    ACK_AGAIN = auto()
    """It was acknowledged before."""
    OTHER_CHANNEL = auto()
    """The channel has begun anew: what was known of it means nothing any more."""


class Position:
    """Of one subscription."""

    def __init__(self, options: SubscribeOptions) -> None:
        self._options = options
        # Sequence -> timestamp: a timestamp tells messages of one sequence apart when a channel
        # begins anew.
        self._unacked: dict[int, int] = {}
        self._recent: dict[int, int] = {}
        self._stretches = Stretches()
        self._highest = 0
        self._proof: dict[int, int] = {}

    def start(self, elapsed_ns: int) -> Start:
        """Where the next session's subscription begins.

        ``elapsed_ns``: nanoseconds since the first one asked.
        """
        asked = self._options.start
        if not self._highest:
            return asked.again(elapsed_ns)
        if not self._options.plain:
            # It counts only if the group has no other member, and is no durable one.
            return Start.sequence(min(self._unacked, default=self._highest + 1))
        known = self._known()
        if not self._stretches and asked.position not in {
            StartPosition.NEW_ONLY,
            StartPosition.LAST_RECEIVED,
        }:
            return asked.again(elapsed_ns)
        return Start.sequence(min(known))

    def resumed(self) -> None:
        """The next session's subscription is asked for; nothing of it has come yet."""
        if self._options.plain:
            self._proof = self._known()

    def begin_anew(self) -> None:
        """Forget everything: the channel is another one."""
        self._unacked.clear()
        self._recent.clear()
        self._proof.clear()
        self._stretches = Stretches()
        self._highest = 0

    def received(self, message: Message) -> PositionVerdict:
        """Look at a message that has come."""
        sequence = message.sequence
        timestamp = message.timestamp
        proof = self._proof
        self._proof = {}
        if proof and (sequence < min(proof) or proof.get(sequence, timestamp) != timestamp):
            return PositionVerdict.OTHER_CHANNEL
        if sequence in self._stretches or self._recent.get(sequence) == timestamp:
            return PositionVerdict.ACK_AGAIN
        self._unacked[sequence] = timestamp
        self._highest = max(self._highest, sequence)
        return PositionVerdict.HAND_OUT

    def acked(self, message: Message) -> bool:
        """Its user acknowledges a message; tells whether that is news."""
        sequence = message.sequence
        timestamp = message.timestamp
        if self._unacked.get(sequence) != timestamp:
            return False
        del self._unacked[sequence]
        if self._options.plain:
            self._stretches.add(sequence, timestamp)
            return True
        self._recent[sequence] = timestamp
        while len(self._recent) > REMEMBERED_FOR_EACH * self._options.max_in_flight:
            del self._recent[next(iter(self._recent))]
        return True

    def _known(self) -> dict[int, int]:
        """Timestamps of what is not acknowledged, and of the last message before the first gap."""
        return {**self._unacked, **self._stretches.first_end()}


class Stretches:
    """A set of sequences, as stretches without a gap.

    Of the last one of each, the timestamp too.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._times: list[int] = []

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._begins, sequence) - 1
        return at >= 0 and sequence <= self._ends[at]

    def __len__(self) -> int:
        return len(self._begins)

    def add(self, sequence: int, timestamp: int) -> None:
        """Add one that is not in it."""
        at = bisect_right(self._begins, sequence)
        extends = at > 0 and self._ends[at - 1] == sequence - 1
        if at < len(self._begins) and self._begins[at] == sequence + 1:
            self._begins[at] = sequence
            if extends:
                del self._ends[at - 1], self._times[at - 1], self._begins[at]
        elif extends:
            self._ends[at - 1] = sequence
            self._times[at - 1] = timestamp
        else:
            self._begins.insert(at, sequence)
            self._ends.insert(at, sequence)
            self._times.insert(at, timestamp)
        if len(self._begins) > STRETCHES:
            # What is forgotten is handed out once more if it comes again; what was never seen must
            # not count as acked.
            del self._begins[-1], self._ends[-1], self._times[-1]

    def first_end(self) -> dict[int, int]:
        """The last sequence of the lowest stretch with its timestamp; empty if there is none."""
        return {self._ends[0]: self._times[0]} if self._ends else {}
