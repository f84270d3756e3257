"""The SQL store as a kind of store: its source, its lock, its epoch, and the store that is opened
with them.

``SqlOwner`` is to a database what ``ft.ownership.StoreOwner`` is to a directory: what the node and
the driver of a group ask of either is ``ft.owned.Owner``.
"""

from __future__ import annotations

import contextlib
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import (
    FencedError,
    FtstanError,
    LockBusyError,
    LockFaultError,
    ReleasedError,
    StoreError,
)
from ftstan.base.log import stream as log
from ftstan.config.member import member_name
from ftstan.ft.epoch import Activation
from ftstan.ft.epoch_records import Cause, Ending, EpochRecord
from ftstan.ft.lockfaults import LockCounts, LockOutcome
from ftstan.ft.owned import OwnedAccess
from ftstan.ft.ownership import StoreLook
from ftstan.ft.watch import Watch
from ftstan.stores.sql import tables
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.fence import Fence
from ftstan.stores.sql.lock import SqlLock
from ftstan.stores.sql.source import source_of
from ftstan.stores.sql.store import SqlStore
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.admin.keys import Keys
    from ftstan.base.clock import Clock
    from ftstan.base.disk import Space
    from ftstan.ft.epoch import LostEpochs
    from ftstan.ft.moves import Moves
    from ftstan.stores.interface import StoreContext
    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source
    from ftstan.stores.sql.tables import EpochRow, HistoryRow

#: The row of ``StoreLock`` is raised at least so often (seconds): originals wait 4.5 s for it.
_TICK_S: Final = 1.0
#: A standby looks at the owner's transactions so often (seconds).
_NOTE_S: Final = 1.0
#: Which connection asks for its session's number, one after the other: some order shows a pool that
#: gives out the session that was free first, and one that gives out the last one.
_ASKED: Final = ("data", "lock", "data", "data", "lock", "lock", "data")


class CountedLock(SqlLock):
    """The lock, with counts for the pages."""

    def __init__(
        self, connect: Callable[[], Session], lock_id: str, mono: Callable[[], float]
    ) -> None:
        super().__init__(connect, lock_id, mono)
        self.counts = LockCounts()

    def acquire(self, *, create: bool = True) -> None:
        """Take it now. There is nothing to create."""
        del create
        held = self.held
        try:
            super().acquire()
        except LockBusyError:
            self.counts.add(LockOutcome.BUSY)
            raise
        except LockFaultError:
            self.counts.add(LockOutcome.IO)
            raise
        if not held:
            self.counts.add(LockOutcome.GRANTED)

    def renew(self) -> bool:
        """There is no path that could name another lock."""
        return False


