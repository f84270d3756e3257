"""The archive: slices that the limits removed, kept as Parquet files that anybody can read.

A server hands each slice to the archive script (``install_script``), which moves it into a spool;
``run``, on Spark, turns what waits there into rows of a table, verifies them, and only then removes
the slices. ``docs/spark-archive.md`` is the operator's page. Importing this needs neither Spark nor
Java: names are loaded when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ftstan.spark.archive.job import run
    from ftstan.spark.archive.report import ArchiveOptions, ArchiveReport
    from ftstan.spark.archive.script import install_script

__all__ = ["ArchiveOptions", "ArchiveReport", "install_script", "run"]

_HOMES = {
    "ArchiveOptions": "report",
    "ArchiveReport": "report",
    "install_script": "script",
    "run": "job",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
