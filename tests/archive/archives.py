"""Archives for tests: a spool that is filled with made-up slices, and tables read without Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from ftstan.spark.archive import ArchiveOptions, job, spool
from ftstan.spark.archive import table as tables
from ftstan.spark.archive.work import carry_out
from tests.archived_slices import Message, set_aside

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pytest

    from ftstan.spark.archive import ArchiveReport

Rows = list[tuple[int, bytes, int]]


class Archive:
    """A spool and a table below one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.table = folder / "table"
        spool.create(str(self.spool))

    def put(self, channel: str, number: int, rows: Iterable[Message], **more: Any) -> str:
        """One slice into the spool; returns its path there."""
        store = self.folder / "store"
        return spool.take(str(self.spool), *set_aside(store, channel, number, rows), **more).path

    def run(self, spark: Any = None, progress: Any = None, **options: Any) -> ArchiveReport:
        """The job; without a session where ``in_process`` took the place of Spark."""
        return job.run(spark, str(self.spool), str(self.table), ArchiveOptions(**options), progress)

    def run_on(self, store: Path, **options: Any) -> ArchiveReport:
        """The job on a datastore."""
        return job.run(None, str(store), str(self.table), ArchiveOptions(**options))  # type: ignore[arg-type]

    @property
    def waiting(self) -> list[str]:
        """Paths of what the spool holds."""
        return [s.path for s in spool.slices(str(self.spool)).slices]

    @property
    def form(self) -> str:
        return tables.kind_of(str(self.table))

    @property
    def files(self) -> list[tables.DataFile]:
        return tables.open_log(str(self.table), self.form).files()

    def rows(self, channel: str) -> Rows:
        """Sequence, data and time of every message of a channel in the table."""
        found: Rows = []
        for file in self.files:
            if file.channel == channel:
                table = pq.ParquetFile(self.table / file.path).read()
                rows = table.select(["sequence", "data", "timestamp_ns"]).to_pylist()
                found += [(row["sequence"], row["data"], row["timestamp_ns"]) for row in rows]
        return sorted(found)

    @property
    def conflicts(self) -> list[dict[str, Any]]:
        """The side table."""
        folder = self.table / tables.CONFLICTS
        return [
            row
            for name in sorted(os.listdir(folder))
            for row in pq.ParquetFile(folder / name).read().to_pylist()
        ]


def expected(rows: Sequence[Message]) -> Rows:
    """What ``Archive.rows`` finds of these messages."""
    return [(row.sequence, row.data, row.at) for row in rows]


def in_process(patch: pytest.MonkeyPatch) -> None:
    """Let a job do its units here, one after the other: everything but Spark's own part."""

    def distribute(self: Any, units: Any, where: Any) -> Any:
        return [carry_out(unit, replace(where, unit=k)) for k, unit in enumerate(units)]

    patch.setattr(job._Job, "_distribute", distribute)
    patch.setattr(job._Job, "_cores", 2)
