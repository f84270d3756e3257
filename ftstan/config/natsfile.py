"""The NATS half's pass over a file: listeners, log, monitoring, logins, TLS, routes, and what its
server is handed.

The original's NATS server is part of the process; ours is a child with a file of its own, made of
what is found here (``ftstan.nats.generated``). Wrong types and unknown keys in its maps are refused
in its words.

Source: ``docs/compat/config.md`` (keys).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from urllib.parse import quote as percent

from ftstan.base.errors import ConfigError
from ftstan.config.declaration import Section, ValueKind
from ftstan.config.options import ALL_INTERFACES
from ftstan.config.streamfile import STREAMING, known_names, streaming_map
from ftstan.config.table import BY_KEY, RETIRED, names_of
from ftstan.config.tlsfile import check_tls, read_tls
from ftstan.config.tree import shown
from ftstan.config.unknown_keys import did_you_mean, warn_unknown
from ftstan.config.values import EXPECTED, conversion_error, go_name, nats_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.config.precedence import Settings
    from ftstan.config.tree import Document, Node

#: The two sizes that the original keeps in 32 bits.
_NARROW = ("max_payload", "max_control_line")
_MAX_INT32 = (1 << 31) - 1
_CLIENT_TLS = frozenset(names_of(Section.TLS))
_PERMISSIONS = (
    "publish",
    "pub",
    "import",
    "subscribe",
    "sub",
    "export",
    "allow_responses",
    "allow_response",
)


def read(document: Document, settings: Settings, *, streams: bool) -> None:
    """Put what the NATS half finds into ``settings``.

    ``streams``: the streaming half reads this file too.

    Raises ``ConfigError``.
    """
    _Reader(document, settings, streams=streams).read()


class _Reader:
    def __init__(self, document: Document, settings: Settings, *, streams: bool) -> None:
        self._document = document
        self._settings = settings
        self._streams = streams
        self._maps: dict[str, Callable[[str, Node], None]] = {
            "authorization": self._authorization,
            "cluster": self._cluster,
            "tls": self._tls,
            "listen": lambda key, node: self._listen(key, node, "addr", "port"),
            "http": lambda key, node: self._listen(key, node, "http_host", "http_port"),
            "https": lambda key, node: self._listen(key, node, "http_host", "https_port"),
        }

    def read(self) -> None:
        """Read the top level."""
        known = names_of(Section.NATS)
        for key, node in self._document.entries.items():
            name = key.lower()
            if name in self._maps:
                self._maps[name](key, node)
            elif name in known:
                self._put(known[name].key, key, node)
            elif name in RETIRED[Section.NATS]:
                why = RETIRED[Section.NATS][name]
                self._settings.warnings.append(
                    f'{node.place}: the key "{key}" of the NATS server has no effect: {why}'
                )
            else:
                self._unknown(name, key, node)

    def _unknown(self, name: str, key: str, node: Node) -> None:
        """Warn about a key that neither half reads here."""
        if name in (STREAMING, "}") or node.place in self._document.used:
            return
        mine = {*names_of(Section.NATS), *self._maps}
        alone = True
        with contextlib.suppress(ConfigError):  # the streaming half will say so
            alone = not self._streams or streaming_map(self._document) is not None
        if not alone:
            if name not in known_names():
                warn_unknown(self._settings, node.place, key, mine | known_names())
        elif self._streams and name in known_names():
            self._settings.warn_of_key(
                f'{node.place}: the key "{key}" is ignored: there is a streaming map, and this '
                "is outside of it"
            )
        else:
            warn_unknown(self._settings, node.place, key, mine)

    def _put(self, option: str, key: str, node: Node) -> None:
        value = nats_value(BY_KEY[option], key, node, self._settings.warnings)
        if option in _NARROW and isinstance(value, int) and value > _MAX_INT32:
            raise ConfigError(
                f"{node.place}: {key} value is too big", hint=f"{key} is at most {_MAX_INT32}"
            )
        self._settings.put(option, value, node.source, key)

    def _listen(self, key: str, node: Node, host_option: str, port_option: str) -> None:
        host, port = address(key, node)
        if host is not None:
            self._settings.put(host_option, host, node.source, key)
        self._settings.put(port_option, port, node.source, key)

    # ---- maps
    # ----------------------------------------------------------------------------------------------

    def _entries(
        self, section: Section, key: str, node: Node, more: tuple[str, ...] = ()
    ) -> dict[str, Node]:
        """The entries of a map of the NATS half by lower-case name.

        Raises ``ConfigError`` for unknown ones.
        """
        if not isinstance(node.value, dict):
            raise conversion_error(key, node, "map[string]interface {}", ValueKind.MAP)
        known = {*names_of(section), *more}
        for inner, item in node.value.items():
            if inner.lower() not in known and item.place not in self._document.used:
                raise ConfigError(
                    f'{item.place}: unknown field "{inner}"',
                    hint=f"{key} knows {', '.join(sorted(known))}{did_you_mean(inner, known)}",
                )
        return {inner.lower(): item for inner, item in node.value.items() if inner.lower() in known}

    def _authorization(self, key: str, node: Node) -> None:
        entries = self._entries(Section.AUTHORIZATION, key, node)
        known = names_of(Section.AUTHORIZATION)
        for name, item in entries.items():
            if known[name].key == "users":
                check_users(item)
            elif known[name].key == "default_permissions":
                check_permissions(item)
            self._put(known[name].key, name, item)
        single = self._settings.value("user") or self._settings.value("pass")
        token = self._settings.value("auth")
        several = self._settings.value("users")
        for wrong, text in (
            (single and token, "Cannot have a user/pass and token"),
            (single and several, "Can not have a single user/pass and a users array"),
            (token and several, "Can not have a token and a users array"),
        ):
            if wrong:
                raise ConfigError(f"{node.place}: {text}", hint=f"leave one of them out of {key}")

    def _tls(self, key: str, node: Node) -> None:
        if isinstance(node.value, dict) and node.value:
            names = {name.lower() for name in node.value}
            if (
                self._streams
                and names <= _CLIENT_TLS
                and names & {"client_cert", "client_ca", "client_cacert"}
            ):
                # Written for the streaming half, in a file that has no map for it.
                return
        read_tls(key, node, self._settings, self._document.used)

    def _cluster(self, key: str, node: Node) -> None:
        if not isinstance(node.value, dict):
            raise ConfigError(
                f"{node.place}: Expected map to define cluster, got {go_name(node.value)}",
                hint=f"{key} takes {EXPECTED[ValueKind.MAP]}",
            )
        entries = self._entries(
            Section.ROUTES, key, node, ("listen", "host", "net", "port", "authorization")
        )
        host = ALL_INTERFACES
        port = 0
        login = ""
        known = names_of(Section.ROUTES)
        for name, item in entries.items():
            match name:
                case "listen":
                    written, port = address(name, item)
                    host = written if written is not None else host
                case "host" | "net":
                    host = str(nats_value(BY_KEY["addr"], name, item, [])) or host
                case "port":
                    port = int(str(nats_value(BY_KEY["port"], name, item, [])))
                case "authorization":
                    login = self._route_login(name, item)
                case "permissions":
                    check_permissions(item)
                    self._put(known[name].key, name, item)
                case "tls":
                    check_tls(name, item, self._document.used)
                    self._put(known[name].key, name, item)
                case _:
                    self._put(known[name].key, name, item)
        if port:
            shown_host = f"[{host}]" if ":" in host else host
            self._settings.put("cluster", f"nats://{login}{shown_host}:{port}", node.source, key)

    def _route_login(self, key: str, node: Node) -> str:
        """``user:password@`` for the URL on which routes are taken."""
        if not isinstance(node.value, dict):
            raise conversion_error(key, node, "map[string]interface {}", ValueKind.MAP)
        known = names_of(Section.AUTHORIZATION)
        user = password = ""
        for inner, item in node.value.items():
            option = known[inner.lower()].key if inner.lower() in known else ""
            if option not in ("user", "pass", "auth_timeout"):
                raise ConfigError(
                    f'{item.place}: unknown field "{inner}"',
                    hint="logins of routes have user, password and timeout",
                )
            value = nats_value(BY_KEY[option], inner, item, [])
            if option == "user":
                user = str(value)
            elif option == "pass":
                password = str(value)
            else:
                self._settings.put("cluster_auth_timeout", value, item.source, inner)
        return f"{percent(user, safe='')}:{percent(password, safe='')}@" if user or password else ""


def address(key: str, node: Node) -> tuple[str | None, int]:
    """Host and port of ``host:port``, or of a port alone (host ``None``).

    Raises ``ConfigError``.
    """
    hint = f'{key} takes a port or "host:port"'
    value = node.value
    if isinstance(value, int) and not isinstance(value, bool):
        return None, value
    if not isinstance(value, str):
        raise ConfigError(
            f"{node.place}: expected port or host:port, got {go_name(value)}", hint=hint
        )
    host, colon, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon:
        raise ConfigError(f'{node.place}: could not parse address string "{value}"', hint=hint)
    digits = port.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(f'{node.place}: could not parse port "{port}"', hint=hint)
    return host, int(port)


def check_users(node: Node) -> None:
    """Refuse a ``users`` value that is no array of maps, and unknown keys of permissions.

    Raises ``ConfigError``.
    """
    hint = "write users: [ { user: a, password: b }, ... ]"
    if not isinstance(node.value, list):
        raise ConfigError(
            f"{node.place}: Expected users field to be an array, got {shown(node.value)}", hint=hint
        )
    for item in node.value:
        if not isinstance(item.value, dict):
            raise ConfigError(
                f"{item.place}: Expected user entry to be a map/struct, got {shown(item.value)}",
                hint=hint,
            )
        for key, entry in item.value.items():
            if key.lower() in ("permissions", "permission", "authorization"):
                check_permissions(entry)


def check_permissions(node: Node) -> None:
    """Refuse permissions that are no map, or that have unknown keys. Raises ``ConfigError``."""
    hint = 'write permissions { publish: "a", subscribe: ["b", "c"] }'
    if not isinstance(node.value, dict):
        raise ConfigError(
            f"{node.place}: Expected permissions to be a map/struct, got {shown(node.value)}",
            hint=hint,
        )
    for key, item in node.value.items():
        if key.lower() not in _PERMISSIONS:
            raise ConfigError(f'{item.place}: Unknown field "{key}" parsing permissions', hint=hint)
