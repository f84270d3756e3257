"""Names that NFS clients leave behind: which are, and what an unlink of one may answer."""

from __future__ import annotations

import errno

import pytest

from ftstan.stores.file.recovery.leftovers import is_leftover, remove_leftover
from tests.sim.disk import SimDisk


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (".nfs00000000deadbeef00000001", True),
        (".nfs12345678", True),
        (".nfs1234567", False),
        (".nfs1234567g", False),
        (".nfsDEADBEEF", False),
        (".nfs12345678.dat", False),
        (".nfs12345678\n", False),
        ("x.nfs12345678", False),
        ("nfs12345678", False),
        ("msgs.1.dat", False),
    ],
)
def test_which_names_are_of_an_nfs_client(name: str, *, is_one: bool) -> None:
    assert is_leftover(name) is is_one


def place() -> tuple[SimDisk, int]:
    disk = SimDisk()
    disk.make_dirs("/store")
    disk.add_tree("/store", {".nfs12345678": b"data"})
    return disk, disk.open_dir("/store")


def test_one_that_nobody_uses_goes_and_one_that_has_gone_is_fine() -> None:
    disk, root = place()
    for _ in range(2):
        remove_leftover(disk, root, ".nfs12345678")
    assert disk.listdir(root) == []


@pytest.mark.parametrize("code", [errno.EBUSY, errno.ENOENT, errno.ESTALE])
def test_one_that_is_in_use_stays(code: int) -> None:
    disk, root = place()
    disk.fail_next("unlink", code)
    remove_leftover(disk, root, ".nfs12345678")
    assert disk.listdir(root) == [(".nfs12345678", False)]


def test_storage_that_refuses_is_an_error() -> None:
    disk, root = place()
    disk.fail_next("unlink", errno.EIO)
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        remove_leftover(disk, root, ".nfs12345678")
