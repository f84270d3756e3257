"""README's overview and ``docs/coverage.md``, made from ``docs/capabilities.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "docs" / "capabilities.toml"

BEGIN = (
    "<!-- Made by tools/gen_docs.py from docs/capabilities.toml; do not edit up to the end mark. "
    "-->"
)
END = "<!-- End of what is made from docs/capabilities.toml. -->"

INTRODUCTION = """\
# What works

<!-- Made by tools/gen_docs.py from docs/capabilities.toml; do not edit. -->

{count} features of NATS Streaming and of ftstan: whether they work, where they are described, which tests show it.

- **yes**: it works, complete, as far as the tests named can show.
- **partial**: it works, but for what the row says.
- **planned**: not there; the server refuses its options by name, and the tests named show that: {planned}.

A test is named by its name, with spaces, and its file below `tests/`: *a slice of the example* (`unit/stores/records`) is
`test_a_slice_of_the_example` in `tests/unit/stores/test_records.py`. They run in `make test`, `make test-system` and `make test-gluster`,
and `tests/unit/docs/test_coverage.py` fails if one is missing or skipped.
"""  # noqa: E501


class State(StrEnum):
    """How far a feature is."""

    WORKS = "works"
    PARTIAL = "partial"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature; ``pages`` are below ``docs/``, with a section behind ``#``.

    ``tests`` are node ids.
    """

    name: str
    state: State
    pages: tuple[str, ...]
    tests: tuple[str, ...]
    brief: str = ""
    missing: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Area:
    """Features that belong together."""

    name: str
    pages: tuple[str, ...]
    features: tuple[Feature, ...]


def read(text: str) -> tuple[Area, ...]:
    """The areas that a table in TOML describes.

    Raises ``KeyError``, ``TypeError`` or ``ValueError`` for one that misses something or has a key
    or state too many.
    """
    return tuple(
        Area(
            area["name"],
            tuple(area["pages"]),
            tuple(_feature(**feature) for feature in area["feature"]),
        )
        for area in tomllib.loads(text)["area"]
    )


def _feature(
    *,
    name: str,
    state: str,
    pages: list[str],
    tests: list[str],
    brief: str = "",
    missing: str = "",
    words: list[str] | None = None,
) -> Feature:
    return Feature(
        name, State(state), tuple(pages), tuple(tests), brief, missing, tuple(words or ())
    )


def areas() -> tuple[Area, ...]:
    """The areas of our table."""
    return read(SOURCE.read_text(encoding="utf-8"))


def pages() -> dict[str, str]:
    """Text of every page that is made from the table, by its path below the repository."""
    ours = areas()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return {"README.md": with_overview(readme, ours), "docs/coverage.md": coverage(ours)}


def with_overview(readme: str, ours: tuple[Area, ...]) -> str:
    """A README with the overview between its two marks."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{overview(ours)}{END}{after}"


def overview(ours: tuple[Area, ...]) -> str:
    """The table of areas: what works today, with pages, and what is missing."""
    lines = ["| area | today | missing |", "|---|---|---|"]
    for area in ours:
        today = "; ".join(feature.brief for feature in area.features if feature.brief)
        missing = "; ".join(
            _gap(feature) for feature in area.features if feature.state is not State.WORKS
        )
        lines.append(f"| {area.name} | {today} ({_links(area.pages, 'docs/')}) | {missing} |")
    return "\n".join(lines) + "\n"


def coverage(ours: tuple[Area, ...]) -> str:
    """The page of all features."""
    features = [feature for area in ours for feature in area.features]
    planned = "; ".join(feature.name for feature in features if feature.state is State.PLANNED)
    parts = [INTRODUCTION.format(count=len(features), planned=planned)]
    for area in ours:
        parts.append(f"## {area.name}\n\n| feature | works | pages | shown by |\n|-|-|-|-|")
        for feature in area.features:
            state = "yes" if feature.state is State.WORKS else str(feature.state)
            if feature.missing:
                state = f"{state}: {feature.missing}"
            parts.append(
                f"| {feature.name} | {state} | {_links(feature.pages)} | {_shown(feature.tests)} |"
            )
        parts.append("")
    return "\n".join(parts)


def _gap(feature: Feature) -> str:
    return f"{feature.name}: {feature.missing}" if feature.missing else f"*planned*: {feature.name}"


def _links(places: tuple[str, ...], root: str = "") -> str:
    return ", ".join(f"[{_label(place)}]({root}{place})" for place in places)


def _label(place: str) -> str:
    page = place.partition("#")[0].removesuffix(".md")
    return page.removesuffix("/README").removeprefix("compat/")


def _shown(tests: tuple[str, ...]) -> str:
    """Tests as sentences, each file named once behind those that are in it."""
    files: dict[str, list[str]] = {}
    for test in tests:
        path, *names = test.split("::")
        sentence = names[-1].removeprefix("test_").replace("_", " ")
        file = path.removeprefix("tests/").removesuffix(".py").replace("/test_", "/")
        files.setdefault(file, []).append(sentence)
    return "; ".join(f"{'; '.join(sentences)} (`{path}`)" for path, sentences in files.items())
