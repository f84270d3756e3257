"""Limits of single channels as clients see them: at creation, after a start, and when they
change.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import ConfigError
from ftstan.broker.broker import BrokerOptions
from ftstan.config.limits import INHERIT, Limits
from ftstan.config.options import ChannelLimits, StoreLimits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from tests.compat.driver import SECOND, SUBJECTS, Driver, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import SimOwner
from tests.sim.history import STORE
from tests.unit.broker.test_scale import calls
from tests.unit.node.test_pipeline_pause import serving

LIMITS = StoreLimits(
    4,
    ChannelLimits(max_msgs=100, max_subs=2),
    (
        ("few", replace(INHERIT, max_msgs=3)),
        ("few.*", replace(INHERIT, max_subs=1)),
        ("free", replace(INHERIT, max_subs=-1)),
        ("old.>", replace(INHERIT, max_age=10 * SECOND)),
        ("temp.>", replace(INHERIT, max_inactivity=2 * SECOND)),
    ),
)


def options(limits: StoreLimits) -> BrokerOptions:
    return BrokerOptions(
        max_channels=limits.max_channels, limits=limits.channel, channels=limits.channels
    )


class Place:
    """A simulated directory, and servers one after the other on it."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.clock = ManualClock()

    def start(self, limits: StoreLimits = LIMITS, *, later: bool = False) -> Driver:
        """A server; ``later``: every channel is opened when it is needed."""
        disk = self.disk.sibling()
        root = disk.open_dir(STORE)
        store = FileStore(
            disk,
            root,
            SimOwner(disk, root, self.clock),
            self.clock,
            FileStoreOptions(),
            limits=Limits(limits),
            parallel_sync=False,
            most_at_once=0 if later else None,
        )
        return Driver(store, options(limits), self.clock, {b"hb.me"})


@pytest.fixture(params=["memory", "file"])
def driver(request: pytest.FixtureRequest) -> Driver:
    made = (
        Driver(MemoryStore(), options(LIMITS), alive={b"hb.me"})
        if request.param == "memory"
        else Place().start()
    )
    made.connect()
    return made


def subscribe_error(driver: Driver, channel: bytes) -> bytes:
    """What a subscribe is answered with, empty if it is accepted."""
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=channel, inbox=driver.reply(), max_in_flight=9, ack_wait_in_secs=30
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    error: bytes = messages.parse(messages.SubscriptionResponse, answer or b"").error
    return error


def count(driver: Driver, name: bytes) -> int:
    channel = driver.broker.known_channel(name)
    assert channel is not None
    return channel.store.count


def names(driver: Driver) -> set[bytes]:
    return {channel.name for channel in driver.broker.channels.values()}


def second(driver: Driver) -> None:
    """What a server does once a second."""
    while driver.store.tick(driver.clock.wall_ns()):
        pass


def test_each_channel_keeps_as_many_messages_as_its_own_limit_says(driver: Driver) -> None:
    for name in (b"few", b"few.x", b"other"):
        driver.publish(*(b"%d" % i for i in range(10)), channel=name)
    assert [count(driver, name) for name in (b"few", b"few.x", b"other")] == [3, 10, 10]


def test_each_channel_takes_as_many_subscriptions_as_its_own_limit_says(driver: Driver) -> None:
    refused = {
        name: [subscribe_error(driver, name) for _ in range(4)].count(
            b"too many subscriptions per channel"
        )
        for name in (b"few", b"few.x", b"free", b"other")
    }
    assert refused == {b"few": 2, b"few.x": 3, b"free": 0, b"other": 2}


def test_messages_expire_by_the_age_limit_of_their_channel_and_numbering_goes_on(
    driver: Driver,
) -> None:
    for name in (b"old.x", b"other"):
        driver.publish(b"a", b"b", channel=name)
    driver.wait(10)
    second(driver)
    assert (count(driver, b"old.x"), count(driver, b"other")) == (0, 2)
    driver.publish(b"c", channel=b"old.x")
    driver.subscribe(b"old.x", inbox=b"late")
    assert sequences(driver.out, b"late") == [3]


def test_only_channels_with_a_limit_of_inactivity_are_deleted(driver: Driver) -> None:
    for name in (b"temp.x", b"other"):
        driver.publish(b"a", channel=name)
    driver.wait(2)
    assert names(driver) == {b"other"}


