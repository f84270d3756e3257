"""``docs/ft.md`` is what an operator reads at night: nothing that a member can say, be or wait for
is missing in it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ftstan.base.states import NodeState, Phase
from ftstan.config.options import FtOptions
from ftstan.config.units import format_duration
from ftstan.ft import deadlines
from ftstan.ft.lockfaults import LockOutcome
from ftstan.nats import pulse
from tests.doc_tests import named_tests, wrong_with
from tests.spoken import DECLARATION

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ft.md").read_text(encoding="utf-8")
ARGUMENT = (ROOT / "docs" / "ft-argument.md").read_text(encoding="utf-8")
DEADLINES = {
    name: value for name, value in (vars(deadlines) | vars(pulse)).items() if name.isupper()
}
FLAGS = ("hb_interval", "hb_missed_interval", "nats_timeout", "probe_interval")


def section(title: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    start = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert start is not None, f"no section {title!r}"
    text = PAGE[start.end() :]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", text, re.MULTILINE)
    return text[: end.start()] if end is not None else text


def rows(title: str) -> list[list[str]]:
    """The rows of every table in a section, without the headers."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = {number for number, row in enumerate(cells) if set("".join(row)) <= {"-"}}
    return [row for number, row in enumerate(cells) if not {number, number + 1} & rules]


def shape(node: ast.expr) -> str:
    """A literal as the page writes it: what is put in while it runs is two dots."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(shape(value) for value in values)
        case _:
            return ".."


def spoken(source: str) -> list[str]:
    """Every text of a module that begins as the lines of a group do."""
    tree = ast.parse(source)
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    literals = (node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr))
    return [
        text
        for node in literals
        if id(node) not in inside and (text := shape(node)).startswith("ft: ")
    ]


def is_told(line: str, known: list[str]) -> bool:
    """Whether one of the lines of the page, which may end early with two dots, is this one."""
    return any(
        line == told or (told.endswith("..") and line.startswith(told[:-2].rstrip()))
        for told in known
    )


SAID = sorted(
    {
        line
        for path in (ROOT / "ftstan").rglob("*.py")
        if path != DECLARATION
        # Every worker of a run reads them all: only those that can hold a line are parsed.
        if "ft: " in (text := path.read_text(encoding="utf-8"))
        for line in spoken(text)
    }
)


def wrong(named: dict[str, list[str]]) -> list[str]:
    """What is wrong with the tests that rows name; a row without any is wrong, too."""
    none = [f"{row} names no test" for row, tests in named.items() if not tests]
    pairs = [(row, test, wrong_with(test)) for row, tests in named.items() for test in tests]
    return none + [f"{row}: {test}: {why}" for row, test, why in pairs if why]


def test_lines_are_found_in_every_form_that_the_code_has() -> None:
    assert spoken('log(f"ft: epoch {n} was " f"lost: {why}")\nsay("ft: paused")\nsay("other")') == [
        "ft: epoch .. was lost: ..",
        "ft: paused",
    ]
    assert is_told("ft: epoch .. was lost: ..", ["ft: epoch .. was lost: .."])
    assert is_told("ft: epoch .. was lost: ..", ["ft: epoch .. was .."])
    assert not is_told("ft: epoch .. was lost: ..", ["ft: epoch .. is ..", "ft: epoch .. was"])


@pytest.mark.parametrize("line", SAID)
def test_every_line_of_a_group_is_in_the_runbook(line: str) -> None:
    known = re.findall(r"`(ft: [^`]+)`", "".join(row[0] for row in rows("Messages")))
    assert is_told(line, known)


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_a_meaning_and_advice(phase: Phase) -> None:
    assert [row for row in rows("States") if row[1].startswith(phase.value)]


def test_every_state_is_one_of_the_runbook() -> None:
    assert {row[0] for row in rows("States")} == {f"`{state.value}`" for state in NodeState}


@pytest.mark.parametrize("status", [0, 143, 75, 1, 2, 130])
def test_every_exit_status_has_a_meaning(status: int) -> None:
    assert [row for row in rows("Exit statuses") if row[0] == str(status)]


@pytest.mark.parametrize("name", DEADLINES)
def test_every_deadline_is_in_the_budget_with_its_value(name: str) -> None:
    (row,) = (row for row in rows("Deadline budget") if len(row) == 4 and f"`{name}`" in row[2])
    assert f"{DEADLINES[name]:g} s" in row[1]


@pytest.mark.parametrize("name", FLAGS)
def test_every_interval_of_an_operator_is_in_the_budget_with_its_default(name: str) -> None:
    (row,) = (row for row in rows("Deadline budget") if len(row) == 4 and f"`-ft_{name}`" in row[2])
    assert format_duration(getattr(FtOptions(), name)) in row[1].replace(" s", "s")


@pytest.mark.parametrize(
    "outcome", [o for o in LockOutcome if o not in {LockOutcome.GRANTED, LockOutcome.BUSY}]
)
def test_every_error_of_the_lock_comes_with_advice(outcome: LockOutcome) -> None:
    assert [row for row in rows("Lock errors") if row[0] == f"`{outcome.value}`" and row[2]]


WEAKNESSES = [
    *(f"A{n}" for n in range(1, 15)),
    *(f"B{n}" for n in range(1, 18)),
    *(f"C{n}" for n in range(1, 5)),
]


def test_every_weakness_of_the_originals_groups_names_tests_that_run() -> None:
    table = rows("Weaknesses of the original")
    assert [row[0] for row in table] == WEAKNESSES
    named = {row[0]: named_tests(row[3]) for row in table}
    assert wrong(named) == []


def test_every_fault_names_a_test_that_runs() -> None:
    named = {row[0]: named_tests(row[2]) for row in rows("Faults")}
    assert len(named) >= 15
    assert [fault for fault, tests in named.items() if len(tests) != 1] == []
    assert wrong(named) == []


def test_every_named_regression_names_a_test_that_runs() -> None:
    named = {row[0]: re.findall(r"`(tests/[^`]+)`", row[1]) for row in rows("Named regressions")}
    assert wrong(named) == []


# ---- docs/ft-argument.md
# ---------------------------------------------------------------------------------------------


def test_the_argument_fits_on_two_pages() -> None:
    assert len(ARGUMENT.encode()) <= 9 * 1024


def test_the_argument_cites_code_and_tests_that_are_there() -> None:
    files = re.findall(r"`((?:ftstan|tests)/[\w/]+\.py)", ARGUMENT)
    assert len(set(files)) >= 10
    assert [path for path in files if not (ROOT / path).is_file()] == []
    tests = re.findall(r"`(tests/[\w/]+\.py::\w+)`", ARGUMENT)
    assert len(tests) >= 6
    assert {test: why for test in tests if (why := wrong_with(test))} == {}


@pytest.mark.parametrize(
    "name",
    ["epoch.claim", "fencing_check.Confirmer", "epoch.claim_next", "ownership.StoreOwner._lose"],
)
def test_the_argument_names_what_the_code_has(name: str) -> None:
    module, *inner = name.split(".")
    tree: ast.AST = ast.parse((ROOT / "ftstan" / "ft" / f"{module}.py").read_text(encoding="utf-8"))
    for part in inner:
        (tree,) = (n for n in ast.iter_child_nodes(tree) if getattr(n, "name", "") == part)
    assert f"`{'.'.join(inner)}`" in ARGUMENT
