"""``ft.moves``: steps that only go forward, what a server serves because of them, and a file that
is whole or refused, wherever its writer was killed.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import FencedError, RecoveryError, StoreError
from ftstan.config.limits import Limits
from ftstan.config.options import ChannelLimits, DeliveryRules, StoreLimits
from ftstan.ft.moves import (
    NAME,
    Move,
    Moves,
    Step,
    as_written,
    decode_moves,
    encode_moves,
    read_moves,
    served_names,
    settle_moves,
    take_up_moves,
    with_moved,
    write_moves,
)
from tests.sim.disk import CrashMode, Killed, SimDisk

ROOT = "/store"
MOVE = Move("ab" * 16, Step.OFFERED, "cd" * 32, "host2:8222", ChannelLimits(max_msgs=7))


def a_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs(ROOT)
    return disk


def ours() -> None:
    """The store is ours."""


# ---- steps
# --------------------------------------------------------------------------------------------------


def test_a_step_only_goes_forward() -> None:
    ways = {(one, other) for one, other in itertools.product(Step, Step) if _goes(one, other)}
    assert ways == {
        (Step.OFFERED, Step.GONE),
        (Step.COPYING, Step.READY),
        (Step.READY, Step.COPYING),
        (Step.READY, Step.TAKEN),
    }


def _goes(one: Step, other: Step) -> bool:
    try:
        return replace(MOVE, step=one).to(other).step is other
    except ValueError:
        return False


def test_at_most_one_of_the_two_servers_serves_the_channel_at_any_step() -> None:
    # What each has on storage, wherever one of them is killed: the target's last step needs the
    # source's.
    together = [
        (source, target)
        for source in (None, Step.OFFERED, Step.GONE)
        for target in (None, Step.COPYING, Step.READY, Step.TAKEN)
        if target is not Step.TAKEN or source is Step.GONE
        if source is not Step.GONE or target in {Step.READY, Step.TAKEN}
    ]
    for source, target in together:
        at_source = served_names(["orders", "foo"], _moves(source))
        at_target = served_names(["baz"], _moves(target))
        served = ("orders" in at_source) + ("orders" in at_target)
        assert served == (0 if (source, target) == (Step.GONE, Step.READY) else 1)
        assert {"foo"} <= set(at_source)
        assert {"baz"} <= set(at_target)
        # Also if an operator is early with the target's list, or late with the source's.
        assert ("orders" in served_names(["baz", "orders"], _moves(target))) == (
            target in {None, Step.TAKEN}
        )


def _moves(step: Step | None) -> dict[str, Move]:
    return {"orders": replace(MOVE, step=step, keeps=step is Step.TAKEN)} if step else {}


def test_a_channel_that_came_and_goes_on_is_served_until_it_has_gone() -> None:
    came = replace(MOVE, step=Step.READY).to(Step.TAKEN)
    assert served_names(["baz"], {"orders": came}) == ("baz", "orders")
    leaves = replace(came, step=Step.OFFERED)
    assert served_names(["baz"], {"orders": leaves}) == ("baz", "orders")
    assert served_names(["baz"], {"orders": leaves.to(Step.GONE)}) == ("baz",)


def test_the_limits_come_along_until_the_configuration_names_the_channel() -> None:
    at_source = Limits(
        StoreLimits(channel=ChannelLimits(max_msgs=50), channels=(("orders", ChannelLimits(0, 9)),))
    )
    rules = DeliveryRules(redelivery=(1, 2))
    move = replace(MOVE, step=Step.COPYING, limits=as_written(at_source.of(b"orders")), rules=rules)
    here = StoreLimits(channel=ChannelLimits(max_msgs=3, max_age=5))
    limits = Limits(with_moved(here, {"orders": move}))
    assert limits.of(b"orders") == at_source.of(b"orders")
    assert limits.of(b"other") == here.channel
    assert limits.rules_of(b"orders") is not None
    named = replace(here, channels=(("orders", ChannelLimits(max_msgs=4)),))
    assert Limits(with_moved(named, {"orders": move})).of(b"orders").max_msgs == 4
    assert with_moved(here, {"orders": MOVE}) == here


# ---- the file
# --------------------------------------------------------------------------------------------------

names = st.binary(max_size=8).map(lambda name: name.decode("utf-8", "surrogateescape"))
moves = st.dictionaries(
    names,
    st.builds(
        Move,
        st.text(max_size=4),
        st.sampled_from(Step),
        st.just("00"),
        st.text(max_size=9),
        st.builds(ChannelLimits, max_msgs=st.integers(-1, 1 << 40)),
        st.none() | st.builds(DeliveryRules, redelivery=st.none() | st.just((1, 2))),
        st.booleans(),
        st.booleans(),
    ),
    max_size=3,
)


@given(moves)
def test_what_is_written_is_read(known: dict[str, Move]) -> None:
    assert decode_moves(encode_moves(known) + b"\n") == known


@given(moves, st.data())
def test_a_file_that_was_cut_or_changed_is_refused(
    known: dict[str, Move], data: st.DataObject
) -> None:
    whole = encode_moves(known)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for broken in (whole[:at], changed):
        if broken.rstrip(b"\n") != whole:
            with pytest.raises(RecoveryError, match=r"ft\.moves is (damaged|of a later release)"):
                decode_moves(broken)


def test_a_later_releases_file_is_named_as_such() -> None:
    with pytest.raises(RecoveryError, match="of a later release"):
        decode_moves(b"ftstan moves 2 00000000\n{}")


def test_a_writer_that_is_killed_anywhere_leaves_the_old_file_or_the_new_one() -> None:
    before, after = {"a": MOVE}, {"a": MOVE.to(Step.GONE), "b": MOVE}
    seen = set()
    done = False
    step = 0
    while not done:
        step += 1
        disk = a_disk()
        root = disk.open_dir(ROOT)
        write_moves(disk, root, ours, before)

        def die(
            number: int, _call: str, _args: tuple[object, ...], at: int = disk.calls + step
        ) -> None:
            if number == at:
                raise Killed

        disk.on_call = die
        with contextlib.suppress(Killed):
            write_moves(disk, root, ours, after)
            done = True
        for mode, process_only in itertools.product(CrashMode, (True, False)):
            found = disk.crash(random.Random(step), mode, process_only=process_only)
            root = found.open_dir(ROOT)
            said = read_moves(found, root)
            assert said in (before, after)
            assert said == after or not done
            seen.add(said == after)
            # Nothing of it is in the way of the next owner.
            write_moves(found, root, ours, after)
            assert [name for name, _ in found.listdir(root)] == [NAME]
    assert seen == {False, True}
    assert step > 5


def test_nothing_is_replaced_once_the_store_is_anothers() -> None:
    disk = a_disk()
    root = disk.open_dir(ROOT)
    write_moves(disk, root, ours, {"a": MOVE})

    def fenced() -> None:
        raise FencedError("another server owns the store")

    with pytest.raises(FencedError):
        write_moves(disk, root, fenced, {})
    assert read_moves(disk, root) == {"a": MOVE}


def test_a_directory_in_its_place_is_an_error() -> None:
    disk = a_disk()
    disk.make_dirs(f"{ROOT}/{NAME}")
    with pytest.raises(StoreError, match=r"ft\.moves cannot be read"):
        read_moves(disk, disk.open_dir(ROOT))


class _PausedError(Exception):
    """The process stands still there."""


def _paused_at_the_rename(disk: SimDisk, moves: Moves) -> tuple[int, str, str]:
    """Write, up to the rename, which has been confirmed; returns what it would rename."""
    renames: list[tuple[int, str, str]] = []

    def stop(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "rename":
            renames.append(args)  # type: ignore[arg-type]
            raise _PausedError

    disk.on_call = stop
    with pytest.raises(_PausedError):
        write_moves(disk, disk.open_dir(ROOT), ours, moves)
    disk.on_call = None
    return renames[0]


def test_a_former_owner_that_renames_late_changes_nothing_behind_a_takeover() -> None:
    disk = a_disk()
    root = disk.open_dir(ROOT)
    write_moves(disk, root, ours, {"a": MOVE})
    late = _paused_at_the_rename(disk, {"a": MOVE.to(Step.GONE)})
    successor = disk.sibling()
    assert take_up_moves(successor, successor.open_dir(ROOT), ours) == {"a": MOVE}
    with pytest.raises(FileNotFoundError):
        disk.rename(*late)
    assert read_moves(successor, successor.open_dir(ROOT)) == {"a": MOVE}


def test_what_a_new_owner_reads_is_durable_before_it_serves() -> None:
    disk = a_disk()
    root = disk.open_dir(ROOT)
    write_moves(disk, root, ours, {"a": MOVE})
    renamed = False

    def die(_number: int, call: str, _args: tuple[object, ...]) -> None:
        nonlocal renamed
        if renamed:
            raise Killed
        renamed = call == "rename"

    disk.on_call = die
    with pytest.raises(Killed):
        write_moves(disk, root, ours, {"a": MOVE.to(Step.GONE)})
    found = disk.crash(process_only=True)
    root = found.open_dir(ROOT)
    before = found.stat(root, NAME).ino
    said = take_up_moves(found, root, ours)
    assert said == {"a": MOVE.to(Step.GONE)}
    # A file of its own: its sync need not commit what another host has written.
    assert found.stat(root, NAME).ino != before
    for mode in CrashMode:
        lost = found.crash(random.Random(1), mode)
        assert read_moves(lost, lost.open_dir(ROOT)) == said


def test_a_write_that_was_refused_comes_no_more() -> None:
    disk = a_disk()
    root = disk.open_dir(ROOT)
    write_moves(disk, root, ours, {"a": MOVE})
    late = _paused_at_the_rename(disk, {"a": MOVE.to(Step.GONE)})
    assert settle_moves(disk, root, ours) == {"a": MOVE}
    with pytest.raises(FileNotFoundError):
        disk.rename(*late)


def test_whoever_lost_the_store_behind_the_rename_says_nothing() -> None:
    disk = a_disk()
    root = disk.open_dir(ROOT)
    write_moves(disk, root, ours, {"a": MOVE})
    gone = {"a": MOVE.to(Step.GONE)}

    def fenced_behind_it() -> None:
        if read_moves(disk, root) == gone:
            raise FencedError("another server owns the store")

    with pytest.raises(FencedError):
        write_moves(disk, root, fenced_behind_it, gone)
