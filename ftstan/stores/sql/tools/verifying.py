"""What is wrong with the rows of a database, found by reading every one of them.

Nothing is changed. Rows that no server would write are *damage*; what a server removes by itself
(rows of a deleted channel, say) is a *leftover*; what is no fault, and good to know, is a *note*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import RecoveryError, StoreError, WireError
from ftstan.stores import protos
from ftstan.stores.sql import subs
from ftstan.stores.sql.store import SCHEMA
from ftstan.wire import codec
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.encryption.cipher import ChannelKeys, KeyRing
    from ftstan.stores.sql.session import Row
    from ftstan.stores.sql.tools.reading import Reading

DAMAGE: Final = "damage"
LEFTOVER: Final = "leftover"
NOTE: Final = "note"

#: Of one channel and kind, so many findings are told one by one.
_MOST_TOLD: Final = 20
_ROWS_A_READ: Final = 1000
_MESSAGES: Final = (
    "SELECT seq, COALESCE(timestamp, 0), COALESCE(size, 0), COALESCE(data, '') FROM Messages"
    f" WHERE id = %s AND seq >= %s ORDER BY seq LIMIT {_ROWS_A_READ}"
)


@dataclass(frozen=True, slots=True)
class SqlFinding:
    """One thing found in a table. ``channel``: empty for what belongs to none."""

    kind: str
    channel: bytes
    table: str
    text: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked at: ``only`` this channel, messages above ``max_payload`` bytes are named."""

    only: bytes | None = None
    max_payload: int = 1 << 20
    ring: KeyRing | None = None


def check_database(
    reading: Reading, wanted: Wanted, advance: Callable[[int], None] = lambda _bytes: None
) -> Iterator[SqlFinding]:
    """Read everything. ``advance`` is told of bytes of messages. Raises ``StoreError``."""
    if wanted.only is None:
        yield from _root(reading)
        yield from _strays(reading)
    channels = reading.query("SELECT id, name, maxseq, deleted FROM Channels ORDER BY id")
    yield from _names(channels)
    for number, text, max_seq, deleted in channels:
        name = str(text).encode()
        if wanted.only is not None and name != wanted.only:
            continue
        if deleted:
            yield SqlFinding(
                LEFTOVER, name, "Channels", f"channel {number} is deleted and still has rows"
            )
            continue
        # Subscriptions first: a running server stores a message before it is sent.
        sent = _Sent()
        yield from _subscriptions(reading, number, name, sent)
        check = _Messages(number, name, wanted)
        yield from check.run(reading, advance)
        if sent.highest > max(check.last, int(max_seq or 0)):
            yield SqlFinding(
                DAMAGE,
                name,
                "Messages",
                f"sequence {sent.highest} was sent to a subscription and {check.last} is the "
                "highest stored: newer messages are lost, and a start puts the others out of reach",
            )


# ---- what belongs to no channel


def _root(reading: Reading) -> Iterator[SqlFinding]:
    rows = reading.query("SELECT id, proto, version FROM ServerInfo")
    if not rows and reading.query("SELECT 1 FROM Channels LIMIT 1"):
        yield SqlFinding(DAMAGE, b"", "ServerInfo", "there is no row, and there are channels")
    if len(rows) > 1:
        yield SqlFinding(DAMAGE, b"", "ServerInfo", f"there are {len(rows)} rows instead of one")
    for name, proto, version in rows[:1]:
        yield from _server(str(name), bytes(proto or b""), version)
    locks = reading.query("SELECT id FROM StoreLock")
    if len(locks) > 1:
        yield SqlFinding(
            DAMAGE, b"", "StoreLock", f"there are {len(locks)} rows: no server can own it"
        )
    for name, proto in reading.query("SELECT id, proto FROM Clients"):
        if not proto:
            continue
        try:
            client = protos.decode_client(bytes(proto))
        except WireError as error:
            yield SqlFinding(DAMAGE, b"", "Clients", f"client {name!r}: {error.text}")
            continue
        if client.client_id.decode("utf-8", "replace") != name:
            yield SqlFinding(
                DAMAGE, b"", "Clients", f"client {name!r} has the data of {client.client_id!r}"
            )


def _server(name: str, proto: bytes, version: object) -> Iterator[SqlFinding]:
    if version != SCHEMA:
        text = f"version {version} is not {SCHEMA}: no server starts on it"
        yield SqlFinding(DAMAGE, b"", "ServerInfo", text)
        return
    try:
        info = protos.decode_server(proto)
    except WireError as error:
        yield SqlFinding(DAMAGE, b"", "ServerInfo", error.text)
        return
    if info.cluster_id != name:
        text = f"the id {name!r} does not match the cluster ID {info.cluster_id!r}"
        yield SqlFinding(DAMAGE, b"", "ServerInfo", text)


_BY_CHANNEL: Final = (
    "SELECT DISTINCT r.id FROM {} r LEFT JOIN Channels c ON c.id = r.id WHERE c.id IS NULL"
)
_BY_SUB: Final = (
    "SELECT DISTINCT r.subid FROM {} r LEFT JOIN Subscriptions s ON s.subid = r.subid"
    " WHERE s.subid IS NULL"
)
_STRAYS: Final = (
    ("Messages", _BY_CHANNEL, "channel number {} is none: rows that nobody can read"),
    ("Subscriptions", _BY_CHANNEL, "channel number {} is none: rows that nobody reads"),
    ("SubsPending", _BY_SUB, "subscription {} is none"),
)


