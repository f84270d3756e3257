"""Tests that documents name: whether they are there and run.

They are looked up in the sources (nothing is imported): a name must be there, and must not be
skipped or expected to fail.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]

_MARKS = {"skip", "skipif", "xfail"}
_CALLS = {"skip", "xfail", "importorskip"}
_MARK = "pytestmark"
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def read(path: str) -> str | None:
    """The text of a file of the repository, ``None`` if there is none."""
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.is_file() else None


def wrong_with(test: str, read: Callable[[str], str | None] = read) -> str:
    """Why a node id names no test that runs; empty if it does.

    ``read`` gives the source of a path.
    """
    path, *names = test.split("::")
    if not names or not names[-1].startswith("test_"):
        return "not of the form path::test_name"
    text = read(path)
    if text is None:
        return "no such file"
    scope: Scope = _parsed(text)
    if _is_marked(scope):
        return "its module does not always run"
    for name in names:
        inner = next(
            (node for node in scope.body if isinstance(node, _DEFINITIONS) and node.name == name),
            None,
        )
        if inner is None:
            return f"no {name} there"
        scope = inner
        if _is_marked(scope):
            return "skipped, or expected to fail"
    if any(_called(node) in _CALLS for node in ast.walk(scope) if isinstance(node, ast.Call)):
        return "can skip itself"
    return ""


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _is_marked(scope: Scope) -> bool:
    """Whether a decorator, or a ``pytestmark`` of the module or class, lets it not run or not
    count.
    """
    marks: list[ast.expr] = [] if isinstance(scope, ast.Module) else list(scope.decorator_list)
    assigned = [node for node in scope.body if isinstance(node, ast.Assign)]
    marks += [
        node.value
        for node in assigned
        if any(isinstance(t, ast.Name) and t.id == _MARK for t in node.targets)
    ]
    return any(
        isinstance(part, ast.Attribute) and part.attr in _MARKS
        for mark in marks
        for part in ast.walk(mark)
    )


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Attribute(value=ast.Name(id="pytest"), attr=name):
            return name
    return ""


def named_tests(cell: str) -> list[str]:
    """The node ids that a cell names: a path below ``tests`` in backticks, and a name without its
    ``test_``.
    """
    found = re.findall(r"`(?:tests/)?([\w/]+\.py)` (\w+::)?(\w+)", cell)
    return [f"tests/{path}::{scope}test_{name}" for path, scope, name in found]
