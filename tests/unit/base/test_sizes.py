"""One way of writing sizes, in every text that ftstan has for people."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
#: They have the original's own way: what it prints, and sizes as its configuration files and those
#: of nats-server take them (every release of it: ``64KB``, not ``64KiB``).
_OF_THE_ORIGINAL = (
    *("ftstan/config/units.py", "ftstan/config/grammar.py", "ftstan/config/values.py"),
    *("ftstan/config/validation.py", "ftstan/drill/local.py", "tools/gen_docs.py"),
)
_DECIMAL = re.compile(r"(?<![A-Za-z-])([kMGTP]B|KB)(?![A-Za-z])")
_BEHIND_A_VALUE = re.compile(r"\s?[KMGTP]iB\b")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.6, "1024 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (1 << 20, "1.0 MiB"),
        (1_024_000_000, "976.6 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 40, "3.0 TiB"),
        (1 << 50, "1.0 PiB"),
        (1 << 70, "1024.0 EiB"),
    ],
)
def test_a_size_has_one_decimal_in_units_of_1024(size: float, text: str) -> None:
    assert size_of(size) == text


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("ftstan", "demo", "lab", "benchmarks", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name not in _OF_THE_ORIGINAL and "/pb/" not in name:
                yield name, ast.parse(path.read_text(encoding="utf-8"))


def _docstrings(tree: ast.AST) -> set[int]:
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def test_no_text_of_ours_counts_bytes_in_decimal_units() -> None:
    found = []
    for name, tree in _sources():
        inside = _docstrings(tree)
        found += [
            f"{name}:{node.lineno}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
            and _DECIMAL.search(node.value)
        ]
    for path in sorted((ROOT / "ftstan").rglob("*")):
        if path.suffix in (".html", ".js", ".yaml"):
            found += [
                f"{path.relative_to(ROOT)}: {hit[0]}"
                for hit in _DECIMAL.finditer(path.read_text(encoding="utf-8"))
            ]
    assert found == []


def test_nobody_but_size_of_puts_a_unit_behind_a_number() -> None:
    found = [
        f"{name}:{text.lineno}"
        for name, tree in _sources()
        for text in ast.walk(tree)
        if isinstance(text, ast.JoinedStr) and name != "ftstan/base/sizes.py"
        for value, behind in zip(text.values, text.values[1:], strict=False)
        if isinstance(value, ast.FormattedValue)
        and isinstance(behind, ast.Constant)
        and _BEHIND_A_VALUE.match(str(behind.value))
    ]
    assert found == []


def test_the_scan_finds_what_it_looks_for() -> None:
    assert _DECIMAL.search("12 MB") is not None
    assert _DECIMAL.search("MB/s") is not None
    assert _DECIMAL.search("12 kB") is not None
    assert _DECIMAL.search("12 MiB") is None
    assert _DECIMAL.search("a NUMBER") is None
