"""A program with sub-commands: reads its words, runs one command, and says in one line what went
wrong.

Common to ``ftstanctl`` and ``ftstan-pipeline``; what a command does is in a module of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ftstan.base.errors import ConfigError, FtstanError, UsageError
from ftstan.cli.terminal import complain
from ftstan.cli.wordorder import flags, in_order, leaf
from ftstan.config.unknown_keys import did_you_mean, nearest
from ftstan.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EXIT_OK = 0
EXIT_ERROR = 1
#: For every command, and what none of them says by it: ``EX_USAGE`` of sysexits(3).
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130

_WIDTH = 78

WRONG_WORDS = "wrong words"
INTERRUPTED = "interrupted"


class _Formatter(argparse.HelpFormatter):
    """Wraps a text of one line; one with lines of its own, such as examples, stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def give_examples(parser: argparse.ArgumentParser, *examples: str, below: str = "") -> None:
    """Show ``examples`` in the help of a command: words behind the program's name, as people type
    them. ``below``: a text that follows.
    """
    program = parser.prog.split()[0]
    shown = "".join(f"\n  {program} {example}" for example in examples)
    parser.formatter_class = _Formatter
    parser.epilog = "\n\n".join(filter(None, [f"examples:{shown}" if shown else "", below]))


_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """Errors become ``ConfigError``, so that they are printed in one place, with a hint."""

    commands: Sequence[str] = ()
    """Names of commands, in the parser of the whole program."""

    def error(self, message: str) -> NoReturn:
        """Raise ``ConfigError``."""
        commands = f"commands: {', '.join(self.commands)}; " if self.commands else ""
        wrong = _CHOICE.search(message)
        meant = did_you_mean(wrong[1], re.findall(r"'([^']*)'", wrong[2])) if wrong else ""
        raise ConfigError(
            f"{self.prog}: {message}{meant}", hint=f"{commands}see {self.prog} --help"
        )


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command.

    ``run`` carries it out, and loads what that needs; ``configure`` adds its words. ``failed`` is
    its exit status when it could not be carried out; for wrong words it is ``EXIT_USAGE``.

    ``statuses`` says what each of its exit statuses means.
    """

    run: Callable[[argparse.Namespace], int]
    statuses: Mapping[int, str]
    configure: Callable[[argparse.ArgumentParser], None] = lambda _: None
    failed: int = EXIT_ERROR


@dataclass(frozen=True, slots=True)
class Entry:
    """What ``--help`` says of a command, and how to have it: whoever asks for one command does not
    wait for the others.
    """

    text: str
    load: Callable[[], Command]
    examples: tuple[str, ...] = ()
    """Words behind the program's name, as people type them."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program's name, what ``--help`` says of it, and its commands."""

    name: str
    description: str
    commands: Mapping[str, Entry]

    def build_parser(self, words: Sequence[str] | None = None) -> Parser:
        """The parser of ``words``, or of every word.

        It knows all commands by name, and the words of the one that ``words`` name.
        """
        wanted = None if words is None else self._wanted(words)
        parser = Parser(prog=self.name, description=self.description)
        parser.commands = tuple(self.commands)
        parser.add_argument("--version", action="version", version=f"ftstan {__version__}")
        commands = parser.add_subparsers(
            title="commands", dest="command", required=True, metavar="<command>"
        )
        for name, entry in self.commands.items():
            added = commands.add_parser(name, help=entry.text, description=entry.text)
            if wanted in (None, name):
                command = entry.load()
                told = "; ".join(f"{status}: {text}" for status, text in command.statuses.items())
                status = textwrap.fill(f"Exit status: {told}.", _WIDTH)
                give_examples(added, *entry.examples, below=status)
                command.configure(added)
        return parser

    def _wanted(self, words: Sequence[str]) -> str | None:
        """The command that ``words`` name; ``None``: options before it may be those of any."""
        if words and words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
            return None
        return next((word for word in words if not word.startswith("-")), "")

    def _read(self, words: Sequence[str]) -> argparse.Namespace:
        parser = self.build_parser(words)
        ordered = in_order(parser, words)
        arguments, unknown = parser.parse_known_args(ordered)
        if unknown:
            command = leaf(parser, ordered)
            word = next((one for one in unknown if one[:1] == "-"), " ")
            near = nearest(word.partition("=")[0], flags(command)) if word[0] == "-" else ""
            raise ConfigError(
                f"{command.prog}: unrecognized arguments: {' '.join(unknown)}",
                hint=(f"did you mean {near}? " if near else "") + f"see {command.prog} --help",
            )
        return arguments

    def run(self, words: Sequence[str]) -> int:
        """Carry out the command that ``words`` give; returns its exit status."""
        try:
            arguments = self._read(words)
        except ConfigError as error:
            return complain(error, EXIT_USAGE)
        command = self.commands[arguments.command].load()
        try:
            status = command.run(arguments)
            sys.stdout.flush()
        except FtstanError as error:
            return complain(error, EXIT_USAGE if isinstance(error, UsageError) else command.failed)
        except BrokenPipeError:
            from ftstan.cli.pipes import reader_left  # noqa: PLC0415

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
        except FtstanError as error:
            if not error.is_usage:
                raise
            return complain(error, EXIT_USAGE)

    return run_refusing


def filled(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command that takes what its words leave open from the environment and the context."""

    def run_filled(arguments: argparse.Namespace) -> int:
        from ftstan.cli import contexts  # noqa: PLC0415

        contexts.fill(arguments)
        return run(arguments)

    return refusing(run_filled)


def completing(program: Callable[[], Program]) -> Entry:
    """The command that prints what a shell needs to complete the words of ``program()``."""

    def load() -> Command:
        from ftstan.cli import completion  # noqa: PLC0415

        return Command(run, {EXIT_OK: "done", EXIT_USAGE: WRONG_WORDS}, completion.configure)

    def run(arguments: argparse.Namespace) -> int:
        from ftstan.cli import completion  # noqa: PLC0415

        sys.stdout.write(completion.script(arguments.shell, program().build_parser()))
        return EXIT_OK

    return Entry(
        "print what a shell needs to complete these words",
        load,
        ("completion bash", "completion fish"),
    )
