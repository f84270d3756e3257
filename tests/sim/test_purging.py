"""Wherever a purge dies or is paused: what was purged stays away, nothing newer is lost, and broken
ones are caught.
"""

from __future__ import annotations

import errno
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import purge_mark, purging
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ChannelLimits
from ftstan.wire.block import MsgBlock
from tests.oracle.gostore import read_tree
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.ft.hosts import Client, ClientDisk
from tests.sim.history import INFO, STORE, Shape, kill_at_every_call
from tests.sim.model import Violation, read_all
from tests.sim.variants import CAREFUL, PURGED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.log.slices import SliceLog
    from ftstan.stores.file.log.view import Slice
    from ftstan.stores.file.state.confirmed import ConfirmedFile
    from ftstan.stores.interface import ChannelStore

    Patch = pytest.MonkeyPatch

SMALL = FileStoreOptions(slice_max_msgs=4)
NO_LIMITS = ChannelLimits(max_msgs=0, max_bytes=0)


def test_with_few_descriptors_and_without_links_a_purge_keeps_every_promise() -> None:
    met: Counter[str] = Counter()
    for seed in range(2):
        met += kill_at_every_call(
            CAREFUL.open_store,
            seed,
            epoch=1,
            stride=5,
            shape=Shape(purges=True),
            judge=CAREFUL.judge,
        )
    assert met["purges"] > 50


@pytest.mark.parametrize("up_to", [6, 12])
def test_a_host_that_remembers_the_directory_of_before_learns_of_a_purge_when_it_takes_over(
    up_to: int,
) -> None:
    volume = SimDisk()
    clock = ManualClock()
    volume.make_dirs(STORE)
    hosts = [ClientDisk(volume.volume, Counter(), Client(Random(i))) for i in range(2)]
    first = open_file_store(hosts[0], clock, SMALL, asking=hosts[0].direct())
    first.recover()
    channel = first.create_channel(b"foo", NO_LIMITS)
    publish(first, channel, 12, b"old")
    # A standby looks around, and keeps what it has seen.
    folder = hosts[1].open_dir(f"{STORE}/foo")
    names = hosts[1].listdir(folder)
    assert (purge_mark.NAME, False) not in names
    channel.purge(up_to)
    first.confirm()
    hosts[0].kill()
    second = open_file_store(hosts[1], clock, SMALL, asking=hosts[1].direct())
    (found_there,) = second.recover().channels
    assert list(read_all(found_there)) == list(range(up_to + 1, 13))
    second.close()
    _, found_later = found(volume.crash(Random(1), CrashMode.LOST))
    assert (found_later.first, found_later.last) == (up_to + 1, 12)


@pytest.mark.parametrize("up_to", [5, 8, 12])
def test_what_a_refused_purge_hides_from_the_next_start_an_original_server_does_not_see_behind_it(
    up_to: int,
) -> None:
    disk = SimDisk()
    disk.make_dirs(STORE)
    store = open_file_store(disk, ManualClock(), SMALL)
    store.recover()
    store.set_server_info(INFO)
    channel = store.create_channel(b"foo", NO_LIMITS)
    publish(store, channel, 12, b"old")
    made = False

    def failing(_number: int, call: str, arguments: tuple[object, ...]) -> None:
        nonlocal made
        if made and call == "fsync":
            disk.on_call = None
            raise OSError(errno.EIO, "I/O error")
        made |= call == "rename" and purge_mark.NAME in arguments

    disk.on_call = failing
    with pytest.raises(StoreError, match="cannot be purged"):
        channel.purge(up_to)
    store.close()
    successor, served = found(disk)
    assert served.first == up_to + 1
    successor.close()
    seen = read_tree(disk.tree(STORE), root=STORE).channels[b"foo"]
    # The format remembers the last sequence by its message.
    assert sorted(seen.messages) == list(range(min(up_to + 1, 12), 13))


# ---- zombies
# --------------------------------------------------------------------------------------------------


