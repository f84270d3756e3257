"""Attacks on takeovers: a copy in the store's place, and words of a hand-over in every order."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import FencedError
from ftstan.base.states import NodeState
from ftstan.config.options import ServerOptions
from ftstan.ft.events import TryLock, TryResult
from ftstan.ft.handover import Following, Leaving, Message, PublishKey, Subscribed, Took, decode
from ftstan.ft.lock_attempt import attempt
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.survey import SERVER_NAME
from ftstan.ft.watch import WATCH_NAME, Probe, WatchRecord
from ftstan.node import handover as module
from ftstan.node.handover import YIELD_S, Handover
from ftstan.node.handover_buffer import BufferedPublishes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ftstan.base.disk import FileStat

    Member = Callable[[str], StoreOwner]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def active(node: Member) -> StoreOwner:
    owner = node("A")
    owner.try_lock()
    owner.activate()
    return owner


def probe_of(owner: StoreOwner) -> Probe:
    return Probe(LocalDisk(), owner.root, owner, server_id="A", look=lambda: None)


@pytest.mark.parametrize("how", ["a copy", "a link to a copy"])
def test_of_two_copies_of_one_datastore_the_one_that_the_path_names_has_an_owner(
    node: Member, store: Path, how: str
) -> None:
    """Somebody restores a copy while the group serves: its lock is free, its epochs are its own,
    and a standby takes it. The owner of what was moved away would serve on beside it, and answer.
    """
    a = active(node)
    probe = probe_of(a)
    assert probe()
    moved = store.rename(store.with_name("moved"))
    copy = store if how == "a copy" else store.with_name("copy")
    shutil.copytree(moved, copy)
    if how != "a copy":
        store.symlink_to(copy)
    b = node("B")
    assert attempt(b, TryLock()).result is TryResult.GRANTED
    assert b.activate().epoch == 2
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        probe()
    with pytest.raises(FencedError):
        a.confirm()
    probe.close()
    b.confirm()


@pytest.mark.parametrize("what", ["nothing", "an empty directory", "a file", "itself"])
def test_an_owner_whose_path_names_no_other_datastore_goes_on(
    node: Member, store: Path, what: str
) -> None:
    """As with a share that was unmounted lazily: what is open is the group's store all the same."""
    a = active(node)
    probe = probe_of(a)
    moved = store.rename(store.with_name("moved"))
    if what == "an empty directory":
        store.mkdir()
    elif what == "a file":
        store.touch()
    elif what == "itself":
        store.symlink_to(moved)
    assert probe()
    a.confirm()
    a.verify_lock()
    probe.close()


@dataclass
class Place(LocalDisk):
    """The path of the datastore, with what an operator does to it."""

    remounted: bool = False
    """From now on it leads over another mount, which has a device number of its own."""
    fault: tuple[str, int] | None = None
    """The next call of that name finds the path in between."""
    over: set[int] = field(default_factory=set)

    def _meet(self, call: str) -> None:
        if self.fault and self.fault[0] == call:
            code = self.fault[1]
            self.fault = None
            raise OSError(code, os.strerror(code))

    def open_dir(self, path: str) -> int:
        self._meet("open_dir")
        fd = super().open_dir(path)
        if self.remounted:
            self.over.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.over.discard(fd)
        super().close(fd)

    def fstat(self, fd: int) -> FileStat:
        self._meet("fstat")
        found = super().fstat(fd)
        return found._replace(dev=found.dev + 1) if fd in self.over else found


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def owner(store: Path, place: Place) -> Iterator[StoreOwner]:
    owner = StoreOwner(
        place,
        str(store),
        server_id="A",
        clock=ManualClock(),
        in_group=True,
        mountinfo="36 35 8:1 / / rw - ext4 /dev/sda1 rw\n",
    )
    owner.try_lock()
    owner.activate()
    yield owner
    owner.close()


def test_a_share_that_was_mounted_again_with_other_options_ends_nobody(
    owner: StoreOwner, place: Place
) -> None:
    place.remounted = True
    # Somebody asks before the first probe has written.
    owner.verify_lock()
    probe = probe_of(owner)
    for _ in range(3):
        assert probe()
        owner.verify_lock()
    owner.raise_epoch()
    owner.verify_lock()
    assert probe()
    owner.confirm()
    probe.close()


