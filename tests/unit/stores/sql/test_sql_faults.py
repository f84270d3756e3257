"""Databases in need, on real servers: they undo, refuse, wait, and lose connections at a commit.

Nothing is stored twice, nothing that was confirmed is lost, and what cannot be stored has an error.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError, LockBusyError, RecoveryError
from ftstan.config.options import ChannelLimits, ServerOptions, SqlOptions
from ftstan.ft.sqlaccess import SqlAccess, SqlOwner
from ftstan.stores.contract.place import INFO, START, messages, opened, put
from ftstan.stores.interface import StoreContext
from ftstan.stores.sql import fence
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.session import LostError
from ftstan.stores.sql.source import parse
from tests.contract.sqlplaces import SqlPlace, empty
from tests.processes import HOST
from tests.sqlservers import DRIVERS, execute, own_servers
from tests.unit.stores.sql import trouble
from tests.unit.stores.sql.hooked import Hooked, Steps
from tests.unit.stores.sql.test_sql_fence import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source
    from tests.sqlservers import SqlServers

DAY = 86_400 * 1_000_000_000


@pytest.fixture
def source(sql_source: Source) -> Source:
    empty(sql_source)
    return sql_source


def of(driver: str) -> pytest.MarkDecorator:
    """On a database of this kind alone."""
    return pytest.mark.parametrize("sql_text", [driver], indirect=True)


def _rows(source: Source) -> list[int]:
    return [row[0] for row in execute(source, "SELECT seq FROM Messages ORDER BY seq")]


# ---- undone by the database


def test_a_deadlock_that_the_database_ends_costs_nothing(source: Source) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    assert owner.put(b"a") == {}
    other = connect(source)
    other.begin()
    # MySQL ends whoever has changed less.
    for i in range(50):
        other.execute("INSERT INTO ftstan_paused (name, line) VALUES (%s, '')", (f"n{i}",))
    other.execute("UPDATE Channels SET maxseq = maxseq WHERE id = 1")

    def want_the_owners_row() -> None:
        other.execute("UPDATE ftstan_epoch SET done = done WHERE uniquerow = 1")
        other.rollback()

    waiter = threading.Thread(target=want_the_owners_row)

    def go_into_it(_session: Hooked) -> None:
        waiter.start()
        # PostgreSQL ends whoever looks while there is a circle: each looks once, after a second.
        time.sleep(1.5)

    steps.at("after fence", go_into_it)
    steps.calls.clear()
    # This changes the row of the channel, which the other one has.
    owner.channel.set_limits(ChannelLimits(max_msgs=7, max_bytes=0))
    assert owner.put(b"b") == {}
    waiter.join()
    owner.store.confirm()
    assert steps.calls.count("after fence") >= 2, "there was no deadlock"
    assert steps.calls.count("after commit") == 1
    assert _rows(source) == [1, 2]
    other.close()
    owner.close()


@pytest.mark.parametrize("what", ["serialisation failure", "deadlock"])
@pytest.mark.parametrize(
    ("sql_text", "at_commit"),
    [("postgres", False), ("postgres", True), ("mysql", False)],
    indirect=["sql_text"],
)
def test_what_the_database_undoes_is_done_again_once(
    source: Source, what: str, *, at_commit: bool
) -> None:
    owner = Owner(source)
    assert owner.put(b"a") == {}
    trouble.make(source, what, 2, at_commit=at_commit)
    assert owner.put(b"b") == {}
    owner.store.confirm()
    assert owner.put(b"c") == {}
    assert [s for s, _ in messages(owner.channel)] == [1, 2, 3] == _rows(source)
    owner.close()


@pytest.mark.parametrize("what", ["serialisation failure", "disk full"])
def test_what_the_database_never_takes_is_an_error_and_costs_no_number(
    source: Source, what: str
) -> None:
    owner = Owner(source)
    assert owner.put(b"a") == {}
    trouble.make(source, what, 1_000_000)
    for _ in range(2):
        failed = owner.put(b"b")
        assert list(failed) == [b"foo"]
        owner.store.confirm()
    assert (failed[b"foo"].hint == "make room for the database") == (what == "disk full")
    trouble.end(source)
    assert owner.put(b"c") == {}
    owner.store.confirm()
    assert messages(owner.channel) == [(1, b"a"), (2, b"c")]
    assert _rows(source) == [1, 2]
    owner.close()


def test_a_statement_that_the_server_ends_for_its_time_is_done_again(source: Source) -> None:
    owner = Owner(source)
    assert owner.put(b"a") == {}
    session = owner.owner.fence.session()
    if source.driver == "postgres":
        session.limit_statements(300)
    else:
        # As an administrator may have set it for all.
        session.execute("SET SESSION max_statement_time = 0.3")
    trouble.make(source, "slow", 1)
    began = time.monotonic()
    assert owner.put(b"b") == {}
    assert time.monotonic() - began < 3, "it was not ended"
    owner.store.confirm()
    assert messages(owner.channel) == [(1, b"a"), (2, b"b")]
    assert _rows(source) == [1, 2]
    owner.close()


# ---- no connections


class Few:
    """A database that takes ``MOST`` connections. ``source``: of the user whom that meets."""

    MOST = 3

    def __init__(self, source: Source, servers: SqlServers) -> None:
        self.source = source
        if source.driver == "postgres":
            execute(source, f"ALTER DATABASE {source.database} CONNECTION LIMIT {self.MOST}")
            return
        # Rights of the usual one are above such limits, and it may give none.
        self._user = f"few_{source.database[-8:]}"
        text = servers.text("mysql", source.database)
        self.admin = parse("mysql", text.replace("nss:nss@", "root@"), {})
        execute(
            self.admin,
            f"CREATE USER {self._user}@localhost IDENTIFIED BY 'few' "
            f"WITH MAX_USER_CONNECTIONS {self.MOST}",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {source.database}.* TO "
            f"{self._user}@localhost",
        )
        self.source = parse("mysql", text.replace("nss:nss@", f"{self._user}:few@"), {})

    def taken(self) -> Session:
        """One of them. Whoever has just closed another one may be a moment ahead of the server."""
        for _ in range(100):
            with suppress(LostError):
                return connect(self.source)
            time.sleep(0.05)
        raise AssertionError("no connection became free")

    def drop(self) -> None:
        if self.source.driver == "mysql":
            execute(self.admin, f"DROP USER {self._user}@localhost")


@pytest.fixture
def few(source: Source, sql_servers: SqlServers) -> Iterator[Few]:
    made = Few(source, sql_servers)
    yield made
    made.drop()


@pytest.fixture(params=DRIVERS)
def few_alone(request: pytest.FixtureRequest) -> Iterator[Few]:
    """The same on a server that no other test uses: it may be made to hold up everybody."""
    with own_servers(request.param) as servers:
        yield Few(parse(request.param, servers.create(request.param), {}), servers)


NO_MORE = r"too many connections|max_user_connections"


def test_an_owner_waits_for_a_connection_and_a_server_that_starts_is_told(
    few: Few, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(few.source)
    assert owner.put(b"a") == {}
    owner.owner.fence.drop()
    first, second = few.taken(), few.taken()
    timer = threading.Timer(1.0, first.close)
    timer.start()
    began = time.monotonic()
    assert owner.put(b"b") == {}
    assert time.monotonic() - began > 0.5, "there was one all the time"
    timer.join()
    owner.store.confirm()
    starting = SqlOwner(few.source, server_id="new", clock=SystemClock())
    with pytest.raises(LostError, match=NO_MORE) as caught:
        starting.check()
    assert "\n" not in caught.value.text
    starting.close()
    # And one that gets none for too long does not go on.
    monkeypatch.setattr(fence, "_REACH_S", 0.5)
    owner.owner.fence.drop()
    third = few.taken()
    with pytest.raises(LostError, match=NO_MORE):
        owner.put(b"c")
    for one in (second, third):
        one.close()
    owner.close()
    few.taken().close()
    assert _rows(source) == [1, 2]


# ---- a server that takes no writes


def _make_read_only(session: Hooked) -> None:
    session.execute("SET TRANSACTION READ ONLY")


def test_an_owner_whose_server_takes_no_writes_waits_for_one_that_does(
    few_alone: Few, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = few_alone
    steps = Steps()
    owner = Owner(few.source, steps=steps)
    assert owner.put(b"a") == {}
    if few.source.driver == "postgres":
        # What a replica says, word by word; the next connection reaches one that is none.
        steps.at("after begin", _make_read_only)
        steps.calls.clear()
        assert owner.put(b"b") == {}
        owner.store.confirm()
        assert steps.calls.count("after begin") == 2
    else:
        execute(few.admin, "SET GLOBAL read_only = 1")
        try:
            timer = threading.Timer(1.0, execute, (few.admin, "SET GLOBAL read_only = 0"))
            timer.start()
            assert owner.put(b"b") == {}
            timer.join()
            owner.store.confirm()
            execute(few.admin, "SET GLOBAL read_only = 1")
            monkeypatch.setattr(fence, "_REACH_S", 0.5)
            with pytest.raises(LostError, match="read-only") as caught:
                owner.put(b"c")
            assert caught.value.hint == "the server is a replica, or was made read-only"
        finally:
            execute(few.admin, "SET GLOBAL read_only = 0")
    assert _rows(few.source) == [1, 2]
    owner.close()


# ---- a network that is cut around a commit


class Cut:
    """A way to a database that ends the connection that sends the next commit.

    ``commit``: what that has in it.
    """

    def __init__(self, port: int, commit: bytes) -> None:
        self._to = port
        self._commit = commit
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self.armed = ""
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection((HOST, self._to))
                self._sockets += [client, server]
                swallow = threading.Event()
                for work in (self._ask, self._answer):
                    threading.Thread(
                        target=partial(work, client, server, swallow), daemon=True
                    ).start()

    def _ask(self, client: socket.socket, server: socket.socket, swallow: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.armed and self._commit in data:
                    armed, self.armed = self.armed, ""
                    self.cuts += 1
                    if armed == "before the database has it":
                        break
                    swallow.set()
                server.sendall(data)
            self._end(client, server)

    def _answer(
        self, client: socket.socket, server: socket.socket, swallow: threading.Event
    ) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if swallow.is_set():
                    # It is done, and nobody hears of it.
                    break
                client.sendall(data)
            self._end(client, server)

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("where", ["before the database has it", "before its answer comes"])
@pytest.mark.parametrize(
    ("sql_text", "size", "commit"),
    [
        # A few messages of one channel are a statement that commits itself.
        ("postgres", 1, b"INSERT INTO Messages"),
        ("postgres", 70, b"COMMIT"),
        ("mysql", 1, b"COMMIT"),
        ("mysql", 70, b"COMMIT"),
    ],
    indirect=["sql_text"],
)
def test_a_network_that_is_cut_around_a_commit_stores_a_batch_once(
    source: Source, sql_servers: SqlServers, where: str, size: int, commit: bytes
) -> None:
    cut = Cut(sql_servers.pg if source.driver == "postgres" else sql_servers.my, commit)
    owner = Owner(replace(source, socket="", host=HOST, port=cut.port))
    assert owner.put(b"a") == {}
    for _ in range(2):
        cut.armed = where
        assert owner.put(*[b"b"] * size) == {}
        owner.store.confirm()
        assert owner.put(b"behind it") == {}
    assert cut.cuts == 2
    wanted = list(range(1, 2 * size + 4))
    assert [s for s, _ in messages(owner.channel)] == wanted == _rows(source)
    owner.close()
    cut.close()


# ---- clocks


def test_a_clock_that_is_set_harms_neither_lock_nor_messages(sql_source: Source) -> None:
    place = SqlPlace(sql_source)
    store, channel = opened(place)
    put(store, channel, b"a")
    for step in (-DAY, 2 * DAY, -DAY):
        place.clock._wall_ns += step
        put(store, channel, b"x", at=place.clock.wall_ns())
        store.tick(place.clock.wall_ns())
        standby = SqlOwner(sql_source, server_id="b", clock=place.clock)
        for _ in range(6):
            # However often: what counts is how long the row stands still by a clock of its own.
            with pytest.raises(LockBusyError):
                standby.try_lock()
        standby.close()
    assert [s for s, _ in messages(channel)] == [1, 2, 3, 4]
    store.close()
    store, channel = opened(place)
    assert [s for s, _ in messages(channel)] == [1, 2, 3, 4]
    put(store, channel, b"y")
    assert channel.last == 5
    store.abandon()


def test_a_clock_that_went_back_takes_no_message_that_is_young(sql_source: Source) -> None:
    place = SqlPlace(sql_source)
    limits = ChannelLimits(max_msgs=0, max_bytes=0, max_age=DAY)
    store, channel = opened(place, limits)
    put(store, channel, b"of a clock that was ahead", at=START + 10 * DAY)
    put(store, channel, b"of the right one", at=START)
    store.tick(START + DAY // 2)
    assert [s for s, _ in messages(channel)] == [1, 2]
    # Behind a message that is young nothing goes, whatever its age.
    store.tick(START + 2 * DAY)
    assert [s for s, _ in messages(channel)] == [1, 2]
    store.tick(START + 12 * DAY)
    assert (channel.count, channel.last) == (0, 2)
    store.abandon()


# ---- words that name no database


@pytest.mark.parametrize(
    ("sql_text", "change", "told"),
    [
        ("postgres", ("user=nss", "user=nobody_here password=pw-s3cret"), "does not exist"),
        ("mysql", ("nss:nss@", "nss:pw-s3cret@"), "Access denied"),
        ("postgres", ("dbname=", "dbname=no_such_"), "does not exist"),
        ("mysql", (")/", ")/no_such_"), "no_such_"),
        ("postgres", ("sslmode", "readTimeout=zz sslmode"), "unable to parse readTimeout"),
        ("postgres", ("port=", "port=x"), "port of the database is not a number"),
        ("mysql", (")/", ")"), "invalid DSN: "),
        ("postgres", ("host=", "host=/nowhere"), "sql: "),
        ("mysql", ("unix(", "unix(/nowhere"), "sql: "),
    ],
    indirect=["sql_text"],
)
def test_a_source_that_leads_nowhere_is_one_line_without_its_password(
    sql_source: Source, sql_text: str, change: tuple[str, str], told: str
) -> None:
    text = sql_text.replace(*change)
    assert text != sql_text
    options = ServerOptions(store="SQL", sql=SqlOptions(driver=sql_source.driver, source=text))
    with pytest.raises(FtstanError) as caught:
        SqlAccess(StoreContext(options, server_id="me", clock=SystemClock()))
    assert told in caught.value.text
    said = f"{caught.value.text} {caught.value.hint}"
    assert "\n" not in said
    assert "pw-s3cret" not in said


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE ServerInfo SET version = 2", r"sql: unsupported version: 2 \(supports \[1..1\]\)"),
        (
            "UPDATE ServerInfo SET id = 'abc'",
            'sql: id "abc" in column does not match cluster ID in data "test-cluster"',
        ),
    ],
)
def test_an_identity_that_is_not_ours_is_refused_in_the_originals_words(
    sql_source: Source, change: str, told: str
) -> None:
    place = SqlPlace(sql_source)
    store, _ = opened(place)
    store.set_server_info(INFO)
    store.close()
    execute(sql_source, change)
    with pytest.raises(RecoveryError, match=f"^{told}$"):
        opened(place)
