"""Attacks on fencing, fourth round: what lands late in parts, and stores that open their channels
by and by.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from greenlet import greenlet

from ftstan.base.errors import FencedError, StoreError
from ftstan.broker.dedup import Window
from ftstan.config.limits import Limits
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery import judging
from ftstan.stores.file.store import FileStore
from ftstan.stores.file.tools.changing import rewrite
from ftstan.stores.file.tools.rewriting import hand_over_channel
from ftstan.stores.interface import ChannelLimits, ClientInfo, SubState
from tests.compat.driver import Driver, PubAck, pub_acks
from tests.filenode import NO_LIMITS, FileNode, Owner, simulated
from tests.sim.disk import SimDisk
from tests.sim.model import read_all
from tests.unit.broker.test_dedup import offer
from tests.unit.stores.test_remembered_crashes import WINDOW, begun, disk_of, publish, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import ManualClock
    from ftstan.stores.interface import Recovered

PAGE = 4096
GUID = b"ft1.large"
NO = Limits.same(NO_LIMITS)
ME = ClientInfo(b"me", b"hb.me", b"conn.me", 1, 5, 3)
#: Together with what is in the slice already: more than one page of the file.
LARGE = b"x" * 6000


class Found:
    """A store that has been recovered, for a driver that wants to do that itself."""

    def __init__(self, store: FileStore, found: Recovered) -> None:
        self._store = store
        self._found = found

    def recover(self) -> Recovered:
        return self._found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Pages(SimDisk):
    """A process on a host that freezes when some pages of a write have reached storage, and others
    have not.
    """

    def __init__(self, pages: list[int], then: Callable[[], object]) -> None:
        super().__init__()
        self._pages = pages
        self._then: Callable[[], object] | None = then
        self.armed = False

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        if not self.armed or self._then is None or len(data) < len(LARGE):
            super().pwrite(fd, data, offset)
            return
        content = bytes(data)
        then = self._then
        self._then = None
        parts = []
        at = offset
        while at < offset + len(content):
            end = min(at - at % PAGE + PAGE, offset + len(content))
            parts.append((at, content[at - offset : end - offset]))
            at = end
        for number in self._pages:
            super().pwrite(fd, parts[number][1], parts[number][0])
        then()
        # The host goes on; what has reached storage is not sent again.
        for number, (at, part) in enumerate(parts):
            if number not in self._pages:
                super().pwrite(fd, part, at)


def frozen(pages: list[int], then: Callable[[FileNode], object]) -> FileNode:
    """An owner with one acknowledged message, frozen in the write of the second, which wakes up and
    is fenced.
    """

    def wake() -> None:
        node.owner.fenced = True
        then(node)

    disk = Pages(pages, wake)
    disk.make_dirs("/store")
    node = FileNode(disk)
    driver = serving(node)
    assert publish(driver, b"ft1.small") == [PubAck(b"ft1.small")]
    node.tick()
    disk.armed = True
    offer(driver, GUID, LARGE)
    with contextlib.suppress(FencedError, StoreError):
        driver.run()
    return node


@pytest.mark.parametrize("pages", [[0], [1]], ids=["the first page", "the second page"])
def test_a_channel_is_not_quarantined_for_a_batch_that_was_cut_while_its_writer_was_frozen(
    pages: list[int],
) -> None:
    second: list[FileNode] = []
    first = frozen(pages, lambda node: second.append(node.successor()))
    # It took the store over, and was killed before anybody published to this channel.
    third = second[0].successor()
    assert third.store.quarantined == []
    assert third.put(b"next") == {}
    assert first.owner.fenced


def test_nor_where_there_was_no_space_for_the_slice_that_ends_it() -> None:
    second: list[FileNode] = []

    def take_over(node: FileNode) -> None:
        disk = disk_of(node).sibling()

        def fill(_number: int, call: str, args: tuple[object, ...]) -> None:
            if (
                call == "open"
                and str(args[1]).endswith(".dat")
                and str(args[1]).startswith("tmp.4")
            ):
                disk.fail_next("pwrite", errno.ENOSPC)

        disk.on_call = fill
        second.append(node.successor(disk))
        assert "msgs.4097.dat" not in disk.tree("/store/foo")

    first = frozen([0], take_over)
    third = second[0].successor()
    assert third.store.quarantined == []
    # Whole by now, and nobody was told of it before.
    assert third.sequences() == [1, 2]
    assert third.put(b"next") == {}
    assert third.successor().sequences() == [1, 2, 3]
    assert first.owner.fenced


CHANGES = ("open", "pwrite", "ftruncate", "fsync", "link", "rename", "unlink")


def third_beside(at: int, serve: Callable[[FileNode], object]) -> FileNode | None:
    """The third owner, when the second has gone on from where it stood still.

    ``None``: it came to its end before.

    Two pauses: the first owner within its write, the second in front of the change with number
    ``at`` of its start. ``serve``: what the third does meanwhile, when the first has written the
    rest.
    """
    here = greenlet.getcurrent()
    started: list[greenlet] = []

    def start(node: FileNode) -> None:
        disk = disk_of(node).sibling()
        owner = Owner(2)
        changes = 0

        def hook(_number: int, call: str, _args: tuple[object, ...]) -> None:
            nonlocal changes
            changes += call in CHANGES
            if changes > at:
                disk.on_call = None
                owner.fenced = True
                here.switch()

        def recover() -> None:
            with contextlib.suppress(FencedError, StoreError, OSError):
                FileNode(disk, owner=owner, clock=node.clock)

        disk.on_call = hook
        second = greenlet(recover)
        started.append(second)
        second.switch()

    first = frozen([0], start)
    if started[0].dead:
        return None
    first.clock.advance(1)
    third = FileNode(disk_of(first).sibling(), owner=Owner(3), clock=first.clock)
    assert third.store.quarantined == []
    serve(third)
    started[0].switch()
    return third


def stand_still_everywhere(
    serve: Callable[[FileNode], object], judge: Callable[[FileNode], object]
) -> int:
    """Tell that history once for each change that the start of the second owner makes.

    Returns how many they are.
    """
    at = 0
    while (third := third_beside(at, serve)) is not None:
        judge(third)
        at += 1
    return at


def deliver_to_the_last(at_most: int) -> int:
    told: list[dict[int, bytes]] = []

    def serve(third: FileNode) -> None:
        assert third.put(b"acked by the third") == {}
        third.store.confirm()
        told.append(contents(third))

    def judge(third: FileNode) -> None:
        assert contents(third) == told[-1]
        last = third.successor()
        assert last.store.quarantined == []
        assert contents(last) == told[-1]

    changes = stand_still_everywhere(serve, judge)
    assert {len(rows) for rows in told} <= {2, at_most}
    return changes


def contents(node: FileNode) -> dict[int, bytes]:
    return read_all(node.channels[b"foo"])


def test_what_was_delivered_is_not_cut_by_a_start_that_stood_still_before_its_cut() -> None:
    assert deliver_to_the_last(3) > 10


def test_a_slice_of_a_former_owner_that_is_cut_in_place_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "_is_former_owners", lambda _env, _found: False)
    with pytest.raises(AssertionError):
        deliver_to_the_last(3)


def test_an_acknowledged_repeat_is_not_cut_by_a_start_that_stood_still_before_its_cut() -> None:
    acks: list[PubAck] = []

    def serve(third: FileNode) -> None:
        acks.clear()
        driver = serving(third)
        offer(driver, GUID, LARGE)
        acks.extend(pub_acks(driver.run()))

    def judge(third: FileNode) -> None:
        assert acks == [PubAck(GUID)]
        # It is there for the acknowledging owner, and for every later one.
        last = third.successor()
        assert last.store.quarantined == []
        assert sum(LARGE in data for data in contents(last).values()) == 1

    assert stand_still_everywhere(serve, judge) > 10


@pytest.mark.parametrize(("where", "name"), [("/store/foo", "subs.dat"), ("/store", "clients.dat")])
def test_a_torn_state_file_is_replaced_and_what_a_former_owner_does_to_it_is_nobodys(
    where: str, name: str
) -> None:
    first = FileNode(simulated())
    first.put(b"a")
    first.store.add_client(ME)
    first.channel().add_sub(SUB)
    assert first.store.commit() == {}
    disk = disk_of(first)
    whole = disk.tree(where)[name] or b""
    fd = disk.open(disk.open_dir(where), name, os.O_RDWR)
    disk.pwrite(fd, whole[-9:-1], len(whole))
    second = first.successor()
    assert disk.tree(where)[name] == whole
    # Its own file has no name any more, whoever still writes to it or cuts it.
    disk.ftruncate(fd, 0)
    assert disk.tree(where)[name] == whole
    last = second.successor()
    assert [c.client_id for c in last.recovered.clients] == [ME.client_id]
    assert [s.state for s in last.channels[b"foo"].recovered_subs()] == [SUB]


# ---- stores that open their channels by and by
# -----------------------------------------------------------------------


def by_and_by(disk: SimDisk, epoch: int, clock: ManualClock) -> FileStore:
    return FileStore(
        disk,
        disk.open_dir("/store"),
        Owner(epoch),
        clock,
        limits=NO,
        parallel_sync=False,
        most_at_once=0,
    )


def test_a_publish_that_a_former_owner_stores_in_a_channel_that_waits_is_stored_once() -> None:
    """Its successor has read what is remembered, and has not opened the channel yet."""
    first, publishing = begun()
    disk = disk_of(first)
    second: list[Driver] = []
    stores: list[FileStore] = []

    def take_over(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "pwrite":
            disk.on_call = None
            first.owner.fenced = True
            first.clock.advance(1)
            stores.append(store := by_and_by(disk.sibling(), 2, first.clock))
            found = store.recover()
            assert found.later == [b"foo"]
            second.append(driver := Driver(Found(store, found), clock=first.clock))
            driver.broker.window = Window(WINDOW, found.remembered)

    disk.on_call = take_over
    with contextlib.suppress(FencedError, StoreError):
        publish(publishing, b"ft1.c")
    (driver,) = second
    if b"me" not in driver.broker.clients:
        driver.connect()
    # Nobody has answered, so the client repeats it.
    assert publish(driver, b"ft1.c") == [PubAck(b"ft1.c")]
    (store,) = stores
    assert len(read_all(store._channels[b"foo"])) == 3


SUB = SubState(1, ME.client_id, inbox=b"in", ack_inbox=b"ack")


def gives_up() -> FileNode:
    """An owner whose client has a subscription, and does not answer its heartbeats.

    The next commit says so.
    """
    first = FileNode(simulated())
    first.put(b"a")
    first.store.add_client(ME)
    first.channel().add_sub(SUB)
    assert first.store.commit() == {}
    first.store.confirm()
    first.tick()
    first.store.delete_client(ME.client_id)
    first.channel().delete_sub(1)
    return first


def test_a_subscription_in_a_waiting_channel_outlives_a_former_owner_that_gives_it_up() -> None:
    first = gives_up()
    second: list[FileStore] = []

    def take_over(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "pwrite" and not second:
            first.owner.fenced = True
            second.append(store := by_and_by(disk_of(first).sibling(), 2, first.clock))
            assert [c.client_id for c in store.recover().clients] == [ME.client_id]

    disk_of(first).on_call = take_over
    first.store.commit()
    with pytest.raises(FencedError):
        first.store.confirm()
    (store,) = second
    # The client answers the heartbeats of the second owner, which counts it as registered.
    first.clock.advance(1)
    store.tick(first.clock.wall_ns())
    (channel,) = store.open_channel(b"foo").channels
    assert [s.state for s in channel.recovered_subs()] == [SUB]


def test_a_client_given_up_during_a_start_stays_or_goes_with_its_subscription() -> None:
    first = gives_up()
    here = greenlet.getcurrent()

    def commit() -> None:
        first.store.commit()

    former = greenlet(commit)

    def stand_still(_number: int, call: str, _args: tuple[object, ...]) -> None:
        if call == "pwrite":
            disk_of(first).on_call = None
            here.switch()

    disk_of(first).on_call = stand_still
    former.switch()
    assert not former.dead
    first.owner.fenced = True
    disk = disk_of(first).sibling()

    def go_on(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "open_dir_at" and args[1] == "foo":
            disk.on_call = None
            former.switch()

    disk.on_call = go_on
    second = FileNode(disk, owner=Owner(2), clock=first.clock)
    assert former.dead
    with pytest.raises(FencedError):
        first.store.confirm()
    known = [c.client_id for c in second.recovered.clients]
    subs = [s.state for s in second.channels[b"foo"].recovered_subs()]
    assert (known, subs) in [([ME.client_id], [SUB]), ([], [])]


# ---- slices that are set aside
# ---------------------------------------------------------------------------------------

KEPT = ChannelLimits(max_msgs=4, max_bytes=0)
ARCHIVING = FileStoreOptions(slice_max_msgs=2, slice_archive_script="/nowhere/archive")


def archiving() -> FileNode:
    """An owner with three slices of two messages, the oldest of which is to be archived with the
    next tick.
    """
    node = FileNode(simulated(), options=ARCHIVING, limits=KEPT)
    for _ in range(3):
        assert node.put(b"x", b"y") == {}
    return node


def slices_after_a_while(node: FileNode) -> int:
    for _ in range(5):
        assert node.put(b"n", b"m") == {}
        node.tick()
    names = disk_of(node).tree("/store/foo")
    return sum(name.startswith("msgs.") and name.endswith(".dat") for name in names)


def test_slices_go_on_to_be_archived_when_a_former_owner_has_renamed_one_late() -> None:
    first = archiving()
    second: list[FileNode] = []

    def take_over(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "rename" and args[1] == "msgs.1.dat":
            first.owner.fenced = True
            second.append(first.successor())

    disk_of(first).on_call = take_over
    with contextlib.suppress(FencedError):
        first.tick()
    assert slices_after_a_while(second[0]) <= 3


def test_slices_go_on_to_be_archived_when_the_directory_could_not_be_synced_once() -> None:
    node = archiving()
    disk = disk_of(node)

    def refuse(_number: int, call: str, args: tuple[object, ...]) -> None:
        if call == "rename" and args[1] == "msgs.1.dat":
            disk.fail_next("fsync", errno.EIO)

    disk.on_call = refuse
    node.tick()
    assert slices_after_a_while(node) <= 3


def test_a_slice_that_waits_for_the_archive_script_is_not_overwritten_behind_a_handover() -> None:
    node = archiving()
    node.tick()
    disk = disk_of(node)
    # Its script has failed, or has not come to it.
    waiting = disk.tree("/store/foo")["msgs.1.dat.bak"]
    assert waiting
    node.store.close()
    tool = disk.sibling()
    env = FileEnv(tool, tool.open_dir("/store"), node.clock, ARCHIVING, Owner(2), records.Crc())
    rewrite(env, hand_over_channel, max_bytes=100)
    last = FileNode(
        disk.sibling(), owner=Owner(3), options=ARCHIVING, limits=KEPT, clock=node.clock
    )
    assert slices_after_a_while(last) <= 3
    assert waiting in disk.tree("/store/foo").values()
