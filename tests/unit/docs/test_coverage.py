"""``docs/capabilities.toml`` says what works.

This keeps it, and the pages, from saying more or less than that.

What is made from the table is compared by ``test_generated.py``. Here: its tests exist and
run, its pages exist, and a page that says that something is not there yet has a feature in the
table that says the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from ftstan.cli.ctl import PROGRAM as CTL
from ftstan.cli.pipeline.command import PROGRAM as PIPELINE
from ftstan.config.usage import help_text
from tests.doc_tests import ROOT, named_tests, read, wrong_with
from tools import capabilities
from tools.capabilities import Area, Feature, State
from tools.man_ftstanctl import actions, leaves

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

DOCS = ROOT / "docs"
FEATURES = [feature for area in capabilities.areas() for feature in area.features]
WORDS = [word.lower() for feature in FEATURES for word in feature.words]
LARGEST = 40_000

_SUITE = "tests/unit/repository/test_suite.py"


# ---- the table
# --------------------------------------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """The names of a page's sections, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_place(place: str) -> str:
    """Why a page, with or without a section, is not there; empty if it is."""
    page, _, section = place.partition("#")
    file = DOCS / page
    if not file.is_file():
        return "no such page"
    if section and section not in anchors(file.read_text(encoding="utf-8")):
        return "no such section"
    return ""


def problems(areas: tuple[Area, ...], read: Callable[[str], str | None] = read) -> list[str]:
    """What is wrong with a table, one line each.

    ``read`` gives the source of a path, ``None`` if there is none.
    """
    found = [
        f"{area.name}: {place}: {why}"
        for area in areas
        for place in area.pages
        if (why := wrong_place(place))
    ]
    seen: set[str] = set()
    for feature in (feature for area in areas for feature in area.features):
        if feature.name in seen:
            found.append(f"{feature.name}: it is there twice")
        seen.add(feature.name)
        found += [f"{feature.name}: {why}" for why in _wrong(feature, read)]
    return found


def _wrong(feature: Feature, read: Callable[[str], str | None]) -> Iterator[str]:
    if not 1 <= len(feature.tests) <= 3:
        yield f"{len(feature.tests)} tests show it, instead of one to three"
    if not feature.pages:
        yield "no page describes it"
    if (feature.state is State.PARTIAL) != bool(feature.missing):
        yield "what is missing is said of a partial feature, and of no other"
    if (feature.state is State.WORKS) == bool(feature.words):
        yield "words are those of a feature that is partial or planned"
    yield from (f"{place}: {why}" for place in feature.pages if (why := wrong_place(place)))
    yield from (f"{test}: {why}" for test in feature.tests if (why := wrong_with(test, read)))


def test_every_feature_names_tests_that_run_and_pages_that_are_there() -> None:
    assert len(FEATURES) > 100
    assert problems(capabilities.areas()) == []


def test_the_page_of_features_can_be_read() -> None:
    page = (DOCS / "coverage.md").read_bytes()
    assert len(page) <= LARGEST


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


def _problems(*rows: str) -> list[str]:
    features = "\n".join(f"[[area.feature]]\n{row}" for row in rows)
    areas = capabilities.read(f'[[area]]\nname = "Area"\npages = ["ft.md"]\n{features}\n')
    return problems(areas, {_SUITE: _SOURCE}.get)


def _row(
    state: str = "works",
    pages: str = '"ft.md#mounts"',
    tests: str = f'"{_SUITE}::test_runs"',
    more: str = "",
) -> str:
    return f'name = "one"\nstate = "{state}"\npages = [{pages}]\ntests = [{tests}]\n{more}'


