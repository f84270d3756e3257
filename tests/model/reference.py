"""The reference: what clients of a server must, may and must not see, told from
``docs/compat/protocol.md`` alone.

The reference is told what clients ask for, and shown what leaves the server. It keeps one ``Line``
for every position in a channel: a plain subscription, a durable, or a queue group, with the members
that are served from it. Whatever leaves is checked when it leaves (``delivered``), and what should
have left, at the end of every step (``settle``). Times are seconds; the server's clock is the
reference's, so that every bound is exact but for ``EARLY`` and ``LATE``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.wire.messages import StartPosition

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compat.driver import Delivery

HB_INTERVAL = 5.0173
HB_TIMEOUT = 1.00917
HB_FAIL_COUNT = 2
"""Odd, so that no heartbeat fails in the instant in which something else is due: their order would
be open.
"""
PROBE_TIMEOUT = 0.5
EARLY = 0.0151
LATE = 0.0005


@dataclass(slots=True)
class Client:
    client_id: bytes
    hb_inbox: bytes
    conn_id: bytes
    next_beat: float
    """The latest time of its next heartbeat."""
    listens: bool = True
    answers: bool = True
    failures: int = 0


@dataclass(slots=True)
class Sent:
    """A message that waits for its ack. ``expiry`` is ``None`` when a restart has taken it."""

    holder: Member | None
    expiry: float | None
    earliest: float = 0.0


@dataclass(slots=True, eq=False)
class Member:
    """A live subscription.

    ``first``: what it must get before anything new; ``wake``: by when its ack timer has run.
    """

    inbox: bytes
    ack_inbox: bytes
    client: Client
    line: Line
    window: int
    ack_wait: int
    wake: float = 0.0
    marked: bool = False
    stalled: bool = False
    """A new message has filled its window."""
    first: list[int] = field(default_factory=list)
    last_pass: tuple[float, float, int] = (0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """A subscription request."""

    client_id: bytes
    channel: bytes
    durable: bytes = b""
    queue: bytes = b""
    start: StartPosition.ValueType = StartPosition.FIRST
    sequence: int = 0
    delta: float = 0.0
    window: int = 1024
    ack_wait: int = 30


@dataclass(slots=True, eq=False)
class Line:
    """A position in a channel; ``request`` made it."""

    request: Request
    position: int
    members: list[Member] = field(default_factory=list)
    pending: dict[int, Sent] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    recovering: bool = False
    offered: bool = False
    """Something has happened for which new messages are offered."""
    passed_at: float = 0.0

    @property
    def channel(self) -> bytes:
        return self.request.channel

    @property
    def queue(self) -> bool:
        return bool(self.request.queue)

    def held(self, member: Member) -> list[int]:
        return [sequence for sequence, sent in self.pending.items() if sent.holder is member]

    def is_open(self, member: Member) -> bool:
        return len(self.held(member)) < member.window

    def choose(self, *, again: bool) -> Member | None:
        """The member that gets the next message.

        The head of the list goes to its end when it is chosen.

        A member is asked until it has refused: one that redeliveries have filled takes more of them
        until then.
        """
        willing = [m for m in self.members if not m.stalled]
        willing = [m for m in willing if not m.marked] or [m for m in willing if not again]
        if not willing and not again:
            return None
        chosen = min(willing, key=lambda m: len(self.held(m)), default=self.members[0])
        if chosen is self.members[0]:
            self.members.append(self.members.pop(0))
        return chosen

    def offer(self) -> Member | None:
        """The member that takes the next new message; those that cannot are not asked again."""
        while (member := self.choose(again=False)) is not None and not self.is_open(member):
            member.stalled = True
        return member

    def release(self, sequence: int) -> None:
        """Its holder does not wait for its ack any more."""
        sent = self.pending.pop(sequence, None)
        if (
            sent is not None
            and sent.holder is not None
            and sent.holder.stalled
            and self.is_open(sent.holder)
        ):
            sent.holder.stalled = False
            self.offered = True


class Reference:
    """Everything that a correct server knows."""

    def __init__(self) -> None:
        self.clients: dict[bytes, Client] = {}
        self.channels: dict[bytes, list[tuple[bytes, float]]] = {}
        self.lines: dict[object, Line] = {}
        self.members: list[Member] = []
        """In the order in which they subscribed."""
        self.due: list[tuple[float, Callable[[float], None]]] = []

    # What clients ask for

    def connect(self, client: Client, at: float) -> None:
        if client.client_id in self.clients:
            self.close(client.client_id, at)
        self.clients[client.client_id] = client
        client.next_beat = at + HB_INTERVAL

    def close(self, client_id: bytes, at: float) -> None:
        client = self.clients.pop(client_id)
        for member in [m for m in self.members if m.client is client]:
            self.leave(member, at, unsubscribe=False)

    def publish(self, channel: bytes, data: bytes, at: float) -> None:
        self.channels.setdefault(channel, []).append((data, at))
        for line in self.lines.values():
            line.offered |= line.channel == channel

    def subscribe(self, request: Request, inbox: bytes, ack_inbox: bytes, at: float) -> bytes:
        """The error text; with none, the subscription is there."""
        client = self.clients.get(request.client_id)
        if client is None:
            return b"stan: unknown clientID"
        messages = self.channels.setdefault(request.channel, [])
        key = _key(request, inbox)
        line = self.lines.get(key)
        if line is not None and line.members and not line.queue:
            return b"stan: duplicate durable registration"
        if line is None:
            line = self.lines[key] = Line(request, _position(request, messages, at))
        member = Member(inbox, ack_inbox, client, line, request.window, request.ack_wait)
        if not line.members:
            member.first = sorted(line.pending)
            member.wake = at + member.ack_wait
            for sent in line.pending.values():
                sent.holder = member
        line.members.append(member)
        line.offered = True
        self.members.append(member)
        return b""

    def leave(self, member: Member, at: float, *, unsubscribe: bool) -> None:
        """A member's messages go to the others.

        The last one takes the line with it, or leaves it offline.
        """
        line = member.line
        self.members.remove(member)
        i = line.members.index(member)
        line.members[i] = line.members[-1]
        line.members.pop()
        orphans = sorted(line.held(member), key=lambda s: (line.pending[s].expiry or 0.0, s))
        for k, sequence in enumerate(orphans):
            if line.members:
                heir = line.members[k % len(line.members)]
                heir.wake = at + 0.1
                line.pending[sequence] = Sent(heir, at - 1, at + 0.1)
            else:
                line.pending[sequence].holder = None
        if not line.members and (unsubscribe or not line.request.durable):
            self.lines = {key: other for key, other in self.lines.items() if other is not line}

    def offline(self) -> list[Line]:
        """Durables and groups that can be resumed."""
        found = [line for line in self.lines.values() if not line.members]
        return [line for line in found if line.queue or line.request.client_id in self.clients]

    def ack(self, member: Member, sequence: int) -> None:
        """Counts for whichever member of the group holds the message, and for nothing else."""
        member.line.release(sequence)
        member.line.counts.pop(sequence, None)

    def restart(self, at: float) -> None:
        """Another server goes on with the store."""
        self.due.clear()
        for client in self.clients.values():
            client.failures = 0
            client.next_beat = at + HB_INTERVAL
        for line in self.lines.values():
            line.counts.clear()
            line.recovering = line.queue
            line.offered = True
            line.members.sort(key=self.members.index)
            for sequence, sent in line.pending.items():
                stored = self.channels[line.channel][sequence - 1][1]
                sent.expiry = stored + sent.holder.ack_wait if sent.holder else None
                sent.earliest = 0.0
            for member in line.members:
                member.marked = False
                member.stalled = not line.is_open(member)
                member.wake = at + member.ack_wait
                member.first = [
                    s
                    for s in sorted(line.held(member))
                    if (line.pending[s].expiry or 0.0) <= at + EARLY
                ]

    # What leaves the server

    def heartbeat(self, client: Client, at: float) -> None:
        """A reply takes the marks of its failures away.

        None is a failure, at once if nobody listens.
        """
        self.advance(at)
        assert self.clients.get(client.client_id) is client, (
            "a heartbeat to a client that is not registered"
        )
        client.next_beat = at + HB_TIMEOUT + HB_INTERVAL
        if client.answers:
            client.failures = 0
            for member in self.members:
                if member.client is client and member.marked:
                    member.marked = False
                    member.wake = at + member.ack_wait
        else:
            self.due.append((at + HB_TIMEOUT * client.listens, lambda t: self._failed(client, t)))
            self.advance(at)

    def _failed(self, client: Client, at: float) -> None:
        if self.clients.get(client.client_id) is not client:
            return
        client.failures += 1
        if client.failures == 1:
            for member in self.members:
                member.marked |= member.client is client
        elif client.failures > HB_FAIL_COUNT:
            self.close(client.client_id, at)

    def delivered(self, inbox: bytes, message: Delivery, at: float) -> None:
        self.advance(at)
        found = [m for m in self.members if m.inbox == inbox]
        assert found, "a message to a subscription that has ended"
        stored = self.channels[found[0].line.channel]
        assert 0 < message.sequence <= len(stored), "a message that was never stored"
        assert message.data == stored[message.sequence - 1][0], (
            "another message than the one that was stored"
        )
        if message.redelivered:
            self._again(found[0], message, at)
        else:
            self._new(found[0], message, at)

    def _new(self, member: Member, message: Delivery, at: float) -> None:
        line = member.line
        assert message.sequence > line.position, "a second time, without the flag"
        assert message.sequence == line.position + 1, "a message was skipped"
        assert message.count == 0, "a count on a new message"
        assert not any(m.first for m in line.members), "a new message before old ones"
        assert line.is_open(member), "more than max in flight"
        assert line.offer() is member, "to another member than the rules choose"
        line.position = message.sequence
        line.pending[message.sequence] = Sent(member, at + member.ack_wait)
        member.stalled = not line.is_open(member)

    def _again(self, member: Member, message: Delivery, at: float) -> None:
        line = member.line
        sequence = message.sequence
        assert sequence in line.pending, "acknowledged, or never sent, and yet redelivered"
        sent = line.pending[sequence]
        holder = sent.holder
        assert holder is not None
        line.counts[sequence] = line.counts.get(sequence, 0) + 1
        assert message.count == line.counts[sequence], (
            f"the count should be {line.counts[sequence]}"
        )
        if member.first:
            assert sequence == member.first.pop(0), "not in order, or not by whom it was held"
        else:
            self._due(holder, sequence, sent, at)
            if line.passed_at != at:
                # New messages are offered behind all that is redelivered in one instant.
                self._refuse(line)
                line.passed_at = at
            assert line.choose(again=True) is member, "to another member than the rules choose"
        expiry = at if sent.expiry is None or holder is not member else sent.expiry
        if holder is not member:
            line.release(sequence)
        line.pending[sequence] = Sent(member, expiry + member.ack_wait)

    def _refuse(self, line: Line) -> None:
        """What was offered and not delivered was refused by all that were asked."""
        if (
            line.offered
            and line.position < len(self.channels[line.channel])
            and not any(map(line.is_open, line.members))
        ):
            line.offer()
        line.offered = False

    def _due(self, holder: Member, sequence: int, sent: Sent, at: float) -> None:
        assert sent.expiry is not None
        assert at >= max(sent.expiry - EARLY, sent.earliest - LATE), "redelivered before it was due"
        assert holder.line.queue or not holder.marked, (
            "redelivered to a client that misses its heartbeats"
        )
        this_pass = (at, round(sent.expiry, 6), sequence)
        if holder.last_pass[0] == at:
            assert holder.last_pass < this_pass, "redelivered out of order"
        else:
            assert at <= self._latest(holder) + LATE, "redelivered too late"
            # The next pass is for what was not due in this one, also if something that was expires
            # again before it.
            expiries = [holder.line.pending[s].expiry or 0.0 for s in holder.line.held(holder)]
            following = min((e for e in expiries if e > at + EARLY), default=0.0)
            holder.wake = max(at + holder.ack_wait, following)
        holder.last_pass = this_pass

    def _latest(self, member: Member) -> float:
        """When the first of what a member holds has to be redelivered at the latest."""
        pending = member.line.pending
        return max(min(pending[s].expiry or 0.0 for s in member.line.held(member)), member.wake)

    # Time

    def later(self, at: float, event: Callable[[float], None]) -> None:
        self.due.append((at, event))

    def advance(self, at: float) -> None:
        """Let everything happen that nobody sees."""
        while self.due and min(t for t, _ in self.due) <= at:
            event = min(self.due, key=lambda e: e[0])
            self.due.remove(event)
            event[1](event[0])

    def settle(self, at: float) -> None:
        """Everything that had to leave has left."""
        self.advance(at)
        for client in self.clients.values():
            assert at <= client.next_beat + LATE, "a heartbeat is missing"
        for line in self.lines.values():
            if line.recovering:
                line.recovering = False
                line.counts.clear()
            self._refuse(line)
            for member in line.members:
                assert not member.first, f"{member.first} had to come first, and did not"
                assert line.position == len(self.channels[line.channel]) or not line.is_open(
                    member
                ), "not delivered"
                if line.held(member) and (line.queue or not member.marked):
                    assert at <= self._latest(member) + LATE, "not redelivered"


def _key(request: Request, inbox: bytes) -> object:
    """What makes two requests speak of the same line."""
    if request.queue:
        return request.channel, request.durable, request.queue
    return request.channel, request.client_id, request.durable or inbox


def _position(request: Request, messages: list[tuple[bytes, float]], at: float) -> int:
    """How many messages come before the first that a new line delivers."""
    last = len(messages)
    match request.start:
        case StartPosition.FIRST:
            return 0
        case StartPosition.LAST_RECEIVED:
            return max(last - 1, 0)
        case StartPosition.SEQUENCE_START:
            return last if request.sequence > last else max(request.sequence - 1, 0)
        case StartPosition.TIME_DELTA_START:
            return next(
                (
                    i
                    for i, (_, t) in enumerate(messages)
                    if request.delta > 0 and t >= at - request.delta
                ),
                last,
            )
        case _:
            return last
