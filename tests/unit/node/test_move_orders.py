"""What operators ask about moves, where storage or this server says no in the middle of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.admin.protocol import Request, Verb
from ftstan.base.errors import StoreError
from ftstan.config.options import ChannelLimits
from ftstan.ft.moves import Move, Step
from ftstan.node.move_orders import MoveOrders
from ftstan.node.moving import Moving

if TYPE_CHECKING:
    from collections.abc import Callable

MOVE = Move("ab" * 16, Step.COPYING, "cd" * 32, "a", ChannelLimits())


def test_a_move_that_could_not_be_taken_back_goes_on() -> None:
    async def call(function: Callable[[], Any]) -> Any:
        return function()

    def refuse(_name: bytes) -> None:
        raise StoreError("no space")

    store = SimpleNamespace(delete_channel=refuse)
    serving = SimpleNamespace(ready=True, broker=SimpleNamespace(store=store))
    node = SimpleNamespace(call=call, plane=SimpleNamespace(serving=serving))

    async def take_back() -> None:
        moving = Moving(cast("Any", node), lambda: None)
        moving.moves = {"orders": MOVE}
        moving.aside = {b"orders": cast("Any", object())}
        moving.drive(b"orders")
        former = moving.targets[b"orders"]
        with pytest.raises(StoreError, match="no space"):
            await MoveOrders(cast("Any", node), moving).undo(
                Request(Verb.MOVE_UNDO, name="orders", by="me")
            )
        assert moving.targets[b"orders"] is not former
        # Somebody tries, and says why it does not come.
        for _ in range(10):
            await asyncio.sleep(0)
        assert moving.targets[b"orders"].error == "this server stops"
        await moving.end()

    asyncio.run(take_back())
