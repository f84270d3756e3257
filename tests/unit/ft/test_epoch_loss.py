"""What tools find out about a datastore whose epochs were lost or come from an older copy: whether
anything was lost, and above which number a repair must claim.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import StoreError
from ftstan.ft.epoch import EPOCH_NAME, LostEpochs
from ftstan.ft.epoch_loss import EpochFacts, find_epochs
from ftstan.ft.epoch_records import SLOT_SIZE
from ftstan.stores.file.state.confirmed import Confirmed, encode
from tests.unit.ft.test_epoch import ROOT, Owner, new_store, next_owner

if TYPE_CHECKING:
    from tests.sim.disk import SimDisk

MISSING = "ft.epoch is missing, but this datastore had epochs"
UNREADABLE = "ft.epoch holds no readable record, but this datastore had epochs"


def said(epoch: int) -> bytes:
    """``confirmed.bin`` of a channel that was confirmed last under ``epoch``."""
    return encode(Confirmed(epoch, (epoch - 1) * 4096 + 1, 1, 40, 1), 1)


def older(epoch: int, top: int) -> str:
    return f"ft.epoch ends at epoch {top}, but epoch {epoch} has written here: it is an older copy"


def facts(disk: SimDisk, *, looking: bool = False) -> EpochFacts:
    """What is found, and no handle is left open."""
    root = disk.open_dir(ROOT)
    before = disk.open_handles
    try:
        # Whose activation it was is drawn at random.
        return replace(find_epochs(disk, root, looking=looking), last=(0, b""))
    finally:
        assert disk.open_handles == before
        disk.close(root)


def owned(tree: dict[str, bytes | None], times: int = 1) -> SimDisk:
    """A datastore that was owned so often, and in which these files lie then."""
    disk = new_store()
    Owner(disk).claim()
    for number in range(1, times):
        next_owner(disk, f"N{number}").claim()
    disk.add_tree(ROOT, tree)
    return disk


def test_a_datastore_that_only_an_original_wrote_has_no_epochs_and_has_lost_none() -> None:
    disk = new_store({"server.dat": b"x", "foo/msgs.9000.dat": b"", "foo/subs.dat": b""})
    assert facts(disk) == EpochFacts(None, 0)


@pytest.mark.parametrize("times", [1, 3])
def test_what_its_epochs_have_written_is_no_loss(times: int) -> None:
    highest = times * 4096
    tree = {"foo/confirmed.bin": said(times), f"foo/msgs.{highest}.dat": b"", "bar": None}
    assert facts(owned(tree, times)) == EpochFacts(1, times)


def test_slices_of_an_original_below_ours_show_no_epoch() -> None:
    disk = new_store({"server.dat": b"x", "foo/msgs.9000.dat": b"", "foo/subs.dat": b""})
    Owner(disk).claim()
    assert facts(disk) == EpochFacts(12289, 4)
    disk.add_tree(ROOT, {"foo/msgs.12289.dat": b""})
    assert facts(disk) == EpochFacts(12289, 4)


def test_a_claim_that_came_to_nothing_is_no_loss() -> None:
    assert facts(owned({"ft.claim.2": b"", "ft.claim.7": b""})) == EpochFacts(1, 1)


@pytest.mark.parametrize(
    ("tree", "floor"),
    [
        ({"ft.claim.1": b""}, 1),
        ({"ft.claim.1": b"", "ft.claim.6": b"", "foo/confirmed.bin": said(3)}, 6),
        ({"foo/confirmed.bin": said(5), "bar/confirmed.bin": said(2)}, 5),
        ({"bar/confirmed.bin": said(5), "foo/confirmed.bin": said(2)}, 5),
        ({"foo/confirmed.bin": said(1), "foo/msgs.4096.dat": b""}, 1),
        ({"foo/confirmed.bin": said(1), "foo/msgs.4097.dat": b""}, 2),
        ({"bar/msgs.12289.dat": b"", "foo/confirmed.bin": said(1), "foo/msgs.1.dat": b""}, 4),
    ],
)
def test_without_its_epoch_file_a_repair_claims_above_everything_that_shows_a_number(
    tree: dict[str, bytes | None], floor: int
) -> None:
    assert facts(new_store(tree)) == EpochFacts(1, 0, MISSING, LostEpochs(floor, 1))


@pytest.mark.parametrize(("junk", "top"), [(b"", 0), (bytes(SLOT_SIZE) + b"junk", 1)])
def test_an_epoch_file_in_which_nothing_can_be_read_is_told_from_a_missing_one(
    junk: bytes, top: int
) -> None:
    disk = new_store({EPOCH_NAME: junk, "foo/confirmed.bin": said(1)})
    assert facts(disk) == EpochFacts(1, top, UNREADABLE, LostEpochs(1, 1))


def test_a_slot_that_cannot_be_read_was_used_all_the_same() -> None:
    slots = b"".join(b"junk".ljust(SLOT_SIZE, b"\7") for _ in range(4))
    disk = new_store({EPOCH_NAME: bytes(SLOT_SIZE) + slots, "ft.claim.2": b""})
    assert facts(disk) == EpochFacts(1, 4, UNREADABLE, LostEpochs(4, 1))


@pytest.mark.parametrize(
    ("tree", "shown", "floor"),
    [
        ({"foo/confirmed.bin": said(3)}, 3, 3),
        ({"foo/confirmed.bin": said(3), "ft.claim.8": b""}, 3, 8),
        ({"foo/msgs.8193.dat": b""}, 3, 3),
        ({"foo/confirmed.bin": said(5), "foo/msgs.8193.dat": b""}, 5, 5),
        ({"foo/confirmed.bin": said(3), "foo/msgs.16385.dat": b""}, 5, 5),
    ],
)
def test_an_epoch_file_that_ends_below_what_was_written_is_an_older_copy(
    tree: dict[str, bytes | None], shown: int, floor: int
) -> None:
    expected = EpochFacts(1, 2, older(shown, 2), LostEpochs(floor, 1))
    assert facts(owned(tree, 2)) == expected


def test_an_older_copy_keeps_saying_from_where_on_slices_are_ours() -> None:
    disk = new_store({"server.dat": b"x", "foo/msgs.9000.dat": b"", "foo/subs.dat": b""})
    Owner(disk).claim()
    disk.add_tree(ROOT, {"foo/confirmed.bin": said(6)})
    assert facts(disk) == EpochFacts(12289, 4, older(6, 4), LostEpochs(6, 12289))


@pytest.mark.parametrize(
    "name",
    [
        "msgs.9000.dat/inside",
        "msgs.9000.dat.bak",
        "msgs.09000.dat",
        "msgs.2147483649.dat",
        "subs.dat",
    ],
)
def test_what_is_named_otherwise_than_a_slice_in_turn_shows_no_epoch(name: str) -> None:
    assert facts(owned({f"foo/{name}": b"", "msgs.9000.dat": b""})) == EpochFacts(1, 1)


def test_the_highest_number_that_counts_shows_its_epoch() -> None:
    found = facts(owned({"foo/msgs.2147483648.dat": b"", "foo/msgs.2147483649.dat": b""}))
    assert found == EpochFacts(1, 1, older(524288, 1), LostEpochs(524288, 1))


def refusing(disk: SimDisk, name: str, code: int) -> None:
    """That directory cannot be opened."""

    def hook(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        if call == "open_dir_at" and name in arguments:
            raise OSError(code, "refused", name)

    disk.on_call = hook


def test_a_channel_that_this_user_may_not_read_ends_what_would_write_and_not_a_look() -> None:
    tree = {"foo/confirmed.bin": said(9), "qux/confirmed.bin": said(4), "zed": None}
    disk = owned(tree)
    refusing(disk, "foo", errno.EACCES)
    with pytest.raises(PermissionError):
        facts(disk)
    # What the others show counts, whichever comes first.
    assert facts(disk, looking=True) == EpochFacts(1, 1, older(4, 1), LostEpochs(4, 1))


def test_the_file_systems_own_directory_that_only_root_may_read_holds_no_channel() -> None:
    """Of a datastore at the root of an ext4 file system, when a tool runs as the server does."""
    disk = owned({"lost+found": None, "foo/confirmed.bin": said(1)})
    refusing(disk, "lost+found", errno.EACCES)
    assert facts(disk) == facts(disk, looking=True) == EpochFacts(1, 1)
    refusing(disk, "lost+found", errno.EIO)
    with pytest.raises(OSError, match="refused"):
        facts(disk)


def test_a_file_that_is_a_directory_by_now_may_name_the_highest_epoch_and_is_named() -> None:
    disk = owned({"foo/confirmed.bin/inside": b""})
    with pytest.raises(StoreError) as caught:
        facts(disk)
    assert caught.value.text == ("foo/confirmed.bin is a directory, where a server keeps a file")
    assert caught.value.hint == "stop every server and move it out of the datastore"
    assert facts(disk, looking=True) == EpochFacts(1, 1)
