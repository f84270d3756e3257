"""One audit from its options to its report: reads the places, has them checked, and the ledger
judged.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from ftstan.base.errors import ConfigError
from ftstan.spark import FORMAT, register
from ftstan.spark.audit import ledger
from ftstan.spark.audit.checks import COLUMNS, Found, check
from ftstan.spark.audit.judging import judge, settings_for
from ftstan.spark.audit.matching import match
from ftstan.spark.audit.report import AuditReport
from ftstan.spark.audit.result import AuditError, AuditFinding, AuditKind
from ftstan.spark.options import ReadOptions
from ftstan.spark.places import opened
from ftstan.spark.report import ReadingKind, collected
from ftstan.spark.session import set_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ftstan.spark.audit.options import AuditOptions
    from ftstan.spark.audit.verdict import AuditVerdict

_NOTHING = Found((), (), dict.fromkeys(AuditKind, 0), ())


def audit(
    spark: SparkSession,
    places: Sequence[str],
    options: AuditOptions,
    progress: Callable[[str], None],
) -> AuditReport:
    """See ``ftstan.spark.audit.run``."""
    if not places and not options.ledger:
        raise AuditError(
            "there is nothing to audit", hint="name a datastore, a spool, an archive or a ledger"
        )
    if len(set(places)) < len(places):
        raise AuditError(
            "a place is named twice", hint="name each once: its messages would count as copies"
        )
    # What is wrong with a place is found here, before Spark starts to work.
    names = sorted({name for place in places for name in _channels(place, options)})
    channel = (
        _the_channel(places, names, options.ledger_channel) if options.ledger and places else ""
    )
    register(spark)
    remarks = _remarks_directory(options)
    try:
        tables = [
            (place, _table(spark, place, options, f"{remarks}/{number}"))
            for number, place in enumerate(places)
        ]
        found = _NOTHING
        notes: list[str] = []
        if tables:
            progress(f"reading {len(tables)} places" if len(tables) > 1 else f"reading {places[0]}")
            found = check(tables, options.most_findings)
        for number, place in enumerate(places):
            found = _with_remarks(found, place, f"{remarks}/{number}", notes)
        verdict = _judged(spark, tables, options, channel, progress)
    except PySparkException as error:
        raise AuditError(
            f"Spark ended the audit: {reason(error)}", hint="see Spark's log for more"
        ) from error
    finally:
        shutil.rmtree(remarks, ignore_errors=True)
    return AuditReport(
        places=tuple(places),
        channels=found.channels,
        days=found.days,
        counts=found.counts,
        findings=found.findings[: options.most_findings],
        ledger=verdict,
        strict=options.strict,
        notes=tuple(notes),
    )


def reason(error: PySparkException) -> str:
    """What went wrong in one line: the words of our own error where a reader raised one, else
    Spark's first line.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("ftstan.")]
    return next(iter(ours or lines), "no reason given")


# ---- places
# --------------------------------------------------------------------------------------------------


def _reading(place: str, options: AuditOptions) -> dict[str, str]:
    """The options of ``stan`` for one place."""
    wanted = {}
    if options.channels:
        wanted["subscribe"] = ",".join(options.channels)
    elif options.pattern:
        wanted["subscribePattern"] = options.pattern
    return {**options.reading, **wanted, "path": place}


def _channels(place: str, options: AuditOptions) -> Iterable[str]:
    asked = ReadOptions.of(_reading(place, options))
    return (name for name in opened(asked).channels if asked.wants(name))


def _the_channel(places: Sequence[str], names: Sequence[str], wanted: str) -> str:
    if wanted in names or (not wanted and len(names) == 1):
        return wanted or names[0]
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none"
    if wanted:
        raise AuditError(
            f'{", ".join(places)}: no channel "{wanted}"', hint=f"channels there: {shown}"
        )
    raise AuditError("which channel is the ledger about?", hint=f"name it; channels there: {shown}")


def _table(spark: SparkSession, place: str, options: AuditOptions, remarks: str) -> DataFrame:
    """The messages of one place; ``remarks``: where readers say what they met."""
    reader = spark.read.format(FORMAT).schema(COLUMNS).options(**_reading(place, options))
    return reader.option("readStats", remarks).load()


def _remarks_directory(options: AuditOptions) -> str:
    """A directory of this audit's own, below the option ``readStats`` if that is given."""
    base = options.reading.get("readStats")
    try:
        return tempfile.mkdtemp(prefix="ftstan-audit-", dir=base)
    except OSError as error:
        raise AuditError(
            f"readStats {base or tempfile.gettempdir()}: {error.strerror}",
            hint="name a directory that can be written",
        ) from error


def _with_remarks(found: Found, place: str, directory: str, notes: list[str]) -> Found:
    """What the readers of a place remarked: bytes that are no record, conflicts within it, and what
    is only notes.
    """
    try:
        report = collected(directory)
    except ConfigError:
        notes.append(
            f"{place}: what its readers remarked did not come back; name a shared directory as "
            "readStats"
        )
        return found
    known = {(finding.kind, finding.channel, finding.first) for finding in found.findings}
    more = []
    for remark in dict.fromkeys(report.findings):
        if remark.kind is ReadingKind.NOTE:
            notes.append(f"{place}: {remark}")
            continue
        kind = AuditKind.CONFLICT if remark.kind is ReadingKind.CONFLICT else AuditKind.UNREADABLE
        sequence = remark.sequence or 0
        # A record that cannot be read is a row as well, and a sequence that is nowhere a gap.
        told = (
            (AuditKind.CONFLICT, remark.channel, sequence) in known
            if kind is AuditKind.CONFLICT
            else sequence > 0
        )
        if not told:
            more.append(
                AuditFinding(kind, remark.channel, sequence, sequence, 0, (place,), str(remark))
            )
    if report.encrypted:
        notes.append(f"{place}: {report.encrypted:,} payloads look encrypted")
    counts = dict(found.counts)
    for finding in more:
        counts[finding.kind] += 1
    findings = sorted([*found.findings, *more], key=lambda f: (f.channel, f.first, f.kind.name))
    return replace(found, counts=counts, findings=tuple(findings))


# ---- the ledger
# --------------------------------------------------------------------------------------------------


def _judged(
    spark: SparkSession,
    tables: Sequence[tuple[str, DataFrame]],
    options: AuditOptions,
    channel: str,
    progress: Callable[[str], None],
) -> AuditVerdict | None:
    if not options.ledger:
        return None
    progress(f"judging the ledger {options.ledger}")
    book = ledger.read(spark, options.ledger)
    try:
        with set_for(spark, settings_for(book)):
            verdict = judge(book, quiet_us=int(options.quiet_seconds * 1e6))
        if not tables:
            return verdict
        progress(f'looking for what was acked in channel "{channel}"')
        found, breaches = match(book, tables, channel)
        return replace(verdict, match=found, breaches=(*verdict.breaches, *breaches))
    finally:
        book.forget()
