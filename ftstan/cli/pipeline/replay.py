"""``ftstan-pipeline replay``: publish messages again, to channels of a running server.

Exit status: 0 everything was stored, 1 a message was not, 2 wrong words, 3 not carried out.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, DamageError
from ftstan.base.sizes import size_of
from ftstan.cli import client_options
from ftstan.cli.pipeline import running, selecting
from ftstan.cli.pipeline.running import EXIT_CLEAN, EXIT_FOUND
from ftstan.cli.terminal import complain, print_json, print_table, progress, say
from ftstan.cli.words.client import add_options, number, seconds
from ftstan.spark import replay
from ftstan.spark.replay import Checkpoint, ReplayError, ReplayOptions

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

    from ftstan.spark.replay import ReplayReport
    from ftstan.spark.selection import Selection
    from ftstan.spark.steps import Extent

_IN_FLIGHT = 2048
_ACK_WITHIN_S = 120.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    selecting.add_places(parser)
    selecting.add_messages(parser)
    parser.add_argument(
        "--to-channel", default="", metavar="NAME", help="publish everything to this channel"
    )
    parser.add_argument(
        "--prefix",
        default="",
        metavar="TEXT",
        help="publish to channels with TEXT before their names",
    )
    parser.add_argument(
        "--same-channels", action="store_true", help="publish to channels of the same names"
    )
    parser.add_argument(
        "--rate", type=running.rate, default=0.0, metavar="N", help="at most N messages a second"
    )
    parser.add_argument(
        "--checkpoint",
        default="",
        metavar="FILE",
        help="note in FILE how far it came; the same words go on from there",
    )
    parser.add_argument(
        "--again",
        default="",
        metavar="WORD",
        help="replay once more what a server with -dedup_window remembers",
    )
    parser.add_argument(
        "--skip-damaged",
        action="store_true",
        help="leave out messages whose checksum does not hold",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be published, and publish nothing"
    )
    parser.add_argument(
        "--in-flight",
        type=number,
        default=_IN_FLIGHT,
        metavar="N",
        help=f"messages without an ack ({_IN_FLIGHT})",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_ACK_WITHIN_S,
        metavar="SECONDS",
        help=f"how long an ack is waited for ({_ACK_WITHIN_S:g})",
    )
    add_options(parser)
    running.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay; returns the exit status. Raises ``FtstanError``."""
    if sum(map(bool, (arguments.to_channel, arguments.prefix, arguments.same_channels))) != 1:
        raise ConfigError(
            "where to is not said, or said twice",
            hint="give one of --to-channel, --prefix and --same-channels",
        )
    selection = selecting.selected(arguments)
    options = ReplayOptions(
        arguments.cluster,
        arguments.to_channel,
        arguments.prefix,
        arguments.rate,
        arguments.checkpoint,
        arguments.skip_damaged,
        arguments.again,
    )
    checkpoint = Checkpoint.load(options.checkpoint, replay.identity_of(selection, options))
    selection = careful(selection)
    try:
        with running.sparking(arguments) as spark:
            return _replay(arguments, spark, selection, options, checkpoint)
    except (DamageError, ReplayError) as error:
        return complain(error, EXIT_FOUND)


def careful(selection: Selection) -> Selection:
    """The same messages; payloads that look encrypted end the replay, unless an option says
    otherwise: clients would get them as they are stored.
    """
    if any(name.lower() == "failonencrypted" for name in selection.options):
        return selection
    return replace(selection, options={**selection.options, "failOnEncrypted": "true"})


def _replay(
    arguments: argparse.Namespace,
    spark: SparkSession,
    selection: Selection,
    options: ReplayOptions,
    checkpoint: Checkpoint,
) -> int:
    from ftstan.spark.steps import survey  # noqa: PLC0415  needs pyspark

    found = survey(spark, selection)
    if not found:
        raise ConfigError(
            "there are no messages to replay", hint="look at the places with: ftstan-pipeline read"
        )
    if arguments.dry_run:
        _say_plan(arguments, found, options, checkpoint)
        return EXIT_CLEAN
    left = sum(extent.messages for extent in found.values()) - checkpoint.messages
    rows = replay.rows_of(spark, selection, found, checkpoint.channels)
    before = checkpoint.messages
    with progress("replaying", max(left, 0), shown=not arguments.quiet, counted=True) as advance:

        async def publish() -> ReplayReport:
            async with await client_options.connect(
                arguments,
                ack_timeout=arguments.timeout,
                republish=True,
                max_in_flight=arguments.in_flight,
            ) as connection:
                return await replay.publish(rows, connection, options, checkpoint, advance)

        report = asyncio.run(publish())
    report.left_out = before
    _say(arguments, report)
    return EXIT_CLEAN


def _say_plan(
    arguments: argparse.Namespace,
    found: dict[str, Extent],
    options: ReplayOptions,
    checkpoint: Checkpoint,
) -> None:
    rows = [
        {
            "channel": name,
            "target": options.target(name),
            "messages": extent.messages,
            "bytes": extent.size,
            "first": max(extent.first, checkpoint.channels.get(name, 0) + 1),
            "last": extent.last,
        }
        for name, extent in found.items()
    ]
    if arguments.output == "json":
        print_json({"dry_run": True, "channels": rows})
        return
    heads = ("channel", "target", "messages", "bytes", "first", "last")
    print_table(heads, [[row[head] for head in heads] for row in rows], right=heads[2:])
    say("nothing was published")


def _say(arguments: argparse.Namespace, report: ReplayReport) -> None:
    if arguments.output == "json":
        print_json(replay.as_json(report))
        return
    rows = [
        (name, row["target"], row["messages"], size_of(row["size"]))
        for name, row in report.channels.items()
    ]
    print_table(("channel", "target", "messages", "bytes"), rows, right=("messages", "bytes"))
    say(f"{report.messages} messages stored, {size_of(report.size)}")
    if report.left_out:
        say(f"{report.left_out} messages were stored by earlier runs")
    if report.damaged:
        say(f"{report.damaged} damaged messages were left out")
