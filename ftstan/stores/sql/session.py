"""One session with a database: what the store asks of either kind, and what its errors mean.

A session belongs to one thread. Result sets are read whole before the next statement, so that one
connection is enough. Statements are autocommitted unless ``begin`` was called. Nothing here knows a
channel or an epoch.

Parameters are written ``%s`` for both kinds. Names are unquoted, with the capitals of the
original's tables: PostgreSQL folds them, MySQL wants them (``docs/compat/sqlstore.md``).
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.wire.block import MsgBlock

Row = tuple[Any, ...]

#: The fewest and the most bytes of one statement that inserts many rows, where the server has a
#: bound of its own.
LEAST_PACKET = 1 << 16
MOST_PACKET = 8 << 20

#: What a statement may wait for a row that another session has locked, in milliseconds.
LOCK_WAIT_MS = 5_000
#: What a statement of ours may take on the server, in milliseconds.
STATEMENT_MS = 60_000
#: What a transaction of ours may be idle, in milliseconds: a session that a frozen process has left
#: must not hold a row for ever, and an original waits for it.
IDLE_MS = 10_000

#: For whoever waits for a database that says nothing.
SILENT_HINT = "check the database server and its storage, then run this again"


class LostError(StoreError):
    """There is no connection (any more): what was not committed is gone, or there never was one."""


class TransientError(StoreError):
    """A deadlock, a serialisation failure or a wait that took too long: the same may work now."""


class ReadOnlyError(LostError):
    """The server takes no writes, as a replica does: another connection may reach one that does."""


class RightsError(StoreError):
    """The user may not do this."""


class AbsentTableError(StoreError):
    """A table or a column is not there."""


class TooLargeError(StoreError):
    """A value does not fit into its column, or a row into one packet."""


class Session(ABC):
    """A connection with the settings that the store needs, whatever the source says."""

    driver: str
    row = "row"
    """The name of that column as it is written in statements."""
    exactly = "%s"
    """A parameter that is compared byte by byte, whatever the collation of its column."""
    most_data: int
    """Bytes that ``Messages.data`` takes in one row."""
    aborted = ""
    """Why ``abort`` was called; empty if it was not."""
    _kept: socket.socket | None = None

    # ---- statements

    @abstractmethod
    def execute(self, sql: str, parameters: Sequence[object] = ()) -> int:
        """Run a statement; the number of rows that it found. Raises ``StoreError``."""

    @abstractmethod
    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Run a query and read all of its rows. Raises ``StoreError``."""

    @abstractmethod
    def execute_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement for each of the rows. Raises ``StoreError``."""

    @abstractmethod
    def insert_messages(self, blocks: Sequence[tuple[int, MsgBlock]]) -> None:
        """Insert the messages of these channel numbers. Raises ``StoreError``."""

    def inserts_at_once(self, block: MsgBlock) -> bool:
        """Whether ``insert_at_once`` takes these messages."""
        del block
        return False

    def insert_at_once(self, fence: Sequence[object], channel: int, block: MsgBlock) -> int:
        """Pass the fence and insert messages in one statement that commits itself.

        ``fence``: the parameters of ``tables.FENCE``. Returns how many were inserted: none if the
        fence let nobody pass. Raises ``StoreError``; after ``LostError`` nobody knows.
        """
        raise NotImplementedError

    # ---- transactions

    def begin(self) -> None:
        """Begin a transaction."""
        self.execute("BEGIN")

    @abstractmethod
    def commit(self) -> None:
        """Commit. Raises ``StoreError``: whether it is done is not known."""

    @abstractmethod
    def rollback(self) -> None:
        """Give up the transaction, and the connection if it does not answer; never fails."""

    @abstractmethod
    def wait_at_most(self, milliseconds: int) -> None:
        """Let statements wait so long for locked rows from now on."""

    @abstractmethod
    def limit_statements(self, milliseconds: int) -> None:
        """Let a statement take so long; 0: as long as it takes."""

    # ---- locks of a session

    @abstractmethod
    def try_name(self, name: str) -> bool:
        """Take a name that the server gives to one session of this database at a time.

        It is free again when the session has ended and its transaction is over. Not to be taken
        twice.
        """

    @abstractmethod
    def release_name(self, name: str) -> None:
        """Give it back."""

    @abstractmethod
    def end_holder(self, name: str) -> bool:
        """End the session that has the name; returns whether there was one.

        Never this one. Raises ``RightsError``.
        """

    # ---- the server

    @abstractmethod
    def number(self) -> int:
        """The server's own number of the session that answers. Raises ``StoreError``."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``RecoveryError`` if this database cannot keep what is acknowledged."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether the connection is known to be gone."""

    @abstractmethod
    def close(self) -> None:
        """Close it; never fails."""

    def watched(self) -> None:
        """Say, once, that ``abort`` may be called. By the session's own thread."""
        # A descriptor of its own: the libraries give theirs to one thread, and close it.
        self._kept = socket.socket(fileno=os.dup(self._descriptor()))

    def abort(self, why: str) -> None:
        """End the connection, from any thread: a statement that waits for its answer fails at once.

        ``why`` is what the ``LostError`` says.
        """
        self.aborted = why
        if self._kept is not None:
            with contextlib.suppress(OSError):
                self._kept.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        """Of a session that is closed."""
        if self._kept is not None:
            self._kept.close()

    @abstractmethod
    def _descriptor(self) -> int:
        """Of the socket, of a session that is open."""


def scrubbed(text: str, secret: str) -> str:
    """One line without the password."""
    line = " ".join(text.split())
    return line.replace(secret, "***") if secret else line


def shortened(sql: str) -> str:
    """A statement as it is shown in an error."""
    line = " ".join(sql.split())
    return line if len(line) <= 200 else line[:197] + "..."


def name_text(name: bytes, what: str) -> str:
    """A name as character data. Raises ``StoreError`` for one that a database cannot keep."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        shown = name.decode("utf-8", "backslashreplace")
        raise StoreError(f"{what} {shown!r} cannot be stored: a database keeps valid UTF-8 only")
    return text


def chunks_of(
    blocks: Sequence[tuple[int, MsgBlock]], most: int
) -> list[list[tuple[int, MsgBlock]]]:
    """The blocks in groups of about so many bytes; one that is larger is a group of its own."""
    groups: list[list[tuple[int, MsgBlock]]] = []
    size = most
    for channel, block in blocks:
        if size + block.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append((channel, block))
        size += block.nbytes
    return groups
