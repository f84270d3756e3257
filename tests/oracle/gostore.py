"""What nats-streaming-server v0.25.6 makes of a FILE datastore, its defects included
(``docs/compat/filestore.md``).

This is the second opinion: it shares no code with ``ftstan`` (own protobuf reader, CRC from
``zlib``), so that a mistake of ours cannot hide in both. It must never be improved beyond the
original: where that server trusts a short index, takes a torn header for a clean end or stops
delivering at a damaged record, so does this. It works on a copy in memory and never modifies the
directory it is given.

Not covered: limits, encryption, other CRC polynomials, checking switched off, and what the server
does with subscriptions after it recovered them.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.oracle.goproto import Fields, ProtoError, Values, decode
from tests.oracle.goview import (
    CLIENT_DELETE_FIELDS,
    CLIENT_FIELDS,
    MESSAGE_FIELDS,
    SERVER_FIELDS,
    SUB_DELETE_FIELDS,
    SUB_EVENT_FIELDS,
    SUB_FIELDS,
    GoChannel,
    GoClient,
    GoMessage,
    GoRefuses,
    GoServerInfo,
    GoSub,
    GoView,
    Tree,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GoRefuses", "GoView", "Tree", "load_tree", "read_store", "read_tree"]

HEADER = b"\x01\x00\x00\x00"
MARKER = ".truncate.lck"
LOCK = ".rootdir.lck"
INDEX = struct.Struct("<QqqII")
READ_BUFFER = 2 * 1024 * 1024
SLICE_NAME = re.compile(r"[+-]?[0-9]+", re.ASCII)


class _Fault(Exception):  # noqa: N818
    """The text that a reading routine of the server returns as its error."""


class _Torn(Exception):  # noqa: N818
    pass


class _ZeroPadding(Exception):  # noqa: N818
    pass


@dataclass(frozen=True, slots=True)
class _Record:
    kind: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    sequence: int
    offset: int
    timestamp: int
    size: int

    def pack(self) -> bytes:
        head = INDEX.pack(self.sequence, self.offset, self.timestamp, self.size, 0)[:28]
        return head + zlib.crc32(head).to_bytes(4, "little")


@dataclass(slots=True)
class _Slice:
    data: bytes
    entries: list[_Entry]

    @property
    def first(self) -> int:
        return self.entries[0].sequence

    @property
    def last(self) -> int:
        return self.entries[-1].sequence


def load_tree(path: str | os.PathLike[str]) -> Tree:
    """The directory ``path`` as a tree.

    Symbolic links are left out, as the server does not follow them.

    So is the lock file: a process that holds the lock would lose it by closing another descriptor
    of that file.
    """
    root = Path(path)
    tree: Tree = {}
    for folder, dirs, files in os.walk(root):
        base = Path(folder)
        for name in dirs:
            if not (base / name).is_symlink():
                tree[(base / name).relative_to(root).as_posix()] = None
        for name in files:
            if name != LOCK and not (base / name).is_symlink():
                tree[(base / name).relative_to(root).as_posix()] = (base / name).read_bytes()
    return tree


def read_store(
    path: str | os.PathLike[str], *, truncate_bad_eof: bool = False, cluster_id: bytes | None = None
) -> GoView:
    """Recover the datastore at ``path`` as v0.25.6 would.

    Raises ``GoRefuses`` with its text where it does not start.

    ``cluster_id``, if given, is the configured one. The directory is only read.
    """
    tree = load_tree(path)
    return read_tree(
        tree, root=os.fspath(path), truncate_bad_eof=truncate_bad_eof, cluster_id=cluster_id
    )


def read_tree(
    tree: Tree,
    *,
    root: str = "DATASTORE",
    truncate_bad_eof: bool = False,
    cluster_id: bytes | None = None,
) -> GoView:
    """``read_store`` on files in memory; ``tree`` itself is not changed."""
    recovery = _Recovery(dict(tree), root, truncate=truncate_bad_eof)
    try:
        return recovery.run(cluster_id)
    except _Fault as fault:
        raise GoRefuses(str(fault), recovery.tree) from None


class _Recovery:
    """One start of the server on ``tree``, which is changed as the server would change the
    files.
    """

    def __init__(self, tree: Tree, root: str, *, truncate: bool) -> None:
        self.tree = tree
        self.root = root
        self.truncate = truncate
        self.touched = ""

    def run(self, cluster_id: bytes | None) -> GoView:
        if not self.truncate:
            self.tree.pop(MARKER, None)
        elif MARKER in self.tree:
            raise _Fault(
                "file store should not be opened consecutively with the TruncateUnexpectedEOF "
                "option set to true"
            )
        else:
            self.tree[MARKER] = b""
        with _saying('unable to recover server file "server.dat"'):
            self.open("server.dat")
        with _saying('unable to recover client file "clients.dat"'):
            self.open("clients.dat")
        with _saying(f'unable to recover server file "{self.root}/server.dat"'):
            info = self.server_info()
        names = sorted(
            (n for n, data in self.tree.items() if data is None and "/" not in n), key=os.fsencode
        )
        view = GoView(info, {}, {}, self.tree)
        # v0.25.0 and later write a new server record if there are channels, and start over.
        if info is None and not names:
            return view
        if info is not None and cluster_id is not None and info.cluster_id != cluster_id:
            ours = os.fsdecode(cluster_id)
            theirs = os.fsdecode(info.cluster_id)
            raise _Fault(f'cluster ID "{ours}" does not match recovered value of "{theirs}"')
        with _saying(f'unable to recover client file "{self.root}/clients.dat"'):
            view.clients = self.clients()
        for name in names:
            view.channels[os.fsencode(name)] = self.channel(name)
        return view

    # Files and records

    def open(self, path: str) -> bytes:
        """Contents of a file whose version has been checked; an absent one is created."""
        self.touched = path
        data = self.tree.setdefault(path, HEADER)
        if data is None:
            raise _Fault(f"open {self.root}/{path}: is a directory")
        if len(data) < 4:
            raise _Fault(f"unable to verify file version: {'unexpected EOF' if data else 'EOF'}")
        version = int.from_bytes(data[:4], "little")
        if version != 1:
            raise _Fault(f"unsupported file version: {version} (supports [1..1])")
        return data

    def scan(self, path: str, *, typed: bool) -> Iterator[tuple[int, _Record]]:
        """Records with their offsets; cuts zero padding, and a torn end if that was asked for."""
        data = self.tree[path]
        assert data is not None, "open() comes first"
        offset = 4
        while True:
            try:
                record = _record(data, offset, typed=typed)
            except _ZeroPadding:
                self.tree[path] = data[:offset]
                return
            except _Torn:
                if not self.truncate:
                    raise _Fault("unexpected EOF") from None
                self.tree[path] = data[:offset]
                return
            if record is None:
                return
            yield offset, record
            offset += 8 + len(record.payload)

    # State files

    def server_info(self) -> GoServerInfo | None:
        data = self.open("server.dat")
        try:
            record = _record(data, 4, typed=False)
        except _Torn:
            raise _Fault("unexpected EOF") from None
        except _ZeroPadding:
            raise _Fault("end of file padded with zeros") from None
        if record is None:
            return None
        expected = 12 + len(record.payload)
        if len(data) != expected:
            raise _Fault(f"incorrect file size, expected {expected} bytes, got {len(data)} bytes")
        values = _decode(record.payload, SERVER_FIELDS)
        return GoServerInfo(*(values.blob(n) for n in range(1, 10)))

    def clients(self) -> dict[bytes, GoClient]:
        clients: dict[bytes, GoClient] = {}
        self.open("clients.dat")
        for _, record in self.scan("clients.dat", typed=True):
            if record.kind == 1:
                v = _decode(record.payload, CLIENT_FIELDS)
                clients[v.blob(1)] = GoClient(
                    v.blob(1), v.blob(2), v.blob(3), v.num(4), v.num(5), v.num(6)
                )
            elif record.kind == 2:
                clients.pop(_decode(record.payload, CLIENT_DELETE_FIELDS).blob(1), None)
            else:
                raise _Fault(f"invalid client record type: {record.kind}")
        return clients

    def channel(self, name: str) -> GoChannel:
        channel = GoChannel(os.fsencode(name))
        self.touched = ""
        try:
            self.messages(channel, name)
        except _Fault as fault:
            raise _Fault(
                f'unable to recover message store for [{name}](file: "{self.touched}"): {fault}'
            ) from None
        with _saying(f"unable to recover subscription store for [{name}]"):
            self.subscriptions(channel, name)
        return channel

    def subscriptions(self, channel: GoChannel, name: str) -> None:
        subs = channel.subs
        self.open(f"{name}/subs.dat")
        for _, record in self.scan(f"{name}/subs.dat", typed=True):
            if record.kind in {1, 2}:
                sub = _sub(_decode(record.payload, SUB_FIELDS))
                if record.kind == 2 and sub.sub_id in subs:
                    sub.pending = subs[sub.sub_id].pending
                subs[sub.sub_id] = sub
                channel.max_sub_id = max(channel.max_sub_id, sub.sub_id)
            elif record.kind == 3:
                sub_id = _decode(record.payload, SUB_DELETE_FIELDS).num(1)
                subs.pop(sub_id, None)
                channel.max_sub_id = max(channel.max_sub_id, sub_id)
            elif record.kind in {4, 5}:
                sub_id, sequence = _event(record.payload)
                known = subs.get(sub_id)
                if known is None:
                    continue
                if record.kind == 5:
                    known.pending.add(sequence)
                    known.last_sent = max(known.last_sent, sequence)
                else:
                    known.pending.discard(sequence)
            else:
                raise _Fault(f"unexpected record type: {record.kind}")

    # Messages

    def messages(self, channel: GoChannel, name: str) -> None:
        prefix = f"{name}/msgs."
        files = [
            p
            for p, data in self.tree.items()
            if data is not None and p.startswith(prefix) and p.endswith(".dat")
        ]
        slices: dict[int, _Slice] = {}
        for path in sorted(files, key=os.fsencode):
            middle = path.removeprefix(prefix).removesuffix(".dat")
            if not SLICE_NAME.fullmatch(middle) or not -(2**63) <= int(middle) < 2**63:
                raise _Fault(f"message log has an invalid name: {path.removeprefix(name + '/')}")
            entries = self.slice_entries(path, f"{prefix}{int(middle)}.idx")
            if entries:
                data = self.tree[path]
                assert data is not None, "its entries were just read from it"
                slices[int(middle)] = _Slice(data, entries)
        if not slices:
            return
        for piece in slices.values():
            channel.msgs += len(piece.entries)
            channel.bytes += sum(e.size + 40 for e in piece.entries)
        channel.first = min(piece.first for piece in slices.values())
        channel.last = max(piece.last for piece in slices.values())
        channel.write_slice = max(slices)
        order = [
            slices[channel.write_slice],
            *(slices[n] for n in sorted(slices) if n != channel.write_slice),
        ]
        _deliver(channel, order)

    def slice_entries(self, dat: str, idx: str) -> list[_Entry]:
        """The index as the server ends up with: its own if the last entry verifies, else one made
        from the data.
        """
        had_index = self.tree.get(idx) is not None
        data = self.open(dat)
        self.open(idx)
        spoilt = False
        if had_index:
            try:
                entries = self.read_index(idx)
                if entries:
                    _verify_last(data, entries[-1])
                    return entries
                spoilt = True
            except _Fault:
                self.tree[idx] = HEADER
        try:
            entries = self.rebuild(dat, idx, spoilt=spoilt)
        except _Fault:
            del self.tree[idx]
            raise
        self.tree[idx] = HEADER + b"".join(e.pack() for e in entries)
        return entries

    def read_index(self, idx: str) -> list[_Entry]:
        data = self.open(idx)
        entries = []
        for offset in range(4, len(data), 32):
            chunk = data[offset : offset + 32]
            if len(chunk) < 32:
                raise _Fault("unexpected EOF")
            if not any(chunk):
                self.tree[idx] = data[:offset]
                break
            sequence, position, timestamp, size, crc = INDEX.unpack(chunk)
            _check_crc(chunk[:28], crc)
            entries.append(_Entry(sequence, position, timestamp, size))
        return entries

    def rebuild(self, dat: str, idx: str, *, spoilt: bool) -> list[_Entry]:
        before = self.tree[dat]
        entries = []
        for offset, record in self.scan(dat, typed=False):
            message = _message(record.payload)
            entries.append(_Entry(message.sequence, offset, message.timestamp, len(record.payload)))
        if spoilt and self.tree[dat] != before:
            # With an index that is only a header, the repair meant for the data goes to the index
            # file and fails.
            self.tree[dat] = before
            raise _Fault(f"write {self.root}/{idx}: file already closed")
        return entries


@contextmanager
def _saying(what: str) -> Iterator[None]:
    try:
        yield
    except _Fault as fault:
        raise _Fault(f"{what}: {fault}") from None


def _check_crc(data: bytes, expected: int) -> None:
    found = zlib.crc32(data)
    if found != expected:
        raise _Fault(f"corrupted data, expected crc to be 0x{expected:08x}, got 0x{found:08x}")


def _record(data: bytes, offset: int, *, typed: bool) -> _Record | None:
    """The record at ``offset``; ``None`` at what the server takes for a clean end."""
    head = data[offset : offset + 8]
    if not head:
        return None
    if len(head) < 8:
        raise _Torn
    if not any(head):
        raise _ZeroPadding
    first, crc = struct.unpack("<II", head)
    kind, size = (first >> 24, first & 0xFFFFFF) if typed else (0, first)
    payload = data[offset + 8 : offset + 8 + size]
    if len(payload) < size:
        # Not one byte of the payload: the server's read says EOF, not unexpected EOF, and it goes
        # on as if complete.
        if not payload:
            return None
        raise _Torn
    _check_crc(payload, crc)
    return _Record(kind, payload)


def _verify_last(data: bytes, entry: _Entry) -> None:
    """The one comparison of an index with its data that the server makes."""
    try:
        record = _record(data, entry.offset, typed=False) if entry.offset >= 0 else None
    except (_Torn, _ZeroPadding):
        record = None
    if record is None or len(record.payload) != entry.size:
        raise _Fault("unable to read last record")
    if _message(record.payload).sequence != entry.sequence:
        raise _Fault("last message sequence differs")


def _decode(payload: bytes, fields: Fields) -> Values:
    try:
        return decode(payload, fields)
    except ProtoError as error:
        raise _Fault(str(error)) from None


def _sub(v: Values) -> GoSub:
    return GoSub(
        sub_id=v.num(1),
        client_id=v.blob(2),
        queue=v.blob(3),
        inbox=v.blob(4),
        ack_inbox=v.blob(5),
        max_in_flight=v.num(6),
        ack_wait_secs=v.num(7),
        durable_name=v.blob(8),
        last_sent=v.num(9),
        is_durable=bool(v.num(10)),
        is_closed=bool(v.num(11)),
    )


#: Histories read the same records again and again.
@lru_cache(maxsize=1 << 14)
def _event(payload: bytes) -> tuple[int, int]:
    v = _decode(payload, SUB_EVENT_FIELDS)
    return v.num(1), v.num(2)


@lru_cache(maxsize=1 << 12)
def _message(payload: bytes) -> GoMessage:
    v = _decode(payload, MESSAGE_FIELDS)
    return GoMessage(v.num(1), v.num(5), v.blob(2), v.blob(3), v.blob(4))


def _deliver(channel: GoChannel, order: list[_Slice]) -> None:
    """Look up every sequence as a subscriber's delivery does: an error ends it, an absent message
    is passed over.
    """
    cache: dict[int, GoMessage] = {}
    for sequence in range(channel.first, channel.last + 1):
        if sequence not in cache:
            piece = next((p for p in order if p.first <= sequence <= p.last), None)
            if piece is None:
                continue
            try:
                cache = _read_ahead(piece, sequence) or _read_one(piece, sequence)
            except _Fault:
                return
        if sequence in cache:
            channel.messages[sequence] = cache[sequence]


def _read_ahead(piece: _Slice, sequence: int) -> dict[int, GoMessage]:
    """Messages from ``sequence`` on, cut from one block that is taken to be contiguous.

    None if anything is odd.
    """
    if sequence == piece.last:
        return {}
    at = sequence - piece.first
    wanted = piece.entries[at : at + min(READ_BUFFER // 32, piece.last - sequence + 1)]
    if not wanted or [e.sequence for e in wanted] != list(range(sequence, sequence + len(wanted))):
        return {}
    found: dict[int, GoMessage] = {}
    position = wanted[0].offset
    budget = READ_BUFFER
    for entry in wanted:
        budget -= 8 + entry.size
        if found and budget < 0:
            break
        # The size comes from the index: a wrong one in the record's own header is not noticed here.
        head = piece.data[position : position + 8]
        payload = piece.data[position + 8 : position + 8 + entry.size]
        position += 8 + entry.size
        if position < 8 or len(head) < 8 or len(payload) < entry.size:
            return {}
        try:
            _check_crc(payload, int.from_bytes(head[4:], "little"))
            found[entry.sequence] = _message(payload)
        except _Fault:
            return {}
    return found


def _read_one(piece: _Slice, sequence: int) -> dict[int, GoMessage]:
    """The message by its place in the index, stepping back over gaps; empty if it is not there."""
    at = min(sequence - piece.first, len(piece.entries))
    while at == len(piece.entries) or piece.entries[at].sequence != sequence:
        at -= 1
        if at < 0 or piece.entries[at].sequence < sequence:
            return {}
    entry = piece.entries[at]
    try:
        record = _record(piece.data, entry.offset, typed=False) if entry.offset >= 0 else None
    except (_Torn, _ZeroPadding):
        record = None
    if record is None or len(record.payload) != entry.size:
        raise _Fault("unexpected record")
    return {sequence: _message(record.payload)}
