"""The archive job: what waits in a spool becomes part of a table, batch by batch, and leaves the
spool.

A batch goes one way: workers write checked and read-back files below ``_ftstan/staging``; the
driver decides by making ``_ftstan/commit.json`` durable, which says what is to happen; then it
happens: files to their places, commit to the table's log, slices out of the spool, ``commit.json``
away. Ended before the decision, a run has changed nothing; ended after it, the next run finishes it
first. Every step can be done twice. A slice is removed only after the commit.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import uuid
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ftstan.spark.archive import plan
from ftstan.spark.archive import table as tables
from ftstan.spark.archive.report import ArchiveOptions, ArchiveReport, Failed
from ftstan.spark.archive.slices import shown
from ftstan.spark.archive.spool import ArchiveError, discard, slices, sync_directory
from ftstan.spark.archive.stores import stored_channels
from ftstan.spark.archive.table import OURS, DataFile, Identity
from ftstan.spark.archive.work import Done, carry_out, from_json, mark, to_json
from ftstan.spark.keys import KeySource
from ftstan.spark.serverinfo import cluster_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from ftstan.spark.archive.spool import Listing, Spooled
    from ftstan.spark.archive.stores import StoredChannel

_DECISION = os.path.join(OURS, "commit.json")
_STAGING = os.path.join(OURS, "staging")
#: Tasks for each core: the last ones to end are then small.
_TASKS = 4
_LOOK_S = 0.5


def run(
    spark: SparkSession,
    spool: str,
    table: str,
    options: ArchiveOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ArchiveReport:
    """Archive what waits in ``spool`` into ``table``, which is made if it is not there.

    ``spool`` may be a datastore as well: a stopped one, a backup, a live one up to what is
    confirmed; it stays as it is. Both are directories that every worker reaches under the same
    path. ``progress(done, total)`` gets bytes of what is archived, now and then, from another
    thread. Raises ``ArchiveError`` when nothing more can be done; what was committed stays.
    """
    try:
        job = _Job(
            spark,
            os.path.abspath(spool),
            os.path.abspath(table),
            options or ArchiveOptions(),
            progress,
        )
        if job.options.dry_run:
            return job.look()
        with tables.locked(job.table):
            return job.archive()
    except OSError as error:
        raise ArchiveError(
            f"{error.filename or table}: {error.strerror or error}",
            hint="nothing is lost: run the job again when the storage works",
        ) from error


@dataclass(frozen=True, slots=True)
class _Decision:
    """What is to happen with a batch.

    Paths of files are relative to the table, those of slices to the spool.

    ``moves``: from the staging directory to their places.
    """

    batch: int
    staging: str
    spool: str
    moves: list[tuple[str, str]]
    files: list[DataFile]
    slices: list[str]

    @classmethod
    def read(cls, path: str) -> _Decision | None:
        """The one that was made and not carried out, if there is one. Raises ``ArchiveError``."""
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
            return cls(
                **{
                    **values,
                    "moves": [(a, b) for a, b in values["moves"]],
                    "files": [DataFile(**row) for row in values["files"]],
                }
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArchiveError(
                f"{path} cannot be read", hint="restore it from a copy of the archive"
            ) from error


class _Job:
    """One run."""

    def __init__(
        self,
        spark: SparkSession,
        spool: str,
        table: str,
        options: ArchiveOptions,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.spark = spark
        self.spool = spool
        self.table = table
        self.options = options
        self._progress = progress
        self._done = self._total = 0
        self._keys = KeySource.of(options.key_file)
        self._identity = self._identify()
        self._log = tables.open_log(table, self._identity.format)
        self._report = ArchiveReport(spool, table, self._identity.format, dry_run=options.dry_run)

    def _identify(self) -> Identity:
        """What the table is, or will be. Raises ``ArchiveError``."""
        known = tables.identity_of(self.table)
        kind = tables.kind_of(self.table)
        if (
            known is None
            and not kind
            and os.path.isdir(self.table)
            and set(os.listdir(self.table)) - {OURS}
        ):
            raise ArchiveError(
                f"{self.table} is not empty and holds no archive",
                hint="name an empty directory, or one that is not there",
            )
        form = known.format if known else kind
        if form and self.options.format not in {"", form}:
            raise ArchiveError(
                f"archive {self.table} is a {form} table, not {self.options.format}",
                hint="leave the format out",
            )
        return Identity(
            form or self.options.format or "delta",
            known.cluster if known else "",
            payloads=self._mark(known, there=bool(known or kind)),
        )

    def _mark(self, known: Identity | None, *, there: bool) -> str:
        """What the payloads of the table are, and stay. Raises ``ArchiveError``."""
        asked = {"decrypted": tables.PLAIN, "stored": tables.ENCRYPTED}.get(
            self.options.payloads, ""
        )
        had = known.payloads if known else ""
        if had and asked not in {"", had}:
            held = "as clients sent them" if had == tables.PLAIN else "as they were stored"
            raise ArchiveError(
                f"archive {self.table} is marked {had}: it holds payloads {held}",
                hint="leave --payloads out, or archive into another table",
            )
        if there and not had and (asked == tables.PLAIN or (self._keys and not asked)):
            raise ArchiveError(
                f"archive {self.table} has no mark: its payloads are as they were stored",
                hint="say --payloads stored to go on so, or archive into another table",
            )
        mark = had or asked or ("" if there else tables.PLAIN)
        if mark != tables.PLAIN and self.options.key_file:
            raise ArchiveError(
                f"archive {self.table} keeps payloads as they are stored, and needs no keys",
                hint="leave --encryption-key-file out, or archive into another table",
            )
        return mark

    # ---- one run
    # ----------------------------------------------------------------------------------------------

    def look(self) -> ArchiveReport:
        """What a run would find; changes nothing."""
        if self._from_store:
            stored = self._stored()
            self._add(messages=sum(s.last - s.first + 1 for s in stored))
        else:
            chosen = self._chosen(slices(self.spool))
            self._add(slices=len(chosen), messages=sum(s.manifest.count for s in chosen))
        return self._whole_report()

    def archive(self) -> ArchiveReport:
        """Everything that waits."""
        self._finish_former()
        shutil.rmtree(os.path.join(self.table, _STAGING), ignore_errors=True)
        if self._from_store:
            units = plan.units_of(self._stored())
        else:
            chosen = self._chosen(slices(self.spool))
            units = plan.units(chosen, self._unit_bytes(sum(s.manifest.size for s in chosen)))
        tables.write_identity(self.table, self._identity)
        self._total = sum(unit.size for unit in units)
        self._tell(0)
        for batch in plan.packed(units, self.options.batch_bytes):
            self._batch(batch)
            self._done += sum(unit.size for unit in batch)
            self._tell(0)
        return self._whole_report()

    def _add(self, **more: Any) -> None:
        """Count on: fields of the report, and what is added to each."""
        self._report = replace(
            self._report, **{name: getattr(self._report, name) + n for name, n in more.items()}
        )

    def _whole_report(self) -> ArchiveReport:
        return replace(
            self._report, conflicts_known=sum(file.rows for file in tables.disputed(self.table))
        )

    def _tell(self, more: int) -> None:
        """What is done, and ``more`` bytes of the present batch."""
        if self._progress is not None:
            self._progress(min(self._done + more, self._total), self._total)

    # ---- what is archived
    # ----------------------------------------------------------------------------------------

    def _chosen(self, listing: Listing) -> list[Spooled]:
        """The slices of this run; those that cannot be archived go to the report."""
        wanted = set(self.options.channels)
        found = [s for s in listing.slices if not wanted or shown(s.manifest.channel) in wanted]
        failed = [Failed(path, "", why) for path, why in listing.broken]
        cluster = self._cluster({s.manifest.cluster for s in found} - {""})
        mine = []
        for s in found:
            if s.manifest.cluster in {"", cluster}:
                mine.append(s)
            else:
                why = (
                    f'of cluster "{s.manifest.cluster}", the archive is of "{cluster}": archive '
                    "it into another table"
                )
                failed.append(Failed(s.path, shown(s.manifest.channel), f"{s.path}: {why}"))
        self._add(failed=failed)
        return mine

    @property
    def _from_store(self) -> bool:
        """Whether a datastore is archived, not a spool."""
        return os.path.isfile(os.path.join(self.spool, "server.dat"))

    def _stored(self) -> list[StoredChannel]:
        """The channels of a datastore. Raises ``FtstanError``."""
        named = cluster_of(self.spool)
        if self._cluster({named} - {""}) not in {"", named}:
            raise ArchiveError(
                f'archive {self.table} is of cluster "{self._identity.cluster}", datastore '
                f'{self.spool} of "{named}"',
                hint="use a table for each",
            )
        wanted = set(self.options.channels)
        polynomial = self.options.crc_polynomial
        return stored_channels(self.spool, polynomial, lambda name: not wanted or name in wanted)

    def _cluster(self, named: set[str]) -> str:
        """Whose slices the table takes, out of the clusters named.

        Raises ``ArchiveError`` if nobody can tell.
        """
        wanted = self.options.cluster or self._identity.cluster
        if self._identity.cluster and wanted != self._identity.cluster:
            raise ArchiveError(
                f'archive {self.table} is of cluster "{self._identity.cluster}", not "{wanted}"',
                hint="use a table for each",
            )
        if not wanted and len(named) > 1:
            raise ArchiveError(
                f"spool {self.spool} holds slices of several clusters: {', '.join(sorted(named))}",
                hint="name one (--cluster), and use a table for each",
            )
        wanted = wanted or next(iter(named), "")
        self._identity = replace(self._identity, cluster=wanted)
        return wanted

    # ---- one batch
    # ----------------------------------------------------------------------------------------------

    def _batch(self, units: Sequence[plan.Unit]) -> None:
        number = self._log.batch() + 1
        staging = os.path.join(_STAGING, f"{number}-{uuid.uuid4().hex[:12]}")
        where = plan.Where(
            self.table,
            os.path.join(self.table, staging),
            self._identity.format,
            self.options.target_file_bytes,
            self.options.compression_level,
            number,
            payloads=self._identity.payloads,
            keys=self._keys,
        )
        os.makedirs(where.staging)
        whole = plan.beside(units, self._log.files(), tables.disputed(self.table))
        with _watching(where.staging, self._tell):
            done = self._distribute(whole, where)
        broken = next((d for d in done if d.error), None)
        if broken is not None:
            raise ArchiveError(broken.error, hint=broken.hint)
        decision = _Decision(
            number,
            staging,
            self.spool,
            [
                (os.path.relpath(path, self.table), target)
                for d in done
                for path, target in [
                    *((path, file.path) for path, file in d.files),
                    *d.conflict_files,
                ]
            ],
            [file for d in done for _, file in d.files],
            [] if self.options.keep_slices else [path for d in done for path in d.slices],
        )
        if decision.moves or decision.slices:
            self._decide(decision)
            self._finish(decision)
        self._add(
            commits=bool(decision.files),
            slices=sum(len(d.slices) for d in done),
            messages=sum(file.rows for file in decision.files),
            duplicates=sum(d.duplicates for d in done),
            files=len(decision.files),
            bytes=sum(file.size for file in decision.files),
            failed=[row for d in done for row in d.failed],
            conflicts=[row for d in done for row in d.conflicts],
            notes=[note for d in done for note in d.notes],
        )

    def _unit_bytes(self, total: int) -> int:
        share = total // (2 * self._cores) + 1
        return max(min(share, 4 * self.options.target_file_bytes), self.options.target_file_bytes)

    @property
    def _cores(self) -> int:
        if self.options.partitions:
            return self.options.partitions
        try:
            return self.spark.sparkContext.defaultParallelism
        except Exception:  # noqa: BLE001  # Spark Connect has no context, and says so with whatever its release has
            return int(self.spark.conf.get("spark.sql.shuffle.partitions") or 2)

    def _distribute(self, units: Sequence[plan.Unit], where: plan.Where) -> list[Done]:
        """Do the units on Spark's workers. Raises ``ArchiveError``."""
        # This module is importable without pyspark.
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql.functions import udf  # noqa: PLC0415

        groups = plan.tasks(units, self._cores * _TASKS)
        shares = [[(k, units[k]) for k in group] for group in groups]
        # Not an Arrow function: those want pandas. Each task has one row.
        work = udf(_worker(shares, where), "string", useArrow=False).asNondeterministic()
        try:
            rows = (
                self.spark.range(0, len(shares), 1, len(shares))
                .select(work("id").alias("result"))
                .collect()
            )
        except PySparkException as error:
            first = next(
                (line for line in str(error).splitlines() if line.strip()), "no reason given"
            )
            raise ArchiveError(
                f"Spark ended the archive job: {first}",
                hint="see Spark's log; nothing was removed from the spool",
            ) from error
        return sorted(
            (done for row in rows for done in from_json(row.result)), key=lambda d: d.unit
        )

    # ---- decision and what follows from it
    # -----------------------------------------------------------------------

    def _decide(self, decision: _Decision) -> None:
        tables.replace_durably(
            os.path.join(self.table, _DECISION), json.dumps(asdict(decision)) + "\n"
        )

    def _finish_former(self) -> None:
        decision = _Decision.read(os.path.join(self.table, _DECISION))
        if decision is not None:
            self._finish(decision)
            self._report = replace(self._report, resumed=True)

    def _finish(self, decision: _Decision) -> None:
        """Carry a decision out, also for the second time.

        Raises ``ArchiveError`` and ``OSError``.
        """
        self._place(decision)
        if decision.files:
            self._log.commit(decision.batch, decision.files)
        self._release(decision)
        shutil.rmtree(os.path.join(self.table, decision.staging), ignore_errors=True)
        os.unlink(os.path.join(self.table, _DECISION))
        sync_directory(os.path.join(self.table, OURS))

    def _place(self, decision: _Decision) -> None:
        """Bring files to their places, durably."""
        touched = set()
        for source, target in decision.moves:
            path = os.path.join(self.table, target)
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            touched |= {folder, os.path.dirname(folder)}
            try:
                os.replace(os.path.join(self.table, source), path)
            except FileNotFoundError:
                # Moved by the run that decided.
                if not os.path.exists(path):
                    raise
        for folder in sorted(touched | {self.table}):
            sync_directory(folder)

    def _release(self, decision: _Decision) -> None:
        """Remove archived slices from the spool."""
        if not os.path.isdir(decision.spool):
            # Moved since: what it holds is recognised as archived, and goes then.
            return
        for path in decision.slices:
            discard(decision.spool, path)


def _worker(shares: list[list[tuple[int, plan.Unit]]], where: plan.Where) -> Callable[[int], str]:
    """What a task does with the number of its share: JSON of what came of each unit."""

    def work(share: int) -> str:
        done = []
        for k, unit in shares[share]:
            done.append(carry_out(unit, replace(where, unit=k)))
            mark(where.staging, k, unit.size)
        return to_json(done)

    return work


@contextlib.contextmanager
def _watching(staging: str, told: Callable[[int], None]) -> Iterator[None]:
    """Tell now and then how many bytes of slices the workers have done: their marks are all that
    the driver sees.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            with contextlib.suppress(OSError):
                told(
                    sum(
                        int(name.rpartition("-")[2])
                        for name in os.listdir(staging)
                        if name.startswith("done-")
                    )
                )

    thread = threading.Thread(target=watch, name="archive-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
