"""The judge: a pure function from the records of a ledger to a verdict. It must never ask anybody or wait for anything.

A verdict is clean only when the evidence proves the promise; an empty ledger proves nothing and is not clean. The rules
are those of ``ftstan.promise``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from ftstan.drill.ledger import Ack, Delivery, Failure, Fault, Owner, Publish, Read, Record, Takeover
from ftstan.promise import DRILLED, MAX_EXAMPLES, Breach, Rule, Switch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from collections.abc import Set as AbstractSet


@dataclass(frozen=True, slots=True)
class Outage:
    """How long no ack came around one fault, in milliseconds; ``None``: none came any more.

    The longest time between two acks of which the second came after the fault (at ``t``, microseconds) and, unless it
    includes the fault itself, before the next one.
    """

    t: int
    epoch: int
    node: str
    fault: str
    ms: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a ledger says. ``rate``: acks a second while a node served (0.0: unknown); it never judges.

    ``acked_again``: ids with more than one ack record; counted, not judged.
    """

    nodes: tuple[str, ...]
    switches: tuple[Switch, ...]
    published: int
    acked: int
    retried: int
    failed: int
    rate: float
    stored: int
    stored_without_ack: int
    delivered: int
    redelivered: int
    readings: int
    breaches: tuple[Breach, ...]
    outages: tuple[Outage, ...] = ()
    acked_again: int = 0

    @property
    def clean(self) -> bool:
        """True when no rule is broken."""
        return not self.breaches


def switch(takeover: Takeover, fault: Fault | None) -> Switch:
    """Join a takeover and the fault that ended the epoch before it."""
    return Switch(
        takeover.epoch,
        fault.fault if fault else "start",
        fault.node if fault else "",
        takeover.node,
        takeover.active_us / 1e3,
        takeover.ack_us / 1e3,
    )


def judge(records: Iterable[Record], rules: Collection[Rule] = DRILLED) -> Verdict:
    """Judge the ledger made of ``records``, in any order, by ``rules``. Holds what it needs of them."""
    evidence = _Evidence()
    for record in records:
        evidence.take(record)
    return evidence.verdict(rules)


