"""StoreOwner: lock, epoch and confirmation of one datastore directory, as one thing that the data plane holds.

Implements ``stores.file.env.Ownership``. Order is everything: lock, claim, record durable, and only then may anything
of the store be measured or read. All calls belong to the data plane's thread; each may block on storage.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.errors import FencedError, LockFaultError, StoreError
from ftstan.ft.direct import epoch_disk
from ftstan.ft.epoch import Activation, Confirmer, claim, read_owner, remove_old_claims
from ftstan.ft.lock import StoreLock
from ftstan.ft.mounts import find_mount
from ftstan.ft.survey import SERVER_NAME, survey_store
from ftstan.log import stream as log

if TYPE_CHECKING:
    from ftstan.clock import Clock
    from ftstan.disk import Disk
    from ftstan.ft.epoch import LostEpochs
    from ftstan.ft.slots import EpochRecord

_MOUNTINFO = "/proc/self/mountinfo"


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
        if mountinfo is None:
            with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as f:
                mountinfo = f.read()
        mount = find_mount(mountinfo, os.path.realpath(path))
        self.is_network = mount.is_network
        self._epoch_disk = epoch_disk(disk, is_network=self.is_network)
        self._lock = StoreLock(disk, self.root, path)
        self._activation: Activation | None = None
        self._confirmer: Confirmer | None = None

    # ---- taking --------------------------------------------------------------------------------------------------

    @property
    def lock(self) -> StoreLock:
        """The lock of the directory."""
        return self._lock

    def try_lock(self) -> None:
        """Try the store lock once. Raises ``LockBusyError`` or ``LockFaultError``."""
        self._lock.acquire()

    def read_owner(self) -> EpochRecord | None:
        """The newest epoch record, ``None`` if no ftstan server ever owned the store. Raises ``StoreError``."""
        return read_owner(self._epoch_disk, self.root)

    def store_id(self) -> bytes | None:
        """The store's id, empty if it has none yet, ``None`` if it cannot be read: what the standby loop asks for."""
        try:
            owner = self.read_owner()
        except StoreError:
            return None
        return owner.store_id if owner is not None else b""

    def may_be_mixed(self) -> bool:
        """Whether original servers may be members, as far as can be told before the store is ours.

        Raises ``StoreError``.
        """
        owner = self.read_owner()
        if owner is not None:
            return owner.ft_mixed
        try:
            self._disk.stat(self.root, SERVER_NAME)
        except FileNotFoundError:
            return False
        except OSError as error:
            why = error.strerror or error
            raise StoreError(f"{SERVER_NAME}: {why}", hint="check the datastore's storage") from error
        return self._in_group

    def activate(self, lost: LostEpochs | None = None, *, ft_mixed: bool | None = None) -> Activation:
        """Take the next epoch; the lock is held. ``lost``: what a repair knows of epochs that are gone.

        ``ft_mixed``: the operator's word whether original servers may be members; ``None`` keeps what is recorded.

        Raises ``FencedError``, ``RecoveryError`` or ``StoreError``.
        """
        if not self._lock.held:
            raise LockFaultError("the store lock is not held")
        self._take(lost, ft_mixed)
        assert self._activation is not None
        assert self._confirmer is not None
        try:
            remove_old_claims(self._epoch_disk, self.root, self._activation, self._confirmer)
        except StoreError as error:
            # They only take up names; the next activation tries again.
            log.warning(error.text)
        return self._activation

    def _take(self, lost: LostEpochs | None = None, ft_mixed: bool | None = None) -> None:
        activation = claim(
            self._epoch_disk,
            self.root,
            server_id=self._server_id,
            clock=self._clock,
            survey=lambda: survey_store(self._disk, self.root),
            in_group=self._in_group,
            ft_mixed=ft_mixed,
            lost=lost,
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
    def present(self) -> Activation | None:
        """The present activation, if there is one. Any thread may ask."""
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

    @property
    def mixed(self) -> bool:
        """Whether original servers may be members of the group."""
        return self.activation.ft_mixed

    @property
    def was_mixed(self) -> bool:
        """Whether they may have written since the activation before this one."""
        return self.activation.was_mixed or self.activation.ft_mixed

    def confirm(self) -> None:
        """Raise ``FencedError`` unless storage says that the store is ours.

        An original server claims no epoch: in a mixed group the lock must still be on the file that the path names.
        """
        if self._confirmer is None:
            raise FencedError("the datastore is not ours")
        self._confirmer()
        if self._activation is not None and self._activation.ft_mixed:
            self._lock.verify()

    def set_mixed(self, *, on: bool) -> None:
        """Record, while serving, that original servers may be members, or are not any more: takes the next epoch.

        Does nothing if that is what is recorded. Raises ``FencedError`` and ``StoreError``.
        """
        if on != self.activation.ft_mixed:
            # Whoever took the lock from us without an epoch must not be written over, not even here.
            self._lock.verify()
            self._raise(on)

    def raise_epoch(self) -> None:
        """Take the next number while serving; if anybody took it first, the store is not ours any more."""
        self._raise(None)

    def _raise(self, mixed: bool | None) -> None:
        before = self.activation
        self.confirm()
        self._take(ft_mixed=mixed)
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
