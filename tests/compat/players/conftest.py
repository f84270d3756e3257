"""Sessions that the tests of this directory share: those that the chosen tests ask for are played,
side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.players.sessions import Sessions
from tests.compat.players.verdicts import judged

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def sessions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sessions]:
    """Every session that a chosen test names in its parameter ``session``."""
    wanted: list[str] = [
        str(item.callspec.params["session"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "session" in item.callspec.params
    ]
    sessions = Sessions(tmp_path_factory.mktemp("sessions"), wanted, judged)
    sessions.start()
    yield sessions
    sessions.stop()
