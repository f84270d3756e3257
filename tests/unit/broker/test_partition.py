"""A server that is one partition of a cluster: what it takes, what it leaves to others, and who has
to wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.clock import ManualClock
from ftstan.broker import pending_registrations
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.partition import Partition
from ftstan.broker.pending_registrations import PendingRegistrations
from ftstan.broker.timers import Timers
from ftstan.stores.interface import ClientInfo
from ftstan.wire import messages
from ftstan.wire.patterns import matches
from tests.compat.driver import (
    SUBJECTS,
    Driver,
    Out,
    PubAck,
    connect_request,
    deliveries,
    pub_acks,
    pub_msg,
    sequences,
)
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE

if TYPE_CHECKING:
    from collections.abc import Sequence

PUBLISH = SUBJECTS.publish.encode()
INVALID = b"stan: invalid publish request"
WRONG_SUBJECT = b"stan: invalid publish request: published on the subject of another channel"


def partition(*names: bytes) -> Driver:
    return Driver(options=BrokerOptions(partition=Partition(names)))


def publish_subjects(driver: Driver) -> list[bytes]:
    return [s.removeprefix(PUBLISH + b".") for s in driver.subs.values() if s.startswith(PUBLISH)]


def ask(
    driver: Driver, channel: bytes, *, client_id: bytes = b"me", ack_wait: int = 30
) -> bytes | None:
    """A subscription request in a batch of its own; its answer."""
    request = messages.SubscriptionRequest(
        client_id=client_id,
        subject=channel,
        inbox=b"in",
        max_in_flight=10,
        ack_wait_in_secs=ack_wait,
    )
    return driver.call(SUBJECTS.subscribe, messages.encode(request))


def error_of(answer: bytes | None) -> bytes:
    assert answer is not None
    return messages.parse(messages.SubscriptionResponse, answer).error


# ---- which channels
# ------------------------------------------------------------------------------------------------


def test_each_entry_has_its_publish_subject_and_every_server_has_the_other_subjects() -> None:
    plain = set(Driver().subs.values())
    parted = set(partition(b"foo", b"bar.*").subs.values())
    inbox = {s for s in plain | parted if s.startswith(b"_INBOX.")}
    assert parted - inbox == (plain - inbox - {PUBLISH + b".>"}) | {
        PUBLISH + b".foo",
        PUBLISH + b".bar.*",
    }


def test_entries_that_another_one_contains_have_no_subject_of_their_own() -> None:
    driver = partition(b"foo.bar", b"foo.*", b"a", b"foo.>", b"a")
    assert publish_subjects(driver) == [b"a", b"foo.>"]
    driver.connect()
    assert driver.publish(b"once", channel=b"foo.bar") == [PubAck(b"once")]
    driver.subscribe(b"foo.bar")
    assert sequences(driver.out) == [1]


def test_a_publish_that_two_entries_match_is_stored_once() -> None:
    driver = partition(b"foo.*", b"*.zed", b"foo.zed.>", b"*.*.x")
    assert len(publish_subjects(driver)) == 4
    driver.connect()
    for channel in (b"foo.zed", b"foo.a", b"b.zed", b"foo.zed.x", b"foo.zed.y"):
        assert driver.publish(b"m", channel=channel) == [PubAck(b"m")]
    assert {c.name: c.store.last for c in driver.broker.channels.values()} == dict.fromkeys(
        (b"foo.zed", b"foo.a", b"b.zed", b"foo.zed.x", b"foo.zed.y"), 1
    )


names = st.lists(st.sampled_from([b"a", b"b", b"*"]), min_size=1, max_size=3).map(b".".join)
entries = st.one_of(names, names.map(lambda name: name + b".>"))
channels = st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=4).map(b".".join)


@given(st.lists(entries, min_size=1, max_size=5), channels)
def test_a_channel_is_served_once_if_any_entry_matches_it_and_else_not_at_all(
    configured: Sequence[bytes], channel: bytes
) -> None:
    driver = partition(*configured)
    driver.connect()
    served = any(matches(entry, channel) for entry in configured)
    assert driver.publish(b"m", channel=channel) == ([PubAck(b"m")] if served else [])
    assert (ask(driver, channel) is not None) == served


def test_the_subjects_are_given_back_in_an_order_in_which_no_publish_is_missed() -> None:
    driver = partition(b"foo.*", b"*.zed")
    sids = [sid for sid, subject in driver.subs.items() if subject.startswith(PUBLISH)]
    given_back = [int(line.split()[1]) for line in driver.broker.unsubscribe_lines().splitlines()]
    assert [sid for sid in given_back if sid in sids] == sids[::-1]


def test_sids_of_publish_subjects_are_not_those_of_ack_inboxes() -> None:
    driver = partition(*(b"c%d" % i for i in range(100)))
    driver.connect()
    inboxes = [driver.subscribe(b"c%d" % i, inbox=b"in.%d" % i) for i in range(100)]
    for i, inbox in enumerate(inboxes):
        assert driver.publish(b"m", channel=b"c%d" % i) == [PubAck(b"m")]
        driver.ack(inbox, 1, channel=b"c%d" % i)
    assert [len(sub.pending) for sub in driver.broker.by_sid.values()] == [0] * 100


# ---- what is another one's
# -----------------------------------------------------------------------------------------


def test_requests_about_channels_of_others_are_not_answered() -> None:
    driver = partition(b"foo")
    driver.connect()
    inbox = driver.subscribe(b"foo")
    assert ask(driver, b"bar") is None
    request = messages.UnsubscribeRequest(client_id=b"me", subject=b"bar", inbox=inbox)
    assert driver.call(SUBJECTS.unsubscribe, messages.encode(request)) is None
    assert driver.call(SUBJECTS.sub_close, messages.encode(request)) is None
    assert [c.name for c in driver.broker.channels.values()] == [b"foo"]


@pytest.mark.parametrize(
    ("channel", "ack_wait", "error"),
    [
        (b"bar.*", 30, b"stan: invalid subject"),
        (b"bar", 0, b"stan: invalid ack wait time, should be >= 1s"),
    ],
)
def test_a_wrong_request_is_refused_whosever_channel_it_names(
    channel: bytes, ack_wait: int, error: bytes
) -> None:
    driver = partition(b"foo")
    driver.connect()
    assert error_of(ask(driver, channel, ack_wait=ack_wait)) == error


def test_requests_about_our_channels_are_answered_as_ever() -> None:
    driver = partition(b"foo")
    driver.connect()
    inbox = driver.subscribe(b"foo")
    assert driver.leave(SUBJECTS.unsubscribe, b"another").error == b"stan: invalid subscription"
    assert driver.leave(SUBJECTS.unsubscribe, inbox).error == b""


def test_a_publish_on_the_subject_of_another_channel_is_refused_and_makes_none() -> None:
    driver = partition(b"foo.*")
    driver.connect()
    driver.frame(
        PUBLISH + b".foo.zed",
        pub_msg(b"g", b"other", b"data", conn_id=b"conn.me"),
        b"_STAN.acks.me",
    )
    assert pub_acks(driver.run()) == [PubAck(b"g", WRONG_SUBJECT)]
    driver.frame(
        PUBLISH + b".foo.zed",
        pub_msg(b"g", b"foo.ze", b"data", conn_id=b"conn.me"),
        b"_STAN.acks.me",
    )
    assert pub_acks(driver.run()) == [PubAck(b"g", WRONG_SUBJECT)]
    assert len(driver.broker.channels) == 0
    assert driver.broker.malformed.totals == {"publish": 2}


def test_a_channel_that_is_not_listed_any_more_is_still_delivered_and_takes_nothing_new() -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    first = Driver(open_file_store(disk, clock), clock=clock)
    first.connect()
    first.subscribe(b"old", inbox=b"in.old", max_in_flight=1)
    first.publish(b"1", b"2", channel=b"old")
    disk = disk.crash(process_only=True)
    listed = BrokerOptions(partition=Partition([b"new"]))
    second = Driver(open_file_store(disk, clock), listed, clock, {b"hb.me"})
    assert second.publish(b"3", channel=b"old") == []
    assert ask(second, b"old") is None
    (inbox,) = [sub.ack_inbox for sub in second.broker.by_sid.values()]
    assert [d.data for d in deliveries(second.wait(31), b"in.old")] == [b"1"]
    assert [d.data for d in deliveries(second.ack(inbox, 1, channel=b"old"), b"in.old")] == [b"2"]


# ---- pings, closes
# -------------------------------------------------------------------------------------------------


def test_a_partition_does_not_answer_the_ping_of_a_connection_that_it_does_not_know() -> None:
    driver = partition(b"foo")
    driver.connect()
    assert driver.ping(b"conn.me") == b""
    assert driver.ping(b"conn.of.before") is None
    assert (
        Driver().ping(b"conn.of.before") == b"client has been replaced or is no longer registered"
    )


def test_every_partition_answers_connects_and_closes() -> None:
    for driver in (partition(b"foo"), partition(b"bar")):
        driver.connect()
        assert driver.close() == b""
        assert driver.close() == b"stan: unknown clientID"


def test_a_partition_that_is_about_to_leave_lets_the_others_answer_connects() -> None:
    leaving = partition(b"foo")
    whole = Driver()
    for driver in (leaving, whole):
        driver.broker.draining = True
    request = connect_request(b"me", b"hb.me", b"conn.me")
    assert leaving.call(SUBJECTS.discovery, request) is None
    assert leaving.broker.counts()["clients"] == 0
    refused = messages.parse(
        messages.ConnectResponse, whole.call(SUBJECTS.discovery, request) or b""
    )
    assert refused.error != b""


# ---- clients whose connect comes later
# -----------------------------------------------------------------------------


def early(
    driver: Driver, *guids: bytes, channel: bytes = b"foo", client_id: bytes = b"late"
) -> None:
    """Publishes of a client in one batch; like the official clients', they name the connection."""
    for guid in guids:
        payload = pub_msg(guid, channel, guid, client_id=client_id, conn_id=b"conn." + client_id)
        driver.frame(PUBLISH + b"." + channel, payload, b"_STAN.acks." + client_id)


