"""``ftstanctl``: the operator's command. Each sub-command is a module of its own; this one reads the words.

Whatever goes wrong ends as one line and its hint, never as a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ftstan import COMPATIBLE_VERSION, __version__
from ftstan.cli import ft, store
from ftstan.cli.terminal import complain
from ftstan.errors import ConfigError, FtstanError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_PROGRAM = "ftstanctl"


class _Parser(argparse.ArgumentParser):
    """Errors become ``ConfigError``, so that they are printed in one place, with a hint."""

    def error(self, message: str) -> NoReturn:
        commands = f"commands: {', '.join(COMMANDS)}; " if self.prog == _PROGRAM else ""
        raise ConfigError(f"{self.prog}: {message}", hint=f"{commands}see {self.prog} --help")


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command. ``failed`` is its exit status when it could not be carried out, ``usage`` for wrong words."""

    text: str
    run: Callable[[argparse.Namespace], int]
    configure: Callable[[argparse.ArgumentParser], None] = lambda _: None
    failed: int = EXIT_ERROR
    usage: int = EXIT_USAGE


def version(_: argparse.Namespace) -> int:
    """Print which ftstan this is and which release it stands in for."""
    print(f"ftstan {__version__}, compatible with nats-streaming-server {COMPATIBLE_VERSION}")
    return EXIT_OK


COMMANDS = {
    "version": Command("print which ftstan this is and which release it stands in for", version),
    "store": Command(
        "look at a datastore, repair it, hand it over", store.run, store.configure, failed=store.EXIT_FAILED
    ),
    "ft": Command(
        "look at a fault-tolerant group and steer it",
        ft.run,
        ft.configure,
        failed=ft.EXIT_CANNOT_ASK,
        # 2 says that nobody serves: a script with a wrong word must not believe that.
        usage=ft.EXIT_CANNOT_ASK,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the words ``argv`` (default: those of the process) and return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    parser = _Parser(prog=_PROGRAM, description="Look at ftstan servers and their datastores, and steer them.")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="<command>")
    for name, command in COMMANDS.items():
        command.configure(commands.add_parser(name, help=command.text, description=command.text))
    try:
        arguments = parser.parse_args(words)
    except ConfigError as error:
        named = COMMANDS.get(words[0]) if words else None
        return complain(error, named.usage if named is not None else EXIT_USAGE)
    command = COMMANDS[arguments.command]
    try:
        status = command.run(arguments)
        sys.stdout.flush()
    except FtstanError as error:
        return complain(error, command.failed)
    except BrokenPipeError:
        # The reader of our output has seen enough. Nothing more may be written there at exit, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
