"""Audits: whether what lies in stores, spools and archives is whole, and whether a ledger's
promises were kept.

Reads through the data source ``stan``, changes nothing. Importing it needs no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.drill.rules import Breach, Rule
from ftstan.spark.audit.options import AuditOptions
from ftstan.spark.audit.report import AuditReport
from ftstan.spark.audit.result import AuditError, AuditFinding, AuditKind, Channel, Day
from ftstan.spark.audit.verdict import AuditVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

__all__ = [
    "AuditError",
    "AuditFinding",
    "AuditKind",
    "AuditOptions",
    "AuditReport",
    "AuditVerdict",
    "Breach",
    "Channel",
    "Day",
    "Rule",
    "run",
]


def run(
    spark: SparkSession,
    places: Sequence[str],
    options: AuditOptions = AuditOptions(),  # noqa: B008  # frozen
    *,
    progress: Callable[[str], None] | None = None,
) -> AuditReport:
    """Audit ``places`` together (stores, spools, archives: whatever ``stan`` reads), and the ledger
    of the options.

    Without places only the ledger is judged. ``progress`` is called with a few words when a stage
    begins. Raises ``AuditError``, ``LedgerError`` and the errors of reading.
    """
    from ftstan.spark.audit.running import audit  # noqa: PLC0415  needs pyspark

    return audit(spark, places, options, progress or (lambda _: None))