def test_a_publish_that_waits_for_its_client_while_the_owner_is_leaving_is_noted_once() -> None:
    driver = partition(b"foo")
    early(driver, b"before")
    driver.run()
    driver.broker.taken = []
    early(driver, b"1")
    assert driver.run() == []
    driver.connect(b"late")
    assert pub_acks(driver.out) == [PubAck(b"before"), PubAck(b"1")]
    # Noted twice, a repeat of it would go without an answer. What came before the notes began is no
    # successor's.
    assert driver.broker.taken == [(b"conn.late\x001", b"foo")]


def test_publishes_that_come_before_their_client_are_stored_in_order_when_it_comes() -> None:
    driver = partition(b"foo")
    early(driver, b"1", b"2")
    assert driver.run() == []
    early(driver, b"3")
    driver.wait(0.9)
    before = len(driver.out)
    driver.connect(b"late")
    early(driver, b"4")
    driver.run()
    assert pub_acks(driver.out[before:]) == [PubAck(b"1"), PubAck(b"2"), PubAck(b"3"), PubAck(b"4")]
    driver.subscribe(b"foo", client_id=b"late")
    assert [d.data for d in deliveries(driver.out)] == [b"1", b"2", b"3", b"4"]
    assert driver.broker.counts()["in_msgs"] == 4


