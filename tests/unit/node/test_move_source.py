"""The source of a move: what a freeze that is too slow leaves behind."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.errors import RefusedError
from ftstan.broker.partition import Partition
from ftstan.config.options import ChannelLimits
from ftstan.ft.moves import Move, Step
from ftstan.node import move_source
from ftstan.node.move_source import MoveSource

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS = b"orders"


class Serving:
    """A server whose link takes its time, in a thread of its own."""

    ready = True
    is_noting = False

    def __init__(self) -> None:
        self.partition = Partition([ORDERS, b"foo"])
        self.broker = SimpleNamespace(
            partition=self.partition,
            publish_rows=[(b"p.orders", self.partition.sid_of(ORDERS))],
            channels={},
            carried_out={},
            known_channel=lambda name: SimpleNamespace(name=name),
        )
        self.sent = threading.Event()
        self.listens = True

    def send(self, _lines: bytes) -> Future[None]:
        self.listens = False
        self.sent.wait(5)
        return Future()

    def subscribe(self, lines: bytes) -> None:
        self.listens = b"SUB p.orders" in lines

    def note_taken(self, _user: str, *, on: bool) -> None:
        assert not on

    def go_on(self) -> None:
        """A turn would come."""


def test_a_channel_that_could_not_be_frozen_in_time_is_served_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(move_source, "_WITHIN_S", 0.1)
    serving = Serving()
    move = Move("ab" * 16, Step.OFFERED, "cd" * 32, "b", ChannelLimits())

    async def freeze(plane: ThreadPoolExecutor) -> None:
        def call(function: Callable[[], Any]) -> Any:
            return asyncio.wrap_future(plane.submit(function))

        node = SimpleNamespace(
            plane=SimpleNamespace(serving=serving),
            clock=SimpleNamespace(mono=time.monotonic),
            call=call,
        )
        moving = SimpleNamespace(move=lambda _name: move)
        source = MoveSource(cast("Any", node), cast("Any", moving), ORDERS)
        source._noting = True  # as after "note"
        asyncio.get_running_loop().call_later(0.3, serving.sent.set)
        with pytest.raises(RefusedError, match="could not be frozen in time"):
            await source.answer(move, {"do": "freeze"})

    with ThreadPoolExecutor(1) as plane:
        asyncio.run(freeze(plane))
    assert serving.partition.owns(ORDERS)
    assert serving.listens
