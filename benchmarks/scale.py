"""``make bench-scale``: what one operation costs when there are many channels, subscriptions,
clients or group members.

Each case runs at two sizes against a server process of its own, with the memory store and with the
file store. A ratio near 1 says that an operation costs the same at both sizes; one near
``--factor`` says that the whole is quadratic.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.crowd import Crowd
from benchmarks.processes import Server, ftstan, precise_cpu_seconds, resident_mb

if TYPE_CHECKING:
    from collections.abc import Callable

_READY = "Streaming Server is ready"
_FANNED_OUT = 20
_BEATS_EVERY = "2s"
#: A server is quiet when it uses less of a CPU for so many seconds.
_QUIET = 0.01
_LOOK_S = 1.5
_QUIET_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one operation, in microseconds: time that passed, and CPU of the server process."""

    time: float
    cpu: float


@dataclass(slots=True)
class Outcome:
    """Of one case at one size: costs by operation, and other figures by name."""

    costs: dict[str, Cost] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)


class Run:
    """One case at one size on one store: servers, one after the other, on one directory."""

    def __init__(self, store: str, directory: str, size: int, idle: float) -> None:
        self.store = store
        self.size = size
        self.outcome = Outcome()
        self.idle = idle
        self._directory = directory

    def server(self, *more: str) -> Server:
        """The next server."""
        return ftstan(self.store, self._directory, *more)

    def cost(self, name: str, server: Server, operations: int, work: Callable[[], object]) -> None:
        """Do ``work``, so many operations, and note what each costs."""
        cpu = precise_cpu_seconds(server.pid)
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        used = precise_cpu_seconds(server.pid) - cpu
        self.outcome.costs[name] = Cost(took / operations * 1e6, used / operations * 1e6)

    def rest(self, server: Server, crowd: Crowd) -> None:
        """Note how long a server has work left of what came before, and what it costs that has
        nothing to do.
        """
        began = time.perf_counter()
        while time.perf_counter() - began < _QUIET_WITHIN_S:
            cpu = precise_cpu_seconds(server.pid)
            crowd.idle(_LOOK_S)
            if precise_cpu_seconds(server.pid) - cpu < _QUIET * _LOOK_S:
                break
        self.outcome.figures["quiet after, s"] = time.perf_counter() - began - _LOOK_S
        cpu = precise_cpu_seconds(server.pid)
        crowd.idle(self.idle)
        self.outcome.figures["idle CPU %"] = (
            (precise_cpu_seconds(server.pid) - cpu) / self.idle * 100
        )
        self.outcome.figures["memory MiB"] = resident_mb(server.pid)

    def start(self, server: Server, name: str) -> None:
        """Note how long the server takes to be ready, its process included, and what it costs from
        then on.
        """
        began = time.perf_counter()
        with server:
            server.wait_for(_READY)
            self.outcome.figures[f"start after {name}, s"] = time.perf_counter() - began
            crowd = Crowd(_url(server))
            self.rest(server, crowd)
            crowd.close()
            server.kill()


def channels(run: Run) -> None:
    """One subscription on each of many channels."""
    n = run.size
    rows = [(i, b"channel.%d" % i) for i in range(n)]
    names = [name for _, name in rows]
    with run.server() as server:
        crowd = _crowd(server)
        prefix = crowd.connect([0])
        run.cost("subscribe, creating a channel", server, n, lambda: crowd.subscribe(rows))
        run.cost(
            "publish to each channel", server, n, lambda: crowd.publish(prefix, names, deliveries=n)
        )
        run.rest(server, crowd)
        if run.store == "file":
            server.kill()
            crowd.close()
            run.start(run.server(), "kill -9")
            return
        run.cost("close a client's subscriptions", server, n, lambda: crowd.disconnect([0]))
        crowd.close()


