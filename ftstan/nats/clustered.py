"""What the NATS server of a cluster's node is told beyond what every child is: JetStream, in a
directory of its own, under a name that stays.

The name is how JetStream's servers know each other across restarts, so it is made from the node's
id; and the id is the one that the datastore was first started with, whatever the options say later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError
from ftstan.base.reserved import CLUSTER_ID
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from ftstan.config.options import ServerOptions

_LOCK_FILE: Final = "lock"
_LOGIN_FILE: Final = "log.password"
#: The account that the log is in, and its only user.
LOG_ACCOUNT: Final = "FTSTAN_LOG"
LOG_USER: Final = "ftstan-log"
_NO_ROOM: Final = ("operator", "trusted_keys", "resolver")
_HELD: dict[str, int] = {}
"""Directories that this process holds, with their descriptors."""
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_TOKEN: Final = re.compile(r"[^\s.*>]+")


@dataclass(frozen=True, slots=True)
class JetStreamOptions:
    """``server_name``: unique among the nodes and for good. ``sync``: whether an entry is on disk
    before it is acknowledged. ``password``: of the account that the log is in, empty where it
    shares that of the clients.
    """

    server_name: str
    store_dir: str
    sync: bool
    password: str = field(default="", repr=False)


def node_id(options: ServerOptions) -> str:
    """The id of this node, kept in the datastore since its first start.

    Raises ``ConfigError``.
    """
    return keep_node_id(options.dir, options.cluster.node_id)


def keep_node_id(directory: str, wanted: str = "") -> str:
    """The id of the node whose datastore is in ``directory``: ``wanted``, or drawn, if none is kept
    there. Raises ``ConfigError``.
    """
    path = os.path.join(directory, CLUSTER_ID)
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read().strip()
    except FileNotFoundError:
        return _keep(path, wanted or Nuid().next())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the node's id cannot be read: {path}: {error}") from error
    if not _TOKEN.fullmatch(found):
        raise ConfigError(
            f"{path} holds no id of a node",
            hint="write the id there that this node was started with",
        )
    return found


def _keep(path: str, name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ConfigError(
            f'the node id "{name}" cannot be part of a subject',
            hint="no blanks, and none of . * >",
            option="cluster_node_id",
        )
    try:
        os.makedirs(os.path.dirname(path), 0o750, exist_ok=True)
        fresh = f"{path}.new"
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(name + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, path)
    except OSError as error:
        raise ConfigError(f"the node's id cannot be kept: {path}: {error}") from error
    return name


def forget_node_id(directory: str) -> None:
    """The datastore is no node's any more. Raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, CLUSTER_ID))


def given_log_path(options: ServerOptions) -> str:
    """``log_path`` as the operator wrote it, or the original's default."""
    return options.cluster.log_path or os.path.join(options.cluster_id, node_id(options))


def log_path(options: ServerOptions) -> str:
    """Where this node's part of the log is."""
    return os.path.abspath(given_log_path(options))


def encoded(name: str) -> str:
    """``name`` as a token that is as unique: letters, digits and dashes, and ``_<hex>_`` for each
    other byte.
    """
    return "".join(chr(byte) if byte in _PLAIN else f"_{byte:02x}_" for byte in name.encode())


def server_name(cluster_id: str, node: str) -> str:
    """The NATS server that a node runs, as JetStream knows it."""
    return f"ftstan-{encoded(cluster_id)}-{encoded(node)}"


def _hold(path: str) -> None:
    """Keep other servers away from the directory as long as this process lives.

    Raises ``ConfigError``: two NATS servers on one directory destroy it.
    """
    if path in _HELD:
        return
    try:
        os.makedirs(path, 0o750, exist_ok=True)
        descriptor = os.open(
            os.path.join(path, _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise ConfigError(f"the cluster log path cannot be used: {path}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f'the cluster log path "{path}" is in use by another server',
            hint="stop that server first, or give this node a -cluster_log_path of its own",
        ) from error
    _HELD[path] = descriptor


def jetstream_options(options: ServerOptions) -> JetStreamOptions:
    """What a node's child needs. Raises ``ConfigError``."""
    path = log_path(options)
    _hold(path)
    name = server_name(options.cluster_id, node_id(options))
    password = _password(path) if has_own_account(options) else ""
    return JetStreamOptions(name, path, options.cluster.sync, password)


def has_own_account(options: ServerOptions) -> bool:
    """Whether the log is in an account that no client reaches.

    An external NATS server decides by the login; a token, and accounts of operators, leave no room
    for another user.
    """
    nats = options.nats
    taken = nats.token or any(nats.settings.get(key) for key in _NO_ROOM)
    return not options.nats_servers and not taken


def log_login(options: ServerOptions) -> tuple[str, str]:
    """User and password for the log; empty where the server's own login is the one. Raises
    ``ConfigError``.
    """
    if not has_own_account(options):
        return "", ""
    return LOG_USER, _password(log_path(options))


def read_log_password(directory: str) -> str:
    """The password of the log, for a tool beside a node's log path. Raises ``ConfigError``."""
    path = os.path.join(directory, _LOGIN_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the login of the log cannot be read: {path}: {error}",
            hint="give --log-path the -cluster_log_path of a node on this host, as its user",
        ) from error


def _password(directory: str) -> str:
    """Drawn at the first start, and kept where operators can read it, too."""
    path = os.path.join(directory, _LOGIN_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read().strip()
    except FileNotFoundError:
        found = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the login of the log cannot be read: {path}: {error}") from error
    if found:
        return found
    drawn = secrets.token_hex(16)
    fresh = f"{path}.new"
    try:
        os.makedirs(directory, 0o750, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(drawn + "\n")
        os.rename(fresh, path)
    except OSError as error:
        raise ConfigError(f"the login of the log cannot be kept: {path}: {error}") from error
    return drawn
