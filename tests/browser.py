"""Debian's Chromium, headless, for pages on loopback: nothing is downloaded, nothing is asked of
the network.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def launch(playwright: Playwright) -> Browser:
    """Start a browser; whoever asked closes it."""
    path = shutil.which("chromium")
    assert path is not None, "chromium was not found: run tools/system_packages.sh"
    return playwright.chromium.launch(executable_path=path, args=list(_QUIET))
