"""The judge of one session: does a statement of the index hold in these lines?

``problem`` gives the empty string when it does and says otherwise what is wrong. A statement about
what happens behind or before a line that is not there cannot be judged, and that is a problem too:
nothing holds because nothing happened. The language of the statements is that of
``tests/data/wire/README.md``, "Statements".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.compat.players.lines import Line, snake

if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS = {"expect", "absent", "count", "list", "order", "distinct", "equal"}
_KNOWN = _KINDS | {"after", "before", "within", "not_before", "field", "equals", "sorted"}
_ATTRIBUTES = {"id", "conn", "dir", "op", "type", "subject", "reply", "hdr", "text", "kind"}
_ABSENT = object()
_SHOWN = 12

Matcher = dict[str, Any]


class CannotBeJudgedError(Exception):
    """A line that the statement leans on is not there."""


@dataclass(slots=True)
class Judge:
    """``lines`` in the order in which they passed.

    What is expected may come ``slack`` seconds later than it says.
    """

    lines: list[Line]
    slack: float = 0.0
    _by_id: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._by_id = {}
        for at, line in enumerate(self.lines):
            if line.id:
                self._by_id.setdefault(line.id, at)

    def problem(self, parts: dict[str, Any]) -> str:
        """What is wrong with a statement in this session; empty if it holds."""
        unknown = set(parts) - _KNOWN
        if unknown:
            return f"the judge does not know {sorted(unknown)}"
        try:
            for name, check in _CHECKS.items():
                if name in parts:
                    return check(self, parts)
        except CannotBeJudgedError as error:
            return str(error)
        return "nothing is said"

    # Where a statement looks

    def _at(self, ident: str) -> int:
        if ident not in self._by_id:
            raise CannotBeJudgedError(f"there is no {ident}")
        return self._by_id[ident]

    def _range(self, parts: dict[str, Any], *, limited: bool) -> list[Line]:
        """The lines that count; ``limited``: only those within the time that is named."""
        begin = self._at(parts["after"]) + 1 if "after" in parts else 0
        end = self._at(parts["before"]) if "before" in parts else len(self.lines)
        found = self.lines[begin:end]
        if limited and "within" in parts:
            latest = self._start(parts) + parts["within"]
            found = [line for line in found if line.t <= latest]
        return found

    def _start(self, parts: dict[str, Any]) -> float:
        return self.lines[self._at(parts["after"])].t if "after" in parts else self.lines[0].t

    # What a line is

    def _matches(self, line: Line, matcher: Matcher) -> bool:
        return all(self._is(line, name, wanted) for name, wanted in matcher.items())

    def _is(self, line: Line, name: str, wanted: Any) -> bool:
        match name:
            case "id_prefix":
                return re.fullmatch(re.escape(wanted) + r"\d+", line.id) is not None
            case "conn_re":
                return re.fullmatch(wanted, line.conn) is not None
            case "payload_hex":
                return line.payload is not None and self._fits(line.payload.hex(), wanted)
            case "decoded":
                return line.fields is not None and all(
                    self._fits(line.fields.get(snake(part), _ABSENT), value)
                    for part, value in wanted.items()
                )
            case _ if name in _ATTRIBUTES:
                return self._fits(getattr(line, name) or _ABSENT, wanted)
        raise CannotBeJudgedError(f"the judge does not know the matcher {name}")

    def _fits(self, value: Any, wanted: Any) -> bool:
        match wanted:
            case None:
                return value is _ABSENT
            case {"$absent": _}:
                return value is _ABSENT
            case {"$any": _}:
                return value is not _ABSENT
            case {"$re": pattern}:
                return isinstance(value, str) and re.fullmatch(pattern, value) is not None
            case {"$in": values}:
                return value in values
            case {"$min": least, "$max": most}:
                return isinstance(value, int) and bool(least <= value <= most)
            case {"$ref": [ident, name]}:
                return bool(value == self.lines[self._at(ident)].value(snake(name)))
            case dict():
                raise CannotBeJudgedError(f"the judge does not know the value {wanted}")
        return bool(value == wanted)

    # What is said

    def _expect(self, parts: dict[str, Any]) -> str:
        lines = self._range(parts, limited=False)
        start = self._start(parts)
        first = next((line for line in lines if self._matches(line, parts["expect"])), None)
        if first is None:
            return _with("no line is like this", self._near(lines, parts["expect"]))
        after = first.t - start
        if after > parts.get("within", after) + self.slack:
            return f"it came after {after:.3f} s: {first.shown()}"
        if after < parts.get("not_before", after):
            return f"it came already after {after:.3f} s: {first.shown()}"
        return ""

    def _absent(self, parts: dict[str, Any]) -> str:
        found = [
            line
            for line in self._range(parts, limited=True)
            if self._matches(line, parts["absent"])
        ]
        return _with(f"{len(found)} are there", found) if found else ""

    def _count(self, parts: dict[str, Any]) -> str:
        found = [
            line for line in self._range(parts, limited=True) if self._matches(line, parts["count"])
        ]
        return (
            ""
            if self._fits(len(found), parts["equals"])
            else _with(f"{len(found)} are there", found)
        )

    def _list(self, parts: dict[str, Any]) -> str:
        found = [
            line for line in self._range(parts, limited=True) if self._matches(line, parts["list"])
        ]
        values = [line.value(snake(parts["field"])) for line in found]
        wanted = parts["equals"]
        same = sorted(values) == sorted(wanted) if parts.get("sorted") else values == wanted
        return "" if same else _with(f"they are {values}", found)

    def _order(self, parts: dict[str, Any]) -> str:
        lines = self._range(parts, limited=False)
        at = 0
        for wanted in parts["order"]:
            matcher = {"id": wanted} if isinstance(wanted, str) else wanted
            while at < len(lines) and not self._matches(lines[at], matcher):
                at += 1
            if at == len(lines):
                return f"{wanted} does not come, or not in this order"
            at += 1
        return ""

    def _values(self, pairs: list[list[str]]) -> list[Any]:
        values = [self.lines[self._at(ident)].value(snake(name)) for ident, name in pairs]
        if None in values:
            raise CannotBeJudgedError(f"a value is missing: {values}")
        return values

    def _distinct(self, parts: dict[str, Any]) -> str:
        values = self._values(parts["distinct"])
        return "" if len(set(values)) == len(values) else f"they are {values}"

    def _equal(self, parts: dict[str, Any]) -> str:
        values = self._values(parts["equal"])
        return "" if len(set(values)) == 1 else f"they are {values}"

    def _near(self, lines: list[Line], matcher: Matcher) -> list[Line]:
        """What comes nearest, for the report: the line of that id, or lines of that connection."""
        return [line for line in lines if "id" in matcher and line.id == matcher["id"]] or lines


def _with(what: str, lines: list[Line]) -> str:
    return "\n  ".join([what, *(line.shown() for line in lines[-_SHOWN:])])


_CHECKS: dict[str, Callable[[Judge, dict[str, Any]], str]] = {
    "expect": Judge._expect,
    "absent": Judge._absent,
    "count": Judge._count,
    "list": Judge._list,
    "order": Judge._order,
    "distinct": Judge._distinct,
    "equal": Judge._equal,
}
