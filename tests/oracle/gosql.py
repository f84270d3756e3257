"""What an original server recovers from a database, by the rules of ``docs/compat/sqlstore.md``
(recovery).

It reads and never writes: what a start would delete is left out of the answer. Independent of
``ftstan.stores.sql``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.oracle.goproto import Fields, ProtoError, decode
from tests.oracle.goview import CLIENT_FIELDS, MESSAGE_FIELDS, SERVER_FIELDS, SUB_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Runs one statement and returns its rows.
    Query = Callable[[str], list[Any]]

_MOST_UINT64 = (1 << 64) - 1


class GoSqlRefuses(Exception):  # noqa: N818  # a verdict, not an error
    """The server would not start; the text is what it says."""


@dataclass(frozen=True)
class GoLimits:
    """Limits of one channel; ``max_age`` in nanoseconds."""

    max_msgs: int = 1_000_000
    max_bytes: int = 1_024_000_000
    max_age: int = 0


@dataclass
class GoSqlSub:
    sub_id: int
    client_id: bytes
    durable: bytes
    queue: bytes
    inbox: bytes
    is_closed: bool
    last_sent: int
    pending: set[int]


@dataclass
class GoSqlMessage:
    timestamp: int
    subject: bytes
    reply: bytes
    data: bytes


@dataclass
class GoSqlChannel:
    number: int
    msgs: int = 0
    bytes: int = 0
    first: int = 0
    last: int = 0
    messages: dict[int, GoSqlMessage] = field(default_factory=dict)
    subs: dict[int, GoSqlSub] = field(default_factory=dict)


@dataclass
class GoSqlView:
    """``cluster_id`` is ``None`` where there was no row of the server."""

    cluster_id: bytes | None
    clients: dict[bytes, bytes]
    """Heartbeat inbox by id."""
    channels: dict[bytes, GoSqlChannel]


def read(
    query: Query,
    now: int,
    *,
    caching: bool = True,
    limits: dict[bytes, GoLimits] | None = None,
) -> GoSqlView:
    """The view of a server that starts at ``now`` (Unix nanoseconds).

    ``limits``: of channels with limits of their own. Raises ``GoSqlRefuses``.
    """
    view = GoSqlView(_server(query), _clients(query), {})
    listed = query("SELECT id, name, maxseq, maxmsgs, maxbytes, maxage, deleted FROM Channels")
    for number, name, maxseq, *stored, deleted in sorted(listed, key=lambda row: int(row[0])):
        if deleted is None or deleted:
            continue
        if maxseq is None or None in stored:
            raise GoSqlRefuses("converting NULL to a number is unsupported")
        wanted = (limits or {}).get(_bytes(name), GoLimits())
        channel = _messages(query, int(number), wanted, GoLimits(*map(int, stored)), now)
        known = max(int(maxseq), _highest(query, int(number)))
        for sub in _subs(query, channel, caching=caching):
            known = max(known, sub.last_sent)
        if known > channel.last:
            channel.first, channel.last = known + 1, known
        view.channels[_bytes(name)] = channel
    return view


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value or b"")


def _decoded(data: Any, fields: Fields) -> Any:
    try:
        return decode(_bytes(data), fields)
    except ProtoError as error:
        raise GoSqlRefuses(str(error)) from error


def _server(query: Query) -> bytes | None:
    rows = query("SELECT uniquerow, id, proto, version FROM ServerInfo")
    if not rows:
        return None
    unique, column, proto, version = rows[0]
    if unique != 1:
        raise GoSqlRefuses("it neither finds nor replaces the row, and tries for ever")
    if version is None or column is None:
        raise GoSqlRefuses("converting NULL is unsupported")
    if int(version) != 1:
        raise GoSqlRefuses(f"sql: unsupported version: {version} (supports [1..1])")
    said: bytes = _decoded(proto, SERVER_FIELDS).blob(1)
    if said != _bytes(column):
        raise GoSqlRefuses(
            f'sql: id "{_bytes(column).decode()}" in column does not match cluster ID in data '
            f'"{said.decode()}"'
        )
    return said


def _clients(query: Query) -> dict[bytes, bytes]:
    found = {}
    for client, inbox, proto in query("SELECT id, hbinbox, proto FROM Clients"):
        if inbox is None:
            raise GoSqlRefuses("converting NULL to string is unsupported")
        if not proto:
            found[_bytes(client)] = _bytes(inbox)
            continue
        try:
            said = decode(_bytes(proto), CLIENT_FIELDS)
        except ProtoError:
            continue
        found[said.blob(1)] = said.blob(2)
    return found


def _highest(query: Query, number: int) -> int:
    return int(query(f"SELECT MAX(seq) FROM Messages WHERE id = {number}")[0][0] or 0)


def _messages(
    query: Query, number: int, wanted: GoLimits, stored: GoLimits, now: int
) -> GoSqlChannel:
    listed = query(
        f"SELECT seq, timestamp, size, data FROM Messages WHERE id = {number} ORDER BY seq"
    )
    if wanted.max_age > 0:
        listed = [row for row in listed if row[1] is None or int(row[1]) > now - wanted.max_age]
    if 0 < wanted.max_msgs < stored.max_msgs:
        listed = listed[-wanted.max_msgs :]
    if 0 < wanted.max_bytes < stored.max_bytes:
        total, kept = 0, 0
        for row in reversed(listed):
            total += int(row[2])
            if total > wanted.max_bytes and kept:
                break
            kept += 1
        listed = listed[len(listed) - kept :]
    channel = GoSqlChannel(number)
    for sequence, timestamp, size, data in listed:
        channel.msgs += 1
        channel.bytes += int(size or 0)
        channel.first = int(listed[0][0])
        channel.last = int(sequence)
        try:
            said = decode(_bytes(data), MESSAGE_FIELDS)
        except ProtoError:
            continue
        channel.messages[int(sequence)] = GoSqlMessage(
            int(timestamp or 0), said.blob(2), said.blob(3), said.blob(4)
        )
    return channel


def _subs(query: Query, channel: GoSqlChannel, *, caching: bool) -> list[GoSqlSub]:
    every = []
    for number, column, proto, deleted in query(
        f"SELECT subid, lastsent, proto, deleted FROM Subscriptions WHERE id = {channel.number}"
    ):
        if deleted is None or deleted:
            continue
        if column is None:
            raise GoSqlRefuses("converting NULL to uint64 is unsupported")
        said = _decoded(proto, SUB_FIELDS)
        sub = GoSqlSub(
            int(number), said.blob(2), said.blob(8), said.blob(3), said.blob(4),
            bool(said.num(11)), max(int(column), said.num(9)), set(),
        )  # fmt: skip
        _pending(query, sub, 0 if caching else channel.first)
        channel.subs[sub.sub_id] = sub
        every.append(sub)
    return every


def _pending(query: Query, sub: GoSqlSub, first: int) -> None:
    """``first``: pending rows of one sequence below it are deleted at the start."""
    rows = query(
        f"SELECT seq, lastsent, pending, acks FROM SubsPending WHERE subid = {sub.sub_id} "
        "ORDER BY 1 DESC"
    )
    acked: set[int] = set()
    for sequence, last, pending, acks in rows:
        if int(sequence or 0):
            if int(sequence) >= first:
                sub.pending.add(int(sequence))
                sub.last_sent = max(sub.last_sent, int(sequence))
            continue
        sub.last_sent = max(sub.last_sent, int(last or 0))
        sub.pending |= _sequences(pending)
        acked |= _sequences(acks)
    # The original reads in any order, and so may forget an ack: with these it forgets none.
    sub.pending -= acked


def _sequences(text: Any) -> set[int]:
    if not text:
        return set()
    try:
        said = json.loads(_bytes(text))
    except ValueError as error:
        raise GoSqlRefuses(f"invalid JSON: {error}") from error
    if said is None:
        return set()
    if not isinstance(said, list) or not all(
        type(one) is int and 0 <= one <= _MOST_UINT64 for one in said
    ):
        raise GoSqlRefuses("json: cannot unmarshal into []uint64")
    return set(said)
