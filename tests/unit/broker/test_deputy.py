"""A client cannot have the server speak for it where servers listen, whatever inbox it names."""

from __future__ import annotations

import re

import pytest

from ftstan.broker import constants as c
from ftstan.broker.broker import Broker, BrokerOptions
from ftstan.ft.heartbeat import decode_heartbeat
from ftstan.stores.memory import MemoryStore
from ftstan.wire import messages
from ftstan.wire.nuid import Nuid
from ftstan.wire.subjects import Subjects
from tests.compat.driver import SUBJECTS, Driver, connect_request, pub_acks, pub_msg
from tests.doc_tests import ROOT, wrong_with

SERVERS = [
    b"_STAN.ft.tc.g",
    b"_STAN.pub.tc.other",
    b"_FTSTAN.ft.tc.g",
    b"_FTSTAN.ctl.tc.server",
    b"_STAN.close.tc",
    b"$SYS.REQ.SERVER.PING",
    b"$JS.API.STREAM.DELETE.orders",
    b"_GR_.Ab3dEf.Gh1jKl._STAN.ft.tc.g",
    b"$GR.AbCd._FTSTAN.ft.tc.g",
]
CLIENTS = [
    b"_INBOX.x",
    b"_STAN.acks.x",
    b"any.thing",
    b"_R_.Ab3dEf",
    b"_GR_.Ab3dEf.Gh1jKl._INBOX.x",
    b"$GR.AbCd._INBOX.x",
]
REQUESTS = {
    "connect": (SUBJECTS.discovery, connect_request(b"new", b"hb.new", b"conn.new")),
    "subscribe": (
        SUBJECTS.subscribe,
        messages.encode(
            messages.SubscriptionRequest(
                client_id=b"me", subject=b"foo", inbox=b"in", max_in_flight=1, ack_wait_in_secs=30
            )
        ),
    ),
    "unsubscribe": (
        SUBJECTS.unsubscribe,
        messages.encode(
            messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=b"in.me")
        ),
    ),
    "subscription close": (
        SUBJECTS.sub_close,
        messages.encode(
            messages.UnsubscribeRequest(client_id=b"me", subject=b"foo", inbox=b"in.me")
        ),
    ),
    "close": (SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"me"))),
    "ping": (SUBJECTS.pings, messages.encode(messages.Ping(conn_id=b"conn.me"))),
    "publish": (f"{SUBJECTS.publish}.foo", pub_msg(b"g", b"foo", b"data", conn_id=b"conn.me")),
}


def test_a_delivery_can_be_made_to_read_as_a_heartbeat() -> None:
    # Why it matters: sequence, channel and reply of a message are the type, server and data of a
    # heartbeat.
    forged = messages.encode(
        messages.MsgProto(sequence=3, subject=b"channel", reply=b"2026-01-01T00:00:00Z")
    )
    assert decode_heartbeat(forged) is not None


@pytest.mark.parametrize("subject", SERVERS)
def test_a_delivery_never_leaves_to_a_subject_of_the_servers(
    subject: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(inbox=subject)
    driver.offer(b"forged")
    out = driver.run()
    assert len(pub_acks(out)) == 1
    assert [message for message in out if message.subject == subject] == []
    assert "is not a subject for clients" in capfd.readouterr().err


@pytest.mark.parametrize("subject", SERVERS)
def test_a_heartbeat_is_never_asked_on_a_subject_of_the_servers(subject: bytes) -> None:
    second = 1_000_000_000
    driver = Driver(options=BrokerOptions(hb_interval=second, hb_timeout=second, hb_fail_count=3))
    request = messages.ConnectRequest(
        client_id=b"me", heartbeat_inbox=subject, conn_id=b"c", protocol=1
    )
    driver.call("_STAN.discover.tc", messages.encode(request))
    assert [message for message in driver.wait(10) if message.subject == subject] == []


def state_of(driver: Driver) -> tuple[object, ...]:
    counts = driver.broker.counts()
    return counts["clients"], counts["total_msgs"], len(driver.broker.by_sid)


@pytest.mark.parametrize("reply", SERVERS)
@pytest.mark.parametrize("kind", REQUESTS)
def test_no_request_is_answered_or_carried_out_that_wants_its_answer_among_servers(
    kind: str, reply: bytes
) -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(inbox=b"in.me")
    before = state_of(driver)
    driver.frame(*REQUESTS[kind], reply)
    # What cannot be decoded is answered, too.
    driver.frame(REQUESTS[kind][0], b"\x12\x7fcut", reply)
    assert driver.run() == []
    assert state_of(driver) == before
    assert driver.broker.malformed.totals == {kind: 2}


@pytest.mark.parametrize("reply", CLIENTS)
@pytest.mark.parametrize("kind", REQUESTS)
def test_every_other_reply_subject_gets_its_answer(kind: str, reply: bytes) -> None:
    driver = Driver()
    driver.connect()
    driver.subscribe(inbox=b"in.me")
    driver.frame(*REQUESTS[kind], reply)
    assert [out.subject for out in driver.run() if out.subject == reply] == [reply]
    assert driver.broker.malformed.totals == {}


@pytest.mark.parametrize("reply", [b"find.me.tc", b"find.me.tc.pings"])
def test_a_discovery_subject_of_the_operators_choice_is_a_servers_too(reply: bytes) -> None:
    subjects = Subjects.for_cluster("tc", "find.me")
    store = MemoryStore()
    broker = Broker(store, subjects, BrokerOptions(), Nuid())
    broker.recover(store.recover(), 1, 1)
    payload = pub_msg(b"g", b"foo", b"data", conn_id=b"nobody")
    frame = b"MSG _STAN.pub.tc.foo %d %b %d\r\n%b\r\n" % (
        c.SID_PUBLISH,
        reply,
        len(payload),
        payload,
    )
    assert broker.feed(frame, 0, len(frame), 1, 1) == len(frame)
    assert bytes(broker.replies) == b""
    assert broker.malformed.totals == {"publish": 1}
    assert not subjects.is_inbox(reply)


def test_every_attack_of_the_page_names_a_test_that_runs_or_says_what_to_do() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = page.partition("## What somebody on NATS can do")[2]
    named = re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", table)
    assert len(named) >= 8
    assert [why for test in named if (why := wrong_with(test))] == []
