"""What clients do to a server, each pattern beside the same exchange over bare NATS, and what it
costs.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.load import (
    CHUNK,
    Client,
    Consumer,
    Echo,
    Flood,
    GroupMember,
    Peer,
    Publisher,
    Sink,
    drive,
    percentiles,
)
from benchmarks.processes import Server, peak_mb, precise_cpu_seconds
from ftstan.drill.processes import children
from ftstan.wire.frames import pub_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What a message of the known clients carries beside its data: names, guid, connection id.
_ENVELOPE = 60
_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Pattern:
    """``publishers`` with ``window`` unanswered messages all together, and ``subscribers`` that get
    every message.

    ``group``: the subscribers are one queue group. ``old``: they read what was published before.
    ``share``: of the messages of a run that are published here.
    """

    name: str
    publishers: int = 1
    subscribers: int = 0
    size: int = 128
    window: int = 4096
    group: bool = False
    old: bool = False
    share: float = 1.0


PATTERNS = (
    Pattern("publish"),
    Pattern("publish, 1 KiB", size=1024, share=0.5),
    Pattern("publish, one at a time", window=1, share=0.03),
    Pattern("1 publisher, 1 subscriber", subscribers=1),
    Pattern("1 publisher, 1 subscriber, 1 KiB", subscribers=1, size=1024, share=0.5),
    Pattern("4 publishers, 4 subscribers", publishers=4, subscribers=4, share=0.5),
    Pattern(
        "4 publishers, 4 subscribers, 1 KiB", publishers=4, subscribers=4, size=1024, share=0.25
    ),
    Pattern("queue group of 8", subscribers=8, group=True),
    Pattern("old messages", subscribers=1, old=True),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. CPU is microseconds a published message (or one that was read back), delays are
    microseconds.

    Delays run from writing a publish to reading its answer; of old messages there are none.
    ``server_cpu`` and ``peak_mb`` are 0 for bare NATS.
    """

    per_second: float
    server_cpu: float
    nats_cpu: float
    delays: tuple[float, ...]
    peak_mb: float

    @property
    def typical_delay(self) -> float:
        """The median."""
        return self.delays[0] if self.delays else 0.0


class Meter:
    """What one server and its ``nats-server`` cost between two moments."""

    def __init__(self, server: Server, *, bare: bool) -> None:
        self._server = server.pid
        self._nats = children(server.pid)[0]
        self._bare = bare
        self._before = self._cpu()
        self._began = time.perf_counter()

    def _cpu(self) -> tuple[float, float]:
        return precise_cpu_seconds(self._server), precise_cpu_seconds(self._nats)

    def stop(self, count: int, publishers: Sequence[Publisher] = ()) -> Figures:
        """The figures of ``count`` messages."""
        seconds = time.perf_counter() - self._began
        server, nats = (
            (b - a) / count * 1e6 for a, b in zip(self._before, self._cpu(), strict=True)
        )
        delays = [row for publisher in publishers for row in publisher.marks.delays()]
        return Figures(
            count / seconds,
            0.0 if self._bare else server,
            nats,
            tuple(value * 1e6 for value in percentiles(delays, _SHARES)) if delays else (),
            0.0 if self._bare else peak_mb(self._server),
        )


_names = itertools.count()


def bare(server: Server, pattern: Pattern, count: int) -> Figures:
    """The pattern without streaming: an echo answers in the server's place, subscribers get what
    publishers send.
    """
    number = next(_names)
    subject = b"bench.bare.%d" % number
    sinks = [
        Sink(server.url, subject + b".*", b"group" if pattern.group else b"")
        for _ in range(pattern.subscribers)
    ]
    if pattern.old:
        return _flood(server, pattern, count, subject, sinks[0])
    each = count // pattern.publishers
    body = b"x" * (pattern.size + _ENVELOPE)
    publishers = []
    echoes = []
    for i in range(pattern.publishers):
        replies = b"bench.replies.%d.%d" % (number, i)
        # One subject for each publisher: its echo answers nobody else, and the sinks hear all of
        # them.
        own = b"%b.%d" % (subject, i)
        publisher = Publisher(server.url, replies, max(pattern.window // pattern.publishers, 1))
        publisher.load([pub_frame(own, replies, body)] * each)
        publishers.append(publisher)
        echoes.append(Echo(server.url, own, replies))
    return _run(
        Meter(server, bare=True),
        publishers,
        [*echoes, *sinks],
        sinks,
        count=each * len(publishers),
        pattern=pattern,
    )


def _flood(server: Server, pattern: Pattern, count: int, subject: bytes, sink: Sink) -> Figures:
    count -= count % CHUNK
    flood = Flood(
        server.url,
        pub_frame(subject + b".0", b"", b"x" * (pattern.size + _ENVELOPE)),
        count,
        sink,
        pattern.window,
    )
    with contextlib.closing(flood), contextlib.closing(sink):
        meter = Meter(server, bare=True)
        drive([flood, sink], lambda: sink.got >= count)
        return meter.stop(count)


def streaming(server: Server, pattern: Pattern, count: int) -> Figures:
    """The pattern itself, in a channel of its own."""
    number = next(_names)
    channel = b"bench.%d" % number
    each = count // pattern.publishers
    total = each * pattern.publishers
    clients = [
        Client(
            server.url, b"bench-%d-%d" % (number, i), max(pattern.window // pattern.publishers, 1)
        )
        for i in range(pattern.publishers)
    ]
    for client in clients:
        client.load(client.frames(channel, each, pattern.size))
    if pattern.old:
        return _replay(server, pattern, channel, clients[0], total)
    kind = GroupMember if pattern.group else Consumer
    consumers = [kind(server.url, channel, total) for _ in range(pattern.subscribers)]
    for i, consumer in enumerate(consumers):
        clients[i % len(clients)].subscribe(consumer, pattern.window)
    return _run(
        Meter(server, bare=False), clients, consumers, consumers, count=total, pattern=pattern
    )


def _replay(
    server: Server, pattern: Pattern, channel: bytes, client: Client, count: int
) -> Figures:
    drive([client], lambda: client.done)
    with (
        contextlib.closing(client),
        contextlib.closing(Consumer(server.url, channel, count)) as consumer,
    ):
        meter = Meter(server, bare=False)
        client.subscribe(consumer, pattern.window)
        drive([consumer], lambda: consumer.got >= count)
        return meter.stop(count)


def _run(
    meter: Meter,
    publishers: Sequence[Publisher],
    others: Sequence[Peer],
    receivers: Sequence[Consumer] | Sequence[Sink],
    *,
    count: int,
    pattern: Pattern,
) -> Figures:
    expected = count * (1 if pattern.group else len(receivers))

    def done() -> bool:
        return all(p.done for p in publishers) and sum(r.got for r in receivers) >= expected

    peers = [*publishers, *others]
    drive(peers, done)
    figures = meter.stop(count, publishers)
    for peer in peers:
        peer.close()
    return figures
