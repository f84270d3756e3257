"""Two runs on two hosts meet through files of one directory, and take every step together.

No network is needed.

Both write their name into ``.ftstan-check-peer`` and answer every other name there. Two that have
answered each other make a session directory, in which each step of a side is a file of its own:
written under a temporary name, renamed, never changed. A file is opened only after a listing
through a new handle has shown it: network file systems remember for half a minute that a name does
not exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import StoreError
from ftstan.storecheck.bench import GoneError
from ftstan.storecheck.place import SCRATCH_PREFIX, cannot_write, empty, open_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk

MEETING_NAME = f"{SCRATCH_PREFIX}peer"
_MAX = 1 << 20


class Meeting:
    """One side. ``wait_s``: for the other to appear; ``answer_s``: for each of its steps."""

    def __init__(
        self,
        disk: Disk,
        asking: Disk,
        clock: Clock,
        sleep: Callable[[float], None],
        path: str,
        *,
        wait_s: float = 120.0,
        answer_s: float = 60.0,
        poll_s: float = 0.02,
    ) -> None:
        self._disk = disk
        self._asking = asking
        self._clock = clock
        self._sleep = sleep
        self._root_path = path
        self._wait_s = wait_s
        self._answer_s = answer_s
        self._poll_s = poll_s
        self._id = secrets.token_hex(6)
        self._other = ""
        self._lobby = -1
        self._gone = False
        self.dirfd = -1
        self.path = ""

    @property
    def first(self) -> bool:
        """Which of the two this is; both agree."""
        return self._id < self._other

    def find(self) -> None:
        """Wait for the other side, and open the session. Raises ``StoreError``."""
        root = open_directory(self._disk, self._root_path)
        try:
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(root, MEETING_NAME)
            self._lobby = self._disk.open_dir_at(root, MEETING_NAME)
        except OSError as error:
            raise cannot_write(self._root_path, error) from error
        finally:
            self._disk.close(root)
        self._put(self._lobby, f"hello.{self._id}", {})
        self._other = self._pair()
        name = "-".join(sorted((self._id, self._other)))
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(self._lobby, name)
        self.dirfd = self._disk.open_dir_at(self._lobby, name)
        self.path = os.path.join(self._root_path, MEETING_NAME, name)
        self.both("begun")

    def _pair(self) -> str:
        end = self._clock.mono() + self._wait_s
        answered: set[str] = set()
        while True:
            names = self._names(self._lobby)
            others = {name.partition(".")[2] for name in names if name.startswith("hello.")} - {
                self._id
            }
            for other in others - answered:
                # A run that was killed left its name; it gets an answer and gives none.
                self._put(self._lobby, f"pair.{self._id}.{other}", {})
            answered |= others
            mutual = sorted(other for other in others if f"pair.{other}.{self._id}" in names)
            if len(mutual) > 1:
                raise StoreError(
                    f"{self._root_path}: more than two checks meet here",
                    hint="run --peer on two hosts only",
                )
            if mutual:
                return mutual[0]
            if self._clock.mono() > end:
                raise StoreError(
                    f"{self._root_path}: nobody came within {self._wait_s:g} s",
                    hint="run the same command on the other host at the same time; if it did "
                    "run, the two do not see "
                    "each other's files: is the same storage mounted there?",
                )
            self._sleep(self._poll_s)

    def say(self, step: str, **facts: Any) -> None:
        """Take a step, and tell the other side ``facts``."""
        self._put(self.dirfd, f"{self._id}.{step}", facts)

    def heard(self, step: str) -> dict[str, Any] | None:
        """What the other side said with its step, ``None`` if it has not taken it."""
        name = f"{self._other}.{step}"
        if name not in self._names(self.dirfd):
            return None
        fd = self._asking.open(self.dirfd, name, os.O_RDONLY)
        try:
            facts: dict[str, Any] = json.loads(self._asking.pread(fd, _MAX, 0))
        finally:
            self._asking.close(fd)
        return facts

    def hear(self, step: str, wait_s: float = 0.0) -> dict[str, Any]:
        """Wait for the other side's step. Raises ``GoneError`` if it does not come."""
        end = self._clock.mono() + (wait_s or self._answer_s)
        while (facts := self.heard(step)) is None:
            if self._clock.mono() > end:
                self._gone = True
                raise GoneError(
                    f"the other host has not answered for {wait_s or self._answer_s:g} s (step "
                    f"{step})",
                    hint="see what its check says; start both again",
                )
            self._sleep(self._poll_s)
        return facts

    def both(self, step: str, **facts: Any) -> dict[str, Any]:
        """Take a step together; returns what the other side told."""
        self.say(step, **facts)
        return self.hear(step)

    def end(self) -> None:
        """Remove what this side made.

        What both made is removed by the first side, or by one that was left alone.

        Never fails.
        """
        with contextlib.suppress(OSError, StoreError, ValueError):
            if self.dirfd >= 0:
                self._leave()
        with contextlib.suppress(OSError):
            if self._lobby >= 0:
                ours = {self._id, self._other} if self._gone else {self._id}
                for name in self._names(self._lobby):
                    if name.split(".")[1:2] and name.split(".")[1] in ours:
                        self._disk.unlink(self._lobby, name)
                self._disk.close(self._lobby)
                self._remove_lobby()

    def _leave(self) -> None:
        with contextlib.suppress(GoneError):
            if self.first and not self._gone:
                self.say("last")
                self.hear("left")
            elif not self._gone:
                self.hear("last")
                self.say("left")
        if self.first or self._gone:
            empty(self._disk, self.dirfd)
            self._disk.rmdir(self._lobby, os.path.basename(self.path))
        self._disk.close(self.dirfd)

    def _remove_lobby(self) -> None:
        root = self._disk.open_dir(self._root_path)
        try:
            # Whoever is last succeeds.
            self._disk.rmdir(root, MEETING_NAME)
        finally:
            self._disk.close(root)

    def _names(self, dirfd: int) -> set[str]:
        return {name for name, _ in self._disk.listdir(dirfd)}

    def _put(self, dirfd: int, name: str, facts: dict[str, Any]) -> None:
        temporary = f"tmp.{self._id}.{name}"
        fd = self._disk.open(dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._disk.pwrite(fd, json.dumps(facts).encode(), 0)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(dirfd, temporary, name)
        self._disk.fsync(dirfd)
