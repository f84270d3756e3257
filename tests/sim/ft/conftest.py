"""What tests of groups share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log: a history writes much of it, and shows what it means by what it leaves."""
    log.configure(file=os.devnull)
    yield
    log.configure()
