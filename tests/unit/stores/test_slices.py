"""Slices: their numbers, when one becomes visible, what a successor believes of them, and when they
go.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, RecoveryError, StoreError
from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelLimits
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner
from tests.oracle.damage import archived_tree
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.model import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.interface import ChannelStore

SECOND = 1_000_000_000
NO_LIMITS = ChannelLimits(max_msgs=0, max_bytes=0)


@dataclass
class Node:
    """One process with a store that has recovered."""

    disk: SimDisk
    owner: Owner = field(default_factory=Owner)
    options: FileStoreOptions = field(default_factory=FileStoreOptions)
    limits: ChannelLimits = NO_LIMITS
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        root = self.disk.open_dir("/store")
        self.store = FileStore(
            self.disk,
            root,
            self.owner,
            self.clock,
            self.options,
            limits=Limits.same(self.limits),
            parallel_sync=False,
        )
        self.channels: dict[bytes, ChannelStore] = {
            c.name: c for c in self.store.recover().channels
        }

    def channel(self, name: bytes = b"foo") -> ChannelStore:
        if name not in self.channels:
            self.channels[name] = self.store.create_channel(name, self.limits)
        return self.channels[name]

    def put(self, *data: bytes, channel: bytes = b"foo") -> dict[bytes, StoreError]:
        """One batch."""
        ch = self.channel(channel)
        block = MsgBlock()
        for i, d in enumerate(data, 1):
            block.append(ch.last + i, channel, b"", d, self.clock.wall_ns())
        ch.append(block)
        return self.store.commit()

    def successor(self, disk: SimDisk | None = None) -> Node:
        owner = Owner(self.owner.epoch + 1, self.owner.ours_from)
        return Node(disk or self.disk.sibling(), owner, self.options, self.limits, self.clock)


def fresh() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/store")
    return disk


def slices(disk: SimDisk, channel: str = "foo") -> dict[int, list[int]]:
    """What the indexes of a channel's slices name: number -> sequences."""
    found: dict[int, list[int]] = {}
    for name, data in disk.tree(f"/store/{channel}").items():
        if m := re.fullmatch(r"msgs\.(\d+)\.idx", name):
            index = (data or b"")[4:]
            found[int(m[1])] = [records.entry(index, k)[0] for k in range(len(index) // 32)]
    return dict(sorted(found.items()))


def contents(node: Node, channel: bytes = b"foo") -> list[tuple[int, bytes]]:
    """Every message as (sequence, data), through the public face of the store."""
    ch = node.channels[channel]
    wanted = read_all(ch)
    block_data = []
    for sequence, payload in wanted.items():
        # field 4 of the encoded message, which has no reply here
        _, _, rest = payload.partition(channel + b"\x22")
        block_data.append((sequence, rest[1 : 1 + rest[0]]))
    return block_data


def killing(what: str) -> Callable[[int, str, tuple[object, ...]], None]:
    """A hook that kills the process at the first call that starts with ``what`` (its handle left
    out).
    """

    def hook(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if " ".join([name, *(a for a in arguments if isinstance(a, str))]).startswith(what):
            raise Killed

    return hook


def killing_at(number: int) -> Callable[[int, str, tuple[object, ...]], None]:
    """A hook that kills the process at that call."""

    def hook(call: int, _name: str, _arguments: tuple[object, ...]) -> None:
        if call == number:
            raise Killed

    return hook


# ---- numbers
# --------------------------------------------------------------------------------------------------


def test_a_fresh_store_starts_with_slice_one_and_stays_in_it() -> None:
    node = Node(fresh())
    node.put(b"a")
    node.put(b"b", b"c")
    assert slices(node.disk) == {1: [1, 2, 3]}


def test_each_activation_opens_a_slice_of_its_own_at_its_first_write() -> None:
    node = Node(fresh())
    node.put(b"a")
    for epoch in (2, 3, 5):
        node.store.close()
        node = Node(node.disk.sibling(), Owner(epoch))
        before = slices(node.disk)
        assert contents(node)
        assert slices(node.disk) == before
        node.put(b"b")
        node.put(b"c")
    assert slices(node.disk) == {1: [1], 4097: [2, 3], 8193: [4, 5], 16385: [6, 7]}


def test_a_slice_of_a_former_activation_is_never_written_again() -> None:
    node = Node(fresh())
    node.put(b"a", b"b")
    node.store.close()
    before = {n: d for n, d in node.disk.tree("/store/foo").items() if n.startswith("msgs.")}
    after = node.successor()
    after.put(b"c")
    after.store.close()
    now = after.disk.tree("/store/foo")
    assert {n: now[n] for n in before} == before


def test_when_the_numbers_of_an_epoch_are_used_up_the_owner_raises_it() -> None:
    disk = fresh()
    node = Node(disk)
    node.put(b"a")
    node.store.close()
    tree = disk.tree("/store/foo")
    late = fresh()
    late.add_tree("/store/foo", {n.replace("msgs.1.", "msgs.4095."): d for n, d in tree.items()})
    node = Node(late, options=FileStoreOptions(slice_max_msgs=1))
    node.put(b"b", b"c", b"d")
    assert slices(late) == {4095: [1], 4096: [2], 4097: [3], 4098: [4]}
    assert node.owner.epoch == 2


def test_an_owner_that_is_fenced_while_raising_its_epoch_writes_nothing() -> None:
    disk = fresh()
    node = Node(disk)
    node.put(b"a")
    late = fresh()
    late.add_tree(
        "/store/foo",
        {n.replace("msgs.1.", "msgs.4096."): d for n, d in disk.tree("/store/foo").items()},
    )
    node = Node(late)
    node.owner.fenced = True
    before = late.tree("/store")
    with pytest.raises(FencedError):
        node.put(b"b")
    assert late.tree("/store") == before


def test_a_number_that_no_epoch_can_get_above_is_an_error_that_names_the_repair() -> None:
    disk = fresh()
    node = Node(disk)
    node.put(b"a")
    late = fresh()
    late.add_tree(
        "/store/foo",
        {n.replace("msgs.1.", "msgs.9000000."): d for n, d in disk.tree("/store/foo").items()},
    )
    node = Node(late)
    failed = node.put(b"b")
    assert "leaves no room" in failed[b"foo"].text
    assert failed[b"foo"].hint == "run: ftstanctl store repair"
    assert node.owner.epoch == 1, "no epoch is used for what none can help"


def test_an_owner_takes_as_many_epochs_as_it_needs_to_get_above_the_numbers_that_it_finds() -> None:
    disk = fresh()
    node = Node(disk)
    node.put(b"a")
    late = fresh()
    late.add_tree(
        "/store/foo",
        {n.replace("msgs.1.", "msgs.90000."): d for n, d in disk.tree("/store/foo").items()},
    )
    node = Node(late)
    assert node.put(b"b") == {}
    assert slices(late) == {90000: [1], 90001: [2]}
    assert node.owner.epoch == 22


# ---- rolling
# --------------------------------------------------------------------------------------------------


def test_a_slice_rolls_by_count_inside_one_batch() -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_msgs=3))
    node.put(*(b"%d" % i for i in range(8)))
    assert slices(node.disk) == {1: [1, 2, 3], 2: [4, 5, 6], 3: [7, 8]}
    node.put(b"x", b"y")
    assert slices(node.disk) == {1: [1, 2, 3], 2: [4, 5, 6], 3: [7, 8, 9], 4: [10]}
    assert [s for s, _ in contents(node)] == list(range(1, 11))


def test_a_slice_rolls_when_its_bytes_have_reached_the_limit() -> None:
    # 40 + 8 header bytes of the message + 100 of data: the third one exceeds the limit and still
    # goes in.
    node = Node(fresh(), options=FileStoreOptions(slice_max_bytes=400))
    node.put(*(b"%d" % i + b"x" * 99 for i in range(7)))
    assert slices(node.disk) == {1: [1, 2, 3], 2: [4, 5, 6], 3: [7]}


def test_one_message_larger_than_the_limit_has_a_slice_of_its_own() -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_bytes=100))
    node.put(b"x" * 1000, b"y" * 1000)
    assert slices(node.disk) == {1: [1], 2: [2]}


