"""What the tests of this directory share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ft.client import NatsConnection
from tests.reference.moved import Moved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Stage


@pytest.fixture(autouse=True)
def _no_connection_stays_open() -> Iterator[None]:
    yield
    NatsConnection.close_all()


@pytest.fixture
def moved(stage: Stage) -> Moved:
    """Documented commands and files, with hosts, ports and paths of this test."""
    return Moved(stage)
