"""What every file of one store shares: the disk, the format options, and the right to write.

``Ownership`` is implemented by ``ft/``; the store asks it before anything becomes visible under a
name that others read.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ftstan.stores.file.files import Files
from ftstan.stores.file.inode_watch import Places
from ftstan.stores.file.regular import open_file
from ftstan.stores.file.stretch import LONG_RUN, Stretch, read_stretch

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.stores.file.log.records import Crc

#: Slice numbers that one epoch may use in a channel (``docs/compat/filestore.md``, slices).
NUMBERS_PER_EPOCH = 4096
#: Epochs that an owner takes in a row to get above slice numbers of somebody else: each costs some
#: syncs.
MOST_EPOCHS_AHEAD = 1024

_CHUNK = 1 << 20

#: Names that start so belong to an activation that has not made them visible yet; a successor
#: removes them first.
TEMPORARY = "tmp."

#: Made by file system tools in every mount point, for root alone; not ours to remove.
FOREIGN = "lost+found"


def is_full(error: OSError) -> bool:
    """Whether only space is missing: what failed can be tried again."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Ownership(Protocol):
    """The activation under which a store is open."""

    @property
    def slice_base(self) -> int:
        """Slices of this activation are numbered ``slice_base + 1`` to ``slice_base +
        NUMBERS_PER_EPOCH``.
        """
        ...

    @property
    def ours_from(self) -> int:
        """The first slice number of our first activation here: all below was written by the
        original server.
        """
        ...

    def confirm(self) -> None:
        """Raise ``FencedError`` unless storage still says that this activation owns the store."""
        ...

    def confirm_beside(self) -> None:
        """``confirm`` for another thread.

        Raises ``FencedError``, also while the epoch is being raised.
        """
        ...

    @property
    def identity(self) -> tuple[int, bytes]:
        """Number and nonce of this activation."""
        ...

    @property
    def predecessor(self) -> tuple[int, bytes]:
        """Number and nonce of the activation directly before this one.

        ``(0, b"")`` if there was none.
        """
        ...

    @property
    def mixed(self) -> bool:
        """Whether original servers may follow at any moment: what they would not read around must
        not be there.
        """
        ...

    @property
    def originals_through(self) -> int:
        """The last epoch behind which an original server may have written.

        0: none has since our first.

        What one of ours has confirmed under a later epoch was read, and mended, since.
        """
        ...

    def raise_epoch(self) -> None:
        """Take the next epoch without giving up the store: ``slice_base`` grows.

        Raises ``FencedError``.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileStoreOptions:
    """Options of the store (``docs/compat/filestore.md``).

    Ages and periods in nanoseconds, sizes in bytes.

    0 means: no slice limit; no script (``""``); ``fds_limit`` sized from what the process may open;
    ``read_buffer_size`` one message a read; ``auto_sync`` never. ``auto_sync`` is the period of
    syncs without ``sync``. ``replayed``: the owner brings again whatever came behind the last
    ``sync_all`` (``recovery/rolling_back.py``); ``replayed_before``: so did every owner of this
    store, and a channel without ``confirmed.bin`` came behind the last one; ``rolls_back``: so did
    the last one who wrote here, and what came behind its last ``sync_all`` goes.
    """

    crc_polynomial: int = 0xEDB88320
    check_crc: bool = True
    sync: bool = True
    slice_max_msgs: int = 0
    slice_max_bytes: int = 64 << 20
    slice_max_age: int = 0
    slice_archive_script: str = ""
    compact_enabled: bool = True
    compact_fragmentation: int = 50
    compact_interval: int = 300_000_000_000
    compact_min_size: int = 1 << 20
    fds_limit: int = 0
    read_buffer_size: int = 2 << 20
    auto_sync: int = 60_000_000_000
    sync_index: bool = False
    sync_subs: bool = False
    parallel_recovery: int = 1
    truncate_bad_eof: bool = False
    replayed: bool = False
    replayed_before: bool = False
    rolls_back: bool = True


@dataclass(slots=True)
class FileEnv:
    """Handed to every part of one open store."""

    disk: Disk
    root: int
    clock: Clock
    options: FileStoreOptions
    owner: Ownership
    crc: Crc
    #: The disk whose reads ask storage, where ``disk`` may answer from this host's memory (a
    #: network file system). What former owners wrote is read through it. ``None``: there is no
    #: difference.
    asking: Disk | None = None
    #: Highest slice number used in channels that were deleted in this activation: made again, they
    #: go on above it.
    number_floor: dict[bytes, int] = field(default_factory=dict)
    #: The datastore's directory as the operator wrote it, for messages; empty if nobody said.
    path: str = ""
    #: Whether a former owner may have files of it open: not where this process has made the
    #: datastore.
    inherited: bool = True
    #: Whether a node of a cluster has the datastore, or had it last.
    is_nodes: bool = False
    #: Names of the root that belong to files of ours, under which something else stands.
    occupied: frozenset[str] = frozenset()
    files: Files = field(init=False)
    places: Places = field(default_factory=Places)
    #: Set from another thread when the node is to stop: a recovery that takes long ends then.
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.files = Files(self.disk, self.options.fds_limit)

    @property
    def fresh(self) -> Disk:
        """The disk to read through what somebody else may have written."""
        return self.disk if self.asking is None else self.asking

    @property
    def is_remembered(self) -> bool:
        """Whether sizes may be what this host remembers, and a sync commits nothing that another
        host wrote.
        """
        return self.asking is not None

    def read_on(self, fd: int, offset: int) -> bytes:
        """Everything from ``offset`` to the end of a file opened through ``fresh``.

        ``OSError`` passes through.
        """
        return self.stretch(fd, offset).data

    def stretch(self, fd: int, offset: int) -> Stretch:
        """The same, with what is to be known of a file that has grown by zeros."""
        size = max(self.fresh.fstat(fd).size - offset, 0)
        if size > LONG_RUN:
            return read_stretch(self.fresh, fd, offset)
        data = self.fresh.pread(fd, size, offset)
        if not self.is_remembered:
            return Stretch(data, offset + len(data))
        parts = [data]
        at = offset + len(data)
        # The size may be what this host remembers; what lies behind it is asked from storage.
        while more := self.fresh.pread(fd, _CHUNK, at):
            parts.append(more)
            at += len(more)
        return Stretch(b"".join(parts), at)

    def size(self, fd: int) -> int:
        """Bytes of a file opened through ``fresh``, as storage has it.

        ``OSError`` passes through.
        """
        size = self.fresh.fstat(fd).size
        if not self.is_remembered:
            return size
        if size and not self.fresh.pread(fd, 1, size - 1):
            # It is shorter than this host remembers.
            size = 0
        return size + len(self.read_on(fd, size))

    def size_of(self, dirfd: int, name: str) -> int:
        """The same of the file of that name.

        Never ask a name for its size: a network file system answers from memory.

        ``OSError`` passes through.
        """
        fd = open_file(self.fresh, dirfd, name)
        try:
            return self.size(fd)
        finally:
            self.fresh.close(fd)

    def is_there(self, dirfd: int, name: str) -> bool:
        """Whether the directory has a file of that name.

        The listing opens the directory, which asks storage; a name by itself may be answered from
        memory, also where it is not there any more, or was not yet. ``OSError`` passes through.
        """
        return any(found == name for found, _ in self.disk.listdir(dirfd))

    def temporary(self, name: str) -> str:
        """The name under which this activation, and no other, fills what is to stand under
        ``name``.

        With a name that a successor uses, too, a late rename would show what that one has not
        finished.
        """
        number = f"{self.owner.slice_base}"
        while f"{TEMPORARY}{number}.{name}" in self.occupied:
            # Another spelling of the same number is a temporary of this activation, too.
            number = f"0{number}"
        return f"{TEMPORARY}{number}.{name}"

    @property
    def sync_index(self) -> bool:
        """Whether an index is synced before an ack: an original server that follows a crash
        believes nothing else.
        """
        return self.options.sync_index or self.owner.mixed

    @property
    def highest_number(self) -> int:
        """The highest slice number that this owner can get to.

        What lies above was written by no server in turn.
        """
        return self.owner.slice_base + NUMBERS_PER_EPOCH * (1 + MOST_EPOCHS_AHEAD)

    def shown(self, name: str) -> str:
        """A file of the store as messages name it: below the directory that the operator gave."""
        return f"{self.path}/{name}" if self.path and name else self.path or name