def test_a_slice_rolls_by_the_age_of_its_first_message() -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_bytes=0, slice_max_age=10 * SECOND))
    node.put(b"a")
    node.clock.advance(9.5)
    node.put(b"b")
    node.clock.advance(0.5)
    node.put(b"c")
    assert slices(node.disk) == {1: [1, 2], 2: [3]}


def test_without_slice_limits_a_quarter_of_the_channels_limits_counts() -> None:
    none = FileStoreOptions(slice_max_bytes=0)
    node = Node(fresh(), options=none, limits=ChannelLimits(max_msgs=8, max_bytes=0))
    node.put(*(b"%d" % i for i in range(5)))
    assert slices(node.disk) == {1: [1, 2], 2: [3, 4], 3: [5]}
    node = Node(fresh(), options=none)
    node.put(*(b"%d" % i for i in range(500)))
    assert list(slices(node.disk)) == [1]


# ---- becoming visible
# ----------------------------------------------------------------------------------------------


def test_no_slice_is_visible_before_its_first_batch_is_durable_in_it() -> None:
    node = Node(fresh())
    node.put(b"a", b"b")
    log = [line.split(" ") for line in node.disk.log]
    calls = [" ".join(w for w in words if not w.isdigit()) for words in log]
    link = calls.index("link tmp.1.dat msgs.1.dat")
    before = calls[:link]
    after = calls[link + 1 :]
    assert before[-2:] == ["pwrite", "fsync"]
    assert after[0] == "unlink tmp.1.dat"
    assert "fsync" in after[: after.index("open tmp.1.idx")]


