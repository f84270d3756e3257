"""One process of a simulated group: the product itself, on a simulated machine.

``ftstan.node.node.Node`` runs as it does in production, with its group driver, hand-over, data
plane, pipeline, broker, store, watch and self-protection. Simulated is what lies below: the disk,
NATS, the clock, and the threads, which move only when the schedule gives them storage calls to
spend. So a pause can fall between any two of them. Not run are the reading ahead of standbys (a
hint), the HTTP pages and the nats-server child.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ftstan.admin.protocol import Request, Verb
from ftstan.base.errors import EndedError, FencedError, FtstanError, RefusedError
from ftstan.base.states import Phase
from ftstan.config.limits import Limits
from ftstan.config.options import FT_MIXED_AUTO, FtOptions, ServerOptions, StoreLimits
from ftstan.config.units import SECOND
from ftstan.ft.access import FileAccess
from ftstan.ft.lock import StoreLock
from ftstan.ft.mounts import find_mount
from ftstan.ft.ownership import StoreOwner
from ftstan.ft.watch import Probe, Watch
from ftstan.node import node
from ftstan.node.dataplane import DataPlane, Waiter
from tests.sim.disk import Killed
from tests.sim.ft.hosts import ClientDisk
from tests.sim.ft.locks import SimLocker
from tests.sim.ft.observed import ObservedStore
from tests.sim.ft.scripts import SimScripts
from tests.sim.model import UNLIMITED, Violation
from tests.sim.nats import SimControl, SimLink
from tests.sim.runtime import Fiber, MachineClock, SimLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ftstan.base.disk import Disk
    from ftstan.ft.epoch import Activation
    from ftstan.ft.mounts import Mount
    from ftstan.nats.link import Link
    from ftstan.node.handover_buffer import BufferedPublishes
    from ftstan.node.pipeline import Serving
    from ftstan.stores.interface import Store, StoreContext
    from tests.sim.disk import SimDisk
    from tests.sim.ft.group import Group
    from tests.sim.ft.ledger import Generation

ROOT = "/"
"""The datastore: no directory of the machine that runs the tests has to exist for it."""

CLUSTER = "sim"

_MOUNTS = {
    False: "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n",
    True: "21 1 0:40 / / rw,relatime - nfs4 server:/ rw,vers=4.2,hard,proto=tcp,timeo=600\n",
}
_WRITES = frozenset(
    {"pwrite", "rename", "link", "unlink", "ftruncate", "mkdir", "rmdir", "fsync", "fdatasync"}
)
#: A process that ends for one of these reasons was judged by itself: storage was too slow, or NATS
#: out of reach.
_SELF_JUDGED = (
    "has not answered",
    "does not answer",
    "has not been committed",
    "cut off from NATS",
)


class SimOwner(StoreOwner):
    """The real owner, whose steps the ledger sees."""

    def __init__(self, process: Node, context: StoreContext) -> None:
        self._process = process
        super().__init__(
            context.disk, ROOT, server_id=context.server_id, clock=context.clock, in_group=True
        )
        disk = process.disk
        self._lock = StoreLock(disk, self.root, ROOT, SimLocker(process.group.locks, disk))

    def _mount_of(self, root: int) -> Mount:
        disk = self._process.disk
        is_share = isinstance(disk, ClientDisk) and disk._get(root).node is not disk.client.bare
        return find_mount(_MOUNTS[is_share], ROOT)

    def _asking(self, *, is_network: bool) -> Disk:
        disk = self._process.disk
        return disk.direct() if is_network and isinstance(disk, ClientDisk) else disk

    def _install(self, activation: Activation) -> None:
        super()._install(activation)
        self._process.took(activation.epoch)

    def activate(self, *args: Any, **kwargs: Any) -> Activation:
        self._process.began_above = self._process.group.ledger.top
        try:
            activation = super().activate(*args, **kwargs)
        except FencedError:
            self._process.group.met["activations lost"] += 1
            raise
        self._process.group.met["stores taken without the lock"] += bool(kwargs.get("without_lock"))
        return activation

    def _raise(self, *args: Any, **kwargs: Any) -> None:
        process = self._process
        process.began_above = process.group.ledger.top
        before = process.epoch
        super()._raise(*args, **kwargs)
        between = [taken for taken in process.group.ledger.epochs if before < taken < process.epoch]
        if between:
            process.broken(
                f"epoch {before} went on to {process.epoch}, and {between} had been taken in "
                "between"
            )
        process.group.met["self-raises"] += 1
        process.group.met["self-raises over a leftover claim"] += process.epoch > before + 1
        if process.began_above > before:
            process.broken(
                f"epoch {before} went on to {process.epoch} after {process.began_above} had been "
                "taken"
            )

    def confirm(self) -> None:
        """A confirm that began after somebody had taken a higher number must be refused."""
        process = self._process
        top = self._process.group.ledger.top
        try:
            super().confirm()
        except FencedError:
            process.group.met["refused confirms"] += 1
            raise
        if top > process.epoch:
            process.broken(f"epoch {process.epoch} was confirmed after {top} had been taken")
        process.group.met["confirms"] += 1


class SimAccess(FileAccess):
    """The real access to the store, with the simulated lock service and without threads for
    syncs.
    """

    def __init__(self, process: Node, context: StoreContext) -> None:
        self._process = process
        self._context = context
        self.owner = process.owner_of(context)
        self.place = f"datastore {ROOT}"
        self._store = None

    def open(self) -> ObservedStore:
        """The store of the present activation."""
        group = self._process.group
        self._store = store = ObservedStore(
            self._process.disk,
            self.owner.root,
            self.owner,
            self._context.clock,
            group.shape.options,
            limits=Limits.same(group.shape.limits),
            most_at_once=0 if group.shape.later else None,
            asking=self.owner.asking if self.owner.is_network else None,
            parallel_sync=False,
            stopping=self._context.stopping,
        )
        store.observe(self._process)
        if group.shape.options.slice_archive_script:
            upkeep = store._upkeep
            upkeep._archivist = SimScripts(self._process, upkeep._may_start)
        return store

    def watch(self, interval: float, on_failure: Callable[[BaseException], None]) -> Watch:
        """A watch over the present activation, not started."""
        process = self._process
        owner = self.owner

        def look() -> None:
            if self._store is not None:
                self._store.places.look(process.disk, owner.root)

        locker = SimLocker(process.group.locks, process.disk)
        probe = Probe(
            process.disk, owner.root, owner, server_id=process.name, look=look, locker=locker
        )
        return SimWatch(process, probe, interval, on_failure)


class SimWatch(Watch):
    """The real watch, in a fiber."""

    def __init__(
        self,
        process: Node,
        probe: Probe,
        interval: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__(probe, process.clock, interval, on_failure)
        self._process = process
        self._fiber: Fiber | None = None

    def start(self) -> None:
        """Begin."""
        self._fiber = self._process.spawn("watch", self._run)

    def stop(self, timeout: float) -> bool:
        """No more probes."""
        self._stop.set()
        fiber = self._fiber
        if fiber is None:
            return True
        end = self._process.clock.mono() + timeout
        self._process.park(lambda: fiber.over or self._process.clock.mono() >= end)
        return fiber.over

    def _wait(self) -> bool:
        clock = self._process.clock
        end = self._process.clock.mono() + self._interval
        self._process.park(lambda: self._stop.is_set() or clock.mono() >= end)
        return self._stop.is_set()


class SimWaiter(Waiter):
    """What the data plane's fiber parks in."""

    def __init__(self, process: Node) -> None:
        self._process = process
        self._posted = False

    def wake(self) -> None:
        """Something was posted."""
        self._posted = True

    def wait(self, fd: int, timeout: float) -> tuple[bool, bool]:
        """As the real one."""
        process = self._process
        end = process.clock.mono() + timeout

        def readable() -> bool:
            link = process.link
            return fd >= 0 and link is not None and link.fileno() == fd and link.readable

        process.spent(1)
        process.park(lambda: self._posted or readable() or process.clock.mono() >= end)
        posted = self._posted
        self._posted = False
        return posted, readable()

    def close(self) -> None:
        """Nothing is open."""


