"""Patterns of channel names: what one matches, which one contains another, and whether two have a
name in common.

A pattern is tokens between dots: ``*`` is exactly one token, ``>`` as the last is one or more,
every other token is itself, case and all. A name without wildcards is a pattern too. Names come
from clients and files and are bytes. Nothing here knows who owns a channel
(``docs/compat/partitioning.md``, "Which channels belong to a server").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ONE = b"*"
_REST = b">"


def is_literal(pattern: bytes) -> bool:
    """Whether the pattern is the name of one channel.

    ``pattern`` must be legal (``subjects.valid_channel``).
    """
    return not any(token in {_ONE, _REST} for token in pattern.split(b"."))


def matches(pattern: bytes, name: bytes) -> bool:
    """Whether ``pattern`` matches ``name``, whose tokens are all taken as they stand, wildcards
    too.
    """
    ours = pattern.split(b".")
    theirs = name.split(b".")
    for i, token in enumerate(ours):
        if token == _REST:
            return len(theirs) > i
        if i >= len(theirs) or token not in {_ONE, theirs[i]}:
            return False
    return len(ours) == len(theirs)


def contains(wide: bytes, narrow: bytes) -> bool:
    """Whether every name that ``narrow`` matches is matched by ``wide``; true of equal ones."""
    ours = wide.split(b".")
    theirs = narrow.split(b".")
    for i, token in enumerate(ours):
        if token == _REST:
            return len(theirs) > i
        if i >= len(theirs) or theirs[i] == _REST or token not in {_ONE, theirs[i]}:
            return False
    return len(ours) == len(theirs)


def intersect(a: bytes, b: bytes) -> bool:
    """Whether some name is matched by both, as ``foo.zed`` is by ``foo.*`` and ``*.zed``."""
    ours = a.split(b".")
    theirs = b.split(b".")
    for mine, other in zip(ours, theirs, strict=False):
        if _REST in {mine, other}:
            # Each has at least one token from here on, and that is what the other's ">" asks for.
            return True
        if mine != other and _ONE not in {mine, other}:
            return False
    return len(ours) == len(theirs)


def covering(patterns: Iterable[bytes]) -> tuple[bytes, ...]:
    """The smallest choice of ``patterns``, in their order, that matches what all of them match.

    None of the chosen contains another; two of them may still have names in common.
    """
    distinct = tuple(dict.fromkeys(patterns))
    wild = [pattern for pattern in distinct if not is_literal(pattern)]
    return tuple(
        p for p in distinct if not any(other != p and contains(other, p) for other in wild)
    )


class PatternSet:
    """Several patterns in their order, asked about all at once.

    Names without wildcards are found without a walk.
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._patterns = tuple(dict.fromkeys(patterns))
        self._literals = frozenset(pattern for pattern in self._patterns if is_literal(pattern))
        self._wild = tuple(pattern for pattern in self._patterns if pattern not in self._literals)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._patterns)

    def match(self, name: bytes) -> bool:
        """Whether any of them matches ``name``, taken as it stands."""
        return name in self._literals or any(matches(pattern, name) for pattern in self._wild)

    def intersect(self, pattern: bytes) -> bool:
        """Whether any of them has a name in common with ``pattern``."""
        if is_literal(pattern):
            return self.match(pattern)
        return any(matches(pattern, name) for name in self._literals) or any(
            intersect(pattern, other) for other in self._wild
        )
