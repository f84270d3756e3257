"""The judge on trial: a clean ledger must pass, and each way to break a promise that is put into it
must fail.

A drill that finds nothing proves nothing unless this passes. The ledger is made up here; no server
is needed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftstan.drill.judge import judge
from ftstan.drill.ledger import Ack, Delivery, Fault, Owner, Publish, Read, Record, Takeover
from ftstan.drill.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

_MESSAGES = 40
_FIRST_EPOCH = 20
_SECOND_US = 1_000_000
_BEGIN_US = 1_700_000_000 * _SECOND_US
_FAULT_US = _BEGIN_US + 30 * _SECOND_US
_CHANNEL = "drill"


@dataclass(frozen=True, slots=True)
class Trial:
    """One ledger: what was put into it, which rule must say so (``None``: it is clean), and what
    the judge said.
    """

    injected: str
    wanted: Rule | None
    found: frozenset[Rule]

    @property
    def passed(self) -> bool:
        """Whether the judge saw it; a clean ledger has no breach at all."""
        return self.wanted in self.found if self.wanted is not None else not self.found


def clean_ledger() -> list[Record]:
    """Two epochs on two nodes, forty messages, one durable, a reading in each epoch and one at the
    end.
    """
    records: list[Record] = [
        Takeover(_BEGIN_US, 1, "a", 0, 500_000),
        Fault(_FAULT_US, 1, "a", "kill"),
        Takeover(_FAULT_US + 200_000, 2, "b", 200_000, 300_000),
    ]
    for sequence in range(1, _MESSAGES + 1):
        stored_id = f"{sequence}.1"
        late = sequence > _FIRST_EPOCH
        at = (_FAULT_US if late else _BEGIN_US) + (
            sequence - (_FIRST_EPOCH if late else 0)
        ) * _SECOND_US // 2
        digest = _sha1(stored_id)
        records += [
            Publish(at, stored_id, sequence, 1, "", 32, digest, _CHANNEL),
            Ack(at + 2000, stored_id, f"g{sequence}", 2000),
            Delivery(at + 3000, "durable", sequence, stored_id, digest, False, _CHANNEL),
            Owner(at + 2500, "b" if late else "a", 2 if late else 1, sequence),
            Read(_FAULT_US + 60 * _SECOND_US, "last", 2, sequence, stored_id, digest, _CHANNEL),
        ]
        if not late:
            records.append(
                Read(_FAULT_US - _SECOND_US, "reader-1", 1, sequence, stored_id, digest, _CHANNEL)
            )
    return records


def _lost_ack(records: list[Record]) -> list[Record]:
    """Acknowledged, delivered, and not in the log any more."""
    end = max(x.sequence for x in records if isinstance(x, Read))
    return [x for x in records if not (isinstance(x, Read | Delivery) and x.sequence == end)]


def _duplicate(records: list[Record]) -> list[Record]:
    """One acknowledged id at a second sequence."""
    again = [
        replace(x, sequence=_MESSAGES + 1) for x in records if isinstance(x, Read) and x.id == "7.1"
    ]
    return [*records, *(x for x in again if x.reader == "last")]


def _gap(records: list[Record]) -> list[Record]:
    """A sequence that no reading met: what stood there is said to be behind the end."""
    return [
        replace(x, sequence=_MESSAGES + 1)
        if isinstance(x, Read | Delivery) and x.sequence == _MESSAGES
        else x
        for x in records
    ]


def _double_owner(records: list[Record]) -> list[Record]:
    """The former owner confirms a batch after its successor has."""
    last = max(x.t for x in records if isinstance(x, Owner))
    return [
        *records,
        Owner(last + 1000, "a", 1, _FIRST_EPOCH),
        Owner(last + 2000, "a", 1, _FIRST_EPOCH + 1),
    ]


def _two_contents(records: list[Record]) -> list[Record]:
    """One sequence that was something else for another reader."""
    spoiled = _sha1("something else")
    return [
        replace(x, sha1=spoiled) if isinstance(x, Read) and x.reader == "reader-1" else x
        for x in records
    ]


def _disorder(records: list[Record]) -> list[Record]:
    """Two messages that changed places, although one was acknowledged before the other was
    published.
    """
    swapped = {5: 9, 9: 5}
    return [
        replace(x, sequence=swapped.get(x.sequence, x.sequence))
        if isinstance(x, Read | Delivery)
        else x
        for x in records
    ]


def _silence(records: list[Record]) -> list[Record]:
    """No ack after the fault."""
    return [x for x in records if not (isinstance(x, Ack) and x.t > _FAULT_US)]


_INJECTIONS: tuple[tuple[str, Rule | None, Callable[[list[Record]], list[Record]]], ...] = (
    ("nothing", None, lambda records: records),
    ("a lost ack", Rule.STORED, _lost_ack),
    ("a duplicate", Rule.ONCE, _duplicate),
    ("a gap", Rule.CONTIGUOUS, _gap),
    ("a double owner", Rule.ONE_OWNER, _double_owner),
    ("two contents of one sequence", Rule.ONE_PAYLOAD, _two_contents),
    ("messages out of order", Rule.ORDER, _disorder),
    ("acks that do not come back", Rule.RECOVERED, _silence),
)


def trials() -> list[Trial]:
    """Try everything."""
    verdicts = {name: judge(records) for name, records in ledgers().items()}
    return [
        Trial(name, wanted, frozenset(breach.rule for breach in verdicts[name].breaches))
        for name, wanted, _ in _INJECTIONS
    ]


def ledgers() -> dict[str, list[Record]]:
    """The ledgers of the trials, by what was put into them."""
    return {name: inject(clean_ledger()) for name, _, inject in _INJECTIONS}


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
