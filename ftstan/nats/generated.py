"""The configuration file of the ``nats-server`` child: our options in, its text out.

Pure text, no files. Only NATS keys may appear (the child refuses unknown ones), and every string
passes ``quoted``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.options import ServerTlsOptions
from ftstan.config.writer import entry
from ftstan.nats.url import parse_cluster_listen, with_login

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.config.options import ServerOptions
    from ftstan.nats.clustered import JetStreamOptions

#: Bytes that may wait for one connection, those of readers that have stopped among them: what
#: nats-server takes by itself. It has one limit for all, so it holds for our link, too, where
#: publishes wait for storage.
MAX_PENDING = 64 * 1024 * 1024

#: The data plane may stand in an fsync for a while; the child must not call it a slow consumer for
#: that.
WRITE_DEADLINE = "30s"

#: A peer whose host is away is tried once a second; its child complains of the first time and then
#: once in so many.
REPORT_EVERY = 300

#: Whom the child takes clients for that name no user, where there is one for the log.
_ANYONE = "ftstan-client"

#: Where in the child's file something is wrong.
_AT = re.compile(r"(?:nats-server: )?\S*/nats\.conf:(\d+):\d+: ")


@dataclass(frozen=True, slots=True)
class NatsServerOptions:
    """What the operator asked of the embedded NATS server.

    ``host``/``port``: where clients connect, port -1 for a random one. ``cluster_listen``: URL for
    routes (``nats://[user:password@]host:port``, port -1 random) or empty; ``routes``: URLs of
    other members, which are shown the login of ``cluster_listen`` unless they have one.
    ``user``/``password`` or ``token``: what clients must present. ``cluster_id``: the STAN cluster
    id, from which every member derives the same NATS cluster name. ``settings``: more keys of the
    child's file, by name; what is made of the other fields wins over them. ``gomaxprocs`` and
    ``gogc`` go into its environment, where ``embedded.child_environment`` has a choice of ours for
    0. ``jetstream``: for a node of a replicated cluster.
    """

    cluster_id: str
    host: str = "0.0.0.0"  # noqa: S104  # the original's default
    port: int = 4222
    cluster_listen: str = ""
    routes: tuple[str, ...] = field(default=(), repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    debug: bool = False
    trace: bool = False
    gomaxprocs: int = 0
    gogc: int = 0
    tls: ServerTlsOptions = field(default_factory=ServerTlsOptions)
    settings: Mapping[str, object] = field(default_factory=dict, repr=False)
    jetstream: JetStreamOptions | None = None


def child_options(options: ServerOptions) -> NatsServerOptions:
    """What of a server's options concerns its child. Raises ``ConfigError``."""
    nats = options.nats
    jetstream = None
    if options.clustered:
        # Late: a server that is no node of a cluster needs nothing of it.
        from ftstan.nats.clustered import jetstream_options  # noqa: PLC0415

        jetstream = jetstream_options(options)
    return NatsServerOptions(
        cluster_id=options.cluster_id,
        host=nats.host,
        port=nats.port,
        cluster_listen=nats.cluster_listen,
        routes=nats.routes,
        user=nats.user,
        password=nats.password,
        token=nats.token,
        debug=nats.debug,
        trace=nats.trace,
        gomaxprocs=nats.gomaxprocs,
        gogc=nats.gogc,
        tls=nats.tls,
        settings=nats.settings,
        jetstream=jetstream,
    )


def cluster_name(cluster_id: str) -> str:
    """Name of the NATS cluster: equal in every member, free of the blanks that ``nats-server``
    refuses.
    """
    return "ftstan-" + re.sub(r"[^A-Za-z0-9_-]", "_", cluster_id)


def render(
    options: NatsServerOptions,
    *,
    server_name: str,
    ports_dir: str,
    port: int,
    cluster_port: int,
    pid_file: str = "",
) -> str:
    """Text of the configuration file.

    ``port`` and ``cluster_port`` override those of ``options`` (0: as written). ``pid_file``: see
    ``launch``.

    Raises ``ConfigError`` for combinations that the original refuses.
    """
    if options.routes and not options.cluster_listen:
        raise ConfigError(
            "solicited routes require cluster capabilities, e.g. --cluster",
            hint="add -cluster nats://host:port",
        )
    tree: dict[str, object] = {
        "server_name": server_name,
        "max_pending": MAX_PENDING,
        "write_deadline": WRITE_DEADLINE,
        "reconnect_error_reports": REPORT_EVERY,
    }
    tree |= {key: value for key, value in options.settings.items() if value is not False}
    tree |= {
        "host": options.host,
        "port": port or options.port,
        # Loopback only: operators are served by our own pages, on their address.
        "http": "127.0.0.1:-1",
        "ports_file_dir": ports_dir,
        **({"pid_file": pid_file} if pid_file else {}),
        "debug": options.debug,
        "trace": options.trace,
    }
    if options.jetstream is not None:
        _add_account(tree, options, options.jetstream.password)
        tree["jetstream"] = _map(options, "jetstream") | {
            "store_dir": options.jetstream.store_dir,
            **({"sync_interval": "always"} if options.jetstream.sync else {}),
        }
    for key, section in (
        ("authorization", _authorization(options)),
        ("tls", _tls(options.tls)),
        ("cluster", _cluster(options, cluster_port) if options.cluster_listen else {}),
    ):
        tree.pop(key, None)
        if section:
            tree[key] = section
    return "".join(f"{entry(key, value)}\n" for key, value in tree.items())


def refusal(said: str, text: str = "") -> tuple[str, str]:
    """What ``nats-server`` says of its file ``text``, without the path, and the key of that file.

    Empty if unknown.
    """
    found = _AT.match(said)
    if found is None:
        return said.removeprefix("nats-server: "), ""
    lines = text.splitlines()
    number = int(found[1])
    return said[found.end() :], lines[number - 1].partition(":")[0] if 0 < number <= len(
        lines
    ) else ""


def _map(options: NatsServerOptions, key: str) -> dict[str, object]:
    """A map of the operator's file."""
    value = options.settings.get(key, {})
    return dict(value) if isinstance(value, dict) else {}


def has_users(options: NatsServerOptions) -> bool:
    """Whether clients are told apart by a ``users`` array."""
    return bool(_map(options, "authorization").get("users"))


def extra_token(options: NatsServerOptions) -> str:
    """What the child's file cannot say: a token beside a ``users`` array.

    Empty if there is none.
    """
    return options.token if has_users(options) else ""


def _add_account(tree: dict[str, object], options: NatsServerOptions, password: str) -> None:
    """The account of the log, beside everything that clients may reach."""
    if not password:
        return
    # Late: as in ``child_options``.
    from ftstan.nats.clustered import LOG_ACCOUNT, LOG_USER  # noqa: PLC0415

    tree["accounts"] = _map(options, "accounts") | {
        LOG_ACCOUNT: {"jetstream": True, "users": [{"user": LOG_USER, "password": password}]}
    }
    if _is_open(options):
        # Where there is a user, who names none needs to be one, too: with the rights of before.
        tree["no_auth_user"] = _ANYONE


def _derived(password: str) -> str:
    # Nobody shows it; it must be there, and stay the same when the file is read again.
    return hashlib.sha256(password.encode()).hexdigest()


def _is_open(options: NatsServerOptions) -> bool:
    """Whether clients need no login."""
    named = options.user or options.password or options.token or _map(options, "accounts")
    return not (named or has_users(options) or _map(options, "authorization").get("user"))


def _authorization(options: NatsServerOptions) -> dict[str, object]:
    section = _map(options, "authorization")
    if has_users(options):
        if options.user or options.password:
            raise ConfigError(
                "Can not have a single user/pass and a users array", hint="leave one of them out"
            )
    elif options.token:
        section["token"] = options.token
    elif options.user or options.password:
        section |= {"user": options.user, "password": options.password}
    has_log = options.jetstream is not None and bool(options.jetstream.password)
    if has_users(options):
        return section
    if options.jetstream is not None and has_log and _is_open(options):
        section["users"] = [{"user": _ANYONE, "password": _derived(options.jetstream.password)}]
    elif section.get("user") and (has_log or _may_stand_in_users(options)):
        # Beside the user of the log a login must be one of several. And a login that stands by
        # itself makes nats-server end every connection at each reload, an unchanged one, too; one
        # of several it compares with what it had.
        login = {key: section.pop(key) for key in ("user", "password") if key in section}
        # They hold for several users only.
        section.pop("default_permissions", None)
        section["users"] = [login]
    return section


def _may_stand_in_users(options: NatsServerOptions) -> bool:
    """Whether nothing is configured that nats-server refuses beside a single login and takes beside
    several.
    """
    parts = [options.settings, _map(options, "websocket"), _map(options, "mqtt")]
    return not _map(options, "accounts") and not any(part.get("no_auth_user") for part in parts)


def _tls(tls: ServerTlsOptions) -> dict[str, object]:
    if not tls.enabled:
        return {}
    said = {
        field.name: getattr(tls, field.name) for field in fields(tls) if field.name != "enabled"
    }
    return {name: value for name, value in said.items() if value}


def _cluster(options: NatsServerOptions, port: int) -> dict[str, object]:
    listen = parse_cluster_listen(options.cluster_listen)
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    section = {"name": cluster_name(options.cluster_id)} | _map(options, "cluster")
    section["listen"] = f"{host}:{port or listen.port}"
    if listen.login:
        timeout = section.get("authorization")
        login = dict(timeout) if isinstance(timeout, dict) else {}
        section["authorization"] = login | {
            "user": listen.login.user,
            "password": listen.login.password,
        }
    else:
        section.pop("authorization", None)
    if options.routes:
        # One login for both directions: the operator's file says the password once, where it can be
        # a variable.
        section["routes"] = [with_login(url, listen.login) for url in options.routes]
    return section
