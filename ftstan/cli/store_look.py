"""A datastore that is opened for reading: no lock, no epoch, no file is made.

On the store of a running server what is read ends where that server has confirmed.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, StoreError
from ftstan.ft.epoch_loss import EpochFacts, find_epochs
from ftstan.ft.lock import is_held
from ftstan.stores.file.log import records
from ftstan.stores.file.state.checkpoint import read_left
from ftstan.stores.file.tools.reading import NEVER_OURS, channel_names
from ftstan.stores.file.tools.source import Source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from ftstan.base.disk import Disk

_NO_DATASTORE = "give the directory that the server has as -dir"
_ROOT_FILES = {"server.dat", "clients.dat", "ft.epoch", ".rootdir.lck"}


@dataclass(frozen=True, slots=True)
class Opened:
    """A datastore that is open for reading."""

    source: Source
    epochs: EpochFacts
    channels: list[bytes]


@contextlib.contextmanager
def opened(arguments: argparse.Namespace) -> Iterator[Opened]:
    """Open the datastore for reading.

    Raises ``StoreError``, and ``ConfigError`` if the channel is unknown.
    """
    disk = LocalDisk()
    root = disk.open_dir(arguments.dir)
    try:
        epochs = find_epochs(disk, root, looking=True)
        crc = records.Crc(arguments.crc_poly)
        source = source_at(disk, root, crc, epochs, live=is_held(disk, root))
        names, _ = channel_names(source)
        if not names and not _ROOT_FILES & {name for name, _ in disk.listdir(root)}:
            raise StoreError(f"{arguments.dir} holds no datastore", hint=_NO_DATASTORE)
        if arguments.channel is not None:
            names = [wanted_channel(arguments.dir, arguments.channel, names)]
        yield Opened(source, epochs, names)
    finally:
        disk.close(root)


def source_at(
    disk: Disk, root: int, crc: records.Crc, epochs: EpochFacts, *, live: bool = False
) -> Source:
    """How to read a datastore that nobody here owns. Raises ``OSError``."""
    ours_from = NEVER_OURS if epochs.ours_from is None else epochs.ours_from
    left = read_left(disk, root, epochs.last)
    return Source(disk, root, crc, ours_from, live, left, epochs.originals_through)


def wanted_channel(path: str, channel: str, names: Sequence[bytes]) -> bytes:
    """The channel's name. Raises ``ConfigError`` if it is none of ``names``."""
    name = os.fsencode(channel)
    if name not in names:
        raise ConfigError(
            f'datastore {path} has no channel "{channel}"',
            hint=f"ftstanctl store ls {path} lists its channels",
        )
    return name
