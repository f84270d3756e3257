"""The message log without Spark: what a datastore holds, cut into parts, each read as Arrow
batches.

>>> store = Store("/nss/orders")
>>> for part in store.plan(["orders"], max_bytes=128 << 20):
...     for batch in read(part, ("sequence", "data")):
...         use(batch)

Takes no lock and never writes. A part can be read in any process that sees the same directory;
parts are small.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, StoreError
from ftstan.spark.keys import NO_KEYS
from ftstan.spark.parts import (
    EVERYTHING,
    MAX_BYTES,
    MAX_TIME,
    MIN_TIME,
    POLYNOMIAL,
    Bounds,
    Range,
    Share,
    Work,
)
from ftstan.spark.pieces import SliceReader
from ftstan.spark.reading import PartReader
from ftstan.spark.report import ReadingReport
from ftstan.spark.resolve import checksum, directory, resolved
from ftstan.spark.scan import Listing, channel_names, look, uncollected
from ftstan.spark.serverinfo import is_encrypted
from ftstan.stores.file.state import state_records
from ftstan.stores.file.tools.source import Source
from ftstan.stores.file.tools.statereading import SUB_KINDS, read_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pyarrow as pa

    from ftstan.spark.keys import KeySource
    from ftstan.spark.options import ReadOptions
    from ftstan.spark.scan import Listed
    from ftstan.stores.interface import StoredSub

__all__ = [
    "EVERYTHING",
    "MAX_BYTES",
    "MAX_TIME",
    "MIN_TIME",
    "POLYNOMIAL",
    "Bounds",
    "Part",
    "Range",
    "Share",
    "Store",
    "StoreSnapshot",
    "read",
    "snapshot",
]


@dataclass(frozen=True, slots=True)
class Part(Work):
    """A piece of work, which can be read in any process that sees the datastore."""

    def read(
        self,
        columns: Iterable[str],
        *,
        report: ReadingReport | None = None,
        fail_on_data_loss: bool = True,
        refuse_encrypted: bool | None = None,
        keys: KeySource = NO_KEYS,
    ) -> Iterator[pa.RecordBatch]:
        """``read`` of this module."""
        return read(
            self,
            columns,
            report=report,
            fail_on_data_loss=fail_on_data_loss,
            refuse_encrypted=refuse_encrypted,
            keys=keys,
        )


class Store:
    """A datastore directory, as it is when each method looks.

    ``polynomial``: the server's ``-file_crc_poly``. ``allow_unconfirmed``: read a store that a
    server holds to its very end, also what may still be taken back.
    """

    def __init__(
        self, path: str, *, polynomial: int = POLYNOMIAL, allow_unconfirmed: bool = False
    ) -> None:
        self.path = os.path.abspath(path)
        self._polynomial = polynomial
        self._allow_unconfirmed = allow_unconfirmed

    def look(self, names: Iterable[str] | None = None) -> Listing:
        """List channels and their slices. Raises ``ConfigError`` and ``StoreError``."""
        return look(self.path, names, allow_unconfirmed=self._allow_unconfirmed)

    def channels(self) -> list[str]:
        """Names of the channels, sorted."""
        return sorted(self.look().channels)

    def ends(self, names: Iterable[str] | None = None) -> dict[str, tuple[int, int]]:
        """For each channel the first sequence that is there and the one behind the last.

        The same if it is empty.

        Reads the beginnings of slices and the end of the newest one.
        """
        listing = self.look(names)
        return {
            name: self.ends_of(listed, listing.ours_from)
            for name, listed in listing.channels.items()
        }

    def ends_of(self, listed: Listed, ours_from: int) -> tuple[int, int]:
        """``ends`` of one channel that was listed."""
        if not listed.slices:
            return self._behind(listed), self._behind(listed)
        with _storage(self.path):
            counted, _ = resolved(self.path, listed, ours_from, self._polynomial)
        if not counted:
            return self._behind(listed), self._behind(listed)
        if listed.limit is not None:
            return counted[0].first, max(listed.limit + 1, counted[0].first)
        report = ReadingReport()
        crc = checksum(self._polynomial)
        with (
            _storage(self.path),
            directory(self.path, listed) as dirfd,
            SliceReader(dirfd, listed.name, counted[-1].file, crc, report) as reader,
        ):
            behind = min(reader.last(), counted[-1].last) + 1
        # All of it may have been purged.
        return counted[0].first, max(behind, counted[0].first)

    @staticmethod
    def _behind(listed: Listed) -> int:
        """Where a channel without messages goes on."""
        confirmed = listed.confirmed.last if listed.confirmed else 0
        return max(listed.limit or 0, confirmed, listed.purged) + 1

    @uncollected()
    def plan(
        self,
        channels: Iterable[str] | Mapping[str, Bounds] | None = None,
        *,
        bounds: Bounds = EVERYTHING,
        max_bytes: int = MAX_BYTES,
        min_parts: int = 1,
        listing: Listing | None = None,
    ) -> list[Part]:
        """Parts that together hold the wanted messages of the wanted channels (``None``: all), each
        of them once.

        By listing and stat alone; where sequences are wanted (not all of them), slices are looked
        at, too, so that parts hold nothing else. Small slices share a part of up to ``max_bytes``,
        larger ones are cut into several that begin at records; ``min_parts`` makes them smaller.
        ``listing`` is a look that was taken before.

        Raises ``ConfigError``, also for a channel that does not exist, and ``StoreError``.
        """
        wanted = None if channels is None else list(channels)
        if listing is None:
            listing = self.look(wanted)
        for name in wanted or ():
            if name not in listing.channels:
                raise ConfigError(
                    f'datastore {self.path} has no channel "{name}"',
                    hint="run: ftstanctl store ls DIR, or name an existing one",
                )
        shares = []
        for name in sorted(listing.channels if wanted is None else wanted):
            own = bounds.within(channels[name]) if isinstance(channels, Mapping) else bounds
            share = self._share(listing.channels[name], own, listing.ours_from)
            if share is not None:
                shares.append(share)
        total = sum(r.end - r.start for share in shares for r in share.ranges)
        most = min(max_bytes, max(-(-total // max(min_parts, 1)), 1))
        packed = _packed(shares, most)
        if listing.findings and not packed:
            packed = [()]
        parts = [
            Part(
                self.path,
                listing.ours_from,
                self._polynomial,
                tuple(some),
                encrypted=is_encrypted(self.path),
            )
            for some in packed
        ]
        if parts:
            parts[0] = replace(parts[0], findings=tuple(listing.findings))
        return parts

    def _share(self, listed: Listed, bounds: Bounds, ours_from: int) -> Share | None:
        if bounds.empty or not (listed.slices or listed.orphans or listed.confirmed):
            return None
        files = list(listed.slices)
        whole = (bounds.first, bounds.last) == (EVERYTHING.first, EVERYTHING.last)
        if not whole:
            with _storage(self.path):
                counted, _ = resolved(self.path, listed, ours_from, self._polynomial)
            known = {c.file.number: c for c in counted}
            # A slice goes on to the next one at most.
            files = [
                s
                for s in files
                if (c := known.get(s.number)) is not None
                and c.first <= bounds.last
                and bounds.first <= (min(c.last, c.following - 1) if c.following else c.last)
            ]
        ranges = tuple(Range(s.number, 0, s.size) for s in files)
        return Share(listed, bounds, ranges, ending=whole)

    def subscriptions(self, channel: str) -> dict[int, StoredSub]:
        """Subscriptions of a channel by id, as far as its ``subs.dat`` can be read: state and
        pending sequences.

        Raises ``ConfigError`` if there is no such channel, and ``StoreError``.
        """
        disk = LocalDisk()
        listing = self.look([channel])
        if channel not in listing.channels:
            raise ConfigError(
                f'datastore {self.path} has no channel "{channel}"',
                hint="run: ftstanctl store ls DIR",
            )
        with _storage(self.path), directory(self.path, listing.channels[channel]) as dirfd:
            source = Source(disk, dirfd, checksum(self._polynomial), listing.ours_from)
            typed = read_state(source, dirfd, "subs.dat", SUB_KINDS)
        return state_records.replay_subs(
            [(kind, payload) for _, kind, payload in typed.rows], f"{channel}/subs.dat"
        )[0]


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """A datastore as it was at one look (``places.Snapshot``)."""

    store: Store
    listing: Listing

    @property
    def channels(self) -> Collection[str]:
        """Names of the channels that were looked at."""
        return self.listing.channels

    def ends(self, channel: str) -> tuple[int, int]:
        """The first sequence that is there, and the one behind the last."""
        return self.store.ends_of(self.listing.channels[channel], self.listing.ours_from)

    def plan(
        self, wanted: Mapping[str, Bounds], *, max_bytes: int, min_parts: int
    ) -> Sequence[Part]:
        """Parts that hold what is wanted of each channel."""
        return self.store.plan(
            wanted, max_bytes=max_bytes, min_parts=min_parts, listing=self.listing
        )


def snapshot(options: ReadOptions) -> StoreSnapshot:
    """Look at the channels that the options of a query want. Raises ``FtstanError``."""
    store = Store(
        options.path, polynomial=options.polynomial, allow_unconfirmed=options.allow_unconfirmed
    )
    names: Iterable[str] | None = options.subscribe
    if options.pattern is not None:
        names = [name for name in channel_names(store.path) if options.wants(name)]
    return StoreSnapshot(store, store.look(names))


def read(
    part: Part,
    columns: Iterable[str],
    *,
    report: ReadingReport | None = None,
    fail_on_data_loss: bool = True,
    refuse_encrypted: bool | None = None,
    keys: KeySource = NO_KEYS,
) -> Iterator[pa.RecordBatch]:
    """The messages of a part as batches of some megabytes, in the order of their sequences within a
    channel.

    ``columns``: names out of ``decode.TYPES``; data files are not read where entries of the index
    say enough. Every record that is read is verified; one that is bad is a row with ``crc_ok``
    false and without what it held. ``report`` counts and collects what is found.
    ``fail_on_data_loss``: a slice that is gone since the plan was made is an error.
    ``keys`` decrypt payloads; one that none of them decrypts is an error. Without keys payloads are
    given as they are stored, and ``refuse_encrypted`` makes one that looks encrypted an error; of a
    store that says that it is encrypted they are given only if ``refuse_encrypted`` is false.

    Raises ``StoreError`` (``DamageError`` with a strict ``report``).
    """
    reader = PartReader(
        part,
        tuple(columns),
        report if report is not None else ReadingReport(),
        fail_on_data_loss=fail_on_data_loss,
        refuse_encrypted=refuse_encrypted,
        keys=keys,
    )
    with _storage(part.path):
        yield from reader.batches()


@contextlib.contextmanager
def _storage(path: str) -> Iterator[None]:
    """Turn what storage refuses into one line."""
    try:
        yield
    except OSError as error:
        name = f" {os.fsdecode(error.filename)}" if error.filename else ""
        raise StoreError(
            f"datastore {path}:{name} {error.strerror or error}",
            hint="check the storage below it, and whether the channel is still there",
        ) from error


def _packed(shares: list[Share], most: int) -> list[tuple[Share, ...]]:
    """Shares of parts of up to ``most`` bytes: small slices together, large ones cut."""
    packer = _Packer(most)
    for share in shares:
        packer.add(share)
    packer.flush()
    return packer.done


@dataclass(slots=True)
class _Packer:
    """Fills one part after the other."""

    most: int
    done: list[tuple[Share, ...]] = field(default_factory=list)
    _shares: list[Share] = field(default_factory=list)
    _size: int = 0

    def add(self, share: Share) -> None:
        """Distribute a channel's slices."""
        files = {s.number: s for s in share.channel.slices}
        ranges: list[Range] = []
        for r in share.ranges:
            size = r.end - r.start
            if self._size and self._size + size > self.most:
                self._take(share, ranges)
                ranges = []
                self.flush()
            if size > self.most and files[r.number].indexed:
                cuts = -(-size // self.most)
                step = -(-size // cuts)
                for start in range(0, size, step):
                    self._take(share, [Range(r.number, start, min(start + step, size))])
                    self.flush()
                continue
            ranges.append(r)
            self._size += size
        self._take(share, ranges, ending=share.ending)

    def _take(self, share: Share, ranges: list[Range], *, ending: bool = False) -> None:
        if ranges or ending:
            self._shares.append(replace(share, ranges=tuple(ranges), ending=ending))

    def flush(self) -> None:
        """End the part that is being filled."""
        if self._shares:
            self.done.append(tuple(self._shares))
        self._shares = []
        self._size = 0
