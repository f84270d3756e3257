"""What once went wrong with databases, each as a test on both kinds."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock, SystemClock
from ftstan.base.errors import FencedError, LockBusyError, LockFaultError, RecoveryError, StoreError
from ftstan.config.limits import Limits
from ftstan.config.options import ServerOptions, SqlOptions
from ftstan.ft.epoch_records import Ending
from ftstan.ft.sqlaccess import SqlAccess, SqlOwner
from ftstan.stores.contract.place import FREE, block_of, events, messages, opened, put, state, subs
from ftstan.stores.interface import ChannelLimits, StoreContext
from ftstan.stores.sql import channel as channels
from ftstan.stores.sql import fence, mysql, postgres
from ftstan.stores.sql import lock as locks
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.session import LostError
from ftstan.stores.sql.source import parse
from tests.contract.sqlplaces import SqlPlace, empty
from tests.processes import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source


@pytest.fixture
def place(sql_source: Source) -> SqlPlace:
    return SqlPlace(sql_source)


@pytest.fixture
def session(sql_source: Source) -> Iterator[Session]:
    made = connect(sql_source)
    yield made
    made.close()


# ---- limits are those of what is durable


def test_a_batch_that_fails_takes_nothing_that_is_within_the_limits(
    place: SqlPlace, session: Session
) -> None:
    store, channel = opened(place, ChannelLimits(max_msgs=3, max_bytes=0))
    put(store, channel, b"a", b"b", b"c")
    # The third of these is there already: the database refuses the batch.
    session.execute("INSERT INTO Messages (id, seq, timestamp, size, data) VALUES (1, 6, 1, 0, '')")
    channel.append(block_of(channel, b"d", b"e", b"f"))
    failed = store.commit()
    assert list(failed) == [b"foo"]
    session.execute("DELETE FROM Messages WHERE seq = 6")
    store.tick(0)
    assert messages(channel) == [(1, b"a"), (2, b"b"), (3, b"c")]
    put(store, channel, b"d")
    assert messages(channel) == [(2, b"b"), (3, b"c"), (4, b"d")]
    store.tick(0)
    assert session.query("SELECT MIN(seq), COUNT(*) FROM Messages") == [(2, 3)]
    store.abandon()


def test_the_channel_that_the_database_refuses_is_named_and_the_others_go_on(
    place: SqlPlace, session: Session
) -> None:
    store, foo = opened(place)
    put(store, foo, b"a")
    others = [store.create_channel(b"c%d" % i, FREE) for i in range(3)]
    session.execute("INSERT INTO Messages (id, seq, timestamp, size, data) VALUES (1, 2, 1, 0, '')")
    for channel in (foo, *others):
        channel.append(block_of(channel, b"x"))
    failed = store.commit()
    assert list(failed) == [b"foo"]
    store.confirm()
    assert [messages(c) for c in others] == [[(1, b"x")]] * 3
    session.execute("DELETE FROM Messages WHERE id = 1 AND seq = 2")
    assert messages(foo) == [(1, b"a")]
    put(store, foo, b"b")
    assert messages(foo) == [(1, b"a"), (2, b"b")]
    store.abandon()


def test_a_purge_deletes_in_steps(place: SqlPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "STEP_ROWS", 10)
    store, channel = opened(place)
    assert isinstance(channel, channels.SqlChannel)
    put(store, channel, *(b"%d" % i for i in range(95)))
    seen: list[int] = []
    whole = channel.delete_step

    def step(session: Session, most: int) -> int:
        before = session.query("SELECT COUNT(*) FROM Messages")[0][0]
        end = whole(session, most)
        seen.append(before - session.query("SELECT COUNT(*) FROM Messages")[0][0])
        return end

    channel.delete_step = step  # type: ignore[method-assign]
    channel.purge(88)
    assert max(seen) <= 10
    assert sum(seen) == 88
    assert channel.first == 89
    channel.purge(95)
    store.abandon()
    store, channel = opened(place)
    assert (channel.first, channel.last, channel.count) == (96, 95, 0)
    store.abandon()


def test_a_deleted_channel_goes_in_steps_that_the_next_owner_goes_on_with(
    place: SqlPlace, session: Session
) -> None:
    store, channel = opened(place)
    channel.add_sub(state(1))
    put(store, channel, b"a", b"b")
    channel.add_events(events(("sent", 1, 1)))
    store.write_events()
    store.delete_channel(b"foo")
    store.abandon()
    assert session.query("SELECT COUNT(*) FROM Messages") == [(2,)]
    store, _ = opened(place, name=b"other")
    for _ in range(10):
        store.tick(0)
    for table in ("Messages", "Subscriptions", "SubsPending", "Channels"):
        assert session.query(f"SELECT COUNT(*) FROM {table}") == [(0,)]
    store.abandon()


# ---- the database undoes, waits, refuses


def test_a_row_that_somebody_has_locked_is_waited_for(place: SqlPlace, session: Session) -> None:
    store, channel = opened(place)
    put(store, channel, b"a")
    session.begin()
    session.execute("UPDATE ftstan_epoch SET done = done WHERE uniquerow = 1")
    timer = threading.Timer(0.5, session.rollback)
    timer.start()
    put(store, channel, b"b")
    timer.join()
    assert messages(channel) == [(1, b"a"), (2, b"b")]
    store.abandon()


def test_a_database_that_is_away_for_too_long_ends_the_owner(
    sql_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty(sql_source)
    monkeypatch.setattr(fence, "_REACH_S", 0.3)
    owner = SqlOwner(sql_source, server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    owner.fence.drop()

    def refused() -> Session:
        raise LostError("sql: connection refused")

    owner.fence._connect = refused
    with pytest.raises(LostError, match="connection refused"):
        owner.fence.transaction(lambda session: None)
    owner.close()


# ---- StoreLock


def _owner(source: Source) -> SqlOwner:
    return SqlOwner(source, server_id="me", clock=SystemClock())


def test_two_rows_in_storelock_are_refused(sql_source: Source, session: Session) -> None:
    empty(sql_source)
    for name in ("one", "two"):
        session.execute("INSERT INTO StoreLock (id, tick) VALUES (%s, 1)", (name,))
    owner = _owner(sql_source)
    with pytest.raises(LockFaultError, match="2 rows"):
        owner.try_lock()
    owner.close()


def test_a_second_row_ends_the_owner(sql_source: Source, session: Session) -> None:
    empty(sql_source)
    owner = _owner(sql_source)
    owner.try_lock()
    owner.lock.tick()
    session.execute("INSERT INTO StoreLock (id, tick) VALUES ('an original', 1)")
    with pytest.raises(FencedError):
        owner.lock.verify()
    owner.close()


def test_the_lock_of_an_original_is_waited_for_as_long_as_it_ticks(
    sql_source: Source, session: Session
) -> None:
    empty(sql_source)
    session.execute("INSERT INTO StoreLock (id, tick) VALUES ('an original', 1)")
    clock = ManualClock()
    owner = SqlOwner(sql_source, server_id="me", clock=clock)
    for _ in range(8):
        clock.advance(1)
        session.execute("UPDATE StoreLock SET tick = tick + 1")
        with pytest.raises(LockBusyError):
            owner.try_lock()
    for _ in range(3):
        with pytest.raises(LockBusyError):
            owner.try_lock()
        clock.advance(1.5)
    owner.try_lock()
    assert session.query("SELECT id, tick FROM StoreLock") == [(owner.lock.lock_id, 1)]
    owner.lock.tick()
    assert session.query("SELECT tick FROM StoreLock") == [(2,)]
    owner.close()
    assert session.query("SELECT id, tick FROM StoreLock") == [("", 0)]


def test_an_original_that_took_the_row_ends_the_owner(sql_source: Source, session: Session) -> None:
    empty(sql_source)
    owner = _owner(sql_source)
    owner.try_lock()
    session.execute("UPDATE StoreLock SET id = 'an original', tick = 1")
    with pytest.raises(FencedError, match="lost store lock"):
        owner.lock.tick()
    owner.close()
    assert session.query("SELECT id FROM StoreLock") == [("an original",)]


def test_a_dead_owner_of_ours_is_noticed_at_once(
    sql_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever waits until it is silent never sees the end.
    monkeypatch.setattr(locks, "LOOK_S", 1e6)
    empty(sql_source)
    first = _owner(sql_source)
    first.try_lock()
    first.activate()
    second = _owner(sql_source)
    with pytest.raises(LockBusyError):
        second.try_lock()
    # As the kernel does for a process that was killed.
    first.lock._drop()
    began = time.monotonic()
    while not second.lock.held:
        assert time.monotonic() - began < PATIENCE_S
        with contextlib.suppress(LockBusyError):
            second.try_lock()
    second.activate()
    with pytest.raises(FencedError):
        first.confirm()
    first.close()
    second.close()


# ---- settings, names, secrets


def test_what_the_source_says_of_isolation_and_strictness_does_not_count(
    sql_source: Source,
) -> None:
    settings: tuple[tuple[str, str], ...]
    if sql_source.driver == "postgres":
        settings = (
            ("default_transaction_isolation", "serializable"),
            ("synchronous_commit", "off"),
            ("standard_conforming_strings", "off"),
        )
        session = connect(replace(sql_source, settings=settings))
        assert session.query("SHOW synchronous_commit") == [("on",)]
        assert session.query("SHOW transaction_isolation") == [("read committed",)]
        assert session.query("SHOW standard_conforming_strings") == [("on",)]
        session.begin()
        assert session.query("SHOW transaction_isolation") == [("read committed",)]
    else:
        settings = (
            ("tx_isolation", "'SERIALIZABLE'"),
            ("sql_mode", "'NO_BACKSLASH_ESCAPES'"),
            ("character_set_client", "gbk"),
            ("autocommit", "0"),
        )
        session = connect(replace(sql_source, settings=settings))
        assert "STRICT_ALL_TABLES" in session.query("SELECT @@sql_mode")[0][0]
        assert "NO_BACKSLASH_ESCAPES" not in session.query("SELECT @@sql_mode")[0][0]
        assert session.query("SELECT @@tx_isolation, @@autocommit") == [("READ-COMMITTED", 1)]
        assert session.query("SELECT @@character_set_client") == [("utf8mb4",)]
    session.rollback()
    session.close()


@pytest.mark.parametrize(
    "name",
    [
        "\u7e17' OR 1=1 -- ",
        "a\\'b",
        "it''s \"x\" ; DROP TABLE Messages",
        "\u00bf\u005c' --",
        "%s%d",
    ],
)
def test_names_are_only_names(place: SqlPlace, name: str) -> None:
    encoded = name.encode()
    store, channel = opened(place, name=encoded)
    put(store, channel, name.encode(), b"\xbf\x27\x5c' OR 1=1 -- \0\x1a")
    store.close()
    store, channel = opened(place, name=encoded)
    assert messages(channel) == [(1, encoded), (2, b"\xbf\x27\x5c' OR 1=1 -- \0\x1a")]
    assert channel.name == encoded
    store.abandon()


def test_a_password_is_in_no_error(sql_source: Source) -> None:
    secret = "s3cr3t-pass"
    bad = replace(sql_source, password=secret, user="nobody-here", database="none")
    with pytest.raises(StoreError) as caught:
        connect(bad)
    assert secret not in f"{caught.value.text} {caught.value.hint}"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("sql_text", ["mysql"], indirect=True)
def test_a_message_that_does_not_fit_is_the_error_of_its_channel(
    place: SqlPlace, session: Session
) -> None:
    session.execute("ALTER TABLE Messages MODIFY data BLOB")
    try:
        store, foo = opened(place)
        bar = store.create_channel(b"bar", FREE)
        foo.append(block_of(foo, b"x" * 70_000))
        bar.append(block_of(bar, b"y"))
        failed = store.commit()
        assert list(failed) == [b"foo"]
        assert "LONGBLOB" in failed[b"foo"].hint
        assert messages(bar) == [(1, b"y")]
        put(store, foo, b"fits")
        assert messages(foo) == [(1, b"fits")]
        store.abandon()
    finally:
        session.execute("DELETE FROM Messages")
        session.execute("ALTER TABLE Messages MODIFY data LONGBLOB")


@pytest.mark.parametrize("sql_text", ["mysql"], indirect=True)
def test_tables_without_transactions_are_refused(sql_source: Source, session: Session) -> None:
    empty(sql_source)
    session.execute("ALTER TABLE SubsPending ENGINE=MyISAM")
    try:
        owner = _owner(sql_source)
        owner.try_lock()
        with pytest.raises(RecoveryError, match="SubsPending is not InnoDB"):
            owner.activate()
        owner.close()
    finally:
        session.execute("ALTER TABLE SubsPending ENGINE=InnoDB")


@pytest.mark.parametrize("sql_text", ["postgres"], indirect=True)
def test_a_database_without_an_encoding_is_refused(sql_source: Source, session: Session) -> None:
    session.execute("DROP DATABASE IF EXISTS ftstan_ascii")
    session.execute(
        "CREATE DATABASE ftstan_ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' "
        "TEMPLATE template0"
    )
    owner = SqlOwner(
        replace(sql_source, database="ftstan_ascii"), server_id="me", clock=SystemClock()
    )
    with pytest.raises(RecoveryError, match="SQL_ASCII"):
        owner.check()
    owner.close()
    session.execute("DROP DATABASE ftstan_ascii")


# ---- rows of the other kind


def test_both_kinds_of_pending_rows_are_read_whatever_is_written(
    sql_source: Source, session: Session
) -> None:
    place = SqlPlace(sql_source)
    store, channel = opened(place)
    channel.add_sub(state(1))
    put(store, channel, *(b"%d" % i for i in range(9)))
    store.close()
    row = session.row
    for number, sequence, pending, acks in (
        (1, 0, b"[3,1,2]", None),
        (2, 4, None, None),
        (3, 0, b"[]", b"[2]"),
        (4, 0, b"[5]", b"null"),
    ):
        session.execute(
            f"INSERT INTO SubsPending (subid, {row}, seq, lastsent, pending, acks)"
            " VALUES (1, %s, %s, 5, %s, %s)",
            (number, sequence, pending, acks),
        )
    for no_caching in (True, False, True):
        place._no_caching = no_caching
        found = subs(place)[1]
        assert (found.pending, found.state.last_sent) == ({1, 3, 4, 5}, 5)
        store, channel = opened(place)
        channel.add_events(events(("sent", 1, 6)))
        store.write_events()
        channel.add_events(events(("acked", 1, 6)))
        store.write_events()
        store.abandon()
        session.execute("UPDATE Subscriptions SET lastsent = 5")
        session.execute("UPDATE SubsPending SET lastsent = 5 WHERE lastsent > 5")
    store, channel = opened(place)
    channel.add_events(events(*(("acked", 1, n) for n in (1, 3, 4, 5))))
    store.write_events()
    assert session.query("SELECT COUNT(*) FROM SubsPending") == [(0,)]
    store.abandon()


def test_pending_rows_that_are_no_json_are_refused(place: SqlPlace, session: Session) -> None:
    store, channel = opened(place)
    channel.add_sub(state(1))
    put(store, channel, b"a")
    store.close()
    session.execute(
        f"INSERT INTO SubsPending (subid, {session.row}, seq, lastsent, pending)"
        " VALUES (1, 1, 0, 5, %s)",
        (b"[1,",),
    )
    with pytest.raises(RecoveryError, match="subscription 1"):
        opened(place)


def test_limits_of_the_row_follow_those_in_force(place: SqlPlace, session: Session) -> None:
    store, channel = opened(place, ChannelLimits(max_msgs=5, max_bytes=77, max_age=9))
    channel.keep()
    store.commit()
    wanted = "SELECT maxmsgs, maxbytes, maxage FROM Channels"
    assert session.query(wanted) == [(5, 77, 9)]
    store.set_limits(Limits.same(FREE))
    put(store, channel, b"a")
    assert session.query(wanted) == [(0, 0, 0)]
    store.abandon()


def test_a_process_that_is_frozen_in_a_transaction_holds_no_row_for_long(
    sql_source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "IDLE_MS", 1000)
    *others, idle = postgres._SETTINGS
    assert idle.endswith("idle_in_transaction_session_timeout = 10000")
    monkeypatch.setattr(postgres, "_SETTINGS", (*others, idle.replace("10000", "1000")))
    frozen = connect(sql_source)
    frozen.execute("DELETE FROM StoreLock")
    frozen.execute("INSERT INTO StoreLock (id, tick) VALUES ('me', 1)")
    frozen.begin()
    frozen.execute("UPDATE StoreLock SET tick = 2")
    other = connect(sql_source)
    other.wait_at_most(60_000)
    assert other.execute("UPDATE StoreLock SET tick = 3") == 1
    with pytest.raises(LostError):
        frozen.execute("UPDATE StoreLock SET tick = 4")
    assert other.query("SELECT tick FROM StoreLock") == [(3,)]
    other.close()


@pytest.mark.parametrize("library", ["psycopg", "MySQLdb", "pymysql"])
def test_a_database_that_takes_connections_and_says_nothing_is_given_up(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        if library == "psycopg":
            source = parse("postgres", f"host=127.0.0.1 port={port} user=nss dbname=x", {})
        else:
            source = parse("mysql", f"nss:nss@tcp(127.0.0.1:{port})/x")
            monkeypatch.setattr(mysql, "library", pytest.importorskip(library))
            monkeypatch.setattr(mysql, "LIBRARY", library)
        with pytest.raises(LostError):
            connect(source)


def test_the_history_says_how_an_owner_ended_and_only_of_those_who_said_so(
    sql_source: Source,
) -> None:
    empty(sql_source)
    first, second, third = (
        SqlOwner(sql_source, server_id=name, clock=SystemClock()) for name in ("a", "b", "c")
    )
    first.lock.acquire()
    first.activate()
    first.ending = Ending.SIGTERM
    first.close()
    second.lock.acquire()
    assert second.activate().left is Ending.SIGTERM
    (_, record), _ = second.read_records(2)
    assert record is not None
    assert record.left is Ending.SIGTERM
    assert record.left_ns > 0
    # Whoever was replaced says nothing of an epoch that is another's.
    third.lock.seize()
    third.activate()
    second.ending = Ending.DRAIN
    second.close()
    (_, record), _ = third.read_records(2)
    assert record is not None
    assert (record.epoch, record.left) == (3, Ending.UNSAID)
    third.close()


def test_settings_of_a_source_that_are_not_taken_are_told(
    sql_source: Source, sql_text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    empty(sql_source)
    name = "synchronous_commit" if sql_source.driver == "postgres" else "autocommit"
    more = " synchronous_commit=off" if sql_source.driver == "postgres" else "?autocommit=false"
    options = ServerOptions(
        store="SQL", sql=SqlOptions(driver=sql_source.driver, source=sql_text + more)
    )
    access = SqlAccess(StoreContext(options, server_id="me", clock=SystemClock()))
    access.close()
    told = capfd.readouterr()
    assert f"the source of the database sets {name}: not taken" in told.err + told.out
