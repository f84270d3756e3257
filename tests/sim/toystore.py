"""The simplest honest store: one log file, one frame a commit.

It exists to test the history runner.

Subclasses in the tests each leave out one of its precautions; the runner must notice every one of
them.
"""

from __future__ import annotations

import os
import pickle
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import StoreError
from ftstan.stores.interface import (
    ChannelEnd,
    ChannelLimits,
    ClientInfo,
    Recovered,
    ServerInfo,
    StoredSub,
    SubState,
)
from ftstan.wire.block import MsgBlock, SubEvents
from tests.oracle.goproto import decode
from tests.oracle.goview import MESSAGE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ftstan.config.limits import Limits
    from ftstan.stores.interface import ChannelStore, StoredAt
    from tests.sim.disk import SimDisk

#: An operation in the log: what, channel, and arguments.
Op = tuple[Any, ...]


class ToyChannel:
    """One channel, all in memory; what is staged goes to the store's log."""

    def __init__(self, store: ToyStore, name: bytes, limits: ChannelLimits) -> None:
        self.store = store
        self.name = name
        self.limits = limits
        self.messages: dict[int, bytes] = {}
        self.subs: dict[int, StoredSub] = {}
        self.first = self.last = self.count = self.size = self.last_timestamp = 0
        self.next_sub_id = 1
        self.mover: bytes | None = None
        self.snapshot: Callable[[], Iterable[StoredSub]] | None = None
        self.staged: list[Op] = []
        self.staged_events: list[Op] = []

    def set_moved(self, mover: bytes | None) -> None:
        self.mover = mover

    def append(self, block: MsgBlock) -> None:
        self.staged += [
            ("message", self.name, block.sequence(i), block.payload(i)) for i in range(len(block))
        ]

    def read(self, sequence: int, max_msgs: int, max_bytes: int) -> MsgBlock | None:
        block = MsgBlock()
        for number in sorted(s for s in self.messages if s >= sequence)[:max_msgs]:
            v = decode(self.messages[number], MESSAGE_FIELDS)
            block.append(number, v.blob(2), v.blob(3), v.blob(4), v.num(5))
        return block if len(block) else None

    def sequence_at(self, timestamp: int) -> int:
        stamps = {s: decode(p, MESSAGE_FIELDS).num(5) for s, p in self.messages.items()}
        return min((s for s, stamp in stamps.items() if stamp >= timestamp), default=self.last + 1)

    def keep(self) -> None:
        pass

    def add_sub(self, state: SubState) -> None:
        self.staged.append(("sub", self.name, state))

    def update_sub(self, state: SubState) -> None:
        self.staged.append(("sub", self.name, state))

    def delete_sub(self, sub_id: int) -> None:
        self.staged.append(("no-sub", self.name, sub_id))

    def add_events(self, events: SubEvents) -> None:
        self.staged_events += [("event", self.name, *item) for item in events.items()]
        events.clear()

    def recovered_subs(self) -> Sequence[StoredSub]:
        return [StoredSub(sub.state, set(sub.pending)) for sub in self.subs.values()]

    def expire(self, now_ns: int) -> None:
        """No limits here."""

    def purge(self, sequence: int) -> None:
        self.store.write([("purge", self.name, min(sequence, self.last))])
        self.store.sync()

    def measure(self) -> None:
        self.first = min(self.messages)
        self.last = max(self.messages)
        self.count = len(self.messages)
        self.size = sum(map(len, self.messages.values()))
        self.last_timestamp = decode(self.messages[self.last], MESSAGE_FIELDS).num(5)

    def apply(self, op: Op) -> None:
        match op:
            case ("message", _, sequence, payload):
                self.messages[sequence] = payload
                self.measure()
            case ("purge", _, sequence):
                self.messages = {s: payload for s, payload in self.messages.items() if s > sequence}
                self.first, self.count = max(self.first, sequence + 1), len(self.messages)
            case ("sub", _, state):
                known = self.subs.get(state.sub_id)
                self.subs[state.sub_id] = StoredSub(state, known.pending if known else set())
                self.next_sub_id = max(self.next_sub_id, state.sub_id + 1)
            case ("no-sub", _, sub_id):
                self.subs.pop(sub_id, None)
            case ("event", _, kind, sub_id, sequence) if sub_id in self.subs:
                sub = self.subs[sub_id]
                if kind == "sent":
                    sub.pending.add(sequence)
                    sub.state = replace(sub.state, last_sent=max(sub.state.last_sent, sequence))
                else:
                    sub.pending.discard(sequence)


