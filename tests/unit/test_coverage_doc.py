"""``docs/coverage.md`` says what is done and which tests show it; this keeps it from saying more than that.

A row may name no test only while it is not done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.named import ROOT, named_tests, read, wrong_with

if TYPE_CHECKING:
    from collections.abc import Callable

STATES = ("absent", "partial", "done")
HEADER = ["id", "what", "state", "tests"]

_SUITE = "tests/unit/test_suite.py"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``tests`` are node ids, ``path::name`` or ``path::Class::name``."""

    ident: str
    what: str
    state: str
    tests: tuple[str, ...]


def rows_of(text: str) -> list[Row]:
    """The rows of every table whose header is ours. Raises ``ValueError`` for a row with another number of cells."""
    rows: list[Row] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells == HEADER:
            inside = True
        elif inside and not set("".join(cells)) <= {"-", ":"}:
            if len(cells) != len(HEADER):
                raise ValueError(f"line {number}: {len(cells)} cells instead of {len(HEADER)}")
            ident, what, state, tests = cells
            named = tuple(test.strip().strip("`") for test in tests.split(",") if test.strip())
            rows.append(Row(ident, what, state, named))
    return rows


def problems(rows: list[Row], read: Callable[[str], str | None]) -> list[str]:
    """What is wrong with the rows, one line each; ``read`` gives the source of a path, ``None`` if there is none."""
    found = []
    seen: set[str] = set()
    for row in rows:
        if row.ident in seen:
            found.append(f"{row.ident}: the id is used twice")
        seen.add(row.ident)
        if row.state not in STATES:
            found.append(f"{row.ident}: unknown state {row.state!r}")
        if row.state == "done" and not row.tests:
            found.append(f"{row.ident}: done, and no test shows it")
        if row.state == "absent" and row.tests:
            found.append(f"{row.ident}: absent, and yet tests are named")
        found += [f"{row.ident}: {test}: {why}" for test in row.tests if (why := wrong_with(test, read))]
    return found


def test_every_row_of_the_coverage_page_is_true() -> None:
    rows = rows_of((ROOT / "docs" / "coverage.md").read_text(encoding="utf-8"))
    assert rows
    assert problems(rows, read) == []


def weaknesses(text: str) -> dict[str, list[str]]:
    """Of each row W1 .. W31 of ``docs/store.md``: the test functions that it names, as ``path::name``."""
    out: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"W\d+", cells[0]) and len(cells) == 4:
            out[cells[0]] = named_tests(cells[3])
    return out


def test_every_weakness_of_the_original_store_names_a_test_that_runs() -> None:
    rows = weaknesses((ROOT / "docs" / "store.md").read_text(encoding="utf-8"))
    assert sorted(rows, key=lambda w: int(w[1:])) == [f"W{n}" for n in range(1, 32)]
    assert all(rows.values())
    assert [why for tests in rows.values() for test in tests if (why := wrong_with(test))] == []


_SOURCE = """
import pytest

def test_runs(): ...

class TestGroup:
    def test_inside(self): ...

@pytest.mark.skip(reason="later")
def test_skipped(): ...

@pytest.mark.xfail
def test_fails(): ...

@pytest.mark.skipif(True, reason="never")
class TestNever:
    def test_inside(self): ...

def test_skips_itself():
    pytest.skip("not here")
"""


def _page(*lines: str) -> list[str]:
    text = "\n".join(["| id | what | state | tests |", "|---|---|---|---|", *lines])
    return problems(rows_of(text), {_SUITE: _SOURCE}.get)


def test_a_true_page_has_no_problems() -> None:
    assert _page(f"| A.1 | one | done | `{_SUITE}::test_runs`, `{_SUITE}::TestGroup::test_inside` |") == []
    assert _page("| A.1 | one | absent | |", f"| A.2 | two | partial | `{_SUITE}::test_runs` |") == []


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["| A.1 | one | absent | |", "| A.1 | one | absent | |"], "the id is used twice"),
        (["| A.1 | one | nearly | |"], "unknown state 'nearly'"),
        (["| A.1 | one | done | |"], "done, and no test shows it"),
        ([f"| A.1 | one | absent | {_SUITE}::test_runs |"], "absent, and yet tests are named"),
        ([f"| A.1 | one | done | {_SUITE} |"], "not of the form path::test_name"),
        ([f"| A.1 | one | done | {_SUITE}::TestGroup |"], "not of the form path::test_name"),
        (["| A.1 | one | done | tests/unit/test_gone.py::test_runs |"], "no such file"),
        ([f"| A.1 | one | done | {_SUITE}::test_gone |"], "no test_gone there"),
        ([f"| A.1 | one | done | {_SUITE}::TestGone::test_inside |"], "no TestGone there"),
        ([f"| A.1 | one | done | {_SUITE}::test_skipped |"], "skipped, or expected to fail"),
        ([f"| A.1 | one | done | {_SUITE}::test_fails |"], "skipped, or expected to fail"),
        ([f"| A.1 | one | done | {_SUITE}::TestNever::test_inside |"], "skipped, or expected to fail"),
        ([f"| A.1 | one | done | {_SUITE}::test_skips_itself |"], "can skip itself"),
    ],
)
def test_a_page_that_says_too_much_is_caught(lines: list[str], problem: str) -> None:
    (found,) = _page(*lines)
    assert found.endswith(problem)


def test_a_module_that_does_not_run_shows_nothing() -> None:
    source = "import pytest\npytestmark = [pytest.mark.skipif(True, reason='no')]\ndef test_runs(): ...\n"
    assert wrong_with(f"{_SUITE}::test_runs", {_SUITE: source}.get) == "its module does not always run"


def test_a_row_with_another_number_of_cells_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 3: 3 cells instead of 4"):
        rows_of("| id | what | state | tests |\n|---|---|---|---|\n| A.1 | one | done |")


def test_tables_with_another_header_are_no_rows() -> None:
    assert rows_of("| state | meaning |\n|---|---|\n| done | it is |\n") == []
