"""The right to write to a database, proven by the database in every transaction that writes.

An owner numbers its transactions. Each begins with one statement that moves ``done`` from N - 1 to
N where ``epoch`` is the owner's: that locks the row until the end of the transaction, so a
successor's activation comes either before it, and then it finds no row, or after its commit, and
then the successor reads what was committed.

A connection that is lost while a commit is under way leaves the outcome unknown. It is found out
before anything else is done: the old session is ended (it has taken a name on the server, which the
new session can only take when the old one and its transaction are over), and ``done`` says whether
N has landed. So a transaction that landed is never done again, and one that failed is.

Nothing here waits longer than ``_REACH_S`` for a database that does not answer with a refusal.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, TypeVar

from ftstan.base.errors import FencedError, ReleasedError, StoreError
from ftstan.stores.sql import tables
from ftstan.stores.sql.session import (
    LOCK_WAIT_MS,
    LostError,
    ReadOnlyError,
    RightsError,
    TransientError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.tables import EpochRow, HistoryRow
    from ftstan.wire.block import MsgBlock

T = TypeVar("T")

#: So long a database may be away before the owner gives up (seconds).
_REACH_S = 8.0
_RETRY_S = 0.1
#: So often a transaction is tried that the database has undone.
_TRIES = 6
#: What an activation waits for the row at a time, before it ends whoever has it (milliseconds).
_SHORT_WAIT_MS = 300
#: So long an activation tries to end a former owner's session (seconds).
_END_S = 10.0

STAND_BY = "only one server can own a database: this one must stand by or stop"


def new_token() -> str:
    """A name for the session of one activation."""
    return secrets.token_hex(16)


class Fence:
    """One process's right to write. Belongs to the data plane's thread.

    ``connect`` makes a session; raises ``StoreError``.
    """

    def __init__(
        self, connect: Callable[[], Session], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._connect = connect
        self._sleep = sleep
        self._session: Session | None = None
        self._token = ""
        self._lock_id = ""
        self.epoch = 0
        """That of the present activation, 0 if there is none."""
        self._done = 0
        self._seen = (0, 0)
        """The newest epoch and transaction that this process knows to have been committed."""
        self._is_proven = False
        """Whether the batch that ``confirm`` is asked about has proven that the database is ours.
        """
        self._lost: FencedError | None = None
        self.answered: Callable[[], None] = lambda: None
        """Called when the database has answered."""

    # ---- taking

    def session(self) -> Session:
        """The session for data, connected if need be; ours or not. Raises ``LostError``."""
        if self._session is None or self._session.is_lost:
            self._session = None
            session = self._connect()
            if self.epoch:
                try:
                    self._take_name(session)
                    self._check_row(session)
                except BaseException:
                    session.close()
                    raise
            self._session = session
        return self._session

    def look(self) -> EpochRow | None:
        """The row as it is, without waiting for anybody. Raises ``StoreError``."""
        row = self.read(tables.read_epoch)
        self.answered()
        if row is not None:
            self._seen = max(self._seen, (row.epoch, row.done))
        return row

    def activate(self, lock_id: str, history: Callable[[EpochRow, str], HistoryRow]) -> HistoryRow:
        """Take the next epoch; ``lock_id`` is in ``StoreLock``.

        Whoever owned the database before can commit nothing from the return on. ``history`` makes
        what is noted, of the row that was found and the token. Raises ``FencedError`` if somebody
        else was faster, and ``StoreError``; also if the database shows less than this process has
        seen of it.
        """
        self.forget()
        session = self.session()
        session.check()
        tables.create(session)
        row = tables.read_epoch(session)
        self._require_whole(row)
        if row is None:
            tables.make_epoch(session, secrets.token_hex(16))
            row = tables.read_epoch(session)
            assert row is not None
        token = new_token()
        if not session.try_name(token):
            raise StoreError("sql: the name of this session is taken")
        made = history(row, token)
        deadline = time.monotonic() + _END_S
        session.wait_at_most(_SHORT_WAIT_MS)
        while True:
            # Without waiting for it: it may be frozen with the row locked.
            if row.token:
                session.end_holder(row.token)
            session.begin()
            try:
                found = _raise_epoch(session, made, token, lock_id, row.epoch)
                session.commit()
            except TransientError as error:
                session.rollback()
                if time.monotonic() >= deadline:
                    raise StoreError(
                        "sql: another session keeps the row of ftstan_epoch locked, and cannot be "
                        f"ended: {error.text}",
                        hint="look who it is, and end it",
                    ) from error
                self._sleep(_RETRY_S)
                continue
            except BaseException:
                session.rollback()
                raise
            break
        session.wait_at_most(LOCK_WAIT_MS)
        self.epoch = made.epoch
        self._token = token
        self._lock_id = lock_id
        self._done = found.done
        self.answered()
        return made

    def note_ending(self, ending: int, at_ns: int) -> None:
        """Note how this owner ends, for people. Raises ``StoreError`` and ``FencedError``."""
        self._require()
        values = (self.epoch, ending, at_ns, self.epoch, self._token)
        self.session().execute(tables.END, values)

    def _require_whole(self, row: EpochRow | None) -> None:
        """Raise ``StoreError`` if the row is older than one that was seen."""
        epoch, done = (row.epoch, row.done) if row is not None else (0, 0)
        if (epoch, done) < self._seen:
            raise StoreError(
                f"sql: the database lacks transactions that were committed (it shows epoch {epoch} "
                f"with {done} transactions, and this server has seen epoch {self._seen[0]} with "
                f"{self._seen[1]}): was it failed over to a replica that was behind, or restored?",
                hint="bring back the database that has them, or restart this server to serve what "
                "is left",
            )

    def forget(self) -> None:
        """The database is not ours any more, or is given back; the session is closed."""
        if self.epoch:
            self._seen = max(self._seen, (self.epoch, self._done))
        self.epoch = 0
        self._token = ""
        self._lost = None
        self._is_proven = False
        self.drop()

    def drop(self) -> None:
        """Close the session."""
        session = self._session
        self._session = None
        if session is not None:
            session.close()

    # ---- owning

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the database says that it is ours."""
        self._require()
        if self._is_proven:
            self._is_proven = False
            return
        self._reached(self._check)

    def begin_batch(self) -> None:
        """What was committed before proves nothing for what comes: there may have been a pause."""
        self._is_proven = False

    def transaction(self, work: Callable[[Session], T], *, proves: bool = False) -> T:
        """Do ``work`` in one transaction that the fence begins, and commit it.

        ``proves``: the next ``confirm`` is about this batch, and need not ask the database again.
        ``work`` may be called again, and must change nothing but rows. Raises ``FencedError``;
        ``StoreError`` if the statements are refused: then nothing is done; ``LostError`` if the
        database cannot be reached: then the end may be unknown, and the owner must not go on.
        """
        return self._transaction(work, proves=proves)

    def go_on(self, history: HistoryRow) -> None:
        """Take the epoch behind the present one without giving up the database.

        Nobody can have owned it in between: the transaction that raises the number passes the fence
        under the one before. Raises as ``transaction``.
        """

        def raise_number(session: Session) -> None:
            if session.execute(tables.GO_ON, (history.epoch, self.epoch)) != 1:
                raise self._fenced(f"sql: epoch {self.epoch} ended within its own transaction")
            tables.add_history(session, history)

        self._transaction(raise_number, epoch=history.epoch)
        self.epoch = history.epoch

    def _transaction(
        self, work: Callable[[Session], T], *, proves: bool = False, epoch: int = 0
    ) -> T:
        """``epoch``: what the row shows behind the commit, if that is another one."""
        self._require()
        number = self._done + 1
        tries = 0
        deadline = time.monotonic() + _REACH_S
        while True:
            try:
                session = self.session()
                session.begin()
                try:
                    self._pass(session, number)
                    result = work(session)
                    self._hold(session)
                except BaseException:
                    session.rollback()
                    raise
            except LostError as error:
                # Before the commit: nothing of it is done.
                self.drop()
                self._wait(deadline, error)
                continue
            except TransientError as error:
                tries += 1
                if tries >= _TRIES:
                    raise StoreError(error.text, hint=error.hint) from error
                self._sleep(_RETRY_S * tries / 4)
                continue
            try:
                session.commit()
            except StoreError as error:
                if not self._find_out(number, epoch or self.epoch, error):
                    tries += 1
                    if tries >= _TRIES:
                        raise StoreError(error.text, hint=error.hint) from error
                    continue
            self._done = number
            self._is_proven |= proves
            self.answered()
            return result

    def insert(self, channel: int, block: MsgBlock) -> bool:
        """Store messages of one channel by one statement, with the fence in it.

        Returns whether the database has such a statement for them; if not, nothing is done. Raises
        as ``transaction``, and proves what that does.
        """
        self._require()
        number = self._done + 1
        fence = (number, self.epoch, number - 1, self._lock_id)
        tries = 0
        deadline = time.monotonic() + _REACH_S
        while True:
            try:
                session = self.session()
            except LostError as error:
                self._wait(deadline, error)
                continue
            if not session.inserts_at_once(block):
                return False
            try:
                count = session.insert_at_once(fence, channel, block)
            except ReadOnlyError as error:
                self.drop()
                self._wait(deadline, error)
                continue
            except LostError as error:
                if self._find_out(number, self.epoch, error):
                    break
                self._wait(deadline, error)
                continue
            except TransientError as error:
                tries += 1
                if tries >= _TRIES:
                    raise StoreError(error.text, hint=error.hint) from error
                self._sleep(_RETRY_S * tries / 4)
                continue
            if count != len(block):
                self._check_row(session)
                raise self._unlocked()
            break
        self._done = number
        self._is_proven = True
        self.answered()
        return True

    def _find_out(self, number: int, epoch: int, error: StoreError) -> bool:
        """As ``_has_landed``; if that cannot be found out, this owner does not go on."""
        try:
            return self._has_landed(number, epoch, error)
        except LostError as unknown:
            # It is told to whoever asked, who may be no part of the road: nothing of this owner
            # goes on, whatever the database says later.
            self._lost = FencedError(unknown.text, hint=unknown.hint)
            raise

    def read(self, work: Callable[[Session], T]) -> T:
        """Read something, on a new connection if the old one is lost. Raises ``StoreError``."""
        try:
            return work(self.session())
        except LostError:
            self.drop()
            if not self.epoch:
                # Whoever stands by asks again soon, and has other things to do.
                raise
            return self._reached(work)

    # ----

    def _require(self) -> None:
        if self._lost is not None:
            raise self._lost
        if not self.epoch:
            raise ReleasedError("the database is not ours")

    def _reached(self, work: Callable[[Session], T]) -> T:
        deadline = time.monotonic() + _REACH_S
        while True:
            try:
                result = work(self.session())
            except LostError as error:
                self.drop()
                self._wait(deadline, error)
            else:
                self.answered()
                return result

    def _wait(self, deadline: float, error: LostError) -> None:
        if time.monotonic() >= deadline:
            raise error
        self._sleep(_RETRY_S)

    def _fenced(self, text: str) -> FencedError:
        self._lost = FencedError(text, hint=STAND_BY)
        return self._lost

    def _pass(self, session: Session, number: int) -> None:
        """The fence, inside a transaction."""
        fence = tables.FENCE[session.driver]
        if session.execute(fence, (number, self.epoch, number - 1, self._lock_id)) != 1:
            self._check_row(session)
            raise self._unlocked()

    def _hold(self, session: Session) -> None:
        """Let no original take the row of ``StoreLock`` before the commit."""
        hold = tables.HOLD[session.driver]
        if hold and not session.query(hold, (self._lock_id,)):
            raise self._unlocked()

    def _unlocked(self) -> FencedError:
        return self._fenced(
            "sql: the row of StoreLock is not this server's any more: another server has taken the "
            "database"
        )

    def _check(self, session: Session) -> None:
        """Raise ``FencedError`` unless both rows are ours."""
        self._check_row(session)
        # An original knows of no epoch.
        if not session.query(tables.LOCKED, (self._lock_id,)):
            raise self._unlocked()

    def _check_row(self, session: Session) -> None:
        self._judge(tables.read_epoch(session))

    def _judge(self, row: EpochRow | None) -> None:
        if row is None:
            raise self._fenced("sql: the row of ftstan_epoch is gone: the database is not ours")
        if row.epoch > self.epoch:
            raise self._fenced(
                f"sql: the database is not ours any more: epoch {row.epoch} was taken behind "
                f"epoch {self.epoch}"
            )
        if (row.epoch, row.token) != (self.epoch, self._token) or row.done < self._done:
            raise self._fenced(
                "sql: the database lacks transactions that were acknowledged (it shows epoch "
                f"{row.epoch} with {row.done} transactions, and epoch {self.epoch} had "
                f"{self._done}): was it failed over to a replica that was behind, or restored?"
            )
        if row.done > self._done:
            raise self._fenced(f"sql: somebody else writes under epoch {self.epoch} of this server")

    def _has_landed(self, number: int, epoch: int, error: StoreError) -> bool:
        """Whether a transaction whose commit did not answer is done. Raises as ``transaction``."""
        session = self._session
        if session is not None:
            session.rollback()
        deadline = time.monotonic() + _REACH_S
        while True:
            try:
                if self._session is None or self._session.is_lost:
                    self._session = self._connect()
                    self._take_name(self._session)
                row = tables.read_epoch(self._session)
            except StoreError as lost:
                # Any refusal leaves it open: nobody may be told that it has failed.
                self.drop()
                self._wait(
                    deadline,
                    LostError(
                        "sql: the connection was lost during a commit, and whether it is done "
                        f"cannot be found out: {lost.text}",
                        hint=lost.hint or error.hint,
                    ),
                )
                continue
            if row is not None and (row.epoch, row.token, row.done) == (
                epoch,
                self._token,
                number,
            ):
                return True
            self._judge(row)
            return False

    def _take_name(self, session: Session) -> None:
        """Be the one session of this owner; a former one, and its transaction, are over then."""
        deadline = time.monotonic() + _END_S
        while not session.try_name(self._token):
            try:
                session.end_holder(self._token)
            except RightsError as error:
                raise StoreError(
                    f"sql: the former session of this server cannot be ended: {error.text}",
                    hint="end it, or grant the right to end sessions of the same user",
                ) from error
            if time.monotonic() >= deadline:
                raise LostError("sql: the former session of this server does not end")
            self._sleep(_RETRY_S / 4)


def _raise_epoch(
    session: Session, made: HistoryRow, token: str, lock_id: str, before: int
) -> EpochRow:
    """In a transaction: take the epoch; what a former owner has committed until now."""
    if session.execute(tables.RAISE, (made.epoch, token, lock_id, before)) != 1:
        raise FencedError(f"epoch {made.epoch} was taken by another server", hint=STAND_BY)
    # Under the row's lock.
    found = tables.read_epoch(session)
    assert found is not None
    tables.add_history(session, made)
    return found
