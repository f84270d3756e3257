"""The oracle of databases says of each fixture what the original servers said."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.stores.sql.source import parse
from tests.oracle import gosql, sqlfixtures
from tests.oracle.godecrypt import decrypted
from tests.sqlservers import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sqlservers import SqlServers


def _limits(said: dict[str, Any]) -> dict[bytes, gosql.GoLimits]:
    return {
        name.encode(): gosql.GoLimits(one["max_msgs"], one["max_bytes"], one["max_age"])
        for name, one in said["store"]["limits"].get("channels", {}).items()
    }


def _newest(query: Callable[[str], list[Any]]) -> int:
    """The views were taken at once: no message had aged when the last one was stored."""
    return int(query("SELECT MAX(timestamp) FROM Messages")[0][0] or 0)


@pytest.mark.parametrize(("driver", "base", "name"), sqlfixtures.views())
def test_the_oracle_sees_what_the_original_saw(
    driver: str, base: str, name: str, sql_servers: SqlServers
) -> None:
    said = sqlfixtures.view(driver, name)
    flags = said["viewed_with"]["flags"]
    text = sql_servers.create(driver, tables=False)
    source = parse(driver, text, {})

    def query(statement: str) -> list[Any]:
        return execute(source, statement)

    try:
        sqlfixtures.load(source, base)
        view = gosql.read(
            query, _newest(query), caching="-sql_no_caching" not in flags, limits=_limits(said)
        )
    finally:
        sql_servers.drop(text)
    key = flags[flags.index("-encryption_key") + 1].encode() if "-encryption_key" in flags else b""
    _compare(view, said, key, caching="-sql_no_caching" not in flags)


def _recovered(row: dict[str, Any], first: int) -> tuple[int, set[int]]:
    """Last sent and pending, without the rows of single sequences that a start deletes."""
    kept = {one for one in row["pending"] if one >= first}
    if kept == set(row["pending"]):
        return row["last_sent"], kept
    return max([row["lastsent_column"], row["last_sent_proto"], *kept]), kept


def _compare(view: gosql.GoSqlView, said: dict[str, Any], key: bytes, *, caching: bool) -> None:
    assert view.cluster_id == said["server"]["cluster_id"].encode()
    assert sorted(view.clients) == sorted(one["id"].encode() for one in said["clients"])
    for one in said["clients"]:
        assert view.clients[one["id"].encode()] == one["hb_inbox"].encode()
    assert sorted(view.channels) == sorted(name.encode() for name in said["channels"])
    for name, one in said["channels"].items():
        channel = view.channels[name.encode()]
        found = (channel.msgs, channel.bytes, channel.first, channel.last)
        assert found == (one["msgs"], one["bytes"], one["first_seq"], one["last_seq"]), name
        messages = [
            {
                "seq": sequence,
                "timestamp": message.timestamp,
                "subject": message.subject.decode(),
                "reply": message.reply.decode(),
                "len": len(data),
                "sha1": hashlib.sha1(data, usedforsecurity=False).hexdigest(),
            }
            for sequence, message in channel.messages.items()
            for data in [decrypted(key, name.encode(), message.data) if key else message.data]
        ]
        if "read_error" not in one:
            assert messages == one.get("messages", []), name
        wanted = {
            row["id"]: _recovered(row, 0 if caching else channel.first)
            for row in said.get("subs_rows", {}).get(name, [])
            if not row["deleted"]
        }
        if "subs_rows" in said:
            got = {n: (sub.last_sent, sub.pending) for n, sub in channel.subs.items()}
            assert got == wanted, name


@pytest.mark.parametrize("driver", sqlfixtures.DRIVERS)
@pytest.mark.parametrize(
    "damage",
    [one for one in sqlfixtures.damages() if not {"-ft_group", "-cid"} & {*one["flags"]}],
    ids=lambda one: one["name"],
)
def test_the_oracle_refuses_what_the_original_refused(
    driver: str, damage: dict[str, Any], sql_servers: SqlServers
) -> None:
    text = sql_servers.create(driver, tables=False)
    source = parse(driver, text, {})

    def query(statement: str) -> list[Any]:
        return execute(source, statement)

    verdict = damage["verdict"][driver]
    try:
        sqlfixtures.load(source, damage["base"])
        statements = damage["sql"][driver].replace("{DB}", source.database)
        if "GLOBAL" in statements or damage["name"].startswith(("no-", "extra-")):
            return  # what a server has of its own, and columns that only the original wants
        execute(source, *(one for one in statements.split(";") if one.strip()))
        try:
            view = gosql.read(query, 0, caching="-sql_no_caching" not in damage["flags"])
        except gosql.GoSqlRefuses:
            assert not verdict["starts"], damage["what"]
            return
    finally:
        sql_servers.drop(text)
    assert verdict["starts"], damage["what"]
    seen = {} if damage["flags"] else sqlfixtures.seen(damage, driver)
    for name, one in seen.items():
        channel = view.channels.get(name.encode())
        assert channel is not None, name
        assert (channel.msgs, channel.first, channel.last) == (
            one["msgs"], one["first_seq"], one["last_seq"],
        ), name  # fmt: skip
