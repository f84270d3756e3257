"""The watch: a small thread of an owner that asks storage once a second whether all is still well.

It detects; it does not carry safety (that is the confirm behind every batch,
``docs/ft-argument.md``). One storage call at a time, each of which may hang for ever: so nothing
waits for this thread. It publishes since when a probe is running, and the control loop judges that
(``ft/vital_signs.py``). A probe is, in this order:

1. **confirm**, through the file that has the name ``ft.epoch`` at this moment, opened anew: an idle
   owner notices, too, and so does one whose file was replaced or removed, which on network storage
   no read of the open one tells;
2. **ft.watch**, 4 KiB written and synced through a descriptor that carries a lock of its own: a
   file server that took the locks of this host away answers EIO (``docs/compat/nfs-facts.md``),
   while files without locks go on working;
3. the **lock file** is still the one that is locked, and no other datastore stands in the place of
   this one: ``ownership.py`` may read ``ft.watch`` for that, so it is written before;
4. the **state files** are still those that this activation wrote; if not, the store writes them
   again from memory.

Last it looks how much **room** there is, for monitoring: whatever comes of that, nobody is judged
by it.

``ft.watch`` is a new file for each activation: a former owner on the same host may hold the lock of
the old one.

Its last word says how an owner ended that stopped by itself; the next owner puts that into its
epoch record, for people. It may be a *farewell*, which no probe writes: an owner that stops without
having the lock says there that it is gone (``ft/steal.py``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from portalocker.constants import LockFlags
from portalocker.exceptions import LockException

from ftstan.base.errors import FencedError, FtstanError, StoreError
from ftstan.base.histogram import Histogram
from ftstan.ft.epoch_records import Departure, Ending
from ftstan.ft.lock import OfdLocker

if TYPE_CHECKING:
    from collections.abc import Callable

    from portalocker.portalocker import BaseLocker

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk, Space

WATCH_NAME = "ft.watch"
RECORD_SIZE = 4096

_MAGIC = b"FTSTWAT1"
_CRC = struct.Struct("<I")
# epoch, counter, server id with its length, at_ns, how
_BODY = struct.Struct("<QQH128sqB")
_HEAD_SIZE = len(_MAGIC) + _CRC.size
_MAX_SERVER_ID = 128
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: So often a file is made anew whose name somebody else has taken in between.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class WatchRecord:
    """What stands in ``ft.watch``: who was alive, and how many probes it had made in its
    activation.

    ``at_ns`` (Unix nanoseconds, 0 from older releases) and ``how`` are for people: when this was
    written, and in the last record of an owner that stopped how it ends.
    """

    epoch: int
    server_id: str
    counter: int
    at_ns: int = 0
    how: Ending = Ending.UNSAID

    def encode(self) -> bytes:
        """Build the 4,096 bytes of the file."""
        server_id = self.server_id.encode()[:_MAX_SERVER_ID]
        body = _BODY.pack(
            self.epoch, self.counter, len(server_id), server_id, self.at_ns, self.how
        ).ljust(RECORD_SIZE - _HEAD_SIZE, b"\0")
        return _MAGIC + _CRC.pack(zlib.crc32(body)) + body


def decode_watch(data: bytes) -> WatchRecord | None:
    """Read what stands in ``ft.watch``; ``None`` if it is torn or something else."""
    if len(data) != RECORD_SIZE or not data.startswith(_MAGIC):
        return None
    if _CRC.unpack_from(data, len(_MAGIC))[0] != zlib.crc32(data[_HEAD_SIZE:]):
        return None
    epoch, counter, size, server_id, at_ns, how = _BODY.unpack_from(data, _HEAD_SIZE)
    name = server_id[:size].decode("utf-8", "replace")
    return WatchRecord(epoch, name, counter, at_ns, Ending(how))


_FAREWELL = 0
"""Probes count from 1."""

_LAST = (1 << 64) - 1
"""An end that is only told: its owner gives the lock back, which says all that others go by."""


def farewell(epoch: int, server_id: str, at_ns: int = 0, how: Ending = Ending.UNSAID) -> bytes:
    """What the owner of ``epoch`` writes when it stops without having had the lock."""
    return WatchRecord(epoch, server_id, _FAREWELL, at_ns, how).encode()


def last_word(epoch: int, server_id: str, at_ns: int, how: Ending) -> bytes:
    """What the owner of ``epoch`` writes before it gives the lock back."""
    return WatchRecord(epoch, server_id, _LAST, at_ns, how).encode()


def departure(data: bytes | None) -> Departure | None:
    """The last sign of life in ``ft.watch``; ``None`` if there is none with a time."""
    record = decode_watch(data) if data else None
    if record is None or not record.at_ns:
        return None
    return Departure(record.epoch, record.at_ns, record.how)


def is_farewell(data: bytes, epoch: int) -> bool:
    """Whether the owner of ``epoch`` has left that."""
    record = decode_watch(data)
    return record is not None and (record.epoch, record.counter) == (epoch, _FAREWELL)


class Watched(Protocol):
    """What the probe needs of the owner (``ft/ownership.py``). Called on the watch thread."""

    @property
    def identity(self) -> tuple[int, bytes]:
        """Number and nonce of the activation."""
        ...

    @property
    def raises(self) -> int:
        """Counts up when the owner begins to raise its own epoch, and again when it has: odd while
        under way.
        """
        ...

    def confirm_beside(self) -> None:
        """Confirm with the epoch file opened by its name. Raises ``FencedError``."""
        ...

    def verify_lock(self) -> None:
        """Raise ``FencedError`` if the lock file is not the one that was locked, or the path names
        another datastore.
        """
        ...


class Probe:
    """One look at everything. Belongs to the watch thread.

    ``look`` compares the state files of the store.
    """

    def __init__(
        self,
        disk: Disk,
        root_fd: int,
        owner: Watched,
        *,
        server_id: str,
        look: Callable[[], None],
        locker: BaseLocker | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._disk = disk
        self._root_fd = root_fd
        self._owner = owner
        self._server_id = server_id
        self._look = look
        self._locker = locker
        self._fd: int | None = None
        self._counter = 0
        self.room: Space | None = None
        """On the file system, as of the last probe; ``None`` if storage does not say.

        Other threads read it.
        """

    def __call__(self) -> bool:
        """Ask storage everything once.

        False if that cannot be judged, since this server goes on to the next epoch.

        Raises ``FencedError`` (not ours) and ``StoreError`` (storage fails).
        """
        confirmed = self._confirm()
        if not confirmed and self._fd is None:
            return False
        try:
            # Also while this server itself goes on to the next epoch, which may hang in storage:
            # somebody must notice. Only into the file that is open: nothing is made or removed
            # unconfirmed.
            if not self._write():
                return False
        except OSError as error:
            # Without space a server goes on refusing publishes, and storage has answered.
            if error.errno not in _FULL:
                raise _failed(WATCH_NAME, error) from error
        if not confirmed:
            return False
        self._let_go_if_displaced()
        self._owner.verify_lock()
        try:
            self._look()
        except OSError as error:
            raise _failed("a state file", error) from error
        with contextlib.suppress(OSError):
            self.room = self._disk.space(self._root_fd)
        return True

    def close(self) -> None:
        """Release the descriptors."""
        fd = self._fd
        self._fd = None
        if fd is not None:
            with contextlib.suppress(OSError):
                self._disk.close(fd)

    def _confirm(self) -> bool:
        """Confirm; false if that cannot be judged now, because this server itself goes on to the
        next epoch.
        """
        raises = self._owner.raises
        if raises % 2:
            return False
        try:
            self._owner.confirm_beside()
        except FencedError:
            if self._owner.raises == raises:
                raise
            # The successor in the next slot is this server.
            return False
        return True

    def _write(self) -> bool:
        """Write and sync the next record; false if there is no file, since that cannot be judged
        now.

        Where a directory has the name, a channel of an original server most likely, the server does
        without the file.
        """
        if self._fd is None:
            if self._is_occupied():
                return True
            self._fd = self._create()
        if self._fd is None:
            return False
        self._counter += 1
        record = WatchRecord(
            self._owner.identity[0], self._server_id, self._counter, self._wall_ns()
        )
        self._disk.pwrite(self._fd, record.encode(), 0)
        # Always something new: a second sync with nothing to write would say that all is well.
        self._disk.fdatasync(self._fd)
        return True

    def _is_occupied(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._disk.stat(self._root_fd, WATCH_NAME).is_dir
        return False

    def _let_go_if_displaced(self) -> None:
        """Close a file that has lost its name to a former owner's late probe: the next probe makes
        another.
        """
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            ours = self._disk.fstat(self._fd).ino
            try:
                if self._disk.stat(self._root_fd, WATCH_NAME).ino == ours:
                    return
            except FileNotFoundError:
                pass
            fd = self._fd
            self._fd = None
            self._disk.close(fd)

    def _make(self) -> int | None:
        """A new file; ``None`` if somebody else made one since the old one was removed."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._root_fd, WATCH_NAME)
        try:
            return self._disk.open(
                self._root_fd, WATCH_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            )
        except FileExistsError:
            return None

    def _create(self) -> int | None:
        """A new file with a lock of its own; the store was confirmed just before.

        A former owner may have been on its way to the same: its file goes. And a file server whose
        answer was lost says of our own file that it exists. Each time the store is confirmed before
        a file is removed. ``None`` if that cannot be judged now. Raises ``FencedError`` and
        ``OSError``.
        """
        for _ in range(_TRIES):
            fd = self._make()
            if fd is not None:
                return self._locked(fd)
            if not self._confirm():
                return None
        raise FileExistsError(errno.EEXIST, "made by others again and again")

    def _locked(self, fd: int) -> int:
        try:
            locker = OfdLocker() if self._locker is None else self._locker
            locker.lock(fd, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
        except LockException as error:
            self._disk.close(fd)
            cause = error.__cause__
            raise cause if isinstance(cause, OSError) else OSError(str(error)) from error
        return fd


def _failed(what: str, error: OSError) -> StoreError:
    name = errno.errorcode.get(error.errno or 0, "no errno")
    return StoreError(
        f"the storage of this server fails: {what}: {(error.strerror or str(error)).lower()} "
        f"({name})",
        hint="check the storage and the kernel log of this host",
    )


class Looks(Protocol):
    """One look at the storage of an owner, on the watch thread."""

    @property
    def room(self) -> Space | None:
        """Free space, if it is known."""
        ...

    def __call__(self) -> bool:
        """Whether storage has answered; false if that cannot be judged now.

        Raises ``FtstanError``: the owner must end.
        """
        ...

    def close(self) -> None:
        """Release what it has opened."""
        ...


class Watch:
    """The thread. ``on_failure(error)`` is called on it, once, when a probe says that this server
    must end.

    Read from other threads: ``since`` is the start of the running probe (seconds), ``passed``
    counts successful probes, ``passed_at`` is the end of the last one, ``took`` how many seconds
    each of them took.
    """

    def __init__(
        self,
        probe: Looks,
        clock: Clock,
        interval: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """``interval``: seconds between two probes."""
        self._probe = probe
        self._clock = clock
        self._interval = interval
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.since: float | None = None
        self.passed = 0
        self.passed_at = 0.0
        self.took = Histogram()

    def start(self) -> None:
        """Begin; the first probe comes after one interval, and out of the way of a takeover that
        has just confirmed.
        """
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """No more probes, and no failures any more.

        Waits at most ``timeout`` seconds and returns whether it ended.
        """
        self._stop.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def room(self) -> Space | None:
        """Free space on the store's file system at the last probe."""
        return self._probe.room

    def turn(self) -> bool:
        """Probe once; returns whether to go on."""
        began = self._clock.mono()
        if self.since is None:
            self.since = began
        try:
            if not self._probe():
                # The owner is in the middle of raising its epoch. If that hangs, this probe has
                # begun long ago.
                return True
        except BaseException as error:  # noqa: BLE001  # whatever it is, nobody watches any more
            self.since = None
            if not self._stop.is_set():
                self._on_failure(_for_people(error))
            return False
        self.passed_at = self._clock.mono()
        self.took.observe(self.passed_at - began)
        self.passed += 1
        self.since = None
        return True

    def _run(self) -> None:
        try:
            while not self._wait() and self.turn():
                pass
        finally:
            self._probe.close()

    def _wait(self) -> bool:
        """Wait for the next probe; returns whether the watch was stopped."""
        return self._stop.wait(self._interval)


def _for_people(error: BaseException) -> BaseException:
    """Put the hint into the text: there will be no second line."""
    if isinstance(error, FtstanError) and error.hint:
        return type(error)(f"{error.text}; {error.hint}")
    return error
