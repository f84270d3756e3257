"""What tests of the log share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def _utc_and_default_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
    log.configure()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.log"
