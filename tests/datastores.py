"""Datastores on a real disk, made by our own store with real epochs: material for the tools that
work on them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.config.limits import Limits
from ftstan.ft.ownership import StoreOwner
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelLimits, ClientInfo, ServerInfo, SubState
from ftstan.wire.block import MsgBlock, SubEvents

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.stores.file.env import FileStoreOptions
    from ftstan.stores.interface import ChannelStore, Recovered

CLUSTER = "test-cluster"
FREE = ChannelLimits(max_msgs=0, max_bytes=0)
START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


def server_info(cluster: str = CLUSTER) -> ServerInfo:
    names = ("pub", "sub", "unsub", "close", "subclose", "ack")
    return ServerInfo(
        cluster, f"_STAN.discover.{cluster}", *(f"_STAN.{name}.{cluster}" for name in names)
    )


def durable(sub_id: int, name: bytes = b"dur") -> SubState:
    return SubState(
        sub_id,
        b"me",
        inbox=b"in.%d" % sub_id,
        ack_inbox=b"ack.%d" % sub_id,
        max_in_flight=10,
        ack_wait_secs=30,
        durable_name=name + b".%d" % sub_id,
        is_durable=True,
    )


@dataclass(slots=True)
class Serving:
    """A node that owns the store and has recovered it."""

    owner: StoreOwner
    store: FileStore
    found: Recovered
    clock: ManualClock
    limits: ChannelLimits

    def channel(self, name: bytes) -> ChannelStore:
        for channel in self.found.channels:
            if channel.name == name:
                return channel
        channel = self.store.create_channel(name, self.limits)
        self.found.channels.append(channel)
        return channel

    def publish(self, name: bytes, *data: bytes, reply: bytes = b"reply.to") -> list[int]:
        """One batch of acknowledged messages; returns their sequences."""
        channel = self.channel(name)
        block = MsgBlock()
        first = channel.last + 1
        for i, d in enumerate(data):
            block.append(first + i, name, reply, d, self.clock.wall_ns() + i)
        channel.append(block)
        self.commit()
        return list(range(first, first + len(data)))

    def commit(self) -> None:
        assert self.store.commit() == {}
        self.store.confirm()

    def subscribe(self, name: bytes, sub_id: int) -> None:
        self.channel(name).add_sub(durable(sub_id))
        self.commit()

    def deliver(
        self, name: bytes, sub_id: int, *, sent: tuple[int, ...] = (), acked: tuple[int, ...] = ()
    ) -> None:
        events = SubEvents()
        for sequence in sent:
            events.sent(sub_id, sequence)
        for sequence in acked:
            events.acked(sub_id, sequence)
        self.channel(name).add_events(events)
        self.store.write_events()

    def connect(self, client_id: bytes) -> None:
        self.store.add_client(ClientInfo(client_id, b"hb." + client_id, b"conn", 1, 5, 3))
        self.commit()

    def tick(self) -> None:
        self.clock.advance(1)
        self.store.tick(self.clock.wall_ns())

    def stop(self) -> None:
        self.store.close()
        self.owner.close()

    def die(self) -> None:
        """As after ``kill -9``: what was handed to the file system stays."""
        self.store.abandon()
        self.owner.close()


def serve(
    path: Path,
    clock: ManualClock | None = None,
    *,
    options: FileStoreOptions | None = None,
    limits: ChannelLimits = FREE,
) -> Serving:
    """Own and recover the datastore at ``path``, as a node does.

    The first one writes the server record.
    """
    clock = clock or ManualClock()
    owner = StoreOwner(LocalDisk(), str(path), server_id="test", clock=clock, in_group=False)
    try:
        owner.try_lock()
        owner.activate()
        store = FileStore(
            LocalDisk(),
            owner.root,
            owner,
            clock,
            options,
            limits=Limits.same(limits),
            path=str(path),
        )
        found = store.recover()
        if found.info is None:
            store.set_server_info(server_info())
    except BaseException:
        owner.close()
        raise
    return Serving(owner, store, found, clock, limits)


@contextlib.contextmanager
def serving(path: Path, clock: ManualClock | None = None, **options: object) -> Iterator[Serving]:
    """``serve`` for a block; dies at its end unless it was stopped in it."""
    node = serve(path, clock, **options)  # type: ignore[arg-type]
    try:
        yield node
    finally:
        with contextlib.suppress(Exception):
            node.die()


def messages_of(node: Serving, name: bytes) -> dict[int, bytes]:
    """Sequence to stored bytes of everything that can be read."""
    channel = node.channel(name)
    found: dict[int, bytes] = {}
    at = channel.first
    while at <= channel.last:
        block = channel.read(at, 100, 1 << 20)
        if block is None:
            break
        for i in range(block.position(at), len(block)):
            found[block.sequence(i)] = block.payload(i)
        at = max(found) + 1
    return found


def grow(
    path: Path, activations: int, *, kill: bool = True, channels: int = 2
) -> dict[bytes, dict[int, bytes]]:
    """A store of many activations that all died, the last one only if ``kill``.

    Returns what is in it.
    """
    clock = ManualClock()
    held: dict[bytes, dict[int, bytes]] = {}
    for n in range(activations):
        node = serve(path, clock)
        node.connect(b"client-%d" % n)
        for c in range(channels):
            name = b"channel.%d" % c
            if n == 0:
                node.subscribe(name, 1)
            sequences = node.publish(name, *(b"%d:%d" % (n, i) + b"x" * 50 * i for i in range(3)))
            node.deliver(name, 1, sent=tuple(sequences), acked=(sequences[0],))
        node.tick()
        held = {b"channel.%d" % c: messages_of(node, b"channel.%d" % c) for c in range(channels)}
        if n == activations - 1 and not kill:
            node.stop()
        else:
            node.die()
    return held
