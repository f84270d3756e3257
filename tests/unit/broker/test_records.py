"""Which records ``subs.dat`` gets for each event in a subscription's life, in order
(docs/compat/filestore.md, 3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import BrokerOptions
from ftstan.config.limits import Limits
from ftstan.config.options import ChannelLimits, StoreLimits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.store import FileStore
from ftstan.wire import codec
from tests.compat.driver import SUBJECTS, Driver, deliveries
from tests.oracle.goproto import decode
from tests.oracle.goview import SUB_DELETE_FIELDS, SUB_EVENT_FIELDS, SUB_FIELDS
from tests.sim.disk import SimDisk
from tests.sim.filestore import SimOwner
from tests.sim.history import STORE

if TYPE_CHECKING:
    from collections.abc import Iterable

CRC = records.Crc()
LIMITS = ChannelLimits(max_msgs=5)
Row = tuple[str, int] | tuple[str, int, int]


class Server:
    """A server that has written to the channel, and what its file gets from then on."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        clock = ManualClock()
        root = self.disk.open_dir(STORE)
        self.store = FileStore(
            self.disk,
            root,
            SimOwner(self.disk, root, clock),
            clock,
            FileStoreOptions(compact_enabled=False),
            limits=Limits(StoreLimits(channel=LIMITS)),
            parallel_sync=False,
        )
        self.driver = Driver(
            self.store, BrokerOptions(limits=LIMITS), clock, alive={b"hb.me", b"hb.other"}
        )
        self.driver.connect()
        self.driver.connect(b"other")
        self._seen = 0

    def rows(self) -> list[Row]:
        """Records since the last call, those that nobody waits for included."""
        self.driver.run()
        self.store.tick(self.driver.clock.wall_ns())
        found, _, why = records.scan_typed(
            (self.disk.tree("/store/foo")["subs.dat"] or b"")[4:], CRC
        )
        assert why == ""
        fresh = found[self._seen :]
        self._seen = len(found)
        return [_row(kind, payload) for kind, payload in fresh]


def _row(kind: int, payload: bytes) -> Row:
    if kind in (records.SUB_NEW, records.SUB_UPDATE):
        state = decode(payload, SUB_FIELDS)
        word = "new" if kind == records.SUB_NEW else "closed" if state.num(11) else "update"
        return word, state.num(1)
    if kind == records.SUB_DELETE:
        return "delete", decode(payload, SUB_DELETE_FIELDS).num(1)
    event = decode(payload, SUB_EVENT_FIELDS)
    return "sent" if kind == records.SUB_MSG else "acked", event.num(1), event.num(2)


def sent(sub_id: int, sequences: Iterable[int]) -> list[Row]:
    return [("sent", sub_id, sequence) for sequence in sequences]


@pytest.fixture
def server() -> Server:
    made = Server()
    made.driver.subscribe(inbox=b"first", start=0)
    assert made.rows() == [("new", 1)]
    return made


def test_a_new_subscription_is_one_record_with_the_next_id(server: Server) -> None:
    server.driver.subscribe(inbox=b"a")
    server.driver.subscribe(inbox=b"b", durable=b"dur")
    server.driver.subscribe(inbox=b"c", queue=b"g")
    assert server.rows() == [("new", 2), ("new", 3), ("new", 4)]


def test_a_delivery_is_recorded_once_and_not_again_when_it_is_repeated(server: Server) -> None:
    server.driver.publish(b"a", b"b")
    assert server.rows() == sent(1, (1, 2))
    server.driver.wait(100)
    assert [d.redelivered for d in deliveries(server.driver.out, b"first")].count(True) >= 4
    assert server.rows() == []


def test_an_ack_is_recorded_once_and_one_of_what_is_not_pending_never(server: Server) -> None:
    inbox = server.driver.subscribe(inbox=b"a", start=0)
    server.rows()
    server.driver.publish(b"a")
    server.rows()
    server.driver.ack(inbox, 1)
    assert server.rows() == [("acked", 2, 1)]
    server.driver.ack(inbox, 1, 7)
    assert server.rows() == []


def test_what_the_limits_dropped_is_recorded_as_acknowledged_when_it_would_be_repeated(
    server: Server,
) -> None:
    server.driver.publish(b"1", b"2")
    server.rows()
    server.driver.publish(*(b"%d" % i for i in range(3, 7)))
    assert server.rows() == sent(1, range(3, 7))
    server.driver.broker.tick()
    server.driver.wait(31)
    assert server.rows() == [("acked", 1, 1)]


