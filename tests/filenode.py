"""One process with an open file store, for tests that tell a history step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelLimits
from ftstan.wire.block import MsgBlock, SubEvents
from tests.sim.disk import SimDisk
from tests.sim.model import read_all

if TYPE_CHECKING:
    from ftstan.base.disk import Disk
    from ftstan.base.errors import StoreError
    from ftstan.stores.interface import ChannelStore

SECOND = 1_000_000_000
NO_LIMITS = ChannelLimits(max_msgs=0, max_bytes=0)


@dataclass
class Owner:
    """An activation whose fate the test decides. ``confirms`` counts how often it was asked."""

    epoch: int = 1
    ours_from: int = 1
    fenced: bool = False
    mixed: bool = False
    originals: int = 0
    confirms: int = 0

    @property
    def slice_base(self) -> int:
        return (self.epoch - 1) * 4096

    @property
    def identity(self) -> tuple[int, bytes]:
        return self.epoch, b"nonce%d" % self.epoch

    @property
    def predecessor(self) -> tuple[int, bytes]:
        return self.epoch - 1, b"nonce%d" % (self.epoch - 1)

    def confirm(self) -> None:
        self.confirms += 1
        if self.fenced:
            raise FencedError("another server owns the datastore")

    @property
    def originals_through(self) -> int:
        return self.epoch if self.mixed else self.originals

    def confirm_beside(self) -> None:
        self.confirm()

    def raise_epoch(self) -> None:
        self.confirm()
        self.epoch += 1


@dataclass
class FileNode:
    """One process with a store that has recovered; ``path`` is also what archive scripts see."""

    disk: Disk
    path: str = "/store"
    owner: Owner = field(default_factory=Owner)
    options: FileStoreOptions = field(default_factory=FileStoreOptions)
    limits: ChannelLimits = NO_LIMITS
    clock: ManualClock = field(default_factory=ManualClock)
    asking: Disk | None = None

    def __post_init__(self) -> None:
        self.root = self.disk.open_dir(self.path)
        self.store = FileStore(
            self.disk,
            self.root,
            self.owner,
            self.clock,
            self.options,
            limits=Limits.same(self.limits),
            parallel_sync=False,
            path=self.path,
            asking=self.asking,
        )
        self.recovered = self.store.recover()
        self.channels: dict[bytes, ChannelStore] = {c.name: c for c in self.recovered.channels}

    def channel(self, name: bytes = b"foo") -> ChannelStore:
        if name not in self.channels:
            self.channels[name] = self.store.create_channel(name, self.limits)
        return self.channels[name]

    def put(self, *data: bytes, channel: bytes = b"foo") -> dict[bytes, StoreError]:
        """One batch of messages to one channel."""
        self.stage(*data, channel=channel)
        return self.store.commit()

    def stage(self, *data: bytes, channel: bytes = b"foo") -> None:
        ch = self.channel(channel)
        block = MsgBlock()
        for i, d in enumerate(data, 1):
            block.append(ch.last + i, channel, b"", d, self.clock.wall_ns())
        ch.append(block)

    def sent(self, sub_id: int, *sequences: int, channel: bytes = b"foo") -> None:
        events = SubEvents()
        for sequence in sequences:
            events.sent(sub_id, sequence)
        self.channel(channel).add_events(events)
        self.store.write_events()

    def acked(self, sub_id: int, *sequences: int, channel: bytes = b"foo") -> None:
        events = SubEvents()
        for sequence in sequences:
            events.acked(sub_id, sequence)
        self.channel(channel).add_events(events)
        self.store.write_events()

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass, then do what is done once a second."""
        self.clock.advance(seconds)
        self.store.tick(self.clock.wall_ns())

    def successor(self, disk: Disk | None = None) -> FileNode:
        """The next process on the same directory, under the next epoch.

        This one is left as it is.
        """
        if disk is None:
            disk = self.disk.sibling() if isinstance(self.disk, SimDisk) else self.disk
        owner = Owner(self.owner.epoch + 1, self.owner.ours_from)
        return FileNode(disk, self.path, owner, self.options, self.limits, self.clock)

    def sequences(self, channel: bytes = b"foo") -> list[int]:
        """Sequences of the messages that can be read."""
        return sorted(read_all(self.channels[channel]))


def simulated() -> SimDisk:
    """A simulated disk with an empty datastore directory."""
    disk = SimDisk()
    disk.make_dirs("/store")
    return disk