def test_a_publish_that_names_only_its_connection_keeps_its_place_too() -> None:
    driver = partition(b"foo")
    driver.offer(b"1", client_id=b"late")
    assert driver.run() == []
    driver.connect(b"late")
    driver.offer(b"2", client_id=b"late")
    driver.run()
    assert pub_acks(driver.out) == [PubAck(b"1"), PubAck(b"2")]


def test_nobody_else_waits_for_a_client_that_is_late() -> None:
    driver = partition(b"foo")
    driver.connect()
    early(driver, b"1")
    assert driver.run() == []
    assert driver.publish(b"mine") == [PubAck(b"mine")]


def test_a_client_replaced_elsewhere_publishes_once_its_predecessor_was_asked_here() -> None:
    driver = partition(b"foo")
    driver.connect(alive=False)
    driver.frame(
        SUBJECTS.discovery, connect_request(b"me", b"hb.second", b"conn.second"), driver.reply()
    )
    payload = pub_msg(b"g", b"foo", b"data", client_id=b"me", conn_id=b"conn.second")
    driver.frame(PUBLISH + b".foo", payload, b"_STAN.acks.me")
    assert pub_acks(driver.run()) == []
    assert pub_acks(driver.wait(0.5)) == [PubAck(b"g")]


def test_a_client_that_does_not_come_is_refused_after_a_second_and_at_once_from_then_on() -> None:
    driver = partition(b"foo")
    early(driver, b"1", b"2")
    assert pub_acks(driver.wait(0.999)) == []
    assert pub_acks(driver.wait(0.001)) == [PubAck(b"1", INVALID), PubAck(b"2", INVALID)]
    early(driver, b"3")
    assert pub_acks(driver.run()) == [PubAck(b"3", INVALID)]
    driver.connect(b"late")
    early(driver, b"4")
    assert pub_acks(driver.run()) == [PubAck(b"4")]


