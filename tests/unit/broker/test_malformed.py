"""What is malformed gets a line in the log: which kind, whose, why and how many, never more than
the limit allows.
"""

from __future__ import annotations

import pytest

from ftstan.broker.malformed import Malformed
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, connect_request, pub_msg
from tests.uncoded import uncoded

PUBLISH = f"{SUBJECTS.publish}.foo"
HEAD = "STREAM: malformed"


def lines(text: str) -> list[str]:
    """The lines about malformed messages, without what stands before them."""
    return [HEAD + line.partition(HEAD)[2] for line in uncoded(text).splitlines() if HEAD in line]


def subscribe_request(**changes: bytes | int) -> bytes:
    fields: dict[str, bytes | int] = {
        "client_id": b"me",
        "subject": b"foo",
        "inbox": b"in",
        "max_in_flight": 1,
    }
    request = fields | {"ack_wait_in_secs": 1} | changes
    return messages.encode(messages.SubscriptionRequest(**request))  # type: ignore[arg-type]


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    made.connect()
    return made


def told(driver: Driver, capfd: pytest.CaptureFixture[str]) -> list[str]:
    capfd.readouterr()
    driver.broker.tick()
    return lines(capfd.readouterr().err)


@pytest.mark.parametrize(
    ("subject", "payload", "line"),
    [
        (
            SUBJECTS.discovery,
            b"\x0a\x7fcut",
            "connect: {n}client unknown: undecodable ConnectRequest: truncated",
        ),
        (
            SUBJECTS.discovery,
            connect_request(b"you", b""),
            'connect: {n}client "you": no heartbeat inbox',
        ),
        (
            SUBJECTS.discovery,
            connect_request(b"a b", b"hb"),
            (
                'connect: {n}client "a b": stan: invalid clientID: only alphanumeric and `-` or '
                "`_` "
                "characters allowed"
            ),
        ),
        (PUBLISH, b"\x0a\x01x\x12\x7fcut", 'publish: {n}client "x": undecodable PubMsg'),
        (PUBLISH, pub_msg(b"", b"foo", b"", client_id=b"me"), 'publish: {n}client "me": no guid'),
        (
            PUBLISH,
            pub_msg(b"g", b"a/b", b"", client_id=b"me"),
            'publish: {n}client "me": no legal channel name',
        ),
        (
            PUBLISH,
            pub_msg(b"g", b"foo", b"", client_id=b"you"),
            'publish: {n}client "you": unknown client id',
        ),
        (
            PUBLISH,
            pub_msg(b"g", b"foo", b"", conn_id=b"old"),
            "publish: {n}client unknown: unknown connection id",
        ),
        (
            SUBJECTS.subscribe,
            b"\x08\x01",
            "subscribe: {n}client unknown: undecodable SubscriptionRequest: wrong wire",
        ),
        (
            SUBJECTS.subscribe,
            subscribe_request(subject=b"*"),
            'subscribe: {n}client "me": stan: invalid subject',
        ),
        (
            SUBJECTS.unsubscribe,
            b"\x08\x01",
            "unsubscribe: {n}client unknown: undecodable UnsubscribeRequest",
        ),
        (
            SUBJECTS.sub_close,
            b"\x08\x01",
            "subscription close: {n}client unknown: undecodable UnsubscribeRequest",
        ),
        (SUBJECTS.close, b"\x08\x01", "close: {n}client unknown: undecodable CloseRequest"),
        (SUBJECTS.pings, b"", "ping: {n}client unknown: empty"),
        (SUBJECTS.pings, b"\x08\x01", "ping: {n}client unknown: undecodable Ping"),
    ],
)
def test_a_malformed_request_is_told_with_its_kind_its_client_and_the_reason(
    driver: Driver, capfd: pytest.CaptureFixture[str], subject: str, payload: bytes, line: str
) -> None:
    driver.frame(subject, payload)
    driver.run()
    (found,) = told(driver, capfd)
    assert found.startswith(
        f"{HEAD} {line.format(n='1 since the last such line, the first one: ')}"
    )


def test_acks_that_make_no_sense_are_told_with_the_client_of_their_subscription(
    driver: Driver, capfd: pytest.CaptureFixture[str]
) -> None:
    ack_inbox = driver.subscribe()
    driver.frame(ack_inbox, b"\xff")
    driver.ack(ack_inbox, 1, channel=b"another")
    assert told(driver, capfd) == [
        f'{HEAD} ack: 2 since the last such line, the first one: client "me": undecodable Ack'
    ]
    assert driver.broker.malformed.totals == {"ack": 2}


def test_a_strange_message_on_the_servers_own_inbox_is_told(
    driver: Driver, capfd: pytest.CaptureFixture[str]
) -> None:
    driver.frame(driver.broker.inbox_prefix + b"x", b"")
    driver.run()
    (line,) = told(driver, capfd)
    assert line.endswith(
        "heartbeat answer: 1 since the last such line, the first one: client unknown: not one of "
        "our heartbeats"
    )


def test_nothing_is_told_of_what_is_well_formed(
    driver: Driver, capfd: pytest.CaptureFixture[str]
) -> None:
    ack_inbox = driver.subscribe()
    driver.publish(b"x")
    driver.ack(ack_inbox, 1)
    driver.ack(ack_inbox, 1)
    driver.ping(b"conn.me")
    driver.ping(b"another")
    driver.call(SUBJECTS.subscribe, subscribe_request(client_id=b"nobody"))
    driver.leave(SUBJECTS.unsubscribe, b"nothing")
    driver.frame(PUBLISH, b"\x08\x04")
    driver.close()
    driver.close()
    assert told(driver, capfd) == []


def test_a_flood_is_a_line_at_a_falling_rate_that_counts_the_others(
    driver: Driver, capfd: pytest.CaptureFixture[str]
) -> None:
    found = []
    for second in range(64):
        for _ in range(100):
            driver.frame(
                PUBLISH, b"\xff" if second % 2 else pub_msg(b"", b"foo", b"", client_id=b"me")
            )
        driver.wait(1)
        found += [(second, line) for line in told(driver, capfd)]
    assert [second for second, _ in found] == [0, 1, 3, 7, 15, 31, 63]
    counts = [int(line.removeprefix(f"{HEAD} publish: ").partition(" ")[0]) for _, line in found]
    assert counts == [100, 100, 200, 400, 800, 1600, 3200]
    assert found[1][1].endswith("client unknown: undecodable PubMsg")
    assert found[2][1].endswith('client "me": no guid')
    assert driver.broker.malformed.totals == {"publish": 6400}


def test_one_kind_does_not_hide_another(driver: Driver, capfd: pytest.CaptureFixture[str]) -> None:
    for subject in (PUBLISH, SUBJECTS.pings, PUBLISH):
        driver.frame(subject, b"\xff")
    driver.run()
    assert [line.split(" since")[0] for line in told(driver, capfd)] == [
        f"{HEAD} publish: 2",
        f"{HEAD} ping: 1",
    ]


def test_a_client_id_cannot_forge_a_line_or_fill_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    malformed = Malformed()
    malformed.note(
        "publish", b'x"\n[1] [ERR] STREAM: all is lost\x1b[2J' + b"\xff" * 5000, "no guid"
    )
    malformed.tell(0.0)
    text = capfd.readouterr().err
    assert text.count("\n") == 1
    assert r'client "x\"\n[1] [ERR] STREAM: all is lost\x1b[2J\xff' in text
    assert len(text) < 500
