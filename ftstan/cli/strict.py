"""``-check_config -strict``: what a start would take, and surely suffer from.

Each check looks at this host as it is: directories, and the login of the streaming server on its
own NATS server.
"""

from __future__ import annotations

import os
from itertools import combinations
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.base.log import redact_url
from ftstan.config.options import STORE_FILE
from ftstan.config.table import BY_KEY
from ftstan.config.validation import warnings_of
from ftstan.ft.subjects import group_subject, heartbeat_subject
from ftstan.nats.url import parse_cluster_listen, parse_url
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ftstan.config.options import ServerOptions
    from ftstan.config.precedence import Settings
    from ftstan.config.service_unit import ServiceUnit

_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  # compared, never bound

#: What a service with ``ProtectSystem=strict`` may write to all the same.
_PRIVATE = ("/dev", "/proc", "/tmp", "/var/tmp")  # noqa: S108  # compared, never opened


def problems(
    settings: Settings, options: ServerOptions, made: Collection[str] = ()
) -> list[FtstanError]:
    """Everything that is wrong, in the order in which it should be mended.

    ``made``: directories that will be there at the start.
    """
    found: list[FtstanError] = [
        ConfigError(text, hint="take the key out, or correct it; without -strict it is a warning")
        for text in settings.unknown_keys
    ]
    found += [
        ConfigError(text, hint="leave one of them out; without -strict it is a warning")
        for text in settings.repeated_keys
    ]
    found += [
        ConfigError(text, hint="correct the value; without -strict it is a warning")
        for text in warnings_of(options)
    ]
    found += _directories(options, made)
    found += _files(options)
    found += _addresses(options)
    # Late: most of the program is needed for it.
    from ftstan.nats.login_check import Needs, check_own_login  # noqa: PLC0415

    try:
        check_own_login(options, Needs(*_subjects(options)))
    except FtstanError as error:
        found.append(error)
    return found


def _subjects(options: ServerOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the server must be able to hear, and to say. Those that a datastore may have recorded
    otherwise are left out.
    """
    subjects = Subjects.for_cluster(options.cluster_id, options.discover_prefix)
    hears = (subjects.discovery, subjects.pings, "_INBOX.check.>")
    says = ("_INBOX.check.x",)
    if options.ft_group:
        group = (
            heartbeat_subject(options.cluster_id, options.ft_group),
            group_subject(options.cluster_id, options.ft_group),
        )
        return hears + group, says + group
    return hears, says


def _addresses(options: ServerOptions) -> Iterator[ConfigError]:
    """Listeners that would take each other's port, and routes that lead nowhere."""
    nats = options.nats
    monitor = options.monitor
    pages = monitor.http_port or monitor.https_port
    taken = [("the monitoring pages", "http", monitor.host, pages)]
    if not options.nats_servers:
        taken.append(("clients", "port", nats.host, nats.port))
        if nats.cluster_listen:
            listen = parse_cluster_listen(nats.cluster_listen)
            taken.append(("routes", "cluster", listen.host, listen.port))
    for (what, key, host, port), (other, _, its_host, its_port) in combinations(taken, 2):
        if port > 0 and port == its_port and (host == its_host or {host, its_host} & _EVERYWHERE):
            yield ConfigError(
                f"{what} and {other} would listen on the same port {port}",
                hint="give each of them a port of its own",
                option=key,
            )
    for route in () if options.nats_servers else nats.routes:
        try:
            parse_url(route)
        except ConfigError as error:
            yield ConfigError(
                f"cluster: the route {redact_url(route)} leads nowhere: {error.text}",
                hint=error.hint,
                option="routes",
            )


def _directories(options: ServerOptions, made: Collection[str]) -> Iterator[ConfigError]:
    """A datastore is made by the first start, the directory above it by the operator."""
    places = [
        ("dir", _datastore(options.dir) if options.store == STORE_FILE else ""),
        ("cluster_log_path", _datastore(options.cluster.log_path) if options.clustered else ""),
        ("log", _above(options.log.file)),
        ("pid", "" if options.nats_servers else _above(options.pid_file)),
        ("ports_file_dir", "" if options.nats_servers else options.ports_file_dir),
    ]
    for key, place in places:
        if place and place not in made and (wrong := _wrong(place)):
            yield ConfigError(
                f"{BY_KEY[key].names[0]}: the directory {place} {wrong}",
                hint="create it for the user of the server, mount it, or correct the path",
                option=key,
            )


def _files(options: ServerOptions) -> Iterator[ConfigError]:
    """Files that the server opens to write, and that are something else or somebody else's."""
    pid = "" if options.nats_servers else options.pid_file
    for key, path in (("log", options.log.file), ("pid", pid)):
        if not path or not os.path.exists(path):
            continue
        if os.path.isdir(path):
            wrong = "is a directory"
        elif not os.access(path, os.W_OK):
            wrong = "may not be written by this user"
        else:
            continue
        yield ConfigError(
            f"{BY_KEY[key].names[0]}: {path} {wrong}",
            hint="give the name of a file that the user of the server may write",
            option=key,
        )


def service_problems(options: ServerOptions, service: ServiceUnit) -> Iterator[ConfigError]:
    """What keeps systemd from starting the service, or the service from writing where it must."""
    for place in service.writable:
        if not os.path.exists(place):
            yield ConfigError(
                f"the service may write to {place}, which is not there: systemd does not start it "
                "(status 226)",
                hint=f"{make_datastore(place)}, or mount it",
            )
    if not service.confined:
        return
    mine = (*service.directories, *service.writable, *_PRIVATE)
    places = [
        ("dir", os.path.abspath(options.dir) if options.store == STORE_FILE else ""),
        ("cluster_log_path", service_log_path(options)),
        ("log", _above(options.log.file)),
        ("pid", _above(options.pid_file)),
    ]
    for key, place in places:
        if place and not any(place == own or place.startswith(f"{own}/") for own in mine):
            yield ConfigError(
                f"{BY_KEY[key].names[0]}: the service may not write to {place}",
                hint="allow it: ftstanctl systemd-dropin --write, and systemctl daemon-reload",
                option=key,
            )


def service_log_path(options: ServerOptions) -> str:
    """Where the log of a node is whose server systemd starts, or what that is below; empty for a
    server that is no node. The default is relative, and a service works in the root directory.
    """
    if not options.clustered:
        return ""
    return os.path.join("/", options.cluster.log_path or options.cluster_id)


def make_datastore(place: str) -> str:
    """What makes a directory for the server of the shipped units."""
    return f"make it: install -d -o ftstan -g ftstan -m 0750 {place}"


def _above(path: str) -> str:
    """The directory that must be there; a datastore that is there is looked at itself."""
    if not path:
        return ""
    whole = os.path.abspath(path)
    return whole if os.path.isdir(whole) else os.path.dirname(whole)


def _datastore(path: str) -> str:
    """The same of what has to be a directory itself."""
    whole = os.path.abspath(path)
    return whole if path and os.path.exists(whole) else _above(path)


def _wrong(place: str) -> str:
    if not os.path.exists(place):
        return "is not there"
    if not os.path.isdir(place):
        return "is no directory"
    return "" if os.access(place, os.W_OK | os.X_OK) else "may not be written by this user"
