"""Attacks on fencing, sixth round: a healthy owner and the last words of the one before it, call by
call.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from greenlet import greenlet

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.ft.fencing_check import Confirmer
from ftstan.ft.watch import WATCH_NAME, Probe, decode_watch
from tests.sim.disk import SimDisk
from tests.sim.filestore import SimOwner
from tests.sim.ft.locks import LockService, SimLocker
from tests.sim.history import STORE

if TYPE_CHECKING:
    from collections.abc import Callable


class Watched:
    """A process that owns the store, as its watch sees it."""

    raises = 0

    def __init__(self, disk: SimDisk, locks: LockService) -> None:
        self.disk = disk
        self.root = disk.open_dir(STORE)
        self._owner = SimOwner(disk, self.root, ManualClock())
        self.identity = self._owner.identity
        self.probe = Probe(
            disk,
            self.root,
            self,
            server_id=f"S{self.identity[0]}",
            look=lambda: None,
            locker=SimLocker(locks, disk),
        )

    def confirm_beside(self) -> None:
        Confirmer(self.disk, self.root, self._owner.activation).close()

    def verify_lock(self) -> None:
        """Nothing is done to the lock here."""


def until(disk: SimDisk, calls: int, then: Callable[[], object]) -> None:
    """Do something before the call after so many others."""
    last = disk.calls + calls

    def at(number: int, _call: str, _args: tuple[object, ...]) -> None:
        if number > last:
            disk.on_call = None
            then()

    disk.on_call = at


def first_probe_beside(former_at: int, successor_at: int, met: Counter[str]) -> bool:
    """A former owner stands still within its first probe, and goes on within the first ones of its
    successor.

    False if neither has so many calls.
    """
    locks = LockService()
    disk = SimDisk()
    disk.make_dirs(STORE)
    here = greenlet.getcurrent()
    former = Watched(disk, locks)
    until(disk, former_at, here.switch)
    waking = greenlet(former.probe)
    waking.switch()
    if waking.dead:
        return False
    successor = Watched(disk.sibling(), locks)

    def wake() -> None:
        try:
            waking.switch()
        except FencedError:
            met["fenced"] += 1
        else:
            met["went on"] += 1

    until(successor.disk, successor_at, wake)
    for _ in range(3):
        assert successor.probe()
    assert waking.dead
    successor.disk.on_call = None
    assert successor.probe()
    assert successor.probe()
    found = decode_watch(successor.disk.tree(STORE)[WATCH_NAME] or b"")
    assert found is not None
    assert found.epoch == successor.identity[0]
    return True


def test_an_owner_goes_on_wherever_its_predecessors_first_probe_comes_late() -> None:
    met: Counter[str] = Counter()
    former_at = 0
    while first_probe_beside(former_at, 0, met):
        for successor_at in range(1, 20):
            assert first_probe_beside(former_at, successor_at, met)
        former_at += 1
    assert met["fenced"]
    assert met["went on"]


def test_an_owner_goes_on_when_the_answer_to_its_first_probe_is_lost() -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    owner = Watched(disk, LockService())
    disk.lose_reply("open")
    assert owner.probe()
    assert owner.probe()
    assert disk.met["lost reply of open"] == 1
