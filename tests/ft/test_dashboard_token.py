"""The dashboard and members that ask for a token: it goes to nobody whose name was not shown before
it was typed.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from playwright.sync_api import expect, sync_playwright

from ftstan.config.options import MonitorOptions
from ftstan.ft.digest import is_page_url
from ftstan.monitor.http import Monitor
from tests.browser import launch
from tests.processes import HOST, PATIENCE_S
from tests.unit.monitor.test_pages import FakeViews

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.processes

TOKEN = "s3cret"


class Views(FakeViews):
    """A member that serves or not, and knows of one other."""

    def __init__(self, host: str, peer: str = "", *, serving: bool) -> None:
        super().__init__()
        self._host = host
        self._peer = peer
        self._serving = serving

    async def dashboard(self) -> dict[str, Any]:
        node = {
            "server": self._host,
            "host": self._host,
            "serving": self._serving,
            "phase": "waiting",
            "state": "S",
        }
        node |= {
            "cluster": "c",
            "group": "g",
            "holder_epoch": 1,
            "uptime": 1,
            "probe_age": None,
            "version": "0",
        }
        peer = {
            "server": "peer",
            "host": "peer",
            "monitor": self._peer,
            "state": "FT_ACTIVE",
            "phase": "active",
            "version": "0",
            "lag_messages": -1,
            "lag_s": -1.0,
            "silent_s": 0.0,
            "present": True,
        }
        counted = dict.fromkeys(("clients", "channels", "subscriptions", "msgs", "bytes"), 0)
        return {
            "now_ms": 1,
            "node": node,
            "verdict": {
                "health": "healthy",
                "problems": [],
                "since_ms": 1,
                "expected": 2,
                "present": 2,
            },
            "members": [peer] if self._peer else [],
            "room": None,
            "counters": dict.fromkeys(("in_msgs", "out_msgs", "redelivered"), 0),
            "commits": {"count": 0, "seconds": 0},
            "totals": counted | dict.fromkeys(("pending", "stalled", "quarantined"), 0),
            "channels": [],
            "subscriptions": [],
            "epochs": [],
        }


@pytest.fixture
def pages() -> Iterator[tuple[str, list[str]]]:
    """A page whose member stands by, and what its peer, which serves, is shown as authorization."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    shown: list[str] = []

    async def gate(request: web.Request) -> web.StreamResponse | None:
        headers = {
            "Access-Control-Allow-Origin": "*",
            "Access-Control-Allow-Headers": "Authorization",
        }
        if request.method == "OPTIONS":
            return web.Response(status=204, headers=headers)
        shown.append(request.headers.get("Authorization", ""))
        return None if shown[-1] == f"Bearer {TOKEN}" else web.Response(status=401, headers=headers)

    async def start() -> tuple[Monitor, Monitor]:
        peer = Monitor(Views("peer", serving=True), MonitorOptions(), gate)
        await peer.start(HOST, -1)
        home = Monitor(Views("home", peer.url, serving=False), MonitorOptions())
        await home.start(HOST, -1)
        return home, peer

    home, peer = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
    assert is_page_url(peer.url)
    yield home.url, shown
    for monitor in (home, peer):
        asyncio.run_coroutine_threadsafe(monitor.stop(), loop).result(PATIENCE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    loop.close()


def test_a_member_that_asks_for_a_token_gets_it_when_somebody_has_typed_it(
    pages: tuple[str, list[str]],
) -> None:
    url, shown = pages
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto(f"{url}/dashboard")
        expect(page.locator("#token")).to_be_visible(timeout=PATIENCE_S * 1000)
        expect(page.locator("#state")).to_contain_text("its pages do not answer here")
        expect(page.locator("#state")).to_contain_text("home: waiting")
        assert set(shown) == {""}
        # A wrong one is asked for again.
        page.get_by_label("Token for 127.0.0.1").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#token")).to_be_hidden()
        expect(page.locator("#token")).to_be_visible(timeout=PATIENCE_S * 1000)
        page.get_by_label("Token for 127.0.0.1").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text(
            "peer serves, epoch 1", timeout=PATIENCE_S * 1000
        )
        expect(page.locator("#token")).to_be_hidden()
        browser.close()
    assert [shown[at] for at in range(len(shown)) if at == 0 or shown[at] != shown[at - 1]] in (
        ["", "Bearer wrong", "", f"Bearer {TOKEN}"],
        ["", "Bearer wrong", f"Bearer {TOKEN}"],
    )
