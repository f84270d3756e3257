"""``compact`` and ``handover`` that die at any storage call: nothing acknowledged is lost.

They can be run again.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import DamageError
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.tools import rewriting
from ftstan.stores.file.tools.changing import leave_as_stopped, rewrite, source_of
from ftstan.stores.file.tools.reading import SliceFile
from ftstan.stores.file.tools.repairing import Repair, make_plan
from ftstan.stores.file.tools.rewriting import (
    compact_channel,
    hand_over_channel,
    plan_handover,
)
from ftstan.stores.file.tools.verifying import DefectKind
from ftstan.wire.block import MsgBlock
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.filestore import SimOwner, open_file_store
from tests.sim.ft.gopeer import append, find_end
from tests.sim.gojudge import go_judge
from tests.sim.history import STORE, Shape, run_history
from tests.sim.model import Model, Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.file.tools.changing import Work

MODES = (CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED, CrashMode.KEPT)


def grown(seed: int, kills: int = 4, *, purges: bool = False) -> tuple[SimDisk, Model]:
    """A store of several activations, most of which were killed, and what was promised."""
    found: list[tuple[SimDisk, Model]] = []
    rng = Random(f"grown {seed}")
    run_history(
        open_file_store,
        seed,
        kills=[rng.randint(100, 300) for _ in range(kills)],
        shape=Shape(purges=purges),
        judge=lambda disk, model: found.append((disk.crash(process_only=True), model.copied())),
    )
    disk, model = found[0]
    # Of one slice a tool has little to do: starts that cost more calls than a life has would prove
    # nothing.
    assert purges or max(map(len, slices(disk).values())) > 1
    return disk, model


def run(disk: SimDisk, work: Work, max_bytes: int = 2500) -> None:
    """The tool on the store, to its end."""
    owner, env = opened(disk)
    rewrite(env, work, max_bytes=max_bytes)
    if work is hand_over_channel:
        owner.leave_to_original()
    else:
        leave_as_stopped(env)


def env_of(disk: SimDisk) -> FileEnv:
    """What a tool opens the store with."""
    return opened(disk)[1]


def opened(disk: SimDisk) -> tuple[SimOwner, FileEnv]:
    clock = ManualClock()
    root = disk.open_dir(STORE)
    options = FileStoreOptions()
    owner = SimOwner(disk, root, clock)
    return owner, FileEnv(disk, root, clock, options, owner, records.Crc(options.crc_polynomial))


def check(disk: SimDisk, model: Model) -> None:
    store = open_file_store(disk, ManualClock())
    model.copied().check(store.recover())
    store.abandon()


def slices(disk: SimDisk) -> dict[str, list[int]]:
    """Slice numbers by channel."""
    found: dict[str, list[int]] = {}
    for name in disk.tree(STORE):
        channel, _, file = name.partition("/")
        if file.endswith(".dat") and file.startswith("msgs."):
            found.setdefault(channel, []).append(int(file.split(".")[1]))
    return {channel: sorted(numbers) for channel, numbers in found.items()}


def calls_of(disk: SimDisk, work: Work, max_bytes: int) -> list[tuple[int, str]]:
    """The storage calls of the tool, numbered."""
    made: list[tuple[int, str]] = []
    copied = disk.crash(process_only=True)
    copied.on_call = lambda number, name, _: made.append((number, name))
    run(copied, work, max_bytes)
    return made


def die_everywhere(
    seed: int,
    work: Work,
    stride: int = 1,
    *,
    max_bytes: int = 2500,
    at: str = "",
    purges: bool = False,
) -> int:
    """Die at every ``stride``-th call, or every one called ``at``; returns how often."""
    disk, model = grown(seed, kills=6, purges=purges)
    calls = [number for number, name in calls_of(disk, work, max_bytes) if at in name]
    met = 0
    for call in calls[seed % stride :: stride]:
        victim = disk.crash(process_only=True)

        def hook(number: int, _name: str, _arguments: tuple[object, ...], call: int = call) -> None:
            if number == call:
                raise Killed

        victim.on_call = hook
        with pytest.raises(Killed):
            run(victim, work, max_bytes)
        rng = Random(f"{seed} {call}")
        left = victim.crash(rng, rng.choice(MODES), process_only=rng.random() < 0.3)
        try:
            check(left.crash(process_only=True), model)
            # And once more from where it died.
            run(left, work, max_bytes)
            check(left.crash(process_only=True), model)
            if work is hand_over_channel:
                go_judge(left, model)
        except Violation as violation:
            raise Violation(f"{violation} [seed={seed}, call={call}]") from violation
        met += 1
    return met


@pytest.mark.parametrize("seed", range(6))
def test_a_handed_over_store_reads_the_same_for_the_original_and_its_slices_are_dense(
    seed: int,
) -> None:
    disk, model = grown(seed, kills=6)
    run(disk, hand_over_channel)
    go_judge(disk, model)
    for numbers in slices(disk).values():
        assert numbers == list(range(1, len(numbers) + 1))
    assert not any(name.endswith(("confirmed.bin", "ckpt.bin")) for name in disk.tree(STORE))
    check(disk.crash(process_only=True), model)


@pytest.mark.parametrize("work", [hand_over_channel, compact_channel])
def test_a_tool_that_dies_at_any_call_brings_nothing_back_that_was_purged(work: Work) -> None:
    assert sum(die_everywhere(seed, work, stride=11, purges=True) for seed in range(3)) > 30


@pytest.mark.parametrize("seed", range(6))
def test_a_compacted_store_is_the_same_store_with_fewer_slices(seed: int) -> None:
    disk, model = grown(seed, kills=6)
    before = slices(disk)
    run(disk, compact_channel, max_bytes=64 << 20)
    after = slices(disk)
    for channel, numbers in after.items():
        assert len(numbers) <= 2
        assert set(numbers) <= set(before[channel])
    check(disk.crash(process_only=True), model)
    go_judge(disk, model)


def test_a_handover_that_dies_at_any_call_loses_nothing_and_can_be_run_again() -> None:
    assert sum(die_everywhere(seed, hand_over_channel, stride=7) for seed in range(3)) > 50
    assert (
        sum(
            die_everywhere(seed, hand_over_channel, stride=7, max_bytes=64 << 20)
            for seed in range(3, 6)
        )
        > 50
    )


def test_a_compaction_that_dies_at_any_call_loses_nothing_and_can_be_run_again() -> None:
    assert (
        sum(
            die_everywhere(seed, compact_channel, stride=7, max_bytes=64 << 20) for seed in range(4)
        )
        > 50
    )


# ---- slices of the original whose numbers are in another order than their messages
# --------------------------------------------------------------------------------------------------


def numbered(*numbers: int) -> tuple[SimDisk, dict[int, bytes]]:
    """An original's channel whose slices have these numbers in the order of their messages, four in
    each, and the messages.
    """
    tree: dict[str, bytes | None] = {"foo": None, "foo/subs.dat": records.VERSION}
    messages: dict[int, bytes] = {}
    crc = records.Crc()
    for at, number in enumerate(numbers):
        block = MsgBlock()
        for n in range(4 * at + 1, 4 * at + 5):
            block.append(n, b"foo", b"", b"message %d" % n, 1_000_000_000 + n)
            messages[n] = block.payload(n - 4 * at - 1)
        records.seal(block, crc)
        tree[f"foo/msgs.{number}.dat"] = records.VERSION + bytes(memoryview(block))
        entries = records.index_entries(block, 0, len(block), records.VERSION_SIZE, crc)
        tree[f"foo/msgs.{number}.idx"] = records.VERSION + entries
    disk = SimDisk()
    disk.make_dirs(STORE)
    disk.add_tree(STORE, tree)
    return disk, messages


ORDERS = [(2, 1), (3, 1, 2), (4, 3, 2, 1), (2, 0, 1)]


@pytest.mark.parametrize("numbers", ORDERS, ids=str)
@pytest.mark.parametrize("max_bytes", [1, 400])
@pytest.mark.parametrize("work", [hand_over_channel, compact_channel])
def test_slices_that_are_numbered_in_another_order_lose_nothing_wherever_a_tool_dies(
    work: Work, max_bytes: int, numbers: tuple[int, ...]
) -> None:
    disk, messages = numbered(*numbers)
    whole = disk.crash(process_only=True)
    calls = len(calls_of(whole, work, max_bytes))
    for call in range(1 + len(numbers) % 13, calls, 13):
        victim = disk.crash(process_only=True)

        def hook(number: int, _name: str, _arguments: tuple[object, ...], call: int = call) -> None:
            if number == call:
                raise Killed

        victim.on_call = hook
        with pytest.raises(Killed):
            run(victim, work, max_bytes)
        left = victim.crash(process_only=True)
        assert served(left.crash(process_only=True), b"foo")[0] == messages, f"call={call}"
        run(left, work, max_bytes)
        assert served(left, b"foo")[0] == messages, f"call={call}"
    run(disk, work, max_bytes)
    assert served(disk.crash(process_only=True), b"foo")[0] == messages
    if work is hand_over_channel:
        held = [contents_of_slice(disk, number) for number in slices(disk)["foo"]]
        assert held == sorted(held)
        assert sum(len(h) for h in held) == len(messages)


def contents_of_slice(disk: SimDisk, number: int) -> list[int]:
    """Sequences, as somebody reads them who takes the number for the order."""
    data = disk.tree(STORE)[f"foo/msgs.{number}.dat"] or b""
    block, _, _ = records.scan_data(data[records.VERSION_SIZE :], b"foo", 0, records.Crc())
    return [block.sequence(i) for i in range(len(block))]


@pytest.mark.parametrize(
    ("numbers", "ours_from", "targets"),
    [
        ((1, 2, 3), 1, [1, 2, 3]),
        ((5, 4097, 4098), 4097, [1, 2, 3]),
        ((2, 1, 3), 4097, [2, 4, 5]),
        # None that ends lower slices lies above one that is copied later.
        ((3, 2, 1), 4, [3, 4]),
        ((2, 1, 3), 3, [2, 3]),
        ((0, -1), 1, [1]),
    ],
)
def test_no_copy_takes_a_number_that_is_read_later_or_ends_a_slice_that_is(
    numbers: tuple[int, ...], ours_from: int, targets: list[int]
) -> None:
    parts = [SliceFile(number, 10, 10) for number in numbers]
    groups = plan_handover(parts, 1, 1, ours_from)
    assert [g.target for g in groups] == targets
    assert [s.number for g in groups for s in g.parts] == list(numbers)


# ---- an original server behind a tool
# --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Original:
    """An original server on the store, started again when it was killed."""

    disk: SimDisk
    acked: dict[bytes, dict[int, bytes]] = field(default_factory=dict)

    def serve(self, life: int, *, killed_at: int = 0) -> int:
        """Publish two batches to each channel; returns how many storage calls that took."""

        def hook(number: int, _name: str, _arguments: tuple[object, ...]) -> None:
            if number == killed_at:
                raise Killed

        process = SimDisk(self.disk.volume)
        process.on_call = hook
        with contextlib.suppress(Killed):
            root = process.open_dir(STORE)
            for name, is_dir in sorted(process.listdir(root)):
                if is_dir:
                    folder = process.open_dir_at(root, name)
                    for batch in range(2):
                        self._publish(process, folder, name.encode(), b"%d.%d" % (life, batch))
        process.kill()
        return process.calls

    def _publish(self, process: SimDisk, folder: int, channel: bytes, data: bytes) -> None:
        crc = records.Crc()
        number, last = find_end(process, folder)
        if number:
            block = MsgBlock()
            block.append(last + 1, channel, b"", data, 2_000_000_000)
            append(process, folder, number, block, crc)
            self.acked.setdefault(channel, {})[last + 1] = block.payload(0)


def kill_an_original_behind(work: Work, seed: int, stride: int) -> int:
    """Kill it at every ``stride``-th call, start it again, then open the store; returns how often.

    Raises ``Violation`` if what it has acknowledged is not served.
    """
    disk, model = grown(seed, kills=4)
    run(disk, work)
    calls = Original(disk.crash(process_only=True)).serve(1)
    met = 0
    for call in range(1 + seed % stride, calls + 1, stride):
        original = Original(disk.crash(process_only=True))
        original.serve(1, killed_at=call)
        original.serve(2)
        rng = Random(f"{seed} {call}")
        left = original.disk.crash(rng, rng.choice(MODES), process_only=rng.random() < 0.5)
        store = open_file_store(left, ManualClock())
        refused = store.recover().refused
        store.abandon()
        if refused:
            raise Violation(f"quarantined [seed={seed}, call={call}]: {refused}")
        for channel, acked in original.acked.items():
            expected = {**model.channels[channel].fixed, **acked}
            found, _ = served(left.crash(process_only=True), channel)
            if not expected.items() <= found.items():
                raise Violation(f"gone [seed={seed}, call={call}]: {channel!r}")
            met += 1
    return met


@pytest.mark.parametrize("work", [hand_over_channel, compact_channel])
def test_nothing_that_an_original_acknowledged_behind_a_tool_is_lost_when_it_was_killed(
    work: Work,
) -> None:
    assert sum(kill_an_original_behind(work, seed, stride=5) for seed in range(3)) > 10


# ---- repair
# --------------------------------------------------------------------------------------------------


def damaged(disk: SimDisk, rng: Random) -> tuple[SimDisk, bytes, int]:
    """A copy with one changed byte in the data of a message; its channel and sequence, too."""
    tree = disk.tree(STORE)
    names = sorted(
        n for n in tree if n.endswith(".dat") and "/msgs." in n and len(tree[n] or b"") > 50
    )
    name = rng.choice(names)
    channel = name.partition("/")[0].encode()
    data = bytearray(tree[name] or b"")
    block, _, _ = records.scan_data(bytes(data[4:]), channel, 0, records.Crc())
    k = rng.randrange(len(block))
    start, end = records.span(block, k, k + 1)
    data[4 + end - 2] ^= 0xFF
    assert start < end
    copied = SimDisk()
    copied.add_tree(STORE, {**tree, name: bytes(data)})
    return copied, channel, block.sequence(k)


def repair(disk: SimDisk, aside: str) -> None:
    env = env_of(disk)
    disk.make_dirs(aside)
    Repair(env, source_of(env), disk.open_dir(aside)).run(make_plan(source_of(env), None))


def served(disk: SimDisk, channel: bytes) -> tuple[dict[int, bytes], int]:
    store = open_file_store(disk, ManualClock())
    found = store.recover()
    assert found.refused == {}
    (seen,) = (c for c in found.channels if c.name == channel)
    messages: dict[int, bytes] = {}
    at = seen.first
    while (block := seen.read(at, 100, 1 << 20)) is not None:
        messages |= {
            block.sequence(i): block.payload(i) for i in range(block.position(at), len(block))
        }
        at = max(messages) + 1
    last = seen.last
    store.abandon()
    return messages, last


@pytest.mark.parametrize("seed", range(8))
def test_a_repair_that_dies_at_any_call_can_be_run_again_and_ends_the_same(seed: int) -> None:
    disk, model = grown(seed)
    whole, channel, sequence = damaged(disk, Random(seed))
    kept = {s: p for s, p in model.channels[channel].fixed.items() if s != sequence}
    last = max(model.channels[channel].fixed)
    calls = whole.crash(process_only=True)
    repair(calls, "/aside")
    assert served(calls.crash(process_only=True), channel) == (kept, last)
    for call in range(1 + seed % 5, calls.calls, 5):
        victim = whole.crash(process_only=True)

        def hook(number: int, _name: str, _arguments: tuple[object, ...], call: int = call) -> None:
            if number == call:
                raise Killed

        victim.on_call = hook
        with pytest.raises(Killed):
            repair(victim, "/aside")
        rng = Random(f"{seed} {call}")
        left = victim.crash(rng, rng.choice(MODES), process_only=rng.random() < 0.3)
        repair(left, "/again")
        assert served(left, channel) == (kept, last), f"seed={seed} call={call}"


@pytest.mark.parametrize("seed", range(6))
def test_a_clean_stop_that_dies_at_any_call_leaves_nothing_that_is_called_damage(seed: int) -> None:
    """It moves the last record of a former owner's slice and shortens that: two of three files say
    what was before.
    """
    disk, model = grown(seed)
    whole = disk.crash(process_only=True)
    store = open_file_store(whole, ManualClock())
    store.recover()
    began = whole.calls
    store.close()
    met = 0
    for call in range(began + 1, whole.calls):
        victim = disk.crash(process_only=True)

        def hook(number: int, _name: str, _arguments: tuple[object, ...], call: int = call) -> None:
            if number == call:
                raise Killed

        victim.on_call = hook
        store = open_file_store(victim, ManualClock())
        store.recover()
        with pytest.raises(Killed):
            store.close()
        left = victim.crash(process_only=True)
        found = make_plan(source_of(env_of(left)), None).findings
        assert not [f for rows in found.values() for f in rows if f.kind is DefectKind.DAMAGE], (
            f"call={call}"
        )
        check(left, model)
        met += 1
    assert met > 10


@pytest.mark.parametrize("is_copy", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_slice_above_the_last_confirm_is_damage_unless_it_repeats_what_was_confirmed(
    seed: int, is_copy: bool
) -> None:
    disk, _ = grown(seed)
    channel, numbers = max(slices(disk).items(), key=lambda item: len(item[1]))
    before = served(disk.crash(process_only=True), channel.encode())
    tree = disk.tree(STORE)
    block = MsgBlock()
    if is_copy:
        data = tree[f"{channel}/msgs.{numbers[-1]}.dat"] or b""
        newest, _, _ = records.scan_data(
            data[records.VERSION_SIZE :], channel.encode(), 0, records.Crc()
        )
        assert newest.last == before[1]
        block.extend(newest)
    else:
        block.append(before[1], channel.encode(), b"", b"nobody published this", 0)
    records.seal(block, records.Crc())
    strange = f"{channel}/msgs.{numbers[-1] + 1}.dat"
    changed = SimDisk()
    changed.add_tree(STORE, {**tree, strange: records.VERSION + bytes(memoryview(block))})
    found = make_plan(source_of(env_of(changed)), None).findings
    damage = [
        (f.file, f.text) for rows in found.values() for f in rows if f.kind is DefectKind.DAMAGE
    ]
    if is_copy:
        assert damage == []
    else:
        what = (
            f"begins at sequence {before[1]}, and would hide what was acknowledged up to "
            f"{before[1]}"
        )
        assert damage == [(strange, what)]
        repair(changed, "/aside")
    assert served(changed, channel.encode()) == before


# ---- broken on purpose
# ---------------------------------------------------------------------------------------------


def die_in_many(at: str) -> None:
    for seed in range(12):
        die_everywhere(seed, hand_over_channel, max_bytes=64 << 20, at=at)


def test_removing_the_old_slices_from_the_top_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seals of those that are left then hide what only the removed ones held."""
    real = rewriting.retire_parts
    monkeypatch.setattr(
        rewriting,
        "retire_parts",
        lambda env, files, parts: real(env, files, tuple(reversed(parts))),
    )
    with pytest.raises(Violation, match=r"gone|nothing at or after"):
        die_in_many("unlink")


def test_a_store_that_is_not_left_to_the_original_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimOwner, "leave_to_original", lambda _self: None)
    with pytest.raises(Violation, match=r"gone|quarantined"):
        sum(kill_an_original_behind(hand_over_channel, seed, stride=1) for seed in range(3))


def put_unsynced(env: FileEnv, dirfd: int, name: str, fill: Callable[[int], None]) -> None:
    temporary = f"tmp.{name.split('.')[1]}.dat"
    fd = env.disk.open(dirfd, temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fill(fd)
    env.disk.rename(dirfd, temporary, name)
    env.disk.close(fd)


def test_removing_the_old_slices_before_the_copy_is_durable_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewriting, "put_file", put_unsynced)
    with pytest.raises(
        (Violation, DamageError),
        match=r"gone|nothing at|was answered|should be|record|quarantined|damaged",
    ):
        die_in_many("unlink")
