"""What an audit found, as plain values. It computes nothing and needs no Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import FtstanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.spark.audit.verdict import AuditVerdict

EXIT_CLEAN = 0
EXIT_FOUND = 1


class AuditError(FtstanError):
    """The audit cannot be carried out, or its report cannot be written."""


class AuditKind(Enum):
    """What can be found; the value says it to people."""

    GAP = "sequences that are nowhere"
    CRC = "a record whose checksum does not match"
    CONFLICT = "one sequence with different contents"
    DUPLICATE = "one sequence more than once in one place"
    UNREADABLE = "bytes that cannot be read as records"
    BACKWARD = "a timestamp before that of the sequence before"

    @property
    def error(self) -> bool:
        """Whether it makes an audit fail. A clock that was set back is only worth knowing."""
        return self is not AuditKind.BACKWARD


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One finding: sequences ``first`` to ``last`` of a channel, and what is wrong with them in
    words.

    ``places``: where it was found; of a gap, where the sequences around it are. ``timestamp_ns``:
    of the message, or of the one behind a gap; 0 if it is not known. A finding about a file has no
    sequences (0) and the offset in its words.
    """

    kind: AuditKind
    channel: str
    first: int
    last: int
    timestamp_ns: int
    places: tuple[str, ...]
    text: str

    @property
    def count(self) -> int:
        """How many sequences it is about."""
        return self.last - self.first + 1 if self.first else 0


@dataclass(frozen=True, slots=True)
class Day:
    """What one place has of one channel on one day (UTC, ``YYYY-MM-DD``)."""

    channel: str
    day: str
    place: str
    messages: int
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel over all places: different sequences, their bytes, the ends, and what is wrong.

    ``copies``: messages that a second place has as well, with the same bytes. ``missing``:
    sequences in gaps.
    """

    name: str
    messages: int
    size: int
    copies: int
    first: int
    last: int
    first_ns: int
    last_ns: int
    missing: int


@dataclass(frozen=True, slots=True)
class Result:
    """What an audit found.

    ``counts``: findings by kind, all of them; ``findings``: as many as were asked for, by channel
    and sequence. ``notes``: what readers remarked that is no fault, such as foreign files and
    payloads that look encrypted.
    """

    places: tuple[str, ...]
    channels: tuple[Channel, ...]
    days: tuple[Day, ...]
    counts: dict[AuditKind, int]
    findings: tuple[AuditFinding, ...]
    ledger: AuditVerdict | None = None
    strict: bool = False
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """True when nothing is wrong (with ``strict``: nothing at all was found) and the ledger, if
        any, is clean.
        """
        wrong = any(count for kind, count in self.counts.items() if kind.error or self.strict)
        return not wrong and (self.ledger is None or self.ledger.clean)

    @property
    def exit_code(self) -> int:
        """Exit status of a command: 0 clean, 1 something is wrong."""
        return EXIT_CLEAN if self.clean else EXIT_FOUND

    def as_json(self) -> dict[str, Any]:
        """The report as plain values for ``json.dumps``; kinds by name in lower case."""
        return {
            "clean": self.clean,
            "places": list(self.places),
            "channels": [asdict(channel) for channel in self.channels],
            "days": [asdict(day) for day in self.days],
            "counts": {kind.name.lower(): count for kind, count in self.counts.items()},
            "findings": [plain(finding) for finding in self.findings],
            "notes": list(self.notes),
            "ledger": self.ledger.as_json() if self.ledger else None,
        }

    def by_channel(self) -> Counter[tuple[str, AuditKind]]:
        """The findings at hand, by channel and kind."""
        return Counter((finding.channel, finding.kind) for finding in self.findings)

    def lines(self) -> Iterator[str]:
        """The verdict in a few lines for people."""
        for kind, count in self.counts.items():
            if count:
                yield f"{'error' if kind.error else 'note'}: {kind.value}: {count:,}"
        if self.ledger is not None:
            for breach in self.ledger.breaches:
                yield f"error: ledger: {breach.rule.value}: {breach.count:,}"
        yield "clean" if self.clean else "not clean"


def plain(finding: AuditFinding) -> dict[str, Any]:
    """A finding as plain values; its kind by name in lower case."""
    row = asdict(finding)
    return row | {"kind": finding.kind.name.lower(), "places": list(finding.places)}
