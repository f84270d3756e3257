"""A channel that leaves one broker and comes to another: what each of them does with it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import RefusedError
from ftstan.broker import arrivals, managing, partition
from ftstan.broker.arrivals import Arrival
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.partition import Partition
from ftstan.broker.records import all_subs
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, PubAck, deliveries, pub_acks, sequences

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelStore, StoredSub

FOO = b"foo"
PUBLISH = SUBJECTS.publish.encode()


def partitioned(*names: bytes) -> Driver:
    made = Driver(options=BrokerOptions(partition=Partition(names)), clock=ManualClock())
    made.connect()
    return made


def two() -> tuple[Driver, Driver]:
    """A source and a target, on one store: that the copy has it all is shown elsewhere."""
    source = partitioned(FOO)
    target = Driver(
        store=source.store,
        options=BrokerOptions(partition=Partition([b"bar"])),
        clock=ManualClock(),
    )
    target.connect()
    return source, target


def take_out(driver: Driver) -> tuple[ChannelStore, list[StoredSub]]:
    """As a source does it when what had arrived is answered."""
    broker = driver.broker
    assert broker.partition is not None
    channel = managing.find_channel(broker, FOO)
    sids = [broker.partition.sid_of(FOO), *(sub.sid for sub in channel.by_ack_inbox.values())]
    broker.partition.remove(FOO)
    subs = broker.let_go(channel)
    broker.elsewhere.add(FOO)
    for sid in sids:
        driver.subs.pop(sid, None)
    return channel.store, subs


def put_in(driver: Driver, store: ChannelStore, subs: list[StoredSub]) -> None:
    broker = driver.broker
    assert broker.partition is not None
    broker.elsewhere.discard(FOO)
    broker.take_over(store, subs, {b"me"})
    broker.partition.add(FOO)
    sid = broker.partition.sid_of(FOO)
    broker.replies.write(b"SUB %b.foo %d\r\n" % (PUBLISH, sid))
    driver.run()


# ---- the list
# --------------------------------------------------------------------------------------------------


def test_an_entry_comes_and_goes_and_the_others_keep_their_sids() -> None:
    part = Partition([b"a", b"b.*", b"c"])
    rows = dict(part.rows(b"p"))
    part.remove(b"a")
    assert not part.owns(b"a")
    assert dict(part.rows(b"p")) == {key: sid for key, sid in rows.items() if key != b"p.a"}
    part.add(b"d")
    assert part.owns(b"d")
    assert part.names == (b"b.*", b"c", b"d")
    assert dict(part.rows(b"p"))[b"p.d"] not in rows.values()
    part.add(b"a")
    assert dict(part.rows(b"p"))[b"p.a"] == rows[b"p.a"]
    assert all(sid < part.end_sid for sid in dict(part.rows(b"p")).values())


def test_only_what_an_entry_names_alone_can_go() -> None:
    part = Partition([b"a.>", b"a.b", b"c"])
    assert not part.names_alone(b"a.b")
    assert not part.names_alone(b"a.x")
    assert part.names_alone(b"c")


def test_so_many_channels_come_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "MOST_ADDED", 1)
    part = Partition([b"a"])
    part.add(b"b")
    with pytest.raises(RefusedError, match="have come to this server since its start"):
        part.add(b"c")


# ---- leaving and coming
# --------------------------------------------------------------------------------------------------


def test_who_let_go_answers_nothing_about_the_channel_and_makes_no_new_one() -> None:
    driver = partitioned(FOO, b"bar")
    ack_inbox = driver.subscribe(FOO)
    assert driver.publish(b"a") == [PubAck(b"a")]
    take_out(driver)
    before = len(driver.out)
    assert driver.publish(b"b") == []
    request = messages.UnsubscribeRequest(client_id=b"me", subject=FOO, inbox=ack_inbox)
    assert driver.call(SUBJECTS.unsubscribe, messages.encode(request)) is None
    driver.ack(ack_inbox, 1)
    driver.wait(100)
    assert sequences(driver.out[before:]) == []
    assert driver.publish(b"c", channel=b"bar") == [PubAck(b"c")]
    assert driver.close() == b""
    assert driver.broker.channels.get(FOO) is None


def test_whoever_goes_on_has_sequences_durables_groups_and_what_is_unacknowledged() -> None:
    source, target = two()
    acks = source.subscribe(FOO, inbox=b"in", durable=b"dur", ack_wait=5)
    source.subscribe(FOO, inbox=b"plain", ack_wait=5)
    source.subscribe(FOO, inbox=b"group", queue=b"q", durable=b"qd", ack_wait=5)
    source.publish(b"1", b"2", b"3")
    source.ack(acks, 1, 3)
    source.wait(1)
    store, subs = take_out(source)
    put_in(target, store, subs)
    assert target.publish(b"4") == [PubAck(b"4")]
    assert sequences(target.out) == [4]
    target.wait(6)
    again = [(d.sequence, d.redelivered) for d in deliveries(target.out) if d.redelivered]
    assert (2, True) in again
    assert {sequence for sequence, _ in again} <= {2, 4}
    assert {d.sequence for d in deliveries(target.out, b"plain")} == {1, 2, 3, 4}
    assert {d.sequence for d in deliveries(target.out, b"group")} == {1, 2, 3, 4}
    # Its acks are heard: they arrive where the client was told to send them.
    target.ack(acks, 2, 4)
    before = len(target.out)
    target.wait(20)
    assert sequences(target.out[before:]) == []


def test_a_channel_that_did_not_go_is_served_as_before() -> None:
    driver = partitioned(FOO)
    acks = driver.subscribe(FOO, durable=b"dur", ack_wait=5)
    driver.publish(b"1", b"2")
    driver.ack(acks, 1)
    store, subs = take_out(driver)
    put_in(driver, store, subs)
    assert driver.publish(b"3") == [PubAck(b"3")]
    driver.ack(acks, 3)
    driver.wait(6)
    assert [d.sequence for d in deliveries(driver.out) if d.redelivered] == [2]
    assert sequences(driver.out)[:3] == [1, 2, 3]


def test_a_client_that_has_gone_meanwhile_leaves_its_durable_and_nothing_else() -> None:
    source, target = two()
    source.subscribe(FOO, durable=b"dur")
    source.subscribe(FOO, inbox=b"plain")
    store, subs = take_out(source)
    assert target.close() == b""
    put_in(target, store, subs)
    channel = managing.find_channel(target.broker, FOO)
    assert channel.stored_subs == 1
    assert channel.durables[(b"me", b"dur")].client is None
    target.connect()
    target.publish(b"1")
    target.subscribe(FOO, durable=b"dur")
    assert sequences(target.out) == [1]


# ---- what comes too early
# --------------------------------------------------------------------------------------------------


def arrive(driver: Driver) -> tuple[int, Arrival]:
    broker = driver.broker
    assert broker.partition is not None
    sid = broker.partition.sid_of(FOO)
    arrival = broker.arrivals[FOO] = Arrival()
    broker.arriving = {sid: arrival.keep_publish}
    driver.subs[sid] = PUBLISH + b".foo"
    return sid, arrival


def test_what_the_former_server_has_answered_is_left_out_and_the_rest_answered_in_order() -> None:
    source, target = two()
    _, arrival = arrive(target)
    source.broker.taken = []
    for data in (b"1", b"2", b"3", b"4"):
        target.offer(data)
        if data < b"3":
            source.offer(data)
    source.run()
    target.run()
    assert pub_acks(target.out) == []
    answered = Counter(source.broker.taken)
    store, subs = take_out(source)
    put_in(target, store, subs)
    broker = target.broker
    broker.arriving = None
    broker.answered = dict(answered)
    for kept in arrival.publishes:
        broker.publish_kept(*kept)
    target.run()
    assert pub_acks(source.out) == [PubAck(b"1"), PubAck(b"2")]
    assert pub_acks(target.out) == [PubAck(b"3"), PubAck(b"4")]
    target.subscribe(FOO)
    assert [(d.sequence, d.data) for d in deliveries(target.out)] == [
        (1, b"1"),
        (2, b"2"),
        (3, b"3"),
        (4, b"4"),
    ]


def test_requests_about_the_channel_are_kept_and_those_about_others_ignored() -> None:
    target = partitioned(b"bar")
    _, arrival = arrive(target)
    for channel in (FOO, b"other"):
        request = messages.SubscriptionRequest(
            client_id=b"me", subject=channel, inbox=b"in", max_in_flight=1, ack_wait_in_secs=30
        )
        assert target.call(SUBJECTS.subscribe, messages.encode(request)) is None
    unsubscribe = messages.UnsubscribeRequest(client_id=b"me", subject=FOO, inbox=b"x")
    assert target.call(SUBJECTS.sub_close, messages.encode(unsubscribe)) is None
    assert [inbox for inbox, _, _ in arrival.requests] == [b"in", b""]


@pytest.mark.parametrize("durable", [b"dur", b""])
def test_a_subscription_that_the_former_server_made_and_ended_does_not_come_back(
    durable: bytes,
) -> None:
    source, target = two()
    source.publish(b"1")
    source.broker.carried_out[FOO] = set()
    _, arrival = arrive(target)

    def ask_both(subject: str, payload: bytes) -> bytes:
        reply = source.reply()
        for driver in (target, source):
            driver.frame(subject, payload, reply)
            driver.run()
        return next(out.payload for out in source.out if out.subject == reply)

    request = messages.SubscriptionRequest(
        client_id=b"me",
        subject=FOO,
        inbox=b"in",
        durable_name=durable,
        max_in_flight=10,
        ack_wait_in_secs=5,
    )
    said = ask_both(SUBJECTS.subscribe, messages.encode(request))
    ack_inbox = messages.parse(messages.SubscriptionResponse, said).ack_inbox
    assert ack_inbox
    ending = messages.UnsubscribeRequest(client_id=b"me", subject=FOO, inbox=ack_inbox)
    said = ask_both(SUBJECTS.sub_close, messages.encode(ending))
    assert not messages.parse(messages.SubscriptionResponse, said).error
    request.inbox = b"late"
    request.durable_name = b"late"
    target.frame(SUBJECTS.subscribe, messages.encode(request), b"_INBOX.late")
    target.run()
    done = source.broker.carried_out[FOO]
    store, subs = take_out(source)
    put_in(target, store, subs)
    channel = managing.find_channel(target.broker, FOO)
    del target.broker.arrivals[FOO]
    arrival.carry_out(channel.by_inbox, done)
    target.run()
    live = [sub.inbox for sub in all_subs(channel) if sub.client is not None]
    assert live == [b"late"]
    assert target.subscribe(FOO, inbox=b"in2", durable=durable or b"other")


def test_more_than_may_be_kept_makes_all_of_it_worthless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MOST_BYTES", 1000)
    monkeypatch.setattr(arrivals, "MOST_REQUESTS", 1)
    arrival = Arrival()
    for _ in range(3):
        arrival.keep_publish(b"s", b"r", b"x")
    assert len(arrival.publishes) == 3
    arrival.keep_publish(b"s", b"r", b"x" * 800)
    arrival.keep_publish(b"s", b"r", b"x")
    assert (arrival.publishes, arrival.dropped) == ([], 5)
    for _ in range(2):
        arrival.keep_request(b"", b"", lambda: None)
    assert len(arrival.requests) == 1
