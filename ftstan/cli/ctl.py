"""``ftstanctl``: the operator's command. One sub-command so far; each later one gets a file of its own."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from ftstan import COMPATIBLE_VERSION, __version__
from ftstan.errors import ConfigError, FtstanError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2


class _Parser(argparse.ArgumentParser):
    """Errors become ``ConfigError``, so that they are printed in one place, with a hint."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}", hint=f"commands: {', '.join(COMMANDS)}; see ftstanctl --help")


def version() -> int:
    """Print which ftstan this is and which release it stands in for."""
    print(f"ftstan {__version__}, compatible with nats-streaming-server {COMPATIBLE_VERSION}")
    return EXIT_OK


#: Sub-command to what carries it out.
COMMANDS: dict[str, Callable[[], int]] = {"version": version}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the words ``argv`` (default: those of the process) and return its exit status."""
    parser = _Parser(prog="ftstanctl", description="Look at ftstan servers and their datastores, and steer them.")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="<command>")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.__doc__, description=command.__doc__)
    try:
        arguments = parser.parse_args(argv)
    except ConfigError as error:
        return _complain(error, EXIT_USAGE)
    try:
        return COMMANDS[arguments.command]()
    except FtstanError as error:
        return _complain(error, EXIT_ERROR)
    except KeyboardInterrupt:
        return EXIT_ERROR


def _complain(error: FtstanError, status: int) -> int:
    print(error, file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
