"""Random histories of a store that dies at every storage call, judged by ``tests.sim.model``.

A history is a few epochs on one disk. In each a new process opens the store, checks and delivers
what it finds, then runs batches the way the broker does (stage, commit, confirm, answer, events)
until it is killed or its batches are done; ``kills[e]`` is the storage call at which epoch ``e``
dies. After a death the machine goes on, or its power fails. The last epoch is never killed: it
stops cleanly, and the store is opened once more. Everything follows from the seed, so a failure is
replayed by the arguments in its message.
"""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.interface import ClientInfo, ServerInfo, SubState
from ftstan.wire.block import MsgBlock, SubEvents
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.image import check_image
from tests.sim.model import UNLIMITED, ChannelModel, Model, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ftstan.stores.interface import ChannelLimits, ChannelStore, Store

    #: Makes a store that has not recovered yet on the directory ``/store`` of the disk; may make
    #: storage calls.
    OpenStore = Callable[[SimDisk, ManualClock], Store]
    #: Looks at the disk after the clean stop, and at what must be on it.
    Judge = Callable[[SimDisk, Model], None]

STORE = "/store"
INFO = ServerInfo(
    cluster_id="test-cluster",
    discovery="_STAN.discover.test-cluster",
    publish="_STAN.pub.test-cluster",
    subscribe="_STAN.sub.test-cluster",
    unsubscribe="_STAN.unsub.test-cluster",
    close="_STAN.close.test-cluster",
    sub_close="_STAN.subclose.test-cluster",
    acks_subs="_STAN.ack.test-cluster",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """In epoch ``epoch`` call ``call`` fails with ``code``.

    With ENOSPC, files cannot grow from that call on.
    """

    epoch: int
    call: int
    code: int


@dataclass(frozen=True, slots=True)
class Shape:
    """How long a history is, and what may happen in it.

    ``ticks``: how often a second ends, as a probability.
    """

    channels: int = 2
    batches: int = 5
    steps: int = 4
    ticks: float = 0.3
    limits: ChannelLimits = UNLIMITED
    deletes: bool = False
    purges: bool = False


@dataclass(slots=True)
class Outcome:
    """``calls``: storage calls of each epoch.

    ``met``: what happened, faults of the disk included.
    """

    calls: list[int] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)


def run_history(
    open_store: OpenStore,
    seed: int,
    *,
    kills: Sequence[int | None] = (),
    faults: Sequence[Fault] = (),
    shape: Shape | None = None,
    judge: Judge | None = None,
) -> Outcome:
    """One history of ``len(kills) + 1`` epochs and a last look.

    Raises ``Violation`` if a promise was broken.
    """
    outcome = Outcome()
    disk = SimDisk()
    disk.keeps_log = False
    disk.make_dirs(STORE)
    disk.met = outcome.met
    run = _Run(open_store, seed, Shape() if shape is None else shape, outcome)
    try:
        for epoch, kill in enumerate((*kills, None)):
            disk = run.epoch(disk, epoch, kill, [f for f in faults if f.epoch == epoch])
        if judge is not None:
            judge(disk, run.model)
        run.last_look(disk)
    except Violation as violation:
        raise Violation(
            f"{violation} [seed={seed}, kills={list(kills)}, faults={list(faults)}]"
        ) from violation
    return outcome


def kill_at_every_call(
    open_store: OpenStore,
    seed: int,
    *,
    epoch: int = 0,
    stride: int = 1,
    shape: Shape | None = None,
    judge: Judge | None = None,
) -> Counter[str]:
    """Histories in which epoch ``epoch`` dies at each of its storage calls (every ``stride``-th of
    them).

    The epochs before and after it die at a random call. Returns what was met over all histories.
    """
    met: Counter[str] = Counter()
    rng = Random(f"kills {seed}")
    before: list[int] = []
    for earlier in range(epoch):
        before.append(
            rng.randint(1, run_history(open_store, seed, kills=before, shape=shape).calls[earlier])
        )
    calls = run_history(open_store, seed, kills=before, shape=shape).calls[epoch]
    for call in range(1 + rng.randrange(stride), calls + 1, stride):
        kills = [*before, call, rng.randint(1, 40)]
        met += run_history(open_store, seed, kills=kills, shape=shape, judge=judge).met
        met["histories"] += 1
    return met


