"""Small file systems in mount namespaces of their own, as the datastore of real servers.

Needs root.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import ROOT, Child

if TYPE_CHECKING:
    from tests.processes import Stage


class Volume:
    """``steps`` are shell commands, each run when ``step`` asks for it.

    ``$0`` is the directory, ``$1`` the image.

    Whatever happens to the test, a frozen file system is thawed and unmounted with its namespace:
    the holder traps its own end.
    """

    def __init__(self, stage: Stage, *steps: str) -> None:
        _require_root()
        stage.store.mkdir()
        image = stage.directory / "image"
        with image.open("wb") as file:
            file.truncate(32 << 20)
        words = 'mkfs.ext4 -q "$1" && mount -o loop "$1" "$0" && echo step-0\n'
        words += "".join(
            f"read -r _ && {step} && echo step-{i}\n" for i, step in enumerate(steps, 1)
        )
        command = [
            "unshare",
            "-m",
            "sh",
            "-c",
            f"{{ {words} read -r _\n}} >&2",
            str(stage.store),
            str(image),
        ]
        self._holder = Child(command, stage.directory / "volume.log", piped=True)
        stage.adopt(self._holder)
        self._done = 0
        self._holder.wait_for("step-0")

    @property
    def wrap(self) -> list[str]:
        """What stands before a command that shall see the file system."""
        return ["nsenter", "-t", str(self._holder.pid), "-m", f"--wd={ROOT}"]

    def step(self) -> None:
        """Do the next step."""
        self._done += 1
        self._holder.stdin.write(b"\n")
        self._holder.stdin.flush()
        self._holder.wait_for(f"step-{self._done}")


class LateShare:
    """A bare directory on which a file system is mounted when the test says so, that is not known
    to be local and refuses direct I/O.
    """

    def __init__(self, stage: Stage) -> None:
        _require_root()
        stage.store.mkdir()
        words = 'echo bare; read -r _ && mount -t ramfs share "$0" && echo mounted && read -r _'
        command = ["unshare", "-m", "sh", "-c", f"{{ {words}\n}} >&2", str(stage.store)]
        self._holder = Child(command, stage.directory / "share.log", piped=True)
        stage.adopt(self._holder)
        self._holder.wait_for("bare")
        self.wrap = ["nsenter", "-t", str(self._holder.pid), "-m", f"--wd={ROOT}"]

    def mount(self) -> None:
        """Mount it."""
        self._holder.stdin.write(b"\n")
        self._holder.stdin.flush()
        self._holder.wait_for("mounted")


class Frozen:
    """A volume that is frozen and thawed by turns."""

    def __init__(self, stage: Stage) -> None:
        freeze = 'fsfreeze -f "$0"'
        thaw = 'fsfreeze -u "$0"'
        self.volume = Volume(stage, freeze, thaw, freeze, thaw)
        self._frozen = False

    def freeze(self) -> None:
        self.volume.step()
        self._frozen = True

    def thaw(self) -> None:
        self.volume.step()
        self._frozen = False

    def end(self) -> None:
        """A process that waits in a frozen file system cannot even be killed."""
        if self._frozen:
            self.thaw()


class SmallDisk:
    """A tmpfs of a few MiB, half of it taken by a file that can be removed to make room.

    ``wrap`` stands before a command that shall see it; ``seen`` is the datastore's directory for
    who does not.
    """

    SIZE = 6 << 20

    def __init__(self, stage: Stage) -> None:
        _require_root()
        stage.store.mkdir()
        words = (
            f'mount -t tmpfs -o size={self.SIZE} tmpfs "$0" && echo mounted && exec sleep infinity'
        )
        holder = stage.run("holder", ["unshare", "-m", "sh", "-c", words, str(stage.store)])
        holder.wait_for("mounted")
        self.wrap = ["nsenter", "-t", str(holder.pid), "-m", f"--wd={ROOT}"]
        self.seen = Path(f"/proc/{holder.pid}/root/{stage.store}")
        self._filler = self.seen / "filler"
        self._filler.write_bytes(bytes(self.SIZE // 2))

    def fill(self) -> None:
        """Take the last block, too."""
        with contextlib.suppress(OSError), self._filler.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass

    def make_room(self) -> None:
        self._filler.unlink()


def _require_root() -> None:
    if os.geteuid() != 0:
        pytest.fail("mounting a file system needs root: run the suite as root", pytrace=False)
