"""The words of ``ftstanctl bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli import contexts
from ftstan.cli.words.client import number, seconds

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    parser.add_argument(
        "channel", metavar="CHANNEL", nargs="?", default="bench", help="default: bench"
    )
    parser.add_argument(
        "--pub", type=_amount, default=1, metavar="N", help="publishers (default 1)"
    )
    parser.add_argument(
        "--sub",
        type=_amount,
        default=0,
        metavar="N",
        help="subscribers, each of which gets every message (default 0); with --pub 0 they read "
        "what is stored",
    )
    parser.add_argument(
        "--queue", default="", metavar="GROUP", help="the subscribers share the messages"
    )
    parser.add_argument(
        "--count",
        type=number,
        default=100_000,
        metavar="N",
        help="messages, of all publishers (default 100000)",
    )
    parser.add_argument(
        "--size", type=number, default=128, metavar="BYTES", help="of each message (default 128)"
    )
    windows = parser.add_mutually_exclusive_group()
    windows.add_argument(
        "--max-in-flight",
        type=number,
        default=512,
        metavar="N",
        help="of each publisher without an ack (default 512)",
    )
    windows.add_argument(
        "--sync", action="store_true", help="wait for each ack before the next publish"
    )
    parser.add_argument(
        "--sub-max-in-flight",
        type=number,
        default=1024,
        metavar="N",
        help="of each subscriber (default 1024)",
    )
    parser.add_argument(
        "--ack-wait", type=number, default=30, metavar="SECONDS", help="whole seconds (default 30)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="give up when nothing moves (default 30)",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="default: text")
    contexts.add_options(parser, group=False)
    parser.add_argument(
        "--connect-timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="for each client (default 10)",
    )


def _amount(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


_amount.__name__ = "number"  # what argparse calls a wrong value
