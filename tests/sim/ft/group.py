"""A simulated group and its bad days: everything that happens follows from the seed.

Two to four members on one volume, on one machine or each on a host of its own (``hosts.py``). The schedule gives
each of them a few storage calls at a time, lets time pass, carries messages, and now and then something goes wrong.
At the end everything is healed, and within a bounded time some member must serve every channel; it stops cleanly, and
the next one must find everything.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.clock import ManualClock
from ftstan.ft.epoch import EPOCH_NAME
from ftstan.ft.events import HeartbeatHeard, ReleasedHeard
from ftstan.ft.heartbeat import Heartbeat, decode_heartbeat, encode_heartbeat
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.slots import SLOT_SIZE, decode_slot, is_blank
from ftstan.ft.subjects import Released, decode_released, encode_released
from ftstan.stores.file.env import FileStoreOptions
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.ft.gopeer import interlude
from tests.sim.ft.hosts import Client, ClientDisk, Late, put
from tests.sim.ft.ledger import Ledger
from tests.sim.ft.locks import LockService
from tests.sim.ft.nodes import ROOT, Node
from tests.sim.model import UNLIMITED, Violation
from tests.sim.volume import FileNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.interface import ChannelLimits

_CLAIM = re.compile(r"ft\.claim\.([0-9]+)\Z")
_LONGEST_HEALING = 600


@dataclass(frozen=True, slots=True)
class Shape:
    """What a group stores, and how bad its days are. ``faults``: chance of one in each turn.

    ``mixed``: an original server is a member, too, and nothing is done to the lock that it trusts.
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


