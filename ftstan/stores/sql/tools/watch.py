"""A tool's sessions with a database that may stop to answer: no statement is waited for for ever.

A statement may take as long as it takes, on a large table for minutes. A server that is frozen (its
host, its process, its storage) says nothing either, and acknowledges what the network brings. So
while a tool works new connections are tried: as long as one is answered, the database lives. When
none is for a while, the tool's sessions are ended, and whoever waits on one gets one line.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import StoreError
from ftstan.stores.sql.connecting import connect

if TYPE_CHECKING:
    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source

#: Between two tries (seconds).
EVERY_S = 5.0
#: So long without an answer is too long (seconds): several tries.
SILENT_S = 25.0
#: A try that fails before was answered (seconds): nobody may log in any more, say.
_QUICK_S: Final = 2.0


class Watch:
    """The sessions of one tool with one database. ``close`` it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        # The source may say that connecting takes longer.
        self._silent_s = SILENT_S + source.connect_timeout
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._mutex = threading.Lock()
        self._done = threading.Event()
        self._heard_at = 0.0
        self._threads: list[threading.Thread] = []

    def connect(self) -> Session:
        """A session that ends when the database answers nobody. Raises as ``connect`` does."""
        session = connect(self._source)
        session.watched()
        with self._mutex:
            self._sessions.add(session)
            if not self._threads:
                self._heard_at = time.monotonic()
                self._start()
        return session

    def close(self) -> None:
        """Watch no more. The sessions are their users'."""
        self._done.set()

    def _start(self) -> None:
        # Nobody waits for their end: one of them may wait for the database.
        for work in (self._ask, self._look):
            thread = threading.Thread(target=work, name="database", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _ask(self) -> None:
        while not self._done.wait(EVERY_S):
            began = time.monotonic()
            try:
                connect(self._source).close()
            except StoreError:
                if time.monotonic() - began >= _QUICK_S:
                    continue
            self._heard_at = time.monotonic()

    def _look(self) -> None:
        while not self._done.wait(EVERY_S / 5):
            silent = time.monotonic() - self._heard_at
            if silent < self._silent_s:
                continue
            with self._mutex:
                for session in self._sessions:
                    session.abort(
                        f"database {self._source.shown()} answers nobody: no new connection to it "
                        f"for {silent:.0f} s"
                    )
