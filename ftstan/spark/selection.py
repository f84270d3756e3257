"""Which messages of which places: what ``read``, ``replay`` and ``restore`` are told, and the
DataFrame that it means.

Only filters; what they prune is the business of the data source.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.spark.format import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of ``paths`` (datastores, spools, archives), all of them unless something says
    otherwise.

    ``channels`` names some, ``pattern`` is a regular expression for whole names. ``since`` and
    ``until`` (exclusive) compare with the time of storing. ``where`` is a condition in SQL over the
    columns of ``stan``. ``options`` go to the data source as they are.
    """

    paths: tuple[str, ...]
    channels: tuple[str, ...] = ()
    pattern: str = ""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    where: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def frame(self, spark: SparkSession, columns: str = "", *, once: bool = False) -> DataFrame:
        """The messages; with ``columns`` (a schema in SQL) only these are read, and ``where`` must
        do with them.

        ``once``: the frame is for one query, so what its filters exclude need not even be read.
        Several places are laid side by side: what lies in two of them comes twice. Raises
        ``ConfigError``.
        """
        if not self.paths:
            raise ConfigError(
                "no place to read was given", hint="name a datastore, a spool or an archive"
            )
        if self.channels and self.pattern:
            raise ConfigError(
                "channels and a pattern of channels were given", hint="give one of them"
            )
        frames = [self._read(spark, path, columns, once=once) for path in self.paths]
        frame = reduce(lambda a, b: a.unionByName(b), frames)
        for bound, sign in ((self.since, ">="), (self.until, "<")):
            if bound is not None:
                text = bound.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
                frame = frame.where(f"timestamp {sign} TIMESTAMP '{text} UTC'")
        return frame.where(self.where) if self.where else frame

    def _read(self, spark: SparkSession, path: str, columns: str, *, once: bool) -> DataFrame:
        reader = spark.read.format(FORMAT).options(**self.options).option("path", path)
        if self.channels and len(self.paths) == 1:
            reader = reader.option("subscribe", ",".join(self.channels))
        elif self.channels:
            # Of several places not each must have each of them, and a name that is not there would
            # be an error.
            reader = reader.option("subscribePattern", pattern_of(self.channels))
        if self.pattern:
            reader = reader.option("subscribePattern", self.pattern)
        if once:
            reader = reader.option("pushFilters", "true")
        if columns:
            reader = reader.schema(columns)
        return reader.load()


def pattern_of(channels: Iterable[str]) -> str:
    """A regular expression for these names and no other."""
    return "|".join(re.escape(channel) for channel in channels)


def moment(text: str) -> dt.datetime:
    """A point in time: ISO 8601 (UTC unless it says otherwise), or how long ago, such as ``90m``,
    ``36h`` or ``7d``.

    Raises ``ConfigError``.
    """
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    try:
        if text[-1:] in units and text[:-1].replace(".", "", 1).isdigit():
            return dt.datetime.now(dt.UTC) - dt.timedelta(**{units[text[-1]]: float(text[:-1])})
        said = dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is no point in time",
            hint="for example 2026-11-22, 2026-11-22T08:30:00Z, or 36h for 36 hours ago",
        ) from None
    return said if said.tzinfo is not None else said.replace(tzinfo=dt.UTC)
