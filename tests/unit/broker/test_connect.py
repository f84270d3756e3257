"""Connecting, the probe of a client whose id is asked for again, pings, and closing a
connection.
"""

from __future__ import annotations

import pytest

from ftstan.wire import messages
from tests.compat.driver import (
    SUBJECTS,
    Driver,
    Out,
    connect_request,
    deliveries,
    pub_acks,
    pub_msg,
    sequences,
)

INVALID_ID = b"stan: invalid clientID: only alphanumeric and `-` or `_` characters allowed"
TAKEN = b"stan: clientID already registered"


def connect(driver: Driver, payload: bytes) -> messages.ConnectResponse:
    answer = driver.call(SUBJECTS.discovery, payload)
    assert answer is not None
    return messages.parse(messages.ConnectResponse, answer)


def again(driver: Driver, client_id: bytes = b"me", inbox: bytes = b"hb.second") -> bytes:
    """Ask for a client id that is taken.

    Gives the reply subject, on which nothing may have come yet.
    """
    reply = driver.reply()
    driver.frame(SUBJECTS.discovery, connect_request(client_id, inbox, b"conn.second"), reply)
    driver.run()
    return reply


def errors(out: list[Out], reply: bytes) -> list[bytes]:
    return [
        messages.parse(messages.ConnectResponse, o.payload).error for o in out if o.subject == reply
    ]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"\x0a\x7fshort", b"stan: invalid connection request"),
        (b"\x08\x01", b"stan: invalid connection request"),
        (connect_request(b"me", b""), b"stan: invalid connection request"),
        (b"", b"stan: invalid connection request"),
        (connect_request(b"not/me", b""), b"stan: invalid connection request"),
        (connect_request(b"", b"hb"), INVALID_ID),
        (connect_request(b"not.me", b"hb"), INVALID_ID),
        (connect_request(b"me\n", b"hb"), INVALID_ID),
        (connect_request("mé".encode(), b"hb"), INVALID_ID),
    ],
)
def test_a_refused_connect_answers_with_the_error_alone(payload: bytes, error: bytes) -> None:
    driver = Driver()
    answer = driver.call(SUBJECTS.discovery, payload)
    assert answer == messages.encode(messages.ConnectResponse(error=error))
    assert driver.broker.counts()["clients"] == 0


def test_a_server_in_lame_duck_mode_registers_nobody_and_serves_those_it_has() -> None:
    driver = Driver()
    driver.connect()
    driver.broker.draining = True
    for client_id in (b"another", b"me"):
        answer = connect(driver, connect_request(client_id, b"hb.other", b"conn.other"))
        assert answer.error == b"stan: server is in lame duck mode, connect to another one"
    assert driver.broker.counts()["clients"] == 1
    assert [ack.error for ack in driver.publish(b"still")] == [b""]


def test_a_client_of_protocol_one_is_told_subjects_and_pings() -> None:
    answer = Driver().call(SUBJECTS.discovery, connect_request(b"me", b"hb"))
    assert answer == (
        b"\x0a\x0c_STAN.pub.tc\x12\x0c_STAN.sub.tc\x1a\x0e_STAN.unsub.tc\x22\x0e_STAN.close.tc"
        b"\x32\x11_STAN.subclose.tc\x3a\x17_STAN.discover.tc.pings\x40\x05\x48\x03\x50\x01"
    )


def test_the_server_listens_without_queue_groups_and_to_no_subject_of_pooled_acks() -> None:
    driver = Driver()
    driver.connect()
    inboxes = [driver.subscribe(inbox=b"in.%d" % i, queue=b"g") for i in range(2)]
    lines = [line.split(b" ") for line in driver.broker.subscribe_lines().splitlines()]
    assert {len(words) for words in lines} == {3}
    assert {words[1] for words in lines} == {
        *inboxes,
        driver.broker.inbox_prefix + b"*",
        b"_STAN.pub.tc.>",
        *(
            b"_STAN.%b" % name
            for name in (b"discover.tc", b"discover.tc.pings", b"sub.tc", b"unsub.tc")
        ),
        *(b"_STAN.%b" % name for name in (b"subclose.tc", b"close.tc")),
    }


def test_a_client_of_protocol_zero_is_told_nothing_about_pings() -> None:
    answer = Driver().call(SUBJECTS.discovery, connect_request(b"me", b"hb", protocol=0))
    assert answer == (
        b"\x0a\x0c_STAN.pub.tc\x12\x0c_STAN.sub.tc\x1a\x0e_STAN.unsub.tc\x22\x0e_STAN.close.tc"
        b"\x32\x11_STAN.subclose.tc\x50\x01"
    )