def test_a_redelivery_to_another_member_is_sent_to_the_new_one_before_it_is_taken_from_the_old(
    server: Server,
) -> None:
    server.driver.subscribe(inbox=b"q1", queue=b"g")
    server.driver.publish(b"a")
    server.driver.subscribe(inbox=b"q2", queue=b"g")
    assert server.rows() == [("new", 2), ("sent", 1, 1), ("sent", 2, 1), ("new", 3)]
    server.driver.wait(30.5)
    assert [r for r in server.rows() if r[1] != 1] == [("sent", 3, 1), ("acked", 2, 1)]


@pytest.mark.parametrize("subject", [SUBJECTS.unsubscribe, SUBJECTS.sub_close])
@pytest.mark.parametrize("queue", [b"", b"g"])
def test_the_end_of_what_is_not_durable_is_one_removal(
    server: Server, subject: str, queue: bytes
) -> None:
    inbox = server.driver.subscribe(inbox=b"a", queue=queue)
    server.rows()
    server.driver.leave(subject, inbox)
    assert server.rows() == [("delete", 2)]


def test_a_durable_that_is_closed_and_resumed_is_updated_under_its_id_and_removed_at_the_end(
    server: Server,
) -> None:
    inbox = server.driver.subscribe(inbox=b"a", durable=b"dur")
    server.rows()
    server.driver.leave(SUBJECTS.sub_close, inbox)
    assert server.rows() == [("closed", 2)]
    inbox = server.driver.subscribe(inbox=b"b", durable=b"dur")
    assert server.rows() == [("update", 2)]
    server.driver.leave(SUBJECTS.unsubscribe, inbox)
    assert server.rows() == [("delete", 2)]


def test_the_close_of_a_client_closes_its_durables_and_removes_the_rest(server: Server) -> None:
    server.driver.subscribe(inbox=b"a", client_id=b"other")
    server.driver.subscribe(inbox=b"b", durable=b"dur", client_id=b"other")
    server.rows()
    server.driver.close(b"other")
    assert sorted(server.rows()) == [("closed", 3), ("delete", 2)]


def test_the_last_durable_member_that_closes_stays_as_a_record_that_the_next_one_takes_over(
    server: Server,
) -> None:
    inbox = server.driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    server.rows()
    server.driver.leave(SUBJECTS.sub_close, inbox)
    assert server.rows() == [("update", 2)]
    inbox = server.driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    assert server.rows() == [("update", 2)]
    server.driver.leave(SUBJECTS.unsubscribe, inbox)
    assert server.rows() == [("delete", 2)]


def test_a_member_that_leaves_others_gives_them_what_it_had_before_its_removal(
    server: Server,
) -> None:
    server.driver.subscribe(inbox=b"q1", queue=b"g", durable=b"dur")
    server.driver.publish(b"1")
    leaver = server.driver.subscribe(inbox=b"q2", queue=b"g", durable=b"dur")
    server.driver.publish(b"2")
    server.rows()
    server.driver.leave(SUBJECTS.sub_close, leaver)
    assert server.rows() == [("sent", 2, 2), ("delete", 3)]


def test_a_request_that_is_refused_leaves_no_record(server: Server) -> None:
    server.driver.broker.set_limits(StoreLimits(channel=ChannelLimits(max_subs=1)))
    with pytest.raises(AssertionError):
        server.driver.subscribe(inbox=b"refused")
    assert server.rows() == []


def test_a_repetition_leaves_no_mark_in_the_stored_message(server: Server) -> None:
    server.driver.publish(b"a")
    before = server.disk.tree("/store/foo")["msgs.1.dat"]
    server.driver.wait(100)
    assert deliveries(server.driver.out, b"first")[-1].count > 1
    server.rows()
    assert server.disk.tree("/store/foo")["msgs.1.dat"] == before
    stored = server.store._channels[b"foo"].read(1, 1, 1 << 20)
    assert stored is not None
    _, subject, _, data, _, redelivered, count = codec.decode_msg_proto(stored.payload(0))
    assert (subject, data, redelivered, count) == (b"foo", b"a", False, 0)
