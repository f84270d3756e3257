"""``docs/troubleshooting.md`` quotes lines that the code has, and exit statuses that it gives."""

from __future__ import annotations

import ast
import re
import signal
from functools import cache

import pytest

from tests.processes import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "ftstan"
#: What a name in ``{}`` of a format, or an expression of an f-string, is on the page.
CHANGES = ".."
STATUSES = ("cli/complaints.py", "cli/serving.py", "node/context.py", "node/signals.py")


def rows(title: str) -> list[list[str]]:
    """The rows of the tables in a section, without their headers."""
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


TITLES = [title for title in re.findall(r"^## (.*)$", PAGE, re.MULTILINE) if "status" not in title]
LINES = [row[0].strip("`") for title in TITLES for row in rows(title)]


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
    """Every text of the package."""
    modules = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py")]
    return frozenset(text for module in modules for text in literals(module))


def is_spoken(line: str, texts: frozenset[str] | set[str]) -> bool:
    """Whether a text has all fixed parts of a line, in their order; the first one begins it.

    A name in quotes may be what a function puts there.
    """
    parts = [re.escape(part.strip()) for part in line.replace('"', "").split(CHANGES)]
    pattern = re.compile(r"\s*" + ".*".join(parts), re.DOTALL)
    return any(pattern.match(text.replace('"', "")) for text in texts)


def constants() -> set[int]:
    """The exit statuses of the server's modules."""
    pattern = re.compile(r"^EXIT_\w+(?:: Final)? = (\d+)$", re.MULTILINE)
    sources = [(PACKAGE / name).read_text("utf-8") for name in STATUSES]
    return {int(number) for source in sources for number in pattern.findall(source)}


def test_a_line_that_nobody_says_is_noticed() -> None:
    said = literals('log(f"cut off from {what} for " f"{n} s")\nA = "cluster \\"{id}\\" is known"')
    assert is_spoken("cut off from .. for ..", said)
    assert is_spoken('cluster ".." is', said)
    assert not is_spoken("cut off from .. since ..", said)
    assert not is_spoken("off from .. for ..", said)


def test_the_page_has_tables() -> None:
    assert len(LINES) > 40
    assert len(LINES) == len(set(LINES))


@pytest.mark.parametrize("line", LINES)
def test_a_quoted_line_is_one_of_the_code(line: str) -> None:
    assert is_spoken(line, spoken())


def test_each_exit_status_of_the_server_has_a_row_and_no_other_has() -> None:
    told = {int(row[0]) for row in rows("By exit status")}
    assert told == constants() | {128 + signal.SIGKILL}
