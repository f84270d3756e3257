"""The words of ``ftstanctl check-store``, and its exit statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli.words.servers import seconds

if TYPE_CHECKING:
    import argparse


EXIT_SUITABLE = 0
EXIT_LIMITED = 1
EXIT_UNSUITABLE = 2
EXIT_CANNOT_TELL = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    parser.add_argument(
        "dir",
        metavar="DIR",
        help="the directory that servers will have as -dir, or one beside it; DRIVER:FILE for a "
        "database: postgres or mysql, and the server's -sql_source_file",
    )
    parser.add_argument(
        "--peer",
        action="store_true",
        help="with a second host, which runs the same command at the same time",
    )
    parser.add_argument(
        "--freeze",
        action="store_true",
        help="--peer: this host will be frozen or cut off; measures when its lock moves",
    )
    parser.add_argument(
        "--freeze-wait",
        type=seconds,
        default=180.0,
        metavar="SECONDS",
        help="--peer: how long for that (default 180)",
    )
    parser.add_argument(
        "--contend",
        type=seconds,
        default=3.0,
        metavar="SECONDS",
        help="--peer: how long both want the lock (default 3)",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="--peer: for the other host (default 120)",
    )
    parser.add_argument(
        "--phase",
        choices=("format", "attack", "verify"),
        help="prepare an attack, write while plugs are pulled, and see whether all that was "
        "durable is there",
    )
    parser.add_argument(
        "--journal",
        action="append",
        default=[],
        metavar="FILE",
        help="--phase: attack: where this host notes what is durable, outside DIR; verify: those "
        "of all hosts",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=3600.0,
        metavar="SECONDS",
        help="--phase attack: for how long (default 3600)",
    )
    parser.add_argument(
        "--remove", action="store_true", help="--phase verify: remove what was written"
    )
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="default: table"
    )
