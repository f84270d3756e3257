"""An audit's result that is written down: as JSON, as Parquet and as a page."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from ftstan.spark.audit.page import page
from ftstan.spark.audit.result import AuditError, Result, plain


@dataclass(frozen=True, slots=True)
class AuditReport(Result):
    """What an audit found, and ways to keep it."""

    def write_json(self, path: str) -> None:
        """Write :meth:`as_json` to a file, which is whole or not there.

        Raises :class:`AuditError`.
        """
        write_whole(path, json.dumps(self.as_json(), indent=1) + "\n")

    def write_html(self, path: str) -> None:
        """Write one page that needs nothing else to be read. Raises :class:`AuditError`."""
        write_whole(path, page(self))

    def write_parquet(self, directory: str) -> None:
        """Write ``findings.parquet`` and ``days.parquet`` into a directory.

        Raises :class:`AuditError`.
        """
        import pyarrow as pa  # noqa: PLC0415  only this needs it
        import pyarrow.parquet as pq  # noqa: PLC0415

        findings = pa.Table.from_pylist(
            [plain(finding) for finding in self.findings], _findings_schema(pa)
        )
        days = pa.Table.from_pylist([asdict(day) for day in self.days], _days_schema(pa))
        try:
            os.makedirs(directory, exist_ok=True)
            for name, table in (("findings", findings), ("days", days)):
                path = os.path.join(directory, f"{name}.parquet")
                pq.write_table(table, f"{path}.tmp", compression="zstd")
                os.replace(f"{path}.tmp", path)
        except OSError as error:
            raise _cannot_write(directory, error) from error


def _findings_schema(pa: Any) -> Any:
    return pa.schema(
        [
            ("kind", pa.string()),
            ("channel", pa.string()),
            ("first", pa.int64()),
            ("last", pa.int64()),
            ("timestamp_ns", pa.int64()),
            ("places", pa.list_(pa.string())),
            ("text", pa.string()),
        ]
    )


def _days_schema(pa: Any) -> Any:
    numbers = ("messages", "size", "first", "last")
    texts = ("channel", "day", "place")
    return pa.schema(
        [*((name, pa.string()) for name in texts), *((name, pa.int64()) for name in numbers)]
    )


def write_whole(path: str, text: str) -> None:
    """Write a file that is never seen half written. Raises :class:`AuditError`."""
    part = f"{path}.tmp"
    try:
        with open(part, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: str, error: OSError) -> AuditError:
    return AuditError(f"{path}: {error.strerror or error}", hint="name a place that can be written")
