"""``make bench-cluster``: how long a replicated cluster does not answer when its leader ends, under
a publisher that never pauses.

Three nodes on this machine, with a directory each and every append synced. The publisher is on a
NATS server beside theirs, as a client of a node that lives is. One way of ending after the other,
again and again; whoever ended is started again, and all copies of the log are whole before the next
one. Prints medians and ranges, and asserts nothing (``docs/clustering.md``, times).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Any, Self

from benchmarks.ft import storage
from benchmarks.load import GROUP_CLUSTER, PacedPublisher
from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.cluster.names import stream_name
from ftstan.config.options import LinkOptions
from ftstan.drill.ports import free_ports
from ftstan.drill.processes import Child, nats_words
from ftstan.nats.clustered import LOG_USER, read_log_password, server_name
from ftstan.nats.generated import cluster_name
from ftstan.nats.jetstream import JetStream
from ftstan.nats.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

NODES = ("a", "b", "c")
KILL = "kill -9 of the leader, the stream led elsewhere"
KILL_BOTH = "kill -9 of the leader, its server led the stream"
KILL_STREAM = "kill -9 of a follower whose server led the stream"
STOP = "SIGTERM of the leader"
STEP_DOWN = "ftstanctl cluster stepdown"
WAYS = (KILL, STOP, STEP_DOWN, KILL_STREAM, KILL_BOTH)

#: An ack that arrives so soon after the signal may have left before it.
_ON_ITS_WAY_S = 0.001
_WHOLE_S = 180.0
_STREAM_S = 30.0
#: Publishes so shortly before the end of a measurement may still be answered.
_ANSWERED_S = 1.0


@dataclass(frozen=True, slots=True)
class Ending:
    """Milliseconds from the signal on until the next ack, the longest time without one, and how
    many publishes were never acked.
    """

    first: float
    silence: float
    lost: int


_COLUMNS: dict[str, Callable[[Ending], float]] = {
    "signal to next acked publish, ms": lambda e: e.first,
    "longest time without an ack, ms": lambda e: e.silence,
    "publishes without an ack": lambda e: e.lost,
}


class Nodes:
    """Three nodes, and the NATS server of the clients; all are ended on leaving the block."""

    def __init__(self, directory: Path, words: list[str]) -> None:
        self._directory = directory
        self._words = words
        self._clients = dict(zip((*NODES, ""), ports := free_ports(8, 16_000), strict=False))
        self._routes = dict(zip((*NODES, ""), ports[4:], strict=True))
        self._lives = 0
        self._children: dict[str, Child] = {}

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self._clients['']}"

    def __enter__(self) -> Self:
        routes = self._route_urls()
        more = ("--cluster", f"nats://127.0.0.1:{self._routes['']}", "--routes", routes)
        name = ("--cluster_name", cluster_name(GROUP_CLUSTER))
        port = self._clients[""]
        self._children[""] = Child(nats_words(port, *more, *name), self._directory / "nats.log")
        for node in NODES:
            self.start(node)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children.values():
            child.kill()

    def _route_urls(self) -> str:
        return ",".join(f"nats://127.0.0.1:{self._routes[node]}" for node in NODES)

    def store(self, node: str) -> Path:
        """Its datastore."""
        return self._directory / node / "store"

    def _log(self, node: str) -> Path:
        return self._directory / node / "log"

    def start(self, node: str) -> None:
        """Start a node; waits for nothing."""
        self._lives += 1
        argv = [
            *(sys.executable, "-m", "ftstan.cli.server", "-cid", GROUP_CLUSTER),
            *("-store", "file", "-dir", str(self.store(node)), "-a", "127.0.0.1"),
            *("-clustered", "-cluster_preview", "-cluster_node_id", node),
            *("-cluster_peers", ",".join(NODES), "-cluster_log_path", str(self._log(node))),
            *("-p", str(self._clients[node]), "-routes", self._route_urls()),
            *("-cluster", f"nats://127.0.0.1:{self._routes[node]}", *self._words),
        ]
        self._children[node] = Child(argv, self._directory / f"{node}-{self._lives}.log")

    def child(self, node: str) -> Child:
        """Its process."""
        return self._children[node]

    def start_ended(self) -> None:
        """Start each node again that has ended."""
        for node in NODES:
            if not self._children[node].running:
                self.start(node)

    def ask(self, *words: str) -> Child:
        """``ftstanctl cluster``, which runs beside the publisher."""
        self._lives += 1
        argv = [sys.executable, "-m", "ftstan.cli.ctl", "cluster", *words]
        argv += ["--server", self.url, "--cluster", GROUP_CLUSTER, "--output", "json"]
        return Child(argv, self._directory / f"asked-{self._lives}.log")

    def api(self, node: str, what: str, request: dict[str, Any]) -> dict[str, Any]:
        """Ask JetStream, as the log's own user on the server of ``node``. Raises ``NatsError``."""
        login = LinkOptions(user=LOG_USER, password=read_log_password(str(self._log(node))))
        url = f"nats://127.0.0.1:{self._clients[node]}"
        js = JetStream(Link([url], name="bench", options=login, clock=SystemClock()), SystemClock())
        try:
            js.connect(2.0)
            return js.api(f"{what}.{stream_name(GROUP_CLUSTER)}", request, 2.0)
        finally:
            js.close()

    def stream_leader(self, by: str) -> str:
        """The node whose server leads the stream; empty while nobody says."""
        try:
            said = self.api(by, "STREAM.INFO", {})["cluster"].get("leader", "")
        except (NatsError, KeyError):
            return ""
        return next((n for n in NODES if server_name(GROUP_CLUSTER, n) == said), "")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--endings", type=int, default=20, help="of each way (default 20)")
    parser.add_argument(
        "--every", type=float, default=10.0, help="milliseconds between publishes (default 10)"
    )
    parser.add_argument("--size", type=int, default=128, help="payload bytes (default 128)")
    parser.add_argument(
        "--settle", type=float, default=3.0, help="seconds between two endings (default 3)"
    )
    parser.add_argument(
        "--directory", help="where the datastores are made, on the disk to be measured"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="ways with this word in them"
    )
    parser.add_argument("words", nargs="*", help="more options of the nodes, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftstan-bench-", dir=options.directory) as made:
        sync, _ = storage(made)
    print(f"fdatasync of 100 bytes here {sync:.2f} ms")
    each = f"{options.endings} of each\n"
    print(f"a publish of {options.size} bytes every {options.every:g} ms, {each}")
    ways = [way for way in WAYS if not options.only or any(w in way for w in options.only)]
    with (
        tempfile.TemporaryDirectory(prefix="ftstan-bench-", dir=options.directory) as made,
        Nodes(Path(made), options.words) as nodes,
    ):
        _measure(nodes, ways, options)


