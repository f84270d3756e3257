"""How a tool comes to own a datastore: lock, claim and record, as a node that starts."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import LockBusyError, StoreError
from ftstan.ft.epoch_loss import EpochFacts, find_epochs
from ftstan.ft.epoch_records import TOOL_NAME, Cause
from ftstan.ft.ownership import StoreOwner
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def owning(
    path: str, *, repairing: bool = False, cause: Cause = Cause.TOOL, ft_mixed: bool | None = None
) -> Iterator[tuple[StoreOwner, EpochFacts]]:
    """Own the datastore ``path`` for a while; the lock is given back at the end.

    ``repairing``: lost epochs are made good, otherwise they are an error. ``cause`` and
    ``ft_mixed`` are recorded. Raises ``FtstanError``.
    """
    if not os.path.isdir(path):
        raise StoreError(
            f"{path} is no directory", hint="give the directory that the server has as -dir"
        )
    disk = LocalDisk()
    owner = StoreOwner(
        disk, path, server_id=Nuid().next(), clock=SystemClock(), in_group=False, name=TOOL_NAME
    )
    try:
        try:
            owner.try_lock()
        except LockBusyError as error:
            holder = owner.read_owner()
            raise StoreError(
                f"datastore {path} is in use" + (f" by {holder.describe()}" if holder else ""),
                hint="stop every node of the group first; ls, dump, verify and du work beside a "
                "running server",
            ) from error
        epochs = find_epochs(disk, owner.root)
        if epochs.loss and not repairing:
            raise StoreError(f"datastore {path}: {epochs.loss}", hint="run: ftstanctl store repair")
        owner.activate(epochs.lost, cause=cause, ft_mixed=ft_mixed)
        yield owner, epochs
    finally:
        owner.close()
