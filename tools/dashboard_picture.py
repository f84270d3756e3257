"""Makes docs/images/dashboard.png: the dashboard of a running pair with load, just after a
takeover.

Needs Debian's chromium and the development packages: ``python tools/dashboard_picture.py [file
...]``. ``--width``, ``--height`` and ``--dark`` make others.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright

from tests.browser import launch
from tests.ft.client import StanClient
from tests.processes import Stage

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


def picture(
    files: list[Path], *, width: int, height: int | None, dark: bool, seconds: float, kill_at: float
) -> None:
    """Run the pair, let the active die ``kill_at`` seconds into ``seconds`` of load, and take the
    picture.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ftstan-picture-") as directory,
        sync_playwright() as playwright,
    ):
        stage = Stage(Path(directory))
        browser = launch(playwright)
        try:
            first, second = stage.routed_pair()
            page = browser.new_page(
                viewport={"width": width, "height": height or 900},
                device_scale_factor=2,
                color_scheme="dark" if dark else "light",
            )
            load = Load(first.port)
            page.goto(f"{first.url}/dashboard")
            time.sleep(kill_at)
            load.stop()
            first.kill()
            second.wait_until_active()
            stage.member("c", "-ns", f"nats://127.0.0.1:{second.port}")
            load = Load(second.port)
            time.sleep(seconds - kill_at)
            for file in files:
                file.parent.mkdir(parents=True, exist_ok=True)
                page.screenshot(path=str(file), full_page=height is None)
            load.stop()
        finally:
            browser.close()
            stage.end()


def main() -> None:
    """Read the command line, and make the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[TARGET])
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=None, help="default: the whole page")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--kill-at", type=float, default=70)
    options = parser.parse_args()
    picture(
        options.files,
        width=options.width,
        height=options.height,
        dark=options.dark,
        seconds=options.seconds,
        kill_at=options.kill_at,
    )


if __name__ == "__main__":
    main()
