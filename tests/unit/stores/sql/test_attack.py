"""Attacks on the store of databases that once went through, each as a test."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FencedError, StoreError
from ftstan.stores.contract.place import (
    block_of,
    events,
    messages,
    opened,
    put,
    recovered,
    state,
    subs,
)
from ftstan.stores.interface import ChannelLimits, ClientInfo, client_key
from ftstan.stores.sql import tables
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.mysql import MysqlSession
from ftstan.stores.sql.session import TransientError
from tests.contract.sqlplaces import SqlPlace, empty
from tests.sqlservers import execute
from tests.unit.stores.sql.hooked import Hooked, Steps
from tests.unit.stores.sql.test_sql_fence import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source


@pytest.fixture
def source(sql_source: Source) -> Source:
    empty(sql_source)
    return sql_source


@pytest.fixture
def place(sql_source: Source) -> SqlPlace:
    return SqlPlace(sql_source)


@pytest.fixture
def session(sql_source: Source) -> Iterator[Session]:
    made = connect(sql_source)
    yield made
    made.close()


def _steal_as_an_original(source: Source) -> bool:
    """What an original standby does; returns whether it has the row."""
    session = connect(source)
    try:
        session.wait_at_most(1000)
        session.begin()
        session.query("SELECT id, tick FROM StoreLock FOR UPDATE")
        session.execute("UPDATE StoreLock SET id = 'an original', tick = 1")
        session.commit()
    except TransientError:
        session.rollback()
        return False
    finally:
        session.close()
    return True


# ---- a mixed group


@pytest.mark.parametrize("step", ["after begin", "after fence", "after insert", "before commit"])
def test_an_original_that_takes_the_row_in_a_transaction_reads_what_it_commits(
    source: Source, step: str
) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    assert owner.put(b"a") == {}
    owner.store.confirm()
    stolen: list[bool] = []
    steps.at(step, lambda _session: stolen.append(_steal_as_an_original(source)))
    try:
        failed = owner.put(b"b")
        owner.store.confirm()
    except FencedError:
        assert stolen == [True]
    else:
        assert (failed, stolen) == ({}, [False])
        assert _steal_as_an_original(source)
    owner.close()


def test_the_row_ticks_during_a_transaction(source: Source) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    before = owner.owner.read_watch()
    steps.at("after insert", lambda _session: owner.owner.lock.tick())
    assert owner.put(b"a") == {}
    owner.owner.lock.tick()
    assert owner.owner.read_watch() != before
    owner.close()


def test_an_idle_owner_learns_from_confirm_that_an_original_has_the_row(source: Source) -> None:
    owner = Owner(source)
    assert owner.put(b"a") == {}
    owner.store.confirm()
    assert _steal_as_an_original(source)
    with pytest.raises(FencedError):
        owner.store.confirm()
    owner.close()


# ---- what proves ownership


def test_an_earlier_transaction_proves_nothing_for_a_later_batch(source: Source) -> None:
    former = Owner(source)
    former.channel.add_sub(state(1))
    assert former.put(b"a") == {}
    former.store.confirm()
    former.channel.add_events(events(("sent", 1, 1)))
    former.store.write_events()
    successor = Owner(source)
    # A batch with nothing in it, as one of deliveries is.
    assert former.store.commit() == {}
    with pytest.raises(FencedError):
        former.store.confirm()
    successor.close()
    former.close()


def test_the_work_of_each_second_proves_nothing_behind_a_pause(source: Source) -> None:
    former = Owner(source)
    assert former.put(b"a") == {}
    former.store.confirm()
    former.channel.purge(1)
    successor = Owner(source)
    with pytest.raises(FencedError):
        former.store.confirm()
    successor.close()
    former.close()


def test_an_activation_proves_nothing_behind_a_long_recovery(source: Source) -> None:
    former = Owner(source)
    successor = Owner(source)
    with pytest.raises(FencedError):
        former.store.confirm()
    successor.close()
    former.close()


def test_a_landed_commit_is_found_out_though_the_database_is_slow_to_say(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    whole = tables.read_epoch
    refusals = [TransientError("sql: canceling statement"), StoreError("sql: no resources")]

    def refuse(session: Session) -> tables.EpochRow | None:
        if refusals:
            raise refusals.pop()
        return whole(session)

    def lose(session: Hooked) -> None:
        monkeypatch.setattr(tables, "read_epoch", refuse)
        session.lose()

    steps.at("after commit", lose)
    assert owner.put(b"a") == {}
    owner.store.confirm()
    assert owner.put(b"b") == {}
    assert [s for s, _ in messages(owner.channel)] == [1, 2]
    owner.close()


@pytest.mark.parametrize("sql_text", ["mysql"], indirect=True)
def test_a_silent_network_ends_a_session(sql_source: Source) -> None:
    ((port,),) = execute(sql_source, "SELECT @@port")
    made = MysqlSession(replace(sql_source, socket="", host="127.0.0.1", port=int(port)))
    with socket.socket(fileno=os.dup(made._connection.fileno())) as one:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    made.close()


# ---- limits


def test_a_limit_beyond_its_column_refuses_no_message(place: SqlPlace) -> None:
    limits = ChannelLimits(max_msgs=1 << 40, max_bytes=1 << 60)
    for i in range(2):
        store, channel = opened(place, limits)
        put(store, channel, b"%d" % i)
        store.abandon()
    store, channel = opened(place, limits)
    assert messages(channel) == [(1, b"0"), (2, b"1")]
    store.abandon()


# ---- clients


def test_clients_whose_names_differ_in_case_only_are_two(place: SqlPlace) -> None:
    store, _ = recovered(place)
    for name in (b"me", b"ME"):
        store.add_client(ClientInfo(name, b"in"))
        assert store.commit() == {}
    store.delete_client(b"Me")
    assert store.commit() == {}
    store.abandon()
    store, found = recovered(place)
    assert sorted(c.client_id for c in found.clients) == [b"ME", b"me"]
    store.abandon()


def test_a_strange_inbox_harms_no_other_client(place: SqlPlace) -> None:
    store, _ = recovered(place)
    infos = [ClientInfo(b"a", b"in.a"), ClientInfo(b"b", b"in.\xff\0"), ClientInfo(b"c", b"in.c")]
    for info in infos:
        store.add_client(info)
    assert store.commit() == {}
    store.abandon()
    store, found = recovered(place)
    assert sorted(found.clients, key=lambda c: c.client_id) == infos
    store.abandon()


@pytest.mark.parametrize("bad", [b"x" * 2000, b"bad\xff", b"nul\0"])
def test_a_client_id_that_the_database_refuses_fails_only_its_own_request(
    place: SqlPlace, bad: bytes
) -> None:
    store, channel = opened(place)
    infos = [ClientInfo(name, b"in") for name in (b"a", bad, b"c")]
    store.add_client(ClientInfo(b"old", b"in"))
    assert store.commit() == {}
    for info in infos:
        store.add_client(info)
    store.delete_client(b"old")
    channel.append(block_of(channel, b"of somebody else"))
    failed = store.commit()
    assert list(failed) == [client_key(bad)]
    assert channel.last == 1
    # And alone; its end, which is staged when it was refused, harms nobody either.
    store.add_client(infos[1])
    assert list(store.commit()) == [client_key(bad)]
    store.delete_client(bad)
    store.add_client(ClientInfo(b"d", b"in"))
    assert set(store.commit()) <= {client_key(bad)}
    store.abandon()
    store, found = recovered(place)
    assert sorted(c.client_id for c in found.clients) == [b"a", b"c", b"d"]
    store.abandon()


# ---- numbers that were used


def test_rows_without_a_channel_come_back_in_no_new_one(place: SqlPlace, session: Session) -> None:
    session.execute("INSERT INTO Messages (id, seq, timestamp, size, data) VALUES (1, 1, 1, 0, '')")
    store, channel = opened(place)
    put(store, channel, b"a")
    store.abandon()
    store, channel = opened(place)
    assert messages(channel) == [(1, b"a")]
    store.abandon()


def test_pending_rows_without_a_subscription_move_no_new_one(
    place: SqlPlace, session: Session
) -> None:
    session.execute(
        f"INSERT INTO SubsPending (subid, {session.row}, seq, lastsent, pending)"
        " VALUES (1, 1, 0, 2, '[2]')"
    )
    store, channel = opened(place)
    put(store, channel, b"a", b"b", b"c")
    number = channel.next_sub_id
    channel.add_sub(state(number))
    store.commit()
    store.abandon()
    found = subs(place)[number]
    assert (found.state.last_sent, found.pending) == (0, set())


# ---- NULLs


def test_messages_without_a_size_end_no_start(place: SqlPlace, session: Session) -> None:
    store, channel = opened(place)
    put(store, channel, b"a", b"b", b"c")
    store.abandon()
    session.execute("UPDATE Messages SET size = NULL")
    store, channel = opened(place, ChannelLimits(max_msgs=2, max_bytes=0))
    assert channel.count == 2
    store.abandon()


@pytest.mark.parametrize("sql_text", ["mysql"], indirect=True)
def test_a_client_takes_no_row_of_another_in_a_table_that_takes_their_names_for_one(
    place: SqlPlace, session: Session
) -> None:
    session.execute("ALTER TABLE Clients MODIFY id VARCHAR(1024) COLLATE utf8mb4_general_ci")
    store, _ = recovered(place)
    store.add_client(ClientInfo(b"me", b"in"))
    assert store.commit() == {}
    store.add_client(ClientInfo(b"ME", b"in"))
    assert list(store.commit()) == [client_key(b"ME")]
    store.delete_client(b"ME")
    assert store.commit() == {}
    store.abandon()
    store, found = recovered(place)
    assert [c.client_id for c in found.clients] == [b"me"]
    store.abandon()
    session.execute("DELETE FROM Clients")
    session.execute("ALTER TABLE Clients MODIFY id VARCHAR(1024) COLLATE utf8mb4_bin")
