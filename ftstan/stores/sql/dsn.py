"""Where a database is and how to reach it, as one value; the parsers beside this file make it.

``Source`` is what every form of ``-sql_source`` comes down to. It knows the arguments of each
client library that we use, so that the same text asks for the same encryption and the same checks
with all of them. Its ``repr`` and ``shown`` never contain the password.

Source: ``docs/compat/sqlstore.md`` (data source names).
"""

from __future__ import annotations

import math
import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import ConfigError
from ftstan.config.units import SECOND, parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

POSTGRES: Final = "postgres"
MYSQL: Final = "mysql"

DISABLE: Final = "disable"
PREFER: Final = "prefer"
REQUIRE: Final = "require"
VERIFY_CA: Final = "verify-ca"
VERIFY_FULL: Final = "verify-full"

#: ``CLIENT_FOUND_ROWS``: an update counts the rows it found, as every other database does.
_FOUND_ROWS: Final = 2
#: Bundles of authorities of the usual systems; the client libraries bring none that fits.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def refusal(text: str, hint: str = "") -> ConfigError:
    """An error about the source. ``text`` must not contain any part that may be a password."""
    return ConfigError(
        text, hint=hint or "docs/sql.md lists the forms of sql_source", option="sql_source"
    )


@dataclass(frozen=True, slots=True)
class Tls:
    """What was asked of TLS.

    ``mode``: ``disable``; ``prefer``: if the server offers it, unchecked; ``require``: always,
    unchecked; ``verify-ca``: signed by an authority of ``ca``; ``verify-full``: and for the name
    that we connect to. Files are PEM; an empty ``ca`` means the authorities of this system.
    """

    mode: str = DISABLE
    ca: str = ""
    cert: str = ""
    key: str = ""
    sni: bool = True

    @property
    def verified(self) -> bool:
        """Whether the server's certificate is checked."""
        return self.mode in (VERIFY_CA, VERIFY_FULL)

    @property
    def demanded(self) -> bool:
        """Whether a session without TLS must not be used."""
        return self.mode not in (DISABLE, PREFER)

    def authorities(self) -> str:
        """The file to check the server's certificate with.

        Raises ``ConfigError`` if none was named and this system has none.
        """
        if self.ca:
            return self.ca
        found = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
        for path in found:
            if path and os.path.exists(path):
                return path
        raise refusal(
            "the database's certificate cannot be checked: this system has no file of authorities",
            "install ca-certificates, or name a file: sslrootcert=FILE (postgres), tls-ca=FILE "
            "(mysql)",
        )

    def context(self) -> ssl.SSLContext:
        """A context that does what ``mode`` says. Raises ``ConfigError`` for unusable files."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname = self.mode == VERIFY_FULL
        made.verify_mode = ssl.CERT_REQUIRED if self.verified else ssl.CERT_NONE
        try:
            if self.verified:
                made.load_verify_locations(self.authorities())
            if self.cert:
                made.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # ssl.SSLError is one
            raise refusal(
                f"TLS to the database: {error}", "name readable PEM files in sql_source"
            ) from error
        return made


@dataclass(frozen=True, slots=True)
class Source:
    """One database. Times are in seconds, 0 for none.

    ``socket``: directory (postgres) or file (mysql) of a local socket; ``host`` is empty then.
    ``settings``: session settings by name, asked for in the source. ``overridden``: names of
    settings in the source that would weaken what the store promises; the store sets its own value.
    ``extra``: more arguments for psycopg, by its names.
    """

    driver: str
    host: str = ""
    port: int = 0
    socket: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    tls: Tls = Tls()
    connect_timeout: float = 0.0
    read_timeout: float = 0.0
    write_timeout: float = 0.0
    settings: tuple[tuple[str, str], ...] = ()
    overridden: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    max_allowed_packet: int = 0

    def shown(self) -> str:
        """What and where it is, in one printable line, without the password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = self.socket or f"{host}:{self.port}"
        text = f"{self.driver} {self.user}@{where}/{self.database}"
        return "".join(c if c.isprintable() else "?" for c in text)

    def connect_arguments(self, library: str = "") -> dict[str, Any]:
        """Arguments of ``connect`` of ``psycopg``, ``MySQLdb`` or ``pymysql``.

        ``library`` may be left out for ``postgres``. Raises ``ConfigError`` for TLS files that
        cannot be used.
        """
        if self.driver == POSTGRES:
            return self._psycopg()
        return self._pymysql() if library == "pymysql" else self._mysqldb()

    def _psycopg(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            **dict(self.extra),
            "host": self.socket or self.host,
            "port": self.port,
            "user": self.user,
            "dbname": self.database,
            "sslmode": self.tls.mode,
            # Kerberos may replace TLS otherwise, with no certificate checked.
            "gssencmode": DISABLE,
            "client_encoding": "UTF8",
            "options": _startup_options(dict(self.extra).get("options", ""), self.settings),
        }
        if self.password:
            made["password"] = self.password
        if self.connect_timeout:
            made["connect_timeout"] = max(1, math.ceil(self.connect_timeout))
        if self.tls.verified:
            made["sslrootcert"] = self.tls.authorities()
        elif self.tls.ca:
            made["sslrootcert"] = self.tls.ca
        files = {"sslcert": self.tls.cert, "sslkey": self.tls.key}
        made |= {name: path for name, path in files.items() if path}
        if not self.tls.sni:
            made["sslsni"] = "0"
        if longest := max(self.read_timeout, self.write_timeout):
            # What we sent and nobody confirms; silence after that is the caller's to limit.
            made["tcp_user_timeout"] = math.ceil(longest * 1000)
        return made

    def _mysql(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "user": self.user,
            "password": self.password,
            "database": self.database,
            "charset": "utf8mb4",
            "client_flag": _FOUND_ROWS,
            "local_infile": False,
        }
        for name in ("connect_timeout", "read_timeout", "write_timeout"):
            if seconds := getattr(self, name):
                # The libraries take whole seconds, and 0 for none.
                made[name] = max(1, math.ceil(seconds))
        return made

    def _mysqldb(self) -> dict[str, Any]:
        made = self._mysql()
        if self.socket:
            made["unix_socket"] = self.socket
        else:
            # The C library takes "localhost" for a local socket, whatever the port.
            made["host"] = "127.0.0.1" if self.host == "localhost" else self.host
            made["port"] = self.port
        tls = self.tls
        made["ssl_mode"] = {
            DISABLE: "DISABLED",
            # MariaDB's client library takes PREFERRED for none, and goes on without TLS with this
            # if the server has none. What really requires TLS is checked behind the connect.
            PREFER: "REQUIRED",
            REQUIRE: "REQUIRED",
            VERIFY_CA: "VERIFY_CA",
            VERIFY_FULL: "VERIFY_IDENTITY",
        }[tls.mode]
        files = {"ca": tls.authorities() if tls.verified else "", "cert": tls.cert, "key": tls.key}
        if named := {name: path for name, path in files.items() if path}:
            made["ssl"] = named
        return made

    def _pymysql(self) -> dict[str, Any]:
        made = self._mysql()
        if self.max_allowed_packet:
            made["max_allowed_packet"] = self.max_allowed_packet
        if self.socket:
            made["unix_socket"] = self.socket
        else:
            made["host"] = self.host
            made["port"] = self.port
        if self.tls.mode == DISABLE:
            made["ssl_disabled"] = True
        elif self.tls.mode != PREFER:
            made["ssl"] = self.tls.context()
        return made


