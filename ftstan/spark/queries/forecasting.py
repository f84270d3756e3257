"""When channels fill their limits: what they hold, how fast it grew lately, and what their limits
are.

Pure, without Spark. A forecast is a straight line through the recent past; it says so and no more.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.file import apply_files
from ftstan.config.limits import INHERIT, Limits
from ftstan.config.precedence import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ftstan.config.options import ChannelLimits

#: What limits count for a message beside payload, channel name and reply: headers, index entry,
#: sequence and time.
_OVERHEAD = 60

_KEYS = ("max_msgs", "max_bytes", "max_age")
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Usage:
    """What a channel holds, and what came lately: ``recent_*`` within the last ``recent_seconds``.

    Times in UTC.
    """

    channel: str
    messages: int
    payload: int
    oldest: dt.datetime
    recent_messages: int
    recent_payload: int
    recent_seconds: float

    @property
    def size(self) -> int:
        """Bytes as limits count them, to some bytes a message."""
        return self.payload + self.messages * self._each

    @property
    def growth(self) -> tuple[float, float]:
        """Messages and bytes a second."""
        if self.recent_seconds <= 0:
            return 0.0, 0.0
        size = self.recent_payload + self.recent_messages * self._each
        return self.recent_messages / self.recent_seconds, size / self.recent_seconds

    @property
    def _each(self) -> int:
        return _OVERHEAD + len(self.channel.encode())


@dataclass(frozen=True, slots=True)
class Forecast:
    """One limit of one channel.

    ``limit``: max_msgs, max_bytes or max_age; ``used`` and ``allowed``: messages, bytes or seconds;
    ``per_second``: how fast ``used`` grows; ``fills_at``: when, ``None`` for never at this rate;
    ``says``: all of it in a sentence.
    """

    channel: str
    limit: str
    used: float
    allowed: int
    per_second: float
    fills_at: dt.datetime | None
    says: str


def limits_of(config: str, given: Mapping[str, Mapping[str, int]]) -> Limits:
    """Limits by channel: those of a server's configuration file or its defaults, and over them
    ``given`` ones.

    ``given``: by channel name, which may have wildcards, or "" for all channels: ``max_msgs``,
    ``max_bytes`` and ``max_age`` (seconds); 0 is unlimited. Raises ``ConfigError``.
    """
    settings = Settings()
    apply_files(settings, config, "")
    found = settings.options().limits
    for name, values in given.items():
        unknown = values.keys() - set(_KEYS)
        if unknown:
            raise ConfigError(
                f"there is no limit {min(unknown)}", hint=f"limits are: {', '.join(_KEYS)}"
            )
        own = {key: value * _NS if key == "max_age" else value for key, value in values.items()}
        if not name:
            found = replace(found, channel=replace(found.channel, **own))
            continue
        # In an entry a server's 0 means "as the wider one"; here it means unlimited.
        entry: ChannelLimits = replace(INHERIT, **{key: value or -1 for key, value in own.items()})
        found = replace(
            found, channels=(*(c for c in found.channels if c[0] != name), (name, entry))
        )
    return Limits(found)


def forecast(usage: Usage, limits: ChannelLimits, now: dt.datetime) -> Iterator[Forecast]:
    """The limits of one channel, each with the time when it is reached.

    Unlimited ones have no row.
    """
    messages, size = usage.growth
    for limit, used, allowed, growth, unit in (
        ("max_msgs", usage.messages, limits.max_msgs, messages, "messages"),
        ("max_bytes", usage.size, limits.max_bytes, size, "bytes"),
    ):
        if allowed:
            kept = growth * limits.max_age / _NS if limits.max_age else None
            at = _reached(used, allowed, growth, kept, now)
            says = _sentence(usage.channel, f"{allowed:,} {unit}", at, now, growth)
            yield Forecast(usage.channel, limit, float(used), allowed, growth, at, says)
    if limits.max_age and usage.messages:
        seconds = limits.max_age // _NS
        at = _later(usage.oldest, seconds)
        age = (now - usage.oldest).total_seconds()
        days = f"an age of {dt.timedelta(seconds=seconds)}"
        yield Forecast(
            usage.channel,
            "max_age",
            age,
            seconds,
            1.0,
            at,
            _sentence(usage.channel, days, at, now, 1.0),
        )


def _reached(
    used: int, allowed: int, growth: float, kept: float | None, now: dt.datetime
) -> dt.datetime | None:
    if used >= allowed:
        return now
    if growth <= 0 or (kept is not None and kept < allowed):
        return None
    return _later(now, (allowed - used) / growth)


def _later(moment: dt.datetime, seconds: float) -> dt.datetime | None:
    try:
        return moment + dt.timedelta(seconds=seconds)
    except OverflowError:
        return None


def _sentence(
    channel: str, limit: str, at: dt.datetime | None, now: dt.datetime, growth: float
) -> str:
    if at is None:
        why = "nothing came lately" if growth <= 0 else "at this rate what is old goes before"
        return f"{channel} does not fill its limit of {limit}: {why}"
    if at <= now:
        return f"{channel} is at its limit of {limit}: the oldest messages go"
    return (
        f"{channel} fills its limit of {limit} on {at:%A %Y-%m-%d %H:%M} UTC; then the oldest "
        "messages go"
    )
