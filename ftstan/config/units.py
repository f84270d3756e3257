"""Durations, sizes and integers as the original reads and prints them.

Pure functions over text and ``int``.

Durations are nanoseconds in 64 bits; sizes are bytes. Parsers raise ``ConfigError`` with the
original's texts.

Source: ``docs/compat/config.md`` (values).
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from ftstan.base.errors import ConfigError

MIN_INT64 = -(1 << 63)
MAX_INT64 = (1 << 63) - 1

Duration: TypeAlias = int
"""Nanoseconds."""
Size: TypeAlias = int
"""Bytes."""

NANOSECOND = 1
MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

_DURATION_UNITS = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "\N{MICRO SIGN}s": MICROSECOND,
    "\N{GREEK SMALL LETTER MU}s": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
#: A number and its unit, which reaches to the next digit or point.
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")

_INTEGER = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|0(?:_?[0-7])*|[1-9](?:_?[0-9])*)"
)

_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


def parse_duration(text: str) -> int:
    """Nanoseconds of ``text``: an optional sign, then one or more ``<decimal><unit>`` (``1h30m``,
    ``.5s``), or ``0``.

    Raises ``ConfigError`` (``time: invalid duration``, ``time: missing unit in duration``, ``time:
    unknown unit``).
    """
    invalid = ConfigError(
        f"time: invalid duration {quote(text)}", hint='write a duration such as "30s" or "1h30m"'
    )
    negative = text.startswith("-")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise invalid
    limit = -MIN_INT64 if negative else MAX_INT64
    total = 0
    for part in _DURATION_PART.finditer(rest):
        if not part[0]:  # the empty match at the end
            break
        whole = part[1]
        fraction = part[2] or ""
        unit = part[3]
        if not whole and not fraction:
            raise invalid
        if not unit:
            raise ConfigError(
                f"time: missing unit in duration {quote(text)}", hint="units: ns us ms s m h"
            )
        if unit not in _DURATION_UNITS:
            raise ConfigError(
                f"time: unknown unit {quote(unit)} in duration {quote(text)}",
                hint="units: ns us ms s m h",
            )
        scale = _DURATION_UNITS[unit]
        total += int(whole or "0") * scale
        if fraction:
            total += int(fraction) * scale // 10 ** len(fraction)
        if total > limit:
            raise invalid
    return -total if negative else total


def format_duration(nanos: int) -> str:
    """Return the shortest exact form in the original's style: ``1h0m0s``, ``1m30.5s``, ``1.5ms``,
    ``0s``.
    """
    sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
    if nanos == 0:
        return "0s"
    for unit, scale in (("ns", NANOSECOND), ("\N{MICRO SIGN}s", MICROSECOND), ("ms", MILLISECOND)):
        if nanos < scale * 1000:
            return f"{sign}{_decimal(nanos, scale)}{unit}"
    minutes, rest = divmod(nanos, MINUTE)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest, SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, scale: int) -> str:
    """``value / scale`` exactly, without trailing zeros; ``scale`` is a power of ten."""
    whole, rest = divmod(value, scale)
    digits = str(scale + rest)[1:].rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


def parse_int(text: str) -> int:
    """Read a 64-bit integer: sign, decimal, ``0x``, ``0o``, ``0b``, leading ``0`` = octal, ``_``
    between digits.

    Raises ``ConfigError`` with ``parse error`` or ``value out of range``, the two words that flag
    errors end with.
    """
    if not _INTEGER.fullmatch(text):
        raise ConfigError("parse error")
    digits = text.replace("_", "")
    unsigned = digits.lstrip("+-").lower()
    # Python wants 0o where this grammar takes a bare leading zero.
    octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit()
    value = int(digits, 8 if octal else 0)
    if not MIN_INT64 <= value <= MAX_INT64:
        raise ConfigError("value out of range")
    return value


def format_bytes(size: int) -> str:
    """``1023 B``, ``1.46 KB``, ``976.56 MB``: two decimals, base 1024."""
    if size < 1024:
        return f"{size} B"
    # In floating point on purpose: operators see 1.00 PB for 2**50 - 1 in the original too.
    power = int(math.log(size) / math.log(1024))
    return f"{size / 1024**power:.2f} {_BYTE_UNITS[power]}"


def quote(text: str) -> str:
    r"""``text`` in double quotes, with ``"``, ``\`` and unprintable characters escaped."""
    named = {
        '"': '\\"',
        "\\": "\\\\",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\a": "\\a",
        "\b": "\\b",
    }
    named |= {"\f": "\\f", "\v": "\\v"}
    return '"' + "".join(named.get(c) or (c if c.isprintable() else _escape(c)) for c in text) + '"'


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:  # a byte of the command line that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
