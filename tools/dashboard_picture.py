"""Takes pictures of the dashboard of real servers under load, in Chromium.

Needs Debian's chromium and the development packages. Without arguments it makes
docs/images/dashboard.png, a pair just after a takeover. ``--scene dead`` (or ``healthy``,
``nobody``, ``standby``, ``token``, ``full``) shows another situation, ``--all DIR`` every one of
them on a desktop and a phone, light and dark, to be looked at before a change of the page is handed
in. ``--report FILE --all DIR`` shows a report of ``ftstanctl drill`` in the same way.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import HttpCredentials, sync_playwright

from tests.browser import launch
from tests.ft.client import StanClient
from tests.processes import Stage

if TYPE_CHECKING:
    from playwright.sync_api import Playwright

TARGET = Path(__file__).parents[1] / "docs" / "images" / "dashboard.png"
CHANNELS = (
    b"orders.eu",
    b"orders.us",
    b"invoices",
    b"telemetry.plant-7",
    b"audit",
    b"mail.outgoing",
)


class Load:
    """Publishers and readers of every kind on one server, until ``stop``."""

    def __init__(self, port: int) -> None:
        self._stop = threading.Event()
        self._port = port
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        shop = StanClient(self._port, "shop")
        readers = [
            StanClient(self._port, name)
            for name in ("billing", "warehouse", "reports", "mailer", "archive")
        ]
        for client in (shop, *readers):
            client.connect()
        billing, warehouse, reports, mailer, archive = readers
        for channel in CHANNELS:
            shop.publish(channel, *(b"%06d" % i * 20 for i in range(200)))
        billing.subscribe(b"orders.eu", durable=b"billing")
        billing.subscribe(b"orders.us", durable=b"billing")
        warehouse.subscribe(b"orders.eu")
        reports.subscribe(b"telemetry.plant-7", durable=b"nightly", max_in_flight=512)
        mailer.subscribe(b"mail.outgoing", acks=False, max_in_flight=64, ack_wait=3600)
        archive.subscribe(b"audit", durable=b"archive", max_in_flight=32, acks=False, ack_wait=3600)
        archive.close()
        turn = 0
        while not self._stop.is_set():
            turn += 1
            for at, channel in enumerate(CHANNELS):
                if turn % (at + 1) == 0:
                    many = 30 + 20 * ((turn // 40 + at) % 3)
                    shop.publish(channel, *(b"%06d" % i * 20 for i in range(many)))
            for client in readers[:4]:
                client.nats.read(0.002)
            time.sleep(0.02)


@dataclass(frozen=True)
class Look:
    """How a picture is taken: sizes in pixels of CSS, ``scale`` pixels of the picture to each."""

    name: str
    width: int
    dark: bool = False
    scale: float = 2.0


LOOKS = (
    Look("desktop", 1280),
    Look("desktop-dark", 1280, dark=True),
    Look("phone", 390),
    Look("phone-dark", 390, dark=True),
)
_FOR_PAGES = 1.25
"""Pixels to a pixel of CSS where the picture is part of a page: at most 300 KB (see the tests)."""
TOKEN = "for-the-picture"


class Scene:
    """A pair under load and the pages that look at it, until ``end``."""

    def __init__(
        self, playwright: Playwright, directory: Path, name: str, looks: list[Look]
    ) -> None:
        self._stage = Stage(directory)
        self._browser = launch(playwright)
        words = ("-max_msgs", "2000") if name == "full" else ()
        token = TOKEN if name == "token" else ""
        self._first, self._second = self._stage.routed_pair(*words, token=token)
        self._load = Load(self._first.port)
        home = self._second if name == "standby" else self._first
        login = HttpCredentials(username="operator", password=TOKEN) if token else None
        self._pages = []
        for look in looks:
            page = self._browser.new_page(
                viewport={"width": look.width, "height": 900},
                device_scale_factor=look.scale,
                color_scheme="dark" if look.dark else "light",
                http_credentials=login,
            )
            page.goto(f"{home.url}/dashboard")
            self._pages.append((look, page))

    def play(self, name: str, seconds: float) -> None:
        """Let it happen, ``seconds`` of load before it."""
        time.sleep(seconds)
        if name in {"takeover", "nobody"}:
            self._load.stop()
            self._first.kill()
        if name == "takeover":
            self._second.wait_until_active()
            self._stage.member("c", "-ns", f"nats://127.0.0.1:{self._second.port}")
            self._load = Load(self._second.port)
            time.sleep(seconds / 2)
        if name in {"dead", "nobody"}:
            self._second.kill()
            time.sleep(15)

    def take(self, directory: Path, prefix: str) -> None:
        """Save what each page shows."""
        directory.mkdir(parents=True, exist_ok=True)
        for look, page in self._pages:
            path = directory / f"{prefix}{look.name}.png"
            page.screenshot(path=str(path), full_page=True)
            print(path)

    def end(self) -> None:
        """End everything that was started."""
        self._load.stop()
        self._browser.close()
        self._stage.end()


SCENES = ("takeover", "healthy", "dead", "nobody", "standby", "token", "full")


def pictures(name: str, directory: Path, prefix: str, looks: list[Look], seconds: float) -> None:
    """Play a scene and take its pictures: ``prefix`` and the look's name in ``directory``."""
    with (
        tempfile.TemporaryDirectory(prefix="ftstan-picture-") as place,
        sync_playwright() as playwright,
    ):
        scene = Scene(playwright, Path(place), name, looks)
        try:
            scene.play(name, seconds)
            scene.take(directory, prefix)
        finally:
            scene.end()


def report_pictures(report: Path, directory: Path) -> None:
    """Take pictures of a drill's report, in every look."""
    directory.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for look in LOOKS:
            page = browser.new_page(
                viewport={"width": look.width, "height": 900},
                device_scale_factor=look.scale,
                color_scheme="dark" if look.dark else "light",
            )
            page.goto(report.resolve().as_uri())
            path = directory / f"report-{look.name}.png"
            page.screenshot(path=str(path), full_page=True)
            print(path)
        browser.close()


def main() -> None:
    """Read the command line, and make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene", choices=SCENES, default="takeover")
    parser.add_argument("--all", type=Path, metavar="DIR", help="every scene in every look")
    parser.add_argument("--report", type=Path, metavar="FILE", help="with --all: a drill's report")
    parser.add_argument("--seconds", type=float, default=70, help="load before it happens (70)")
    parser.add_argument("--to", type=Path, default=TARGET, help="file of a single picture")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    if options.report:
        report_pictures(options.report, options.all or Path())
        return
    if options.all:
        for name in SCENES:
            pictures(name, options.all, f"{name}-", list(LOOKS), options.seconds)
        return
    look = Look(options.to.stem, options.width, dark=options.dark, scale=_FOR_PAGES)
    pictures(options.scene, options.to.parent, "", [look], options.seconds)


if __name__ == "__main__":
    main()