def test_the_limit_of_channels_counts_those_of_every_kind(driver: Driver) -> None:
    for name in (b"few", b"temp.x", b"a", b"b"):
        assert driver.publish(b"x", channel=name)[0].error == b""
    assert driver.publish(b"x", channel=b"free")[0].error == b"too many channels"
    driver.wait(2)
    assert driver.publish(b"x", channel=b"free")[0].error == b""


@pytest.mark.parametrize("later", [False, True])
def test_limits_that_changed_between_two_runs_hold_for_recovered_channels(*, later: bool) -> None:
    place = Place()
    driver = place.start(StoreLimits(channel=ChannelLimits(max_msgs=0)))
    driver.connect()
    for name in (b"few", b"few.x", b"old.x", b"temp.x", b"other"):
        driver.publish(*(b"%d" % i for i in range(10)), channel=name)
    driver.subscribe(b"few.x")
    place.clock.advance(10)
    driver = place.start(later=later)
    assert {n: count(driver, n) for n in (b"few", b"few.x", b"old.x", b"other")} == {
        b"few": 3,
        b"few.x": 10,
        b"old.x": 0,
        b"other": 10,
    }
    assert subscribe_error(driver, b"few.x") == b"too many subscriptions per channel"
    while driver.broker.later:
        driver.broker.open_next()
    driver.wait(2)
    assert names(driver) == {b"few", b"few.x", b"old.x", b"other"}


def test_more_channels_than_the_limit_are_recovered_and_none_is_added() -> None:
    place = Place()
    driver = place.start(StoreLimits(0))
    driver.connect()
    for i in range(6):
        driver.publish(b"x", channel=b"c.%d" % i)
    driver = place.start()
    assert len(names(driver)) == 6
    assert driver.publish(b"y", channel=b"c.5")[0].error == b""
    assert driver.publish(b"y", channel=b"c.6")[0].error == b"too many channels"


# ---- changes while serving
# -------------------------------------------------------------------------------------------


def with_limits(**limits: object) -> StoreLimits:
    return replace(LIMITS, **limits)  # type: ignore[arg-type]


def test_a_change_says_what_changed_and_no_change_says_nothing(driver: Driver) -> None:
    assert driver.broker.set_limits(LIMITS) == []
    assert driver.broker.set_limits(with_limits(max_channels=9)) == ["Channels: 4 -> 9"]
    assert driver.broker.set_limits(with_limits(max_channels=9)) == []


def test_messages_above_a_new_limit_go_within_a_second_and_below_a_larger_one_more_stay(
    driver: Driver,
) -> None:
    driver.publish(*(b"%d" % i for i in range(10)))
    driver.publish(*(b"%d" % i for i in range(10)), channel=b"few")
    driver.broker.set_limits(
        StoreLimits(4, ChannelLimits(max_msgs=5), (("few", replace(INHERIT, max_msgs=8)),))
    )
    second(driver)
    assert (count(driver, b"foo"), count(driver, b"few")) == (5, 3)
    driver.publish(*(b"%d" % i for i in range(10)), channel=b"few")
    assert count(driver, b"few") == 8


def test_subscriptions_above_a_new_limit_stay_and_none_is_added(driver: Driver) -> None:
    inbox = driver.subscribe(b"few", durable=b"dur", inbox=b"one")
    driver.subscribe(b"few", inbox=b"two")
    driver.broker.set_limits(with_limits(channel=ChannelLimits(max_subs=1)))
    assert subscribe_error(driver, b"few") == b"too many subscriptions per channel"
    driver.publish(b"a", channel=b"few")
    assert [sequences(driver.out, i) for i in (b"one", b"two")] == [[1], [1]]
    driver.leave(SUBJECTS.sub_close, inbox, channel=b"few")
    driver.subscribe(b"few", durable=b"dur", inbox=b"one")


def test_channels_above_a_new_limit_stay_and_none_is_added(driver: Driver) -> None:
    for i in range(4):
        driver.publish(b"x", channel=b"c.%d" % i)
    driver.broker.set_limits(with_limits(max_channels=2))
    assert [driver.publish(b"x", channel=n)[0].error for n in (b"c.3", b"c.4")] == [
        b"",
        b"too many channels",
    ]
    driver.broker.set_limits(with_limits(max_channels=5))
    assert driver.publish(b"x", channel=b"c.4")[0].error == b""


def test_a_new_limit_of_inactivity_gives_every_channel_the_whole_time(driver: Driver) -> None:
    driver.publish(b"a")
    driver.subscribe(b"used")
    driver.publish(b"a", channel=b"temp.x")
    driver.wait(1.5)
    driver.broker.set_limits(with_limits(channel=ChannelLimits(max_inactivity=5 * SECOND)))
    driver.wait(1)
    assert names(driver) == {b"foo", b"used"}
    driver.wait(3.9)
    assert names(driver) == {b"foo", b"used"}
    driver.wait(0.2)
    assert names(driver) == {b"used"}


