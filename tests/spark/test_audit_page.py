"""The page of an audit: it stands alone, says what the report says, and does what no channel name
tells it to.
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from ftstan.drill.rules import Switch
from ftstan.reports import MOST_ROWS
from ftstan.spark.audit import (
    AuditFinding,
    AuditKind,
    AuditReport,
    AuditVerdict,
    Breach,
    Channel,
    Day,
    Rule,
)
from ftstan.spark.audit.page import page
from ftstan.spark.audit.verdict import Latency, Quiet, StoreMatch, Tick
from tests import browser

if TYPE_CHECKING:
    from pathlib import Path

EVIL = '<script>alert("x")</script><img src="//example.org/x.png">'
DAY_NS = 86_400_000_000_000
SECOND_US = 1_000_000

VERDICT = AuditVerdict(
    directory="drill",
    nodes=("A", EVIL),
    switches=(
        Switch(1, "start", "", "A", 900.0, 1000.0), Switch(2, "kill", "A", EVIL, 300.0, 420.0),
    ),
    published=1000, acked=990, acked_again=1, retried=10, failed=10, rate=512.3, stored=991,
    stored_without_ack=1,
    delivered=990, redelivered=3, readings=2,
    latency=Latency(1.0, 2.0, 30.0, 400.0, 420.0),
    quiet=(Quiet(5 * SECOND_US, 7 * SECOND_US, ("kill of A",)),),
    timeline=tuple(Tick(n * SECOND_US, 100 - n, n / 2) for n in range(10) if n not in (5, 6)),
    tick_us=SECOND_US,
    breaches=(Breach(Rule.STORED, 2, (f"id {EVIL}",)),),
    match=StoreMatch("store", "orders", 988, 0),
)  # fmt: skip

REPORT = AuditReport(
    places=("/data/store", f"/data/{EVIL}"),
    channels=(
        Channel("orders", 100, 12_800, 7, 1, 103, DAY_NS, 3 * DAY_NS, 3),
        Channel(EVIL, 1, 1, 0, 1, 1, 0, 0, 0),
    ),
    days=(
        Day("orders", "1970-01-02", "/data/store", 60, 600, 1, 63),
        Day("orders", "1970-01-03", f"/data/{EVIL}", 40, 400, 64, 103),
    ),
    counts={kind: 1 if kind is AuditKind.GAP else 0 for kind in AuditKind},
    findings=(AuditFinding(AuditKind.GAP, EVIL, 4, 6, DAY_NS, ("/data/store",), "3 missing"),),
    ledger=VERDICT,
    notes=(f"store: {EVIL}",),
)


class _Parts(HTMLParser):
    """Counts tags, refuses one that is not closed, and collects whatever names something
    elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.elsewhere: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.elsewhere += [
            name
            for name, _ in attrs
            if name in {"src", "href", "xlink:href"} or name.startswith("on")
        ]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _parts(text: str) -> _Parts:
    parts = _Parts()
    parts.feed(text)
    assert parts.open == []
    return parts


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    text = page(REPORT)
    parts = _parts(text)
    assert {"svg", "table", "rect"} <= parts.seen
    assert not {"script", "img", "link", "iframe"} & parts.seen
    assert parts.elsewhere == []
    assert "url(" not in text
    assert "@import" not in text


def test_a_clean_report_of_nothing_is_a_page_too() -> None:
    text = page(AuditReport((), (), (), dict.fromkeys(AuditKind, 0), ()))
    assert ">clean<" in text
    assert "svg" not in _parts(text).seen


def test_rows_that_are_not_shown_are_counted() -> None:
    many = [AuditFinding(AuditKind.GAP, "a", n, n, 0, (), "") for n in range(1, MOST_ROWS + 8)]
    text = page(AuditReport(("a",), (), (), {AuditKind.GAP: len(many)}, tuple(many)))
    assert "7 more are not shown." in text


def test_a_phone_shows_it_without_scrolling_sideways_in_both_colours(tmp_path: Path) -> None:
    path = tmp_path / "audit.html"
    REPORT.write_html(str(path))
    with sync_playwright() as playwright:
        chromium = browser.launch(playwright)
        try:
            inks = set()
            for scheme in ("light", "dark"):
                tab = chromium.new_page(
                    viewport={"width": 360, "height": 740},
                    color_scheme=scheme,
                )
                tab.goto(path.as_uri())
                assert tab.evaluate("document.documentElement.scrollWidth") <= 360
                assert tab.locator("h1").inner_text() == "Audit"
                inks.add(tab.evaluate("getComputedStyle(document.body).color"))
            assert len(inks) == 2
        finally:
            chromium.close()
