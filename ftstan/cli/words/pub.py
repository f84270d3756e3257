"""The words of ``ftstanctl pub``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli.words.client import add_options, number, seconds

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    parser.add_argument("channel", metavar="CHANNEL")
    parser.add_argument(
        "data", metavar="DATA", nargs="?", help="the message; without it, standard input is one"
    )
    parser.add_argument(
        "--lines", action="store_true", help="each line of standard input is a message"
    )
    parser.add_argument(
        "--count", type=number, default=1, metavar="N", help="publish so many copies (default 1)"
    )
    parser.add_argument(
        "--republish",
        action="store_true",
        help="repeat what was not acknowledged (see docs/client.md, failovers)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long an ack is waited for (default 30)",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: text")
    add_options(parser)
