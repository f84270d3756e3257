"""Publishing: what is refused and how, what is stored, and in which order acks and deliveries
leave.
"""

from __future__ import annotations

import pytest

from ftstan.broker.broker import BrokerOptions
from ftstan.wire import codec, messages
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

INVALID = b"stan: invalid publish request"
WRONG_SUBJECT = b"stan: invalid publish request: published on the subject of another channel"


def send(
    driver: Driver, payload: bytes, *, suffix: str = "foo", reply: bytes = b"_STAN.acks.x"
) -> list[Out]:
    driver.frame(f"{SUBJECTS.publish}.{suffix}", payload, reply)
    return driver.run()


def stored(driver: Driver, channel: bytes = b"foo") -> list[bytes]:
    """The payloads of a channel, as a new subscriber gets them."""
    inbox = driver.reply()
    driver.subscribe(channel, inbox=inbox)
    return [d.data for d in deliveries(driver.out, inbox)]


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


@pytest.mark.parametrize(
    ("payload", "guid"),
    [
        (b"", b""),
        (b"\x12\x7fcut", b""),
        (pub_msg(b"", b"foo", b"x", conn_id=b"conn.me"), b""),
        (pub_msg(b"g", b"", b"x", conn_id=b"conn.me"), b"g"),
        (pub_msg(b"g", b"a/b", b"x", conn_id=b"conn.me"), b"g"),
        (pub_msg(b"g", b".foo", b"x", conn_id=b"conn.me"), b"g"),
        (pub_msg(b"g", b"foo.", b"x", conn_id=b"conn.me"), b"g"),
        (pub_msg(b"g", b"foo..bar", b"x", conn_id=b"conn.me"), b"g"),
        (pub_msg(b"g", b"foo.*", b"x", conn_id=b"conn.me"), b"g"),
        (pub_msg(b"g", b"fo>o", b"x", conn_id=b"conn.me"), b"g"),
        (pub_msg(b"g", b"foo", b"x"), b"g"),
        (pub_msg(b"g", b"foo", b"x", client_id=b"nobody"), b"g"),
        (pub_msg(b"g", b"foo", b"x", conn_id=b"nobody"), b"g"),
        (pub_msg(b"g", b"foo", b"x", client_id=b"me", conn_id=b"nobody"), b"g"),
        # The channel has a wrong wire type, behind a good guid.
        (b"\x12\x01g\x18\x01", b"g"),
    ],
)
def test_an_invalid_publish_is_refused_with_its_guid(
    driver: Driver, payload: bytes, guid: bytes
) -> None:
    assert pub_acks(send(driver, payload)) == [PubAck(guid, INVALID)]
    assert driver.broker.counts()["channels"] == 0


def test_an_invalid_publish_without_reply_subject_is_dropped_in_silence(driver: Driver) -> None:
    assert send(driver, pub_msg(b"g", b"", b"x", conn_id=b"conn.me"), reply=b"") == []


def test_a_valid_publish_without_reply_subject_is_stored(driver: Driver) -> None:
    assert send(driver, pub_msg(b"g", b"foo", b"x", conn_id=b"conn.me"), reply=b"") == []
    assert stored(driver) == [b"x"]


@pytest.mark.parametrize("payload", [b"\x08\x03\x12\x06server\x1a\x01x", b"\x08\x04"])
def test_a_control_message_on_the_publish_subject_is_ignored(
    driver: Driver, payload: bytes
) -> None:
    assert send(driver, payload) == []


@pytest.mark.parametrize(
    "channel", [b"admin.secret", b"orders.ne", b"orders.new2", b"rders.new", b"x.orders.new"]
)
def test_a_publish_on_the_subject_of_another_channel_is_refused_counted_and_makes_none(
    driver: Driver, channel: bytes
) -> None:
    payload = pub_msg(b"g", channel, b"x", conn_id=b"conn.me")
    assert pub_acks(send(driver, payload, suffix="orders.new")) == [PubAck(b"g", WRONG_SUBJECT)]
    assert len(driver.broker.channels) == 0
    assert driver.broker.malformed.totals == {"publish": 1}


def test_a_channel_that_is_there_takes_nothing_from_the_subject_of_another_either(
    driver: Driver,
) -> None:
    assert driver.publish(b"1", channel=b"admin") == [PubAck(b"1")]
    send(driver, pub_msg(b"2", b"admin", b"2", conn_id=b"conn.me"), suffix="orders")
    assert stored(driver, b"admin") == [b"1"]


def test_with_a_known_connection_id_the_client_id_is_not_looked_at(driver: Driver) -> None:
    for client_id in (b"", b"nobody", b"me"):
        assert pub_acks(
            send(driver, pub_msg(b"g", b"foo", b"x", client_id=client_id, conn_id=b"conn.me"))
        ) == [PubAck(b"g")]


