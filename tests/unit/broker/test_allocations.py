"""Publishing, delivering and acknowledging leave no Python object behind for a message."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import pytest

from ftstan.broker import constants as c
from ftstan.broker.broker import BrokerOptions
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, pub_msg
from tests.datastores import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.stores.interface import Store

TOTAL = 100_000
BATCH = 500
WARM_UP = 10_000
#: One block for 100 messages.
MOST = TOTAL // 100
PUBLISHED = f"{SUBJECTS.publish}.foo".encode()


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with serving(tmp_path) as node:
        yield node.store


@pytest.fixture
def driver(store: Store) -> Driver:
    made = Driver(store, BrokerOptions(limits=ChannelLimits(max_msgs=0, max_bytes=0)))
    made.connect()
    return made


def frame(sid: int, subject: bytes, payload: bytes, reply: bytes = b"") -> bytes:
    return b"MSG %b %d %b%d\r\n%b\r\n" % (
        subject,
        sid,
        reply + b" " * bool(reply),
        len(payload),
        payload,
    )


def publishes(first: int) -> bytes:
    """A batch of publishes to the channel, the first of them with the sequence ``first``."""
    return b"".join(
        frame(
            c.SID_PUBLISH,
            PUBLISHED,
            pub_msg(b"g%d" % n, b"foo", b"x" * 128, conn_id=b"conn.me"),
            b"_STAN.acks.x",
        )
        for n in range(first, first + BATCH)
    )


def acks(sid: int, first: int) -> bytes:
    """Acks of the same messages."""
    return b"".join(
        frame(sid, b"a", messages.encode(messages.Ack(subject=b"foo", sequence=n)))
        for n in range(first, first + BATCH)
    )


def subscribed(driver: Driver, *, queue: bytes = b"", inbox: bytes = b"in") -> int:
    """A subscription whose window is wide enough for a batch; returns the sid of its ack inbox."""
    ack_inbox = driver.subscribe(inbox=inbox, queue=queue, max_in_flight=2 * BATCH)
    return next(sid for sid, subject in driver.subs.items() if subject == ack_inbox)


def drive(driver: Driver, batches: list[bytes]) -> None:
    """Each batch down the road; the output is looked at by nobody."""
    broker = driver.broker
    store = driver.store
    for batch in batches:
        assert broker.feed(batch, 0, len(batch), driver.clock.wall_ns(), driver.now) == len(batch)
        broker.stage()
        assert store.commit() == {}
        store.confirm()
        broker.conclude({})
        broker.sent()
        store.write_events()


def blocks_left(driver: Driver, sids: list[int]) -> int:
    """How many blocks are allocated more after ``TOTAL`` messages, acknowledged on ``sids``."""
    before = len(driver.out)
    rounds = [
        [publishes(n), *(acks(sid, n) for sid in sids)] for n in range(1, WARM_UP + TOTAL, BATCH)
    ]
    warm = WARM_UP // BATCH
    for batches in rounds[:warm]:
        drive(driver, batches)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for batches in rounds[warm:]:
        drive(driver, batches)
    gc.collect()
    left = sys.getallocatedblocks() - blocks
    assert len(driver.out) == before
    assert driver.broker.counts()["total_msgs"] == WARM_UP + TOTAL
    return left


def test_publishes_leave_less_than_one_block_for_a_hundred_messages(driver: Driver) -> None:
    assert blocks_left(driver, []) < MOST


def test_deliveries_and_acks_leave_less_than_one_block_for_a_hundred_messages(
    driver: Driver,
) -> None:
    sid = subscribed(driver)
    assert blocks_left(driver, [sid]) < MOST
    assert driver.broker.out_msgs == WARM_UP + TOTAL
    assert len(driver.broker.by_sid[sid].pending) == 0


def test_a_queue_group_leaves_less_than_one_block_for_a_hundred_messages(driver: Driver) -> None:
    # An ack counts wherever in the group the message is: the first member's inbox takes those of
    # all.
    sid, *others = [subscribed(driver, queue=b"group", inbox=b"in.%d" % i) for i in range(4)]
    assert blocks_left(driver, [sid]) < MOST
    assert driver.broker.out_msgs == WARM_UP + TOTAL
    assert [len(driver.broker.by_sid[s].pending) for s in (sid, *others)] == [0] * 4


@pytest.mark.parametrize("leak", [True, False])
def test_the_measure_notices_one_block_for_a_hundred_messages(leak: bool) -> None:  # the parameter
    driver = Driver(options=BrokerOptions(limits=ChannelLimits(max_msgs=0, max_bytes=0)))
    driver.connect()
    kept: list[object] = []
    confirm = driver.store.confirm

    def leaking() -> None:
        confirm()
        kept.extend(object() for _ in range(2 * BATCH // 100 if leak else 0))

    driver.store.confirm = leaking  # type: ignore[method-assign]
    # Nothing is counted where another allocator is in use (PYTHONMALLOC), as under the sanitizer.
    assert (blocks_left(driver, []) >= MOST) == (leak and sys.getallocatedblocks() > 0)


def test_the_frames_are_those_that_the_broker_listens_to(driver: Driver) -> None:
    assert SUBJECTS.publish_all.encode() == driver.subs[c.SID_PUBLISH]
