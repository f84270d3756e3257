"""Local or network: decided from the text of mountinfo."""

from __future__ import annotations

import pytest

from ftstan.ft.mounts import find_mount

ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"


def mounted(
    point: str, fstype: str, *, ident: int = 30, parent: int = 22, options: str = "rw"
) -> str:
    return (
        f"{ident} {parent} 0:40 / {point} rw,noatime shared:2 master:1 - {fstype} server:/export "
        f"{options}\n"
    )


@pytest.mark.parametrize(
    "fstype", ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs"]
)
def test_a_store_on_a_known_local_file_system_is_local(fstype: str) -> None:
    assert not find_mount(ROOT + mounted("/data", fstype), "/data/nss").is_network


@pytest.mark.parametrize(
    "fstype",
    ["nfs", "nfs4", "ceph", "fuse.glusterfs", "fuseblk", "fuse", "cifs", "9p", "virtiofs", "new"],
)
def test_everything_else_counts_as_network(fstype: str) -> None:
    assert find_mount(ROOT + mounted("/data", fstype), "/data").is_network


def test_a_path_beside_the_mount_belongs_to_the_root() -> None:
    mount = find_mount(ROOT + mounted("/data", "nfs4"), "/database")
    assert (mount.point, mount.fstype) == ("/", "ext4")


def test_options_of_the_mount_and_of_the_file_system_are_given() -> None:
    mount = find_mount(
        ROOT + mounted("/data", "nfs4", options="rw,vers=4.2,hard,local_lock=none"), "/data"
    )
    assert mount.options == {"rw", "noatime", "vers=4.2", "hard", "local_lock=none"}
    assert mount.source == "server:/export"


def test_a_mount_over_another_hides_what_is_below_it() -> None:
    twice = mounted("/data", "nfs4") + mounted("/data", "xfs", ident=31, parent=30)
    assert find_mount(ROOT + twice, "/data/a").fstype == "xfs"
    # /data/deep was mounted first; the later mount on /data hides it.
    hidden = mounted("/data/deep", "nfs4") + mounted("/data", "xfs", ident=31, parent=22)
    assert find_mount(ROOT + hidden, "/data/deep/a").fstype == "xfs"


def test_a_mount_inside_a_mount_is_found() -> None:
    nested = mounted("/data", "xfs") + mounted("/data/deep", "nfs4", ident=31, parent=30)
    assert find_mount(ROOT + nested, "/data/deep/a").fstype == "nfs4"
    assert find_mount(ROOT + nested, "/data/other").fstype == "xfs"


def test_a_root_over_the_first_root_wins() -> None:
    first = "1 1 0:1 / / rw - rootfs rootfs rw\n"
    assert find_mount(first + ROOT, "/data").fstype == "ext4"


def test_escaped_names_are_read() -> None:
    assert (
        find_mount(ROOT + mounted("/my\\040data\\134x", "nfs4"), "/my data\\x/a").point
        == "/my data\\x"
    )


@pytest.mark.parametrize("text", ["", "garbage\n", "1 2 3\n - \n", "x y 0:1 / / rw - ext4 a rw\n"])
def test_a_text_that_explains_nothing_counts_as_network(text: str) -> None:
    assert find_mount(text, "/data").is_network


def test_the_mountinfo_of_this_machine_explains_its_root() -> None:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        assert find_mount(file.read(), "/").point == "/"
