"""Windows of very many messages: what one turn of the loop resends and looks up is bounded, and
nothing goes twice.
"""

from __future__ import annotations

import pytest

from ftstan.broker import constants
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Delivery, Driver, deliveries, sequences
from tests.model.servers import FileServers

MANY = 400
#: Some twenty deliveries.
BUDGET = 2000
WINDOW = 10 * MANY


class Emits:
    """The deliveries to ``in`` of each turn."""

    def __init__(self, driver: Driver) -> None:
        self.found: list[list[int]] = []
        write_events = driver.store.write_events
        self._seen = len(driver.out)

        def behind_the_emit() -> None:
            self.found.append([d.sequence for d in deliveries(driver.out[self._seen :])])
            self._seen = len(driver.out)
            write_events()

        driver.store.write_events = behind_the_emit  # type: ignore[method-assign]

    @property
    def most(self) -> int:
        return max(map(len, self.found), default=0)

    @property
    def all(self) -> list[int]:
        return [sequence for turn in self.found for sequence in turn]


def offline(driver: Driver, *, queue: bytes = b"") -> None:
    """A durable that was sent everything, acknowledged nothing, and was closed."""
    driver.connect()
    inbox = driver.subscribe(durable=b"dur", queue=queue, max_in_flight=WINDOW)
    driver.publish(*(b"%d" % n for n in range(MANY)))
    driver.wait(0)
    assert len(deliveries(driver.out)) == MANY
    assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
    driver.broker.budget = BUDGET


@pytest.mark.parametrize("queue", [b"", b"group"])
def test_a_durable_that_comes_back_gets_what_it_had_in_portions_and_then_what_is_new(
    queue: bytes,
) -> None:
    driver = Driver()
    offline(driver, queue=queue)
    emits = Emits(driver)
    driver.subscribe(durable=b"dur", queue=queue, max_in_flight=WINDOW)
    assert 0 < len(emits.all) < MANY
    # Others are served in between.
    assert driver.publish(b"new", channel=b"other")[0].error == b""
    assert driver.publish(b"new")[0].error == b""
    driver.wait(0)
    assert emits.all == list(range(1, MANY + 2))
    assert emits.most < MANY / 4


def test_what_is_acknowledged_while_it_is_resent_does_not_come_again() -> None:
    driver = Driver()
    offline(driver)
    emits = Emits(driver)
    inbox = driver.subscribe(durable=b"dur", max_in_flight=WINDOW)
    driver.ack(inbox, *range(MANY // 2, MANY + 1))
    driver.wait(0)
    assert emits.all[-1] < MANY // 2
    assert emits.all == list(range(1, MANY // 2))


def test_one_that_leaves_in_between_and_comes_back_gets_each_once_more() -> None:
    driver = Driver()
    offline(driver)
    emits = Emits(driver)
    inbox = driver.subscribe(durable=b"dur", max_in_flight=WINDOW)
    assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
    before = len(emits.all)
    assert before < MANY
    driver.wait(1)
    assert len(emits.all) == before
    driver.subscribe(durable=b"dur", max_in_flight=WINDOW)
    driver.publish(b"new")
    driver.wait(0)
    assert emits.all[before:] == list(range(1, MANY + 2))


def test_what_was_not_acknowledged_in_time_is_resent_in_portions() -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(max_in_flight=WINDOW, ack_wait=5)
    driver.publish(*(b"%d" % n for n in range(MANY)))
    driver.wait(0)
    driver.broker.budget = BUDGET
    emits = Emits(driver)
    driver.wait(5.5)
    assert emits.all == list(range(1, MANY + 1))
    assert emits.most < MANY / 4


def test_a_start_looks_up_so_many_unacknowledged_messages_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "RECOVERED_ENTRIES", 30)
    servers = FileServers()
    driver = servers.driver
    driver.connect()
    driver.connect(b"other")
    driver.subscribe(max_in_flight=WINDOW, ack_wait=5)
    driver.subscribe(client_id=b"other", inbox=b"there", max_in_flight=WINDOW, ack_wait=5)
    driver.publish(*(b"%d" % n for n in range(MANY)))
    driver.wait(0)
    driver.store.tick(driver.clock.wall_ns())
    servers.kill()
    driver = servers.driver
    looked: list[int] = []
    stamped = driver.broker.timestamp_of
    commit = driver.store.commit

    def counted(channel: object, sequence: int) -> int:
        looked[-1] += 1
        return stamped(channel, sequence)  # type: ignore[arg-type]

    def turned() -> object:
        looked.append(0)
        return commit()

    looked.append(0)
    driver.broker.timestamp_of = counted  # type: ignore[assignment,method-assign]
    driver.store.commit = turned  # type: ignore[assignment,method-assign]
    driver.wait(6)
    assert sum(looked) == 2 * MANY
    assert max(looked) <= 30
    for inbox in (b"in", b"there"):
        resent: list[Delivery] = deliveries(driver.out, inbox)
        assert [d.sequence for d in resent] == list(range(1, MANY + 1))
    # New messages flow behind them.
    driver.publish(b"new")
    assert sequences(driver.out)[-1] == MANY + 1


def test_a_timer_that_ends_while_its_subscription_is_resent_lists_nothing_twice() -> None:
    """Else the lists grow for as long as more is due than the NATS server takes."""
    driver = Driver()
    driver.connect()
    driver.subscribe(max_in_flight=WINDOW, ack_wait=1)
    driver.publish(*(b"%d" % n for n in range(MANY)))
    driver.wait(0)
    driver.broker.budget = BUDGET
    emits = Emits(driver)
    for _ in range(5):
        driver.clock.advance(1)
        driver.turn()
    assert len(driver.broker.timers) < 5
    assert emits.all == list(range(1, len(emits.all) + 1))
    assert len(emits.all) < MANY
    driver.wait(0)
    assert emits.all[:MANY] == list(range(1, MANY + 1))


def test_windows_that_resume_again_and_again_are_listed_so_much_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A window of a million messages that is closed and resumed all the time kept the others
    waiting.
    """
    monkeypatch.setattr(constants, "RECOVERED_ENTRIES", MANY + 1)
    driver = Driver()
    driver.connect()
    inboxes = [
        driver.subscribe(durable=b"%d" % n, inbox=b"in.%d" % n, max_in_flight=WINDOW)
        for n in range(3)
    ]
    driver.publish(*(b"%d" % n for n in range(MANY)))
    driver.wait(0)
    for inbox in inboxes:
        assert driver.leave(SUBJECTS.sub_close, inbox).error == b""
    driver.out.clear()
    for n in range(3):
        request = messages.SubscriptionRequest(
            client_id=b"me",
            subject=b"foo",
            inbox=b"in.%d" % n,
            durable_name=b"%d" % n,
            max_in_flight=WINDOW,
            ack_wait_in_secs=30,
        )
        driver.frame(SUBJECTS.subscribe, messages.encode(request), b"answers")
    resent = []
    for _ in range(3):
        driver.turn()
        resent.append([len(sequences(driver.out, b"in.%d" % n)) for n in range(3)])
    assert resent == [[MANY, 0, 0], [MANY, MANY, 0], [MANY, MANY, MANY]]
