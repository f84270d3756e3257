"""The FILE store as a kind of store: its directory, its lock, its epoch, and the store that is
opened with them.

Joins what ``stores/file`` stores with the right to store it, which only ``ft/`` knows.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.config.member import member_name
from ftstan.config.options import MountRisk
from ftstan.config.units import SECOND
from ftstan.ft.epoch_records import Cause
from ftstan.ft.mixed import MIXED_ON
from ftstan.ft.modes import check_modes
from ftstan.ft.mountcheck import check_mount
from ftstan.ft.mounts import mount_of
from ftstan.ft.owned import OwnedAccess
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import Probe, Watch
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.config.options import FileOptions, ServerOptions
    from ftstan.ft.mounts import Mount
    from ftstan.stores.interface import Lock, StoreContext

#: Channels that are opened before anybody is served; of a store with more, each is opened when it
#: is first needed.
_MOST_AT_ONCE = 64


_RECOVER_LOST_LOCKS = "/sys/module/nfs/parameters/recover_lost_locks"


class FileAccess(OwnedAccess):
    """One node's access to a datastore directory. Implements ``StoreAccess``."""

    owner: StoreOwner

    def __init__(self, context: StoreContext) -> None:
        """Open the directory, creating it if it is missing, and judge its mount and its files.

        Nothing is made on a mount that a group cannot live with. Raises ``ConfigError`` for such
        one, and ``StoreError``.
        """
        self._context = context
        options = context.options
        if options.ft_group and not os.path.isdir(options.dir):
            _judge_place(context.disk, options)
        self.owner = StoreOwner(
            context.disk,
            options.dir,
            server_id=context.server_id,
            clock=context.clock,
            in_group=bool(options.ft_group),
            name=member_name(options),
            direct=MountRisk.DIRECT_IO not in options.ft.allow,
            judge=self._judge,
        )
        self.place = f"datastore {options.dir}"
        self._store: FileStore | None = None

    def _judge(self, mount: Mount, root: int) -> None:
        """Refuse the open directory ``root``, or say what speaks against it.

        At the start, and wherever the path of a member leads later. Raises ``ConfigError`` for its
        mount and ``StoreError`` for its files.
        """
        options = self._context.options
        warnings = [
            *_check_mount(options, mount),
            *check_modes(
                self._context.disk,
                root,
                options.dir,
                in_group=bool(options.ft_group),
                is_network=mount.is_network,
                strict=options.strict_permissions,
            ),
        ]
        # Behind every refusal: one that stays is met again at each look of a standby.
        for line in warnings:
            log.warning(line)

    def lock(self) -> Lock:
        """The lock of the directory."""
        return self.owner.lock

    def holder(self) -> str:
        """The newest epoch record, in words."""
        owner = self.owner.read_owner()
        return owner.describe() if owner is not None else ""

    def activate(self) -> None:
        """Take the next epoch; the node is no member of a group."""
        if self.owner.activate(cause=Cause.STANDALONE_START).ft_mixed:
            log.info(MIXED_ON)

    def open(self) -> FileStore:
        """The store of the present activation, not recovered yet."""
        return self._open(self._context.clock, _file_store_options(self._context.options.file))

    def open_replayed(self, clock: Clock, *, before: bool, rolls_back: bool) -> FileStore:
        """The same, of an owner who brings again what came behind the last ``sync_all``.

        ``clock``: by which messages expire. ``before``, ``rolls_back``: as ``replayed_before`` and
        ``rolls_back`` in ``FileStoreOptions``.
        """
        options = _file_store_options(self._context.options.file)
        return self._open(
            clock,
            replace(options, replayed=True, replayed_before=before, rolls_back=rolls_back),
        )

    def _open(self, clock: Clock, file_options: FileStoreOptions) -> FileStore:
        options = self._context.options
        self._store = FileStore(
            self._context.disk,
            self.owner.root,
            self.owner,
            clock,
            file_options,
            path=options.dir,
            asking=self.owner.asking if self.owner.is_network else None,
            most_at_once=_MOST_AT_ONCE,
            stopping=self._context.stopping,
            progress=self._context.progress,
        )
        self.owner.is_fit = self._store.original_compat.fit_for
        return self._store

    def watch(self, interval: float, on_failure: Callable[[BaseException], None]) -> Watch:
        """A watch over the present activation, not started.

        ``interval`` in seconds, see ``Watch``.
        """
        disk = self._context.disk

        def look() -> None:
            if self._store is not None:
                self._store.places.look(disk, self.owner.root)

        probe = Probe(
            disk,
            self.owner.root,
            self.owner,
            server_id=self._context.server_id,
            look=look,
            wall_ns=self._context.clock.wall_ns,
        )
        return Watch(probe, self._context.clock, interval, on_failure)

    def close(self) -> None:
        """Release everything, the directory handle too."""
        self.owner.close()


def _judge_place(disk: Disk, options: ServerOptions) -> None:
    """Refuse the mount on which the directory is going to be made. Raises ``ConfigError``.

    Opened, since an automount is made by that. What cannot be opened is told when the directory is
    made.
    """
    path = os.path.realpath(options.dir)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    with contextlib.suppress(OSError):
        place = disk.open_dir(path)
        try:
            _check_mount(options, mount_of(place, path))
        finally:
            disk.close(place)


def _check_mount(options: ServerOptions, mount: Mount) -> list[str]:
    return check_mount(
        mount,
        options.dir,
        in_group=bool(options.ft_group),
        allow=options.ft.allow,
        recover_lost_locks=_recover_lost_locks(),
    )


def _recover_lost_locks() -> str:
    """What the nfs module of this kernel says.

    Empty if there is none, and then nothing is mounted with it.
    """
    try:
        with open(_RECOVER_LOST_LOCKS, encoding="ascii", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def _file_store_options(f: FileOptions) -> FileStoreOptions:
    return FileStoreOptions(
        crc_polynomial=f.crc_poly,
        check_crc=f.crc,
        sync=f.sync,
        slice_max_msgs=f.slice_max_msgs,
        slice_max_bytes=f.slice_max_bytes,
        slice_max_age=f.slice_max_age,
        slice_archive_script=f.slice_archive_script,
        compact_enabled=f.compact_enabled,
        compact_fragmentation=f.compact_fragmentation,
        compact_interval=f.compact_interval * SECOND,
        compact_min_size=f.compact_min_size,
        fds_limit=f.fds_limit,
        parallel_recovery=f.parallel_recovery,
        truncate_bad_eof=f.truncate_bad_eof,
        read_buffer_size=f.read_buffer_size,
        auto_sync=max(f.auto_sync, 0),
        sync_index=f.sync_index,
        sync_subs=f.sync_subs,
    )