class _Run:
    def __init__(self, open_store: OpenStore, seed: int, shape: Shape, outcome: Outcome) -> None:
        self.open_store = open_store
        self.shape = shape
        self.outcome = outcome
        self.seed = seed
        self.model = Model()
        self.clock = ManualClock()
        self.serial = 0
        self.failing = False

    def epoch(
        self, disk: SimDisk, number: int, kill: int | None, faults: Sequence[Fault]
    ) -> SimDisk:
        """One process's life on ``disk``; returns the disk as its successor finds it."""
        rng = Random(f"{self.seed} {number}")
        # Dying has a generator of its own: where the process dies must not change what it does
        # until then.
        fate = Random(f"{self.seed} {number} {kill}")
        torn = fate.choice((0, fate.randint(1, 600)))
        process_only = bool(torn) or fate.random() < 0.25

        def hook(call: int, _name: str, _arguments: tuple[object, ...]) -> None:
            if call == kill:
                raise Killed(torn)
            if call in full:
                disk.volume.space = 0

        # A sync that fails loses pages that processes go on seeing: from then on files may show
        # anything unconfirmed.
        self.failing |= bool(faults)
        full = {f.call for f in faults if f.code == errno.ENOSPC}
        for fault in faults:
            if fault.call not in full:
                disk.fail_at(fault.call, fault.code)
        disk.on_call = hook
        self.clock.advance(rng.uniform(0.5, 5))
        try:
            _Process(self, self._opened(disk), rng, faulty=bool(faults)).live()
        except Killed:
            self.outcome.met["killed"] += 1
        except (StoreError, FencedError) as error:
            # The node gives up and another one starts: legitimate only if storage gave it a reason.
            if not faults:
                raise Violation(
                    f"epoch {number}: {type(error).__name__} without a fault: {error}"
                ) from error
            self.outcome.met["gave-up"] += 1
        except OSError as error:
            raise Violation(f"epoch {number}: a raw error reached the caller: {error!r}") from error
        else:
            self.outcome.met["stopped-cleanly"] += 1
        disk.volume.space = None
        self.outcome.calls.append(disk.calls)
        mode = fate.choice((CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED, CrashMode.KEPT))
        left = disk.crash(fate, mode, process_only=process_only)
        if not self.failing:
            check_image(left.tree(STORE))
        return left

    def _opened(self, disk: SimDisk) -> Store:
        try:
            return self.open_store(disk, self.clock)
        except OSError as error:
            # The claim of an epoch is not the store's work: whoever makes it turns this into the
            # node's error.
            raise StoreError(f"the store cannot be opened: {error}") from error

    def last_look(self, disk: SimDisk) -> None:
        """After the clean stop: open once more and check."""
        store = self.open_store(disk, self.clock)
        self.model.now_ns = self.clock.wall_ns()
        self.model.check(store.recover())
        store.abandon()


