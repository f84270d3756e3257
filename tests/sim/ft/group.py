"""A simulated group and its bad days: everything that happens follows from the seed.

Two to four members on one volume, on one machine or each on a host of its own (``hosts.py``). The
schedule gives each of them a few storage calls at a time, lets time pass, carries messages, and now
and then something goes wrong. At the end everything is healed, and within a bounded time some
member must serve every channel; it stops cleanly, and the next one must find everything.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

from ftstan.admin.protocol import Verb
from ftstan.base import log
from ftstan.base.clock import ManualClock
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.epoch_records import SLOT_SIZE, decode_slot, is_blank
from ftstan.ft.heartbeat import Heartbeat, encode_heartbeat
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.subjects import heartbeat_subject
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import slices
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.ft.cleanstop import judge_clean_stop
from tests.sim.ft.clients import Client
from tests.sim.ft.gopeer import interlude
from tests.sim.ft.hosts import Client as Host
from tests.sim.ft.hosts import ClientDisk, Late, put
from tests.sim.ft.ledger import Ledger
from tests.sim.ft.locks import LockService
from tests.sim.ft.nodes import CLUSTER, ROOT, Node, options_for
from tests.sim.ft.readers import LiveReader
from tests.sim.ft.scripts import judge_archive
from tests.sim.ft.themes import theme_of
from tests.sim.model import UNLIMITED, Violation
from tests.sim.nats import Hub, Packet
from tests.sim.volume import FileNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.admin.protocol import Answer, Request
    from ftstan.config.options import ServerOptions
    from ftstan.stores.interface import ChannelLimits

_CLAIM = re.compile(r"ft\.claim\.([0-9]+)\Z")
_LONGEST_HEALING = 600
_CLIENTS = 3
#: Before these a pause says most.
_TURNS = ("open", "link", "rename", "unlink", "pwrite", "fsync", "fdatasync", "pread", "listdir")
_FAILING = (
    "open",
    "pread",
    "pwrite",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "listdir",
    "mkdir",
    "link",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a group stores, and how bad its days are. ``faults``: chance of one in each turn.

    ``mixed``: an original server is a member, too, and nothing is done to the lock that it trusts.
    ``failing``: storage fails calls and loses replies. ``dedup``: publishes that the window
    remembers; clients then repeat what is not answered. ``numbers``: slice numbers that an epoch
    may use, few of which make owners raise their epoch. ``steal_after``: seconds of silence after
    which an owner is replaced without its lock, 0 for never. ``large``: some messages are larger
    than a page, and hosts freeze between two pages of a batch. ``later``: no channel is opened
    before it must.
    """

    members: int = 3
    network: bool = False
    channels: int = 2
    turns: int = 40
    faults: float = 0.3
    options: FileStoreOptions = field(default_factory=FileStoreOptions)
    limits: ChannelLimits = UNLIMITED
    deletes: bool = False
    hard_links: bool = True
    mixed: bool = False
    failing: bool = False
    dedup: int = 0
    numbers: int = 0
    steal_after: float = 0.0
    large: bool = False
    later: bool = False


