"""The picture of the architecture: its words name what is there, and nothing runs over the edges.

``test_generated.py`` compares it with the committed file.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.processes import ROOT
from tools.architecture_picture import (
    BESIDE,
    HEIGHT,
    STEPS,
    TARGET,
    WIDTH,
    Box,
    arrows,
    boxes,
    labels,
    picture,
)

INNER = [box for box in boxes() if box.style != "outer"]


def runs_through(start: tuple[float, float], end: tuple[float, float], box: Box) -> bool:
    """Whether a horizontal or vertical line has a part inside a box; its edge is outside."""
    left, right = sorted((start[0], end[0]))
    top, bottom = sorted((start[1], end[1]))
    return (
        left < box.x + box.width and right > box.x and top < box.y + box.height and bottom > box.y
    )


def test_it_is_well_formed_and_two_pages_show_it() -> None:
    assert ET.fromstring(picture()).tag.endswith("svg")
    assert f"]({TARGET})" in (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert f"]({TARGET.removeprefix('docs/')})" in page


@pytest.mark.parametrize("part", [*(step[1] for step in STEPS), *(row[0] for row in BESIDE)])
def test_every_package_that_it_names_exists(part: str) -> None:
    assert (ROOT / "ftstan" / part).exists()


@pytest.mark.parametrize("box", boxes(), ids=lambda box: f"{box.x:g},{box.y:g}")
def test_the_lines_of_a_box_fit_into_it(box: Box) -> None:
    assert box.x >= 0
    assert box.x + box.width <= WIDTH
    assert box.y + box.height <= HEIGHT
    assert [text.words for text in box.texts() if text.width > box.width] == []
    assert [text.words for text in box.texts() if text.y > box.y + box.height] == []


def test_no_arrow_runs_through_a_box_and_no_label_over_the_edge() -> None:
    lines = [
        pair for arrow in arrows() for pair in zip(arrow.points, arrow.points[1:], strict=False)
    ]
    assert [(line, box.lines) for line in lines for box in INNER if runs_through(*line, box)] == []
    assert [text.words for text in labels() if text.x + text.width > WIDTH] == []


def test_the_picture_of_the_dashboard_is_shown_and_no_larger_than_a_page_may_load() -> None:
    path = ROOT / "docs" / "images" / "dashboard.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size <= 300_000
    assert "](images/dashboard.png)" in (ROOT / "docs" / "monitoring.md").read_text("utf-8")
