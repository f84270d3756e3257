"""What every store does, durable or not."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.config.limits import INHERIT, Limits
from ftstan.config.options import StoreLimits
from ftstan.stores.contract.place import (
    FREE,
    SECOND,
    START,
    Place,
    block_of,
    events,
    messages,
    opened,
    put,
    recovered,
    state,
)
from ftstan.stores.interface import ChannelLimits
from ftstan.wire import codec
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    from ftstan.stores.interface import Store


class StoreContract:
    """Statements about one process's store; the fixture ``place`` gives a fresh place for each."""

    def test_a_fresh_store_is_empty(self, place: Place) -> None:
        store, found = recovered(place)
        assert (found.info, found.clients, found.channels) == (None, [], [])
        assert store.commit() == {}
        store.confirm()
        store.close()

    def test_a_new_channel_has_nothing(self, place: Place) -> None:
        _, channel = opened(place)
        assert (channel.name, channel.first, channel.last, channel.count, channel.size) == (
            b"foo",
            0,
            0,
            0,
            0,
        )
        assert (channel.last_timestamp, channel.next_sub_id, list(channel.recovered_subs())) == (
            0,
            1,
            [],
        )
        assert channel.read(1, 10, 1000) is None
        assert channel.sequence_at(START) == 1

    def test_a_channel_can_be_kept_before_it_has_a_message(self, place: Place) -> None:
        store, channel = opened(place)
        channel.keep()
        assert store.commit() == {}
        store.confirm()
        assert (channel.first, channel.last, channel.count) == (0, 0, 0)
        put(store, channel, b"a")
        assert messages(channel) == [(1, b"a")]
        store.delete_channel(channel.name)

    def test_what_is_staged_is_not_there_before_its_commit(self, place: Place) -> None:
        store, channel = opened(place)
        put(store, channel, b"a")
        channel.append(block_of(channel, b"b", b"c"))
        channel.append(block_of(channel, b"d", first=4))
        assert (channel.last, channel.count, messages(channel)) == (1, 1, [(1, b"a")])
        assert store.commit() == {}
        assert messages(channel) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
        assert store.commit() == {}
        assert channel.count == 4

    def test_bounds_counts_and_timestamps_speak_of_what_is_stored(self, place: Place) -> None:
        store, channel = opened(place)
        block = block_of(channel, b"one", b"two", b"three", step=SECOND)
        payloads = block.sizes(0, 3)
        channel.append(block)
        store.commit()
        assert (channel.first, channel.last, channel.count) == (1, 3, 3)
        assert channel.size == payloads + 3 * place.overhead
        assert channel.last_timestamp == START + 2 * SECOND

    def test_channels_of_one_commit_are_kept_apart(self, place: Place) -> None:
        store, foo = opened(place)
        bar = store.create_channel(b"bar", FREE)
        for i in range(3):
            foo.append(block_of(foo, b"foo %d" % i))
            bar.append(block_of(bar, b"bar %d" % i))
            assert store.commit() == {}
        assert messages(foo) == [(i + 1, b"foo %d" % i) for i in range(3)]
        assert messages(bar) == [(i + 1, b"bar %d" % i) for i in range(3)]

    def test_every_message_of_any_size_and_batch_is_read_back_from_anywhere(
        self, place: Place
    ) -> None:
        rng = Random(5)
        store, channel = opened(place)
        written: list[bytes] = []
        for _ in range(20):
            batch = [
                rng.randbytes(rng.choice((0, 1, 100, 5000, 300_000)))
                for _ in range(rng.randint(1, 12))
            ]
            put(store, channel, *batch)
            written += batch
        assert messages(channel) == list(enumerate(written, 1))
        for _ in range(60):
            sequence = rng.randint(1, len(written))
            block = channel.read(sequence, rng.choice((1, 3, 1000)), rng.choice((1, 1000, 1 << 20)))
            assert block is not None
            i = block.position(sequence)
            assert block.sequence(i) == sequence
            assert codec.decode_msg_proto(block.payload(i))[3] == written[sequence - 1]
        assert channel.read(len(written) + 1, 10, 1000) is None

    def test_all_fields_of_a_message_are_kept(self, place: Place) -> None:
        store, channel = opened(place, name=place.odd_name)
        block = MsgBlock()
        block.append(1, channel.name, b"reply.to", b"\0\xff" * 9, START)
        wanted = block.payload(0)
        channel.append(block)
        store.commit()
        found = channel.read(1, 10, 1000)
        assert found is not None
        assert (len(found), found.payload(0), found.timestamp(0)) == (1, wanted, START)

    def test_times_are_looked_up_by_the_first_message_at_or_after_them(self, place: Place) -> None:
        store, channel = opened(place)
        for seconds in (0, 10, 10, 20, 20, 20, 30, 40, 50, 60):
            put(store, channel, b"x", at=START + seconds * SECOND)
        lookups = {-5: 1, 0: 1, 1: 2, 10: 2, 15: 4, 20: 4, 30: 7, 40: 8, 59: 10, 60: 10, 61: 11}
        assert {s: channel.sequence_at(START + s * SECOND) for s in lookups} == lookups

    def test_the_oldest_are_dropped_when_there_are_too_many(self, place: Place) -> None:
        store, channel = opened(place, ChannelLimits(max_msgs=10, max_bytes=0))
        for i in range(25):
            put(store, channel, b"%d" % (2 * i), b"%d" % (2 * i + 1))
        assert messages(channel) == [(i + 1, b"%d" % i) for i in range(40, 50)]
        assert (channel.first, channel.count) == (41, 10)
        block = channel.read(1, 100, 1 << 20)
        assert block is not None
        assert block.position(41) < len(block)

    def test_the_oldest_are_dropped_when_they_are_too_large_and_the_newest_always_stays(
        self, place: Place
    ) -> None:
        limit = 5 * (place.overhead + 120)
        store, channel = opened(place, ChannelLimits(max_msgs=0, max_bytes=limit))
        for i in range(30):
            put(store, channel, b"%02d" % i + b"x" * 80)
        one = channel.size // channel.count
        assert channel.count == limit // one
        assert [s for s, _ in messages(channel)] == list(range(31 - channel.count, 31))
        put(store, channel, b"y" * 10_000)
        assert (channel.first, channel.last, channel.count) == (31, 31, 1)
        assert channel.size > limit

    def test_messages_expire_from_the_front_when_they_reach_the_age(self, place: Place) -> None:
        store, channel = opened(place, ChannelLimits(max_msgs=0, max_bytes=0, max_age=100 * SECOND))
        for i in range(20):
            put(store, channel, b"%d" % i, at=START + i * SECOND)
        channel.expire(START + 100 * SECOND - 1)
        assert channel.first == 1
        channel.expire(START + 112 * SECOND)
        assert messages(channel) == [(i + 1, b"%d" % i) for i in range(13, 20)]
        assert channel.sequence_at(START) == 14
        store.tick(START + 113 * SECOND)
        assert channel.first == 15

    def test_when_everything_has_expired_the_sequence_goes_on(self, place: Place) -> None:
        store, channel = opened(place, ChannelLimits(max_msgs=0, max_bytes=0, max_age=SECOND))
        put(store, channel, b"a", b"b")
        channel.expire(START + SECOND)
        assert (channel.first, channel.last, channel.count, channel.size) == (3, 2, 0, 0)
        assert channel.read(1, 10, 1000) is None
        assert channel.sequence_at(0) == 3
        assert channel.last_timestamp == START
        put(store, channel, b"c", at=START + 5 * SECOND)
        assert messages(channel) == [(3, b"c")]
        assert channel.first == 3

    def test_a_purge_takes_everything_up_to_a_sequence_and_the_sequence_goes_on(
        self, place: Place
    ) -> None:
        store, channel = opened(place)
        channel.purge(10)
        assert (channel.first, channel.last, channel.count) == (0, 0, 0)
        put(store, channel, *(b"%d" % i for i in range(40)), step=SECOND)
        whole = channel.size
        written = messages(channel)
        for up_to in (0, 1, 9, 7, 23, 39):
            channel.purge(up_to)
            first = max(up_to, channel.first - 1) + 1
            assert messages(channel) == written[first - 1 :]
            assert (channel.first, channel.last) == (first, 40)
            assert (channel.size > 0, channel.size <= whole) == (True, True)
            assert channel.sequence_at(0) == first
        one = channel.size
        put(store, channel, b"another")
        assert messages(channel) == [(40, b"39"), (41, b"another")]
        assert channel.size > one
        channel.purge(1000)
        assert (channel.first, channel.last, channel.count, channel.size) == (42, 41, 0, 0)
        assert channel.read(1, 10, 1000) is None
        assert channel.sequence_at(0) == 42
        channel.purge(41)
        for _ in range(3):
            store.tick(START)
        put(store, channel, b"new", b"newer")
        assert messages(channel) == [(42, b"new"), (43, b"newer")]
        assert store.commit() == {}

    def test_what_limits_have_taken_does_not_come_back_when_more_is_purged(
        self, place: Place
    ) -> None:
        store, channel = opened(place, ChannelLimits(max_msgs=12, max_bytes=0))
        put(store, channel, *(b"%d" % i for i in range(30)))
        channel.purge(5)
        assert (channel.first, channel.count) == (19, 12)
        channel.purge(25)
        assert messages(channel) == [(i + 1, b"%d" % i) for i in range(25, 30)]
        put(store, channel, *(b"%d" % i for i in range(30, 40)))
        assert (channel.first, channel.last, channel.count) == (29, 40, 12)

    def test_a_young_head_keeps_older_messages_behind_it(self, place: Place) -> None:
        store, channel = opened(place, ChannelLimits(max_msgs=0, max_bytes=0, max_age=SECOND))
        put(store, channel, b"young", at=START + 10 * SECOND)
        put(store, channel, b"old", at=START)
        channel.expire(START + 5 * SECOND)
        assert channel.count == 2

    def test_each_channel_has_the_limits_that_it_was_made_with(self, place: Place) -> None:
        store, few = opened(place, ChannelLimits(max_msgs=2, max_bytes=0))
        many = store.create_channel(
            b"many", ChannelLimits(max_msgs=4, max_bytes=0, max_subs=7, max_inactivity=SECOND)
        )
        for channel in (few, many):
            put(store, channel, *(b"%d" % i for i in range(9)))
        assert (few.count, few.limits) == (2, ChannelLimits(max_msgs=2, max_bytes=0))
        assert (many.count, many.limits.max_subs, many.limits.max_inactivity) == (4, 7, SECOND)

    def test_other_limits_hold_for_what_is_stored_already_and_for_what_comes(
        self, place: Place
    ) -> None:
        store, foo = opened(place)
        bar = store.create_channel(b"bar", FREE)
        for channel in (foo, bar):
            put(store, channel, *(b"%d" % i for i in range(9)))
        store.set_limits(
            Limits(StoreLimits(channel=FREE, channels=(("foo", replace(INHERIT, max_msgs=3)),)))
        )
        _ticks(store, START)
        assert messages(foo) == [(i + 1, b"%d" % i) for i in range(6, 9)]
        assert (foo.limits.max_msgs, bar.limits, bar.count) == (3, FREE, 9)
        put(store, foo, b"9")
        assert (foo.first, foo.last, foo.count) == (8, 10, 3)
        store.set_limits(Limits.same(FREE))
        put(store, foo, b"10")
        assert (foo.last, foo.count) == (11, 4)

    def test_an_age_limit_that_comes_later_is_applied_to_what_is_there(self, place: Place) -> None:
        store, channel = opened(place)
        put(store, channel, *(b"%d" % i for i in range(10)), step=SECOND)
        _ticks(store, START + 100 * SECOND)
        assert channel.count == 10
        store.set_limits(Limits.same(replace(FREE, max_age=95 * SECOND)))
        _ticks(store, START + 100 * SECOND)
        assert (channel.first, channel.count) == (7, 4)
        store.set_limits(Limits.same(replace(FREE, max_age=98 * SECOND)))
        _ticks(store, START + 103 * SECOND)
        assert channel.first == 7
        _ticks(store, START + 104 * SECOND)
        assert channel.first == 8

    def test_an_age_limit_that_goes_keeps_what_is_still_there(self, place: Place) -> None:
        store, channel = opened(place, replace(FREE, max_age=5 * SECOND))
        put(store, channel, *(b"%d" % i for i in range(10)), step=SECOND)
        _ticks(store, START + 7 * SECOND)
        store.set_limits(Limits.same(FREE))
        _ticks(store, START + 100 * SECOND)
        assert (channel.first, channel.count) == (4, 7)

    def test_messages_of_many_channels_expire_each_at_its_time(self, place: Place) -> None:
        store, _ = opened(place)
        limits = replace(FREE, max_age=10 * SECOND)
        channels = [store.create_channel(b"c.%d" % i, limits) for i in range(300)]
        for i, channel in enumerate(channels):
            channel.append(block_of(channel, b"x", at=START + (i % 3) * SECOND))
        assert store.commit() == {}
        for late in range(3):
            assert [c.count for c in channels] == [int(i % 3 >= late) for i in range(300)]
            _ticks(store, START + (10 + late) * SECOND)
        assert {(c.first, c.last, c.count) for c in channels} == {(2, 1, 0)}
        put(store, channels[7], b"y", at=START + 100 * SECOND)
        _ticks(store, START + 109 * SECOND)
        assert channels[7].count == 1
        _ticks(store, START + 110 * SECOND)
        assert channels[7].count == 0

    def test_subscription_ids_go_up(self, place: Place) -> None:
        store, channel = opened(place)
        for sub_id in (1, 2, 3):
            assert channel.next_sub_id == sub_id
            channel.add_sub(state(sub_id))
        channel.delete_sub(3)
        store.commit()
        assert channel.next_sub_id == 4

    def test_the_store_takes_events_and_leaves_their_list_empty(self, place: Place) -> None:
        store, channel = opened(place)
        channel.add_sub(state(1))
        put(store, channel, b"a")
        sent = events(("sent", 1, 1))
        channel.add_events(sent)
        assert len(sent) == 0
        store.write_events()

    def test_a_channel_that_is_unknown_or_in_use_is_not_deleted(self, place: Place) -> None:
        store, channel = opened(place)
        put(store, channel, b"a")
        assert _is_refused(store, b"nobody")
        channel.append(block_of(channel, b"b"))
        assert _is_refused(store, b"foo")
        assert store.commit() == {}
        assert messages(channel) == [(1, b"a"), (2, b"b")]


def _ticks(store: Store, now_ns: int) -> None:
    """All the work of one second."""
    for _ in range(100):
        if not store.tick(now_ns):
            return
    raise AssertionError("the store never comes to an end with its work of one second")


def _is_refused(store: Store, name: bytes) -> bool:
    try:
        store.delete_channel(name)
    except StoreError:
        return True
    return False
