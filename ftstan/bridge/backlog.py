"""What a channel's log holds, read from the files of a datastore that a server serves.

Reads up to what the server has confirmed: what lies behind may still be taken back. Creates no file
and takes no lock.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, StoreError
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.marks import Item
from ftstan.ft.epoch_loss import find_epochs
from ftstan.stores.file.log import records
from ftstan.stores.file.tools.reading import NEVER_OURS, ChannelFiles, channel_names
from ftstan.stores.file.tools.source import Source
from ftstan.stores.file.tools.statereading import read_server
from ftstan.wire.codec import decode_msg_proto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.interface import StoredSub


_AT_ONCE: Final = 512


@dataclass(frozen=True, slots=True)
class Extent:
    """``first`` is above ``last`` if nothing is there: the channel goes on at ``first``."""

    first: int
    last: int


class LogFiles:
    """The datastore in ``path``; ``polynomial`` as the server's ``-file_crc_poly``. Close it."""

    def __init__(self, path: str, polynomial: int) -> None:
        """Raises ``ConfigError``, ``StoreError``."""
        self.path = path
        self._disk = LocalDisk()
        with self._storage():
            self._root = self._disk.open_dir(path)
        try:
            with self._storage():
                self._source, self.cluster_id = self._open(polynomial)
        except BaseException:
            self._disk.close(self._root)
            raise

    def _open(self, polynomial: int) -> tuple[Source, str]:
        epochs = find_epochs(self._disk, self._root, looking=True)
        # Live, also when no server holds it now: one may begin at any moment.
        source = Source(
            *(self._disk, self._root, records.Crc(polynomial)),
            NEVER_OURS if epochs.ours_from is None else epochs.ours_from,
            live=True,
        )
        info, _ = read_server(source)
        if info is None:
            raise StoreError(
                f"{self.path} holds no datastore", hint="give the directory that the server has"
            )
        if info.encrypted:
            raise ConfigError(
                f"the payloads in {self.path} are encrypted",
                hint="leave --dir out: the server hands messages out as they were published",
            )
        return source, info.cluster_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close(self._root)

    def extent(self, channel: str) -> Extent:
        """The messages of the channel that are there. Raises ``ConfigError``, ``StoreError``."""
        with self._storage(), self._files(channel) as files:
            if files.confirmed is None:
                # Nothing says how far these files count: the server has to.
                first = files.first or 1
                return Extent(first, first - 1)
            last = max(files.last, files.confirmed.last, files.purged)
            return Extent(files.first or last + 1, last)

    def items(self, channel: str, first: int) -> Iterator[list[Item]]:
        """The channel's messages from sequence ``first`` on, up to what is confirmed now.

        Raises ``BridgeError`` for a damaged record, ``StoreError``, ``ConfigError``.
        """
        with self._storage(), self._files(channel) as files:
            if files.confirmed is None:
                return
            first = max(first, files.purged + 1)
            for piece in files.slices:
                if piece.last < first:
                    continue
                for block, bad in files.blocks(piece, first):
                    if bad:
                        raise BridgeError(
                            f'channel "{channel}" is damaged in {piece.dat}: {bad[0].why}',
                            hint=f"run: ftstanctl store verify {self.path} --channel {channel}",
                        )
                    for at in range(0, len(block), _AT_ONCE):
                        yield [
                            _item(block.payload(k))
                            for k in range(at, min(at + _AT_ONCE, len(block)))
                        ]

    def subscriptions(self, channel: str) -> list[StoredSub]:
        """The channel's subscriptions as they are stored.

        A running server writes them within a second. Raises ``ConfigError``, ``StoreError``.
        """
        with self._storage(), self._files(channel) as files:
            return list(files.subs()[0].values())

    @contextlib.contextmanager
    def _files(self, channel: str) -> Iterator[ChannelFiles]:
        name = os.fsencode(channel)
        if name not in channel_names(self._source)[0]:
            raise ConfigError(
                f'{self.path} has no channel "{channel}"', hint="see: ftstanctl store ls DIR"
            )
        with ChannelFiles(self._source, name) as files:
            yield files

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"datastore {self.path}: {error.strerror or error}",
                hint="check the directory, its permissions and the storage below it",
            ) from error


def _item(payload: bytes) -> Item:
    sequence, _, reply, data, timestamp, _, _ = decode_msg_proto(payload)
    return Item(sequence, timestamp, reply, data)
