"""The page about the file store: each weakness of the old design is there with a test that runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.doc_tests import wrong_with

PAGE = Path(__file__).parents[3] / "docs" / "store.md"
ROW = re.compile(r"^\| W(\d+) \|.*\| `(\S+)` (\w+)(?: \([^|]*\))? \|$", re.MULTILINE)


def test_every_weakness_of_the_originals_store_names_a_test_that_runs() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in rows] == list(range(1, 32))
    named = [f"tests/{path}::test_{name}" for _, path, name in rows]
    assert {test: why for test in named if (why := wrong_with(test))} == {}
