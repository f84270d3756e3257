"""``ckpt.bin``: a start after a clean stop reads no slice, and one after anything else believes
none of it.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.file.channel import FileChannel
from ftstan.stores.file.log import records
from ftstan.stores.file.log.slices import SliceLog
from ftstan.stores.file.recovery import measure, opening
from ftstan.stores.file.state import checkpoint
from ftstan.stores.interface import ChannelLimits, StoredSub, SubState
from ftstan.wire.block import SubEvents
from tests.filenode import Owner
from tests.oracle.damage import archived_tree
from tests.sim.filestore import SimOwner
from tests.unit.stores.test_slices import NO_LIMITS, Node, contents, fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.file.env import FileEnv
    from tests.sim.disk import SimDisk


class NeverRead(AssertionError):  # noqa: N818 - a channel was read that need not have been
    pass


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a channel's files fails."""

    def refuse(*_: object, **__: object) -> None:
        raise NeverRead

    monkeypatch.setattr(opening, "measure", refuse)


def stopped() -> Node:
    """A store that was stopped cleanly, with messages and subscriptions in two channels."""
    node = Node(fresh())
    node.put(b"a", b"b", b"c")
    node.put(b"x", channel=b"bar")
    channel = node.channel()
    for sub_id in (1, 2, 3):
        channel.add_sub(
            SubState(sub_id, b"me", inbox=b"in.%d" % sub_id, durable_name=b"d", is_durable=True)
        )
    channel.delete_sub(3)
    node.store.commit()
    events = SubEvents()
    for sequence in (1, 2, 3):
        events.sent(1, sequence)
    events.acked(1, 2)
    channel.add_events(events)
    node.store.close()
    return node


def copied(node: Node) -> SimDisk:
    """The node's files on another disk: other inodes and times."""
    disk = fresh()
    disk.add_tree("/store", node.disk.tree("/store"))
    return disk


def subs(node: Node) -> dict[int, StoredSub]:
    return {stored.state.sub_id: stored for stored in node.channel().recovered_subs()}


@pytest.mark.usefixtures("unread")
def test_after_a_clean_stop_no_slice_is_read() -> None:
    after = stopped().successor()
    assert contents(after) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert contents(after, b"bar") == [(1, b"x")]
    assert (set(subs(after)), subs(after)[1].pending, subs(after)[1].state.last_sent) == (
        {1, 2},
        {1, 3},
        3,
    )
    assert after.channel().next_sub_id == 4
    after.put(b"d")
    assert contents(after)[-1] == (4, b"d")


def test_what_it_says_is_what_the_files_say() -> None:
    node = stopped()
    quick = node.successor()
    slow = Node(node.disk.sibling(), Owner(9))
    for name in (b"foo", b"bar"):
        a = quick.channel(name)
        b = slow.channel(name)
        assert (a.first, a.last, a.count, a.size) == (b.first, b.last, b.count, b.size)
        assert a.last_timestamp == b.last_timestamp
        assert a.recovered_subs() == b.recovered_subs()
        assert a.next_sub_id == b.next_sub_id


@pytest.mark.usefixtures("unread")
def test_a_start_that_touches_nothing_leaves_the_next_one_as_quick() -> None:
    node = stopped()
    for _ in range(3):
        node = node.successor()
        node.store.close()
    assert contents(node.successor()) == [(1, b"a"), (2, b"b"), (3, b"c")]


@pytest.mark.usefixtures("unread")
def test_limits_are_those_of_the_start_not_of_the_stop() -> None:
    node = stopped()
    node.limits = ChannelLimits(max_msgs=2, max_bytes=0)
    after = node.successor()
    assert (after.channel().first, after.channel().count) == (2, 2)
    after.store.close()
    after.limits = NO_LIMITS
    assert after.successor().channel().count == 3


def appended(disk: SimDisk, name: str) -> None:
    folder = disk.open_dir("/store/foo")
    fd = disk.open(folder, name, os.O_RDWR)
    disk.pwrite(fd, b"junk", disk.fstat(fd).size)


