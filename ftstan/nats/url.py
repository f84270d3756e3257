"""The NATS addresses that an operator writes (``-ns``, ``-cluster``), parsed.

Never shown with their credentials.

Pure functions: nothing is resolved or connected here.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from ftstan.base.errors import ConfigError
from ftstan.base.log import redact_url


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """What a client says about itself: ``user`` and ``password``, or ``token``, or nothing (all
    empty).
    """

    user: str = ""
    password: str = ""
    token: str = ""

    def __bool__(self) -> bool:
        return bool(self.user or self.password or self.token)

    def __repr__(self) -> str:
        return "Login([REDACTED])" if self else "Login()"


@dataclass(frozen=True, slots=True)
class NatsUrl:
    """One ``nats://[user:password@|token@]host:port``.

    ``host`` without brackets, ``port`` 1-65535 or -1 (random).

    ``is_tls``: its scheme was ``tls``, and a server without TLS is refused.
    """

    host: str
    port: int
    login: Login = Login()
    is_tls: bool = False

    @property
    def address(self) -> str:
        """``host:port``, with brackets around an IPv6 host."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def plain(self) -> str:
        """The URL without credentials."""
        return f"nats://{self.address}"

    @property
    def shown(self) -> str:
        """The URL for logs: credentials replaced by ``[REDACTED]``, as the original prints them
        since 0.14.0.
        """
        return f"nats://[REDACTED]@{self.address}" if self.login else self.plain


def parse_url(text: str) -> NatsUrl:
    """Parse one client URL. Scheme and port are required.

    Raises ``ConfigError`` in the original's words (``docs/compat/nats.md``): ``malformed url: <u>``
    and ``address <h>: missing port in address``.
    """
    scheme, login, host, port = _split(text)
    if scheme not in {"nats", "tls"} or not host:
        raise ConfigError(f"malformed url: {redact_url(text)}", hint="write it as nats://host:port")
    if not port:
        raise ConfigError(
            f"address {host}: missing port in address", hint="write it as nats://host:port"
        )
    return NatsUrl(host=host, port=_port(port, text), login=login, is_tls=scheme == "tls")


def parse_urls(text: str) -> tuple[NatsUrl, ...]:
    """Parse a comma separated list of client URLs (``-ns``), blanks around each allowed.

    Errors: see ``parse_url``.
    """
    return tuple(parse_url(part.strip()) for part in text.split(","))


def parse_cluster_listen(text: str) -> NatsUrl:
    """Parse the URL on which routes are accepted (``-cluster``):
    ``nats://[user:password@]host:port``.

    An empty host means every interface; port -1 means a random one. Raises ``ConfigError`` with the
    original's ``missing port in address`` or ``expected cluster password to be set``.
    """
    scheme, login, host, port = _split(text)
    if not scheme:
        raise ConfigError(f"malformed url: {redact_url(text)}", hint="write it as nats://host:port")
    if not port:
        raise ConfigError("missing port in address", hint="write -cluster as nats://host:port")
    if login.token:
        raise ConfigError(
            "expected cluster password to be set",
            hint="write -cluster as nats://user:password@host:port",
        )
    number = -1 if port == "-1" else _port(port, text)
    # The original's default.
    return NatsUrl(host=host or "0.0.0.0", port=number, login=login)  # noqa: S104


def with_login(url: str, login: Login) -> str:
    """``url``, as written, with the user and password of ``login`` unless it has a login of its
    own.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or "@" in rest or not login.user:
        return url
    return f"{scheme}://{quote(login.user, safe='')}:{quote(login.password, safe='')}@{rest}"


def effective_login(url: NatsUrl, default: Login) -> Login:
    """Credentials for ``url``: those written in it win over the configured ones."""
    return url.login or default


def _split(text: str) -> tuple[str, Login, str, str]:
    """Scheme, login, host and port as written; empty where missing."""
    scheme, separator, rest = text.partition("://")
    if not separator or any(c.isspace() or not c.isprintable() for c in text):
        return "", Login(), "", ""
    authority = rest.split("/", 1)[0].split("?", 1)[0]
    userinfo, _, hostport = authority.rpartition("@")
    if hostport.startswith("["):
        host, _, tail = hostport[1:].partition("]")
        port = tail.removeprefix(":") if tail.startswith(":") else ""
    else:
        host, _, port = hostport.partition(":")
    user, colon, password = userinfo.partition(":")
    if userinfo and not colon:
        return scheme.lower(), Login(token=unquote(user)), host, port
    return scheme.lower(), Login(user=unquote(user), password=unquote(password)), host, port


def _port(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) < 65536:
        raise ConfigError(
            f"malformed url: {redact_url(text)}", hint="the port is a number from 1 to 65535"
        )
    return int(digits)
