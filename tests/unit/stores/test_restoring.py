"""A datastore written from messages that somebody kept: what both servers make of it, and what is
refused.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import DamageError, RecoveryError, StoreError
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools import restoring
from ftstan.stores.file.tools.restoring import (
    Account,
    Restoring,
    SliceWriter,
    Written,
    find_account,
    new_token,
)
from ftstan.stores.file.tools.source import Source
from ftstan.stores.file.tools.verifying import DefectKind, check_channel, check_root
from tests.datastores import server_info
from tests.oracle.gostore import GoRefuses, read_tree
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.filestore import SimOwner, open_file_store
from tests.sim.history import STORE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.base.disk import Disk
    from ftstan.stores.interface import ChannelStore

#: Sequence, timestamp, data, reply.
Row = tuple[int, int, bytes, bytes]

EPOCH = 1_600_000_000_000_000_000


def rows(first: int, last: int, size: int = 40) -> list[Row]:
    """Messages whose timestamps step back now and then, one of them before 1970."""
    made = [
        (
            n,
            EPOCH + n * 1000 - (n % 7) * 5000,
            b"%d:" % n + b"x" * (n % size),
            b"to" if n % 3 else b"",
        )
        for n in range(first, last + 1)
    ]
    if first == 1:
        made[0] = (1, -5, b"", b"")
    return made


@dataclass
class Job:
    """A restore of ``channels`` in steps of ``per_step`` messages of each."""

    channels: dict[str, list[Row]]
    max_bytes: int = 700
    max_msgs: int = 0
    per_step: int = 40
    allow_gaps: bool = False
    extra: list[Written] = field(default_factory=list)

    @property
    def steps(self) -> list[list[object]]:
        longest = max(len(r) for r in self.channels.values())
        return [["rows", at, at + self.per_step] for at in range(0, longest, self.per_step)]

    def run(self, disk: Disk) -> Account:
        root = disk.open_dir(STORE)
        account = find_account(disk, root, STORE) or Account("job", self.steps)
        clock = ManualClock()
        options = FileStoreOptions()
        env = FileEnv(
            disk, root, clock, options, SimOwner(disk, root, clock), records.Crc(), path=STORE
        )
        work = Restoring(env, account)
        work.begin()
        for _, start, stop in account.plan[account.done :]:
            written = list(self.extra)
            for name, messages in self.channels.items():
                work.open_channel(name)
                written += write(
                    disk,
                    root,
                    name,
                    messages[start:stop],
                    max_bytes=self.max_bytes,
                    max_msgs=self.max_msgs,
                )
            work.complete(written, allow_gaps=self.allow_gaps)
        work.finish(server_info())
        return account


def write(
    disk: Disk,
    root: int,
    name: str,
    messages: Sequence[Row],
    *,
    max_bytes: int = 700,
    max_msgs: int = 0,
) -> list[Written]:
    """What a task does."""
    dirfd = disk.open_dir_at(root, name)
    crc = records.Crc()
    writer = SliceWriter(
        disk, dirfd, os.fsencode(name), new_token(), crc, max_bytes=max_bytes, max_msgs=max_msgs
    )
    for row in messages:
        writer.add(*row)
    found = writer.finish()
    disk.close(dirfd)
    return found


def empty() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(STORE)
    return disk


def seen_by_the_original(disk: SimDisk) -> dict[str, list[Row]]:
    tree = disk.tree(STORE)
    view = read_tree(tree)
    assert view.tree == tree, "the original would repair something"
    return {
        os.fsdecode(name): [
            (s, m.timestamp, m.data, m.reply) for s, m in sorted(channel.messages.items())
        ]
        for name, channel in view.channels.items()
    }


def served(disk: SimDisk) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Sequences that our server reads, and the last sequence of each channel."""
    store = open_file_store(disk, ManualClock())
    found = store.recover()
    assert found.refused == {}
    assert found.info == server_info()
    read = {os.fsdecode(c.name): sequences_of(c) for c in found.channels}
    last = {os.fsdecode(c.name): c.last for c in found.channels}
    store.abandon()
    return read, last


def sequences_of(channel: ChannelStore) -> list[int]:
    """What can be read, around gaps."""
    found: list[int] = []
    at = channel.first
    while (block := channel.read(at, 100, 1 << 20)) is not None:
        found += [block.sequence(i) for i in range(block.position(at), len(block))]
        at = found[-1] + 1
    return found


