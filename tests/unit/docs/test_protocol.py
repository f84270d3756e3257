"""``docs/compat/protocol.md`` says what clients may rely on and which tests show it.

This holds the page to the truth.

Each section ends with the tests that show it, or is a table with a column of them. A list of tests
is a path and behind it, the names in it, each between backticks. The texts of the table of errors
are those of constants of the code, and what the table calls planned is nowhere in the code.
"""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pytest

from ftstan.broker import constants
from tests.doc_tests import ROOT, read, wrong_with

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = (ROOT / "docs/compat/protocol.md").read_text(encoding="utf-8")

#: What stands in the place of a constant where the text is not one of ours.
ELSEWHERE = ("*planned*", "*never*", "*of the store*")

#: Texts of the broker that explain a refusal to the operator and are never an answer.
REASONS = {"NO_HEARTBEAT_INBOX", "EMPTY_PING", "STRANGE_INBOX"}

_ROW = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"``(.+?)``|`([^`]+)`")
_PLACE = re.compile(r"<[^<>]*>|\{[^{}]*\}")
_SOURCES = {".py", ".pyx"}


def sections(page: str) -> dict[str, str]:
    """Title -> text of every section."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(text: str, *header: str) -> list[list[str]]:
    """The rows of the table with this header.

    Raises ``ValueError`` if there is none, or for a row of other length.
    """
    rows: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = (
            [cell.strip() for cell in _ROW.split(line.strip())[1:-1]]
            if line.startswith("|")
            else []
        )
        if cells == list(header):
            inside = True
        elif not cells:
            inside = False
        elif inside and not set("".join(cells)) <= {"-"}:
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} cells instead of {len(header)}: {line}")
            rows.append(cells)
    if not rows:
        raise ValueError(f"no table {' | '.join(header)}")
    return rows


def named(text: str) -> list[str]:
    """The tests of a list, as node ids."""
    found = []
    path = ""
    for _, word in _CODE.findall(text):
        if word.endswith(".py"):
            path = word
        else:
            found.append(f"{path}::{word}")
    return found


def wrong(text: str, read: Callable[[str], str | None] = read) -> list[str]:
    """What is wrong with a list of tests: it is empty, or one of them is not there or does not
    run.
    """
    tests = named(text)
    if not tests:
        return ["no test"]
    return [f"{test}: {why}" for test in tests if (why := wrong_with(test, read))]


@dataclass(frozen=True, slots=True)
class Error:
    text: str
    answers: str
    constant: str
    tests: str

    @property
    def pieces(self) -> list[str]:
        """The text without what differs from time to time."""
        return _PLACE.split(self.text)


def bare(cell: str) -> str:
    """The contents of a cell that is code as a whole."""
    match = _CODE.fullmatch(cell)
    return cell if match is None else match[1] or match[2]


SECTIONS = sections(PAGE)
ERRORS = [
    Error(bare(text), answers, bare(constant), tests)
    for text, answers, constant, tests in table(
        SECTIONS["Error strings"], "text", "answers", "constant", "tests"
    )
]
TRAPS = table(SECTIONS["Traps"], "#", "trap", "here", "tests")
ORDER = table(SECTIONS["Ordering guarantees"], "first", "then", "tests")


@cache
def sources() -> dict[str, str]:
    package = ROOT / "ftstan"
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*"))
        if path.suffix in _SOURCES and "pb" not in path.parts
    }


def value(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(f"ftstan.{module}"), attribute)
    assert isinstance(found, str | bytes)
    return found if isinstance(found, str) else found.decode()


def in_code(pieces: list[str]) -> list[str]:
    """The sources in which a text stands, its pieces one behind the other, and not as the beginning
    of another one.
    """
    pattern = re.compile("[^\n]{0,60}?".join(map(re.escape, pieces)) + "(?! [a-z])")
    return [path for path, source in sources().items() if pattern.search(source)]


# ---- sections
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_ends_with_the_tests_that_show_it(title: str) -> None:
    last = SECTIONS[title].rstrip().split("\n\n")[-1]
    if last.startswith("|"):
        assert last.splitlines()[0].rstrip().endswith("| tests |")
    else:
        assert last.startswith("Tests: ")
        assert wrong(last) == []


GUIDE = sections((ROOT / "docs/clients.md").read_text(encoding="utf-8"))
LANGUAGES = ("Go", "Node", "Python", "C", "Java", "C#")


def test_the_guide_for_clients_has_a_section_for_each_language() -> None:
    assert [title.partition(":")[0] for title in GUIDE if ":" in title] == list(LANGUAGES)


@pytest.mark.parametrize("title", [title for title in GUIDE if ":" in title])
def test_the_guide_for_a_language_ends_with_the_tests_that_show_it(title: str) -> None:
    last = GUIDE[title].rstrip().split("\n\n")[-1]
    assert last.startswith("Tests: ")
    assert wrong(last) == []


def test_the_guide_says_of_each_language_whether_its_library_was_run() -> None:
    for title, text in GUIDE.items():
        if ":" in title:
            ran = any(
                test.startswith("tests/compat/test_node_client.py")
                for test in named(text.split("Tests: ")[-1])
            )
            played = "tests/compat/players/test_recorded.py" in text
            assert ran == title.startswith("Node")
            assert (ran or played) != ("library was not run" in text), title


# ---- errors
# --------------------------------------------------------------------------------------------------

each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.text)


@each_error
def test_an_error_string_has_tests_that_run(error: Error) -> None:
    assert wrong(error.tests) == []


def strings(source: str) -> list[str]:
    """The literals of a source, each as one text where its source is in pieces."""
    literals = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    texts = (n.decode("latin-1") if isinstance(n, bytes) else n for n in literals)
    return [text for text in texts if isinstance(text, str)]


@pytest.mark.parametrize(
    "error", [e for e in ERRORS if e.constant not in ELSEWHERE], ids=lambda error: error.constant
)
def test_an_error_string_is_that_of_a_constant_which_the_code_uses_and_a_named_test_knows(
    error: Error,
) -> None:
    assert _PLACE.split(value(error.constant)) == error.pieces
    name = error.constant.rpartition(".")[2]
    uses = sum(len(re.findall(rf"\b{name}\b(?! =)", source)) for source in sources().values())
    assert uses > 0, f"nobody uses {name}"
    longest = max(error.pieces, key=len)
    modules = {test.partition("::")[0] for test in named(error.tests)}
    known = any(longest in text for path in modules for text in strings(read(path) or ""))
    assert known, f"no test named has {longest!r}"


@pytest.mark.parametrize(
    "error",
    [e for e in ERRORS if e.constant in ("*planned*", "*never*")],
    ids=lambda error: error.text,
)
def test_an_error_string_that_is_planned_or_never_given_is_not_in_the_code(error: Error) -> None:
    assert in_code(error.pieces) == []


def test_what_is_not_ours_is_the_store_alone() -> None:
    assert [e.text for e in ERRORS if e.constant == "*of the store*"] == ["the store's own words"]


def test_every_error_string_of_the_code_is_in_the_table() -> None:
    ours = {
        f"broker.constants.{n}"
        for n, v in vars(constants).items()
        if isinstance(v, str) and n.isupper()
    }
    ours -= {f"broker.constants.{name}" for name in REASONS}
    ours |= {
        "broker.publishing.HAS_MOVED",
        "broker.publishing.INVALID_PUBLISH",
        "broker.publishing.WRONG_SUBJECT",
        "broker.publishing.TOO_LARGE",
    }
    ours |= {"stores.interface.BEING_DELETED"}
    ours |= {"config.validation.NO_CHANNEL", "wire.partition.CONFLICT"}
    ours |= {"config.validation.CLUSTERED_PARTITIONING", "config.validation.CLUSTERED_MEMORY"}
    ours |= {"cluster.access.NOT_CLUSTERED"}
    assert {e.constant for e in ERRORS if e.constant not in ELSEWHERE} == ours
    assert len({e.text for e in ERRORS}) == len(ERRORS)


#: Our client reacts to some answers, and imports nothing of the server.
_OF_THE_CLIENT = "ftstan/client/errors.py"


def test_no_answer_is_spelled_out_beside_its_constant() -> None:
    beside = {
        error.text: [
            path
            for path in in_code(error.pieces)
            if path not in {_home(error.constant), _OF_THE_CLIENT}
        ]
        for error in ERRORS
        if error.constant not in ELSEWHERE
    }
    assert {text: paths for text, paths in beside.items() if paths} == {}


def _home(constant: str) -> str:
    stem = "ftstan/" + constant.rpartition(".")[0].replace(".", "/")
    return next(path for path in (f"{stem}.py", f"{stem}.pyx") if path in sources())


# ---- traps and order
# -----------------------------------------------------------------------------------------------


def test_the_traps_are_numbered() -> None:
    assert [row[0] for row in TRAPS] == [str(n) for n in range(1, 25)]


@pytest.mark.parametrize("row", TRAPS, ids=lambda row: row[0])
def test_a_trap_has_tests_that_run(row: list[str]) -> None:
    assert row[1]
    assert row[2]
    assert wrong(row[3]) == []


@pytest.mark.parametrize("row", ORDER, ids=lambda row: row[0])
def test_an_ordering_guarantee_has_tests_that_run(row: list[str]) -> None:
    assert row[1]
    assert wrong(row[2]) == []


# ---- the reader of the page
# ----------------------------------------------------------------------------------------

_SUITE = """
import pytest

