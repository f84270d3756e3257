"""The epoch: numbers that nobody shares, records that fence, and every step of them crashed."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, RecoveryError, StoreError
from ftstan.ft.epoch import (
    EPOCH_NAME,
    SLICES_PER_EPOCH,
    Activation,
    LostEpochs,
    claim,
    claim_next,
    read_owner,
    read_state,
    remove_old_claims,
)
from ftstan.ft.epoch_records import SLOT_SIZE, Cause, encode_slot, is_blank
from ftstan.ft.fencing_check import Confirmer
from ftstan.ft.survey import Survey, survey_store
from tests.sim.disk import CrashMode, Killed, SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ftstan.base.disk import FileStat

ROOT = "/store"


def new_store(tree: dict[str, bytes | None] | None = None) -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(ROOT)
    disk.add_tree(ROOT, tree or {})
    return disk


class Owner:
    """A process that reaches for the store of ``disk`` and, if it gets it, confirms."""

    def __init__(self, disk: SimDisk, name: str = "A") -> None:
        self.disk = disk
        self.name = name
        self.root = disk.open_dir(ROOT)

    def claim(
        self,
        *,
        in_group: bool = False,
        ft_mixed: bool | None = None,
        survey: Callable[[], Survey] | None = None,
    ) -> Activation:
        return claim(
            self.disk,
            self.root,
            server_id=self.name,
            clock=ManualClock(),
            survey=survey or (lambda: survey_store(self.disk, self.root)),
            in_group=in_group,
            ft_mixed=ft_mixed,
            host=f"host-{self.name}",
            pid=7,
        )

    def confirmer(self, activation: Activation) -> Confirmer:
        return Confirmer(self.disk, self.root, activation)


def next_owner(disk: SimDisk, name: str) -> Owner:
    return Owner(disk.sibling(), name)


def slot_bytes(disk: SimDisk, slot: int) -> bytes:
    data = disk.tree(ROOT)[EPOCH_NAME]
    assert data is not None
    return data[slot * SLOT_SIZE : (slot + 1) * SLOT_SIZE]


def overwrite(disk: SimDisk, offset: int, data: bytes) -> None:
    fd = disk.open(disk.open_dir(ROOT), EPOCH_NAME, os.O_RDWR)
    disk.pwrite(fd, data, offset)
    disk.close(fd)


def names(disk: SimDisk) -> set[str]:
    return set(disk.tree(ROOT))


# --- numbers ---


def test_a_fresh_store_begins_with_epoch_1_and_slice_1() -> None:
    owner = Owner(new_store())
    activation = owner.claim()
    assert (activation.epoch, activation.slice_base, activation.ours_from) == (1, 0, 1)
    assert (activation.server_id, activation.host, activation.pid) == ("A", "host-A", 7)
    assert activation.since_ns == ManualClock().wall_ns()
    assert not activation.ft_mixed


def test_a_name_with_a_number_that_no_server_got_to_makes_no_epoch_file_of_gigabytes() -> None:
    disk = new_store(
        {
            "server.dat": b"x",
            "foo/msgs.7.dat": b"",
            "foo/msgs.99999999999.dat": b"",
            "foo/subs.dat": b"",
        }
    )
    assert Owner(disk).claim().epoch == 2


@pytest.mark.parametrize(
    ("highest", "epoch"), [(1, 2), (4095, 2), (4096, 2), (4097, 3), (10_000, 4)]
)
def test_on_a_store_of_an_original_server_our_slices_begin_above_all_of_its(
    highest: int, epoch: int
) -> None:
    disk = new_store(
        {
            "server.dat": b"x",
            "foo/msgs.1.dat": b"",
            f"bar/msgs.{highest}.idx": b"",
            "bar/subs.dat": b"",
        }
    )
    activation = Owner(disk).claim()
    assert activation.epoch == epoch
    assert activation.slice_base >= highest
    assert activation.ours_from == activation.slice_base + 1
    assert Owner(disk.sibling(), "B").claim().ours_from == activation.ours_from


def test_each_activation_has_a_number_of_its_own_and_the_stores_identity_stays() -> None:
    disk = new_store()
    first = Owner(disk).claim()
    second = next_owner(disk, "B").claim()
    third = next_owner(disk, "C").claim()
    assert [a.epoch for a in (first, second, third)] == [1, 2, 3]
    assert {a.ours_from for a in (first, second, third)} == {1}
    assert len({a.store_id for a in (first, second, third)}) == 1
    assert len({a.nonce for a in (first, second, third)}) == 3
    assert third.slice_base == 2 * SLICES_PER_EPOCH


def test_the_store_is_surveyed_only_before_its_first_epoch() -> None:
    disk = new_store()
    Owner(disk).claim()

    def never() -> Survey:
        raise AssertionError("surveyed again")

    assert next_owner(disk, "B").claim(survey=never).epoch == 2


def test_a_number_is_claimed_before_anything_is_written_into_the_epoch_file() -> None:
    disk = new_store()
    Owner(disk).claim()
    claimed = next(
        i for i, line in enumerate(disk.log) if line.startswith("open") and "ft.claim.1" in line
    )
    written = next(i for i, line in enumerate(disk.log) if line.startswith("pwrite"))
    assert claimed < written


def test_a_number_whose_claimer_died_is_not_used_again_and_its_slot_is_filled() -> None:
    disk = new_store()
    Owner(disk).claim()
    disk.add_tree(ROOT, {"ft.claim.2": b"", "ft.claim.5": b""})
    activation = next_owner(disk, "B").claim()
    assert activation.epoch == 6
    for slot in range(2, 6):
        assert slot_bytes(disk, slot) == encode_slot(activation.record().filling(slot))
    assert slot_bytes(disk, 6) == encode_slot(activation.record())


def test_a_torn_slot_counts_as_used() -> None:
    disk = new_store()
    Owner(disk).claim()
    disk.add_tree(ROOT, {EPOCH_NAME: slot_bytes(disk, 0) + slot_bytes(disk, 1) + b"torn"})
    activation = next_owner(disk, "B").claim()
    assert activation.epoch == 3
    assert slot_bytes(disk, 2).startswith(b"torn")


def test_a_blank_slot_that_a_dead_claimer_left_between_its_fills_is_filled_by_the_next() -> None:
    disk = new_store()
    owner = Owner(disk)
    first = owner.claim()
    confirm = owner.confirmer(first)
    # Claims 2 to 4 were taken and 5 died while its fills were on their way: the one of slot 3
    # arrived, 2 and 4 did not.
    dead = replace(first, epoch=5, server_id="DEAD", nonce=b"d" * 16).record().filling(3)
    overwrite(disk, 3 * SLOT_SIZE, encode_slot(dead))
    confirm()
    disk.add_tree(ROOT, {f"ft.claim.{number}": b"" for number in range(2, 6)})
    activation = next_owner(disk, "B").claim()
    assert activation.epoch == 6
    assert not any(is_blank(slot_bytes(disk, slot)) for slot in range(1, 7))
    with pytest.raises(FencedError):
        confirm()


def test_the_fills_are_durable_before_the_own_record_is_written() -> None:
    disk = new_store()
    Owner(disk).claim()
    disk.add_tree(ROOT, {"ft.claim.3": b""})
    owner = next_owner(disk, "B")
    owner.claim()
    writes = [line.split()[0] for line in owner.disk.log if line.split()[0] in {"pwrite", "fsync"}]
    # The claim's directory, the filler in our own slot, slot 1 as it is and the two fills, then our
    # own record.
    assert writes == ["fsync", "pwrite", "fsync", *["pwrite"] * 3, "fsync", "pwrite", "fsync"]


def test_a_claim_that_exists_is_never_taken_twice_even_if_the_listing_hides_it() -> None:
    disk = new_store()
    Owner(disk).claim()
    late = next_owner(disk, "B")

    def rival(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open" and "ft.claim.2" in args and "ft.claim.2" not in names(disk):
            disk.add_tree(ROOT, {"ft.claim.2": b"", "ft.claim.3": b""})

    late.disk.on_call = rival
    assert late.claim().epoch == 4


# --- fencing ---


def test_an_owner_is_confirmed_again_and_again_by_one_read_each() -> None:
    owner = Owner(new_store())
    confirm = owner.confirmer(owner.claim())
    before = owner.disk.calls
    for _ in range(5):
        confirm()
    assert [line.split()[0] for line in owner.disk.log[before:]] == ["pread", "fstat"] * 5


def test_a_successor_fences_the_owner_and_is_named() -> None:
    owner = Owner(new_store())
    confirm = owner.confirmer(owner.claim())
    next_owner(owner.disk, "B").claim()
    with pytest.raises(FencedError) as caught:
        confirm()
    assert str(caught.value) == (
        "ft: epoch 1 was superseded by epoch 2 of server B on host host-B pid 7 since "
        "2023-11-14T22:13:20Z"
    )
    assert caught.value.hint


def test_a_successor_several_numbers_above_is_seen_in_the_next_slot() -> None:
    owner = Owner(new_store())
    confirm = owner.confirmer(owner.claim())
    owner.disk.add_tree(ROOT, {"ft.claim.4": b""})
    assert next_owner(owner.disk, "B").claim().epoch == 5
    with pytest.raises(FencedError, match="superseded by epoch 5 of server B"):
        confirm()


def test_once_fenced_is_for_ever() -> None:
    owner = Owner(new_store())
    confirm = owner.confirmer(owner.claim())
    owner.disk.fail_next("pread", errno.EIO)
    with pytest.raises(FencedError, match=r"unreadable: .* \(EIO\)"):
        confirm()
    with pytest.raises(FencedError, match="EIO"):
        confirm()


@pytest.mark.parametrize(
    ("offset", "data", "why"),
    [
        (SLOT_SIZE + 100, b"rot", "our record cannot be read"),
        (SLOT_SIZE, bytes(SLOT_SIZE), "our record is gone"),
        (2 * SLOT_SIZE, b"torn" + bytes(SLOT_SIZE - 4), "slot 2 was used"),
        (2 * SLOT_SIZE, bytes(10), "ends inside the next slot"),
    ],
)
def test_anything_else_than_our_record_and_a_blank_slot_fences(
    offset: int, data: bytes, why: str
) -> None:
    owner = Owner(new_store())
    confirm = owner.confirmer(owner.claim())
    overwrite(owner.disk, offset, data)
    with pytest.raises(FencedError, match=why):
        confirm()


def test_a_blank_slot_behind_ours_is_no_successor() -> None:
    owner = Owner(new_store())
    confirm = owner.confirmer(owner.claim())
    overwrite(owner.disk, 2 * SLOT_SIZE, bytes(SLOT_SIZE))
    confirm()


def test_another_activation_in_our_slot_fences_and_is_named() -> None:
    owner = Owner(new_store())
    activation = owner.claim()
    confirm = owner.confirmer(activation)
    other = replace(activation.record(), server_id="Z", nonce=b"z" * 16)
    overwrite(owner.disk, SLOT_SIZE, encode_slot(other))
    with pytest.raises(FencedError, match="taken from us by epoch 1 of server Z"):
        confirm()


@pytest.mark.parametrize("replaced", [False, True])
def test_an_epoch_file_that_was_removed_or_replaced_fences(replaced: bool) -> None:
    owner = Owner(new_store())
    confirm = owner.confirmer(owner.claim())
    copy = owner.disk.tree(ROOT)[EPOCH_NAME]
    owner.disk.unlink(owner.root, EPOCH_NAME)
    if replaced:
        owner.disk.add_tree(ROOT, {EPOCH_NAME: copy})
    with pytest.raises(FencedError, match="removed or replaced"):
        confirm()


def test_a_confirmer_cannot_be_made_for_an_epoch_that_is_over() -> None:
    owner = Owner(new_store())
    activation = owner.claim()
    next_owner(owner.disk, "B").claim()
    handles = owner.disk.open_handles
    with pytest.raises(FencedError, match="superseded"):
        owner.confirmer(activation)
    assert owner.disk.open_handles == handles


# --- named histories ---


class Pause:
    """Runs ``meanwhile`` once, right before the first call of ``owner`` for which ``at`` holds."""

    def __init__(
        self,
        owner: Owner,
        at: Callable[[str, tuple[object, ...]], bool],
        meanwhile: Callable[[], None],
    ) -> None:
        self.at = at
        self.meanwhile = meanwhile
        self.happened = False
        owner.disk.on_call = self

    def __call__(self, _number: int, call: str, args: tuple[object, ...]) -> None:
        if not self.happened and self.at(call, args):
            self.happened = True
            self.meanwhile()


def own_slot_write(slot: int) -> Callable[[str, tuple[object, ...]], bool]:
    return lambda call, args: call == "pwrite" and args[-1] == slot * SLOT_SIZE


def test_of_two_lock_holders_reaching_for_one_epoch_one_is_fenced() -> None:
    owner = Owner(new_store(), "A")
    late = next_owner(owner.disk, "B")
    got: list[Activation] = []
    pause = Pause(
        owner,
        lambda call, args: call == "open" and "ft.claim.1" in args,
        lambda: got.append(late.claim()),
    )
    mine = owner.claim()
    assert pause.happened
    assert (got[0].epoch, mine.epoch) == (1, 2)
    with pytest.raises(FencedError, match="superseded by epoch 2 of server A"):
        late.confirmer(got[0])


def test_a_paused_claimers_record_that_lands_after_two_successors_fences_only_itself() -> None:
    disk = new_store()
    owner = next_owner(disk, "OWNER")
    owner.claim()
    paused = next_owner(disk, "PAUSED")
    successors: list[tuple[Owner, Activation]] = []

    def two_takeovers() -> None:
        for name in ("X", "Y"):
            successor = next_owner(disk, name)
            successors.append((successor, successor.claim()))

    Pause(paused, own_slot_write(2), two_takeovers)
    with pytest.raises(
        FencedError, match="epoch 2 was not obtained: it was overtaken by epoch 4 of server Y"
    ):
        paused.claim()
    last, activation = successors[-1]
    assert activation.epoch == 4
    last.confirmer(activation)


def test_a_claimer_killed_while_filling_slots_leaves_the_owner_or_nobody_but_never_two() -> None:
    for killed_at in (2, 3, 4):
        disk = new_store()
        owner = next_owner(disk, "OWNER")
        confirm = owner.confirmer(owner.claim())
        disk.add_tree(ROOT, {"ft.claim.3": b""})
        killed = next_owner(disk, "KILLED")

        def die() -> None:
            raise Killed

        Pause(killed, own_slot_write(killed_at), die)
        with pytest.raises(Killed):
            killed.claim()
        if killed_at == 2:
            confirm()
        successor = next_owner(disk, "S")
        activation = successor.claim()
        assert activation.epoch == 5
        assert not any(is_blank(slot_bytes(disk, slot)) for slot in range(1, 6))
        successor.confirmer(activation)
        with pytest.raises(FencedError):
            confirm()


def test_an_epoch_file_restored_from_yesterday_fences_the_owner_and_reuses_no_number() -> None:
    disk = new_store()
    next_owner(disk, "A").claim()
    yesterday = disk.tree(ROOT)[EPOCH_NAME]
    assert yesterday is not None
    next_owner(disk, "B").claim()
    owner = next_owner(disk, "C")
    activation = owner.claim()
    confirm = owner.confirmer(activation)
    remove_old_claims(owner.disk, owner.root, activation, confirm)
    fd = disk.open(disk.open_dir(ROOT), EPOCH_NAME, os.O_RDWR)
    disk.ftruncate(fd, len(yesterday))
    with pytest.raises(FencedError, match="our record is gone"):
        confirm()
    assert next_owner(disk, "D").claim().epoch == 4


@pytest.mark.parametrize(
    "tree", [{"foo/msgs.1.dat": b""}, {"foo/msgs.1.dat": b"", "foo/confirmed.bin": b""}]
)
def test_a_claimer_whose_first_survey_is_overtaken_carries_the_stores_identity_on(
    tree: dict[str, bytes | None],
) -> None:
    disk = new_store()
    slow = next_owner(disk, "SLOW")
    got: list[Activation] = []

    def overtaken_survey() -> Survey:
        got.append(next_owner(disk, "QUICK").claim())
        disk.add_tree(ROOT, {"server.dat": b"", **tree})
        return survey_store(slow.disk, slow.root)

    mine = slow.claim(in_group=True, survey=overtaken_survey)
    assert (got[0].epoch, mine.epoch) == (1, 2)
    assert (mine.store_id, mine.ours_from, mine.ft_mixed) == (got[0].store_id, 1, False)


def test_a_claimer_that_was_overtaken_before_its_first_write_writes_nothing() -> None:
    disk = new_store()
    Owner(disk).claim()
    slow = next_owner(disk, "SLOW")

    def rival() -> None:
        next_owner(disk, "QUICK").claim()

    Pause(slow, lambda call, _args: call == "fsync", rival)
    with pytest.raises(FencedError, match="overtaken by epoch 3 of server QUICK"):
        slow.claim()
    assert not any(line.startswith("pwrite") for line in slow.disk.log)


def test_a_claimer_that_is_overtaken_behind_its_announcement_writes_over_nobodys_record() -> None:
    disk = new_store()
    Owner(disk).claim()
    # A claim before its own came to nothing, so that it announces itself first.
    disk.add_tree(ROOT, {"ft.claim.3": b""})
    slow = next_owner(disk, "SLOW")
    announced: list[str] = []
    taken: list[Activation] = []

    def at(call: str, args: tuple[object, ...]) -> bool:
        if own_slot_write(4)(call, args):
            announced.append("")
        return bool(announced) and call == "open"

    Pause(slow, at, lambda: taken.append(next_owner(disk, "QUICK").claim()))
    with pytest.raises(FencedError, match="epoch 4 was not obtained: it was overtaken by epoch 5"):
        slow.claim()
    next_owner(disk, "QUICK").confirmer(taken[0])
    assert len([line for line in slow.disk.log if line.startswith("pwrite")]) == 1


def test_whoever_is_overtaken_by_a_record_that_cannot_be_read_says_so() -> None:
    disk = new_store()
    Owner(disk).claim()
    slow = next_owner(disk, "SLOW")

    def torn() -> None:
        overwrite(disk, 3 * SLOT_SIZE, b"torn")

    Pause(slow, lambda call, _args: call == "fsync", torn)
    with pytest.raises(FencedError) as caught:
        slow.claim()
    assert caught.value.text == (
        "ft: epoch 2 was not obtained: it was overtaken by a server whose record cannot be read"
    )
    assert (
        caught.value.hint == "only one server can own a datastore: this one must stand by or stop"
    )


def test_without_the_lock_a_store_whose_group_became_mixed_meanwhile_is_not_taken() -> None:
    disk = new_store()
    owner = Owner(disk)
    owner.claim(ft_mixed=True)
    thief = next_owner(disk, "THIEF")
    with pytest.raises(FencedError) as caught:
        claim(
            *(thief.disk, thief.root),
            server_id="THIEF",
            clock=ManualClock(),
            survey=lambda: survey_store(thief.disk, thief.root),
            locked=False,
        )
    assert caught.value.text == (
        "ft: epoch 2 was not taken: the group is mixed by now, and the store lock is not held"
    )
    assert not any(line.startswith("pwrite") for line in thief.disk.log)


class Remembering(SimDisk):
    """A host that remembers the size that a file had."""

    size = 0

    def fstat(self, fd: int) -> FileStat:
        found = super().fstat(fd)
        return found if found.is_dir or not self.size else found._replace(size=self.size)


def test_slots_behind_the_size_that_this_host_remembers_are_read() -> None:
    disk = Remembering()
    disk.make_dirs(ROOT)
    first = Owner(disk)
    first.claim()
    size = 2 * SLOT_SIZE
    for name in ("B", "C"):
        next_owner(disk, name).claim()
    disk.size = size
    record = read_owner(disk, first.root)
    assert record is not None
    assert (record.epoch, record.server_id) == (3, "C")


def test_an_epoch_file_of_a_size_that_no_servers_made_is_refused() -> None:
    disk = Remembering()
    disk.make_dirs(ROOT)
    owner = Owner(disk)
    owner.claim()
    disk.size = 4 << 30
    disk.fail_next("pread", errno.EIO)
    with pytest.raises(StoreError, match="Input/output error"):
        read_owner(disk, owner.root)
    disk.fail_no_more()
    disk.size += 1
    with pytest.raises(StoreError) as caught:
        read_owner(disk, owner.root)
    assert caught.value.text == (
        "ft.epoch: it has 4294967297 bytes, more than servers make it have: the storage has "
        "damaged it; cut the zeros at its end, or restore the datastore"
    )
    assert caught.value.hint == "check the datastore's storage"


@pytest.mark.parametrize("what", ["a pipe", "a link"])
def test_an_epoch_file_that_is_none_is_refused_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / EPOCH_NAME
    if what == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "elsewhere")
    disk = LocalDisk()
    root = disk.open_dir(str(tmp_path))
    words = "no regular file: move it out" if what == "a pipe" else "symbolic link"
    with pytest.raises(StoreError, match=words):
        read_owner(disk, root)
    disk.close(root)


def test_what_only_looks_like_a_claim_is_none(tmp_path: Path) -> None:
    for name in ("ft.claim.0", "ft.claim.07", "ft.claim.x", "ft.claim.9.old", "xft.claim.9"):
        (tmp_path / name).touch()
    (tmp_path / "ft.claim.5").mkdir()
    (tmp_path / "ft.claim.6").symlink_to(tmp_path / "ft.claim.0")
    (tmp_path / "ft.claim.3").touch()
    (tmp_path / "ft.claim.1048576").touch()
    (tmp_path / "ft.claim.1048577").touch()
    disk = LocalDisk()
    root = disk.open_dir(str(tmp_path))
    assert read_state(disk, root).claims == (3, 1048576)
    disk.close(root)


def test_behind_a_record_claims_are_believed_as_far_as_starts_can_have_died() -> None:
    disk = new_store()
    Owner(disk).claim()
    disk.add_tree(ROOT, {"ft.claim.4097": b"", "ft.claim.4098": b""})
    assert read_state(disk, disk.open_dir(ROOT)).claims == (1, 4097)


def test_a_claim_that_goes_while_they_are_listed_is_none() -> None:
    disk = new_store({"ft.claim.1": b"", "ft.claim.2": b""})
    root = disk.open_dir(ROOT)
    other = disk.sibling()

    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "stat" and "ft.claim.1" in args:
            disk.on_call = None
            other.unlink(other.open_dir(ROOT), "ft.claim.1")

    disk.on_call = hook
    assert read_state(disk, root).claims == (2,)


def refusing(name: str, code: int) -> Callable[[int, str, tuple[object, ...]], None]:
    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open_dir_at" and name in args:
            raise OSError(code, os.strerror(code))

    return hook


def test_a_channel_that_cannot_be_looked_into_ends_a_first_start_and_lost_and_found_not() -> None:
    disk = new_store({"foo/msgs.7.dat": b"", "lost+found": None})
    owner = Owner(disk)
    disk.on_call = refusing("foo", errno.EACCES)
    with pytest.raises(StoreError, match="Permission denied"):
        owner.claim()
    disk.on_call = refusing("lost+found", errno.EIO)
    with pytest.raises(StoreError, match="Input/output error"):
        owner.claim()
    # The file system's own, which only root may read.
    disk.on_call = refusing("lost+found", errno.EACCES)
    assert owner.claim().ours_from == 4097


@pytest.mark.parametrize("there", ["nothing", "an empty file", "an older record"])
def test_a_repair_claims_above_its_floor_whatever_is_left_of_the_epochs(there: str) -> None:
    disk = new_store({"foo/confirmed.bin": b""})
    if there == "an empty file":
        disk.add_tree(ROOT, {EPOCH_NAME: b""})
    if there == "an older record":
        disk = new_store()
        Owner(disk).claim()
    root = disk.open_dir(ROOT)
    activation = claim(
        *(disk, root),
        server_id="TOOL",
        clock=ManualClock(),
        survey=lambda: pytest.fail("a repair has looked already"),
        lost=LostEpochs(6, 4097),
        cause=Cause.TOOL,
    )
    ours_from = 1 if there == "an older record" else 4097
    assert (activation.epoch, activation.ours_from, activation.cause) == (7, ours_from, Cause.TOOL)
    Confirmer(disk, root, activation)()


@pytest.mark.parametrize("call", ["open", "fstat"])
def test_a_confirmer_that_storage_refuses_names_the_file_and_the_errno(call: str) -> None:
    owner = Owner(new_store())
    activation = owner.claim()
    before = owner.disk.open_handles
    owner.disk.fail_next(call, errno.EIO)
    with pytest.raises(FencedError) as caught:
        owner.confirmer(activation)
    assert caught.value.text == (
        "ft: epoch 1 cannot be confirmed: ft.epoch is unreadable: Input/output error (EIO)"
    )
    assert caught.value.hint == (
        "check the storage and the kernel log of this host, then start the server again"
    )
    assert owner.disk.open_handles == before


def test_behind_one_claim_that_came_to_nothing_an_owner_announces_the_number_it_goes_on_to() -> (
    None
):
    owner = Owner(new_store())
    activation = owner.claim()
    owner.disk.add_tree(ROOT, {"ft.claim.2": b""})
    written: list[int] = []

    def hook(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "pwrite":
            written.append(int(str(args[-1])) // SLOT_SIZE)

    owner.disk.on_call = hook
    raised = claim_next(
        *(owner.disk, owner.root, activation), clock=ManualClock(), cause=Cause.RAISED
    )
    # Its own slot first, so that whoever claims the lower number finds it used.
    assert (raised.epoch, written) == (3, [3, 2, 3])
    state = read_state(owner.disk, owner.root)
    assert (state.newest, state.top, state.claims) == (raised.record(), 3, (1, 2, 3))
    assert state.present


def test_a_record_that_somebody_has_put_into_our_slot_ends_the_owner_that_raises() -> None:
    owner = Owner(new_store())
    activation = owner.claim()
    other = replace(activation.record(), server_id="Z", nonce=b"z" * 16)
    overwrite(owner.disk, SLOT_SIZE, encode_slot(other))
    with pytest.raises(FencedError, match="overtaken by epoch 1 of server Z"):
        claim_next(*(owner.disk, owner.root, activation), clock=ManualClock(), cause=Cause.RAISED)
    assert len(owner.disk.tree(ROOT)[EPOCH_NAME] or b"") == 2 * SLOT_SIZE


# --- loss ---


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ({"ft.claim.3": b""}, "ft.epoch is missing, but ft.claim.3"),
        ({"foo/confirmed.bin": b""}, "ft.epoch is missing, but channel 'foo'"),
        (
            {"ft.epoch": b"", "foo/confirmed.bin": b""},
            "holds no readable record, but channel 'foo'",
        ),
        (
            {"ft.epoch": bytes(SLOT_SIZE) + b"rot", "foo/confirmed.bin": b""},
            "holds no readable record",
        ),
    ],
)
def test_a_store_that_lost_its_epochs_is_refused_and_the_repair_named(
    tree: dict[str, bytes | None], what: str
) -> None:
    disk = new_store(tree)
    before = disk.tree(ROOT)
    with pytest.raises(RecoveryError, match=what) as caught:
        Owner(disk).claim()
    assert "ftstanctl store repair" in caught.value.hint
    assert disk.tree(ROOT) == before


def test_a_first_claimer_that_died_before_its_record_does_not_lock_the_store_up() -> None:
    disk = new_store({"ft.epoch": b"", "ft.claim.1": b""})
    activation = Owner(disk).claim()
    assert activation.epoch == 2
    # Whoever claimed 1 may have been active for a moment: its slices are ours, not an original
    # server's.
    assert activation.ours_from == 1


# --- mixed groups ---


@pytest.mark.parametrize(
    ("tree", "in_group", "word", "mixed"),
    [
        ({}, True, None, False),
        ({"server.dat": b"x"}, True, None, True),
        ({"server.dat": b"x"}, False, None, False),
        ({"server.dat": b"x"}, True, False, False),
        ({}, False, True, True),
    ],
)
def test_a_store_of_an_original_server_is_mixed_in_a_group_unless_the_operator_says_otherwise(
    tree: dict[str, bytes | None], in_group: bool, word: bool | None, mixed: bool
) -> None:
    disk = new_store(tree)
    assert Owner(disk).claim(in_group=in_group, ft_mixed=word).ft_mixed is mixed
    assert next_owner(disk, "B").claim(in_group=not in_group).ft_mixed is mixed
    assert next_owner(disk, "C").claim(ft_mixed=not mixed).ft_mixed is not mixed


# --- owner and claims ---


def test_the_owner_is_named_without_owning_anything() -> None:
    disk = new_store()
    assert read_owner(disk, disk.open_dir(ROOT)) is None
    activation = Owner(disk).claim()
    before = disk.tree(ROOT)
    assert read_owner(disk, disk.open_dir(ROOT)) == activation.record()
    assert disk.tree(ROOT) == before
    disk.fail_next("pread", errno.ESTALE)
    with pytest.raises(StoreError, match=EPOCH_NAME):
        read_owner(disk, disk.open_dir(ROOT))


def test_old_claims_are_removed_by_the_confirmed_owner_only() -> None:
    disk = new_store()
    Owner(disk).claim()
    owner = next_owner(disk, "B")
    activation = owner.claim()
    confirm = owner.confirmer(activation)
    remove_old_claims(owner.disk, owner.root, activation, confirm)
    assert {name for name in names(disk) if "claim" in name} == {"ft.claim.2"}
    remove_old_claims(owner.disk, owner.root, activation, confirm)

    disk.add_tree(ROOT, {"ft.claim.1": b""})
    next_owner(disk, "C").claim()
    with pytest.raises(FencedError):
        remove_old_claims(owner.disk, owner.root, activation, confirm)
    assert "ft.claim.1" in names(disk)


def test_an_old_claim_that_a_successor_removed_first_is_no_error() -> None:
    disk = new_store()
    Owner(disk).claim()
    owner = next_owner(disk, "B")
    activation = owner.claim()

    def rival() -> None:
        disk.unlink(disk.open_dir(ROOT), "ft.claim.1")

    confirm = owner.confirmer(activation)
    pause = Pause(owner, lambda call, _args: call == "unlink", rival)
    remove_old_claims(owner.disk, owner.root, activation, confirm)
    assert pause.happened


def test_old_claims_that_cannot_be_removed_are_told() -> None:
    disk = new_store()
    Owner(disk).claim()
    owner = next_owner(disk, "B")
    activation = owner.claim()
    owner.disk.fail_next("unlink", errno.EROFS)
    with pytest.raises(StoreError, match="old claims"):
        remove_old_claims(owner.disk, owner.root, activation, owner.confirmer(activation))


# --- every step crashed, every call failed ---


def stores() -> list[SimDisk]:
    used = new_store()
    Owner(used).claim()
    gapped = new_store()
    Owner(gapped).claim()
    gapped.add_tree(ROOT, {"ft.claim.4": b""})
    return [new_store(), new_store({"server.dat": b"", "foo/msgs.9.dat": b""}), used, gapped]


@pytest.mark.parametrize("store", range(4))
def test_a_claimer_killed_at_any_step_leaves_a_store_that_the_next_one_takes(store: int) -> None:
    step = 0
    finished = False
    while not finished:
        step += 1
        disk = stores()[store].sibling()
        owner = Owner(disk, "KILLED")

        def die(
            number: int, _call: str, _args: tuple[object, ...], at: int = disk.calls + step
        ) -> None:
            if number == at:
                raise Killed

        disk.on_call = die
        onlooker = disk.sibling()
        before = read_owner(onlooker, onlooker.open_dir(ROOT))
        epoch = before.epoch if before else 0
        try:
            epoch = owner.claim().epoch
            finished = True
        except Killed:
            pass
        for mode in CrashMode:
            for process_only in (True, False):
                found = disk.crash(random.Random(step), mode, process_only=process_only)
                successor = Owner(found, "S")
                activation = successor.claim()
                assert activation.epoch > epoch
                confirm = successor.confirmer(activation)
                remove_old_claims(found, successor.root, activation, confirm)
                confirm()
    assert step > 10


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_storage_error_at_any_step_is_told_and_leaves_nothing_open(code: int) -> None:
    sound = Owner(new_store())
    opened = sound.disk.calls
    sound.claim()
    steps = range(opened + 1, sound.disk.calls + 1)
    assert len(steps) > 10
    for step in steps:
        owner = Owner(new_store())
        handles = owner.disk.open_handles
        owner.disk.fail_at(step, code)
        with pytest.raises(StoreError, match="cannot be raised") as caught:
            owner.claim()
        assert caught.value.hint
        assert owner.disk.open_handles == handles
        assert Owner(owner.disk.sibling(), "B").claim().epoch <= 2


def test_a_claim_never_outlives_the_name_of_an_epoch_file_that_another_has_made() -> None:
    """A claim without the file is a loss, and refused until somebody repairs the store."""

    def dies_at(disk: SimDisk, count: int) -> None:
        synced = iter(range(count))

        def die(_number: int, call: str, _args: tuple[object, ...]) -> None:
            if call == "fsync" and next(synced, None) is None:
                raise Killed

        disk.on_call = die

    for seed in range(60):
        disk = new_store()
        dies_at(disk, 0)
        with pytest.raises(Killed):
            Owner(disk).claim()
        second = disk.crash(process_only=True)
        # At the sync of its claim's name.
        dies_at(second, seed % 3)
        with pytest.raises(Killed):
            Owner(second, "B").claim()
        found = second.crash(random.Random(seed), CrashMode.UNORDERED)
        assert Owner(found, "C").claim().epoch >= 1
