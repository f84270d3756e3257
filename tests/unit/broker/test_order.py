"""What must come before what: in the order of arrival, on the road to the socket, and out of it.

Each test names the one rule of ``docs/compat/protocol.md`` (ordering guarantees) that fails it when
it is broken.
"""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError
from ftstan.broker.broker import Broker, BrokerOptions
from ftstan.broker.publishing import FIRST_ACK_SID
from ftstan.node.pipeline import Serving
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from ftstan.wire.nuid import Nuid
from ftstan.wire.subjects import Subjects
from tests.compat.driver import (
    SUBJECTS,
    Driver,
    connect_request,
    deliveries,
    pub_acks,
    pub_msg,
    sequences,
)
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE
from tests.unit.broker.test_failures import RefusingStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.errors import StoreError
    from ftstan.stores.interface import Store

# ---- in the order of arrival
# ---------------------------------------------------------------------------------------


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    made.connect(b"other")
    return made


def close_request(client_id: bytes = b"me") -> bytes:
    return messages.encode(messages.CloseRequest(client_id=client_id))


def ack_frame(driver: Driver, ack_inbox: bytes, sequence: int) -> None:
    driver.frame(ack_inbox, messages.encode(messages.Ack(subject=b"foo", sequence=sequence)))


def leave_frame(driver: Driver, subject: str, ack_inbox: bytes) -> None:
    request = messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=ack_inbox)
    driver.frame(subject, messages.encode(request), driver.reply())


def test_every_publish_before_the_close_in_one_read_is_acked_and_none_behind_it(
    driver: Driver,
) -> None:
    for i in range(50):
        driver.offer(b"%d" % i)
    driver.frame(SUBJECTS.close, close_request(), driver.reply())
    driver.offer(b"behind")
    acks = pub_acks(driver.run())
    assert [a.guid for a in acks if not a.error] == [b"%d" % i for i in range(50)]
    assert [(a.guid, a.error) for a in acks if a.error] == [
        (b"behind", b"stan: invalid publish request")
    ]


def test_acks_before_the_close_of_the_connection_in_one_read_count(driver: Driver) -> None:
    ack_inbox = driver.subscribe(durable=b"dur")
    driver.publish(b"a", b"b", b"c")
    ack_frame(driver, ack_inbox, 1)
    ack_frame(driver, ack_inbox, 3)
    driver.frame(SUBJECTS.close, close_request(), driver.reply())
    ack_frame(driver, ack_inbox, 2)
    driver.run()
    driver.connect()
    driver.subscribe(durable=b"dur", inbox=b"again")
    assert sequences(driver.out, b"again") == [2]


@pytest.mark.parametrize("subject", [SUBJECTS.sub_close, SUBJECTS.unsubscribe])
def test_acks_before_a_member_leaves_in_one_read_are_not_redelivered_to_the_others(
    driver: Driver, subject: str
) -> None:
    ack_inbox = driver.subscribe(inbox=b"mine", queue=b"g")
    driver.publish(b"a", b"b", b"c")
    driver.subscribe(inbox=b"its", queue=b"g", client_id=b"other")
    ack_frame(driver, ack_inbox, 1)
    ack_frame(driver, ack_inbox, 2)
    leave_frame(driver, subject, ack_inbox)
    driver.wait(5)
    assert sequences(driver.out, b"its") == [3]


def test_a_ping_behind_the_close_in_one_read_is_told_and_one_before_it_is_not(
    driver: Driver,
) -> None:
    ping = messages.encode(messages.Ping(conn_id=b"conn.me"))
    before = driver.reply()
    behind = driver.reply()
    driver.frame(SUBJECTS.pings, ping, before)
    driver.frame(SUBJECTS.close, close_request(), driver.reply())
    driver.frame(SUBJECTS.pings, ping, behind)
    out = driver.run()
    errors = {
        o.subject: messages.parse(messages.PingResponse, o.payload).error
        for o in out
        if o.subject in (before, behind)
    }
    assert errors == {before: b"", behind: b"client has been replaced or is no longer registered"}


# ---- on the road
# --------------------------------------------------------------------------------------------------