def _startup_options(given: str, settings: tuple[tuple[str, str], ...]) -> str:
    words = [given] if given else []
    for name, value in settings:
        escaped = "".join("\\" + c if c in "\\ \t\n\r\v\f" else c for c in value)
        words.append(f"-c {name}={escaped}")
    return " ".join(words)


def port_of(text: str) -> int:
    """A port from 1 to 65535. Raises ``ConfigError``."""
    if text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 1 << 16:
        return int(text)
    raise refusal("the port of the database is not a number from 1 to 65535")


def seconds_of(name: str, text: str) -> float:
    """A Go duration as seconds. Raises ``ConfigError`` with the original's words."""
    try:
        nanos = parse_duration(text)
    except ConfigError as error:
        raise refusal(f"unable to parse {name}: {error.text}", error.hint) from error
    if nanos < 0:
        raise refusal(f"{name} cannot be negative", "give a duration such as 5s, or leave it out")
    return nanos / SECOND


def no_nul(driver: str, text: str) -> None:
    """Refuse what no C library can be given. Raises ``ConfigError``."""
    if "\0" in text:
        raise refusal(f"sql_source of driver {driver} contains a NUL byte")


def environment_user(environment: Mapping[str, str]) -> str:
    """The name of the user who runs this process."""
    import getpass  # noqa: PLC0415  # late: it imports pwd and more
    import pwd  # noqa: PLC0415

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return environment.get("USER") or getpass.getuser()