def test_a_connect_without_reply_subject_registers_the_client() -> None:
    driver = Driver()
    driver.frame(SUBJECTS.discovery, connect_request(b"me", b"hb.me", b"conn.me"))
    assert driver.run() == []
    assert driver.ping(b"conn.me") == b""


# ---- the id is taken
# -----------------------------------------------------------------------------------------------


def test_a_taken_id_is_refused_when_its_client_answers_the_probe() -> None:
    driver = Driver()
    driver.connect()
    reply = again(driver)
    probe = next(o for o in driver.out if o.subject == b"hb.me")
    assert probe.payload == b""
    assert errors(driver.out, reply) == [TAKEN]
    assert driver.ping(b"conn.me") == b""


def test_a_client_that_does_not_answer_the_probe_in_half_a_second_is_replaced() -> None:
    driver = Driver()
    driver.connect(alive=False)
    reply = again(driver)
    assert errors(driver.wait(0.499), reply) == []
    assert errors(driver.wait(0.001), reply) == [b""]
    assert driver.ping(b"conn.me") == b"client has been replaced or is no longer registered"
    assert driver.ping(b"conn.second") == b""


def test_a_client_is_replaced_at_once_when_nobody_listens_on_its_heartbeat_inbox() -> None:
    driver = Driver()
    driver.connect(alive=False)
    reply = again(driver)
    driver.status(driver.out[-1].reply)
    assert errors(driver.run(), reply) == [b""]
    assert errors(driver.wait(1), reply) == []


def test_a_probe_blocks_neither_other_ids_nor_publishes() -> None:
    driver = Driver()
    driver.connect(alive=False)
    again(driver)
    driver.connect(b"other")
    assert driver.publish(b"x", client_id=b"other")[0].error == b""
    assert driver.publish(b"y")[0].error == b""


def test_a_second_probe_of_one_id_is_refused_at_once() -> None:
    driver = Driver()
    driver.connect(alive=False)
    first = again(driver)
    third = again(driver, inbox=b"hb.third")
    assert errors(driver.out, third) == [TAKEN]
    assert errors(driver.wait(1), first) == [b""]
    assert sum(o.subject == b"hb.me" for o in driver.out) == 1


def test_an_id_under_probe_is_refused_even_if_its_client_has_closed_meanwhile() -> None:
    driver = Driver()
    driver.connect(alive=False)
    first = again(driver)
    assert driver.close() == b""
    third = again(driver, inbox=b"hb.third")
    assert errors(driver.out, third) == [TAKEN]
    assert errors(driver.wait(1), first) == [b""]
    assert driver.ping(b"conn.second") == b""


def repeat(driver: Driver, *, times: int = 1) -> bytes:
    """The very request of ``Driver.connect`` so often in one batch; gives the reply subject."""
    reply = driver.reply()
    for _ in range(times):
        driver.frame(SUBJECTS.discovery, connect_request(b"me", b"hb.me", b"conn.me"), reply)
    return reply


def test_a_connect_that_comes_again_is_answered_again_and_its_client_is_not_probed() -> None:
    driver = Driver()
    reply = repeat(driver, times=2)
    assert errors(driver.run(), reply) == [b"", b""]
    driver.subscribe(inbox=b"plain")
    driver.subscribe(inbox=b"durable", durable=b"dur")
    # Its client does not answer heartbeats, as before the first answer has reached it.
    assert errors(driver.wait(1), reply) == []
    later = repeat(driver)
    assert errors(driver.wait(1), later) == [b""]
    assert [o for o in driver.out if o.subject == b"hb.me"] == []
    driver.publish(b"x")
    assert sequences(driver.out, b"plain") == sequences(driver.out, b"durable") == [1]


@pytest.mark.parametrize(
    ("inbox", "conn_id"), [(b"hb.other", b"conn.me"), (b"hb.me", b"conn.other"), (b"hb.me", b"")]
)
def test_only_the_same_connection_id_and_heartbeat_inbox_make_it_the_same_connect(
    inbox: bytes, conn_id: bytes
) -> None:
    driver = Driver()
    driver.connect()
    assert connect(driver, connect_request(b"me", inbox, conn_id)).error == TAKEN


def test_two_connects_without_a_connection_id_are_not_the_same() -> None:
    driver = Driver()
    driver.connect(conn_id=b"")
    assert connect(driver, connect_request(b"me", b"hb.me")).error == TAKEN


