"""Which heartbeats count, and for what: anybody can send one."""

from __future__ import annotations

import pytest

from ftstan.ft.heartbeat import Heartbeat
from ftstan.ft.heartbeat_trust import (
    Sender,
    original_counts,
    owner_counts,
    says_something,
    sender,
)

STORE = b"s" * 16
OWN = Heartbeat("us", 100, epoch=5, store_id=STORE)


@pytest.mark.parametrize(
    ("beat", "expected"),
    [
        (Heartbeat("x", 1), Sender.ORIGINAL),
        (Heartbeat("x", 1, epoch=6, store_id=STORE), Sender.SUCCESSOR),
        (Heartbeat("x", 1, epoch=5, store_id=STORE), Sender.FORMER),
        (Heartbeat("x", 1, epoch=4, store_id=STORE), Sender.FORMER),
        (Heartbeat("x", 1, epoch=9, store_id=b"t" * 16), Sender.STRANGER),
        (Heartbeat("x", 0, epoch=9, store_id=STORE, time_error="no data"), Sender.UNREADABLE),
        (Heartbeat("x", 0, time_error="no data"), Sender.UNREADABLE),
    ],
)
def test_an_active_server_tells_senders_apart_by_datastore_and_epoch(
    beat: Heartbeat, expected: Sender
) -> None:
    assert sender(beat, OWN) is expected


def test_a_standby_heeds_neither_its_echo_nor_what_is_damaged() -> None:
    assert says_something(OWN, "other")
    assert not says_something(OWN, "us")
    assert not says_something(Heartbeat("x", 0, time_error="no data"), "us")


def test_without_an_epoch_nobody_keeps_a_group_of_ours_waiting() -> None:
    assert not original_counts(mixed=False, store_id=STORE)
    assert not original_counts(mixed=False, store_id=b"")
    assert original_counts(mixed=True, store_id=STORE)
    assert original_counts(mixed=False, store_id=None)


def test_a_former_owner_keeps_nobody_waiting() -> None:
    assert owner_counts(OWN, 5)
    assert owner_counts(OWN, 4)
    assert not owner_counts(OWN, 6)