class _Log:
    """What is known of one channel."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.content: dict[int, tuple[str, str]] = {}  # sequence -> (id, sha1), as first seen
        self.other_content: dict[int, set[str]] = {}  # sequence -> further sha1s
        self.places: dict[str, set[int]] = defaultdict(set)  # id -> sequences
        self.delivered: dict[str, set[str]] = defaultdict(set)  # subscription -> ids
        self.logs: dict[str, set[int]] = defaultdict(set)  # reader -> sequences
        self.log_order: dict[str, tuple[int, int]] = {}  # reader -> (epoch, time of its first record)
        self.acked: list[str] = []

    def saw(self, record: Read | Delivery) -> None:
        known = self.content.setdefault(record.sequence, (record.id, record.sha1))
        if known[1] != record.sha1:
            self.other_content.setdefault(record.sequence, set()).add(record.sha1)
        self.places[record.id].add(record.sequence)

    def read(self, record: Read) -> None:
        self.saw(record)
        self.logs[record.reader].add(record.sequence)
        order = (record.epoch, record.t)
        if order < self.log_order.setdefault(record.reader, order):
            self.log_order[record.reader] = order

    def final(self) -> AbstractSet[int]:
        """Return the sequences of the reading that was started last."""
        if not self.logs:
            return frozenset()
        return self.logs[max(self.log_order, key=self.log_order.__getitem__)]

    def unread_epochs(self, epochs: set[int]) -> list[str]:
        read = {epoch for epoch, _ in self.log_order.values()}
        if not read and not epochs:
            return ["nobody read the log"]
        return [f"epoch {epoch}" for epoch in sorted(epochs - read)]

    def not_stored(self, final: AbstractSet[int]) -> list[str]:
        return [
            f"id {acked}: last seen at {self.where(acked)}"
            for acked in self.acked
            if self.places.get(acked, frozenset[int]()).isdisjoint(final)
        ]

    def stored_twice(self) -> list[str]:
        return [f"id {acked}: {self.where(acked)}" for acked in self.acked if len(self.places.get(acked, ())) > 1]

    def where(self, stored_id: str) -> str:
        found = sorted(self.places.get(stored_id, ()))
        return "sequence " + " and ".join(map(str, found)) if found else "no sequence"

    def gaps(self) -> list[str]:
        cases = []
        for reader, log in sorted(self.logs.items()):
            missing = sorted(set(range(1, max(log) + 1)) - log)
            cases += [f"{reader}: no sequence {sequence}" for sequence in missing]
            cases += [f"{reader}: there is a sequence {sequence}" for sequence in sorted(log) if sequence < 1]
        return cases

    def lost(self, final: AbstractSet[int]) -> list[str]:
        return [f"sequence {x} (id {self.content[x][0]})" for x in sorted(self.content.keys() - final)]

    def changed(self) -> list[str]:
        return [
            f"sequence {sequence}: sha1 {' and '.join([self.content[sequence][1], *sorted(others)])}"
            for sequence, others in sorted(self.other_content.items())
        ]

    def altered(self, published: dict[str, Publish]) -> list[str]:
        return [
            f"sequence {sequence}, id {stored_id}: sha1 {sha1}, published {published[stored_id].sha1}"
            for sequence, (stored_id, sha1) in sorted(self.content.items())
            if stored_id in published and published[stored_id].sha1 != sha1
        ]

    def missed(self) -> list[str]:
        return [
            f"{subscription}: id {acked}"
            for subscription, ids in sorted(self.delivered.items())
            for acked in sorted(set(self.acked) - ids)
        ]

    def out_of_order(self, published: dict[str, Publish], ack_times: dict[str, int]) -> list[str]:
        """An ack that came before a publish began: the message published later has the higher sequence."""
        # At one microsecond nobody knows which came first: publishes (0) are taken before acks (1).
        events = [(published[x].t, 0, min(at), x) for x, at in self.places.items() if x in published]
        events += [(ack_times[x], 1, min(self.places[x]), x) for x in self.acked if self.places.get(x)]
        cases, highest, acked = [], 0, ""
        for _, is_ack, sequence, stored_id in sorted(events):
            if is_ack and sequence > highest:
                highest, acked = sequence, stored_id
            elif not is_ack and sequence < highest:
                cases.append(f"id {stored_id} at sequence {sequence}, id {acked} at {highest}")
        return cases


class _Evidence:
    def __init__(self) -> None:
        self.published: dict[str, Publish] = {}
        self.retried = 0
        self.failed = 0
        self.acks: Counter[str] = Counter()
        self.ack_times: dict[str, int] = {}
        self.deliveries = 0
        self.redelivered = 0
        self.channels: dict[str, _Log] = {}
        self.faults: list[Fault] = []
        self.takeovers: list[Takeover] = []
        self.owners: list[Owner] = []

    def take(self, record: Record) -> None:
        match record:
            case Read():
                self.channel(record.channel).read(record)
            case Publish():
                self.published[record.id] = record
                self.retried += record.attempt > 1
            case Ack():
                self.acks[record.id] += 1
                self.ack_times.setdefault(record.id, record.t)
            case Delivery():
                log = self.channel(record.channel)
                log.saw(record)
                log.delivered[record.subscription].add(record.id)
                self.deliveries += 1
                self.redelivered += record.redelivered
            case Failure():
                self.failed += 1
            case Fault():
                self.faults.append(record)
            case Takeover():
                self.takeovers.append(record)
            case Owner():
                self.owners.append(record)

    def channel(self, name: str) -> _Log:
        if name not in self.channels:
            self.channels[name] = _Log(name)
        return self.channels[name]

    def verdict(self, rules: Collection[Rule]) -> Verdict:
        self.assign_acks()
        logs = list(self.channels.values())
        final = {log.channel: log.final() for log in logs}
        unacked = (log.content[x][0] not in self.ack_times for log in logs for x in final[log.channel])
        return Verdict(
            nodes=tuple(sorted({x.node for x in self.faults} | {x.node for x in self.takeovers})),
            switches=tuple(self.switches()),
            published=len(self.published),
            acked=len(self.ack_times),
            retried=self.retried,
            failed=self.failed,
            rate=self.rate(),
            stored=sum(map(len, final.values())),
            stored_without_ack=sum(unacked),
            delivered=self.deliveries,
            redelivered=self.redelivered,
            readings=sum(len(log.logs) for log in logs),
            breaches=tuple(self.breaches(rules, final)),
            outages=tuple(self.outages()),
            acked_again=sum(times > 1 for times in self.acks.values()),
        )

    def assign_acks(self) -> None:
        """Tell every channel its acked ids: an ack names no channel, and may have been read before its publish."""
        for acked in self.ack_times:
            if acked in self.published:
                name = self.published[acked].channel
            else:
                name = next((log.channel for log in self.channels.values() if acked in log.places), "")
            self.channel(name).acked.append(acked)

    def switches(self) -> Iterator[Switch]:
        ended = {fault.epoch: fault for fault in self.faults if fault.ends_epoch}
        for takeover in sorted(self.takeovers, key=lambda x: x.epoch):
            yield switch(takeover, ended.get(takeover.epoch - 1))

    def rate(self) -> float:
        """Acks a second between each takeover's first ack and the fault (in the end: the last ack) that followed."""
        if not self.ack_times:
            return 0.0
        ended = {fault.epoch: fault.t for fault in self.faults if fault.ends_epoch}
        last = max(self.ack_times.values())
        first_acks = ((x.t - x.active_us + x.ack_us, x.epoch) for x in self.takeovers)
        windows = [(begin, max(begin, ended.get(epoch, last))) for begin, epoch in first_acks]
        served_us = sum(end - begin for begin, end in windows)
        acks = sum(any(begin <= t <= end for begin, end in windows) for t in self.ack_times.values())
        return acks / served_us * 1e6 if served_us else 0.0

    def outages(self) -> Iterator[Outage]:
        acks = sorted(self.ack_times.values())
        faults = sorted(self.faults, key=lambda fault: fault.t)
        for number, fault in enumerate(faults):
            end = faults[number + 1].t if number + 1 < len(faults) else None
            yield Outage(fault.t, fault.epoch, fault.node, fault.fault, _longest_silence(acks, fault.t, end))

    def breaches(self, rules: Collection[Rule], final: dict[str, AbstractSet[int]]) -> Iterator[Breach]:
        for rule, cases in self.cases(final):
            if cases and rule in rules:
                yield Breach(rule, len(cases), tuple(cases[:MAX_EXAMPLES]))

    def cases(self, final: dict[str, AbstractSet[int]]) -> Iterator[tuple[Rule, list[str]]]:
        epochs = {x.epoch for x in self.takeovers}
        # An empty ledger is judged like one of an empty channel.
        logs = sorted(self.channels.values(), key=lambda log: log.channel) or [_Log("")]

        def told(tell: Callable[[_Log], list[str]]) -> list[str]:
            if len(logs) == 1:
                return tell(logs[0])
            return [f"{log.channel}: {case}" for log in logs for case in tell(log)]

        nothing_came = not any(log.delivered for log in logs)
        yield Rule.ACKED, [] if self.ack_times else ["no publisher received an ack"]
        yield Rule.READ, told(lambda log: log.unread_epochs(epochs))
        yield Rule.STORED, told(lambda log: log.not_stored(final.get(log.channel, frozenset())))
        yield Rule.ONCE, told(_Log.stored_twice)
        yield Rule.CONTIGUOUS, told(_Log.gaps)
        yield Rule.KEPT, told(lambda log: log.lost(final.get(log.channel, frozenset())))
        yield Rule.ONE_PAYLOAD, told(_Log.changed)
        yield Rule.AS_PUBLISHED, told(lambda log: log.altered(self.published))
        yield Rule.DELIVERED, ["no durable received anything"] if nothing_came else told(_Log.missed)
        yield Rule.ORDER, told(lambda log: log.out_of_order(self.published, self.ack_times))
        yield Rule.ONE_OWNER, self.late_owners()
        yield Rule.RECOVERED, [f"{x.fault} of {x.node} in epoch {x.epoch}" for x in self.outages() if x.ms is None]

    def late_owners(self) -> list[str]:
        """A node whose count of confirmed batches grew although a higher epoch had already confirmed some."""
        samples = sorted(self.owners, key=lambda x: x.t)
        proofs = sorted((x.t + x.took_us, x.epoch) for x in samples if x.commits)
        known = [t for t, _ in proofs]
        highest = list(accumulate((epoch for _, epoch in proofs), max))
        cases: list[str] = []
        last: dict[str, Owner] = {}
        for sample in samples:
            before = last.get(sample.node)
            last[sample.node] = sample
            if before is None or before.epoch != sample.epoch or before.commits >= sample.commits:
                continue
            # What was known before the former question was asked came before everything that was counted since.
            at = bisect_left(known, before.t)
            if at and highest[at - 1] > sample.epoch:
                cases.append(f"{sample.node}: epoch {sample.epoch} went on while epoch {highest[at - 1]} served")
        return cases


def _longest_silence(acks: list[int], begin: int, end: int | None) -> float | None:
    """Milliseconds; ``acks`` are sorted times. See ``Outage``."""
    after = bisect_right(acks, begin)
    if after == len(acks):
        return None
    silence = acks[after] - (acks[after - 1] if after else begin)
    for before, ack in zip(acks[after:], acks[after + 1 :], strict=False):
        if end is not None and ack > end:
            break
        silence = max(silence, ack - before)
    return silence / 1e3