def test_a_connect_that_comes_again_during_its_own_probe_is_answered_once_when_that_ends() -> None:
    driver = Driver()
    driver.connect(alive=False)
    first = again(driver)
    second = again(driver)
    out = driver.wait(1)
    assert (errors(out, first), errors(out, second)) == ([], [b""])
    assert driver.ping(b"conn.second") == b""
    assert sum(o.subject == b"hb.me" for o in driver.out) == 1
    assert [o for o in driver.out if o.subject == b"hb.second"] == []


def test_the_replaced_client_is_closed_like_by_a_close_request() -> None:
    driver = Driver()
    driver.connect(alive=False)
    plain = driver.subscribe(inbox=b"plain")
    durable = driver.subscribe(inbox=b"durable", durable=b"dur")
    again(driver)
    driver.wait(0.5)
    assert plain not in driver.subs.values()
    assert durable not in driver.subs.values()
    assert driver.publish(b"x")[0].error == b"stan: invalid publish request"
    driver.frame(
        SUBJECTS.publish + ".foo",
        pub_msg(b"g", b"foo", b"x", conn_id=b"conn.second"),
        b"_STAN.acks.x",
    )
    out = driver.run()
    assert pub_acks(out)[0].error == b""
    assert sequences(out, b"plain") == sequences(out, b"durable") == []
    driver.subscribe(inbox=b"resumed", durable=b"dur")
    assert sequences(driver.out, b"resumed") == [1]


def test_requests_that_name_only_the_client_id_act_on_the_client_that_replaced_it() -> None:
    driver = Driver()
    driver.connect(alive=False)
    again(driver)
    driver.wait(0.5)
    assert driver.close() == b""
    assert driver.ping(b"conn.second") == b"client has been replaced or is no longer registered"


# ---- pings
# --------------------------------------------------------------------------------------------------


def test_a_ping_of_a_registered_connection_gets_an_empty_answer() -> None:
    driver = Driver()
    driver.connect()
    assert driver.call(SUBJECTS.pings, messages.encode(messages.Ping(conn_id=b"conn.me"))) == b""


@pytest.mark.parametrize("payload", [b"", b"\x0a\x7f", b"\x08\x01"])
def test_a_ping_that_is_empty_or_does_not_decode_gets_no_answer(payload: bytes) -> None:
    driver = Driver()
    driver.connect()
    assert driver.call(SUBJECTS.pings, payload) is None


@pytest.mark.parametrize(
    "payload", [messages.encode(messages.Ping(conn_id=b"who")), b"\x12\x01x", b"\x0a\x00"]
)
def test_a_ping_of_an_unknown_or_missing_connection_says_that_it_was_replaced(
    payload: bytes,
) -> None:
    driver = Driver()
    driver.connect()
    answer = driver.call(SUBJECTS.pings, payload)
    assert answer == b"\x0a\x33client has been replaced or is no longer registered"


# ---- closing
# --------------------------------------------------------------------------------------------------


def test_closing_a_connection_gets_an_empty_answer_and_ends_its_subscriptions() -> None:
    driver = Driver()
    driver.connect()
    driver.connect(b"other")
    ack_inbox = driver.subscribe()
    answer = driver.call(SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"me")))
    assert answer == b""
    assert ack_inbox not in driver.subs.values()
    driver.publish(b"x", client_id=b"other")
    assert deliveries(driver.out) == []
    assert driver.broker.counts()["subscriptions"] == 0
    assert driver.publish(b"y")[0].error == b"stan: invalid publish request"


def test_closing_an_unknown_or_undecodable_connection_is_an_error() -> None:
    driver = Driver()
    assert driver.close(b"nobody") == b"stan: unknown clientID"
    assert driver.call(SUBJECTS.close, b"\x08\x01") == b"\x0a\x1bstan: invalid close request"
    assert driver.call(SUBJECTS.close, b"") == b"\x0a\x16stan: unknown clientID"


def test_what_was_published_before_a_close_in_the_same_batch_is_stored_and_acked() -> None:
    driver = Driver()
    driver.connect()
    reply = driver.reply()
    driver.offer(b"last words")
    driver.frame(SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"me")), reply)
    out = driver.run()
    assert [a.error for a in pub_acks(out)] == [b""]
    assert [o.payload for o in out if o.subject == reply] == [b""]
    assert driver.broker.counts()["total_msgs"] == 1


def test_an_id_is_free_as_soon_as_its_client_has_closed() -> None:
    driver = Driver()
    driver.connect()
    driver.close()
    assert connect(driver, connect_request(b"me", b"hb.new")).error == b""
    assert [o for o in driver.out if o.subject == b"hb.me"] == []
