"""The judge: a pure function from the records of a ledger to a verdict. It must never ask anybody or wait for anything.

A verdict is clean only when the evidence proves the promise; an empty ledger proves nothing and is not clean.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from demo.ledger import Ack, Delivery, Failure, Fault, Publish, Read, Record, Takeover

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

MAX_EXAMPLES = 5


class Rule(Enum):
    """What a clean run keeps; the value is how a breach of it is told."""

    ACKED = "there is no acked publish to judge"
    READ = "an owner's log was not read"
    STORED = "an acked id is not in the log at the end"
    ONCE = "an acked id is in the log at more than one sequence"
    CONTIGUOUS = "a log is not contiguous from sequence 1"
    KEPT = "a sequence that was seen is not in the log at the end"
    ONE_PAYLOAD = "a sequence has shown more than one payload"
    AS_PUBLISHED = "a stored payload is not the one published under its id"
    DELIVERED = "a durable never saw an acked id"


@dataclass(frozen=True, slots=True)
class Breach:
    """One broken rule: how often, and up to five cases in words."""

    rule: Rule
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """One takeover: which fault ended the former epoch, who followed, and how long it took in milliseconds."""

    epoch: int
    fault: str
    former: str
    node: str
    active_ms: float
    ack_ms: float

    @classmethod
    def of(cls, takeover: Takeover, fault: Fault | None) -> Switch:
        """Join a takeover and the fault that ended the epoch before it."""
        return cls(
            takeover.epoch,
            fault.fault if fault else "start",
            fault.node if fault else "",
            takeover.node,
            takeover.active_us / 1e3,
            takeover.ack_us / 1e3,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a ledger says. ``rate``: acks a second while a node served (0.0: unknown); it never judges."""

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

    @property
    def clean(self) -> bool:
        """True when no rule is broken."""
        return not self.breaches


def judge(records: Iterable[Record]) -> Verdict:
    """Judge the ledger made of ``records``, in any order. Holds what it needs to know, not the records."""
    evidence = _Evidence()
    for record in records:
        evidence.take(record)
    return evidence.verdict()