def test_a_true_table_has_no_problems() -> None:
    assert _problems(_row(tests=f'"{_SUITE}::test_runs", "{_SUITE}::TestGroup::test_inside"')) == []
    assert _problems(_row("planned", more='words = ["one"]')) == []
    assert _problems(_row("partial", more='words = ["one"]\nmissing = "two"')) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([_row(), _row()], "it is there twice"),
        ([_row(tests="")], "0 tests show it, instead of one to three"),
        ([_row(pages="")], "no page describes it"),
        ([_row(pages='"gone.md"')], "no such page"),
        ([_row(pages='"ft.md#gone"')], "no such section"),
        (
            [_row(more='missing = "two"')],
            "what is missing is said of a partial feature, and of no other",
        ),
        (
            [_row("partial", more='words = ["one"]')],
            "what is missing is said of a partial feature, and of no other",
        ),
        ([_row("planned")], "words are those of a feature that is partial or planned"),
        ([_row(more='words = ["one"]')], "words are those of a feature that is partial or planned"),
        ([_row(tests=f'"{_SUITE}"')], "not of the form path::test_name"),
        ([_row(tests=f'"{_SUITE}::TestGroup"')], "not of the form path::test_name"),
        ([_row(tests='"tests/unit/test_gone.py::test_runs"')], "no such file"),
        ([_row(tests=f'"{_SUITE}::test_gone"')], "no test_gone there"),
        ([_row(tests=f'"{_SUITE}::TestGone::test_inside"')], "no TestGone there"),
        ([_row(tests=f'"{_SUITE}::test_skipped"')], "skipped, or expected to fail"),
        ([_row(tests=f'"{_SUITE}::test_fails"')], "skipped, or expected to fail"),
        ([_row(tests=f'"{_SUITE}::TestNever::test_inside"')], "skipped, or expected to fail"),
        ([_row(tests=f'"{_SUITE}::test_skips_itself"')], "can skip itself"),
    ],
)
def test_a_table_that_says_too_much_is_caught(rows: list[str], problem: str) -> None:
    (found,) = _problems(*rows)
    assert found.endswith(problem)