def subscribe_answers(out: list[Out], reply: bytes) -> list[bytes]:
    return [
        messages.parse(messages.SubscriptionResponse, o.payload).error
        for o in out
        if o.subject == reply
    ]


def request_of(client_id: bytes) -> bytes:
    return messages.encode(
        messages.SubscriptionRequest(
            client_id=client_id, subject=b"foo", inbox=b"in", max_in_flight=10, ack_wait_in_secs=30
        )
    )


def test_a_subscription_waits_for_its_client_too(capfd: pytest.CaptureFixture[str]) -> None:
    driver = partition(b"foo")
    first, second, third = (driver.reply() for _ in range(3))
    driver.frame(SUBJECTS.subscribe, request_of(b"late"), first)
    assert driver.run() == []
    driver.connect(b"late")
    assert subscribe_answers(driver.out, first) == [b""]
    driver.frame(SUBJECTS.subscribe, request_of(b"ghost"), second)
    assert subscribe_answers(driver.wait(0.999), second) == []
    assert subscribe_answers(driver.wait(0.001), second) == [b"stan: invalid subscription request"]
    driver.frame(SUBJECTS.subscribe, request_of(b"ghost"), third)
    assert subscribe_answers(driver.run(), third) == [b"stan: invalid subscription request"]
    said = capfd.readouterr().err
    assert (
        said.count('[Client:ghost] Rejecting subscription on "foo": connection not created yet')
        == 1
    )


def test_a_server_that_is_not_partitioned_lets_nobody_wait() -> None:
    driver = Driver()
    early(driver, b"1")
    assert pub_acks(driver.run()) == [PubAck(b"1", INVALID)]
    assert error_of(ask(driver, b"foo", client_id=b"ghost")) == b"stan: unknown clientID"


def test_what_waits_is_refused_when_the_server_leaves() -> None:
    driver = partition(b"foo")
    early(driver, b"1")
    driver.run()
    driver.broker.pending_registrations.give_up()
    assert pub_acks(driver.run()) == [PubAck(b"1", INVALID)]
    early(driver, b"2", client_id=b"later")
    assert pub_acks(driver.run()) == [PubAck(b"2", INVALID)]


class Room:
    """Pending registrations with a clock of their own.

    ``taken`` are the requests that were taken, in order.
    """

    def __init__(self) -> None:
        self.timers = Timers()
        self.late = PendingRegistrations(self.timers)
        self.taken: list[bytes] = []

    def hold(self, client_id: bytes, what: bytes, now: int = 0) -> bool:
        return self.late.hold(client_id, b"c", lambda: self.taken.append(what), len(what), now)


def test_what_may_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_registrations, "MOST_REQUESTS", 3)
    monkeypatch.setattr(pending_registrations, "MOST_BYTES", 10)
    room = Room()
    assert [room.hold(b"%d" % i, b"x") for i in range(4)] == [True, True, True, False]
    room.late.registered(b"0", b"c")
    assert not room.hold(b"4", b"nine byte")
    assert room.hold(b"4", b"8 bytes.")
    assert room.taken == [b"x"]


def test_so_many_missing_clients_are_remembered_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending_registrations, "REMEMBERED", 2)
    room = Room()
    for i in range(3):
        assert room.hold(b"%d" % i, b"%d" % i, now=i)
    room.timers.run(10**10)
    assert room.taken == [b"0", b"1", b"2"]
    assert [room.hold(b"%d" % i, b"") for i in range(3)] == [True, False, False]
    room.late.registered(b"1", b"c")
    assert [room.hold(b"%d" % i, b"") for i in range(1, 3)] == [True, False]


