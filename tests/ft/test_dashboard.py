"""The dashboard in a browser: it goes on from a peer when its own member dies, and anybody can use
it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser import launch
from tests.certificates import Certificates
from tests.ft.client import NatsConnection, StanClient
from tests.ft.operator import Operator
from tests.processes import HOST, PATIENCE_S, READY, ROOT, Server, Stage, free_ports, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page, Route

pytestmark = pytest.mark.processes

#: WCAG 2.1: contrast of text, of large text and what is no text.
TEXT_CONTRAST = 4.5
LARGE_CONTRAST = 3.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = launch(playwright)
        yield started
        started.close()


#: What the page's script did wrong in the present test.
ERRORS: list[str] = []


@pytest.fixture(autouse=True)
def scripts() -> Iterator[None]:
    ERRORS.clear()
    yield
    assert ERRORS == []


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    NatsConnection.close_all()
    stage.end()


def alone(stage: Stage) -> Server:
    """A server of its own, ready."""
    server = stage.server("alone")
    server.wait_for(READY)
    return server


def opened(browser: Browser, server: Server, **context: Any) -> Page:
    """The dashboard of a server; a script that fails fails the test."""
    page = browser.new_page(**context)
    page.set_default_timeout(PATIENCE_S * 1000)
    page.on("pageerror", lambda error: ERRORS.append(str(error)))
    page.goto(f"{server.url}/dashboard")
    return page


def state(page: Page, text: str) -> None:
    """Wait until the page says who serves."""
    expect(page.locator("#state")).to_contain_text(re.compile(text), timeout=PATIENCE_S * 1000)


def test_a_page_whose_own_member_was_killed_shows_the_new_epoch_through_the_peer(
    stage: Stage, browser: Browser
) -> None:
    active, standby = stage.routed_pair()
    client = StanClient(active.port)
    client.connect()
    client.publish(b"orders", b"one", b"two")
    page = opened(browser, active)
    state(page, "serves, epoch 1")
    # It has to know the peer before its own member dies.
    expect(page.locator("#group tbody tr")).to_have_count(2, timeout=PATIENCE_S * 1000)
    active.kill()
    state(page, "serves, epoch 2")
    expect(page.locator("#through")).to_contain_text(
        f"seen through {standby.url.partition('//')[2]}"
    )
    expect(page.locator("#said")).to_contain_text("epoch 2")
    expect(page.locator("#channels tbody tr").first).to_contain_text("orders")
    expect(page.locator("#takeovers li")).to_have_count(2, timeout=PATIENCE_S * 1000)
    expect(page.locator("#takeovers li.now b")).to_have_text("2")
    expect(page.locator("#plots line.mark")).to_have_count(4)


def test_a_standby_shows_the_group_through_the_one_that_serves(
    stage: Stage, browser: Browser
) -> None:
    active, standby = stage.routed_pair()
    page = opened(browser, standby)
    state(page, "serves, epoch 1")
    expect(page.locator("#through")).to_contain_text(
        f"seen through {active.url.partition('//')[2]}"
    )
    expect(page.locator("#group tbody .tag.on")).to_have_text("active")


def test_a_standby_has_no_figures_where_the_pages_of_who_serves_are_out_of_reach(
    stage: Stage, browser: Browser
) -> None:
    active, standby = stage.routed_pair()
    page = browser.new_page()
    page.route(f"{active.url}/**", lambda route: route.abort())
    page.goto(f"{standby.url}/dashboard")
    state(page, "its pages do not answer here")
    expect(page.locator("#totals dd")).to_have_text(["–"] * 10)  # noqa: RUF001  # as on the page
    expect(page.locator("#plots strong")).to_contain_text(["–"] * 4)  # noqa: RUF001
    seen = "Seen on the pages of the member that serves"
    for table in ("#channels", "#subs"):
        expect(page.locator(table)).to_contain_text(seen)
    # Who took over it reads from the datastore, when it has come to that.
    expect(page.locator("#takeovers")).to_contain_text(re.compile(f"{seen}|first start"))


def test_long_names_push_no_note_out_of_sight(stage: Stage, browser: Browser) -> None:
    server = stage.file_server("a")
    server.wait_for(READY)
    client = StanClient(server.port, "reader-of-everything-with-a-long-name")
    client.connect()
    channel = b"a-channel.of-some-department.with-a-long-name"
    client.subscribe(channel, durable=b"a-durable-with-a-long-name", acks=False, max_in_flight=1)
    client.publish(channel, b"1", b"2")
    page = opened(browser, server, viewport={"width": 1280, "height": 900})
    expect(page.locator("#subs .tag.bad")).to_have_text("stalled", timeout=PATIENCE_S * 1000)
    hidden = "e => e.scrollWidth - e.clientWidth"
    assert page.locator("#subs .scroll").evaluate(hidden) <= 0


def test_who_lags_and_who_is_stalled_stands_first_and_names_are_never_markup(
    stage: Stage, browser: Browser
) -> None:
    server = alone(stage)
    client = StanClient(server.port, "slow-reader")
    client.connect()
    behind = b"a<b"
    evil = "<img src=x onerror=alert(1)>"
    client.publish(behind, *(b"%d" % i for i in range(9)))
    client.publish(b"a", b"one")
    client.subscribe(b"a")
    client.subscribe(behind, durable=evil.encode(), max_in_flight=2, ack_wait=3600, acks=False)
    page = opened(browser, server)
    first = page.locator("#channels tbody tr").first
    expect(first.locator("td.name")).to_have_text(behind.decode())
    expect(first).to_contain_text("1 stalled")
    reader = page.locator("#subs tbody tr").first
    expect(reader).to_contain_text("slow-reader")
    expect(reader).to_contain_text(evil)
    expect(reader).to_contain_text("stalled")
    expect(reader.locator("td").nth(4)).to_have_text("7")
    assert page.locator("main img").count() == 0


def test_what_a_member_of_another_release_does_not_tell_is_a_dash(
    stage: Stage, browser: Browser
) -> None:
    server = alone(stage)
    page = browser.new_page()
    page.on("pageerror", lambda error: ERRORS.append(str(error)))

    def poorer(route: Route) -> None:
        data = route.fetch().json()
        data |= {"room": None, "epochs": [], "counters": {}}
        data |= {"channels": [{"name": "orders"}], "subscriptions": [{"channel": "orders"}]}
        data["members"] = [{"present": True, "state": "FT_ACTIVE"}, {"present": False}]
        data["node"] |= {"probe_age": None, "version": "", "name": "", "host": ""}
        del data["totals"]["stalled"], data["verdict"]["since_ms"], data["verdict"]["expected"]
        route.fulfill(json=data)

    page.route("**/dashboard/data", poorer)
    page.goto(f"{server.url}/dashboard")
    state(page, "serves")
    expect(page.locator("#group tbody tr")).to_have_count(2)
    expect(page.locator("#channels tbody tr")).to_contain_text("orders")
    text = page.locator("body").inner_text()
    # The server ends before the page does.
    page.unroute_all(behavior="ignoreErrors")
    page.close()
    raw = re.compile(r"\b(None|True|False|NaN|nan|null|undefined|true|false|Invalid Date)\b")
    assert [line for line in text.splitlines() if raw.search(line)] == []


def test_the_page_is_whole_and_the_browser_is_told_to_load_nothing(
    stage: Stage, browser: Browser
) -> None:
    server = alone(stage)
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    answer = page.goto(f"{server.url}/dashboard")
    assert answer is not None
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    state(page, "serves")
    paths = {url.removeprefix(server.url) for url in asked if not url.startswith("data:")}
    assert paths <= {"/dashboard", "/dashboard.js", "/dashboard/data", "/dashboard/history?since=0"}
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text()


def test_a_member_that_died_stays_as_a_row_that_says_so(stage: Stage, browser: Browser) -> None:
    active, standby = stage.routed_pair()
    page = opened(browser, active)
    expect(page.locator("#word")).to_have_text("Healthy", timeout=PATIENCE_S * 1000)
    expect(page.locator("#facts")).to_contain_text("2 of 2")
    standby.kill()
    expect(page.locator("#word")).to_have_text("Degraded", timeout=PATIENCE_S * 1000)
    expect(page.locator("#facts")).to_contain_text("1 of 2")
    expect(page.locator("#problems")).to_contain_text("does not answer")
    assert page.title().startswith("▲ Degraded")
    absent = page.locator("#group tbody tr.absent")
    expect(absent).to_contain_text("no answer")
    expect(absent).to_contain_text(re.compile("last heard .* ago, standby then"))


def test_a_paused_standby_is_told_and_somebody_has_to_look(stage: Stage, browser: Browser) -> None:
    active, _ = stage.routed_pair()
    page = opened(browser, active)
    expect(page.locator("#word")).to_have_text("Healthy", timeout=PATIENCE_S * 1000)
    said = Operator(f"nats://{HOST}:{active.port}", stage.store).change("pause")
    assert said.status == 0, said
    expect(page.locator("#word")).to_have_text("Degraded", timeout=PATIENCE_S * 1000)
    expect(page.locator("#group .tag.warn")).to_have_text("paused")


def test_when_nobody_answers_the_figures_are_grey_and_say_when_they_were_true(
    stage: Stage, browser: Browser
) -> None:
    server = alone(stage)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders", b"one")
    page = opened(browser, server)
    expect(page.locator("#word")).to_have_text("Healthy", timeout=PATIENCE_S * 1000)
    expect(page.locator("#channels td.name")).to_have_text("orders")
    faded = "getComputedStyle(document.querySelector('#channels')).filter"
    assert page.evaluate(faded) == "none"
    server.kill()
    expect(page.locator("#word")).to_have_text("No member answers", timeout=PATIENCE_S * 1000)
    expect(page.locator("#facts")).to_contain_text(re.compile(r"Last answer\d\d:\d\d:\d\d"))
    expect(page.locator("#channels td.name")).to_have_text("orders")
    assert page.evaluate(faded) == "grayscale(1)"
    assert "No member answers" in page.title()


def test_a_page_that_is_opened_after_a_load_shows_the_load(stage: Stage, browser: Browser) -> None:
    server = alone(stage)
    client = StanClient(server.port)
    client.connect()

    def remembers() -> bool:
        client.publish(b"orders", *(b"%d" % i for i in range(50)))
        points = json.loads(server.get("/dashboard/history")[1])["points"]
        return any(point[1] > 0 for point in points)

    until(remembers, "a point of the last hour")
    page = opened(browser, server)
    page.locator("#hour").click()
    expect(page.locator("#plots svg").first).to_have_attribute(
        "aria-label", re.compile("at most [1-9].* in the last hour"), timeout=PATIENCE_S * 1000
    )


def test_a_channel_at_its_limit_says_whether_a_reader_loses_by_it(
    stage: Stage, browser: Browser
) -> None:
    server = stage.server("alone", "-max_msgs", "20")
    server.wait_for(READY)
    client = StanClient(server.port)
    client.connect()
    for name in (b"behind", b"nobody"):
        client.publish(name, *(b"%d" % i for i in range(20)))
    client.subscribe(b"behind", durable=b"d", max_in_flight=1, ack_wait=3600, acks=False)
    page = opened(browser, server)

    def noted(channel: str) -> Locator:
        rows = page.locator("#channels tbody tr")
        return rows.filter(has=page.locator("td.name", has_text=channel)).locator("td.note")

    expect(noted("behind")).to_contain_text("at its limit, a reader behind")
    expect(noted("nobody")).to_have_text("at its limit")
    client.publish(b"behind", *(b"%d" % i for i in range(10)))
    expect(noted("behind")).to_contain_text("removed unread", timeout=PATIENCE_S * 1000)


def test_a_browser_asks_for_the_token_as_a_password_and_gets_in_with_it(
    stage: Stage, browser: Browser
) -> None:
    server = stage.server("alone", "-monitor_token", "s3cret")
    server.wait_for(READY)
    login = {"username": "anybody", "password": "s3cret"}
    page = opened(browser, server, http_credentials=login)
    expect(page.locator("#word")).to_have_text("Healthy", timeout=PATIENCE_S * 1000)
    expect(page.locator("#token")).to_be_hidden()


def test_the_page_works_over_tls(stage: Stage, browser: Browser) -> None:
    made = Certificates.make(stage.directory / "certificates")
    pair = made.server
    words = ["-tls", "-tlscert", pair.cert, "-tlskey", pair.key]
    words += ["-tls_client_cacert", made.ca.cert]
    (port,) = free_ports(1)
    server = stage.server("alone", *words, "-m", "0", "-ms", str(port))
    server.wait_for(READY)
    page = browser.new_page(ignore_https_errors=True)
    page.on("pageerror", lambda error: ERRORS.append(str(error)))
    page.goto(f"https://{HOST}:{port}/dashboard")
    expect(page.locator("#word")).to_have_text("Healthy", timeout=PATIENCE_S * 1000)


def test_the_first_page_leads_to_the_dashboard(stage: Stage, browser: Browser) -> None:
    server = alone(stage)
    page = browser.new_page()
    for start in ("/", "/streaming"):
        page.goto(server.url + start)
        page.get_by_role("link", name=re.compile("dashboard", re.IGNORECASE)).first.click()
        state(page, "serves")


def test_the_picture_in_the_docs_is_there() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    found = re.search(r"!\[[^\]]+\]\(([^)]+\.png)\)", page)
    assert found is not None
    assert (ROOT / "docs" / found[1]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(stage: Stage, browser: Browser, scheme: str) -> None:
    server = alone(stage)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders", b"one", b"two")
    client.subscribe(b"orders", max_in_flight=1, ack_wait=3600, acks=False)
    page = opened(browser, server, color_scheme=scheme)
    expect(page.locator("#channels .tag.bad")).to_have_text("1 stalled")

    # Landmarks, headings, names.
    assert page.locator("html").get_attribute("lang") == "en"
    for landmark in ("header", "main", "footer", "h1"):
        assert page.locator(landmark).count() == 1, landmark
    for section in page.locator("section").all():
        assert section.get_attribute("aria-label") or section.get_attribute("aria-labelledby")
    for label in page.locator("[aria-labelledby]").all():
        assert page.locator(f"#{label.get_attribute('aria-labelledby')}").inner_text().strip()
    for table in page.locator("table").all():
        assert table.locator("caption").inner_text().strip()
        assert table.locator("th:not([scope])").count() == 0
    for plot in page.locator("#plots svg").all():
        assert re.search(r": .*two minutes", plot.get_attribute("aria-label") or "")
    assert page.locator("#said[role=status][aria-live=polite]").count() == 1
    assert (
        page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size")
        == page.locator("[id]").count()
    )

    # The keyboard reaches everything, in order, and one sees where it is.
    page.keyboard.press("Tab")
    reached = []
    for _ in range(16):
        reached.append(
            page.evaluate(
                "[document.activeElement.id || document.activeElement.className, "
                "getComputedStyle(document.activeElement).outlineStyle]"
            )
        )
        page.keyboard.press("Tab")
    assert all(outline != "none" for name, outline in reached if name), reached
    names = [name for name, _ in reached]
    names = names[: names.index("skip", 1)]
    assert names[:4] == ["skip", "pause", "minutes", "hour"]
    assert names.count("scroll") == 3
    pause = page.locator("#pause")
    pause.focus()
    page.keyboard.press("Enter")
    expect(pause).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Space")
    expect(pause).to_have_attribute("aria-pressed", "false")

    # Contrast of every text with what is behind it.
    for text, ratio, size in page.evaluate(CONTRASTS):
        assert ratio >= (LARGE_CONTRAST if size >= 24 else TEXT_CONTRAST), (text, ratio)


def test_no_width_needs_sideways_scrolling_of_the_page(stage: Stage, browser: Browser) -> None:
    server = alone(stage)
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders." + b"x" * 120, b"one")
    page = opened(browser, server)
    expect(page.locator("#channels tbody td.name")).to_contain_text("orders")
    for width in (1280, 768, 390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    # On a phone no table scrolls either, and no column is left out.
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        for table in page.locator(".scroll").all():
            assert table.evaluate("e => e.scrollWidth <= e.clientWidth")
        for cell in page.locator("#channels tbody td:not(:empty)").all():
            expect(cell).to_be_visible()


#: Text, its contrast ratio and its size in pixels, for every element with text of its own.
CONTRASTS = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = (c) => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  const has_text = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll("body *:not(script):not(style)")]
    .filter((e) => has_text(e) && e.getClientRects().length)
    .map((e) => {
      const style = getComputedStyle(e);
      return [e.textContent.trim(), ratio(light(parse(style.color)), light(behind(e))), parseFloat(style.fontSize)];
    });
}"""  # noqa: E501
