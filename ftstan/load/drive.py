"""A whole load: open the sessions, let them work until all is through or nothing moves, and sum
up.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import string
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.load.clients import Client, PublisherClient, SubscriberClient
from ftstan.load.traffic import GUID_PREFIX_SIZE, MARK_SIZE, Delays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.load.clients import Where

_LOOK_MS = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do.

    ``count``: messages that are published, by all publishers together; without publishers, old
    messages that each subscriber (or the whole queue group) reads. ``window``: publishes of each
    publisher without an ack; ``sub_window``: messages of each subscriber without one. ``ack_wait``
    and ``patience`` are seconds; after the latter without any progress the load is given up.
    """

    channel: str
    publishers: int
    subscribers: int
    count: int
    size: int
    window: int
    sub_window: int
    queue: str
    ack_wait: int
    patience: float

    @property
    def expected(self) -> int:
        """How many messages all subscribers together shall get."""
        return self.count * (min(self.subscribers, 1) if self.queue else self.subscribers)


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """One client: messages that are through, and the seconds from the start of the load to the last
    of them.
    """

    name: str
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Side:
    """All publishers, or all subscribers.

    ``delays``: from sending to the ack, or from sending to the delivery.
    """

    clients: Sequence[ClientFigures]
    wanted: int
    messages: int
    seconds: float
    delays: Delays

    @property
    def per_second(self) -> float:
        """Messages per second; 0 if there was none."""
        return self.messages / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it.

    ``refused`` publishes are not among the publishers' messages; ``again``: sent again by the
    server, not among the subscribers' messages. ``refusal``: why the first one was refused.
    """

    publishers: Side
    subscribers: Side
    refused: int
    refusal: str
    again: int

    @property
    def complete(self) -> bool:
        """Whether everything was stored and delivered."""
        # More than was asked for may come: of old messages, a channel sends all.
        return all(side.messages >= side.wanted for side in (self.publishers, self.subscribers))


def run(plan: Plan, where: Where, progress: Callable[[int], None]) -> Result:
    """Carry out ``plan``.

    ``progress`` is told of messages that are through, ``plan.count + plan.expected`` in all.

    Raises ``NatsError`` (no connection, or one was lost), ``RefusedError`` (the server takes no
    client or subscription of ours), ``WireError``.
    """
    run_id = secrets.token_hex(6)
    mark = secrets.token_bytes(MARK_SIZE) if plan.publishers else b""
    publishers = [
        PublisherClient(where, f"ftstanctl-bench-{run_id}-p{i}") for i in range(plan.publishers)
    ]
    subscribers = [
        SubscriberClient(where, f"ftstanctl-bench-{run_id}-s{i}") for i in range(plan.subscribers)
    ]
    clients = [*publishers, *subscribers]
    with contextlib.ExitStack() as stack:
        for client in clients:
            stack.callback(client.close)
            client.open()
        shares = _shares(plan.count, plan.publishers)
        for publisher, share in zip(publishers, shares, strict=True):
            publisher.begin(
                plan.channel,
                count=share,
                size=plan.size,
                window=plan.window,
                guid_prefix=_guid_prefix(),
                mark=mark,
            )
        # Old messages come with the subscription; new ones when publishers are let go.
        started = time.perf_counter()
        for subscriber in subscribers:
            subscriber.begin(
                plan.channel,
                count=plan.count,
                window=plan.sub_window,
                queue=plan.queue,
                ack_wait=plan.ack_wait,
                mark=mark,
            )
        if plan.publishers:
            started = time.perf_counter()
            for publisher in publishers:
                publisher.send()
        _work(clients, lambda: _is_over(plan, publishers, subscribers), progress, plan.patience)
        return _sum_up(plan, publishers, subscribers, started)


def _work(
    clients: Sequence[Client],
    is_over: Callable[[], bool],
    progress: Callable[[int], None],
    patience: float,
) -> None:
    poll = select.poll()
    by_descriptor = {client.fileno(): client for client in clients}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    ready: Sequence[Client] = clients
    moved_at = time.monotonic()
    while True:
        done = sum(client.step() for client in ready)
        if done:
            moved_at = time.monotonic()
            progress(done)
        if is_over() or time.monotonic() - moved_at > patience:
            return
        again = {client.fileno() for client in ready if client.pending}
        found = {descriptor for descriptor, _ in poll.poll(0 if again else _LOOK_MS)}
        ready = [by_descriptor[descriptor] for descriptor in again | found]


def _is_over(
    plan: Plan, publishers: Sequence[PublisherClient], subscribers: Sequence[SubscriberClient]
) -> bool:
    if any(publisher.traffic.done < publisher.traffic.wanted for publisher in publishers):
        return False
    refused = sum(publisher.traffic.refused for publisher in publishers)
    got = [subscriber.traffic.done for subscriber in subscribers]
    # What was refused comes to nobody.
    if plan.queue:
        return sum(got) >= plan.expected - refused
    return all(n >= plan.count - refused for n in got)


def _sum_up(
    plan: Plan,
    publishers: Sequence[PublisherClient],
    subscribers: Sequence[SubscriberClient],
    started: float,
) -> Result:
    refused = [publisher.traffic.refused for publisher in publishers]
    refusals = [publisher.traffic.refusal for publisher in publishers if publisher.traffic.refusal]
    stored = [publisher.traffic.done - n for publisher, n in zip(publishers, refused, strict=True)]
    got = [subscriber.traffic.done for subscriber in subscribers]
    return Result(
        publishers=_side(publishers, stored, plan.count if publishers else 0, started),
        subscribers=_side(subscribers, got, plan.expected, started),
        refused=sum(refused),
        refusal=refusals[0].decode("utf-8", "replace") if refusals else "",
        again=sum(subscriber.traffic.again for subscriber in subscribers),
    )


def _side(clients: Sequence[Client], messages: Sequence[int], wanted: int, started: float) -> Side:
    delays = Delays()
    for client in clients:
        delays.merge(client.traffic.delays)
    figures = [
        ClientFigures(client.name, count, max(client.last - started, 0.0))
        for client, count in zip(clients, messages, strict=True)
    ]
    return Side(
        clients=figures,
        wanted=wanted,
        messages=sum(messages),
        seconds=max((one.seconds for one in figures), default=0.0),
        delays=delays,
    )


def _shares(count: int, publishers: int) -> list[int]:
    return [count // publishers + (i < count % publishers) for i in range(publishers)]


def _guid_prefix() -> bytes:
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(GUID_PREFIX_SIZE)).encode()