def test_a_client_that_came_leaves_no_timer_that_hurts_the_next_one() -> None:
    room = Room()
    room.hold(b"a", b"1", now=0)
    room.late.registered(b"a", b"c")
    room.hold(b"a", b"2", now=900_000_000)
    room.timers.run(1_000_000_000)
    assert room.taken == [b"1"]
    room.timers.run(1_900_000_000)
    assert room.taken == [b"1", b"2"]


# ---- clients of other partitions
# -----------------------------------------------------------------------------------


def test_clients_of_another_partition_are_registered_and_their_requests_taken() -> None:
    disk = SimDisk()
    clock = ManualClock()
    disk.make_dirs(STORE)
    options = BrokerOptions(partition=Partition([b"foo"]))
    driver = Driver(open_file_store(disk, clock), options, clock, {b"hb.late"})
    early(driver, b"1")
    assert driver.run() == []
    driver.broker.connections.learn([ClientInfo(b"late", b"hb.late", b"conn.late", 1, 5, 3)])
    assert pub_acks(driver.run()) == [PubAck(b"1")]
    assert driver.ping(b"conn.late") == b""
    assert [o.subject for o in driver.wait(31)] == [b"hb.late"]
    # They are recorded: the next server on this store knows them.
    after = Driver(open_file_store(disk.crash(process_only=True), clock), options, clock)
    assert after.ping(b"conn.late") == b""


def test_what_another_partition_says_of_a_client_changes_nothing_about_known_clients() -> None:
    driver = partition(b"foo")
    driver.connect()
    driver.connect(b"probed", alive=False)
    reply = driver.reply()
    driver.frame(SUBJECTS.discovery, connect_request(b"probed", b"hb.new", b"conn.new"), reply)
    driver.run()
    learned = [
        ClientInfo(b"me", b"hb.other", b"conn.other"),
        ClientInfo(b"probed", b"hb.other", b"conn.probed.other"),
        ClientInfo(b"no inbox", b""),
        ClientInfo(b"no/id", b"hb"),
    ]
    driver.broker.connections.learn(learned)
    assert driver.ping(b"conn.me") == b""
    assert driver.ping(b"conn.other") is None
    driver.wait(0.5)
    assert driver.ping(b"conn.new") == b""
    assert driver.broker.counts()["clients"] == 2


@pytest.mark.parametrize("ours", ["alive", "absent", "silent"])
@pytest.mark.parametrize("theirs", ["alive", "absent", "silent"])
def test_a_client_that_came_back_elsewhere_takes_the_place_of_one_that_does_not_answer(
    ours: str, theirs: str
) -> None:
    driver = partition(b"foo")
    driver.connect(b"back", alive=ours == "alive")
    for inbox, state in ((b"hb.back", ours), (b"hb.again", theirs)):
        if state != "silent":
            (driver.alive if state == "alive" else driver.absent).add(inbox)
    again = ClientInfo(b"back", b"hb.again", b"conn.again", 1, 5, 3)
    driver.broker.connections.learn([again])
    driver.wait(0.6)
    known = driver.broker.clients.get(b"back")
    assert known is not None
    is_replaced = theirs == "alive" and ours != "alive"
    assert known.info.conn_id == (b"conn.again" if is_replaced else b"conn.back")


def test_a_connect_that_comes_while_what_another_partition_says_is_looked_into_counts() -> None:
    driver = partition(b"foo")
    driver.connect(b"back", alive=False)
    driver.alive.add(b"hb.old")
    driver.broker.connections.learn([ClientInfo(b"back", b"hb.old", b"conn.old", 1, 5, 3)])
    driver.run()
    driver.alive.clear()
    driver.frame(
        SUBJECTS.discovery, connect_request(b"back", b"hb.new", b"conn.new"), b"_INBOX.new"
    )
    driver.wait(1)
    answers = [out.payload for out in driver.out if out.subject == b"_INBOX.new"]
    assert [messages.parse(messages.ConnectResponse, each).error for each in answers] == [b""]
    known = driver.broker.clients.get(b"back")
    assert known is not None
    assert known.info.conn_id == b"conn.new"
