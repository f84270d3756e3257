"""An owner that goes on to a higher epoch while it serves: nobody may have owned the store in
between.

``taker`` takes the store without its lock at a chosen storage call of the owner: what a lock that
moved allows.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.epoch_records import SLOT_SIZE
from ftstan.ft.ownership import StoreOwner
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCAL = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


class Group:
    """One store and the processes that want it; no lock keeps any of them out."""

    def __init__(self) -> None:
        self.first = SimDisk()
        self.first.keeps_log = False
        self.owner = self.member(self.first, "OWNER")
        self.owner.activate(without_lock=True)

    def member(self, disk: SimDisk, name: str) -> StoreOwner:
        return StoreOwner(
            disk, "/", server_id=name, clock=ManualClock(), in_group=True, mountinfo=_LOCAL
        )

    def taker(self) -> StoreOwner:
        return self.member(self.first.sibling(), "TAKER")

    def at_call(
        self, wanted: Callable[[str, tuple[object, ...]], bool], then: Callable[[], object]
    ) -> None:
        """Do ``then`` once, before the first call of the owner for which ``wanted`` holds."""

        def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
            if wanted(call, args):
                self.first.on_call = None
                then()

        self.first.on_call = hook


def creates(name: str) -> Callable[[str, tuple[object, ...]], bool]:
    return lambda call, args: call == "open" and args[1] == name


def writes_slot(number: int) -> Callable[[str, tuple[object, ...]], bool]:
    return lambda call, args: call == "pwrite" and args[2] == number * SLOT_SIZE


def test_an_owner_that_was_refused_a_higher_epoch_confirms_nothing_any_more() -> None:
    group = Group()
    taker = group.taker()
    group.at_call(creates("ft.claim.2"), lambda: taker.activate(without_lock=True))
    with pytest.raises(FencedError):
        group.owner.raise_epoch()
    with pytest.raises(FencedError):
        group.owner.confirm()
    with pytest.raises(FencedError):
        group.owner.confirm_beside()
    taker.confirm()


@pytest.mark.parametrize("slot", [2, 3])
def test_a_server_that_took_the_store_while_the_owner_went_on_is_never_passed_over(
    slot: int,
) -> None:
    group = Group()
    # The next number was claimed once and never used: the owner has to pass over it.
    leftover(group, 2)
    taker = group.taker()
    group.at_call(writes_slot(slot), lambda: taker.activate(without_lock=True))
    with pytest.raises(FencedError):
        group.owner.raise_epoch()
    with pytest.raises(FencedError):
        group.owner.confirm()
    taker.confirm()


def test_a_claimer_that_records_its_number_late_does_not_become_an_owner() -> None:
    group = Group()
    taker = group.taker()
    disk = taker._disk
    assert isinstance(disk, SimDisk)

    def owner_raises(_number: int, call: str, args: tuple[object, ...]) -> None:
        if writes_slot(2)(call, args):
            disk.on_call = None
            group.owner.raise_epoch()

    disk.on_call = owner_raises
    with pytest.raises(FencedError):
        taker.activate(without_lock=True)
    group.owner.confirm()
    assert group.owner.activation.epoch == 3


def test_an_overtaken_owner_leaves_and_the_next_server_fences_everybody_before_it() -> None:
    group = Group()
    leftover(group, 2)
    taker = group.taker()
    # The taker has its record in slot 4 when the owner, which looked before, fills slot 3.
    group.at_call(writes_slot(3), lambda: taker.activate(without_lock=True))
    with pytest.raises(FencedError):
        group.owner.raise_epoch()
    taker.confirm()
    last = group.taker()
    last.activate(without_lock=True)
    for former in (group.owner, taker):
        with pytest.raises(FencedError):
            former.confirm()
    last.confirm()


@pytest.mark.parametrize("how_many", [1, 3])
def test_a_leftover_claim_does_not_end_a_healthy_owner(how_many: int) -> None:
    group = Group()
    for number in range(2, 2 + how_many):
        leftover(group, number)
    before = group.owner.activation
    group.owner.raise_epoch()
    group.owner.confirm()
    after = group.owner.activation
    assert (after.epoch, after.store_id, after.predecessor) == (
        2 + how_many,
        before.store_id,
        (before.epoch, before.nonce),
    )
    assert group.taker().activate(without_lock=True).epoch == 3 + how_many
    with pytest.raises(FencedError):
        group.owner.confirm()


def test_a_refused_claim_leaves_the_owner_as_it_is_and_the_next_try_passes_over_it() -> None:
    group = Group()
    # The name is made, and the sync of its directory fails.
    group.at_call(creates("ft.claim.2"), lambda: group.first.fail_next("fsync", errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot be raised") as caught:
        group.owner.raise_epoch()
    assert caught.value.hint.startswith("the file system is full")
    group.owner.confirm()
    assert group.owner.activation.epoch == 1
    group.owner.raise_epoch()
    group.owner.confirm()
    assert group.owner.activation.epoch == 3


def test_an_owner_that_ends_behind_the_filler_leaves_no_blank_slot_to_the_next_one() -> None:
    group = Group()
    leftover(group, 2)
    group.at_call(writes_slot(2), lambda: group.first.fail_next("pwrite", errno.EIO))
    with pytest.raises(StoreError):
        group.owner.raise_epoch()
    successor = group.taker()
    assert successor.activate(without_lock=True).epoch == 4
    data = group.first.tree("/")[EPOCH_NAME]
    assert data is not None
    assert all(any(data[n * SLOT_SIZE : (n + 1) * SLOT_SIZE]) for n in (1, 2, 3, 4))
    with pytest.raises(FencedError):
        group.owner.confirm()


def leftover(group: Group, number: int) -> None:
    """A claimer died, or got no space, behind its claim."""
    disk = group.first.sibling()
    root = disk.open_dir("/")
    disk.close(disk.open(root, f"ft.claim.{number}", 0o102 | 0o200))
    disk.fsync(root)
