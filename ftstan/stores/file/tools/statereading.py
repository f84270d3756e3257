"""The state files of a datastore, as somebody reads them who does not own it: records, and what is
none.

A record that is whole and means nothing is as bad as one whose checksum is wrong, and keeps nobody
from the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.base.errors import WireError
from ftstan.stores import protos
from ftstan.stores.file.log import records
from ftstan.stores.file.state import state_records, subreplay
from ftstan.stores.file.state.statefile import check_version, is_unfilled, read_whole

if TYPE_CHECKING:
    from ftstan.stores.file.tools.source import Source
    from ftstan.stores.interface import ClientInfo, ServerInfo

_VERSION = records.VERSION_SIZE
#: Of records that are checked by their contents, after their checksums in the file were.
_CRC = records.Crc()

NOT_REGULAR = "no regular file"

CLIENT_KINDS = 2
SUB_KINDS = 5


@dataclass(frozen=True, slots=True)
class Bad:
    """Bytes ``start`` to ``end`` of a file that are no records, and why (in the original's words
    where it has some).
    """

    start: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class Typed:
    """The records of a state file: ``rows`` are ``(offset, type, payload)``.

    ``bad`` lies between good ones.

    ``tail`` is what follows the last good record, ``None`` if nothing does; ``missing`` says that
    there is no file, or one that was never filled; ``refused`` why it cannot be read at all.
    """

    rows: list[tuple[int, int, bytes]] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    tail: Bad | None = None
    size: int = 0
    missing: bool = False
    refused: str = ""


def without_undecodable(typed: Typed) -> Typed:
    """The same, with whole records that say nothing among those that are bad.

    In the tail where a start cuts.
    """
    rows = []
    bad = list(typed.bad)
    left = typed.rows
    replay = subreplay.SubReplay(_CRC)
    while left:
        done = replay.records
        _, why = replay.feed(
            b"".join(records.typed_record(kind, payload, _CRC) for _, kind, payload in left)
        )
        good = replay.records - done
        rows += left[:good]
        if why:
            at, _, payload = left[good]
            bad.append(Bad(at, at + records.HEADER_SIZE + len(payload), plain(why)))
            good += 1
        left = left[good:]
    if len(bad) == len(typed.bad):
        return typed
    end = rows[-1][0] + records.HEADER_SIZE + len(rows[-1][2]) if rows else 0
    bad.sort(key=lambda b: b.start)
    behind = [b for b in bad if b.start >= end]
    tail = Bad(behind[0].start, typed.size, behind[0].why) if behind else typed.tail
    return replace(typed, rows=rows, bad=[b for b in bad if b.start < end], tail=tail)


def read_state(source: Source, dirfd: int, name: str, kinds: int) -> Typed:
    """The records of a typed state file whose types go from 1 to ``kinds``. Raises ``OSError``."""
    if not _is_regular(source, dirfd, name):
        return Typed(refused=NOT_REGULAR)
    data = read_whole(source.disk, dirfd, name)
    if data is None or is_unfilled(data):
        return Typed(size=len(data or b""), missing=True)
    if wrong := check_version(data):
        return Typed(size=len(data), refused=wrong)
    rows: list[tuple[int, int, bytes]] = []
    bad: list[Bad] = []
    at = _VERSION
    while True:
        found, end, why = records.scan_typed(data[at:], source.crc)
        for kind, payload in found:
            rows.append((at, kind, payload))
            at += 8 + len(payload)
        del end
        if not why:
            return Typed(rows, bad, None, len(data))
        behind = records.search_from_typed(data, at, kinds, source.crc)
        following = records.next_typed(data, behind, kinds, source.crc)
        if following < 0:
            return Typed(rows, bad, Bad(at, len(data), plain(why)), len(data))
        bad.append(Bad(at, following, plain(why)))
        at = following


def read_clients(source: Source) -> tuple[Typed, dict[bytes, ClientInfo]]:
    """The records of ``clients.dat``, and the clients that are registered after them."""
    typed = read_state(source, source.root, "clients.dat", CLIENT_KINDS)
    clients: dict[bytes, ClientInfo] = {}
    rows = []
    bad = list(typed.bad)
    for row in typed.rows:
        at, kind, payload = row
        try:
            state_records.replay_client(clients, kind, payload)
            rows.append(row)
        except WireError as error:
            bad.append(Bad(at, at + records.HEADER_SIZE + len(payload), error.text))
    return replace(typed, rows=rows, bad=sorted(bad, key=lambda b: b.start)), clients


def read_server(source: Source) -> tuple[ServerInfo | None, str]:
    """The server's record, and what is wrong with its file (in the original's words).

    Neither if there is none yet.
    """
    if not _is_regular(source, source.root, "server.dat"):
        return None, NOT_REGULAR
    data = read_whole(source.disk, source.root, "server.dat")
    if data is None or len(data) <= _VERSION or len(data) == _VERSION + 8:
        return None, ""
    if wrong := check_version(data):
        return None, wrong
    size = int.from_bytes(data[4:8], "little")
    if len(data) != 12 + size:
        return None, f"incorrect file size, expected {12 + size} bytes, got {len(data)} bytes"
    stored = int.from_bytes(data[8:12], "little")
    found = source.crc(data[12:])
    if stored != found:
        return None, f"corrupted data, expected crc to be 0x{stored:08x}, got 0x{found:08x}"
    try:
        return protos.decode_server(data[12:]), ""
    except WireError as error:
        return None, error.text


def _is_regular(source: Source, dirfd: int, name: str) -> bool:
    """Whether a file that is there can be read: a pipe would be waited for."""
    try:
        return source.disk.stat(dirfd, name).is_file
    except FileNotFoundError:
        return True


def plain(why: str) -> str:
    """What ended the records, for people."""
    words = {"torn": "unexpected EOF", "zeros": "padded with zeros"}
    return words.get(why, why.removeprefix("bad: "))
