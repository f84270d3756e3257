"""Queue groups: who gets a message, who gets it again, and what joining and leaving change."""

from __future__ import annotations

import pytest

from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.wire import messages
from tests.compat.driver import SECOND, SUBJECTS, Delivery, Driver, deliveries, sequences


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


def join(driver: Driver, n: int, **options: object) -> list[bytes]:
    """``n`` members of the group ``g`` with the inboxes q1, q2 ...; their ack inboxes."""
    fields = {"queue": b"g", "start": messages.StartPosition.NEW_ONLY} | options
    return [driver.subscribe(inbox=b"q%d" % (i + 1), **fields) for i in range(n)]  # type: ignore[arg-type]


def got(driver: Driver, n: int) -> list[list[int]]:
    """What each of the ``n`` members ever got."""
    return [sequences(driver.out, b"q%d" % (i + 1)) for i in range(n)]


def history(driver: Driver, n: int, after: float = -1.0) -> list[tuple[float, int, int, int]]:
    """(seconds, member, sequence, redelivery count) of all deliveries after a time, in order."""
    found = []
    for o in driver.out:
        if o.subject.startswith(b"q") and o.at > after:
            (d,) = deliveries([o], o.subject)
            found.append((d.at, int(o.subject[1:]), d.sequence, d.count))
    assert all(0 < member <= n for _, member, _, _ in found)
    return found


# ---- the choice of a member
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acked", [False, True])
def test_equal_members_take_turns(driver: Driver, acked: bool) -> None:
    acks = join(driver, 3)
    for n in range(1, 10):
        driver.publish(b"%d" % n)
        if acked:
            driver.ack(acks[(n - 1) % 3], n)
    assert got(driver, 3) == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]


def test_the_member_with_the_fewest_pending_messages_gets_the_next(driver: Driver) -> None:
    acks = join(driver, 3)
    driver.publish(*(b"%d" % n for n in range(1, 10)))
    driver.ack(acks[1], 2, 5)
    driver.publish(b"10", b"11")
    assert got(driver, 3)[1] == [2, 5, 8, 10, 11]


def test_a_member_with_a_full_window_is_passed_over_and_an_ack_lets_one_message_through(
    driver: Driver,
) -> None:
    acks = join(driver, 2, max_in_flight=1)
    driver.publish(*(b"%d" % n for n in range(1, 7)))
    assert got(driver, 2) == [[1], [2]]
    driver.ack(acks[0], 1)
    assert got(driver, 2) == [[1, 3], [2]]
    driver.subscribe(inbox=b"q3", queue=b"g", max_in_flight=10)
    assert got(driver, 3) == [[1, 3], [2], [4, 5, 6]]


def test_a_group_delivers_in_order_and_every_message_to_exactly_one_member(driver: Driver) -> None:
    acks = join(driver, 4, max_in_flight=3)
    for n in range(1, 41):
        driver.publish(b"%d" % n)
        if n % 7 == 0:
            for ack_inbox, seen in zip(acks, got(driver, 4), strict=True):
                driver.ack(ack_inbox, *seen)
    for _ in range(20):
        for ack_inbox, seen in zip(acks, got(driver, 4), strict=True):
            driver.ack(ack_inbox, *seen)
    assert [sequence for _, _, sequence, _ in history(driver, 4)] == list(range(1, 41))


def test_a_member_that_redeliveries_filled_over_its_window_does_not_hold_up_the_others(
    driver: Driver,
) -> None:
    options = {"queue": b"g", "max_in_flight": 2, "ack_wait": 1}
    first = driver.subscribe(inbox=b"q1", **options)  # type: ignore[arg-type]
    driver.subscribe(inbox=b"q2", **options)  # type: ignore[arg-type]
    driver.publish(*(b"%d" % n for n in range(1, 5)))
    driver.leave(SUBJECTS.sub_close, first)
    driver.wait(0.5)
    assert sorted(sequences(driver.out, b"q2")) == [1, 2, 3, 4]
    driver.subscribe(inbox=b"q3", queue=b"g")
    driver.publish(b"5")
    assert 5 in sequences(driver.out, b"q3")


def test_a_group_and_plain_subscriptions_each_get_every_message(driver: Driver) -> None:
    join(driver, 2)
    driver.subscribe(inbox=b"other", queue=b"h")
    driver.subscribe(inbox=b"plain")
    driver.publish(b"a", b"b")
    assert got(driver, 2) == [[1], [2]]
    assert sequences(driver.out, b"other") == sequences(driver.out, b"plain") == [1, 2]


