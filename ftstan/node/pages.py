"""What the monitoring pages show of one node: implements ``monitor.http.Views`` on the control
loop.

Nothing here waits for storage. A page looks at the broker in portions on the data plane's thread,
each bounded by what it copies. A data plane that does not come round for a moment is inside a
storage call, or busy with a batch: then the page looks from here. Each row is copied in one step
that no other thread can split, so it is true for one moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, TypeVar

from ftstan.base import log
from ftstan.base.errors import StoreError
from ftstan.base.states import NodeState, Phase
from ftstan.broker import views
from ftstan.broker.views import Counters, SubRow
from ftstan.cluster import views as followed
from ftstan.config.banner import runtime_version
from ftstan.config.limits import Limits
from ftstan.monitor.metrics import NodeFigures
from ftstan.monitor.passthrough import idle_pages
from ftstan.monitor.zpages import Heading, Page, StoreView, format_time, format_uptime
from ftstan.nats import tasks
from ftstan.node.overview import Overview
from ftstan.version import COMPATIBLE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.base.states import NodeStatus
    from ftstan.broker.broker import Broker
    from ftstan.broker.client import Client
    from ftstan.broker.state import Channel
    from ftstan.broker.views import CensusRow, ChannelRow, ClientRow
    from ftstan.cluster.replica import Replica
    from ftstan.node.context import Context
    from ftstan.node.pipeline import Serving

T = TypeVar("T")
U = TypeVar("U")

_MOMENT_S: Final = 0.25
#: Rows that are copied in one visit to the data plane: below a tenth of a millisecond each way.
_CHANNELS_A_VISIT: Final = 256
_SUBS_A_VISIT: Final = 256
#: Each of them may have to be read.
_OPENED_A_VISIT: Final = 16
#: A census looks at every subscription, in C: so many at most in one visit, unless one channel has
#: more.
_CENSUS_SUBS_A_VISIT: Final = 8192
#: How long a page waits for a recovery to end, and how often it looks.
_RECOVERY_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.02
#: Who has no store open for clients, and never will while it is that.
_HAVE_NOTHING: Final = (NodeState.STANDBY, NodeState.CLUSTERED)
#: Scrapes and dashboards that come together share one look.
_FRESH_S: Final = 0.5


class _Look:
    """One page's look at a broker.

    Once the data plane was late, the rest of the page does not wait for it again.
    """

    def __init__(self, node: Context, serving: Serving) -> None:
        self.broker: Broker = serving.broker
        self._node = node
        self._late = False

    async def ask(self, function: Callable[[], T]) -> T:
        """What ``function`` says; it runs on the data plane's thread if that has a moment."""
        if not self._late:
            try:
                async with asyncio.timeout(_MOMENT_S):
                    return await self._node.call(function)
            except TimeoutError:
                self._late = True
        await asyncio.sleep(0)
        return function()

    async def in_portions(
        self, rows: Sequence[T], most: int, function: Callable[[Sequence[T]], list[U]]
    ) -> list[U]:
        """Apply ``function`` to the rows, at most ``most`` in one visit of the data plane."""
        found: list[U] = []
        for start in range(0, len(rows), most):
            portion = rows[start : start + most]
            found += await self.ask(lambda portion=portion: function(portion))  # type: ignore[misc]
        return found


