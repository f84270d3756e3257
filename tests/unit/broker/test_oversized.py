"""A message that another NATS server carries and ours would not: it is passed over, and the link
stays.
"""

from __future__ import annotations

import pytest

from ftstan.base.errors import WireError
from ftstan.broker.views import counters
from tests.compat.driver import Driver

CHANNEL = b"foo"


def connected(max_payload: int = 1024) -> Driver:
    driver = Driver()
    driver.connect()
    driver.broker.max_payload = max_payload
    return driver


def fed(driver: Driver, pieces: list[bytes]) -> int:
    """Feed as the data plane does: what is not applied stays in the buffer.

    Returns the most that ever stayed.
    """
    kept = b""
    most = 0
    for piece in pieces:
        kept += piece
        at = driver.broker.feed(bytearray(kept), 0, len(kept), 1, 1)
        kept = kept[at:]
        most = max(most, len(kept))
    return most


def oversized(size: int) -> bytes:
    return b"MSG _STAN.pub.x.foo 1 _INBOX.r %d\r\n" % size + b"x" * size + b"\r\n"


@pytest.mark.parametrize("piece", [1 << 20, 65536, 4093])
def test_it_is_passed_over_with_no_more_memory_than_a_read_takes(piece: int) -> None:
    driver = connected()
    stream = oversized(300_000) + b"PING\r\n" + oversized(70_000) + b"PONG\r\n"
    assert fed(driver, [stream[at : at + piece] for at in range(0, len(stream), piece)]) < 64
    assert [kind for kind, _ in driver.broker.link_events] == [3, 4]
    assert driver.broker.malformed.totals == {"message": 2}
    assert counters(driver.broker).refused == {"malformed message": 2}


def test_every_cut_of_the_stream_is_the_same() -> None:
    stream = oversized(66_600) + b"PING\r\n"
    for at in (
        1,
        20,
        35,
        36,
        37,
        38,
        1000,
        len(stream) - 9,
        len(stream) - 8,
        len(stream) - 7,
        len(stream) - 6,
    ):
        driver = connected()
        fed(driver, [stream[:at], stream[at:]])
        assert [kind for kind, _ in driver.broker.link_events] == [3], at


def test_what_is_published_behind_it_is_stored() -> None:
    driver = connected()
    driver.raw(oversized(200_000))
    assert driver.publish(b"kept")[0].error == b""


def test_a_message_that_is_longer_than_it_says_is_a_broken_stream() -> None:
    driver = connected()
    with pytest.raises(WireError, match="longer than its first line says"):
        fed(driver, [b"MSG a 1 70000\r\n" + b"x" * 70_002])


def test_nobody_waits_for_the_end_of_a_message_that_no_server_sends() -> None:
    driver = connected()
    with pytest.raises(WireError, match="not the NATS protocol"):
        fed(driver, [b"MSG a 1 %d\r\n" % (1 << 40)])


def test_refused_publishes_are_counted_by_reason() -> None:
    driver = connected(max_payload=300)
    driver.publish(b"x" * 400)
    driver.publish(b"x", channel=b"ft.epoch")
    assert counters(driver.broker).refused["publish too large"] == 1
