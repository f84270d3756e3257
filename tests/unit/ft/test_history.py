"""The history of owners: read from the epoch file, and nothing else touched."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from ftstan.admin.protocol import EpochEntry
from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError
from ftstan.ft.epoch import EPOCH_NAME, claim, read_records
from ftstan.ft.epoch_records import SLOT_SIZE, TOOL_NAME, Cause, Departure, Ending
from ftstan.ft.history import cause_text, history_of, open_history
from ftstan.ft.survey import Survey
from tests.sim.disk import SimDisk

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.base.disk import Disk

START_NS = 1_700_000_000_000_000_000


class Store:
    """A datastore whose owners follow each other; each serves for 10 s."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.root = disk.open_dir(path)
        self.clock = ManualClock(START_NS)

    def take(
        self,
        server: str,
        cause: Cause = Cause.UNKNOWN,
        after: int = 0,
        highest_slice: int = 0,
        name: str = "",
    ) -> int:
        activation = claim(
            self.disk,
            self.root,
            server_id=server,
            clock=self.clock,
            survey=lambda: Survey(highest_slice=highest_slice, has_server=False, confirmed=()),
            cause=cause,
            after=after,
            host=f"host-{server}",
            pid=7,
            name=name,
        )
        self.clock.advance(10)
        return activation.epoch

    def history(self, count: int = 100) -> tuple[EpochEntry, ...]:
        return history_of(read_records(self.disk, self.root, count))


def simulated() -> Store:
    disk = SimDisk()
    disk.make_dirs("/store")
    return Store(disk, "/store")


def test_it_says_who_since_when_until_when_and_why_newest_first() -> None:
    store = simulated()
    store.take("A", Cause.LOCK_FREE)
    store.take("B", Cause.SILENCE, after=1)
    store.take("C", Cause.SWITCHOVER, after=2)
    newest, middle, first = store.history()
    assert newest == EpochEntry(
        3, "C", "host-C", 7, START_NS + 20 * 10**9, 0, "switchover", 2, mixed=False
    )
    assert (middle.server, middle.cause, middle.after) == ("B", "silence", 1)
    assert (middle.since_ns, middle.until_ns) == (START_NS + 10 * 10**9, newest.since_ns)
    assert (first.server, first.until_ns) == ("A", middle.since_ns)


def test_a_tool_has_a_name_and_serves_no_time() -> None:
    store = simulated()
    store.take("A")
    store.take("T", Cause.TOOL, name=TOOL_NAME)
    store.take("M", Cause.MIXED_SWITCHED, name=TOOL_NAME)
    # A member that somebody called so.
    store.take("B", Cause.LOCK_FREE, name=TOOL_NAME)
    store.take("C", Cause.MIXED_SWITCHED, name="node-c")
    _, b, mixed, tool, a = store.history()
    assert (a.ended_ns, b.ended_ns) == (0, 0)
    for entry in (mixed, tool):
        assert (entry.name, entry.ended_ns) == ("ftstanctl", entry.since_ns)


def test_what_an_owner_said_of_its_end_is_shown_with_its_successor() -> None:
    store = simulated()
    store.take("A")
    claim(
        store.disk,
        store.root,
        server_id="B",
        clock=store.clock,
        survey=lambda: Survey(highest_slice=0, has_server=False, confirmed=()),
        cause=Cause.LOCK_FREE,
        departed=Departure(1, START_NS + 7, Ending.SIGTERM),
    )
    newest, former = store.history()
    assert (newest.left, former.left) == ("sigterm", "")
    assert (newest.ended_ns, former.ended_ns) == (0, START_NS + 7)
    assert cause_text(newest).startswith("stopped (SIGTERM)")


def test_the_first_epoch_of_a_store_has_a_cause_of_its_own() -> None:
    store = simulated()
    store.take("A", Cause.LOCK_FREE)
    assert store.history()[0].cause == "first_start"


def test_slots_that_a_successor_filled_are_nobodys() -> None:
    store = simulated()
    assert store.take("A", highest_slice=5 * 4096) == 6
    store.take("B")
    assert [entry.epoch for entry in store.history()] == [7, 6]


def test_a_record_that_cannot_be_read_keeps_its_line_and_costs_its_neighbour_the_end() -> None:
    store = simulated()
    for server in "ABCD":
        store.take(server)
    fd = store.disk.open(store.root, EPOCH_NAME, os.O_RDWR)
    store.disk.pwrite(fd, b"\xff" * 64, 3 * SLOT_SIZE + 100)
    d, torn, b, a = store.history()
    assert (torn.epoch, torn.server, torn.cause, torn.until_ns) == (3, "", "unreadable", d.since_ns)
    assert (b.server, b.until_ns) == ("B", 0)
    assert a.until_ns == b.since_ns
    assert cause_text(torn) == "its record cannot be read"


def test_only_as_many_as_were_asked_for_are_read_however_long_the_file_is() -> None:
    store = simulated()
    for _ in range(150):
        store.take("A")
    assert [entry.epoch for entry in store.history(3)] == [150, 149, 148]
    assert [entry.epoch for entry in store.history(149)] == list(range(150, 1, -1))
    assert len(store.history(1000)) == 150


def test_a_store_that_ftstan_never_owned_has_no_history() -> None:
    assert simulated().history() == ()


def test_storage_that_refuses_is_told() -> None:
    store = simulated()
    store.take("A")
    assert isinstance(store.disk, SimDisk)
    store.disk.fail_next("pread", errno.EIO)
    with pytest.raises(StoreError, match=r"ft\.epoch"):
        store.history()


def test_a_cause_of_a_later_release_is_shown_as_it_is_called_there() -> None:
    entry = EpochEntry(1, "A", "h", 1, 1, 0, "by_election", 0, mixed=False)
    assert cause_text(entry) == "by_election"


def test_a_directory_is_read_and_nothing_is_made_in_it(tmp_path: Path) -> None:
    Store(LocalDisk(), str(tmp_path)).take("A")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert [entry.server for entry in open_history(LocalDisk(), str(tmp_path), 10)] == ["A"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(
        StoreError, match="empty holds no datastore that an ftstan server has owned"
    ):
        open_history(LocalDisk(), str(empty), 10)
    assert list(empty.iterdir()) == []


def test_a_directory_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="gone: No such file") as caught:
        open_history(LocalDisk(), str(tmp_path / "gone"), 10)
    assert "-dir" in caught.value.hint
    assert not (tmp_path / "gone").exists()
