"""The flags by which a command is told which database."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_source_options(parser: argparse.ArgumentParser, what: str) -> None:
    """The flags that ``databases.flagged`` reads; ``what`` the first one means."""
    parser.add_argument("--sql-driver", choices=("mysql", "postgres"), default="", help=what)
    parser.add_argument(
        "--sql-source-file",
        default="",
        metavar="FILE",
        help="the server's -sql_source_file (default: the source in FTSTAN_SQL_SOURCE)",
    )
