"""Redelivery: what subscriptions have not acknowledged is sent again, so much a turn.

A window has as many messages as its client asked for, a million if it likes. What one turn resends is bounded by the
budget of an emit, and what it looks up at a start by ``RECOVERED_ENTRIES``; the next turns go on with it, and nothing
goes twice. Follows ``docs/compat/protocol.md`` (redelivery, recovery).
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
    from ftstan.broker.groups import Groups
    from ftstan.broker.state import Subscription


class Resending:
    """What is resent to the subscriptions of a broker: when a timer ends, at a resume, and at a start."""

    def __init__(self, broker: BrokerBase, groups: Groups) -> None:
        self._broker = broker
        self._groups = groups
        self.recovering: deque[Subscription] = deque()
        """Recovered subscriptions that wait for their first look; the first one may have begun."""
        self._pending: list[int] = []
        """Of the first one: sequences that were not looked at yet, the next one last."""
        self._began = False

    def on_ack_timer(self, sub: Subscription) -> None:
        """Resend what was not acknowledged in time, in order of expiry, whatever the window says."""
        broker = self._broker
        if not served(sub) or not len(sub.pending):
            return
        if sub.hb_failed and sub.group is None:
            broker.arm(sub, broker.now + sub.ack_wait)
            return
        self._resend_due(sub, same=False)

    def _resend_due(self, sub: Subscription, *, same: bool) -> None:
        broker = self._broker
        due, following = sub.pending.due(broker.now + c.REDELIVERY_LOOK_AHEAD)
        if len(sub.pending):
            broker.arm(sub, following or broker.now + sub.ack_wait)
        self._resend(sub, due, 0, same=same)

    def _resend(self, sub: Subscription, due: list[int], start: int, *, same: bool) -> None:
        """Resend ``due`` from ``start`` on; what is too much for one emit goes with the next, and nothing goes twice.

        ``same``: also a queue member gets its messages itself.
        """
        broker = self._broker
        resend = broker.redeliver if same or sub.group is None else broker.pass_on
        for i in range(start, len(due)):
            if not served(sub):
                return
            if self._is_full:
                broker.timers.at(broker.now, partial(self._resend, sub, due, i, same=same))
                return
            if due[i] not in sub.pending:
                continue
            try:
                resend(sub, due[i])
            except StoreError as error:
                broker.on_read_error(sub, error)
                return

    @property
    def _is_full(self) -> bool:
        """Whether this emit has as many bytes as one may have."""
        return len(self._broker.deliveries) + self._broker.passed > self._broker.budget

    # ---- resume --------------------------------------------------------------------------------------------------

    def resume(self, sub: Subscription, then: Callable[[], None]) -> None:
        """Resend all that it has pending, in order of sequence; ``then`` is called behind the last one."""
        self._resume(sub, sub.sid, sub.pending.sequences(), 0, then)

    def _resume(self, sub: Subscription, sid: int, pending: list[int], start: int, then: Callable[[], None]) -> None:
        broker = self._broker
        for i in range(start, len(pending)):
            if sub.client is None or sub.sid != sid:
                # It left, and perhaps came back: then that resume does all of it.
                return
            if self._is_full:
                broker.timers.at(broker.now, partial(self._resume, sub, sid, pending, i, then))
                return
            if pending[i] not in sub.pending:
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

    # ---- recovery ------------------------------------------------------------------------------------------------

    def start_recovered(self) -> None:
        """Take some recovered subscriptions: resend what is overdue, set timers for the rest, let new messages flow."""
        left = c.RECOVERED_ENTRIES
        for _ in range(c.RECOVERED_PER_TURN):
            if not self.recovering or left <= 0:
                return
            sub = self.recovering[0]
            if served(sub):
                try:
                    left -= self._look(sub, left)
                    if self._pending:
                        return
                    self._resend_due(sub, same=sub.ready)
                except StoreError as error:
                    self._broker.on_read_error(sub, error)
                    # Where the window is full nothing else would come back to what is pending.
                    self._broker.arm(sub, self._broker.now + sub.ack_wait)
            self.recovering.popleft()
            self._pending, self._began = [], False
            sub.on_hold = False
            if sub.group is not None:
                self._groups.treated(sub.group)
            elif sub.client is not None:
                self._broker.enqueue(sub)

    def _look(self, sub: Subscription, most: int) -> int:
        """Give the next ``most`` of what is pending their times; returns how many. Raises ``StoreError``."""
        broker = self._broker
        if not self._began:
            self._pending, self._began = sub.pending.sequences()[::-1], True
        some = min(most, len(self._pending))
        for _ in range(some):
            sequence = self._pending.pop()
            if sequence not in sub.pending:
                continue
            stamped = broker.timestamp_of(sub.channel, sequence)
            if not stamped:
                broker.note_implied_ack(sub, sequence)
                continue
            # A restart forgets when it was sent; it cannot have been before it was stored, nor later than now, whatever
            # the clock of the host said that stored it.
            age = max(broker.wall - stamped, 0)
            sub.pending.add(sequence, max(broker.now + sub.ack_wait - age, 1))
        return some


def served(sub: Subscription) -> bool:
    """Whether anything of the subscription can be resent: a member that is not ready has others."""
    return sub.client is not None and (sub.ready or sub.group is not None)