class SimPlane(DataPlane):
    """The real data plane, in a fiber."""

    def __init__(self, process: Node, on_end: Callable[[BaseException], None]) -> None:
        super().__init__(on_end, None, SimWaiter(process))
        self._process = process

    def start(self) -> None:
        """Begin."""
        self._process.spawn("data plane", self._run)


class _NoWarm:
    """Reading ahead is a hint, and is not simulated."""

    lag = None

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def take(self, _digest: object) -> None: ...


class _Product(node.Node):
    """The product, connected with a simulated machine."""

    def __init__(self, process: Node, options: ServerOptions) -> None:
        self.plane_class = lambda on_end, _awake: SimPlane(process, on_end)
        self.link_class = process.new_link
        self.control_class = process.new_control
        self.warm_class = lambda *_: cast("Any", _NoWarm())
        self.random_class = lambda: process.rng
        self.store_kind = lambda _name: partial(SimAccess, process)
        super().__init__(options, clock=process.clock, host=_Host(process))
        self.server_id = process.name
        self._met = process.group.met

    def _open(self, serving: Serving, ahead: BufferedPublishes | None) -> None:
        self._met["hand-overs with publishes kept"] += ahead is not None and b"MSG " in ahead.data
        super()._open(serving, ahead)


class _Host:
    """The process, as the node sees it."""

    owns_process = False

    def __init__(self, process: Node) -> None:
        self._process = process

    def disk(self) -> Any:
        return self._process.disk

    def started(self) -> None: ...

    def over(self, status: int) -> None: ...

    def end(self, why: str, _status: int) -> NoReturn:
        self._process.end_at_once(why)
        raise EndedError(why)

    def pause_and_end(self, why: str, status: int, seconds: int) -> NoReturn:
        del seconds
        self.end(why, status)


