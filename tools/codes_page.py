"""The section of ``docs/troubleshooting.md`` that is made from the codes' declaration."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from ftstan.base.codes.table import CODES, SECTIONS, Code

PAGE = "docs/troubleshooting.md"
BEGIN = "<!-- codes: made by tools/gen_docs.py from ftstan/base/codes/table.py; do not edit -->"
END = "<!-- end of codes -->"
_ROOT = Path(__file__).resolve().parents[1]


def pages() -> dict[str, str]:
    """Text of the page by its path below the repository."""
    return {PAGE: with_codes((_ROOT / PAGE).read_text(encoding="utf-8"))}


def with_codes(page: str) -> str:
    """A page with the codes between its two marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def tables() -> str:
    """One table for each kind of codes."""
    parts = []
    for kind, ours in groupby(CODES, lambda code: code.number // 1000):
        rows = "\n".join(_row(code) for code in ours)
        parts.append(f"\n### {SECTIONS[kind]}\n\n| code | line | do |\n|---|---|---|\n{rows}\n")
    return "".join(parts)


def _row(code: Code) -> str:
    more = f" ([{code.page.partition('#')[0]}]({code.page}))" if code.page else ""
    line = f"`{code.line}`" if code.line else ""
    return f"| {code.name} | {line} | {code.do}{more} |"