@pytest.mark.parametrize("what", ["all", "no ft.watch", "a channel ft.watch"])
def test_a_copy_on_another_device_ends_the_owner_at_the_next_probe(
    owner: StoreOwner, store: Path, place: Place, what: str
) -> None:
    """Its ``ft.watch`` is the owner's own, as of the last probe."""
    probe = probe_of(owner)
    assert probe()
    moved = store.rename(store.with_name("moved"))
    shutil.copytree(moved, store)
    place.remounted = True
    if what != "all":
        (store / WATCH_NAME).unlink()
    if what == "a channel ft.watch":
        (store / WATCH_NAME).mkdir()
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        probe()
    with pytest.raises(FencedError):
        owner.confirm()
    probe.close()


@pytest.mark.parametrize(
    "record",
    [WatchRecord(1, "B", 99), WatchRecord(2, "B", 1), WatchRecord(0, "A", 99)],
    ids=["another server", "a successor", "a former activation"],
)
def test_on_another_device_only_a_record_of_this_activation_is_a_proof(
    owner: StoreOwner, store: Path, place: Place, record: WatchRecord
) -> None:
    probe = probe_of(owner)
    assert probe()
    moved = store.rename(store.with_name("moved"))
    shutil.copytree(moved, store)
    (store / WATCH_NAME).write_bytes(record.encode())
    place.remounted = True
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        owner.verify_lock()
    probe.close()


def test_a_server_without_its_watch_file_proves_nothing_on_another_device(
    owner: StoreOwner, store: Path, place: Place
) -> None:
    """A channel of an original server has the name."""
    (store / WATCH_NAME).mkdir()
    probe = probe_of(owner)
    assert probe()
    place.remounted = True
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        probe()
    probe.close()


@pytest.mark.parametrize(
    "fault", [("open_dir", errno.ENOENT), ("open_dir", errno.ESTALE), ("fstat", errno.ESTALE)]
)
def test_a_path_that_is_switched_back_while_it_is_looked_up_ends_nobody(
    owner: StoreOwner, place: Place, fault: tuple[str, int]
) -> None:
    """``rm link; ln -s`` is not atomic."""
    owner._verify_place()
    place.fault = fault
    owner._verify_place()
    owner._verify_place()
    assert place.fault is None


def test_a_copy_from_before_ftstan_ends_the_owner(owner: StoreOwner, store: Path) -> None:
    """A restore of what an original server wrote has no epochs, and a standby takes it as it is."""
    probe = probe_of(owner)
    assert probe()
    store.rename(store.with_name("moved"))
    store.mkdir()
    (store / SERVER_NAME).touch()
    with pytest.raises(FencedError, match="another datastore stands in the place"):
        probe()
    probe.close()


# ---- words of a hand-over
# --------------------------------------------------------------------------------------------------

STORE = b"s" * 16
QUESTION = Leaving("OWNER", 7, STORE, "_STAN.pub.c.>")
ANSWER = Took("OWNER", 7, STORE, "ME", 0, 1, ((b"conn\0guid", b"orders"),))
ACTIVATION = SimpleNamespace(predecessor=(7, b"n"), was_mixed=False, ft_mixed=False)


@dataclass
class Buffer:
    """What is kept."""

    is_open: bool = False
    broken: str = ""
    dropped: list[str] = field(default_factory=list)

    def open(self) -> None:
        self.is_open = True

    def give_up(self, why: str) -> int:
        self.is_open = False
        self.dropped.append(why)
        return 3

    def leave_link(self) -> object:
        return SimpleNamespace(hand_on=lambda: None)

    def hand_on(self, answered: dict[PublishKey, int]) -> BufferedPublishes:
        return BufferedPublishes(b"", answered, 1, ())


