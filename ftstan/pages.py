"""What the monitoring pages show of one node: implements ``monitor.http.Views`` on the control loop.

Nothing here waits for storage: counts of a data plane that is busy for longer than a moment are those of the last time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from typing import TYPE_CHECKING

from ftstan import COMPATIBLE_VERSION
from ftstan.config.banner import runtime_version
from ftstan.monitor.http import format_time, format_uptime

if TYPE_CHECKING:
    from ftstan.server import Node

_MOMENT_S = 0.25


class Pages:
    """The pages of ``node``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._counts: dict[str, int] = {}

    async def serverz(self) -> dict[str, object]:
        """What ``/streaming/serverz`` shows (``docs/compat/monitoring.md``)."""
        node = self._node
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT_S):
                self._counts = await node.call(self._count)
        serving = node.plane.serving is not None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return {
            "cluster_id": node.options.cluster_id if serving else "",
            "server_id": node.server_id,
            "version": COMPATIBLE_VERSION,
            "go": runtime_version(),
            "state": node.state,
            "now": format_time(node.clock.wall_ns()),
            "start_time": format_time(node.started_ns),
            "uptime": format_uptime(node.uptime),
            "open_fds": len(os.listdir("/proc/self/fd")),
            "max_fds": soft,
            "ft_phase": str(node.member.phase) if node.options.ft_group else "",
            **_NO_COUNTS,
            **self._counts,
        }

    def _count(self) -> dict[str, int]:
        serving = self._node.plane.serving
        return serving.broker.counts() if serving is not None else {}

    async def ftz(self) -> dict[str, object]:
        """What ``/streaming/ftz`` shows."""
        return await self._node.member.page()

    def is_ft_active(self) -> bool:
        """Whether this node is the active one and serves."""
        return self._node.is_ft_active()


_NO_COUNTS = {
    "clients": 0,
    "subscriptions": 0,
    "channels": 0,
    "total_msgs": 0,
    "total_bytes": 0,
    "in_msgs": 0,
    "in_bytes": 0,
    "out_msgs": 0,
    "out_bytes": 0,
}
