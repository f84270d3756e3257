"""What monitoring sees of a broker, and what operators find and do not find in one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import RefusedError
from ftstan.base.log import stream
from ftstan.broker import managing, views
from ftstan.broker.ahead import tell_ahead
from ftstan.broker.bounds import exhausted
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.records import info_of, subjects_of
from ftstan.config.options import ChannelLimits
from ftstan.stores.interface import AHEAD_NS, MAX_NUMBER
from ftstan.stores.memory import MemoryChannel
from ftstan.wire.subjects import Subjects
from tests.compat.driver import SECOND, SUBJECTS, Driver

if TYPE_CHECKING:
    from ftstan.broker.state import Channel


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    made.connect(b"you")
    made.publish(b"a", b"bb")
    made.publish(b"c", channel=b"bar")
    made.subscribe(durable=b"dur", max_in_flight=1)
    made.subscribe(client_id=b"you", inbox=b"in2", queue=b"g", ack_wait=7)
    return made


def channel_of(driver: Driver, name: bytes = b"foo") -> Channel:
    return managing.find_channel(driver.broker, name)


def test_monitoring_sees_clients_channels_and_subscriptions(driver: Driver) -> None:
    broker = driver.broker
    assert sorted(views.client_names(broker)) == [b"me", b"you"]
    broker.later = {b"later": None}
    assert sorted(views.channel_names(broker)) == [b"bar", b"foo", b"later"]
    (row,) = views.client_rows([managing.find_client(broker, b"me")])
    assert (row.client_id, row.hb_inbox, len(row.subs)) == (b"me", b"hb.me", 1)
    foo = channel_of(driver)
    (with_subs,) = views.channel_rows([foo], subs=True)
    (without,) = views.channel_rows([foo], subs=False)
    assert with_subs[:6] == without[:6] == (b"foo", 2, foo.store.size, 1, 2, 2)
    assert (len(with_subs.subs), without.subs) == (2, [])
    first, second = (views.SubRow._make(sub) for sub in views.sub_rows(with_subs.subs))
    assert (first.client_id, first.durable, first.pending, first.stalled) == (
        b"me",
        b"dur",
        1,
        True,
    )
    assert (second.client_id, second.queue, second.ack_wait) == (b"you", b"g", 7 * SECOND)


def test_the_census_has_figures_of_each_channel(driver: Driver) -> None:
    foo = channel_of(driver)
    bar = channel_of(driver, b"bar")
    bar.refused = b"damaged"
    one, other = views.census([foo, bar])
    assert one[:8] == (b"foo", 2, foo.store.size, 2, 2, 3, 1, 1)
    assert (one.quarantined, other.quarantined) == (False, True)
    assert other[:8] == (b"bar", 1, bar.store.size, 1, 0, 0, 0, 0)
    assert other.limits == bar.store.limits
    assert driver.broker.quarantined == [b"bar"]


def test_what_is_not_there_is_refused_with_where_to_look(driver: Driver) -> None:
    broker = driver.broker
    with pytest.raises(RefusedError, match='there is no channel "none"'):
        managing.find_channel(broker, b"none")
    with pytest.raises(RefusedError, match='no client "none" is registered'):
        managing.find_client(broker, b"none")
    with pytest.raises(RefusedError, match='channel "foo" has no subscription 77'):
        managing.find_sub(broker, b"foo", 77)
    assert managing.find_sub(broker, b"foo", 2).client_id == b"you"


def test_rows_leave_out_what_has_gone_since(driver: Driver) -> None:
    broker = driver.broker
    assert [row["id"] for row in managing.client_rows(broker, [b"gone", b"you"])] == ["you"]
    assert [row["name"] for row in managing.channel_rows(broker, [b"gone", b"bar"])] == ["bar"]
    rows = managing.sub_rows(broker, [b"gone", b"foo"], b"", (b"", 0), 10)
    assert [row["id"] for row in rows] == [1, 2]
    managing.delete_channel(broker, channel_of(driver, b"bar"))
    rows[0]["channel"] = "bar"
    managing.add_ages(broker, rows, driver.clock.wall_ns())
    assert rows[0]["oldest_unread_age_s"] is None


def test_subscriptions_are_listed_in_portions_and_of_one_client(driver: Driver) -> None:
    broker = driver.broker
    driver.subscribe(b"bar", inbox=b"in3")

    def ids(client_id: bytes, after: tuple[bytes, int], most: int) -> list[tuple[str, int]]:
        rows = managing.sub_rows(broker, [b"foo", b"bar"], client_id, after, most)
        return [(row["channel"], row["id"]) for row in rows]

    assert ids(b"", (b"", 0), 1) == [("foo", 1)]
    assert ids(b"", (b"foo", 1), 10) == [("foo", 2), ("bar", 1)]
    assert ids(b"me", (b"", 0), 10) == [("foo", 1), ("bar", 1)]


def test_a_channel_is_made_once_and_under_a_name_of_its_own(driver: Driver) -> None:
    broker = driver.broker
    for name, why in (
        (b"foo", 'there is a channel "foo" already'),
        (b"server.dat", '"server.dat" cannot name a channel'),
        (b"a..b", '"a..b" cannot name a channel'),
        (b"FOO", "foo"),
    ):
        with pytest.raises(RefusedError, match=why):
            managing.create_channel(broker, name)


def test_limits_of_channels_hold_for_operators_too() -> None:
    driver = Driver(options=BrokerOptions(max_channels=1))
    managing.create_channel(driver.broker, b"one")
    with pytest.raises(RefusedError) as caught:
        managing.create_channel(driver.broker, b"two")
    assert caught.value.hint == "see the limits of channels"


@pytest.mark.parametrize(
    ("last", "next_sub_id", "said"),
    [
        (MAX_NUMBER, MAX_NUMBER, ""),
        (MAX_NUMBER + 1, 1, f"sequence {MAX_NUMBER + 1}"),
        (1, MAX_NUMBER + 1, f"subscription id {MAX_NUMBER}"),
    ],
)
def test_a_channel_without_numbers_left_is_named(last: int, next_sub_id: int, said: str) -> None:
    store = SimpleNamespace(last=last, next_sub_id=next_sub_id)
    found = exhausted(store)
    assert said in found
    assert bool(said) == bool(found)


def test_a_channel_whose_newest_message_is_of_the_future_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(stream, "warning", lambda text, **_: lines.append(text))
    channel = MemoryChannel(b"foo", ChannelLimits(), [], None)  # type: ignore[arg-type]
    now = 1_700_000_000 * SECOND
    channel.last_timestamp = now + AHEAD_NS
    tell_ahead(channel, now)
    assert lines == []
    channel.last = 9
    channel.last_timestamp = now + 20 * 86_400 * SECOND
    tell_ahead(channel, now)
    assert lines[0].startswith(
        'channel "foo": message 9 has the time 2023-12-04 22:13:20Z, 20 days from now: '
    )


def test_the_subjects_of_a_store_are_those_that_were_recorded() -> None:
    info = info_of("tc", SUBJECTS)
    other = Subjects.for_cluster("other")
    assert subjects_of(info, other) == SUBJECTS
    # A record of an old original has none for closing a subscription.
    assert subjects_of(replace(info, sub_close=""), other) == replace(
        SUBJECTS, sub_close=other.sub_close
    )
