"""What the checks found, and the verdict that follows.

Pure: nothing here touches storage or a terminal.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Outcome(enum.StrEnum):
    """How one check ended. ``NOTE`` tells something that does not judge."""

    GOOD = "good"
    NOTE = "note"
    LIMIT = "limit"
    BAD = "bad"


class StorageVerdict(enum.StrEnum):
    """What all findings together say."""

    SUITABLE = "suitable"
    LIMITED = "suitable with limits"
    UNSUITABLE = "unsuitable"


@dataclass(frozen=True, slots=True)
class StorageFinding:
    """One check: ``text`` says what was seen, ``hint`` what to do about it, ``figures`` what was
    measured.

    Names of figures end in their unit: ``_s`` seconds, ``_ms`` milliseconds, ``_bytes``.
    """

    check: str
    outcome: Outcome
    text: str
    hint: str = ""
    figures: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The finding for ``--output json``."""
        return {
            "check": self.check,
            "outcome": self.outcome.value,
            "text": self.text,
            "hint": self.hint,
            "figures": dict(self.figures),
        }


@dataclass(frozen=True, slots=True)
class Expected:
    """How long a takeover takes on this storage, from the event to the first answered publish.

    ``seconds`` is ``None`` where this storage alone cannot tell; ``measured`` says that it was
    seen, not reckoned.
    """

    event: str
    seconds: float | None
    why: str
    measured: bool = False


@dataclass(frozen=True, slots=True)
class StorageReport:
    """Everything that one run says. ``mode``: ``host``, ``peer``, or the phase."""

    directory: str
    mode: str
    host: str
    findings: Sequence[StorageFinding]
    expected: Sequence[Expected] = ()

    @property
    def verdict(self) -> StorageVerdict:
        """Unsuitable for one bad finding, limited for one limit.

        A report without findings proves nothing.
        """
        outcomes = {finding.outcome for finding in self.findings}
        if not self.findings or Outcome.BAD in outcomes:
            return StorageVerdict.UNSUITABLE
        return StorageVerdict.LIMITED if Outcome.LIMIT in outcomes else StorageVerdict.SUITABLE

    @property
    def reasons(self) -> list[StorageFinding]:
        """What keeps the verdict from being better, the worst first."""
        return [
            finding
            for outcome in (Outcome.BAD, Outcome.LIMIT)
            for finding in self.findings
            if finding.outcome is outcome
        ]

    def as_dict(self) -> dict[str, object]:
        """The report for ``--output json``."""
        return {
            "directory": self.directory,
            "mode": self.mode,
            "host": self.host,
            "verdict": self.verdict.value,
            "reasons": [f"{finding.check}: {finding.text}" for finding in self.reasons],
            "findings": [finding.as_dict() for finding in self.findings],
            "takeover": [
                {"event": x.event, "seconds": x.seconds, "measured": x.measured, "why": x.why}
                for x in self.expected
            ],
        }
