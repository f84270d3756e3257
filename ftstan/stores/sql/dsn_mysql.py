"""Sources of the driver ``mysql``: a DSN, or a URL.

A DSN is ``[user[:password]@][protocol[(address)]]/database[?name=value&...]``.

In the first form nothing of user, password and database is escaped. A parameter that the
original's driver does not know is a variable of the session; the value has to be one literal,
because it becomes part of a statement. ``tls-ca``, ``tls-cert`` and ``tls-key`` (files, PEM) are
ours: no variable can be called so.

Source: ``docs/compat/sqlstore.md`` (data source names, MySQL).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from ftstan.stores.sql.dsn import (
    DISABLE,
    MYSQL,
    PREFER,
    REQUIRE,
    VERIFY_FULL,
    Source,
    Tls,
    no_nul,
    port_of,
    refusal,
    seconds_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCHEMES: Final = ("mysql://", "mariadb://")
_PORT: Final = "3306"
_SOCKET: Final = "/tmp/mysql.sock"  # noqa: S108  # the original's default
_TRUE: Final = ("1", "true", "TRUE", "True")
_FALSE: Final = ("0", "false", "FALSE", "False")
_TLS: Final = {"skip-verify": REQUIRE, "preferred": PREFER}

#: Switches about how the original's driver works; nothing here depends on them.
_EFFECTLESS_SWITCHES: Final = (
    "allowAllFiles", "allowNativePasswords", "allowCleartextPasswords", "checkConnLiveness",
    "clientFoundRows", "columnsWithAlias", "interpolateParams", "multiStatements", "parseTime",
    "rejectReadOnly",
)  # fmt: skip
_DEADLINES: Final = {
    "timeout": "connect_timeout",
    "readTimeout": "read_timeout",
    "writeTimeout": "write_timeout",
}
#: Variables on which the store's promises rest: the session gets ours after it is open.
_OURS: Final = frozenset({
    "autocommit",
    "big_tables",
    "character_set_client",
    "character_set_connection",
    "character_set_database",
    "character_set_results",
    "character_set_server",
    "collation_connection",
    "collation_database",
    "collation_server",
    "completion_type",
    "foreign_key_checks",
    "idle_transaction_timeout",
    "idle_write_transaction_timeout",
    "innodb_lock_wait_timeout",
    "lock_wait_timeout",
    "max_statement_time",
    "max_execution_time",
    "sql_auto_is_null",
    "sql_big_selects",
    "sql_log_bin",
    "sql_mode",
    "sql_safe_updates",
    "sql_select_limit",
    "transaction_isolation",
    "transaction_read_only",
    "tx_isolation",
    "tx_read_only",
    "unique_checks",
})  # fmt: skip
_WHERE: Final = re.compile(r"[a-z]*(\([^()]*\))?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LITERAL: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?|[A-Za-z_][A-Za-z0-9_]*|'[^'\\\0-\x1f]*'")


def parse_mysql(text: str) -> Source:
    """The database that ``text`` names.

    Raises ``ConfigError``; its text never contains a value that may be a password.
    """
    no_nul(MYSQL, text)
    if text.startswith(_SCHEMES) and not re.search(r"@(tcp|unix)\(", text):
        return _url(text)
    slash = _database_slash(text)
    if slash < 0 and text:
        raise refusal(
            "invalid DSN: missing the slash separating the database name",
            "write user:password@tcp(host:3306)/database",
        )
    before = text[: max(slash, 0)]
    after = text[slash + 1 :]
    login, at, where = before.rpartition("@")
    user, _, password = login.partition(":") if at else ("", "", "")
    database, _, query = after.partition("?")
    protocol, address = _address(where)
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if "=" in pair]
    return _source(user, password, protocol, address, database, pairs)


def _database_slash(text: str) -> int:
    """Where the slash before the database is, -1 for nowhere.

    It is the last one, as in the original. Where that leaves no address in front of it, slashes in
    the parameters (of a file) do not count.
    """
    last = text.rfind("/")
    ends = [last, *(text.rfind("/", 0, found.start()) for found in re.finditer(r"\?", text))]
    for slash in ends:
        where = text[: max(slash, 0)].rpartition("@")[2]
        if slash >= 0 and _WHERE.fullmatch(where):
            return slash
    return last


def _address(where: str) -> tuple[str, str]:
    protocol, opened, address = where.partition("(")
    if opened:
        if not address.endswith(")"):
            raise refusal(
                "invalid DSN: network address not terminated (missing closing brace)",
                "write user:password@tcp(host:3306)/database",
            )
        address = address[:-1]
    protocol = protocol or "tcp"
    if protocol not in ("tcp", "unix"):
        raise refusal(
            "invalid DSN: the protocol is neither tcp nor unix",
            "write user:password@tcp(host:3306)/database, or unix(/path/of/socket)",
        )
    return protocol, address


def _source(  # noqa: PLR0917  # the parts of the form
    user: str,
    password: str,
    protocol: str,
    address: str,
    database: str,
    pairs: Iterable[tuple[str, str]],
) -> Source:
    host = socket = ""
    port = 0
    if protocol == "unix":
        socket = address or _SOCKET
    else:
        host, port = _host_port(address or "127.0.0.1")
    parameters = _Parameters()
    for name, value in pairs:
        parameters.take(name, value)
    tls = parameters.tls()
    if socket and tls.mode == VERIFY_FULL:
        raise refusal(
            "tls=true over a local socket: there is no host name to check",
            "leave tls out, or connect with tcp(host:port)",
        )
    return Source(
        MYSQL,
        host=host,
        port=port,
        socket=socket,
        user=user,
        password=password,
        database=database,
        tls=tls,
        connect_timeout=parameters.seconds.get("connect_timeout", 0.0),
        read_timeout=parameters.seconds.get("read_timeout", 0.0),
        write_timeout=parameters.seconds.get("write_timeout", 0.0),
        settings=tuple(parameters.settings.items()),
        overridden=tuple(parameters.overridden),
        max_allowed_packet=parameters.packet,
    )


def _host_port(address: str) -> tuple[str, int]:
    if address.startswith("["):
        host, closed, rest = address[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise refusal("the address in sql_source has no closing bracket")
        return host, port_of(rest[1:] or _PORT)
    if address.count(":") > 1:
        raise refusal("an IPv6 address in sql_source needs brackets", "write tcp([::1]:3306)")
    host, _, port = address.partition(":")
    return host or "127.0.0.1", port_of(port or _PORT)


class _Parameters:
    """What the parameters of a source say, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.settings: dict[str, str] = {}
        self.overridden: list[str] = []
        self.packet = 0
        self._tls = DISABLE
        self._fallback = False
        self._files: dict[str, str] = {}

    def take(self, name: str, value: str) -> None:
        if field := _DEADLINES.get(name):
            self.seconds[field] = seconds_of(name, value)
        elif name in _EFFECTLESS_SWITCHES:
            _switch(name, value)
        elif name == "allowOldPasswords":
            if _switch(name, value):
                raise refusal(
                    'sql_source: the parameter "allowOldPasswords" is not supported',
                    "give the user a password of the present kind",
                )
        elif name == "allowFallbackToPlaintext":
            self._fallback = _switch(name, value)
        elif name in ("charset", "collation"):
            self.overridden.append(name)
        elif name == "loc":
            _unescaped(value)
        elif name == "maxAllowedPacket":
            if not re.fullmatch(r"[0-9]{1,10}", value, re.ASCII):
                raise refusal("maxAllowedPacket of sql_source is no number of bytes")
            self.packet = int(value)
        elif name == "serverPubKey":
            raise refusal(
                'sql_source: the parameter "serverPubKey" is not supported',
                "it names a key that a program registered; use tls",
            )
        elif name == "tls":
            self._take_tls(_unescaped(value))
        elif name in ("tls-ca", "tls-cert", "tls-key"):
            self._files[name.removeprefix("tls-")] = _unescaped(value)
        else:
            self._take_variable(name, _unescaped(value))

    def tls(self) -> Tls:
        mode = self._tls
        if self._files and mode == DISABLE:
            raise refusal("sql_source names files for TLS and does not ask for TLS", "add tls=true")
        if self._fallback and mode == REQUIRE:
            mode = PREFER
        elif self._fallback and mode == VERIFY_FULL:
            raise refusal(
                "allowFallbackToPlaintext with tls=true: whoever is in between could choose",
                "leave allowFallbackToPlaintext out, or say tls=preferred",
            )
        files = self._files
        return Tls(
            mode, ca=files.get("ca", ""), cert=files.get("cert", ""), key=files.get("key", "")
        )

    def _take_tls(self, value: str) -> None:
        if value in _TRUE:
            self._tls = VERIFY_FULL
        elif value in _FALSE:
            self._tls = DISABLE
        elif mode := _TLS.get(value.lower()):
            self._tls = mode
        else:
            raise refusal(
                "invalid value / unknown config name: tls of sql_source",
                "use true, false, skip-verify or preferred; tls-ca=FILE names own authorities",
            )

    def _take_variable(self, name: str, value: str) -> None:
        if not _VARIABLE.fullmatch(name):
            raise refusal(
                "sql_source has a parameter that can be no variable of a session",
                "names of variables are letters, digits and _",
            )
        if name.lower() in _OURS:
            self.overridden.append(name)
        elif not _LITERAL.fullmatch(value):
            raise refusal(
                f'sql_source: the value of "{name}" is no single literal',
                "give a number, a word, or a text in single quotes (%27) without quotes in it",
            )
        else:
            self.settings[name] = value


def _switch(name: str, value: str) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise refusal(f'invalid bool value of "{name}" in sql_source', "use true or false")


def _url(text: str) -> Source:
    _, _, rest = text.partition("://")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    login, _, where = authority.rpartition("@")
    user, _, password = login.partition(":")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    socket = [_unescaped(value) for name, value in pairs if name == "socket"]
    return _source(
        _unescaped(user),
        _unescaped(password),
        "unix" if socket else "tcp",
        socket[-1] if socket else where,
        _unescaped(path),
        [(name, value) for name, value in pairs if name != "socket"],
    )


def _unescaped(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise refusal("invalid URL escape in sql_source", "write % as %25")
    try:
        plain = unquote_to_bytes(text.replace("+", " ")).decode()
    except UnicodeDecodeError as error:
        raise refusal("sql_source is not UTF-8 behind its escapes") from error
    no_nul(MYSQL, plain)
    return plain
