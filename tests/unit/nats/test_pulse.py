"""A silent link is asked, and one that does not answer is given up.

Time that nobody looked does not count.
"""

from __future__ import annotations

from ftstan.nats.pulse import ANSWER_WITHIN_S, ASK_AFTER_S, PATIENT_S, Pulse


def test_a_link_that_speaks_is_never_asked() -> None:
    pulse = Pulse(0.0)
    for i in range(100):
        pulse.heard(i * 0.9)
        assert not pulse.must_ask(i * 0.9 + 0.8)
        assert not pulse.is_gone(i * 0.9 + 0.8)


def test_a_silent_link_is_asked_once_and_given_up_when_the_answer_is_overdue() -> None:
    pulse = Pulse(0.0)
    assert pulse.must_ask(ASK_AFTER_S)
    assert not pulse.must_ask(ASK_AFTER_S + 0.5)
    assert not pulse.is_gone(ASK_AFTER_S + ANSWER_WITHIN_S - 0.01)
    assert pulse.is_gone(ASK_AFTER_S + ANSWER_WITHIN_S)


def test_an_answer_starts_everything_over() -> None:
    pulse = Pulse(0.0)
    assert pulse.must_ask(1.0)
    pulse.heard(2.9)
    assert not pulse.is_gone(100.0)
    assert pulse.must_ask(100.0)


def test_after_a_sleep_the_answer_has_its_whole_time_again() -> None:
    pulse = Pulse(0.0)
    assert pulse.must_ask(1.0)
    pulse.overslept(50.0)
    assert not pulse.is_gone(51.9)
    assert pulse.is_gone(52.0)
    quiet = Pulse(0.0)
    quiet.overslept(50.0)
    assert not quiet.is_gone(50.0)


def test_who_is_patient_waits_for_longer() -> None:
    pulse = Pulse(0.0, PATIENT_S)
    assert pulse.must_ask(1.0)
    assert not pulse.is_gone(1.0 + PATIENT_S - 0.01)
    assert pulse.is_gone(1.0 + PATIENT_S)
