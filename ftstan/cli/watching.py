"""Showing something again and again: ``--watch`` of a status."""

from __future__ import annotations

import datetime as dt
import sys
import time
from typing import TYPE_CHECKING

from ftstan.base.errors import FtstanError
from ftstan.cli.terminal import complain, say
from ftstan.cli.words.servers import EXIT_CANNOT_ASK

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_CLEAR = "\x1b[H\x1b[2J"


def shown(look: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Look once, or, with ``--watch``, until interrupted; the exit status.

    Raises ``FtstanError`` of the one look.
    """
    if arguments.watch is None:
        return look(arguments)
    while True:
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        if arguments.output != "json":
            say(f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d %H:%M:%SZ}, every {arguments.watch:g} s")
        try:
            look(arguments)
        except FtstanError as error:
            # It may be what is being watched for.
            complain(error, EXIT_CANNOT_ASK)
        sys.stdout.flush()
        time.sleep(arguments.watch)
