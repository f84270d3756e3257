"""One suite for every store: the contract of ``ftstan.stores.interface``."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.interface import ChannelLimits, ClientInfo, ServerInfo, SubState
from ftstan.wire import codec
from ftstan.wire.block import MsgBlock, SubEvents
from tests.contract.places import KINDS, Kind, Place
from tests.sim.history import INFO
from tests.sim.model import read_all

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.interface import ChannelStore, Recovered, Store, StoredSub

SECOND = 1_000_000_000
START = 1_700_000_000_000_000_000
FREE = ChannelLimits(max_msgs=0, max_bytes=0)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    kind: Kind = request.param
    return kind.make(tmp_path)


@pytest.fixture(params=[kind for kind in KINDS if kind.durable], ids=lambda kind: kind.name)
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place that keeps what its stores leave."""
    kind: Kind = request.param
    return kind.make(tmp_path)


def opened(place: Place, limits: ChannelLimits = FREE, name: bytes = b"foo") -> tuple[Store, ChannelStore]:
    """A new process: its store, and one channel of it."""
    store, found = recovered(place, limits)
    channels = {c.name: c for c in found.channels}
    return store, channels[name] if name in channels else store.create_channel(name, limits)


def recovered(place: Place, limits: ChannelLimits = FREE) -> tuple[Store, Recovered]:
    store = place.open(limits)
    return store, store.recover()


def block_of(channel: ChannelStore, *data: bytes, first: int = 0, at: int = START, step: int = 0) -> MsgBlock:
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
    return [(s, codec.decode_msg_proto(p)[3]) for s, p in read_all(channel).items()]


def state(sub_id: int, **changes: bytes | int) -> SubState:
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
    made = SubEvents()
    for kind, sub_id, sequence in rows:
        (made.sent if kind == "sent" else made.acked)(sub_id, sequence)
    return made


# ---- messages ------------------------------------------------------------------------------------------------------


def test_a_fresh_store_is_empty(place: Place) -> None:
    store, found = recovered(place)
    assert (found.info, found.clients, found.channels) == (None, [], [])
    assert store.commit() == {}
    store.confirm()
    store.close()


def test_a_new_channel_has_nothing(place: Place) -> None:
    _, channel = opened(place)
    assert (channel.name, channel.first, channel.last, channel.count, channel.size) == (b"foo", 0, 0, 0, 0)
    assert (channel.last_timestamp, channel.next_sub_id, list(channel.recovered_subs())) == (0, 1, [])
    assert channel.read(1, 10, 1000) is None
    assert channel.sequence_at(START) == 1


def test_what_is_staged_is_not_there_before_its_commit(place: Place) -> None:
    store, channel = opened(place)
    put(store, channel, b"a")
    channel.append(block_of(channel, b"b", b"c"))
    channel.append(block_of(channel, b"d", first=4))
    assert (channel.last, channel.count, messages(channel)) == (1, 1, [(1, b"a")])
    assert store.commit() == {}
    assert messages(channel) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    assert store.commit() == {}
    assert channel.count == 4


def test_bounds_counts_and_timestamps_speak_of_what_is_stored(place: Place) -> None:
    store, channel = opened(place)
    block = block_of(channel, b"one", b"two", b"three", step=SECOND)
    payloads = block.sizes(0, 3)
    channel.append(block)
    store.commit()
    assert (channel.first, channel.last, channel.count) == (1, 3, 3)
    assert channel.size == payloads + 3 * place.overhead
    assert channel.last_timestamp == START + 2 * SECOND


def test_channels_of_one_commit_are_kept_apart(place: Place) -> None:
    store, foo = opened(place)
    bar = store.create_channel(b"bar", FREE)
    for i in range(3):
        foo.append(block_of(foo, b"foo %d" % i))
        bar.append(block_of(bar, b"bar %d" % i))
        assert store.commit() == {}
    assert messages(foo) == [(i + 1, b"foo %d" % i) for i in range(3)]
    assert messages(bar) == [(i + 1, b"bar %d" % i) for i in range(3)]


def test_every_message_of_any_size_and_batch_is_read_back_from_anywhere(place: Place) -> None:
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


def test_all_fields_of_a_message_are_kept(place: Place) -> None:
    store, channel = opened(place, name=b"\xff\xfe name")
    block = MsgBlock()
    block.append(1, channel.name, b"reply.to", b"\0\xff" * 9, START)
    wanted = block.payload(0)
    channel.append(block)
    store.commit()
    found = channel.read(1, 10, 1000)
    assert found is not None
    assert (len(found), found.payload(0), found.timestamp(0)) == (1, wanted, START)


