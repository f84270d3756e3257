"""How sizes and numbers of things are written for people, wherever ftstan writes them:
``1023 B``, ``4.0 KiB``, ``1 message``.

Lines that the original server prints keep its own way (``ftstan.config.units.format_bytes``,
``docs/compat/config.md``). The dashboard has the same rule in JavaScript.
"""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size_of(size: float) -> str:
    """Bytes for people: whole below 1024, else one decimal in units of 1024."""
    if abs(size) < 1024:
        return f"{round(size)} B"
    value = size / 1024
    unit = 0
    # What would be rounded to 1024.0 is 1.0 of the next unit.
    while abs(value) >= 1023.95 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {_UNITS[unit]}"


def count_of(number: int, thing: str) -> str:
    """So many of a thing whose plural ends in s: ``1 message``, ``0 messages``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
