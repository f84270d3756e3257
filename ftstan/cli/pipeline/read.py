"""``ftstan-pipeline read``: look at messages, count them, export them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ftstan.base.errors import ConfigError
from ftstan.base.sizes import size_of
from ftstan.cli.pipeline import running, selecting
from ftstan.cli.pipeline.running import EXIT_CLEAN
from ftstan.cli.terminal import print_json, print_table, say
from ftstan.cli.words.client import number

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import DataFrame, SparkSession

    from ftstan.spark.selection import Selection

_SHOWN = 20
_SHOWN_BYTES = 60
_FORMATS = ("parquet", "json", "csv")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    selecting.add_places(parser)
    selecting.add_messages(parser)
    parser.add_argument(
        "--limit",
        type=number,
        default=0,
        metavar="N",
        help=f"at most N messages (default: {_SHOWN} unless exported)",
    )
    parser.add_argument(
        "--count", action="store_true", help="channels and how much is in them, instead of messages"
    )
    parser.add_argument(
        "--export",
        default="",
        metavar="DIR",
        help="write the messages as files into a new directory",
    )
    parser.add_argument(
        "--format", choices=_FORMATS, default="parquet", help="of --export (default: parquet)"
    )
    running.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show or export; returns the exit status. Raises ``FtstanError``."""
    selection = selecting.selected(arguments)
    if arguments.count and arguments.export:
        raise ConfigError("--count and --export were given", hint="give one of them")
    with running.sparking(arguments) as spark:
        if arguments.count:
            _count(arguments, spark, selection)
        elif arguments.export:
            _export(arguments, selection.frame(spark, once=True))
        else:
            _show(arguments, selection.frame(spark, once=True))
    return EXIT_CLEAN


def _count(arguments: argparse.Namespace, spark: SparkSession, selection: Selection) -> None:
    from ftstan.spark.steps import survey  # noqa: PLC0415  needs pyspark

    found = survey(spark, selection)
    if arguments.output == "json":
        rows = [
            {
                "channel": n,
                "messages": e.messages,
                "bytes": e.size,
                "first": e.first,
                "last": e.last,
            }
            | {"since": e.since, "until": e.until}
            for n, e in found.items()
        ]
        print_json({"channels": rows})
        return
    numbers = ("messages", "bytes", "first", "last")
    table = [
        (n, e.messages, size_of(e.size), e.first, e.last, e.since, e.until)
        for n, e in found.items()
    ]
    print_table(("channel", *numbers, "since", "until"), table, right=numbers)


def _export(arguments: argparse.Namespace, frame: DataFrame) -> None:
    frame = frame.limit(arguments.limit) if arguments.limit else frame
    if arguments.format == "csv":
        frame = frame.selectExpr("* EXCEPT (data)", "base64(data) AS data")
    frame.write.format(arguments.format).mode("error").options(header="true").save(arguments.export)
    if arguments.output == "json":
        print_json({"directory": arguments.export, "format": arguments.format})
    else:
        say(f"exported to {arguments.export}")


def _show(arguments: argparse.Namespace, frame: DataFrame) -> None:
    rows = frame.limit(arguments.limit or _SHOWN).toLocalIterator()
    if arguments.output == "json":
        for row in rows:
            print_json(running.plain(row.asDict()))
        return
    table = [
        (
            r.channel,
            r.sequence,
            r.timestamp,
            size_of(r["size"]),
            "" if r.crc_ok else "DAMAGED",
            _preview(r.data),
        )
        for r in rows
    ]
    print_table(
        ("channel", "sequence", "time", "size", "state", "data"), table, right=("sequence", "size")
    )


def _preview(data: Any) -> str:
    text = bytes(islice(data or b"", _SHOWN_BYTES + 1)).decode("utf-8", "replace")
    return text if len(text) <= _SHOWN_BYTES else text[:_SHOWN_BYTES] + "..."
