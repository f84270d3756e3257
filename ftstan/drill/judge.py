"""The judge: a pure function from the records of a ledger to a verdict.

It must never ask anybody or wait for anything.

A verdict is clean only when the evidence proves the promise; an empty ledger proves nothing and is
not clean. The rules are those of ``rules.py``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from ftstan.drill import gaps, rules
from ftstan.drill.ledger import (
    Ack,
    Delivery,
    Failure,
    Fault,
    Owner,
    Publish,
    Read,
    Record,
    Takeover,
)
from ftstan.drill.rules import DRILLED, Breach, History, Rule, at_sequences

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from ftstan.drill.gaps import Around, Gaps


@dataclass(frozen=True, slots=True)
class Outage:
    """How long no ack came around one fault, in milliseconds; ``None``: none came any more.

    From the last ack before service stopped to the first one after it came back (``gaps.py``); the
    fault was at ``t``, microseconds. ``published`` and ``acked``: attempts to publish, and acks,
    before, during and after it.
    """

    t: int
    epoch: int
    node: str
    fault: str
    ms: float | None
    published: Around
    acked: Around


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillVerdict(rules.LedgerVerdict):
    """What a ledger says; ``outages`` of all faults.

    ``elsewhere_ms``: the longest time without an ack under load that is no fault's; 0.0: unknown.
    """

    outages: tuple[Outage, ...] = ()
    elsewhere_ms: float = 0.0


def judge(records: Iterable[Record], by: Collection[Rule] = DRILLED) -> DrillVerdict:
    """Judge the ledger made of ``records``, in any order. Holds what it needs of them."""
    evidence = _Evidence()
    for record in records:
        evidence.take(record)
    return evidence.verdict(by)


class _Log:
    """What is known of one channel."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.content: dict[int, tuple[str, str]] = {}  # sequence -> (id, sha1), as first seen
        self.other_content: dict[int, set[str]] = {}  # sequence -> further sha1s
        self.places: dict[str, set[int]] = defaultdict(set)  # id -> sequences
        self.delivered: dict[str, set[str]] = defaultdict(set)  # subscription -> ids
        self.logs: dict[str, set[int]] = defaultdict(set)  # reader -> sequences
        self.log_order: dict[
            str, tuple[int, int]
        ] = {}  # reader -> (epoch, time of its first record)
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

    def epochs(self) -> set[int]:
        return {epoch for epoch, _ in self.log_order.values()}

    def not_stored(self, final: AbstractSet[int]) -> list[str]:
        return [
            Rule.STORED.case(acked, self.where(acked))
            for acked in self.acked
            if self.places.get(acked, frozenset[int]()).isdisjoint(final)
        ]

    def stored_twice(self) -> list[str]:
        twice = (acked for acked in self.acked if len(self.places.get(acked, ())) > 1)
        return [Rule.ONCE.case(acked, self.where(acked)) for acked in twice]

    def where(self, stored_id: str) -> str:
        return at_sequences(self.places.get(stored_id, ()))

    def gaps(self) -> list[str]:
        cases = []
        for reader, log in sorted(self.logs.items()):
            missing = sorted(set(range(1, max(log) + 1)) - log)
            told = partial(Rule.CONTIGUOUS.case, reader)
            cases += [told(sequence) for sequence in missing]
            cases += [told(sequence, form=1) for sequence in sorted(log) if sequence < 1]
        return cases

    def lost(self, final: AbstractSet[int]) -> list[str]:
        return [Rule.KEPT.case(x, self.content[x][0]) for x in sorted(self.content.keys() - final)]

    def changed(self) -> list[str]:
        told = Rule.ONE_PAYLOAD.case
        return [
            told(sequence, " and ".join([self.content[sequence][1], *sorted(others)]))
            for sequence, others in sorted(self.other_content.items())
        ]

    def altered(self, published: dict[str, Publish]) -> list[str]:
        return [
            Rule.AS_PUBLISHED.case(sequence, stored_id, sha1, published[stored_id].sha1)
            for sequence, (stored_id, sha1) in sorted(self.content.items())
            if stored_id in published and published[stored_id].sha1 != sha1
        ]

    def missed(self, subscriptions: Iterable[str]) -> list[str]:
        """``subscriptions``: of the whole ledger. One that got nothing here is not in this log."""
        return [
            Rule.DELIVERED.case(subscription, acked)
            for subscription in sorted(subscriptions)
            for acked in sorted(set(self.acked) - self.delivered.get(subscription, set()))
        ]

    def out_of_order(self, published: dict[str, Publish], ack_times: dict[str, int]) -> list[str]:
        """An ack that came before a publish began: the message published later has the higher
        sequence.
        """
        # At one microsecond nobody knows which came first: publishes (0) are taken before acks (1).
        events = [
            (published[x].t, 0, min(at), x) for x, at in self.places.items() if x in published
        ]
        events += [
            (ack_times[x], 1, min(self.places[x]), x) for x in self.acked if self.places.get(x)
        ]
        cases = []
        highest = 0
        acked = ""
        for _, is_ack, sequence, stored_id in sorted(events):
            if is_ack and sequence > highest:
                highest = sequence
                acked = stored_id
            elif not is_ack and sequence < highest:
                cases.append(Rule.ORDER.case(stored_id, sequence, acked, highest))
        return cases


