"""A small ext4 in a mount namespace of its own, as the datastore of real servers. Needs root."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.processes import ROOT, Child

if TYPE_CHECKING:
    from tests.processes import Stage


class Volume:
    """``steps`` are shell commands, each run when ``step`` asks for it; ``$0`` is the directory, ``$1`` the image.

    Whatever happens to the test, a frozen file system is thawed and unmounted with its namespace: the holder traps its
    own end.
    """

    def __init__(self, stage: Stage, *steps: str) -> None:
        if os.geteuid() != 0:
            pytest.fail("mounting a file system needs root: run the suite as root", pytrace=False)
        stage.store.mkdir()
        image = stage.directory / "image"
        with image.open("wb") as file:
            file.truncate(32 << 20)
        words = 'mkfs.ext4 -q "$1" && mount -o loop "$1" "$0" && echo step-0\n'
        words += "".join(f"read -r _ && {step} && echo step-{i}\n" for i, step in enumerate(steps, 1))
        command = ["unshare", "-m", "sh", "-c", f"{{ {words} read -r _\n}} >&2", str(stage.store), str(image)]
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