def publish(store: FileStore, channel: ChannelStore, count: int, what: bytes) -> None:
    block = MsgBlock()
    for sequence in range(channel.last + 1, channel.last + 1 + count):
        block.append(sequence, channel.name, b"", b"%b %d" % (what, sequence), 1)
    channel.append(block)
    assert store.commit() == {}
    store.confirm()


def found(disk: SimDisk) -> tuple[FileStore, ChannelStore]:
    store = open_file_store(disk, ManualClock(), SMALL)
    (channel,) = store.recover().channels
    return store, channel


class Paused:
    """An owner that purges, and is paused at one call of it while a successor takes over, serves
    and purges, too.
    """

    def __init__(self, pause_at: int, up_to: int, met: Counter[str], *, clean: bool) -> None:
        self.pause_at = pause_at
        self.up_to = up_to
        self.met = met
        self.clean = clean
        self.rng = Random(f"paused {pause_at} {up_to}")
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.successor: tuple[SimDisk, FileStore, ChannelStore] | None = None
        self.first = 0
        """Where the successor found the channel to begin."""

    def run(self) -> int:
        """Returns how many calls the purge took."""
        store = open_file_store(self.disk, ManualClock(), SMALL)
        store.recover()
        channel = store.create_channel(b"foo", NO_LIMITS)
        for _ in range(4):
            publish(store, channel, 5, b"old")
        before = self.disk.calls

        def pause(call: int, _name: str, _arguments: tuple[object, ...]) -> None:
            if call == before + self.pause_at:
                self._take_over()

        self.disk.on_call = pause
        answered = False
        try:
            channel.purge(self.up_to)
            store.confirm()
            answered = True
            if self.clean:
                store.close()
            else:
                store.tick(2)
        except (FencedError, StoreError):
            self.met["ended"] += 1
        self.disk.on_call = None
        if self.successor is not None:
            self._judge(answered=answered)
        return self.disk.calls - before

    def _take_over(self) -> None:
        disk = self.disk.sibling()
        store, channel = found(disk)
        self.first = channel.first
        publish(store, channel, 3, b"new")
        assert read_all(channel).keys() == set(range(self.first, 24))
        channel.purge(22)
        store.confirm()
        self.successor = disk, store, channel

    def _judge(self, *, answered: bool) -> None:
        assert self.successor is not None
        disk, store, channel = self.successor
        self.met["answered" if answered else "unanswered"] += 1
        if answered:
            assert self.first > self.up_to
        publish(store, channel, 1, b"newer")
        assert list(read_all(channel)) == [23, 24]
        disk = disk.crash(
            self.rng, self.rng.choice(list(CrashMode)), process_only=self.rng.random() < 0.5
        )
        for clean in (False, True):
            store, channel = found(disk)
            assert (channel.first, channel.last) == (23, 24)
            assert list(read_all(channel)) == [23, 24]
            store.close() if clean else store.abandon()
            disk = disk.crash(process_only=True)


def pauses(up_to: int, *, clean: bool) -> Counter[str]:
    met: Counter[str] = Counter()
    pause_at = 1
    calls = 1
    while pause_at <= calls:
        calls = Paused(pause_at, up_to, met, clean=clean).run()
        pause_at += 1
    return met


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("up_to", [6, 18, 20])
def test_an_owner_paused_at_any_call_of_a_purge_takes_nothing_from_its_successor(
    up_to: int, *, clean: bool
) -> None:
    met = pauses(up_to, clean=clean)
    assert met["answered"] > 0
    assert met["unanswered"] > 0
    assert met["ended"] > 0


# ---- broken on purpose
# ---------------------------------------------------------------------------------------------


def purges(seeds: range = range(8)) -> Callable[[], object]:
    def look() -> None:
        for seed in seeds:
            for epoch in (0, 1):
                kill_at_every_call(
                    PURGED.open_store,
                    seed,
                    epoch=epoch,
                    stride=2,
                    shape=PURGED.shape,
                    judge=PURGED.judge,
                )

    return look


def caught(look: Callable[[], object]) -> str:
    with pytest.raises(Violation) as violation:
        look()
    return str(violation.value)


def test_a_purge_without_a_mark_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(purge_mark, "write", lambda *_: None)
    assert "were purged and are back" in caught(purges())


