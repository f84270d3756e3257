"""The words of ``ftstanctl drill``, and its exit statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.cli import contexts
from ftstan.cli.words.client import number
from ftstan.cli.words.databases import add_source_options
from ftstan.cli.words.servers import add_key_options

if TYPE_CHECKING:
    import argparse


EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_CANNOT = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    parser.add_argument(
        "scenario",
        metavar="SCENARIO",
        nargs="?",
        default="",
        help="a YAML file, or a name that --list shows",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the drills that come with ftstan")
    what.add_argument("--show", metavar="NAME", help="print one of them, to start from")
    what.add_argument("--check", action="store_true", help="read the scenario, and start nothing")
    what.add_argument("--judge", metavar="DIR", help="judge a ledger that was written before")
    what.add_argument(
        "--self-test",
        action="store_true",
        help="put faults into a ledger, and see that each is found",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where the run keeps its things (default: drill-<name>-<time>)"
    )
    parser.add_argument("--repeat", type=number, metavar="N", help="instead of the scenario's")
    add_source_options(
        parser,
        "the group of this host stores in a database, which holds nothing or what a former drill "
        "has left there",
    )
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    parser.add_argument(
        "--html", metavar="FILE", help="write the page there, too (always: DIR/report.html)"
    )
    parser.add_argument(
        "--output", choices=("table", "json"), default="table", help="default: table"
    )
    contexts.add_options(parser, enforce_tls=False)
    add_key_options(parser)
