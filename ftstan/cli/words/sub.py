"""The words of ``ftstanctl sub``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli.words.client import add_options, number, seconds

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    parser.add_argument("channel", metavar="CHANNEL")
    starts = parser.add_mutually_exclusive_group()
    starts.add_argument(
        "--first", action="store_true", help="begin with the first message that is stored"
    )
    starts.add_argument("--last", action="store_true", help="begin with the last one")
    starts.add_argument("--sequence", type=number, metavar="N", help="begin at this sequence")
    starts.add_argument(
        "--since", metavar="TIME", help="begin at this time, as 2026-07-01T12:00:00+02:00"
    )
    starts.add_argument("--ago", type=seconds, metavar="SECONDS", help="begin so long ago")
    parser.add_argument(
        "--durable",
        default="",
        metavar="NAME",
        help="the server keeps the position under this name",
    )
    parser.add_argument(
        "--queue",
        default="",
        metavar="GROUP",
        help="share the messages with the group's other members",
    )
    parser.add_argument(
        "--forget", action="store_true", help="unsubscribe in the end: the server forgets a durable"
    )
    parser.add_argument(
        "--max-in-flight", type=number, default=1024, metavar="N", help="default 1024"
    )
    parser.add_argument(
        "--ack-wait", type=number, default=30, metavar="SECONDS", help="whole seconds (default 30)"
    )
    parser.add_argument(
        "--no-ack", action="store_true", help="acknowledge nothing: a look at what is there"
    )
    parser.add_argument(
        "--count", type=number, default=0, metavar="N", help="end after so many messages"
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help="end when none came for so long"
    )
    parser.add_argument(
        "--output",
        choices=("text", "raw", "json"),
        default="text",
        help="raw: the data alone; json: a line each",
    )
    add_options(parser)
