"""Who gets little does not wait for those who get much: what counts is bytes, not turns."""

from __future__ import annotations

from tests.compat.driver import Driver, sequences

LARGE = 20_000
READERS = 900
MESSAGES = 3
#: Of 300 bytes, a turn: less than a 900th of what one turn delivers.
SMALL = 10


def test_a_reader_of_small_messages_does_not_wait_for_many_readers_of_large_ones() -> None:
    driver = Driver()
    driver.connect()
    for n in range(READERS):
        driver.subscribe(channel=b"large", inbox=b"large.%d" % n, max_in_flight=10_000)
    driver.subscribe(channel=b"small", inbox=b"small", max_in_flight=10_000)
    turns = 0
    left = READERS * MESSAGES
    seen = 0
    while left:
        turns += 1
        if turns <= MESSAGES:
            driver.offer(bytes(LARGE), channel=b"large")
        for _ in range(SMALL):
            driver.offer(bytes(300), channel=b"small")
        driver.turn()
        left = READERS * MESSAGES - sum(out.subject.startswith(b"large.") for out in driver.out)
        seen = max(seen, turns * SMALL - len(sequences(driver.out, b"small")))
    assert turns > 10
    assert seen <= 2 * SMALL
    for n in range(READERS):
        assert sequences(driver.out, b"large.%d" % n) == list(range(1, MESSAGES + 1))


def test_who_had_nothing_to_get_for_long_has_saved_nothing_up() -> None:
    driver = Driver()
    driver.connect()
    for name in (b"a", b"b", b"idle"):
        driver.subscribe(channel=name, inbox=name, max_in_flight=10_000)
    for _ in range(500):
        driver.offer(bytes(LARGE), channel=b"a")
        driver.offer(bytes(LARGE), channel=b"b")
    driver.turn()
    for _ in range(500):
        driver.offer(bytes(LARGE), channel=b"idle")
    before = len(driver.out)
    driver.turn()
    got = [out.subject for out in driver.out[before:] if len(out.payload) > LARGE]
    counts = [got.count(name) for name in (b"a", b"b", b"idle")]
    assert min(counts) > 0
    assert max(counts) <= 2 * min(counts) + 2