@dataclass
class Road:
    """A real server's road from socket to socket on a simulated disk.

    ``happened`` is everything in its order.

    ``Link`` is the only thing that is made up: what is fed comes out of it, what is sent goes into
    ``happened``.
    """

    happened: list[str] = field(default_factory=list)
    sent: bytes = b""
    input: bytes = b""
    fenced: bool = False
    connected: bool = True
    max_payload: int = 1 << 20
    leftover: bytes = b""
    options: BrokerOptions = field(default_factory=BrokerOptions)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.store = open_file_store(self.disk, self.clock)
        broker = Broker(self.store, Subjects.for_cluster("tc"), self.options, Nuid())
        broker.recover(self.store.recover(), self.clock.wall_ns(), 0)
        self.serving = Serving(
            self._watched(self.store),
            broker,
            self,  # type: ignore[arg-type]
            self.clock,
            "test",
            suspicion_s=1.25,
        )
        self.serving.open_link()
        self.disk.on_call = self._on_call

    def _watched(self, store: Store) -> Store:
        confirm = store.confirm

        def confirmed() -> None:
            if self.fenced:
                self.happened.append("fenced")
                raise FencedError("somebody else owns the store")
            confirm()
            self.happened.append("confirm")

        store.confirm = confirmed  # type: ignore[method-assign]
        return store

    def _on_call(self, _number: int, name: str, _arguments: tuple[object, ...]) -> None:
        if name in ("pwrite", "fsync", "fdatasync"):
            self.happened.append(name)

    def recv_into(self, view: memoryview) -> int:
        data = self.input
        self.input = b""
        view[: len(data)] = data
        return len(data)

    def send(self, data: bytes | memoryview, _deadline_s: float) -> None:
        self.happened.append("send")
        self.sent += bytes(data)

    def close(self) -> None:
        self.connected = False

    def turn(self, *frames: tuple[str, bytes, bytes]) -> bytes:
        """One turn with these frames (subject, reply, payload); what it sent."""
        publishes = FIRST_ACK_SID if self.options.partition else 1
        sids = {SUBJECTS.discovery: 2, SUBJECTS.subscribe: 3, f"{SUBJECTS.publish}.foo": publishes}
        for subject, reply, payload in frames:
            self.input += b"MSG %b %d %b %d\r\n%b\r\n" % (
                subject.encode(),
                sids[subject],
                reply,
                len(payload),
                payload,
            )
        self.happened.clear()
        self.sent = b""
        self.serving.turn(readable=True)
        return self.sent


def publish_frame(guid: bytes) -> tuple[str, bytes, bytes]:
    return (
        f"{SUBJECTS.publish}.foo",
        b"_STAN.acks.me",
        pub_msg(guid, b"foo", guid, conn_id=b"conn.me"),
    )


def subscribe_frame() -> tuple[str, bytes, bytes]:
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=b"in",
        max_in_flight=10,
        ack_wait_in_secs=30,
        start_position=messages.StartPosition.FIRST,
    )
    return SUBJECTS.subscribe, b"reply.sub", messages.encode(request)


@pytest.fixture
def road() -> Road:
    made = Road()
    connected = made.turn(
        (SUBJECTS.discovery, b"reply.connect", connect_request(b"me", b"hb", b"conn.me"))
    )
    assert b"PUB reply.connect" in connected
    assert b"PUB reply.sub" in made.turn(subscribe_frame())
    made.turn(publish_frame(b"first"))
    return made


def test_nothing_leaves_before_what_it_speaks_of_is_synced_and_confirmed(road: Road) -> None:
    sent = road.turn(publish_frame(b"a"), publish_frame(b"b"))
    assert sent.count(b"PUB in ") == sent.count(b"PUB _STAN.acks.me ") == 2
    before = road.happened[: road.happened.index("send")]
    synced = max(i for i, name in enumerate(before) if name in ("fsync", "fdatasync"))
    assert "pwrite" in before[:synced]
    assert "confirm" in before[synced:]


def test_a_publish_whose_store_is_not_ours_any_more_is_neither_acked_nor_delivered(
    road: Road,
) -> None:
    road.fenced = True
    with pytest.raises(FencedError):
        road.turn(publish_frame(b"a"))
    assert {"pwrite", "fenced"} <= set(road.happened)
    assert "send" not in road.happened
    assert road.sent == b""


def test_requests_are_not_answered_when_the_store_is_not_ours_any_more(road: Road) -> None:
    road.fenced = True
    with pytest.raises(FencedError):
        road.turn((SUBJECTS.discovery, b"reply.you", connect_request(b"you", b"hb.you")))
    assert road.sent == b""


