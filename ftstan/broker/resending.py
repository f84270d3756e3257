"""Redelivery: what subscriptions have not acknowledged is sent again, so much a turn.

A window has as many messages as its client asked for, a million if it likes. What one turn resends
is bounded by the budget of an emit, what it gives up by ``DeadLetters.is_busy``, and what it looks
up at a start by ``RECOVERED_ENTRIES``; the next turns go on with it, and nothing goes twice.
Follows ``docs/compat/protocol.md`` (redelivery, recovery).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.broker import constants as c

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.broker.base import BrokerBase
    from ftstan.broker.dead_letters import DeadLetters
    from ftstan.broker.groups import Groups
    from ftstan.broker.state import Subscription


class Resending:
    """What is resent to the subscriptions of a broker: when a timer ends, at a resume, and at a
    start.
    """

    def __init__(self, broker: BrokerBase, groups: Groups) -> None:
        self._broker = broker
        self._groups = groups
        self.recovering: deque[Subscription] = deque()
        """Recovered subscriptions that wait for their first look; the first one may have begun."""
        self._under_way: dict[Subscription, bool] = {}
        """Those that are resent since a timer ended: whether another one has ended meanwhile."""
        self._batch = 0
        self._listed = 0
        """In this batch, unacknowledged messages of which a list was made."""
        self._pending: list[int] = []
        """Of the first one: sequences that were not looked at yet, the next one last."""
        self._began = False
        self.dead_letters: DeadLetters | None = None
        """Made with the first redelivery under rules; most servers have none."""

    def on_ack_timer(self, sub: Subscription) -> None:
        """Resend what was not acknowledged in time, in order of expiry, whatever the window
        says.
        """
        broker = self._broker
        if not served(sub) or not len(sub.pending):
            return
        if sub.hb_failed and sub.group is None:
            broker.arm(sub, broker.now + sub.ack_wait)
            return
        if sub in self._under_way:
            # What is due would be listed, and sent, once more each time that a timer ends.
            self._under_way[sub] = True
            return
        if not self._may_list(sub):
            broker.arm(sub, broker.now)
            return
        self._under_way[sub] = False
        self._resend_due(sub, partial(self._through, sub), same=False)

    def _through(self, sub: Subscription) -> None:
        """What was due for an ack timer is sent, or was given up."""
        if self._under_way.pop(sub) and served(sub) and len(sub.pending):
            self._broker.arm(sub, self._broker.now)

    def _resend_due(self, sub: Subscription, then: Callable[[], None], *, same: bool) -> None:
        broker = self._broker
        due, following = sub.pending.due(broker.now + c.REDELIVERY_LOOK_AHEAD)
        if len(sub.pending):
            broker.arm(sub, following or broker.now + sub.ack_wait)
        self._resend(sub, sub.sid, due, 0, then, same=same)

    def _resend(
        self,
        sub: Subscription,
        sid: int,
        due: list[int],
        start: int,
        then: Callable[[], None],
        *,
        same: bool,
    ) -> None:
        """Resend ``due`` from ``start`` on.

        What is too much for one emit goes with the next, and nothing goes twice.

        ``then`` is called behind the last one. ``same``: also a queue member gets its messages
        itself.
        """
        broker = self._broker
        resend = broker.redeliver if same or sub.group is None else broker.pass_on
        for i in range(start, len(due)):
            if not served(sub) or sub.sid != sid:
                # It left, and perhaps came back: then it is resumed.
                break
            if self._is_full or self._is_busy(sub):
                rest = partial(self._resend, sub, sid, due, i, then, same=same)
                broker.timers.at(broker.now, rest)
                return
            if due[i] not in sub.pending or self._is_dead_letter(sub, due[i]):
                continue
            try:
                resend(sub, due[i])
            except StoreError as error:
                broker.on_read_error(sub, error)
                break
        then()

    def _is_busy(self, sub: Subscription) -> bool:
        """Whether this turn, or all of them together, have given up as many as they may."""
        if self.dead_letters is None or sub.rules is None or not sub.rules.max_deliveries:
            return False
        return self.dead_letters.is_busy

    def _is_dead_letter(self, sub: Subscription, sequence: int) -> bool:
        """Whether a message has had its deliveries, and is not sent again."""
        if sub.rules is None or not sub.rules.max_deliveries:
            return False
        if self.dead_letters is None:
            from ftstan.broker.dead_letters import DeadLetters  # noqa: PLC0415  as above

            self.dead_letters = DeadLetters(self._broker, self._send_again)
        return self.dead_letters.takes(sub, sequence)

    def _send_again(self, sub: Subscription, sequence: int) -> bool:
        """Send what cannot be a dead letter, and would wait for its next turn else.

        Returns False if this emit is full.
        """
        if not served(sub) or sequence not in sub.pending:
            return True
        if sub.hb_failed and sub.group is None:
            self._broker.arm(sub, self._broker.now + sub.ack_wait)
            return True
        if self._is_full:
            return False
        try:
            if sub.group is None:
                self._broker.redeliver(sub, sequence)
            else:
                self._broker.pass_on(sub, sequence)
        except StoreError as error:
            self._broker.on_read_error(sub, error)
            self._broker.arm(sub, self._broker.now + sub.ack_wait)
        return True

    @property
    def _is_full(self) -> bool:
        """Whether this emit has as many bytes as one may have."""
        return len(self._broker.deliveries) + self._broker.passed > self._broker.budget

    # ---- resume
    # ----------------------------------------------------------------------------------------------

    def resume(self, sub: Subscription, then: Callable[[], None]) -> None:
        """Resend all that it has pending, in order of sequence.

        ``then`` is called behind the last one.
        """
        self._start(sub, sub.sid, then)

    def _start(self, sub: Subscription, sid: int, then: Callable[[], None]) -> None:
        if sub.client is None or sub.sid != sid:
            return
        if not self._may_list(sub):
            # A client may close and resume a window of a million messages all the time.
            self._broker.timers.at(self._broker.now, partial(self._start, sub, sid, then))
            return
        self._resume(sub, sid, sub.pending.sequences(), 0, then)

    def _may_list(self, sub: Subscription) -> bool:
        """Whether a list of what a subscription has not acknowledged is made in this batch.

        Lists are made one after the other, so many entries a batch.
        """
        if self._batch != self._broker.batch:
            self._batch = self._broker.batch
            self._listed = 0
        if self._listed and self._listed + len(sub.pending) > c.RECOVERED_ENTRIES:
            return False
        self._listed += len(sub.pending)
        return True

    def _resume(
        self, sub: Subscription, sid: int, pending: list[int], start: int, then: Callable[[], None]
    ) -> None:
        broker = self._broker
        for i in range(start, len(pending)):
            if sub.client is None or sub.sid != sid:
                # It left, and perhaps came back: then that resume does all of it.
                return
            if self._is_full or self._is_busy(sub):
                broker.timers.at(broker.now, partial(self._resume, sub, sid, pending, i, then))
                return
            if pending[i] not in sub.pending or self._is_dead_letter(sub, pending[i]):
                continue
            if broker.tracer is not None:
                broker.tracer.resumed(sub, pending[i])
            try:
                broker.redeliver(sub, pending[i])
            except StoreError as error:
                broker.on_read_error(sub, error)
                break
        if len(sub.pending):
            broker.arm(sub, broker.now + sub.ack_wait)
        then()

    # ---- recovery
    # ----------------------------------------------------------------------------------------------

    def start_recovered(self) -> None:
        """Take some recovered subscriptions: resend what is overdue, set timers for the rest, let
        new messages flow.
        """
        left = c.RECOVERED_ENTRIES
        for _ in range(c.RECOVERED_PER_TURN):
            if not self.recovering or left <= 0:
                return
            sub = self.recovering[0]
            release = partial(self._release, sub, sub.sid)
            if served(sub):
                try:
                    left -= self._look(sub, left)
                    if self._pending:
                        return
                    self._resend_due(sub, release, same=sub.ready)
                except StoreError as error:
                    self._broker.on_read_error(sub, error)
                    # Where the window is full nothing else would come back to what is pending.
                    self._broker.arm(sub, self._broker.now + sub.ack_wait)
                    release()
            else:
                release()
            self.recovering.popleft()
            self._pending = []
            self._began = False

    def _release(self, sub: Subscription, sid: int) -> None:
        """What was overdue of a recovered subscription is sent: new messages from now on."""
        # Who left and came back meanwhile is resumed.
        if sub.sid == sid:
            sub.on_hold = False
        if sub.group is not None:
            self._groups.treated(sub.group)
        elif sub.client is not None and sub.sid == sid:
            self._broker.enqueue(sub)

    def _look(self, sub: Subscription, most: int) -> int:
        """Give the next ``most`` of what is pending their times; returns how many.

        Raises ``StoreError``.
        """
        broker = self._broker
        if not self._began:
            self._pending = sub.pending.sequences()[::-1]
            self._began = True
        some = min(most, len(self._pending))
        for _ in range(some):
            sequence = self._pending.pop()
            if sequence not in sub.pending:
                continue
            stamped = broker.timestamp_of(sub.channel, sequence)
            if not stamped:
                broker.note_implied_ack(sub, sequence)
                continue
            # A restart forgets when it was sent; it cannot have been before it was stored, nor
            # later than now, whatever the clock of the host said that stored it.
            age = max(broker.wall - stamped, 0)
            sub.pending.add(sequence, max(broker.now + sub.ack_wait - age, 1))
        return some


def served(sub: Subscription) -> bool:
    """Whether anything of the subscription can be resent: a member that is not ready has others."""
    return sub.client is not None and (sub.ready or sub.group is not None)
