"""What a check works with: disks, clock, host, a scratch directory, other processes.

Tests put false ones there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.base.errors import FtstanError, StoreError
from ftstan.ft.direct import DirectDisk
from ftstan.storecheck.findings import Outcome, StorageFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from portalocker.portalocker import BaseLocker

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.storecheck.neighbour import Neighbour
    from ftstan.storecheck.place import Host

BLOCK = 4096
MS = 1e3


class GoneError(StoreError):
    """The other host of a check has gone: nothing can be tried any more."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One run's tools. ``asking`` reads past the caches of this host where storage is not local.

    ``neighbour`` starts another process and ends it with its block. ``sleep`` waits seconds.
    ``syncs``: how many are timed; ``far``: where a large file ends, bytes.
    """

    disk: Disk
    asking: Disk
    clock: Clock
    sleep: Callable[[float], None]
    host: Host
    path: str
    dirfd: int
    neighbour: Callable[[], contextlib.AbstractContextManager[Neighbour]]
    locker: BaseLocker | None = None
    direct: Disk = field(default_factory=DirectDisk)
    syncs: int = 200
    far: int = (1 << 31) + BLOCK

    @contextlib.contextmanager
    def opened(
        self, name: str, flags: int = os.O_RDWR | os.O_CREAT, *, asking: bool = False
    ) -> Iterator[int]:
        """A file of the scratch directory."""
        disk = self.asking if asking else self.disk
        fd = disk.open(self.dirfd, name, flags)
        try:
            yield fd
        finally:
            disk.close(fd)

    def fresh(self, name: str, size: int = BLOCK, offset: int = 0) -> bytes:
        """Read through a new handle, past the caches of this host where storage is not local."""
        with self.opened(name, os.O_RDONLY, asking=True) as fd:
            return self.asking.pread(fd, size, offset)

    def put(self, name: str, data: bytes, offset: int = 0) -> None:
        """Write and sync."""
        with self.opened(name) as fd:
            self.disk.pwrite(fd, data, offset)
            self.disk.fdatasync(fd)

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds that ``work`` took."""
        began = self.clock.mono()
        work()
        return self.clock.mono() - began


@dataclass(frozen=True, slots=True)
class Check:
    """A step: ``name`` for reports, ``doing`` for the progress line."""

    name: str
    doing: str
    run: Callable[[Bench], Sequence[StorageFinding]]


@dataclass
class Runner:
    """Runs checks one after the other.

    An error of storage in one is its finding, and the next one runs.
    """

    bench: Bench
    told: Callable[[str], None] = lambda _: None
    findings: list[StorageFinding] = field(default_factory=list)

    def run(self, checks: Sequence[Check]) -> list[StorageFinding]:
        """Run all; returns what they found. ``told`` hears what is being done before it is."""
        for check in checks:
            self.told(check.doing)
            self.findings += self._one(check)
        return self.findings

    def _one(self, check: Check) -> Sequence[StorageFinding]:
        try:
            return check.run(self.bench)
        except OSError as error:
            return [failed(check.name, error)]
        except GoneError:
            raise
        except FtstanError as error:
            return [StorageFinding(check.name, Outcome.BAD, error.text, error.hint)]


def failed(check: str, error: OSError) -> StorageFinding:
    """The finding that a storage call gave an error."""
    name = errno.errorcode.get(error.errno or 0, "no errno")
    hint = (
        "see the kernel log of this host and the file server; mount the storage as docs/ft.md says"
    )
    return StorageFinding(
        check, Outcome.BAD, f"{(error.strerror or str(error)).lower()} ({name})", hint
    )


def good(check: str, text: str, **figures: object) -> list[StorageFinding]:
    """One good finding."""
    return [StorageFinding(check, Outcome.GOOD, text, figures=figures)]


def bad(check: str, text: str, hint: str, **figures: object) -> list[StorageFinding]:
    """One bad finding."""
    return [StorageFinding(check, Outcome.BAD, text, hint, figures)]


def limit(check: str, text: str, hint: str, **figures: object) -> list[StorageFinding]:
    """One limit."""
    return [StorageFinding(check, Outcome.LIMIT, text, hint, figures)]
