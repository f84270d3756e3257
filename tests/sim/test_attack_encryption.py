"""Attacks on encrypted stores and on ``rekey`` on a disk that dies, fails and fills up."""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FtstanError
from ftstan.stores.encryption.cipher import KeyRing
from ftstan.stores.encryption.store import EncryptedStore
from ftstan.stores.file.tools.changing import rewrite
from ftstan.stores.file.tools.rekeying import rekey_store
from ftstan.stores.file.tools.rewriting import compact_channel, hand_over_channel
from ftstan.wire.block import MsgBlock
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import Shape, run_history
from tests.sim.model import read_all
from tests.sim.test_store_tools import env_of

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelStore, Store
    from tests.sim.model import Model

MODES = (CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED, CrashMode.KEPT)
#: Of every payload that is long enough to be looked for.
PLAIN = b"x" * 30
RING = KeyRing([b"new", b"old", b"older"])


def grown(
    seed: int, rings: list[KeyRing | None], *, purges: bool = False, deletes: bool = False
) -> tuple[SimDisk, Model]:
    """A store of as many activations as there are rings, each with its keys."""
    found: list[tuple[SimDisk, Model]] = []
    rng = Random(f"grown {seed}")
    opened = [0]

    def open_store(disk: SimDisk, clock: ManualClock) -> Store:
        ring = rings[min(opened[0], len(rings) - 1)]
        opened[0] += 1
        inner = open_file_store(disk, clock)
        return inner if ring is None else EncryptedStore(inner, ring)

    run_history(
        open_store,
        seed,
        kills=[rng.randint(100, 300) for _ in rings[1:]],
        shape=Shape(purges=purges, deletes=deletes),
        judge=lambda disk, model: found.append((disk.crash(process_only=True), model.copied())),
    )
    return found[0]


MIXED: list[KeyRing | None] = [
    None,
    None,
    KeyRing([b"older"]),
    KeyRing([b"old", b"older"], "CHACHA"),
    KeyRing([b"older", b"old"]),
    KeyRing([b"old", b"older"]),
]


def rekey(disk: SimDisk, ring: KeyRing = RING) -> None:
    rekey_store(env_of(disk), ring)


def check(disk: SimDisk, model: Model, ring: KeyRing = RING) -> None:
    """What the store holds is what was answered, and these keys read it."""
    store = EncryptedStore(open_file_store(disk, ManualClock()), ring)
    model.copied().check(store.recover())
    store.abandon()


def plain_files(disk: SimDisk) -> list[str]:
    return sorted(name for name, data in disk.tree("/").items() if data and PLAIN in data)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("purges", [False, True])
def test_afterwards_the_first_key_is_enough_and_nothing_is_plain(seed: int, purges: bool) -> None:
    disk, model = grown(seed, MIXED, purges=purges)
    rekey(disk)
    check(disk.crash(process_only=True), model, KeyRing([b"new"]))
    assert plain_files(disk) == []


def test_what_a_start_has_cut_off_is_not_left_plain() -> None:
    disk, model = grown(0, MIXED)
    folder = disk.open_dir("/store/channel.0")
    fd = disk.open(folder, "cut.2.msgs.1.dat.9", os.O_WRONLY | os.O_CREAT)
    disk.pwrite(fd, PLAIN, 0)
    assert plain_files(disk)
    rekey(disk)
    assert plain_files(disk) == []
    check(disk.crash(process_only=True), model, KeyRing([b"new"]))


@pytest.mark.parametrize("seed", range(8))
def test_nothing_plain_is_left_of_channels_that_were_deleted(seed: int) -> None:
    disk, model = grown(seed, MIXED, deletes=True)
    rekey(disk)
    check(disk.crash(process_only=True), model, KeyRing([b"new"]))
    assert plain_files(disk) == []


def test_nothing_plain_is_left_of_a_compaction_or_handover_that_died_before() -> None:
    met = 0
    for seed, work in ((0, compact_channel), (1, hand_over_channel), (2, compact_channel)):
        disk, model = grown(seed, [None] * 6)
        assert plain_files(disk) != []
        counted = disk.crash(process_only=True)
        rewrite(env_of(counted), work, max_bytes=64 << 20)
        for call in range(1, counted.calls, 7):
            victim = disk.crash(process_only=True)

            def hook(
                number: int, _name: str, _arguments: tuple[object, ...], call: int = call
            ) -> None:
                if number == call:
                    raise Killed(100)

            victim.on_call = hook
            with pytest.raises(Killed):
                rewrite(env_of(victim), work, max_bytes=64 << 20)
            left = victim.crash(process_only=True)
            rekey(left, KeyRing([b"new"]))
            check(left.crash(process_only=True), model, KeyRing([b"new"]))
            assert plain_files(left) == [], (seed, call)
            met += 1
    assert met > 20