class ToyStore:
    """A store in one file, ``log``: frames of length, CRC and pickled operations."""

    kind = "TOY"
    events_first = False

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.root = disk.open_dir("/store")
        self.channels: dict[bytes, ToyChannel] = {}
        self.clients: dict[bytes, ClientInfo] = {}
        self.info: ServerInfo | None = None
        self.staged: list[Op] = []
        self.events: list[Op] = []
        self.log = -1
        self.end = 0

    def recover(self) -> Recovered:
        try:
            self.log = self.disk.open(self.root, "log", os.O_RDWR | os.O_CREAT)
            self.sync_name()
            data = self.disk.pread(self.log, 1 << 30, 0)
            while (frame := self.frame_at(data, self.end)) is not None:
                for op in pickle.loads(frame):
                    self.apply(op)
                self.end += 8 + len(frame)
            self.cut_torn_tail(len(data))
            self.sync_found(data[: self.end])
        except OSError as error:
            raise StoreError(f"toy store: {error}") from error
        return Recovered(self.info, list(self.clients.values()), self.found_channels())

    def found_channels(self) -> list[ChannelStore]:
        return [*self.channels.values()]

    def set_server_info(self, info: ServerInfo) -> None:
        self.write([("info", info)])
        self.sync()

    def add_client(self, info: ClientInfo) -> None:
        self.staged.append(("client", info))

    def delete_client(self, client_id: bytes) -> None:
        self.staged.append(("no-client", client_id))

    def create_channel(self, name: bytes, limits: ChannelLimits) -> ToyChannel:
        self.channels[name] = ToyChannel(self, name, limits)
        return self.channels[name]

    def open_channel(self, name: bytes) -> Recovered:
        del name
        return Recovered(None, [], [])

    def ends(self, most: int) -> list[ChannelEnd]:
        del most
        return []

    def prepare_close(self, seconds: float) -> bool:
        del seconds
        return False

    def set_limits(self, limits: Limits) -> None:
        for channel in self.channels.values():
            channel.limits = limits.of(channel.name)

    def delete_channel(self, name: bytes) -> None:
        self.write([("no-channel", name)])
        self.sync()

    def commit(self) -> dict[bytes, StoreError]:
        ops = [*self.staged]
        self.staged.clear()
        for channel in self.channels.values():
            ops += channel.staged
            channel.staged.clear()
        if ops:
            self.write(ops)
            self.sync()
        return {}

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """This store remembers nothing."""

    def confirm(self) -> None:
        """Nobody else is there."""

    def write_events(self) -> None:
        ops: list[Op] = []
        for channel in self.channels.values():
            ops += channel.staged_events
            channel.staged_events.clear()
        if ops:
            self.write(ops)

    acks_wait = False

    def catch_up(self) -> bool:
        return False

    def tick(self, now_ns: int) -> bool:
        self.sync()
        return False

    def close(self) -> None:
        self.write_events()
        self.sync()
        self.abandon()

    def abandon(self) -> None:
        # Everything was synced before: an error of close has nothing left to lose.
        for handle in (self.log, self.root):
            with suppress(OSError):
                self.disk.close(handle)

    # The precautions, each of which a test leaves out

    def sync(self) -> None:
        try:
            self.disk.fdatasync(self.log)
        except OSError as error:
            raise StoreError(f"toy store: {error}") from error

    def sync_name(self) -> None:
        self.disk.fsync(self.root)

    def sync_found(self, data: bytes) -> None:
        """What was found may be in the page cache only, even as the rest of a failed sync that
        nothing will repeat.
        """
        self.disk.pwrite(self.log, data, 0)
        self.disk.fdatasync(self.log)

    def cut_torn_tail(self, size: int) -> None:
        if size != self.end:
            self.disk.ftruncate(self.log, self.end)

    def frame_at(self, data: bytes, at: int) -> bytes | None:
        size = int.from_bytes(data[at : at + 4], "little")
        crc = int.from_bytes(data[at + 4 : at + 8], "little")
        frame = data[at + 8 : at + 8 + size]
        return frame if size and len(frame) == size and zlib.crc32(frame) == crc else None

    def write(self, ops: list[Op]) -> None:
        frame = pickle.dumps(ops)
        head = len(frame).to_bytes(4, "little") + zlib.crc32(frame).to_bytes(4, "little")
        try:
            self.disk.pwrite(self.log, head + frame, self.end)
        except OSError as error:
            raise StoreError(f"toy store: {error}") from error
        self.end += len(head) + len(frame)
        for op in ops:
            self.apply(op)

    def apply(self, op: Op) -> None:
        match op:
            case ("info", info):
                self.info = info
            case ("client", info):
                self.clients[info.client_id] = info
            case ("no-client", client_id):
                self.clients.pop(client_id, None)
            case ("no-channel", name):
                self.channels.pop(name, None)
            case _:
                if op[1] not in self.channels:
                    self.create_channel(op[1], ChannelLimits())
                self.channels[op[1]].apply(op)
