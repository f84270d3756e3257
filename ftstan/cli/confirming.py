"""Asks an operator before something is done that others will notice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ftstan.base.errors import RefusedError
from ftstan.cli.terminal import visible

if TYPE_CHECKING:
    import argparse


def confirm(arguments: argparse.Namespace, what: str, *, destroys: bool = True) -> None:
    """Ask before ``what`` is done; ``--yes`` has answered already.

    Without a terminal nobody can be asked: what ``destroys`` is refused then, and anything else is
    done. Raises ``RefusedError`` if the answer is not yes.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        if not destroys:
            return
        raise RefusedError(f"not done without a word: {what}", hint="add --yes if that is meant")
    print(f"{visible(what)}? type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise RefusedError("nothing was done", hint="only the word yes, or --yes, goes on")