class SqlOwner:
    """The right of this process to write to one database. Implements ``ft.owned.Owner``."""

    has_directory = False
    is_network = False
    """A poll is one short query: a dead owner is noticed at once."""

    def __init__(
        self,
        source: Source,
        *,
        server_id: str,
        clock: Clock,
        name: str = "",
        connecting: Callable[[], Session] | None = None,
    ) -> None:
        """Nothing is connected yet. ``name``: the member's, for people. ``connecting``: makes the
        sessions, if somebody watches them.
        """
        connecting = connecting or partial(connect, source)
        self._name = name
        self.ending = Ending.UNSAID
        self.path = source.shown()
        self._server_id = server_id
        self._clock = clock
        self._source = source
        self._lock = CountedLock(connecting, Nuid().next(), clock.mono)
        self.fence = Fence(connecting)
        self.fence.answered = self._has_answered
        self._activation: Activation | None = None
        self.answered_at: float | None = None
        self._noted_at: float | None = None
        self.holder: EpochRecord | None = None
        self.is_fit: Callable[[int], bool] = lambda _epoch: True

    @property
    def lock(self) -> CountedLock:
        """The lock of the database."""
        return self._lock

    def _has_answered(self) -> None:
        self.answered_at = self._clock.mono()

    def check(self) -> None:
        """Raise ``StoreError`` unless the database can be reached and used."""
        self.fence.read(lambda session: session.check())
        self.fence.read(lambda session: session.query("SELECT id FROM StoreLock"))
        self._check_sessions()

    def _check_sessions(self) -> None:
        """Raise ``StoreError`` if something in between shares sessions among connections: a name
        that a session holds would keep nobody out, and settings would be somebody else's.

        Which session a pool takes next is its own affair, so each connection asks several times.
        """
        numbers: dict[str, set[int]] = {"data": set(), "lock": set()}
        for who in _ASKED:
            number = (
                self.fence.read(lambda session: session.number())
                if who == "data"
                else self.lock.session_number()
            )
            numbers[who].add(number)
        if len(numbers["data"]) == len(numbers["lock"]) == 1 and numbers["data"] != numbers["lock"]:
            return
        raise StoreError(
            "sql: a connection does not keep its session: a pool in transaction mode, or a "
            "balancer, is in between, and the lock would keep nobody out",
            hint="connect to the database itself, or through a pool in session mode",
        )

    # ---- looking

    def look(self) -> StoreLook:
        """Look at the database; nothing is created. Raises ``StoreError``."""
        row = self.fence.look()
        if row is not None and row.epoch:
            return StoreLook(bytes.fromhex(row.store_id), self.read_owner(), served=True)
        found = self.fence.read(lambda s: s.query("SELECT 1 FROM ServerInfo"))
        return StoreLook(served=bool(found))

    def read_watch(self) -> bytes | None:
        """What an owner changes once a second; ``None`` if it cannot be read."""
        try:
            return self.lock.read()
        except StoreError:
            return None

    def try_lock(self, *, create: bool = True) -> None:
        """Try the lock once. Raises ``LockBusyError`` and ``LockFaultError``."""
        try:
            self.lock.acquire(create=create)
        except LockBusyError:
            self._has_answered()
            self._note_owners_work()
            raise
        self._has_answered()

    def _note_owners_work(self) -> None:
        """Look at the owner's transactions now and then: a database that lacks some of them later
        is not served by this member.
        """
        now = self._clock.mono()
        if self._noted_at is None or now - self._noted_at >= _NOTE_S:
            self._noted_at = now
            # Whether the database answers is the lock's to say.
            with contextlib.suppress(StoreError):
                self.fence.look()

    def read_owner(self) -> EpochRecord | None:
        """The newest activation, ``None`` if there was none. Raises ``StoreError``."""
        records = self.read_records(1)
        self.holder = records[0][1] if records else None
        return self.holder

    def read_records(self, count: int) -> list[tuple[int, EpochRecord | None]]:
        """The newest ``count`` activations, newest first. Raises ``StoreError``."""
        rows = self.fence.read(lambda session: tables.read_history(session, count))
        self._has_answered()
        return [(row.epoch, _record(row)) for row in rows]

    def read_keys(self) -> Keys:
        """A database has no keys of administrators: ``-admin_key`` names a file of them."""
        raise StoreError("a database has no keys of administrators", hint="use -admin_key")

    def rotate_key(self, grace_s: int) -> Keys:
        """See ``read_keys``."""
        del grace_s
        return self.read_keys()

    def read_moves(self) -> Moves:
        """No channel moves to or from a database."""
        return {}

    def take_up_moves(self) -> Moves:
        """See ``read_moves``."""
        return {}

    def settle_moves(self) -> Moves:
        """See ``read_moves``."""
        return {}

    def write_moves(self, moves: Moves) -> None:
        """See ``read_moves``. Raises ``StoreError``."""
        del moves
        raise StoreError("a database keeps no moves of channels", hint="only file stores do")

    @property
    def name(self) -> str:
        """The member's name."""
        return self._name

    def is_paused(self) -> bool:
        """Whether a pause of this member is kept. Raises ``StoreError``."""
        return self.fence.read(lambda session: tables.is_paused(session, self._name))

    def keep_pause(self, line: str) -> None:
        """Keep a pause of this member over restarts. Raises ``StoreError``."""
        self.fence.read(lambda session: tables.keep_pause(session, self._name, line))

    def end_pause(self) -> None:
        """Keep it no more. Raises ``StoreError``."""
        self.fence.read(lambda session: tables.end_pause(session, self._name))

    # ---- taking

    def activate(
        self,
        lost: LostEpochs | None = None,
        *,
        cause: Cause = Cause.UNKNOWN,
        after: int = 0,
        ft_mixed: bool | None = None,
        without_lock: bool = False,
        heard_under: int | None = 0,
    ) -> Activation:
        """Take the next epoch: see ``StoreOwner.activate``.

        ``without_lock``: the session of the silent owner is ended, and the lock is taken.
        """
        del lost, heard_under
        if without_lock and not self.lock.held:
            self.lock.seize()
        if not self.lock.held:
            raise LockFaultError("the store lock is not held")
        former = self.read_owner()
        mixed = former.ft_mixed if ft_mixed is None and former is not None else bool(ft_mixed)
        through = former.originals_through if former is not None else 0
        if former is not None and former.ft_mixed:
            through = former.epoch

        def history(row: EpochRow, token: str) -> HistoryRow:
            return tables.HistoryRow(
                epoch=row.epoch + 1,
                server_id=self._server_id,
                host=socket.gethostname(),
                pid=os.getpid(),
                nonce=token,
                store_id=row.store_id,
                since=self._clock.wall_ns(),
                ft_mixed=mixed,
                cause=int(Cause.FIRST_START if row.epoch == 0 else cause),
                after=after,
                originals_through=through,
            )

        row = self.fence.activate(self.lock.lock_id, history)
        endings = self.fence.read(lambda s: tables.read_endings(s, row.epoch - 1))
        left, left_ns = endings.get(row.epoch - 1, (0, 0))
        self._activation = Activation(
            epoch=row.epoch,
            nonce=bytes.fromhex(row.nonce),
            store_id=bytes.fromhex(row.store_id),
            ours_from=0,
            server_id=row.server_id,
            host=row.host,
            pid=row.pid,
            since_ns=row.since,
            ft_mixed=row.ft_mixed,
            predecessor=(former.epoch, former.nonce) if former is not None else (0, b""),
            was_mixed=former is not None and former.ft_mixed,
            cause=Cause(row.cause),
            after=row.after,
            originals_through=row.originals_through,
            name=self._name,
            left_ns=left_ns,
            left=Ending(left),
        )
        self.holder = self._activation.record()
        return self._activation

    def tidy(self) -> None:
        """Nothing is left of former activations."""

    # ---- owning

    @property
    def present(self) -> Activation | None:
        """The present activation, if there is one. Any thread may ask."""
        return self._activation

    @property
    def activation(self) -> Activation:
        """The present activation. Raises ``ReleasedError`` if there is none."""
        if self._activation is None:
            raise ReleasedError("the database is not ours")
        return self._activation

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the database says that it is ours."""
        self.fence.confirm()

    def confirm_anew(self) -> None:
        """Each confirm asks as others would. Raises ``FencedError``."""
        self.confirm()

    def verify_lock(self) -> None:
        """Raise ``FencedError`` if the row of ``StoreLock`` is not ours."""
        self.lock.verify()

    def set_mixed(self, *, on: bool) -> None:
        """Record, while serving, whether original servers may be members, in an epoch of its own.

        Does nothing if that is what is recorded. Raises ``FencedError`` and ``StoreError``.
        """
        before = self.activation
        if on == before.ft_mixed:
            return
        activation = before.raised(
            before.epoch + 1,
            cause=Cause.MIXED_SWITCHED,
            since_ns=self._clock.wall_ns(),
            ft_mixed=on,
        )
        self.fence.go_on(
            tables.HistoryRow(
                epoch=activation.epoch,
                server_id=activation.server_id,
                host=activation.host,
                pid=activation.pid,
                nonce=activation.nonce.hex(),
                store_id=activation.store_id.hex(),
                since=activation.since_ns,
                ft_mixed=on,
                cause=int(activation.cause),
                after=activation.after,
                originals_through=activation.originals_through,
            )
        )
        self._activation = activation
        self.holder = activation.record()

    # ---- giving up

    def regain_lock(self) -> bool:
        """Whether it holds the lock: nobody owns a database without it."""
        return self.lock.held

    def release(self) -> None:
        """Give the lock back."""
        if self._activation is not None and self.ending:
            # For people alone: a database that does not take it keeps nobody here.
            with contextlib.suppress(StoreError, FencedError):
                self.fence.note_ending(int(self.ending), self._clock.wall_ns())
        self._activation = None
        self.fence.forget()
        self.lock.release()

    def close(self) -> None:
        """Release everything."""
        self.release()


class SqlAccess(OwnedAccess):
    """One node's access to a database. Implements ``StoreAccess``."""

    owner: SqlOwner

    def __init__(self, context: StoreContext) -> None:
        """Connect once, so that a bad source ends the start. Raises ``FtstanError``."""
        self._context = context
        source = source_of(context.options.sql)
        self.owner = SqlOwner(
            source,
            server_id=context.server_id,
            clock=context.clock,
            name=member_name(context.options),
        )
        self.place = f"database {self.owner.path}"
        if source.overridden:
            log.warning(
                f"the source of the database sets {', '.join(source.overridden)}: not taken, "
                "messages could be lost under other values than the server's own"
            )
        try:
            self.owner.check()
        except FtstanError:
            self.owner.close()
            raise

    def lock(self) -> CountedLock:
        """The lock of the database."""
        return self.owner.lock

    def holder(self) -> str:
        """The newest activation, in words."""
        owner = self.owner.read_owner()
        return owner.describe() if owner is not None else ""

    def activate(self) -> None:
        """Take the next epoch; the node is no member of a group."""
        self.owner.activate(cause=Cause.STANDALONE_START)

    def open(self) -> SqlStore:
        """The store of the present activation, not recovered yet."""
        return SqlStore(
            self.owner.fence,
            self._context.clock,
            no_caching=self._context.options.sql.no_caching,
            stopping=self._context.stopping,
            progress=self._context.progress,
        )

    def watch(self, interval: float, on_failure: Callable[[BaseException], None]) -> Watch:
        """What raises the row of ``StoreLock`` and looks whether the database answers."""
        probe = SqlProbe(self.owner)
        return Watch(probe, self._context.clock, min(interval, _TICK_S), on_failure)

    def close(self) -> None:
        """Release everything."""
        self.owner.close()


