"""Is the datastore on a local file system or on a network one?

Decided from the text of ``/proc/self/mountinfo`` and the number of the mount on which a directory
was opened: a path can come to name another one, and an automount is none before it was opened.

The answer chooses how the epoch file is read (buffered, or past every cache). What is not known to
be local counts as network, every FUSE too: the careful way is right everywhere, only slower.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

LOCAL_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs"})

_MOUNTINFO = "/proc/self/mountinfo"
_HANDLE = "/proc/self/fdinfo/{}"
_OCTAL = re.compile(r"\\([0-7]{3})")
_MOUNT_ID = re.compile(r"^mnt_id:\s*([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount that holds a path.

    ``options`` are those of the mount and of its file system, comma-free.
    """

    point: str
    fstype: str
    source: str
    options: frozenset[str]

    @property
    def is_network(self) -> bool:
        """Whether somebody else's machine may hold the files (or may, for all we know)."""
        return self.fstype not in LOCAL_TYPES


@dataclass(frozen=True, slots=True)
class _Line:
    ident: int
    parent: int
    mount: Mount


_UNKNOWN = Mount(point="?", fstype="unknown", source="?", options=frozenset())


def read_mountinfo() -> str:
    """The mounts of this process as the kernel lists them. Raises ``OSError``."""
    with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as f:
        return f.read()


def mount_of(root: int, path: str) -> Mount:
    """The mount on which the open directory ``root`` lies, whatever ``path`` names by now.

    A kernel that does not say that of a handle is asked for the path. A mount that is not listed (a
    lazy unmount, a root directory that is no mount point) has an unknown type, which counts as
    network. Raises ``OSError``.
    """
    with open(_HANDLE.format(root), encoding="ascii", errors="replace") as f:
        found = _MOUNT_ID.search(f.read())
    if found is None:
        return find_mount(read_mountinfo(), os.path.realpath(path))
    return mount_by_id(read_mountinfo(), int(found[1]))


def mount_by_id(mountinfo: str, ident: int) -> Mount:
    """The mount with the number ``ident``, of unknown type if it is not listed."""
    lines = map(_parse, mountinfo.splitlines())
    return next((x.mount for x in lines if x is not None and x.ident == ident), _UNKNOWN)


def find_mount(mountinfo: str, path: str) -> Mount:
    """Find the mount that holds ``path`` (absolute, without symbolic links).

    Walks down the tree of mounts as the kernel does, so that one mount over another hides what is
    under it. A text that does not explain the path gives a mount of unknown type, which counts as
    network.
    """
    lines = [line for line in map(_parse, mountinfo.splitlines()) if line is not None]
    idents = {line.ident for line in lines}
    here = next(
        (
            x
            for x in lines
            if x.mount.point == "/" and (x.parent not in idents or x.parent == x.ident)
        ),
        None,
    )
    if here is None:
        return _UNKNOWN
    seen = {here.ident}
    while True:
        below = [
            x
            for x in lines
            if x.parent == here.ident and x.ident not in seen and _covers(x.mount.point, path)
        ]
        if not below:
            return here.mount
        # The shortest mount point is the one that a walk along the path meets first.
        here = min(below, key=lambda x: len(x.mount.point))
        seen.add(here.ident)


def _covers(point: str, path: str) -> bool:
    return point in {"/", path} or path.startswith(point + "/")


def _parse(line: str) -> _Line | None:
    # 36 35 98:0 /root /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw,errors=continue
    left, separator, right = line.partition(" - ")
    head = left.split(" ")
    tail = right.split(" ")
    if (
        not separator
        or len(head) < 6
        or len(tail) < 2
        or not (head[0].isdigit() and head[1].isdigit())
    ):
        return None
    options = head[5].split(",") + (tail[2].split(",") if len(tail) > 2 else [])
    mount = Mount(
        point=_unescape(head[4]),
        fstype=tail[0],
        source=_unescape(tail[1]),
        options=frozenset(filter(None, options)),
    )
    return _Line(ident=int(head[0]), parent=int(head[1]), mount=mount)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
