"""Slices of any content, written without a server: material for whoever only reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import dat_name, idx_name
from ftstan.wire.block import MsgBlock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CRC = records.Crc()
START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message.

    Without a timestamp it is as many seconds after ``START`` as its sequence says.
    """

    sequence: int
    data: bytes = b""
    timestamp: int | None = None
    reply: bytes = b""

    @property
    def at(self) -> int:
        return START + self.sequence * SECOND if self.timestamp is None else self.timestamp


def block_of(channel: bytes, messages: Iterable[Message]) -> MsgBlock:
    block = MsgBlock()
    for m in messages:
        block.append(m.sequence, channel, m.reply, m.data, m.at)
    records.seal(block, CRC)
    return block


def index_of(block: MsgBlock) -> bytes:
    return records.index_entries(block, 0, len(block), records.VERSION_SIZE, CRC)


def put_slice(
    root: Path,
    channel: str,
    number: int,
    messages: Iterable[Message],
    *,
    index: bool = True,
    subject: str = "",
) -> Path:
    """Write one slice below ``root``; ``subject``: the channel that its records name, if another.

    The data's path.
    """
    directory = root / channel
    directory.mkdir(parents=True, exist_ok=True)
    block = block_of((subject or channel).encode(), messages)
    path = directory / dat_name(number)
    path.write_bytes(records.VERSION + bytes(memoryview(block)))
    if index:
        (directory / idx_name(number)).write_bytes(records.VERSION + index_of(block))
    return path


def series(first: int, last: int, size: int = 20) -> list[Message]:
    """Messages with sequences from ``first`` to ``last``, their contents all different."""
    return [Message(n, b"%d:" % n + b"x" * size) for n in range(first, last + 1)]
