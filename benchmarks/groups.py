"""Queue groups without a network: process time per message for two sizes of a group, which should
hardly differ.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

from ftstan.base import log
from ftstan.broker.broker import Broker, BrokerOptions
from ftstan.broker.constants import SECOND
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from ftstan.wire.nuid import Nuid
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (10, 1000)
_COUNT = 20_000
_ACK_WAIT_S = 1
_SUBJECTS = Subjects.for_cluster("bench")


class Group:
    """A broker with one group, driven by hand; ``now`` is its clock (ns)."""

    def __init__(self, members: int) -> None:
        limits = ChannelLimits(max_subs=0, max_msgs=0, max_bytes=0)
        self._store = MemoryStore()
        self.broker = Broker(self._store, _SUBJECTS, BrokerOptions(limits=limits), Nuid())
        self._sids = {
            pattern: sid
            for _, pattern, sid in map(bytes.split, self.broker.subscribe_lines().splitlines())
        }
        self.now = SECOND
        connect = messages.ConnectRequest(client_id=b"bench", heartbeat_inbox=b"hb", conn_id=b"c")
        self.take(self._frame(_SUBJECTS.discovery, messages.encode(connect)))
        for i in range(members):
            request = messages.SubscriptionRequest(
                client_id=b"bench",
                subject=b"bench",
                inbox=b"q%d" % i,
                q_group=b"g",
                max_in_flight=_COUNT,
                ack_wait_in_secs=_ACK_WAIT_S,
            )
            self.take(self._frame(_SUBJECTS.subscribe, messages.encode(request)))

    def _frame(self, subject: str, payload: bytes) -> bytes:
        sid = self._sids[subject.encode()]
        return b"MSG %b %b %d\r\n%b\r\n" % (subject.encode(), sid, len(payload), payload)

    def take(self, data: bytes) -> bytes:
        """One batch and whatever follows from it; returns the deliveries."""
        broker = self.broker
        out = []
        broker.feed(data, 0, len(data), self.now, self.now)
        while True:
            broker.run_timers(self.now, self.now)
            broker.stage()
            self._store.commit()
            more = broker.conclude({})
            out.append(bytes(broker.deliveries))
            broker.sent()
            if not (more or broker.has_work or (broker.timers.next or self.now + 1) <= self.now):
                return b"".join(out)

    def publish(self, count: int, size: int) -> bytes:
        """Store so many messages; returns the deliveries."""
        payload = messages.encode(
            messages.PubMsg(guid=b"g", subject=b"bench", data=b"x" * size, conn_id=b"c")
        )
        sid = self._sids[_SUBJECTS.publish_all.encode()]
        subject = b"%b.bench" % _SUBJECTS.publish.encode()
        frame = b"MSG %b %b %d\r\n%b\r\n" % (subject, sid, len(payload), payload)
        return self.take(frame * count)

    def acks(self) -> bytes:
        """The frames that acknowledge what every member has pending."""
        frames = []
        for sid, sub in self.broker.by_sid.items():
            for sequence, _, _ in sub.pending.items():
                payload = messages.encode(messages.Ack(subject=b"bench", sequence=sequence))
                frames.append(b"MSG a %d %d\r\n%b\r\n" % (sid, len(payload), payload))
        return b"".join(frames)


def run(size: int, rounds: int) -> None:
    """Print one line per size of a group."""
    # The broker's own lines are none of this table's.
    log.configure(file=os.devnull)
    print(
        f"\n{f'queue groups, ns a message of {size} bytes':34}"
        f"{'new':>10}{'resent':>10}{'acked':>10}"
    )
    for members in SIZES:
        rows = [_round(members, size) for _ in range(max(rounds, 3))]
        new, resent, acked = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{f'  a group of {members} members':34}{new:10.0f}{resent:10.0f}{acked:10.0f}",
            flush=True,
        )


def _round(members: int, size: int) -> tuple[float, float, float]:
    group = Group(members)
    new = _nanoseconds(lambda: group.publish(_COUNT, size))
    group.now += _ACK_WAIT_S * SECOND
    resent = _nanoseconds(lambda: group.take(b""))
    frames = group.acks()
    if not frames:
        raise RuntimeError("the group has nothing to acknowledge: there is nothing to measure")
    return new, resent, _nanoseconds(lambda: group.take(frames))


def _nanoseconds(function: Callable[[], object]) -> float:
    started = time.process_time_ns()
    function()
    return (time.process_time_ns() - started) / _COUNT
