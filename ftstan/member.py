"""One node as operators see it: its status, and what it does when it is asked.

Implements ``ft.desk.Member``. Lives on the control thread; whatever storage must answer is posted to the data plane and
waited for no longer than a bound, so that a node whose storage hangs, or that recovers, can still say so.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ftstan.administration import Administration, within
from ftstan.config.limits import changes
from ftstan.config.validation import check_limits
from ftstan.errors import FencedError, RefusedError
from ftstan.ft.adminkey import read_key_at
from ftstan.ft.ctl import Answer, Lag, NodeStatus, Request
from ftstan.ft.history import history_of
from ftstan.ft.states import NodeState, Phase
from ftstan.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ftstan.config.options import StoreLimits
    from ftstan.context import Context, GroupPart
    from ftstan.ft.ctl import EpochEntry
    from ftstan.ft.epoch import Activation
    from ftstan.ft.ownership import StoreOwner
    from ftstan.ft.slots import EpochRecord

T = TypeVar("T")

_MOMENT_S = 0.25
"""A status is answered after that long, whatever storage does."""

_READ_WITHIN_S = 2.0
_RECORD_WITHIN_S = 10.0


class NodeMember:
    """What ``Node`` and its group do, for whoever asks. A standalone server has a status, too.

    ``reload`` and ``begin_drain``: see ``Administration``.
    """

    def __init__(
        self, node: Context, reload: Callable[[], Coroutine[None, None, None]], begin_drain: Callable[[], None]
    ) -> None:
        self._node = node
        self._holder: EpochRecord | None = None
        self._looking: asyncio.Future[EpochRecord | None] | None = None
        self._administration = Administration(node, reload, begin_drain)
        self.recovered = (0, 0)
        """Channels that a recovery has read, and how many it found."""

    def on_progress(self, done: int, of: int) -> None:
        """Take note of a recovery: channels done, and how many there are. Any thread may call it."""
        self.recovered = (done, of)

    @property
    def progress(self) -> str:
        """How far a recovery is, to follow a word for it; empty when there is nothing to say."""
        done, of = self.recovered
        return f" ({done} of {of} channels)" if done < of else ""

    # ---- views ---------------------------------------------------------------------------------------------------

    async def status(self) -> NodeStatus:
        """Itself, as of now; the holder as of the last time that storage said it."""
        node, group = self._node, self._node.group
        activation = self._activation()
        if activation is None:
            await self._look()
        holder = activation.record() if activation is not None else self._holder
        return NodeStatus(
            cluster=node.options.cluster_id,
            group=node.options.ft_group,
            server=node.server_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=str(node.state),
            phase=str(self.phase),
            serving=node.is_serving() and not node.stopping.is_set(),
            paused=group is not None and group.standby.paused,
            mixed=group.mixed if group is not None else holder is not None and holder.ft_mixed,
            epoch=activation.epoch if activation is not None else 0,
            holder_epoch=holder.epoch if holder is not None else 0,
            holder=holder.describe() if holder is not None else "",
            store_id=holder.store_id.hex() if holder is not None else "",
            probe_age=self._probe_age(),
            warm_lag=self._warm_lag(),
            uptime=round(node.uptime, 3),
            version=__version__,
            monitor=node.monitor.url,
            partitioned=node.options.partitioning,
            fit=activation is not None and activation.ft_mixed and self._owner().is_fit(activation.epoch),
        )

    async def page(self) -> dict[str, object]:
        """The status with what only monitoring shows: recovery, and what came of trying the store lock."""
        status = await self.status()
        done, of = self.recovered
        group, owner = self._node.group, self._node.owner
        return {
            **status.to_json(),
            "recovery": {"channels": done, "of": of},
            "lock_tries": group.tries if group is not None else {},
            "lock_faults": owner.lock.counts.as_dict() if owner is not None else {},
            "unbridged": self._node.unbridged,
        }

    def _activation(self) -> Activation | None:
        """The present one: an owner goes on to the next epoch when its numbers are used up."""
        owner = self._node.owner
        return owner.present if owner is not None else None

    @property
    def phase(self) -> Phase:
        """What the node is doing, for people."""
        node = self._node
        if node.stopping.is_set():
            return Phase.STOPPED
        if node.group is not None and node.state != NodeState.ACTIVE:
            return node.group.standby.phase
        if node.is_serving():
            return Phase.ACTIVE
        return Phase.RECOVERING if self._activation() is not None else Phase.STARTING

    def _probe_age(self) -> float | None:
        probed = self._node.protection.probe_age
        if probed is not None:
            return round(max(probed, 0.0), 3)
        owner = self._node.owner
        if owner is None or owner.answered_at is None:
            return None
        return round(max(self._node.clock.mono() - owner.answered_at, 0.0), 3)

    def _warm_lag(self) -> Lag | None:
        group = self._node.group
        lag = group.warm_lag if group is not None and not group.activated else None
        return Lag(lag.messages, round(lag.seconds, 3)) if lag is not None else None

    async def _look(self) -> None:
        """Read the newest epoch record; one reading at a time, however often anybody asks."""
        owner = self._node.owner
        if owner is None or self._node.stopping.is_set():
            return
        if self._looking is None:
            self._looking = self._node.call(owner.read_owner)
        looking = self._looking
        await asyncio.wait([looking], timeout=_MOMENT_S)
        if looking.done():
            self._looking = None
            if not looking.cancelled() and looking.exception() is None:
                self._holder = looking.result()

    async def history(self, count: int) -> tuple[EpochEntry, ...]:
        """The newest epochs. Raises ``StoreError``."""
        owner = self._owner()
        return history_of(await self._within(_READ_WITHIN_S, lambda: owner.read_records(count)))

    async def read_key(self) -> bytes | None:
        """The key of the group, or of a server without a datastore. Raises ``RefusedError`` and ``StoreError``."""
        node = self._node
        if node.owner is not None:
            return await self._within(_READ_WITHIN_S, node.owner.read_key)
        path = node.options.admin_key
        if not path:
            raise RefusedError(
                "this server has no key: its store is in memory", hint="start it with -admin_key and a file's path"
            )
        return await self._within(_READ_WITHIN_S, lambda: read_key_at(path))

    async def administer(self, request: Request) -> Answer:
        """What is about this server and what it serves. Raises ``RefusedError`` and ``StoreError``."""
        return await self._administration.carry_out(request)

    # ---- changes -------------------------------------------------------------------------------------------------

    async def switchover(self, to: str) -> None:
        """Hand over. Raises ``RefusedError`` unless this node serves and the successor is another one."""
        node = self._node
        if node.stopping.is_set():
            raise RefusedError("this server is stopping already", hint="see ftstanctl ft status for who takes over")
        if node.state != NodeState.ACTIVE:
            raise RefusedError(
                "this server is not the active one: there is nothing to hand over",
                hint="ask the active server; ftstanctl ft switchover finds it",
            )
        if to == node.server_id:
            raise RefusedError("this server is the active one already", hint="name a standby, or none for any")
        if not node.is_serving():
            raise RefusedError("this server is still recovering", hint="wait until it serves, then ask again")
        await self._group().switchover(to)

    async def pause(self) -> None:
        """Hold back. Raises ``RefusedError`` on the active."""
        if self._node.state == NodeState.ACTIVE:
            raise RefusedError(
                "this server is active, and only a standby can be paused",
                hint="run ftstanctl ft switchover first, then pause it",
            )
        self._group().pause()

    async def resume(self) -> None:
        """Take part again."""
        self._group().resume()

    async def set_mixed(self, *, on: bool) -> None:
        """Record the operator's word in an epoch of its own. Raises ``RefusedError`` unless this node serves."""
        node, owner = self._node, self._owner()
        if not node.is_ft_active():
            raise RefusedError("only an active server that serves can record that", hint="ask the active server")
        try:
            await self._within(_RECORD_WITHIN_S, lambda: owner.set_mixed(on=on))
        except FencedError as error:
            node.fenced(error)
        self._group().note_epoch()

    async def set_limits(self, limits: StoreLimits) -> list[str]:
        """Other limits from now on, also if this node serves only later; returns lines that say what changed.

        Raises ``ConfigError``: nothing has changed; ``StoreError``: they hold as soon as storage answers.
        """
        check_limits(limits)
        node = self._node
        lines = changes(node.options.limits, limits)
        node.options = replace(node.options, limits=limits)

        def apply() -> None:
            if node.plane.serving is not None:
                node.plane.serving.set_limits(limits)

        await self._within(_RECORD_WITHIN_S, apply)
        return lines

    # ---- with storage --------------------------------------------------------------------------------------------

    def _owner(self) -> StoreOwner:
        assert self._node.owner is not None
        return self._node.owner

    def _group(self) -> GroupPart:
        assert self._node.group is not None
        return self._node.group

    async def _within(self, seconds: float, function: Callable[[], T]) -> T:
        return await within(self._node, seconds, function)
