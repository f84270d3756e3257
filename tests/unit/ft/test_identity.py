"""Whether a directory shows the group's datastore: what is known, and who may say so."""

from __future__ import annotations

import pytest

from ftstan.ft.heartbeat import Heartbeat
from ftstan.ft.identity import GroupStore, stranger_line

OURS = b"o" * 16
OTHER = b"x" * 16


def beat(store_id: bytes, server_id: str = "PEER") -> Heartbeat:
    return Heartbeat(server_id, 1_700_000_000_000_000_000, epoch=5, store_id=store_id)


def test_nothing_is_wrong_while_nothing_is_known() -> None:
    found = GroupStore()
    assert (found.own, found.expected, found.is_wrong, found.is_proven) == (
        None,
        None,
        False,
        False,
    )


def test_what_the_directory_showed_first_is_expected_of_it() -> None:
    found = GroupStore(OURS)
    assert (found.own, found.expected, found.is_wrong) == (OURS, OURS, False)
    assert found.seen(b"")
    assert (found.own, found.expected, found.is_wrong) == (b"", OURS, True)
    assert found.seen(OTHER)
    assert found.is_wrong
    assert not found.seen(OTHER)
    assert found.seen(OURS)
    assert not found.is_wrong


def test_a_store_that_nobody_has_owned_yet_is_not_wrong_and_its_first_id_is_known() -> None:
    found = GroupStore(b"")
    assert (found.own, found.expected, found.is_wrong) == (b"", None, False)
    assert found.seen(OURS)
    assert found.expected == OURS
    assert found.seen(b"")
    assert found.is_wrong


def test_an_owner_of_our_datastore_proves_it() -> None:
    found = GroupStore(OURS)
    assert found.heard(beat(OURS))
    assert found.is_proven
    assert found.expected == OURS
    # A stranger stops nobody then.
    assert not found.heard(beat(OTHER))
    assert (found.is_proven, found.is_wrong, found.expected) == (True, False, OURS)


def test_an_owner_of_another_datastore_makes_ours_wrong_until_it_is_seen_here() -> None:
    found = GroupStore(OURS)
    assert not found.heard(beat(OTHER, "STRANGER"))
    assert (found.expected, found.is_wrong, found.is_proven) == (OTHER, True, False)
    assert found.complaint().startswith(
        f'ft: not the group\'s datastore: serverID "STRANGER" is active in this group on the '
        f"datastore {OTHER.hex()}, but the directory of this server shows {OURS.hex()}: it will "
        "not become active"
    )
    assert found.seen(OTHER)
    assert (found.is_proven, found.is_wrong, found.expected) == (True, False, OTHER)


def test_the_latest_owner_that_was_heard_says_what_the_groups_datastore_is() -> None:
    found = GroupStore(OURS)
    found.heard(beat(OTHER))
    assert found.heard(beat(OURS))
    assert (found.is_proven, found.is_wrong) == (True, False)


def test_an_owner_that_is_heard_before_the_directory_was_read_proves_nothing_yet() -> None:
    found = GroupStore()
    assert not found.heard(beat(OURS))
    assert (found.is_proven, found.is_wrong, found.expected) == (False, False, OURS)
    assert found.seen(OURS)
    assert found.is_proven


def test_what_an_owner_of_ours_said_stays_true_when_the_directory_changes() -> None:
    found = GroupStore(OURS)
    found.heard(beat(OURS, "PEER"))
    assert found.seen(OTHER)
    assert (found.is_proven, found.is_wrong, found.expected) == (False, True, OURS)
    assert f'serverID "PEER" is active in this group on the datastore {OURS.hex()}' in (
        found.complaint()
    )
    assert found.seen(OURS)
    assert found.is_proven


def test_a_store_that_was_proven_is_what_this_member_stood_by_for() -> None:
    found = GroupStore(OTHER)
    found.seen(OURS)
    found.heard(beat(OURS))
    assert found.seen(b"")
    assert found.expected == OURS


@pytest.mark.parametrize("served", [True, False])
def test_beside_an_active_original_somebody_must_have_served_from_the_directory(
    *, served: bool
) -> None:
    found = GroupStore()
    found.seen(b"", served=served)
    assert (found.must_be_served, found.is_wrong) == (False, False)
    found.heard_original("GOPEER")
    assert (found.must_be_served, found.is_wrong) == (True, not served)
    if not served:
        assert (
            'serverID "GOPEER" of an original server is active in this group, but the directory '
            "of this server shows none (missing, empty, or without ft.epoch)"
        ) in found.complaint()


def test_a_directory_that_lost_its_store_is_told_by_what_it_showed() -> None:
    found = GroupStore(OURS)
    found.heard_original("GOPEER")
    found.seen(b"")
    assert f"this server stood by for the datastore {OURS.hex()}, but" in found.complaint()
    assert "shows none (missing, empty, or without ft.epoch)" in found.complaint()


def test_a_stranger_is_named_with_its_datastore() -> None:
    assert stranger_line(beat(OTHER)) == (
        'ft: serverID "PEER" is active in this group on another datastore '
        f"({OTHER.hex()}): all members must share one"
    )
