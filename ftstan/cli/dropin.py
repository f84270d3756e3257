"""``ftstanctl systemd-dropin``: let the service's unit reach a datastore, the log path of a node,
a spool or a log outside of its own directories.

The unit that ships may write below ``/var/lib/ftstan`` and ``/var/log/ftstan`` only. This makes the
few lines that add other places: ``ReadWritePaths`` and, so that the service waits for shared
storage, ``RequiresMountsFor``. It reads the unit and the server's configuration, prints the
drop-in, and writes it with ``--write``; it never reloads or restarts anything.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, UsageError
from ftstan.cli.strict import make_datastore, service_log_path
from ftstan.cli.terminal import print_json, say
from ftstan.config.flags import parse, to_settings
from ftstan.config.service_unit import UNIT_PLACES, read_unit

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

UNIT = "ftstan.service"
UNITS_DIRECTORY = "/etc/systemd/system"
DROPIN_NAME = "paths.conf"

#: What the shipped unit lets the server write: its state, log and runtime directories.
OWN = ("/var/lib/ftstan", "/var/log/ftstan", "/run/ftstan")

_UNIT_NAME = re.compile(r"ftstan(?:@(?P<instance>[A-Za-z0-9:_.\\-]+))?\.service")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class DropIn:
    """The drop-in of one unit: ``paths`` that it may write to, ``mounts`` that it must not start
    without.
    """

    unit: str
    paths: tuple[str, ...]
    mounts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The file; empty when the unit needs none."""
        if not self.paths:
            return ""
        lines = [
            "# Made by ftstanctl systemd-dropin.",
            "[Unit]",
            _line("RequiresMountsFor", self.mounts),
        ]
        return "\n".join([*lines, "", "[Service]", _line("ReadWritePaths", self.paths), ""])


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--unit", default=UNIT, metavar="UNIT", help=f"ftstan@<name>.service, or {UNIT} (default)"
    )
    parser.add_argument(
        "-c",
        "--config",
        default="",
        metavar="FILE",
        help="the server's configuration (default: the one of the unit)",
    )
    parser.add_argument(
        "--datastore", default="", metavar="DIR", help="instead of the configuration's dir"
    )
    parser.add_argument(
        "--spool",
        action="append",
        default=[],
        metavar="DIR",
        help="where an archive script writes; may be repeated",
    )
    parser.add_argument(
        "--log", default="", metavar="FILE", help="instead of the configuration's log file"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write it where systemd reads it, instead of printing it",
    )
    parser.add_argument(
        "--units",
        default=UNITS_DIRECTORY,
        metavar="DIR",
        help=f"with --write: below DIR (default: {UNITS_DIRECTORY})",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Print the drop-in, or write it; returns the exit status. Raises ``ConfigError``."""
    made = _made(arguments)
    path = os.path.join(arguments.units, f"{made.unit}.d", DROPIN_NAME)
    for place in made.paths:
        if not os.path.isdir(place):
            say(
                f"warning: {place} is not there: the service does not start before it is",
                f"hint: {make_datastore(place)}, or mount it",
                file=sys.stderr,
            )
    writes = arguments.write and bool(made.text)
    removes = arguments.write and not made.text and os.path.exists(path)
    if writes or removes:
        _write(path, made.text)
    if arguments.output == "json":
        print_json(
            {
                "unit": made.unit,
                "path": path,
                "written": writes,
                "removed": removes,
                "read_write_paths": made.paths,
                "requires_mounts_for": made.mounts,
                "text": made.text,
            }
        )
    elif not made.text:
        say(f"{made.unit} needs no drop-in: everything lies below {', '.join(OWN)}")
        if removes:
            say(f"removed: {path}", "next: systemctl daemon-reload")
    elif writes:
        say(
            f"written: {path}",
            f"next: systemctl daemon-reload; it holds from the next start of {made.unit} on",
        )
    else:
        sys.stdout.write(made.text)
    return 0


def _made(arguments: argparse.Namespace) -> DropIn:
    found = _UNIT_NAME.fullmatch(arguments.unit)
    if found is None:
        raise UsageError(
            f"{arguments.unit!r} is no unit of ftstan",
            hint=f"--unit {UNIT}, or --unit ftstan@orders.service",
        )
    datastore = arguments.datastore
    log = arguments.log
    config = arguments.config or f"/etc/ftstan/{found['instance'] or 'ftstan'}.conf"
    pid_file = log_path = ""
    if arguments.config or not datastore:
        if not os.path.exists(config):
            raise ConfigError(
                f"{config}: no such file",
                hint="name the configuration with -c, or give --datastore, --spool and --log",
            )
        service = read_unit(arguments.unit, (arguments.units, *UNIT_PLACES))
        words = service.words if service is not None else ()
        environment = service.environment if service is not None else None
        options = to_settings(parse([*words, "-c", config]), environment).options()
        datastore = datastore or options.dir
        log = log or options.log.file
        pid_file = options.pid_file
        log_path = service_log_path(options)
    storage = [_absolute(path) for path in (datastore, log_path, *arguments.spool) if path]
    files = [os.path.dirname(_absolute(path)) for path in (log, pid_file) if path]
    mounts = _beyond(storage)
    return DropIn(arguments.unit, _beyond([*storage, *files]), mounts or _beyond(files))


def _absolute(path: str) -> str:
    if not path.startswith("/") or _CONTROL.search(path):
        raise ConfigError(
            f"{path!r} is no absolute path",
            hint="a service has no directory of its own that a path could begin at",
        )
    return os.path.normpath(path)


def _beyond(paths: Iterable[str]) -> tuple[str, ...]:
    """Those that the unit does not have already, each once."""
    return tuple(
        dict.fromkeys(
            p for p in paths if not any(p == own or p.startswith(f"{own}/") for own in OWN)
        )
    )


def _line(key: str, paths: Iterable[str]) -> str:
    return f"{key}={' '.join(map(_quoted, paths))}"


def _quoted(path: str) -> str:
    """As systemd reads it: ``%`` begins a specifier, blanks end a word."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if re.search(r"[\s\"'\\;#]", path) else text


def _write(path: str, text: str) -> None:
    """Put ``text`` there; nothing: take away what an earlier configuration needed."""
    try:
        if not text:
            os.unlink(path)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.new"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="run it as root, or give --units a directory",
        ) from error
