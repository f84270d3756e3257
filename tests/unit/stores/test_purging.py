"""A purge of a channel in files: what its mark hides, what becomes of the slices, and what an
original server sees.
"""

from __future__ import annotations

import errno
import json
import re
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError, StoreError, StoreFullError
from ftstan.cli import ctl
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import purge_mark
from ftstan.stores.interface import ChannelLimits
from ftstan.wire import codec
from tests.filenode import NO_LIMITS, SECOND, FileNode, Owner, simulated
from tests.oracle.gostore import read_store, read_tree
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.history import INFO
from tests.sim.model import read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = FileStoreOptions(slice_max_msgs=4)
MARK = f"foo/{purge_mark.NAME}"


def filled(count: int = 18, *, mixed: bool = False, limits: ChannelLimits = NO_LIMITS) -> FileNode:
    """A store with that many messages in slices of four."""
    node = FileNode(simulated(), owner=Owner(mixed=mixed), options=SMALL, limits=limits)
    node.store.set_server_info(INFO)
    for i in range(1, count + 1):
        node.put(b"%d" % i)
        node.clock.advance(1)
    return node


def slices(node: FileNode) -> list[int]:
    assert isinstance(node.disk, SimDisk)
    return sorted(
        int(m[1])
        for name in node.disk.tree("/store")
        if (m := re.match(r"foo/msgs\.(\d+)\.dat\Z", name))
    )


def held(node: FileNode) -> dict[int, bytes]:
    """What the channel shows, by sequence."""
    return {
        s: codec.decode_msg_proto(payload)[3] for s, payload in read_all(node.channel()).items()
    }


def seen_by_original(node: FileNode) -> list[int]:
    """The sequences that an original server would deliver from the files as they are."""
    assert isinstance(node.disk, SimDisk)
    return sorted(read_tree(node.disk.tree("/store"), root="/store").channels[b"foo"].messages)


def killed(node: FileNode, mode: CrashMode = CrashMode.LOST) -> FileNode:
    """The successor of a node whose host lost its power."""
    assert isinstance(node.disk, SimDisk)
    return node.successor(node.disk.crash(mode=mode))


# ---- the files
# --------------------------------------------------------------------------------------------------


def test_after_a_purge_of_all_one_record_is_left_on_disk_and_nothing_is_shown() -> None:
    node = filled()
    node.channel().purge(18)
    node.tick()
    assert slices(node) == [6]
    tree = node.disk.tree("/store")  # type: ignore[attr-defined]
    assert b"18" in tree["foo/msgs.6.dat"]
    assert not any(b"17" in data for name, data in tree.items() if name.startswith("foo/msgs."))
    after = killed(node)
    assert (after.channel().first, after.channel().last, held(after)) == (19, 18, {})
    after.put(b"19")
    after.tick()
    assert held(after) == {19: b"19"}
    # The record that remembered the last sequence went with the first slice that can.
    assert slices(after) == [4097]


