"""The load: publishers, subscribers and the bare NATS peers beside them, each one raw connection,
all in one loop.

Frames are prepared before a clock starts, answers and deliveries are counted and not decoded, and
acks of deliveries are prepared too: whoever gets every message of a channel knows their sequences.
Only the members of a queue group look into what they get.
"""

from __future__ import annotations

import bisect
import itertools
import math
import select
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ftstan.base.clock import SystemClock
from ftstan.nats.link import Link
from ftstan.wire import messages
from ftstan.wire.codec import decode_msg_proto
from ftstan.wire.frames import Parser, pub_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CLUSTER = b"test-cluster"
#: Of the groups that ``ft`` measures.
GROUP_CLUSTER = "bench-cluster"
CHUNK = 256
_PATIENCE_S = 60.0


class Peer(Protocol):
    """One connection of a load."""

    def step(self) -> bool:
        """Do what can be done now; returns whether anything was."""
        ...

    def fileno(self) -> int:
        """The socket."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


def drive(peers: Sequence[Peer], done: Callable[[], bool]) -> None:
    """Let all of them work until ``done``.

    Raises ``TimeoutError`` when nothing moves for a minute.
    """
    poll = select.poll()
    for peer in peers:
        poll.register(peer.fileno(), select.POLLIN)
    moved = time.monotonic()
    while not done():
        steps = [peer.step() for peer in peers]
        if any(steps):
            moved = time.monotonic()
        elif not poll.poll(1000) and time.monotonic() - moved > _PATIENCE_S:
            raise TimeoutError("the load does not move any more")


class Wire:
    """A connection that writes prepared bytes and counts messages."""

    def __init__(self, url: str) -> None:
        self._link = Link([url], name="bench", clock=SystemClock())
        self._link.connect(5.0)
        self._parser = Parser(self._link.max_payload)
        self._buffer = memoryview(bytearray(1 << 20))

    def fileno(self) -> int:
        """The socket."""
        return self._link.fileno()

    def write(self, data: bytes) -> None:
        """Send protocol bytes as they are."""
        self._link.send(data, _PATIENCE_S)

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def received(self) -> memoryview:
        """What has arrived; empty if nothing has."""
        return self._buffer[: self._link.recv_into(self._buffer)]

    def count(self) -> int:
        """The number of messages that have arrived."""
        data = self.received()
        return self._parser.count_messages(data) if data else 0

    def payloads(self) -> list[bytes]:
        """The payloads of the messages that have arrived."""
        data = self.received()
        return [event[4] for event in self._parser.feed(data) if event[0] == "MSG"] if data else []

    def listen(self, subject: bytes, group: bytes = b"") -> None:
        """Subscribe, and wait until NATS knows it: others may publish on other connections from
        then on.
        """
        self.write(b"SUB %b %b 1\r\nPING\r\n" % (subject, group))
        self._await("PONG", "NATS does not answer")

    def _await(self, kind: str, complaint: str) -> tuple[Any, ...]:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for event in self._parser.feed(self.received()):
                if event[0] == kind:
                    return event
            time.sleep(0.0005)
        raise TimeoutError(complaint)

    def register(self, name: bytes, cluster: bytes, heartbeats: bytes) -> bytes:
        """Register as the client ``name``; returns the prefix of the subjects to publish to."""
        request = messages.ConnectRequest(
            client_id=name, heartbeat_inbox=heartbeats, protocol=1, conn_id=b"conn-" + name
        )
        answer = self.request(b"_STAN.discover." + cluster, messages.encode(request))
        response = messages.parse(messages.ConnectResponse, answer)
        if response.error:
            raise RuntimeError(response.error.decode())
        return response.pub_prefix

    def request(self, subject: bytes, payload: bytes) -> bytes:
        """One request; returns the payload of the answer."""
        inbox = b"bench.answer.%d" % time.monotonic_ns()
        self.write(b"SUB %b 9\r\n" % inbox + pub_frame(subject, inbox, payload))
        answer: bytes = self._await("MSG", f"no answer on {subject.decode()}")[4]
        self.write(b"UNSUB 9\r\n")
        return answer


@dataclass(slots=True)
class Marks:
    """When how many messages had been sent, and answered."""

    sent: list[tuple[int, float]] = field(default_factory=list)
    answered: list[tuple[int, float]] = field(default_factory=list)

    def delays(self) -> list[tuple[float, int]]:
        """Seconds from sending to the answer, each with the number of messages that it is of."""
        out = []
        sent = iter(self.sent)
        upto, sent_at = next(sent, (0, 0.0))
        at = 0
        for count, answered_at in self.answered:
            while at < count:
                while upto <= at:
                    upto, sent_at = next(sent)
                some = min(count, upto) - at
                out.append((answered_at - sent_at, some))
                at += some
        return out


def percentiles(delays: list[tuple[float, int]], shares: Sequence[float]) -> list[float]:
    """The delays below which ``shares`` of the messages lie."""
    ordered = sorted(delays)
    upto = list(itertools.accumulate(n for _, n in ordered))
    return [ordered[bisect.bisect_left(upto, share * upto[-1])][0] for share in shares]


class Publisher(Wire):
    """Sends prepared frames, at most ``window`` of them unanswered; answers come on ``replies``."""

    def __init__(self, url: str, replies: bytes, window: int) -> None:
        super().__init__(url)
        self.replies = replies
        self.listen(replies)
        self.marks = Marks()
        self.answered = 0
        self._sent = 0
        self._window = window
        self._chunks: list[tuple[bytes, int]] = []

    def load(self, frames: Sequence[bytes]) -> None:
        """What to send."""
        size = min(CHUNK, self._window)
        self._chunks = [
            (b"".join(frames[i : i + size]), len(frames[i : i + size]))
            for i in range(0, len(frames), size)
        ]
        self._chunks.reverse()

    @property
    def done(self) -> bool:
        """Whether everything was sent and answered."""
        return not self._chunks and self.answered == self._sent

    def step(self) -> bool:
        """Count answers, send what the window allows."""
        n = self.count()
        if n:
            self.answered += n
            self.marks.answered.append((self.answered, time.perf_counter()))
        sent = False
        while self._chunks and self._sent - self.answered + self._chunks[-1][1] <= self._window:
            data, count = self._chunks.pop()
            self._sent += count
            self.marks.sent.append((self._sent, time.perf_counter()))
            self.write(data)
            sent = True
        return sent or n > 0


class Flood(Wire):
    """Publishes without answers, never more than ``window`` messages ahead of the one that gets
    them.
    """

    def __init__(self, url: str, frame: bytes, count: int, sink: Sink, window: int) -> None:
        super().__init__(url)
        self._chunk = frame * CHUNK
        self._left = count // CHUNK
        self._sent = 0
        self._sink = sink
        self._window = window

    def step(self) -> bool:
        """Send a chunk if the window allows."""
        if not self._left or self._sent - self._sink.got + CHUNK > self._window:
            return False
        self._left -= 1
        self._sent += CHUNK
        self.write(self._chunk)
        return True


class Sink(Wire):
    """A bare NATS subscriber."""

    def __init__(self, url: str, subject: bytes, group: bytes = b"") -> None:
        super().__init__(url)
        self.got = 0
        self.listen(subject, group)

    def step(self) -> bool:
        """Count what comes."""
        n = self.count()
        self.got += n
        return n > 0


class Echo(Wire):
    """What stands in the place of the server in a bare exchange: answers each message of one
    publisher.
    """

    def __init__(self, url: str, subject: bytes, replies: bytes) -> None:
        super().__init__(url)
        self._answer = pub_frame(replies, b"", b"x" * 24)
        self.listen(subject)

    def step(self) -> bool:
        """Answer as many as have come."""
        n = self.count()
        if n:
            self.write(self._answer * n)
        return n > 0


class Client(Publisher):
    """A registered streaming client, which publishes and may subscribe on a connection of its
    own.
    """

    def __init__(self, url: str, name: bytes, window: int) -> None:
        super().__init__(url, b"bench.acks." + name, window)
        self._url = url
        self._name = name
        self._prefix = self.register(name, CLUSTER, b"bench.beats." + name)

    def frames(self, channel: bytes, count: int, size: int) -> list[bytes]:
        """PUB frames of ``count`` publishes of ``size`` bytes.

        Guids as long as those of the known clients.
        """
        mark = b"g" + b"0" * 21
        message = messages.PubMsg(
            client_id=self._name,
            guid=mark,
            subject=channel,
            data=b"x" * size,
            conn_id=b"conn-" + self._name,
        )
        head, tail = pub_frame(
            self._prefix + b"." + channel, self.replies, messages.encode(message)
        ).split(mark)
        return [b"%bg%021d%b" % (head, i, tail) for i in range(count)]

    def subscribe(self, consumer: Consumer, window: int) -> None:
        """Subscribe from the first message on, for ``consumer``."""
        request = messages.SubscriptionRequest(
            client_id=self._name,
            subject=consumer.channel,
            q_group=consumer.group,
            inbox=consumer.inbox,
            max_in_flight=window,
            ack_wait_in_secs=3600,
            start_position=messages.StartPosition.FIRST,
        )
        answer = self.request(b"_STAN.sub." + CLUSTER, messages.encode(request))
        consumer.ack_to = b"PUB " + messages.parse(messages.SubscriptionResponse, answer).ack_inbox


class Consumer(Wire):
    """A subscription that gets every message of its channel and acknowledges each."""

    group = b""

    def __init__(self, url: str, channel: bytes, count: int) -> None:
        super().__init__(url)
        self.inbox = b"bench.inbox.%d" % time.monotonic_ns()
        self.got = 0
        self.ack_to = b""
        """How the frame of an ack begins."""
        self.channel = channel
        # Ready before the first message comes.
        self._acks = self.prepared(count)
        self.listen(self.inbox)

    def prepared(self, count: int) -> list[bytes]:
        """What follows ``ack_to`` in the acks of the first ``count`` messages."""
        return [self.ack(sequence) for sequence in range(1, count + 1)]

    def ack(self, sequence: int) -> bytes:
        """The rest of the frame that acknowledges one message."""
        payload = messages.encode(messages.Ack(subject=self.channel, sequence=sequence))
        return b" %d\r\n%b\r\n" % (len(payload), payload)

    def step(self) -> bool:
        """Take and acknowledge what has come."""
        n = self.count()
        if n:
            self._send(self._acks[self.got : self.got + n])
        return n > 0

    def _send(self, acks: list[bytes]) -> None:
        self.write(self.ack_to + self.ack_to.join(acks))
        self.got += len(acks)


class GroupMember(Consumer):
    """A member of a queue group: which messages it gets is seen in them."""

    group = b"group"

    def prepared(self, count: int) -> list[bytes]:
        """Nothing can be made before."""
        del count
        return []

    def step(self) -> bool:
        """Take and acknowledge what has come."""
        payloads = self.payloads()
        if payloads:
            self._send([self.ack(decode_msg_proto(payload)[0]) for payload in payloads])
        return bool(payloads)


# ---- through a takeover
# --------------------------------------------------------------------------------------------------

_PACED = b"bench"
_ACKS = b"bench.acks"
_HEARTBEATS = b"bench.heartbeats"
_GUID_FIELD = b"\x0a"


@dataclass(slots=True)
class Record:
    """What happened, in seconds of ``time.monotonic``: ``sent`` and ``acked`` by publish number."""

    sent: list[float] = field(default_factory=list)
    acked: dict[int, float] = field(default_factory=dict)

    def first_ack_after(self, at: float) -> float | None:
        """When the first ack behind ``at`` arrived."""
        return min((t for t in self.acked.values() if t > at), default=None)

    def unanswered(self, start: float, end: float) -> int:
        """Publishes sent between two times that were never acknowledged."""
        return sum(start <= t < end and n not in self.acked for n, t in enumerate(self.sent))

    def longest_silence(self, start: float, end: float) -> float:
        """The longest time without an ack between two times."""
        times = sorted(t for t in self.acked.values() if start <= t <= end)
        edges = [start, *times, end]
        return max(b - a for a, b in itertools.pairwise(edges))


class PacedPublisher(Wire):
    """Publishes to ``channels`` in turn, one message of ``size`` bytes every ``every`` seconds, and
    never pauses.

    It goes on through a takeover as a client of the original does: same client id, same connection
    id, no new connect. What is not acknowledged is not sent again, so that what a takeover costs
    can be counted.
    """

    def __init__(self, url: str, channels: list[bytes], *, every: float, size: int) -> None:
        super().__init__(url)
        self.record = Record()
        self._channels = channels
        self._every = every
        self._body = b"x" * size
        self._poll = select.poll()
        self._poll.register(self.fileno(), select.POLLIN)
        self._prefix = b""
        self._next = time.monotonic()
        self.write(b"SUB %b 1\r\nSUB %b 2\r\n" % (_ACKS, _HEARTBEATS))

    def connect(self) -> None:
        """Register with the server."""
        self._prefix = self.register(_PACED, GROUP_CLUSTER.encode(), _HEARTBEATS)
        self._next = time.monotonic()

    def run_for(self, seconds: float) -> None:
        """Go on publishing for this long."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self._step(now)

    def run_until_acked(self, since: float, patience: float = _PATIENCE_S) -> float:
        """Go on publishing until a publish that was sent after ``since`` is acked.

        Returns when that was.
        """
        end = time.monotonic() + patience
        first = len(self.record.sent)
        while first and self.record.sent[first - 1] > since:
            first -= 1
        while True:
            for n in range(first, len(self.record.sent)):
                if n in self.record.acked:
                    return self.record.acked[n]
            if time.monotonic() > end:
                raise TimeoutError("no publish is acknowledged any more")
            self._step(time.monotonic())

    def _step(self, now: float) -> None:
        if now >= self._next:
            self._publish()
            # Behind a pause of this process it goes on from now: no burst, which would hide what it
            # measures.
            self._next = max(self._next + self._every, now)
        # Rounded up: a publish a little late is better than a generator that spins while servers
        # need the processor.
        if self._poll.poll(math.ceil(max(self._next - time.monotonic(), 0.0) * 1000)):
            self._take()

    def _publish(self) -> None:
        n = len(self.record.sent)
        channel = self._channels[n % len(self._channels)]
        message = messages.PubMsg(
            client_id=_PACED,
            guid=b"%022d" % n,
            subject=channel,
            data=self._body,
            conn_id=b"conn-" + _PACED,
        )
        self.record.sent.append(time.monotonic())
        self.write(pub_frame(self._prefix + b"." + channel, _ACKS, messages.encode(message)))

    def _take(self) -> None:
        events = self._parser.feed(self.received())
        now = time.monotonic()
        for event in events:
            if event[0] == "PING":
                self.write(b"PONG\r\n")
            elif event[0] == "MSG":
                _, subject, _, reply, payload = event[:5]
                if bytes(subject) == _HEARTBEATS:
                    self.write(pub_frame(bytes(reply), b"", b""))
                elif len(payload) == 24 and payload.startswith(_GUID_FIELD):
                    self.record.acked.setdefault(int(payload[2:]), now)
