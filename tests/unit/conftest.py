"""What tests of several packages share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def buffered_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take O_DIRECT away at the last moment: the rest must work on any file system that the tests
    run on.
    """
    real: Callable[..., int] = os.open
    monkeypatch.setattr(
        os, "open", lambda name, flags, *a, **k: real(name, flags & ~os.O_DIRECT, *a, **k)
    )
