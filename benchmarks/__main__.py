"""``make bench``: async publish on both stores beside a bare NATS request/reply through the same kind of nats-server.

Prints the median of a few rounds: rate, CPU of the server process and of its nats-server per message, and the ratio to
the bare exchange of the same run. Then what a start costs, and how fast old messages are read.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading

from benchmarks import codec, groups, recovery
from benchmarks.load import CONN_ID, Generator, publishes
from benchmarks.processes import Server, cpu_seconds, ftstan
from ftstan.wire.frames import pub_frame


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="messages a round (default 100000)")
    parser.add_argument("--size", type=int, default=128, help="payload bytes (default 128)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the median is shown (default 3)")
    parser.add_argument(
        "--recover", type=int, nargs="*", default=[1_000_000, 10_000_000], help="messages in the recovered stores"
    )
    parser.add_argument("--channels", type=int, default=10_000, help="channels in the recovered store")
    parser.add_argument("--replay", type=int, default=1_000_000, help="old messages that a subscriber reads")
    options = parser.parse_args()
    print(f"{options.count} messages of {options.size} bytes, median of {options.rounds} rounds, one publisher\n")
    print(f"{'':34}{'msgs/s':>10}{'ratio':>8}{'server us/msg':>15}{'nats us/msg':>13}")
    with tempfile.TemporaryDirectory(prefix="ftstan-bench-") as directory:
        with ftstan("memory", "") as server:
            server.wait_for(b"Streaming Server is ready")
            bare = [_bare(server, options.count, options.size) for _ in range(options.rounds)]
            base = statistics.median(row[0] for row in bare)
            _show("bare NATS request/reply", bare, base)
            _show("async publish, memory store", _publish(server, options), base)
        with ftstan("file", directory) as server:
            server.wait_for(b"Streaming Server is ready")
            _show("async publish, file store, fsync", _publish(server, options), base)
    codec.run(options.size, options.rounds)
    groups.run(options.size, options.rounds)
    recovery.run(options)


Row = tuple[float, float, float]


def _show(name: str, rows: list[Row], base: float) -> None:
    rate, server, nats = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"{name:34}{rate:10.0f}{rate / base:8.2f}{server:15.2f}{nats:13.2f}", flush=True)


def _bare(server: Server, count: int, size: int) -> Row:
    """Requests answered by an echo on another connection: what the nats-server alone allows."""
    url = f"nats://127.0.0.1:{server.port}"
    echo = Generator(url)
    echo.write(b"SUB bench.echo 1\r\n")
    stop = threading.Event()
    answer = pub_frame(b"bench.replies", b"", b"x" * 24)

    def serve() -> None:
        while not stop.is_set():
            n = echo.read()
            if n:
                echo.write(answer * n)
            else:
                stop.wait(0.0001)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    asker = Generator(url)
    asker.write(b"SUB bench.replies 1\r\n")
    nats = server.children()[0]
    before = cpu_seconds(nats)
    rate = asker.run([pub_frame(b"bench.echo", b"bench.replies", b"x" * (size + 60))] * count)
    used = cpu_seconds(nats) - before
    stop.set()
    thread.join()
    asker.close()
    echo.close()
    return rate.per_second, 0.0, used / count * 1e6


def _publish(server: Server, options: argparse.Namespace) -> list[Row]:
    generator = Generator(f"nats://127.0.0.1:{server.port}")
    prefix = generator.connect()
    nats = server.children()[0]
    rows = []
    for i in range(options.rounds):
        frames = publishes(prefix, CONN_ID, count=options.count, size=options.size, start=i * options.count)
        before = cpu_seconds(server.pid), cpu_seconds(nats)
        rate = generator.run(frames)
        used = cpu_seconds(server.pid) - before[0], cpu_seconds(nats) - before[1]
        rows.append((rate.per_second, used[0] / options.count * 1e6, used[1] / options.count * 1e6))
    generator.close()
    return rows


if __name__ == "__main__":
    main()
