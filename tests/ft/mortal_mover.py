"""A server that kills itself at one step of a move: ``python -m tests.ft.mortal_mover STEP ...``.

``STEPS`` are all of them, in the order in which a move comes to them, with whose they are. With
``STALLS`` a target comes no further.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from ftstan.cli.server import main
from ftstan.node.move_source import MoveSource
from ftstan.node.move_target import MoveTarget
from ftstan.node.moving import Moving

if TYPE_CHECKING:
    from collections.abc import Callable

#: Step -> the server ("a" is the source) that dies there.
STEPS: Final = {
    "before offered": "a",
    "after offered": "a",
    "before copying": "b",
    "after copying": "b",
    "after _make": "b",
    "after _copy": "b",
    "after _note": "a",
    "after _begin_arrival": "b",
    "after _close": "a",
    "after _close_acks": "a",
    "after _detach": "a",
    "after _freeze": "b",
    "after _say_final": "a",
    "before _store_subs": "b",
    "after _store_subs": "b",
    "before ready": "b",
    "after ready": "b",
    "before gone": "a",
    "after gone": "a",
    "after _let_go": "a",
    "before _take": "b",
    "before taken": "b",
    "after taken": "b",
    "after _take": "b",
}
#: The target has copied, and does not ask for the hand-over.
STALLS: Final = "stall _freeze"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _around(step: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        if step == f"before {name}":
            _die()
        result = function(*arguments, **named)
        if step == f"after {name}":
            _die()
        return result

    async def awaited(*arguments: Any, **named: Any) -> Any:
        if step == f"before {name}":
            _die()
        result = await function(*arguments, **named)
        if step == f"after {name}":
            _die()
        return result

    return awaited if function.__code__.co_flags & 0x80 else called


def _kept(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def keep(self: Moving, name: bytes, move: Any) -> None:
        if move is not None and step == f"before {move.step}":
            _die()
        function(self, name, move)
        if move is not None and step == f"after {move.step}":
            _die()

    return keep


async def _stall(*_: Any) -> None:
    await asyncio.sleep(3600)


def arm(step: str) -> None:
    """Let this process die there."""
    Moving.keep = _kept(step, Moving.keep)  # type: ignore[method-assign]
    name = step.partition(" ")[2]
    if step == STALLS:
        MoveTarget._freeze = _stall  # type: ignore[assignment]
        return
    part = MoveSource if STEPS[step] == "a" else MoveTarget
    if hasattr(part, name):
        setattr(part, name, _around(step, name, getattr(part, name)))


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
