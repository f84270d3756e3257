"""The verdict of a whole lab, as a table for people: plain, or in Markdown.

Pure; decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.stages import Entry, Stage

_HEAD = ("stage", "verdict", "acked", "lost", "twice", "takeover", "took", "figures")


def rows(stages: Sequence[Stage], entries: dict[str, Entry]) -> list[tuple[str, ...]]:
    """A row for each stage, also for those that were not run."""
    return [_row(stage.name, entries.get(stage.name)) for stage in stages]


def _row(name: str, entry: Entry | None) -> tuple[str, ...]:
    if entry is None:
        return (name, "not run", "", "", "", "", "", "")
    outcome = entry.outcome
    return (
        name,
        "passed" if outcome.passed else "FAILED",
        *("" if x is None else f"{x:,}" for x in (outcome.acked, outcome.lost, outcome.twice)),
        ", ".join(f"{x:.1f} s" for x in outcome.takeover_s),
        f"{entry.seconds / 60:.1f} min",
        "; ".join(f"{key} {value}" for key, value in outcome.figures.items()),
    )


def plain(stages: Sequence[Stage], entries: dict[str, Entry]) -> str:
    """For a terminal, with the reasons of what failed below."""
    lines = [_HEAD, *rows(stages, entries)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    for stage in stages:
        entry = entries.get(stage.name)
        text += [
            f"{stage.name}: {failure}" for failure in (entry.outcome.failures if entry else ())
        ]
    return "\n".join(text)


def markdown(stages: Sequence[Stage], entries: dict[str, Entry]) -> str:
    """For ``docs/lab.md``."""
    lines = [_HEAD, tuple("---" for _ in _HEAD), *rows(stages, entries)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