class Successor:
    """A member that stands by, and its part in hand-overs."""

    def __init__(self) -> None:
        self.server_id = "ME"
        self.options = ServerOptions(store="FILE", dir="/d", ft_group="g")
        self.clock = ManualClock()
        self.role = NodeState.STANDBY
        self.link = object()
        self.partitioning = SimpleNamespace(partition=None)
        self.plane = SimpleNamespace(handover_buffer=None, serving=None, reserved=None)
        self.stopping = SimpleNamespace(is_set=lambda: False)
        self.may_succeed = True
        self.standby = SimpleNamespace(
            state=NodeState.STANDBY, may_succeed=lambda _store, _now: self.may_succeed
        )
        self.group = self
        self.owns = self.ends = False
        self.unbridged = 0
        self.said: list[Message | None] = []
        self.buffers: list[Buffer] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.part = Handover(self, self._say, lambda: 1 << 20)  # type: ignore[arg-type]

    async def _say(self, payload: bytes) -> None:
        self.said.append(decode(payload))

    async def call(self, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return function()

    def hear(self, message: Message, *, ready: bool = True) -> list[float]:
        """Returns for how long to hold back."""
        found = []
        for work in self.part.heard(message, ready=ready):
            if isinstance(work, float):
                found.append(work)
            else:
                self.tasks.append(asyncio.get_running_loop().create_task(work))
        return found

    async def turns(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def has_said(self, kind: type[Message]) -> bool:
        return any(isinstance(message, kind) for message in self.said)


@pytest.fixture
def successor(monkeypatch: pytest.MonkeyPatch) -> Successor:
    made = Successor()

    def buffer(*_: object) -> Buffer:
        made.buffers.append(Buffer())
        return made.buffers[-1]

    monkeypatch.setattr(module, "HandoverBuffer", buffer)
    monkeypatch.setattr(module, "TOOK_WITHIN_S", 0.02)
    return made


def played(story: Callable[[], Any]) -> None:
    async def play() -> None:
        task = asyncio.ensure_future(story())
        await task
        for other in asyncio.all_tasks() - {asyncio.current_task()}:
            other.cancel()

    asyncio.run(play())


def test_what_a_named_successor_kept_is_used_without_what_the_owner_answered(
    successor: Successor,
) -> None:
    async def story() -> None:
        successor.hear(QUESTION)
        await successor.turns()
        assert successor.has_said(Subscribed)
        assert successor.hear(ANSWER) == []
        await successor.turns()
        assert successor.has_said(Following)
        ahead = await successor.part.decide(ACTIVATION)  # type: ignore[arg-type]
        assert ahead is not None
        assert ahead.answered == {(b"conn\0guid", b"orders"): 1}

    played(story)


@pytest.mark.parametrize(
    ("took", "activation", "broken"),
    [
        (None, ACTIVATION, ""),
        (replace(ANSWER, parts=2), ACTIVATION, ""),
        (replace(ANSWER, successor="OTHER"), ACTIVATION, ""),
        (replace(ANSWER, search=2), ACTIVATION, ""),
        (replace(ANSWER, epoch=8), ACTIVATION, ""),
        (replace(ANSWER, server_id="OTHER"), ACTIVATION, ""),
        (replace(ANSWER, store_id=b"t" * 16), ACTIVATION, ""),
        (ANSWER, SimpleNamespace(predecessor=(8, b"n"), was_mixed=False, ft_mixed=False), ""),
        (ANSWER, SimpleNamespace(predecessor=(0, b""), was_mixed=False, ft_mixed=False), ""),
        (ANSWER, SimpleNamespace(predecessor=(7, b"n"), was_mixed=True, ft_mixed=False), ""),
        (ANSWER, SimpleNamespace(predecessor=(7, b"n"), was_mixed=False, ft_mixed=True), ""),
        (ANSWER, ACTIVATION, "more than 64.0 MiB arrived"),
    ],
)
def test_what_was_kept_is_dropped_and_counted_where_somebody_may_have_answered_it(
    successor: Successor, took: Took | None, activation: Any, broken: str
) -> None:
    async def story() -> None:
        successor.hear(QUESTION)
        await successor.turns()
        successor.buffers[0].broken = broken
        if took is not None:
            successor.hear(took)
            await successor.turns()
        assert await successor.part.decide(activation) is None
        await successor.turns()
        assert not successor.buffers[0].is_open
        assert successor.unbridged == 3
        assert successor.plane.handover_buffer is None
        assert not successor.part.takes_over

    played(story)


@pytest.mark.parametrize(
    "again",
    [ANSWER, QUESTION, replace(ANSWER, keys=())],
    ids=["its names", "its question", "no names"],
)
def test_words_that_are_repeated_to_who_serves_bring_nothing_about(
    successor: Successor, again: Message
) -> None:
    async def story() -> None:
        successor.hear(QUESTION)
        await successor.turns()
        successor.hear(ANSWER)
        assert await successor.part.decide(ACTIVATION) is not None  # type: ignore[arg-type]
        successor.said.clear()
        assert successor.hear(again, ready=False) == []
        await successor.turns()
        assert len(successor.buffers) == 1
        assert successor.said == []
        assert await successor.part.decide(ACTIVATION) is None  # type: ignore[arg-type]

    played(story)


def test_who_has_given_up_before_it_listens_is_not_counted_on(successor: Successor) -> None:
    """A second signal comes in the same moment as the question."""

    async def story() -> None:
        successor.hear(QUESTION)
        await successor.part.give_up("this server stops")
        await successor.turns()
        assert not successor.has_said(Subscribed)
        assert not any(buffer.is_open for buffer in successor.buffers)

    played(story)


def test_of_two_questions_read_together_only_the_later_one_is_answered(
    successor: Successor,
) -> None:
    async def story() -> None:
        successor.hear(QUESTION)
        successor.hear(replace(QUESTION, search=2))
        for _ in range(5):
            await successor.turns()
        assert [m.search for m in successor.said if isinstance(m, Subscribed)] == [2]
        assert [buffer.is_open for buffer in successor.buffers].count(True) == 1
        # The names that belong to the first question say nothing of what is kept since the second.
        successor.hear(ANSWER)
        await successor.turns()
        assert await successor.part.decide(ACTIVATION) is None  # type: ignore[arg-type]

    played(story)


@pytest.mark.parametrize("when", ["named", "asked"])
def test_a_member_holds_back_for_another_one_that_is_named_or_asked(
    successor: Successor, when: str
) -> None:
    async def story() -> None:
        successor.hear(QUESTION)
        await successor.turns()
        other: Message = (
            replace(ANSWER, successor="OTHER") if when == "named" else replace(QUESTION, to="OTHER")
        )
        assert successor.hear(other) == [YIELD_S]
        await successor.turns()
        assert not successor.has_said(Following)
        # An owner that asks anybody once more does not count on who was named.
        assert successor.hear(replace(QUESTION, search=2), ready=False) == [0.0]

    played(story)


def test_who_follows_says_so_only_while_it_may_take_the_store(successor: Successor) -> None:
    async def story() -> None:
        successor.hear(QUESTION)
        await successor.turns()
        successor.may_succeed = False
        successor.hear(ANSWER)
        await successor.turns()
        assert not successor.has_said(Following)

    played(story)


def test_an_owner_that_goes_silent_is_followed_by_nobody_and_nothing_is_kept(
    successor: Successor,
) -> None:
    async def story() -> None:
        successor.hear(QUESTION)
        await successor.turns()
        assert successor.has_said(Subscribed)
        async with asyncio.timeout(5):
            await successor.tasks[0]
        assert not successor.part.takes_over
        assert not successor.buffers[0].is_open
        # Its names come too late.
        successor.hear(ANSWER)
        await successor.turns()
        assert not successor.has_said(Following)
        assert await successor.part.decide(ACTIVATION) is None  # type: ignore[arg-type]

    played(story)


def test_what_was_kept_is_not_used_where_an_original_was_heard_since(successor: Successor) -> None:
    """It was started in a group that nobody has called mixed, and got the lock first."""

    async def story() -> None:
        successor.part.hear_original()
        successor.hear(QUESTION)
        await successor.turns()
        successor.hear(ANSWER)
        successor.part.hear_original()
        assert await successor.part.decide(ACTIVATION) is None  # type: ignore[arg-type]
        assert successor.unbridged == 3
        # What was heard before the question is no reason.
        successor.hear(replace(QUESTION, search=2))
        await successor.turns()
        successor.hear(replace(ANSWER, search=2))
        assert await successor.part.decide(ACTIVATION) is not None  # type: ignore[arg-type]

    played(story)
