"""FileStore: the datastore directory as a whole, and what one commit does to it.

A commit writes every touched channel, syncs what it wrote (many files in parallel), then writes index entries: data
first, its index after. One thread uses the store; it may block on storage for as long as storage likes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ftstan.errors import RecoveryError, StoreError
from ftstan.log import stream as log
from ftstan.stores.file import records, recovery, states
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.env import FileEnv, FileStoreOptions, Ownership
from ftstan.stores.file.slices import show, store_error
from ftstan.stores.file.statefile import (
    StateFile,
    StateFileError,
    check_version,
    read_file,
    read_typed,
    replace_file,
)
from ftstan.stores.file.tools import exact
from ftstan.stores.interface import (
    ChannelLimits,
    ChannelStore,
    ClientInfo,
    Recovered,
    ServerInfo,
)
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from ftstan.clock import Clock
    from ftstan.disk import Disk

_SYNC_THREADS = 4


class FileStore:
    """A datastore directory that is byte-compatible with the original's FILE store. Implements ``Store``."""

    kind = "FILE"

    def __init__(
        self,
        disk: Disk,
        root: int,
        owner: Ownership,
        clock: Clock,
        options: FileStoreOptions | None = None,
        *,
        limits: ChannelLimits | None = None,
        parallel_sync: bool = True,
    ) -> None:
        """``root``: an open handle of the directory, which this object does not close."""
        options = options or FileStoreOptions()
        self._env = FileEnv(disk, root, clock, options, owner, records.Crc(options.crc_polynomial))
        self._limits = limits or ChannelLimits()
        self._channels: dict[bytes, FileChannel] = {}
        self._touched: dict[bytes, FileChannel] = {}
        self._clients: dict[bytes, ClientInfo] = {}
        self._client_file = StateFile(self._env, root, "clients.dat", self._snapshot_clients)
        self._client_rows: list[bytes] = []
        self._pool = ThreadPoolExecutor(_SYNC_THREADS, "sync") if parallel_sync else None

    # ---- recovery ------------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """Read the directory. Raises ``RecoveryError``."""
        env = self._env
        try:
            recovery.remove_temporaries(env.disk, env.root)
            info = self._read_server_info()
            rows, why = read_typed(env, env.root, "clients.dat", "clients.dat")
            if why:
                log.warning(f'"clients.dat": the end of the file is incomplete ({why}) and ignored')
            self._clients = states.replay_clients(rows, "clients.dat")
            for name, is_dir in sorted(env.disk.listdir(env.root)):
                if is_dir and self._is_channel(name):
                    channel = FileChannel(env, os.fsencode(name), self._limits, self._touched)
                    self._channels[channel.name] = channel
                    channel.recover()
                    channel.expire(env.clock.wall_ns())
        except OSError as error:
            raise RecoveryError(
                f"unable to recover the datastore: {error.strerror or error}"
                + (f": {error.filename!r}" if error.filename else ""),
                hint="check the storage and its permissions",
            ) from error
        if info is None and self._channels:
            log.warning(
                "Server information was not recovered, however channels are present. "
                "Will initialize server and restart recovery!"
            )
        channels: list[ChannelStore] = list(self._channels.values())
        return Recovered(info, list(self._clients.values()), channels)

    def _read_server_info(self) -> ServerInfo | None:
        env = self._env
        data = read_file(env, env.root, "server.dat")
        if data is None or len(data) <= records.VERSION_SIZE or len(data) == records.VERSION_SIZE + 8:
            # Absent, or cut short before its record was written: it never told anybody a subject.
            return None
        wrong = check_version(data)
        if not wrong:
            size = int.from_bytes(data[4:8], "little")
            if len(data) != 12 + size:
                wrong = f"incorrect file size, expected {12 + size} bytes, got {len(data)} bytes"
            elif env.options.check_crc and env.crc(data[12:]) != int.from_bytes(data[8:12], "little"):
                stored = int.from_bytes(data[8:12], "little")
                wrong = f"corrupted data, expected crc to be 0x{stored:08x}, got 0x{env.crc(data[12:]):08x}"
        if wrong:
            raise RecoveryError(
                f'unable to recover server file "server.dat": {wrong}', hint="run: ftstanctl store verify"
            )
        return states.decode_server(data[12:])

    def _is_channel(self, name: str) -> bool:
        """Whether a directory of the root is a channel: legal name, and something of ours in it."""
        env = self._env
        if not valid_channel(os.fsencode(name)):
            log.warning(f'directory "{name}" in the datastore is not a channel name: skipped')
            return False
        fd = env.disk.open_dir_at(env.root, name)
        try:
            names = [n for n, is_dir in env.disk.listdir(fd) if not is_dir]
            if not any(n == "subs.dat" or n.startswith("msgs.") for n in names):
                # Perhaps a channel that a former owner was about to make: it must not be able to finish that now.
                recovery.remove_temporaries(env.disk, fd)
                log.warning(f'directory "{name}" in the datastore holds no channel: skipped')
                return False
        finally:
            env.disk.close(fd)
        return True

    # ---- staging -------------------------------------------------------------------------------------------------

    def set_server_info(self, info: ServerInfo) -> None:
        """Replace ``server.dat``, durable on return."""
        env = self._env
        data = records.VERSION + records.untyped_record(states.encode_server(info), env.crc)
        try:
            env.disk.close(replace_file(env, env.root, "server.dat", data))
        except OSError as error:
            raise store_error(error, "server.dat cannot be written") from error

    def add_client(self, info: ClientInfo) -> None:
        """Stage a client."""
        self._client_rows.append(states.client_record(info, self._env.crc))
        self._clients[info.client_id] = info

    def delete_client(self, client_id: bytes) -> None:
        """Stage the end of a client."""
        self._client_rows.append(states.client_delete_record(client_id, self._env.crc))
        self._clients.pop(client_id, None)

    def _snapshot_clients(self) -> bytes:
        # The staged records follow: replaying them over the result changes nothing.
        return b"".join(states.client_record(c, self._env.crc) for c in self._clients.values())

    def create_channel(self, name: bytes, limits: ChannelLimits) -> FileChannel:
        """A new channel; its directory is made by the first commit."""
        channel = FileChannel(self._env, name, limits, self._touched)
        self._channels[name] = channel
        return channel

    # ---- the commit road -----------------------------------------------------------------------------------------

    def commit(self) -> dict[bytes, StoreError]:
        """Write and sync everything staged; returns the channels that failed."""
        failed: dict[bytes, StoreError] = {}
        pending: list[tuple[int, FileChannel | None]] = []
        if self._client_rows:
            try:
                fd = self._client_file.append(b"".join(self._client_rows))
            except OSError as error:
                raise store_error(error, "clients.dat cannot be written") from error
            self._client_rows.clear()
            if fd is not None:
                pending.append((fd, None))
        touched = [c for c in self._touched.values() if c.staged]
        for channel in touched:
            try:
                messages, subs = channel.write()
                if messages is not None:
                    pending.append((messages, channel))
                if subs is not None:
                    pending.append((subs, None))
            except OSError as error:
                self._fail(channel, error, failed)
            except StateFileError:
                raise
            except StoreError as error:
                channel.fail()
                failed[channel.name] = error
        for refusal, owner in self._sync_all(pending):
            if owner is None:
                raise store_error(refusal, "a state file cannot be synced")
            self._fail(owner, refusal, failed)
        for channel in touched:
            if channel.name not in failed:
                try:
                    channel.finish()
                except OSError as error:
                    self._fail(channel, error, failed)
        return failed

    def _fail(self, channel: FileChannel, error: OSError, failed: dict[bytes, StoreError]) -> None:
        channel.fail()
        if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG) and channel.log.dirfd < 0:
            failed[channel.name] = StoreError(f"mkdir {show(channel.name)}: {(error.strerror or str(error)).lower()}")
            return
        failed[channel.name] = store_error(error, f'channel "{show(channel.name)}"')

    def _sync_all(self, pending: list[tuple[int, FileChannel | None]]) -> list[tuple[OSError, FileChannel | None]]:
        if not self._env.options.sync:
            return []
        sync = self._env.disk.fdatasync

        def attempt(item: tuple[int, FileChannel | None]) -> tuple[OSError, FileChannel | None] | None:
            try:
                sync(item[0])
            except OSError as error:
                return error, item[1]
            return None

        if len(pending) > 1 and self._pool is not None:
            results = list(self._pool.map(attempt, pending))
        else:
            results = [attempt(item) for item in pending]
        return [r for r in results if r is not None]

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the store is still ours."""
        self._env.owner.confirm()

    def write_events(self) -> None:
        """Hand events to the file system, unsynced."""
        try:
            for channel in self._touched.values():
                channel.write_events()
        except OSError as error:
            raise store_error(error, "subs.dat cannot be written") from error

    def tick(self, now_ns: int) -> None:
        """Once a second: syncs, expiry, removal of slices that hold nothing any more."""
        touched = list(self._touched.values())
        self._touched.clear()
        try:
            for channel in touched:
                channel.tick()
                if channel.unsettled:
                    self._touched[channel.name] = channel
            for channel in self._channels.values():
                if channel.log.limits.max_age and channel.count:
                    channel.expire(now_ns)
                    touched.append(channel)
            for channel in touched:
                if numbers := channel.log.removable():
                    channel.log.remove(numbers)
        except OSError as error:
            raise store_error(error, "the datastore cannot be written") from error

    def close(self) -> None:
        """Write, sync, release."""
        try:
            for channel in self._channels.values():
                channel.close()
            self._client_file.sync()
            exact.make_root_exact(self._env, self._channels)
            self._client_file.close()
        except OSError as error:
            raise store_error(error, "the datastore cannot be closed") from error
        finally:
            if self._pool is not None:
                self._pool.shutdown()

    def abandon(self) -> None:
        """Release every handle and write nothing."""
        for channel in self._channels.values():
            with contextlib.suppress(OSError):
                channel.close(abandon=True)
        with contextlib.suppress(OSError):
            self._client_file.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