def test_a_log_that_went_on_behind_a_purge_of_all_is_not_taken_for_one_that_began_anew(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = filled()
    node.channel().purge(18)
    node.clock.advance(1)
    node.put(b"19")
    node.tick()
    node.store.close()
    capfd.readouterr()
    after = node.successor()
    assert held(after) == {19: b"19"}
    assert "began anew" not in capfd.readouterr().err
    # The mark counts all the same: a power cut can bring back the files that were removed.
    after.channel().purge(3)
    mark, _ = purge_mark.read(after.disk, after.disk.open_dir("/store/foo"))
    assert mark is not None
    assert mark.sequence == 18


@pytest.mark.parametrize("up_to", range(1, 19))
def test_a_clean_stop_leaves_to_an_original_server_what_is_left_or_the_newest_message(
    up_to: int,
) -> None:
    node = filled()
    node.channel().purge(up_to)
    left = list(range(up_to + 1, 19))
    assert sorted(held(node)) == left
    node.store.close()
    assert seen_by_original(node) == (left or [18])
    again = node.successor()
    assert sorted(held(again)) == left
    assert again.put(b"more") == {}
    assert sorted(held(again)) == [*left, 19]


@pytest.mark.parametrize("up_to", [1, 4, 6, 9, 17, 18])
def test_in_a_mixed_group_the_files_say_so_before_the_answer(up_to: int) -> None:
    node = filled(mixed=True)
    node.channel().purge(up_to)
    left = list(range(up_to + 1, 19))
    assert seen_by_original(node) == (left or [18])
    assert isinstance(node.disk, SimDisk)
    lost = node.disk.crash(mode=CrashMode.LOST)
    assert sorted(read_tree(lost.tree("/store"), root="/store").channels[b"foo"].messages) == (
        left or [18]
    )
    assert sorted(held(node)) == left
    assert node.put(b"more") == {}
    assert sorted(held(node)) == [*left, 19]


@pytest.mark.parametrize("up_to", [6, 14, 16, 18])
def test_wherever_a_purge_in_a_mixed_group_dies_an_original_server_has_what_was_kept(
    up_to: int,
) -> None:
    kept = {i: b"%d" % i for i in range(min(up_to + 1, 18), 19)}
    for kill in range(1, 1000):
        node = filled(mixed=True)
        assert isinstance(node.disk, SimDisk)
        node.disk.on_call = dying_at(node.disk.calls + kill)
        try:
            node.channel().purge(up_to)
        except Killed:
            node.disk.on_call = None
        else:
            assert kill > 20
            return
        for disk in (node.disk.crash(process_only=True), node.disk.crash(mode=CrashMode.LOST)):
            seen = read_tree(disk.tree("/store"), root="/store").channels[b"foo"]
            messages = {n: m.data for n, m in seen.messages.items()}
            assert messages == {i: b"%d" % i for i in range(min(messages), 19)}
            assert messages | kept == messages, f"killed at call {kill}"
            assert seen.last == 18
            assert set(held(FileNode(disk, owner=Owner(2, mixed=True), options=SMALL))) >= set(
                range(up_to + 1, 19)
            )
    raise AssertionError("a purge never comes to an end")


def dying_at(call: int) -> Callable[[int, str, tuple[object, ...]], None]:
    def die(number: int, _name: str, _arguments: tuple[object, ...]) -> None:
        if number == call:
            raise Killed

    return die


def test_what_an_original_server_adds_behind_a_purge_is_shown_and_the_rest_is_not() -> None:
    node = filled(mixed=True)
    node.channel().purge(18)
    assert isinstance(node.disk, SimDisk)
    tree = dict(node.disk.tree("/store"))
    # It goes on in the highest slice, behind the record that it takes for the newest message.
    other = FileNode(simulated(), options=SMALL)
    for i in range(1, 20):
        other.put(b"%d" % i)
    record = other.disk.tree("/store")["foo/msgs.5.dat"]  # type: ignore[attr-defined]
    start = record.index(b"foo\x22\x0219") - 5 - 8
    size = int.from_bytes(record[start : start + 4], "little")
    tree["foo/msgs.6.dat"] += record[start : start + 8 + size]
    disk = SimDisk()
    disk.add_tree("/store", tree)
    again = FileNode(disk, owner=Owner(2, originals=1), options=SMALL)
    assert held(again) == {19: b"19"}


def test_a_purge_that_limits_have_overtaken_counts_when_they_grow() -> None:
    node = filled(limits=ChannelLimits(max_msgs=6, max_bytes=0))
    node.channel().purge(10)
    assert node.channel().first == 13
    node.store.abandon()
    more = FileNode(node.disk.sibling(), owner=Owner(2), options=SMALL)  # type: ignore[attr-defined]
    assert more.channel().first == 11


def test_an_age_limit_goes_on_behind_a_purge() -> None:
    node = filled(limits=ChannelLimits(max_msgs=0, max_bytes=0, max_age=30 * SECOND))
    node.channel().purge(18)
    node.tick(100)
    node.put(b"a")
    node.tick(29)
    assert list(held(node)) == [19]
    node.tick(1)
    assert held(node) == {}
    assert (node.channel().first, node.channel().last) == (20, 19)


def test_what_is_purged_is_not_given_to_the_archive_script_and_what_limits_retire_is(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").mkdir()
    program = tmp_path / "archive.sh"
    program.write_text(f'#!/bin/sh\necho "$2" >> {tmp_path}/seen\nrm "$2" "$3"\n')
    program.chmod(0o755)
    options = FileStoreOptions(slice_max_msgs=2, slice_archive_script=str(program))
    limits = ChannelLimits(max_msgs=4, max_bytes=0)
    node = FileNode(LocalDisk(), str(tmp_path / "store"), options=options, limits=limits)
    node.put(*(b"%d" % i for i in range(8)))
    node.channel().purge(6)
    node.put(*(b"%d" % i for i in range(8)))
    node.tick()
    node.store.close()
    taken = [line.rpartition("/")[2] for line in (tmp_path / "seen").read_text().splitlines()]
    assert sorted(taken) == ["msgs.4.dat.bak", "msgs.5.dat.bak", "msgs.6.dat.bak"]


# ---- the mark
# --------------------------------------------------------------------------------------------------


def test_a_purge_is_durable_when_it_is_answered() -> None:
    for up_to in (3, 18):
        node = filled()
        node.channel().purge(up_to)
        for mode in CrashMode:
            assert killed(node, mode).channel().first == up_to + 1


def test_a_mark_that_was_found_is_made_durable_by_the_next_purge() -> None:
    node = filled()
    assert isinstance(node.disk, SimDisk)
    calls: list[str] = []
    node.disk.on_call = lambda _call, name, _arguments: calls.append(name)
    node.channel().purge(4)
    # The sync of the directory is the last of them.
    node.disk.on_call = None
    node.disk.fail_at(node.disk.calls + len(calls) - calls[::-1].index("fsync"), errno.EIO)
    with pytest.raises(StoreError):
        node.channel().purge(5)
    seen = node.successor(node.disk.crash(process_only=True))
    seen.channel().purge(5)
    assert killed(seen).channel().first == 6


def test_a_mark_that_is_damaged_is_said_and_hides_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = filled()
    node.channel().purge(2)
    tree = dict(node.disk.tree("/store"))  # type: ignore[attr-defined]
    right = tree[MARK]
    assert right is not None
    for content, first in (
        (right, 3),
        (right[:-1] + b"\xff", 1),
        (right[:-1], 1),
        (b"", 1),
        (b"x" + right[1:], 1),
    ):
        disk = SimDisk()
        disk.add_tree("/store", tree | {MARK: content})
        again = FileNode(disk, owner=Owner(2), options=SMALL)
        assert again.channel().first == first
        assert (purge_mark.NAME in capfd.readouterr().err) is (first == 1)


def test_a_log_whose_sequences_began_anew_is_shown_in_full(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = filled()
    node.channel().purge(18)
    mark = node.disk.tree("/store")[MARK]  # type: ignore[attr-defined]
    new = FileNode(simulated(), options=SMALL, clock=node.clock)
    new.clock.advance(10)
    new.put(b"a", b"b")
    new.store.abandon()
    disk = SimDisk()
    disk.add_tree("/store", new.disk.tree("/store") | {MARK: mark})  # type: ignore[attr-defined]
    again = FileNode(disk, owner=Owner(2), options=SMALL)
    assert held(again) == {1: b"a", 2: b"b"}
    assert "speaks of older messages" in capfd.readouterr().err
    again.channel().purge(1)
    assert list(held(killed(again))) == [2]


def test_a_smaller_purge_does_not_bring_a_larger_one_back() -> None:
    node = filled()
    node.channel().purge(12)
    node.channel().purge(3)
    assert killed(node).channel().first == 13


def test_a_checkpoint_does_not_make_a_start_forget_the_mark() -> None:
    node = filled()
    node.channel().purge(18)
    node.store.close()
    again = node.successor()
    assert (again.channel().first, again.channel().count) == (19, 0)
    assert again.recovered.refused == {}
    again.store.close()
    # Nobody touched the channel: the checkpoint that was believed is written again.
    third = again.successor()
    assert (third.channel().first, third.channel().last, third.channel().count) == (19, 18, 0)


def test_a_channel_that_is_quarantined_hides_what_was_purged_and_takes_no_purge() -> None:
    node = filled()
    node.channel().purge(6)
    tree = dict(node.disk.tree("/store"))  # type: ignore[attr-defined]
    data = bytearray(tree["foo/msgs.4.dat"])
    data[20] ^= 0xFF
    disk = SimDisk()
    disk.add_tree("/store", tree | {"foo/msgs.4.dat": bytes(data), "foo/msgs.4.idx": b""})
    again = FileNode(disk, owner=Owner(2), options=SMALL)
    assert b"foo" in again.recovered.refused
    assert again.channel().first == 7
    with pytest.raises(StoreError, match="is quarantined"):
        again.channel().purge(10)


# ---- storage refuses
# -----------------------------------------------------------------------------------------------


def test_a_full_disk_is_purged_by_removing_slices_first() -> None:
    node = filled()
    assert isinstance(node.disk, SimDisk)
    node.disk.volume.space = 0
    node.channel().purge(18)
    assert held(node) == {}
    node.disk.volume.space = None
    assert killed(node).channel().first == 19


def test_a_full_disk_with_nothing_to_remove_refuses_and_nothing_is_gone() -> None:
    node = filled(3)
    assert isinstance(node.disk, SimDisk)
    node.disk.volume.space = 0
    with pytest.raises(
        StoreFullError, match='channel "foo" cannot be purged: No space left'
    ) as refused:
        node.channel().purge(3)
    assert "purge again" in refused.value.hint
    assert list(held(node)) == [1, 2, 3]
    node.disk.volume.space = None
    node.channel().purge(3)
    assert held(killed(node)) == {}


@pytest.mark.parametrize(
    ("call", "mixed"),
    [
        *(
            (call, mixed)
            for call in ("open", "pwrite", "fsync", "rename", "unlink")
            for mixed in (True, False)
        ),
        # In a mixed group the index is durable with each batch.
        ("fdatasync", False),
    ],
)
def test_storage_that_fails_at_any_call_of_a_purge_brings_nothing_back(
    call: str, *, mixed: bool
) -> None:
    failed = 0
    for skip in range(40):
        for up_to in (6, 18):
            node = filled(mixed=mixed)
            assert isinstance(node.disk, SimDisk)
            before = node.disk.calls
            names: list[str] = []

            def note(
                _call: int, name: str, _arguments: tuple[object, ...], names: list[str] = names
            ) -> None:
                names.append(name)

            node.disk.on_call = note
            node.channel().purge(up_to)
            places = [k for k, name in enumerate(names, 1) if name == call]
            if skip >= len(places):
                continue
            node = filled(mixed=mixed)
            assert isinstance(node.disk, SimDisk)
            assert node.disk.calls == before
            node.disk.fail_at(before + places[skip], errno.EIO)
            try:
                node.channel().purge(up_to)
                answered = True
            except StoreError:
                answered = False
            failed += 1
            assert node.put(b"new") == {}
            shown = held(node)
            assert 19 in shown
            if answered:
                assert min(shown) == up_to + 1 if up_to < 18 else 19
            after = killed(node)
            assert 19 in held(after)
            assert set(held(after)) in ({*range(up_to + 1, 20)}, {*range(1, 20)})
            if answered:
                assert min(held(after)) == up_to + 1
            node.store.close()
    assert failed > 0


def test_an_owner_that_was_replaced_purges_nothing() -> None:
    node = filled()
    node.owner.fenced = True
    before = node.disk.tree("/store")  # type: ignore[attr-defined]
    with pytest.raises(FencedError):
        node.channel().purge(18)
    after = {name: data for name, data in node.disk.tree("/store").items() if "tmp." not in name}  # type: ignore[attr-defined]
    assert after == before


# ---- the tools
# --------------------------------------------------------------------------------------------------


def tool(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capsys.readouterr()
    status = ctl.main(["store", *words])
    return status, capsys.readouterr().out


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("up_to", [6, 18])
def test_the_tools_show_what_is_left_and_find_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], up_to: int, *, clean: bool
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    node = FileNode(LocalDisk(), str(path), options=SMALL)
    node.put(*(b"%d" % i for i in range(1, 19)))
    node.store.tick(1)
    node.channel().purge(up_to)
    node.store.close() if clean else node.store.abandon()
    status, out = tool(capsys, "ls", str(path), "--output", "json")
    (row,) = json.loads(out)["channels"]
    assert (status, row["msgs"], row["first"], row["last"]) == (0, 18 - up_to, up_to + 1, 18)
    _, out = tool(capsys, "dump", str(path))
    rows = [json.loads(line) for line in out.splitlines()]
    assert [r["sequence"] for r in rows if r["kind"] == "message"] == list(range(up_to + 1, 19))
    assert tool(capsys, "verify", str(path), "--channel", "foo")[0] == 0
    data = bytearray((path / MARK).read_bytes())
    data[-1] ^= 0xFF
    (path / MARK).write_bytes(data)
    status, out = tool(capsys, "verify", str(path), "--channel", "foo", "--output", "json")
    assert status == 0
    assert [f["file"] for f in json.loads(out)["findings"]] == [MARK]


def test_a_repair_a_compaction_and_a_handover_bring_nothing_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    node = FileNode(LocalDisk(), str(path), options=SMALL)
    node.store.set_server_info(INFO)
    node.put(*(b"%d" % i for i in range(1, 19)))
    node.channel().purge(7)
    node.put(*(b"%d" % i for i in range(19, 25)))
    node.channel().purge(18)
    node.store.abandon()
    (path / "foo" / "msgs.3.idx").unlink(missing_ok=True)
    for words in (("compact",), ("repair",), ("handover",)):
        assert tool(capsys, *words, str(path), "--channel", "foo")[0] == 0, words
        _, out = tool(capsys, "ls", str(path), "--output", "json")
        (row,) = json.loads(out)["channels"]
        assert (row["first"], row["last"], row["msgs"]) == (19, 24, 6), words
    assert sorted(read_store(path).channels[b"foo"].messages) == list(range(19, 25))
