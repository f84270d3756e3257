"""The payloads of a table's files: what the marks say of them, and who may have them.

A file says in its own metadata what its payloads are, else the table says it for all; a table from
before there were marks says nothing, and is read as a store without a mark is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ftstan.base.errors import DamageError, StoreError
from ftstan.spark.archive.table import ENCRYPTED, PAYLOADS_KEY, PLAIN
from ftstan.spark.keys import undecryptable
from ftstan.stores.encryption.cipher import CODES, OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow.parquet as pq

    from ftstan.spark.archive.table import DataFile
    from ftstan.spark.keys import KeySource

_CODES = frozenset(CODES.values())


class Opening:
    """How the files of a table are read: with ``keys``, and the table's ``mark``.

    ``refuse``: what the option ``failOnEncrypted`` says, ``None`` if nothing.
    """

    def __init__(self, path: str, mark: str, keys: KeySource, refuse: bool | None) -> None:
        self._path = path
        self._mark = mark
        self._ring = keys.ring()
        self._refuse = refuse

    def of(self, file: pq.ParquetFile, described: DataFile, columns: tuple[str, ...]) -> Opened:
        """For one file, of which ``columns`` are wanted.

        Raises ``StoreError`` for encrypted payloads that are wanted without a key.
        """
        said = (file.metadata.metadata or {}).get(PAYLOADS_KEY, b"").decode()
        mark = said or self._mark
        where = f"archive {self._path}"
        if mark == PLAIN or not {"data", "size"} & set(columns):
            return Opened(where, described.channel)
        if self._ring is not None:
            # The size is that of what the client sent, which only its decryption proves.
            keys = self._ring.channel(os.fsencode(described.channel))
            return Opened(where, described.channel, ("sequence", "data", "size"), keys.decrypt)
        if "data" not in columns:
            return Opened(where, described.channel)
        if mark == ENCRYPTED and self._refuse is not False:
            raise StoreError(
                f"{where}: {described.path} holds encrypted payloads",
                hint="name their keys with encryptionKeyFile; failOnEncrypted=false gives payloads "
                "as they are stored",
            )
        if self._refuse:
            return Opened(where, described.channel, ("sequence",), refuse=True)
        return Opened(where, described.channel)


@dataclass(frozen=True, slots=True)
class Opened:
    """How one file is read. ``columns``: what is needed of it besides."""

    where: str
    channel: str
    columns: tuple[str, ...] = ()
    decrypt: Callable[[bytes], bytes] | None = None
    refuse: bool = False

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with payloads as readers get them. Raises ``StoreError``."""
        if self.decrypt is None:
            if self.refuse:
                self._check(rows)
            return rows
        data = []
        for i, stored in enumerate(rows["data"].to_pylist()):
            if not stored or stored[0] not in _CODES:
                data.append(stored)
                continue
            try:
                data.append(self.decrypt(stored))
            except StoreError as error:
                sequence = rows["sequence"][i].as_py()
                raise undecryptable(error, self.where, self.channel, sequence) from error
        made = {
            "data": pa.array(data, pa.binary()),
            "size": pa.array([len(payload or b"") for payload in data], pa.int32()),
        }
        return pa.RecordBatch.from_arrays(
            [made.get(name, rows[name]) for name in rows.schema.names], names=rows.schema.names
        )

    def _check(self, rows: pa.RecordBatch) -> None:
        """Nobody said what these are: what has the form of an encrypted one is taken for one."""
        for i, stored in enumerate(rows["data"].to_pylist()):
            if stored and len(stored) >= OVERHEAD and stored[0] in _CODES:
                sequence = rows["sequence"][i].as_py()
                raise DamageError(
                    f'{self.where}: channel "{self.channel}" sequence {sequence} looks encrypted',
                    hint="name the keys with encryptionKeyFile; failOnEncrypted=false gives "
                    "payloads as they are stored",
                )
