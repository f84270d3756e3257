"""The texts that the package has, with two dots for what differs."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.processes import ROOT

PACKAGE = ROOT / "ftstan"
DECLARATION = PACKAGE / "base" / "codes" / "table.py"
#: What a name in ``{}`` of a format, or an expression of an f-string, is on the page.
CHANGES = ".."


def shape(node: ast.expr) -> str:
    """A literal as the page writes it."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"\{\w+\}", CHANGES, text)
        case ast.JoinedStr(values=values):
            return "".join(shape(value) for value in values)
        case _:
            return CHANGES


def literals(source: str) -> set[str]:
    """Every text of a module; what changes while it runs is two dots."""
    found = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant | ast.JoinedStr)
    )
    return {shape(node) for node in found}


@cache
def spoken() -> frozenset[str]:
    """Every text of the package, but for the declaration of codes, which is none of its lines."""
    paths = [path for path in PACKAGE.rglob("*.py") if path != DECLARATION]
    modules = [path.read_text("utf-8") for path in paths]
    return frozenset(text for module in modules for text in literals(module))


def is_spoken(line: str, texts: frozenset[str] | set[str]) -> bool:
    """Whether a text has all fixed parts of a line, in their order; the first one begins it.

    A name in quotes may be what a function puts there.
    """
    parts = [re.escape(part.strip()) for part in line.replace('"', "").split(CHANGES)]
    pattern = re.compile(r"\s*" + ".*".join(parts), re.DOTALL)
    return any(pattern.match(text.replace('"', "")) for text in texts)