def damage_in(disk: SimDisk, names: Iterable[str]) -> list[str]:
    source = Source(disk, disk.open_dir(STORE), records.Crc(), 1)
    found = list(check_root(source))
    for name in names:
        found += check_channel(source, os.fsencode(name))
    return [f.text for f in found if f.kind is DefectKind.DAMAGE]


def test_the_original_reads_what_was_restored_byte_for_byte() -> None:
    channels = {"orders": rows(1, 150), "late.start": rows(977, 1100), "odd [name] \\x": rows(5, 6)}
    disk = empty()
    Job(channels).run(disk)
    assert seen_by_the_original(disk) == channels


def test_our_server_reads_it_and_goes_on_behind_its_last_sequence() -> None:
    disk = empty()
    account = Job({"orders": rows(11, 150)}).run(disk)
    assert served(disk) == ({"orders": list(range(11, 151))}, {"orders": 150})
    assert (account.channels["orders"].first, account.channels["orders"].count) == (11, 140)
    assert damage_in(disk, ["orders"]) == []


def test_nothing_of_the_work_is_left_in_the_directory() -> None:
    disk = empty()
    Job({"orders": rows(1, 100)}).run(disk)
    names = set(disk.tree(STORE))
    assert restoring.ACCOUNT not in names
    assert not [n for n in names if "tmp." in n]
    numbers = sorted(
        int(n.split(".")[1]) for n in names if n.startswith("orders/msgs.") and n.endswith(".dat")
    )
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 3


@pytest.mark.parametrize(
    ("max_bytes", "max_msgs", "slices"), [(1 << 20, 0, 1), (1 << 20, 25, 4), (1, 0, 100)]
)
def test_slices_end_by_size_and_by_number(max_bytes: int, max_msgs: int, slices: int) -> None:
    disk = empty()
    account = Job({"orders": rows(1, 100)}, max_bytes, max_msgs, per_step=100).run(disk)
    assert account.channels["orders"].slices == slices
    assert len(seen_by_the_original(disk)["orders"]) == 100


def test_a_missing_sequence_stops_the_restore_and_names_it() -> None:
    holed = [row for row in rows(1, 60) if row[0] not in (20, 21)]
    disk = empty()
    with pytest.raises(DamageError, match=r'channel "orders": sequences 20 to 21 are missing'):
        Job({"orders": holed}).run(disk)
    assert not [n for n in disk.tree(STORE) if n.endswith("msgs.1.dat")]


def test_gaps_that_are_allowed_are_written_down_and_no_damage() -> None:
    holed = [row for row in rows(1, 60) if row[0] not in (20, 21, 41)]
    disk = empty()
    account = Job({"orders": holed}, allow_gaps=True).run(disk)
    assert account.channels["orders"].missing == [(20, 21), (41, 41)]
    assert served(disk) == ({"orders": [row[0] for row in holed]}, {"orders": 60})
    assert seen_by_the_original(disk) == {"orders": holed}
    assert damage_in(disk, ["orders"]) == []


def test_a_message_that_comes_twice_is_written_once() -> None:
    disk = empty()
    disk.make_dirs(f"{STORE}/c")
    root = disk.open_dir(STORE)
    twice = [row for row in rows(1, 30) for _ in range(2)]
    dirfd = disk.open_dir_at(root, "c")
    writer = SliceWriter(disk, dirfd, b"c", 1, records.Crc(), max_bytes=1 << 20)
    for row in twice:
        writer.add(*row)
    (found,) = writer.finish()
    assert (found.first, found.last, writer.duplicates) == (1, 30, 30)


@pytest.mark.parametrize(
    "other", [(9, 1, b"data", b""), (9, 0, b"date", b""), (9, 0, b"data", b"r")]
)
def test_one_sequence_with_two_contents_is_never_chosen_between(other: Row) -> None:
    disk = empty()
    disk.make_dirs(f"{STORE}/c")
    with pytest.raises(DamageError, match=r'channel "c": sequence 9 has two contents'):
        write(disk, disk.open_dir(STORE), "c", [(9, 0, b"data", b""), other])


def test_slices_that_overlap_are_refused() -> None:
    with pytest.raises(DamageError, match="sequence 1 was written twice"):
        Job({"orders": rows(1, 30)}, extra=[Written("orders", 1, 30, 10, "tmp.1")]).run(empty())


def test_a_directory_with_anything_else_in_it_is_refused_and_not_touched() -> None:
    disk = empty()
    disk.add_tree(STORE, {"notes.txt": b"mine"})
    with pytest.raises(StoreError, match=r"/store is not empty: it holds 'notes.txt'"):
        Job({"orders": rows(1, 3)}).run(disk)
    assert disk.tree(STORE) == {"notes.txt": b"mine"}