def test_a_mark_that_is_visible_before_it_is_durable_is_caught(monkeypatch: Patch) -> None:
    write = purge_mark.write

    def unsynced(env: FileEnv, dirfd: int, mark: purge_mark.Mark) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(env.disk, "fsync", lambda _fd: None)
            write(env, dirfd, mark)

    monkeypatch.setattr(purge_mark, "write", unsynced)
    assert "were purged and are back" in caught(purges())


def test_a_mark_that_is_written_behind_the_answer_is_caught(monkeypatch: Patch) -> None:
    waiting: list[tuple[FileEnv, int, purge_mark.Mark]] = []
    write = purge_mark.write
    tick = FileStore.tick
    close = FileStore.close

    def with_what_waits(work: Callable[..., object]) -> Callable[..., object]:
        def late(self: FileStore, *arguments: object) -> object:
            for env, dirfd, mark in waiting:
                if env is self._env:
                    write(env, dirfd, mark)
            waiting.clear()
            return work(self, *arguments)

        return late

    monkeypatch.setattr(purge_mark, "write", lambda *arguments: waiting.append(arguments))
    monkeypatch.setattr(FileStore, "tick", with_what_waits(tick))
    monkeypatch.setattr(FileStore, "close", with_what_waits(close))
    assert "were purged and are back" in caught(purges())


def test_a_mark_that_goes_while_a_purged_message_is_there_is_caught(monkeypatch: Patch) -> None:
    tidy = purging.tidy

    def without_mark(env: FileEnv, slog: SliceLog, file: ConfirmedFile) -> bool:
        done = tidy(env, slog, file)
        if slog.purged:
            env.disk.unlink(slog.dirfd, purge_mark.NAME)
        return done

    monkeypatch.setattr(purging, "tidy", without_mark)
    assert "were purged and are back" in caught(purges())


def test_a_mark_that_is_removed_and_may_be_that_of_a_successor_is_caught(
    monkeypatch: Patch,
) -> None:
    tidy = purging.tidy

    def and_remove_the_mark(env: FileEnv, slog: SliceLog, file: ConfirmedFile) -> bool:
        done = tidy(env, slog, file)
        if slog.purged and slog.slices[0].first > slog.purged and not slog.dead:
            env.owner.confirm()
            env.disk.unlink(slog.dirfd, purge_mark.NAME)
            env.disk.fsync(slog.dirfd)
        return done

    monkeypatch.setattr(purging, "tidy", and_remove_the_mark)
    with pytest.raises(AssertionError):
        pauses(6, clean=True)


def test_a_clean_stop_that_leaves_purged_messages_to_an_original_server_is_caught(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(purging, "tidy", lambda *_: True)
    assert "the original server" in caught(purges())


def test_a_newest_message_that_goes_with_the_others_is_caught(monkeypatch: Patch) -> None:
    def remove_all(env: FileEnv, slog: SliceLog, file: ConfirmedFile, s: Slice, start: int) -> None:
        del env, file, s, start
        slog.end_slice()
        slog.dead.update(x.number for x in slog.slices)
        slog.slices = []

    monkeypatch.setattr(purging, "_carry_over", remove_all)
    caught(purges())


def test_a_slice_that_is_put_again_beside_its_old_index_is_caught(monkeypatch: Patch) -> None:
    put_again = purging._put_again

    def beside_its_index(env: FileEnv, slog: SliceLog, s: Slice, start: int) -> None:
        unlink = env.disk.unlink

        def not_the_index(dirfd: int, name: str) -> None:
            if not (name.startswith("msgs.") and name.endswith(".idx")):
                unlink(dirfd, name)

        with monkeypatch.context() as patch:
            patch.setattr(env.disk, "unlink", not_the_index)
            put_again(env, slog, s, start)

    monkeypatch.setattr(purging, "_put_again", beside_its_index)
    caught(purges())


def test_a_start_that_does_not_look_for_a_mark_is_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(purge_mark, "read", lambda *_: (None, ""))
    assert "were purged and are back" in caught(purges())
