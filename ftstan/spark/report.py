"""What a task counted and what it found: the side channel of every reading of the log.

One small JSON file a task, where somebody named a directory for them (option ``readStats``), and
one line on the standard error of the worker for what is wrong. Never the only place of a message
that cannot be read: that one has a row, too.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import uuid
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import ConfigError, DamageError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Findings that a report holds, and lines that a task prints; more are counted.
_KEPT = 1000
_SAID = 20


class ReadingKind(StrEnum):
    """What a finding means."""

    #: A record that cannot be read, or bytes that are none.
    DAMAGE = "damage"
    #: Sequences that nothing holds, or a slice that went away while it was read.
    LOSS = "loss"
    #: One sequence with two contents.
    CONFLICT = "conflict"
    #: Nothing is wrong with the messages: foreign files, bytes that were never acknowledged,
    #: payloads of a shape.
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class ReadingFinding:
    """One thing found.

    ``file`` is relative to the datastore; ``offset`` in it and ``sequence`` if they are known.
    """

    kind: ReadingKind
    channel: str
    file: str
    text: str
    offset: int | None = None
    sequence: int | None = None

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at offset {self.offset}"
        which = "" if self.sequence is None else f" (sequence {self.sequence})"
        return f"{self.file}{where}{which}: {self.text}"


@dataclass(slots=True)
class ReadingReport:
    """Counters of bytes that were read from storage, and findings.

    ``peak_memory``: of the process, in bytes.

    ``strict``: anything but a note ends the reading with ``DamageError``.
    """

    strict: bool = False
    rows: int = 0
    bad_rows: int = 0
    data_bytes: int = 0
    index_bytes: int = 0
    slices: int = 0
    encrypted: int = 0
    peak_memory: int = 0
    found: int = 0
    findings: list[ReadingFinding] = field(default_factory=list)

    def add(self, finding: ReadingFinding) -> None:
        """Take one finding; the first ones are said on the standard error, too."""
        self.found += 1
        if self.found <= _SAID:
            print(f"stan: {finding.kind}: {finding}", file=sys.stderr)
        if self.found <= _KEPT:
            self.findings.append(finding)
        if self.strict and finding.kind is not ReadingKind.NOTE:
            raise DamageError(
                f"{finding.kind}: {finding}",
                hint="run: ftstanctl store verify DIR; without the option mode=FAILFAST such "
                "rows have crc_ok false",
            )

    def save(self, directory: str) -> None:
        """Write this report into ``directory``, which is made if need be.

        Visible when it is whole.
        """
        # The worker's, who may have served other tasks before.
        self.peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        row = asdict(self)
        del row["strict"]
        name = f"{uuid.uuid4().hex}.json"
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        temporary = place / f".{name}"
        temporary.write_text(json.dumps(row), encoding="utf-8")
        os.replace(temporary, place / name)


def collected(directory: str) -> ReadingReport:
    """The reports of ``directory`` as one: what a query read, and everything that it found."""
    rows = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(Path(directory).glob("*.json"))
    ]
    if not rows:
        raise ConfigError(
            f"{directory} holds no reports of readers",
            hint="give it to the reader as option readStats",
        )
    total = ReadingReport()
    for row in rows:
        _sum(total, row)
    return total


def _sum(total: ReadingReport, row: dict[str, Any]) -> None:
    for name in ("rows", "bad_rows", "data_bytes", "index_bytes", "slices", "encrypted", "found"):
        setattr(total, name, getattr(total, name) + row[name])
    total.peak_memory = max(total.peak_memory, row["peak_memory"])
    total.findings += _read(row["findings"])


def _read(rows: Iterable[dict[str, Any]]) -> list[ReadingFinding]:
    return [ReadingFinding(**{**row, "kind": ReadingKind(row["kind"])}) for row in rows]
