"""What ledgers are held to (``docs/ledger.md``): the rules, their words, what every verdict has.

For those who judge, in memory (``judge.py``) or in Spark (``spark/audit/``), and for their readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ftstan.drill.ledger import Fault, Takeover

MAX_EXAMPLES = 5


class Rule(Enum):
    """What a clean ledger keeps; a breach of any is an error. The value is how a breach is told.

    ``meaning``: the rule itself. ``forms``: how a case of a breach is told, for the ``%`` of
    Python and ``format_string`` of Spark; each judge counts and orders cases in the same way.
    """

    meaning: str
    forms: tuple[str, ...]

    def __new__(cls, told: str, meaning: str, *forms: str) -> Self:
        """Make one of the words that stand below."""
        rule = object.__new__(cls)
        rule._value_ = told
        rule.meaning = meaning
        rule.forms = forms
        return rule

    def case(self, *values: object, form: int = 0) -> str:
        """One case in words."""
        return self.forms[form] % values

    ACKED = (
        "there is no acked publish to judge",
        "there is at least one ack",
        "no publisher received an ack",
    )
    READ = (
        "an owner's log was not read",
        "the log was read in every epoch that has a `takeover`",
        "epoch %d",
        "nobody read the log",
    )
    STORED = (
        "an acked id is not in the log at the end",
        "every acked id is in the log at the end (the reading that was started last)",
        "id %s: last seen at %s",
    )
    ONCE = (
        "an acked id is in the log at more than one sequence",
        "all reads and deliveries together show an acked id at one sequence only",
        "id %s: %s",
    )
    CONTIGUOUS = (
        "a log is not contiguous from sequence 1",
        "the sequences of each reading are contiguous from 1",
        "%s: no sequence %d",
        "%s: there is a sequence %d",
    )
    KEPT = (
        "a sequence that was seen is not in the log at the end",
        "the log at the end has every sequence that any reading or delivery ever showed",
        "sequence %d (id %s)",
    )
    ONE_PAYLOAD = (
        "a sequence has shown more than one payload",
        "over all reads and deliveries a sequence has one payload",
        "sequence %d: sha1 %s",
    )
    AS_PUBLISHED = (
        "a stored payload is not the one published under its id",
        "a payload is the one published under its id",
        "sequence %d, id %s: sha1 %s, published %s",
    )
    DELIVERED = (
        "a durable never saw an acked id",
        "every durable in the ledger received every acked id, at least once; there is one",
        "%s: id %s",
        "no durable received anything",
    )
    # What only a drill writes down.
    ORDER = (
        "a message stands before one that was acked before it was published",
        "a message published (`t`) after another was acked (`t`) has the higher sequence",
        "id %s at sequence %d, id %s at %d",
    )
    ONE_OWNER = (
        "an epoch confirmed batches after a higher one had",
        (
            "no node's `commits` of one epoch grow behind an `owner` record whose `t` lies behind"
            " `t` + `took_us` of one with commits of a higher epoch"
        ),
        "%s: epoch %d went on while epoch %d served",
    )
    RECOVERED = (
        "no ack came any more after a fault",
        "after every fault there is another ack",
        "%s of %s in epoch %d",
    )
    # What only a store can answer.
    IN_STORE = (
        "an acked id is not in the store",
        "every acked id is in the store, unless all it was seen at lies below what the store has",
        "id %s",
    )
    ONCE_IN_STORE = (
        "an acked id is in the store at more than one sequence",
        "the store has an acked id at one sequence only",
        "id %s: %s",
    )
    SAME_IN_STORE = (
        "the store has another payload at a sequence that a client saw",
        "where the store has a sequence that a client saw, it has the payload that was seen",
        "sequence %d, id %s: sha1 %s, stored %s",
    )


OF_DRILLS = frozenset({Rule.ORDER, Rule.ONE_OWNER, Rule.RECOVERED})
OF_STORES = frozenset({Rule.IN_STORE, Rule.ONCE_IN_STORE, Rule.SAME_IN_STORE})

PROMISE = frozenset(Rule) - OF_DRILLS - OF_STORES
"""What every ledger is held to."""
DRILLED = PROMISE | OF_DRILLS
"""What that of a drill is held to."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One broken rule: how often, and up to five cases in words."""

    rule: Rule
    count: int
    examples: tuple[str, ...]

    @classmethod
    def of(cls, rule: Rule, cases: Sequence[str]) -> Breach:
        """Of all its cases."""
        return cls(rule, len(cases), tuple(cases[:MAX_EXAMPLES]))


@dataclass(frozen=True, slots=True)
class Switch:
    """One takeover: which fault ended the former epoch, who followed, and how long it took.

    Times are in milliseconds.
    """

    epoch: int
    fault: str
    former: str
    node: str
    active_ms: float
    ack_ms: float

    @classmethod
    def of(cls, takeover: Takeover, fault: Fault | None) -> Switch:
        """Of a takeover and the fault that ended the epoch before it."""
        return cls(
            takeover.epoch,
            fault.fault if fault else "start",
            fault.node if fault else "",
            takeover.node,
            takeover.active_us / 1e3,
            takeover.ack_us / 1e3,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerVerdict:
    """What a ledger says. ``rate``: acks a second while a node served (0.0: unknown).

    ``acked_again``: ids with more than one ack record. Counts do not judge; breaches do.
    """

    nodes: tuple[str, ...]
    switches: tuple[Switch, ...]
    published: int
    acked: int
    acked_again: int = 0
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


class History:
    """Faults and takeovers of a ledger, and what follows from them alone."""

    def __init__(self, faults: Sequence[Fault], takeovers: Sequence[Takeover]) -> None:
        self.faults = faults
        self.takeovers = takeovers
        self._ended = {fault.epoch: fault for fault in faults if fault.ends_epoch}

    def nodes(self) -> tuple[str, ...]:
        """Names of all nodes, sorted."""
        return tuple(sorted({x.node for x in self.faults} | {x.node for x in self.takeovers}))

    def switches(self) -> Iterator[Switch]:
        """Takeovers by epoch, each with the fault before it."""
        for takeover in sorted(self.takeovers, key=lambda x: x.epoch):
            yield Switch.of(takeover, self._ended.get(takeover.epoch - 1))

    def served(self, last_ack: int) -> list[tuple[int, int]]:
        """When a node served: from each takeover's first ack to the fault or last ack after it."""
        found = []
        for takeover in self.takeovers:
            begin = takeover.t - takeover.active_us + takeover.ack_us
            ended = self._ended.get(takeover.epoch)
            found.append((begin, max(begin, ended.t if ended else last_ack)))
        return found

    def unread(self, epochs: Collection[int]) -> list[str]:
        """Cases of ``READ`` in a channel whose log was read in these epochs."""
        wanted = {takeover.epoch for takeover in self.takeovers}
        if not wanted and not epochs:
            return [Rule.READ.case(form=1)]
        return [Rule.READ.case(epoch) for epoch in sorted(wanted.difference(epochs))]


def at_sequences(sequences: Collection[int]) -> str:
    """Where an id was seen."""
    found = map(str, sorted(sequences))
    return f"sequence {' and '.join(found)}" if sequences else "no sequence"