class Node:
    """A process of a member, from its start to its end.

    ``ended`` says how it ended, empty while it lives.
    """

    def __init__(self, group: Group, member: int, name: str, disk: SimDisk) -> None:
        self.group = group
        self.member = member
        self.name = name
        self.disk = disk
        self.clock = MachineClock(group.clock)
        self.rng = random.Random(f"{group.seed} {name}")
        self.ended = ""
        self.why = ""
        self.paused = False
        self.stalled_until = 0.0
        self.faulty = False
        """Whether its storage failed it, or lost a reply: then less is promised, and it may end."""
        self.epoch = 0
        self.began_above = 0
        self.recovered = False
        self.superseded = False
        """Whether somebody took the store over while this process had it and lived."""
        self.tidy = False
        """Whether it closed its store at a clean stop: an owner that is followed by one of ours
        does not.
        """
        self.told: set[bytes] = set()
        """Channels in which a publisher was told by it."""
        self.acks_read: list[object] = []
        self._tag: tuple[Node, int, dict[bytes, Generation]] = (self, 0, {})
        """What marks its messages: process, epoch, and which life each channel's name stands
        for.
        """
        self.link: SimLink | None = None
        self.stop_before: Callable[[str, tuple[object, ...]], bool] | None = None
        """Pauses the process before the first storage call for which it holds: for histories
        written by hand.
        """
        self.first: Fiber | None = None
        """The thread that moves before the others, so that it makes the call before which it stood:
        for them, too.
        """
        self._control: SimControl | None = None
        self._fibers: list[Fiber] = []
        self._current: Fiber | None = None
        self._budget = 0
        self._stopping = False
        disk.on_call = self._on_call
        disk.keeps_log = False
        self._loop = SimLoop(self.clock)
        asyncio.events._set_running_loop(self._loop)
        try:
            self.product = _Product(self, group.options_of(member))
            self._life = self._loop.create_task(self.product.main())
        finally:
            asyncio.events._set_running_loop(None)

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch})"

    # ---- what the product is given
    # -------------------------------------------------------------------------------

    def owner_of(self, context: StoreContext) -> SimOwner:
        """The right to write of this process."""
        return SimOwner(self, context)

    def new_link(self, _urls: object, **_options: object) -> Link:
        """The data link."""
        self.link = SimLink(self.group.hub, self.member, lambda: self._tag, self._park_for)
        self.link.on_read = self.acks_read.append
        return cast("Link", self.link)

    def new_control(self, _urls: object, **options: Any) -> Any:
        """The control connection."""
        self._control = SimControl(self.group.hub, self.member, **options)
        return self._control

    def spawn(self, name: str, target: Callable[[], None]) -> Fiber:
        """Start a thread."""
        fiber = Fiber(name, target)
        self._fibers.append(fiber)
        return fiber

    def park(self, ready: Callable[[], bool]) -> None:
        """Let the present fiber wait; what waits outside of one (nothing does) goes on."""
        if self._current is not None:
            self._current.park(ready)

    def _park_for(self, ready: Callable[[], bool], seconds: float) -> None:
        end = self.clock.mono() + seconds
        self.park(lambda: ready() or self.clock.mono() >= end)

    def spent(self, calls: int) -> None:
        """The present turn cost so many calls."""
        self._budget -= calls

    def broken(self, text: str) -> NoReturn:
        """A promise is broken. Kept, because the product may catch the exception."""
        violation = Violation(text)
        self.group.violations.append(violation)
        raise violation

    def took(self, epoch: int) -> None:
        """The owner has a number."""
        self.epoch = epoch
        for other in self.group.nodes:
            owner = other.product.owner
            if (
                other is not self
                and not other.ended
                and owner is not None
                and owner.present is not None
            ):
                other.superseded = True
        self._tag = (self, epoch, self._tag[2])
        if isinstance(self.disk, ClientDisk):
            self.disk.epoch = epoch
        try:
            self.group.ledger.took(epoch, self.began_above)
        except Violation as violation:
            self.group.violations.append(violation)
            raise
        self.group.met["activations"] += 1

    def speaks_of(self, name: bytes, life: Generation | None) -> None:
        """From now on the name of a channel stands for that life of it."""
        lives = {**self._tag[2], name: life} if life is not None else self._tag[2]
        self._tag = (self, self.epoch, lives)

    @property
    def lives(self) -> dict[bytes, Generation]:
        """The life that each channel's name stands for."""
        return self._tag[2]

    # ---- the schedule's side
    # -------------------------------------------------------------------------------------

    @property
    def store(self) -> Store | None:
        """The store that it serves."""
        serving = self.product.plane.serving
        return serving.store if serving is not None else None

    @property
    def serving(self) -> bool:
        """Whether it has recovered and serves, as far as it knows."""
        return not self.ended and self.product.is_serving()

    @property
    def successor(self) -> str:
        """The process that is to follow it, which keeps by now what is published.

        Empty while it does not leave.
        """
        group = self.product.group
        return group._handover.successor if group is not None else ""

    @property
    def is_misled(self) -> bool:
        """Whether it takes its own datastore for the wrong one."""
        group = self.product.group
        return not self.ended and group is not None and group.standby.phase is Phase.WRONG_STORE

    @property
    def phase(self) -> str:
        """What it is doing."""
        return self.product.status.now().line

    def forget_told(self) -> None:
        """Count from now on."""
        self.told.clear()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping

    @stopping.setter
    def stopping(self, wanted: bool) -> None:
        if wanted and not self._stopping and not self.ended:
            self._stopping = True
            self._within_loop(lambda: self.product.request_stop(15))

    def ask(self, work: Callable[[], Coroutine[None, None, object]]) -> None:
        """An operator asks for something; what is refused is nobody's business here."""

        async def asked() -> None:
            with contextlib.suppress(FtstanError, TimeoutError):
                await work()

        self._within_loop(lambda: self._loop.create_task(asked()))

    def switchover(self) -> None:
        """An operator asks for a switchover."""
        self.ask(lambda: self.product.member.switchover(""))

    def administer(self, verb: Verb, name: str, **options: Any) -> None:
        """An operator deletes or purges a channel; what is answered goes to the ledger."""
        request = Request(verb, name=name, **options)

        async def carry_out() -> None:
            try:
                answer = await self.product.member.administer(request)
            except RefusedError:
                return
            if answer.ok:
                self.group.answered(self, request, answer)

        self.ask(carry_out)

    def _within_loop(self, function: Callable[[], object]) -> None:
        asyncio.events._set_running_loop(self._loop)
        try:
            function()
        finally:
            asyncio.events._set_running_loop(None)

    def spend(self, calls: int) -> None:
        """Let it move: what is due on the loop, and its threads for so many storage calls."""
        if self.ended or self.paused:
            return
        self._budget = calls
        self._move_loop()
        while self._budget > 0 and not self.ended and not self.paused:
            ready = [f for f in self._fibers if f.runnable]
            if not ready or self.stalled:
                break
            self._current = self.first if self.first in ready else self._choose(ready)
            try:
                self._current.resume()
            except Killed:
                # Whoever ended the process at once is met by its own clean-up, which reaches
                # nothing any more.
                if not self.ended:
                    raise
            finally:
                self._current = None
            self._fibers = [f for f in self._fibers if not f.over]
            self._move_loop()
            self._check()
        self._check()

    def _choose(self, ready: list[Fiber]) -> Fiber:
        return ready[0] if len(ready) == 1 else self.rng.choice(ready)

    def wake(self) -> None:
        """Let what is due happen, without storage."""
        self.spend(0)

    def _move_loop(self) -> None:
        if self.ended:
            return
        if self._control is not None:
            self._control.look()
        self._loop.run_ready()
        if self._life.done() and not self.ended:
            self._end_of_life()

    def _check(self) -> None:
        if self.group.violations:
            raise self.group.violations[0]
        failures = [f for f in self._loop.failures if not isinstance(f, (EndedError, Killed))]
        if failures and not self.ended:
            raise AssertionError(f"{self}: the event loop met {failures[0]!r}") from failures[0]
        if self.ended:
            self._clear_away()

    def _end_of_life(self) -> None:
        error = None if self._life.cancelled() else self._life.exception()
        if error is None:
            self.ended = "stopped"
            self.why = f"status {self._life.result()}"
        elif isinstance(error, FencedError):
            self.ended = "fenced"
            self.why = error.text
        elif isinstance(error, FtstanError):
            self.ended = "failed"
            self.why = error.text
        else:
            raise AssertionError(f"{self} crashed: {error!r}") from error
        self._judge_end()

    def end_at_once(self, why: str) -> None:
        """``os._exit``: nothing more is done by any of its threads."""
        if not self.ended:
            self.ended = "fenced" if why.startswith("ft: epoch") or "lock file" in why else "failed"
            self.why = why
            self.disk.dead = True
            self._judge_end()

    def _judge_end(self) -> None:
        """It ends only because another one reached for the store, or because storage or NATS failed
        it.
        """
        if self.ended == "stopped" or self.faulty or any(word in self.why for word in _SELF_JUDGED):
            return
        if "Traceback" in self.why or not self.group.somebody_reached_above(self.epoch):
            self.group.violations.append(Violation(f"{self} ended without need: {self.why}"))

    def kill(self, written: int = 0) -> None:
        """End the process in the call that it is about to make.

        ``written`` bytes of it still happen.
        """
        if not self.ended:
            self.ended = "killed"
        self._clear_away(written)

    def _clear_away(self, written: int = 0) -> None:
        fibers = self._fibers
        self._fibers = []
        for fiber in fibers:
            with contextlib.suppress(Killed, EndedError):
                fiber.resume(Killed(written))
            self.disk.dead = True
        if not self._loop.is_closed():
            self.disk.dead = True
            self._loop.abandon()
        if self.link is not None:
            self.link.close()
        if self._control is not None:
            connection = self._control._connection
            if connection is not None:
                self.group.hub.close(connection)
        self.disk.kill()

    @property
    def stalled(self) -> bool:
        """Whether storage does not answer it."""
        return self.stalled_until > 0 and self.clock.mono() < self.stalled_until

    # ---- within a thread
    # -----------------------------------------------------------------------------------------

    def _on_call(self, _number: int, call: str, args: tuple[object, ...]) -> None:
        fiber = self._current
        if fiber is None:
            return
        self._budget -= 1
        if self.stop_before is not None and self.stop_before(call, args):
            self.stop_before = None
            self.paused = True
            fiber.park(None)
        elif self._budget < 0 or (self.stalled_until > 0 and self.stalled):
            fiber.park(None)
        if 0 < self.epoch < self.group.ledger.top and call in _WRITES:
            self.group.met[f"zombie {call}"] += 1


def options_for(group: Group) -> ServerOptions:
    """What a member is started with."""
    shape = group.shape
    return ServerOptions(
        cluster_id=CLUSTER,
        store="FILE",
        dir=ROOT,
        ft_group="group",
        nats_servers=("nats://sim:4222",),
        io_spin=0,
        limits=StoreLimits(max_channels=0, channel=shape.limits or UNLIMITED),
        dedup_window=shape.dedup,
        ft=FtOptions(
            steal_after=round(shape.steal_after * SECOND),
            mixed="on" if shape.mixed else FT_MIXED_AUTO,
            nats_timeout=0 if shape.mixed else 5 * SECOND,
        ),
    )
