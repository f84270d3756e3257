"""Plots as plain values: what stands where.

``parts.html`` draws them as SVG, ``page.html`` has their colours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mark:
    """One element of a plot: its attributes in SVG, its text, and what a pointer on it is told."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    title: str = ""


@dataclass(slots=True)
class Plot:
    """A drawing, ``width`` by ``height``.

    ``label``: what it shows; ``style``: how it fits a page.
    """

    width: int
    height: int
    label: str
    style: str
    marks: list[Mark] = field(default_factory=list)

    def box(
        self,
        kind: str,
        corner: tuple[float, float],
        size: tuple[float, float],
        title: str = "",
        **more: object,
    ) -> None:
        """Add a box by its upper left corner; ``kind`` is its class in the style of pages."""
        x, y, width, height = (f"{value:.1f}" for value in (*corner, *size))
        place = {"class": kind, "x": x, "y": y, "width": width, "height": height}
        self.marks.append(Mark("rect", place | more, title=title))

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """Add a line of text."""
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
        self.marks.append(Mark("text", place, text))