def test_a_client_without_connection_id_publishes_under_its_client_id() -> None:
    driver = Driver()
    driver.call(SUBJECTS.discovery, connect_request(b"old", b"hb.old", protocol=0))
    assert pub_acks(send(driver, pub_msg(b"g", b"foo", b"x", client_id=b"old"))) == [PubAck(b"g")]


@pytest.mark.parametrize("channel", [b"foo", b"\xff\xfe", "ö.ü".encode(), b"a" * 200])
def test_a_channel_name_may_hold_any_bytes_that_the_rules_do_not_name(
    driver: Driver, channel: bytes
) -> None:
    assert driver.publish(b"g", channel=channel) == [PubAck(b"g")]


def test_what_is_stored_is_what_is_delivered(driver: Driver) -> None:
    driver.subscribe()
    request = messages.PubMsg(
        guid=b"g", subject=b"foo", reply=b"answer.here", data=b"\0\xff", conn_id=b"conn.me"
    )
    wall = driver.clock.wall_ns()
    out = send(driver, messages.encode(request))
    message = next(o for o in out if o.subject == b"in")
    assert message.reply == b""
    assert codec.decode_msg_proto(message.payload) == (
        1,
        b"foo",
        b"answer.here",
        b"\0\xff",
        wall,
        False,
        0,
    )


def test_sequences_run_per_channel_and_refusals_consume_none(driver: Driver) -> None:
    driver.subscribe()
    driver.subscribe(b"bar", inbox=b"bar")
    driver.publish(b"a")
    send(driver, pub_msg(b"g", b"foo", b"x", conn_id=b"nobody"))
    driver.publish(b"b", channel=b"bar")
    driver.publish(b"c")
    assert sequences(driver.out) == [1, 2]
    assert sequences(driver.out, b"bar") == [1]


def test_timestamps_of_a_channel_never_go_back_when_the_clock_does(driver: Driver) -> None:
    driver.subscribe()
    driver.publish(b"a")
    driver.clock.advance(-5)
    driver.publish(b"b")
    driver.clock.advance(10)
    driver.publish(b"c")
    stamps = [codec.decode_msg_proto(o.payload)[4] for o in driver.out if o.subject == b"in"]
    assert stamps == sorted(stamps)
    assert stamps[0] == stamps[1] < stamps[2]


def test_acks_come_in_the_order_of_arrival_over_all_channels_behind_the_deliveries(
    driver: Driver,
) -> None:
    driver.subscribe()
    driver.subscribe(b"bar", inbox=b"bar")
    for data, channel in ((b"1", b"foo"), (b"2", b"bar"), (b"3", b"foo")):
        driver.offer(data, channel=channel)
    out = driver.run()
    assert [a.guid for a in pub_acks(out)] == [b"1", b"2", b"3"]
    assert [o.subject.startswith(b"_STAN.acks") for o in out] == [False] * 3 + [True] * 3


def test_refusals_overtake_the_acks_of_their_batch(driver: Driver) -> None:
    for i in range(6):
        driver.offer(b"%d" % i, client_id=b"nobody" if i % 2 else b"me")
    assert [a.guid for a in pub_acks(driver.run())] == [b"1", b"3", b"5", b"0", b"2", b"4"]


def test_too_many_channels_is_an_error_for_publishers_and_subscribers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    driver = Driver(options=BrokerOptions(max_channels=2))
    driver.connect()
    assert [driver.publish(b"x", channel=c)[0].error for c in (b"a", b"b", b"c", b"a")] == [
        b"",
        b"",
        b"too many channels",
        b"",
    ]
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"c", max_in_flight=1, ack_wait_in_secs=1
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    assert answer == messages.encode(messages.SubscriptionResponse(error=b"too many channels"))
    written = capfd.readouterr().err
    assert '[ERR] STREAM: Creating channel "c" failed: too many channels\n' in written


def test_a_zero_byte_in_a_channel_name_is_what_making_its_directory_would_say(
    driver: Driver,
) -> None:
    assert driver.publish(b"x", channel=b"a\0b") == [PubAck(b"x", b"mkdir a\0b: invalid argument")]
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"a\0b", max_in_flight=1, ack_wait_in_secs=1
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request)) or b""
    assert (
        messages.parse(messages.SubscriptionResponse, answer).error
        == b"mkdir a\0b: invalid argument"
    )
    assert driver.broker.counts()["channels"] == 0


