"""The lock of a database: the original's row in ``StoreLock``, and a name that only we know of.

The row is what originals go by: its owner raises ``tick`` once a second, and a standby takes the
row when it has not changed for 4.5 s. Beside it an owner of ours holds a name on the server with
the session that ticks (``Session.try_name``). The server gives the name back when that session
ends, so a standby of ours sees at once that the owner is dead, and need not wait for a row that
nobody raises.

**Safety does not rest on any of it**: that is the work of ``fence.py``. An owner that hangs while
its session lives is replaced by the original's rule; its session is ended first.

One thread of the owner ticks while another may release: ``_mutex`` is held for each statement.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from ftstan.base.errors import FencedError, LockBusyError, LockFaultError, StoreError
from ftstan.stores.sql import tables
from ftstan.stores.sql.session import LostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.sql.session import Row, Session

#: The name of whoever owns the database.
OWNER = "owner"

#: The original's rule: a row is looked at three times, 1.5 s apart, before it is taken from an
#: owner that does not raise it.
LOOK_S = 1.5
LOOKS = 3
#: Behind an outage of the database the former owner connects again, too: it goes first.
_GRACE_S = 3.0
_RELEASE_S = 2.0
_WAIT_MS = 1_000


class SqlLock:
    """Implements ``Lock``. ``lock_id``: what this server writes into the row, not over 30 bytes.

    ``connect`` makes a session; ``mono`` gives seconds.
    """

    def __init__(
        self,
        connect: Callable[[], Session],
        lock_id: str,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._mono = mono
        self._mutex = threading.RLock()
        self._session: Session | None = None
        self._has_name = False
        self._connections = 0
        self._connected_at = 0.0
        self._seen: tuple[str, int] | None = None
        self._unchanged = 0
        self._looked_at = 0.0
        self.lock_id = lock_id
        self.held = False

    # ---- the three verbs

    def acquire(self) -> None:
        """Take it now, without waiting. Raises ``LockBusyError`` and ``LockFaultError``."""
        with self._mutex:
            if not self.held:
                self._take(self._acquire)
                self._seen = None

    def verify(self) -> None:
        """Raise ``FencedError`` unless the row has our id."""
        with self._mutex:
            if not self.held:
                raise FencedError("the lock of the database is not held")
            try:
                self._check(self._rows(self._present()))
            except LostError:
                # Nobody can tell now, and the fence will.
                self._drop()

    def release(self) -> None:
        """Empty the row and close the session."""
        if not self._mutex.acquire(timeout=_RELEASE_S):
            # Whoever waits for the database has it. The name goes with the process.
            self.held = False
            return
        try:
            if self.held and self._session is not None:
                self.held = False
                with contextlib.suppress(StoreError):
                    self._session.execute(
                        "UPDATE StoreLock SET id = '', tick = 0 WHERE id = %s", (self.lock_id,)
                    )
            self.held = False
            # Said, not left to the end of the session, which the server may notice late.
            self._forget_name()
            self._drop()
        finally:
            self._mutex.release()

    # ---- while it is held

    def tick(self) -> None:
        """Raise the row's counter. Raises ``FencedError`` if the row is not ours any more.

        Raises ``StoreError`` if the database does not take it now: that proves nothing.
        """
        with self._mutex:
            if not self.held:
                return
            try:
                session = self._present()
                found = session.execute(
                    "UPDATE StoreLock SET tick = tick + 1 WHERE id = %s", (self.lock_id,)
                )
                if found != 1:
                    self._check(self._rows(session))
            except LostError:
                self._drop()
                raise

    def read(self) -> bytes:
        """The row, for whoever watches whether it changes; empty if there is none."""
        with self._mutex:
            try:
                rows = self._rows(self._any_session())
            except LostError:
                self._drop()
                raise
            return ",".join(f"{name}:{tick}" for name, tick in rows).encode()

    def session_number(self) -> int:
        """The server's number of the session that has, or would have, the name.

        Raises ``StoreError``.
        """
        with self._mutex:
            try:
                return self._any_session().number()
            except LostError:
                self._drop()
                raise

    def seize(self) -> None:
        """Take it from an owner that is silent: its session is ended. Raises ``LockFaultError``."""
        with self._mutex:
            if not self.held:
                self._take(self._seize)

    # ----

    def _take(self, by: Callable[[], None]) -> None:
        """Hold it once ``by`` has come to its end; otherwise keep nothing of it."""
        try:
            by()
        except LostError as error:
            self._drop()
            raise LockFaultError(error.text, hint=error.hint) from error
        except StoreError as error:
            self._forget_name()
            raise LockFaultError(error.text, hint=error.hint) from error
        except BaseException:
            self._forget_name()
            raise
        self.held = True

    def _seize(self) -> None:
        session = self._any_session()
        self._seize_name(session)
        self._write(session, steal=True)

    def _seize_name(self, session: Session) -> None:
        end = self._mono() + _RELEASE_S
        while not session.try_name(OWNER):
            session.end_holder(OWNER)
            if self._mono() >= end:
                raise LockFaultError(
                    "sql: the session of the former owner cannot be ended",
                    hint="end it, or stop that server",
                )
            time.sleep(0.02)
        self._has_name = True

    def _any_session(self) -> Session:
        if self._session is None or self._session.is_lost:
            self._session = None
            self._has_name = False
            self._session = self._connect()
            self._session.wait_at_most(_WAIT_MS)
            self._connections += 1
            self._connected_at = self._mono()
        return self._session

    def _present(self) -> Session:
        """The session that has the name; a new one takes it again, if nobody else has it."""
        session = self._any_session()
        if not self._has_name:
            self._has_name = session.try_name(OWNER)
        return session

    def _drop(self) -> None:
        session = self._session
        self._session = None
        self._has_name = False
        if session is not None:
            session.close()

    def _forget_name(self) -> None:
        if self._has_name and self._session is not None:
            self._has_name = False
            try:
                self._session.release_name(OWNER)
            except StoreError:
                self._drop()

    def _acquire(self) -> None:
        session = self._any_session()
        if not session.try_name(OWNER):
            if self._is_silent(self._rows(session)):
                session.end_holder(OWNER)
            raise LockBusyError("the lock of the database is held")
        self._has_name = True
        rows = self._rows(session)
        if len(rows) > 1:
            raise LockFaultError(
                f"sql: StoreLock has {len(rows)} rows, and one server at most can own the database",
                hint="stop every server of this database, then run: DELETE FROM StoreLock",
            )
        self._write(session, steal=not self._is_free(session, rows))

    def _is_free(self, session: Session, rows: list[Row]) -> bool:
        """Whether the row may be taken as it is; raises ``LockBusyError`` if it is held."""
        if not rows or rows[0][0] in ("", self.lock_id):
            return True
        row = tables.read_epoch(session)
        if row is not None and row.lock_id == rows[0][0] and not self._is_in_grace(rows):
            # One of ours, and its session is gone.
            return True
        if self._is_silent(rows):
            return False
        raise LockBusyError("the lock of the database is held")

    def _is_in_grace(self, rows: list[Row]) -> bool:
        """Whether the former owner may have lost its connection as we have, and come back."""
        is_new = self._connections > 1 and self._mono() - self._connected_at < _GRACE_S
        if is_new:
            self._is_silent(rows)
        return is_new

    def _is_silent(self, rows: list[Row]) -> bool:
        """Whether the row has not changed for as long as an original would wait."""
        now = self._mono()
        seen = (str(rows[0][0]), int(rows[0][1])) if rows else ("", 0)
        if seen != self._seen:
            self._seen = seen
            self._unchanged = 0
            self._looked_at = now
        elif now - self._looked_at >= LOOK_S:
            self._unchanged += 1
            self._looked_at = now
        return self._unchanged >= LOOKS

    def _rows(self, session: Session) -> list[Row]:
        return session.query("SELECT id, tick FROM StoreLock")

    def _check(self, rows: list[Row]) -> None:
        if len(rows) > 1:
            raise FencedError(
                f"lost store lock, aborting: StoreLock has {len(rows)} rows",
                hint="stop every server of this database, then run: DELETE FROM StoreLock",
            )
        if not rows or rows[0][0] != self.lock_id:
            raise FencedError("lost store lock, aborting: another server has taken the database")

    def _require_unchanged(self, session: Session, name: str, *, steal: bool) -> None:
        """Raise ``LockBusyError`` if the row has another owner than the one that was judged."""
        row = None if steal else tables.read_epoch(session)
        free = steal or name in ("", self.lock_id) or (row is not None and row.lock_id == name)
        if not free or (steal and self._seen is not None and name != self._seen[0]):
            raise LockBusyError("the lock of the database is held")

    def _end_former(self, session: Session) -> None:
        """End the session with which a former owner of ours may have the row locked."""
        row = tables.read_epoch(session)
        names = [name for name, _ in self._rows(session)]
        if row is not None and row.token and row.lock_id != self.lock_id and row.lock_id in names:
            session.end_holder(row.token)

    def _write(self, session: Session, *, steal: bool) -> None:
        """Make the row ours. Raises ``LockBusyError`` if somebody was faster."""
        self._end_former(session)
        session.begin()
        try:
            if session.driver == "postgres":
                # There may be no row that could be locked.
                session.execute("LOCK TABLE StoreLock IN SHARE ROW EXCLUSIVE MODE")
            rows = session.query("SELECT id, tick FROM StoreLock FOR UPDATE")
            if not rows:
                session.execute("INSERT INTO StoreLock (id, tick) VALUES (%s, 1)", (self.lock_id,))
            else:
                self._require_unchanged(session, str(rows[0][0]), steal=steal)
                session.execute(
                    "UPDATE StoreLock SET id = %s, tick = %s",
                    (self.lock_id, 1 if steal else int(rows[0][1]) + 1),
                )
            session.commit()
        except BaseException:
            session.rollback()
            raise
        self._check(self._rows(session))
