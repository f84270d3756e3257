"""Messages of a node's store expire by the clock of the node that leads."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.cluster.time import LeaderClock
from ftstan.config.limits import Limits
from ftstan.config.options import StoreLimits
from ftstan.config.units import SECOND
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner

if TYPE_CHECKING:
    from pathlib import Path

FOO = b"foo"
HOUR = 3600 * SECOND
LIMITS = StoreLimits()
AGED = Limits(replace(LIMITS, channel=replace(LIMITS.channel, max_age=HOUR)))


def test_the_leaders_last_word_counts_until_this_node_leads() -> None:
    clock = LeaderClock(ManualClock())
    assert clock.wall_ns() == 0
    for said, shown in ((7, 7), (0, 7), (5, 5)):
        clock.hear(said)
        assert clock.wall_ns() == shown
    clock.leads = True
    assert clock.wall_ns() == ManualClock().wall_ns()


def test_a_word_that_is_far_ahead_of_the_own_clock_counts_for_ten_minutes_at_most() -> None:
    own = ManualClock()
    clock = LeaderClock(own)
    clock.hear(own.wall_ns() + 10 * 365 * 24 * HOUR)
    assert clock.wall_ns() == own.wall_ns() + HOUR // 6
    clock.hear(own.wall_ns() + HOUR // 12)
    assert clock.wall_ns() == own.wall_ns() + HOUR // 12


def test_a_follower_whose_own_clock_is_ahead_keeps_what_the_leader_has(tmp_path: Path) -> None:
    own = ManualClock()
    published = own.wall_ns()
    clock = LeaderClock(own)

    def open_store(epoch: int) -> FileStore:
        root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        store = FileStore(*(LocalDisk(), root, Owner(epoch), clock), FileStoreOptions(sync=False))
        store.set_limits(AGED)
        return store

    store = open_store(1)
    store.recover()
    channel = store.create_channel(FOO, AGED.of(FOO))
    block = MsgBlock()
    for sequence in range(1, 4):
        block.append(sequence, FOO, b"", b"x", published + sequence)
    channel.append(block)
    store.commit()
    own.advance(10 * 3600.0)
    clock.hear(published + HOUR // 2)
    store.tick(clock.wall_ns())
    assert channel.count == 3
    store.close()
    # Nor at its next start, before it has heard of anybody.
    clock = LeaderClock(own)
    store = open_store(2)
    (found,) = store.recover().channels
    assert found.count == 3
    clock.hear(published + HOUR + 2)
    store.tick(clock.wall_ns())
    assert (found.count, found.first) == (1, 3)
    clock.leads = True
    store.tick(clock.wall_ns())
    assert found.count == 0
    store.close()
