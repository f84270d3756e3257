"""Messages that are never acknowledged: to the dead-letter channel after so many deliveries, and
with waits of their own between them.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker import dead_letters, managing
from ftstan.broker.broker import BrokerOptions
from ftstan.config.options import ChannelLimits, DeliveryRules
from ftstan.wire import codec, messages
from ftstan.wire.origin import Origin, parse_origin
from tests.compat.driver import SECOND, SUBJECTS, Driver, deliveries, pub_msg, sequences
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE
from tests.unit.broker.test_failures import RefusingStore

if TYPE_CHECKING:
    from ftstan.broker.state import Channel
from ftstan.broker.views import counters

DLQ = b"foo.dead"
RULES = DeliveryRules(3, "foo.dead")
FREE = ChannelLimits(max_msgs=0, max_bytes=0)


def options(rules: DeliveryRules = RULES, **others: object) -> BrokerOptions:
    return replace(BrokerOptions(deliveries=(("foo", rules),)), **others)  # type: ignore[arg-type]


def started(rules: DeliveryRules = RULES, **others: object) -> Driver:
    driver = Driver(options=options(rules, **others))
    driver.connect()
    return driver


def letters(driver: Driver, name: bytes = DLQ) -> list[tuple[bytes, Origin]]:
    """What is stored in the dead-letter channel: payloads and origins."""
    target = driver.broker.channels.get(name)
    found = []
    for sequence in range(1, 1 + (0 if target is None else target.store.last)):
        assert target is not None
        encoded = driver.broker.encoded(target, sequence)
        assert encoded is not None
        _, subject, reply, data, *_ = codec.decode_msg_proto(encoded)
        assert subject == name
        origin = parse_origin(reply)
        assert origin is not None
        found.append((data, origin))
    return found


def pending(driver: Driver, durable: bytes = b"dur") -> list[int]:
    return channel(driver).durables[(b"me", durable)].pending.sequences()


def channel(driver: Driver, name: bytes = b"foo") -> Channel:
    found = driver.broker.channels.get(name)
    assert found is not None
    return found


def test_after_its_deliveries_a_message_is_stored_as_a_dead_letter_and_not_sent_again() -> None:
    driver = started()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    sent_ns = driver.clock.wall_ns()
    out = driver.wait(29)
    assert [d.count for d in deliveries(driver.out)] == [0, 1, 2]
    assert letters(driver) == []
    out = driver.wait(100)
    assert sequences(out) == []
    assert letters(driver) == [
        (b"poison", Origin(b"foo", 1, b"dur", b"", b"me", 3, sent_ns)),
    ]
    assert pending(driver) == []
    assert counters(driver.broker).dead_letters == {b"foo": 1}
    assert counters(driver.broker).dead_letters_refused == 0


def test_an_acknowledgement_in_time_keeps_a_message_from_the_dead_letters() -> None:
    driver = started()
    inbox = driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"good", b"poison")
    driver.wait(25)
    driver.ack(inbox, 1)
    driver.wait(100)
    assert [data for data, _ in letters(driver)] == [b"poison"]


def test_a_dead_letter_opens_the_window_for_the_next_message() -> None:
    driver = started()
    driver.subscribe(durable=b"dur", ack_wait=10, max_in_flight=1)
    driver.publish(b"poison", b"next")
    driver.wait(31)
    assert sequences(driver.out)[-1] == 2


def test_a_queue_group_counts_as_one_subscription_whoever_of_it_was_sent_the_message() -> None:
    driver = started()
    driver.subscribe(inbox=b"q1", queue=b"g", durable=b"d", ack_wait=10)
    driver.subscribe(inbox=b"q2", queue=b"g", durable=b"d", ack_wait=10)
    driver.publish(b"poison")
    sent_ns = driver.clock.wall_ns()
    driver.wait(200)
    assert len(sequences(driver.out, b"q1") + sequences(driver.out, b"q2")) == 3
    ((data, origin),) = letters(driver)
    assert data == b"poison"
    assert origin == Origin(b"foo", 1, b"", b"d:g", b"me", 3, sent_ns)


def test_each_subscription_gives_up_by_itself() -> None:
    driver = started()
    first = driver.subscribe(inbox=b"one", durable=b"one", ack_wait=10)
    driver.subscribe(inbox=b"two", durable=b"two", ack_wait=10)
    driver.publish(b"m")
    driver.ack(first, 1)
    driver.wait(100)
    assert [origin.durable for _, origin in letters(driver)] == [b"two"]


def test_the_deliveries_of_a_resume_count() -> None:
    driver = started()
    inbox = driver.subscribe(durable=b"dur", ack_wait=30)
    driver.publish(b"poison")
    for _ in range(2):
        assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
        inbox = driver.subscribe(durable=b"dur", ack_wait=30)
    assert len(sequences(driver.out)) == 3
    assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
    driver.subscribe(durable=b"dur", ack_wait=30)
    driver.wait(0)
    assert len(sequences(driver.out)) == 3
    assert len(letters(driver)) == 1
    assert pending(driver) == []


def test_without_rules_nothing_is_given_up() -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(1000)
    assert len(sequences(driver.out)) == 101
    assert [one.name for one in driver.broker.channels.values()] == [b"foo"]


# ---- what the dead-letter channel refuses
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (replace(FREE, max_msgs=1), "max_msgs 1"),
        (replace(FREE, max_bytes=250), "max_bytes 250"),
    ],
)
def test_a_full_dead_letter_channel_keeps_what_it_has_and_the_message_is_delivered_again(
    limits: ChannelLimits, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = started(channels=(("foo.dead", limits),))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"first", b"second")
    driver.wait(55)
    assert [data for data, _ in letters(driver)] == [b"first"]
    assert pending(driver) == [2]
    # One more for each turn that it would have been given up.
    assert [s for s in sequences(driver.out) if s == 2] == [2] * 6
    assert counters(driver.broker).dead_letters_refused == 3
    assert why in capfd.readouterr().err
    driver.broker.set_limits(
        replace(driver.broker.options.store_limits, channels=(("foo.dead", FREE),))
    )
    driver.wait(10)
    assert [data for data, _ in letters(driver)] == [b"first", b"second"]


def test_where_the_dead_letter_channel_cannot_be_made_the_message_is_delivered_again() -> None:
    driver = started(max_channels=1)
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(45)
    assert len(sequences(driver.out)) == 5
    assert pending(driver) == [1]


def test_a_dead_letter_that_grows_beyond_what_nats_carries_is_not_given_up() -> None:
    driver = started()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(bytes(400))
    driver.broker.max_payload = 500
    driver.wait(45)
    assert len(sequences(driver.out)) == 5
    assert letters(driver) == []
    assert pending(driver) == [1]


def test_a_commit_that_fails_acknowledges_nothing() -> None:
    store = RefusingStore()
    driver = Driver(store, options())
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(29)
    store.broken = {DLQ}
    driver.wait(10)
    assert pending(driver) == [1]
    assert sequences(driver.out) == [1] * 4
    store.broken = set()
    driver.wait(20)
    assert [data for data, _ in letters(driver)] == [b"poison"]
    assert letters(driver)[0][1].deliveries == 4
    assert pending(driver) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_fails_acknowledges_nothing_on_a_real_store(code: int) -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock), options(), clock=clock)
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"first")
    driver.wait(35)
    assert len(letters(driver)) == 1
    driver.publish(b"poison")
    driver.wait(29)
    disk.fail_next("fdatasync", code)
    driver.wait(10)
    assert pending(driver) == [2]
    driver.wait(20)
    assert [data for data, _ in letters(driver)] == [b"first", b"poison"]
    assert pending(driver) == []


def test_a_dead_letter_channel_has_no_dead_letters_even_where_a_wildcard_covers_it() -> None:
    rules = DeliveryRules(2, "foo.dead", ())
    driver = Driver(options=BrokerOptions(deliveries=((">", rules),)))
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.subscribe(DLQ, inbox=b"dead", durable=b"dead", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(200)
    assert len(letters(driver)) == 1
    assert len(sequences(driver.out, b"dead")) > 10


def test_many_dead_letters_are_stored_once_each_over_several_batches() -> None:
    driver = started()
    driver.subscribe(durable=b"dur", ack_wait=10, max_in_flight=2000)
    driver.publish(*(b"%d" % n for n in range(1000)))
    driver.wait(31)
    assert [origin.sequence for _, origin in letters(driver)] == list(range(1, 1001))
    assert pending(driver) == []


def test_a_member_that_leaves_while_its_dead_letter_is_stored_leaves_none_behind() -> None:
    driver = started()
    driver.connect(b"other")
    driver.subscribe(inbox=b"q1", queue=b"g", durable=b"d", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(29)
    driver.subscribe(client_id=b"other", inbox=b"q2", queue=b"g", durable=b"d", ack_wait=10)
    driver.clock.advance(1.2)
    driver.frame(SUBJECTS.close, b"\x0a\x02me", driver.reply())
    driver.wait(60)
    assert len(letters(driver)) == 1
    group = channel(driver).groups[b"d:g"]
    assert [len(member.pending) for member in group.members()] == [0]


# ---- counts, restarts
# ------------------------------------------------------------------------------------------------


def test_after_a_restart_deliveries_are_counted_from_the_beginning() -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock), options(), clock=clock)
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(25)
    driver.store.close()
    after = Driver(open_file_store(disk.crash(), clock), options(), clock=clock, alive={b"hb.me"})
    after.wait(0)
    first_ns = clock.wall_ns()
    after.wait(100)
    assert len(sequences(after.out)) == 3
    ((_, origin),) = letters(after)
    assert origin == Origin(b"foo", 1, b"dur", b"", b"me", 3, first_ns)


def test_the_times_of_first_deliveries_are_bounded_by_what_is_in_flight() -> None:
    driver = started()
    inbox = driver.subscribe(durable=b"dur", ack_wait=10, max_in_flight=10)
    for n in range(1, 2001):
        driver.publish(b"x")
        driver.ack(inbox, n)
    first_at = channel(driver).durables[(b"me", b"dur")].first_at
    assert first_at is not None
    assert len(first_at) < 40


# ---- reload
# ------------------------------------------------------------------------------------------------


def test_rules_that_are_switched_on_and_off_hold_from_then_on() -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(95)
    limits = driver.broker.options.store_limits
    lines = driver.broker.set_limits(replace(limits, deliveries=(("foo", RULES),)))
    assert lines == [
        '"foo": no rules of deliveries -> dead letters to "foo.dead" after 3 deliveries'
    ]
    driver.wait(20)
    assert len(letters(driver)) == 1
    driver.broker.set_limits(limits)
    driver.publish(b"another")
    driver.wait(100)
    assert len(letters(driver)) == 1


# ---- waits
# ------------------------------------------------------------------------------------------------


def times(driver: Driver, inbox: bytes = b"in") -> list[float]:
    return [round(d.at, 1) for d in deliveries(driver.out, inbox)]


def test_the_waits_of_the_list_come_one_after_the_other_and_the_last_one_for_ever() -> None:
    waits = (SECOND, 10 * SECOND, 60 * SECOND)
    driver = started(DeliveryRules(0, "", waits))
    driver.subscribe(durable=b"dur", ack_wait=30)
    driver.publish(b"a")
    driver.wait(200)
    assert times(driver) == [0, 1, 11, 71, 131, 191]


def test_a_message_is_due_at_its_own_time_beside_one_with_a_longer_wait() -> None:
    driver = started(DeliveryRules(0, "", (SECOND, 100 * SECOND)))
    driver.subscribe(durable=b"dur", ack_wait=30)
    driver.publish(b"a")
    driver.wait(10)
    driver.publish(b"b")
    driver.wait(120)
    assert [(round(d.at), d.data) for d in deliveries(driver.out)] == [
        (0, b"a"), (1, b"a"), (10, b"b"), (11, b"b"), (101, b"a"), (111, b"b"),
    ]  # fmt: skip


def test_a_member_of_a_group_has_the_waits_too() -> None:
    driver = started(DeliveryRules(0, "", (SECOND, 10 * SECOND)))
    driver.subscribe(queue=b"g", ack_wait=30)
    driver.publish(b"a")
    driver.wait(25)
    assert times(driver) == [0, 1, 11, 21]


def test_the_last_wait_comes_before_the_dead_letter() -> None:
    driver = started(DeliveryRules(2, "foo.dead", (SECOND, 10 * SECOND)))
    driver.subscribe(durable=b"dur", ack_wait=30)
    driver.publish(b"a")
    driver.wait(10)
    assert letters(driver) == []
    driver.wait(2)
    assert len(letters(driver)) == 1
    assert times(driver) == [0, 1]


# ---- reload while dead letters wait
# ------------------------------------------------------------------------------------------------


def waiting(*, count: int = 600, most: int = 1) -> Driver:
    """A server that has staged some dead letters of ``count`` and has the others waiting."""
    driver = started(DeliveryRules(most, "foo.dead", (SECOND,)))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(*(b"%d" % n for n in range(count)))
    driver.clock.advance(1.1)
    driver.turn()
    return driver


@pytest.mark.parametrize(
    "rules",
    [
        (("foo", DeliveryRules(0, "", (SECOND,))),),
        (("bar", DeliveryRules(1, "foo")), ("foo", DeliveryRules(1, "foo"))),
        (("foo", DeliveryRules(5, "foo.dead", (SECOND,))),),
        (),
    ],
)
def test_what_waits_when_a_reload_takes_its_rules_away_is_sent_again_and_lost_nowhere(
    rules: tuple[tuple[str, DeliveryRules], ...],
) -> None:
    driver = waiting()
    driver.turn()
    limits = driver.broker.options.store_limits
    driver.broker.set_limits(replace(limits, deliveries=rules))
    driver.wait(0.5)
    stored = [origin.sequence for _, origin in letters(driver)]
    assert 0 < len(stored) < 600
    assert sorted(stored + pending(driver)) == list(range(1, 601))
    assert {one.name for one in driver.broker.channels.values()} == {b"foo", DLQ}
    again = [d.sequence for d in deliveries(driver.out) if d.count]
    assert sorted(set(again)) == pending(driver)


def test_a_message_whose_rules_are_taken_away_does_not_wait_for_a_timer_that_is_far_off() -> None:
    driver = started(DeliveryRules(2, "foo.dead", (SECOND, 2 * SECOND)))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.clock.advance(1.1)
    driver.run()
    limits = driver.broker.options.store_limits
    far = DeliveryRules(2, "foo.dead", (720 * 3600 * SECOND,))
    driver.broker.set_limits(replace(limits, deliveries=(("foo", far),)))
    driver.publish(b"another")
    driver.clock.advance(2.1)
    driver.turn()
    driver.broker.set_limits(replace(limits, deliveries=()))
    before = len(driver.out)
    driver.wait(35)
    assert sequences(driver.out[before:]).count(1) == 4


# ---- what changes while dead letters wait, or are stored
# ------------------------------------------------------------------------------------------------


def test_a_message_that_is_acknowledged_while_it_waits_is_no_dead_letter() -> None:
    driver = waiting()
    (inbox,) = (sub.ack_inbox for sub in driver.broker.by_sid.values())
    driver.frame(inbox, messages.encode(messages.Ack(subject=b"foo", sequence=599)))
    driver.wait(0)
    stored = sorted(origin.sequence for _, origin in letters(driver))
    assert stored == [n for n in range(1, 601) if n != 599]
    assert pending(driver) == []


def test_a_durable_that_comes_back_while_its_dead_letters_wait_has_each_stored_once() -> None:
    driver = waiting()
    (inbox,) = (sub.ack_inbox for sub in driver.broker.by_sid.values())
    leave = messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=inbox)
    driver.frame(SUBJECTS.sub_close, messages.encode(leave), b"_INBOX.left")
    again = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"in",
        durable_name=b"dur",
        max_in_flight=1024,
        ack_wait_in_secs=10,
    )
    driver.frame(SUBJECTS.subscribe, messages.encode(again), b"_INBOX.back")
    driver.wait(100)
    assert sorted(origin.sequence for _, origin in letters(driver)) == list(range(1, 601))
    assert pending(driver) == []
    # None of them was sent again.
    assert sorted(sequences(driver.out)) == list(range(1, 601))


def test_a_message_that_is_purged_while_it_waits_is_no_dead_letter() -> None:
    driver = waiting()
    before = len(letters(driver))
    managing.purge_channel(driver.broker, channel(driver), keep=0, up_to=590)
    driver.wait(0)
    stored = sorted(origin.sequence for _, origin in letters(driver))
    assert stored == [*range(1, before + 1), *range(591, 601)]
    assert pending(driver) == []


def test_a_damaged_dead_letter_channel_takes_none(capfd: pytest.CaptureFixture[str]) -> None:
    driver = started(DeliveryRules(1, "foo.dead"))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.broker.open_channel(DLQ).refused = b"its files are damaged"
    driver.wait(11)
    assert (letters(driver), pending(driver)) == ([], [1])
    assert "its files are damaged; it is delivered again" in capfd.readouterr().err


def test_without_a_channel_for_them_there_are_no_dead_letters() -> None:
    """The configuration refuses such rules; a program that embeds the server may have them."""
    driver = started(DeliveryRules(1, ""))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(11)
    assert pending(driver) == [1]
    assert sequences(driver.out) == [1, 1]


def between_stage_and_commit(driver: Driver) -> None:
    """The turn in which dead letters are staged, up to its commit."""
    driver.clock.advance(1.1)
    driver.broker.feed(b"", 0, 0, driver.clock.wall_ns(), driver.now)
    for _ in range(2):
        driver.broker.run_timers(driver.clock.wall_ns(), driver.now)
    assert driver.broker.dead_letters is not None
    assert driver.broker.dead_letters._staged


def test_a_dead_letter_of_a_member_that_leaves_is_acknowledged_for_its_heir() -> None:
    driver = started(DeliveryRules(1, "foo.dead", (SECOND,)))
    driver.subscribe(inbox=b"q1", queue=b"g", ack_wait=10)
    driver.publish(b"poison")
    driver.connect(b"you")
    driver.subscribe(inbox=b"q2", queue=b"g", ack_wait=10, client_id=b"you")
    between_stage_and_commit(driver)
    managing.kick(driver.broker, managing.find_client(driver.broker, b"me"))
    driver.wait(60)
    assert [data for data, _ in letters(driver)] == [b"poison"]
    assert [len(sub.pending) for sub in driver.broker.by_sid.values()] == [0]
    assert sequences(driver.out, b"q2") == []


def test_a_dead_letter_whose_subscription_goes_while_it_is_stored_counts() -> None:
    driver = started(DeliveryRules(1, "foo.dead", (SECOND,)))
    driver.subscribe(inbox=b"in", ack_wait=10)
    driver.publish(b"poison")
    between_stage_and_commit(driver)
    managing.kick(driver.broker, managing.find_client(driver.broker, b"me"))
    driver.wait(60)
    assert [data for data, _ in letters(driver)] == [b"poison"]
    assert counters(driver.broker).dead_letters == {b"foo": 1}


def test_a_refused_commit_behind_a_reload_sends_the_message_again() -> None:
    store = RefusingStore()
    driver = Driver(store, options(DeliveryRules(1, "foo.dead", (SECOND, 720 * 3600 * SECOND))))
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    store.broken = {DLQ}
    driver.clock.advance(1.1)
    driver.turn()
    limits = driver.broker.options.store_limits
    off = replace(limits, deliveries=())
    driver.broker.run_timers(driver.clock.wall_ns(), driver.now)
    driver.broker.set_limits(off)
    driver.wait(25)
    assert pending(driver) == [1]
    assert sequences(driver.out) == [1] * 4


# ---- what one turn does
# ------------------------------------------------------------------------------------------------


def test_refused_dead_letters_are_sent_again_as_the_link_has_room_for_them() -> None:
    driver = started(channels=(("foo.dead", replace(FREE, max_msgs=1)),))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"x", channel=DLQ)
    driver.publish(*([bytes(100_000)] * 100))
    driver.wait(29)
    before = len(driver.out)
    driver.clock.advance(2)
    # Due, then refused.
    driver.turn()
    driver.turn()
    budget = driver.broker.budget
    driver.broker.budget = -1
    for _ in range(5):
        driver.turn()
    assert sequences(driver.out[before:]) == []
    driver.broker.budget = 1_000_000
    for _ in range(4):
        before = len(driver.out)
        driver.turn()
        assert 0 < len(sequences(driver.out[before:])) <= 12
    driver.broker.budget = budget
    driver.wait(1)
    assert sorted(sequences(driver.out)) == sorted([*range(1, 101)] * 4)


def test_a_refused_dead_letter_is_not_sent_to_a_client_that_misses_heartbeats() -> None:
    driver = started(max_channels=1)
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"poison")
    driver.wait(29)
    driver.clock.advance(1.2)
    driver.turn()
    sub = channel(driver).durables[(b"me", b"dur")]
    driver.broker.mark_failed(sub, True)
    driver.wait(50)
    assert len(sequences(driver.out)) == 3
    driver.broker.mark_failed(sub, False)
    driver.wait(15)
    assert len(sequences(driver.out)) > 3


def test_a_full_dead_letter_channel_refuses_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = started(channels=(("foo.dead", replace(FREE, max_msgs=1)),))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(b"x", channel=DLQ)
    driver.publish(b"poison")
    driver.wait(29)
    monkeypatch.setattr(dead_letters, "decode_msg_proto", None)
    driver.wait(5)
    assert counters(driver.broker).dead_letters_refused == 1


def test_a_long_reply_field_is_left_out_of_the_origin() -> None:
    driver = started()
    driver.subscribe(durable=b"dur", ack_wait=10)
    for size in (4096, 4097):
        driver.frame(
            SUBJECTS.publish + ".foo",
            pub_msg(b"g", b"foo", b"x", conn_id=b"conn.me") + b"\x22" + varint(size) + b"\1" * size,
        )
    driver.wait(35)
    assert [len(origin.reply) for _, origin in letters(driver)] == [4096, 0]


def test_what_is_too_large_without_its_origin_is_refused_before_that_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = started()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.publish(bytes(400))
    driver.wait(29)
    driver.broker.max_payload = 400
    monkeypatch.setattr(dead_letters, "encode_origin", None)
    driver.wait(5)
    assert counters(driver.broker).dead_letters_refused == 1


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7])


def test_a_big_window_is_given_up_so_much_a_turn() -> None:
    driver = started(DeliveryRules(1, "foo.dead"))
    driver.subscribe(durable=b"dur", ack_wait=10, max_in_flight=10_000)
    driver.publish(*(b"%d" % n for n in range(8000)))
    driver.clock.advance(11)
    under_way = []
    while pending(driver):
        driver.turn()
        assert driver.broker.dead_letters is not None
        under_way.append(len(driver.broker.dead_letters._under_way))
        driver.clock.advance(0.3)
    assert under_way[0] == 1000
    assert max(under_way) <= 4096
    # 256 at most are stored in a turn.
    assert len(under_way) < 40
    assert [origin.sequence for _, origin in letters(driver)] == list(range(1, 8001))
    assert len(sequences(driver.out)) == 8000


def test_a_big_window_that_is_resumed_is_given_up_so_much_a_turn() -> None:
    driver = started(DeliveryRules(1, "foo.dead"))
    inbox = driver.subscribe(durable=b"dur", ack_wait=10, max_in_flight=10_000)
    driver.publish(*(b"%d" % n for n in range(5000)))
    assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
    driver.subscribe(durable=b"dur", ack_wait=10, max_in_flight=10_000)
    assert driver.broker.dead_letters is not None
    assert len(driver.broker.dead_letters._under_way) == 1000
    driver.wait(5)
    assert len(letters(driver)) == 5000
    driver.publish(b"new")
    assert sequences(driver.out) == [*range(1, 5001), 5001]


@pytest.mark.parametrize("most", [1, 3])
def test_what_never_left_is_no_delivery(most: int) -> None:
    driver = started(DeliveryRules(most, "foo.dead"))
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.offer(b"poison")
    for _ in range(most + 1):
        driver.run(lost=True)
        driver.open_link()
        driver.clock.advance(0.5)
    driver.wait(100)
    assert sequences(driver.out) == [1] * most
    ((_, origin),) = letters(driver)
    assert origin.deliveries == most
    assert origin.first_ns > 0


def test_a_lost_link_counts_without_rules_as_before() -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=10)
    driver.offer(b"poison")
    for _ in range(3):
        driver.run(lost=True)
        driver.open_link()
    driver.wait(1)
    assert [d.count for d in deliveries(driver.out)] == [3]


def test_a_deleted_channel_has_no_count_of_dead_letters() -> None:
    driver = started(channels=(("foo", ChannelLimits(max_inactivity=100 * SECOND)),))
    inbox = driver.subscribe(ack_wait=10)
    driver.publish(b"poison")
    driver.wait(40)
    assert counters(driver.broker).dead_letters == {b"foo": 1}
    assert driver.leave(SUBJECTS.unsubscribe, inbox).error == b""
    driver.wait(150)
    assert b"foo" not in driver.broker.channels
    assert counters(driver.broker).dead_letters == {}
