"""FileStore: the datastore directory as a whole, and what one commit does to it.

A commit writes every touched channel, syncs what it wrote (many files in parallel), then writes
index entries: data first, its index after. One thread uses the store; it may block on storage for
as long as storage likes.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import RecoveryError, StoppedError, StoreError, StoreFullError
from ftstan.base.log import stream as log
from ftstan.base.reserved import CLUSTER_MARK
from ftstan.config.limits import Limits
from ftstan.stores.file import rootfiles
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.channel_tails import Ends
from ftstan.stores.file.clean_shutdown import Leaving
from ftstan.stores.file.dirty_channels import Register, Unsynced
from ftstan.stores.file.env import FileEnv, FileStoreOptions, Ownership, is_full
from ftstan.stores.file.log import exact, moved_mark, records
from ftstan.stores.file.log.slices import show, store_error
from ftstan.stores.file.original_compat import OriginalCompat
from ftstan.stores.file.recovery import opening, quarantine
from ftstan.stores.file.state import (
    checkpoint,
    clients,
    confirmed,
    remembered,
    repaired,
    serverfile,
    state_recovery,
)
from ftstan.stores.file.state.checkpoint import Checkpoint
from ftstan.stores.file.state.clients import Clients
from ftstan.stores.file.state.remembered import Remembered
from ftstan.stores.file.state.serverfile import ServerFile
from ftstan.stores.file.state.statefile import StateFileError
from ftstan.stores.file.subs_replacement import Waves
from ftstan.stores.file.syncing import Broken, Syncer
from ftstan.stores.file.upkeep import Upkeep
from ftstan.stores.interface import (
    CLIENTS,
    ChannelEnd,
    ChannelLimits,
    ClientInfo,
    Recovered,
    ServerInfo,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ftstan.base.clock import Clock
    from ftstan.base.disk import Disk
    from ftstan.stores.file.inode_watch import Places
    from ftstan.stores.file.recovery.opening import Reading
    from ftstan.stores.file.state.statefile import Seen
    from ftstan.stores.interface import StoredAt

#: A flush makes room for publishers after so many channels if it has taken so many seconds.
_FLUSHED_AT_ONCE = 4
_FLUSH_S = 0.005
#: Channels that one tick looks at for messages that their limits no longer allow.
_LOOKS_A_TICK = 256
#: Behind a crash, what a former owner may not have synced is copied, in each channel.
_NO_ROOM = (
    "make room: behind a crash, a start or ftstanctl on the directory copies what was written last "
    "to each channel; enlarge the file system, or move away what is not the datastore's"
)


def _lacking(channel: FileChannel) -> int:
    """How many messages are missing behind the first one."""
    return channel.last - channel.first + 1 - channel.count if channel.count else 0


class FileStore:
    """A datastore directory that is byte-compatible with the original's FILE store.

    Implements ``Store``.
    """

    kind = "FILE"

    def __init__(
        self,
        disk: Disk,
        root: int,
        owner: Ownership,
        clock: Clock,
        options: FileStoreOptions | None = None,
        *,
        limits: Limits | None = None,
        parallel_sync: bool = True,
        path: str = "",
        asking: Disk | None = None,
        most_at_once: int | None = None,
        inherited: bool = True,
        stopping: threading.Event | None = None,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        """``root``: an open handle of the directory, which this object does not close.

        ``path``: the directory as the operator wrote it, for archive scripts. ``asking``,
        ``inherited``: as in ``FileEnv``. ``most_at_once``: of a store with more channels,
        ``recover`` opens none and names all, for ``open_channel``. ``stopping``: set by another
        thread when a recovery that is under way is not wanted any more. ``progress``: as in
        ``StoreContext``.
        """
        options = options or FileStoreOptions()
        self._env = FileEnv(
            disk,
            root,
            clock,
            options,
            owner,
            records.Crc(options.crc_polynomial),
            asking=asking,
            path=path,
        )
        self._env.inherited = inherited
        self._env.stopping = stopping or self._env.stopping
        self._server = ServerFile(self._env)
        self._limits = limits or Limits()
        self._channels: dict[bytes, FileChannel] = {}
        self._register: Register[FileChannel] = Register()
        self._clients = Clients(self._env)
        self._remembered = Remembered(self._env)
        self._upkeep = Upkeep(self._env, path)
        self._broken = Broken()
        self._next_sync = clock.mono()
        self.original_compat = OriginalCompat(self._env, self._clients, self._touch)
        self._busy = False
        """Whether the last tick has left some work of its second."""
        self._second_ends = 0.0
        """When the work of the next second is due (monotonic)."""
        self._removing = False
        """Whether slices are left to remove."""
        self._progress = progress
        self._checkpoint = Checkpoint()
        """What the last clean stop left."""
        self._leaving = Leaving(self._env, self._checkpoint)
        self._round: deque[bytes] = deque()
        """Channels that this second's flush has not come to."""
        self._forced = False
        self._ends = Ends(self._register.fresh)
        self._most_at_once = most_at_once
        self._later: dict[bytes, Seen | None] = {}
        """Names of directories that have not been read, in their order, and how far each
        ``subs.dat`` had come.
        """
        self._learnt: dict[bytes, StoredAt] = {}
        """What former owners have put into ``dedup.bin`` since the start, and nobody was told."""
        self._syncer = Syncer(self._env, parallel=parallel_sync)
        self._waves = Waves(self._env, self._register, self._syncer)
        self._are_ends_known = options.replayed_before

    # ---- recovery
    # ----------------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """Read the directory.

        Raises ``RecoveryError``, and ``StoppedError`` if it was told to stop.
        """
        env = self._env
        try:
            rootfiles.clear_root(env)
            env.is_nodes = env.is_there(env.root, CLUSTER_MARK)
            state_recovery.check_marker(env)
            info = self._server.read()
            clients_before = state_recovery.read_clients(env)
            self._upkeep.finish_pending()
            self._checkpoint = checkpoint.load(env)
            self._leaving = Leaving(env, self._checkpoint)
            self._register.on_touch = self._leaving.touched
            self._recover_channels(any_clients=bool(clients_before.clients))
            self._refuse_moved()
            # Both behind the channels. A former owner that is still writing puts the end of a
            # client here first, then the ends of its subscriptions; and a publish there first, then
            # into a log.
            self._clients.known = state_recovery.read_clients(env, clients_before).clients
            known = self._remembered.load(once=not self._later)
            self.original_compat.recovered()
        except OSError as error:
            raise RecoveryError(
                f"unable to recover the datastore: {error.strerror or error}"
                + (f": {error.filename!r}" if error.filename else ""),
                hint=_NO_ROOM if is_full(error) else "check the storage and its permissions",
            ) from error
        if info is None and (self._channels or self._later):
            log.warning(
                "Server information was not recovered, however channels are present. "
                "Will initialize server and restart recovery!"
            )
        found = self._found(self._channels.values())
        return replace(
            found,
            info=info,
            clients=list(self._clients.known.values()),
            later=list(self._later),
            remembered=known,
        )

    def _recover_channels(self, *, any_clients: bool) -> None:
        env = self._env
        names = [name for name in opening.channel_names(env) if not self._upkeep.is_doomed(name)]
        # In a mixed group none waits: an original server that follows a crash reads what lies
        # behind their seals.
        if (
            self._most_at_once is not None
            and len(names) > self._most_at_once
            and not env.owner.mixed
        ):
            self._later = dict.fromkeys(names, None)
            if any_clients:
                # No client that is known may lose a subscription, and it has some in any of them.
                for name, seen in opening.look_at_subs(
                    env, names, self._checkpoint, parallel=self._syncer.parallel
                ):
                    if env.stopping.is_set():
                        raise StoppedError("the recovery was ended, because the server stops")
                    self._later[name] = seen
            return
        channels = [FileChannel(env, name, self._limits.of(name), self._register) for name in names]
        logs = [channel.log for channel in channels]
        readings = opening.read_all(env, logs, self._checkpoint, parallel=self._syncer.parallel)
        for done, (channel, reading) in enumerate(zip(channels, readings, strict=True)):
            if env.stopping.is_set():
                raise StoppedError("the recovery was ended, because the server stops")
            self._progress(done, len(channels))
            self._adopt(channel, reading)
        self._progress(len(channels), len(channels))

    def _refuse_moved(self) -> None:
        """Raise ``RecoveryError`` if the group became mixed although a channel has moved.

        A mark that cannot be read ends nothing but the publishes to its channel. ``OSError`` passes
        through.
        """
        if not self._env.owner.mixed:
            return
        moved = next((c for c in self._channels.values() if self._has_moved(c)), None)
        if moved is not None:
            raise RecoveryError(
                moved_mark.MIXED.format(name=show(moved.name)),
                hint="stop the members and run ftstanctl ft mixed off --dir DIRECTORY; then "
                "ftstanctl channel moved CHANNEL off, if it is to be a mixed group",
            )

    def _has_moved(self, channel: FileChannel) -> bool:
        return (
            channel.mover is not None and not moved_mark.read(self._env.fresh, channel.log.dirfd)[1]
        )

    def _adopt(self, channel: FileChannel, reading: Reading | None) -> None:
        """Take a channel that was read into the store, unless its directory holds none.

        ``OSError`` passes through.
        """
        if reading is None:
            channel.release()
            return
        channel.recover(reading)
        self.original_compat.adopt(channel, exact_already=reading.entry is not None)
        self._channels[channel.name] = channel
        channel.expire(self._env.clock.wall_ns())
        if not channel.quarantined:
            self._upkeep.find_leftovers(channel)
            if reading.entry is None:
                self._waves.unsure[channel.name] = channel
        # Not released: a slice with a copied tail goes on, and its index is synced later.
        channel.park()

    def open_channel(self, name: bytes) -> Recovered:
        """Read back a channel that ``recover`` has left for later.

        Raises ``StoreError`` and ``FencedError``.
        """
        if name not in self._later:
            return Recovered(None, [], [])
        env = self._env
        env.files.trim(8)
        channel = FileChannel(env, name, self._limits.of(name), self._register)
        try:
            reading = opening.read_channel(env, channel.log, self._checkpoint, self._later[name])
            # Behind the log, as at a start.
            self._learnt |= self._remembered.look_again()
            self._adopt(channel, reading)
        except OSError as error:
            channel.release()
            self._channels.pop(name, None)
            raise store_error(error, f'channel "{show(name)}" cannot be recovered') from error
        del self._later[name]
        if not self._later:
            self._remembered.let_go()
        learnt = self._learnt
        self._learnt = {}
        return replace(self._found([channel] if name in self._channels else []), remembered=learnt)

    def _found(self, channels: Iterable[FileChannel]) -> Recovered:
        found = list(channels)
        refused = {c.name: quarantine.refusal(c.name).text for c in found if c.quarantined}
        return Recovered(None, [], list(found), refused, activation=confirmed.epoch_of(self._env))

    @property
    def kept(self) -> set[bytes]:
        """Names of the channels that have a directory."""
        return {name for name, channel in self._channels.items() if channel.created}.union(
            self._later
        )

    @property
    def quarantined(self) -> list[str]:
        """Names of the channels whose files are damaged, for monitoring."""
        return [show(channel.name) for channel in self._channels.values() if channel.quarantined]

    def is_quarantined(self, name: bytes) -> bool:
        """Whether the files of the channel are damaged, as far as anybody has looked."""
        channel = self._channels.get(name)
        return channel is not None and channel.quarantined

    def has_holes(self, name: bytes) -> bool:
        """Whether messages between others, or in front of them, are missing in the channel, as far
        as anybody has looked, and no repair has accepted that. Raises ``StoreError``.
        """
        channel = self._channels.get(name)
        if channel is None:
            return False
        if channel.log.missing_from:
            return True
        return _lacking(channel) > sum(
            min(b, channel.last) - max(a, channel.first) + 1 for a, b in self.lost(name)
        )

    def lost(self, name: bytes) -> list[tuple[int, int]]:
        """First and last sequences of the messages of the channel that a repair has found lost, and
        that no limit would have removed since. Raises ``StoreError``.
        """
        channel = self._channels.get(name)
        if channel is None or not _lacking(channel):
            return []
        try:
            found = repaired.read(self._env.disk, channel.log.dirfd)
        except OSError as error:
            raise store_error(error, f'channel "{show(name)}"') from error
        return [(a, b) for a, b in found if channel.first <= b and a <= channel.last]

    def accept_lost(self, name: bytes, lost: list[tuple[int, int]], last: int) -> None:
        """Say of a channel what a repair has said of the one that it was copied from, and which
        ended with sequence ``last``. Raises ``StoreError`` and ``FencedError``.
        """
        channel = self._channels[name]
        channel.log.last = max(channel.log.last, last)
        if not _lacking(channel):
            return
        try:
            repaired.write(self._env, channel.log.dirfd, lost)
        except OSError as error:
            raise store_error(error, f'channel "{show(name)}"') from error
        self._register.touch(channel)

    def is_mended(self, name: bytes) -> bool:
        """Whether the channel is sound, and a repair, or a server that is no node of a cluster, was
        the last to say how far it goes.
        """
        channel = self._channels.get(name)
        if channel is None or not channel.intact:
            return False
        said = channel.confirmed.written
        return said is not None and not said.replayed

    # ---- staging
    # ----------------------------------------------------------------------------------------------

    def set_server_info(self, info: ServerInfo) -> None:
        """Replace ``server.dat``, durable on return."""
        self._server.write(info)

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

    def set_limits(self, limits: Limits) -> None:
        """Other limits; what they no longer allow goes with the next tick."""
        self._limits = limits
        for channel in self._channels.values():
            channel.set_limits(limits.of(channel.name))

    def delete_channel(self, name: bytes) -> None:
        """Delete a channel with everything in it.

        A channel made again goes on above its slice numbers.

        Call it outside a batch. Raises ``StoreError`` if there is no such channel, it has something
        staged, or the intent cannot be made durable: nothing has changed then. What fails later is
        tried again by ``tick``.
        """
        self.open_channel(name)
        if self.is_quarantined(name):
            raise quarantine.refusal(name)
        self.discard_channel(name)

    def discard_channel(self, name: bytes) -> None:
        """``delete_channel``, also of one that is quarantined: for an owner who has all of it
        elsewhere.
        """
        self.open_channel(name)
        channel = self._channels.get(name)
        if channel is None:
            raise StoreError(f'channel "{show(name)}" not found')
        self._upkeep.delete(channel)
        del self._channels[name]
        self._env.places.drop((name, "subs.dat"))
        self._register.forget(name)
        # Whatever would still write for it would write to the next channel of that name.
        self._waves.unsure.pop(name, None)
        self._leaving.forget(channel)

    # ---- the commit
    # ----------------------------------------------------------------------------------------------

    def commit(self) -> dict[bytes, StoreError]:
        """Write and sync everything staged.

        Returns the channels that failed (``CLIENTS``: the registrations).
        """
        failed: dict[bytes, StoreError] = {}
        pending: list[Unsynced[FileChannel]] = []
        self.original_compat.before_write()
        channels = [c for c in self._register.staged.values() if c.staged]
        # A subscription is not answered while a late record of a former owner can still end its
        # client.
        inherited = self._clients.is_inherited
        ends = self._clients.has_ends
        if self._clients.staged or (inherited and any(c.has_controls for c in channels)):
            try:
                fd = self._clients.write()
            except StoreFullError as error:
                failed[CLIENTS] = error
                if inherited:
                    channels = self._refuse_controls(channels, error, failed)
            else:
                if fd is not None:
                    pending.append(Unsynced(fd, state=self._clients.file))
        if ends and any(c.has_controls for c in channels):
            # The end of a client before the ends of its subscriptions, on storage, too: what a
            # power cut takes back, or a host that stands still has not sent, must not be the first
            # alone. A client that is known then would miss a subscription, and nobody told it.
            self._sync_pending(pending, failed)
            pending = []
        self._register.staged.clear()
        # Descriptors that wait for their sync must stay open: so only as many channels at a time.
        at_once = max(self._env.files.limit // 8, 1)
        for i in range(0, len(channels), at_once):
            self._commit_some(channels[i : i + at_once], pending, failed)
            pending = []
        self._sync_pending(pending, failed)
        return failed

    @staticmethod
    def _refuse_controls(
        channels: list[FileChannel], error: StoreError, failed: dict[bytes, StoreError]
    ) -> list[FileChannel]:
        """Fail the channels that have subscriptions to write; returns the others."""
        for channel in channels:
            if channel.has_controls:
                channel.fail(error)
                failed[channel.name] = error
        return [channel for channel in channels if channel.name not in failed]

    def _commit_some(
        self,
        channels: list[FileChannel],
        pending: list[Unsynced[FileChannel]],
        failed: dict[bytes, StoreError],
    ) -> None:
        self._env.files.trim(4 * len(channels))
        for channel in channels:
            try:
                self._upkeep.check_kept(channel.name)
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
                self._broken.forget(channel.name)
                if fd is not None:
                    indexes.append(Unsynced(fd, channel))
        for refusal, item in self._syncer.sync(indexes):
            assert item.channel is not None
            item.channel.log.lose_index()
            self._fail(item.channel, refusal, failed)
        for item in indexes:
            if item.channel is not None and item.channel.name not in failed:
                item.channel.index_synced()

    def _sync_pending(
        self, pending: list[Unsynced[FileChannel]], failed: dict[bytes, StoreError]
    ) -> None:
        for refusal, item in self._syncer.sync(pending):
            self._refused(refusal, item, failed)

    def _refused(
        self, error: OSError, item: Unsynced[FileChannel], failed: dict[bytes, StoreError]
    ) -> None:
        """A sync failed: nothing will ever be written to that file again."""
        if item.state is not None and not is_full(error):
            raise store_error(error, "a state file cannot be synced") from error
        if item.channel is not None:
            self._fail(item.channel, error, failed)
        else:
            self._clients.distrust()
            failed[CLIENTS] = store_error(error, "clients.dat cannot be synced")

    def _lost(self, error: OSError, item: Unsynced[FileChannel], channel: FileChannel) -> None:
        """A sync that nobody waited for failed: what is staged goes to other files, and nothing is
        refused for it.
        """
        if item.state is not None and not is_full(error):
            raise store_error(error, "a state file cannot be synced") from error
        channel.leave(item)
        self._broken.note(channel.name, error)

    def _fail(self, channel: FileChannel, error: OSError, failed: dict[bytes, StoreError]) -> None:
        if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG) and not channel.created:
            refusal = StoreError(
                f"mkdir {show(channel.name)}: {(error.strerror or str(error)).lower()}"
            )
        else:
            refusal = store_error(error, f'channel "{show(channel.name)}"')
        if not channel.created:
            log.error(
                f'Creating channel "{show(channel.name)}" failed: {refusal.text}',
                backs_off="channel creation",
            )
        channel.fail(refusal)
        failed[channel.name] = refusal
        self._broken.note(channel.name, error)

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Write and sync ``dedup.bin``. Raises ``StateFileError``."""
        self._remembered.write(fresh, window)

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the store is still ours."""
        self._env.owner.confirm()

    @property
    def events_first(self) -> bool:
        """Whether ``write_events`` must come before the output: an ack then says that deliveries
        are durable, too.
        """
        return self._env.options.sync_subs

    def write_events(self) -> None:
        """Hand events to the file system, unsynced unless the options say otherwise.

        Raises ``StoreError``.
        """
        self._waves.write_events()

    @property
    def acks_wait(self) -> bool:
        """Whether acks wait for a file to be replaced."""
        return bool(self._register.acked)

    def catch_up(self) -> bool:
        """Replace some of these files; returns whether others wait.

        Raises ``StoreError`` and ``FencedError``.
        """
        self._waves.catch_up()
        return self.acks_wait

    # ---- once a second
    # -------------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> bool:
        """Once a second: syncs, expiry, compaction, removal of what is dead.

        Raises ``StoreError``, ``FencedError``.

        Returns whether more is to be done at once: publishers must not wait until many channels
        have been synced.
        """
        try:
            now = self._env.clock.mono()
            if self._removing and not self._busy and now < self._second_ends:
                self._removing = self._remove_some()
                return self._removing
            if self._busy or self.original_compat.leaves_time():
                if not self._busy:
                    self._second_ends = now + 1.0
                self._busy = self._run_second(now_ns)
            kept = self.original_compat.keep(self._channels, self._later)
        except OSError as error:
            raise store_error(error, "the datastore cannot be written") from error
        return kept or self._busy or self._removing

    def _run_second(self, now_ns: int) -> bool:
        """Some of the work of once a second; returns whether there is more of it."""
        if not self._round:
            root = {
                serverfile.NAME: self._server.restore,
                clients.NAME: self._clients.restore_state,
                remembered.NAME: self._remembered.restore,
            }
            self._env.places.restore(self._channels, root)
            self._clients.settle()
            self._begin_flush()
        for name in self._register.expiry.take(now_ns, _LOOKS_A_TICK):
            if (aged := self._channels.get(name)) is not None:
                aged.expire(now_ns)
        # Acks that are in memory only come before everything that is in a file already.
        if self._waves.replace():
            return True
        self._flush()
        if self._round or self._register.expiry.is_due(now_ns):
            return True
        self._removing = self._remove_some()
        self._upkeep.run()
        return False

    def _remove_some(self) -> bool:
        """Some of the slices that hold nothing any more; returns whether more are due."""
        wasteful = self._register.wasteful()
        for channel in wasteful:
            self._touch(channel)
        if self._env.options.replayed:
            # Before a slice goes that a start would go back to.
            retiring = [channel for channel in wasteful if channel.intact and channel.log.retired]
            for channel in retiring:
                channel.sync()
            self._confirm_ends(retiring)
        return self._upkeep.remove_some(channel for channel in wasteful if not channel.quarantined)

    def _touch(self, channel: FileChannel) -> None:
        """Files of the channel are not any more as the last clean stop left them, or as a stop has
        prepared them.
        """
        self._leaving.touched(channel.name)
        channel.untouched = False

    @property
    def places(self) -> Places:
        """Where the state files are: another thread may look whether they still are there."""
        return self._env.places

    def _begin_flush(self) -> None:
        """Note what there is to flush: what is touched meanwhile waits for the next second."""
        options = self._env.options
        self._round.extend(self._register.touched)
        self._waves.begin_second()
        now = self._env.clock.mono()
        self._forced = not options.sync and options.auto_sync > 0 and now >= self._next_sync
        if self._forced:
            self._next_sync = now + options.auto_sync / 1e9
            self._clients.file.sync()

    def _flush(self) -> None:
        """Write and sync what no publisher waits for, some channels at a time, for as long as that
        may take.
        """
        clock = self._env.clock
        end = self._env.clock.mono() + _FLUSH_S
        at_once = max(min(self._env.files.limit // 8, _FLUSHED_AT_ONCE), 1)
        while self._round:
            names = [self._round.popleft() for _ in range(min(at_once, len(self._round)))]
            self._flush_some(
                [c for name in names if (c := self._register.touched.pop(name, None)) is not None]
            )
            if clock.mono() >= end:
                return

    def _flush_some(self, some: list[FileChannel]) -> None:
        sync = self._env.options.sync
        self._env.files.trim(4 * len(some))
        for channel in some:
            if not channel.is_late:
                channel.settle(mend=self.original_compat.is_done)
            if channel.unsettled or not (sync or self._forced):
                self._register.touched[channel.name] = channel
        if self._forced:
            for channel in some:
                channel.sync()
        elif sync:
            lost = set()
            for error, item in self._syncer.sync(
                [item for channel in some for item in channel.unsynced()]
            ):
                assert item.channel is not None
                self._lost(error, item, item.channel)
                lost.add(item.channel.name)
            some = [channel for channel in some if channel.name not in lost]
            for channel in some:
                channel.synced()
        if not self._env.options.replayed:
            self._confirm_ends(some)

    def _confirm_ends(self, channels: Iterable[FileChannel]) -> None:
        confirmed.write_all(
            self._env, opening.news(self._env, [(c.confirmed, c.log) for c in channels if c.intact])
        )

    def sync_all(self) -> None:
        """Make everything that was written durable, whatever the options say.

        For an owner who keeps account of that elsewhere. Raises ``StoreError`` and
        ``FencedError``.
        """
        try:
            touched = self._register.touched
            if self._env.options.replayed and not self._are_ends_known:
                touched |= self._channels
            synced = []
            for name in list(touched):
                channel = touched.pop(name)
                channel.settle(mend=False)
                if channel.intact:
                    channel.sync()
                    synced.append(channel)
                if channel.unsettled:
                    touched[name] = channel
            self._clients.file.sync()
            self._remembered.sync()
            if self._env.options.replayed:
                self._confirm_ends(synced)
                self._are_ends_known = self._are_ends_known or not self._later
        except OSError as error:
            raise store_error(error, "the datastore cannot be synced") from error

    @property
    def are_ends_known(self) -> bool:
        """Whether every channel that the last ``sync_all`` has met says how far it was synced: what
        ``replayed_before`` may be at the next start.
        """
        return self._are_ends_known

    def ends(self, most: int) -> list[ChannelEnd]:
        """Where channels end: those with news first, then others in turn."""
        return self._ends.next(self._channels, most)

    # ---- the end
    # ----------------------------------------------------------------------------------------------

    def prepare_close(self, seconds: float) -> bool:
        """Do some of what ``close`` would do; returns whether there is more.

        Raises ``FencedError``.
        """
        end = self._env.clock.mono() + seconds

        def is_late() -> bool:
            return self._env.clock.mono() >= end

        # Not those that wait: whoever serves must hear of a channel that is opened, or it would
        # begin anew with 1.
        return self._leaving.prepare(self._channels.values(), is_late)

    def close(self) -> None:
        """Write, sync, release. Raises ``StoreError``."""
        try:
            for name in list(self._later):
                # An original server may follow: what a crashed owner left anywhere must be made
                # exact.
                self.open_channel(name)
            self._leaving.leave(self._channels.values())
            self._clients.close()
            self._clients.file.park()
            exact.make_root_exact(self._env, [c.name for c in self._channels.values() if c.created])
            self._remembered.close()
            self._leaving.leave_word()
        except OSError as error:
            raise store_error(error, "the datastore cannot be closed") from error
        finally:
            self._syncer.close()
        self._upkeep.close()

    def abandon(self) -> None:
        """Release every handle and write nothing."""
        self._upkeep.abandon()
        for channel in self._channels.values():
            channel.release()
        self._clients.file.park()
        self._remembered.close()
        self._syncer.close(wait=False)