@pytest.mark.parametrize(("new", "gone_after"), [(1, 1), (7, 7)])
def test_another_limit_of_inactivity_counts_from_the_change(
    driver: Driver, new: int, gone_after: int
) -> None:
    driver.publish(b"a", channel=b"temp.x")
    driver.wait(1.5)
    driver.broker.set_limits(
        with_limits(channels=(("temp.>", replace(INHERIT, max_inactivity=new * SECOND)),))
    )
    driver.wait(gone_after - 0.1)
    assert names(driver) == {b"temp.x"}
    driver.wait(0.2)
    assert names(driver) == set()


def test_without_the_limit_of_inactivity_a_channel_stays(driver: Driver) -> None:
    driver.publish(b"a", channel=b"temp.x")
    driver.wait(1.9)
    driver.broker.set_limits(with_limits(channels=()))
    driver.wait(100)
    assert names(driver) == {b"temp.x"}


def test_a_channel_that_is_due_when_its_limit_goes_stays(driver: Driver) -> None:
    driver.publish(b"a", channel=b"temp.x")
    driver.clock.advance(3)
    driver.broker.run_timers(driver.clock.wall_ns(), driver.now)
    driver.broker.set_limits(with_limits(channels=()))
    driver.run()
    assert names(driver) == {b"temp.x"}


def test_channels_that_are_opened_later_have_the_new_limits() -> None:
    place = Place()
    driver = place.start(StoreLimits(channel=ChannelLimits(max_msgs=0)))
    driver.connect()
    driver.publish(*(b"%d" % i for i in range(10)))
    driver = place.start(StoreLimits(channel=ChannelLimits(max_msgs=0)), later=True)
    driver.broker.set_limits(StoreLimits(channel=ChannelLimits(max_msgs=4)))
    assert count(driver, b"foo") == 4


def test_a_subscription_that_lags_skips_what_a_new_limit_drops(driver: Driver) -> None:
    inbox = driver.subscribe(max_in_flight=1)
    driver.publish(*(b"%d" % i for i in range(10)))
    driver.broker.set_limits(with_limits(channel=ChannelLimits(max_msgs=3)))
    second(driver)
    driver.broker.tick()
    driver.ack(inbox, 1)
    assert sequences(driver.out) == [1, 8]


def test_limits_are_looked_up_once_for_a_channel_and_never_for_a_message(driver: Driver) -> None:
    driver.publish(b"first", channel=b"few")
    looked: list[bytes] = []
    of = driver.broker.limits.of

    def note(name: bytes) -> ChannelLimits:
        looked.append(name)
        return of(name)

    driver.broker.limits.of = note  # type: ignore[method-assign]
    driver.publish(*(b"%d" % i for i in range(50)), channel=b"few")
    assert looked == []
    driver.publish(b"x", channel=b"new")
    assert looked == [b"new"]


def test_the_lookup_of_a_channels_limits_does_not_grow_with_the_entries() -> None:
    def cost(n: int) -> int:
        entries = tuple((f"c.{i}.x", replace(INHERIT, max_msgs=i + 1)) for i in range(n))
        limits = Limits(StoreLimits(0, channels=entries))
        return calls(lambda: limits.of(b"c.3.x"))

    assert cost(10) == cost(1000)


def test_a_server_refuses_limits_that_no_start_would_take_and_goes_on_with_the_old_ones(
    driver: Driver,
) -> None:
    _, server = serving()
    server.broker = driver.broker
    with pytest.raises(ConfigError, match="max messages limit cannot be negative"):
        server.set_limits(with_limits(channel=ChannelLimits(max_msgs=-1)))
    with pytest.raises(ConfigError, match="invalid channel name"):
        server.set_limits(with_limits(channels=(("a..b", INHERIT),)))
    driver.publish(*(b"%d" % i for i in range(10)), channel=b"few")
    assert count(driver, b"few") == 3
    assert server.set_limits(with_limits(channels=())) == [
        '"few": no limits of its own any more',
        '"few.*": no limits of its own any more',
        '"free": no limits of its own any more',
        '"old.>": no limits of its own any more',
        '"temp.>": no limits of its own any more',
    ]
    driver.publish(*(b"%d" % i for i in range(10)), channel=b"few")
    assert count(driver, b"few") == 13
