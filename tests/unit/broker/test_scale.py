"""What the broker does for one operation does not grow with how many there are of anything.

Work is counted as calls of functions, Python's and C's, never as time.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.wire import messages
from tests.compat.driver import SECOND, Driver, deliveries, sequences

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.errors import StoreError

SMALL = 40
LARGE = 160
UNLIMITED = BrokerOptions(max_channels=0, limits=ChannelLimits(max_subs=0))


def calls(work: Callable[[], object]) -> int:
    """How many functions ``work`` calls."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    # What others have the collector call is not part of it.
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def each(n: int, work: Callable[[int], None]) -> None:
    for i in range(n):
        work(i)


def driver() -> Driver:
    made = Driver(options=UNLIMITED)
    made.connect()
    return made


def subscriptions_on_one_channel(n: int) -> tuple[Driver, Callable[[], object]]:
    made = driver()
    return made, lambda: each(n, lambda i: subscribe(made, i, b"foo", b""))


def subscriptions_on_channels(n: int) -> tuple[Driver, Callable[[], object]]:
    made = driver()
    return made, lambda: each(n, lambda i: subscribe(made, i, b"foo.%d" % i, b""))


def members_that_join(n: int) -> tuple[Driver, Callable[[], object]]:
    made = driver()
    return made, lambda: each(n, lambda i: subscribe(made, i, b"foo", b"g"))


def close_of_a_client_with_subscriptions(n: int) -> tuple[Driver, Callable[[], object]]:
    made, fill = subscriptions_on_one_channel(n)
    fill()
    made.broker.feed(*frames(made))
    return made, lambda: made.broker.connections.close(b"", close_request())


def close_of_a_client_with_members(n: int) -> tuple[Driver, Callable[[], object]]:
    made, fill = members_that_join(n)
    fill()
    made.broker.feed(*frames(made))
    return made, lambda: made.broker.connections.close(b"", close_request())


def unsubscriptions(n: int) -> tuple[Driver, Callable[[], object]]:
    made, fill = subscriptions_on_one_channel(n)
    fill()
    made.broker.feed(*frames(made))
    return made, lambda: each(
        n, lambda i: made.broker.subscriptions.unsubscribe(b"", leave(i), close=False)
    )


def clients_that_connect(n: int) -> tuple[Driver, Callable[[], object]]:
    made = driver()
    requests = [
        messages.encode(messages.ConnectRequest(client_id=b"c%d" % i, heartbeat_inbox=b"hb.%d" % i))
        for i in range(n)
    ]
    return made, lambda: each(n, lambda i: made.broker.connections.connect(b"r", requests[i]))


def heartbeats(n: int) -> tuple[Driver, Callable[[], object]]:
    made, connect = clients_that_connect(n)
    connect()
    made.run()
    return made, lambda: made.broker.run_timers(0, made.now + 31 * SECOND)


def frames(made: Driver) -> tuple[bytes, int, int, int, int]:
    """Nothing to read, at the present time."""
    return b"\0", 0, 0, made.clock.wall_ns(), made.now


def subscribe(made: Driver, i: int, channel: bytes, queue: bytes) -> None:
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=channel,
        q_group=queue,
        inbox=b"in.%d" % i,
        max_in_flight=10,
        ack_wait_in_secs=30,
    )
    made.broker.subscriptions.subscribe(b"r", messages.encode(request))


def leave(i: int) -> bytes:
    return messages.encode(
        messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=b"in.%d" % i)
    )


def close_request() -> bytes:
    return messages.encode(messages.CloseRequest(client_id=b"me"))


@pytest.mark.parametrize(
    "case",
    [
        subscriptions_on_one_channel,
        subscriptions_on_channels,
        members_that_join,
        close_of_a_client_with_subscriptions,
        close_of_a_client_with_members,
        unsubscriptions,
        clients_that_connect,
        heartbeats,
    ],
)
def test_an_operation_costs_the_same_among_few_and_among_many(
    case: Callable[[int], tuple[Driver, Callable[[], object]]],
) -> None:
    small, large = (calls(case(n)[1]) / n for n in (SMALL, LARGE))
    assert small > 1
    assert large < 1.2 * small


def test_whoever_leaves_is_replaced_by_the_last_and_nobody_else_moves() -> None:
    made = Driver(options=UNLIMITED)
    made.connect()
    inboxes = [b"in.%d" % i for i in range(30)]
    for inbox in inboxes:
        made.subscribe(inbox=inbox, start=messages.StartPosition.NEW_ONLY)
    channel = made.broker.channels.get(b"foo")
    assert channel is not None
    for gone in (29, 0, 5, 28, 13, 1, 0 + 27, 2):
        name = b"in.%d" % gone
        at = inboxes.index(name)
        last = inboxes.pop()
        if last != name:
            inboxes[at] = last
        made.broker.subscriptions.unsubscribe(b"", leave(gone), close=False)
        made.run()
        assert [sub.inbox for sub in channel.subs] == inboxes
    made.publish(b"x")
    assert [sequences(made.out, inbox) for inbox in inboxes] == [[1]] * len(inboxes)


def test_members_that_leave_together_set_one_timer_for_each_that_stays() -> None:
    made = Driver(options=UNLIMITED)
    made.connect(b"leaves")
    made.connect(b"stays")
    made.connect()
    for i in range(60):
        made.subscribe(queue=b"g", inbox=b"in.%d" % i, client_id=b"leaves" if i < 40 else b"stays")
    made.publish(*(b"%d" % i for i in range(600)))
    before = len(made.broker.timers)
    made.broker.feed(*frames(made))
    made.broker.connections.close(b"", messages.encode(messages.CloseRequest(client_id=b"leaves")))
    # Those that leave get some too, before it is their turn.
    assert len(made.broker.timers) <= before + 60
    made.run()
    made.wait(60)
    resent = {d.sequence for i in range(40, 60) for d in deliveries(made.out, b"in.%d" % i)}
    assert resent == set(range(1, 601))


@pytest.mark.parametrize(("channels", "batches"), [(256, 1), (257, 2), (600, 3)])
def test_a_batch_writes_to_so_many_channels_and_leaves_the_rest_for_the_next(
    channels: int, batches: int
) -> None:
    made = driver()
    for i in range(channels):
        made.publish(b"first", channel=b"c.%d" % i)
    for i in range(channels):
        made.offer(b"x", channel=b"c.%d" % i)
    commits = 0
    store_commit = made.store.commit

    def commit() -> dict[bytes, StoreError]:
        nonlocal commits
        commits += bool(made.broker.touched)
        return store_commit()

    made.store.commit = commit  # type: ignore[method-assign]
    made.run()
    assert commits == batches
    assert made.broker.counts()["total_msgs"] == 2 * channels
    assert not made.broker.is_full
