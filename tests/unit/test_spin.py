"""The data plane looks for more work before it sleeps, only while that pays."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftstan.clock import ManualClock
from ftstan.spin import Spin

SPIN_S, LOOK_S = 0.0002, 0.00001


@dataclass
class Descriptors:
    """What ``poll`` says: something is ready ``after`` so many seconds, each time that it is waited for."""

    clock: ManualClock
    after: float = 0.0
    looks: list[float | None] = field(default_factory=list)
    """The timeouts that it was asked with, in milliseconds."""
    look_s: float = LOOK_S
    """How long one look takes, with what others do meanwhile."""
    _ready_at: float = 0.0

    def expect(self, after: float) -> None:
        self.looks.clear()
        self._ready_at = self.clock.mono() + after

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        assert timeout is not None
        self.looks.append(timeout)
        left = max(self._ready_at - self.clock.mono(), 0.0)
        self.clock.advance(min(timeout / 1000, left) if timeout else self.look_s)
        return [(7, 1)] if self.clock.mono() >= self._ready_at else []


def waited(spin: Spin, fds: Descriptors, after: float, timeout: float = 1.0) -> tuple[list[tuple[int, int]], bool]:
    """What a wait returns, and whether it slept."""
    fds.expect(after)
    events = spin.wait(fds, timeout)
    return events, any(fds.looks)


def test_it_spins_only_after_something_came_within_the_time_that_a_spin_takes() -> None:
    fds = Descriptors(clock := ManualClock())
    spin = Spin(clock, SPIN_S, 2)
    assert waited(spin, fds, 0.01) == ([(7, 1)], True)
    assert waited(spin, fds, 0.0001) == ([(7, 1)], True)
    # That would have been caught: the next one is.
    assert waited(spin, fds, 0.0001) == ([(7, 1)], False)
    assert len(fds.looks) > 1
    assert waited(spin, fds, 0.00015) == ([(7, 1)], False)


def test_one_wait_in_vain_ends_it() -> None:
    fds = Descriptors(clock := ManualClock())
    spin = Spin(clock, SPIN_S, 2)
    waited(spin, fds, 0.0001)
    assert waited(spin, fds, 0.01) == ([(7, 1)], True)
    assert waited(spin, fds, 0.01) == ([(7, 1)], True)
    assert len(fds.looks) == 1


def test_it_rests_when_others_need_the_processor_even_if_something_came_meanwhile() -> None:
    fds = Descriptors(clock := ManualClock())
    spin = Spin(clock, SPIN_S, 2)
    waited(spin, fds, 0.0001)
    fds.look_s = 0.0001
    assert waited(spin, fds, 0.00005) == ([(7, 1)], False)
    # Each of these would have been caught, if the processor were to be had.
    for _ in range(3):
        assert waited(spin, fds, 0.0001) == ([(7, 1)], True)
    clock.advance(1)
    assert waited(spin, fds, 0.0001) == ([(7, 1)], True)
    fds.look_s = LOOK_S
    assert waited(spin, fds, 0.0001) == ([(7, 1)], False)


def test_the_time_spent_looking_is_part_of_the_timeout() -> None:
    fds = Descriptors(clock := ManualClock())
    spin = Spin(clock, SPIN_S, 2)
    waited(spin, fds, 0.0001)
    began = clock.mono()
    assert waited(spin, fds, 10.0, timeout=0.05) == ([], True)
    assert SPIN_S < clock.mono() - began <= 0.052
    waited(spin, fds, 0.0001)
    # Shorter than a spin: nothing is left to sleep.
    assert waited(spin, fds, 10.0, timeout=0.0001)[0] == []


def test_with_no_time_for_it_on_one_processor_or_with_work_at_hand_it_does_not_spin() -> None:
    fds = Descriptors(clock := ManualClock())
    for never in (Spin(clock, 0.0, 2), Spin(clock, SPIN_S, 1)):
        for _ in range(3):
            assert waited(never, fds, 0.0001) == ([(7, 1)], True)
    spin = Spin(clock, SPIN_S, 2)
    waited(spin, fds, 0.0001)
    fds.expect(1.0)
    assert spin.wait(fds, 0.0) == []
    assert fds.looks == [0]
