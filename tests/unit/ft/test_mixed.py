"""Mixed groups: what the record keeps, what a node believes, what it does about it."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, StoreError
from ftstan.config.flags import parse
from ftstan.config.options import FtOptions
from ftstan.config.units import MILLISECOND, SECOND
from ftstan.ft.active import Active, ConfirmNow, EpochRaised, SendHeartbeat
from ftstan.ft.epoch_records import EpochRecord
from ftstan.ft.heartbeat import Heartbeat, decode_heartbeat
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.lock_attempt import see_store
from ftstan.ft.mixed import MIXED_OFF, MIXED_ON, MixedModeEstimate, too_slow_line, word_of
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.standby import (
    HeartbeatHeard,
    Level,
    Log,
    NatsUp,
    Started,
    StoreSeen,
    TimerFired,
    TryLock,
)
from tests.command_lines import to_options
from tests.datastores import serving
from tests.unit.ft.test_standby import ORIGINAL, STORE, Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.ft.active import Action

ON = Log(Level.INFO, MIXED_ON)
OFF = Log(Level.INFO, MIXED_OFF)


class ForRootAlone(LocalDisk):
    """A disk with the file system's own directory in it, as others than root see it."""

    def open_dir_at(self, dirfd: int, name: str) -> int:
        if name == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return super().open_dir_at(dirfd, name)


def owner_of(path: Path, *, server_id: str = "ME", disk: LocalDisk | None = None) -> StoreOwner:
    return StoreOwner(
        disk or LocalDisk(), str(path), server_id=server_id, clock=ManualClock(), in_group=True
    )


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[StoreOwner]:
    owner = owner_of(tmp_path)
    owner.try_lock()
    yield owner
    owner.close()


# ---- the record
# --------------------------------------------------------------------------------------------------


def test_a_serving_owner_switches_it_on_and_off_with_an_epoch_each(owner: StoreOwner) -> None:
    first = owner.activate()
    assert not first.ft_mixed
    owner.set_mixed(on=True)
    assert (owner.mixed, owner.activation.epoch) == (True, first.epoch + 1)
    record = owner.read_owner()
    assert record is not None
    assert (record.epoch, record.ft_mixed, record.store_id) == (
        first.epoch + 1,
        True,
        first.store_id,
    )
    owner.set_mixed(on=True)
    assert owner.activation.epoch == first.epoch + 1
    owner.set_mixed(on=False)
    assert (owner.mixed, owner.activation.epoch) == (False, first.epoch + 2)
    owner.confirm()


@pytest.mark.parametrize("mover", [b"", b"bridge"])
def test_the_word_of_a_member_makes_no_store_mixed_in_which_a_channel_has_moved(
    tmp_path: Path, mover: bytes
) -> None:
    with serving(tmp_path) as node:
        node.publish(b"foo", b"a")
        node.publish(b"other", b"a")
        node.channel(b"foo").set_moved(mover)
        node.stop()
    (tmp_path / "lost+found").mkdir()
    told = owner_of(tmp_path, disk=ForRootAlone())
    told.try_lock()
    before = told.read_owner(), set(tmp_path.iterdir())
    with pytest.raises(StoreError, match='channel "foo" has moved: an original server'):
        told.activate(ft_mixed=True)
    assert (told.read_owner(), set(tmp_path.iterdir())) == before
    told.close()
    # Every other one takes it as before.
    with serving(tmp_path) as node:
        assert not node.owner.mixed
        assert node.channel(b"foo").mover == mover
        node.channel(b"foo").set_moved(None)
        node.stop()
    told = owner_of(tmp_path, disk=ForRootAlone())
    told.try_lock()
    assert told.activate(ft_mixed=True).ft_mixed
    told.close()


def test_after_it_was_switched_off_what_was_not_confirmed_since_is_read_as_what_others_wrote(
    owner: StoreOwner,
) -> None:
    assert owner.activate(ft_mixed=True).epoch == 1
    assert owner.originals_through == 1
    for _ in range(3):
        owner.release()
        owner.try_lock()
        owner.activate(ft_mixed=False)
        assert (owner.mixed, owner.originals_through) == (False, 1)
    assert (owner.activation.epoch, owner.activation.was_mixed) == (4, False)
    owner.set_mixed(on=True)
    assert owner.originals_through == 5
    owner.set_mixed(on=False)
    assert (owner.activation.epoch, owner.originals_through) == (6, 5)


def test_a_group_that_was_never_mixed_has_no_such_epoch(owner: StoreOwner) -> None:
    for _ in range(3):
        owner.activate()
        owner.raise_epoch()
        assert owner.originals_through == 0
        owner.release()
        owner.try_lock()


