"""``docs/troubleshooting.md`` quotes lines that the code has, and exit statuses that it gives."""

from __future__ import annotations

import re
import signal

import pytest

from tests.processes import ROOT
from tests.spoken import PACKAGE, is_spoken, literals, spoken

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
STATUSES = ("cli/complaints.py", "cli/serving.py", "node/context.py", "node/signals.py")


def rows(title: str) -> list[list[str]]:
    """The rows of the tables in a section, without their headers."""
    section = PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


TITLES = [
    title
    for title in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    # Codes are held to their declaration by tests/unit/base/test_codes.py.
    if "status" not in title and title != "By code"
]
LINES = [row[0].strip("`") for title in TITLES for row in rows(title)]


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
