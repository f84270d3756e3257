"""``ftstanctl store`` on databases: what it shows, that it changes nothing; copies both ways."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import RecoveryError, StoreError
from ftstan.cli import ctl, store_end
from ftstan.ft.epoch_records import Ending
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores import copying
from ftstan.stores.contract.place import events, state
from ftstan.stores.encryption.cipher import KeyRing
from ftstan.stores.encryption.store import EncryptedStore
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.interface import ServerInfo
from ftstan.stores.sql.source import parse
from ftstan.stores.sql.store import SqlStore
from ftstan.stores.sql.tools.reading import UNLIMITED, Reading
from ftstan.wire.block import MsgBlock
from tests.datastores import serving as serving_files
from tests.filenode import FileNode, Owner
from tests.oracle import gosql, sqlfixtures
from tests.sqlservers import execute

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.stores.sql.source import Source
    from tests.sqlservers import SqlServers

#: Everything an original leaves behind when it is killed: durables, queues, pendings, clients.
BASE = "killed-nocache"


def load_base(servers: SqlServers, driver: str) -> str:
    text = servers.create(driver, tables=False)
    sqlfixtures.load(parse(driver, text, {}), BASE)
    return text


@pytest.fixture(params=("postgres", "mysql"))
def served(request: pytest.FixtureRequest, sql_servers: SqlServers) -> Iterator[Source]:
    """A database that an original server has served."""
    text = load_base(sql_servers, request.param)
    yield parse(request.param, text, {})
    sql_servers.drop(text)


@pytest.fixture
def words(served: Source, sql_servers: SqlServers, tmp_path: Path) -> str:
    """How commands name it."""
    return named(tmp_path, served.driver, sql_servers.text(served.driver, served.database))


@pytest.fixture
def target(served: Source, sql_servers: SqlServers, tmp_path: Path) -> Iterator[str]:
    """An empty database of the same kind."""
    text = sql_servers.create(served.driver)
    yield named(tmp_path, served.driver, text, "target")
    sql_servers.drop(text)


def named(directory: Path, driver: str, text: str, name: str = "source") -> str:
    path = directory / name
    path.write_text(text + "\n", encoding="utf-8")
    path.chmod(0o600)
    return f"{driver}:{path}"


def run(capsys: pytest.CaptureFixture[str], *said: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = ctl.main(["store", *said])
    out = capsys.readouterr()
    return status, out.out, out.err


def dumped(capsys: pytest.CaptureFixture[str], *said: str) -> list[dict[str, Any]]:
    status, out, err = run(capsys, "dump", *said)
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]


def rows(source: Source) -> dict[str, list[Any]]:
    """Every row of every table, in an order."""
    names = ("ServerInfo", "Clients", "Channels", "Messages", "Subscriptions", "SubsPending",
             "StoreLock")  # fmt: skip
    return {name: sorted(map(repr, execute(source, f"SELECT * FROM {name}"))) for name in names}


# ---- looking


def test_what_an_original_has_stored_is_listed_and_dumped_and_nothing_is_changed(
    served: Source, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rows(served)
    view = sqlfixtures.view(served.driver, BASE)["channels"]
    status, out, _ = run(capsys, "ls", words, "--output", "json")
    assert status == 0
    listed = {row["name"]: row for row in json.loads(out)["channels"]}
    assert listed.keys() == view.keys()
    messages: dict[str, list[tuple[int, bytes]]] = {}
    for row in dumped(capsys, words):
        if row["kind"] == "message":
            data = base64.b64decode(row["data"])
            messages.setdefault(row["channel"], []).append((row["sequence"], data))
    for name, row in listed.items():
        found = messages.get(name, [])
        assert row["msgs"] == len(found)
        if found:
            assert (row["first"], row["last"]) == (found[0][0], found[-1][0])
    assert run(capsys, "verify", words)[0] == 0
    assert run(capsys, "du", words)[0] == 0
    assert rows(served) == before
    assert not [n for n in Reading(served).table_sizes() if n.startswith("ftstan")]


def test_a_running_owner_is_shown_and_goes_on(
    served: Source, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, store, channel = serving(served)
    put(channel, store, b"one")
    for command in ("ls", "du", "verify", "dump"):
        assert run(capsys, command, words)[0] == 0
        put(channel, store, command.encode())
        store.confirm()
    status, out, _ = run(capsys, "ls", words, "--output", "json")
    assert status == 0
    assert json.loads(out)["live"]
    texts = [r["data"] for r in dumped(capsys, words, "--channel", "mine") if "data" in r]
    assert [base64.b64decode(t) for t in texts] == [b"one", b"ls", b"du", b"verify", b"dump"]
    store.close()
    owner.close()


def serving(source: Source) -> tuple[SqlOwner, SqlStore, Any]:
    """A server's half of a store, with a channel."""
    owner = SqlOwner(source, server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    store = SqlStore(owner.fence, SystemClock())
    store.set_limits(UNLIMITED)
    store.recover()
    return owner, store, store.create_channel(b"mine", UNLIMITED.of(b"mine"))


def put(channel: Any, store: Any, *data: bytes) -> None:
    block = MsgBlock()
    for i, one in enumerate(data, 1):
        block.append(channel.last + i, channel.name, b"", one, 1_700_000_000_000_000_000 + i)
    channel.append(block)
    assert store.commit() == {}


def test_a_reader_can_write_nothing(served: Source) -> None:
    reading = Reading(served)
    with pytest.raises(StoreError, match=r"(?i)read.only"):
        reading.query("DELETE FROM Messages")
    reading.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE Messages SET size = size + 1 WHERE id = 1 AND seq = 1", "bytes instead of"),
        ("UPDATE Messages SET timestamp = 7 WHERE id = 1 AND seq = 1", "has two times"),
        ("UPDATE Messages SET seq = 99999 WHERE id = 1 AND seq = 1", "is the message 1"),
        ("UPDATE Messages SET data = 'x', size = 1 WHERE id = 1 AND seq = 1", "sequence 1"),
        ("UPDATE ServerInfo SET version = 2", "version 2 is not 1"),
        ("UPDATE ServerInfo SET id = 'other'", "does not match"),
        ("UPDATE Subscriptions SET lastsent = 1000000", "was sent to a subscription"),
        ("UPDATE Subscriptions SET proto = NULL", "has lost what it says"),
        ("UPDATE SubsPending SET pending = 'no json', seq = 0", "unable to decode"),
        ("INSERT INTO StoreLock VALUES ('a', 1), ('b', 1)", "rows: no server can own it"),
        ("UPDATE Clients SET id = 'somebody' WHERE id = 'alpha'", "has the data of"),
    ],
)
def test_damage_is_found(
    served: Source, words: str, capsys: pytest.CaptureFixture[str], change: str, told: str
) -> None:
    execute(served, change)
    status, out, _ = run(capsys, "verify", words)
    assert told in out
    assert (status, "DAMAGED" in out) == (1, True)