def test_where_links_are_refused_the_slice_is_renamed() -> None:
    node = Node(fresh())
    node.disk.fail_next("link", errno.EPERM)
    assert node.put(b"a") == {}
    assert sorted(node.disk.tree("/store/foo")) == ["msgs.1.dat", "msgs.1.idx"]


def test_an_owner_that_is_fenced_shows_no_slice_and_removes_nothing() -> None:
    node = Node(fresh())
    node.owner.fenced = True
    with pytest.raises(FencedError):
        node.put(b"a")
    assert [n for n in node.disk.tree("/store/foo") if n.startswith("msgs.")] == []
    assert [line for line in node.disk.log if line.startswith("unlink")] == []


def interrupted(node: Node, call: str) -> Node:
    """Let a successor take over in the middle of a batch, at the first call of that name.

    Gives it.
    """
    found: list[Node] = []

    def take_over(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name == call and not found:
            found.append(node.successor())

    node.disk.on_call = take_over
    node.put(b"late")
    return found[0]


def test_a_former_owners_slice_that_is_not_visible_when_the_successor_looks_never_will_be() -> None:
    node = Node(fresh())
    after = interrupted(node, "link")
    assert after.channels == {}
    assert not any(n.startswith("msgs.") for n in after.disk.tree("/store/foo"))
    after.put(b"mine")
    assert contents(after.successor()) == [(1, b"mine")]


def test_a_former_owners_slice_that_its_successor_sees_is_part_of_the_log() -> None:
    node = Node(fresh())
    after = interrupted(node, "unlink")
    after.put(b"mine")
    assert contents(after.successor()) == [(1, b"late"), (2, b"mine")]


def test_temporaries_are_removed_before_the_slices_are_listed() -> None:
    disk = fresh()
    disk.add_tree(
        "/store",
        {
            "tmp.0.clients.dat": b"x",
            "foo/tmp.7.dat": b"\1\0\0\0junk",
            "foo/tmp.0.subs.dat": b"",
            "foo/subs.dat": b"",
        },
    )
    node = Node(disk)
    node.put(b"a")
    assert sorted(disk.tree("/store/foo")) == ["msgs.1.dat", "msgs.1.idx", "subs.dat"]
    assert "tmp.0.clients.dat" not in disk.tree("/store")
    unlinks = [
        i for i, line in enumerate(disk.log) if line.startswith("unlink") and "tmp.7" in line
    ]
    opened = [i for i, line in enumerate(disk.log) if line.startswith("open_dir_at")]
    listed = [i for i, line in enumerate(disk.log) if line.startswith("listdir") and i > opened[0]]
    assert listed[0] < unlinks[0] < listed[1]


# ---- what a successor believes
# -------------------------------------------------------------------------------------


def test_late_bytes_of_a_former_owner_are_not_part_of_the_log() -> None:
    old = Node(fresh())
    old.put(b"a", b"b")
    new = old.successor()
    assert new.put(b"new 3", b"new 4") == {}
    # The former owner was paused between parse and write: it does not know yet.
    old.put(b"old 3", b"old 4", b"old 5")
    assert slices(new.disk) == {1: [1, 2, 3, 4, 5], 4097: [3, 4]}
    new.put(b"new 5")
    for _ in range(2):
        new = new.successor()
        assert contents(new) == [(1, b"a"), (2, b"b"), (3, b"new 3"), (4, b"new 4"), (5, b"new 5")]


def test_late_bytes_that_come_while_nothing_has_been_written_are_read_once_and_for_all() -> None:
    old = Node(fresh())
    old.put(b"a")
    new = old.successor()
    old.put(b"old 2")
    # What the successor measured is its log; the late record lies behind it.
    assert contents(new) == [(1, b"a")]
    new.put(b"new 2")
    assert contents(new.successor()) == [(1, b"a"), (2, b"new 2")]


def test_a_tail_that_may_not_be_durable_is_copied_before_it_is_served() -> None:
    node = Node(fresh())
    node.put(b"a")
    node.disk.on_call = killing("fdatasync")
    with pytest.raises(Killed):
        node.put(b"b", b"c")
    after = node.successor(node.disk.crash(process_only=True))
    assert contents(after) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert slices(after.disk) == {1: [1], 4097: [2, 3]}
    tree = after.disk.tree("/store/foo")
    first = tree["msgs.1.dat"]
    copy = tree["msgs.4097.dat"]
    assert first is not None
    assert copy is not None
    assert first.endswith(copy[4:])
    after.put(b"d")
    lost = after.successor(after.disk.crash(mode=CrashMode.LOST))
    assert contents(lost) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


def test_where_there_is_no_room_for_the_copy_a_start_says_what_it_needs() -> None:
    node = Node(fresh())
    node.put(b"a")
    node.disk.on_call = killing("fdatasync")
    with pytest.raises(Killed):
        node.put(b"b", b"c")
    disk = node.disk.crash(process_only=True)
    disk.volume.space = 0
    with pytest.raises(RecoveryError, match="No space left on device") as caught:
        node.successor(disk)
    assert caught.value.hint.startswith("make room: ")
    disk.volume.space = None
    assert contents(node.successor(disk)) == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_a_first_slice_without_index_is_copied_as_a_whole() -> None:
    node = Node(fresh())
    node.disk.on_call = killing("open tmp.1.idx")
    with pytest.raises(Killed):
        node.put(b"a", b"b")
    after = node.successor(node.disk.crash(process_only=True))
    assert contents(after) == [(1, b"a"), (2, b"b")]
    assert contents(after.successor()) == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize(
    "junk", [b"\x18\0\0\0\1\2\3\4torn", bytes(64), b"\x05\0\0\0\0\0\0\0hello and more", b"\1\2\3"]
)
def test_a_tail_that_was_never_acknowledged_is_ignored_and_sealed(junk: bytes) -> None:
    node = Node(fresh())
    node.put(b"a")
    node.store.close()
    tree = node.disk.tree("/store")
    disk = fresh()
    disk.add_tree("/store", tree | {"foo/msgs.1.dat": (tree["foo/msgs.1.dat"] or b"") + junk})
    after = node.successor(disk)
    assert contents(after) == [(1, b"a")]
    after.put(b"b")
    after.store.close()
    assert contents(after.successor()) == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize(
    "index",
    [b"", b"\1\0", b"\1\0\0\0", b"\1\0\0\0" + bytes(32), b"\1\0\0\0" + b"\xff" * 64, b"\7\0\0\0"],
)
def test_an_index_that_proves_nothing_costs_nothing(index: bytes) -> None:
    node = Node(fresh())
    node.put(b"a", b"b")
    node.store.close()
    disk = fresh()
    disk.add_tree("/store", node.disk.tree("/store") | {"foo/msgs.1.idx": index})
    after = node.successor(disk)
    assert contents(after) == [(1, b"a"), (2, b"b")]


def test_an_index_of_another_file_proves_nothing() -> None:
    node = Node(fresh())
    node.put(b"a", b"b")
    node.put(b"aaaa", b"bb", channel=b"bar")
    node.store.close()
    tree = node.disk.tree("/store")
    disk = fresh()
    disk.add_tree("/store", tree | {"foo/msgs.1.idx": tree["bar/msgs.1.idx"]})
    assert contents(node.successor(disk)) == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize("data", [b"", b"\1", b"\1\0\0", b"\1\0\0\0"])
def test_a_slice_that_was_created_and_never_filled_counts_as_absent(data: bytes) -> None:
    node = Node(fresh())
    node.put(b"a")
    node.store.close()
    disk = fresh()
    disk.add_tree("/store", node.disk.tree("/store") | {"foo/msgs.2.dat": data})
    after = Node(disk)
    assert contents(after) == [(1, b"a")]
    after.put(b"b")
    assert slices(disk) == {1: [1], 3: [2]}


def test_slices_of_the_original_server_are_synced_where_they_lie_and_never_copied() -> None:
    disk = fresh()
    tree = archived_tree("v0.25.6/killed.tar.gz")
    # As if killed between the two writes: the last three messages are not in the index.
    disk.add_tree("/store", tree | {"single/msgs.1.idx": b"\1\0\0\0"})
    before = disk.tree("/store/single")
    node = Node(disk, Owner(2, ours_from=4097))
    assert list(read_all(node.channels[b"single"])) == [1]
    assert disk.tree("/store/single") == before
    assert any(line.startswith("fsync") for line in disk.log)
    node.put(b"mine", channel=b"single")
    assert sorted(slices(disk, "single")) == [1, 4097]


# ---- a slice that failed
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_slice_whose_write_or_sync_failed_is_not_touched_again(call: str) -> None:
    node = Node(fresh())
    node.put(b"a")
    node.disk.fail_next(call, errno.EIO)
    assert list(node.put(b"lost")) == [b"foo"]
    calls = len(node.disk.log)
    assert node.put(b"b") == {}
    assert contents(node) == [(1, b"a"), (2, b"b")]
    assert slices(node.disk) == {1: [1], 2: [2]}
    assert not any(
        "msgs.1" in line for line in node.disk.log[calls:] if not line.startswith("open")
    )
    assert contents(node.successor()) == [(1, b"a"), (2, b"b")]


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "link", "unlink"])
def test_a_slice_that_could_not_be_made_is_passed_over(call: str) -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_msgs=1))
    node.put(b"a")
    node.disk.fail_next(call, errno.EIO)
    assert list(node.put(b"lost")) == [b"foo"]
    assert node.put(b"b") == {}
    assert contents(node) == [(1, b"a"), (2, b"b")]
    assert contents(node.successor()) == [(1, b"a"), (2, b"b")]


