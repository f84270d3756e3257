"""Server processes and databases in need: a network that freezes, a replica that is behind, a disk
that is full, words that name no database; and encryption in one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.sql.source import parse
from tests.contract.sqlplaces import empty
from tests.contract.test_sql_frozen import Way
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.mounts import SmallDisk
from tests.ft.operator import Operator
from tests.ft.test_encryption import PAYLOADS, SECRET, key_file
from tests.ft.test_sql_outages import EXIT_FENCED, run_script
from tests.ft.test_sql_servers import pair
from tests.oracle import gosql
from tests.oracle.godecrypt import decrypted
from tests.processes import GROUP, HOST, READY, Stage, children, free_ports
from tests.sqlservers import DRIVERS, SqlServers, execute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.sql.source import Source

pytestmark = pytest.mark.processes


@pytest.fixture
def words(sql_source: Source, sql_text: str) -> tuple[str, ...]:
    """The words that make a server serve from an empty database."""
    empty(sql_source)
    return ("-store", "sql", "-sql_driver", sql_source.driver, "-sql_source", sql_text)


def read_all(port: int, name: str = "reader") -> dict[int, bytes]:
    reader = StanClient(port, name)
    reader.connect()
    return reader.read_all(CHANNEL)


# ---- a network that freezes


def test_an_owner_whose_network_to_the_database_freezes_ends_and_a_standby_follows(
    stage: Stage, sql_source: Source, sql_servers: SqlServers
) -> None:
    empty(sql_source)
    driver, database = sql_source.driver, sql_source.database
    way = Way(sql_servers.pg if driver == "postgres" else sql_servers.my)

    def words(port: int) -> tuple[str, ...]:
        text = (
            f"host={HOST} port={port} user=nss dbname={database} sslmode=disable"
            if driver == "postgres"
            else f"nss:nss@tcp({HOST}:{port})/{database}"
        )
        return ("-store", "sql", "-sql_driver", driver, "-sql_source", text)

    nats = stage.nats()
    group = ("-ft_group", GROUP, "-ns", nats.url)
    a = stage.server("a", *words(way.port), *group)
    a.wait_until_active()
    b = stage.server("b", *words(way._to), *group)
    b.wait_until_standing_by()
    client = StanClient(nats.port, "publisher")
    client.connect()
    load = Load()
    load.join(client)
    load.run(500)
    load.press(256)
    way.freeze()
    assert a.status(within=40) == EXIT_FENCED
    assert "Traceback" not in a.text()
    b.wait_until_active()
    load.read_rest()
    load.give_up()
    load.run(200)
    load.give_up()
    load.judge(read_all(nats.port))
    way.close()


# ---- servers of this file's own


@pytest.fixture
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="ftsql-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=DRIVERS)
def own(request: pytest.FixtureRequest, place: Path) -> Iterator[OwnServer]:
    made = OwnServer(request.param, SqlServers(place, *free_ports(2)))
    made.start()
    yield made
    made.kill()


class OwnServer:
    """A database server of one test."""

    def __init__(self, driver: str, servers: SqlServers) -> None:
        self.driver = driver
        self.servers = servers
        self.wrap: tuple[str, ...] = ()
        self.data = servers.place / ("pg" if driver == "postgres" else "my") / "data"

    def start(self) -> None:
        run_script("start", self.servers, self.driver, wrap=self.wrap)

    def kill(self) -> None:
        run_script("kill", self.servers)

    def words(self) -> tuple[str, ...]:
        text = self.servers.create(self.driver)
        return ("-store", "sql", "-sql_driver", self.driver, "-sql_source", text)

    def snapshot(self) -> Path:
        """Its files at one moment, as a replica would have them that gets nothing more."""
        found = self.data / "postmaster.pid" if self.driver == "postgres" else (
            self.data.parent / "pid"
        )  # fmt: skip
        pid = int(found.read_text().split()[0])
        stopped = [pid, *children(pid)]
        copy = self.servers.place / "copy"
        for one in stopped:
            os.kill(one, signal.SIGSTOP)
        try:
            subprocess.run(["cp", "-a", str(self.data), str(copy)], check=True)
        finally:
            # runuser, which has started MariaDB, stops with it and takes no note of its end.
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            for one in (*stopped, *([parent] if parent > 1 else [])):
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGCONT)
        (copy / "postmaster.pid").unlink(missing_ok=True)
        return copy

    def fail_over(self, copy: Path) -> None:
        """The server dies; in its place one comes with other files."""
        self.kill()
        shutil.rmtree(self.data)
        copy.rename(self.data)
        self.start()


def test_a_replica_that_lacks_what_was_acked_is_refused_by_owner_and_standby(
    stage: Stage, own: OwnServer
) -> None:
    nats = stage.nats()
    words = own.words()
    a, b = pair(stage, words, nats)
    client = StanClient(nats.port, "publisher")
    client.connect()
    client.publish(CHANNEL, *(b"%d" % n for n in range(10)))
    copy = own.snapshot()
    client.publish(CHANNEL, *(b"%d" % n for n in range(10, 20)))
    # A standby looks once a second.
    time.sleep(2)
    own.fail_over(copy)
    client.offer(CHANNEL, b"for nobody")
    assert a.status(within=40) == EXIT_FENCED
    assert "the database lacks transactions that were acknowledged" in a.text()
    b.wait_for("the database lacks transactions that were committed")
    for one in (a, b):
        assert "Traceback" not in one.text()
    # Whoever is started anew has been told by a person.
    b.stop(10)
    again = stage.server("again", *words, "-ft_group", GROUP, "-ns", nats.url)
    again.wait_until_active()
    contents = read_all(nats.port)
    assert list(contents.values())[:10] == [b"%d" % n for n in range(10)]


def test_a_disk_of_the_database_that_is_full_refuses_publishes_and_loses_none(
    stage: Stage, place: Path, own: OwnServer
) -> None:
    own.kill()
    disk = SmallDisk(Stage(place))
    own.wrap = tuple(disk.wrap)
    shutil.chown(disk.seen, "postgres" if own.driver == "postgres" else "mysql")
    own.start()
    words = own.words()
    text = words[-1]
    if own.driver == "postgres":
        admin = parse("postgres", text.replace("user=nss", "user=postgres"), {})
        execute(
            admin,
            f"CREATE TABLESPACE small LOCATION '{place / 'store'}'",
            "ALTER TABLE Messages SET TABLESPACE small",
        )
    else:
        admin = parse("mysql", text, {})
        ((_, made),) = execute(admin, "SHOW CREATE TABLE Messages")
        execute(admin, "DROP TABLE Messages", f"{made} DATA DIRECTORY='{place / 'store'}'")
    server = stage.server("server", *words)
    server.wait_for(READY)
    client = StanClient(server.port, "publisher")
    client.connect()
    client.publish(CHANNEL, *(b"%d" % n + bytes(1000) for n in range(20)))
    disk.fill()
    refused: list[bytes] = []
    number = 100
    while not refused:
        guids = client.offer(
            CHANNEL, *(b"%d" % n + bytes(8000) for n in range(number, number + 50))
        )
        client.settle(guids)
        refused = [guid for guid in guids if guid in client.errors]
        number += 50
    said = client.errors[refused[0]][0]
    print(said)
    assert "sql: error executing" in said
    # It goes on: with reads now, and with publishes when there is room.
    before = client.read_to(CHANNEL, len(client.acks))
    disk.make_room()
    client.errors.clear()
    client.publish(CHANNEL, b"there is room")
    now = read_all(server.port)
    assert before.items() <= now.items()
    assert now[len(before) + 1] == b"there is room"
    assert "Traceback" not in server.text()
    server.stop(10)


# ---- words that name no database


def refused_start(stage: Stage, words: tuple[str, ...], name: str) -> str:
    """The one line of a server that does not start."""
    server = stage.server(name, *words)
    assert server.status() == 1, server.tail()
    assert "Traceback" not in server.text()
    fatal = [line for line in server.lines() if "[FTL]" in line]
    assert len(fatal) == 1, server.tail()
    assert "pw-s3cret" not in server.text()
    return fatal[0].removeprefix("[FTL] STREAM: Failed to start: ")


def test_bad_databases_and_rights_are_one_line_each(
    stage: Stage, sql_source: Source, sql_text: str, sql_servers: SqlServers, words: tuple[str, ...]
) -> None:
    driver, database = sql_source.driver, sql_source.database
    is_pg = driver == "postgres"
    user = f"few_{database[-8:]}"
    text = sql_servers.text(driver, database)
    if is_pg:
        admin = parse(driver, text.replace("user=nss", "user=postgres"), {})
        as_user = text.replace("user=nss", f"user={user}")
        execute(
            admin,
            f"CREATE ROLE {user} LOGIN",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}",
        )
    else:
        admin = parse(driver, text.replace("nss:nss@", "root@"), {})
        as_user = text.replace("nss:nss@", f"{user}:pw-s3cret@")
        execute(
            admin,
            f"CREATE USER {user}@localhost IDENTIFIED BY 'pw-s3cret'",
            f"GRANT SELECT ON {database}.* TO {user}@localhost",
        )
    head = ("-store", "sql", "-sql_driver", driver, "-sql_source")
    assert "denied" in refused_start(stage, (*head, as_user), "rights")
    execute(admin, *([f"DROP OWNED BY {user}"] if is_pg else []),
            f"DROP ROLE {user}" if is_pg else f"DROP USER {user}@localhost")  # fmt: skip

    server = stage.server("good", *words)
    server.wait_for(READY)
    server.stop(10)
    other = refused_start(stage, (*words, "-cid", "zzz"), "cid")
    assert other == 'cluster ID "zzz" does not match recovered value of "test-cluster"'
    execute(sql_source, "DROP TABLE SubsPending")
    assert "subspending" in refused_start(stage, words, "tables").lower()


def test_what_an_original_takes_of_options_is_taken(
    stage: Stage, words: tuple[str, ...], tmp_path: Path
) -> None:
    for number, more in enumerate(
        (
            ("-sql_max_open_conns", "1", "-sql_bulk_insert_limit", "1000"),
            ("-sql_max_open_conns", "-3", "-sql_bulk_insert_limit", "-1", "-sql_no_caching"),
        )
    ):
        server = stage.server(f"flags-{number}", *words, *more)
        server.wait_for(READY)
        client = StanClient(server.port, f"client-{number}")
        client.connect()
        subscription = client.subscribe(CHANNEL)
        client.publish(CHANNEL, *(b"%d" % n for n in range(100)))
        client.nats.pump(partial(subscription.has, 100 * (number + 1)), "deliveries")
        server.stop(10)
    driver, text = words[3], words[5]
    source = tmp_path / "source"
    source.touch(0o600)
    source.write_text(text)
    config = tmp_path / "stan.conf"
    config.write_text(
        f'streaming {{ store: sql, sql_options {{ driver: {driver}, source_file: "{source}", '
        "no_caching: true, max_conns: 1, bulk_insert_limit: 5, unknown_key: 1 } }\n"
    )
    server = stage.server("file", "-c", str(config))
    server.wait_for(READY)
    assert len(read_all(server.port)) == 201
    server.stop(10)


# ---- the lock, as originals see it


def test_the_row_of_the_lock_is_raised_once_a_second_and_given_back(
    stage: Stage, words: tuple[str, ...], sql_source: Source
) -> None:
    nats = stage.nats()
    a, b = pair(stage, words, nats)
    client = StanClient(nats.port, "publisher")
    client.connect()
    load = Load()
    load.join(client)

    def row() -> tuple[str, int]:
        ((name, tick),) = execute(sql_source, "SELECT id, tick FROM StoreLock")
        return name, int(tick)

    load.run(100)
    name, first = row()
    assert 0 < len(name) <= 30
    seen = {first}
    longest = 0.0
    changed = began = time.monotonic()
    while time.monotonic() - began < 5:
        load.run(10)
        if (tick := row()[1]) not in seen:
            longest = max(longest, time.monotonic() - changed)
            changed = time.monotonic()
            seen.add(tick)
    assert sorted(seen) == list(range(first, first + len(seen)))
    assert 4 <= len(seen) <= 7
    # An original looks 1.5 s apart, three times.
    assert longest < 4.5
    b.stop(10)
    load.settle()
    a.stop(10)
    assert row() == ("", 0)


def test_an_operator_hands_a_database_over_and_sees_who_had_it(
    stage: Stage, words: tuple[str, ...], tmp_path: Path
) -> None:
    nats = stage.nats()
    key = tmp_path / "admin.key"
    words = (*words, "-ft_group", GROUP, "-ns", nats.url, "-admin_key", str(key))
    a = stage.server("a", *words, "-ft_member", "node-a")
    a.wait_until_active()
    b = stage.server("b", *words, "-ft_member", "node-b")
    b.wait_until_standing_by()
    operator = Operator(nats.url)
    client = StanClient(nats.port, "publisher")
    client.connect()
    load = Load()
    load.join(client)
    load.run(200)
    said = operator.ft("switchover", "--admin-key", str(key), "--wait", "60")
    assert said.status == 0, said
    b.wait_until_active()
    load.run(200)
    load.settle()
    assert [epoch["cause"] for epoch in operator.epochs()[:2]] == ["switchover", "first_start"]
    load.judge(read_all(nats.port))


# ---- encryption


def test_a_database_holds_no_payload_plain_and_wants_its_key(
    stage: Stage, words: tuple[str, ...], sql_source: Source
) -> None:
    ring = key_file(stage, "keys", "sesame")
    encrypted = (*words, "-encryption_key_file", ring, "-dedup_window", "100", "-SDV")
    server = stage.server("first", *encrypted)
    server.wait_for(READY)
    client = StanClient(server.port, "first")
    client.connect()
    client.publish(b"foo", *PAYLOADS, b"")
    server.kill()
    for table in ("ServerInfo", "Clients", "Messages", "Subscriptions", "SubsPending",
                  "ftstan_remembered"):  # fmt: skip
        for row in execute(sql_source, f"SELECT * FROM {table}"):
            for value in row:
                shown = bytes(value) if isinstance(value, (bytes, memoryview)) else (
                    str(value).encode()
                )  # fmt: skip
                assert SECRET not in shown, table
                assert b"sesame" not in shown, table
    view = gosql.read(lambda text: execute(sql_source, text), 1)
    stored = view.channels[b"foo"].messages
    assert [decrypted(b"sesame", b"foo", m.data) for m in stored.values()] == [*PAYLOADS, b""]

    wrong = refused_start(
        stage, (*words, "-encryption_key_file", key_file(stage, "b", "wrong")), "wrong"
    )
    assert wrong == (
        "the encryption key does not decrypt the newest message of 1 of 1 channels: foo"
    )
    bare = refused_start(stage, words, "bare")
    assert bare == "the store is encrypted, and this server has no encryption key"

    # Another key in front: both read, the first one writes.
    both = ("-encryption_key_file", key_file(stage, "c", "new", "sesame"))
    server = stage.server("second", *words, *both)
    server.wait_for(READY)
    client = StanClient(server.port, "second")
    client.connect()
    assert list(client.read_to(b"foo", len(PAYLOADS) + 1).values()) == [*PAYLOADS, b""]
    client.publish(b"foo", SECRET)
    server.stop(10)
    view = gosql.read(lambda text: execute(sql_source, text), 1)
    newest = max(view.channels[b"foo"].messages)
    assert decrypted(b"new", b"foo", view.channels[b"foo"].messages[newest].data) == SECRET