def _strays(reading: Reading) -> Iterator[SqlFinding]:
    """Rows that belong to nothing: originals leave them when they die during a removal."""
    for table, sql, text in _STRAYS:
        for (number,) in reading.query(f"{sql.format(table)} LIMIT {_MOST_TOLD}"):
            yield SqlFinding(LEFTOVER, b"", table, text.format(number))


def _names(channels: list[Row]) -> Iterator[SqlFinding]:
    seen: dict[str, int] = {}
    for number, text, _, deleted in channels:
        name = str(text)
        if not valid_channel(name.encode()):
            yield SqlFinding(
                DAMAGE, name.encode(), "Channels", f"channel {number} has no valid name: {name!r}"
            )
        if deleted:
            continue
        if name in seen:
            yield SqlFinding(
                DAMAGE, name.encode(), "Channels", f"{number} and {seen[name]} have the same name"
            )
        seen[name] = number


# ---- one channel


@dataclass(slots=True)
class _Sent:
    """The highest sequence that a subscription of the channel was sent."""

    highest: int = 0


def _subscriptions(reading: Reading, number: int, name: bytes, sent: _Sent) -> Iterator[SqlFinding]:
    for sub_id, last_sent, proto in reading.query(
        "SELECT subid, lastsent, proto FROM Subscriptions WHERE id = %s AND deleted = FALSE"
        " ORDER BY subid",
        (number,),
    ):
        sent.highest = max(sent.highest, int(last_sent or 0))
        if proto is None:
            yield SqlFinding(
                DAMAGE, name, "Subscriptions", f"subscription {sub_id} has lost what it says"
            )
            continue
        try:
            sent.highest = max(sent.highest, protos.decode_sub(bytes(proto)).last_sent)
        except WireError as error:
            text = f"subscription {sub_id}: {error.text}"
            yield SqlFinding(DAMAGE, name, "Subscriptions", text)
    for sub_id, pending, acks in reading.query(
        "SELECT p.subid, p.pending, p.acks FROM SubsPending p JOIN Subscriptions s"
        " ON s.subid = p.subid WHERE s.id = %s",
        (number,),
    ):
        try:
            subs.sequences(pending, sub_id)
            subs.sequences(acks, sub_id)
        except RecoveryError as error:
            yield SqlFinding(DAMAGE, name, "SubsPending", error.text)


class _Messages:
    """The messages of one channel, row by row."""

    def __init__(self, number: int, name: bytes, wanted: Wanted) -> None:
        self._number = number
        self._name = name
        self._wanted = wanted
        self._keys: ChannelKeys | None = (
            wanted.ring.channel(name) if wanted.ring is not None else None
        )
        self.last = 0
        self._told: dict[str, int] = {}

    def run(self, reading: Reading, advance: Callable[[int], None]) -> Iterator[SqlFinding]:
        """Read them all."""
        at = 0
        while rows := reading.query(_MESSAGES, (self._number, at)):
            for row in rows:
                yield from self._row(*row)
            advance(sum(len(row[3]) for row in rows))
            at = self.last + 1
        for kind, count in self._told.items():
            if count > _MOST_TOLD:
                yield self._finding(kind, f"and {count - _MOST_TOLD} more findings like these")

    def _finding(self, kind: str, text: str) -> SqlFinding:
        return SqlFinding(kind, self._name, "Messages", text)

    def _tell(self, kind: str, text: str) -> Iterator[SqlFinding]:
        told = self._told[kind] = self._told.get(kind, 0) + 1
        if told <= _MOST_TOLD:
            yield self._finding(kind, text)

    def _row(self, sequence: int, timestamp: int, size: int, data: bytes) -> Iterator[SqlFinding]:
        sequence = int(sequence)
        data = bytes(data)
        if self.last and sequence != self.last + 1:
            lost = f"{self.last + 1} to {sequence - 1}"
            yield from self._tell(NOTE, f"there are no messages {lost}")
        self.last = sequence
        try:
            found, subject, _, payload, stamped, _, _ = codec.decode_msg_proto(data)
        except WireError as error:
            yield from self._tell(DAMAGE, f"sequence {sequence}: {error.text}")
            return
        wrong = []
        if found != sequence:
            wrong.append(f"is the message {found}")
        if stamped != timestamp:
            wrong.append(f"has two times, {timestamp} and {stamped}")
        if subject != self._name:
            wrong.append(f"belongs to {subject.decode('utf-8', 'backslashreplace')!r}")
        if size != len(data):
            wrong.append(f"has {len(data)} bytes instead of {size}")
        if wrong:
            yield from self._tell(DAMAGE, f"sequence {sequence} {', '.join(wrong)}")
            return
        if self._keys is not None and payload:
            try:
                payload = self._keys.decrypt(payload)
            except StoreError as error:
                yield from self._tell(DAMAGE, f"sequence {sequence}: {error.text}")
                return
        if len(payload) > self._wanted.max_payload:
            yield from self._tell(
                NOTE,
                f"sequence {sequence} has {len(payload)} bytes, more than max_payload "
                f"{self._wanted.max_payload}: no NATS server delivers it",
            )