class Group:
    """The members, their storage, their network and their clock."""

    def __init__(self, seed: int, shape: Shape, met: Counter[str] | None = None) -> None:
        self.seed = seed
        self.shape = shape
        self.network = shape.network
        self.met: Counter[str] = Counter() if met is None else met
        self.rng = random.Random(f"group {seed}")
        self.clock = ManualClock()
        self.locks = LockService()
        self.ledger = Ledger(shape.limits)
        self.lock_harmed = False
        self.volume = SimDisk(met=self.met).volume
        self.volume.hard_links = shape.hard_links
        self._serial = 0
        self._lives = 0
        self._generous_until = 0.0
        self._clients = [Client(random.Random(f"client {seed} {i}")) for i in range(shape.members)]
        self._ghosts: list[Late] = []
        self._cut_off: set[int] = set()
        self._resume_at: dict[int, float] = {}
        self._start_at: dict[int, float] = {}
        self._mail: dict[int, list[HeartbeatHeard | ReleasedHeard]] = {i: [] for i in range(shape.members)}
        self.nodes: list[Node] = [self._start(i) for i in range(shape.members)]

    def serial(self) -> int:
        """A number that nobody had before."""
        self._serial += 1
        return self._serial

    def _start(self, member: int) -> Node:
        self._lives += 1
        disk = (
            ClientDisk(self.volume, self.met, self._clients[member]) if self.network else SimDisk(self.volume, self.met)
        )
        node = Node(self, f"N{member}.{self._lives}", disk)
        node.connect(member not in self._cut_off)
        return node

    def end(self) -> None:
        """End every process."""
        for node in self.nodes:
            if not node.ended:
                node.kill()

    def somebody_reached_above(self, epoch: int) -> bool:
        """Whether the storage shows that anybody wanted, or has, a higher number, or the lock file was harmed."""
        if not epoch:
            return False
        entries = self.volume.root.entries
        claims = [int(m[1]) for name in entries if (m := _CLAIM.match(name))]
        file = entries.get(EPOCH_NAME)
        above = bytes(file.data[(epoch + 1) * SLOT_SIZE :]) if isinstance(file, FileNode) else b""
        return self.lock_harmed or max(claims, default=0) > epoch or not is_blank(above)

    # ---- messages ------------------------------------------------------------------------------------------------

    def publish_beat(self, sender: Node, payload: bytes) -> None:
        """A heartbeat, as bytes."""
        beat = decode_heartbeat(payload)
        assert beat is not None
        self._publish(sender, HeartbeatHeard(beat))

    def publish_released(self, sender: Node, released: Released) -> None:
        """An owner let go."""
        decoded = decode_released(encode_released(released))
        assert decoded is not None
        self._publish(sender, ReleasedHeard(decoded))

    def _publish(self, sender: Node | None, event: HeartbeatHeard | ReleasedHeard) -> None:
        if sender is not None and not sender.connected:
            return
        for member, node in enumerate(self.nodes):
            if node is not sender and node.connected and not node.ended:
                self._mail[member].append(event)

    # ---- one turn ------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Perhaps something goes wrong; then everybody moves a little, and time passes."""
        rng = self.rng
        if rng.random() < self.shape.faults:
            rng.choice(self._faults())()
        for member in rng.sample(range(len(self.nodes)), len(self.nodes)):
            if rng.random() < 0.7:
                self.nodes[member].spend(rng.choice((rng.randint(1, 10), rng.randint(5, 60), 90)))
            if self.network and rng.random() < 0.1:
                self._land_one()
        self.pass_time(rng.choice((0.02, 0.1, 0.3, 0.3, 1.2)))

    def pass_time(self, seconds: float) -> None:
        """Time passes; what is due happens."""
        self.clock.advance(seconds)
        now = self.clock.mono()
        if now >= self._generous_until:
            self.locks.generous = False
        for member, at in list(self._resume_at.items()):
            if now >= at:
                del self._resume_at[member]
                self.nodes[member].paused = False
        for member, node in enumerate(self.nodes):
            if node.ended:
                at = self._start_at.setdefault(member, now + self.rng.choice((0.1, 2.0)))
                if not node.disk.dead:
                    self._bury(node)
                if now >= at:
                    del self._start_at[member]
                    self._mail[member].clear()
                    self.met[f"ended: {node.ended}"] += 1
                    self.nodes[member] = self._start(member)
            elif not node.paused:
                mail, self._mail[member] = self._mail[member], []
                for event in mail:
                    node.hear(event)
                node.wake()

    @property
    def _clean(self) -> bool:
        """Whether the last owner stopped cleanly, and nobody has begun to write since."""
        owners = [n for n in self.nodes if n.epoch == self.ledger.top and n.epoch]
        return bool(owners) and owners[0].ended == "stopped" and not self.somebody_reached_above(self.ledger.top)

    def _bury(self, node: Node) -> None:
        """A process that came to its end: its handles are closed, and its locks with them."""
        node.disk.kill()
        self.locks.lose(node.disk)

    # ---- what goes wrong -----------------------------------------------------------------------------------------

    def _faults(self) -> list[Callable[[], object]]:
        common: list[Callable[[], object]] = [
            self._pause,
            self._pause,
            self._pause,
            self._kill,
            self._power_cut,
            self._unlink_lock,
            self._lose_lock,
            self._lose_lock,
            self._two_holders,
            self._partition,
            self._forge,
            self._stop,
        ]
        if self.shape.mixed:
            safe = [self._kill, self._partition, self._forge, self._stop, self._stop, self._original_serves]
            return [*safe, *(self._original_serves for _ in range(4))]
        return [*common, self._freeze, self._freeze, self._kill_host] if self.network else common

    def _some(self, *, owners: bool = True) -> int | None:
        """A member that lives and is not paused; the owner more often than the others."""
        alive = [i for i, n in enumerate(self.nodes) if not n.ended and not n.paused]
        serving = [i for i in alive if self.nodes[i].epoch]
        if serving and owners and self.rng.random() < 0.7:
            return self.rng.choice(serving)
        return self.rng.choice(alive) if alive else None

    def _pause(self) -> int | None:
        """A process stands still between two storage calls, and its lock is often gone before it wakes up."""
        member = self._some()
        if member is not None:
            self.met["fault: pause"] += 1
            self.nodes[member].paused = True
            self._resume_at[member] = self.clock.mono() + self.rng.choice((0.5, 2.0, 5.0, 20.0))
            if self.rng.random() < 0.6:
                self._take_lock_from(member)
        return member

    def _freeze(self) -> None:
        """A host stands still; when it wakes up it trusts delegations that were taken away."""
        member = self._pause()
        if member is not None:
            self.met["fault: freeze"] += 1
            self._clients[member].freeze()
            self._take_lock_from(member)

    def _take_lock_from(self, member: int) -> None:
        self.met["fault: lock lost"] += self.locks.lose(self.nodes[member].disk)

    def _lose_lock(self) -> None:
        """A lease expires, or the lock goes at a disconnect, while its holder runs."""
        member = self._some()
        if member is not None:
            self._take_lock_from(member)

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
            self.met["fault: process killed"] += 1
            node = self.nodes[member]
            node.kill(self.rng.choice((0, self.rng.randint(1, 600))))
            self._bury(node)

    def _kill_host(self) -> None:
        """What it had not written back is lost, or arrives some day. Its lock stays until somebody gives it up."""
        member = self._some()
        if member is not None:
            self.met["fault: host killed"] += 1
            self.nodes[member].kill(self.rng.choice((0, self.rng.randint(1, 600))))
            self._abandon_host(member)

    def _abandon_host(self, member: int) -> None:
        client = self._clients[member]
        self._ghosts += client.abandoned()
        self._clients[member] = Client(client.rng)

    def _power_cut(self) -> None:
        """All machines and the storage go down at once: what was on its way between them never arrives."""
        self.met["fault: power cut"] += 1
        for member, node in enumerate(self.nodes):
            if not node.ended:
                node.kill(self.rng.choice((0, self.rng.randint(1, 600))))
            self._abandon_host(member)
            self._resume_at.pop(member, None)
        self.locks.holders.clear()
        mode = self.rng.choice((CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED, CrashMode.KEPT))
        self.volume = SimDisk(self.volume, self.met).crash(self.rng, mode).volume
        self._ghosts.clear()

    def _partition(self) -> None:
        """A member is cut off from NATS, or comes back."""
        member = self.rng.randrange(len(self.nodes))
        cut = member not in self._cut_off
        (self._cut_off.add if cut else self._cut_off.discard)(member)
        self.met["fault: NATS cut"] += cut
        if not self.nodes[member].ended:
            self.nodes[member].connect(not cut)

    def _forge(self) -> None:
        """Somebody says that it is active under an epoch that nobody has, or that it is an original server."""
        self.met["fault: forged heartbeat"] += 1
        epoch = self.ledger.top + self.rng.randint(0, 5)
        beat = decode_heartbeat(encode_heartbeat(Heartbeat("FORGED", 1, epoch, self._store_id())))
        assert beat is not None
        self._publish(None, HeartbeatHeard(beat))

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

    def _original_serves(self) -> None:
        """After a clean stop an original server gets the lock first, publishes, and leaves."""
        file = self.volume.root.entries.get(LOCK_NAME)
        if self._clean and file is not None and not self.locks.holders.get(file):
            self.met["fault: an original server serves"] += interlude(self, self.rng) > 0

    def _land_one(self) -> None:
        """A late page arrives: of a host that lives, stands still or is long dead."""
        sources = [client for client in self._clients if client.dirty]
        if self._ghosts and (not sources or self.rng.random() < 0.5):
            write = self._ghosts.pop(self.rng.randrange(len(self._ghosts)))
            put(self.volume, write)
            self.met["late pages of dead hosts"] += 1
        elif sources:
            write = self.rng.choice(sources).write_back(self.volume)
            self.met["pages written back"] += 1
        else:
            return
        if 0 < write.epoch < self.ledger.top:
            self.met["late pages of former owners"] += 1
            self.met["late pages over files of the log"] += write.node.links > 0

    # ---- the end -------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing goes wrong any more; what is on its way arrives."""
        self.locks.generous = False
        for member, node in enumerate(self.nodes):
            node.paused = False
            self._cut_off.discard(member)
            if not node.ended:
                node.connect(True)
        self._resume_at.clear()
        while self._ghosts or any(client.dirty for client in self._clients):
            self._land_one()
        for holders in self.locks.holders.values():
            holders[:] = [process for process in holders if not process.dead]

    def serve(self) -> Node:
        """Without faults: a member that, from now on, has acknowledged a publish in every channel."""
        for node in self.nodes:
            node.forget_told()
        everything = {b"channel.%d" % i for i in range(self.shape.channels)}
        for _ in range(_LONGEST_HEALING):
            for node in self.nodes:
                if node.is_misled:
                    # What one forged heartbeat can do to a member that never heard an owner: the operator restarts it.
                    self.met["members restarted after a mistaken alarm"] += 1
                    node.kill()
                    self._bury(node)
                node.spend(60)
                if node.serving and node.told >= everything:
                    return node
            self.pass_time(0.1)
        states = ", ".join(f"{n}: {n.ended or n._standby.phase.value}" for n in self.nodes)
        raise Violation(f"nobody serves although nothing is wrong any more: {states}")


def run_history(seed: int, shape: Shape) -> Counter[str]:
    """One history; raises ``Violation``. Returns what was met."""
    group = Group(seed, shape)
    try:
        for _ in range(shape.turns):
            group.turn()
        group.heal()
        last = group.serve()
        last.stopping = True
        while not last.ended:
            last.spend(1000)
        group.serve()
    except Violation as violation:
        raise Violation(f"{violation} [seed={seed}, shape={shape}]") from violation
    finally:
        group.end()
    ledger = group.ledger
    group.met["acked messages"] += ledger.acked
    group.met["answers after a successor's recovery"] += ledger.late_answers
    group.met["histories"] += 1
    return group.met
