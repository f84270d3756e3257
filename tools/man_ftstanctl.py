"""``ftstanctl(8)``, made from the parser that reads the command's words."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from ftstan.cli import contexts
from ftstan.cli.contexts import CONTEXT_VARIABLE, SETTINGS
from ftstan.cli.ctl import PROGRAM
from tools.roff import head, roff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ftstan.cli.program import Program

SERVERS = "SERVERS AND LOGINS"

#: A line of what ``give_examples`` has put into the help.
_EXAMPLE = re.compile(r"^  (\S.*)$", re.MULTILINE)


def manual() -> str:
    """The page."""
    common = argparse.ArgumentParser(add_help=False)
    contexts.add_options(common)
    shared = {word for action in actions(common) for word in action.option_strings}
    lines = [
        *head(
            "FTSTANCTL",
            8,
            "look at ftstan servers and their datastores, and steer them",
            "the command's parser",
        ),
        ".SH SYNOPSIS",
        ".B ftstanctl",
        "\\fIcommand\\fR [\\fIoptions\\fR]",
        ".SH DESCRIPTION",
        "Whatever goes wrong is one line and a hint on standard error.",
        roff(
            "With --output json, commands print JSON; the names of its fields are kept from "
            "release to release."
        ),
    ]
    lines += commands_of(PROGRAM, {SERVERS: shared})
    lines += [
        f".SH {SERVERS}",
        roff("Of pub, sub, bench and ft; what is not given is taken from ENVIRONMENT, then"),
    ]
    lines += [
        roff("from the context, then from the defaults. Not every command has every one of them.")
    ]
    lines += [line for action in actions(common) for line in option(action)]
    lines += [".SH ENVIRONMENT"]
    for setting in SETTINGS:
        names = ", ".join(f"\\fB{roff(name)}\\fR" for name in setting.variables)
        lines += [".TP", names, roff(f"{_sentence(setting.text)} ({setting.flags[0]}).")]
    lines += [
        ".TP",
        f"\\fB{CONTEXT_VARIABLE}\\fR",
        roff("The context to use instead of the selected one (--context)."),
    ]
    lines += [
        ".TP",
        "\\fBXDG_CONFIG_HOME\\fR",
        roff("Contexts are below its ftstan/contexts (default: ~/.config)."),
    ]
    return "\n".join([*lines, ".SH SEE ALSO", ".BR ftstan (8)"]) + "\n"


def commands_of(program: Program, elsewhere: Mapping[str, set[str]]) -> list[str]:
    """A section for each command.

    ``elsewhere``: section -> options that it describes for all of them.
    """
    lines: list[str] = []
    found = list(leaves(program.build_parser()))
    for name, command in program.commands.items():
        lines += [
            f".SH {roff(f'{program.name} {name}').upper()}",
            roff(f"{_sentence(command.text)}."),
        ]
        for path, parser in found:
            if path[0] == name:
                lines += _leaf(program.name, path, parser, elsewhere)
        lines += [".SS Exit status"]
        for status, text in command.load().statuses.items():
            lines += [".TP", str(status), roff(f"{_sentence(text)}.")]
    return lines


def leaves(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command that can be given, by its words."""
    below = [action for action in actions(parser) if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001  # there is no other way to ask
    if not below:
        yield path, parser
    for action in below:
        for name, child in action.choices.items():
            yield from leaves(child, (*path, name))


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What a parser takes, but for --help."""
    every = parser._actions  # noqa: SLF001  # as above
    return [action for action in every if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001  # as above


def _leaf(
    program: str,
    path: tuple[str, ...],
    parser: argparse.ArgumentParser,
    elsewhere: Mapping[str, set[str]],
) -> list[str]:
    told = set().union(*elsewhere.values())
    own = [action for action in actions(parser) if not told & set(action.option_strings)]
    words = " ".join(_positional(action) for action in own if not action.option_strings)
    lines = [f".SS {program} {' '.join(path)} {words}".rstrip()]
    if len(path) > 1:
        lines.append(roff(f"{_sentence(parser.description or '')}."))
    for action in own:
        lines += option(action)
    taken = {word for action in actions(parser) for word in action.option_strings}
    for section, words_of in elsewhere.items():
        if len(taken & words_of) > 1:  # --context alone is no login
            lines += [".P", f"And options of {section}."]
    return lines + examples_of(parser)


def examples_of(parser: argparse.ArgumentParser) -> list[str]:
    """Those of its help."""
    return examples(_EXAMPLE.findall(parser.epilog or ""))


def examples(commands: Sequence[str]) -> list[str]:
    """Commands as people type them."""
    if not commands:
        return []
    return [".P", "Examples:", ".P", ".RS", ".nf", *map(roff, commands), ".fi", ".RE"]


def _positional(action: argparse.Action) -> str:
    name = _value(action)
    return f"[{name}]" if action.nargs == "?" else name


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "|".join(str(choice) for choice in action.choices)
    return str(action.metavar or action.dest)


def option(action: argparse.Action) -> list[str]:
    """One option, or one word, with what it says."""
    value = "" if action.nargs == 0 else f" \\fI{roff(_value(action))}\\fR"
    names = ", ".join(f"\\fB{roff(name)}\\fR" for name in action.option_strings)
    if not names:
        return [".TP", value.strip(), roff(f"{_sentence(action.help)}.")] if action.help else []
    return [".TP", names + value, roff(f"{_sentence(action.help or '')}.")]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
