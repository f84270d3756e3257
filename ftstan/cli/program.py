"""A program with sub-commands: reads its words, runs one command, and says in one line what went wrong.

Common to ``ftstanctl`` and ``ftstan-pipeline``; what a command does is in a module of its own.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.cli import completion, contexts
from ftstan.cli.pipes import reader_left
from ftstan.cli.terminal import complain
from ftstan.client import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

WRONG_WORDS = "wrong words"
INTERRUPTED = "interrupted"


class Parser(argparse.ArgumentParser):
    """Errors become ``ConfigError``, so that they are printed in one place, with a hint."""

    commands: Sequence[str] = ()
    """Names of commands, in the parser of the whole program."""

    def error(self, message: str) -> NoReturn:
        """Raise ``ConfigError``."""
        commands = f"commands: {', '.join(self.commands)}; " if self.commands else ""
        raise ConfigError(f"{self.prog}: {message}", hint=f"{commands}see {self.prog} --help")


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command. ``failed`` is its exit status when it could not be carried out, ``usage`` for wrong words.

    ``statuses`` says what each of its exit statuses means.
    """

    text: str
    run: Callable[[argparse.Namespace], int]
    statuses: Mapping[int, str]
    configure: Callable[[argparse.ArgumentParser], None] = lambda _: None
    failed: int = EXIT_ERROR
    usage: int = EXIT_USAGE


@dataclass(frozen=True, slots=True)
class Program:
    """A program's name, what ``--help`` says of it, and its commands."""

    name: str
    description: str
    commands: Mapping[str, Command]

    def build_parser(self) -> Parser:
        """The parser of every word."""
        parser = Parser(prog=self.name, description=self.description)
        parser.commands = tuple(self.commands)
        commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="<command>")
        for name, command in self.commands.items():
            statuses = "; ".join(f"{status}: {text}" for status, text in command.statuses.items())
            command.configure(
                commands.add_parser(
                    name, help=command.text, description=command.text, epilog=f"Exit status: {statuses}."
                )
            )
        return parser

    def run(self, words: Sequence[str]) -> int:
        """Carry out the command that ``words`` give; returns its exit status."""
        try:
            arguments = self.build_parser().parse_args(words)
        except ConfigError as error:
            named = self.commands.get(words[0]) if words else None
            return complain(error, named.usage if named is not None else EXIT_USAGE)
        command = self.commands[arguments.command]
        try:
            status = command.run(arguments)
            sys.stdout.flush()
        except FtstanError as error:
            return complain(error, command.failed)
        except BrokenPipeError:
            reader_left()
            return EXIT_OK
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        return status


def refusing(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command whose words can turn out to be wrong while it runs."""

    def run_refusing(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except (ConfigError, InvalidArgumentError) as error:
            return complain(error, EXIT_USAGE)

    return run_refusing


def filled(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command that takes what its words leave open from the environment and the context."""

    def run_filled(arguments: argparse.Namespace) -> int:
        contexts.fill(arguments)
        return run(arguments)

    return refusing(run_filled)


def completing(program: Callable[[], Program]) -> Command:
    """The command that prints what a shell needs to complete the words of ``program()``."""

    def run(arguments: argparse.Namespace) -> int:
        sys.stdout.write(completion.script(arguments.shell, program().build_parser()))
        return EXIT_OK

    return Command(
        "print what a shell needs to complete these words",
        run,
        {EXIT_OK: "done", EXIT_USAGE: WRONG_WORDS},
        completion.configure,
    )
