"""A well-behaved client beside a hostile one: what its publishes wait for, and what the server
spends.

``python -m benchmarks.bystander [--store file] [--only WORD]``: for each attack a server of its
own. The bystander is a process of its own (``python -m benchmarks.bystander --publish URL``) that
publishes 50 messages a second; its waits while nothing else happens stand beside those from the
first byte of the attack until its last answer.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import subprocess
import sys
import tempfile
import time
from subprocess import PIPE
from typing import TYPE_CHECKING

from benchmarks.crowd import CLUSTER, Crowd, client
from benchmarks.load import Client
from benchmarks.processes import ftstan, peak_mb, resident_mb
from ftstan.wire import messages
from ftstan.wire.frames import pub_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.processes import Server

_PACE_S = 0.02
_IDLE_S = 10.0
_CHANNELS = 90
_FLOOD_S = 6.0


class Attack:
    """``prepare`` is not measured; ``strike`` is, to its last answer.

    ``words``: of the server's command line.
    """

    words: tuple[str, ...] = ()

    def __init__(self, count: int) -> None:
        self.count = count

    def prepare(self, crowd: Crowd) -> None:
        """What the hostile client has done before."""

    def strike(self, crowd: Crowd) -> None:
        """The attack itself, until its last answer."""
        raise NotImplementedError


class Close(Attack):
    """One client with very many subscriptions closes. ``kind``: of the subscriptions."""

    def __init__(self, count: int, kind: str) -> None:
        super().__init__(count)
        self._kind = kind

    def prepare(self, crowd: Crowd) -> None:
        """Subscribe."""
        crowd.connect([0])
        rows = [(i, b"wide.%d" % (i % _CHANNELS)) for i in range(self.count)]
        if self._kind == "durable":
            crowd.subscribe(rows, durable=b"durable-%d")
        else:
            crowd.subscribe(rows, group=b"group" if self._kind == "member" else b"")

    def strike(self, crowd: Crowd) -> None:
        """Close."""
        crowd.disconnect([0])


class Connects(Attack):
    """Very many clients connect without waiting for an answer."""

    def strike(self, crowd: Crowd) -> None:
        """Connect."""
        crowd.connect(range(1, self.count + 1), window=self.count)


class Beats(Attack):
    """Very many clients that have connected at one moment answer their heartbeats."""

    words: tuple[str, ...] = ("-hbi", "15s", "-hbt", "10s")

    def strike(self, crowd: Crowd) -> None:
        """Answer two rounds of heartbeats."""
        crowd.idle(35)

    def prepare(self, crowd: Crowd) -> None:
        """Connect, without waiting for an answer."""
        crowd.connect(range(1, self.count + 1), window=self.count)


class Quiet(Beats):
    """Very many clients miss their heartbeats and are closed."""

    words = ("-hbi", "6s", "-hbt", "1s", "-hbf", "1")

    def strike(self, crowd: Crowd) -> None:
        """Answer nothing."""
        del crowd
        time.sleep(25)


class Flood(Attack):
    """One connection sends the same refused request for some seconds, as fast as it is taken.
    ``subject``: with the cluster's id.
    """

    def __init__(self, count: int, subject: bytes, payload: bytes) -> None:
        super().__init__(count)
        self._frame = pub_frame(subject % CLUSTER, b"crowd.nobody", payload)

    def prepare(self, crowd: Crowd) -> None:
        """A client that publishes has connected."""
        crowd.connect([0])

    def strike(self, crowd: Crowd) -> None:
        """Send."""
        sent = crowd.flood(self._frame, _FLOOD_S)
        print(f"{sent / _FLOOD_S:,.0f} requests a second:", flush=True)


_NOBODY = messages.encode(messages.CloseRequest(client_id=b"nobody"))
_UNNAMED = messages.encode(messages.ConnectRequest(client_id=b"a b", heartbeat_inbox=b"x"))
_NEW = messages.encode(
    messages.PubMsg(
        client_id=client(0), guid=b"g" * 22, subject=b"a..b", data=b"x", conn_id=b"conn-0"
    )
)

ATTACKS: dict[str, Callable[[int], Attack]] = {
    "close durables": lambda count: Close(count, "durable"),
    "close subscriptions": lambda count: Close(count, "plain"),
    "close members": lambda count: Close(count, "member"),
    "connects": Connects,
    "heartbeats": Beats,
    "missed heartbeats": Quiet,
    "flood: connects": lambda count: Flood(count, b"_STAN.discover.%b", _UNNAMED),
    "flood: closes": lambda count: Flood(count, b"_STAN.close.%b", _NOBODY),
    "flood: subscribes": lambda count: Flood(count, b"_STAN.sub.%b", b"\x0a\xff\xff"),
    "flood: pings": lambda count: Flood(count, b"_STAN.discover.%b.pings", _NOBODY),
    "flood: publishes": lambda count: Flood(count, b"_STAN.pub.%b.a", _NEW),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bystander", description=__doc__)
    parser.add_argument("--publish", metavar="URL", help="be the bystander")
    parser.add_argument("--store", default="file", choices=("file", "memory"))
    parser.add_argument(
        "--dir", help="directory on the disk to measure (default: that of temporary files)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help="word of an attack's name; repeatable",
    )
    parser.add_argument("--subs", type=int, default=88_200, help="subscriptions of one client")
    parser.add_argument("--clients", type=int, default=20_000, help="clients of a burst")
    parser.add_argument("--tree", default="", help="a built source tree to run instead of this one")
    options = parser.parse_args()
    if options.publish:
        _publish(options.publish)
        return
    tempfile.tempdir = options.dir
    print(
        f"{'':24}{'idle p99':>10}{'most':>9}{'attack p99':>12}"
        f"{'most':>9}{'took':>8}{'RSS':>7}{'peak':>7}"
    )
    for name, make in ATTACKS.items():
        if not options.only or any(word in name for word in options.only):
            attack = make(options.subs if name.startswith("close") else options.clients)
            with (
                tempfile.TemporaryDirectory() as directory,
                ftstan(options.store, directory, *attack.words, tree=options.tree) as server,
            ):
                _measure(name, attack, server)


def _measure(name: str, attack: Attack, server: Server) -> None:
    crowd = Crowd(server.url)
    with contextlib.closing(crowd), _bystander(server.url) as waits:
        time.sleep(_IDLE_S)
        idle = waits()
        attack.prepare(crowd)
        waits()
        began = time.monotonic()
        attack.strike(crowd)
        took = time.monotonic() - began
        # The publishes that were under way at its end.
        time.sleep(1)
        struck = waits()
        print(
            f"{name:24}{_p99(idle):8.1f}ms{max(idle):7.1f}ms{_p99(struck):10.1f}ms{max(struck):7.1f}ms{took:7.1f}s"
            f"{resident_mb(server.pid):6.0f}M{peak_mb(server.pid):6.0f}M",
            flush=True,
        )


def _p99(waits: list[float]) -> float:
    return sorted(waits)[len(waits) * 99 // 100]


@contextlib.contextmanager
def _bystander(url: str) -> Iterator[Callable[[], list[float]]]:
    """A bystander; what is given tells its waits in milliseconds since it was asked last."""
    argv = [sys.executable, "-m", "benchmarks.bystander", "--publish", url]
    with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin
        stdout = process.stdout
        stdout.readline()

        def waits() -> list[float]:
            stdin.write("\n")
            stdin.flush()
            return [float(word) for word in stdout.readline().split()]

        try:
            yield waits
        finally:
            process.terminate()


def _publish(url: str) -> None:
    """Publish for ever, never more than one message at a time.

    Each line that is read asks for the waits so far.
    """
    bystander = Client(url, b"bystander", 1)
    (frame,) = bystander.frames(b"quiet", 1, 128)
    waits: list[float] = []
    asked = _Asked()
    print("ready", flush=True)
    while True:
        began = time.monotonic()
        bystander.write(frame)
        while not bystander.count():
            time.sleep(0.0002)
        waits.append((time.monotonic() - began) * 1000)
        if asked.now():
            print(*(f"{wait:.3f}" for wait in waits), flush=True)
            waits.clear()
        time.sleep(max(began + _PACE_S - time.monotonic(), 0))


class _Asked:
    """Whether a line has come."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._poll.register(sys.stdin, select.POLLIN)

    def now(self) -> bool:
        """Take one line if there is one."""
        return bool(self._poll.poll(0)) and bool(sys.stdin.readline())


if __name__ == "__main__":
    main()
