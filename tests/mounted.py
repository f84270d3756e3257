"""The mount table of the kernel, as a test wants it to be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.ft import mounts

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ROOT = "25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro"
HARD = "nfs4 filer:/export/stan rw,vers=4.2,hard,proto=tcp,local_lock=none"
SOFT = HARD.replace("hard", "soft")
EXT4 = "ext4 /dev/sda1 rw"


def number_of_mount(path: Path) -> int:
    """The kernel's number of the mount on which ``path`` lies."""
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with open(f"/proc/self/fdinfo/{root}", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("mnt_id"))
    finally:
        os.close(root)


class MountTable:
    """Says of the mount of one directory, and of every directory on it, what ``kind`` says."""

    def __init__(self, path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind = kind
        self._ident = number_of_mount(path)
        monkeypatch.setattr(mounts, "read_mountinfo", self.text)

    def text(self) -> str:
        """What the kernel would list."""
        return f"{ROOT}\n{self._ident} 25 0:52 / /data rw,relatime - {self.kind}\n"
