"""Timers of the broker: in order, and never so many at once that publishers would wait for all of
them.
"""

from __future__ import annotations

from ftstan.broker.timers import AT_ONCE, Timers


def test_what_is_due_runs_in_order_of_time_and_then_of_setting() -> None:
    timers = Timers()
    ran = list[str]()
    for when, name in ((30, "late"), (10, "first"), (20, "a"), (20, "b"), (31, "not yet")):
        timers.at(when, lambda name=name: ran.append(name))  # type: ignore[misc]
    assert timers.run(30)
    assert ran == ["first", "a", "b", "late"]
    assert timers.next == 31
    assert not timers.run(30)


def test_a_burst_is_spread_over_runs_and_says_that_it_is_not_done() -> None:
    timers = Timers()
    ran = list[int]()
    count = 3 * AT_ONCE - 1
    for i in range(count):
        timers.at(10, lambda i=i: ran.append(i))  # type: ignore[misc]
    sizes = []
    while timers.next is not None and timers.next <= 10:
        before = len(ran)
        assert timers.run(10)
        sizes.append(len(ran) - before)
    assert sizes == [AT_ONCE, AT_ONCE, AT_ONCE - 1]
    assert ran == list(range(count))


def test_a_timer_that_sets_itself_again_for_now_does_not_hold_up_the_others() -> None:
    timers = Timers()
    ran = list[str]()

    def again() -> None:
        ran.append("again")
        timers.at(10, again)

    timers.at(10, again)
    timers.at(10, lambda: ran.append("other"))
    timers.run(10)
    assert ran == ["again", "other"]
    timers.run(10)
    assert ran == ["again", "other", "again"]


def test_a_cancelled_timer_never_runs_and_leaves_nothing_behind() -> None:
    timers = Timers()
    ran = list[int]()
    kept = [timers.at(1000 + i, lambda i=i: ran.append(i)) for i in range(10)]  # type: ignore[misc]
    for i in range(5000):
        timer = timers.at(500 + i, lambda: ran.append(-1))
        timers.cancel(timer)
        timers.cancel(timer)
        assert timer.callback is None
        assert len(timers) < 200
    timers.cancel(kept[3])
    assert timers.run(10_000)
    assert ran == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert (len(timers), timers.next) == (0, None)
    timers.cancel(kept[0])
    timers.at(20_000, lambda: ran.append(20))
    assert timers.run(20_000)


def test_a_timer_may_cancel_another_one_that_is_due_with_it() -> None:
    timers = Timers()
    ran = list[str]()
    timers.at(10, lambda: timers.cancel(second))
    second = timers.at(10, lambda: ran.append("second"))
    timers.at(10, lambda: ran.append("third"))
    assert timers.run(10)
    assert ran == ["third"]
    assert not timers.run(10)
