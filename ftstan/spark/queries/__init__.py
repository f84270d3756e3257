"""Questions that operators ask of the message log, as SQL views and as queries with a name.

Reads through the data source ``stan`` and from ``subs.dat``, changes nothing. Importing it needs no
Spark.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ftstan.spark.queries.forecasting import Forecast

__all__ = ["NAMES", "QueryOptions", "forecast", "register", "run", "sql"]

#: The queries, and what each answers.
NAMES: dict[str, str] = {
    "rate": "messages and bytes per channel over time",
    "talkers": "the busiest channels of each hour (a message does not say who published it)",
    "lag": "how far each subscription is behind, now",
    "lag-history": "how far each subscription was behind the furthest one, as far as subs.dat "
    "can tell",
    "forecast": "when each channel fills its limits",
}


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """What a query is asked with; each uses what it needs.

    ``bucket``: a piece of time of ``rate`` and ``lag-history``, such as "5 minutes"; ``top``: rows
    an hour of ``talkers``. For ``forecast``: ``config``, a server's configuration file, and
    ``limits``, which win over it: by channel name (wildcards; "" for all), ``max_msgs``,
    ``max_bytes``, ``max_age`` in seconds; ``recent``: the time before the newest message from which
    the growth is taken. ``reading``: further options of ``stan``.
    """

    bucket: str = "1 hour"
    top: int = 10
    config: str = ""
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    recent: str = "1 day"
    reading: Mapping[str, str] = field(default_factory=dict)


def register(
    spark: SparkSession, places: Sequence[str], *, reading: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Make the views of ``places`` for the SQL of a session, and return their names.

    ``messages``: all columns of ``stan`` and the ``place``, each sequence of a channel once;
    ``message_sizes``: the narrow half of it, which reads quickly; ``channels``, ``rates_by_hour``,
    ``rates_by_day``, ``talkers_by_hour``, ``dead_letters`` (with their origins); and
    ``subscription_events`` where a place is a datastore. Raises ``ConfigError``.
    """
    from ftstan.spark.queries.views import make_views  # noqa: PLC0415  needs pyspark

    return make_views(spark, places, reading or {})


def sql(spark: SparkSession, text: str) -> DataFrame:
    """The rows of a statement over the views.

    Raises ``ConfigError`` with Spark's words for one that is wrong.
    """
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415  needs pyspark
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    # It writes Java's stack of every wrong statement to the standard error.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        return spark.sql(text)
    except (AnalysisException, ParseException) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"SQL: {first}", hint="views are: messages, message_sizes, channels, ..."
        ) from error


def run(
    spark: SparkSession, name: str, places: Sequence[str], options: QueryOptions = QueryOptions()
) -> DataFrame:
    """The rows of one of ``NAMES``, over ``places``, whose views it makes.

    Raises ``ConfigError``.
    """
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else f"queries are: {', '.join(NAMES)}"
        raise ConfigError(f'there is no query "{name}"', hint=hint)
    from ftstan.spark.places import kind_of  # noqa: PLC0415  needs pyarrow
    from ftstan.spark.queries import views  # noqa: PLC0415  needs pyspark

    stores = [place for place in places if kind_of(place) == "store"]
    if name in ("lag", "lag-history") and not stores:
        raise ConfigError(
            "only a datastore knows of subscriptions", hint="name the directory of a server's -dir"
        )
    if name == "lag":
        return _lag(spark, stores, options)
    register(spark, places, reading=options.reading)
    match name:
        case "rate":
            return views.rate(spark, options.bucket)
        case "talkers":
            return views.talkers(spark, options.top)
        case "lag-history":
            return views.lag_history(spark, options.bucket)
        case _:
            rows = [astuple(one) for one in forecast(spark, options)]
            schema = (
                "channel string, limit string, used double, allowed bigint, per_second double, "
                "fills_at timestamp, "
                "says string"
            )
            return spark.createDataFrame(rows, schema)


def _lag(spark: SparkSession, stores: Sequence[str], options: QueryOptions) -> DataFrame:
    from ftstan.spark.queries.standing import SCHEMA, standings  # noqa: PLC0415  needs pyarrow

    return spark.createDataFrame(
        [astuple(row) for store in stores for row in standings(store, options.reading)], SCHEMA
    )


def forecast(spark: SparkSession, options: QueryOptions = QueryOptions()) -> list[Forecast]:
    """When each channel of the views (``register``) fills its limits, as of the newest message
    there.

    Raises ``ConfigError``.
    """
    from ftstan.spark.queries import forecasting, views  # noqa: PLC0415  needs pyspark

    limits = forecasting.limits_of(options.config, options.limits)
    found, now = views.usages(spark, options.recent)
    return [
        one
        for usage in found
        for one in forecasting.forecast(
            usage, limits.of(usage.channel.encode(errors="surrogateescape")), now
        )
    ]
