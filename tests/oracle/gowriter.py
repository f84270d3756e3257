"""The writing side of the original's FILE store, as far as a publish needs it
(``docs/compat/filestore.md``).

Recovery is that of ``gostore``: what it would change in the files is applied to them, and appending
goes on at the channel's highest slice, as that server does, mistakes included: files that exist are
appended to, an offset is what this process has counted and not what the file has, and nothing is
ever compared with what somebody else wrote.

Not covered: limits, subscriptions (kept as they are), encryption, removal of slices, other record
polynomials.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.oracle.goheartbeat import encode
from tests.oracle.gostore import GoRefuses, load_tree, read_tree
from tests.oracle.goview import GoServerInfo

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.oracle.goview import GoChannel, GoClient, Tree

HEADER = b"\x01\x00\x00\x00"
SLICE_BYTES = 64 * 1024 * 1024
_INDEX = struct.Struct("<QqqI")
_CLIENT_ADDED = 1
_CLIENT_DELETED = 2


class StoreError(Exception):
    """One message could not be stored; the text goes to its publisher."""


def server_info(cluster: bytes) -> GoServerInfo:
    """What a new store is given."""

    def subject(name: bytes) -> bytes:
        return b"_STAN." + name + b"." + cluster

    return GoServerInfo(
        cluster_id=cluster,
        discovery=subject(b"discover"),
        publish=subject(b"pub"),
        subscribe=subject(b"sub"),
        unsubscribe=subject(b"unsub"),
        close=subject(b"close"),
        sub_close=subject(b"subclose"),
        acks_subs=subject(b"ack"),
        node_id=b"",
    )


@dataclass(slots=True)
class _Slice:
    """The files that a channel appends to."""

    number: int
    msgs: int
    bytes: int
    offset: int
    dat: int
    idx: int
    data: bytearray = field(default_factory=bytearray)
    entries: bytearray = field(default_factory=bytearray)

    def flush(self) -> None:
        """Write and sync what was appended."""
        if self.data:
            _write(self.dat, self.data)
            _write(self.idx, self.entries)
            self.data.clear()
            self.entries.clear()
            os.fsync(self.dat)
            os.fsync(self.idx)

    def close(self) -> None:
        self.flush()
        os.close(self.dat)
        os.close(self.idx)


class _Channel:
    """The last sequence and the write slice of a channel."""

    def __init__(self, folder: Path, last: int, slice_msgs: int) -> None:
        self._folder = folder
        self._slice_msgs = slice_msgs
        self._slice: _Slice | None = None
        self._number = 0
        self._timestamp = 0
        self.last = last

    def resume(self, number: int) -> None:
        """Go on with a slice that recovery found."""
        index = (self._folder / f"msgs.{number}.idx").read_bytes()[4:]
        sizes = [_INDEX.unpack(index[at : at + 28])[3] for at in range(0, len(index), 32)]
        piece = self._open(number, len(sizes), sum(size + 40 for size in sizes))
        piece.offset = os.fstat(piece.dat).st_size

    def append(self, subject: bytes, reply: bytes, data: bytes) -> int:
        """Buffer one message; its sequence."""
        piece = self._slice
        if piece is None or piece.bytes >= SLICE_BYTES or 0 < self._slice_msgs <= piece.msgs:
            piece = self._roll()
        self._timestamp = max(self._timestamp, time.time_ns())
        sequence = self.last + 1
        payload = encode(
            "MsgProto",
            sequence=sequence,
            subject=subject,
            reply=reply,
            data=data,
            timestamp=self._timestamp,
        )
        piece.data += struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
        entry = _INDEX.pack(sequence, piece.offset, self._timestamp, len(payload))
        piece.entries += entry + zlib.crc32(entry).to_bytes(4, "little")
        piece.offset += 8 + len(payload)
        piece.msgs += 1
        piece.bytes += len(payload) + 40
        self.last = sequence
        return sequence

    def flush(self) -> None:
        if self._slice is not None:
            self._slice.flush()

    def close(self) -> None:
        if self._slice is not None:
            self._slice.close()

    def _roll(self) -> _Slice:
        self.close()
        self._slice = None
        return self._open(self._number + 1, 0, 0)

    def _open(self, number: int, msgs: int, size: int) -> _Slice:
        dat = _open(self._folder / f"msgs.{number}.dat")
        try:
            idx = _open(self._folder / f"msgs.{number}.idx")
        except BaseException:
            os.close(dat)
            raise
        self._number = number
        # A new slice whose files exist is appended to, but its offsets are counted from the header.
        self._slice = _Slice(number, msgs, size, 4, dat, idx)
        return self._slice


class GoWriter:
    """An open store: recovered, or created if there was none.

    ``warnings``: what the server logs of it.
    """

    def __init__(self, root: Path, cluster: bytes, slice_msgs: int = 0) -> None:
        self._root = root
        self._slice_msgs = slice_msgs
        self.warnings: list[str] = []
        before = load_tree(root)
        try:
            view = read_tree(before, root=os.fspath(root), cluster_id=cluster)
        except GoRefuses as refusal:
            _apply(root, before, refusal.tree)
            raise
        _apply(root, before, view.tree)
        if view.info is None and view.channels:
            self.warnings.append(
                "Server information was not recovered, however channels are present. "
                "Will initialize server and restart recovery!"
            )
        self.recovered = view.info is not None or bool(view.channels)
        self.info = view.info or server_info(cluster)
        if not self.info.sub_close:
            self.info = replace(self.info, sub_close=b"_STAN.subclose." + cluster)
        if self.info != view.info:
            self._write_info()
        self.clients: dict[bytes, GoClient] = view.clients
        self.channels = {name: self._resume(channel) for name, channel in view.channels.items()}
        self._clients = os.open(root / "clients.dat", os.O_RDWR | os.O_APPEND)

    def add_client(self, client: GoClient) -> None:
        payload = encode(
            "ClientInfo",
            id=client.client_id,
            hb_inbox=client.hb_inbox,
            conn_id=client.conn_id,
            protocol=client.protocol,
            ping_interval=client.ping_interval,
            ping_max_out=client.ping_max_out,
        )
        self._append_client(_CLIENT_ADDED, payload)
        self.clients[client.client_id] = client

    def delete_client(self, client_id: bytes) -> None:
        self._append_client(_CLIENT_DELETED, encode("ClientDelete", id=client_id))
        del self.clients[client_id]

    def store(self, channel: bytes, reply: bytes, data: bytes) -> bool:
        """Buffer a message; true if its channel was created for it. Raises ``StoreError``."""
        created = False
        try:
            if channel not in self.channels:
                self._create(channel)
                created = True
            self.channels[channel].append(channel, reply, data)
        except OSError as error:
            raise StoreError(
                f"{error.filename}: {(error.strerror or str(error)).lower()}"
            ) from None
        return created

    def flush(self, channels: Iterable[bytes]) -> None:
        """Make what was buffered for them durable."""
        for name in channels:
            self.channels[name].flush()

    def close(self) -> None:
        for channel in self.channels.values():
            channel.close()
        os.close(self._clients)

    def _resume(self, channel: GoChannel) -> _Channel:
        found = _Channel(self._root / os.fsdecode(channel.name), channel.last, self._slice_msgs)
        if channel.write_slice is not None:
            found.resume(channel.write_slice)
        return found

    def _create(self, name: bytes) -> None:
        for known in self.channels:
            if known.lower() == name.lower():
                raise StoreError(
                    f'rejecting channel "{os.fsdecode(name)}" because channel '
                    f'"{os.fsdecode(known)}" '
                    "alreay exists (different cases not allowed)"
                )
        folder = self._root / os.fsdecode(name)
        folder.mkdir(parents=True, exist_ok=True)
        os.close(_open(folder / "subs.dat"))
        self.channels[name] = _Channel(folder, 0, self._slice_msgs)

    def _append_client(self, kind: int, payload: bytes) -> None:
        _write(
            self._clients,
            struct.pack("<II", kind << 24 | len(payload), zlib.crc32(payload)) + payload,
        )

    def _write_info(self) -> None:
        info = self.info
        payload = encode(
            "ServerInfo",
            cluster_id=info.cluster_id,
            discovery=info.discovery,
            publish=info.publish,
            subscribe=info.subscribe,
            unsubscribe=info.unsubscribe,
            close=info.close,
            sub_close=info.sub_close,
            acks_subs=info.acks_subs,
            node_id=info.node_id,
        )
        with (self._root / "server.dat").open("r+b", buffering=0) as file:
            file.truncate(4)
            file.seek(4)
            file.write(struct.pack("<II", len(payload), zlib.crc32(payload)) + payload)


def _apply(root: Path, before: Tree, after: Tree) -> None:
    """Give the files the contents that recovery left them with, in place as the server does."""
    for name, data in after.items():
        old = before.get(name)
        if data is None or data == old:
            continue
        path = root / os.fsdecode(name)
        if old is not None and old.startswith(data):
            os.truncate(path, len(data))
            continue
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        _write(fd, data)
        os.fsync(fd)
        os.close(fd)
    for name in before.keys() - after.keys():
        (root / os.fsdecode(name)).unlink()


def _open(path: Path) -> int:
    """A file of the store for appending; an absent one is created.

    Raises ``StoreError`` for another version.
    """
    flags = os.O_RDWR | os.O_APPEND
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        fd = os.open(path, flags)
        head = os.pread(fd, 4, 0)
        if head != HEADER:
            os.close(fd)
            raise StoreError(_version_error(head)) from None
    else:
        _write(fd, HEADER)
    return fd


def _version_error(head: bytes) -> str:
    if len(head) < 4:
        return f"unable to verify file version: {'unexpected EOF' if head else 'EOF'}"
    return f"unsupported file version: {int.from_bytes(head, 'little')} (supports [1..1])"


def _write(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
