"""``ftstan-pipeline audit`` and ``judge``: whether everything is there, once, and promises were
kept.

Exit status: 0 clean, 1 something is wrong, 2 wrong words, 3 not carried out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ftstan.cli.pipeline import running, selecting
from ftstan.cli.terminal import print_json, say
from ftstan.spark import audit
from ftstan.spark.audit import AuditOptions
from ftstan.spark.selection import pattern_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ftstan.spark.audit import AuditReport

_DEFAULT = AuditOptions()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words of ``audit``."""
    selecting.add_places(parser)
    selecting.add_channels(parser)
    parser.add_argument(
        "--ledger",
        default="",
        metavar="DIR",
        help="judge this ledger too, and look for what it says",
    )
    parser.add_argument(
        "--ledger-channel",
        default="",
        metavar="NAME",
        help="the channel of the ledger (default: the only one)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail for whatever was found, notes too"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=_DEFAULT.most_findings,
        metavar="N",
        help=f"findings that are told one by one (default {_DEFAULT.most_findings}); all are "
        "counted",
    )
    _reports(parser)


def configure_judge(parser: argparse.ArgumentParser) -> None:
    """Add the words of ``judge``."""
    parser.add_argument(
        "ledger", metavar="LEDGER", help="a directory with the ledger of a demo or a drill"
    )
    _reports(parser)


def _reports(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quiet-seconds",
        type=running.rate,
        default=_DEFAULT.quiet_seconds,
        metavar="SECONDS",
        help=f"tell times without acks from this length on (default {_DEFAULT.quiet_seconds:g})",
    )
    parser.add_argument("--html", default="", metavar="FILE", help="write the report as a page")
    parser.add_argument("--json", default="", metavar="FILE", help="write the report as JSON")
    parser.add_argument(
        "--parquet", default="", metavar="DIR", help="write the findings as Parquet"
    )
    running.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Audit; returns the exit status. Raises ``FtstanError``."""
    channels = selecting.channels(arguments)
    several = len(arguments.places) > 1
    options = AuditOptions(
        channels=() if several else channels,
        # Of several places not each must have each channel.
        pattern=pattern_of(channels) if several and channels else arguments.pattern,
        ledger=arguments.ledger,
        ledger_channel=arguments.ledger_channel,
        quiet_seconds=arguments.quiet_seconds,
        strict=arguments.strict,
        most_findings=arguments.most,
        reading=selecting.reading(arguments),
    )
    return _audit(arguments, arguments.places, options)


def judge(arguments: argparse.Namespace) -> int:
    """Judge a ledger alone; returns the exit status. Raises ``FtstanError``."""
    return _audit(
        arguments, (), AuditOptions(ledger=arguments.ledger, quiet_seconds=arguments.quiet_seconds)
    )


def _audit(arguments: argparse.Namespace, places: Sequence[str], options: AuditOptions) -> int:
    with running.sparking(arguments, *places, *filter(None, [options.ledger])) as spark:
        report = audit.run(spark, places, options, progress=_teller(arguments))
    for path, write in (
        (arguments.html, report.write_html),
        (arguments.json, report.write_json),
        (arguments.parquet, report.write_parquet),
    ):
        if path:
            write(path)
    _say(arguments, report)
    return report.exit_code


def _teller(arguments: argparse.Namespace) -> Callable[[str], None] | None:
    if arguments.quiet or not sys.stderr.isatty():
        return None
    return lambda words: say(words, file=sys.stderr)


def _say(arguments: argparse.Namespace, report: AuditReport) -> None:
    if arguments.output == "json":
        print_json(report.as_json())
        return
    from ftstan.spark.audit.terminal import print_report  # noqa: PLC0415  only where there are tables

    print_report(report)