def rewritten(disk: SimDisk, name: str) -> None:
    folder = disk.open_dir("/store/foo")
    fd = disk.open(folder, name, os.O_RDWR)
    disk.pwrite(fd, disk.pread(fd, 1, 0), 0)


def replaced(disk: SimDisk, name: str) -> None:
    folder = disk.open_dir("/store/foo")
    fd = disk.open(folder, name, os.O_RDWR)
    data = disk.pread(fd, 1 << 20, 0)
    new = disk.open(folder, "new", os.O_RDWR | os.O_CREAT)
    disk.pwrite(new, data, 0)
    disk.rename(folder, "new", name)


def removed(disk: SimDisk, name: str) -> None:
    disk.unlink(disk.open_dir("/store/foo"), name)


def added(disk: SimDisk, name: str) -> None:
    disk.open(disk.open_dir("/store/foo"), name.replace(".1.", ".7."), os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("name", ["msgs.1.dat", "msgs.1.idx", "subs.dat", "confirmed.bin"])
@pytest.mark.parametrize("change", [appended, rewritten, replaced, removed])
def test_a_channel_with_a_file_that_changed_is_read_and_the_others_are_not(
    change: Callable[[SimDisk, str], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stopped()
    disk = node.disk.sibling()
    node.clock.advance(1)
    change(disk, name)
    read: list[bytes] = []

    def watched(env: object, channel: bytes, *rest: object, **known: bool) -> measure.Measured:
        read.append(channel)
        return measure.measure(env, channel, *rest, **known)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "measure", watched)
    node.successor(disk)
    assert read == [b"foo"]


def test_a_slice_that_came_after_the_stop_is_seen() -> None:
    node = stopped()
    added(node.disk, "msgs.1.dat")
    assert contents(node.successor()) == [(1, b"a"), (2, b"b"), (3, b"c")]


@pytest.mark.usefixtures("unread")
def test_only_the_activation_directly_after_it_believes_it() -> None:
    node = stopped()
    node.disk = node.disk.sibling()
    with pytest.raises(NeverRead):
        Node(node.disk, Owner(3))


@pytest.mark.usefixtures("unread")
def test_another_nonce_is_another_activation() -> None:
    node = stopped()

    class Other(Owner):
        @property
        def predecessor(self) -> tuple[int, bytes]:
            return self.epoch - 1, b"another"

    with pytest.raises(NeverRead):
        Node(node.disk.sibling(), Other(2))


@pytest.mark.parametrize("at", [0, 9, 13, 25, 40, -1])
@pytest.mark.usefixtures("unread")
def test_a_changed_byte_makes_it_nothing(at: int) -> None:
    node = stopped()
    disk = node.disk.sibling()
    root = disk.open_dir("/store")
    fd = disk.open(root, checkpoint.NAME, os.O_RDWR)
    data = bytearray(disk.pread(fd, 1 << 20, 0))
    data[at] ^= 1
    disk.pwrite(fd, bytes(data), 0)
    with pytest.raises(NeverRead):
        node.successor(disk)


@pytest.mark.usefixtures("unread")
def test_a_copy_of_the_directory_is_read_in_full() -> None:
    node = stopped()
    disk = copied(node)
    with pytest.raises(NeverRead):
        node.successor(disk)


def test_a_kill_leaves_none_that_counts() -> None:
    node = stopped()
    killed = node.successor()
    killed.put(b"d")
    after = killed.successor(killed.disk.crash(process_only=True))
    assert contents(after)[-1] == (4, b"d")


def test_it_is_written_last_and_without_it_a_stop_is_still_clean(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = Node(fresh())
    node.put(b"a")

    def refuse(_call: int, name: str, arguments: tuple[object, ...]) -> None:
        if name == "open" and any(
            isinstance(a, str) and a.endswith(checkpoint.NAME) for a in arguments
        ):
            raise OSError(28, "No space left on device")

    node.disk.on_call = refuse
    node.store.close()
    node.disk.on_call = None
    assert "ckpt.bin cannot be written" in capfd.readouterr().err
    assert contents(node.successor()) == [(1, b"a")]
    last = [line for line in stopped().disk.log if "rename" in line][-1]
    assert checkpoint.NAME in last


def test_a_quarantined_channel_is_not_in_it() -> None:
    disk = fresh()
    tree = archived_tree("v0.25.6/clean.tar.gz")
    data = bytearray(tree["durables/subs.dat"] or b"")
    data[14] ^= 1
    disk.add_tree("/store", tree | {"durables/subs.dat": bytes(data)})
    node = Node(disk, Owner(2, ours_from=4097))
    node.store.close()
    after = node.successor()
    assert after.store.quarantined == ["durables"]


def test_a_checkpoint_that_is_believed_without_a_look_at_the_files_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = stopped()
    honest = checkpoint.Checkpoint.get

    class Anything(dict[str, tuple[int, int, int]]):
        """Broken on purpose: whatever files there are, they are the ones that were there."""

        def __eq__(self, _other: object) -> bool:
            return True

        __hash__ = None

    def credulous(known: checkpoint.Checkpoint, name: bytes) -> checkpoint.Entry | None:
        entry = honest(known, name)
        return replace(entry, files=Anything(entry.files)) if entry is not None else None

    monkeypatch.setattr(checkpoint.Checkpoint, "get", credulous)
    with pytest.raises(AssertionError):
        appears_in_full(node)


def appears_in_full(node: Node) -> None:
    """An original server went on with the store after our stop: what it wrote must be there."""
    other = Node(copied(node), Owner(2))
    other.put(b"d")
    other.store.close()
    tree = other.disk.tree("/store")
    disk = node.disk.sibling()
    folder = disk.open_dir("/store/foo")
    for name in ("msgs.4097.dat", "msgs.4097.idx"):
        disk.pwrite(disk.open(folder, name, os.O_RDWR | os.O_CREAT), tree[f"foo/{name}"] or b"", 0)
    after = node.successor(disk)
    assert contents(after) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


def test_what_came_after_the_stop_is_there() -> None:
    appears_in_full(stopped())


def test_the_activation_before_is_the_one_that_was_recorded_last() -> None:
    disk = fresh()
    clock = ManualClock()
    root = disk.open_dir("/store")
    owners = [SimOwner(disk, root, clock) for _ in range(3)]
    assert [o.predecessor for o in owners] == [(0, b""), owners[0].identity, owners[1].identity]


def test_a_torn_record_on_top_leaves_nobody_before_us() -> None:
    disk = fresh()
    clock = ManualClock()
    root = disk.open_dir("/store")
    SimOwner(disk, root, clock)
    disk.pwrite(disk.open(root, "ft.epoch", os.O_RDWR), b"torn" * 1024, 2 * 4096)
    assert SimOwner(disk, root, clock).predecessor == (0, b"")


def test_what_a_stop_could_not_make_ready_for_an_original_server_is_done_by_the_next_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = Node(fresh())
    node.put(b"a")
    node.disk.fail_next("pwrite", errno.EIO)
    node.store.close()
    assert (
        "could not be made ready for an original server: Input/output error"
        in capfd.readouterr().err
    )
    assert "subs.dat" not in node.disk.tree("/store/foo")
    after = node.successor()
    # Nobody needs anything of the channel meanwhile.
    after.store.close()
    assert after.disk.tree("/store/foo")["subs.dat"] == records.VERSION
    assert contents(after.successor()) == [(1, b"a")]


# ---- what it says of one channel
# --------------------------------------------------------------------------------------------------


def parts_of(node: Node) -> tuple[FileEnv, SliceLog]:
    channel = node.channel()
    assert isinstance(channel, FileChannel)
    return node.store._env, channel.log


def test_a_channel_without_a_message_goes_on_behind_its_last_one() -> None:
    node = Node(fresh())
    said = checkpoint.Entry({"msgs.1.dat": (4, 5, 6)}, (), 7, 9, b"subs\0")
    read = checkpoint.Entry.decoded(said.encoded())
    assert read == said
    empty = SliceLog(node.store._env, b"foo", NO_LIMITS)
    read.adopt(empty)
    assert (empty.first, empty.last, empty.highest, empty.count) == (10, 9, 7, 0)


def test_a_last_message_that_is_there_is_the_last_one() -> None:
    node = stopped().successor()
    env, log = parts_of(node)
    entry = checkpoint.load(env).get(b"foo")
    assert entry is not None
    fresh_log = SliceLog(env, b"foo", NO_LIMITS)
    entry.adopt(fresh_log)
    assert (fresh_log.first, fresh_log.last, fresh_log.count) == (1, 3, 3)
    assert fresh_log.highest == log.highest


@pytest.mark.parametrize(
    ("name", "is_dir", "bound"),
    [
        ("msgs.1.dat", False, True),
        ("msgs.1.idx", False, True),
        ("msgs.x.dat", False, True),
        ("msgs.1.idx", True, True),
        ("msgs.-1.idx", True, True),
        ("msgs.01.idx", True, False),
        ("msgs.1.dat", True, False),
        ("msgs.1.dat.bak", False, False),
        ("subs.dat", False, True),
        ("subs.dat", True, True),
        ("confirmed.bin", False, True),
        ("purged.bin", False, True),
        ("moved.bin", False, True),
        ("cut.1.msgs.1.dat.4", False, False),
        ("notes", False, False),
    ],
)
def test_it_speaks_of_the_files_of_a_channel_and_of_what_is_in_their_way(
    name: str, *, is_dir: bool, bound: bool
) -> None:
    assert checkpoint.is_bound(name, is_dir=is_dir) is bound


def test_a_directory_in_place_of_a_file_is_not_what_was_left() -> None:
    node = stopped().successor()
    env, log = parts_of(node)
    entry = checkpoint.load(env).get(b"foo")
    assert entry is not None
    names = env.disk.listdir(log.dirfd)
    assert checkpoint.is_as_left(env, log.dirfd, names, entry)
    assert not checkpoint.is_as_left(env, log.dirfd, [*names, ("msgs.9.dat", False)][:1], entry)
    env.disk.unlink(log.dirfd, "subs.dat")
    env.disk.mkdir(log.dirfd, "subs.dat")
    assert not checkpoint.is_as_left(env, log.dirfd, env.disk.listdir(log.dirfd), entry)


def test_where_this_host_may_remember_files_they_are_read_before_they_are_asked() -> None:
    node = stopped().successor()
    env, log = parts_of(node)
    before = checkpoint.files_of(env, log.dirfd, [("msgs.1.dat", False)])
    env.asking = node.disk
    handles = node.disk.open_handles
    start = len(node.disk.log)
    assert checkpoint.files_of(env, log.dirfd, [("msgs.1.dat", False)]) == before
    calls = [line.split()[0] for line in node.disk.log[start:]]
    asked = calls.index("pread")
    assert calls.index("close", asked) < calls.index("open", asked) < calls.index("fstat", asked)
    assert node.disk.open_handles == handles


def change(name: str, data: bytes, offset: int = -1) -> Callable[[Node], None]:
    def do(node: Node) -> None:
        _, log = parts_of(node)
        fd = node.disk.open(log.dirfd, name, os.O_RDWR | os.O_CREAT)
        at = node.disk.fstat(fd).size if offset < 0 else offset
        node.disk.pwrite(fd, data, at)
        node.disk.close(fd)

    return do


def doubt(node: Node) -> None:
    parts_of(node)[1].unsure.add(1)


@pytest.mark.parametrize(
    "what",
    [
        doubt,
        change("msgs.7.dat", b"\1\0\0\0"),
        change("msgs.1.dat", b"more"),
        change("msgs.1.idx", b"more"),
        change("subs.dat", b"\x18\0\0\0\1\2\3\4torn"),
    ],
    ids=["a doubtful index", "another slice", "longer data", "a longer index", "a torn end"],
)
def test_files_that_do_not_say_all_of_a_channel_are_not_in_it(
    what: Callable[[Node], None],
) -> None:
    node = stopped().successor()
    env, log = parts_of(node)
    assert checkpoint.entry_of(env, log) is not None
    what(node)
    assert checkpoint.entry_of(env, log) is None
