"""What every test shares: the Hypothesis profile, the stage for server processes, and the tools that must be there.

A missing tool fails the test that needs it, with the line that says what to install; nothing is ever skipped.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from ftstan.errors import NatsError
from ftstan.nats.embedded import binary_path
from tests.processes import ROOT, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Without a deadline: a busy machine must not turn a slow example into a failure. The blob repeats a failure exactly.
settings.register_profile("ftstan", deadline=None, print_blob=True)
settings.load_profile("ftstan")

_CLIENT = ROOT / "node_modules" / "node-nats-streaming"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail at once, and clearly, where a test's tools are missing."""
    if item.get_closest_marker("processes") is not None:
        _require_servers()
    if item.get_closest_marker("node") is not None:
        _require_node()


def _require_servers() -> None:
    if shutil.which("setpriv") is None:
        pytest.fail("setpriv was not found in PATH: install the package util-linux", pytrace=False)
    try:
        binary_path()
    except NatsError as error:
        pytest.fail(f"{error.text}; {error.hint}", pytrace=False)


def _require_node() -> None:
    if shutil.which("node") is None:
        pytest.fail("node was not found in PATH: install Node.js 16 or newer", pytrace=False)
    if not _CLIENT.is_dir():
        pytest.fail("node_modules/node-nats-streaming is missing: run `npm ci`", pytrace=False)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """The child processes of one test; all are ended when it is over."""
    stage = Stage(tmp_path)
    try:
        yield stage
    finally:
        stage.end()
