"""Codes of log lines: which code a warning or error of ours has.

A line that begins as one of ``table.CODES`` ends with `` [FTS-<number>]`` in the log; in JSON the
code is a field. Lines that the original has stay byte for byte: they stand in ``table.PLAIN``. The
log asks for the code of a line that it is about to write, so this module costs nothing where
nothing is written. It must never raise, whatever a client has put into a line.

``docs/troubleshooting.md`` has all codes; ``ftstanctl explain`` prints one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ftstan.base.codes.table import Code

__all__ = ["find", "of", "with_code"]

#: Stands in ``line`` for what differs, as on the page.
_CHANGES: Final = ".."
#: As much of a line is looked at.
_LONGEST: Final = 8192
#: Lines are found by so many of their first letters.
_KEY: Final = 4
#: The original's word for a start that was refused; the reason may have a code.
_START: Final = "Failed to start: "


class _Pattern(NamedTuple):
    parts: tuple[str, ...]
    name: str

    def finds(self, line: str) -> bool:
        """Whether the line has all parts, in their order; the first one begins it."""
        if not line.startswith(self.parts[0]):
            return False
        at = len(self.parts[0])
        for part in self.parts[1:]:
            found = line.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return True


class _Patterns:
    """The lines of one half. Whichever says most is tried first.

    Not regular expressions: several ``.*?`` over a line that a client has a word in take a time
    that grows with a power of its length.
    """

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        known = [_Pattern(tuple(line.split(_CHANGES)), name) for line, name in lines]
        known.sort(key=lambda pattern: -sum(map(len, pattern.parts)))
        self._known = known
        self._by_key: dict[str, list[_Pattern]] = {}

    def name_of(self, line: str) -> str | None:
        """The code, empty for a plain line, ``None`` for one that is not known."""
        key = line[:_KEY]
        likely = self._by_key.get(key)
        if likely is None:
            likely = [known for known in self._known if _fits(known.parts[0], key)]
            if len(self._by_key) < len(self._known):
                self._by_key[key] = likely
        return next((known.name for known in likely if known.finds(line)), None)


def _fits(part: str, key: str) -> bool:
    return part.startswith(key) or key.startswith(part)


@cache
def _patterns() -> dict[str, _Patterns]:
    # Late: a start that goes well has no such line.
    from ftstan.base.codes.table import CODES, PLAIN  # noqa: PLC0415

    coded = [(code.line, code.name) for code in CODES if code.line and code.half == "stream"]
    return {
        "stream": _Patterns(coded + [(line, "") for line in PLAIN]),
        "nats": _Patterns([(code.line, code.name) for code in CODES if code.half == "nats"]),
    }


def of(line: str, half: str = "stream") -> str | None:
    """The code of a line of that half of the log, ``FTS-<number>``.

    Empty: the line has none. ``None``: nothing is known of such a line.
    """
    try:
        patterns = _patterns()[half]
    except (ImportError, OSError):
        # No more open files, for one: a line without its code is better than none.
        return None
    if line.startswith(_START):
        return patterns.name_of(line[len(_START) : _LONGEST]) or ""
    return patterns.name_of(line[:_LONGEST])


def with_code(line: str) -> str:
    """The line as the log has it; unchanged if no code is known."""
    name = of(line)
    return f"{line} [{name}]" if name else line


def find(name: str) -> Code | None:
    """The code that is called ``FTS-1234``, ``fts-1234`` or ``1234``."""
    from ftstan.base.codes.table import CODES  # noqa: PLC0415  # late, as above

    number = name.strip().strip("[]").upper().removeprefix("FTS-")
    return next((code for code in CODES if str(code.number) == number), None)
