"""What tests of locks and owners on a real directory share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.ft.ownership import StoreOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[[str], StoreOwner]]:
    """Makes the member of a server id, at ``tmp_path / "store"``."""
    with contextlib.ExitStack() as stack:

        def make(server_id: str) -> StoreOwner:
            owner = StoreOwner(
                LocalDisk(),
                str(tmp_path / "store"),
                server_id=server_id,
                clock=ManualClock(),
                in_group=True,
            )
            stack.callback(owner.close)
            return owner

        yield make
