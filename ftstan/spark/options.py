"""The options of ``stan``: Kafka's names and meaning where Kafka has one, checked before anything
is read.

Spark gives every value as text and does not care about the case of names. An option that nobody
knows is an error that names the nearest one: a limit that is misspelt must not become no limit.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError
from ftstan.spark.keys import KEY_FILE_OPTION, KeySource
from ftstan.spark.parts import EVERYTHING, MAX_BYTES, MAX_TIME, MIN_TIME, POLYNOMIAL, Bounds
from ftstan.spark.resolve import ENDLESS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

EARLIEST: Final = -2
LATEST: Final = -1

#: Options of a batch query, as people write them.
BATCH: Final = (
    "path",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxPartitionBytes",
    "failOnDataLoss",
    "allowUnconfirmed",
    "failOnEncrypted",
    KEY_FILE_OPTION,
    "mode",
    "pushFilters",
    "readStats",
    "crcPolynomial",
)

#: Options that people look for where there is no need for them, in lower case, and why not.
_ELSEWHERE: Final = {
    KEY_FILE_OPTION.lower(): "it is for the files of a datastore or an archive; a server encrypts "
    "and decrypts with its own keys"
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
}
_SIZE = re.compile(r"([0-9]+)\s*([a-z]*)")


def spelled(given: Mapping[str, str], known: Collection[str], what: str) -> dict[str, str]:
    """The options of ``what`` by their proper names.

    Raises ``ConfigError`` for one that is not ``known``.
    """
    proper = {name.lower(): name for name in known}
    found = {}
    for key, value in given.items():
        name = proper.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), proper, 1, 0.6)
            hint = _ELSEWHERE.get(key.lower()) or (
                f"did you mean {proper[near[0]]}?"
                if near
                else f"options are: {', '.join(sorted(known))}"
            )
            raise ConfigError(f'stan: {what} has no option "{key}"', hint=hint, option=key)
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class Positions:
    """One side of what is read: ``named`` sequences of channels, and the ``default`` of all
    others.
    """

    default: int
    named: Mapping[str, int] = field(default_factory=dict)

    def of(self, channel: str) -> int:
        """A sequence, ``EARLIEST`` or ``LATEST``."""
        return self.named.get(channel, self.default)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch query wants. ``subscribe`` and ``pattern`` both ``None``: every channel.

    ``since`` and ``until`` are nanoseconds, both ends count; ``ending`` is exclusive, as in Kafka.
    ``fail_on_encrypted``: ``None`` if nobody said it.
    """

    path: str
    subscribe: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    starting: Positions
    ending: Positions
    since: int
    until: int
    min_partitions: int
    max_partition_bytes: int
    fail_on_data_loss: bool
    allow_unconfirmed: bool
    fail_on_encrypted: bool | None
    keys: KeySource
    strict: bool
    push_filters: bool
    read_stats: str
    polynomial: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check the options of a batch query. Raises ``ConfigError``."""
        o = spelled(given, BATCH, "a batch query")
        if not o.get("path"):
            raise ConfigError(
                "stan: which datastore or archive?", hint='give its directory: .option("path", DIR)'
            )
        starting = positions(o, "startingOffsets", EARLIEST)
        ending = positions(o, "endingOffsets", LATEST)
        if LATEST in (starting.default, *starting.named.values()):
            raise ConfigError(
                "stan: a batch query cannot start at latest",
                hint="leave out startingOffsets: earliest",
            )
        if EARLIEST in (ending.default, *ending.named.values()):
            raise ConfigError(
                "stan: a batch query cannot end at earliest", hint="leave out endingOffsets: latest"
            )
        return cls(
            path=o["path"],
            subscribe=subscribed(o),
            pattern=_pattern(o),
            starting=starting,
            ending=ending,
            since=moment(o, "startingTimestamp", MIN_TIME),
            until=moment(o, "endingTimestamp", MAX_TIME + 1) - 1,
            min_partitions=number(o, "minPartitions", 1),
            max_partition_bytes=_size(o, "maxPartitionBytes", MAX_BYTES),
            fail_on_data_loss=truth(o, "failOnDataLoss", default=True),
            allow_unconfirmed=truth(o, "allowUnconfirmed", default=False),
            fail_on_encrypted=truth(o, "failOnEncrypted", default=False)
            if o.get("failOnEncrypted", "").strip()
            else None,
            keys=KeySource.of(o.get(KEY_FILE_OPTION, "")),
            strict=_choice(o, "mode", ("PERMISSIVE", "FAILFAST")) == "FAILFAST",
            push_filters=truth(o, "pushFilters", default=False),
            read_stats=o.get("readStats", ""),
            polynomial=number(o, "crcPolynomial", POLYNOMIAL),
        )

    def wants(self, channel: str) -> bool:
        """Whether a channel is subscribed to."""
        if self.subscribe is not None:
            return channel in self.subscribe
        return self.pattern is None or self.pattern.fullmatch(channel) is not None

    def bounds(self, channel: str) -> Bounds:
        """What is wanted of a channel."""
        first = self.starting.of(channel)
        end = self.ending.of(channel)
        return Bounds(
            first=max(first, EVERYTHING.first) if first != EARLIEST else EVERYTHING.first,
            last=end - 1 if end != LATEST else ENDLESS,
            since=self.since,
            until=self.until,
        )


def subscribed(o: Mapping[str, str]) -> tuple[str, ...] | None:
    """The channels that ``subscribe`` names; ``None`` without it."""
    if "subscribe" not in o:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in o["subscribe"].split(",") if name.strip()))
    if not names:
        raise ConfigError(
            "stan: subscribe names no channel",
            hint="give names with commas between them, or leave it out",
        )
    if "subscribePattern" in o:
        raise ConfigError(
            "stan: subscribe and subscribePattern exclude each other", hint="give one of them"
        )
    return names


def _pattern(o: Mapping[str, str]) -> re.Pattern[str] | None:
    if "subscribePattern" not in o:
        return None
    try:
        return re.compile(o["subscribePattern"])
    except re.error as error:
        raise ConfigError(
            f"stan: subscribePattern {o['subscribePattern']!r}: {error}",
            hint=r"give a regular expression for whole names, such as orders\..*",
        ) from error


def positions(o: Mapping[str, str], name: str, default: int) -> Positions:
    """``earliest``, ``latest``, or a JSON object of sequences per channel.

    -2 is earliest, -1 latest in it.
    """
    text = o.get(name, "").strip()
    if not text:
        return Positions(default)
    if text.lower() in ("earliest", "latest"):
        return Positions(EARLIEST if text.lower() == "earliest" else LATEST)
    try:
        named = json.loads(text)
    except ValueError:
        named = None
    if not isinstance(named, dict) or not all(
        type(n) is int and EARLIEST <= n <= ENDLESS for n in named.values()
    ):
        raise ConfigError(
            f"stan: {name} is {text!r}",
            hint='give earliest, latest, or sequences of channels such as {"orders": 17, '
            '"audit": -2} (-2: earliest)',
            option=name,
        )
    return Positions(default, named)


def moment(o: Mapping[str, str], name: str, default: int) -> int:
    """A time in nanoseconds since 1970, from milliseconds (as in Kafka) or an ISO date, UTC where
    it names no zone.
    """
    text = o.get(name, "").strip()
    if not text:
        return default
    if re.fullmatch(r"-?[0-9]+", text):
        return min(max(int(text) * 1_000_000, MIN_TIME), MAX_TIME)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"stan: {name} is {text!r}",
            hint="give milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z",
            option=name,
        ) from error
    return nanoseconds(when)


def nanoseconds(when: datetime) -> int:
    """A time in nanoseconds since 1970, negative before; UTC where it names no zone."""
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - _EPOCH) // timedelta(microseconds=1) * 1000


def number(o: Mapping[str, str], name: str, default: int) -> int:
    """A whole number, 1 or more."""
    text = o.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise ConfigError(
            f"stan: {name} is {text!r}", hint="give a whole number from 1 on", option=name
        )
    return int(text)


def seconds(o: Mapping[str, str], name: str, default: float) -> float:
    """A duration above 0, in seconds."""
    text = o.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(
            f"stan: {name} is {text!r}", hint="give seconds above 0, for example 30", option=name
        )
    return value


def _size(o: Mapping[str, str], name: str, default: int) -> int:
    text = o.get(name, "").strip().lower()
    if not text:
        return default
    m = _SIZE.fullmatch(text)
    if m is None or m[2] not in _UNITS or int(m[1]) < 1:
        raise ConfigError(
            f"stan: {name} is {text!r}", hint="give bytes, or a size such as 64m", option=name
        )
    return int(m[1]) * _UNITS[m[2]]


def truth(o: Mapping[str, str], name: str, *, default: bool) -> bool:
    """``true`` or ``false``."""
    text = o.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise ConfigError(f"stan: {name} is {text!r}", hint="give true or false", option=name)
    return default if not text else text == "true"


def _choice(o: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    text = o.get(name, words[0]).strip().upper()
    if text not in words:
        raise ConfigError(
            f"stan: {name} is {text!r}", hint=f"give {' or '.join(words)}", option=name
        )
    return text