@pytest.mark.parametrize(
    "row", [_row("nearly"), _row(more='since = "0.1"'), 'name = "one"\nstate = "works"']
)
def test_a_table_with_another_shape_is_an_error(row: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        _problems(row)


def test_a_module_that_does_not_run_shows_nothing() -> None:
    source = (
        "import pytest\npytestmark = [pytest.mark.skipif(True, reason='no')]\ndef test_runs(): "
        "...\n"
    )
    assert (
        wrong_with(f"{_SUITE}::test_runs", {_SUITE: source}.get) == "its module does not always run"
    )


# ---- what is not there yet
# -------------------------------------------------------------------------------------------

#: Words that say that something is not there.
_GAP = re.compile(
    r"\bplanned\b|\bnot (?:been )?run\b|\bnot yet\b|\bto come\b"
    r"|\bnot implemented\b|\bnot (?:carried out|supported|possible|available|written|built) yet\b"
)

#: The same words in another sense.
_OTHER_SENSE = re.compile(
    r"planned[ -](?:hand-?over|stop|maintenance)"
    r"|in a planned one the successor"  # a hand-over
    r"|(?:was|been) planned"  # a query of Spark
    r"|need not run|not run again"
    r"|not yet (?:durable|valid|from its files)"
    r"|to come (?:to|back)\b"
)
_CODE = re.compile(r"`[^`]*`")


def is_gap(sentence: str) -> bool:
    """Whether a sentence says that something is not there yet.

    What stands in code is quoted, not said.
    """
    said = _CODE.sub("`", sentence).lower()
    return _GAP.search(_OTHER_SENSE.sub("", said)) is not None


def sentences(markdown: str) -> Iterator[str]:
    """The sentences of a page.

    A heading, a row of a table and a line of a code block count as one.
    """
    paragraph: list[str] = []
    in_code = False
    for line in [*markdown.splitlines(), ""]:
        fence = line.startswith("```")
        alone = in_code or fence or line.startswith(("#", "|"))
        if alone or not line.strip() or re.match(r"\s*(?:[-*]|\d+\.) ", line):
            yield from re.split(r"(?<=[.!?])\s+", " ".join(paragraph)) if paragraph else ()
            paragraph = []
        if alone:
            yield line
        elif line.strip():
            paragraph.append(line.strip())
        in_code ^= fence


def entries(manual: str) -> Iterator[str]:
    """The entries of a manual page: its section, a term and what is said about it."""
    plain = re.sub(r"\\f[A-Z]", "", manual).replace("\\-", "-").replace("\\&", "")
    for section in re.split(r"^\.SH ", plain, flags=re.MULTILINE):
        title, _, text = section.partition("\n")
        for entry in re.split(r"^\.(?:TP|SS|PP).*$", text, flags=re.MULTILINE):
            yield f"{title}: {' '.join(entry.split())}"


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What ``--help`` of each command says, option by option."""
    for _, leaf in leaves(parser):
        yield from sentences(leaf.description or "")
        yield from sentences(leaf.epilog or "")
        for action in actions(leaf):
            yield f"{', '.join(action.option_strings) or action.dest} {action.help or ''}"


def said_everywhere() -> Iterator[tuple[str, str]]:
    """Where something is said, and each sentence of it."""
    for page in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")]):
        yield from (
            (str(page.relative_to(ROOT)), said)
            for said in sentences(page.read_text(encoding="utf-8"))
        )
    for page in sorted((DOCS / "man").iterdir()):
        yield from ((page.name, said) for said in entries(page.read_text(encoding="utf-8")))
    yield from (("ftstan -help", said) for said in help_text().splitlines())
    for program in (CTL, PIPELINE):
        yield from ((f"{program.name} --help", said) for said in helps(program.build_parser()))


def without_counterpart(sentence: str) -> bool:
    """Whether a sentence speaks of a gap that no feature of the table admits."""
    return is_gap(sentence) and not any(word in sentence.lower() for word in WORDS)


def test_what_a_page_calls_missing_the_table_calls_missing() -> None:
    gaps = [(where, said) for where, said in said_everywhere() if is_gap(said)]
    assert len(gaps) > 40
    assert [f"{where}: {said}" for where, said in gaps if without_counterpart(said)] == []


def test_every_feature_that_is_not_whole_is_admitted_on_a_page_of_its_own() -> None:
    gaps = [
        said.lower()
        for where, said in said_everywhere()
        if is_gap(said) and where != "docs/coverage.md"
    ]
    admitted = [f for f in FEATURES if f.words]
    silent = [
        f.name
        for f in admitted
        if not any(word.lower() in said for word in f.words for said in gaps)
    ]
    assert silent == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Planned: streams, sink, archive.",
        "| operations | pages, metrics | admin verbs for channels and clients (planned) |",
        "| NFSv4.2 | network | **not run** |",
        "ftstan itself has not been run on it yet.",
        "The dashboard is not implemented.",
        "Lame duck is not carried out yet.",
        "Delta tables are to come.",
        "--drain  leave in peace (not supported yet)",
    ],
)
def test_a_page_that_calls_missing_what_works_is_caught(sentence: str) -> None:
    assert without_counterpart(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Clustering is planned.",
        "| `sync` | text | `-cluster_sync` | Clustering: sync the log *(not supported yet)* |",
        "EFS, CephFS, Gluster: **not run**, nothing measured.",
        "A planned hand-over answers every publish.",
        "What has passed already is not run again.",
        "MIXED shows `not yet` until then.",
        "The certificate has expired or is not yet valid.",
        "Clients come back, and members have time to come back.",
    ],
)
def test_a_gap_of_the_table_and_another_sense_are_no_contradiction(sentence: str) -> None:
    assert not without_counterpart(sentence)


def test_sentences_are_read_over_line_ends_and_rows_each_for_itself() -> None:
    page = (
        "# Title\nOne sentence\ngoes on. Another.\n\n| a | planned |\n| b | c |\n- item\n  goes "
        "on\n"
    )
    page += "```\nx # y\n\nz\n```\nend"
    prose = [
        "# Title",
        "One sentence goes on.",
        "Another.",
        "| a | planned |",
        "| b | c |",
        "- item goes on",
    ]
    assert list(sentences(page)) == [*prose, "```", "x # y", "", "z", "```", "end"]


def test_entries_of_a_manual_page_are_read_with_their_section() -> None:
    page = ".SH A\n.TP\n\\fB\\-sql\\fR\nText (not\nsupported yet).\n.TP\nb"
    assert list(entries(page))[2:] == ["A: -sql Text (not supported yet).", "A: b"]


# ---- figures
# --------------------------------------------------------------------------------------------------


def test_the_figures_of_the_readme_are_those_of_the_page_of_benchmarks() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\|  \| (memory|file) store[^|]*\| (.*?) \| (.*?) \| (.*?) \|", page, re.MULTILINE
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^\| (memory|file) store[^|]*\| (.*?) \| (.*?) \| (.*?) us \|$", readme, re.MULTILINE
    )
    assert len(shown) == 2
    assert shown == rows[:2]


# ---- docs/store.md
# --------------------------------------------------------------------------------------------------


def weaknesses(text: str) -> dict[str, list[str]]:
    """Of each row W1 .. W31 of ``docs/store.md``: the test functions that it names, as
    ``path::name``.
    """
    out: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"W\d+", cells[0]) and len(cells) == 4:
            out[cells[0]] = named_tests(cells[3])
    return out


def test_every_weakness_of_the_original_store_names_a_test_that_runs() -> None:
    rows = weaknesses((DOCS / "store.md").read_text(encoding="utf-8"))
    assert sorted(rows, key=lambda w: int(w[1:])) == [f"W{n}" for n in range(1, 32)]
    assert all(rows.values())
    assert [why for tests in rows.values() for test in tests if (why := wrong_with(test))] == []
