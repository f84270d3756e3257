"""Attacks on fencing: what a former owner that wakes up at one call can do to what its successors
have told clients.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from functools import partial
from typing import TYPE_CHECKING

import pytest
from greenlet import greenlet

from ftstan.admin.keys import ensure_key, read_key
from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, FtstanError, StoreError
from ftstan.broker.dedup import Window
from ftstan.ft.epoch import LostEpochs, claim, read_state
from ftstan.ft.survey import survey_store
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ClientInfo, StoredAt, SubState
from ftstan.wire.block import MsgBlock
from tests.filenode import Owner
from tests.sim.disk import Killed
from tests.sim.filestore import open_file_store
from tests.sim.model import read_all
from tests.unit.stores.test_slices import NO_LIMITS, Node, contents, fresh, killing_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.interface import ChannelStore
    from tests.sim.disk import SimDisk

ME = ClientInfo(b"me", b"inbox")


def at(node: Node, call: str, *words: str) -> Callable[[Callable[[], None]], None]:
    """Once, right before ``node`` makes that call: somebody else takes the store, and does
    something with it.
    """

    def do(something: Callable[[], None]) -> None:
        def hook(_number: int, name: str, arguments: tuple[object, ...]) -> None:
            if name == call and all(word in arguments for word in words):
                node.disk.on_call = None
                node.owner.fenced = True
                something()

        node.disk.on_call = hook

    return do


def after(node: Node, remembered: dict[bytes, StoredAt] | None = None) -> Node:
    """The owner behind ``node``, which stands still or was killed.

    ``remembered``: gets what ``dedup.bin`` says.
    """
    owner = Owner(node.owner.epoch + 1, node.owner.ours_from)
    new = Node(node.disk.sibling(), owner, node.options, node.limits, node.clock)
    if remembered is not None:
        remembered.update(new.store._remembered.load())
    return new


def put_one(node: Node, sequence: int, payload: bytes) -> dict[bytes, StoreError]:
    """One batch with one message."""
    block = MsgBlock()
    block.append(sequence, b"foo", b"", payload, node.clock.wall_ns())
    node.channel().append(block)
    return node.store.commit()


def lose_reply_of(node: Node, call: str, name: str) -> None:
    """The call is done, and its reply lost: tried again it fails."""

    def hook(_number: int, done: str, arguments: tuple[object, ...]) -> None:
        if done == call and any(isinstance(a, str) and a.endswith(name) for a in arguments):
            node.disk.on_call = None
            node.disk.lose_reply(call)

    node.disk.on_call = hook


# ---- removals that come late
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["idx", "dat"])
@pytest.mark.parametrize("work", ["stop", "upkeep"])
def test_a_late_removal_of_a_refused_batch_takes_nothing_that_a_successor_has_delivered(
    kind: str, work: str
) -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_msgs=2))
    if work == "stop":
        node.put(b"a", b"b")
    # The batch is durable and its index visible, when storage says that the index cannot be made.
    lose_reply_of(node, "link", ".idx")
    assert node.put(b"never acked") != {}
    successors: list[Node] = []
    delivered: list[tuple[int, bytes]] = []

    def serve() -> None:
        new = after(node)
        successors.append(new)
        delivered.extend(contents(new))
        assert new.put(b"acked") == {}
        delivered.append(contents(new)[-1])

    # A new channel is rid of it within a second, another one at a clean stop.
    at(node, "unlink", f"msgs.{2 if work == 'stop' else 1}.{kind}")(serve)
    end = node.store.close if work == "stop" else partial(node.store.tick, node.clock.wall_ns())
    with contextlib.suppress(FencedError):
        end()
    (new,) = successors
    assert contents(new) == delivered
    last = after(new)
    assert last.store.quarantined == []
    assert contents(last) == delivered


def test_an_acknowledged_repeat_stays_when_a_former_owner_removes_what_it_had_refused() -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_msgs=2))
    node.put(b"a", b"b")
    data = b"c"
    time = node.clock.wall_ns()
    window = Window(10, {})
    window.add(b"foo", b"ft1.x", 3, time, data)
    node.store.remember(window.staged(), window.known)
    lose_reply_of(node, "link", ".idx")
    assert put_one(node, 3, data) != {}
    successors: list[Node] = []

    def serve() -> None:
        new = after(node, remembered)
        successors.append(new)
        # The publisher did not hear of the refusal, and repeats: this is its ack.
        assert Window(10, remembered).look(b"foo", b"ft1.x", new.channels[b"foo"]) == 3
        new.store.confirm()

    remembered: dict[bytes, StoredAt] = {}
    at(node, "unlink", "msgs.2.idx")(serve)
    with pytest.raises(FtstanError):
        node.store.close()
    assert 3 in dict(contents(after(successors[0])))


def test_a_middle_slice_whose_index_a_former_owner_removes_late_is_still_read() -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_msgs=2))
    node.put(b"a", b"b")
    lose_reply_of(node, "link", ".idx")
    assert node.put(b"c") != {}
    successors: list[Node] = []

    def serve() -> None:
        new = after(node)
        successors.append(new)
        # Nobody has read it yet.
        assert new.put(b"d") == {}

    at(node, "unlink", "msgs.2.idx")(serve)
    with pytest.raises(FtstanError):
        node.store.close()
    assert contents(successors[0]) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


# ---- deletion
# --------------------------------------------------------------------------------------------------


def refused_with_a_new_slice(node: Node) -> None:
    lose_reply_of(node, "link", ".idx")
    assert node.put(b"never acked") != {}


def refused_by_a_sync(node: Node) -> None:
    """In a mixed group an index is written before its data are synced."""
    assert node.put(b"c") == {}
    node.disk.fail_next("fdatasync", errno.EIO)
    assert node.put(b"never acked") != {}


@pytest.mark.parametrize(
    ("mixed", "refuse"), [(False, refused_with_a_new_slice), (True, refused_by_a_sync)]
)
def test_a_deletion_behind_a_refused_batch_that_has_an_index_leaves_the_channel_whole_or_gone(
    refuse: Callable[[Node], None], *, mixed: bool
) -> None:
    died: set[bool] = set()
    for number in range(1, 40):
        node = Node(fresh(), Owner(mixed=mixed), options=FileStoreOptions(slice_max_msgs=2))
        node.put(b"a", b"b")
        refuse(node)
        whole = contents(node)
        node.disk.on_call = killing_at(node.disk.calls + number)
        try:
            node.store.delete_channel(b"foo")
        except Killed:
            new = Node(node.disk.sibling(), Owner(2, mixed=mixed), node.options, clock=node.clock)
            found = contents(new)[: len(whole)] if b"foo" in new.channels else []
            assert found in (whole, []), number
            died.add(bool(found))
        else:
            break
    assert died == {True, False}


def test_a_deletion_that_was_answered_is_not_undone_by_a_batch_that_was_refused() -> None:
    node = Node(fresh(), options=FileStoreOptions(slice_max_msgs=2))
    node.put(b"a", b"b")
    refused_with_a_new_slice(node)

    def failing(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        if call == "unlink" and "msgs.2.idx" in arguments:
            raise OSError(errno.EIO, "I/O error")

    node.disk.on_call = failing
    node.store.delete_channel(b"foo")
    node.store.confirm()
    # It says that it is done, and dies.
    assert b"foo" not in after(node).channels


def test_a_late_batch_keeps_what_is_left_of_a_channel_whose_deletion_was_cut_short() -> None:
    """It looks like one of an original server, whose messages must not go.

    And nobody was told of the deletion.
    """
    first = Node(fresh(), options=FileStoreOptions(slice_max_msgs=2))
    first.put(b"a", b"b")
    first.put(b"c")
    second: list[Node] = []

    def take() -> None:
        second.append(after(first))

    def die() -> None:
        with pytest.raises(Killed):
            second[0].store.delete_channel(b"foo")

    def late(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        # The successor has removed a slice; the former owner's batch arrives; the successor dies.
        if call == "unlink" and "msgs.2.idx" in arguments:
            raise Killed

    paused = iter([take])

    def hook(_number: int, call: str, _arguments: tuple[object, ...]) -> None:
        if call == "pwrite" and (step := next(paused, None)) is not None:
            first.owner.fenced = True
            step()
            second[0].disk.on_call = late
            die()

    first.disk.on_call = hook
    first.put(b"late")
    left = after(second[0])
    assert left.store.quarantined == []
    assert [sequence for sequence, _ in contents(left)] == [3, 4]


# ---- a pause at every call
# -------------------------------------------------------------------------------------------


def refused_with_a_later_slice(node: Node) -> None:
    refused_with_a_new_slice(node)
    assert node.put(b"c", b"d", b"e") == {}


def purged(node: Node) -> None:
    assert node.put(b"c", b"d", b"e") == {}
    node.channel().purge(3)


def all_purged(node: Node) -> None:
    assert node.put(b"c") == {}
    node.channel().purge(3)


def purged_and_refused(node: Node) -> None:
    node.channel().purge(1)
    refused_with_a_new_slice(node)


def full_index_refused(node: Node) -> None:
    """The index of a second batch in a slice cannot be written."""
    assert node.put(b"c") == {}
    indexes: list[object] = []

    def hook(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        if call == "pwrite" and len(arguments) > 1:
            indexes.append(arguments)
            if len(indexes) == 2:
                node.disk.on_call = None
                raise OSError(errno.EIO, "I/O error")

    node.disk.on_call = hook
    assert node.put(b"never acked") != {}
    node.disk.on_call = None


HISTORIES = [
    refused_with_a_new_slice,
    refused_with_a_later_slice,
    refused_by_a_sync,
    full_index_refused,
    purged,
    all_purged,
    purged_and_refused,
]


@pytest.mark.parametrize("end", ["dies", "stops", "stops idle"])
@pytest.mark.parametrize("mixed", [False, True], ids=["", "mixed"])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_clean_stop_that_is_paused_at_any_call_takes_nothing_from_its_successors(
    history: Callable[[Node], None], end: str, *, mixed: bool
) -> None:
    # Every second call, others in a mixed group: all of them take minutes.
    for number in itertools.count(1 + mixed, 2):
        reads = number % 4 < 2
        node = Node(fresh(), Owner(mixed=mixed), options=FileStoreOptions(slice_max_msgs=2))
        assert node.put(b"a", b"b") == {}
        history(node)
        at_call = node.disk.calls + number
        successors: list[Node] = []
        found: list[tuple[int, bytes]] = []

        def serve(
            node: Node = node,
            successors: list[Node] = successors,
            found: list[tuple[int, bytes]] = found,
            *,
            reads: bool = reads,
        ) -> None:
            new = Node(
                node.disk.sibling(), Owner(2, mixed=mixed), node.options, node.limits, node.clock
            )
            successors.append(new)
            if reads:
                found.extend(contents(new))
            if end != "stops idle":
                assert new.put(b"of the successor") == {}
                found.extend(contents(new)[-1:] if reads else [])
            if end != "dies":
                new.store.close()

        def hook(
            call: int,
            _name: str,
            _arguments: tuple[object, ...],
            node: Node = node,
            at_call: int = at_call,
            serve: Callable[[], None] = serve,
        ) -> None:
            if call == at_call:
                node.owner.fenced = True
                serve()

        node.disk.on_call = hook
        with contextlib.suppress(FtstanError):
            node.store.close()
        if not successors:
            break
        second = successors[0]
        if end == "dies":
            assert not reads or contents(second) == found, number
        third = Node(
            node.disk.sibling(), Owner(3, mixed=mixed), node.options, node.limits, node.clock
        )
        assert third.store.quarantined == [], number
        there = contents(third)
        if reads:
            # Behind an idle one a batch of its predecessor may come to light.
            assert there[: len(found)] == found, number
            assert end == "stops idle" or there == found, number
        else:
            if there:
                assert [n for n, _ in there] == list(
                    range(there[0][0], third.channel().last + 1)
                ), number
            assert end == "stops idle" or there[-1][1] == b"of the successor", number
    assert number > 5


# ---- records that come late
# ------------------------------------------------------------------------------------------


def test_a_client_that_a_former_owner_gave_up_too_late_is_known_to_its_successor() -> None:
    first = Node(fresh())
    first.put(b"a")
    first.store.add_client(ME)
    assert first.store.commit() == {}
    # The client does not answer its heartbeats: but nobody confirms that any more.
    first.store.delete_client(ME.client_id)
    second: list[Node] = []

    def serve() -> None:
        new = after(first)
        second.append(new)
        assert list(new.store._clients.known) == [ME.client_id]
        # The client is back, and is told that it has a subscription.
        new.channels[b"foo"].add_sub(SubState(1, ME.client_id, inbox=b"in", ack_inbox=b"ack"))
        assert new.store.commit() == {}
        new.store.confirm()

    at(first, "pwrite")(serve)
    first.store.commit()
    assert second
    third = after(second[0])
    assert list(third.store._clients.known) == [ME.client_id]


def test_a_subscription_that_a_former_owner_gave_up_too_late_is_there_for_its_successor() -> None:
    sub = SubState(1, ME.client_id, inbox=b"in", ack_inbox=b"ack")
    first = Node(fresh())
    first.put(b"a")
    first.store.add_client(ME)
    first.channel().add_sub(sub)
    assert first.store.commit() == {}
    # The client does not answer its heartbeats.
    first.channel().delete_sub(1)
    second: list[Node] = []

    def serve() -> None:
        new = after(first)
        second.append(new)
        # It serves for a minute, and the client gets its messages.
        for _ in range(60):
            new.clock.advance(1.0)
            while new.store.tick(new.clock.wall_ns()):
                pass
        assert new.put(b"b") == {}
        new.store.confirm()

    at(first, "pwrite")(serve)
    first.store.commit()
    third = after(second[0])
    assert [s.state for s in third.channels[b"foo"].recovered_subs()] == [sub]


# ---- two claimers
# --------------------------------------------------------------------------------------------------


class Steps:
    """One process in a greenlet of its own, which can be stopped before a call and go on later."""

    def __init__(self, disk: SimDisk, stop: Callable[[str, tuple[object, ...]], bool]) -> None:
        self.disk = disk
        self._stop = stop
        self._fiber = greenlet(self._run)
        self.channels: dict[bytes, ChannelStore] = {}
        self.fenced = False
        disk.on_call = self._call

    def go_on(self) -> None:
        self._fiber.switch()

    def _call(self, _number: int, call: str, arguments: tuple[object, ...]) -> None:
        if self._stop(call, arguments):
            self.disk.on_call = None
            parent = self._fiber.parent
            assert parent is not None
            parent.switch()

    def _run(self) -> None:
        try:
            self.store = open_file_store(self.disk, ManualClock())
            self.channels = {c.name: c for c in self.store.recover().channels}
        except FencedError:
            self.fenced = True

    def put(self, payload: bytes) -> None:
        channel = self.channels[b"foo"]
        block = MsgBlock()
        block.append(channel.last + 1, b"foo", b"", payload, 2_000_000_000)
        channel.append(block)
        assert self.store.commit() == {}
        self.store.confirm()


def test_a_claimer_without_a_known_predecessor_finds_its_messages_and_no_older_checkpoint() -> None:
    disk = fresh()
    first = Steps(disk, lambda _call, _arguments: False)
    first.go_on()
    first.channels[b"foo"] = first.store.create_channel(b"foo", NO_LIMITS)
    first.put(b"a")
    first.store.close()
    # The second has its claim and has not looked. The third claims the next number, and looks: the
    # first is on top.
    second = Steps(
        disk.sibling(), lambda call, arguments: call == "open" and "ft.claim.2" in arguments
    )
    second.go_on()
    second._stop = lambda call, _arguments: call == "fsync"
    second.disk.on_call = second._call
    second.go_on()
    third = Steps(disk.sibling(), lambda call, _arguments: call == "pwrite")
    third.go_on()
    # The second becomes the owner and serves, then the third goes on to fill its slot.
    second.go_on()
    second.put(b"b")
    third.go_on()
    assert not third.fenced
    with pytest.raises(FencedError):
        second.store.confirm()
    assert list(read_all(third.channels[b"foo"])) == [1, 2]
    third.put(b"c")
    assert list(read_all(third.channels[b"foo"])) == [1, 2, 3]


def test_a_claim_too_far_away_to_be_believed_ends_in_one_owner_all_the_same() -> None:
    disk = fresh()
    first = Steps(disk, lambda _call, _arguments: False)
    first.go_on()
    first.channels[b"foo"] = first.store.create_channel(b"foo", NO_LIMITS)
    first.put(b"a")
    root = disk.open_dir("/store")
    # A repair takes a number far above, and stands still before it fills the slots; two owners come
    # and go meanwhile.
    far = Repair(disk.sibling(), LostEpochs(5000, 1))
    far.go_on()
    assert "ft.claim.5001" in disk.tree("/store")
    second = Steps(disk.sibling(), lambda _call, _arguments: False)
    second.go_on()
    second.put(b"b")
    state = read_state(disk, root)
    assert (state.top, state.claims) == (2, (1, 2))
    far.go_on()
    for loser in (first, second):
        with pytest.raises(FencedError):
            loser.store.confirm()
    last = Steps(disk.sibling(), lambda _call, _arguments: False)
    last.go_on()
    assert list(read_all(last.channels[b"foo"])) == [1, 2]
    assert read_state(disk, root).top == 5002


class Repair:
    """A repair in a greenlet: stands still before it fills slots."""

    def __init__(self, disk: SimDisk, lost: LostEpochs) -> None:
        self.disk = disk
        self._lost = lost
        self._fiber = greenlet(self._run)
        disk.on_call = self._call
        self.go_on = self._fiber.switch

    def _call(self, _number: int, call: str, _arguments: tuple[object, ...]) -> None:
        if call == "pwrite":
            self.disk.on_call = None
            parent = self._fiber.parent
            assert parent is not None
            parent.switch()

    def _run(self) -> None:
        root = self.disk.open_dir("/store")
        claim(
            self.disk,
            root,
            server_id="repair",
            clock=ManualClock(),
            survey=lambda: survey_store(self.disk, root),
            lost=self._lost,
            host="h",
            pid=1,
        )


# ---- the administrators' key
# -----------------------------------------------------------------------------------------


def test_a_late_rename_does_not_show_the_key_that_a_successor_has_not_finished() -> None:
    first = fresh()
    second = first.sibling()

    def half(_number: int, call: str, _arguments: tuple[object, ...]) -> None:
        # The successor has its file and no byte in it, when the former owner goes on.
        if call == "pwrite":
            raise Killed

    def late(_number: int, call: str, _arguments: tuple[object, ...]) -> None:
        if call == "rename":
            first.on_call = None
            second.on_call = half
            with pytest.raises(Killed):
                ensure_key(second, second.open_dir("/store"), lambda: None)

    first.on_call = late
    with contextlib.suppress(StoreError):
        ensure_key(first, first.open_dir("/store"), lambda: None)
    third = first.sibling()
    root = third.open_dir("/store")
    ensure_key(third, root, lambda: None)
    assert read_key(third, root) is not None