def test_what_a_standby_heard_makes_no_group_mixed_and_is_read_with_care_by_every_successor(
    tmp_path: Path,
) -> None:
    owner = owner_of(tmp_path)
    owner.try_lock()
    owner.activate()
    owner.release()
    owner.try_lock()
    owner.activate(heard_under=None)
    assert (owner.mixed, owner.originals_through) == (False, 1)
    # Channels that are opened later were left before, too.
    owner.raise_epoch()
    owner.raise_epoch()
    record = owner.read_owner()
    assert record is not None
    assert (record.epoch, record.ft_mixed, record.originals_through) == (4, False, 1)
    owner.release()
    owner.try_lock()
    # Heard under an epoch that was the newest one then, by somebody who did not become its
    # successor.
    owner.activate(heard_under=3)
    assert (owner.mixed, owner.originals_through) == (False, 3)
    owner.close()


def test_an_owner_that_goes_on_to_another_epoch_reads_the_rest_as_it_read_the_beginning(
    owner: StoreOwner,
) -> None:
    owner.activate(ft_mixed=True)
    owner.release()
    owner.try_lock()
    owner.activate(ft_mixed=False)
    owner.raise_epoch()
    assert (owner.mixed, owner.originals_through) == (False, 1)


def test_an_owner_whose_lock_file_is_gone_is_fenced_in_a_mixed_group_only(
    owner: StoreOwner, tmp_path: Path
) -> None:
    owner.activate()
    (tmp_path / LOCK_NAME).unlink()
    owner.confirm()
    with pytest.raises(FencedError, match="the lock file was removed"):
        owner.set_mixed(on=True)
    assert not owner.mixed


def test_in_a_mixed_group_every_confirm_looks_at_the_lock_file(
    owner: StoreOwner, tmp_path: Path
) -> None:
    owner.activate(ft_mixed=True)
    owner.confirm()
    (tmp_path / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).touch()
    with pytest.raises(FencedError, match="the lock file was replaced"):
        owner.confirm()


def test_a_standby_takes_a_store_of_the_original_for_mixed_and_an_empty_one_not(
    tmp_path: Path,
) -> None:
    owner = owner_of(tmp_path)
    other = owner_of(tmp_path, server_id="OTHER")
    said = []
    for step in (
        lambda: None,
        lambda: (tmp_path / "server.dat").write_bytes(b"\1\0\0\0"),
        owner.try_lock,
        lambda: owner.activate(ft_mixed=False),
        lambda: owner.set_mixed(on=True),
    ):
        step()
        node = Node(store=None)
        node.on(see_store(other))
        said.append(node.mixed())
    assert said == [False, True, True, False, True]
    owner.close()
    other.close()


# ---- what a node believes
# ------------------------------------------------------------------------------------------


def test_a_heartbeat_makes_nothing_mixed_and_is_remembered_until_we_own_the_store() -> None:
    belief = MixedModeEstimate()
    belief.read(False, 5)
    belief.hear()
    assert (belief.mixed, belief.heard) == (False, True)
    belief.read(False, 5)
    belief.read(None, 6)
    assert (belief.mixed, belief.heard) == (False, True)
    belief.read(False, 6)
    assert (belief.mixed, belief.heard) == (False, False)
    belief.hear()
    assert (belief.mixed, belief.heard) == (False, True)


def test_what_was_heard_belongs_to_the_epoch_that_the_next_look_shows() -> None:
    """Two owners of ours may have come and gone since the last look, and an original behind
    them.
    """
    belief = MixedModeEstimate()
    belief.read(False, 3)
    belief.hear()
    belief.read(False, 5)
    assert belief.heard
    belief.read(False, 6)
    assert not belief.heard


def test_the_operators_word_on_the_record_is_followed_both_ways() -> None:
    belief = MixedModeEstimate()
    assert belief.read(True, 5) == MIXED_ON
    belief.hear()
    assert (belief.mixed, belief.heard) == (True, True)
    assert belief.read(False, 6) == MIXED_OFF
    assert (belief.mixed, belief.heard) == (False, True)
    assert belief.read(False, 7) == ""
    assert (belief.mixed, belief.heard) == (False, False)


def test_a_record_that_does_not_count_changes_nothing() -> None:
    belief = MixedModeEstimate()
    belief.read(True)
    belief.read(None)
    assert belief.mixed


@pytest.mark.parametrize("word", [True, False])
def test_beside_the_operators_word_nothing_counts(*, word: bool) -> None:
    belief = MixedModeEstimate(word)
    assert belief.mixed is word
    belief.read(not word)
    assert belief.mixed is word
    belief.hear()
    assert belief.mixed is word


@pytest.mark.parametrize(("text", "word"), [("auto", None), ("on", True), ("off", False)])
def test_the_flag_is_the_operators_word(text: str, *, word: bool | None) -> None:
    line = parse(["-store", "file", "-dir", "x", "-ft_group", "g", "-ft_mixed", text])
    assert word_of(to_options(line).ft) is word