def test_a_new_channel_may_not_differ_from_another_in_case_alone(driver: Driver) -> None:
    driver.publish(b"x", channel=b"foo.Bar")
    clash = (
        b'rejecting channel "FOO.bar" because channel "foo.Bar" alreay exists (different cases '
        b"not allowed)"
    )
    assert driver.publish(b"x", channel=b"FOO.bar") == [PubAck(b"x", clash)]
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"FOO.bar", max_in_flight=1, ack_wait_in_secs=1
    )
    answer = driver.call(SUBJECTS.subscribe, messages.encode(request))
    assert answer == messages.encode(messages.SubscriptionResponse(error=clash))
    assert driver.publish(b"y", channel=b"foo.Bar") == [PubAck(b"y")]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("straße.ÄÖÜ", "Straße.äöü"),
        ("ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ("канал", "Канал"),
        ("foo", "FOO"),
    ],
)
def test_names_that_differ_in_case_alone_clash_in_every_script(
    driver: Driver, name: str, other: str
) -> None:
    assert driver.publish(b"a", channel=name.encode()) == [PubAck(b"a")]
    (refused,) = driver.publish(b"b", channel=other.encode())
    assert refused.error.decode() == (
        f'rejecting channel "{other}" because channel "{name}" alreay exists (different cases '
        "not allowed)"
    )


def test_letters_that_only_look_alike_do_not_clash(driver: Driver) -> None:
    for name in ("strasse", "straße", "a\u0308", "ä", "\udcff".encode("utf-8", "surrogateescape")):
        channel = name if isinstance(name, bytes) else name.encode()
        assert driver.publish(channel, channel=channel) == [PubAck(channel)]


def test_while_the_owner_is_leaving_every_publish_that_it_answers_is_noted(driver: Driver) -> None:
    send(driver, pub_msg(b"before", b"foo", b"x", conn_id=b"conn.me"))
    driver.broker.taken = []
    send(driver, pub_msg(b"good", b"foo", b"x", conn_id=b"conn.me"))
    send(driver, pub_msg(b"of an old client", b"foo", b"x", client_id=b"me"))
    send(driver, pub_msg(b"refused", b"a/b", b"x", conn_id=b"conn.me"))
    send(driver, pub_msg(b"long", b"c" * 256, b"x", conn_id=b"conn.me"))
    send(driver, pub_msg(b"nowhere", b"", b"x", conn_id=b"conn.me"))
    *named, long, nowhere = driver.broker.taken
    assert named == [
        (b"conn.me\0good", b"foo"),
        (b"me\0of an old client", b"foo"),
        (b"conn.me\0refused", b"a/b"),
    ]
    # Known by all of their bytes: a successor would take them for those of an older release.
    assert [(len(key), key[:1], channel) for key, channel in (long, nowhere)] == [
        (17, b"\0", b"")
    ] * 2


def test_what_the_former_owner_answered_is_neither_stored_nor_answered_again(
    driver: Driver,
) -> None:
    driver.broker.answered = {(b"conn.me\0g1", b"foo"): 1}
    assert send(driver, pub_msg(b"g1", b"foo", b"x", conn_id=b"conn.me")) == []
    assert pub_acks(send(driver, pub_msg(b"g2", b"foo", b"y", conn_id=b"conn.me"))) == [
        PubAck(b"g2", b"")
    ]
    assert pub_acks(send(driver, pub_msg(b"g1", b"foo", b"z", client_id=b"me"))) == [
        PubAck(b"g1", b"")
    ]
    assert stored(driver) == [b"y", b"z"]


def test_a_guid_that_the_former_owner_answered_is_new_in_another_channel(driver: Driver) -> None:
    driver.broker.answered = {(b"conn.me\0g1", b"orders"): 1}
    driver.broker.taken = []
    assert driver.publish(b"g1", channel=b"audit") == [PubAck(b"g1", b"")]
    assert driver.publish(b"g1", channel=b"orders") == []
    assert driver.broker.taken == [(b"conn.me\0g1", b"audit")]


def test_an_owner_of_an_older_release_has_answered_a_guid_in_whatever_channel(
    driver: Driver,
) -> None:
    driver.broker.answered = {(b"conn.me\0g1", b""): 1}
    assert driver.publish(b"g1", channel=b"orders") == []
    assert driver.publish(b"g1", channel=b"orders") == [PubAck(b"g1", b"")]


def test_a_publish_that_the_former_owner_answered_twice_is_left_out_twice(driver: Driver) -> None:
    driver.broker.answered = {(b"conn.me\0g1", b"foo"): 2}
    for data in (b"x", b"x"):
        assert send(driver, pub_msg(b"g1", b"foo", data, conn_id=b"conn.me")) == []
    assert pub_acks(send(driver, pub_msg(b"g1", b"foo", b"again", conn_id=b"conn.me"))) == [
        PubAck(b"g1", b"")
    ]
    assert stored(driver) == [b"again"]


def test_a_publish_that_came_twice_is_noted_twice(driver: Driver) -> None:
    driver.broker.taken = []
    send(driver, pub_msg(b"g1", b"foo", b"x", conn_id=b"conn.me"))
    send(driver, pub_msg(b"g1", b"foo", b"x", conn_id=b"conn.me"))
    assert driver.broker.taken == [(b"conn.me\0g1", b"foo")] * 2
