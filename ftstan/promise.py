"""What ledgers are held to (``docs/ledger.md``, the verdict): the rules, and how a breach and a takeover are told.

Plain values for those who judge, in memory (``drill/``) or in Spark (``spark/``). Nothing here judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
    # What only a drill writes down.
    ORDER = "a message stands before one that was acked before it was published"
    ONE_OWNER = "an epoch confirmed batches after a higher one had"
    RECOVERED = "no ack came any more after a fault"
    # What only a store can answer.
    IN_STORE = "an acked id is not in the store"
    ONCE_IN_STORE = "an acked id is in the store at more than one sequence"
    SAME_IN_STORE = "the store has another payload at a sequence that a client saw"


_OF_DRILLS = frozenset({Rule.ORDER, Rule.ONE_OWNER, Rule.RECOVERED})
_OF_STORES = frozenset({Rule.IN_STORE, Rule.ONCE_IN_STORE, Rule.SAME_IN_STORE})

PROMISE = frozenset(Rule) - _OF_DRILLS - _OF_STORES
"""What every ledger is held to."""
DRILLED = PROMISE | _OF_DRILLS
"""What that of a drill is held to."""


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
