"""Which test modules can run no extension module: ``make test-debug`` leaves them out.

``python -m tests.extensions PLACE...`` prints pytest's words for that. The extensions are built
there with bounds checks and a sanitizer, which see nothing of what is pure Python.

A test module can run one if it imports one, itself or through what it imports, or if it starts a
process. Whatever cannot be told from the source counts as if it could: a module that is imported by
a name made at run time, an attribute of the package. Imports for types alone are not made.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from typing import TYPE_CHECKING

from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["runs_none", "without"]

_OURS = ("benchmarks", "demo", "ftstan", "lab", "tests", "tools")
_PACKAGE = "ftstan"
_BY_NAME = re.compile(r"\b(?:import_module|__import__|run_module|run_path)\b")
_STARTS = re.compile(r"\b(?:subprocess|multiprocessing|fork|execv|spawn|stage|Child|pytester)\b")
_SHARED = ("tests.processes", "tests.conftest")
"""They have what starts processes; a test that uses it says so."""


def without(places: list[str]) -> list[str]:
    """Test modules below these directories that can run no extension, by their paths."""
    found = (file for place in places for file in sorted((ROOT / place).rglob("test_*.py")))
    return [str(file.relative_to(ROOT)) for file in found if runs_none(file)]


def runs_none(file: Path) -> bool:
    """Whether the tests of this module can run no extension."""
    above = [one / "conftest.py" for one in file.parents if one.is_relative_to(ROOT / "tests")]
    # The first conftest of all is imported by each test, and has fixtures for those who ask.
    started = [file, *(one for one in above[:-1] if one.exists())]
    seen: set[str] = set()
    waiting = [".".join(one.relative_to(ROOT).with_suffix("").parts) for one in started]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        needs = _needs(name)
        if needs is None:
            return False
        waiting += needs
    return True


@cache
def _needs(name: str) -> frozenset[str] | None:
    """Modules of ours that this one imports; ``None`` if it is, or may run, an extension."""
    if _path(name, ".pyx").exists():
        return None
    file = _source(name)
    if file is None:
        return frozenset()
    source = file.read_text(encoding="utf-8")
    is_test = name.startswith("tests.") and name not in _SHARED
    if is_test and _STARTS.search(source):
        return None
    if name != _PACKAGE and _BY_NAME.search(source):
        return None
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for wanted in _imported(ast.parse(source), package):
        parts = wanted.split(".")
        if parts[0] not in _OURS:
            continue
        if len(parts) > 1 and parts[0] == _PACKAGE and not _exists(f"{_PACKAGE}.{parts[1]}"):
            return None
        found.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return frozenset(found)


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """What a module imports, at its top or anywhere below; each name of a ``from`` as if it were a
    module.
    """
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=otherwise):
                for one in otherwise:
                    yield from _imported(one, package)
                continue
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                base = ".".join([*above, *([module] if module else [])])
                yield base
                yield from (f"{base}.{one.name}" for one in names)
            case _:
                pass
        yield from _imported(node, package)


def _exists(name: str) -> bool:
    return _source(name) is not None or _path(name, ".pyx").exists() or _path(name, "").is_dir()


def _path(name: str, suffix: str) -> Path:
    return ROOT / (name.replace(".", "/") + suffix)


def _source(name: str) -> Path | None:
    """The file of a module of ours, if it is one."""
    for file in (_path(name, ".py"), _path(name, "") / "__init__.py"):
        if file.exists():
            return file
    return None


if __name__ == "__main__":
    print(*(f"--ignore {name}" for name in without(sys.argv[1:])))
