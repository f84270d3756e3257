"""What lies at a path, and who reads it: a datastore, a spool of archived slices, a Delta table,
Parquet files.

A reader of another kind is one function that opens a ``Snapshot``; it is named in ``_READERS`` and
loaded when the first path of its kind is read.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from ftstan.base.errors import ConfigError
from ftstan.spark.serverinfo import is_encrypted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from ftstan.spark.keys import KeySource
    from ftstan.spark.options import ReadOptions
    from ftstan.spark.parts import Bounds
    from ftstan.spark.report import ReadingReport


class Piece(Protocol):
    """A part of a plan: can be pickled, and knows how to read itself."""

    def read(
        self,
        columns: tuple[str, ...],
        *,
        report: ReadingReport,
        fail_on_data_loss: bool,
        refuse_encrypted: bool | None,
        keys: KeySource,
    ) -> Iterator[pa.RecordBatch]:
        """Its messages, with columns out of ``decode.TYPES`` in this order and of these types.

        ``refuse_encrypted``: ``None`` where nobody said it.
        """
        ...


class Snapshot(Protocol):
    """What a path held when it was opened."""

    @property
    def channels(self) -> Collection[str]:
        """Names of the channels that were looked at."""
        ...

    def ends(self, channel: str) -> tuple[int, int]:
        """The first sequence that is there, and the one behind the last."""
        ...

    def plan(
        self, wanted: Mapping[str, Bounds], *, max_bytes: int, min_parts: int
    ) -> Sequence[Piece]:
        """Parts that hold what is wanted of each channel."""
        ...


#: Kind of a place -> ``module:function``, which takes ``ReadOptions`` and gives a ``Snapshot``.
_READERS = {
    "store": "ftstan.spark.log:snapshot",
    "delta": "ftstan.spark.archive.reading:table",
    "parquet": "ftstan.spark.archive.reading:table",
    "spool": "ftstan.spark.archive.reading:spooled",
}


def kind_of(path: str) -> str:
    """``store``, ``spool``, ``delta`` or ``parquet``, by what lies there.

    Raises ``ConfigError`` if nothing does.
    """
    try:
        with os.scandir(path) as entries:
            names = {entry.name for entry in entries}
    except OSError as error:
        raise ConfigError(
            f"stan: path {path}: {error.strerror or error}",
            hint="give the directory of a datastore or an archive",
        ) from error
    if "server.dat" in names:
        # First of all: a channel may have any of the other names.
        return "store"
    if "_delta_log" in names:
        return "delta"
    if "_ftstan" in names or any(
        name.startswith("channel=") or name.endswith(".parquet") for name in names
    ):
        return "parquet"
    if "spool.json" in names:
        return "spool"
    return "store"


def opened(options: ReadOptions) -> Snapshot:
    """A look at the path of ``options``. Raises ``FtstanError``."""
    module, _, name = _READERS[kind_of(options.path)].partition(":")
    reader: Callable[[ReadOptions], Snapshot] = getattr(import_module(module), name)
    return reader(options)


def holds_encrypted(path: str) -> bool:
    """Whether a place says that it holds encrypted payloads; false where it cannot be seen.

    Raises ``FtstanError``.
    """
    if not os.path.isdir(path):
        # Of a remote Spark: its readers refuse it there.
        return False
    kind = kind_of(path)
    if kind == "store":
        return is_encrypted(path)
    # The archive needs libraries that a reader of datastores does without.
    module = import_module("ftstan.spark.archive.marks")
    return bool(module.is_marked(path, kind))
