"""Keys that nobody knows: a warning with the nearest known name. The original ignores them.

Source: ``docs/compat/config.md`` (which half reads what).
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ftstan.config.precedence import Settings
    from ftstan.config.tree import Place

_CUTOFF = 0.6


def nearest(word: str, known: Collection[str]) -> str:
    """The name that ``word`` was most likely meant to be; empty when none is near."""
    found = difflib.get_close_matches(word.lower(), known, cutoff=_CUTOFF)
    # Letters that changed places are the likeliest slip.
    found.sort(key=lambda name: sorted(name) != sorted(word.lower()))
    return found[0] if found else ""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """``; did you mean "x"?``, or nothing."""
    near = nearest(word, known)
    return f'; did you mean "{near}"?' if near else ""


def warn_unknown(
    settings: Settings,
    place: Place,
    key: str,
    known: Collection[str],
    where: str = "",
) -> None:
    """Note that ``key`` is unknown; ``where`` is the map in which it stands."""
    inside = f" in {where}" if where else ""
    meant = did_you_mean(key, known)
    settings.warn_of_key(f'{place}: unknown key "{key}"{inside} is ignored{meant}')
