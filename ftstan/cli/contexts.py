"""Where commands find servers and datastores: flags, environment variables, and named contexts.

What is given on the command line wins over the environment, that over the context, that over the
defaults. A context is a file of its own below ``$XDG_CONFIG_HOME/ftstan/contexts`` (``~/.config``
without that variable), readable by its owner only, since it may hold a password. One may be
selected; ``--context`` and ``FTSTAN_CONTEXT`` name another for one command (``docs/ftstanctl.md``).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, UsageError
from ftstan.base.log import redact_url
from ftstan.cli.connecting import add_link_options

if TYPE_CHECKING:
    import argparse

CONTEXT_VARIABLE = "FTSTAN_CONTEXT"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SECRET = ("password", "token")


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that a context holds.

    ``flags``: its words; ``variables``: the first that is set counts.
    """

    name: str
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    metavar: str
    text: str
    default: str = ""


SETTINGS = (
    Setting(
        "server", ("--server",), ("FTSTAN_SERVERS", "FTSTAN_SERVER"), "URL",
        "NATS server, or several with commas", "nats://127.0.0.1:4222",
    ),
    Setting(
        "cluster", ("--cluster",), ("FTSTAN_CLUSTER_ID",), "ID", "cluster id of the servers",
        "test-cluster",
    ),
    Setting(
        "group", ("--group",), ("FTSTAN_GROUP",), "NAME",
        "fault-tolerant group, for `ftstanctl ft`",
    ),
    Setting("user", ("--user",), ("FTSTAN_USER",), "USER", "for the NATS server, with --pass"),
    Setting("password", ("--pass",), ("FTSTAN_PASSWORD",), "PASSWORD", "see --user"),
    Setting("token", ("--auth",), ("FTSTAN_TOKEN",), "TOKEN", "instead of --user and --pass"),
    Setting("credentials", ("--creds",), ("FTSTAN_CREDENTIALS",), "FILE", "a NATS .creds file"),
    Setting(
        "nkey_seed_file", ("--nkey",), ("FTSTAN_NKEY",), "FILE",
        "a file with the seed of an nkey",
    ),
    Setting(
        "client_ca", ("--tlsca",), ("FTSTAN_TLS_CA",), "FILE",
        "authorities of the NATS server's certificate",
    ),
    Setting(
        "client_cert", ("--tlscert",), ("FTSTAN_TLS_CERT",), "FILE",
        "our certificate, with --tlskey",
    ),
    Setting("client_key", ("--tlskey",), ("FTSTAN_TLS_KEY",), "FILE", "see --tlscert"),
    Setting(
        "server_name", ("--tlsname",), ("FTSTAN_TLS_NAME",), "NAME",
        "what that certificate must be valid for",
    ),
    Setting(
        "dir", ("--dir",), ("FTSTAN_DIR",), "DIR",
        "datastore directory, for `ftstanctl store`",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Context:
    """What one context says; empty where it says nothing."""

    server: str = ""
    cluster: str = ""
    group: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    credentials: str = ""
    nkey_seed_file: str = ""
    client_ca: str = ""
    client_cert: str = ""
    client_key: str = ""
    server_name: str = ""
    dir: str = ""

    def shown(self) -> dict[str, str]:
        """What it says, without its secrets."""
        said = {name: value for name, value in asdict(self).items() if value}
        if "server" in said:
            said["server"] = ",".join(redact_url(url) for url in self.server.split(","))
        return {name: "[REDACTED]" if name in _SECRET else value for name, value in said.items()}


def add_options(
    parser: argparse.ArgumentParser, *, group: bool = True, enforce_tls: bool = True
) -> None:
    """The flags of a command that talks to servers; ``fill`` gives them their values."""
    add_context_option(parser)
    for setting in SETTINGS[:3]:
        if setting.name == "group" and not group:
            continue
        default = f", else {setting.default}" if setting.default else ""
        parser.add_argument(
            *setting.flags,
            dest=setting.name,
            default="",
            metavar=setting.metavar,
            help=f"{setting.text} (default: ${setting.variables[0]}, else the context's{default})",
        )
    add_link_options(parser, enforce_tls=enforce_tls)


def add_context_option(parser: argparse.ArgumentParser) -> None:
    """The flag that names a context."""
    parser.add_argument(
        "--context",
        default="",
        metavar="NAME",
        help="which context to use instead of the selected one",
    )


def fill(arguments: argparse.Namespace) -> None:
    """Give every setting that the words left open its value.

    Raises ``ConfigError`` if the context cannot be read.
    """
    named = getattr(arguments, "context", "")
    left = [setting for setting in SETTINGS if getattr(arguments, setting.name, None) == ""]
    # A context that nothing is asked of may be broken: repairing a datastore must not depend on it.
    context = _chosen(named) if left or named else Context()
    for setting in left:
        from_environment = next((os.environ[v] for v in setting.variables if os.environ.get(v)), "")
        value = from_environment or getattr(context, setting.name) or setting.default
        setattr(arguments, setting.name, value)


def load(name: str) -> Context:
    """The context of that name. Raises ``ConfigError``."""
    path = _path(name)
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(names()) or "none"
        raise ConfigError(
            f"there is no context {name!r}", hint=f"known: {known}; see ftstanctl context add"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: {error}", hint=f"correct it, or ftstanctl context rm {name}"
        ) from error
    known_names = {field.name for field in fields(Context)}
    if not isinstance(said, dict) or not all(
        k in known_names and isinstance(v, str) for k, v in said.items()
    ):
        raise ConfigError(
            f"{path}: not a context of this release",
            hint=f"it may hold {', '.join(sorted(known_names))}: texts",
        )
    return Context(**said)


def save(name: str, context: Context) -> None:
    """Write a context, in place of one that has the name. Raises ``ConfigError``."""
    path = _path(name)
    said = {key: value for key, value in asdict(context).items() if value}
    _write(path, json.dumps(said, indent=1) + "\n")


def remove(name: str) -> None:
    """Remove a context; if it is the selected one, none is selected then.

    Raises ``ConfigError``.
    """
    load(name)
    _path(name).unlink()
    if selected() == name:
        _selection().unlink()


def select(name: str) -> None:
    """Use this context from now on; an empty name selects none. Raises ``ConfigError``."""
    if name:
        load(name)
        _write(_selection(), name + "\n")
    else:
        _selection().unlink(missing_ok=True)


def selected() -> str:
    """The name of the selected context, empty for none."""
    try:
        return _selection().read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def unreadable() -> str:
    """Why no context can be read here, as where ``sudo`` kept the home of somebody else; else
    empty.
    """
    try:
        _selection().stat()
    except PermissionError as error:
        return f"contexts in {_home()} cannot be read: {error.strerror}"
    except OSError:
        pass
    return ""


def names() -> list[str]:
    """All contexts, in alphabetical order."""
    with contextlib.suppress(OSError):
        return sorted(
            path.stem for path in _home().joinpath("contexts").iterdir() if path.suffix == ".json"
        )
    return []


def _chosen(named: str) -> Context:
    name = named or os.environ.get(CONTEXT_VARIABLE, "") or selected()
    if not name:
        return Context()
    try:
        return load(name)
    except ConfigError as error:
        if name in names():
            raise
        more = "; it is selected: ftstanctl context select NAME, or no name for none"
        raise UsageError(error.text, hint=error.hint + more * (name == selected())) from None


def _home() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "ftstan"


def _selection() -> Path:
    return _home() / "context"


def _path(name: str) -> Path:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{name!r} cannot name a context",
            hint="letters, digits, -, _ and dots; no dot or - first",
        )
    return _home() / "contexts" / f"{name}.json"


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole; it is never readable by others, not even for a moment."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.rename(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", hint="is the directory writable? XDG_CONFIG_HOME names it"
        ) from error
