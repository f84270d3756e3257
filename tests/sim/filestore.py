"""The real file store with real epochs on a simulated disk: what the histories open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import FencedError
from ftstan.config.limits import Limits
from ftstan.ft.epoch import Activation, claim, claim_next
from ftstan.ft.epoch_records import Cause
from ftstan.ft.fencing_check import Confirmer
from ftstan.ft.survey import survey_store
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from tests.sim.history import STORE

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.stores.interface import ChannelLimits


class SimOwner:
    """Ownership without a lock: on the simulated disk only the epoch decides."""

    def __init__(self, disk: Disk, root: int, clock: Clock) -> None:
        self._disk = disk
        self._root = root
        self._clock = clock
        self._take()

    def _take(self) -> None:
        self.activation: Activation = claim(
            self._disk,
            self._root,
            server_id="sim",
            clock=self._clock,
            survey=lambda: survey_store(self._disk, self._root),
            host="sim",
            pid=1,
        )
        self._confirmer = Confirmer(self._disk, self._root, self.activation)

    @property
    def slice_base(self) -> int:
        return self.activation.slice_base

    @property
    def ours_from(self) -> int:
        return self.activation.ours_from

    @property
    def identity(self) -> tuple[int, bytes]:
        return self.activation.epoch, self.activation.nonce

    @property
    def predecessor(self) -> tuple[int, bytes]:
        return self.activation.predecessor

    @property
    def mixed(self) -> bool:
        return self.activation.ft_mixed

    @property
    def originals_through(self) -> int:
        return (
            self.activation.epoch if self.activation.ft_mixed else self.activation.originals_through
        )

    def confirm(self) -> None:
        self._confirmer()

    def confirm_beside(self) -> None:
        self.confirm()

    def raise_epoch(self) -> None:
        before = self.activation.epoch
        self.confirm()
        self._take()
        if self.activation.epoch != before + 1:
            raise FencedError("taken")

    def leave_to_original(self) -> None:
        """As ``StoreOwner`` does it."""
        left = survey_store(self._disk, self._root)
        self.confirm()
        self.activation = claim_next(
            self._disk,
            self._root,
            self.activation,
            clock=self._clock,
            cause=Cause.TOOL,
            left=left,
        )
        self._confirmer = Confirmer(self._disk, self._root, self.activation)


def open_file_store(
    disk: Disk,
    clock: Clock,
    options: FileStoreOptions | None = None,
    *,
    limits: ChannelLimits | None = None,
    asking: Disk | None = None,
    most_at_once: int | None = None,
) -> FileStore:
    """A store that has not recovered yet, under a fresh epoch, on ``/store``."""
    root = disk.open_dir(STORE)
    owner = SimOwner(disk if asking is None else asking, root, clock)
    options = options or FileStoreOptions()
    return FileStore(
        disk,
        root,
        owner,
        clock,
        options,
        limits=None if limits is None else Limits.same(limits),
        parallel_sync=False,
        asking=asking,
        most_at_once=most_at_once,
    )
