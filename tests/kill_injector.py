"""A process that is killed at a call of one's choice, without a process: from then on nothing is
carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: What changes something that others see: between two of these a killed process has changed
#: nothing.
CHANGES = frozenset(
    {"link", "makedirs", "mkdir", "open", "rename", "replace", "rmtree", "copyfile", "unlink"}
)


class Killed(BaseException):
    """The process is gone: nothing that it would still do is done."""


class Mortal:
    """A module in front of the real one.

    Its ``life[0]``-th change is never made, nor any after it.
    """

    def __init__(self, module: Any, life: list[int]) -> None:
        self._module = module
        self._life = life

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._module, name)
        return mortal(real, self._life) if name in CHANGES else real


def mortal(real: Callable[..., Any], life: list[int]) -> Callable[..., Any]:
    """One function of such a module."""

    def call(*words: Any, **more: Any) -> Any:
        life[0] -= 1
        if life[0] < 0:
            raise Killed
        return real(*words, **more)

    return call
