"""``ftstanctl check-store`` of databases: what it tells of settings, tables, rights and pools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ftstan.cli import ctl
from ftstan.storecheck.database import DatabaseBench, check_database
from ftstan.storecheck.findings import Outcome, StorageFinding
from tests.sqlservers import execute

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.sql.session import Session
    from ftstan.stores.sql.source import Source

#: What an operator would have; the tests' own servers sync nothing.
GOOD = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_doublewrite": "ON",
}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the server says of these settings, to be changed."""
    said = dict(GOOD)
    real = DatabaseBench.setting
    monkeypatch.setattr(
        DatabaseBench, "setting", lambda bench, name: said.get(name) or real(bench, name)
    )
    return said


def found(source: Source, outcome: Outcome) -> dict[str, StorageFinding]:
    """Findings of this outcome, by check."""
    return {f.check: f for f in check_database(source) if f.outcome is outcome}


def of(driver: str) -> pytest.MarkDecorator:
    """On a database of this kind alone."""
    return pytest.mark.parametrize("sql_text", [driver], indirect=True)


def test_a_good_database_is_suitable_and_nothing_is_left_in_it(
    sql_source: Source, settings: dict[str, str]
) -> None:
    assert settings == GOOD
    findings = check_database(sql_source)
    assert [f for f in findings if f.outcome in (Outcome.BAD, Outcome.LIMIT)] == []
    assert execute(sql_source, "SELECT * FROM StoreLock") == []


@pytest.mark.parametrize(
    ("sql_text", "name", "value", "outcome"),
    [
        ("postgres", "fsync", "off", Outcome.BAD),
        ("postgres", "full_page_writes", "off", Outcome.BAD),
        ("postgres", "synchronous_commit", "off", Outcome.NOTE),
        ("postgres", "server_encoding", "SQL_ASCII", Outcome.BAD),
        ("postgres", "server_version_num", "90600", Outcome.LIMIT),
        ("mysql", "innodb_flush_log_at_trx_commit", "2", Outcome.BAD),
        ("mysql", "innodb_doublewrite", "OFF", Outcome.LIMIT),
        ("mysql", "sql_mode", "NO_ENGINE_SUBSTITUTION", Outcome.NOTE),
        ("mysql", "max_allowed_packet", "1048576", Outcome.LIMIT),
        ("mysql", "read_only", "ON", Outcome.BAD),
    ],
    indirect=["sql_text"],
)
def test_settings_that_lose_messages_or_refuse_them_are_told(
    sql_source: Source,
    settings: dict[str, str],
    name: str,
    value: str,
    outcome: Outcome,
) -> None:
    settings[name] = value
    (finding,) = (f for f in found(sql_source, outcome).values() if value in f.text or (
        name in ("server_encoding", "server_version_num", "read_only")
    ))  # fmt: skip
    assert finding.hint


@of("mysql")
def test_sync_binlog_matters_where_there_is_a_binlog(
    sql_source: Source, settings: dict[str, str]
) -> None:
    settings["sync_binlog"] = "0"
    settings["log_bin"] = "OFF"
    assert not found(sql_source, Outcome.LIMIT)
    settings["log_bin"] = "ON"
    assert "sync_binlog" in found(sql_source, Outcome.LIMIT)


def test_tables_that_are_missing_or_of_another_engine_are_unsuitable(
    sql_source: Source, settings: dict[str, str]
) -> None:
    assert settings
    if sql_source.driver == "mysql":
        execute(sql_source, "ALTER TABLE Messages MODIFY data BLOB")
        finding = found(sql_source, Outcome.LIMIT)["message size"]
        assert "65535 bytes a message" in finding.text
        execute(sql_source, "ALTER TABLE SubsPending ENGINE=MyISAM")
        assert "not InnoDB" in found(sql_source, Outcome.BAD)["engine"].text
    execute(sql_source, "DROP TABLE SubsPending")
    assert "missing: SubsPending" in found(sql_source, Outcome.BAD)["tables"].text


@of("postgres")
def test_rights_that_are_missing_are_named(sql_source: Source, settings: dict[str, str]) -> None:
    assert settings
    execute(sql_source, "REVOKE INSERT ON Messages FROM nss")
    assert "INSERT on Messages" in found(sql_source, Outcome.BAD)["rights"].text


def test_a_pool_that_shares_sessions_is_found_by_what_it_does(
    sql_source: Source, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PgBouncer in transaction mode: each statement gets whatever session is free."""
    assert settings
    real = DatabaseBench.another
    shared: list[Session] = []

    def another(bench: DatabaseBench) -> Session:
        if not shared:
            shared.append(real(bench))
        return shared[0]

    monkeypatch.setattr(DatabaseBench, "another", another)
    bad = found(sql_source, Outcome.BAD)
    assert "session" in bad
    assert ("pooling" in bad) == (sql_source.driver == "postgres")


def test_the_command_gives_a_verdict_and_its_status(
    sql_source: Source,
    sql_text: str,
    settings: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "source"
    path.write_text(sql_text, encoding="utf-8")
    path.chmod(0o600)
    word = f"{sql_source.driver}:{path}"
    assert ctl.main(["check-store", word, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "suitable"
    settings["fsync"] = "off"
    settings["innodb_flush_log_at_trx_commit"] = "0"
    assert ctl.main(["check-store", word]) == 2
    assert "UNSUITABLE" in capsys.readouterr().out
    assert ctl.main(["check-store", word, "--peer"]) != 0
    assert "--peer and --phase are for directories" in capsys.readouterr().err