def test_a_group_goes_on_behind_a_message_too_large_for_the_link(driver: Driver) -> None:
    (one,) = join(driver, 1, max_in_flight=1)
    driver.publish(b"a", b"y" * 5000, b"c")
    driver.broker.max_payload = 4000
    driver.ack(one, 1)
    assert got(driver, 1) == [[1, 3]]
    driver.broker.max_payload = 1 << 20
    driver.subscribe(inbox=b"q2", queue=b"g")
    driver.publish(b"d")
    assert got(driver, 2) == [[1, 3], [4]]


def test_what_a_group_has_pending_and_became_too_large_for_the_link_is_over(driver: Driver) -> None:
    join(driver, 2, max_in_flight=1, ack_wait=1)
    driver.publish(b"y" * 5000, b"b", b"c")
    assert got(driver, 2) == [[1], [2]]
    driver.broker.max_payload = 4000
    driver.wait(1)
    # The first one is over for both; whoever has room goes on.
    assert {3} < set(got(driver, 2)[0] + got(driver, 2)[1])
    assert sum(sub.pending.__contains__(1) for sub in driver.broker.by_sid.values()) == 0
    assert driver.broker.skipped == 1


# ---- joining
# --------------------------------------------------------------------------------------------------


def test_the_first_member_says_where_the_group_starts_and_later_ones_do_not(driver: Driver) -> None:
    driver.publish(b"a", b"b", b"c")
    driver.subscribe(
        inbox=b"q1", queue=b"g", start=messages.StartPosition.SEQUENCE_START, sequence=2
    )
    driver.subscribe(inbox=b"q2", queue=b"g", start=messages.StartPosition.FIRST)
    assert got(driver, 2) == [[2, 3], []]
    driver.publish(b"d")
    assert got(driver, 2) == [[2, 3], [4]]


def test_groups_are_known_by_channel_and_by_both_names(driver: Driver) -> None:
    driver.subscribe(inbox=b"q1", queue=b"g")
    driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    driver.subscribe(inbox=b"q3", queue=b"g", durable=b"other")
    driver.subscribe(b"bar", inbox=b"q4", queue=b"g")
    driver.publish(b"a")
    driver.publish(b"b", channel=b"bar")
    assert got(driver, 4) == [[1], [1], [1], [1]]


def test_a_plain_group_that_bears_the_name_of_a_durable_one_is_that_one(driver: Driver) -> None:
    one = driver.subscribe(inbox=b"q1", queue=b"dur:g")
    two = driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    driver.publish(b"a", b"b")
    assert got(driver, 2) == [[1], [2]]
    driver.leave(SUBJECTS.sub_close, two)
    driver.leave(SUBJECTS.sub_close, one)
    driver.publish(b"c")
    driver.subscribe(inbox=b"q3", queue=b"g", durable=b"dur", start=messages.StartPosition.NEW_ONLY)
    assert got(driver, 3)[2] == [1, 2, 3]


def test_members_of_a_durable_group_come_from_any_client(driver: Driver) -> None:
    driver.connect(b"you")
    driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur", client_id=b"you")
    driver.publish(b"a", b"b")
    assert got(driver, 2) == [[1], [2]]


def test_every_member_and_every_shadow_counts_as_a_subscription_of_its_channel() -> None:
    driver = Driver(options=BrokerOptions(limits=limited(2)))
    driver.connect()
    join(driver, 2)
    assert refused(driver, queue=b"g") == b"too many subscriptions per channel"
    driver = Driver(options=BrokerOptions(limits=limited(1)))
    driver.connect()
    (ack_inbox,) = join(driver, 1, durable=b"dur")
    driver.leave(SUBJECTS.sub_close, ack_inbox)
    assert refused(driver, queue=b"h") == b"too many subscriptions per channel"
    (ack_inbox,) = join(driver, 1, durable=b"dur")
    driver.leave(SUBJECTS.unsubscribe, ack_inbox)
    join(driver, 1)


def test_a_refused_first_member_leaves_no_group_behind() -> None:
    driver = Driver(options=BrokerOptions(limits=limited(1)))
    driver.connect()
    plain = driver.subscribe()
    assert refused(driver, queue=b"g") == b"too many subscriptions per channel"
    driver.leave(SUBJECTS.unsubscribe, plain)
    driver.publish(b"a")
    driver.subscribe(inbox=b"q1", queue=b"g", start=messages.StartPosition.NEW_ONLY)
    assert got(driver, 1) == [[]]


