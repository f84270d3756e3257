"""What a member knows of the others, for pages that show the whole group and go on from another
member's.

The owner asks, the standbys answer, and the owner tells all of them what it heard: a standby says
nothing unasked. Lives on the control loop. Nothing but what people see depends on it
(``docs/monitoring.md``, the dashboard).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from ftstan.admin.protocol import decode_answer, encode_who
from ftstan.base.errors import NatsError, WireError
from ftstan.ft import digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ftstan.base.states import NodeStatus
    from ftstan.ft.epoch import Activation
    from ftstan.node.context import Context
    from ftstan.stores.interface import ChannelEnd

_DIGEST_S: Final = 1.0
#: Channels in one second's digest; more have their turn in the next.
_DIGEST_MOST: Final = 4096
#: The others are asked in every so many digests, and have so long to answer.
_ASK_EVERY: Final = 3
_ANSWERS_S: Final = 0.5


class Peers:
    """The members of a group, this one among them. ``say`` and ``ask`` use the group's subject."""

    def __init__(
        self,
        node: Context,
        say: Callable[[bytes], Awaitable[None]],
        ask: Callable[[bytes, float], Awaitable[list[bytes]]],
    ) -> None:
        self._node = node
        self._say = say
        self._ask = ask
        self.members: tuple[digest.Member, ...] = ()
        """As the owner has told last, or as this node has heard as the owner."""

    def hear(self, told: digest.Members) -> None:
        """Note the members that the owner named."""
        self.members = told.members

    async def tell(self, activation: Activation) -> None:
        """While this node owns the store: each second hints for standbys, where the channels end
        and who is there.
        """
        node = self._node
        turn = 0
        while not node.stopping.is_set():
            began = node.clock.mono()
            ends = await node.call(self._ends)
            with contextlib.suppress(NatsError):
                for payload in digest.encode_digest(
                    node.server_id, activation.epoch, activation.store_id, ends
                ):
                    await self._say(payload)
                # Without pages of its own nobody would see it, and standbys stay as silent as the
                # original's.
                if node.monitor.url and turn % _ASK_EVERY == 0:
                    await self._tell_members(activation)
            turn += 1
            await asyncio.sleep(max(_DIGEST_S - (node.clock.mono() - began), 0.0))

    async def _tell_members(self, activation: Activation) -> None:
        node = self._node
        found = {}
        for payload in await self._ask(encode_who(), _ANSWERS_S):
            with contextlib.suppress(WireError):
                status = decode_answer(payload).status
                if status is not None:
                    found[status.server] = _member(status)
        found[node.server_id] = _member(await node.status.refreshed())
        self.members = tuple(found[server] for server in sorted(found))
        told = digest.Members(node.server_id, activation.epoch, activation.store_id, self.members)
        await self._say(digest.encode_members(told))

    def _ends(self) -> list[ChannelEnd]:
        serving = self._node.plane.serving
        return serving.store.ends(_DIGEST_MOST) if serving is not None else []


def _member(status: NodeStatus) -> digest.Member:
    # Anybody who may use NATS can answer as a member: what becomes a link is the address of a page,
    # or nothing.
    monitor = status.monitor if digest.is_page_url(status.monitor) else ""
    return digest.Member(
        status.server, status.host, monitor, status.state, status.phase, status.name
    )