def test_a_publish_whose_sync_fails_is_not_acked_and_not_delivered(road: Road) -> None:
    for name in ("fsync", "fdatasync"):
        road.disk.fail_next(name, errno.EIO)
    sent = road.turn(publish_frame(b"a"))
    assert b"PUB in " not in sent
    ack = messages.parse(
        messages.PubAck, sent.partition(b"PUB _STAN.acks.me ")[2].partition(b"\r\n")[2].rstrip()
    )
    assert (ack.guid, b"error" in ack.error) == (b"a", True)


# ---- only what is durable is delivered
# -----------------------------------------------------------------------------


KINDS = [(durable, queue) for durable in (b"", b"dur") for queue in (b"", b"g")]


def ask(driver: Driver, inbox: bytes, durable: bytes, queue: bytes) -> None:
    """Subscribe in the next batch, whatever comes of it."""
    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=b"foo",
        inbox=inbox,
        durable_name=durable,
        q_group=queue,
        max_in_flight=5,
        ack_wait_in_secs=1,
        start_position=messages.StartPosition.FIRST,
    )
    driver.frame(SUBJECTS.subscribe, messages.encode(request), driver.reply())


def judge(driver: Driver, met: Counter[str]) -> None:
    """Whatever was delivered had a good ack in the end, the same sequence always the same
    message.
    """
    acked = {a.guid for a in pub_acks(driver.out) if not a.error}
    refused = {a.guid for a in pub_acks(driver.out) if a.error}
    known: dict[int, bytes] = {}
    for o in driver.out:
        if o.subject.startswith(b"in."):
            (d,) = deliveries([o], o.subject)
            assert d.data in acked
            assert known.setdefault(d.sequence, d.data) == d.data
            met["redelivered" if d.redelivered else "delivered"] += 1
    assert not acked & refused
    met["refused"] += len(refused)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_fails_nobody_gets_what_is_not_durable(seed: int) -> None:
    rng = Random(seed)
    store = RefusingStore()
    driver = Driver(store)
    driver.connect()
    driver.publish(b"the first")
    met: Counter[str] = Counter()
    recent: set[int] = set()
    for step in range(150):
        store.broken = {b"foo"} if rng.random() < 0.3 else set()
        for i in range(rng.randrange(4)):
            driver.offer(b"%d.%d" % (step, i))
        if rng.random() < 0.3:
            durable, queue = rng.choice(KINDS)
            ask(driver, b"in.%d" % step, durable, queue)
            met[f"{durable.decode()} {queue.decode()}"] += 1
        for ack_inbox in [s for sid, s in driver.subs.items() if sid >= FIRST_ACK_SID]:
            if rng.random() < 0.7:
                for sequence in recent:
                    ack_frame(driver, ack_inbox, sequence)
            elif rng.random() < 0.1:
                leave_frame(
                    driver, rng.choice([SUBJECTS.sub_close, SUBJECTS.unsubscribe]), ack_inbox
                )
        before = len(driver.out)
        driver.run()
        if rng.random() < 0.3:
            for i in range(3):
                driver.offer(b"%d+%d" % (step, i))
            driver.wait(rng.choice([0.2, 1.0, 2.5]))
        new = driver.out[before:]
        recent = {
            d.sequence
            for o in new
            if o.subject.startswith(b"in.")
            for d in deliveries([o], o.subject)
        }
    judge(driver, met)
    assert len(met) == len(KINDS) + 3
    assert min(met.values()) > 0


class WatchedStore(MemoryStore):
    """Looks at what is on its way to subscribers whenever it is asked to commit."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], None] = lambda: None

    def commit(self) -> dict[bytes, StoreError]:
        self.look()
        return super().commit()


@pytest.mark.parametrize(("durable", "queue"), KINDS)
def test_before_its_commit_nothing_of_a_batch_is_on_its_way_to_anybody(
    durable: bytes, queue: bytes
) -> None:
    store = WatchedStore()
    driver = Driver(store)
    driver.connect()
    driver.publish(b"old 1", b"old 2")
    ask(driver, b"in.live", durable, queue)
    driver.run()
    seen: list[bytes] = []
    store.look = lambda: seen.append(bytes(driver.broker.deliveries))
    ask(driver, b"in.late", b"", b"")
    driver.offer(b"new 1")
    driver.offer(b"new 2")
    driver.clock.advance(1.5)
    out = driver.run()
    assert b"old 1" in seen[0]
    assert b"new" not in seen[0]
    assert [d.data for d in deliveries(out, b"in.late")] == [b"old 1", b"old 2", b"new 1", b"new 2"]
    assert [d.data for d in deliveries(out, b"in.live")] == [b"old 1", b"old 2", b"new 1", b"new 2"]
