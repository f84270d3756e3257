"""Every form of ``-sql_source``: what it asks for, what is refused, and that no error tells it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.errors import ConfigError
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.session import LostError
from ftstan.stores.sql.source import MYSQL, POSTGRES, parse

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.sql.source import Source
    from tests.sqlservers import SqlServers

_USER = {"PGUSER": "os"}


def _fields(source: Source, names: Any) -> dict[str, Any]:
    tls = ("mode", "ca", "cert", "key")
    return {name: getattr(source.tls if name in tls else source, name) for name in names}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"host": "localhost", "port": 5432, "user": "os", "database": "os"}),
        ("", {"mode": "require", "password": "", "socket": ""}),
        ("dbname=test_nats_streaming sslmode=disable", {"database": "test_nats_streaming"}),
        ("dbname=x sslmode=disable", {"mode": "disable", "settings": ()}),
        ("user = 'a b' password='it\\'s \\\\ x' ", {"user": "a b", "password": "it's \\ x"}),
        ("password=a\\ b", {"password": "a b"}),
        ("password=", {"password": ""}),
        ("user=a user=b", {"user": "b", "database": "b"}),
        ("host=/run/pg sslmode=verify-full", {"socket": "/run/pg", "host": "", "mode": "disable"}),
        ("readTimeout=500ms WRITETIMEOUT=1m", {"read_timeout": 0.5, "write_timeout": 60.0}),
        ("readTimeout='5s'", {"read_timeout": 5.0}),
        ("connect_timeout=7", {"connect_timeout": 7.0}),
        ("search_path=nss binary_parameters=yes", {"settings": (("search_path", "nss"),)}),
        ("synchronous_commit=off", {"settings": (), "overridden": ("synchronous_commit",)}),
        ("Default_Transaction_Isolation=x", {"overridden": ("Default_Transaction_Isolation",)}),
        ("postgres://u:p%40%2F@[::1]:5433/d%20b?sslmode=verify-full&sslrootcert=/ca",
         {"user": "u", "password": "p@/", "host": "::1", "port": 5433, "database": "d b",
          "mode": "verify-full", "ca": "/ca"}),
        ("postgresql://h/d?readTimeout=5s", {"host": "h", "read_timeout": 5.0}),
        ("postgres://u:a@b@h/d", {"user": "u", "password": "a@b", "host": "h"}),
        ("postgres://", {"host": "localhost", "user": "os"}),
    ],
)  # fmt: skip
def test_a_source_of_postgres_names_a_database(text: str, expected: dict[str, Any]) -> None:
    assert _fields(parse(POSTGRES, text, _USER), expected) == expected


def test_the_environment_gives_postgres_defaults_and_the_source_wins() -> None:
    environment = {
        "PGHOST": "h",
        "PGPORT": "1",
        "PGUSER": "u",
        "PGPASSWORD": "p",
        "PGSSLMODE": "verify-ca",
        "PGDATABASE": "d",
    }
    made = parse(POSTGRES, "port=2", environment)
    assert (made.host, made.port, made.user, made.password) == ("h", 2, "u", "p")
    assert (made.tls.mode, made.database) == ("verify-ca", "d")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"host": "127.0.0.1", "port": 3306, "user": "", "database": "", "mode": "disable"}),
        ("nss:password@/db", {"user": "nss", "password": "password", "database": "db"}),
        ("u:p@tcp(h:1)/d?readTimeout=500ms", {"host": "h", "port": 1, "read_timeout": 0.5}),
        ("u:p@tcp(h:1)/d?timeout=5s&writeTimeout=1s",
         {"connect_timeout": 5.0, "write_timeout": 1.0}),
        ("u:a@b:c/d?e@tcp(h)/db", {"user": "u", "password": "a@b:c/d?e", "database": "db"}),
        ("u@unix(/run/my.sock)/db", {"socket": "/run/my.sock", "host": "", "port": 0}),
        ("u@unix/db", {"socket": "/tmp/mysql.sock"}),
        ("@tcp([::1]:99)/db", {"host": "::1", "port": 99}),
        ("tcp(h)/", {"host": "h", "port": 3306, "database": ""}),
        ("u:p@tcp(h)/db?tls=true", {"mode": "verify-full"}),
        ("u:p@tcp(h)/db?tls=skip-verify", {"mode": "require"}),
        ("u:p@tcp(h)/db?tls=preferred", {"mode": "prefer"}),
        ("u:p@tcp(h)/db?tls=skip-verify&allowFallbackToPlaintext=true", {"mode": "prefer"}),
        ("u:p@tcp(h)/db?tls=true&tls-ca=/etc/x/ca.pem", {"ca": "/etc/x/ca.pem", "database": "db"}),
        ("u:p@tcp(h)/db?loc=Europe%2FBerlin&parseTime=true", {"settings": (), "database": "db"}),
        ("u:p@/db?wait_timeout=60", {"settings": (("wait_timeout", "60"),)}),
        ("u:p@/db?time_zone=%27%2B00:00%27", {"settings": (("time_zone", "'+00:00'"),)}),
        ("u:p@/db?sql_mode=%27%27&charset=gbk",
         {"settings": (), "overridden": ("sql_mode", "charset")}),
        ("u:p@/db?TX_isolation=%27READ-UNCOMMITTED%27", {"overridden": ("TX_isolation",)}),
        ("mysql://u:p%40@h:1/d%2Fb?tls=true", {"password": "p@", "database": "d/b", "port": 1}),
        ("mariadb://u@/d?socket=/s", {"socket": "/s", "database": "d"}),
    ],
)  # fmt: skip
def test_a_source_of_mysql_names_a_database(text: str, expected: dict[str, Any]) -> None:
    assert _fields(parse(MYSQL, text), expected) == expected


@pytest.mark.parametrize(
    ("driver", "text", "complaint"),
    [
        ("", "", 'sql: unknown driver "" (forgotten import?)'),
        ("Postgres", "", 'sql: unknown driver "Postgres" (forgotten import?)'),
        (MYSQL, "s3cret", "invalid DSN: missing the slash separating the database name"),
        (MYSQL, "u:s3cret@tcp(h/db", "network address not terminated"),
        (MYSQL, "u:s3cret@udp(h)/db", "protocol is neither tcp nor unix"),
        (MYSQL, "u:s3cret@tcp(h:0)/db", "not a number from 1 to 65535"),
        (MYSQL, "u:s3cret@tcp(::1)/db", "needs brackets"),
        (MYSQL, "u:s3cret@/db?tls=mine", "unknown config name"),
        (MYSQL, "u:s3cret@/db?parseTime=yes", "invalid bool value"),
        (MYSQL, "u:s3cret@/db?timeout=5", "unable to parse timeout: time: missing unit"),
        (MYSQL, "u:s3cret@/db?timeout=-5s", "cannot be negative"),
        (MYSQL, "u:s3cret@/db?x=1;DROP", 'the value of "x" is no single literal'),
        (MYSQL, "u:s3cret@/db?x=%27a%5C%27", 'the value of "x" is no single literal'),
        (MYSQL, "u:s3cret@/db?x=1,sql_mode=0", "no single literal"),
        (MYSQL, "u:s3cret@/db?x,sql_mode=0", "can be no variable"),
        (MYSQL, "u:s3cret@/db?x=%zz", "invalid URL escape"),
        (MYSQL, "u:s3cret@unix(/s)/db?tls=true", "no host name to check"),
        (MYSQL, "u:s3cret@tcp(h)/db?tls=true&allowFallbackToPlaintext=true", "could choose"),
        (MYSQL, "u:s3cret@tcp(h)/db?tls-ca=%2Fx", "does not ask for TLS"),
        (MYSQL, "u:s3cret@/db?allowOldPasswords=true", "allowOldPasswords"),
        (MYSQL, "u:s3cret@/db\0", "NUL"),
        (POSTGRES, "password=s3 cret", 'missing "=" after word 2'),
        (POSTGRES, "password='s3cret", "unterminated quoted string"),
        (POSTGRES, "password=s3cret\\", "missing character after backslash"),
        (POSTGRES, "password=s3cret sslmode=prefer", "unsupported sslmode"),
        (POSTGRES, "password=s3cret sslmode=", ""),
        (POSTGRES, "readTimeout=zz", 'unable to parse readTimeout: time: invalid duration "zz"'),
        (POSTGRES, "password=s3cret host=a,b", "several hosts"),
        (POSTGRES, "password=s3cret port=x", "not a number"),
        (POSTGRES, "password=s3cret sslinline=true", "sslinline"),
        (POSTGRES, "password=s3cret service=x", '"service" is not supported'),
        (POSTGRES, "password=s3cret a-b=x", "can be no setting"),
        (POSTGRES, "postgres://u:s3cret@h:x/d", "not a number"),
        (POSTGRES, "postgres://u:s3cret%@h/d", "invalid URL escape"),
        (POSTGRES, "postgres://u:s3cret@h/d%00", "NUL"),
        (POSTGRES, "postgres://u:s3cret@[::1/d", "closing bracket"),
    ],
)  # fmt: skip
def test_what_names_no_database_is_refused_without_its_password(
    driver: str, text: str, complaint: str
) -> None:
    if not complaint:
        assert parse(driver, text, _USER).tls.mode == "require"
        return
    with pytest.raises(ConfigError) as caught:
        parse(driver, text, _USER)
    assert complaint in caught.value.text
    assert "s3" not in caught.value.text + caught.value.hint


def test_another_database_by_the_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="PGSERVICE is not supported"):
        parse(POSTGRES, "", {"PGSERVICE": "other"})


def test_a_source_never_shows_its_password() -> None:
    for made in (
        parse(POSTGRES, "password=s3cret host=h user=u\n", _USER),
        parse(MYSQL, "u:s3cret@tcp(h)/d"),
    ):
        assert made.password == "s3cret"
        assert "s3cret" not in repr(made) + made.shown()
    assert parse(MYSQL, "u\x1b@tcp(h)/d").shown() == "mysql u?@h:3306/d"


@pytest.mark.parametrize("mode", ["disable", "require", "verify-ca", "verify-full"])
def test_psycopg_is_asked_for_exactly_the_tls_of_the_source(mode: str, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    text = f"host=h sslmode={mode} sslrootcert={ca} search_path='a b\\\\'"
    made = parse(POSTGRES, text, _USER).connect_arguments()
    assert (made["sslmode"], made["sslrootcert"], made["gssencmode"]) == (mode, str(ca), "disable")
    assert made["options"] == "-c search_path=a\\ b\\\\"


@pytest.mark.parametrize(
    ("tls", "mode"),
    [("false", "DISABLED"), ("skip-verify", "REQUIRED"), ("true", "VERIFY_IDENTITY"),
     ("preferred", "REQUIRED")],
)  # fmt: skip
def test_the_libraries_of_mysql_are_asked_for_exactly_that_tls(tls: str, mode: str) -> None:
    source = parse(MYSQL, f"u:p@tcp(localhost:7)/d?tls={tls}&readTimeout=1ms")
    c = source.connect_arguments("MySQLdb")
    assert (c["ssl_mode"], c["host"], c["read_timeout"]) == (mode, "127.0.0.1", 1)
    assert bool(c.get("ssl")) == (tls == "true")
    pure = source.connect_arguments("pymysql")
    assert pure["host"] == "localhost"
    assert pure.get("ssl_disabled", False) == (tls == "false")
    if tls in {"true", "skip-verify"}:
        assert pure["ssl"].check_hostname == (tls == "true")
        assert bool(pure["ssl"].verify_mode) == (tls == "true")


@given(st.sampled_from([MYSQL, POSTGRES]), st.text(max_size=60))
def test_any_text_is_a_source_or_one_clear_error(driver: str, text: str) -> None:
    made: Source | None = None
    with contextlib.suppress(ConfigError):
        made = parse(driver, text, _USER)
    if made is not None:
        assert made.shown().isprintable()


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20))
def test_any_password_can_be_quoted(password: str) -> None:
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    assert parse(POSTGRES, f"password='{escaped}' user=u", {}).password == password
    assert parse(MYSQL, f"u:{password}@tcp(h:1)/d").password == password


@pytest.mark.parametrize("driver", [MYSQL, POSTGRES])
def test_a_server_without_tls_is_refused_where_tls_was_asked_for(
    driver: str, sql_servers: SqlServers
) -> None:
    for said in ("tls=skip-verify", "tls=true") if driver == MYSQL else ("require", "verify-full"):
        text = (
            f"nss:nss@tcp(127.0.0.1:{sql_servers.my})/?{said}"
            if driver == MYSQL
            else f"host=127.0.0.1 port={sql_servers.pg} user=nss dbname=postgres sslmode={said}"
        )
        with pytest.raises(LostError, match=r"TLS|SSL"):
            connect(parse(driver, text, {}))
