"""Judging an owner's vital signs, with a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ftstan.ft.deadlines import (
    BATCH_DIE_S,
    BATCH_QUIET_S,
    CALL_DIE_S,
    CALL_QUIET_S,
    JUDGE_EVERY_S,
    LATE_TURN_S,
    PROBE_DIE_S,
    PROBE_QUIET_S,
    SLOW_BATCH_DIE_S,
    TAKE_DIE_S,
)
from ftstan.ft.vital_signs import Guard, GuardVerdict, Vitals

SLACK = 2 * JUDGE_EVERY_S


@dataclass
class Court:
    """A guard that is asked every quarter of a second; ``said`` are its lines."""

    guard: Guard = field(default_factory=Guard)
    now: float = 1000.0
    said: list[str] = field(default_factory=list)
    verdict: GuardVerdict = GuardVerdict.FINE

    def sit(self, vitals: Vitals, seconds: float) -> GuardVerdict:
        """Let time pass while the vital signs stay as they are."""
        end = self.now + seconds
        while self.now < end:
            self.look(vitals)
            self.now += JUDGE_EVERY_S
        return self.look(vitals)

    def look(self, vitals: Vitals) -> GuardVerdict:
        judgement = self.guard.judge(vitals, self.now)
        if judgement.why:
            self.said.append(judgement.why)
        self.verdict = judgement.verdict
        return self.verdict


def test_probes_and_batches_that_come_and_go_are_no_reason_for_anything() -> None:
    court = Court()
    for _ in range(200):
        court.look(Vitals(probe_since=court.now, batch_since=court.now))
        court.now += JUDGE_EVERY_S
        court.look(Vitals())
    assert (court.verdict, court.said, court.guard.quiet) == (GuardVerdict.FINE, [], False)


@pytest.mark.parametrize(
    ("hanging", "quiet", "die", "words"),
    [
        (Vitals(probe_since=1000.0), PROBE_QUIET_S, PROBE_DIE_S, "storage has not answered for"),
        (
            Vitals(batch_since=1000.0),
            BATCH_QUIET_S,
            BATCH_DIE_S,
            "a batch has not been committed for",
        ),
        (
            Vitals(call=(1000.0, 1)),
            CALL_QUIET_S,
            CALL_DIE_S,
            "a call to the storage has not returned for",
        ),
    ],
)
def test_what_hangs_first_silences_and_then_ends_the_owner(
    hanging: Vitals, quiet: float, die: float, words: str
) -> None:
    court = Court()
    assert court.sit(hanging, quiet - SLACK) is GuardVerdict.FINE
    assert court.sit(hanging, SLACK + JUDGE_EVERY_S) is GuardVerdict.QUIET
    assert court.guard.quiet
    assert court.sit(hanging, die - quiet - SLACK) is GuardVerdict.QUIET
    assert court.sit(hanging, SLACK + JUDGE_EVERY_S) is GuardVerdict.DIE
    assert len(court.said) == 2
    assert all(words in line for line in court.said)


def test_a_server_that_hangs_with_the_lock_before_it_owns_the_store_ends() -> None:
    court = Court()
    hanging = Vitals(taking_since=court.now)
    assert court.sit(hanging, TAKE_DIE_S - SLACK) is GuardVerdict.FINE
    assert court.said == []
    assert court.sit(hanging, SLACK + JUDGE_EVERY_S) is GuardVerdict.DIE
    words = (
        "storage has not answered for 30s, while this server took the datastore: it ends, so that "
        "another one can have the lock; check the storage"
    )
    assert set(court.said) == {words}


def test_a_turn_that_was_late_itself_counts_as_one_turn() -> None:
    court = Court()
    hanging = Vitals(probe_since=court.now)
    for _ in range(10):
        assert court.look(hanging) is GuardVerdict.FINE
        court.now += LATE_TURN_S
    # Ten turns of a quarter of a second; one that is in time counts as long as it took.
    assert court.look(hanging) is GuardVerdict.FINE
    court = Court()
    for _ in range(10):
        court.look(hanging)
        court.now += LATE_TURN_S * 0.99
    assert court.look(hanging) is not GuardVerdict.FINE


def test_storage_that_answers_in_time_lets_heartbeats_go_on_with_one_line() -> None:
    court = Court()
    hanging = Vitals(probe_since=court.now)
    assert court.sit(hanging, 7) is GuardVerdict.QUIET
    assert court.sit(Vitals(), 60) is GuardVerdict.FINE
    assert not court.guard.quiet
    assert len(court.said) == 2
    assert court.said[1].startswith("storage answers again after 7s")


def test_each_probe_has_the_whole_time() -> None:
    court = Court()
    for _ in range(20):
        assert court.sit(Vitals(probe_since=court.now), PROBE_QUIET_S - 1) is GuardVerdict.FINE


def test_a_batch_whose_calls_return_is_slow_and_does_not_hang() -> None:
    court = Court(Guard(5.0, sees_calls=True))
    batch = court.now
    while court.now < batch + SLOW_BATCH_DIE_S - SLACK:
        # Seven seconds each.
        call = court.now // 7
        court.look(Vitals(batch_since=batch, call=call))
        court.now += JUDGE_EVERY_S
    assert court.verdict is GuardVerdict.QUIET
    assert court.sit(Vitals(batch_since=batch), 2 * SLACK) is GuardVerdict.DIE
    assert [line.split(" for ")[0] for line in court.said] == 2 * ["a batch has not been committed"]


def test_calls_that_hang_one_behind_the_other_have_the_whole_time_each() -> None:
    court = Court()
    for call in range(20):
        assert court.sit(Vitals(call=call), CALL_QUIET_S - 1) is GuardVerdict.FINE


@pytest.mark.parametrize("pause", [1.5, 60.0, 86_400.0])
def test_time_in_which_this_process_was_paused_does_not_count(pause: float) -> None:
    court = Court(Guard(5.0))
    vitals = Vitals(probe_since=court.now, batch_since=court.now, reachable=False)
    court.look(vitals)
    court.now += pause
    assert court.look(vitals) is GuardVerdict.FINE
    assert court.sit(vitals, 2) is GuardVerdict.FINE


def test_a_loop_that_is_always_late_still_ends_the_owner_of_dead_storage() -> None:
    court = Court()
    hanging = Vitals(probe_since=court.now)
    for _ in range(round(PROBE_DIE_S / JUDGE_EVERY_S) + 1):
        court.look(hanging)
        court.now += 1.5
    assert court.look(hanging) is GuardVerdict.DIE


def test_an_owner_that_nats_does_not_reach_leaves_after_the_timeout() -> None:
    court = Court(Guard(5.0))
    cut_off = Vitals(reachable=False)
    assert court.sit(cut_off, 5 - SLACK) is GuardVerdict.FINE
    assert court.sit(cut_off, SLACK + JUDGE_EVERY_S) is GuardVerdict.LEAVE
    (line,) = court.said
    assert "cut off from NATS for 5s" in line


def test_a_connection_that_comes_back_in_time_starts_the_timeout_over() -> None:
    court = Court(Guard(5.0))
    for _ in range(5):
        assert court.sit(Vitals(reachable=False), 4) is GuardVerdict.FINE
        assert court.look(Vitals()) is GuardVerdict.FINE
        court.now += JUDGE_EVERY_S
    assert court.said == []


def test_an_owner_that_waits_for_storage_is_not_cut_off_by_that() -> None:
    """A successor commits what it has kept before it reads that NATS has heard of it."""
    court = Court(Guard(5.0))
    committing = Vitals(batch_since=court.now, reachable=False)
    assert court.sit(committing, BATCH_QUIET_S - SLACK) is GuardVerdict.FINE
    assert court.sit(Vitals(reachable=False), 5 - SLACK) is GuardVerdict.FINE
    assert court.sit(Vitals(reachable=False), 2 * SLACK) is GuardVerdict.LEAVE


def test_without_a_timeout_nobody_leaves() -> None:
    court = Court(Guard(0.0))
    assert court.sit(Vitals(reachable=False), 3600) is GuardVerdict.FINE
    assert court.said == []


def test_cut_off_from_both_storage_decides() -> None:
    """A clean stop needs storage: while that hangs there is none, and the end comes when storage is
    given up.
    """
    court = Court(Guard(2.0))
    hanging = Vitals(probe_since=court.now, reachable=False)
    assert court.sit(hanging, PROBE_QUIET_S + SLACK) is GuardVerdict.QUIET
    assert court.sit(hanging, PROBE_DIE_S) is GuardVerdict.DIE