# ---- redelivery
# --------------------------------------------------------------------------------------------------


def test_redeliveries_go_to_the_chosen_members_and_are_counted_over_the_group(
    driver: Driver,
) -> None:
    # Message by message what a real 0.25.6 server did (recording queue-redelivery).
    join(driver, 3, ack_wait=1)
    driver.publish(*(b"%d" % n for n in range(1, 5)))
    driver.wait(1.5)
    assert history(driver, 3) == [
        (0, 1, 1, 0),
        (0, 2, 2, 0),
        (0, 3, 3, 0),
        (0, 1, 4, 0),
        (1, 2, 1, 1),
        (1, 3, 4, 1),
        (1, 1, 2, 1),
        (1, 2, 3, 1),
    ]
    driver.wait(1)
    assert sorted((at, s, count) for at, _, s, count in history(driver, 3, after=1)) == [
        (2, n, 2) for n in range(1, 5)
    ]


def test_redelivery_looks_at_no_window_and_frees_the_one_that_it_empties(driver: Driver) -> None:
    driver.subscribe(inbox=b"q1", queue=b"g", max_in_flight=1, ack_wait=1)
    driver.subscribe(inbox=b"q2", queue=b"g", max_in_flight=1, ack_wait=60)
    driver.publish(b"a", b"b", b"c")
    assert got(driver, 2) == [[1], [2]]
    driver.wait(1)
    # Both windows are full: the first in the list gets the old message, and has room for a new one
    # with that.
    assert history(driver, 2, after=0) == [(1, 1, 1, 1)]
    driver.wait(1)
    assert history(driver, 2, after=1) == [(2, 2, 1, 2), (2, 1, 3, 0)]


def test_what_is_acknowledged_is_not_resent(driver: Driver) -> None:
    acks = join(driver, 2, ack_wait=1)
    driver.publish(b"a", b"b")
    driver.ack(acks[0], 1)
    driver.wait(5)
    assert {s for at, _, s, _ in history(driver, 2) if at > 0} == {2}


def test_an_ack_of_another_member_counts(driver: Driver) -> None:
    acks = join(driver, 2, ack_wait=1, max_in_flight=1)
    driver.publish(b"a", b"b", b"c")
    driver.ack(acks[0], 2)
    assert got(driver, 2) == [[1], [2, 3]]
    driver.ack(acks[0], 1, 3)
    assert driver.wait(5) == []


def test_an_ack_of_another_group_does_not_count(driver: Driver) -> None:
    join(driver, 1, ack_wait=1)
    other = driver.subscribe(inbox=b"other", queue=b"h")
    driver.publish(b"a")
    driver.ack(other, 1)
    driver.wait(1)
    assert got(driver, 1) == [[1, 1]]


def test_a_message_that_is_gone_counts_as_acknowledged_when_it_is_due(driver: Driver) -> None:
    driver = Driver(options=BrokerOptions(limits=limited(0, max_msgs=2)))
    driver.connect()
    join(driver, 2, ack_wait=1)
    driver.publish(b"a", b"b")
    driver.publish(b"c", b"d")
    driver.wait(1)
    assert {s for at, _, s, _ in history(driver, 2) if at > 0} == {3, 4}


# ---- members of clients that fail
# ----------------------------------------------------------------------------------

BEATS = BrokerOptions(hb_interval=2 * SECOND, hb_timeout=SECOND, hb_fail_count=5)


def test_members_of_a_failing_client_are_avoided_while_there_are_others() -> None:
    driver = Driver(options=BEATS)
    driver.connect(b"dead", alive=False)
    driver.connect(b"me")
    driver.subscribe(inbox=b"q1", queue=b"g", client_id=b"dead")
    driver.subscribe(inbox=b"q2", queue=b"g", max_in_flight=2)
    driver.wait(3.5)
    driver.publish(b"a", b"b")
    assert got(driver, 2) == [[], [1, 2]]
    driver.publish(b"c")
    assert got(driver, 2) == [[3], [1, 2]]


