"""Audits: whether what lies in stores, spools and archives is whole, and whether a ledger's promises were kept.

Reads through the data source ``stan``, changes nothing. Importing it needs no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.promise import Breach, Rule
from ftstan.spark.audit.report import AuditError, Channel, Day, Finding, Kind, Report
from ftstan.spark.audit.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

__all__ = [
    "AuditError",
    "AuditOptions",
    "Breach",
    "Channel",
    "Day",
    "Finding",
    "Kind",
    "Report",
    "Rule",
    "Verdict",
    "run",
]


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What to audit, and how strictly.

    ``channels`` (names) or ``pattern`` (a regular expression for whole names): these only; neither: all.
    ``ledger``: a directory with a ledger to judge as well; with places, its acked messages are looked for there too, in
    ``ledger_channel`` (not needed where the places have one channel). ``quiet_seconds``: times without acks are told
    from this length on. ``strict``: whatever was found fails the audit. ``most_findings``: so many are told one by one
    (all are counted). ``reading``: further options of ``stan``, such as ``allowUnconfirmed``.
    """

    channels: tuple[str, ...] = ()
    pattern: str = ""
    ledger: str = ""
    ledger_channel: str = ""
    quiet_seconds: float = 1.0
    strict: bool = False
    most_findings: int = 10_000
    reading: Mapping[str, str] = field(default_factory=dict)


def run(
    spark: SparkSession,
    places: Sequence[str],
    options: AuditOptions = AuditOptions(),
    *,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Audit ``places`` together (stores, spools, archives: whatever ``stan`` reads), and the ledger of the options.

    Without places only the ledger is judged. ``progress`` is called with a few words when a stage begins. Raises
    ``AuditError``, ``LedgerError`` and the errors of reading.
    """
    from ftstan.spark.audit.running import audit  # noqa: PLC0415  needs pyspark

    return audit(spark, places, options, progress or (lambda _: None))
