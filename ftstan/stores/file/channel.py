"""FileChannel: one channel of the file store, its slices and its ``subs.dat``.

Stages what the broker applied, writes it when the store commits, and says which descriptors must be synced. Never
syncs for a publisher by itself, and never touches a file of another channel: both are the store's part.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.log import stream as log
from ftstan.stores.file import records, recovery, states
from ftstan.stores.file.env import FileEnv, is_full
from ftstan.stores.file.slices import SliceLog, show, store_error
from ftstan.stores.file.statefile import StateFile, read_typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.stores.interface import ChannelLimits, StoredSub, SubState
    from ftstan.wire.block import MsgBlock, SubEvents


class FileChannel:
    """One channel: its slices and its ``subs.dat``. Implements ``ChannelStore``."""

    def __init__(self, env: FileEnv, name: bytes, limits: ChannelLimits, touched: dict[bytes, FileChannel]) -> None:
        """``touched``: the store's register of channels with something staged or unsynced."""
        self._env = env
        self._touched = touched
        self.name = name
        self.log = SliceLog(env, name, limits)
        self.next_sub_id = 1
        self._recovered: dict[int, StoredSub] = {}
        self._subs: StateFile | None = None
        self._controls: list[bytes] = []
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

    def open(self, *, create: bool) -> None:
        """Open the channel's directory, making it first if asked to."""
        disk = self._env.disk
        dirname = os.fsdecode(self.name)
        if create:
            with contextlib.suppress(FileExistsError):
                disk.mkdir(self._env.root, dirname)
            # Also if it was there: an earlier attempt may have made it and failed to sync it.
            disk.fsync(self._env.root)
        self.log.dirfd = disk.open_dir_at(self._env.root, dirname)
        self._subs = StateFile(self._env, self.log.dirfd, "subs.dat", self._snapshot)

    def recover(self) -> None:
        """Read everything of the channel. Raises ``RecoveryError``."""
        self.open(create=False)
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

    def _snapshot(self) -> bytes:
        return states.snapshot_subs(self._recovered, self.next_sub_id - 1, self._env.crc)

    def append(self, block: MsgBlock) -> None:
        """Stage messages."""
        self._touched[self.name] = self
        self.log.append(block)

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        """Messages from the first existing one at or after ``sequence``."""
        try:
            return self.log.read(sequence, max_msgs, max_bytes)
        except OSError as error:
            raise store_error(error, f'channel "{show(self.name)}": reading sequence {sequence}') from error

    def sequence_at(self, timestamp: int) -> int:
        """First sequence at or after a time in nanoseconds."""
        return self.log.sequence_at(timestamp)

    def add_sub(self, state: SubState) -> None:
        """Stage a new subscription."""
        self._touched[self.name] = self
        self._controls.append(states.sub_record(records.SUB_NEW, state, self._env.crc))
        self.next_sub_id = max(self.next_sub_id, state.sub_id + 1)

    def update_sub(self, state: SubState) -> None:
        """Stage the new state of a subscription."""
        self._touched[self.name] = self
        self._controls.append(states.sub_record(records.SUB_UPDATE, state, self._env.crc))

    def delete_sub(self, sub_id: int) -> None:
        """Stage the end of a subscription."""
        self._touched[self.name] = self
        self._controls.append(states.sub_delete_record(sub_id, self._env.crc))

    def add_events(self, events: SubEvents) -> None:
        """Stage sent and acknowledged sequences; leaves ``events`` empty."""
        self._touched[self.name] = self
        self._events += records.encode_events(events, self._env.crc)

    def recovered_subs(self) -> Sequence[StoredSub]:
        """The subscriptions found at recovery, until the file is replaced."""
        return list(self._recovered.values())

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
        return self.staged or bool(self._events)

    def write(self) -> tuple[int | None, int | None]:
        """Write what is staged; returns the descriptors of messages and of subscriptions that must be synced."""
        if self.log.dirfd < 0:
            self.open(create=True)
        messages = self.log.write()
        if not self._controls:
            return messages, None
        subs = self._write_subs(b"".join(self._controls))
        self._controls.clear()
        return messages, subs

    def _write_subs(self, controls: bytes) -> int | None:
        """Write the events and ``controls`` behind them."""
        assert self._subs is not None
        fd = self._subs.append(bytes(self._events) + controls)
        self._events.clear()
        # They are in the file now, which has been replaced at the latest by this call.
        self._recovered = {}
        return fd

    def _write_events(self) -> None:
        try:
            self._write_subs(b"")
        except OSError as error:
            # Without space they wait in memory: nobody was promised that they are durable.
            if not is_full(error):
                raise

    def finish(self) -> None:
        """What was written is durable."""
        self.log.finish()

    def fail(self) -> None:
        """Forget what was staged."""
        self.log.fail()
        self._controls.clear()

    def write_events(self) -> None:
        """Hand the events to the file system, if the file has been replaced already."""
        if self._events and self._subs is not None and self._subs.replaced:
            self._write_events()

    def tick(self) -> None:
        """Sync what no publisher waits for; the first events of an activation replace the file here."""
        if self._events:
            if self._subs is None:
                self.open(create=True)
            self._write_events()
        if self._subs is not None:
            self._subs.sync()
        self.log.sync_index()

    def close(self, *, abandon: bool = False) -> None:
        """Release every handle, after a last sync unless abandoned."""
        if not abandon:
            self.tick()
        if self._subs is not None:
            self._subs.close()
        self.log.close(abandon=abandon)
