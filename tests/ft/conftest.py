"""What the tests of this directory share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ft.client import NatsConnection
from tests.ft.mounts import Frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Stage


@pytest.fixture(autouse=True)
def _no_connection_stays_open() -> Iterator[None]:
    yield
    NatsConnection.close_all()


@pytest.fixture
def frozen(stage: Stage) -> Iterator[Frozen]:
    """A small ext4 that a test may freeze; thawed in the end, whatever happens."""
    frozen = Frozen(stage)
    yield frozen
    frozen.end()
