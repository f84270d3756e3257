"""``ftstanctl explain``: what to do about a code at the end of a log line.

Reads the declaration that ``docs/troubleshooting.md`` is made from; asks nobody.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ftstan.base import codes
from ftstan.base.codes.table import CODES
from ftstan.base.errors import FtstanError
from ftstan.cli.program import EXIT_ERROR, EXIT_OK
from ftstan.cli.terminal import complain, print_json, say
from ftstan.config.unknown_keys import did_you_mean

if TYPE_CHECKING:
    import argparse

_FORM = re.compile(r"\[?(FTS-)?[1-9][0-9]{3}\]?", re.ASCII | re.IGNORECASE)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    parser.add_argument(
        "code", metavar="CODE", help="as FTS-2104 or 2104; or a whole line of the log, in quotes"
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Print what the line says and what to do; returns the exit status."""
    words = arguments.code.strip()
    ending = re.search(r"\[(FTS-\d{4})\]\s*$", words)
    code = codes.find(ending[1] if ending else words)
    if code is None and not _FORM.fullmatch(words):
        name = codes.of(words)
        code = codes.find(name) if name else None
    if code is None:
        near = did_you_mean(words.upper(), [known.name for known in CODES])
        return complain(
            FtstanError(
                f"nothing is known of {words}{near}",
                hint="docs/troubleshooting.md has every code, and lines without one",
            ),
            EXIT_ERROR,
        )
    page = f"docs/{code.page}" if code.page else ""
    if arguments.output == "json":
        print_json(
            {
                "code": code.name,
                "section": code.section,
                "line": code.line,
                "do": code.do,
                "page": page,
            }
        )
        return EXIT_OK
    say(f"{code.name}  {code.section}")
    if code.line:
        say(f"line:  {code.line}")
    say(f"do:    {code.do.replace('`', '')}")
    if page:
        say(f"page:  {page}")
    return EXIT_OK
