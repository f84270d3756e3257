"""Three nodes of a replicated cluster, as processes with a directory each, and what the log of each
says of its role.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftstan.cluster.beats import Report, decode_report
from ftstan.cluster.names import question_subject
from ftstan.nats.clustered import LOG_USER
from ftstan.nats.link import UnreachableError
from tests.ft.client import Arrived, NatsConnection
from tests.processes import CLUSTER, HOST, Stage, free_ports, until

if TYPE_CHECKING:
    from tests.processes import Server

NODES = ("n1", "n2", "n3")
LEADS = "STREAM: finished leader promotion actions"


class Cluster:
    """Nodes by id; ``words`` go to each of them. ``spare`` ones join later, and found nothing."""

    def __init__(self, stage: Stage, *words: str, spare: tuple[str, ...] = ()) -> None:
        self._stage = stage
        self._words = words
        names = NODES + spare
        self._routes = dict(zip(names, free_ports(len(names)), strict=True))
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._starts = 0
        self.wraps: dict[str, list[str]] = {}
        """What stands before the command of a node."""
        self.servers: dict[str, Server] = {}

    def store(self, node: str) -> Path:
        return self._stage.directory / node / "store"

    def log(self, node: str) -> Path:
        return self._stage.directory / node / "log"

    def port(self, node: str) -> int:
        return self._ports[node]

    def login(self, node: str) -> dict[str, Any]:
        """For the account of the log."""
        password = (self.log(node) / "log.password").read_text().strip()
        return {"user": LOG_USER, "password": password}

    def routes(self) -> str:
        """The routes that each node is given."""
        return ",".join(f"nats://{HOST}:{self._routes[name]}" for name in NODES)

    def start(self, *nodes: str, more: tuple[str, ...] = ()) -> None:
        """Start these nodes, or all of them; waits for nothing."""
        for node in nodes or NODES:
            self._starts += 1
            routes = self.routes()
            founds = ("-cluster_peers", ",".join(NODES)) if node in NODES else ()
            self.servers[node] = self._stage.server(
                f"{node}-{self._starts}",
                *("-store", "file", "-dir", str(self.store(node))),
                *("-clustered", "-cluster_preview", "-cluster_node_id", node),
                *(*founds, "-cluster_log_path", str(self.log(node))),
                *("-cluster", f"nats://{HOST}:{self._routes[node]}", "-routes", routes),
                *self._words,
                *more,
                port=self._ports[node],
                wrap=self.wraps.get(node, ()),
            )

    def start_ended(self) -> None:
        """Start each node again that has ended."""
        for node in [node for node, server in self.servers.items() if not server.running]:
            self.start(node)

    def leader(self, *, but: str = "") -> str:
        """The node that leads, waited for; not ``but``."""

        def leading() -> str:
            found = [
                node
                for node, server in self.servers.items()
                if node != but and server.running and LEADS in server.text()
            ]
            return found[0] if found else ""

        until(leading, "a leader", 60.0)
        return leading()

    def others(self, node: str) -> list[str]:
        return [other for other in NODES if other != node]

    def reports(self, node: str) -> dict[str, Report]:
        """What each node says of itself, asked through the NATS server of ``node``; nothing while
        that one is started anew.
        """
        said: dict[str, Report] = {}
        try:
            nats = NatsConnection(self._ports[node], **self.login(node))
        except UnreachableError:
            return said
        inbox = nats.inbox()

        def take(arrived: Arrived) -> None:
            if (report := decode_report(arrived.payload)) is not None:
                said[report.node] = report

        nats.listen(inbox, take)
        nats.publish(question_subject(CLUSTER), b"", inbox)
        nats.read(0.5)
        nats.close()
        return said

    def wait_until_level(self) -> None:
        """Until every node has read what the one that leads has written by now."""
        node = self.leader()
        goal = 0

        def leading() -> bool:
            nonlocal goal
            goal = max((r.sequence for r in self.reports(node).values() if r.leads), default=0)
            return goal > 0

        until(leading, "the leader's report")

        def level() -> bool:
            said = self.reports(node)
            return len(said) == len(NODES) and all(r.sequence >= goal for r in said.values())

        until(level, f"all nodes to have read {goal} entries", 60.0)

    def kill(self, *nodes: str) -> None:
        """kill -9; their NATS servers go with them."""
        for node in nodes:
            self.servers[node].signal(signal.SIGKILL)
        for node in nodes:
            self.servers[node].status()

    def stand_still(self, node: str) -> None:
        """SIGSTOP, and wait until every thread has heard it. Its NATS server goes on."""
        server = self.servers[node]
        server.signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{server.pid}/task")

        def stopped() -> bool:
            words = [(task / "stat").read_text().rpartition(")")[2] for task in tasks.iterdir()]
            return all(word.split()[0] == "T" for word in words)

        until(stopped, "the process to stand still")

    def stop(self, *nodes: str) -> None:
        """SIGTERM, one after the other."""
        for node in nodes or tuple(self.servers):
            server = self.servers[node]
            if server.running:
                server.signal(signal.SIGTERM)
                server.status(90.0)
