"""Other limits while publishes are under way: what was acked goes by a limit that was in force, or
not at all.
"""

from __future__ import annotations

from random import Random

import pytest

from ftstan.base.clock import ManualClock
from ftstan.config.limits import INHERIT
from ftstan.config.options import ChannelLimits, StoreLimits
from tests.compat.driver import Driver, deliveries, pub_acks
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE


def highest(driver: Driver, goes: int, limit: int) -> int:
    """The highest sequence that may be gone: ``goes``, or what the limit in force takes now."""
    channel = driver.broker.channels.get(b"foo")
    return goes if channel is None or not limit else max(goes, channel.store.last - limit)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_limits_come_and_go_an_acked_message_goes_only_by_one_that_was_in_force(
    seed: int,
) -> None:
    rng = Random(seed)
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    driver = Driver(open_file_store(disk, clock), clock=clock)
    driver.connect()
    acked: list[bytes] = []
    goes = 0
    limit = 0
    for step in range(80):
        for i in range(rng.randrange(5)):
            driver.offer(b"%d.%d" % (step, i))
        before = len(driver.out)
        draw = rng.random()
        if draw < 0.1:
            # Committed and never answered: the limits below come before anybody hears of it.
            driver.run(lost=True)
            driver.open_link()
            goes = highest(driver, goes, limit)
        elif draw < 0.2:
            # Applied and not even committed.
            driver._feed()
            driver.broker.link_lost(driver.now)
            driver.open_link()
        if rng.random() < 0.3:
            limit = rng.choice([0, 1, 3, 10, 1000])
            limits = StoreLimits(channel=ChannelLimits(max_msgs=limit))
            if rng.random() < 0.5:
                own = INHERIT if limit == 0 else ChannelLimits(limit, 0, 0, 0, 0)
                limits = StoreLimits(
                    channel=ChannelLimits(max_msgs=limit), channels=(("foo", own),)
                )
            driver.broker.set_limits(limits)
        driver.run()
        if rng.random() < 0.3:
            clock.advance(1)
            driver.broker.tick()
            driver.store.tick(clock.wall_ns())
        acks = pub_acks(driver.out[before:])
        assert not any(a.error for a in acks)
        assert not (draw < 0.2 and acks)
        acked += [a.guid for a in acks]
        channel = driver.broker.channels.get(b"foo")
        if channel is None:
            continue
        goes = highest(driver, goes, limit)
        assert channel.store.first <= goes + 1
        if rng.random() < 0.1:
            disk = disk.crash(mode=rng.choice(list(CrashMode)))
            driver = Driver(open_file_store(disk, clock), clock=clock, out=driver.out)
            # A new server has the limits of its own configuration, none here, until it is told
            # others.
            limit = 0
    driver.subscribe(inbox=b"all", max_in_flight=100_000)
    got = {d.sequence: d.data for d in deliveries(driver.out, b"all")}
    assert sorted(got) == list(range(min(got), max(got) + 1))
    assert min(got) <= goes + 1
    kept = set(got.values())
    gone = [guid for guid in acked if guid not in kept]
    assert len(gone) <= goes
    assert acked[-1] in kept