class Pages:
    """The pages of ``node``."""

    def __init__(self, node: Context) -> None:
        self._node = node
        self._census: tuple[Counters, list[CensusRow]] = (Counters(), [])
        self._counted_at = float("-inf")
        self._counted_of: Serving | None = None
        self._taking: asyncio.Task[None] | None = None
        self._overview = Overview(node, self)

    # ---- the streaming pages
    # -------------------------------------------------------------------------------------

    def heading(self) -> Heading:
        """Who answers, and when."""
        node = self._node
        shows = node.plane.serving is not None or self._followed is not None
        cluster_id = node.options.cluster_id if shows else ""
        return Heading(cluster_id, node.server_id, format_time(node.clock.wall_ns()))

    async def serverz(self) -> dict[str, object]:
        """What ``/streaming/serverz`` shows (``docs/compat/monitoring.md``)."""
        node = self._node
        counters, rows = await self._take_census(0.0)
        status = node.status.now()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return {
            **self.heading().fields(),
            "version": COMPATIBLE_VERSION,
            "go": runtime_version(),
            "state": status.state,
            "role": status.role,
            "node_id": status.node_id,
            "start_time": format_time(node.started_ns),
            "uptime": format_uptime(node.uptime),
            "open_fds": len(os.listdir("/proc/self/fd")),
            "max_fds": soft,
            "ft_phase": "" if status.serving and not status.group else status.phase,
            "recovering": asdict(status.recovery) if status.phase == Phase.RECOVERING else {},
            "clients": counters.clients,
            "subscriptions": sum(row.subs for row in rows),
            "channels": counters.channels,
            "total_msgs": sum(row.msgs for row in rows),
            "total_bytes": sum(row.size for row in rows),
            "in_msgs": counters.in_msgs,
            "in_bytes": counters.in_bytes,
            "out_msgs": counters.out_msgs,
            "out_bytes": counters.out_bytes,
            "direct_road": asdict(node.front.status()) if node.front is not None else {},
        }

    async def recovered(self) -> str:
        """Empty when there is something to look at, else what the node does instead.

        A standby has nothing to show, and says so in its pages.
        """
        node = self._node
        end = node.clock.mono() + _RECOVERY_S
        while node.plane.serving is None and node.role not in _HAVE_NOTHING:
            if node.stopping.is_set() or node.clock.mono() >= end:
                return node.status.now().activity
            await asyncio.sleep(_LOOK_EVERY_S)
        return ""

    async def store(self) -> StoreView:
        """What ``/streaming/storez`` shows."""
        _, rows = await self._take_census(0.0)
        options = self._node.options
        limits = options.limits
        if self._node.plane.serving is not None and limits.channels:
            resolved = Limits(limits)
            limits = replace(
                limits, channels=tuple((entry.name, entry.limits) for entry in resolved.entries)
            )
        kind = f"RAFT_{options.store}" if options.clustered else options.store
        return StoreView(kind, limits, sum(row.msgs for row in rows), sum(row.size for row in rows))

    async def clients(self, offset: int, limit: int) -> Page:
        """Some of the ids of all clients, sorted."""
        return await self._names(views.client_names, followed.client_names, offset, limit)

    async def channels(self, offset: int, limit: int) -> Page:
        """Some of the names of all channels, sorted."""
        return await self._names(views.channel_names, followed.channel_names, offset, limit)

    async def _names(
        self,
        of: Callable[[Broker], list[bytes]],
        of_followed: Callable[[Replica], list[bytes]],
        offset: int,
        limit: int,
    ) -> Page:
        look = self._look()
        replica = self._followed
        if look is not None:
            names = sorted(await look.ask(lambda: of(look.broker)))
        elif replica is not None:
            names = sorted(of_followed(replica))
        else:
            return Page(0, [])
        return Page(len(names), names[offset : offset + limit])

    async def client_rows(self, names: Sequence[bytes]) -> list[ClientRow]:
        """These clients, without those that are gone."""
        look = self._look()
        if look is None:
            replica = self._followed
            return followed.client_rows(replica, names) if replica is not None else []

        def rows(portion: Sequence[bytes]) -> list[ClientRow]:
            found: list[Client] = [
                c for name in portion if (c := look.broker.clients.get(name)) is not None
            ]
            return views.client_rows(found)

        return await look.in_portions(names, _CHANNELS_A_VISIT, rows)

    async def channel_rows(self, names: Sequence[bytes], *, subs: bool) -> list[ChannelRow]:
        """These channels, without those that are gone.

        Raises ``StoreError`` for one that was not opened yet.
        """
        look = self._look()
        if look is None:
            return await self._followed_rows(names, subs=subs)

        def rows(portion: Sequence[bytes]) -> list[ChannelRow]:
            found: list[Channel] = []
            for name in portion:
                channel = look.broker.channels.get(name)
                if channel is not None:
                    found.append(channel)
                elif name in look.broker.later:
                    raise StoreError(
                        "unable to get message state: the channel is still being opened after "
                        "the start"
                    )
            return views.channel_rows(found, subs=subs)

        return await look.in_portions(names, _CHANNELS_A_VISIT, rows)

    async def _followed_rows(self, names: Sequence[bytes], *, subs: bool) -> list[ChannelRow]:
        """Channels of a node that follows, opened if nobody has needed them yet."""
        replica = self._followed
        if replica is None:
            return []
        for start in range(0, len(names), _OPENED_A_VISIT):
            portion = names[start : start + _OPENED_A_VISIT]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MOMENT_S):
                    await self._node.call(
                        lambda portion=portion: followed.open_channels(replica, portion)  # type: ignore[misc]
                    )
        return followed.channel_rows(replica, names, subs=subs)

    async def sub_rows(self, row: ChannelRow | ClientRow) -> list[tuple[bytes, SubRow]]:
        """The subscriptions of a row, each with the name of its channel."""
        look = self._look()
        if look is not None:
            seen = await look.in_portions(row.subs, _SUBS_A_VISIT, views.sub_rows)
        elif self._followed is not None:
            seen = views.sub_rows(row.subs)
        else:
            return []
        return [
            (sub.channel.name, SubRow._make(fields))
            for sub, fields in zip(row.subs, seen, strict=True)
        ]

    def is_ft_active(self) -> bool:
        """Whether this node is the active one and serves."""
        return self._node.status.now().is_ft_active

    # ---- pages of ours
    # -------------------------------------------------------------------------------------------

    async def ftz(self) -> dict[str, object]:
        """What ``/streaming/ftz`` shows."""
        node = self._node
        group = node.group
        owner = node.owner
        status = await node.status.refreshed()
        return {
            **status.to_json(),
            "lock_tries": group.tries if group is not None else {},
            "lock_faults": owner.lock.counts.as_dict() if owner is not None else {},
            "unbridged": node.unanswered,
            "handover_age": group.handover_age if group is not None else None,
        }

    def status(self) -> NodeStatus:
        """How the node is now, from memory alone."""
        return self._node.status.now()

    async def figures(self) -> NodeFigures:
        """The node in figures, for ``/metrics``."""
        node = self._node
        group = self._node.group
        owner = self._node.owner
        counters, rows = await self._take_census(_FRESH_S)
        serving = node.plane.serving
        reconnects = {"general": serving.reconnects if serving is not None else 0}
        connected = {"general": serving.link.connected} if serving is not None else {}
        if group is not None:
            reconnects["ft"] = group.reconnects
            connected["ft"] = group.connected
        return NodeFigures(
            status=await node.status.refreshed(),
            compatible=COMPATIBLE_VERSION,
            go=runtime_version(),
            start_time=node.started_ns / 1e9,
            now=node.clock.wall_ns() / 1e9,
            probes=node.protection.probes,
            room=node.protection.room,
            commits=serving.commits if serving is not None else None,
            failed_commits=serving.failed_commits if serving is not None else 0,
            undecryptable=node.ring.undecryptable if node.ring is not None else 0,
            unanswered=node.unanswered,
            counters=counters,
            channels=rows,
            max_channels=node.options.limits.max_channels,
            takeovers=group.takeovers if group is not None else {},
            takeover_tries=group.tries if group is not None else {},
            lock_attempts=owner.lock.counts.as_dict() if owner is not None else {},
            reconnects=reconnects,
            connected=connected,
            front=node.front.status() if node.front is not None else None,
            refused={
                kind.replace(" ", "_"): count
                for kind, count in {**log.limited(), **counters.refused}.items()
            },
        )

    async def channel_subs(
        self, names: Sequence[bytes], most: int | None = None
    ) -> list[tuple[bytes, SubRow]]:
        """The subscriptions of these channels, each with its channel's name.

        Of each channel at most ``most``.
        """
        found = []
        for row in await self.channel_rows(names, subs=True):
            found += await self.sub_rows(row._replace(subs=row.subs[:most]))
        return found

    async def census(self) -> tuple[Counters, list[CensusRow]]:
        """Recent counters and figures of all channels."""
        return await self._take_census(_FRESH_S)

    async def dashboard(self) -> dict[str, object]:
        """What the dashboard shows."""
        return await self._overview.page()

    def history(self, since_ms: int) -> dict[str, object]:
        """The last hour, for the dashboard's plots."""
        return self._overview.history(since_ms)

    async def keep_history(self) -> None:
        """Take note of the rates, until cancelled."""
        await self._overview.recent.keep()

    # ---- the NATS server
    # -----------------------------------------------------------------------------------------

    def idle_nats(self) -> dict[str, dict[str, object]]:
        """The pages of a NATS server that nobody uses: what there is to see without a child."""
        node = self._node
        return idle_pages(
            node.server_id,
            version=COMPATIBLE_VERSION,
            now=format_time(node.clock.wall_ns()),
            start=format_time(node.started_ns),
            uptime=format_uptime(node.uptime),
            host=node.options.nats.host,
            port=node.options.nats.port,
        )

    def slow_clients(self) -> int:
        """Clients that the listener has ended because they did not read."""
        front = self._node.front
        return front.status().slow if front is not None else 0

    # ---- looking
    # ----------------------------------------------------------------------------------------------

    @property
    def _followed(self) -> Replica | None:
        """What there is to see of a node that follows the leader of a cluster."""
        cluster = self._node.cluster
        return cluster.followed if cluster is not None else None

    def _look(self) -> _Look | None:
        serving = self._node.plane.serving
        return _Look(self._node, serving) if serving is not None else None

    async def _take_census(self, fresh_s: float) -> tuple[Counters, list[CensusRow]]:
        """Counters and figures of all channels, not older than ``fresh_s``.

        One look at a time, for all who ask.
        """
        node = self._node
        if (
            node.plane.serving is not self._counted_of
            or node.clock.mono() - self._counted_at > fresh_s
        ):
            if self._taking is None:
                self._taking = tasks.waited(self._count(node.plane.serving), "census")
                self._taking.add_done_callback(self._counted)
            await asyncio.shield(self._taking)
        return self._census

    def _counted(self, _task: asyncio.Task[None]) -> None:
        self._taking = None

    async def _count(self, serving: Serving | None) -> None:
        counters = Counters()
        rows = []
        replica = self._followed
        if serving is None and replica is not None:
            counters = followed.counters(replica)
            rows = followed.census(replica)
        if serving is not None:
            look = _Look(self._node, serving)
            broker = look.broker
            counters, channels = await look.ask(
                lambda: (views.counters(broker), broker.channels.values())
            )
            start = 0
            while start < len(channels):
                portion: list[Channel] = []
                subs = 0
                for channel in channels[start : start + _CHANNELS_A_VISIT]:
                    subs += channel.stored_subs
                    if portion and subs > _CENSUS_SUBS_A_VISIT:
                        break
                    portion.append(channel)
                start += len(portion)
                rows += await look.ask(lambda portion=portion: views.census(portion))  # type: ignore[misc]
        self._census = (counters, rows)
        self._counted_of = serving
        self._counted_at = self._node.clock.mono()
