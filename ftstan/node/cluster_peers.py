"""What a node of a cluster knows of the others, for its dashboard.

They are asked when somebody looks, and a page shows what the last question brought: no page waits
for an answer. A node that does not answer any more stays, with the time since it did, until the
cluster has removed it. Lives on the control loop; nothing but what people see depends on it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.admin.protocol import decode_answer, encode_who
from ftstan.base.errors import NatsError, WireError
from ftstan.nats import tasks

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable

    from ftstan.base.clock import Clock
    from ftstan.base.states import NodeStatus

_AGAIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node and how it was; ``silent_s``: since then, 0 if it is this one or answered last."""

    status: NodeStatus
    silent_s: float


class ClusterPeers:
    """``ask(question)`` brings what all servers of the cluster answer."""

    def __init__(self, ask: Callable[[bytes], Awaitable[list[bytes]]], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._heard: dict[str, tuple[NodeStatus, float]] = {}
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Ask again, if the last question is old."""
        if self._asking is None and self._clock.mono() - self._asked_at > _AGAIN_S:
            self._asking = tasks.aside(self._refresh(), "question to the nodes of the cluster")
            self._asking.add_done_callback(self._asked)

    def _asked(self, _task: asyncio.Task[None]) -> None:
        self._asking = None

    async def _refresh(self) -> None:
        with contextlib.suppress(NatsError):
            self.take(await self._ask(encode_who()))

    def take(self, answers: Iterable[bytes]) -> None:
        """Remember who answered just now."""
        self._asked_at = self._clock.mono()
        for payload in answers:
            with contextlib.suppress(WireError):
                status = decode_answer(payload).status
                if status is not None and status.node_id:
                    self._heard[status.node_id] = (status, self._asked_at)

    def known(self, own: NodeStatus) -> list[SeenNode]:
        """All of them by id, this one as it is now; without those that were removed."""
        members = own.clustering.members if own.clustering is not None else ()
        found = {
            node: SeenNode(status, self._asked_at - heard)
            for node, (status, heard) in self._heard.items()
            if node in members or self._asked_at == heard
        }
        found[own.node_id] = SeenNode(own, 0.0)
        return [found[node] for node in sorted(found)]
