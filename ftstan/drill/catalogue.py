"""The scenarios that come with the package: files below ``drills/``, found by name."""

from __future__ import annotations

import os

from ftstan.drill.scenario import Scenario, load

_PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "drills")
_SUFFIX = ".yaml"


def shipped() -> list[Scenario]:
    """Every one that can be played as it is, by name."""
    return [
        load(os.path.join(_PLACE, name))
        for name in sorted(os.listdir(_PLACE))
        if name.endswith(_SUFFIX)
    ]


def find(word: str) -> str:
    """The file that a word on the command line means: a path as it is, a bare name one of ours if
    there is one.
    """
    ours = os.path.join(_PLACE, word + _SUFFIX)
    return (
        ours if os.sep not in word and not os.path.exists(word) and os.path.exists(ours) else word
    )
