"""``ftstan-pipeline query``: questions with a name, or in SQL, asked of datastores, spools and
archives.

Exit status: 0 answered, 2 wrong words, 3 not carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.cli.pipeline import running
from ftstan.cli.pipeline.running import EXIT_CLEAN, setting
from ftstan.cli.terminal import print_json, print_table
from ftstan.cli.words.client import number
from ftstan.spark import queries
from ftstan.spark.queries import QueryOptions

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import DataFrame, SparkSession

_DEFAULT = QueryOptions()
_NUMBERS = ("bigint", "int", "double", "float", "decimal", "smallint")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the words."""
    known = "; ".join(f"{name}: {text}" for name, text in queries.NAMES.items())
    parser.add_argument(
        "query",
        metavar="QUERY",
        help=f"SQL over the view messages and the others of docs/spark-audit.md, or {known}",
    )
    parser.add_argument(
        "places", nargs="+", metavar="PLACE", help="a datastore, a spool or an archive"
    )
    parser.add_argument(
        "--bucket",
        default=_DEFAULT.bucket,
        metavar="TIME",
        help=f'length of a piece of time (default "{_DEFAULT.bucket}")',
    )
    parser.add_argument(
        "--top",
        type=number,
        default=_DEFAULT.top,
        metavar="N",
        help=f"rows an hour of talkers (default {_DEFAULT.top})",
    )
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="a server's configuration file, for the limits of forecast",
    )
    parser.add_argument(
        "--recent",
        default=_DEFAULT.recent,
        metavar="TIME",
        help="the time before the newest message that shows forecast how fast it grows (default "
        f'"{_DEFAULT.recent}")',
    )
    parser.add_argument(
        "--limit", type=number, default=0, metavar="N", help="at most N rows (default: all)"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="an option of the data source, such as allowUnconfirmed=true; may be repeated",
    )
    running.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask; returns the exit status. Raises ``FtstanError``."""
    if arguments.query not in queries.NAMES and not any(c.isspace() for c in arguments.query):
        raise ConfigError(
            f"there is no query {arguments.query!r}",
            hint=f"there are {', '.join(queries.NAMES)}; or give SQL",
        )
    with running.sparking(arguments, *arguments.places) as spark:
        frame = _ask(arguments, spark)
        _say(arguments, frame.limit(arguments.limit) if arguments.limit else frame)
    return EXIT_CLEAN


def _ask(arguments: argparse.Namespace, spark: SparkSession) -> DataFrame:
    reading = dict(arguments.option)
    if arguments.query in queries.NAMES:
        options = QueryOptions(
            bucket=arguments.bucket,
            top=arguments.top,
            config=arguments.config,
            recent=arguments.recent,
            reading=reading,
        )
        return queries.run(spark, arguments.query, arguments.places, options)
    queries.register(spark, arguments.places, reading=reading)
    return queries.sql(spark, arguments.query)


def _say(arguments: argparse.Namespace, frame: DataFrame) -> None:
    if arguments.output == "json":
        for row in frame.toLocalIterator():
            print_json(running.plain(row.asDict(recursive=True)))
        return
    right = [name for name, kind in frame.dtypes if kind.startswith(_NUMBERS)]
    rows = [["" if cell is None else cell for cell in row] for row in frame.collect()]
    print_table(frame.columns, rows, right=right)