def test_runs(): ...

class TestGroup:
    def test_inside(self): ...

@pytest.mark.skip(reason="later")
def test_skipped(): ...
"""


def test_a_list_is_a_path_and_the_names_behind_it() -> None:
    text = "Tests: `tests/a.py` `test_one`, `TestGroup::test_two`; `tests/b.py` `test_three`."
    assert named(text) == [
        "tests/a.py::test_one",
        "tests/a.py::TestGroup::test_two",
        "tests/b.py::test_three",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", ["no test"]),
        ("Tests: none", ["no test"]),
        ("`tests/s.py`", ["no test"]),
        ("`tests/s.py` `test_gone`", ["tests/s.py::test_gone: no test_gone there"]),
        (
            "`tests/s.py` `test_runs`, `test_skipped`",
            ["tests/s.py::test_skipped: skipped, or expected to fail"],
        ),
        ("`tests/t.py` `test_runs`", ["tests/t.py::test_runs: no such file"]),
        ("`test_runs`", ["::test_runs: no such file"]),
        ("`tests/s.py` `test_runs`, `TestGroup::test_inside`", []),
    ],
)
def test_a_list_that_says_too_much_is_caught(text: str, why: list[str]) -> None:
    assert wrong(text, {"tests/s.py": _SUITE}.get) == why


def test_a_table_is_found_by_its_header_and_must_be_there() -> None:
    page = "| a | b |\n|---|---|\n| 1 | 2 |\n\n| a | tests |\n|---|---|\n| 3 | 4 |\n"
    assert table(page, "a", "tests") == [["3", "4"]]
    with pytest.raises(ValueError, match=r"^no table c$"):
        table(page, "c")
    with pytest.raises(ValueError, match="1 cells instead of 2"):
        table("| a | b |\n|---|---|\n| 1 |", "a", "b")


def test_a_text_is_found_in_the_code_whatever_stands_in_its_places() -> None:
    assert in_code(["rejecting channel ", " because channel ", " alreay exists"]) == [
        "ftstan/broker/constants.py"
    ]
    assert in_code(["no such words", "anywhere"]) == []
