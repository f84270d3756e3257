"""Words as people type them: options may stand anywhere, before a command and behind the text.

``argparse`` takes an option of a command only behind its name, and not between two optional
positionals. Here the words are put into the order that it takes: the path of commands, the
options, all else. What follows ``--`` is never an option.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Behind ``sub`` they are verbs, and no channels.
SUBSCRIPTION_VERBS = ("ls", "info", "report")
_NUMBER = re.compile(r"-\d+(\.\d+)?")


def in_order(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """``words`` in the order that ``parser`` takes. Wrong ones stay wrong, for it to say so."""
    path: list[str] = []
    options: list[str] = []
    rest: list[str] = []
    here = parser
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            rest += [word, *left]
            break
        if word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word):
            options.append(word)
            if left and _takes_value(here, word, left[0]):
                options.append(left.pop(0))
            continue
        commands = _commands(here)
        if commands is None:
            rest.append(word)
        else:
            path.append(word)
            below = commands.get(word)
            if below is None:
                # No command: argparse says which there are.
                return [*path, *options, *left]
            here = below
    return [*path, *options, *rest]


def leaf(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command that ``words``, in order, begin with."""
    for word in words:
        below = (_commands(parser) or {}).get(word)
        if below is None:
            break
        parser = below
    return parser


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """The long flags of one command."""
    return [
        word
        for action in parser._actions  # noqa: SLF001  # there is no other way to ask
        for word in action.option_strings
        if word.startswith("--")
    ]


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser] | None:
    for action in parser._actions:  # noqa: SLF001  # as above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # as above
            return dict(action.choices)
    return None


def _takes_value(parser: argparse.ArgumentParser, word: str, following: str) -> bool:
    """Whether ``following`` is the option's; before a command, whichever command has it says."""
    if "=" in word:
        return False
    matches = [
        (text, action)
        for action in _actions(parser)
        for text in action.option_strings
        if text == word or (word.startswith("--") and text.startswith(word))
    ]
    exact = [action for text, action in matches if text == word]
    found = exact or [action for _, action in matches]
    if not found or found[0].nargs not in {None, "?"}:
        return False
    return found[0].nargs is None or _suits(found[0], following)


def _suits(action: argparse.Action, word: str) -> bool:
    """Whether an option that may do without a value can have this one."""
    if word.startswith("-"):
        return False
    try:
        if callable(action.type):
            action.type(word)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return False
    return True


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    yield from parser._actions  # noqa: SLF001  # as above
    for below in (_commands(parser) or {}).values():
        yield from _actions(below)
