"""What ``ftstanctl pub``, ``sub`` and ``bench`` have in common: flags for the connection, numbers,
exit statuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli import contexts

if TYPE_CHECKING:
    import argparse


EXIT_DONE = 0
EXIT_NOT_ALL = 1
EXIT_CANNOT_ASK = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags for the connection."""
    contexts.add_options(parser, group=False, enforce_tls=False)
    parser.add_argument(
        "--client-id", default="", metavar="ID", help="default: one of its own, new each time"
    )
    parser.add_argument(
        "--connect-timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="for the connection (default 10)",
    )


def seconds(text: str) -> float:
    """A duration above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def number(text: str) -> int:
    """A whole number, 1 or more."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


# What argparse calls a wrong value.
seconds.__name__ = "duration in seconds"
number.__name__ = "number"
