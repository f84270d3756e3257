"""What the next process finds in a store that is durable."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import RefusedError
from ftstan.config.limits import INHERIT, Limits
from ftstan.config.options import StoreLimits
from ftstan.stores.contract.place import (
    FREE,
    INFO,
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
    subs,
)
from ftstan.stores.interface import ChannelLimits, ClientInfo, ServerInfo, StoredAt, SubState

if TYPE_CHECKING:
    from ftstan.stores.interface import Store


class DurableContract:
    """Statements about processes that open the same store one after the other."""

    def test_a_committed_message_is_there_after_a_clean_stop_and_after_none(
        self, place: Place
    ) -> None:
        written: list[tuple[int, bytes]] = []
        for i in range(8):
            store, channel = opened(place)
            assert messages(channel) == written
            put(store, channel, b"a%d" % i, b"b%d" % i)
            written = messages(channel)
            channel.append(block_of(channel, b"never committed"))
            if i % 2:
                store.close()
            else:
                store.abandon()
        assert [s for s, _ in written] == list(range(1, 17))

    def test_a_channel_that_was_kept_is_there_without_a_message(self, place: Place) -> None:
        store, channel = opened(place)
        channel.keep()
        assert store.commit() == {}
        store.abandon()
        for _ in range(2):
            store, found = recovered(place)
            assert [(c.name, c.last, c.count) for c in found.channels] == [(b"foo", 0, 0)]
            store.close()
        store, channel = opened(place)
        put(store, channel, b"a")
        store.abandon()
        assert messages(opened(place)[1]) == [(1, b"a")]

    def test_the_mark_of_encrypted_payloads_is_there(self, place: Place) -> None:
        store, _ = opened(place)
        store.set_server_info(replace(INFO, encrypted=True))
        store.close()
        store, found = recovered(place)
        assert found.info is not None
        assert found.info.encrypted
        store.close()

    def test_identity_and_clients_are_there(self, place: Place) -> None:
        store, _ = recovered(place)
        store.set_server_info(INFO)
        store.add_client(ClientInfo(b"a", b"hb.a", b"conn", 1, 5, 3))
        store.add_client(ClientInfo(b"b", b"hb.b"))
        store.commit()
        store.add_client(ClientInfo(b"c", b"hb.c"))
        store.delete_client(b"b")
        store.commit()
        store.abandon()
        for _ in range(2):
            store, found = recovered(place)
            assert found.info == INFO
            assert {c.client_id: c for c in found.clients} == {
                b"a": ClientInfo(b"a", b"hb.a", b"conn", 1, 5, 3),
                b"c": ClientInfo(b"c", b"hb.c"),
            }
            store.close()

    def test_identity_can_be_changed(self, place: Place) -> None:
        store, _ = recovered(place)
        store.set_server_info(INFO)
        store.set_server_info(ServerInfo("other", *("x" * 7)))
        store.abandon()
        assert recovered(place)[1].info == ServerInfo("other", *("x" * 7))

    def test_subscriptions_are_there_with_their_last_state(self, place: Place) -> None:
        store, channel = opened(place)
        for sub_id in (1, 2, 3):
            channel.add_sub(state(sub_id))
        store.commit()
        channel.update_sub(state(2, inbox=b"new", is_closed=True))
        channel.delete_sub(3)
        store.commit()
        store.abandon()
        for _ in range(2):
            found = subs(place)
            assert {i: s.state for i, s in found.items()} == {
                1: state(1),
                2: state(2, inbox=b"new", is_closed=True),
            }
            store, channel = opened(place)
            assert channel.next_sub_id == 4
            put(store, channel, b"x")
            store.close()

    def test_all_kinds_of_subscriptions_are_kept_as_they_are(self, place: Place) -> None:
        store, channel = opened(place)
        kinds = [
            SubState(
                1,
                b"me",
                inbox=b"i",
                ack_inbox=b"a",
                max_in_flight=2**31 - 1,
                ack_wait_secs=1_000_000_000,
            ),
            SubState(2, b"me", queue=b"group", inbox=b"i"),
            SubState(3, b"", queue=b"dur:group", inbox=b"i", is_durable=True, last_sent=0),
            SubState(4, b"\xff", inbox=b"", durable_name=b"\xfe", is_durable=True, is_closed=True),
        ]
        for kind in kinds:
            channel.add_sub(kind)
        store.commit()
        store.close()
        assert [s.state for _, s in sorted(subs(place).items())] == kinds

    def test_what_was_sent_and_acknowledged_is_there_after_a_clean_stop(self, place: Place) -> None:
        _deliver(place).close()
        _check_delivered(place)

    def test_what_was_sent_and_acknowledged_is_there_after_a_second(self, place: Place) -> None:
        store = _deliver(place)
        store.tick(START)
        store.abandon()
        _check_delivered(place)

    def test_what_was_sent_and_acknowledged_survives_the_process(self, place: Place) -> None:
        # Killed is the process, not the machine: what was handed to the file system is there.
        _deliver(place).abandon()
        _check_delivered(place)

    def test_events_of_a_recovered_subscription_are_kept_too(self, place: Place) -> None:
        store, channel = opened(place)
        channel.add_sub(state(1))
        put(store, channel, b"a", b"b")
        channel.add_events(events(("sent", 1, 1), ("sent", 1, 2)))
        store.close()
        store, channel = opened(place)
        channel.add_events(events(("acked", 1, 2)))
        store.write_events()
        store.tick(START)
        store.abandon()
        assert subs(place)[1].pending == {1}
        store, channel = opened(place)
        channel.update_sub(state(1, last_sent=2, inbox=b"new"))
        store.commit()
        store.abandon()
        found = subs(place)[1]
        assert (found.state.inbox, found.pending) == (b"new", {1})

    def test_a_tick_before_the_commit_forgets_nothing_that_is_staged(self, place: Place) -> None:
        store, channel = opened(place)
        channel.add_sub(state(1))
        channel.append(block_of(channel, b"a"))
        store.tick(START)
        assert store.commit() == {}
        assert messages(channel) == [(1, b"a")]
        store.abandon()
        assert list(subs(place)) == [1]

    def test_dropped_messages_do_not_lower_the_sequence(self, place: Place) -> None:
        limits = ChannelLimits(max_msgs=3, max_bytes=0, max_age=100 * SECOND)
        store, channel = opened(place, limits)
        put(store, channel, *(b"%d" % i for i in range(30)))
        store.tick(START)
        store.close()
        place.clock.advance(1)
        store, channel = opened(place, limits)
        assert (channel.first, channel.last, channel.count) == (28, 30, 3)
        store.tick(START + 100 * SECOND)
        store.close()
        place.clock.advance(200)
        store, channel = opened(place, limits)
        assert (channel.first, channel.last, channel.count) == (31, 30, 0)
        put(store, channel, b"on", at=place.clock.wall_ns())
        assert messages(channel) == [(31, b"on")]

    def test_what_was_purged_stays_away_and_everything_else_is_there(self, place: Place) -> None:
        for clean in (True, False):
            for up_to in (1, 5, 17, 29, 30):
                store, channel = opened(place)
                start = channel.last
                put(store, channel, *(b"%d" % i for i in range(30)))
                channel.add_sub(state(channel.next_sub_id))
                assert store.commit() == {}
                channel.purge(start + up_to)
                kept = messages(channel)
                assert [s for s, _ in kept] == list(range(start + up_to + 1, start + 31))
                store.close() if clean else store.abandon()
                for again in (True, False):
                    store, channel = opened(place)
                    assert messages(channel) == kept
                    assert (channel.first, channel.last) == (start + up_to + 1, start + 30)
                    assert list(channel.recovered_subs())
                    store.close() if again else store.abandon()
                store, channel = opened(place)
                put(store, channel, b"more")
                kept.append((start + 31, b"more"))
                store.tick(START)
                store.abandon()
                assert messages(opened(place)[1]) == kept

    def test_a_mark_that_a_channel_has_moved_is_refused_or_durable(self, place: Place) -> None:
        for clean in (True, False):
            store, channel = opened(place)
            put(store, channel, b"a")
            assert channel.mover is None
            try:
                channel.set_moved(b"bridge")
            except RefusedError:
                assert channel.mover is None
                channel.set_moved(None)
                store.close()
                continue
            store.close() if clean else store.abandon()
            store, channel = opened(place)
            assert channel.mover == b"bridge"
            channel.set_moved(None)
            store.abandon()
            store, channel = opened(place)
            assert channel.mover is None
            store.close()

    def test_a_channel_made_again_after_a_purge_and_a_deletion_shows_everything(
        self, place: Place
    ) -> None:
        store, channel = opened(place)
        put(store, channel, *(b"%d" % i for i in range(20)))
        channel.purge(20)
        store.delete_channel(b"foo")
        put(store, store.create_channel(b"foo", FREE), b"a", b"b")
        store.close()
        assert messages(opened(place)[1]) == [(1, b"a"), (2, b"b")]

    def test_recovered_channels_have_the_limits_of_the_process_that_finds_them(
        self, place: Place
    ) -> None:
        store, foo = opened(place)
        bar = store.create_channel(b"bar.x", FREE)
        for channel in (foo, bar):
            put(store, channel, *(b"%d" % i for i in range(20)))
        store.close()
        few = (
            ("foo", replace(INHERIT, max_msgs=5)),
            ("bar.*", replace(INHERIT, max_msgs=8, max_subs=3)),
        )
        store, found = recovered(place, Limits(StoreLimits(channel=FREE, channels=few)))
        channels = {c.name: c for c in found.channels}
        assert (channels[b"foo"].first, channels[b"foo"].limits) == (16, replace(FREE, max_msgs=5))
        assert (channels[b"bar.x"].first, channels[b"bar.x"].limits) == (
            13,
            replace(FREE, max_msgs=8, max_subs=3),
        )
        put(store, channels[b"bar.x"], b"more")
        assert channels[b"bar.x"].first == 14
        store.close()

    def test_recovered_messages_expire_without_any_new_one(self, place: Place) -> None:
        limits = replace(FREE, max_age=100 * SECOND)
        store, channel = opened(place, limits)
        put(store, channel, b"a", b"b", at=place.clock.wall_ns())
        store.abandon()
        place.clock.advance(99)
        store, channel = opened(place, limits)
        store.tick(place.clock.wall_ns())
        assert channel.count == 2
        place.clock.advance(1)
        store.tick(place.clock.wall_ns())
        assert (channel.first, channel.last, channel.count) == (3, 2, 0)
        store.abandon()

    def test_remembered_publishes_are_there_in_order_up_to_the_last_ones(
        self, place: Place
    ) -> None:
        window: dict[bytes, StoredAt] = {}
        for i in range(400):
            if i % 40 == 0:
                store, found = recovered(place)
                assert list(found.remembered.items())[-len(window) :] == list(window.items())
                window = dict(list(found.remembered.items())[-50:])
            fresh = [i.to_bytes(16, "big"), (1000 + i).to_bytes(16, "big")]
            window |= dict.fromkeys(fresh, StoredAt(i + 1, 1 << 31))
            store.remember(fresh, window)
            if i % 40 == 39:
                store.close() if i % 80 == 39 else store.abandon()

    def test_an_abandoned_store_has_written_nothing_more(self, place: Place) -> None:
        store, channel = opened(place)
        put(store, channel, b"a")
        channel.append(block_of(channel, b"staged"))
        channel.add_sub(state(1))
        store.add_client(ClientInfo(b"staged", b"hb"))
        store.abandon()
        store, found = recovered(place)
        assert found.clients == []
        assert messages(found.channels[0]) == [(1, b"a")]
        assert list(found.channels[0].recovered_subs()) == []

    def test_a_deleted_channel_is_gone_and_one_of_the_same_name_starts_anew(
        self, place: Place
    ) -> None:
        store, channel = opened(place)
        channel.add_sub(state(1))
        put(store, channel, b"a", b"b")
        put(store, store.create_channel(b"bar", FREE), b"c")
        store.delete_channel(b"foo")
        store.abandon()
        store, found = recovered(place)
        assert [c.name for c in found.channels] == [b"bar"]
        again = store.create_channel(b"foo", FREE)
        put(store, again, b"new")
        assert messages(again) == [(1, b"new")]
        store.close()
        _, found = recovered(place)
        assert {c.name: messages(c) for c in found.channels} == {
            b"bar": [(1, b"c")],
            b"foo": [(1, b"new")],
        }


def _deliver(place: Place) -> Store:
    store, channel = opened(place)
    channel.add_sub(state(1))
    put(store, channel, b"a", b"b", b"c", b"d")
    channel.add_events(
        events(("sent", 1, 1), ("sent", 1, 2), ("acked", 1, 1), ("sent", 1, 3), ("acked", 1, 3))
    )
    store.write_events()
    return store


def _check_delivered(place: Place) -> None:
    (found,) = subs(place).values()
    assert (found.pending, found.state.last_sent) == ({2}, 3)