def test_heartbeats_that_an_original_would_miss_are_warned_of() -> None:
    assert too_slow_line(FtOptions()) == ""
    slow = FtOptions(hb_interval=1100 * MILLISECOND, hb_missed_interval=2 * SECOND)
    assert "ft_hb_interval is 1.1s" in too_slow_line(slow)


# ---- a standby
# --------------------------------------------------------------------------------------------------


def seen(mixed: bool, slot: int = 5, epoch: int = 5) -> StoreSeen:
    record = EpochRecord(slot, epoch, "PEER", b"n" * 16, STORE, "host", 1, 2, 1, ft_mixed=mixed)
    return StoreSeen(STORE, owner=record)


def test_a_store_that_somebody_served_from_and_none_of_ours_owned_is_an_originals() -> None:
    node = Node(store=b"")
    node.stand_by()
    assert node.on(StoreSeen(b"", served=False)) == []
    assert node.on(StoreSeen(b"", served=True)) == [ON]


def test_a_standby_says_it_once_when_the_record_is_mixed_and_polls_no_more() -> None:
    node = Node()
    node.stand_by()
    assert node.on(seen(True)) == [ON]
    assert node.on(seen(True)) == []
    began = node.now
    assert [type(action) for action in node.wait()] == [TryLock]
    assert node.now - began >= 1.0


def test_a_standby_polls_again_when_the_record_was_switched_off() -> None:
    node = Node()
    node.stand_by()
    node.on(seen(True))
    assert node.on(seen(False)) == [OFF]
    began = node.now
    assert node.wait() == [TryLock()]
    assert node.now - began <= 0.06


@pytest.mark.parametrize("lacks", ["its start", "NATS"])
def test_what_the_record_says_makes_nobody_poll_who_is_not_there_yet(lacks: str) -> None:
    node = Node()
    if lacks == "its start":
        node.on(NatsUp())
    else:
        node.on(Started())
    assert node.on(seen(True)) == [ON]
    assert node.on(seen(False)) == [OFF]
    assert node.timer is None


def test_a_standby_remembers_under_which_epoch_it_heard_an_original() -> None:
    node = Node()
    node.stand_by()
    found = [node.machine.heard_under]
    node.on(HeartbeatHeard(ORIGINAL))
    # The second one is a filler: somebody took a number, and died before it had a record.
    for slot, epoch in ((5, 5), (6, 7), (7, 7)):
        node.on(seen(False, slot, epoch))
        found.append(node.machine.heard_under)
    assert found == [0, None, None, 5]


def test_a_standby_that_hears_an_original_is_not_mixed_and_goes_on_polling() -> None:
    node = Node()
    node.stand_by()
    node.on(seen(False))
    for _ in range(100):
        assert node.on(HeartbeatHeard(ORIGINAL)) == []
    assert (node.mixed(), node.machine.heard_under) == (False, None)
    began = node.now
    assert [type(action) for action in node.wait()] == [TryLock]
    assert node.now - began <= 0.06


# ---- an active
# --------------------------------------------------------------------------------------------------

MINE = Heartbeat("ME", 1_700_000_000_000_000_000, epoch=5, store_id=STORE)


def sent(actions: list[Action]) -> list[Heartbeat | None]:
    return [
        decode_heartbeat(action.payload) for action in actions if isinstance(action, SendHeartbeat)
    ]


@pytest.mark.parametrize(
    ("older", "said"), [(10**12, -(10**12) - 10**9), (0, -(10**9)), (-(10**9), 0)]
)
def test_the_first_heartbeat_is_older_than_any_that_an_original_sent_before(
    older: int, said: int
) -> None:
    active = Active(MINE, random.Random(1), original_ns=MINE.activated_ns - older)
    (beat,) = sent(active.handle(Started(), 10.0))
    assert beat is not None
    assert beat.activated_ns - MINE.activated_ns == said


def test_heartbeats_say_the_epoch_that_was_taken_while_serving() -> None:
    active = Active(MINE, random.Random(1))
    active.handle(Started(), 10.0)
    assert active.handle(EpochRaised(6), 10.5) == []
    (beat,) = sent(active.handle(TimerFired(), 11.1))
    assert beat is not None
    assert beat.epoch == 6
    assert active.handle(HeartbeatHeard(replace(MINE, server_id="PEER", epoch=6)), 11.5) != [
        ConfirmNow()
    ]


@pytest.mark.parametrize(("silent", "asks"), [(1.13, True), (1.12, False)])
def test_an_active_that_was_silent_for_as_long_as_an_original_waits_asks_storage_first(
    silent: float, *, asks: bool
) -> None:
    """The successor may be an original server, and would obey our older time."""
    active = Active(MINE, random.Random(1))
    active.handle(Started(), 10.0)
    actions = active.handle(TimerFired(), 10.0 + silent)
    assert (actions[0] == ConfirmNow(), bool(sent(actions))) == (asks, not asks)
