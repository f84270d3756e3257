"""A session that lets a test do something at every step of an owner's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.session import LostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.sql.source import Source


class Hooked:
    """Around a session; ``before`` and ``after`` are called with the name of each step."""

    def __init__(self, source: Source, steps: Steps) -> None:
        self._inner = connect(source)
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self) -> None:
        self._steps.run("before begin", self)
        self._inner.begin()
        self._steps.run("after begin", self)

    def execute(self, sql: str, parameters: tuple[object, ...] = ()) -> int:
        found = self._inner.execute(sql, parameters)
        if sql.startswith("UPDATE ftstan_epoch SET done"):
            self._steps.run("after fence", self)
        return found

    def insert_messages(self, blocks: Any) -> None:
        self._inner.insert_messages(blocks)
        self._steps.run("after insert", self)

    def inserts_at_once(self, block: Any) -> bool:
        return self._steps.at_once and self._inner.inserts_at_once(block)

    def insert_at_once(self, fence: Any, channel: int, block: Any) -> int:
        self._steps.run("before at once", self)
        count = self._inner.insert_at_once(fence, channel, block)
        self._steps.run("after at once", self)
        return count

    def commit(self) -> None:
        self._steps.run("before commit", self)
        self._inner.commit()
        self._steps.run("after commit", self)

    def lose(self) -> None:
        """The connection is gone, and nobody knows what became of what was sent."""
        self._inner.close()
        raise LostError("sql: the connection was cut")


class Steps:
    """What to do at which step, once."""

    ALL = (
        "before begin",
        "after begin",
        "after fence",
        "after insert",
        "before commit",
        "after commit",
    )

    AT_ONCE = ("before at once", "after at once")

    def __init__(self, *, at_once: bool = False) -> None:
        """``at_once``: messages may go by one statement, which has these steps alone."""
        self.at_once = at_once
        self._at: dict[str, Callable[[Hooked], None]] = {}
        self.calls: list[str] = []

    def at(self, step: str, do: Callable[[Hooked], None]) -> None:
        self._at[step] = do

    def run(self, step: str, session: Hooked) -> None:
        self.calls.append(step)
        do = self._at.pop(step, None)
        if do is not None:
            do(session)
