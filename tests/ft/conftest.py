"""What the tests of this directory share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ft.client import NatsConnection

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _no_connection_stays_open() -> Iterator[None]:
    yield
    NatsConnection.close_all()
