"""Slices as a server sets them aside, made for tests: messages in, a ``.bak`` pair out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ftstan.stores.file.log import records
from ftstan.wire.block import MsgBlock
from ftstan.wire.pb import stan_internal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: 2026-11-22 08:00:00 UTC, in nanoseconds.
NOON = 1_795_334_400_000_000_000


class Message(NamedTuple):
    """One message; ``at``: nanoseconds since the Unix epoch."""

    sequence: int
    data: bytes
    at: int = 0
    reply: bytes = b""


def messages(
    first: int, last: int, *, start: int = NOON, step: int = 1_000_000_000, tag: str = ""
) -> list[Message]:
    """Messages whose content tells their sequence, one every ``step`` nanoseconds."""
    return [
        Message(n, b"message %d %s" % (n, tag.encode()), start + n * step)
        for n in range(first, last + 1)
    ]


def slice_bytes(
    channel: str, rows: Iterable[Message], polynomial: int = 0xEDB88320
) -> tuple[bytes, bytes]:
    """The bytes of both files."""
    crc = records.Crc(polynomial)
    block = MsgBlock()
    for row in rows:
        block.append(
            row.sequence,
            channel.encode("utf-8", "surrogateescape"),
            row.reply,
            row.data,
            row.at or NOON,
        )
    records.seal(block, crc)
    entries = records.index_entries(block, 0, len(block), records.VERSION_SIZE, crc)
    return records.VERSION + bytes(memoryview(block)), records.VERSION + entries


def set_aside(
    store: Path, channel: str, number: int, rows: Iterable[Message], polynomial: int = 0xEDB88320
) -> tuple[str, str, str]:
    """Write a slice into a datastore under its ``.bak`` names.

    Returns the arguments of the archive script.
    """
    folder = store / channel
    folder.mkdir(parents=True, exist_ok=True)
    dat, idx = (folder / f"msgs.{number}.{kind}.bak" for kind in ("dat", "idx"))
    for path, data in zip((dat, idx), slice_bytes(channel, rows, polynomial), strict=True):
        path.write_bytes(data)
    return channel, str(dat), str(idx)


def name_cluster(store: Path, cluster: str) -> None:
    """Write a ``server.dat``."""
    store.mkdir(parents=True, exist_ok=True)
    payload = pb.ServerInfo(cluster_id=cluster.encode()).SerializeToString()
    (store / "server.dat").write_bytes(
        records.VERSION + records.untyped_record(payload, records.Crc())
    )