def test_what_a_member_of_a_failing_client_holds_is_resent_to_another() -> None:
    driver = Driver(options=BEATS)
    driver.connect(b"dead", alive=False)
    driver.connect(b"me")
    driver.subscribe(inbox=b"q1", queue=b"g", client_id=b"dead", ack_wait=4)
    driver.subscribe(inbox=b"q2", queue=b"g", ack_wait=60)
    driver.publish(b"a")
    driver.wait(5)
    assert history(driver, 2) == [(0, 1, 1, 0), (4, 2, 1, 1)]


def test_redeliveries_of_a_group_go_on_when_all_its_clients_fail() -> None:
    driver = Driver(options=BEATS)
    driver.connect(b"dead", alive=False)
    driver.subscribe(inbox=b"q1", queue=b"g", client_id=b"dead", ack_wait=1)
    driver.publish(b"a", client_id=b"dead")
    driver.wait(4.5)
    assert [at for at, _, _, _ in history(driver, 1)] == [0, 1, 2, 3, 4]


def test_an_answered_heartbeat_brings_a_member_back_into_the_choice() -> None:
    driver = Driver(options=BEATS)
    driver.connect(b"slow", alive=False)
    driver.connect(b"me")
    driver.subscribe(inbox=b"q1", queue=b"g", client_id=b"slow")
    driver.subscribe(inbox=b"q2", queue=b"g")
    driver.wait(3.5)
    driver.alive.add(b"hb.slow")
    driver.wait(3)
    driver.publish(b"a", b"b")
    assert sorted(map(len, got(driver, 2))) == [1, 1]


# ---- leaving
# --------------------------------------------------------------------------------------------------


def test_what_a_leaver_holds_goes_to_the_others_a_tenth_of_a_second_later(driver: Driver) -> None:
    # Message by message what a real 0.25.6 server did (recording queue-group).
    acks = join(driver, 3, ack_wait=2)
    driver.publish(*(b"%d" % n for n in range(1, 10)))
    driver.ack(acks[0], 1, 4, 7)
    driver.ack(acks[1], 2)
    driver.leave(SUBJECTS.sub_close, acks[2])
    driver.wait(0.5)
    assert history(driver, 3, after=0) == [(0.1, 1, 3, 1), (0.1, 1, 9, 1), (0.1, 1, 6, 1)]
    driver.wait(2)
    assert history(driver, 3, after=0.5) == [
        (2, 2, 5, 1),
        (2, 2, 8, 1),
        (2.1, 2, 3, 2),
        (2.1, 1, 9, 2),
        (2.1, 1, 6, 2),
    ]


def test_what_others_have_due_meanwhile_waits_for_it(driver: Driver) -> None:
    acks = join(driver, 2, ack_wait=1)
    driver.publish(b"a", b"b")
    driver.wait(0.95)
    driver.leave(SUBJECTS.sub_close, acks[0])
    driver.wait(0.5)
    assert history(driver, 2, after=0) == [(1.05, 2, 1, 1), (1.05, 2, 2, 1)]


def test_the_last_of_the_list_takes_the_place_of_who_leaves(driver: Driver) -> None:
    # Message by message what a real 0.25.6 server did (recording node-queue).
    acks = join(driver, 3, ack_wait=1)
    for n in range(1, 7):
        driver.publish(b"%d" % n)
        for ack_inbox, seen in zip(acks[:2], got(driver, 2), strict=True):
            driver.ack(ack_inbox, *seen)
    assert got(driver, 3) == [[1, 4, 6], [2, 5], [3]]
    driver.leave(SUBJECTS.sub_close, acks[2])
    driver.wait(0.5)
    assert history(driver, 3, after=0) == [(0.1, 1, 3, 1)]


@pytest.mark.parametrize("ack_wait", [1, 2, 3])
def test_after_that_it_comes_every_ack_wait(driver: Driver, ack_wait: int) -> None:
    # Recording queue-leave-timing: 0.1 s after the other one left, and then one ack wait after each
    # resend.
    acks = join(driver, 2, ack_wait=ack_wait)
    driver.publish(b"a", b"b")
    driver.ack(acks[1], 2)
    driver.leave(SUBJECTS.sub_close, acks[0])
    driver.wait(2.5 * ack_wait)
    assert history(driver, 2, after=0) == [
        (0.1, 2, 1, 1),
        (0.1 + ack_wait, 2, 1, 2),
        (0.1 + 2 * ack_wait, 2, 1, 3),
    ]


