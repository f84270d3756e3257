"""What the contract suite needs from whoever runs it, and the words that its statements are made
of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ftstan.config.limits import Limits
from ftstan.stores.interface import ChannelLimits, ServerInfo, SubState
from ftstan.wire import codec
from ftstan.wire.block import MsgBlock, SubEvents

if TYPE_CHECKING:
    from ftstan.base.clock import ManualClock
    from ftstan.stores.interface import ChannelStore, Recovered, Store, StoredSub

SECOND = 1_000_000_000
START = 1_700_000_000_000_000_000
FREE = ChannelLimits(max_msgs=0, max_bytes=0)
INFO = ServerInfo(
    cluster_id="test-cluster",
    discovery="_STAN.discover.test-cluster",
    publish="_STAN.pub.test-cluster",
    subscribe="_STAN.sub.test-cluster",
    unsubscribe="_STAN.unsub.test-cluster",
    close="_STAN.close.test-cluster",
    sub_close="_STAN.subclose.test-cluster",
    acks_subs="_STAN.ack.test-cluster",
)


class Place(Protocol):
    """A place where processes open stores, one after the other.

    ``overhead``: bytes that the store counts for each message beyond its encoded form. ``clock``:
    the clock of every store that is opened here. ``odd_name``: the oddest name of a channel that
    the store keeps.
    """

    overhead: int
    odd_name: bytes
    clock: ManualClock

    def open(self, limits: Limits) -> Store:
        """A store of a new process that has not recovered yet, with these limits."""
        ...


def opened(
    place: Place, limits: ChannelLimits = FREE, name: bytes = b"foo"
) -> tuple[Store, ChannelStore]:
    """A new process: its store, and one channel of it."""
    store, found = recovered(place, Limits.same(limits))
    channels = {c.name: c for c in found.channels}
    return store, channels[name] if name in channels else store.create_channel(name, limits)


def recovered(place: Place, limits: Limits | None = None) -> tuple[Store, Recovered]:
    """A new process: its store, and what it found; without ``limits`` there are none."""
    store = place.open(Limits.same(FREE) if limits is None else limits)
    return store, store.recover()


def block_of(
    channel: ChannelStore, *data: bytes, first: int = 0, at: int = START, step: int = 0
) -> MsgBlock:
    """Messages that follow on what the channel holds, ``step`` nanoseconds apart."""
    block = MsgBlock()
    for i, d in enumerate(data):
        block.append((first or channel.last + 1) + i, channel.name, b"", d, at + i * step)
    return block


def put(store: Store, channel: ChannelStore, *data: bytes, at: int = START, step: int = 0) -> None:
    """One batch."""
    channel.append(block_of(channel, *data, at=at, step=step))
    assert store.commit() == {}
    store.confirm()


def messages(channel: ChannelStore) -> list[tuple[int, bytes]]:
    """Sequence and data of every message.

    The sequences must run from ``first`` to ``last`` without a gap.
    """
    found: list[tuple[int, bytes]] = []
    wanted = range(channel.first, channel.last + 1) if channel.last else range(0)
    at = wanted.start
    while at < wanted.stop:
        block = channel.read(at, 7, 2000)
        assert block is not None, f"nothing at or after {at}, though the log ends at {channel.last}"
        for i in range(block.position(at), len(block)):
            assert block.sequence(i) == at
            if at < wanted.stop:
                found.append((at, codec.decode_msg_proto(block.payload(i))[3]))
                at += 1
    assert channel.count == len(found)
    return found


def state(sub_id: int, **changes: bytes | int) -> SubState:
    """A durable subscription."""
    made = SubState(
        sub_id,
        b"me",
        inbox=b"in.%d" % sub_id,
        ack_inbox=b"ack.%d" % sub_id,
        max_in_flight=10,
        ack_wait_secs=30,
        durable_name=b"dur.%d" % sub_id,
        is_durable=True,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def events(*rows: tuple[str, int, int]) -> SubEvents:
    """Sent and acknowledged sequences: ``("sent" or "acked", subscription, sequence)``."""
    made = SubEvents()
    for kind, sub_id, sequence in rows:
        (made.sent if kind == "sent" else made.acked)(sub_id, sequence)
    return made


def subs(place: Place) -> dict[int, StoredSub]:
    """The subscriptions that a new process finds, by id."""
    store, found = recovered(place)
    (channel,) = found.channels
    rows = {s.state.sub_id: s for s in channel.recovered_subs()}
    store.abandon()
    return rows
