"""The fencing check: one read of storage says whether this server still owns the datastore.

A batch of publishes is acknowledged only if the check that **starts after** its last sync says yes:
``node/pipeline.py`` makes it between commit and emit (``StoreOwner.confirm`` in ``ownership.py``).
What it reads is the file that ``epoch.py`` writes; why that is enough is ``docs/ft-argument.md``.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from ftstan.base.errors import FencedError
from ftstan.ft.epoch import EPOCH_NAME, REPAIR, STAND_BY
from ftstan.ft.epoch_records import (
    BLANK,
    SLOT_SIZE,
    decode_slot,
    encode_slot,
    is_blank,
)

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.ft.epoch import Activation

_GONE = "the file was removed or replaced"


class Confirmer:
    """Is the store still ours?

    One read of storage answers; no clock, lock or memory of ours takes part.

    A batch is confirmed by a call that **starts after** the batch's last fsync returned. Threads
    may share it. Once fenced, it stays so. ``is_network`` leaves out the look at the link count,
    which is answered from this host's memory there.
    """

    def __init__(
        self, disk: Disk, root_fd: int, activation: Activation, *, is_network: bool = False
    ) -> None:
        self._disk = disk
        self._epoch = activation.epoch
        self._offset = activation.epoch * SLOT_SIZE
        self._alone = encode_slot(activation.record())
        # The file may have grown behind our slot without anybody having used the next one.
        self._followed_by_blank = self._alone + BLANK
        self._check_links = not is_network
        self._fenced: FencedError | None = None
        try:
            self._fd = disk.open(root_fd, EPOCH_NAME, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise self._lost(_GONE) from error
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._file = self._identity()
            self()
        except FencedError:
            self.close()
            raise

    def __call__(self) -> None:
        """Raise ``FencedError`` unless storage shows our record in our slot and nothing in the next
        one.
        """
        if self._fenced is not None:
            raise self._fenced
        try:
            data = self._disk.pread(self._fd, 2 * SLOT_SIZE, self._offset)
            linked = not self._check_links or self._disk.nlink(self._fd)
        except OSError as error:
            self._fenced = self._unreadable(error)
            raise self._fenced from error
        if not linked:
            self._fenced = self._lost(_GONE)
        elif data not in (self._alone, self._followed_by_blank):
            self._fenced = self._explain(data)
        else:
            return
        raise self._fenced

    def compare(self, other: Confirmer) -> None:
        """Raise ``FencedError`` unless ``other`` was opened on the same file as this one."""
        if self._file != other._file:
            raise self._lost(_GONE)

    def close(self) -> None:
        """Release the descriptor."""
        self._disk.close(self._fd)

    def _identity(self) -> tuple[int, int]:
        """Which file is open: asked once, since by now its number can belong to another one."""
        try:
            file = self._disk.fstat(self._fd)
        except OSError as error:
            raise self._unreadable(error) from error
        return file.dev, file.ino

    def _explain(self, data: bytes) -> FencedError:
        own = data[:SLOT_SIZE]
        following = data[SLOT_SIZE:]
        if not is_blank(following):
            successor = decode_slot(following, self._epoch + 1)
            if successor is None:
                return self._lost(
                    f"slot {self._epoch + 1} was used, and its record cannot be read (bad checksum)"
                )
            return FencedError(
                f"ft: epoch {self._epoch} was superseded by {successor.describe()}", hint=STAND_BY
            )
        if is_blank(own):
            return self._lost("our record is gone, as after a restore of an older file")
        if own == self._alone:
            return self._lost("the file ends inside the next slot, so somebody is using it")
        other = decode_slot(own, self._epoch)
        if other is None:
            return self._lost("our record cannot be read any more (bad checksum)")
        return FencedError(
            f"ft: epoch {self._epoch} was taken from us by {other.describe()}", hint=STAND_BY
        )

    def _lost(self, what: str) -> FencedError:
        return FencedError(
            f"ft: epoch {self._epoch} cannot be confirmed: {EPOCH_NAME}: {what}", hint=REPAIR
        )

    def _unreadable(self, error: OSError) -> FencedError:
        return FencedError(
            f"ft: epoch {self._epoch} cannot be confirmed: {EPOCH_NAME} is unreadable: "
            f"{error.strerror or error} "
            f"({errno.errorcode.get(error.errno or 0, 'no errno')})",
            hint="check the storage and the kernel log of this host, then start the server again",
        )
