"""The pages that the code cites exist, and so do the sections that it names.

Two forms name sections: a page followed by a title in quotes, and a page with topics in parentheses
(behind it, or behind a comma where the page itself stands in them). A topic is the words of a
heading or a part of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUFFIXES = {".py", ".pyi", ".pyx", ".pxd"}

_PAGE = re.compile(r"docs/[\w/-]+\.md")
_LINE_END = re.compile(r"\s*\n\s*(?:#:? ?)?")
_QUOTED = re.compile(r'(?:``)?,? "([^"]+)"')
_TOPICS = re.compile(r"(?:``)? \(([^()`]+)\)")
_INSIDE = re.compile(r"(?:``)?, ([^()`\"]+)\)")
_HEADING = re.compile(r"#+ (?:[\d.]+ )?(.*)")


@dataclass(frozen=True, slots=True)
class Citation:
    """A page, and the sections of it that are named beside it."""

    page: str
    sections: tuple[str, ...] = ()


def citations(source: str) -> list[Citation]:
    """Every page that a source names, in order; a citation may run over the end of a line."""
    text = _LINE_END.sub(" ", source)
    found = []
    for page in _PAGE.finditer(text):
        if quoted := _QUOTED.match(text, page.end()):
            sections = [quoted[1]]
        elif topics := _TOPICS.match(text, page.end()) or _INSIDE.match(text, page.end()):
            sections = topics[1].split(",")
        else:
            sections = []
        found.append(Citation(page[0], tuple(section.strip() for section in sections)))
    return found


def headings(page: str) -> list[str]:
    """The headings of a page in lower case, without number and markup."""
    lines = (_HEADING.fullmatch(line) for line in page.splitlines())
    return [line[1].replace("`", "").lower() for line in lines if line is not None]


def names(heading: str, section: str) -> bool:
    """Whether a heading holds the words of a section as they are."""
    return re.search(rf"\b{re.escape(section.lower())}\b", heading) is not None


def missing(citation: Citation) -> list[str]:
    """What a citation names and the documentation does not have."""
    page = ROOT / citation.page
    if not page.is_file():
        return [citation.page]
    there = headings(page.read_text(encoding="utf-8"))
    return [
        f"{citation.page}, {section}"
        for section in citation.sections
        if not any(names(heading, section) for heading in there)
    ]


SOURCES = sorted(path for path in (ROOT / "ftstan").rglob("*") if path.suffix in SUFFIXES)


def test_every_page_and_section_that_the_code_cites_exists() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {what}"
        for path in SOURCES
        for citation in citations(path.read_text(encoding="utf-8"))
        for what in missing(citation)
    ]
    assert wrong == []


def test_every_form_of_a_citation_occurs() -> None:
    cited = [
        citation for path in SOURCES for citation in citations(path.read_text(encoding="utf-8"))
    ]
    assert len(cited) > 30
    assert Citation("docs/compat/protocol.md", ("Channel names",)) in cited
    assert (
        Citation("docs/compat/protocol.md", ("subscribe", "delivery", "unsubscribing", "recovery"))
        in cited
    )
    assert Citation("docs/compat/protocol.md", ("error strings",)) in cited
    assert Citation("docs/architecture.md") in cited


@pytest.mark.parametrize(
    ("source", "sections"),
    [
        ("See ``docs/x.md``.", ()),
        ("hint: use what docs/x.md lists", ()),
        ("(``docs/x.md``)", ()),
        ("(``docs/x.md``, ``other``)", ()),
        ('Source: ``docs/x.md``, "One thing".', ("One thing",)),
        ('(``docs/x.md``,\n    "One\n    thing")', ("One thing",)),
        ("Source: ``docs/x.md`` (one, another thing).", ("one", "another thing")),
        ("#: As in (``docs/x.md``, one\n#: thing).", ("one thing",)),
    ],
)
def test_sections_are_read_from_every_form(source: str, sections: tuple[str, ...]) -> None:
    assert citations(source) == [Citation("docs/x.md", sections)]


def test_a_page_that_is_not_there_is_told() -> None:
    assert missing(Citation("docs/gone.md", ("one",))) == ["docs/gone.md"]


def test_a_section_that_is_not_there_is_told() -> None:
    page = "docs/compat/protocol.md"
    assert missing(Citation(page, ("channel names", "Heartbeats", "cook"))) == [f"{page}, cook"]


def test_headings_are_known_by_their_words_without_number_and_markup() -> None:
    assert headings("# A page\ntext\n## 2.1 The `x` of Y\n#no heading\n### Last") == [
        "a page",
        "the x of y",
        "last",
    ]
    assert names("unsubscribing and closing", "Closing")
    assert not names("unsubscribing and closing", "subscribing")
