"""Many processes reach for one store, with no help from a lock.

Each may be paused or killed between any two calls.

Writes that were not synced land whenever the schedule says, even long after their process died, as
they do on a network file system, and what has landed so may be lost again, below processes that go
on, until somebody has sent and synced it. What must hold in every history:

- no two activations have the same epoch, and each is above all that were finished before it began;
- once an activation is finished, no lower epoch is confirmed any more;
- every slice of ours is at or above the ``ours_from`` of every later activation;
- when the others rest, the next claimer gets the store.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.ft.epoch import EPOCH_NAME, Activation, claim, remove_old_claims
from ftstan.ft.epoch_records import SLOT_SIZE, is_blank
from ftstan.ft.fencing_check import Confirmer
from ftstan.ft.survey import survey_store
from tests.sim.disk import Killed, SimDisk

if TYPE_CHECKING:
    from ftstan.base.disk import Disk

ROOT = "/store"
CONFIRMS = 6


class LateDisk(SimDisk):
    """A process whose writes reach the storage at its next fsync, or earlier or later, when the
    schedule says so.
    """

    late: list[tuple[int, bytes]]
    world: World

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        assert self.on_call is not None
        self.on_call(self.calls, "pwrite", (fd, offset))
        self.late.append((offset, bytes(data)))

    def fsync(self, fd: int) -> None:
        sent = []
        while self.late:
            offset, data = self.late[0]
            super().pwrite(fd, data, offset)
            sent.append(offset)
            # Popped behind the call: if the process is killed in it, the bytes are still on their
            # way.
            self.late.pop(0)
        super().fsync(fd)
        for offset in sent:
            self.world.loose.pop(offset, None)


class World:
    """What the schedule and the invariants see: the store, who finished, and who runs."""

    def __init__(self, *, used: bool) -> None:
        self.base = SimDisk()
        self.base.make_dirs(ROOT)
        self.base.add_tree(ROOT, {"server.dat": b"x", "old/msgs.7.dat": b""})
        self.finished: list[Activation] = []
        self.slices: list[int] = []
        self.loose: dict[int, bytes] = {}
        """What storage goes back to where bytes have landed that nobody has synced, by offset."""
        if used:
            root = self.base.open_dir(ROOT)
            self.finish(self.claim_as("FIRST", self.base, root))

    def claim_as(self, name: str, disk: Disk, root: int) -> Activation:
        return claim(
            disk,
            root,
            server_id=name,
            clock=ManualClock(),
            survey=lambda: survey_store(disk, root),
            host="h",
            pid=1,
        )

    def finish(self, activation: Activation) -> None:
        assert activation.epoch not in {other.epoch for other in self.finished}
        assert all(activation.ours_from <= number for number in self.slices)
        self.finished.append(activation)

    @property
    def top(self) -> int:
        return max((activation.epoch for activation in self.finished), default=0)

    def store_slice(self, activation: Activation) -> None:
        number = activation.slice_base + 1
        self.slices.append(number)
        self.base.add_tree(ROOT, {f"new/msgs.{number}.dat": b"", "new/confirmed.bin": b""})

    def land(self, offset: int, data: bytes) -> None:
        fd = self.base.open(self.base.open_dir(ROOT), EPOCH_NAME, 2)
        before = self.base.pread(fd, len(data), offset).ljust(len(data), b"\0")
        self.loose.setdefault(offset, before)
        self.base.pwrite(fd, data, offset)
        self.base.close(fd)

    def lose(self, offset: int) -> None:
        fd = self.base.open(self.base.open_dir(ROOT), EPOCH_NAME, 2)
        self.base.pwrite(fd, self.loose.pop(offset), offset)
        self.base.close(fd)


class Process:
    """One claimer in a thread of its own that runs only while it has been given a turn."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = LateDisk(world.base.volume, world.base.met)
        self.disk.late = []
        self.disk.world = world
        self.disk.on_call = self.pause
        self.killed = False
        self.over = False
        self.failure: BaseException | None = None
        self.left = 0
        """Calls in front of which it does not wait for its next turn."""
        self.turn = threading.Semaphore(0)
        self.done = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def step(self, times: int = 1) -> None:
        """Let it go on until it stands before its call number ``times`` from here, or to its
        end.
        """
        if not self.over:
            self.left = times
            self.turn.release()
            self.done.acquire()

    def pause(self, _number: int, _call: str, _args: tuple[object, ...]) -> None:
        self.left -= 1
        if self.left > 0:
            return
        self.done.release()
        self.turn.acquire()
        if self.killed:
            raise Killed

    def run(self) -> None:
        self.turn.acquire()
        try:
            if not self.killed:
                self.live()
        except (FencedError, Killed):
            pass
        except BaseException as failure:  # noqa: BLE001 - carried to the thread that judges
            self.failure = failure
        self.over = True
        self.done.release()

    def live(self) -> None:
        world = self.world
        root = self.disk.open_dir(ROOT)
        began = world.top
        activation = world.claim_as(self.name, self.disk, root)
        assert activation.epoch > began
        world.finish(activation)
        confirm = Confirmer(self.disk, root, activation)
        remove_old_claims(self.disk, root, activation, confirm)
        for _ in range(CONFIRMS):
            top = world.top
            confirm()
            assert top <= activation.epoch, (
                f"epoch {activation.epoch} confirmed after {top} was finished"
            )
            world.store_slice(activation)

    def kill(self) -> None:
        self.killed = True
        while not self.over:
            self.step()
        self.thread.join()


def play(world: World, processes: list[Process], rng: random.Random) -> None:
    """Few changes of turn at random places find more than many: a run is often long enough to come
    to an end.
    """
    for _ in range(rng.randint(6, 20)):
        process = rng.choice(processes)
        process.step(rng.choice((rng.randint(1, 30), 80)))
        if rng.random() < 0.05:
            process.kill()
        for other in processes:
            if other.disk.late and rng.random() < 0.3:
                world.land(*rng.choice(other.disk.late))
        if world.loose and rng.random() < 0.2:
            world.lose(rng.choice(list(world.loose)))


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 5), st.booleans())
def test_in_any_schedule_one_owner_is_confirmed_and_the_store_is_never_lost(
    seed: int, count: int, used: bool
) -> None:
    world = World(used=used)
    processes = [Process(world, f"P{index}") for index in range(count)]
    try:
        play(world, processes, random.Random(seed))
    finally:
        for process in processes:
            process.kill()
    for process in processes:
        if process.failure is not None:
            raise process.failure
        for late in process.disk.late:
            world.land(*late)
    last = Process(world, "LAST")
    while not last.over:
        last.step(80)
    assert last.failure is None
    assert world.finished[-1].server_id == "LAST"
    data = world.base.tree(ROOT)[EPOCH_NAME]
    assert data is not None
    assert not any(
        is_blank(data[at : at + SLOT_SIZE]) for at in range(SLOT_SIZE, len(data), SLOT_SIZE)
    )
