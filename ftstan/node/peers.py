"""What a member knows of the others, for pages that show the whole group and go on from another
member's.

The owner asks, the standbys answer, and the owner tells all of them what it heard: a standby says
nothing unasked. A member that does not answer any more stays, with the time since it did: an absent
one is what people look for. Lives on the control loop. Nothing but what people see depends on it
(``docs/monitoring.md``, the dashboard).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
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
#: Who has said nothing for so long is absent: two questions, or two of the owner's words, were
#: lost.
SILENT_S: Final = 8.0
#: Nobody misses a member any more that has been absent for so long: it was retired.
_MISSED_S: Final = 7 * 86_400.0


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
        self._known: dict[tuple[str, str], tuple[digest.Member, float]] = {}
        """By where it runs: the newest of each, and when it was heard (the clock's seconds)."""

    @property
    def members(self) -> tuple[digest.Member, ...]:
        """All that there are, this one as it is now; absent ones as they were heard last."""
        node = self._node
        now = node.clock.mono()
        self._note(_member(node.status.now()), now)
        for key, (_, heard) in list(self._known.items()):
            if now - heard > _MISSED_S:
                del self._known[key]
        rows = [
            replace(member, silent_s=round(max(now - heard, 0.0), 1))
            for member, heard in self._known.values()
        ]
        # Those heard last: of very many, the absent are told last.
        rows.sort(key=lambda member: (member.silent_s > SILENT_S, member.host, member.server))
        return tuple(rows[: digest.MOST_MEMBERS])

    def hear(self, told: digest.Members) -> None:
        """Note the members that the owner named."""
        now = self._node.clock.mono()
        self._known.clear()
        for member in told.members:
            self._note(member, now - max(member.silent_s, 0.0))

    def _note(self, member: digest.Member, heard: float) -> None:
        # A server has a new id each time it starts: it takes the place of its former self.
        place = member.host, member.monitor or member.server
        known = self._known.get(place)
        if known is not None and known[1] > heard:
            return
        if known is None and not member.monitor:
            # Without pages, only its silence tells a former self from another member.
            for key, (other, last) in list(self._known.items()):
                if other.host == member.host and not other.monitor and heard - last > SILENT_S:
                    del self._known[key]
        if known is None and len(self._known) >= 2 * digest.MOST_MEMBERS:
            # Anybody who may use NATS can answer as very many.
            del self._known[min(self._known, key=lambda key: self._known[key][1])]
        self._known[place] = member, heard

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
        for payload in await self._ask(encode_who(), _ANSWERS_S):
            with contextlib.suppress(WireError):
                status = decode_answer(payload).status
                if status is not None:
                    self._note(_member(status), node.clock.mono())
        await node.status.refreshed()
        told = digest.Members(node.server_id, activation.epoch, activation.store_id, self.members)
        await self._say(digest.encode_members(told))

    def _ends(self) -> list[ChannelEnd]:
        serving = self._node.plane.serving
        return serving.store.ends(_DIGEST_MOST) if serving is not None else []


def _member(status: NodeStatus) -> digest.Member:
    # Anybody who may use NATS can answer as a member: what becomes a link is the address of a page,
    # or nothing.
    monitor = status.monitor if digest.is_page_url(status.monitor) else ""
    lag = status.warm_lag
    return digest.Member(
        status.server,
        status.host,
        monitor,
        status.state,
        status.phase,
        status.version,
        lag.messages if lag is not None else -1,
        lag.seconds if lag is not None else -1.0,
        name=status.name,
    )