class _Evidence:
    def __init__(self) -> None:
        self.published: dict[str, str] = {}  # id -> sha1
        self.retried = 0
        self.failed = 0
        self.ack_times: dict[str, int] = {}
        self.content: dict[int, tuple[str, str]] = {}  # sequence -> (id, sha1), as first seen
        self.other_content: dict[int, set[str]] = {}  # sequence -> further sha1s
        self.places: dict[str, set[int]] = defaultdict(set)  # id -> sequences
        self.delivered: dict[str, set[str]] = defaultdict(set)  # subscription -> ids
        self.deliveries = 0
        self.redelivered = 0
        self.logs: dict[str, set[int]] = defaultdict(set)  # reader -> sequences
        self.log_order: dict[str, tuple[int, int]] = {}  # reader -> (epoch, time of its first record)
        self.faults: list[Fault] = []
        self.takeovers: list[Takeover] = []

    def take(self, record: Record) -> None:
        match record:
            case Read():
                self.saw(record)
                self.logs[record.reader].add(record.sequence)
                order = (record.epoch, record.t)
                if order < self.log_order.setdefault(record.reader, order):
                    self.log_order[record.reader] = order
            case Publish():
                self.published[record.id] = record.sha1
                self.retried += record.attempt > 1
            case Ack():
                self.ack_times.setdefault(record.id, record.t)
            case Delivery():
                self.saw(record)
                self.delivered[record.subscription].add(record.id)
                self.deliveries += 1
                self.redelivered += record.redelivered
            case Failure():
                self.failed += 1
            case Fault():
                self.faults.append(record)
            case Takeover():
                self.takeovers.append(record)

    def saw(self, record: Read | Delivery) -> None:
        known = self.content.setdefault(record.sequence, (record.id, record.sha1))
        if known[1] != record.sha1:
            self.other_content.setdefault(record.sequence, set()).add(record.sha1)
        self.places[record.id].add(record.sequence)

    def verdict(self) -> Verdict:
        final = self.final_log()
        return Verdict(
            nodes=tuple(sorted({x.node for x in self.faults} | {x.node for x in self.takeovers})),
            switches=tuple(self.switches()),
            published=len(self.published),
            acked=len(self.ack_times),
            retried=self.retried,
            failed=self.failed,
            rate=self.rate(),
            stored=len(final),
            stored_without_ack=sum(self.content[sequence][0] not in self.ack_times for sequence in final),
            delivered=self.deliveries,
            redelivered=self.redelivered,
            readings=len(self.logs),
            breaches=tuple(self.breaches(final)),
        )

    def final_log(self) -> AbstractSet[int]:
        """Return the sequences of the reading that was started last."""
        if not self.logs:
            return frozenset()
        return self.logs[max(self.log_order, key=self.log_order.__getitem__)]

    def switches(self) -> Iterator[Switch]:
        ended = {fault.epoch: fault for fault in self.faults}
        for takeover in sorted(self.takeovers, key=lambda x: x.epoch):
            yield Switch.of(takeover, ended.get(takeover.epoch - 1))

    def rate(self) -> float:
        """Acks a second between each takeover's first ack and the fault (in the end: the last ack) that followed."""
        if not self.ack_times:
            return 0.0
        ended = {fault.epoch: fault.t for fault in self.faults}
        last = max(self.ack_times.values())
        first_acks = ((x.t - x.active_us + x.ack_us, x.epoch) for x in self.takeovers)
        windows = [(begin, max(begin, ended.get(epoch, last))) for begin, epoch in first_acks]
        served_us = sum(end - begin for begin, end in windows)
        acks = sum(any(begin <= t <= end for begin, end in windows) for t in self.ack_times.values())
        return acks / served_us * 1e6 if served_us else 0.0

    def breaches(self, final: AbstractSet[int]) -> Iterator[Breach]:
        for rule, cases in (
            (Rule.ACKED, [] if self.ack_times else ["no publisher received an ack"]),
            (Rule.READ, self.unread_epochs()),
            (Rule.STORED, self.not_stored(final)),
            (Rule.ONCE, self.stored_twice()),
            (Rule.CONTIGUOUS, self.gaps()),
            (Rule.KEPT, [f"sequence {x} (id {self.content[x][0]})" for x in sorted(self.content.keys() - final)]),
            (Rule.ONE_PAYLOAD, self.changed()),
            (Rule.AS_PUBLISHED, self.altered()),
            (Rule.DELIVERED, self.missed()),
        ):
            if cases:
                yield Breach(rule, len(cases), tuple(cases[:MAX_EXAMPLES]))

    def unread_epochs(self) -> list[str]:
        read = {epoch for epoch, _ in self.log_order.values()}
        epochs = {x.epoch for x in self.takeovers}
        if not read and not epochs:
            return ["nobody read the log"]
        return [f"epoch {epoch}" for epoch in sorted(epochs - read)]

    def not_stored(self, final: AbstractSet[int]) -> list[str]:
        return [
            f"id {acked}: last seen at {self.where(acked)}"
            for acked in self.ack_times
            if self.places.get(acked, frozenset[int]()).isdisjoint(final)
        ]

    def stored_twice(self) -> list[str]:
        return [f"id {acked}: {self.where(acked)}" for acked in self.ack_times if len(self.places.get(acked, ())) > 1]

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

    def changed(self) -> list[str]:
        return [
            f"sequence {sequence}: sha1 {' and '.join([self.content[sequence][1], *sorted(others)])}"
            for sequence, others in sorted(self.other_content.items())
        ]

    def altered(self) -> list[str]:
        return [
            f"sequence {sequence}, id {stored_id}: sha1 {sha1}, published {self.published[stored_id]}"
            for sequence, (stored_id, sha1) in sorted(self.content.items())
            if self.published.get(stored_id, sha1) != sha1
        ]

    def missed(self) -> list[str]:
        if not self.delivered:
            return ["no durable received anything"]
        return [
            f"{subscription}: id {acked}"
            for subscription, ids in sorted(self.delivered.items())
            for acked in sorted(self.ack_times.keys() - ids)
        ]