# ---- limits and removal
# --------------------------------------------------------------------------------------------


def by_twos(max_msgs: int = 0, max_age: int = 0) -> Node:
    return Node(
        fresh(),
        options=FileStoreOptions(slice_max_msgs=2),
        limits=ChannelLimits(max_msgs=max_msgs, max_bytes=0, max_age=max_age),
    )


def test_slices_that_hold_nothing_any_more_go_lowest_first_index_first() -> None:
    node = by_twos(max_msgs=3)
    node.put(*(b"%d" % i for i in range(7)))
    assert (node.channel().first, node.channel().count) == (5, 3)
    assert list(slices(node.disk)) == [1, 2, 3, 4]
    before = len(node.disk.log)
    node.store.tick(node.clock.wall_ns())
    assert list(slices(node.disk)) == [3, 4]
    removal = [
        re.sub(r"^(\w+) \d+", r"\1", c)
        for c in node.disk.log[before:]
        if c.startswith(("unlink", "fsync"))
    ]
    assert removal[-6:] == [
        "unlink msgs.1.idx",
        "unlink msgs.1.dat",
        "fsync",
        "unlink msgs.2.idx",
        "unlink msgs.2.dat",
        "fsync",
    ]


def test_the_last_slice_stays_and_keeps_the_sequence_when_all_has_expired() -> None:
    node = by_twos(max_age=10 * SECOND)
    node.put(b"a", b"b", b"c")
    node.clock.advance(10)
    node.store.tick(node.clock.wall_ns())
    ch = node.channel()
    assert (ch.first, ch.last, ch.count, ch.size) == (4, 3, 0, 0)
    assert list(slices(node.disk)) == [2]
    node.store.close()
    after = node.successor()
    ch = after.channel()
    assert (ch.first, ch.last, ch.count) == (4, 3, 0)
    after.put(b"d")
    assert contents(after) == [(4, b"d")]