def test_what_an_nfs_client_left_is_nothing() -> None:
    disk = empty()
    disk.add_tree(STORE, {".nfs0000000000a1b2c300000001": b"gone"})
    Job({"orders": rows(1, 3)}).run(disk)
    assert disk.tree(STORE)["orders/msgs.1.dat"]


def test_no_server_serves_half_a_restore() -> None:
    disk = empty()
    with pytest.raises(DamageError):
        Job({"a": rows(1, 100), "b": [*rows(1, 50), *rows(60, 99)]}).run(disk)
    assert disk.tree(STORE)["a/msgs.1.dat"]
    with pytest.raises(RecoveryError, match=r"server\.dat"):
        open_file_store(disk, ManualClock()).recover()
    with pytest.raises(GoRefuses):
        read_tree(disk.tree(STORE))


def test_a_datastore_that_may_have_been_served_since_is_not_restored_again() -> None:
    disk = empty()
    job = Job({"orders": rows(1, 30)})
    job.run(disk)
    disk.add_tree(STORE, {restoring.ACCOUNT: b"{}"})
    before = disk.tree(STORE)
    with pytest.raises(StoreError, match="/store holds a datastore that was restored to its end"):
        job.run(disk)
    assert disk.tree(STORE) == before


def test_an_account_of_another_release_is_refused() -> None:
    disk = empty()
    disk.add_tree(
        STORE,
        {restoring.ACCOUNT: json.dumps({"format": 99}).encode(), "server.dat": restoring.GUARD},
    )
    with pytest.raises(StoreError, match="is of another release"):
        find_account(disk, disk.open_dir(STORE), STORE)


def test_a_slice_that_an_executor_wrote_elsewhere_is_missed() -> None:
    with pytest.raises(StoreError, match="not to be seen here") as raised:
        Job({"orders": rows(1, 3)}, extra=[Written("orders", 4, 5, 10, "tmp.5")]).run(empty())
    assert "driver and every executor share" in raised.value.hint


def test_what_storage_changed_behind_our_back_is_found_before_the_store_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = empty()
    real = Restoring.complete

    def complete(self: Restoring, slices: Iterable[Written], *, allow_gaps: bool = False) -> None:
        real(self, slices, allow_gaps=allow_gaps)
        root = disk.open_dir(STORE)
        fd = disk.open(disk.open_dir_at(root, "orders"), "msgs.1.dat", os.O_RDWR)
        disk.pwrite(fd, b"\xff", 40)

    monkeypatch.setattr(Restoring, "complete", complete)
    with pytest.raises(DamageError, match=r"orders/msgs\.1\.dat reads back as something else"):
        Job({"orders": rows(1, 30)}).run(disk)
    with pytest.raises(GoRefuses):
        read_tree(disk.tree(STORE))


@pytest.mark.slow
def test_a_restore_that_dies_at_any_call_ends_the_same_when_it_is_run_again() -> None:
    job = Job({"a": rows(1, 60), "b": rows(7, 90)}, max_bytes=500)
    whole = empty()
    job.run(whole)
    expected = seen_by_the_original(whole)
    counted = empty()
    job.run(counted)
    died = 0
    for call in range(3, counted.calls, 11):
        victim = empty()

        def hook(number: int, _name: str, _arguments: tuple[object, ...], call: int = call) -> None:
            if number == call:
                raise Killed

        victim.on_call = hook
        with pytest.raises(Killed):
            job.run(victim)
        rng = Random(call)
        left = victim.crash(rng, rng.choice(list(CrashMode)), process_only=rng.random() < 0.3)
        if left.tree(STORE).get("server.dat", restoring.GUARD) == restoring.GUARD:
            job.run(left)
        assert seen_by_the_original(left) == expected, f"call={call}"
        assert served(left)[0]["b"] == list(range(7, 91)), f"call={call}"
        died += 1
    assert died > 30


def test_slices_that_an_interrupted_step_had_named_are_not_left_behind() -> None:
    job = Job({"orders": rows(1, 100)})
    disk = empty()
    with pytest.raises(DamageError):
        Job({"orders": [*rows(1, 60), *rows(70, 100)]}).run(disk)
    first = disk.tree(STORE)["orders/msgs.1.dat"]
    disk.add_tree(STORE, {"orders/msgs.99.dat": first, "orders/tmp.5.dat": first})
    job.run(disk)
    assert seen_by_the_original(disk) == job.channels
    assert "orders/msgs.99.dat" not in disk.tree(STORE)