def test_times_are_looked_up_by_the_first_message_at_or_after_them(place: Place) -> None:
    store, channel = opened(place)
    for seconds in (0, 10, 10, 20, 20, 20, 30, 40, 50, 60):
        put(store, channel, b"x", at=START + seconds * SECOND)
    lookups = {-5: 1, 0: 1, 1: 2, 10: 2, 15: 4, 20: 4, 30: 7, 40: 8, 59: 10, 60: 10, 61: 11}
    assert {s: channel.sequence_at(START + s * SECOND) for s in lookups} == lookups


# ---- limits --------------------------------------------------------------------------------------------------------


def test_the_oldest_are_dropped_when_there_are_too_many(place: Place) -> None:
    store, channel = opened(place, ChannelLimits(max_msgs=10, max_bytes=0))
    for i in range(25):
        put(store, channel, b"%d" % (2 * i), b"%d" % (2 * i + 1))
    assert messages(channel) == [(i + 1, b"%d" % i) for i in range(40, 50)]
    assert (channel.first, channel.count) == (41, 10)
    block = channel.read(1, 100, 1 << 20)
    assert block is not None
    assert block.position(41) < len(block)


def test_the_oldest_are_dropped_when_they_are_too_large_and_the_newest_always_stays(place: Place) -> None:
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


def test_messages_expire_from_the_front_when_they_reach_the_age(place: Place) -> None:
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


def test_when_everything_has_expired_the_sequence_goes_on(place: Place) -> None:
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


def test_a_young_head_keeps_older_messages_behind_it(place: Place) -> None:
    store, channel = opened(place, ChannelLimits(max_msgs=0, max_bytes=0, max_age=SECOND))
    put(store, channel, b"young", at=START + 10 * SECOND)
    put(store, channel, b"old", at=START)
    channel.expire(START + 5 * SECOND)
    assert channel.count == 2


# ---- subscriptions -------------------------------------------------------------------------------------------------


def test_subscription_ids_go_up(place: Place) -> None:
    store, channel = opened(place)
    for sub_id in (1, 2, 3):
        assert channel.next_sub_id == sub_id
        channel.add_sub(state(sub_id))
    channel.delete_sub(3)
    store.commit()
    assert channel.next_sub_id == 4


def test_the_store_takes_events_and_leaves_their_list_empty(place: Place) -> None:
    store, channel = opened(place)
    channel.add_sub(state(1))
    put(store, channel, b"a")
    sent = events(("sent", 1, 1))
    channel.add_events(sent)
    assert len(sent) == 0
    store.write_events()


# ---- what the next process finds -----------------------------------------------------------------------------------


def subs(place: Place) -> dict[int, StoredSub]:
    store, found = recovered(place)
    (channel,) = found.channels
    rows = {s.state.sub_id: s for s in channel.recovered_subs()}
    store.abandon()
    return rows


def test_a_committed_message_is_there_after_a_clean_stop_and_after_none(durable: Place) -> None:
    written: list[tuple[int, bytes]] = []
    for i in range(8):
        store, channel = opened(durable)
        assert messages(channel) == written
        put(store, channel, b"a%d" % i, b"b%d" % i)
        written = messages(channel)
        channel.append(block_of(channel, b"never committed"))
        if i % 2:
            store.close()
        else:
            store.abandon()
    assert [s for s, _ in written] == list(range(1, 17))


def test_identity_and_clients_are_there(durable: Place) -> None:
    store, _ = recovered(durable)
    store.set_server_info(INFO)
    store.add_client(ClientInfo(b"a", b"hb.a", b"conn", 1, 5, 3))
    store.add_client(ClientInfo(b"b", b"hb.b"))
    store.commit()
    store.add_client(ClientInfo(b"c", b"hb.c"))
    store.delete_client(b"b")
    store.commit()
    store.abandon()
    for _ in range(2):
        store, found = recovered(durable)
        assert found.info == INFO
        assert {c.client_id: c for c in found.clients} == {
            b"a": ClientInfo(b"a", b"hb.a", b"conn", 1, 5, 3),
            b"c": ClientInfo(b"c", b"hb.c"),
        }
        store.close()


def test_identity_can_be_changed(durable: Place) -> None:
    store, _ = recovered(durable)
    store.set_server_info(INFO)
    store.set_server_info(ServerInfo("other", *("x" * 7)))
    store.abandon()
    assert recovered(durable)[1].info == ServerInfo("other", *("x" * 7))


def test_subscriptions_are_there_with_their_last_state(durable: Place) -> None:
    store, channel = opened(durable)
    for sub_id in (1, 2, 3):
        channel.add_sub(state(sub_id))
    store.commit()
    channel.update_sub(state(2, inbox=b"new", is_closed=True))
    channel.delete_sub(3)
    store.commit()
    store.abandon()
    for _ in range(2):
        found = subs(durable)
        assert {i: s.state for i, s in found.items()} == {1: state(1), 2: state(2, inbox=b"new", is_closed=True)}
        store, channel = opened(durable)
        assert channel.next_sub_id == 4
        put(store, channel, b"x")
        store.close()


