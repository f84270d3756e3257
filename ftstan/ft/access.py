"""The FILE store as a kind of store: its directory, its lock, its epoch, and the store that is
opened with them.

Joins what ``stores/file`` stores with the right to store it, which only ``ft/`` knows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.base.log import stream as log
from ftstan.config.member import member_name
from ftstan.config.options import MountRisk
from ftstan.config.units import SECOND
from ftstan.ft.epoch_records import Cause
from ftstan.ft.mixed import MIXED_ON
from ftstan.ft.modes import check_modes
from ftstan.ft.mountcheck import check_mount
from ftstan.ft.mounts import find_mount
from ftstan.ft.owned import OwnedAccess
from ftstan.ft.ownership import StoreOwner, read_mountinfo
from ftstan.ft.watch import Probe, Watch
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import Clock
    from ftstan.config.options import FileOptions, ServerOptions
    from ftstan.stores.interface import Lock, StoreContext

#: Channels that are opened before anybody is served; of a store with more, each is opened when it
#: is first needed.
_MOST_AT_ONCE = 64


_RECOVER_LOST_LOCKS = "/sys/module/nfs/parameters/recover_lost_locks"


class FileAccess(OwnedAccess):
    """One node's access to a datastore directory. Implements ``StoreAccess``."""

    owner: StoreOwner

    def __init__(self, context: StoreContext) -> None:
        """Judge the mount, then open the directory, creating it if it is missing.

        Raises ``ConfigError`` for a mount that a group cannot live with, and ``StoreError``.
        """
        self._context = context
        options = context.options
        mountinfo = read_mountinfo()
        _check_mount(options, mountinfo, _recover_lost_locks())
        self.owner = StoreOwner(
            context.disk,
            options.dir,
            server_id=context.server_id,
            clock=context.clock,
            in_group=bool(options.ft_group),
            name=member_name(options),
            mountinfo=mountinfo,
            direct=MountRisk.DIRECT_IO not in options.ft.allow,
        )
        self.place = f"datastore {options.dir}"
        try:
            for line in check_modes(
                context.disk,
                self.owner.root,
                options.dir,
                in_group=bool(options.ft_group),
                is_network=self.owner.is_network,
                strict=options.strict_permissions,
            ):
                log.warning(line)
        except StoreError:
            self.owner.close()
            raise
        self._store: FileStore | None = None

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

    def open(self, clock: Clock | None = None) -> FileStore:
        """The store of the present activation, not recovered yet.

        ``clock``: by which messages expire, if that is another one than the node's.
        """
        options = self._context.options
        self._store = FileStore(
            self._context.disk,
            self.owner.root,
            self.owner,
            clock or self._context.clock,
            _file_store_options(options.file),
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


def _check_mount(options: ServerOptions, mountinfo: str, recover_lost_locks: str) -> None:
    warnings = check_mount(
        find_mount(mountinfo, os.path.realpath(options.dir)),
        options.dir,
        in_group=bool(options.ft_group),
        allow=options.ft.allow,
        recover_lost_locks=recover_lost_locks,
    )
    for line in warnings:
        log.warning(line)


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
