"""A store that a tool owns for a while, a directory or a database, and opens as a server does.

Who serves it is not disturbed, and the tool is refused. For ``store copy`` and ``store purge``, and
for ``store rekey`` of a database.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import LockBusyError, StoreError
from ftstan.cli.store_owner import owning
from ftstan.ft.epoch_records import Cause
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores.copying import UNLIMITED
from ftstan.stores.file import deletion
from ftstan.stores.file.env import FileEnv, FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.state.statefile import replace_file
from ftstan.stores.file.store import FileStore
from ftstan.stores.sql.store import SqlStore
from ftstan.stores.sql.tools.watch import Watch
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.ft.moves import Moves
    from ftstan.ft.ownership import StoreOwner
    from ftstan.stores.interface import Recovered, Store
    from ftstan.stores.sql.fence import Fence
    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source

#: What stands in ``server.dat`` until a copy is whole; no server knows a file of this version.
GUARD: Final = b"this datastore is not complete: run the copy again, or remove the directory\n"
#: The same in ``ServerInfo``: no server takes this version.
GUARD_ID: Final = "unfinished copy"
_GUARD_VERSION: Final = 0

#: Longer than an original's lock is looked at before it is taken for that of a dead server.
_LOCK_S: Final = 8.0
_LOOK_S: Final = 0.2
_TICK_S: Final = 1.0
SERVER: Final = "server.dat"
#: What an owner leaves in a root, and what is the file system's.
_OWNED: Final = re.compile(
    r"\.rootdir\.lck\Z|ft\.(epoch|watch|claim\.[0-9]+)\Z|admin\.key\Z|\.nfs[0-9a-f]{8}|"
    r"lost\+found\Z"
)
#: What an empty database has no rows in. The guard, in the last of them, goes last.
CONTENTS: Final = (
    "Messages",
    "SubsPending",
    "Subscriptions",
    "Channels",
    "Clients",
    # A server would take new publishes for repeated ones, and not store them.
    "ftstan_remembered",
    "ServerInfo",
)


class End(Protocol):
    """A store that is owned."""

    #: Whether a channel may lack sequences in between, and nothing is lost for that.
    holds_gaps: bool

    @property
    def place(self) -> str:
        """What and where it is, for messages."""
        ...

    def open(self) -> tuple[Store, Recovered]:
        """The store, recovered; the former one is closed. Raises ``FtstanError``."""
        ...

    def clear(self) -> None:
        """Make it empty if it is an unfinished copy. Raises ``StoreError`` if it is no copy."""
        ...

    def guard(self) -> None:
        """Let no server start on it. Raises ``StoreError``."""
        ...

    def read_moves(self) -> Moves:
        """Which channels have moved to another partition, or come from one.

        Raises ``RecoveryError`` and ``StoreError``.
        """
        ...

    def write_moves(self, moves: Moves) -> None:
        """Keep that. Raises ``StoreError``, also if this kind of store cannot."""
        ...


@contextlib.contextmanager
def owned(word: str, source: Source | None, *, crc_poly: int) -> Iterator[End]:
    """Own the database ``source``, or without one the directory ``word``.

    Raises ``FtstanError``: ``StoreError`` if a server has it, or if a directory holds no store.
    """
    if source is not None:
        with owned_database(source) as database:
            yield database
        return
    if not os.path.exists(os.path.join(word, SERVER)):
        raise StoreError(
            f"{word} holds no datastore", hint="give the directory that the server has as -dir"
        )
    with owned_directory(word, crc_poly) as directory:
        yield directory


@contextlib.contextmanager
def owned_directory(path: str, crc_poly: int) -> Iterator[End]:
    """Own the directory ``path``, whatever is in it. Raises ``FtstanError``."""
    with owning(path, cause=Cause.TOOL) as (owner, _):
        yield _Directory(path, owner, crc_poly)


def require_unserved(path: str) -> None:
    """Raise ``StoreError`` unless a directory is empty, or an unfinished copy."""
    names = sorted(name for name in os.listdir(path) if not _OWNED.match(name))
    if names and _read(os.path.join(path, SERVER)) != GUARD:
        raise StoreError(
            f"{path} is not empty: it holds {names[0]!r}",
            hint="copy into a directory that is new or empty",
        )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(len(GUARD) + 1)
    except FileNotFoundError:
        return b""


# ---- a directory


@dataclass(slots=True)
class _Directory:
    """A datastore that this process owns."""

    path: str
    owner: StoreOwner
    crc_poly: int
    holds_gaps: bool = False

    @property
    def place(self) -> str:
        return f"datastore {self.path}"

    def open(self) -> tuple[Store, Recovered]:
        store = FileStore(
            LocalDisk(),
            self.owner.root,
            self.owner,
            SystemClock(),
            FileStoreOptions(crc_polynomial=self.crc_poly),
            limits=UNLIMITED,
            path=self.path,
            asking=self.owner.asking if self.owner.is_network else None,
        )
        return store, store.recover()

    def clear(self) -> None:
        # Again: the lock is held now.
        require_unserved(self.path)
        env = self._env()
        disk = env.disk
        found = [row for row in disk.listdir(env.root) if not _OWNED.match(row[0])]
        # The guard last: without it, what is left would not be known for an unfinished copy.
        for name, is_dir in sorted(found, key=lambda row: row[0] == SERVER):
            if is_dir:
                below = disk.open_dir_at(env.root, name)
                try:
                    deletion.empty_directory(env, below)
                finally:
                    disk.close(below)
            # Whoever took the store meanwhile may have finished the copy, and serve it.
            env.owner.confirm()
            if is_dir:
                disk.rmdir(env.root, name)
            else:
                disk.unlink(env.root, name)
        disk.fsync(env.root)

    def guard(self) -> None:
        env = self._env()
        env.disk.close(replace_file(env, env.root, SERVER, GUARD))

    def read_moves(self) -> Moves:
        """Which channels move to other servers, and how far that is."""
        return self.owner.read_moves()

    def write_moves(self, moves: Moves) -> None:
        self.owner.write_moves(moves)

    def _env(self) -> FileEnv:
        options = FileStoreOptions(crc_polynomial=self.crc_poly)
        crc = records.Crc(self.crc_poly)
        owner = self.owner
        return FileEnv(LocalDisk(), owner.root, SystemClock(), options, owner, crc, path=self.path)


# ---- a database


@contextlib.contextmanager
def owned_database(source: Source) -> Iterator[OwnedDatabase]:
    """Own a database for a while, as a server that starts. Raises ``FtstanError``."""
    watch = Watch(source)
    owner = SqlOwner(source, server_id=Nuid().next(), clock=SystemClock(), connecting=watch.connect)
    try:
        owner.check()
        _take(owner)
        owner.activate(cause=Cause.TOOL)
        with _ticking(owner):
            yield OwnedDatabase(owner)
    finally:
        owner.close()
        watch.close()


def _take(owner: SqlOwner) -> None:
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            owner.try_lock()
        except LockBusyError as error:
            if time.monotonic() >= deadline:
                holder = owner.read_owner()
                raise StoreError(
                    f"database {owner.path} is in use"
                    + (f" by {holder.describe()}" if holder is not None else ""),
                    hint="stop every server of it first; ls, dump, verify and du work beside a "
                    "running one",
                ) from error
            time.sleep(_LOOK_S)
        else:
            return


@contextlib.contextmanager
def _ticking(owner: SqlOwner) -> Iterator[None]:
    """Raise the row of the lock once a second: an original takes it from who does not."""
    done = threading.Event()

    def tick() -> None:
        while not done.wait(_TICK_S):
            # Whether the database is still ours is for the fence to say.
            with contextlib.suppress(StoreError):
                owner.lock.tick()

    thread = threading.Thread(target=tick, name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class OwnedDatabase:
    """A database that this process owns."""

    holds_gaps = True

    def __init__(self, owner: SqlOwner) -> None:
        self._owner = owner

    @property
    def place(self) -> str:
        """What and where it is."""
        return f"database {self._owner.path}"

    @property
    def fence(self) -> Fence:
        """By which everything is written."""
        return self._owner.fence

    def open(self) -> tuple[SqlStore, Recovered]:
        """Its store, and what that has recovered. Raises ``FtstanError``."""
        store = SqlStore(self._owner.fence, SystemClock())
        store.set_limits(UNLIMITED)
        return store, store.recover()

    def clear(self) -> None:
        """Remove an unfinished copy. Raises ``StoreError`` if it holds anything else."""

        def held(session: Session) -> list[str]:
            return [table for table in CONTENTS if session.query(f"SELECT 1 FROM {table} LIMIT 1")]

        def is_guarded(session: Session) -> bool:
            return bool(
                session.query(
                    "SELECT 1 FROM ServerInfo WHERE id = %s AND version = %s",
                    (GUARD_ID, _GUARD_VERSION),
                )
            )

        tables = self._owner.fence.read(held)
        if not tables:
            return
        if not self._owner.fence.read(is_guarded):
            raise StoreError(
                f"{self.place} is not empty: there are rows in {tables[0]}",
                hint="copy into a database that has the tables, and nothing in them",
            )
        self.empty()

    def empty(self) -> None:
        """Remove everything. Raises ``StoreError``."""
        for table in CONTENTS:
            self._owner.fence.transaction(partial(_empty, table=table))

    def guard(self) -> None:
        """Let no server start on it. Raises ``StoreError``."""

        def write(session: Session) -> None:
            session.execute("DELETE FROM ServerInfo")
            session.execute(
                "INSERT INTO ServerInfo (uniquerow, id, proto, version) VALUES (1, %s, %s, %s)",
                (GUARD_ID, b"", _GUARD_VERSION),
            )

        self._owner.fence.transaction(write)

    def read_moves(self) -> Moves:
        """Which channels move to other servers, and how far that is."""
        return self._owner.read_moves()

    def write_moves(self, moves: Moves) -> None:
        """Replace that, durable on return."""
        self._owner.write_moves(moves)


def _empty(session: Session, table: str) -> None:
    session.limit_statements(0)
    session.execute(f"DELETE FROM {table}")
