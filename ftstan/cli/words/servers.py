"""What the commands that steer servers share: flags for the key, numbers, exit statuses."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

from ftstan.admin.keys import KEY_NAME
from ftstan.base.errors import ConfigError
from ftstan.config.units import parse_duration

if TYPE_CHECKING:
    import argparse


EXIT_DONE = 0
EXIT_REFUSED = 1
EXIT_UNSERVED = 2
EXIT_CANNOT_ASK = 3


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """The flags that ``read_admin_key`` reads."""
    parser.add_argument(
        "--dir",
        default="",
        metavar="DIR",
        help=f"the datastore, for its {KEY_NAME} (default: $FTSTAN_DIR, else the context's)",
    )
    parser.add_argument(
        "--admin-key",
        "--key-file",
        metavar="FILE",
        help=f"a copy of the datastore's {KEY_NAME}, or the -admin_key of a server without one",
    )


def add_answer_options(parser: argparse.ArgumentParser, *, asks: bool = True) -> None:
    """How answers are shown, and how long they are waited for where the command ``asks``."""
    if asks:
        parser.add_argument(
            "--timeout",
            type=seconds,
            default=1.0,
            metavar="SECONDS",
            help="how long answers are waited for (default 1)",
        )
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="default: table"
    )


def add_watch_options(parser: argparse.ArgumentParser, members: str) -> None:
    """How a status is shown again and again, and of how many ``members`` (their name)."""
    parser.add_argument(
        "--expect", type=count, default=0, metavar="N", help=f"how many {members} there are"
    )
    parser.add_argument(
        "--watch",
        type=seconds,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="show it again and again, until interrupted (default every 2)",
    )


def count(text: str) -> int:
    """A number from the command line."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def sequence(text: str) -> int:
    """A message's sequence from the command line: they begin with 1."""
    value = count(text)
    if not 0 < value < 1 << 63:
        raise ValueError
    return value


def seconds(text: str) -> float:
    """A duration from the command line."""
    value = float(text)
    if not 0 < value <= 3600:
        raise ValueError
    return value


def duration(text: str) -> int:
    """A duration such as ``90s`` or ``2h`` from the command line, in nanoseconds."""
    try:
        return parse_duration(text)
    except ConfigError as error:
        raise ValueError from error


def moment(text: str) -> int:
    """A time to come from the command line, as Unix nanoseconds.

    ``HH:MM`` is the next time that the clock of this host shows it, ``+`` begins a duration.
    Raises ``ValueError``, also for a time that no server can be told.
    """
    try:
        at_ns = _moment(text)
    except OverflowError as error:
        raise ValueError("no time that this host can say") from error
    # 0 would be none at all, and what servers are told has 64 bits.
    if not 0 < at_ns < 1 << 63:
        raise ValueError("not a time between the years 1970 and 2262")
    return at_ns


def _moment(text: str) -> int:
    now = dt.datetime.now().astimezone()
    if text.startswith("+"):
        return round(now.timestamp() * 1e9) + duration(text[1:])
    clock = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", text, re.ASCII)
    if clock is not None:
        at = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        if at <= now:
            at += dt.timedelta(days=1)
    else:
        at = dt.datetime.fromisoformat(text)
    return round(at.timestamp() * 1e9)


# What argparse calls a wrong value.
count.__name__ = "number"
duration.__name__ = "duration (90s, 15m or 1h30m)"
moment.__name__ = "time (03:00, 2026-11-28T03:00 or +2h)"
seconds.__name__ = "number of seconds (above 0, at most 3600)"
sequence.__name__ = "sequence of a message"