def test_the_members_of_a_client_that_closes_leave_one_after_the_other(driver: Driver) -> None:
    driver.connect(b"bob")
    join(driver, 2, ack_wait=2)
    third = driver.subscribe(inbox=b"q3", queue=b"g", client_id=b"bob", ack_wait=2)
    driver.publish(*(b"%d" % n for n in range(1, 7)), client_id=b"bob")
    driver.ack(third, 3, 6)
    assert driver.close() == b""
    driver.wait(1)
    assert history(driver, 3, after=0) == [(0.1, 3, n, 1) for n in (1, 2, 4, 5)]


def test_a_client_that_misses_its_heartbeats_leaves_its_groups() -> None:
    driver = Driver(
        options=BrokerOptions(hb_interval=2 * SECOND, hb_timeout=SECOND, hb_fail_count=0)
    )
    driver.connect(b"dead", alive=False)
    driver.connect(b"me")
    driver.subscribe(inbox=b"q1", queue=b"g", client_id=b"dead", ack_wait=60)
    driver.subscribe(inbox=b"q2", queue=b"g", ack_wait=60)
    driver.publish(b"a")
    driver.wait(4)
    assert history(driver, 2) == [(0, 1, 1, 0), (3.1, 2, 1, 1)]


def test_each_message_follows_the_ack_wait_of_the_member_that_holds_it(driver: Driver) -> None:
    driver.subscribe(inbox=b"q1", queue=b"g", ack_wait=60)
    driver.subscribe(inbox=b"q2", queue=b"g", ack_wait=2)
    driver.publish(b"a", b"b")
    driver.wait(2)
    assert [(at, s) for at, _, s, _ in history(driver, 2)] == [(0, 1), (0, 2), (2, 2)]


def test_a_group_is_forgotten_with_its_last_member(driver: Driver) -> None:
    for leave in (SUBJECTS.sub_close, SUBJECTS.unsubscribe):
        acks = join(driver, 2)
        driver.publish(b"a", b"b")
        for ack_inbox in acks:
            assert driver.leave(leave, ack_inbox).error == b""
        before = len(driver.out)
        (ack_inbox,) = join(driver, 1)
        assert sequences(driver.out[before:], b"q1") == []
        driver.leave(leave, ack_inbox)
    assert driver.broker.counts()["subscriptions"] == 0


def test_after_a_member_has_left_its_acks_are_not_heard(driver: Driver) -> None:
    acks = join(driver, 2, ack_wait=1)
    driver.publish(b"a", b"b")
    driver.leave(SUBJECTS.sub_close, acks[0])
    assert acks[0] not in driver.subs.values()
    driver.ack(acks[0], 1, 2)
    driver.wait(1)
    assert {s for at, _, s, _ in history(driver, 2) if at > 0} == {1, 2}


# ---- durable groups
# ------------------------------------------------------------------------------------------------


def test_a_durable_group_without_members_goes_on_with_whoever_comes_next(driver: Driver) -> None:
    driver.connect(b"bob")
    one = driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    two = driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur", client_id=b"bob")
    driver.publish(*(b"%d" % n for n in range(1, 5)))
    driver.ack(one, 1, 3)
    driver.leave(SUBJECTS.sub_close, one)
    driver.leave(SUBJECTS.sub_close, two, client_id=b"bob")
    driver.publish(b"5")
    driver.subscribe(
        inbox=b"q3",
        queue=b"g",
        durable=b"dur",
        client_id=b"bob",
        start=messages.StartPosition.NEW_ONLY,
    )
    found = deliveries(driver.out, b"q3")
    assert [(d.sequence, d.redelivered) for d in found] == [(2, True), (4, True), (5, False)]


def test_a_resumed_group_first_resends_all_that_is_pending_whatever_the_window(
    driver: Driver,
) -> None:
    (one,) = join(driver, 1, durable=b"dur", max_in_flight=5)
    driver.publish(*(b"%d" % n for n in range(1, 8)))
    driver.leave(SUBJECTS.sub_close, one)
    two = driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur", max_in_flight=2)
    assert sequences(driver.out, b"q2") == [1, 2, 3, 4, 5]
    driver.ack(two, 1, 2, 3)
    assert sequences(driver.out, b"q2") == [1, 2, 3, 4, 5]
    driver.ack(two, 4)
    assert sequences(driver.out, b"q2") == [1, 2, 3, 4, 5, 6]


