"""The ``NodeStatus`` of one node: made here, from its parts, and nowhere else.

Lives on the control thread. Nothing here waits for storage longer than a moment: a node whose
storage hangs, or that recovers, can still say so.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final

from ftstan.base.states import Lag, NodeState, NodeStatus, Phase, Recovery
from ftstan.config.member import member_name
from ftstan.version import __version__

if TYPE_CHECKING:
    from ftstan.ft.epoch_records import EpochRecord
    from ftstan.node.context import Context

_MOMENT_S: Final = 0.25


class StatusSource:
    """Makes the status of ``node``."""

    def __init__(self, node: Context) -> None:
        self._node = node
        self._holder: EpochRecord | None = None
        self._looking: asyncio.Future[EpochRecord | None] | None = None
        self._recovery = Recovery()

    def on_progress(self, done: int, of: int) -> None:
        """Take note of a recovery: channels done, and how many there are.

        Any thread may call it.
        """
        self._recovery = Recovery(done, of)

    def now(self) -> NodeStatus:
        """From memory alone; the holder of the store as of the last time that it was looked up."""
        node = self._node
        group = self._node.group
        owner = self._node.owner
        activation = owner.present if owner is not None else None
        holder = activation.record() if activation is not None else self._holder
        phase = self._phase()
        return NodeStatus(
            cluster=node.options.cluster_id,
            group=node.options.ft_group,
            server=node.server_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=self._state(),
            phase=phase,
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
            fit=(
                owner is not None
                and activation is not None
                and activation.ft_mixed
                and owner.is_fit(activation.epoch)
            ),
            trouble=group.trouble if group is not None and phase is Phase.BACKING_OFF else "",
            role=node.cluster.role if node.cluster is not None else "",
            node_id=node.cluster.node_id if node.cluster is not None else "",
            storage_late=(group is not None and group.activated and not node.protection.may_beat),
            recovery=self._recovery,
            name=member_name(node.options),
            switchover_at_ns=group.switchover_at_ns if group is not None else 0,
            clustering=node.cluster.clustering if node.cluster is not None else None,
        )

    async def refreshed(self) -> NodeStatus:
        """The same, after a look at who holds the store; storage has a moment to answer."""
        owner = self._node.owner
        if owner is not None and owner.present is None and not self._node.stopping.is_set():
            # One reading at a time, however often anybody asks.
            if self._looking is None:
                self._looking = self._node.call(owner.read_owner)
            looking = self._looking
            await asyncio.wait([looking], timeout=_MOMENT_S)
            if looking.done():
                self._looking = None
                if not looking.cancelled() and looking.exception() is None:
                    self._holder = looking.result()
        return self.now()

    def _state(self) -> NodeState:
        """Who owns the store stands by for its clients until the first of them can be answered."""
        node = self._node
        if node.cluster is not None:
            return node.role
        serving = node.plane.serving
        owns = node.role in (NodeState.STANDALONE, NodeState.ACTIVE)
        if owns and (serving is None or not serving.served):
            return NodeState.STANDBY
        return node.role

    def _phase(self) -> Phase:
        node = self._node
        if node.stopping.is_set():
            return Phase.STOPPED
        if node.group is not None and node.role is not NodeState.ACTIVE:
            return node.group.standby.phase
        serving = node.plane.serving
        if node.cluster is not None and serving is None:
            return Phase.RECOVERING if node.cluster.leads else Phase.FOLLOWING
        if serving is not None and not serving.link.connected:
            return Phase.WAITING_FOR_NATS
        if serving is not None and serving.served:
            return Phase.ACTIVE
        owns = node.owner is not None and node.owner.present is not None
        return Phase.RECOVERING if owns else Phase.STARTING

    def _probe_age(self) -> float | None:
        probed = self._node.protection.probe_age
        owner = self._node.owner
        if probed is None and owner is not None and owner.answered_at is not None:
            probed = self._node.clock.mono() - owner.answered_at
        return None if probed is None else round(max(probed, 0.0), 3)

    def _warm_lag(self) -> Lag | None:
        group = self._node.group
        lag = group.warm_lag if group is not None and not group.activated else None
        return Lag(lag.messages, round(lag.seconds, 3)) if lag is not None else None
