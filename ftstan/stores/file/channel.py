"""FileChannel: one channel of the file store, its slices and its ``subs.dat``.

Stages what the broker applied, writes it when the store commits, and says which descriptors must be synced. Never
syncs for a publisher by itself, and never touches a file of another channel: both are the store's part.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.errors import StoreFullError
from ftstan.log import stream as log
from ftstan.stores.file import records, recovery, states
from ftstan.stores.file.compact import Compaction
from ftstan.stores.file.env import FileEnv, is_full
from ftstan.stores.file.patience import Patience
from ftstan.stores.file.slices import SliceLog, show, store_error
from ftstan.stores.file.statefile import StateFile, read_typed
from ftstan.stores.file.tools import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ftstan.errors import StoreError
    from ftstan.stores.interface import ChannelLimits, StoredSub, SubState
    from ftstan.wire.block import MsgBlock, SubEvents


@dataclass(frozen=True, slots=True)
class Unsynced:
    """A descriptor whose writes somebody waits for. ``state``: the state file it belongs to, else it has messages."""

    fd: int
    channel: FileChannel | None = None
    state: StateFile | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """Channels of one store that have something to do: for the next commit, for ``write_events``, for the next tick."""

    staged: dict[bytes, FileChannel] = field(default_factory=dict)
    events: dict[bytes, FileChannel] = field(default_factory=dict)
    touched: dict[bytes, FileChannel] = field(default_factory=dict)


class FileChannel:
    """One channel: its slices and its ``subs.dat``. Implements ``ChannelStore``."""

    def __init__(self, env: FileEnv, name: bytes, limits: ChannelLimits, register: Register) -> None:
        self._env = env
        self._register = register
        self.name = name
        self.snapshot: Callable[[], Iterable[StoredSub]] | None = None
        self.log = SliceLog(env, name, limits)
        self.next_sub_id = 1
        self.created = False
        """Whether the channel has a directory."""
        self._patience = Patience(env.clock)
        self._recovered: dict[int, StoredSub] | None = {}
        """What recovery found, until the file has been replaced."""
        self._subs = StateFile(env, lambda: self.log.dirfd, "subs.dat", self._write_state, name)
        self._compaction = Compaction(env.options, env.clock)
        self._rewrite = False
        """Whether the file must be replaced soon: it does not hold what was answered."""
        self._live = 0
        self._controls: list[bytes] = []
        self._controls_written = False
        self._events = bytearray()

    @property
    def first(self) -> int:
        """Sequence of the first available message."""
        return self.log.first

    @property
    def last(self) -> int:
        """Sequence of the last durable message."""
        return self.log.last

    @property
    def count(self) -> int:
        """Available messages."""
        return self.log.count

    @property
    def size(self) -> int:
        """Payload bytes plus 40 a message."""
        return self.log.size

    @property
    def last_timestamp(self) -> int:
        """Timestamp of the last message in nanoseconds, 0 if there never was one."""
        return self.log.last_timestamp

    def _create(self) -> None:
        disk = self._env.disk
        with contextlib.suppress(FileExistsError):
            disk.mkdir(self._env.root, os.fsdecode(self.name))
        # Also if it was there: an earlier attempt may have made it and failed to sync it.
        disk.fsync(self._env.root)
        self.created = True

    def recover(self) -> None:
        """Read everything of the channel. Raises ``RecoveryError``."""
        self.created = True
        recovery.remove_temporaries(self._env.disk, self.log.dirfd)
        recovery.recover_log(self._env, self.log)
        shown = f"{show(self.name)}/subs.dat"
        rows, why = read_typed(self._env, self.log.dirfd, "subs.dat", shown)
        if why:
            log.warning(f'"{shown}": the end of the file is incomplete ({why}) and ignored: it was never acknowledged')
        self._recovered, highest = states.replay_subs(rows, shown)
        for stored in self._recovered.values():
            # A record may name a sequence that a crash took back; nothing above the log was ever delivered durably.
            stored.pending = {s for s in stored.pending if 0 < s <= self.last}
            if stored.state.last_sent > self.last:
                stored.state = replace(stored.state, last_sent=self.last)
        self.next_sub_id = highest + 1

    def _write_state(self) -> bytes:
        """The records of the present subscriptions."""
        if self.snapshot is not None:
            subs = {stored.state.sub_id: stored for stored in self.snapshot()}
        elif self._recovered is not None:
            subs = self._recovered
        else:
            subs = self._stored_subs()
        self._live = sum(1 + len(stored.pending) for stored in subs.values())
        return states.snapshot_subs(subs, self.next_sub_id - 1, self._env.crc)

    def _stored_subs(self) -> dict[int, StoredSub]:
        """Without a broker: what the file says."""
        rows, _ = read_typed(self._env, self.log.dirfd, "subs.dat", f"{show(self.name)}/subs.dat")
        subs, _ = states.replay_subs(rows, f"{show(self.name)}/subs.dat")
        return subs

    def append(self, block: MsgBlock) -> None:
        """Stage messages."""
        self._stage()
        self.log.append(block)

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages from the first existing one at or after ``sequence``."""
        try:
            return self.log.read(sequence, max_msgs, max_bytes)
        except OSError as error:
            raise store_error(error, f'channel "{show(self.name)}": reading sequence {sequence}') from error

    def sequence_at(self, timestamp: int) -> int:
        """First sequence at or after a time in nanoseconds."""
        try:
            return self.log.sequence_at(timestamp)
        except OSError as error:
            raise store_error(error, f'channel "{show(self.name)}": reading its index') from error

    def _stage(self) -> None:
        self._register.staged[self.name] = self
        self._register.touched[self.name] = self

    def add_sub(self, state: SubState) -> None:
        """Stage a new subscription."""
        self._stage()
        self._controls.append(states.sub_record(records.SUB_NEW, state, self._env.crc))
        self._compaction.records += 1
        self.next_sub_id = max(self.next_sub_id, state.sub_id + 1)

    def update_sub(self, state: SubState) -> None:
        """Stage the new state of a subscription."""
        self._stage()
        self._controls.append(states.sub_record(records.SUB_UPDATE, state, self._env.crc))
        self._compaction.records += 1
        self._compaction.dead += 1

    def delete_sub(self, sub_id: int) -> None:
        """Stage the end of a subscription."""
        self._stage()
        self._controls.append(states.sub_delete_record(sub_id, self._env.crc))
        self._compaction.dead += 1

    def add_events(self, events: SubEvents) -> None:
        """Stage sent and acknowledged sequences; leaves ``events`` empty."""
        self._register.touched[self.name] = self
        if self.snapshot is not None and not self._subs.replaced:
            # The file will be written from what the broker knows then: kept here, they would only fill the memory
            # while storage has no space.
            events.clear()
            self._rewrite = True
            return
        self._register.events[self.name] = self
        acked = events.count_acked()
        self._compaction.dead += acked
        self._compaction.records += len(events) - acked
        self._events += records.encode_events(events, self._env.crc)

    def recovered_subs(self) -> Sequence[StoredSub]:
        """The subscriptions found at recovery, until the file is replaced."""
        return list((self._recovered or {}).values())

    def expire(self, now_ns: int) -> None:
        """Apply the limits."""
        self.log.enforce()
        self.log.expire(now_ns)

    @property
    def staged(self) -> bool:
        """Whether the next commit has something to write here."""
        return self.log.staged or bool(self._controls)

    @property
    def unsettled(self) -> bool:
        """Whether anything is still in memory only."""
        return self.staged or self._rewrite or bool(self._events)

    # ---- the commit road -----------------------------------------------------------------------------------------

    def write(self) -> list[Unsynced]:
        """Write what is staged; returns what must be synced. Raises ``OSError`` and ``StoreError``."""
        self._patience.check()
        if not self.created:
            self._create()
        out = []
        fd = self.log.write()
        if fd is not None:
            out.append(Unsynced(fd, self))
        if self._controls:
            fd = self._write_subs(b"".join(self._controls))
            self._controls.clear()
            self._controls_written = True
            if fd is not None:
                out.append(Unsynced(fd, self, self._subs))
        return out

    def _write_subs(self, controls: bytes) -> int | None:
        """Write the events and ``controls`` behind them."""
        first = not self._subs.replaced
        fd = self._subs.append(bytes(self._events) + controls)
        self._events.clear()
        # They are in the file now, which has been replaced at the latest by this call.
        self._recovered = None
        self._rewrite = False
        if first:
            self._compaction.start(self._live)
        return fd

    def finish(self) -> int | None:
        """What was written is durable; returns the descriptor of the index if it must be synced before the ack."""
        fd = self.log.finish()
        self._controls_written = False
        if fd is None:
            self._patience.granted()
        return fd

    def index_synced(self) -> None:
        """The index that ``finish`` named has been synced."""
        self.log.index_synced()
        self._patience.granted()

    def fail(self, error: StoreError) -> None:
        """Forget what was staged, and never write again to the files that failed."""
        self._patience.refused(error)
        self.log.fail()
        if self._controls_written:
            # The file has, or may have, what is answered with an error now.
            self._subs.distrust()
            self._rewrite = True
            self._controls_written = False
        self._controls.clear()

    def write_events(self) -> None:
        """Hand the events to the file system, if the file has been replaced already. Raises ``OSError``."""
        if self._events and self._subs.replaced:
            self._write_events()

    def _write_events(self) -> None:
        try:
            self._write_subs(b"")
        except StoreFullError:
            self._rewrite = True
        except OSError as error:
            # Without space they wait: nobody was promised that they are durable.
            if not is_full(error):
                raise
            self._rewrite = True

    # ---- once a second -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write what no commit waited for: the first events of an activation, a file to replace. Raises ``OSError``."""
        if (self._events or self._rewrite) and not self._controls:
            if not self.created:
                self._create()
            self._write_events()
        if self._compaction.may(self._subs.size) and self._subs.replaced and not self.staged:
            self._compact()

    def _compact(self) -> None:
        if not self._compaction.worth():
            return
        try:
            self._subs.replace(bytes(self._events), keep=True)
        except StoreFullError:
            return
        except OSError as error:
            log.warning(f'channel "{show(self.name)}": subs.dat cannot be compacted: {error.strerror or error}')
            return
        self._events.clear()
        self._compaction.done(self._live)

    def unsynced(self) -> list[Unsynced]:
        """What was written and may not be durable. Raises ``OSError``."""
        out = []
        fd = self._subs.unsynced()
        if fd is not None:
            out.append(Unsynced(fd, self, self._subs))
        fd = self.log.unsynced_index()
        if fd is not None:
            out.append(Unsynced(fd, self))
        return out

    def synced(self) -> None:
        """What ``unsynced`` named is durable."""
        self._subs.synced()
        self.log.index_synced()

    def sync(self) -> None:
        """Make everything durable, whatever the options say. Raises ``OSError``."""
        self.log.sync()
        self._subs.sync()

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write and sync what is left, make the files exact for the original server, release every handle."""
        self.settle()
        self.sync()
        if self.created:
            exact.make_channel_exact(self._env, self.log)
        self.release()

    def release(self) -> None:
        """Release every handle and write nothing."""
        self._subs.park()
        self.log.close()
