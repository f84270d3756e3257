"""Reading one spooled slice, with every check before the next row is given out: nothing that is
wrong passes.

The file has the size and digest of its manifest; each record has its checksum, decodes, and belongs
to the channel; sequences ascend from the manifest's first to its last, and are as many as it says.
What an intact index does not name lies behind the slice's end and is not read. Runs in Spark's
workers; never writes.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.spark.archive.merge import RowKind
from ftstan.spark.archive.spool import ArchiveError
from ftstan.spark.archive.table import ROWS
from ftstan.spark.decode import Builder
from ftstan.spark.keys import NO_KEYS
from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ftstan.spark.archive.spool import Spooled
    from ftstan.spark.keys import KeySource

#: Bytes of records that become one batch.
CHUNK = 8 << 20
_ENTRY = records.INDEX_SIZE
#: One of so many, and so many at least: more than chance.
_SHARE = 16
_FEW = 3


def seem_encrypted(looking: int, messages: int) -> bool:
    """Whether so many payloads that look encrypted are more than chance.

    Of random bytes, such as compressed ones, one of 128 looks so.
    """
    return looking * _SHARE > messages and (looking >= _FEW or looking == messages)


class SliceError(ArchiveError):
    """A slice is not what its manifest says; ``path`` is its place in the spool."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}", hint="the slice stays in the spool")
        self.path = path


def shown(channel: str) -> str:
    """A channel's name as a column has it: bytes that are no UTF-8 come as escapes."""
    return show(os.fsencode(channel))


class PayloadError(SliceError):
    """The slice is whole, and a payload cannot be given as its client sent it."""


class SliceRows:
    """The rows of one slice (a ``merge.Source``)."""

    kind = RowKind.NEW

    def __init__(
        self, slice_: Spooled, keys: KeySource = NO_KEYS, *, refuse_encrypted: bool = False
    ) -> None:
        """``keys`` decrypt payloads; without any, ``refuse_encrypted`` makes the slice one that
        cannot be read if it seems to come from an encrypted store.
        """
        self._slice = slice_
        self._keys = keys
        self._refuse_encrypted = refuse_encrypted
        self.encrypted = 0
        """Payloads that look encrypted, and were given as they are stored."""
        self.first = slice_.manifest.first
        self.label = slice_.path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Checked batches with the columns of a table's files. Raises ``SliceError``."""
        try:
            yield from self._batches()
        except OSError as error:
            raise SliceError(self._slice.path, f"{error.strerror}: {error.filename}") from error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        m = self._slice.manifest
        self._check_digest()
        crc = records.Crc(m.crc_polynomial)
        index = self._index(crc)
        builder = Builder(tuple(ROWS.names), crc)
        name = os.fsencode(m.channel)
        ring = self._keys.ring()
        decrypt = None if ring is None else ring.channel(name).decrypt
        with open(self._slice.dat, "rb") as file:
            at = 0
            while at < len(index):
                rest = memoryview(index)[at:]
                n = records.fitting_entries(rest, CHUNK)
                base = records.entry(rest, 0)[1]
                _, offset, _, size = records.entry(rest, n - 1)
                data = os.pread(file.fileno(), offset + 8 + size - base, base)
                builder.begin(name, shown(m.channel), m.slice, decrypt)
                try:
                    bad = builder.add(rest, 0, n, data, base)
                except StoreError as error:
                    raise self._payload_error(
                        f'channel "{shown(m.channel)}" sequence {builder.undecryptable} cannot be '
                        f"decrypted: {error.text}"
                    ) from error
                for _, place, why in bad:
                    raise self._error(f"{why} at offset {place}")
                self.encrypted = builder.encrypted
                yield builder.finish()
                at += n * _ENTRY
        if self._refuse_encrypted and (
            (m.encrypted and self.encrypted) or seem_encrypted(self.encrypted, m.count)
        ):
            raise self._payload_error(
                f'payloads of channel "{shown(m.channel)}" look encrypted: name their keys, or '
                "archive them as they are stored, into an archive of their own"
            )

    def _error(self, text: str) -> SliceError:
        return SliceError(self._slice.path, f"{os.path.basename(self._slice.dat)}: {text}")

    def _payload_error(self, text: str) -> PayloadError:
        return PayloadError(self._slice.path, f"{os.path.basename(self._slice.dat)}: {text}")

    def _check_digest(self) -> None:
        m = self._slice.manifest
        digest = hashlib.sha256()
        left = m.size
        with open(self._slice.dat, "rb") as file:
            # A file that was linked can have grown: a paused owner of the store writes behind its
            # end.
            while left and (piece := file.read(min(CHUNK, left))):
                digest.update(piece)
                left -= len(piece)
        if left:
            raise self._error(f"{m.size - left} bytes, the manifest says {m.size}")
        if digest.hexdigest() != m.sha256:
            raise self._error("SHA-256 differs from the manifest's")

    def _index(self, crc: records.Crc) -> bytes:
        """Entries of exactly the messages that the manifest counts. Raises ``SliceError``."""
        m = self._slice.manifest
        index = self._file_index() or self._rebuilt(crc)
        found = records.scan_index(index, crc)
        told = (m.first, m.last, m.count, m.end)
        if (found.first, found.last, found.count, found.end) != told or not found.clean:
            raise self._error(
                f"{found.count} messages {found.first}..{found.last} that end at offset "
                f"{found.end}, "
                f"the manifest says {m.count} messages {m.first}..{m.last} and {m.end}"
            )
        return index

    def _file_index(self) -> bytes:
        """The entries of the index file, if it is the one that the manifest was made of."""
        m = self._slice.manifest
        if m.problem or not m.index_size:
            return b""
        try:
            with open(self._slice.idx, "rb") as file:
                data = file.read(m.index_size)
        except FileNotFoundError:
            return b""
        return (
            data[records.VERSION_SIZE :]
            if hashlib.sha256(data).hexdigest() == m.index_sha256
            else b""
        )

    def _rebuilt(self, crc: records.Crc) -> bytes:
        """The entries that the data give.

        Raises ``SliceError`` at the first byte that is not a record.
        """
        m = self._slice.manifest
        made = []
        last = 0
        at = records.VERSION_SIZE
        window = CHUNK
        # Where the manifest was made of an index, what lies behind its last entry does not count.
        end = m.size if m.problem else m.end
        with open(self._slice.dat, "rb") as file:
            while at < end:
                data = os.pread(file.fileno(), min(window, end - at), at)
                block, used, why = records.scan_data(data, os.fsencode(m.channel), last, crc)
                if why and (why != "torn" or at + len(data) >= end):
                    raise self._error(
                        f"{'unexpected EOF' if why == 'torn' else why} at offset {at + used}"
                    )
                if len(block):
                    made.append(records.index_entries(block, 0, len(block), at, crc))
                    last = block.last
                else:
                    window *= 2
                at += used
        return b"".join(made)
