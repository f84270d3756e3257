"""A server that kills itself at one step of a move: ``python -m tests.ft.mortal_mover STEP ...``.

``STEPS`` are all of them, in the order in which a move comes to them, with whose they are. With
``STALLS`` a target comes no further, with ``SLOW`` and a number it waits for so many seconds while
it keeps what is published; with ``FAILS`` its first attempts fail behind that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import RefusedError
from ftstan.cli.server import main
from ftstan.node import move_target
from ftstan.node.move_source import MoveSource
from ftstan.node.move_target import MoveTarget
from ftstan.node.moving import Moving

if TYPE_CHECKING:
    from collections.abc import Callable

#: Step -> the server that dies there.
STEPS: Final = {
    "before offered": "source",
    "after offered": "source",
    "before copying": "target",
    "after copying": "target",
    "after _make": "target",
    "after _copy": "target",
    "after _note": "source",
    "after _begin_arrival": "target",
    "after _close": "source",
    "after _close_acks": "source",
    "after _detach": "source",
    "after _freeze": "target",
    "after _say_final": "source",
    "before _store_subs": "target",
    "after _store_subs": "target",
    "before ready": "target",
    "after ready": "target",
    "before gone": "source",
    "after gone": "source",
    "after _let_go": "source",
    "before _take": "target",
    "before taken": "target",
    "after taken": "target",
    "after _take": "target",
}
#: The target has copied, and does not ask for the hand-over.
STALLS: Final = "stall _freeze"
#: How long its target keeps what is published before it asks for the hand-over.
SLOW: Final = "slow "
#: The target has kept what is published for a while, and does not get what it asks for then.
FAILS: Final = "fail"
_FAILURES: Final = 20


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


def _failing(freeze: Callable[..., Any]) -> Callable[..., Any]:
    left = _FAILURES

    async def failing(self: MoveTarget) -> Any:
        nonlocal left
        frozen = await freeze(self)
        if left:
            left -= 1
            raise RefusedError("not this time")
        return frozen

    return failing


def arm(step: str) -> None:
    """Let this process die there."""
    if step.startswith(SLOW):
        vars(move_target)["_SPREAD_S"] = float(step.removeprefix(SLOW))
        return
    if step == FAILS:
        vars(move_target).update(_SPREAD_S=0.05, _AGAIN_S=0.05, _AGAIN_MOST_S=0.05)
        MoveTarget._freeze = _failing(MoveTarget._freeze)  # type: ignore[method-assign]
        return
    Moving.keep = _kept(step, Moving.keep)  # type: ignore[method-assign]
    name = step.partition(" ")[2]
    if step == STALLS:
        MoveTarget._freeze = _stall  # type: ignore[assignment]
        return
    part = MoveSource if STEPS[step] == "source" else MoveTarget
    if hasattr(part, name):
        setattr(part, name, _around(step, name, getattr(part, name)))


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
