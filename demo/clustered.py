"""The same story of a replicated cluster: three nodes with a disk each, whose leader is killed
three times, and one of which is replaced by an empty one. That one leads, too, at the latest in the
end: what is read then is what it was filled with.
"""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

from demo.processes import Node
from demo.scenario import READY_TIMEOUT, SWITCHOVER, Scenario
from ftstan.drill.ports import free_ports

if TYPE_CHECKING:
    from demo.processes import Command

REPLACE = "replace"
FAULTS = ("kill", REPLACE, "kill", "kill", SWITCHOVER)
TAKEOVERS = len(FAULTS) - 1
NAMES = ("A", "B", "C")
#: JetStream copies the log to a disk that was emptied, on a machine that is busy.
COPY_TIMEOUT = 150.0
_ASK_EVERY = 1.0


class ClusterScenario(Scenario):
    """One run of a cluster."""

    faults = FAULTS
    # Three nodes, each with a NATS server, on a machine that has other work.
    patience = 4.0
    noun = "cluster"
    _replaced: Node | None = None

    def _make_nodes(self) -> tuple[Node, ...]:
        ports = free_ports(3 * len(NAMES))
        clients, routes, monitors = (ports[start::3] for start in range(3))
        return tuple(
            Node(
                name,
                store=["-store", "file", "-dir", self._directory(name, "store")],
                log=self._places.log(f"node-{name}"),
                port=clients[number],
                routes=(routes[number], *routes),
                monitor_port=monitors[number],
                mode=(
                    *("-clustered", "-cluster_preview", "-cluster_node_id", name),
                    *("-cluster_peers", ",".join(NAMES)),
                    *("-cluster_log_path", self._directory(name, "log")),
                ),
            )
            for number, name in enumerate(NAMES)
        )

    def _directory(self, name: str, *parts: str) -> str:
        return os.path.join(self._places.store, name, *parts)

    def _started(self) -> str:
        return f"started nodes {', '.join(NAMES)} with a datastore and a log each"

    def _is_active(self, node: Node) -> bool:
        return node.leads()

    def _heir(self) -> Node:
        """The one that was replaced, so that it leads."""
        others = [node for node in self._nodes if node is not self._active]
        return self._replaced if self._replaced in others else others[0]

    def _befall(self, fault: str) -> None:
        self._find_leader()
        if fault == REPLACE:
            self._replace()
        else:
            self._take_away(fault)

    def _replace(self) -> None:
        node = self._replaced = self._heir()
        # Its connection may be to this node's NATS server: what is on its way then comes again at
        # its ack wait, behind what is published meanwhile.
        reader = f"reader {self._epoch}"
        self._scripts.pop(reader).stop()
        self._screen.say(f"{node.name} loses its disk: SIGKILL, and its directories are removed")
        node.signal(signal.SIGKILL)
        node.wait_for_end()
        shutil.rmtree(self._directory(node.name))
        node.start()
        self._wait_for_standby()
        self._start_reader(f"{reader} again")
        self._scripts[reader] = self._scripts.pop(f"{reader} again")

    def _command(self, victim: Node, heir: Node) -> Command:
        self._screen.say(f"ftstanctl cluster stepdown: {victim.name} lets {heir.name} lead")
        words = ("--to", heir.name, "--dir", self._directory(victim.name, "store"))
        return self._ctl("stepdown", *words, node=heir)

    def _wait_for_standby(self) -> None:
        """Until the cluster is healthy: all nodes follow, and all copies of the log are whole."""
        asked: list[Command] = []
        again = self._clock.mono()

        def healthy() -> bool:
            nonlocal again
            if asked and asked[-1].status is None:
                return False
            if asked and asked[-1].status == 0:
                return True
            if self._clock.mono() >= again:
                again = self._clock.mono() + _ASK_EVERY
                words = ("--expect", str(len(NAMES)))
                asked.append(self._ctl("status", *words, node=self._active))
            return False

        self._wait("a healthy cluster", COPY_TIMEOUT, healthy)
        self._find_leader()
        self._screen.say("ftstanctl cluster status")
        for line in asked[-1].said():
            self._screen.say(f"  {line}")

    def _show_status(self) -> None:
        """It was shown while the nodes were waited for."""

    def _find_leader(self) -> None:
        """On a machine without time for its heartbeats another node may have begun to lead."""
        if not self._active.leads():
            self._wait("a leader", READY_TIMEOUT, lambda: self._found_active() is not None)

    def _require_alive(self, node: Node) -> None:
        if node.has_stepped_down:
            self._screen.say(f"{node.name} has stepped down: it is started again")
            node.start()
            return
        super()._require_alive(node)