class _Evidence:
    def __init__(self) -> None:
        self.published: dict[str, Publish] = {}
        self.load_end: int | None = None
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
                if record.attempt == 1:
                    self.load_end = max(self.load_end or record.t, record.t)
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

    def verdict(self, by: Collection[Rule]) -> DrillVerdict:
        self.assign_acks()
        history = History(self.faults, self.takeovers)
        logs = list(self.channels.values())
        final = {log.channel: log.final() for log in logs}
        unacked = (
            log.content[x][0] not in self.ack_times for log in logs for x in final[log.channel]
        )
        around = self.gaps()
        outages = tuple(self.outages(around))
        found = self.cases(history, final, outages)
        breaches = (Breach.of(rule, cases) for rule, cases in found if cases and rule in by)
        return DrillVerdict(
            nodes=history.nodes(),
            switches=tuple(history.switches()),
            published=len(self.published),
            acked=len(self.ack_times),
            retried=self.retried,
            failed=self.failed,
            rate=self.rate(history),
            stored=sum(map(len, final.values())),
            stored_without_ack=sum(unacked),
            delivered=self.deliveries,
            redelivered=self.redelivered,
            readings=sum(len(log.logs) for log in logs),
            breaches=tuple(breaches),
            outages=outages,
            elsewhere_ms=around.elsewhere.ms if around.elsewhere is not None else 0.0,
            acked_again=sum(times > 1 for times in self.acks.values()),
        )

    def assign_acks(self) -> None:
        """Tell every channel its acked ids: an ack names no channel, and may have been read before
        its publish.
        """
        for acked in self.ack_times:
            if acked in self.published:
                name = self.published[acked].channel
            else:
                name = next(
                    (log.channel for log in self.channels.values() if acked in log.places), ""
                )
            self.channel(name).acked.append(acked)

    def rate(self, history: History) -> float:
        """Acks a second between each takeover's first ack and the fault (in the end: the last ack)
        that followed.
        """
        if not self.ack_times:
            return 0.0
        windows = history.served(max(self.ack_times.values()))
        served_us = sum(end - begin for begin, end in windows)
        acks = sum(
            any(begin <= t <= end for begin, end in windows) for t in self.ack_times.values()
        )
        return acks / served_us * 1e6 if served_us else 0.0

    def gaps(self) -> Gaps:
        acks = sorted(self.ack_times.values())
        return gaps.find(acks, self.faults, self.takeovers, self.load_end)

    def outages(self, around: Gaps) -> Iterator[Outage]:
        faults = sorted(self.faults, key=lambda fault: fault.t)
        published = gaps.count((x.t for x in self.published.values()), faults, around.of)
        acked = gaps.count(self.ack_times.values(), faults, around.of)
        for fault, gap, *counts in zip(faults, around.of, published, acked, strict=True):
            ms = gap.ms if gap is not None else None
            yield Outage(fault.t, fault.epoch, fault.node, fault.fault, ms, *counts)

    def cases(
        self,
        history: History,
        final: dict[str, AbstractSet[int]],
        outages: Sequence[Outage],
    ) -> Iterator[tuple[Rule, list[str]]]:
        # An empty ledger is judged like one of an empty channel.
        logs = sorted(self.channels.values(), key=lambda log: log.channel) or [_Log("")]

        def told(tell: Callable[[_Log], list[str]]) -> list[str]:
            if len(logs) == 1:
                return tell(logs[0])
            return [f"{log.channel}: {case}" for log in logs for case in tell(log)]

        subscriptions = set[str]().union(*(log.delivered for log in logs))
        yield Rule.ACKED, [] if self.ack_times else [Rule.ACKED.case()]
        yield Rule.READ, told(lambda log: history.unread(log.epochs()))
        yield Rule.STORED, told(lambda log: log.not_stored(final.get(log.channel, frozenset())))
        yield Rule.ONCE, told(_Log.stored_twice)
        yield Rule.CONTIGUOUS, told(_Log.gaps)
        yield Rule.KEPT, told(lambda log: log.lost(final.get(log.channel, frozenset())))
        yield Rule.ONE_PAYLOAD, told(_Log.changed)
        yield Rule.AS_PUBLISHED, told(lambda log: log.altered(self.published))
        missed = told(lambda log: log.missed(subscriptions))
        yield Rule.DELIVERED, missed if subscriptions else [Rule.DELIVERED.case(form=1)]
        yield Rule.ORDER, told(lambda log: log.out_of_order(self.published, self.ack_times))
        yield Rule.ONE_OWNER, self.late_owners()
        lasting = (x for x in outages if x.ms is None)
        yield Rule.RECOVERED, [Rule.RECOVERED.case(x.fault, x.node, x.epoch) for x in lasting]

    def late_owners(self) -> list[str]:
        """A node whose count of confirmed batches grew although a higher epoch had already
        confirmed some.
        """
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
            # What was known before the former question was asked came before everything that was
            # counted since.
            at = bisect_left(known, before.t)
            if at and highest[at - 1] > sample.epoch:
                cases.append(Rule.ONE_OWNER.case(sample.node, sample.epoch, highest[at - 1]))
        return cases
