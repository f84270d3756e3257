"""One member of a simulated group: the real machines, the real owner, the real file store, in a process of its own.

The control side (``Standby``, ``Active``) runs where the schedule runs; the data side runs in a thread that moves only
when it is given storage calls to spend, so that a pause can fall between any two of them. Nothing here decides
anything that a member of a real group decides: it carries events and does what ``ftstan.group`` and
``ftstan.serving`` do, in their order.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from ftstan.config.limits import Limits
from ftstan.errors import FencedError, FtstanError
from ftstan.ft import active as act
from ftstan.ft import events as sb
from ftstan.ft.attempt import attempt, see_store
from ftstan.ft.cadence import FtTiming
from ftstan.ft.heartbeat import BeatPhase, Heartbeat
from ftstan.ft.lock import StoreLock
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.standby import Standby
from ftstan.ft.states import Phase
from ftstan.ft.subjects import Released
from ftstan.stores.file.store import FileStore
from tests.sim.disk import Killed
from tests.sim.ft.hosts import ClientDisk
from tests.sim.ft.load import Load
from tests.sim.ft.locks import SimLocker
from tests.sim.model import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.sim.disk import SimDisk
    from tests.sim.ft.group import Group

ROOT = "/"
"""The datastore: no directory of the machine that runs the tests has to exist for it."""

_MOUNTS = {
    False: "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n",
    True: "21 1 0:40 / / rw,relatime - nfs4 server:/ rw,vers=4.2,hard,proto=tcp,timeo=600\n",
}
_WRITES = frozenset({"pwrite", "rename", "link", "unlink", "ftruncate", "mkdir", "rmdir", "fsync", "fdatasync"})


class Ended(Exception):  # noqa: N818 - the planned end of a process
    """The process has stopped on purpose."""


class Node:
    """A process of a member, from its start to its end. ``ended`` says how it ended, empty while it lives."""

    def __init__(self, group: Group, name: str, disk: SimDisk) -> None:
        self.group = group
        self.name = name
        self.disk = disk
        self.rng = random.Random(f"{group.seed} {name}")
        self.ended = ""
        self.failure: BaseException | None = None
        self.paused = False
        self.connected = False
        self.stopping = False
        self.epoch = 0
        self.batches = 0
        self.idle = False
        self.stop_before: Callable[[str, tuple[object, ...]], bool] | None = None
        """Pauses the process before the first storage call for which it holds: for histories written by hand."""
        self.timer: float | None = None
        self._jobs: deque[Callable[[], None]] = deque()
        self._posts: deque[Callable[[], None]] = deque()
        self._owner: StoreOwner | None = None
        self._load: Load | None = None
        timing = FtTiming(poll_interval=0.5 if group.network else 0.05)
        self._timing = timing
        self._standby = Standby(name, self.rng, timing)
        self._active: act.Active | None = None
        self._budget = 0
        self._killed: int | None = None
        self._turn = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        disk.on_call = self._on_call
        self._jobs.append(self._open)
        self._drive(self._standby.handle(sb.Started(), self._now()))

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch})"

    # ---- the schedule's side -------------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        """Whether it has recovered and serves, as far as it knows."""
        return self._load is not None and self._load.ready and not self.ended

    @property
    def is_misled(self) -> bool:
        """Whether it takes its own datastore for the wrong one."""
        return not self.ended and self._standby.phase is Phase.WRONG_STORE

    @property
    def told(self) -> set[bytes]:
        """Channels in which a publisher was told."""
        return self._load.told if self._load is not None else set()

    def forget_told(self) -> None:
        """Count from now on."""
        self.told.clear()

    @property
    def has_work(self) -> bool:
        """Whether storage calls would bring it on."""
        return not self.ended and (bool(self._jobs) or not self.idle or self._load is not None)

    def spend(self, calls: int) -> None:
        """Run the data side for so many storage calls, or until it has nothing to do."""
        if self.ended or self.paused or not self.has_work:
            return
        self._budget, self.idle = calls, False
        self._step()
        while self._posts:
            self._posts.popleft()()

    def hear(self, event: sb.HeartbeatHeard | sb.ReleasedHeard) -> None:
        """A message of the group arrived."""
        if self.ended or not self.connected:
            return
        if self._active is None:
            self._drive(self._standby.handle(event, self._now()))
        elif isinstance(event, sb.HeartbeatHeard):
            self._drive(self._active.handle(event, self._now()))

    def connect(self, connected: bool) -> None:
        """NATS came or went."""
        if self.connected != connected:
            self.connected = connected
            self._drive(self._standby.handle(sb.NatsUp() if connected else sb.NatsDown(), self._now()))

    def wake(self) -> None:
        """Let the timer fire if its time has come."""
        if not self.ended and not self.paused and self.timer is not None and self._now() >= self.timer:
            self.timer = None
            machine = self._standby if self._active is None else self._active
            self._drive(machine.handle(sb.TimerFired(), self._now()))

    def kill(self, written: int = 0) -> None:
        """End the process in the call that it is about to make; ``written`` bytes of it still happen."""
        self._killed = written
        self.paused = False
        while not self.ended:
            self._step()
        self._thread.join()
        self.disk.kill()

    def _step(self) -> None:
        self._turn.release()
        self._done.acquire()
        if self.failure is not None:
            raise self.failure

    def _now(self) -> float:
        return self.group.clock.mono()

    # ---- what ftstan.group does ----------------------------------------------------------------------------------

    def _drive(self, actions: Sequence[sb.Action | act.Action]) -> None:
        for action in actions:
            match action:
                case sb.SetTimer(at):
                    self.timer = at
                case sb.TryLock():
                    self._jobs.append(partial(self._try_lock, action))
                case sb.ReadStore():
                    self._jobs.append(self._read_store)
                case sb.ReleaseLock():
                    self._jobs.append(self._release)
                case sb.Activate():
                    self._jobs.append(self._activate)
                case act.SendHeartbeat(payload):
                    self.group.publish_beat(self, payload)
                case act.ConfirmNow():
                    self._jobs.append(self._confirm_now)
                case _:
                    pass

    def _tell(self, event: sb.Event) -> None:
        self._posts.append(lambda: self._drive(self._standby.handle(event, self._now())))

    # ---- the data side: its own thread ---------------------------------------------------------------------------

    def _on_call(self, _number: int, call: str, args: tuple[object, ...]) -> None:
        self._budget -= 1
        if self.stop_before is not None and self.stop_before(call, args):
            self.stop_before, self.paused = None, True
            self._yield()
        elif self._budget < 0:
            self._yield()
        if self._killed is not None:
            raise Killed(self._killed)
        if call in _WRITES and 0 < self.epoch < self.group.ledger.top:
            self.group.met[f"zombie {call}"] += 1

    def _yield(self) -> None:
        self._done.release()
        self._turn.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        ended = "killed"
        try:
            self._live()
        except Killed:
            pass
        except Ended:
            ended = "stopped"
        except FencedError as error:
            ended = "fenced"
            self._must_be_justified(error)
        except (FtstanError, OSError) as error:
            ended = "failed"
            self._must_be_justified(error)
        except BaseException as failure:  # noqa: BLE001 - carried to the thread that judges
            self.failure = failure
        self.ended = ended
        self._done.release()

    def _must_be_justified(self, error: Exception) -> None:
        """A member ends only because another one reached for the store: never by what it heard, never by itself."""
        if not self.group.somebody_reached_above(self.epoch):
            self.failure = Violation(f"{self} ended without need: {type(error).__name__}: {error}")
            self.failure.__cause__ = error

    def _live(self) -> None:
        while True:
            if self._killed is not None:
                raise Killed(0)
            if self._jobs:
                self._jobs.popleft()()
            elif self.stopping:
                self._stop()
            elif self._load is not None:
                self._load.turn()
                self.batches = self._load.batches
            else:
                self.idle = True
                self._yield()

    def _open(self) -> None:
        owner = StoreOwner(
            self.disk,
            ROOT,
            server_id=self.name,
            clock=self.group.clock,
            in_group=True,
            mountinfo=_MOUNTS[self.group.network],
        )
        owner._lock = StoreLock(self.disk, owner.root, ROOT, SimLocker(self.group.locks, self.disk))
        if isinstance(self.disk, ClientDisk):
            owner._asking_disk = self.disk.direct()
        self._owner = owner
        self._tell(see_store(owner))

    @property
    def owner(self) -> StoreOwner:
        """The real owner."""
        assert self._owner is not None
        return self._owner

    def _try_lock(self, ask: sb.TryLock) -> None:
        self._tell(attempt(self.owner, ask))

    def _read_store(self) -> None:
        self._tell(see_store(self.owner))

    def _release(self) -> None:
        self.owner.release()

    def _confirm_now(self) -> None:
        self.owner.confirm()
        self.owner.verify_lock()
        self._posts.append(self._hear_confirmed)

    def _hear_confirmed(self) -> None:
        if self._active is not None:
            self._drive(self._active.handle(act.Confirmed(), self._now()))

    def _activate(self) -> None:
        ledger = self.group.ledger
        above = ledger.top
        try:
            activation = self.owner.activate()
        except FencedError as error:
            self.group.met["activations lost"] += 1
            self.owner.release()
            self._tell(sb.ActivationLost(error.text))
            return
        self.epoch = activation.epoch
        if isinstance(self.disk, ClientDisk):
            self.disk.epoch = activation.epoch
        ledger.took(activation.epoch, above)
        self.group.met["activations"] += 1
        beat = Heartbeat(
            server_id=self.name,
            activated_ns=activation.since_ns,
            epoch=activation.epoch,
            store_id=activation.store_id,
        )
        self._posts.append(lambda: self._begin(beat))
        store = FileStore(
            self.disk,
            self.owner.root,
            self.owner,
            self.group.clock,
            self.group.shape.options,
            limits=Limits.same(self.group.shape.limits),
            asking=self.owner.asking if self.owner.is_network else None,
            parallel_sync=False,
        )
        self._load = Load(self.group, store, self.owner, activation.epoch, self.rng)
        self._load.recover()

    def _begin(self, beat: Heartbeat) -> None:
        self._active = act.Active(beat, self.rng, self._timing)
        self._drive(self._active.handle(sb.Started(), self._now()))
        self._drive(self._active.handle(act.PhaseChanged(BeatPhase.SERVING), self._now()))

    def _stop(self) -> None:
        if self._load is not None:
            self._load.stop()
        owner, epoch = self.owner, self.epoch
        store_id = owner.activation.store_id if self._load is not None else b""
        owner.close()
        if self._load is not None:
            self._posts.append(lambda: self.group.publish_released(self, Released(self.name, epoch, store_id)))
        raise Ended
