"""Sources of the driver ``postgres``: words ``key=value``, or a URL.

The rules are those of the original's driver, not of libpq: TLS is required unless the source says
otherwise, the host is ``localhost`` over TCP unless it says otherwise, and a key that the driver
does not know is a run-time parameter of the session.

Source: ``docs/compat/sqlstore.md`` (data source names, PostgreSQL).
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from ftstan.stores.sql.dsn import (
    DISABLE,
    POSTGRES,
    REQUIRE,
    VERIFY_CA,
    VERIFY_FULL,
    Source,
    Tls,
    environment_user,
    no_nul,
    port_of,
    refusal,
    seconds_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMES: Final = ("postgres://", "postgresql://")
_MODES: Final = (REQUIRE, VERIFY_FULL, VERIFY_CA, DISABLE)
_BLANK: Final = " \t\n\v\f\r"

#: Environment of the driver, and the key that each gives a default for.
_ENVIRONMENT: Final = {
    "PGHOST": "host",
    "PGPORT": "port",
    "PGDATABASE": "dbname",
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGPASSFILE": "passfile",
    "PGOPTIONS": "options",
    "PGAPPNAME": "application_name",
    "PGSSLMODE": "sslmode",
    "PGSSLCERT": "sslcert",
    "PGSSLKEY": "sslkey",
    "PGSSLROOTCERT": "sslrootcert",
    "PGSSLSNI": "sslsni",
    "PGCONNECT_TIMEOUT": "connect_timeout",
    "PGKRBSRVNAME": "krbsrvname",
    "PGDATESTYLE": "datestyle",
    "PGTZ": "timezone",
    "PGGEQO": "geqo",
}
#: Environment that libpq knows and the original refuses: it would lead to another database.
_REFUSED_ENVIRONMENT: Final = ("PGHOSTADDR", "PGSERVICE", "PGSERVICEFILE", "PGREALM")

#: Keys that libpq gives a meaning of its own; the original would send them as settings, in vain.
_FOREIGN: Final = {
    "hostaddr": "give the address as host",
    "service": "write the keys of the service into the source",
    "servicefile": "write the keys of the service into the source",
    "target_session_attrs": "name the one server that takes writes; a list of hosts is not taken",
    "load_balance_hosts": "name one host",
    "krbspn": "use krbsrvname",
    "sslpassword": "use a key without a password, readable by the server's user alone",
    "sslcrl": "revoke at the authority; lists are not read",
    "sslcrldir": "revoke at the authority; lists are not read",
    "gssencmode": "use sslmode",
    "requiressl": "use sslmode",
    "replication": "an ordinary connection is needed",
}
#: Handed on as they are.
_HANDED: Final = ("application_name", "fallback_application_name", "krbsrvname", "passfile")
#: About how the original's driver sends parameters; nothing here depends on it.
_EFFECTLESS: Final = ("binary_parameters", "disable_prepared_binary_result")

#: Run-time parameters on which the store's promises rest: the session gets ours after it is open.
_OURS: Final = frozenset({
    "allow_in_place_tablespaces",
    "bytea_output",
    "client_encoding",
    "commit_siblings",
    "default_transaction_deferrable",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "ignore_checksum_failure",
    "lock_timeout",
    "row_security",
    "session_replication_role",
    "standard_conforming_strings",
    "statement_timeout",
    "synchronous_commit",
    "transaction_deferrable",
    "transaction_isolation",
    "transaction_read_only",
    "transaction_timeout",
    "zero_damaged_pages",
})  # fmt: skip
_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)?")
_DEADLINES: Final = {"readtimeout": "readTimeout", "writetimeout": "writeTimeout"}


def parse_postgres(text: str, environment: Mapping[str, str]) -> Source:
    """The database that ``text`` names; ``environment`` gives defaults.

    Raises ``ConfigError``; its text never contains a value that may be a password.
    """
    no_nul(POSTGRES, text)
    said = _url(text) if text.startswith(_SCHEMES) else _words(text)
    for name in _REFUSED_ENVIRONMENT:
        if environment.get(name):
            raise refusal(
                f"the environment variable {name} is not supported",
                "take it out of the server's environment and name the database in sql_source",
            )
    defaults = {key: environment[name] for name, key in _ENVIRONMENT.items() if name in environment}
    return _source(
        {**{key: value for key, value in defaults.items() if value}, **said}, environment
    )


def _source(said: dict[str, str], environment: Mapping[str, str]) -> Source:
    deadlines = {}
    settings: list[tuple[str, str]] = []
    overridden: list[str] = []
    known: dict[str, str] = {}
    for key, value in said.items():
        if deadline := _DEADLINES.get(key.lower()):
            deadlines[deadline] = seconds_of(deadline, value)
        elif key in _KNOWN:
            known[key] = value
        elif key in _FOREIGN:
            raise refusal(f'sql_source: the key "{key}" is not supported', _FOREIGN[key])
        elif key in _EFFECTLESS:
            _switch(key, value)
        elif not _SETTING.fullmatch(key):
            raise refusal(
                "sql_source has a key that can be no setting of a session",
                "keys are words of letters, digits and _; quote values that contain blanks",
            )
        elif key.lower() in _OURS:
            overridden.append(key)
        else:
            settings.append((key, value))
    user = known.get("user") or environment_user(environment)
    host = known.get("host") or "localhost"
    socket = ""
    if host.startswith("/"):
        socket = host
        host = ""
    elif "," in host or "," in known.get("port", ""):
        raise refusal(
            "sql_source names several hosts", "name one: only one database can hold the store"
        )
    return Source(
        POSTGRES,
        host=host,
        port=port_of(known.get("port") or "5432"),
        socket=socket,
        user=user,
        password=known.get("password", ""),
        database=known.get("dbname") or user,
        tls=_tls(known, local=bool(socket)),
        connect_timeout=_connect_timeout(known.get("connect_timeout", "")),
        read_timeout=deadlines.get("readTimeout", 0.0),
        write_timeout=deadlines.get("writeTimeout", 0.0),
        settings=tuple(settings),
        overridden=tuple(overridden),
        extra=tuple(
            (key, known[key]) for key in (*_HANDED, "options") if known.get(key)
        ),
    )  # fmt: skip


_KNOWN: Final = frozenset({
    "host", "port", "user", "password", "dbname", "sslmode", "sslcert", "sslkey", "sslrootcert",
    "sslinline", "sslsni", "connect_timeout", "options", *_HANDED,
})  # fmt: skip


def _tls(known: dict[str, str], *, local: bool) -> Tls:
    mode = known.get("sslmode") or REQUIRE
    if mode not in _MODES:
        # Not the value itself: with a quote forgotten it may be more than a mode.
        raise refusal(
            'unsupported sslmode; only "require" (default), "verify-full", "verify-ca", and '
            '"disable" supported'
        )
    if _switch("sslinline", known.get("sslinline", "")):
        raise refusal(
            'sql_source: the key "sslinline" is not supported',
            "write certificate and key into files and name these",
        )
    if local:
        # As the original: nobody is between the two ends of a local socket.
        mode = DISABLE
    return Tls(
        mode,
        ca=known.get("sslrootcert", ""),
        cert=known.get("sslcert", ""),
        key=known.get("sslkey", ""),
        sni=known.get("sslsni", "1") != "0",
    )


def _switch(key: str, value: str) -> bool:
    if value.lower() in ("yes", "true", "1", "on"):
        return True
    if value.lower() in ("", "no", "false", "0", "off"):
        return False
    raise refusal(f'sql_source: the value of "{key}" is neither yes nor no')


def _connect_timeout(text: str) -> float:
    if not text:
        return 0.0
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text, re.ASCII):
        raise refusal("connect_timeout of sql_source is no number of seconds")
    return float(max(0, int(text)))


def _words(text: str) -> dict[str, str]:
    r"""``key=value`` words: blanks around ``=`` are none, quotes are single, ``\`` takes the next
    character as it is. The last of several equal keys counts.
    """
    said: dict[str, str] = {}
    at = 0
    while True:
        while at < len(text) and text[at] in _BLANK:
            at += 1
        if at == len(text):
            return said
        start = at
        while at < len(text) and text[at] != "=" and text[at] not in _BLANK:
            at += 1
        key = text[start:at]
        while at < len(text) and text[at] in _BLANK:
            at += 1
        if at == len(text) or text[at] != "=":
            raise refusal(
                f'missing "=" after word {len(said) + 1} in connection info string',
                "write key=value words, with single quotes around values that contain blanks",
            )
        at += 1
        while at < len(text) and text[at] in _BLANK:
            at += 1
        said[key], at = _quoted(text, at + 1) if text[at : at + 1] == "'" else _plain(text, at)


def _plain(text: str, at: int) -> tuple[str, int]:
    value = []
    while at < len(text) and text[at] not in _BLANK:
        if text[at] == "\\":
            at += 1
            if at == len(text):
                raise refusal("missing character after backslash in connection info string")
        value.append(text[at])
        at += 1
    return "".join(value), at


def _quoted(text: str, at: int) -> tuple[str, int]:
    value: list[str] = []
    while at < len(text):
        if text[at] == "'":
            return "".join(value), at + 1
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
        value.append(text[at])
        at += 1
    raise refusal("unterminated quoted string literal in connection string")


def _url(text: str) -> dict[str, str]:
    _, _, rest = text.partition("://")
    rest, _, _fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    login, at, where = authority.rpartition("@")
    said: dict[str, str] = {}
    if at:
        user, colon, password = login.partition(":")
        said["user"] = _unescaped(user)
        if colon:
            said["password"] = _unescaped(password)
    host, port = _host_port(where)
    if host:
        said["host"] = _unescaped(host)
    if port:
        said["port"] = port
    if path:
        said["dbname"] = _unescaped(path)
    for pair in filter(None, query.split("&")):
        key, _, value = pair.partition("=")
        said[_unescaped(key.replace("+", " "))] = _unescaped(value.replace("+", " "))
    return {key: value for key, value in said.items() if value}


def _host_port(where: str) -> tuple[str, str]:
    if where.startswith("["):
        host, closed, rest = where[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise refusal("the address in the URL of sql_source has no closing bracket")
        return host, rest[1:]
    host, _, port = where.partition(":")
    return host, port


def _unescaped(text: str) -> str:
    digits = string.hexdigits
    for i, c in enumerate(text):
        if c == "%" and not (text[i + 1 : i + 2] in digits and text[i + 2 : i + 3] in digits
                             and len(text) > i + 2):  # fmt: skip
            raise refusal(
                "invalid URL escape in sql_source", "write % as %25, @ as %40, / as %2F in a URL"
            )
    try:
        plain = unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise refusal("the URL of sql_source is not UTF-8 behind its escapes") from error
    no_nul(POSTGRES, plain)
    return plain
