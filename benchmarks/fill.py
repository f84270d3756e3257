"""Fills a datastore directory through the file store itself: ``python -m benchmarks.fill DIR
--messages N``.
"""

from __future__ import annotations

import argparse

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.config.limits import Limits
from ftstan.ft.ownership import StoreOwner
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelLimits, ServerInfo
from ftstan.wire.block import MsgBlock
from ftstan.wire.subjects import Subjects

_BATCH = 5000
_START_NS = 1_700_000_000_000_000_000


def main() -> None:
    """Write and close cleanly."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fill")
    parser.add_argument("directory")
    parser.add_argument("--messages", type=int, default=0, help="in one channel")
    parser.add_argument(
        "--channels", type=int, default=0, help="more of them, named channel.0 and so on"
    )
    parser.add_argument(
        "--each", type=int, default=10, help="messages in each of those (default 10)"
    )
    parser.add_argument(
        "--cluster", default="test-cluster", help="cluster id (default test-cluster)"
    )
    options = parser.parse_args()
    clock = SystemClock()
    owner = StoreOwner(
        LocalDisk(), options.directory, server_id="fill", clock=clock, in_group=False
    )
    owner.try_lock()
    owner.activate()
    unlimited = ChannelLimits(0, 0)
    store = FileStore(
        LocalDisk(),
        owner.root,
        owner,
        clock,
        FileStoreOptions(sync=False),
        limits=Limits.same(unlimited),
    )
    store.recover()
    s = Subjects.for_cluster(options.cluster)
    store.set_server_info(
        ServerInfo(
            options.cluster,
            s.discovery,
            s.publish,
            s.subscribe,
            s.unsubscribe,
            s.close,
            s.sub_close,
            s.acks_subs,
        )
    )
    if options.messages:
        _fill(store, b"bench", options.messages, unlimited)
    for i in range(options.channels):
        _fill(store, b"channel.%d" % i, options.each, unlimited)
    store.tick(0)
    store.close()
    owner.close()


def _fill(store: FileStore, name: bytes, count: int, limits: ChannelLimits) -> None:
    channel = store.create_channel(name, limits)
    sequence = 0
    body = b"x" * 128
    while sequence < count:
        block = MsgBlock()
        for _ in range(min(_BATCH, count - sequence)):
            sequence += 1
            block.append(sequence, name, b"", body, _START_NS + sequence * 1000)
        channel.append(block)
        failed = store.commit()
        if failed:
            raise next(iter(failed.values()))


if __name__ == "__main__":
    main()
