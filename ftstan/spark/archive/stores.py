"""A datastore as a source of the archive job: a stopped one, a backup, or a live one up to what is
confirmed.

What a start would serve of a channel is read, with the readers of ``stan``; damage and sequences
with two contents leave the channel out, as a slice that fails a check is left out. Nothing is
removed from a datastore.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.spark.archive.merge import RowKind
from ftstan.spark.archive.slices import SliceError, seem_encrypted
from ftstan.spark.archive.table import ROWS
from ftstan.spark.keys import NO_KEYS
from ftstan.spark.log import Part, Store
from ftstan.spark.report import ReadingKind, ReadingReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from ftstan.spark.keys import KeySource

#: One part holds a whole channel: parts of it would have to be merged with the table apart.
_WHOLE = 1 << 62
_CURE = "name their keys, or archive them as they are stored, into an archive of their own"


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """A channel of a datastore, sequences ``first`` to ``last``, and what is to be read of it."""

    path: str
    channel: str
    first: int
    last: int
    size: int
    parts: tuple[Part, ...]


class StoredRows:
    """The messages of such a channel (a ``merge.Source``)."""

    kind = RowKind.NEW

    def __init__(
        self, stored: StoredChannel, keys: KeySource = NO_KEYS, *, refuse_encrypted: bool = False
    ) -> None:
        """As ``slices.SliceRows``."""
        self._stored = stored
        self._keys = keys
        self._refuse_encrypted = refuse_encrypted
        self.first = stored.first
        self.label = os.path.join(stored.path, stored.channel)
        self.notes: list[str] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches with the columns of a table's files. Raises ``SliceError``."""
        report = ReadingReport()
        if self._refuse_encrypted and any(part.encrypted for part in self._stored.parts):
            raise SliceError(self.label, f"datastore {self._stored.path} is encrypted: {_CURE}")
        try:
            for part in self._stored.parts:
                for batch in part.read(
                    tuple(ROWS.names),
                    report=report,
                    refuse_encrypted=False,
                    keys=self._keys,
                ):
                    self._judge(report)
                    yield batch
        except StoreError as error:
            raise SliceError(self.label, error.text) from error
        self._judge(report)
        if self._refuse_encrypted and seem_encrypted(report.encrypted, report.rows):
            raise SliceError(
                self.label,
                f'payloads of channel "{self._stored.channel}" look encrypted: {_CURE}',
            )
        self.notes = [f"{self._stored.path}: {finding}" for finding in report.findings]

    def _judge(self, report: ReadingReport) -> None:
        for finding in report.findings:
            if finding.kind in {ReadingKind.DAMAGE, ReadingKind.CONFLICT}:
                raise SliceError(self.label, str(finding))


def stored_channels(
    path: str, polynomial: int, wanted: Callable[[str], bool]
) -> list[StoredChannel]:
    """The channels of a datastore that hold messages. Raises ``ConfigError`` and ``StoreError``."""
    store = Store(path, polynomial=polynomial)
    listing = store.look()
    found = []
    for name, listed in listing.channels.items():
        first, behind = store.ends_of(listed, listing.ours_from) if wanted(name) else (0, 0)
        if first < behind:
            parts = store.plan([name], max_bytes=_WHOLE, listing=listing)
            found.append(
                StoredChannel(
                    path, name, first, behind - 1, sum(p.size for p in parts), tuple(parts)
                )
            )
    return found