def die_everywhere(seed: int, stride: int, *, purges: bool = False) -> int:
    disk, model = grown(seed, MIXED, purges=purges)
    counted = disk.crash(process_only=True)
    rekey(counted)
    met = 0
    for call in range(1 + seed % stride, counted.calls, stride):
        victim = disk.crash(process_only=True)
        rng = Random(f"{seed} {call}")
        torn = rng.choice((0, rng.randint(1, 600)))

        def hook(
            number: int,
            _name: str,
            _arguments: tuple[object, ...],
            call: int = call,
            torn: int = torn,
        ) -> None:
            if number == call:
                raise Killed(torn)

        victim.on_call = hook
        with pytest.raises(Killed):
            rekey(victim)
        left = victim.crash(rng, rng.choice(MODES), process_only=bool(torn) or rng.random() < 0.3)
        check(left.crash(process_only=True), model)
        # A server may serve it in between, and stop.
        served = left.crash(process_only=True)
        store = EncryptedStore(open_file_store(served, ManualClock()), RING)
        store.recover()
        store.close()
        check(served.crash(process_only=True), model)
        for again in (left, served):
            rekey(again)
            check(again.crash(process_only=True), model, KeyRing([b"new"]))
            assert plain_files(again) == [], call
        met += 1
    return met


@pytest.mark.parametrize("seed", range(4))
def test_a_rekey_that_dies_at_any_call_can_be_run_again(seed: int) -> None:
    assert die_everywhere(seed, stride=5) > 10


@pytest.mark.parametrize("seed", range(4, 6))
def test_a_rekey_of_a_purged_store_that_dies_at_any_call_can_be_run_again(seed: int) -> None:
    assert die_everywhere(seed, stride=5, purges=True) > 10


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("seed", range(3))
def test_a_rekey_that_storage_refuses_at_any_call_can_be_run_again(seed: int, code: int) -> None:
    disk, model = grown(seed, MIXED)
    counted = disk.crash(process_only=True)
    rekey(counted)
    met = 0
    for call in range(1 + seed % 5, counted.calls, 5):
        victim = disk.crash(process_only=True)

        def hook(
            number: int,
            _name: str,
            _arguments: tuple[object, ...],
            call: int = call,
            victim: SimDisk = victim,
        ) -> None:
            if number == call:
                victim.volume.space = 0

        if code == errno.ENOSPC:
            victim.on_call = hook
        else:
            victim.fail_at(call, code)
        try:
            rekey(victim)
        except (OSError, FtstanError):
            met += 1
        victim.on_call = None
        victim.volume.space = None
        victim.fail_no_more()
        victim.kill()
        rng = Random(f"{seed} {call}")
        left = victim.crash(rng, rng.choice(MODES), process_only=rng.random() < 0.5)
        check(left.crash(process_only=True), model)
        rekey(left)
        check(left.crash(process_only=True), model, KeyRing([b"new"]))
        assert plain_files(left) == [], call
    assert met > 10


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_encrypted_stores_hold_nothing_plain_at_any_death(seed: int) -> None:
    disk, model = grown(seed, [RING] * 6, purges=bool(seed % 2))
    check(disk.crash(process_only=True), model)
    assert plain_files(disk) == []


def everything(channels: dict[bytes, ChannelStore]) -> dict[bytes, dict[int, bytes]]:
    return {name: read_all(channel) for name, channel in channels.items()}


class Successor:
    """A server that takes the store over at storage call ``call`` of another process."""

    def __init__(self, disk: SimDisk, call: int, *, stops: bool) -> None:
        self.disk = disk
        self.found: dict[bytes, ChannelStore] = {}
        self.wrote: dict[bytes, dict[int, bytes]] = {}
        self._call = call
        self._stops = stops

    def on_call(self, number: int, _name: str, _arguments: tuple[object, ...]) -> None:
        if number != self._call:
            return
        store = EncryptedStore(open_file_store(self.disk, ManualClock()), RING)
        self.found = {c.name: c for c in store.recover().channels}
        for name, channel in self.found.items():
            block = MsgBlock()
            block.append(channel.last + 1, name, b"", b"of the successor", 1)
            channel.append(block)
        assert store.commit() == {}
        store.confirm()
        self.wrote = everything(self.found)
        if self._stops:
            store.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stops", [False, True])
def test_a_rekey_that_was_paused_and_wakes_up_beside_a_server_changes_nothing_of_it(
    seed: int, stops: bool
) -> None:
    """Whoever runs it stood still for so long that its lock was lost."""
    disk, _ = grown(seed, MIXED)
    counted = disk.crash(process_only=True)
    env = env_of(counted)
    claimed = counted.calls
    rekey_store(env, RING)
    met = 0
    for call in range(claimed + 1 + seed % 7, counted.calls, 7):
        paused = disk.crash(process_only=True)
        successor = Successor(paused.sibling(), call, stops=stops)
        paused.on_call = successor.on_call
        try:
            rekey(paused)
        except (OSError, FtstanError):
            met += 1
        paused.kill()
        if not stops:
            assert everything(successor.found) == successor.wrote, call
        crashed = (True, False) if stops else (True,)
        for process_only in crashed:
            left = successor.disk.crash(Random(call), CrashMode.LOST, process_only=process_only)
            store = EncryptedStore(open_file_store(left, ManualClock()), RING)
            recovered = store.recover()
            assert recovered.refused == {}
            assert everything({c.name: c for c in recovered.channels}) == successor.wrote, call
            store.abandon()
            rekey(left)
            assert plain_files(left) == [], call
    assert met > 5