def _measure(nodes: Nodes, ways: list[str], options: argparse.Namespace) -> None:
    _wait_until_whole(nodes, time.sleep)
    publisher = PacedPublisher(nodes.url, [b"bench"], every=options.every / 1000, size=options.size)
    publisher.connect()
    for way in ways:
        rows = [_ending(nodes, publisher, way, options.settle) for _ in range(options.endings)]
        _show(way, rows)
    publisher.close()


def _wait_until_whole(nodes: Nodes, work: Callable[[float], None]) -> str:
    """Until all nodes follow one, and all copies of the log are whole; the one that leads.

    ``work`` is given the seconds between two looks.
    """
    end = time.monotonic() + _WHOLE_S
    while time.monotonic() < end:
        nodes.start_ended()
        asked = nodes.ask("status", "--expect", str(len(NODES)))
        while asked.running:
            work(0.05)
        if asked.returncode == 0:
            said = json.loads(asked.text())
            (leader,) = [n["node_id"] for n in said["nodes"] if n["role"] == "Leader"]
            return str(leader)
        work(0.5)
    raise TimeoutError(f"the cluster was not whole within {_WHOLE_S:g} s")


def _ending(nodes: Nodes, publisher: PacedPublisher, way: str, settle: float) -> Ending:
    leader = _wait_until_whole(nodes, publisher.run_for)
    publisher.run_for(settle)
    follower = next(node for node in NODES if node != leader)
    _lead_stream(nodes, publisher, way, leader, follower)
    victim = follower if way == KILL_STREAM else leader
    began = time.monotonic()
    if way == STEP_DOWN:
        asked = nodes.ask("stepdown", "--dir", str(nodes.store(leader)), "--yes")
        while asked.running:
            publisher.run_for(0.02)
    else:
        nodes.child(victim).signal(SIGTERM if way == STOP else SIGKILL)
    publisher.run_until_acked(began)
    while nodes.child(victim).running:
        publisher.run_for(0.02)
    publisher.run_for(2 * _ANSWERED_S)
    end = time.monotonic()
    record = publisher.record
    first = (record.first_ack_after(began + _ON_ITS_WAY_S) or end) - began
    return Ending(
        first=1000 * first,
        silence=1000 * record.longest_silence(began - 0.1, end),
        lost=record.unanswered(began - 0.1, end - _ANSWERED_S),
    )


def _lead_stream(
    nodes: Nodes, publisher: PacedPublisher, way: str, leader: str, follower: str
) -> None:
    """Have the server lead the stream whose node is the one that ``way`` wants."""
    wanted = leader if way == KILL_BOTH else follower
    end = time.monotonic() + _STREAM_S
    while nodes.stream_leader(follower) != wanted:
        if time.monotonic() > end:
            raise TimeoutError(f"the server of {wanted} did not come to lead the stream")
        placement = {"placement": {"preferred": server_name(GROUP_CLUSTER, wanted)}}
        try:
            nodes.api(follower, "STREAM.LEADER.STEPDOWN", placement)
        except NatsError:
            publisher.run_for(0.2)
        publisher.run_for(0.05)


def _show(name: str, rows: list[Ending]) -> None:
    print(f"{name:52}{'min':>10}{'median':>10}{'p90':>10}{'max':>10}")
    for title, of in _COLUMNS.items():
        values = sorted(of(row) for row in rows)
        p90 = values[min(int(0.9 * len(values)), len(values) - 1)]
        figures = (values[0], statistics.median(values), p90, values[-1])
        print(f"{'  ' + title:52}" + "".join(f"{value:10.1f}" for value in figures), flush=True)
    print(flush=True)


if __name__ == "__main__":
    main()
