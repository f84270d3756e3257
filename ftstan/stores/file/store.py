"""FileStore: the datastore directory as a whole, and what one commit does to it.

A commit writes every touched channel, syncs what it wrote (many files in parallel), then writes index entries: data
first, its index after. One thread uses the store; it may block on storage for as long as storage likes.
"""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ftstan.errors import RecoveryError, StoreError, StoreFullError
from ftstan.log import stream as log
from ftstan.stores.file import (
    checkpoint,
    confirmed,
    deletion,
    opening,
    quarantine,
    records,
    recovery,
    states,
    statescan,
)
from ftstan.stores.file.channel import FileChannel, Register, Unsynced
from ftstan.stores.file.clients import Clients
from ftstan.stores.file.env import FileEnv, FileStoreOptions, Ownership, is_full
from ftstan.stores.file.remembered import Remembered
from ftstan.stores.file.slices import show, store_error
from ftstan.stores.file.statefile import StateFileError, replace_file
from ftstan.stores.file.tools import exact
from ftstan.stores.file.upkeep import Upkeep
from ftstan.stores.interface import (
    CLIENTS,
    ChannelLimits,
    ChannelStore,
    ClientInfo,
    Recovered,
    ServerInfo,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.clock import Clock
    from ftstan.disk import Disk
    from ftstan.stores.file.checkpoint import Entry

_SYNC_THREADS = 4

#: Recovered ``subs.dat`` files that one tick makes durable: a start with many channels must not stall its first second.
_STATE_SYNCS_A_TICK = 256
#: Storage that answers so to two channels is not a matter of one file.
_GONE = (errno.EIO, errno.ESTALE, errno.EROFS, errno.ENXIO, errno.ENODEV)


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
        path: str = "",
    ) -> None:
        """``root``: an open handle of the directory, which this object does not close.

        ``path``: the directory as the operator wrote it, for archive scripts.
        """
        options = options or FileStoreOptions()
        self._env = FileEnv(disk, root, clock, options, owner, records.Crc(options.crc_polynomial), path=path)
        self._limits = limits or ChannelLimits()
        self._channels: dict[bytes, FileChannel] = {}
        self._register = Register()
        self._clients = Clients(self._env)
        self._remembered = Remembered(self._env)
        self._upkeep = Upkeep(self._env, path)
        self._broken: set[bytes] = set()
        self._next_sync = clock.mono()
        self._checkpoint: dict[bytes, Entry] = {}
        self._unsure: list[FileChannel] = []
        """What the last clean stop left."""
        self._pool = ThreadPoolExecutor(_SYNC_THREADS, "sync") if parallel_sync else None

    # ---- recovery ------------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """Read the directory. Raises ``RecoveryError``."""
        env = self._env
        try:
            recovery.remove_temporaries(env, env.root)
            remembered = self._remembered.load()
            statescan.check_marker(env)
            info = statescan.read_server(env)
            self._clients.known = statescan.read_clients(env)
            deletion.finish_pending(env)
            self._checkpoint = checkpoint.load(env)
            self._recover_channels()
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
        refused = {c.name: quarantine.refusal(c.name).text for c in self._channels.values() if c.quarantined}
        return Recovered(info, list(self._clients.known.values()), channels, refused, remembered)

    def _recover_channels(self) -> None:
        env = self._env
        channels = [FileChannel(env, name, self._limits, self._register) for name in opening.channel_names(env)]
        logs = [channel.log for channel in channels]
        readings = opening.read_all(env, logs, self._checkpoint, parallel=self._pool is not None)
        for channel, reading in zip(channels, readings, strict=True):
            if reading is None:
                channel.release()
                continue
            self._channels[channel.name] = channel
            channel.recover(reading)
            if reading.entry is None and not channel.quarantined:
                self._unsure.append(channel)
            channel.expire(env.clock.wall_ns())
            if not channel.quarantined:
                self._upkeep.find_leftovers(channel)
            # Not released: a slice with a copied tail goes on, and its index is synced later.
            channel.park()

    @property
    def quarantined(self) -> list[str]:
        """Names of the channels whose files are damaged, for monitoring."""
        return [show(channel.name) for channel in self._channels.values() if channel.quarantined]

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
        self._clients.add(info)

    def delete_client(self, client_id: bytes) -> None:
        """Stage the end of a client."""
        self._clients.delete(client_id)

    def create_channel(self, name: bytes, limits: ChannelLimits) -> FileChannel:
        """A new channel; its directory is made by the first commit.

        Raises ``StoreError`` while a deleted channel of that name is not gone.
        """
        self._upkeep.check_gone(name)
        channel = FileChannel(self._env, name, limits, self._register)
        self._channels[name] = channel
        return channel

    def delete_channel(self, name: bytes) -> None:
        """Delete a channel with everything in it; a channel made again goes on above its slice numbers.

        Call it outside a batch. Raises ``StoreError`` if there is no such channel, it has something staged, or the
        intent cannot be made durable: nothing has changed then. What fails later is tried again by ``tick``.
        """
        channel = self._channels.get(name)
        if channel is None:
            raise StoreError(f'channel "{show(name)}" not found')
        if channel.quarantined:
            raise quarantine.refusal(name)
        self._upkeep.delete(channel)
        del self._channels[name]
        for register in (self._register.staged, self._register.events, self._register.touched):
            register.pop(name, None)

    # ---- the commit road -----------------------------------------------------------------------------------------

    def commit(self) -> dict[bytes, StoreError]:
        """Write and sync everything staged; returns the channels that failed (``CLIENTS``: the registrations)."""
        failed: dict[bytes, StoreError] = {}
        pending: list[Unsynced] = []
        if self._clients.staged:
            try:
                fd = self._clients.write()
            except StoreFullError as error:
                failed[CLIENTS] = error
            else:
                if fd is not None:
                    pending.append(Unsynced(fd, state=self._clients.file))
        channels = [c for c in self._register.staged.values() if c.staged]
        self._register.staged.clear()
        # Descriptors that wait for their sync must stay open: so only as many channels at a time.
        at_once = max(self._env.files.limit // 8, 1)
        for i in range(0, len(channels), at_once):
            self._commit_some(channels[i : i + at_once], pending, failed)
            pending = []
        self._sync_pending(pending, failed)
        return failed

    def _commit_some(
        self, channels: list[FileChannel], pending: list[Unsynced], failed: dict[bytes, StoreError]
    ) -> None:
        self._env.files.trim(4 * len(channels))
        for channel in channels:
            try:
                pending.extend(channel.write())
            except OSError as error:
                self._fail(channel, error, failed)
            except StateFileError:
                raise
            except StoreError as error:
                channel.fail(error)
                failed[channel.name] = error
        self._sync_pending(pending, failed)
        indexes = []
        for channel in channels:
            if channel.name not in failed:
                try:
                    fd = channel.finish()
                except OSError as error:
                    self._fail(channel, error, failed)
                    continue
                self._broken.discard(channel.name)
                if fd is not None:
                    indexes.append(Unsynced(fd, channel))
        for refusal, item in self._sync_all(indexes):
            assert item.channel is not None
            item.channel.log.lose_index()
            self._fail(item.channel, refusal, failed)
        for item in indexes:
            if item.channel is not None and item.channel.name not in failed:
                item.channel.index_synced()

    def _sync_pending(self, pending: list[Unsynced], failed: dict[bytes, StoreError]) -> None:
        for refusal, item in self._sync_all(pending):
            self._refused(refusal, item, failed)

    def _refused(self, error: OSError, item: Unsynced, failed: dict[bytes, StoreError]) -> None:
        """A sync failed: nothing will ever be written to that file again."""
        if item.state is not None and not is_full(error):
            raise store_error(error, "a state file cannot be synced") from error
        if item.channel is not None:
            self._fail(item.channel, error, failed)
        else:
            self._clients.distrust()
            failed[CLIENTS] = store_error(error, "clients.dat cannot be synced")

    def _lost(self, error: OSError, item: Unsynced, channel: FileChannel) -> None:
        """A sync that nobody waited for failed: what is staged goes to other files, and nothing is refused for it."""
        if item.state is not None and not is_full(error):
            raise store_error(error, "a state file cannot be synced") from error
        channel.leave(item)
        self._note_broken(channel, error)

    def _fail(self, channel: FileChannel, error: OSError, failed: dict[bytes, StoreError]) -> None:
        if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG) and not channel.created:
            refusal = StoreError(f"mkdir {show(channel.name)}: {(error.strerror or str(error)).lower()}")
        else:
            refusal = store_error(error, f'channel "{show(channel.name)}"')
        channel.fail(refusal)
        failed[channel.name] = refusal
        self._note_broken(channel, error)

    def _note_broken(self, channel: FileChannel, error: OSError) -> None:
        if error.errno in _GONE:
            self._broken.add(channel.name)
            if len(self._broken) > 1:
                names = ", ".join(f'"{show(name)}"' for name in sorted(self._broken))
                raise StoreError(
                    f"storage fails on channels {names}: {error.strerror}",
                    hint="check the storage; a standby may see it in better shape",
                ) from error

    def _sync_all(self, pending: list[Unsynced]) -> list[tuple[OSError, Unsynced]]:
        if not self._env.options.sync:
            return []
        sync = self._env.disk.fdatasync

        def attempt(item: Unsynced) -> tuple[OSError, Unsynced] | None:
            try:
                sync(item.fd)
            except OSError as error:
                return error, item
            return None

        if len(pending) > 1 and self._pool is not None:
            results = list(self._pool.map(attempt, pending))
        else:
            results = [attempt(item) for item in pending]
        return [r for r in results if r is not None]

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, int]) -> None:
        """Write and sync ``dedup.bin``. Raises ``StateFileError``."""
        self._remembered.write(fresh, window)

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the store is still ours."""
        self._env.owner.confirm()

    @property
    def events_first(self) -> bool:
        """Whether ``write_events`` must come before the output: an ack then says that deliveries are durable, too."""
        return self._env.options.sync_subs

    def write_events(self) -> None:
        """Hand events to the file system, unsynced unless the options say otherwise. Raises ``StoreError``."""
        if not self._register.events:
            return
        channels = list(self._register.events.values())
        self._register.events.clear()
        try:
            for channel in channels:
                channel.write_events()
                if self._env.options.sync_subs:
                    channel.sync_events()
        except OSError as error:
            raise store_error(error, "subs.dat cannot be written") from error
        self._env.files.trim()

    # ---- once a second -------------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """Once a second: syncs, expiry, compaction, removal of what is dead. Raises ``StoreError``, ``FencedError``."""
        try:
            self._clients.settle()
            self._flush()
            for _ in range(min(len(self._unsure), _STATE_SYNCS_A_TICK)):
                self._unsure.pop().sync_recovered()
            for channel in self._channels.values():
                if channel.log.limits.max_age:
                    channel.log.expire(now_ns)
        except OSError as error:
            raise store_error(error, "the datastore cannot be written") from error
        self._upkeep.run(channel for channel in self._channels.values() if not channel.quarantined)

    def _flush(self) -> None:
        """Write and sync what no publisher waits for."""
        options = self._env.options
        channels = list(self._register.touched.values())
        self._register.touched.clear()
        now = self._env.clock.mono()
        forced = not options.sync and options.auto_sync > 0 and now >= self._next_sync
        if forced:
            self._next_sync = now + options.auto_sync / 1e9
            self._clients.file.sync()
        at_once = max(self._env.files.limit // 8, 1)
        for i in range(0, len(channels), at_once):
            some = channels[i : i + at_once]
            self._env.files.trim(4 * len(some))
            for channel in some:
                channel.settle()
                if channel.unsettled or not (options.sync or forced):
                    self._register.touched[channel.name] = channel
            if forced:
                for channel in some:
                    channel.sync()
            elif options.sync:
                lost = set()
                for error, item in self._sync_all([item for channel in some for item in channel.unsynced()]):
                    assert item.channel is not None
                    self._lost(error, item, item.channel)
                    lost.add(item.channel.name)
                some = [channel for channel in some if channel.name not in lost]
                for channel in some:
                    channel.synced()
            confirmed.write_all(self._env, opening.news(self._env, [(c.confirmed, c.log) for c in some if c.intact]))

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write, sync, release. Raises ``StoreError``."""
        try:
            for channel in self._channels.values():
                self._env.files.trim(8)
                channel.close()
            self._clients.close()
            exact.make_root_exact(self._env, [c.name for c in self._channels.values() if c.created])
            self._clients.file.park()
            self._remembered.close()
            self._leave_word()
        except OSError as error:
            raise store_error(error, "the datastore cannot be closed") from error
        finally:
            if self._pool is not None:
                self._pool.shutdown()
        self._upkeep.close()

    def _leave_word(self) -> None:
        """Everything is durable and nothing is open: say so for the next start. Raises ``FencedError``."""
        env = self._env
        entries = {}
        try:
            for channel in self._channels.values():
                if channel.intact:
                    env.files.trim(8)
                    confirmed.write_all(env, opening.news(env, [(channel.confirmed, channel.log)]))
                    entry = checkpoint.entry_of(env, channel.log, self._checkpoint.get(channel.name))
                    if entry is not None:
                        entries[channel.name] = entry
                    channel.release()
            checkpoint.save(env, entries)
        except OSError as error:
            why = error.strerror or error
            log.warning(f"{checkpoint.NAME} cannot be written: {why}; the next start reads every file")

    def abandon(self) -> None:
        """Release every handle and write nothing."""
        self._upkeep.abandon()
        for channel in self._channels.values():
            channel.release()
        self._clients.file.park()
        self._remembered.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