class _Process:
    """One process: its store, and the batches it runs."""

    def __init__(self, run: _Run, store: Store, rng: Random, *, faulty: bool) -> None:
        self.run = run
        self.faulty = faulty
        self.model = run.model
        self.clock = run.clock
        self.shape = run.shape
        self.store = store
        self.rng = rng
        self.channels: dict[bytes, ChannelStore] = {}
        self.next_ids: dict[bytes, int] = {}
        # Events that have been handed to the file system, not yet synced: (channel, sub, sequence,
        # acknowledged).
        self.unsynced: list[tuple[ChannelModel, int, int, bool]] = []

    def live(self) -> None:
        self.take_over()
        for _ in range(self.rng.randint(1, self.shape.batches)):
            self.batch()
            self.clock.advance(self.rng.uniform(0.01, 1.5))
            if self.rng.random() < self.shape.ticks:
                self.clock.advance(1)
                self.tick()
            if self.shape.deletes and self.channels and self.rng.random() < 0.25:
                self.delete()
            if self.shape.purges and self.channels and self.rng.random() < 0.4:
                self.purge()
        self.store.close()
        self.events_are_durable()

    def take_over(self) -> None:
        """Recover, check, and deliver everything found: from then on its content is fixed."""
        found = self.store.recover()
        self.model.now_ns = self.clock.wall_ns()
        messages = self.model.check(found)
        if not self.faulty:
            self.check_limits(found.channels)
        self.channels = {c.name: c for c in found.channels}
        if found.info is None:
            self.store.set_server_info(INFO)
        failed = self.commit()
        self.model.info = INFO
        self.model.answered(set(failed))
        for name, contents in messages.items():
            if name not in failed:
                for sequence, payload in contents.items():
                    self.model.channels[name].fix(sequence, payload)

    def batch(self) -> None:
        steps = (
            self.publish,
            self.publish,
            self.add_sub,
            self.change_sub,
            self.change_client,
            self.read_back,
        )
        for _ in range(self.rng.randint(1, self.shape.steps)):
            self.rng.choice(steps)()
        failed = self.commit()
        self.model.answered(set(failed))
        self.run.outcome.met["commits"] += 1
        self.run.outcome.met["failed-channels"] += len(failed)
        for name in failed:
            self.next_ids.pop(name, None)
        for name, channel in self.channels.items():
            if name not in failed:
                self.deliver(channel)
        self.store.write_events()

    def commit(self) -> dict[bytes, StoreError]:
        failed = self.store.commit()
        self.store.confirm()
        if failed and not self.faulty:
            raise Violation(f"a batch failed without a fault: {failed}")
        return failed

    def tick(self) -> None:
        self.store.confirm()
        self.store.tick(self.clock.wall_ns())
        self.events_are_durable()
        if not self.faulty:
            self.check_limits(self.channels.values())

    def check_limits(self, channels: Iterable[ChannelStore]) -> None:
        for channel in channels:
            self.model.channels[channel.name].check_limits(channel, self.clock.wall_ns())

    def delete(self) -> None:
        """A channel is deleted, perhaps to be made again by the next batch."""
        name = self.rng.choice(sorted(self.channels))
        self.model.deleting.add(name)
        try:
            self.store.delete_channel(name)
        except StoreError as error:
            if not self.faulty:
                raise Violation(
                    f"channel {name!r} cannot be deleted without a fault: {error}"
                ) from error
            # Refused before anything changed: all of it stays.
            self.model.deleting.discard(name)
            self.run.outcome.met["deletions-refused"] += 1
            return
        self.model.deleted(name)
        del self.channels[name]
        self.next_ids.pop(name, None)
        self.run.outcome.met["deletions"] += 1

    def purge(self) -> None:
        """Between two batches the front of a channel is purged, or all of it, perhaps a second
        time.
        """
        channel = self.channels[self.rng.choice(sorted(self.channels))]
        model = self.model.channels[channel.name]
        sequence = min(
            self.rng.choice((channel.last, channel.first, self.rng.randint(0, channel.last))),
            channel.last,
        )
        before = channel.first
        model.ask_purge(sequence)
        try:
            self.store.confirm()
            channel.purge(sequence)
            self.store.confirm()
        except StoreError as error:
            if not self.faulty:
                raise Violation(
                    f"channel {channel.name!r} cannot be purged without a fault: {error}"
                ) from error
            self.run.outcome.met["purges-refused"] += 1
            return
        model.answer_purge(sequence)
        if channel.last and channel.first != max(before, sequence + 1):
            raise Violation(f"{model}: purged up to {sequence}, and begins at {channel.first}")
        self.run.outcome.met["purges"] += 1

    # What clients do

    def publish(self) -> None:
        channel = self.some_channel()
        model = self.model.channels[channel.name]
        block = MsgBlock()
        start = (model.staged[-1][0] if model.staged else channel.last) + 1
        for sequence in range(start, start + self.rng.randint(1, 4)):
            self.run.serial += 1
            data = b"%d:" % self.run.serial + b"x" * self.rng.choice((0, 5, 300, 700, 1400))
            reply = self.rng.choice((b"", b"reply.to"))
            block.append(sequence, channel.name, reply, data, self.clock.wall_ns())
        for i in range(len(block)):
            model.offer(block.sequence(i), block.payload(i), block.timestamp(i))
        channel.append(block)

    def add_sub(self) -> None:
        channel = self.some_channel()
        sub_id = max(channel.next_sub_id, self.next_ids.get(channel.name, 1))
        self.next_ids[channel.name] = sub_id + 1
        self.run.serial += 1
        state = SubState(
            sub_id=sub_id,
            client_id=b"client-%d" % self.rng.randrange(4),
            inbox=b"inbox.%d" % self.run.serial,
            ack_inbox=b"acks.%d" % self.run.serial,
            max_in_flight=self.rng.randint(1, 9),
            ack_wait_secs=30,
            durable_name=b"durable-%d" % self.run.serial,
            last_sent=channel.last,
            is_durable=True,
        )
        self.model.channels[channel.name].stage_sub(sub_id, state)
        channel.add_sub(state)

    def change_sub(self) -> None:
        channel = self.some_channel()
        model = self.model.channels[channel.name]
        # A subscription that is being made in this batch has not been answered, so nobody can
        # change it yet.
        live = {i: state for i, state in model.live_subs().items() if i not in model.touched}
        if not live:
            return
        sub_id = self.rng.choice(sorted(live))
        if self.rng.random() < 0.25:
            model.stage_sub(sub_id, None)
            channel.delete_sub(sub_id)
            return
        self.run.serial += 1
        state = replace(
            live[sub_id], inbox=b"inbox.%d" % self.run.serial, is_closed=self.rng.random() < 0.5
        )
        model.stage_sub(sub_id, state)
        channel.update_sub(state)

    def change_client(self) -> None:
        live = [i for i in self.model.live_clients() if i not in self.model.touched]
        if live and self.rng.random() < 0.4:
            client_id = self.rng.choice(live)
            self.model.stage_client(client_id, None)
            self.store.delete_client(client_id)
            return
        self.run.serial += 1
        info = ClientInfo(
            b"client-%d" % self.run.serial, b"hb.%d" % self.run.serial, b"conn", 1, 5, 3
        )
        self.model.stage_client(info.client_id, info)
        self.store.add_client(info)

    def read_back(self) -> None:
        """A redelivery or a catch-up: durable messages, in the middle of a batch."""
        channel = self.some_channel()
        if not channel.count:
            return
        sequence = self.rng.randint(channel.first, channel.last)
        block = channel.read(sequence, 3, 1000)
        model = self.model.channels[channel.name]
        if block is None or block.sequence(block.position(sequence)) != sequence:
            raise Violation(f"{model}: sequence {sequence} cannot be read")
        payload = block.payload(block.position(sequence))
        model.fix(sequence, payload)

    def deliver(self, channel: ChannelStore) -> None:
        """Send durable messages to answered subscriptions and take acknowledgements."""
        events = SubEvents()
        model = self.model.channels[channel.name]
        for sub_id in sorted(model.live_subs()):
            sub = model.subs[sub_id]
            unsent = sorted(
                s for s in model.fixed if channel.first <= s <= channel.last and s not in sub.sent
            )
            for sequence in unsent[: self.rng.randint(0, 3)]:
                events.sent(sub_id, sequence)
                sub.sent.add(sequence)
                sub.pending.add(sequence)
                self.unsynced.append((model, sub_id, sequence, False))
            for sequence in sorted(sub.pending)[: self.rng.randint(0, 2)]:
                events.acked(sub_id, sequence)
                sub.acked.add(sequence)
                sub.pending.discard(sequence)
                self.unsynced.append((model, sub_id, sequence, True))
        if len(events):
            channel.add_events(events)
            if len(events):
                raise Violation(f"{model}: add_events left its argument full")

    def events_are_durable(self) -> None:
        """A second has passed and the store has ticked, or it was closed."""
        if self.faulty:
            # Storage has failed the store at least once: what it could not sync it did not promise.
            return
        for model, sub_id, sequence, acked in self.unsynced:
            sub = model.subs[sub_id]
            (sub.kept_acked if acked else sub.kept_sent).add(sequence)
        self.unsynced.clear()

    def some_channel(self) -> ChannelStore:
        name = b"channel.%d" % self.rng.randrange(self.shape.channels)
        if name not in self.channels:
            limits = self.shape.limits
            self.model.channels.setdefault(name, ChannelModel(name, limits))
            self.channels[name] = self.store.create_channel(name, limits)
        return self.channels[name]