def test_a_fenced_owner_removes_nothing() -> None:
    node = by_twos(max_msgs=2)
    node.put(*(b"%d" % i for i in range(6)))
    node.owner.fenced = True
    with pytest.raises(FencedError):
        node.store.tick(node.clock.wall_ns())
    assert list(slices(node.disk)) == [1, 2, 3]


def test_a_slice_with_dead_bytes_outlives_no_seal() -> None:
    node = Node(
        fresh(),
        options=FileStoreOptions(slice_max_msgs=2),
        limits=ChannelLimits(max_msgs=2, max_bytes=0),
    )
    node.put(b"a")
    node.disk.fail_next("fdatasync", errno.EIO)
    node.put(b"lost")
    node.put(b"b", b"c", b"d")
    for calls in range(1, 40):
        disk = node.disk.crash(process_only=True)
        victim = Node(disk, Owner(2), node.options, node.limits, node.clock)
        victim.put(b"e")
        disk.on_call = killing_at(disk.calls + calls)
        try:
            victim.store.tick(node.clock.wall_ns())
        except Killed:
            mode = CrashMode.KEPT if calls % 2 else CrashMode.LOST
            after = Node(disk.crash(mode=mode), Owner(3), node.options, node.limits, node.clock)
            assert contents(after) == [(4, b"d"), (5, b"e")]
            assert b"lost" not in [d for _, d in contents(after)]
        else:
            assert calls > 4
            break


def test_limits_by_bytes_count_40_for_every_message_and_keep_the_newest() -> None:
    node = Node(fresh(), limits=ChannelLimits(max_msgs=0, max_bytes=300))
    node.put(b"x" * 50, b"y" * 50)
    size = node.channel().size
    each = size // 2
    assert each > 90
    node.put(b"z" * 50, b"w" * 50)
    assert (node.channel().count, node.channel().first) == (300 // each, 5 - 300 // each)
    node.put(b"v" * 1000)
    assert (node.channel().count, node.channel().first, node.channel().last) == (1, 5, 5)