class SqlProbe:
    """One tick of the lock, on the watch thread."""

    room: Space | None = None

    def __init__(self, owner: SqlOwner) -> None:
        self._owner = owner
        self._is_told = False

    def __call__(self) -> bool:
        """Whether the database took it. Raises ``FencedError`` if the lock is not ours any more.

        A database that does not take it now may do so in a moment, and whoever judges this node
        sees since when: it ends no owner by itself.
        """
        try:
            self._owner.lock.tick()
        except StoreError as error:
            if not self._is_told:
                self._is_told = True
                log.warning(f"Unable to update store lock ({error.text})")
            return False
        self._is_told = False
        return True

    def close(self) -> None:
        """The session is the lock's."""


def _record(row: HistoryRow) -> EpochRecord:
    return EpochRecord(
        slot=row.epoch,
        epoch=row.epoch,
        server_id=row.server_id,
        nonce=bytes.fromhex(row.nonce),
        store_id=bytes.fromhex(row.store_id),
        host=row.host,
        pid=row.pid,
        since_ns=row.since,
        ours_from=0,
        ft_mixed=row.ft_mixed,
        cause=Cause(row.cause),
        after=row.after,
        originals_through=row.originals_through,
        left_ns=row.left_at,
        left=Ending(row.left),
    )