def test_a_durable_group_survives_the_close_of_its_clients_and_not_an_unsubscribe(
    driver: Driver,
) -> None:
    (one,) = join(driver, 1, durable=b"dur")
    driver.publish(b"a")
    driver.close()
    driver.connect()
    (one,) = join(driver, 1, durable=b"dur")
    assert got(driver, 1) == [[1, 1]]
    driver.leave(SUBJECTS.unsubscribe, one)
    join(driver, 1, durable=b"dur")
    assert got(driver, 1) == [[1, 1]]


def test_an_unsubscribe_while_others_remain_only_leaves(driver: Driver) -> None:
    one, two = join(driver, 2, durable=b"dur", ack_wait=60)
    driver.publish(b"a", b"b")
    driver.leave(SUBJECTS.unsubscribe, one)
    driver.leave(SUBJECTS.sub_close, two)
    driver.subscribe(inbox=b"q3", queue=b"g", durable=b"dur", start=messages.StartPosition.NEW_ONLY)
    assert got(driver, 3)[2] == [1, 2]


def test_the_redelivery_count_of_a_group_survives_close_and_resume(driver: Driver) -> None:
    (one,) = join(driver, 1, durable=b"dur", ack_wait=1)
    driver.publish(b"a")
    driver.wait(1.5)
    driver.leave(SUBJECTS.sub_close, one)
    driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    assert deliveries(driver.out, b"q2") == [Delivery(1.5, 1, b"a", True, 2)]


def test_a_durable_group_takes_any_number_of_members_and_is_never_a_duplicate(
    driver: Driver,
) -> None:
    join(driver, 5, durable=b"dur")
    driver.publish(*(b"%d" % n for n in range(1, 6)))
    assert got(driver, 5) == [[1], [2], [3], [4], [5]]


def test_a_colon_in_the_durable_name_of_a_group_is_refused(driver: Driver) -> None:
    error = b"stan: durable name of a durable queue subscriber can't contain the character ':'"
    assert refused(driver, queue=b"g", durable=b"a:b") == error
    driver.subscribe(durable=b"a:b")


# ---- order
# --------------------------------------------------------------------------------------------------


def test_a_member_gets_its_first_message_after_its_response(driver: Driver) -> None:
    driver.publish(b"a", b"b")
    before = len(driver.out)
    driver.subscribe(inbox=b"q1", queue=b"g")
    subjects = [o.subject for o in driver.out[before:]]
    assert subjects[0].startswith(b"_INBOX.reply.")
    assert subjects[1:] == [b"q1", b"q1"]


def test_a_member_that_joins_in_the_batch_of_a_publish_is_ready_for_it(driver: Driver) -> None:
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"q1",
        q_group=b"g",
        max_in_flight=1,
        ack_wait_in_secs=1,
    )
    driver.frame(SUBJECTS.subscribe, messages.encode(request), b"reply")
    driver.offer(b"a")
    out = driver.run()
    assert [o.subject for o in out if o.subject in (b"reply", b"q1")] == [b"reply", b"q1"]


def test_one_who_joins_and_leaves_in_one_batch_leaves_nothing(driver: Driver) -> None:
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"q1",
        q_group=b"g",
        max_in_flight=1,
        ack_wait_in_secs=1,
    )
    driver.frame(SUBJECTS.subscribe, messages.encode(request), b"reply")
    driver.frame(SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"me")), b"bye")
    driver.run()
    assert driver.broker.counts()["subscriptions"] == 0
    assert not any(
        subject.startswith(b"_INBOX.") and b"*" not in subject for subject in driver.subs.values()
    )


def test_a_member_whose_inbox_is_no_subject_gets_nothing_and_holds_nothing_up(
    driver: Driver,
) -> None:
    driver.subscribe(inbox=b"", queue=b"g")
    one = driver.subscribe(inbox=b"q1", queue=b"g", ack_wait=1)
    driver.publish(b"a", b"b")
    assert got(driver, 1) == [[1, 2]]
    driver.leave(SUBJECTS.sub_close, one)
    driver.subscribe(inbox=b"q2", queue=b"g")
    driver.wait(40)
    assert sorted(set(sequences(driver.out, b"q2"))) == [1, 2]


def refused(driver: Driver, *, queue: bytes, durable: bytes = b"") -> bytes:
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"in",
        q_group=queue,
        durable_name=durable,
        max_in_flight=1,
        ack_wait_in_secs=1,
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    return messages.parse(messages.SubscriptionResponse, answer or b"").error


def limited(max_subs: int, max_msgs: int = 0) -> ChannelLimits:
    return ChannelLimits(max_subs=max_subs, max_msgs=max_msgs)
