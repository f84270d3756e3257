"""What clients send is applied for a time, not by its size: who publishes waits for no flood."""

from __future__ import annotations

from typing import Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.node.arrivals import LEAST, MOST, WAIT_S, ArrivalRoom
from ftstan.node.pipeline import Serving
from tests.unit.node.test_pipeline_pause import SUSPICION_S, Everything

#: Bytes of each frame of the stub below.
FRAME = 100


class Flood(Everything):
    """A link on which ``offered`` bytes wait, and a broker that takes ``cost`` seconds a byte."""

    def __init__(self, clock: ManualClock, offered: int, cost: float, frame: int = FRAME) -> None:
        super().__init__(clock)
        self.offered = offered
        self.heard = 0
        self.applied = 0
        self._cost = cost
        self._frame = frame

    def recv_into(self, place: memoryview) -> int:
        n = min(self.offered - self.heard, len(place))
        self.heard += n
        return n

    def feed(self, *where: Any) -> int:
        _, start, end, *_ = where
        size = (end - start) // self._frame * self._frame
        self.applied += size
        self.clock.advance(size * self._cost)
        return int(start + size)


def road(flood: Flood) -> Serving:
    return Serving(flood, flood, flood, flood.clock, "test", suspicion_s=SUSPICION_S)  # type: ignore[arg-type]


def test_a_batch_ends_in_time_and_what_was_read_goes_first() -> None:
    flood = Flood(ManualClock(), 100_000, cost=1e-6)
    server = road(flood)
    server.turn(readable=True)
    assert flood.applied == 100_000
    # By now it is known what they cost.
    flood.offered = 1_000_000
    server.turn(readable=True)
    read = flood.heard
    turns = 1
    while flood.applied < read:
        # Nobody waits for the socket meanwhile, and nothing more is read.
        assert server.timeout() == 0
        assert flood.heard == read
        before = flood.applied
        server.turn(readable=False)
        # 32 KiB take 33 ms.
        assert before < flood.applied <= before + LEAST
        turns += 1
    assert turns > 25
    assert server.timeout() > 0


def test_what_was_read_on_a_link_that_is_lost_keeps_nobody_busy() -> None:
    flood = Flood(ManualClock(), 100_000, cost=1e-6)
    server = road(flood)
    server.turn(readable=True)
    flood.offered = 1_000_000
    server.turn(readable=True)
    assert server.timeout() == 0
    server.open_link()
    assert server.timeout() > 0
    server.turn(readable=True)
    assert flood.heard == 1_000_000


def test_what_is_quick_is_applied_as_a_whole() -> None:
    flood = Flood(ManualClock(), 3_000_000, cost=1e-9)
    road(flood).turn(readable=True)
    assert flood.applied == 3_000_000


def test_what_is_longer_than_a_piece_is_applied_all_the_same() -> None:
    flood = Flood(ManualClock(), 1_000_000, cost=1e-6, frame=500_000)
    server = road(flood)
    for _ in range(3):
        server.turn(readable=True)
    assert flood.applied == 1_000_000


@pytest.mark.parametrize("cost", [1e-8, 2e-8, 1e-7, 1e-6])
def test_as_much_may_wait_as_takes_a_moment(cost: float) -> None:
    told: list[int] = []
    room = ArrivalRoom()
    room.tell = told.append
    for _ in range(20):
        room.applied(64 << 10, cost * (64 << 10))
    assert told[-1] == room.room
    assert WAIT_S / cost / 2 <= max(room.room, WAIT_S / cost / 2)
    assert room.room == LEAST or room.room * cost <= 2 * WAIT_S
    for _ in range(40):
        room.applied(64 << 10, 1e-6)
    assert told[-1] == MOST


def test_the_slower_storage_is_the_more_may_wait() -> None:
    room = ArrivalRoom()
    for _ in range(20):
        room.applied(64 << 10, 1e-7 * (64 << 10))
    quick = room.room
    for _ in range(30):
        room.committed(0.05)
        room.applied(64 << 10, 1e-7 * (64 << 10))
    assert room.room >= 4 * quick
    for _ in range(60):
        room.committed(60.0)
    assert room.wait <= 0.1
    for _ in range(60):
        room.committed(0.0001)
        room.applied(64 << 10, 1e-7 * (64 << 10))
    assert room.room < 2 * quick


def test_who_leaves_applies_all_that_has_come() -> None:
    flood = Flood(ManualClock(), 100_000, cost=1e-6)
    server = road(flood)
    server.turn(readable=True)
    flood.offered = 1_000_000
    server.leave()
    server.turn(readable=True)
    assert flood.applied == 1_000_000


def test_a_pace_that_changes_little_is_not_told() -> None:
    told: list[int] = []
    room = ArrivalRoom()
    room.tell = told.append
    for n in range(100):
        room.applied(256 << 10, (256 << 10) * (1e-7 if n % 2 else 1.5e-7))
    assert len(told) == 1


def test_a_few_bytes_tell_nothing() -> None:
    told: list[int] = []
    room = ArrivalRoom()
    room.tell = told.append
    for _ in range(100):
        room.applied(200, 0.01)
    assert told == []


def test_the_listener_is_told() -> None:
    told: list[int] = []
    flood = Flood(ManualClock(), 1_000_000, cost=1e-6)
    server = road(flood)
    server.use(1 << 20, None, told.append, collects=False)
    for _ in range(30):
        server.turn(readable=True)
    assert told[0] == MOST
    assert told[-1] == LEAST