def one_channel(run: Run) -> None:
    """Many subscriptions on one channel."""
    n = run.size
    rows = [(i, b"one") for i in range(n)]
    with run.server() as server:
        crowd = _crowd(server)
        prefix = crowd.connect([0])
        run.cost("subscribe", server, n, lambda: crowd.subscribe(rows))
        messages = [b"one"] * _FANNED_OUT
        total = n * _FANNED_OUT
        run.cost(
            "deliver", server, total, lambda: crowd.publish(prefix, messages, deliveries=total)
        )
        run.rest(server, crowd)
        half = rows[: n // 2]
        run.cost("unsubscribe", server, len(half), lambda: crowd.unsubscribe(half))
        run.cost(
            "close a client's subscriptions", server, n - len(half), lambda: crowd.disconnect([0])
        )
        crowd.close()


def clients(run: Run) -> None:
    """Many clients and their heartbeats."""
    n = run.size
    with run.server("-hbi", _BEATS_EVERY) as server:
        crowd = _crowd(server)
        run.cost("connect", server, n, lambda: crowd.connect(range(n)))
        prefix = crowd.connect([n])
        beats = crowd.beats
        cpu = precise_cpu_seconds(server.pid)
        run.outcome.figures["longest ack beside heartbeats, ms"] = (
            crowd.steady(prefix, n, run.idle) * 1e3
        )
        used = precise_cpu_seconds(server.pid) - cpu
        run.outcome.costs["heartbeat"] = Cost(0.0, used / max(crowd.beats - beats, 1) * 1e6)
        run.cost("close", server, n, lambda: crowd.disconnect(range(n)))
        crowd.connect(range(n))
        crowd.close()
        if run.store == "file":
            server.kill()
            run.start(run.server(), "kill -9")


def queue_group(run: Run) -> None:
    """Many members of one queue group."""
    n = run.size
    rows = [(i, b"one") for i in range(n)]
    with run.server() as server:
        crowd = _crowd(server)
        prefix = crowd.connect([0])
        run.cost("join", server, n, lambda: crowd.subscribe(rows, group=b"group"))
        messages = [b"one"] * (10 * n)
        run.cost(
            "deliver",
            server,
            len(messages),
            lambda: crowd.publish(prefix, messages, deliveries=len(messages)),
        )
        run.rest(server, crowd)
        half = rows[: n // 2]
        run.cost("leave", server, len(half), lambda: crowd.unsubscribe(half))
        run.cost("close a client's members", server, n - len(half), lambda: crowd.disconnect([0]))
        crowd.close()


CASES = {
    "channels": channels,
    "one channel": one_channel,
    "clients": clients,
    "queue group": queue_group,
}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--many", type=int, default=10_000, help="channels and clients (default 10000)"
    )
    parser.add_argument(
        "--some", type=int, default=1_000, help="subscriptions and group members (default 1000)"
    )
    parser.add_argument(
        "--factor", type=int, default=4, help="the smaller size is that much smaller (default 4)"
    )
    parser.add_argument("--idle", type=float, default=10.0, help="seconds of idling (default 10)")
    parser.add_argument(
        "--stores", nargs="*", default=["memory", "file"], help="stores (default: memory and file)"
    )
    parser.add_argument(
        "--cases", nargs="*", default=list(CASES), choices=list(CASES), help="cases (default: all)"
    )
    options = parser.parse_args()
    for store in options.stores:
        for name in options.cases:
            large = options.many if name in ("channels", "clients") else options.some
            sizes = (max(large // options.factor, 1), large)
            outcomes = []
            for size in sizes:
                with tempfile.TemporaryDirectory(prefix="ftstan-bench-") as directory:
                    run = Run(store, directory, size, options.idle)
                    CASES[name](run)
                    outcomes.append(run.outcome)
            _show(f"{name}, {store} store", sizes, *outcomes)


def _show(title: str, sizes: tuple[int, int], small: Outcome, large: Outcome) -> None:
    print(f"\n{title:40}{sizes[0]:>11,}{'':>11}{sizes[1]:>11,}{'':>11}{'ratio':>8}{'':>8}")
    print(
        f"{'  microseconds an operation':40}{'time':>11}"
        f"{'CPU':>11}{'time':>11}{'CPU':>11}{'time':>8}{'CPU':>8}"
    )
    for name, cost in small.costs.items():
        other = large.costs[name]
        print(
            f"{'  ' + name:40}{cost.time:11.1f}{cost.cpu:11.1f}{other.time:11.1f}{other.cpu:11.1f}"
            f"{_ratio(other.time, cost.time):8.2f}{_ratio(other.cpu, cost.cpu):8.2f}"
        )
    for name, figure in small.figures.items():
        print(f"{'  ' + name:40}{figure:11.2f}{'':11}{large.figures[name]:11.2f}", flush=True)


def _ratio(large: float, small: float) -> float:
    return large / small if small else 0.0


def _crowd(server: Server) -> Crowd:
    server.wait_for(_READY)
    return Crowd(_url(server))


def _url(server: Server) -> str:
    return f"nats://127.0.0.1:{server.port}"


if __name__ == "__main__":
    main()
