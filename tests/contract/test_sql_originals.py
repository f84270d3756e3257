"""The SQL store recovers what an original would, and the original what the SQL store writes.

The oracle (``tests/oracle/gosql.py``) says what an original recovers of the same rows.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FtstanError, WireError
from ftstan.config.limits import Limits
from ftstan.config.options import ChannelLimits, StoreLimits
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores.contract.place import events, put, state
from ftstan.stores.sql.source import parse
from ftstan.stores.sql.store import SqlStore
from ftstan.wire import codec
from tests.contract.sqlplaces import SqlPlace
from tests.oracle import gosql, sqlfixtures
from tests.sqlservers import execute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.interface import Recovered
    from ftstan.stores.sql.source import Source
    from tests.sqlservers import SqlServers


class _Database:
    """One database, as the oracle and as the store see it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def query(self, statement: str) -> list[Any]:
        return execute(self.source, statement)

    def newest(self) -> int:
        return int(self.query("SELECT MAX(timestamp) FROM Messages")[0][0] or 1)

    def recovered(
        self, limits: Limits, now: int, *, no_caching: bool
    ) -> tuple[SqlStore, Recovered]:
        clock = ManualClock(wall_ns=now)
        owner = SqlOwner(self.source, server_id="me", clock=clock)
        try:
            owner.lock.seize()
            owner.activate()
            store = SqlStore(owner.fence, clock, no_caching=no_caching, events_s=0.0)
            store.set_limits(limits)
            return store, store.recover()
        except BaseException:
            owner.close()
            raise


@pytest.fixture
def database(request: pytest.FixtureRequest, sql_servers: SqlServers) -> Iterator[_Database]:
    text = sql_servers.create(request.param, tables=False)
    yield _Database(parse(request.param, text, {}))
    sql_servers.drop(text)


def _limits(said: dict[str, Any]) -> tuple[Limits, dict[bytes, gosql.GoLimits]]:
    own = said["store"]["limits"].get("channels", {})
    ours = tuple(
        (name, ChannelLimits(one["max_msgs"], one["max_bytes"], one["max_age"]))
        for name, one in own.items()
    )
    theirs = {
        name.encode(): gosql.GoLimits(one["max_msgs"], one["max_bytes"], one["max_age"])
        for name, one in own.items()
    }
    return Limits(StoreLimits(channels=ours)), theirs


def _seen(found: Recovered) -> dict[bytes, Any]:
    """What is compared, by channel."""
    return {
        channel.name: {
            "ends": (channel.count, channel.size, channel.first, channel.last),
            "messages": _messages(channel),
            "subs": {
                one.state.sub_id: _sub(one.state.last_sent, set(one.pending), channel.first)
                for one in channel.recovered_subs()
            },
        }
        for channel in found.channels
    }


def _sub(last_sent: int, pending: set[int], first: int) -> tuple[int, set[int]]:
    """Without what no message is left of: it makes no difference to what is delivered."""
    return max(last_sent, first - 1), {one for one in pending if one >= first}


def _messages(channel: Any) -> dict[int, bytes]:
    held: dict[int, bytes] = {}  # undecodable ones are nobody's
    at = channel.first
    while at <= channel.last and (block := channel.read(at, 1000, 1 << 20)) is not None:
        for i in range(block.position(at), len(block)):
            with contextlib.suppress(WireError):
                held[block.sequence(i)] = codec.decode_msg_proto(block.payload(i))[3]
        at = block.sequence(len(block) - 1) + 1
    return held


def _wanted(view: gosql.GoSqlView) -> dict[bytes, Any]:
    return {
        name: {
            "ends": (one.msgs, one.bytes, one.first, one.last),
            "messages": {n: message.data for n, message in one.messages.items()},
            "subs": {n: _sub(sub.last_sent, sub.pending, one.first) for n, sub in one.subs.items()},
        }
        for name, one in view.channels.items()
    }


@pytest.mark.parametrize(("database", "base", "name"), sqlfixtures.views(), indirect=["database"])
def test_what_an_original_wrote_is_recovered(database: _Database, base: str, name: str) -> None:
    said = sqlfixtures.view(database.source.driver, name)
    no_caching = "-sql_no_caching" in said["viewed_with"]["flags"]
    sqlfixtures.load(database.source, base)
    ours, theirs = _limits(said)
    now = database.newest()
    view = gosql.read(database.query, now, caching=not no_caching, limits=theirs)
    store, found = database.recovered(ours, now, no_caching=no_caching)
    try:
        assert found.info is not None
        assert found.info.cluster_id.encode() == view.cluster_id
        assert {one.client_id: one.hb_inbox for one in found.clients} == view.clients
        assert found.refused == {}
        assert _seen(found) == _wanted(view)
    finally:
        store.close()
    # And what recovery left is the same to an original that comes next.
    after = gosql.read(database.query, now, caching=not no_caching, limits=theirs)
    assert _wanted(after) == _wanted(view)


_DAMAGES = [
    one for one in sqlfixtures.damages()
    if not {"-ft_group", "-cid"} & {*one["flags"]} and one["name"] != "read-only"
]  # fmt: skip


@pytest.mark.parametrize("database", sqlfixtures.DRIVERS, indirect=True)
@pytest.mark.parametrize("damage", _DAMAGES, ids=lambda one: one["name"])
def test_a_damaged_database_is_never_worse_off(database: _Database, damage: dict[str, Any]) -> None:
    verdict = damage["verdict"][database.source.driver]
    sqlfixtures.load(database.source, damage["base"])
    statements = damage["sql"][database.source.driver]
    execute(database.source, *(one for one in statements.split(";") if one.strip()))
    now = 1
    no_caching = "-sql_no_caching" in damage["flags"]
    if not verdict["starts"]:
        # Either is right: the original's refusal, or service of what it could not read.
        with contextlib.suppress(FtstanError):
            database.recovered(Limits(), now, no_caching=no_caching)[0].abandon()
        return
    store, found = database.recovered(Limits(), now, no_caching=no_caching)
    try:
        seen = _seen(found)
        wanted = {} if damage["flags"] else sqlfixtures.seen(damage, database.source.driver)
        for name, one in wanted.items():
            if name.encode() in found.refused:
                continue
            count, _, _, last = seen[name.encode()]["ends"]
            assert last >= one["last_seq"], name
            if one["first_seq"] <= one["last_seq"]:  # the others are out of reach
                assert count >= one["msgs"], name
    finally:
        store.abandon()


def test_an_original_reads_what_the_sql_store_wrote(sql_source: Source) -> None:
    for no_caching in (False, True):
        place = SqlPlace(sql_source, no_caching=no_caching)
        store = place.open(Limits())
        store.recover()
        channel = store.create_channel("prüfung.日本".encode(), ChannelLimits())
        put(store, channel, b"a", b"b" * 3000, b"\0'\\", b"")
        channel.add_sub(state(1))
        channel.add_events(events(("sent", 1, 1), ("sent", 1, 2), ("sent", 1, 3), ("acked", 1, 2)))
        store.commit()
        store.write_events()
        store.tick(place.clock.wall_ns())
        store.close()

        def query(statement: str) -> list[Any]:
            return execute(sql_source, statement)

        view = gosql.read(query, 1, caching=not no_caching)
        found = view.channels["prüfung.日本".encode()]
        data = [message.data for message in found.messages.values()]
        assert data == [b"a", b"b" * 3000, b"\0'\\", b""]
        assert (found.first, found.last, found.msgs) == (1, 4, 4)
        (sub,) = found.subs.values()
        assert (sub.last_sent, sub.pending) == (3, {1, 3})
