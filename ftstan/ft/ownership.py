"""StoreOwner: lock, epoch and confirmation of one datastore directory, as one thing that the data plane holds.

Implements ``stores.file.env.Ownership``. Order is everything: lock, claim, record durable, and only then may anything
of the store be measured or read. All calls belong to the data plane's thread; each may block on storage.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.errors import FencedError, LockBusyError, LockFaultError, StoreError
from ftstan.ft.adminkey import ensure_key, read_key
from ftstan.ft.direct import epoch_disk
from ftstan.ft.epoch import Activation, Confirmer, claim, read_owner, read_records, remove_old_claims
from ftstan.ft.lock import StoreLock
from ftstan.ft.mounts import find_mount
from ftstan.ft.slots import Cause
from ftstan.ft.survey import survey_store
from ftstan.log import stream as log

if TYPE_CHECKING:
    from ftstan.clock import Clock
    from ftstan.disk import Disk
    from ftstan.ft.epoch import LostEpochs
    from ftstan.ft.slots import EpochRecord

_MOUNTINFO = "/proc/self/mountinfo"


def read_mountinfo() -> str:
    """The mounts of this process as the kernel lists them."""
    with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as f:
        return f.read()


class StoreOwner:
    """The right of this process to write to the directory ``path``."""

    def __init__(
        self, disk: Disk, path: str, *, server_id: str, clock: Clock, in_group: bool, mountinfo: str | None = None
    ) -> None:
        """Open the directory, creating it if it is missing. Raises ``StoreError``."""
        self._disk = disk
        self._server_id = server_id
        self._clock = clock
        self._in_group = in_group
        self.path = path
        try:
            os.makedirs(path, exist_ok=True)
            self.root = disk.open_dir(path)
        except OSError as error:
            raise StoreError(
                f"unable to create the root directory [{path}]: {(error.strerror or str(error)).lower()}",
                hint="give -dir a directory that this user may write",
            ) from error
        mount = find_mount(read_mountinfo() if mountinfo is None else mountinfo, os.path.realpath(path))
        self.is_network = mount.is_network
        self._epoch_disk = epoch_disk(disk, is_network=self.is_network)
        self._lock = StoreLock(disk, self.root, path)
        self._activation: Activation | None = None
        self._confirmer: Confirmer | None = None
        self.answered_at: float | None = None
        """When storage last answered (seconds of ``Clock.mono``), ``None``: never. Any thread may read it."""

    # ---- taking --------------------------------------------------------------------------------------------------

    @property
    def lock(self) -> StoreLock:
        """The lock of the directory."""
        return self._lock

    def try_lock(self) -> None:
        """Try the store lock once. Raises ``LockBusyError`` or ``LockFaultError``."""
        try:
            self._lock.acquire()
        except LockBusyError:
            # An answer, too.
            self.answered_at = self._clock.mono()
            raise
        self.answered_at = self._clock.mono()

    def read_owner(self) -> EpochRecord | None:
        """The newest epoch record, ``None`` if no ftstan server ever owned the store. Raises ``StoreError``."""
        owner = read_owner(self._epoch_disk, self.root)
        self.answered_at = self._clock.mono()
        return owner

    def read_records(self, count: int) -> list[tuple[int, EpochRecord | None]]:
        """The newest ``count`` activations, newest first (``ft.epoch.read_records``). Raises ``StoreError``."""
        return read_records(self._epoch_disk, self.root, count)

    def read_key(self) -> bytes | None:
        """The key that operators prove themselves with, ``None`` if there is none yet. Raises ``StoreError``."""
        return read_key(self._disk, self.root)

    def store_id(self) -> bytes | None:
        """The store's id, empty if it has none yet, ``None`` if it cannot be read: what the standby loop asks for."""
        try:
            owner = self.read_owner()
        except StoreError:
            return None
        return owner.store_id if owner is not None else b""

    def activate(
        self,
        lost: LostEpochs | None = None,
        *,
        cause: Cause = Cause.UNKNOWN,
        after: int = 0,
        ft_mixed: bool | None = None,
    ) -> Activation:
        """Take the next epoch; the lock is held. ``lost``: what a repair knows of epochs that are gone.

        ``cause`` and ``after`` say why (``EpochRecord``); ``ft_mixed`` is the operator's word, if there is one.

        Raises ``FencedError``, ``RecoveryError`` or ``StoreError``.
        """
        if not self._lock.held:
            raise LockFaultError("the store lock is not held")
        self._take(lost, cause=cause, after=after, ft_mixed=ft_mixed)
        assert self._activation is not None
        assert self._confirmer is not None
        try:
            remove_old_claims(self._epoch_disk, self.root, self._activation, self._confirmer)
        except StoreError as error:
            # They only take up names; the next activation tries again.
            log.warning(error.text)
        try:
            ensure_key(self._disk, self.root, self._confirmer)
        except StoreError as error:
            log.warning(f"{error.text}; {error.hint}")
        return self._activation

    def _take(
        self, lost: LostEpochs | None = None, *, cause: Cause, after: int = 0, ft_mixed: bool | None = None
    ) -> None:
        activation = claim(
            self._epoch_disk,
            self.root,
            server_id=self._server_id,
            clock=self._clock,
            survey=lambda: survey_store(self._disk, self.root),
            in_group=self._in_group,
            lost=lost,
            cause=cause,
            after=after,
            ft_mixed=ft_mixed,
        )
        old, self._confirmer = (
            self._confirmer,
            Confirmer(self._epoch_disk, self.root, activation, is_network=self.is_network),
        )
        self._activation = activation
        if old is not None:
            old.close()

    # ---- Ownership -----------------------------------------------------------------------------------------------

    @property
    def activation(self) -> Activation:
        """The present activation. Raises ``FencedError`` if there is none."""
        if self._activation is None:
            raise FencedError("the datastore is not ours")
        return self._activation

    @property
    def slice_base(self) -> int:
        """The number below this activation's first slice."""
        return self.activation.slice_base

    @property
    def ours_from(self) -> int:
        """The first slice number of our first activation on this store."""
        return self.activation.ours_from

    @property
    def identity(self) -> tuple[int, bytes]:
        """Number and nonce of this activation."""
        return self.activation.epoch, self.activation.nonce

    @property
    def predecessor(self) -> tuple[int, bytes]:
        """Number and nonce of the activation directly before this one; ``(0, b"")`` if there was none."""
        return self.activation.predecessor

    def confirm(self) -> None:
        """Raise ``FencedError`` unless storage says that the store is ours."""
        if self._confirmer is None:
            raise FencedError("the datastore is not ours")
        self._confirmer()
        self.answered_at = self._clock.mono()

    def raise_epoch(self) -> None:
        """Take the next number while serving; if anybody took it first, the store is not ours any more."""
        self._next_epoch(Cause.RAISED)

    def set_mixed(self, *, on: bool) -> None:
        """Record the operator's word whether original servers may be members; as ``raise_epoch`` in everything else."""
        self._next_epoch(Cause.MIXED_SWITCHED, ft_mixed=on)

    def _next_epoch(self, cause: Cause, *, ft_mixed: bool | None = None) -> None:
        before = self.activation
        self.confirm()
        self._take(cause=cause, after=before.epoch, ft_mixed=ft_mixed)
        if self.activation.epoch != before.epoch + 1 or self.activation.store_id != before.store_id:
            raise FencedError(f"ft: epoch {before.epoch + 1} was claimed by another server while we went on to it")

    # ---- giving up -----------------------------------------------------------------------------------------------

    def verify_lock(self) -> None:
        """Raise ``FencedError`` if the lock file is not the one that we locked."""
        self._lock.verify()

    def release(self) -> None:
        """Give the lock back. What was written under it stays valid until somebody takes a higher epoch."""
        if self._confirmer is not None:
            with contextlib.suppress(OSError):
                self._confirmer.close()
        self._confirmer = None
        self._activation = None
        self._lock.release()

    def close(self) -> None:
        """Release everything, the directory handle too."""
        self.release()
        with contextlib.suppress(OSError):
            self._disk.close(self.root)
