"""What one emit may hold is shared: nobody's backlog keeps the messages of others waiting."""

from __future__ import annotations

from tests.compat.driver import SUBJECTS, Driver, deliveries, pub_acks, sequences

MANY = 400
#: Some twenty deliveries of a few bytes.
BUDGET = 2000
WINDOW = 10 * MANY


def test_one_with_a_long_way_to_go_shares_every_emit_with_the_others() -> None:
    driver = Driver()
    driver.connect()
    for channel, inbox in ((b"foo", b"in"), (b"foo", b"there"), (b"other", b"third")):
        driver.subscribe(channel=channel, inbox=inbox, max_in_flight=WINDOW)
    driver.broker.budget = 600 << 10
    driver.publish(*(b"%d:" % n + b"x" * 5000 for n in range(MANY)))
    order = [out.subject for out in driver.out if out.subject in {b"in", b"there"}]
    assert order.count(b"in") == order.count(b"there") == MANY
    # 256 KiB for the one, then as much for the other.
    assert 50 < order.index(b"there") < 60
    everything = list(range(1, MANY + 1))
    assert sequences(driver.out) == sequences(driver.out, b"there") == everything


def test_new_messages_have_a_part_of_every_emit_whatever_is_resent() -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(max_in_flight=WINDOW, ack_wait=5)
    driver.subscribe(channel=b"other", inbox=b"there")
    driver.publish(*(b"%d" % n for n in range(MANY)))
    driver.wait(0)
    driver.broker.budget = BUDGET
    driver.clock.advance(5.5)
    driver.publish(b"new", channel=b"other")
    resent = [d for d in deliveries(driver.out) if d.redelivered]
    assert 0 < len(resent) < MANY
    assert sequences(driver.out, b"there") == [1]


def test_while_the_nats_server_is_behind_publishes_are_acknowledged_and_nothing_is_delivered() -> (
    None
):
    driver = Driver()
    driver.connect()
    driver.subscribe(ack_wait=5)
    driver.publish(b"1")
    driver.broker.budget = -1
    driver.clock.advance(6)
    driver.offer(b"2")
    seen = len(driver.out)
    for _ in range(3):
        driver.turn()
    assert [ack.error for ack in pub_acks(driver.out[seen:])] == [b""]
    assert sequences(driver.out[seen:]) == []
    driver.broker.budget = BUDGET
    driver.run()
    assert sequences(driver.out[seen:]) == [1, 2]


def test_a_group_whose_member_leaves_in_its_resume_goes_on_with_the_others() -> None:
    driver = Driver()
    driver.connect()
    inbox = driver.subscribe(durable=b"dur", queue=b"group", max_in_flight=WINDOW)
    driver.publish(*(b"%d" % n for n in range(MANY)))
    driver.wait(0)
    assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
    driver.broker.budget = BUDGET
    resumed = driver.subscribe(durable=b"dur", queue=b"group", max_in_flight=WINDOW)
    driver.subscribe(durable=b"dur", queue=b"group", inbox=b"there", max_in_flight=WINDOW)
    driver.publish(b"new")
    # Old before new, for the whole group.
    assert sequences(driver.out, b"there") == []
    assert driver.leave(SUBJECTS.sub_close, resumed).error == b""
    driver.wait(1)
    assert sorted(sequences(driver.out, b"there")) == list(range(1, MANY + 2))
