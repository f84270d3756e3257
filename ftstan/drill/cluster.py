"""The local driver for a replicated cluster: three nodes with a NATS server and a disk each.

Like a local group it runs under supervisord and is gone behind the drill. There is nothing that the
nodes share, so there is no storage and no NATS server for a fault to hit but a node's own.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.drill import commands
from ftstan.drill.errors import DrillError
from ftstan.drill.local import FIRST_PORT, LocalGroup
from ftstan.drill.node_watch import get
from ftstan.drill.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from ftstan.drill.scenario import Member, Scenario
    from ftstan.drill.workload import Access

_FOUND = 200


class LocalCluster(LocalGroup):
    """A driver (``driver.py``) for one drill; ``directory`` is the run's, made already."""

    def __init__(self, scenario: Scenario, directory: str) -> None:
        super().__init__(scenario, directory)
        names = [member.name for member in scenario.members]
        taken = [int(member.monitor.rpartition(":")[2]) for member in self.members]
        ports = free_ports(2 * len(names), FIRST_PORT, but=taken)
        self._clients = dict(zip(names, ports, strict=False))
        self._routes = dict(zip(names, ports[len(names) :], strict=True))

    @property
    def access(self) -> Access:
        """How clients get in: through the NATS server of any node."""
        return self._access_without("")

    def _access_without(self, last: str) -> Access:
        """The same, with the server of node ``last`` behind the others."""
        names = sorted(self._clients, key=lambda name: (name == last, name))
        urls = tuple(f"nats://{LOOPBACK}:{self._clients[name]}" for name in names)
        common = super().access
        environment = {**common.environment, "FTSTAN_SERVERS": ",".join(urls)}
        del environment["FTSTAN_GROUP"]
        key = ("--dir", self._place(last, "store")) if last else ()
        return replace(common, servers=urls, group="", environment=environment, key_words=key)

    async def switchover(self, within_s: float) -> None:
        """Ask the leader to step down."""
        for member in self.members:
            if (await get(f"{member.monitor}/active"))[0] == _FOUND:
                # Its own NATS server ends with it, and its datastore has the key.
                access = self._access_without(member.name)
                await commands.switchover(access, within_s, commands.STEP_DOWN)
                return
        raise DrillError("no node leads", hint="see the logs of the nodes")

    def _around(self) -> list[str]:
        return []

    def _stored(self, node: str) -> list[str]:
        return ["-store", "file", "-dir", self._place(node, "store")]

    def _mode(self, member: Member) -> list[str]:
        name = member.name
        routes = ",".join(f"nats://{LOOPBACK}:{port}" for port in self._routes.values())
        return [
            *("-p", str(self._clients[name])),
            *("-clustered", "-cluster_preview", "-cluster_node_id", name),
            *("-cluster_peers", ",".join(self._clients)),
            *("-cluster_log_path", self._place(name, "log")),
            *("-cluster", f"nats://{LOOPBACK}:{self._routes[name]}", "-routes", routes),
        ]

    def _place(self, node: str, what: str) -> str:
        return os.path.join(self._store, node, what)
