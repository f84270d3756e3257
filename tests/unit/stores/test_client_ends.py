"""The end of a client is durable before the ends of its subscriptions: a client that the next owner
knows has all of them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from greenlet import greenlet

from ftstan.base.errors import FencedError
from ftstan.config.limits import Limits
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ClientInfo, SubState
from tests.filenode import NO_LIMITS, FileNode, Owner, simulated
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.ft.hosts import Client as Host
from tests.sim.ft.hosts import ClientDisk

if TYPE_CHECKING:
    from tests.sim.volume import Volume

ME = ClientInfo(b"me", b"hb.me", b"conn.me", 1, 5, 3)
OTHER = replace(ME, client_id=b"other")
SUB = SubState(1, ME.client_id, inbox=b"in", ack_inbox=b"ack")


def on_a_host(volume: Volume) -> ClientDisk:
    """A process on a host of its own, on network storage."""
    return ClientDisk(volume, Counter(), Host(Random(1)))


def node_on(disk: SimDisk, epoch: int) -> FileNode:
    asking = disk.direct() if isinstance(disk, ClientDisk) else None
    return FileNode(disk, owner=Owner(epoch), asking=asking)


def gives_up(disk: SimDisk, other: SimDisk) -> FileNode:
    """An owner that gives up a client with a subscription in the next batch.

    It has written to ``clients.dat``, and not yet to the channel.
    """
    first = node_on(disk, 1)
    first.put(b"a")
    first.store.add_client(ME)
    first.channel().add_sub(SUB)
    assert first.store.commit() == {}
    first.tick()
    first.tick()
    first.disk.kill()  # type: ignore[attr-defined]
    second = node_on(other, 2)
    second.store.add_client(OTHER)
    assert second.store.commit() == {}
    second.store.delete_client(ME.client_id)
    second.channel().delete_sub(1)
    return second


def is_whole(clients: list[ClientInfo], subs: list[int]) -> bool:
    return ME.client_id not in {c.client_id for c in clients} or subs == [1]


def test_whatever_a_power_cut_takes_back_of_the_batch_that_gives_a_client_up() -> None:
    met: Counter[tuple[bool, bool]] = Counter()
    for seed in range(42):
        base = simulated()
        node = gives_up(base, base.sibling())
        disk = node.disk
        assert isinstance(disk, SimDisk)
        last = disk.calls + 1 + seed % 14

        def die(number: int, _call: str, _args: tuple[object, ...], last: int = last) -> None:
            if number == last:
                raise Killed

        disk.on_call = die
        with contextlib.suppress(Killed):
            node.store.commit()
        mode = Random(seed).choice((CrashMode.UNORDERED, CrashMode.ORDERED, CrashMode.LOST))
        found = node_on(disk.crash(Random(seed), mode), 3)
        subs = [s.state.sub_id for s in found.channels[b"foo"].recovered_subs()]
        assert is_whole(found.recovered.clients, subs), (seed, mode)
        met[ME in found.recovered.clients, bool(subs)] += 1
    assert len(met) == 3


@pytest.mark.parametrize("later", [False, True], ids=["opened at the start", "opened later"])
def test_wherever_the_host_that_gives_a_client_up_stands_still(*, later: bool) -> None:
    here = greenlet.getcurrent()
    met: Counter[tuple[bool, bool]] = Counter()
    for calls in range(1, 100):
        volume = simulated().volume
        node = gives_up(on_a_host(volume), on_a_host(volume))
        disk = node.disk
        assert isinstance(disk, ClientDisk)
        last = disk.calls + calls

        def stand_still(
            number: int, _call: str, _args: tuple[object, ...], last: int = last
        ) -> None:
            if number == last:
                here.switch()

        disk.on_call = stand_still
        former = greenlet(node.store.commit)
        former.switch()
        if former.dead:
            break
        node.owner.fenced = True
        mine = on_a_host(volume)
        store = FileStore(
            mine,
            mine.open_dir("/store"),
            Owner(3),
            node.clock,
            limits=Limits.same(NO_LIMITS),
            parallel_sync=False,
            asking=mine.direct(),
            most_at_once=0 if later else None,
        )
        found = store.recover()
        with contextlib.suppress(FencedError, FileNotFoundError):
            former.switch()
        channels = store.open_channel(b"foo").channels if later else found.channels
        subs = [s.state.sub_id for channel in channels for s in channel.recovered_subs()]
        assert is_whole(found.clients, subs), calls
        met[ME in found.clients, bool(subs)] += 1
    assert met[True, True]
    assert met[False, False]