def test_all_kinds_of_subscriptions_are_kept_as_they_are(durable: Place) -> None:
    store, channel = opened(durable)
    kinds = [
        SubState(1, b"me", inbox=b"i", ack_inbox=b"a", max_in_flight=2**31 - 1, ack_wait_secs=1_000_000_000),
        SubState(2, b"me", queue=b"group", inbox=b"i"),
        SubState(3, b"", queue=b"dur:group", inbox=b"i", is_durable=True, last_sent=0),
        SubState(4, b"\xff", inbox=b"", durable_name=b"\xfe", is_durable=True, is_closed=True),
    ]
    for kind in kinds:
        channel.add_sub(kind)
    store.commit()
    store.close()
    assert [s.state for _, s in sorted(subs(durable).items())] == kinds


@pytest.mark.parametrize("end", ["close", "tick", "write"])
def test_what_was_sent_and_acknowledged_is_there(durable: Place, end: str) -> None:
    store, channel = opened(durable)
    channel.add_sub(state(1))
    put(store, channel, b"a", b"b", b"c", b"d")
    channel.add_events(events(("sent", 1, 1), ("sent", 1, 2), ("acked", 1, 1), ("sent", 1, 3), ("acked", 1, 3)))
    store.write_events()
    if end == "close":
        store.close()
    elif end == "tick":
        store.tick(START)
        store.abandon()
    else:
        # The process is killed, not the machine.
        store.abandon()
    (found,) = subs(durable).values()
    assert (found.pending, found.state.last_sent) == ({2}, 3)


def test_events_of_a_recovered_subscription_are_kept_too(durable: Place) -> None:
    store, channel = opened(durable)
    channel.add_sub(state(1))
    put(store, channel, b"a", b"b")
    channel.add_events(events(("sent", 1, 1), ("sent", 1, 2)))
    store.close()
    store, channel = opened(durable)
    channel.add_events(events(("acked", 1, 2)))
    store.write_events()
    store.tick(START)
    store.abandon()
    assert subs(durable)[1].pending == {1}
    store, channel = opened(durable)
    channel.update_sub(state(1, last_sent=2, inbox=b"new"))
    store.commit()
    store.abandon()
    found = subs(durable)[1]
    assert (found.state.inbox, found.pending) == (b"new", {1})


def test_a_tick_before_the_commit_forgets_nothing_that_is_staged(durable: Place) -> None:
    store, channel = opened(durable)
    channel.add_sub(state(1))
    channel.append(block_of(channel, b"a"))
    store.tick(START)
    assert store.commit() == {}
    assert messages(channel) == [(1, b"a")]
    store.abandon()
    assert list(subs(durable)) == [1]


def test_dropped_messages_do_not_lower_the_sequence(durable: Place) -> None:
    limits = ChannelLimits(max_msgs=3, max_bytes=0, max_age=100 * SECOND)
    store, channel = opened(durable, limits)
    put(store, channel, *(b"%d" % i for i in range(30)))
    store.tick(START)
    store.close()
    durable.clock.advance(1)
    store, channel = opened(durable, limits)
    assert (channel.first, channel.last, channel.count) == (28, 30, 3)
    store.tick(START + 100 * SECOND)
    store.close()
    durable.clock.advance(200)
    store, channel = opened(durable, limits)
    assert (channel.first, channel.last, channel.count) == (31, 30, 0)
    put(store, channel, b"on", at=durable.clock.wall_ns())
    assert messages(channel) == [(31, b"on")]


def test_an_abandoned_store_has_written_nothing_more(durable: Place) -> None:
    store, channel = opened(durable)
    put(store, channel, b"a")
    channel.append(block_of(channel, b"staged"))
    channel.add_sub(state(1))
    store.add_client(ClientInfo(b"staged", b"hb"))
    store.abandon()
    store, found = recovered(durable)
    assert found.clients == []
    assert messages(found.channels[0]) == [(1, b"a")]
    assert list(found.channels[0].recovered_subs()) == []


def test_a_store_that_is_not_durable_leaves_nothing(tmp_path: Path) -> None:
    for kind in KINDS:
        if not kind.durable:
            place = kind.make(tmp_path)
            store, channel = opened(place)
            put(store, channel, b"a")
            store.add_client(ClientInfo(b"a", b"hb"))
            store.commit()
            store.close()
            _, found = recovered(place)
            assert (found.channels, found.clients) == ([], [])
