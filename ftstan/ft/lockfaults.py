"""Why the store lock was not obtained: errors of the operating system told apart, counted, and with
advice.

Pure: errno in, words out. What each kind means for an operator is in ``docs/ft.md`` (Lock errors).
"""

from __future__ import annotations

import enum
import errno
from collections import Counter


class LockOutcome(enum.StrEnum):
    """How an attempt at the lock ended; the values are the labels of the metric."""

    GRANTED = "granted"
    BUSY = "busy"
    NO_LOCK_SERVICE = "no_lock_service"
    PERMISSION = "permission"
    READ_ONLY = "read_only"
    STALE = "stale_handle"
    IO = "io"
    TOO_MANY_FILES = "too_many_files"
    NO_SPACE = "no_space"
    MISSING = "missing"
    REPLACED = "replaced"
    OTHER = "other"


_KINDS = {
    errno.ENOLCK: LockOutcome.NO_LOCK_SERVICE,
    errno.EOPNOTSUPP: LockOutcome.NO_LOCK_SERVICE,
    errno.ENOSYS: LockOutcome.NO_LOCK_SERVICE,
    errno.EINVAL: LockOutcome.NO_LOCK_SERVICE,
    errno.EACCES: LockOutcome.PERMISSION,
    errno.EPERM: LockOutcome.PERMISSION,
    errno.EROFS: LockOutcome.READ_ONLY,
    errno.ESTALE: LockOutcome.STALE,
    errno.EIO: LockOutcome.IO,
    errno.EREMOTEIO: LockOutcome.IO,
    errno.ENXIO: LockOutcome.IO,
    errno.ETIMEDOUT: LockOutcome.IO,
    errno.EMFILE: LockOutcome.TOO_MANY_FILES,
    errno.ENFILE: LockOutcome.TOO_MANY_FILES,
    errno.ENOSPC: LockOutcome.NO_SPACE,
    errno.EDQUOT: LockOutcome.NO_SPACE,
    errno.ENOENT: LockOutcome.MISSING,
    errno.ENOTDIR: LockOutcome.MISSING,
}

_MEANING = {
    LockOutcome.NO_LOCK_SERVICE: "the storage offers no lock service",
    LockOutcome.PERMISSION: "this user may not lock the datastore",
    LockOutcome.READ_ONLY: "the datastore is mounted read-only",
    LockOutcome.STALE: "the file server no longer knows what this host has open",
    LockOutcome.IO: "the storage fails",
    LockOutcome.TOO_MANY_FILES: "no more files can be opened",
    LockOutcome.NO_SPACE: "the lock file cannot be created for lack of space",
    LockOutcome.MISSING: "the datastore directory or its lock file is not there",
    LockOutcome.OTHER: "an error that a lock should not give",
}

_ADVICE = {
    LockOutcome.NO_LOCK_SERVICE: "check that the file server is NFSv4 and not mounted nolock, or "
    "use another file "
    "system of those listed in docs/ft.md",
    LockOutcome.PERMISSION: "give the server's user read and write permission on the datastore "
    "directory and its "
    "lock file",
    LockOutcome.READ_ONLY: "remount the datastore read-write",
    LockOutcome.STALE: "the directory was replaced or the export restarted: this server opens it "
    "anew; if the error "
    "stays, remount the datastore",
    LockOutcome.IO: "check the file server and the kernel log of this host",
    LockOutcome.NO_SPACE: "free space or inodes on the datastore, or raise the quota of the "
    "server's user",
    LockOutcome.MISSING: "check that the shared storage is mounted on this host",
    LockOutcome.OTHER: "check the storage and the kernel log of this host",
}

_ADVICE_OF_ERRNO = {
    errno.EINVAL: "this kernel or file system has no open-file-description locks: use one listed "
    "in docs/ft.md",
    errno.EMFILE: "raise the limit of open files of the server process (LimitNOFILE, ulimit -n)",
    errno.ENFILE: "too many files are open on this host: raise fs.file-max",
}


def kind_of(error: OSError) -> LockOutcome:
    """Tell the errors of an attempt apart by what an operator has to do about them."""
    return _KINDS.get(error.errno or 0, LockOutcome.OTHER)


def meaning(kind: LockOutcome) -> str:
    """What this kind of failure means, in words."""
    return _MEANING[kind]


def advice(error: OSError) -> str:
    """What to do about it."""
    return _ADVICE_OF_ERRNO.get(error.errno or 0) or _ADVICE[kind_of(error)]


class LockCounts:
    """Attempts at the lock since the process started, by outcome.

    One thread counts, any may read.
    """

    def __init__(self) -> None:
        self._counts: Counter[LockOutcome] = Counter()

    def add(self, outcome: LockOutcome) -> None:
        """Count one attempt."""
        self._counts[outcome] += 1

    def __getitem__(self, outcome: LockOutcome) -> int:
        return self._counts[outcome]

    def as_dict(self) -> dict[str, int]:
        """Every outcome with its count, for metrics: zeros too, so that a series exists before its
        first failure.
        """
        return {outcome.value: self._counts[outcome] for outcome in LockOutcome}
