"""What a configuration file says, before anybody asks what it means: values, each with the place
where it stands.

Source: ``docs/compat/config.md`` (grammar).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

Scalar: TypeAlias = str | bool | int | float | datetime
Value: TypeAlias = "Scalar | list[Node] | dict[str, Node]"


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file. Lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it stands: in a map the place of its key, in an array its own.

    ``variable`` is the name of the environment that it was read from, if it was.
    """

    value: Value
    place: Place
    variable: str = ""

    @property
    def source(self) -> str:
        """Where the value came from, for people."""
        return f"{self.place}, ${self.variable}" if self.variable else str(self.place)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A key that stands twice in one map of one file; the second value counts.

    ``first`` and ``second`` are the places of the two keys.
    """

    key: str
    first: Place
    second: Place


@dataclass(frozen=True, slots=True)
class Document:
    """The top-level map of a file, includes and variables resolved, and what its reader should be
    told about it.

    ``used``: where keys stand that variables refer to; nobody needs to know such a key for it to
    make sense. ``repeated``: the entries that a later one of the same map took the place of.
    """

    entries: dict[str, Node]
    warnings: tuple[str, ...] = ()
    used: frozenset[Place] = frozenset()
    repeated: tuple[Repeated, ...] = ()


def type_name(value: Value) -> str:
    """Name of the value's type in messages: ``string``, ``bool``, ``int64``, ``float64``,
    ``struct``, ...
    """
    match value:
        case bool():
            return "bool"
        case int():
            return "int64"
        case float():
            return "float64"
        case str():
            return "string"
        case datetime():
            return "struct"
        case list():
            return "slice"
        case _:
            return "map"


def shown(value: Value) -> str:
    """How messages of the original write a value: ``abc``, ``[a b]``, ``map[a:1]``, dates with
    zone.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case str():
            return value
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S} +0000 UTC"
        case list():
            return "[" + " ".join(shown(node.value) for node in value) + "]"
        case _:
            return (
                "map[" + " ".join(f"{key}:{shown(value[key].value)}" for key in sorted(value)) + "]"
            )