def test_rows_of_nobody_are_leftovers_and_no_damage(
    served: Source, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(served, "INSERT INTO SubsPending (subid, row, seq) VALUES (4711, 1, 1)" if (
        served.driver == "postgres"
    ) else "INSERT INTO SubsPending (subid, `row`, seq) VALUES (4711, 1, 1)")  # fmt: skip
    status, out, _ = run(capsys, "verify", words)
    assert status == 0
    assert "leftover: SubsPending: subscription 4711 is none" in out


def test_encrypted_payloads_are_dumped_and_verified_with_their_key(
    sql_source: Source, sql_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = SqlOwner(sql_source, server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    store = EncryptedStore(SqlStore(owner.fence, SystemClock()), KeyRing([b"right"], "AES"))
    store.set_limits(UNLIMITED)
    store.recover()
    store.set_server_info(ServerInfo("c", "d", "p", "s", "u", "c", "sc", "a"))
    put(store.create_channel(b"foo", UNLIMITED.of(b"foo")), store, b"secret")
    store.close()
    owner.close()
    words = named(tmp_path, sql_source.driver, sql_text)
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path in (right, wrong):
        path.write_text(path.name + "\n", encoding="utf-8")
        path.chmod(0o600)
    key = ("--encryption-key-file", str(right))
    (message,) = (r for r in dumped(capsys, words, *key) if r["kind"] == "message")
    assert base64.b64decode(message["data"]) == b"secret"
    assert run(capsys, "verify", words, *key)[0] == 0
    status, out, _ = run(capsys, "verify", words, "--encryption-key-file", str(wrong))
    assert status == 1
    assert "sequence 1" in out


def test_a_configuration_file_and_flags_name_the_database_too(
    served: Source, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver, _, path = words.partition(":")
    config = tmp_path / "stan.conf"
    config.write_text(
        f'streaming {{ store: sql, sql {{ driver: {driver}, source_file: "{path}" }} }}\n',
        encoding="utf-8",
    )
    wanted = run(capsys, "ls", words)[1]
    assert run(capsys, "ls", "-c", str(config))[1] == wanted
    flags = ("--sql-driver", driver, "--sql-source-file", path)
    assert run(capsys, "ls", *flags)[1] == wanted
    for said, told in (
        (("ls", "-c", str(config), *flags), "-c and --sql-driver both say"),
        (("ls", words, *flags), "--sql-driver and DIR both say"),
        (("ls", "--sql-source-file", path), "needs --sql-driver"),
        (("dump", words, "--raw"), "--raw shows the records of files"),
        (("repair", words), "works on directories only"),
        (("ls", words, "--channel", "nobody"), 'has no channel "nobody"'),
    ):
        status, _, err = run(capsys, *said)
        assert told in err
        assert status in (2, 64)


# ---- purging


@pytest.mark.parametrize(
    ("bound", "last"),
    [
        ((), 10), (("--keep", "3"), 7), (("--up-to", "4"), 4), (("--before", "5"), 4),
        (("--before", "2023-11-14T22:13:21Z"), 10), (("--keep", "10"), 0),
    ],
)  # fmt: skip
def test_a_purge_removes_what_its_dry_run_names_and_an_original_finds_the_rest(
    sql_source: Source, sql_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    *, bound: tuple[str, ...], last: int,
) -> None:  # fmt: skip
    owner, store, channel = serving(sql_source)
    store.set_server_info(ServerInfo("c", "d", "p", "s", "u", "c", "sc", "a"))
    put(channel, store, *(b"%d" % n for n in range(10)))
    channel.add_sub(state(7))
    assert store.commit() == {}
    channel.add_events(events(("sent", 7, 2), ("sent", 7, 9)))
    store.write_events()
    store.close()
    owner.close()
    words = (named(tmp_path, sql_source.driver, sql_text), "mine", *bound, "--output", "json")
    before = rows(sql_source)
    status, out, err = run(capsys, "purge", *words, "--dry-run")
    assert (status, err) == (0, "")
    assert rows(sql_source) == before
    dry = json.loads(out)
    assert (dry["purged"], dry["first"], dry["last"]) == (last, min(last, 1), last)
    assert (dry["left"], dry["next"], dry["unacknowledged"]) == (
        10 - last, 11, (last >= 2) + (last >= 9),
    )  # fmt: skip
    status, out, err = run(capsys, "purge", *words, "--yes")
    assert (status, json.loads(out)) == (0, dry | {"dry_run": False}), err
    view = gosql.read(lambda text: execute(sql_source, text), 1_700_000_000_000_000_099)
    found = view.channels[b"mine"]
    assert sorted(found.messages) == list(range(last + 1, 11))
    assert (found.first, found.last, len(found.subs)) == (last + 1, 10, 1)


def test_a_database_that_is_served_is_not_purged(
    served: Source, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_end, "_LOCK_S", 0.5)
    owner, store, channel = serving(served)
    put(channel, store, b"one")
    status, _, err = run(capsys, "purge", words, "mine", "--yes")
    assert (status, "is in use" in err) == (2, True)
    assert run(capsys, "purge", words, "mine", "--dry-run")[0] == 0
    put(channel, store, b"still served")
    assert channel.count == 2
    store.close()
    owner.close()
    assert run(capsys, "purge", words, "nobody", "--yes")[0] == 64


def test_a_database_without_tables_gets_one_line(
    sql_servers: SqlServers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for driver in ("postgres", "mysql"):
        text = sql_servers.create(driver, tables=False)
        status, _, err = run(capsys, "ls", named(tmp_path, driver, text))
        sql_servers.drop(text)
        assert status == 2
        assert "holds no store: there is no table ServerInfo" in err


# ---- copying


def described(lines: list[dict[str, Any]]) -> list[str]:
    """What a dump says, without what a copy makes new."""
    kept = [{k: v for k, v in line.items() if k != "sub_id"} for line in lines]
    return sorted(json.dumps(line, sort_keys=True) for line in kept)


def test_a_database_is_the_same_behind_a_directory_and_behind_the_other_kind(
    words: str, served: Source, sql_servers: SqlServers, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    wanted = described(dumped(capsys, words))
    directory = str(tmp_path / "files")
    status, out, err = run(capsys, "copy", words, directory)
    assert status == 0, err
    assert out.startswith("copied and compared: 12 channels, 214 messages, 6 clients")
    assert described(dumped(capsys, directory)) == wanted
    assert run(capsys, "verify", directory)[0] == 0
    other = "mysql" if served.driver == "postgres" else "postgres"
    text = sql_servers.create(other)
    target = named(tmp_path, other, text, "target")
    assert run(capsys, "copy", directory, target)[0] == 0
    assert described(dumped(capsys, target)) == wanted
    assert run(capsys, "verify", target)[0] == 0
    sql_servers.drop(text)


def test_sequences_go_on_behind_messages_that_are_gone(
    sql_source: Source, sql_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, store, channel = serving(sql_source)
    store.set_server_info(ServerInfo("c", "d", "p", "s", "u", "c", "sc", "a"))
    put(channel, store, *(b"%d" % n for n in range(10)))
    channel.purge(10)
    other = store.create_channel(b"some", UNLIMITED.of(b"some"))
    put(other, store, *(b"%d" % n for n in range(10)))
    other.purge(4)
    store.close()
    owner.close()
    words = named(tmp_path, sql_source.driver, sql_text)
    directory = str(tmp_path / "files")
    assert run(capsys, "copy", words, directory)[0] == 0
    _, out, _ = run(capsys, "ls", directory, "--output", "json")
    listed = {r["name"]: (r["msgs"], r["first"], r["last"]) for r in json.loads(out)["channels"]}
    assert listed == {"mine": (0, 11, 10), "some": (6, 5, 10)}


def test_a_source_that_is_served_and_a_target_that_is_not_empty_are_refused(
    served: Source, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(store_end, "_LOCK_S", 0.5)
    owner, store, channel = serving(served)
    status, _, err = run(capsys, "copy", words, str(tmp_path / "files"))
    assert status == 2
    assert "is in use" in err
    put(channel, store, b"still served")
    store.close()
    owner.close()
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter").write_text("mine", encoding="utf-8")
    before = rows(served)
    assert run(capsys, "copy", words, str(full))[0] == 2
    assert [path.name for path in full.iterdir()] == ["letter"]
    status, _, err = run(capsys, "copy", str(full), words)
    assert status == 2
    assert rows(served) == before


@pytest.fixture(params=["files", "database"])
def either(request: pytest.FixtureRequest, target: str, tmp_path: Path) -> str:
    """A new directory, or a database."""
    return str(tmp_path / "files") if request.param == "files" else target


def test_no_server_starts_on_an_unfinished_copy_and_the_next_one_starts_anew(
    either: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = either
    with monkeypatch.context() as patch:
        # In the middle: some channels are there.
        real = copying._copy_subs
        left = [5]

        def dies(*said: Any) -> None:
            left[0] -= 1
            if not left[0]:
                raise StoreError("the power is gone")
            real(*said)

        patch.setattr(copying, "_copy_subs", dies)
        assert run(capsys, "copy", words, target)[0] == 2
    starts = start_of_database if ":" in target else start_of_files
    with pytest.raises(RecoveryError):
        starts(target)
    assert run(capsys, "copy", words, target)[0] == 0
    starts(target)
    assert described(dumped(capsys, target)) == described(dumped(capsys, words))


def start_of_files(path: str) -> None:
    FileNode(LocalDisk(), path, Owner(50), FileStoreOptions())


def source_at(word: str) -> Source:
    driver, _, path = word.partition(":")
    with open(path, encoding="utf-8") as file:
        return parse(driver, file.read().strip(), {})


def start_of_database(word: str) -> None:
    owner = SqlOwner(source_at(word), server_id="me", clock=SystemClock())
    owner.lock.seize()
    owner.activate()
    try:
        store = SqlStore(owner.fence, SystemClock())
        store.set_limits(UNLIMITED)
        store.recover()
    finally:
        owner.close()


def test_a_copy_that_reads_back_differently_is_not_served(
    words: str,
    target: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SqlStore.set_server_info

    def loses_one(store: SqlStore, info: ServerInfo) -> None:
        real(store, info)
        execute(source_at(target), "DELETE FROM Messages WHERE seq = 2")

    monkeypatch.setattr(SqlStore, "set_server_info", loses_one)
    status, _, err = run(capsys, "copy", words, target)
    assert status == 2
    assert "reads back as something else" in err
    with pytest.raises(RecoveryError):
        start_of_database(target)


def test_a_copy_with_a_gap_does_not_go_into_a_directory(
    served: Source, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(served, "DELETE FROM Messages WHERE seq = 2")
    status, _, err = run(capsys, "copy", words, str(tmp_path / "files"))
    assert status == 2
    assert "lacks the sequences 2 to 2" in err


def test_damage_in_a_directory_ends_a_copy_into_a_database(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    with serving_files(files) as node:
        node.publish(b"foo", b"one", b"two", b"three")
        node.stop()
    (data,) = (files / "foo").glob("msgs.*.dat")
    data.write_bytes(data.read_bytes().replace(b"two", b"TWO"))
    status, _, err = run(capsys, "copy", str(files), target)
    assert status == 2
    assert "lacks the sequences 2 to 2: a copy would hide" in err
    with pytest.raises(RecoveryError):
        start_of_database(target)


def test_publishes_that_a_database_remembers_make_it_no_empty_one(
    words: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_at(target)
    row = "INSERT INTO ftstan_remembered (digest, pos, seq, mark) VALUES ('x', 1, 1, 0)"
    execute(source, row)
    status, _, err = run(capsys, "copy", words, target)
    assert status == 2
    assert "is not empty: there are rows in ftstan_remembered" in err
    assert execute(source, "SELECT pos FROM ftstan_remembered") == [(1,)]


def test_a_user_who_may_make_no_table_serves_a_database_of_a_former_release(
    sql_servers: SqlServers, tmp_path: Path
) -> None:
    text = sql_servers.create("postgres")
    source = parse("postgres", text, {})
    execute(
        source,
        "DROP TABLE ftstan_endings",
        "REVOKE CREATE ON SCHEMA public FROM pg_database_owner",
    )
    owner = SqlOwner(source, server_id="me", clock=SystemClock(), name="node")
    owner.lock.seize()
    owner.activate()
    owner.ending = Ending.SIGTERM
    owner.close()
    start_of_database(named(tmp_path, "postgres", text))
    sql_servers.drop(text)
