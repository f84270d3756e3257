"""The SQL store: the original's tables, written by one owner at a time.

A batch is one transaction of all channels in it, which the fence begins (``fence.py``). If the
database refuses it as a whole, each channel is tried alone, so that the one that is refused is
reported by name. What a client sees changes only when a transaction has landed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ftstan.base.errors import RecoveryError, StoppedError, StoreError, StoreFullError, WireError
from ftstan.base.log import stream as log
from ftstan.stores import protos
from ftstan.stores.expiry import Expiry
from ftstan.stores.interface import CLIENTS, ClientInfo, Recovered, StoredAt, client_key
from ftstan.stores.sql.cache import Cache
from ftstan.stores.sql.channel import STEP_ROWS, Parts, SqlChannel, limits_as_stored
from ftstan.stores.sql.session import (
    AbsentTableError,
    LostError,
    RightsError,
    TransientError,
    name_text,
)
from ftstan.stores.sql.subs import SubBook

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from ftstan.base.clock import Clock
    from ftstan.config.limits import Limits
    from ftstan.config.options import ChannelLimits
    from ftstan.stores.interface import ChannelEnd, ServerInfo
    from ftstan.stores.sql.fence import Fence
    from ftstan.stores.sql.session import Session
    from ftstan.wire.block import MsgBlock

SCHEMA = 1
#: What was sent and acknowledged is written so often at most (seconds), or with ``tick``.
EVENTS_S = 0.05
#: Channels that one tick looks at for messages that have reached their age.
_LOOKS_A_TICK = 64
#: Subscriptions whose rows one transaction writes.
_SUBS_A_PLAN = 500
#: Subscriptions of a deleted channel that one transaction removes.
_SUBS_A_STEP = 1000

#: Refusals that are of no single row.
_NOT_OF_ONE = (StoreFullError, TransientError, AbsentTableError, RightsError)

_LAST_TIMES = (
    "SELECT id, (SELECT timestamp FROM Messages m WHERE m.id = c.id ORDER BY seq DESC LIMIT 1)"
    " FROM Channels c"
)
_TOTALS = (
    "SELECT id, COUNT(*), MIN(seq), MAX(seq), COALESCE(SUM(size), 0) FROM Messages GROUP BY id"
)


class SqlStore:
    """Implements ``Store``."""

    kind = "SQL"

    def __init__(
        self,
        fence: Fence,
        clock: Clock,
        *,
        no_caching: bool = False,
        events_s: float = EVENTS_S,
        stopping: threading.Event | None = None,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        """``events_s``: see ``EVENTS_S``. ``stopping``, ``progress``: see ``StoreContext``."""
        self._fence = fence
        self._clock = clock
        self._events_s = 0.0 if no_caching else events_s
        self._stopping = stopping
        self._progress = progress
        self._limits: Limits | None = None
        self._expiry = Expiry()
        self._subs = SubBook(by_row=no_caching)
        self._cache = Cache()
        self._touched: dict[int, SqlChannel] = {}
        self._parts = Parts(fence, self._subs, self._cache, self._expiry, self._touch)
        self._channels: dict[bytes, SqlChannel] = {}
        self._by_number: dict[int, SqlChannel] = {}
        self._highest = 0
        self._dying: list[int] = []
        """Channels that are deleted and still have rows."""
        self._clients: list[ClientInfo | bytes] = []
        """Staged: a registration, or the id of one that ends."""
        self._events_at = 0.0
        self._position = 0
        """Of the last remembered publish."""

    def _touch(self, channel: SqlChannel) -> None:
        self._touched[channel.number] = channel

    # ---- recovery

    def recover(self) -> Recovered:
        """Read everything back."""
        try:
            return self._fence.read(self._recover)
        except WireError as error:
            raise RecoveryError(f"sql: {error.text}") from error

    def _recover(self, session: Session) -> Recovered:
        session.limit_statements(0)
        info = self._read_info(session)
        clients = [
            _client(name, inbox, proto)
            for name, inbox, proto in session.query("SELECT id, hbinbox, proto FROM Clients")
        ]
        channel_rows = session.query(
            "SELECT id, name, maxseq, maxmsgs, maxbytes, maxage, deleted FROM Channels ORDER BY id"
        )
        if info is None and channel_rows:
            log.warning(
                "Server information was not recovered, however channels are present. Will "
                "initialize server and restart recovery!"
            )
        totals = {row[0]: row[1:] for row in session.query(_TOTALS)}
        # Rows that belong to no channel must not come to belong to a new one.
        self._highest = max(totals, default=0)
        # A connection may have been lost on the way here.
        self._dying.clear()
        times = {number: int(at or 0) for number, at in session.query(_LAST_TIMES)}
        subs = self._subs.recover(session)
        remembered = self._read_remembered(session)
        session.limit_statements(60_000)
        for done, (number, text, max_seq, *stored, deleted) in enumerate(channel_rows):
            if self._stopping is not None and self._stopping.is_set():
                raise StoppedError("the server stops")
            self._highest = max(self._highest, number)
            if deleted:
                self._dying.append(number)
                continue
            name = text.encode()
            assert self._limits is not None
            channel = SqlChannel(
                number, name, text, self._limits.of(name), self._parts, is_stored=True
            )
            limits = channel.limits
            channel.limits_stored = tuple(int(one or 0) for one in stored) == limits_as_stored(
                limits
            )
            if number in totals:
                count, first, last, size = map(int, totals[number])
                channel.found(count, first, last, size, times.get(number, 0))
            self._channels[name] = channel
            self._by_number[number] = channel
            known = max([int(max_seq or 0), *(s.state.last_sent for s in subs.get(number, ()))])
            channel.last_is_at_least(known)
            channel.enforce(warn=False)
            if limits.max_age:
                self._expiry.look(name, 0)
            for sub in subs.get(number, ()):
                sub.pending = self._subs.keep_only(sub.state.sub_id, channel.first, channel.last)
            channel.has_subs(subs.get(number, []))
            self._progress(done + 1, len(channel_rows))
        return Recovered(
            info,
            clients,
            list(self._channels.values()),
            remembered=remembered,
            activation=self._fence.epoch,
        )

    def _read_info(self, session: Session) -> ServerInfo | None:
        found = session.query("SELECT id, proto, version FROM ServerInfo WHERE uniquerow = 1")
        if not found:
            return None
        name, proto, version = found[0]
        if version != SCHEMA:
            raise RecoveryError(
                f"sql: unsupported version: {version} (supports [{SCHEMA}..{SCHEMA}])"
            )
        info = protos.decode_server(bytes(proto or b""))
        if name != info.cluster_id:
            raise RecoveryError(
                f'sql: id "{name}" in column does not match cluster ID in data "{info.cluster_id}"'
            )
        return info

    def _read_remembered(self, session: Session) -> dict[bytes, StoredAt]:
        if not self._fence.epoch:
            # Who only reads has not made our tables.
            return {}
        found = session.query("SELECT digest, pos, seq, mark FROM ftstan_remembered ORDER BY pos")
        if found:
            self._position = int(found[-1][1])
        return {bytes(d): StoredAt(int(seq), int(mark)) for d, _, seq, mark in found}

    def set_server_info(self, info: ServerInfo) -> None:
        """Make identity and subjects durable at once."""
        proto = protos.encode_server(info)

        def write(session: Session) -> None:
            session.execute("DELETE FROM ServerInfo")
            session.execute(
                "INSERT INTO ServerInfo (uniquerow, id, proto, version) VALUES (1, %s, %s, %s)",
                (info.cluster_id, proto, SCHEMA),
            )

        self._fence.transaction(write)

    # ---- staging

    def add_client(self, info: ClientInfo) -> None:
        """Stage a client registration."""
        self._clients.append(info)

    def delete_client(self, client_id: bytes) -> None:
        """Stage the end of a client's registration."""
        self._clients.append(client_id)

    def create_channel(self, name: bytes, limits: ChannelLimits) -> SqlChannel:
        """A new, empty channel. Raises ``StoreError`` for a name that a database cannot keep."""
        text = name_text(name, "channel")
        self._highest += 1
        channel = SqlChannel(self._highest, name, text, limits, self._parts)
        self._channels[name] = channel
        self._by_number[channel.number] = channel
        return channel

    def open_channel(self, name: bytes) -> Recovered:
        """Nothing is left for later."""
        del name
        return Recovered(None, [], [])

    def set_limits(self, limits: Limits) -> None:
        """Other limits."""
        self._limits = limits
        for channel in self._channels.values():
            channel.set_limits(limits.of(channel.name))

    def delete_channel(self, name: bytes) -> None:
        """Forget a channel and everything in it; its rows go later, in steps."""
        channel = self._channels.get(name)
        shown = name.decode("utf-8", "backslashreplace")
        if channel is None:
            raise StoreError(f'channel "{shown}" not found')
        if channel.number in self._touched and channel.has_staged:
            raise StoreError(
                f'channel "{shown}" is in use', hint="try again when its batch has been committed"
            )
        if channel.is_stored:
            self._fence.transaction(
                lambda s: s.execute(
                    "UPDATE Channels SET deleted = TRUE WHERE id = %s", (channel.number,)
                )
            )
            self._dying.append(channel.number)
        del self._channels[name]
        del self._by_number[channel.number]
        self._touched.pop(channel.number, None)
        self._parts.dead.discard(channel.number)
        self._subs.forget(channel.number)
        self._cache.forget(channel.number)
        self._expiry.forget(name)

    # ---- a batch

    def commit(self) -> dict[bytes, StoreError]:
        """Make everything staged durable."""
        channels = list(self._touched.values())
        clients = self._clients
        self._touched = {}
        self._clients = []
        self._fence.begin_batch()
        if not channels and not clients:
            return {}
        failed: dict[bytes, StoreError] = {}
        try:
            self._commit_parts(channels, clients)
        except LostError:
            raise
        except StoreError as error:
            if len(channels) == 1 and not clients:
                failed[channels[0].name] = error
            elif not channels and (len(clients) == 1 or isinstance(error, _NOT_OF_ONE)):
                failed[_key(clients)] = error
            else:
                failed = self._commit_each(channels, clients)
        for channel in channels:
            if channel.name in failed:
                channel.drop_staged()
            else:
                self._landed(channel)
        return failed

    def _commit_each(
        self, channels: Sequence[SqlChannel], clients: Sequence[ClientInfo | bytes]
    ) -> dict[bytes, StoreError]:
        failed: dict[bytes, StoreError] = {}
        groups: list[tuple[bytes, list[SqlChannel], Sequence[ClientInfo | bytes]]] = [
            (channel.name, [channel], ()) for channel in channels
        ]
        if clients:
            groups.append((_key(clients), [], clients))
        for name, some, registrations in groups:
            try:
                self._commit_parts(some, registrations)
            except LostError:
                raise
            except StoreError as error:
                if len(registrations) > 1 and not isinstance(error, _NOT_OF_ONE):
                    failed |= self._commit_each_client(registrations)
                else:
                    failed[name] = error
        return failed

    def _commit_each_client(self, clients: Sequence[ClientInfo | bytes]) -> dict[bytes, StoreError]:
        """One that the database does not take must not cost the others theirs."""
        failed: dict[bytes, StoreError] = {}
        for client in clients:
            try:
                self._commit_parts((), (client,))
            except LostError:
                raise
            except StoreError as error:
                failed[_key((client,))] = error
        return failed

    def _commit_parts(
        self, channels: Sequence[SqlChannel], clients: Sequence[ClientInfo | bytes]
    ) -> None:
        if len(channels) == 1 and not clients:
            (channel,) = channels
            block = channel.only_messages
            if block is not None and self._fence.insert(channel.number, block):
                return
        blocks: list[tuple[int, MsgBlock]] = [
            (channel.number, channel.staged) for channel in channels if channel.staged is not None
        ]

        def write(session: Session) -> None:
            for channel in channels:
                channel.write(session)
            if blocks:
                session.insert_messages(blocks)
            for client in clients:
                _write_client(session, client)

        self._fence.transaction(write, proves=True)

    def _landed(self, channel: SqlChannel) -> None:
        channel.landed()
        try:
            channel.enforce()
        except StoreError:
            # They are too many until the next look.
            self._expiry.look(channel.name, 0)

    def remember(self, fresh: Sequence[bytes], window: Mapping[bytes, StoredAt]) -> None:
        """Make the digests of publishes durable that are staged."""
        rows = []
        for digest in fresh:
            self._position += 1
            at = window[digest]
            rows.append((digest, self._position, at.sequence, at.mark))
        below = self._position - 2 * max(len(window), 1)

        def write(session: Session) -> None:
            session.execute_many(
                "DELETE FROM ftstan_remembered WHERE digest = %s", [(row[0],) for row in rows]
            )
            session.execute_many(
                "INSERT INTO ftstan_remembered (digest, pos, seq, mark) VALUES (%s, %s, %s, %s)",
                rows,
            )
            session.execute("DELETE FROM ftstan_remembered WHERE pos < %s", (below,))

        self._fence.transaction(write)

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the store is still ours."""
        self._fence.confirm()

    events_first = False

    def write_events(self) -> None:
        """Write what was sent and acknowledged, now and then."""
        now = self._clock.mono()
        if self._subs.has_changes and now - self._events_at >= self._events_s:
            self._write_events()
            self._events_at = now

    def _write_events(self) -> None:
        """Raises ``StoreError``."""
        while self._subs.has_changes:
            plan = self._subs.plan(_SUBS_A_PLAN)
            if not plan.after:
                # What is left belongs to subscriptions that are not stored yet.
                return
            self._fence.transaction(plan.write)
            self._subs.landed(plan)

    acks_wait = False

    def catch_up(self) -> bool:
        """Nothing waits."""
        return False

    # ---- once a second

    def tick(self, now_ns: int) -> bool:
        """Write events, look at ages, delete rows that are out of sight, a step at a time."""
        self._write_events()
        for name in self._expiry.take(now_ns, _LOOKS_A_TICK):
            channel = self._channels.get(name)
            if channel is not None:
                channel.expire(now_ns)
        more = self._expiry.is_due(now_ns)
        more |= self._delete_dead()
        return self._delete_dying() or more

    def _delete_dead(self) -> bool:
        """One step; returns whether there is more."""
        channels: list[SqlChannel] = []
        total = 0
        for number in self._parts.dead:
            channel = self._by_number[number]
            channels.append(channel)
            total += channel.dead_rows
            if total >= STEP_ROWS:
                break
        if not channels:
            return False

        def write(session: Session) -> list[int]:
            left = STEP_ROWS
            ends: list[int] = []
            for channel in channels:
                rows = min(channel.dead_rows, left)
                ends.append(channel.delete_step(session, max(rows, 1)))
                left -= rows
            return ends

        for channel, end in zip(channels, self._fence.transaction(write), strict=True):
            channel.deleted_before(end)
            if not channel.dead_rows:
                self._parts.dead.discard(channel.number)
        return bool(self._parts.dead)

    def _delete_dying(self) -> bool:
        """One step of the oldest deleted channel; returns whether there is more."""
        if not self._dying:
            return False
        number = self._dying[0]
        if self._fence.transaction(lambda s: _delete_some(s, number)):
            self._dying.pop(0)
        return bool(self._dying)

    def ends(self, most: int) -> list[ChannelEnd]:
        """There are no files."""
        del most
        return []

    def number_of(self, name: bytes) -> int:
        """The number of a channel that there is, under which its rows stand."""
        return self._channels[name].number

    # ---- the end

    def prepare_close(self, seconds: float) -> bool:
        """Delete rows that ``close`` would have to."""
        end = time.monotonic() + seconds
        more = True
        while more and time.monotonic() < end:
            more = self._delete_dead()
        return more

    def close(self) -> None:
        """Write what is left."""
        for channel in self._touched.values():
            channel.drop_staged()
        self._touched = {}
        self._clients = []
        self._write_events()
        while self._delete_dead():
            pass
        self._fence.drop()

    def abandon(self) -> None:
        """Write nothing."""
        self._fence.drop()


def _client(name: str, inbox: str | None, proto: bytes | None) -> ClientInfo:
    if not proto:
        return ClientInfo(name.encode(), (inbox or "").encode())
    try:
        return protos.decode_client(bytes(proto))
    except WireError:
        return ClientInfo(name.encode(), (inbox or "").encode())


def _key(clients: Sequence[ClientInfo | bytes]) -> bytes:
    """Under which it is told that these could not be stored."""
    if len(clients) > 1:
        return CLIENTS
    (client,) = clients
    return client_key(client if isinstance(client, bytes) else client.client_id)


def _write_client(session: Session, client: ClientInfo | bytes) -> None:
    client_id = client if isinstance(client, bytes) else client.client_id
    text = name_text(client_id, "client ID")
    # A collation of MySQL may take other capitals for the same name.
    session.execute(f"DELETE FROM Clients WHERE id = %s AND id = {session.exactly}", (text, text))
    if isinstance(client, ClientInfo):
        session.execute(
            "INSERT INTO Clients (id, hbinbox, proto) VALUES (%s, %s, %s)",
            (text, _shown(client.hb_inbox), protos.encode_client(client)),
        )


def _shown(inbox: bytes) -> str:
    """An inbox for who looks at the table: its bytes are in ``proto``."""
    return inbox.decode("utf-8", "backslashreplace").replace("\0", "")


def _delete_some(session: Session, number: int) -> bool:
    """Delete some rows of a deleted channel; returns whether they were the last."""
    subs = session.query(
        f"SELECT subid FROM Subscriptions WHERE id = %s LIMIT {_SUBS_A_STEP}", (number,)
    )
    if subs:
        session.execute_many("DELETE FROM SubsPending WHERE subid = %s", subs)
        session.execute_many(
            "DELETE FROM Subscriptions WHERE id = %s AND subid = %s", [(number, s) for (s,) in subs]
        )
        return False
    low = session.query("SELECT MIN(seq) FROM Messages WHERE id = %s", (number,))[0][0]
    if low is not None:
        session.execute(
            "DELETE FROM Messages WHERE id = %s AND seq < %s", (number, int(low) + STEP_ROWS)
        )
        return False
    session.execute("DELETE FROM Channels WHERE id = %s", (number,))
    return True
