"""The choice of a queue member: the core's heap against the rules written down naively."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ftstan.broker.state import Channel, QueueGroup, Subscription
from ftstan.stores.expiry import Expiry
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.memory import MemoryChannel


@dataclass
class Member:
    """What the rules look at."""

    sub: Subscription
    pending: int = 0
    ready: bool = True
    stalled: bool = False
    failed: bool = False


class Choice(RuleBasedStateMachine):
    """Joins, leaves, acks, stalls and failures in any order.

    Each choice must be the one that the rules give.
    """

    def __init__(self) -> None:
        super().__init__()
        self.channel = Channel(b"foo", MemoryChannel(b"foo", ChannelLimits(), [], Expiry()))
        self.group = QueueGroup(self.channel, b"g")
        self.members: list[Member] = []
        self.sequence = 0

    def some(self, index: int) -> Member:
        return self.members[index % len(self.members)]

    @rule(ready=st.booleans())
    def join(self, ready: bool) -> None:
        sub = Subscription(self.channel, len(self.members) + 1, self.group)
        sub.ready = ready
        self.group.add(sub)
        self.members.append(Member(sub, ready=ready))

    @precondition(lambda self: self.members)
    @rule(index=st.integers(0, 50))
    def leave(self, index: int) -> None:
        member = self.some(index)
        self.group.remove(member.sub)
        last = self.members.pop()
        if last is not member:
            self.members[self.members.index(member)] = last

    @precondition(lambda self: self.members)
    @rule(index=st.integers(0, 50), more=st.integers(-2, 3))
    def change_pending(self, index: int, more: int) -> None:
        member = self.some(index)
        for _ in range(more):
            self.sequence += 1
            member.sub.pending.add(self.sequence)
        for sequence, _, _ in member.sub.pending.items()[: max(-more, 0)]:
            member.sub.pending.discard(sequence)
        member.pending = len(member.sub.pending)
        self.group.update(member.sub)

    @precondition(lambda self: self.members)
    @rule(
        index=st.integers(0, 50),
        what=st.sampled_from(["ready", "stalled", "failed"]),
        on=st.booleans(),
    )
    def change_state(self, index: int, what: str, on: bool) -> None:
        member = self.some(index)
        setattr(member, what, on)
        setattr(member.sub, "hb_failed" if what == "failed" else what, on)
        self.group.update(member.sub)

    @rule(again=st.booleans())
    def choose(self, again: bool) -> None:
        open_ones = [m for m in self.members if m.ready and not m.stalled]
        good = [m for m in open_ones if not m.failed]
        served = [m for m in self.members if m.ready]
        expected = None
        if good:
            expected = min(good, key=lambda m: m.pending)
        elif again and served:
            expected = served[0]
        elif not again and open_ones:
            expected = min(open_ones, key=lambda m: m.pending)
        if expected is not None and expected is self.members[0]:
            self.members.append(self.members.pop(0))
        assert self.group.next_member(again=again) is (None if expected is None else expected.sub)

    @invariant()
    def the_list_is_in_order(self) -> None:
        assert [m.sub for m in self.members] == self.group.members()
        assert self.group.size == len(self.members)
        assert self.group.is_stalled == (not any(m.ready and not m.stalled for m in self.members))


def test_the_member_chosen_is_the_one_that_the_rules_give() -> None:
    run_state_machine_as_test(
        Choice, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )
