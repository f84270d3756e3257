"""What every store does, durable or not."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from ftstan.errors import StoreError
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
        assert (channel.name, channel.first, channel.last, channel.count, channel.size) == (b"foo", 0, 0, 0, 0)
        assert (channel.last_timestamp, channel.next_sub_id, list(channel.recovered_subs())) == (0, 1, [])
        assert channel.read(1, 10, 1000) is None
        assert channel.sequence_at(START) == 1

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

    def test_every_message_of_any_size_and_batch_is_read_back_from_anywhere(self, place: Place) -> None:
        rng = Random(5)
        store, channel = opened(place)
        written: list[bytes] = []
        for _ in range(20):
            batch = [rng.randbytes(rng.choice((0, 1, 100, 5000, 300_000))) for _ in range(rng.randint(1, 12))]
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
        store, channel = opened(place, name=b"\xff\xfe name")
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

    def test_the_oldest_are_dropped_when_they_are_too_large_and_the_newest_always_stays(self, place: Place) -> None:
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

    def test_a_young_head_keeps_older_messages_behind_it(self, place: Place) -> None:
        store, channel = opened(place, ChannelLimits(max_msgs=0, max_bytes=0, max_age=SECOND))
        put(store, channel, b"young", at=START + 10 * SECOND)
        put(store, channel, b"old", at=START)
        channel.expire(START + 5 * SECOND)
        assert channel.count == 2

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


def _is_refused(store: Store, name: bytes) -> bool:
    try:
        store.delete_channel(name)
    except StoreError:
        return True
    return False
