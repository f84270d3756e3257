"""The reference refuses what a server must not do: a history that it accepts says something."""

from __future__ import annotations

import pytest

from tests.compat.driver import Delivery
from tests.model.reference import HB_INTERVAL, HB_TIMEOUT, Client, Member, Reference, Request


@pytest.fixture
def reference() -> Reference:
    """Three messages in ``foo``, stored at 1 s, and a client."""
    made = Reference()
    made.connect(Client(b"ann", b"hb", b"conn", 0.0), 0.0)
    for data in (b"1", b"2", b"3"):
        made.publish(b"foo", data, 1.0)
    return made


def subscribe(
    reference: Reference, *inboxes: bytes, queue: bytes = b"", window: int = 2
) -> list[Member]:
    """Subscriptions with an ack wait of 5 s, made at 1 s."""
    request = Request(b"ann", b"foo", queue=queue, window=window, ack_wait=5)
    for inbox in inboxes:
        assert reference.subscribe(request, inbox, b"ack." + inbox, 1.0) == b""
    return reference.members


def deliver(reference: Reference, at: float, inbox: bytes, sequence: int, count: int = 0) -> None:
    reference.delivered(inbox, Delivery(at, sequence, b"%d" % sequence, count > 0, count), at)


def test_new_messages_come_in_order_once_and_within_the_window(reference: Reference) -> None:
    subscribe(reference, b"in")
    with pytest.raises(AssertionError, match="skipped"):
        deliver(reference, 1.0, b"in", 2)
    deliver(reference, 1.0, b"in", 1)
    with pytest.raises(AssertionError, match="a second time"):
        deliver(reference, 1.0, b"in", 1)
    with pytest.raises(AssertionError, match="not delivered"):
        reference.settle(1.0)
    deliver(reference, 1.0, b"in", 2)
    reference.settle(1.0)
    with pytest.raises(AssertionError, match="max in flight"):
        deliver(reference, 1.0, b"in", 3)


def test_a_redelivery_comes_in_time_with_its_count_until_the_ack(reference: Reference) -> None:
    (member,) = subscribe(reference, b"in")
    deliver(reference, 1.0, b"in", 1)
    deliver(reference, 1.0, b"in", 2)
    with pytest.raises(AssertionError, match="before it was due"):
        deliver(reference, 5.9, b"in", 1, count=1)
    reference.ack(member, 1)
    with pytest.raises(AssertionError, match="acknowledged"):
        deliver(reference, 6.0, b"in", 1, count=1)
    with pytest.raises(AssertionError, match="count should be 1"):
        deliver(reference, 6.0, b"in", 2, count=2)


def test_a_redelivery_that_does_not_come_is_missed(reference: Reference) -> None:
    reference.clients[b"ann"].next_beat = 100.0
    subscribe(reference, b"in")
    deliver(reference, 1.0, b"in", 1)
    deliver(reference, 1.0, b"in", 2)
    reference.settle(6.0)
    with pytest.raises(AssertionError, match="not redelivered"):
        reference.settle(6.1)


def test_members_of_a_group_take_turns(reference: Reference) -> None:
    subscribe(reference, b"one", b"two", queue=b"group")
    deliver(reference, 1.0, b"one", 1)
    with pytest.raises(AssertionError, match="another member"):
        deliver(reference, 1.0, b"one", 2)


def test_what_a_leaver_had_goes_to_the_others_and_not_at_once(reference: Reference) -> None:
    one, _ = list(subscribe(reference, b"one", b"two", queue=b"group"))
    deliver(reference, 1.0, b"one", 1)
    deliver(reference, 1.0, b"two", 2)
    deliver(reference, 1.0, b"one", 3)
    reference.leave(one, 2.0, unsubscribe=True)
    with pytest.raises(AssertionError, match="has ended"):
        deliver(reference, 2.0, b"one", 1, count=1)
    with pytest.raises(AssertionError, match="before it was due"):
        deliver(reference, 2.05, b"two", 1, count=1)
    with pytest.raises(AssertionError, match="not redelivered"):
        reference.settle(2.2)


def test_what_is_overdue_at_a_restart_comes_first(reference: Reference) -> None:
    subscribe(reference, b"in")
    deliver(reference, 1.0, b"in", 1)
    reference.restart(20.0)
    with pytest.raises(AssertionError, match="before old ones"):
        deliver(reference, 20.0, b"in", 2)
    with pytest.raises(AssertionError, match="had to come first"):
        reference.settle(20.0)


def test_a_client_that_does_not_answer_gets_no_redeliveries_and_heartbeats_all_the_same(
    reference: Reference,
) -> None:
    client = reference.clients[b"ann"]
    client.answers = False
    subscribe(reference, b"in", window=1)
    deliver(reference, 1.0, b"in", 1)
    reference.heartbeat(client, HB_INTERVAL)
    with pytest.raises(AssertionError, match="misses its heartbeats"):
        deliver(reference, HB_INTERVAL + HB_TIMEOUT + 1, b"in", 1, count=1)
    reference.settle(HB_INTERVAL * 2)
    with pytest.raises(AssertionError, match="heartbeat is missing"):
        reference.settle(HB_INTERVAL * 2 + HB_TIMEOUT + 0.1)
