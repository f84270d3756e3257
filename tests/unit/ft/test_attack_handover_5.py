"""Attacks on who owns the store: a copy of it in its place."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError
from ftstan.ft.events import TryLock, TryResult
from ftstan.ft.lock_attempt import attempt
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Member = Callable[[str], StoreOwner]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def member(store: Path) -> Iterator[Member]:
    with contextlib.ExitStack() as stack:

        def make(server_id: str) -> StoreOwner:
            owner = StoreOwner(
                LocalDisk(), str(store), server_id=server_id, clock=ManualClock(), in_group=True
            )
            stack.callback(owner.close)
            return owner

        yield make


def active(member: Member) -> StoreOwner:
    owner = member("A")
    owner.try_lock()
    owner.activate()
    return owner


def probe_of(owner: StoreOwner) -> Probe:
    return Probe(LocalDisk(), owner.root, owner, server_id="A", look=lambda: None)


@pytest.mark.parametrize("how", ["a copy", "a link to a copy"])
def test_of_two_copies_of_one_datastore_the_one_that_the_path_names_has_an_owner(
    member: Member, store: Path, how: str
) -> None:
    """Somebody restores a copy while the group serves: its lock is free, its epochs are its own,
    and a standby takes it. The owner of what was moved away would serve on beside it, and answer.
    """
    a = active(member)
    probe = probe_of(a)
    assert probe()
    moved = store.rename(store.with_name("moved"))
    copy = store if how == "a copy" else store.with_name("copy")
    shutil.copytree(moved, copy)
    if how != "a copy":
        store.symlink_to(copy)
    b = member("B")
    assert attempt(b, TryLock()).result is TryResult.GRANTED
    assert b.activate().epoch == 2
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        probe()
    with pytest.raises(FencedError):
        a.confirm()
    probe.close()
    b.confirm()


@pytest.mark.parametrize("what", ["nothing", "an empty directory", "a file", "itself"])
def test_an_owner_whose_path_names_no_other_datastore_goes_on(
    member: Member, store: Path, what: str
) -> None:
    """As with a share that was unmounted lazily: what is open is the group's store all the same."""
    a = active(member)
    probe = probe_of(a)
    moved = store.rename(store.with_name("moved"))
    if what == "an empty directory":
        store.mkdir()
    elif what == "a file":
        store.touch()
    elif what == "itself":
        store.symlink_to(moved)
    assert probe()
    a.confirm()
    a.verify_lock()
    probe.close()
