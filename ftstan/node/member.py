"""What one node does when operators ask it.

Implements ``admin.service.Member``. Lives on the control thread. It posts questions to storage to
the data plane and waits for the answers for a bounded time, so that a node whose storage hangs, or
that recovers, can still answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ftstan.admin.keys import read_keys_at
from ftstan.base.errors import FencedError, RefusedError, StoreError
from ftstan.base.states import NodeState
from ftstan.config.limits import changes
from ftstan.config.validation import check_limits
from ftstan.node.within import within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ftstan.admin.keys import Keys
    from ftstan.admin.protocol import Answer, EpochEntry, Request
    from ftstan.base.states import NodeStatus
    from ftstan.config.options import StoreLimits
    from ftstan.ft.owned import Owner
    from ftstan.node.context import Context, GroupPart

T = TypeVar("T")

_READ_WITHIN_S = 2.0
_RECORD_WITHIN_S = 10.0
#: Bytes of room that a successor needs at least: it records its epoch before it serves.
_ROOM_TO_TAKE_OVER = 1 << 20


class NodeMember:
    """What ``Node`` and its group do, for whoever asks. A standalone server has a status, too.

    ``reload`` and ``begin_drain``: see ``Administration``.
    """

    def __init__(
        self,
        node: Context,
        reload: Callable[[], Coroutine[None, None, None]],
        begin_drain: Callable[[], None],
    ) -> None:
        self._node = node
        self._reload = reload
        self._begin_drain = begin_drain

    # ---- views
    # ----------------------------------------------------------------------------------------------

    async def status(self) -> NodeStatus:
        """Itself, as of now; storage has a moment to say who holds the store."""
        return await self._node.status.refreshed()

    async def history(self, count: int) -> tuple[EpochEntry, ...]:
        """The newest epochs. Raises ``StoreError``."""
        # Late, as below: only operators ask for it.
        from ftstan.ft.history import history_of  # noqa: PLC0415

        owner = self._owner()
        return history_of(await self._within(_READ_WITHIN_S, lambda: owner.read_records(count)))

    async def read_keys(self) -> Keys:
        """The keys of the group, or of a server without a datastore.

        Raises ``RefusedError`` and ``StoreError``.
        """
        node = self._node
        if node.owner is not None and node.owner.has_directory:
            return await self._within(_READ_WITHIN_S, node.owner.read_keys)
        path = node.options.admin_key
        if not path:
            raise RefusedError(
                "this server has no key: its store has no directory",
                hint="start it with -admin_key and a file's path",
            )
        return await self._within(_READ_WITHIN_S, lambda: read_keys_at(path))

    async def administer(self, request: Request) -> Answer:
        """What is about this server and what it serves.

        Raises ``RefusedError`` and ``StoreError``.
        """
        from ftstan.node.administration import Administration  # noqa: PLC0415

        administration = Administration(self._node, self._reload, self._begin_drain)
        return await administration.carry_out(request)

    # ---- changes
    # ----------------------------------------------------------------------------------------------

    async def switchover(self, to: str) -> None:
        """Hand over. Raises ``RefusedError`` unless this node serves and the successor is another
        one.
        """
        self._check_active(to)
        await self._group().switchover(to)

    async def plan_switchover(self, to: str, at_ns: int) -> None:
        """Hand over at ``at_ns`` (Unix nanoseconds); 0 or less: not any more.

        Raises ``RefusedError`` as ``switchover``, and for a time that is over.
        """
        self._check_active(to)
        if 0 < at_ns <= self._node.clock.wall_ns():
            raise RefusedError("that time is over", hint="leave out --at to switch over now")
        self._group().plan_switchover(to, at_ns)

    def _check_active(self, to: str) -> None:
        node = self._node
        if node.stopping.is_set():
            raise RefusedError(
                "this server is stopping already", hint="see ftstanctl ft status for who takes over"
            )
        if node.role is not NodeState.ACTIVE:
            raise RefusedError(
                "this server is not the active one: there is nothing to hand over",
                hint="ask the active server; ftstanctl ft switchover finds it",
            )
        if to == node.server_id:
            raise RefusedError(
                "this server is the active one already", hint="name a standby, or none for any"
            )
        if not node.is_serving():
            raise RefusedError(
                "this server is still recovering", hint="wait until it serves, then ask again"
            )
        room = node.protection.room
        # A file system without a size does not say how much is left.
        if room is not None and room.total_bytes and room.free_bytes < _ROOM_TO_TAKE_OVER:
            raise RefusedError(
                f"the datastore's file system has {room.free_bytes} bytes left: whoever takes over "
                "could not record that it does",
                hint="make room first; this server goes on serving meanwhile",
            )

    async def pause(self, by: str) -> None:
        """Hold back, also after a restart. Raises ``RefusedError`` on the active, and on a member
        that has the lock and is about to be it.

        Raises ``StoreError``: it holds back until its restart.
        """
        if self._node.role is NodeState.ACTIVE:
            raise RefusedError(
                "this server is active, and only a standby can be paused",
                hint="run ftstanctl ft switchover first, then pause it",
            )
        if self._group().standby.state is NodeState.ACTIVE:
            # Its pause would hold from the next start on, and nothing before that would show it.
            raise RefusedError(
                "this server is taking over, and only a standby can be paused",
                hint="see ftstanctl ft status; when it serves, run ftstanctl ft switchover first, "
                "then pause it",
            )
        self._group().pause()
        line = f"paused by {by or 'an operator'}"
        await self._keep(lambda: self._owner().keep_pause(line), "paused until it restarts")

    async def resume(self) -> None:
        """Take part again. Raises ``StoreError``: until its restart."""
        self._group().resume()
        await self._keep(self._owner().end_pause, "resumed until it restarts")

    async def _keep(self, work: Callable[[], None], done: str) -> None:
        try:
            await self._within(_READ_WITHIN_S, work)
        except StoreError as error:
            raise StoreError(f"{done}: {error.text}", hint=error.hint) from error

    async def set_mixed(self, *, on: bool) -> None:
        """Record the operator's word in an epoch of its own.

        Raises ``RefusedError`` unless this node serves, and while it hands over: its successor
        could not use what it keeps, behind an epoch that it does not expect.
        """
        node = self._node
        owner = self._owner()
        if not node.is_ft_active():
            raise RefusedError(
                "only an active server that serves can record that", hint="ask the active server"
            )
        if on:
            await self._within(_READ_WITHIN_S, self._refuse_moved)
        if self._group().leaves:
            raise RefusedError(
                "this server hands over: its successor can record that",
                hint="ask again when ftstanctl ft status shows who serves",
            )
        try:
            await self._within(_RECORD_WITHIN_S, lambda: owner.set_mixed(on=on))
        except FencedError as error:
            node.fenced(error)
        self._group().note_epoch()

    def _refuse_moved(self) -> None:
        """Raise ``RefusedError`` if a channel has moved: an original server would serve it."""
        serving = self._node.plane.serving
        if serving is None:
            return
        moves = self._node.partitioning.moves()
        far = next((name for name, m in moves.items() if m.is_under_way or m.is_elsewhere), None)
        if far is not None:
            shown = far.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            raise RefusedError(
                f'channel "{shown}" moves or has moved to another partition, or comes from one: an '
                "original server would serve it all the same",
                hint="ftstanctl channel move --status shows what is known of it",
            )
        moved = serving.broker.moved
        if moved or serving.broker.later:
            shown = moved[0].decode("utf-8", "backslashreplace") if moved else ""
            raise RefusedError(
                f'channel "{shown}" has moved: an original server would serve it all the same'
                if moved
                else "some channels have not been read yet, and one of them may have moved",
                hint="first: ftstanctl channel moved CHANNEL off" if moved else "ask again later",
            )

    async def set_limits(self, limits: StoreLimits) -> list[str]:
        """Other limits from now on, also if this node serves only later.

        Returns lines that say what changed.

        Raises ``ConfigError``: nothing has changed; ``StoreError``: they hold as soon as storage
        answers.
        """
        node = self._node
        check_limits(limits, partitioning=node.options.partitioning)
        lines = changes(node.options.limits, limits)
        node.options = replace(node.options, limits=limits)

        def apply() -> None:
            if node.plane.serving is not None:
                node.plane.serving.set_limits(node.partitioning.limits(limits))
            elif node.cluster is not None:
                node.cluster.set_limits(limits)

        await self._within(_RECORD_WITHIN_S, apply)
        return lines

    # ---- with storage
    # --------------------------------------------------------------------------------------------

    def _owner(self) -> Owner:
        assert self._node.owner is not None
        return self._node.owner

    def _group(self) -> GroupPart:
        assert self._node.group is not None
        return self._node.group

    async def _within(self, seconds: float, function: Callable[[], T]) -> T:
        return await within(self._node, seconds, function)