class Group:
    """The members, their clients, their storage, their network and their clock."""

    def __init__(self, seed: int, shape: Shape, met: Counter[str] | None = None) -> None:
        self.seed = seed
        self.shape = shape
        self.network = shape.network
        self.met: Counter[str] = Counter() if met is None else met
        self.rng = random.Random(f"group {seed}")
        self.client_rng = random.Random(f"clients {seed}")
        self.clock = ManualClock()
        self.locks = LockService()
        self.hub = Hub(random.Random(f"hub {seed}"))
        self.ledger = Ledger(shape.limits)
        self.reader = LiveReader(self.ledger)
        self.archived: list[bytes] = []
        """Data files that archive scripts were given."""
        self._crashed_behind = -1
        """The epoch behind which an original server crashed last."""
        self.violations: list[Violation] = []
        self.lock_harmed = False
        self._late = 0
        """How many late pages have arrived."""
        self.volume = SimDisk(met=self.met).volume
        self.volume.hard_links = shape.hard_links
        self._serial = 0
        self._lives = 0
        self._generous_until = 0.0
        self.theme = theme_of(seed, shape)
        self._hosts = [
            self._new_host(random.Random(f"client {seed} {i}")) for i in range(shape.members)
        ]
        self._ghosts: list[Late] = []
        self._cut_off: set[int] = set()
        self._resume_at: dict[int, float] = {}
        self._start_at: dict[int, float] = {}
        self._armed: dict[int, Callable[[int], None]] = {}
        self._alarms: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.clients = [self._new_client() for _ in range(_CLIENTS)]
        self.nodes: list[Node] = [self._start(i) for i in range(shape.members)]

    def serial(self) -> int:
        """A number that nobody had before."""
        self._serial += 1
        return self._serial

    def options_of(self, _member: int) -> ServerOptions:
        """What a member is started with."""
        return options_for(self)

    def _new_client(self) -> Client:
        return Client(self, self.serial(), repeats=bool(self.shape.dedup))

    def _new_host(self, rng: random.Random) -> Host:
        host = Host(rng)
        host.trusts_names = self.theme.trusts_names
        host.stops_between_pages = self.shape.large
        return host

    def _start(self, member: int) -> Node:
        self._lives += 1
        disk = (
            ClientDisk(self.volume, self.met, self._hosts[member])
            if self.network
            else SimDisk(self.volume, self.met)
        )
        return Node(self, member, f"N{member}.{self._lives}", disk)

    def end(self) -> None:
        """End every process."""
        for node in self.nodes:
            if not node.ended:
                node.kill()

    def somebody_reached_above(self, epoch: int) -> bool:
        """Whether the storage shows that anybody wanted, or has, a higher number, or the lock file
        was harmed.
        """
        if not epoch:
            return False
        entries = self.volume.root.entries
        claims = [int(m[1]) for name in entries if (m := _CLAIM.match(name))]
        file = entries.get(EPOCH_NAME)
        above = bytes(file.data[(epoch + 1) * SLOT_SIZE :]) if isinstance(file, FileNode) else b""
        return self.lock_harmed or max(claims, default=0) > epoch or not is_blank(above)

    # ---- one turn
    # ----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Perhaps something goes wrong; then everybody moves a little, and time passes."""
        rng = self.rng
        if rng.random() < self.shape.faults:
            if self.theme.troubles and rng.random() < self.theme.share:
                rng.choice(self.theme.troubles)(self)
            else:
                rng.choice(self._faults())()
        self._move_clients()
        for member in rng.sample(range(len(self.nodes)), len(self.nodes)):
            if rng.random() < 0.7:
                self.nodes[member].spend(
                    rng.choice((rng.randint(1, 10), rng.randint(5, 60), 120, 400))
                )
            if self.network and rng.random() < 0.1:
                self._land_one()
            self._spring_traps()
            self.reader.look(self.volume)
            self.hub.flow(0.6)
        self.pass_time(rng.choice((0.02, 0.1, 0.3, 0.3, 1.2)))

    def _move_clients(self) -> None:
        self.clients = [self._new_client() if client.gone else client for client in self.clients]
        for client in self.clients:
            client.turn()
        self.hub.flow(0.8)

    def pass_time(self, seconds: float) -> None:
        """Time passes; what is due happens."""
        self.clock.advance(seconds)
        now = self.clock.mono()
        if now >= self._generous_until:
            self.locks.generous = False
        for member, at in list(self._resume_at.items()):
            if now >= at:
                self._go_on(member)
        self.hub.flow(0.9)
        for member, node in enumerate(self.nodes):
            if node.ended:
                at = self._start_at.setdefault(member, now + self.rng.choice((0.1, 2.0)))
                self._bury(node)
                if now >= at:
                    del self._start_at[member]
                    self.met[f"ended: {node.ended}"] += 1
                    self.nodes[member] = self._start(member)
            else:
                node.wake()
        self.reader.look(self.volume)
        if self.violations:
            raise self.violations[0]

    @property
    def _clean(self) -> bool:
        """Whether the last owner, who had recovered, stopped cleanly, and nobody has begun to write
        since.
        """
        owners = [n for n in self.nodes if n.epoch == self.ledger.top and n.epoch and n.recovered]
        return (
            bool(owners)
            and owners[0].ended == "stopped"
            and not self.somebody_reached_above(self.ledger.top)
        )

    def _bury(self, node: Node) -> None:
        """A process that came to its end: its handles are closed, and its locks with them."""
        node.kill()
        self.locks.lose(node.disk)

    # ---- what goes wrong
    # -----------------------------------------------------------------------------------------

    def _faults(self) -> list[Callable[[], object]]:
        common: list[Callable[[], object]] = [
            self._pause,
            self._pause,
            self._pause_at_a_call,
            self._pause_at_a_call,
            self._pause_at_a_call,
            self._cut_power_at_a_call,
            self.claimers_die,
            self.claimers_die,
            self._stand_still,
            self._kill,
            self._power_cut,
            self._unlink_lock,
            self._lose_lock,
            self._lose_lock,
            self._two_holders,
            self._partition,
            self._forge,
            self._stop,
            self.stop_group,
            self._switch_over,
            self._stall,
            self.leave_claim,
        ]
        if self.shape.deletes:
            common += [self._delete, self._purge]
        if self.shape.failing:
            common += [self._fail_storage, self._fail_storage, self._lose_reply]
        if self.shape.mixed:
            safe = [
                self._kill,
                self._partition,
                self._forge,
                self._stop,
                self._stop,
                self.stop_group,
                self.stop_group,
                self._original_serves,
            ]
            return [*safe, *(self._original_serves for _ in range(4))]
        common += [self._switch_mixed]
        network = [
            self._freeze,
            self._freeze,
            self._kill_host,
            self._kill_host,
            self._restart_storage,
        ]
        return [*common, *network] if self.network else common

    def _some(self, *, owners: bool = True) -> int | None:
        """A member that lives and is not paused; the owner more often than the others."""
        alive = [i for i, n in enumerate(self.nodes) if not n.ended and not n.paused]
        serving = [i for i in alive if self.nodes[i].epoch]
        if serving and owners and self.rng.random() < 0.7:
            return self.rng.choice(serving)
        return self.rng.choice(alive) if alive else None

    def _pause(self) -> int | None:
        """A process stands still between two storage calls, and its lock is often gone before it
        wakes up.
        """
        member = self._some()
        if member is not None:
            self.met["fault: pause"] += 1
            self.nodes[member].paused = True
            self._resume_at[member] = self.clock.mono() + self.rng.choice((0.5, 2.0, 5.0, 20.0))
            if self.rng.random() < 0.6:
                self.take_lock_from(member)
        return member

    def _pause_at_a_call(self) -> None:
        """A process is about to stand still, right before a call of a certain kind.

        Its lock is gone by then.
        """
        member = self._some()
        if member is not None:
            self.stop_at(member, self._pause_now, self.rng.choice(_TURNS))

    def _pause_now(self, member: int) -> None:
        self.met["fault: pause right before a call"] += 1
        self._resume_at[member] = self.clock.mono() + self.rng.choice((2.0, 5.0, 20.0))
        self.take_lock_from(member)

    def _cut_power_at_a_call(self) -> None:
        """The power fails while a process is in the middle of something."""
        member = self._some()
        if member is not None:
            self.stop_at(member, self._cut_power_now, self.rng.choice(_TURNS))

    def _cut_power_now(self, _member: int) -> None:
        self.met["fault: power cut right before a call"] += 1
        self._power_cut()

    def claimers_die(self, call: str = "", skip: int = 0) -> None:
        """The owner's lock goes, and whoever takes over dies right before some call, perhaps with
        its host.

        ``call``: drawn if empty; ``skip``: how many of them are made before.
        """
        owner = self.serving()
        if owner is not None:
            self.take_lock_from(owner.member)
        call = call or self.rng.choice(("fsync", "fsync", *_TURNS))
        for member, node in enumerate(self.nodes):
            if node is not owner and not node.ended and not node.paused and not node.epoch:
                self.stop_at(member, self.die_now, call, skip)

    def stop_at(
        self,
        member: int,
        then: Callable[[int], None],
        call: str,
        skip: int = 0,
        *,
        name: str = "",
        within: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let a process stand still before such a call (``""``: any) while ``within`` holds.

        ``then`` comes at once.

        ``skip``: how many of them are made before; ``name``: what they must name, if anything. What
        is done to the lock file does not count.
        """
        left = skip

        def is_it(made: str, args: tuple[object, ...]) -> bool:
            nonlocal left
            if call not in {"", made} or (name and name not in args):
                return False
            if str(args[-1]).startswith(".rootdir") or not within():
                return False
            left -= 1
            return left < 0

        self._armed[member] = then
        self.nodes[member].stop_before = is_it

    def when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """Do something once as soon as a condition holds."""
        self._alarms.append((condition, then))

    def sleep(self, member: int, seconds: float) -> None:
        """Let a process stand still for so long."""
        self.nodes[member].paused = True
        self._resume_at[member] = self.clock.mono() + seconds

    def wake(self, member: int) -> None:
        """Let a process that stands still go on, before anybody else moves."""
        self._go_on(member)
        self.nodes[member].stalled_until = 0.0
        self.nodes[member].spend(self.rng.choice((3, 20, 100, 400)))

    def _go_on(self, member: int) -> None:
        self._resume_at.pop(member, None)
        self.nodes[member].paused = False
        self.nodes[member].clock.go_on()

    def die_now(self, member: int) -> None:
        self.met["fault: claimer killed right before a call"] += 1
        node = self.nodes[member]
        node.kill()
        if self.network:
            self._abandon_host(member)
            self._ghosts.clear()
            if self.rng.random() < 0.85:
                self._restart_storage()
        self._bury(node)

    def _restart_storage(self) -> None:
        """The file server restarts below hosts that live: what dead ones had not synced may be
        lost, in any order.
        """
        self.met["fault: storage restarted"] += 1
        self.volume.restart(self.rng, self.met)
        self.reader.storage_went_down()

    def _spring_traps(self) -> None:
        for member, then in list(self._armed.items()):
            node = self.nodes[member]
            if node.ended or node.stop_before is None:
                del self._armed[member]
                if not node.ended and node.paused:
                    then(member)
        for alarm in list(self._alarms):
            condition, act = alarm
            if condition():
                self._alarms.remove(alarm)
                act()

    def _stand_still(self) -> None:
        """A virtual machine is paused, with its clocks: when it goes on, no time has passed for
        it.
        """
        member = self._pause()
        if member is not None:
            self.met["fault: machine paused with its clocks"] += 1
            self.nodes[member].clock.stop()

    def _stall(self) -> None:
        """Storage answers a member only after a while; its control thread goes on."""
        member = self._some()
        if member is not None:
            self.met["fault: slow storage"] += 1
            self.nodes[member].stalled_until = self.nodes[member].clock.mono() + self.rng.choice(
                (0.5, 2, 4, 12)
            )

    def _fail_storage(self) -> None:
        """Some call of a member fails; a sync that fails loses what it was for."""
        member = self._some()
        if member is not None:
            node = self.nodes[member]
            call = self.rng.choice(_FAILING)
            code = self.rng.choice((errno.EIO, errno.ENOSPC))
            self.met[f"fault: {errno.errorcode[code]}"] += 1
            self.met["fault: failed sync"] += call in {"fsync", "fdatasync"}
            node.faulty = True
            if code == errno.ENOSPC:
                # Without space what a repeat is known by is not written, which the log says.
                self.ledger.once.clear()
            node.disk.fail_next(call, code)

    def _lose_reply(self) -> None:
        """The server makes a name, its answer is lost, and the second try finds the name made."""
        member = self._some()
        if member is not None:
            node = self.nodes[member]
            call = self.rng.choice(("open", "link"))
            self.met[f"fault: lost reply of {call}"] += 1
            node.faulty = True
            node.disk.lose_reply(call)

    def leave_claim(self) -> None:
        """Somebody claims the next number and dies."""
        if EPOCH_NAME in self.volume.root.entries and self.ledger.top:
            disk = SimDisk(self.volume, self.met)
            root = disk.open_dir(ROOT)
            numbers = [int(m[1]) for name, _ in disk.listdir(root) if (m := _CLAIM.match(name))]
            name = f"ft.claim.{1 + max([self.ledger.top, *numbers])}"
            self.met["fault: claim left behind"] += 1
            disk.close(disk.open(root, name, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            disk.fsync(root)
            disk.kill()

    def serving(self) -> Node | None:
        """Whoever serves and moves."""
        return next((n for n in self.nodes if n.serving and not n.paused), None)

    def _switch_over(self) -> None:
        node = self.serving()
        if node is not None:
            self.met["fault: switchover"] += 1
            node.switchover()

    def _switch_mixed(self) -> None:
        """An operator says that original servers may be members, or that they are gone."""
        node = self.serving()
        if node is not None:
            self.switch_mixed(node, on=self.rng.random() < 0.3)

    def switch_mixed(self, node: Node, *, on: bool) -> None:
        """Let an operator tell the owner."""
        self.met["fault: mixed group switched"] += 1
        node.ask(lambda: node.product.member.set_mixed(on=on))

    def _delete(self) -> None:
        node = self.serving()
        if node is not None and node.lives:
            name = self.rng.choice(sorted(node.lives))
            self.ledger.deleting(name, node.epoch)
            node.administer(Verb.DELETE, name.decode(), force=True)

    def _purge(self) -> None:
        node = self.serving()
        if node is not None and node.lives:
            name = self.rng.choice(sorted(node.lives))
            up_to = self.rng.randint(1, max([*node.lives[name].model.offered, 1]))
            node.administer(Verb.PURGE, name.decode(), up_to=up_to)

    def answered(self, node: Node, request: Request, answer: Answer) -> None:
        """An operator was told that it is done."""
        if request.verb is Verb.PURGE:
            self.met["purges"] += 1
            life = node.lives[request.name.encode()]
            gone = min(request.up_to, int(answer.rows[0]["next"]) - 1)
            if gone > life.purged:
                life.purged = gone
                life.purged_by = node.epoch

    def _freeze(self) -> None:
        """A host stands still; when it wakes up it trusts delegations that were taken away."""
        member = self._pause()
        if member is not None:
            self.met["fault: freeze"] += 1
            self._hosts[member].freeze()
            self.take_lock_from(member)

    def take_lock_from(self, member: int) -> None:
        """Take the lock from a process, which is not told."""
        self.met["fault: lock lost"] += self.locks.lose(self.nodes[member].disk)

    def _lose_lock(self) -> None:
        """A lease expires, or the lock goes at a disconnect, while its holder runs."""
        member = self._some()
        if member is not None:
            self.take_lock_from(member)

    def _two_holders(self) -> None:
        self.met["fault: generous lock service"] += 1
        self.locks.generous = True
        self._generous_until = self.clock.mono() + 3

    def _unlink_lock(self) -> None:
        if LOCK_NAME in self.volume.root.entries:
            self.met["fault: lock file unlinked"] += 1
            self.lock_harmed = True
            disk = SimDisk(self.volume, self.met)
            disk.unlink(disk.open_dir(ROOT), LOCK_NAME)
            disk.kill()

    def _kill(self) -> None:
        member = self._some()
        if member is not None:
            self.kill(member)

    def kill(self, member: int) -> None:
        """Kill a process, perhaps in the middle of a write."""
        self.met["fault: process killed"] += 1
        node = self.nodes[member]
        node.kill(self.rng.choice((0, self.rng.randint(1, 600))))
        self._bury(node)

    def _kill_host(self) -> None:
        """What it had not written back is lost, or arrives some day.

        Its lock stays until somebody gives it up.
        """
        member = self._some()
        if member is not None:
            self.met["fault: host killed"] += 1
            self._hosts[member].dead = True
            self.nodes[member].kill(self.rng.choice((0, self.rng.randint(1, 600))))
            self._abandon_host(member)

    def _abandon_host(self, member: int) -> None:
        client = self._hosts[member]
        client.dead = True
        self._ghosts += client.abandoned()
        self._hosts[member] = self._new_host(client.rng)

    def _power_cut(self) -> None:
        """All machines and the storage go down at once: what was on its way between them never
        arrives.
        """
        self.met["fault: power cut"] += 1
        for member, node in enumerate(self.nodes):
            self._hosts[member].dead = True
            if not node.ended:
                node.kill(self.rng.choice((0, self.rng.randint(1, 600))))
            self._abandon_host(member)
            self._resume_at.pop(member, None)
        self.locks.holders.clear()
        mode = self.rng.choice(
            (CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED, CrashMode.KEPT)
        )
        self.volume = SimDisk(self.volume, self.met).crash(self.rng, mode).volume
        self.reader.storage_went_down()
        self._ghosts.clear()

    def _partition(self) -> None:
        """A member is cut off from NATS, or comes back."""
        member = self.rng.randrange(len(self.nodes))
        cut = member not in self._cut_off
        (self._cut_off.add if cut else self._cut_off.discard)(member)
        self.met["fault: NATS cut"] += cut
        if cut:
            self.hub.cut(member)
        else:
            self.hub.heal(member)

    def _forge(self) -> None:
        """Somebody says that it is active under an epoch that nobody has, or that it is an original
        server.
        """
        self.met["fault: forged heartbeat"] += 1
        epoch = self.ledger.top + self.rng.randint(0, 5)
        beat = encode_heartbeat(Heartbeat("FORGED", 1, epoch, self._store_id()))
        forger = self.hub.connect(None, lambda *_: None)
        self.hub.publish(forger, Packet(heartbeat_subject(CLUSTER, "group"), "", beat))
        self.hub.close(forger)

    def _store_id(self) -> bytes:
        file = self.volume.root.entries.get(EPOCH_NAME)
        if isinstance(file, FileNode) and self.rng.random() < 0.8:
            for at in range(len(file.data) // SLOT_SIZE - 1, 0, -1):
                record = decode_slot(bytes(file.data[at * SLOT_SIZE : (at + 1) * SLOT_SIZE]), at)
                if record is not None:
                    return record.store_id
        return bytes(16)

    def _stop(self) -> None:
        member = self._some()
        if member is not None and not self.nodes[member].stopping:
            self.met["fault: clean stop asked for"] += 1
            self.nodes[member].stopping = True

    def stop_group(self) -> None:
        """The owner is the last one that is asked to stop; the others come back later."""
        owner = self.serving()
        if owner is not None:
            self.met["fault: the whole group stopped"] += 1
            self._leave_alone(owner)
            owner.stopping = True
            # Before anybody of ours comes.
            self.when(
                lambda: bool(owner.ended),
                self._original_serves
                if self.shape.mixed
                else partial(self._judge_stop, owner, self._late),
            )
            if self.rng.random() < 0.5:
                self.when(
                    lambda: bool(owner.ended),
                    self._restart_storage if self.network else self._power_cut,
                )

    def _original_serves(self) -> None:
        """After a clean stop an original server gets the lock first, publishes, and leaves.

        Not behind one that crashed: it would first repair what that left, which the simulated one
        cannot.
        """
        file = self.volume.root.entries.get(LOCK_NAME)
        crashes = self.met["fault: an original server crashes"]
        top = self.ledger.top
        if (
            self._clean
            and self._crashed_behind != top
            and file is not None
            and not self.locks.holders.get(file)
        ):
            self.met["fault: an original server serves"] += (
                interlude(self, self.rng, may_crash=True) > 0
            )
            if self.met["fault: an original server crashes"] > crashes:
                self._crashed_behind = top

    def _land_one(self) -> None:
        """A late page arrives: of a host that lives, stands still or is long dead."""
        sources = [client for client in self._hosts if client.dirty]
        if self._ghosts and (not sources or self.rng.random() < 0.5):
            write = self._ghosts.pop(self.rng.randrange(len(self._ghosts)))
            put(self.volume, write)
            self.met["late pages of dead hosts"] += 1
        elif sources:
            write = self.rng.choice(sources).write_back(self.volume)
            self.met["pages written back"] += 1
        else:
            return
        self._landed(write)

    def land_all(self, member: int) -> None:
        """What a host has not written back yet arrives."""
        while self._hosts[member].dirty:
            self.met["pages written back"] += 1
            self._landed(self._hosts[member].write_back(self.volume))

    def _landed(self, write: Late) -> None:
        self._late += 1
        if 0 < write.epoch < self.ledger.top:
            self.met["late pages of former owners"] += 1
            self.met["late pages over files of the log"] += write.node.links > 0

    # ---- the end
    # ----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing goes wrong any more; what is on its way arrives."""
        self.locks.generous = False
        self._armed.clear()
        self._alarms.clear()
        for member, node in enumerate(self.nodes):
            node.paused = False
            node.stop_before = None
            node.clock.go_on()
            node.stalled_until = 0.0
            node.disk.fail_no_more()
            self._cut_off.discard(member)
            self.hub.heal(member)
        self._resume_at.clear()
        while self._ghosts or any(client.dirty for client in self._hosts):
            self._land_one()
        for holders in self.locks.holders.values():
            holders[:] = [process for process in holders if not process.dead]

    def stop(self, node: Node) -> None:
        """Let a node stop cleanly."""
        node.stopping = True
        for _ in range(_LONGEST_HEALING):
            if node.ended:
                return
            for other in self.nodes:
                other.spend(200)
            self._move_clients()
            self.pass_time(0.1)
        raise Violation(f"{node} does not stop: {node.phase}")

    def stop_all(self, last: Node) -> None:
        """End the group: nobody follows the owner, so it leaves the store tidy.

        Then perhaps the power goes.
        """
        self._leave_alone(last)
        late = self._late
        self.stop(last)
        self._judge_stop(last, late)
        if self.rng.random() < 0.5:
            self._power_cut()
        self._start_at.clear()

    def _judge_stop(self, last: Node, late: int) -> None:
        """Judge a clean stop.

        What came of late pages before it, ``late`` of them, is the product's to mend.
        """
        if last.tidy and self._late == late and last.epoch == self.ledger.top:
            judge_clean_stop(self)

    def _leave_alone(self, last: Node) -> None:
        for member, node in enumerate(self.nodes):
            if node is not last:
                if not node.ended:
                    node.kill()
                self._bury(node)
                self._start_at[member] = self.clock.mono() + 30

    def serve(self) -> Node:
        """Without faults: a member that, from now on, has acknowledged a publish in every
        channel.
        """
        for node in self.nodes:
            node.forget_told()
        everything = {b"channel.%d" % i for i in range(self.shape.channels)}
        for _ in range(_LONGEST_HEALING):
            for node in self.nodes:
                if node.is_misled:
                    # What one forged heartbeat can do to a member that never heard an owner: the
                    # operator restarts it.
                    self.met["members restarted after a mistaken alarm"] += 1
                    node.kill()
                    self._bury(node)
                node.spend(200)
                if node.serving and node.told >= everything:
                    return node
            self._move_clients()
            for client in self.clients:
                if client.is_connected and self.rng.random() < 0.3:
                    client.publish(self.rng.choice(sorted(everything)))
            self.pass_time(0.1)
        states = ", ".join(f"{n}: {n.ended or n.phase}" for n in self.nodes)
        raise Violation(f"nobody serves although nothing is wrong any more: {states}")


def _say_nothing(*_line: object, **_fields: object) -> None:
    """The stores report every death that they find: a hundred lines a history, and each waits for a
    thread.
    """


@contextlib.contextmanager
def numbers_of(shape: Shape) -> Iterator[None]:
    """So many slice numbers an epoch, if the shape says so."""
    with contextlib.ExitStack() as stack:
        if shape.numbers:
            stack.enter_context(mock.patch.object(slices, "NUMBERS_PER_EPOCH", shape.numbers))
        yield


@contextlib.contextmanager
def _collected_at_the_end() -> Iterator[None]:
    """The collector rests within a history: all that it makes is young at its end, and goes at
    once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_enabled:
            gc.enable()


def run_history(seed: int, shape: Shape) -> Counter[str]:
    """One history, without a log; raises ``Violation``. Returns what was met."""
    with (
        numbers_of(shape),
        mock.patch.object(log.Logger, "_write", _say_nothing),
        _collected_at_the_end(),
    ):
        return _run_history(seed, shape)


def _run_history(seed: int, shape: Shape) -> Counter[str]:
    group = Group(seed, shape)
    try:
        for _ in range(round(shape.turns * group.theme.length)):
            group.turn()
        group.heal()
        (group.stop if group.rng.random() < 0.5 else group.stop_all)(group.serve())
        group.serve()
        if shape.options.slice_archive_script:
            judge_archive(group)
    except Violation as violation:
        raise Violation(f"{violation} [seed={seed}, shape={shape}]") from violation
    finally:
        group.end()
    ledger = group.ledger
    group.met["acked messages"] += ledger.acked
    group.met["acknowledgements kept"] += ledger.kept
    group.met["answers after a successor's recovery"] += ledger.late_answers
    group.met["histories"] += 1
    return group.met
