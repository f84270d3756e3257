"""The history runner accepts an honest store and catches every dishonest one."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from tests.sim.history import Fault, kill_at_every_call, run_history
from tests.sim.model import Violation
from tests.sim.toystore import Op, ToyStore

if TYPE_CHECKING:
    from ftstan.base.clock import ManualClock
    from ftstan.stores.interface import Recovered, Store
    from tests.sim.disk import SimDisk
    from tests.sim.history import OpenStore


def opener(kind: type[ToyStore]) -> OpenStore:
    def open_store(disk: SimDisk, _: ManualClock) -> Store:
        return kind(disk)

    return open_store


HONEST = opener(ToyStore)


def test_an_honest_store_keeps_every_promise_wherever_it_dies() -> None:
    met = sum(
        (kill_at_every_call(HONEST, seed) for seed in range(6)),
        start=kill_at_every_call(HONEST, 99),
    )
    assert met["killed"] >= met["histories"] > 50
    for kind in (
        "power-cuts",
        "processes-killed",
        "data-torn",
        "data-lost",
        "stopped-cleanly",
        "writes-interrupted",
    ):
        assert met[kind] > 0, kind


def test_an_honest_store_keeps_every_promise_when_recovery_itself_dies() -> None:
    met = sum(
        (kill_at_every_call(HONEST, seed, epoch=1) for seed in range(6)),
        start=kill_at_every_call(HONEST, 98),
    )
    assert met["killed"] >= 2 * met["histories"] > 100


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_honest_store_keeps_every_promise_when_storage_fails(code: int) -> None:
    gave_up = 0
    for seed in range(40):
        outcome = run_history(
            HONEST, seed, kills=[None, 30], faults=[Fault(0, 4 + seed % 20, code)]
        )
        gave_up += outcome.met["gave-up"]
    assert gave_up > 10


def test_a_history_follows_from_its_seed() -> None:
    first, second = (run_history(HONEST, 5, kills=[9, 8]) for _ in range(2))
    assert (first.calls, first.met) == (second.calls, second.met)
    assert first.calls[:2] == [9, 8]


def test_the_judge_sees_the_disk_after_the_clean_stop() -> None:
    seen: list[int] = []
    run_history(
        HONEST,
        1,
        judge=lambda disk, model: seen.append(len(disk.tree("/store")) + len(model.channels)),
    )
    assert seen
    assert seen[0] > 1


class NoSync(ToyStore):
    """Acknowledges what is in the page cache."""

    def sync(self) -> None:
        pass


class NoNameSync(ToyStore):
    """Forgets that a name is not durable with its file."""

    def sync_name(self) -> None:
        pass


class NoSyncOfFound(ToyStore):
    """Delivers a tail that a power cut can still take back."""

    def sync_found(self, data: bytes) -> None:
        pass


class SyncsFoundOnly(ToyStore):
    """Believes that a sync makes durable what an earlier, failed one left in the page cache."""

    def sync_found(self, data: bytes) -> None:
        self.disk.fdatasync(self.log)


class KeepsTornTail(ToyStore):
    """Appends behind a torn frame."""

    def cut_torn_tail(self, size: int) -> None:
        self.end = size


class LosesDeletes(ToyStore):
    """A deleted subscription comes back."""

    def write(self, ops: list[Op]) -> None:
        kept = [op for op in ops if op[0] != "no-sub"]
        super().write(kept)
        for op in ops:
            self.apply(op)


class LosesClients(ToyStore):
    """Client registrations are kept in memory only."""

    def write(self, ops: list[Op]) -> None:
        super().write([op for op in ops if op[0] != "client"])


class LosesAcks(ToyStore):
    """Acknowledgements are never written."""

    def write(self, ops: list[Op]) -> None:
        super().write([op for op in ops if op[0] != "event" or op[2] == "sent"])
        for op in ops:
            self.apply(op)


class LosesDeliveries(ToyStore):
    """Deliveries are never written."""

    def write(self, ops: list[Op]) -> None:
        super().write([op for op in ops if op[0] != "event" or op[2] == "acked"])


class SkipsMessages(ToyStore):
    """Leaves holes in the log."""

    def apply(self, op: Op) -> None:
        if op[0] != "message" or op[2] % 5:
            super().apply(op)


class ForgetsTheEnd(ToyStore):
    """Starts over at a sequence that has been used."""

    def recover(self) -> Recovered:
        found = super().recover()
        for channel in self.channels.values():
            if channel.last > 1:
                del channel.messages[channel.last]
                channel.measure()
        return found


class SwallowsErrors(ToyStore):
    """Takes a failed sync for a sync."""

    def sync(self) -> None:
        try:
            super().sync()
        except StoreError:
            self.disk.met["swallowed"] += 1


def violation(kind: type[ToyStore]) -> str:
    """What the runner says about a dishonest store, first for kills in the first process, then in
    the second.
    """
    for epoch in (0, 1):
        for seed in range(40):
            try:
                kill_at_every_call(opener(kind), seed, epoch=epoch)
            except Violation as found:
                return str(found)
    return "nothing noticed"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (NoSync, "gone|was answered|server record"),
        (NoNameSync, "gone|was answered|server record"),
        (NoSyncOfFound, "gone|had b'"),
        (KeepsTornTail, "gone|was answered|server record|client"),
        (LosesDeletes, "is none of"),
        (LosesClients, "is none of"),
        (LosesAcks, "were acknowledged durably"),
        (LosesDeliveries, "not acknowledged, and are not pending"),
        (SkipsMessages, "should be|nothing at or after"),
        (ForgetsTheEnd, "gone"),
    ],
)
def test_a_dishonest_store_is_caught(kind: type[ToyStore], says: str) -> None:
    text = violation(kind)
    assert re.search(says, text), text
    assert "[seed=" in text


@pytest.mark.parametrize("kind", [SwallowsErrors, SyncsFoundOnly])
def test_a_store_that_misjudges_a_failed_sync_is_caught(kind: type[ToyStore]) -> None:
    def all_histories() -> None:
        for seed in range(60):
            for call in range(3, 30, 2):
                run_history(opener(kind), seed, kills=[None, 9], faults=[Fault(0, call, errno.EIO)])

    with pytest.raises(Violation, match=r"gone|was answered|server record|is none of"):
        all_histories()
