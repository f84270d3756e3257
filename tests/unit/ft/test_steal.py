"""When an owner that keeps the lock counts as gone: what is silence, and what starts it anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftstan.ft.epoch_records import EpochRecord
from ftstan.ft.steal import StealTimer, refused_lines, taking_line
from ftstan.ft.watch import farewell

OWNER = EpochRecord(
    *(5, 5, "PEER", b"n" * 16, b"s" * 16, "host-p", 77, 1_700_000_000_000_000_000, 1),
    ft_mixed=False,
)
WATCH = b"epoch 5, probe 1"
NOW = 1000.0


def timer() -> StealTimer:
    return StealTimer(after=10.0, longest_gap=4.0)


def silent_for(found: StealTimer, seconds: int, since: float = NOW) -> str:
    """Look every second; what the last look says."""
    why = ""
    for second in range(seconds + 1):
        why = found.refused(OWNER, WATCH, since + second)
    return why


def test_an_owner_is_gone_when_it_was_silent_for_as_long_as_was_asked() -> None:
    assert silent_for(timer(), 9) == ""
    assert silent_for(timer(), 10) == (
        "was silent on NATS and on storage for 10s (ft_steal_after 10s)"
    )


def test_what_lies_between_two_looks_counts_up_to_the_longest_gap() -> None:
    found = timer()
    for second in (0, 4, 8):
        assert found.refused(OWNER, WATCH, NOW + second) == ""
    # A minute in which this server slept itself.
    assert found.refused(OWNER, WATCH, NOW + 68) != ""
    found = timer()
    assert found.refused(OWNER, WATCH, NOW) == ""
    assert found.refused(OWNER, WATCH, NOW + 60) == ""
    assert found.refused(OWNER, WATCH, NOW + 62) == ""
    assert found.refused(OWNER, WATCH, NOW + 66) != ""


@pytest.mark.parametrize(
    ("owner", "watch"),
    [
        (OWNER, b"epoch 5, probe 2"),
        (OWNER, b""),
        (replace(OWNER, epoch=6), WATCH),
        (replace(OWNER, nonce=b"m" * 16), WATCH),
    ],
    ids=["it wrote", "its file has gone", "another epoch", "another owner"],
)
def test_a_sign_of_life_on_storage_starts_the_silence_anew(
    owner: EpochRecord, watch: bytes
) -> None:
    found = timer()
    assert silent_for(found, 9) == ""
    assert found.refused(owner, watch, NOW + 10) == ""
    for second in range(11, 20):
        assert found.refused(owner, watch, NOW + second) == ""
    assert found.refused(owner, watch, NOW + 20) != ""


@pytest.mark.parametrize(
    ("owner", "watch"),
    [(None, WATCH), (replace(OWNER, ft_mixed=True), WATCH), (OWNER, None)],
    ids=["nobody of ours", "a mixed group", "storage cannot be read"],
)
def test_where_nothing_is_known_of_an_owner_of_ours_nothing_is_silence(
    owner: EpochRecord | None, watch: bytes | None
) -> None:
    found = timer()
    assert silent_for(found, 9) == ""
    for second in range(60):
        assert found.refused(owner, watch, NOW + 10 + second) == ""
    assert silent_for(found, 9, NOW + 100) == ""
    assert found.refused(OWNER, WATCH, NOW + 110) != ""


def test_an_owner_that_was_heard_is_silent_from_then_on() -> None:
    found = timer()
    assert silent_for(found, 9) == ""
    found.broken()
    assert silent_for(found, 9, NOW + 10) == ""
    assert found.refused(OWNER, WATCH, NOW + 20) != ""


def test_nobody_is_gone_where_nothing_is_to_be_stolen() -> None:
    found = StealTimer(after=0.0, longest_gap=4.0)
    assert silent_for(found, 100) == ""
    assert found.refused(OWNER, farewell(5, "PEER"), NOW) == ""


def test_an_owner_that_left_without_its_lock_is_gone_at_once() -> None:
    assert timer().refused(OWNER, farewell(5, "PEER"), NOW) == (
        "stopped, and had no lock to give back"
    )
    assert timer().refused(OWNER, farewell(4, "PEER"), NOW) == ""


def test_the_lines_name_the_owner() -> None:
    assert taking_line(OWNER, "was silent") == (
        f"ft: TAKING THE DATASTORE WITHOUT ITS LOCK: {OWNER.describe()} was silent; it can "
        "acknowledge nothing any more"
    )
    first, second = refused_lines(OWNER)
    assert first == "ft: unable to get store lock at this time, going back to standby"
    assert second.endswith(f"no owner is heard: it was taken last by {OWNER.describe()}")
    assert refused_lines(None)[1].endswith("no owner is heard: no ftstan server ever owned it")
