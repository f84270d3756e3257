"""What a queue member leaves to another one comes to it in a moment, whoever leaves meanwhile."""

from __future__ import annotations

from tests.compat.driver import Driver, sequences


def test_members_that_come_and_go_do_not_keep_back_what_was_left_to_one_that_stays() -> None:
    driver = Driver()
    driver.connect(b"pub")
    driver.connect(b"stays")
    driver.subscribe(client_id=b"stays", inbox=b"stays", queue=b"g", durable=b"d", ack_wait=60)
    for n in range(60):
        name = b"m%d" % n
        driver.connect(name)
        driver.subscribe(client_id=name, inbox=name, queue=b"g", durable=b"d", ack_wait=60)
        driver.publish(b"%d" % (2 * n), b"%d" % (2 * n + 1), client_id=b"pub")
        driver.wait(0.05)
        # It has acknowledged nothing: that is left to the one that stays.
        driver.close(name)
    got = set(sequences(driver.out, b"stays"))
    # Three seconds have passed, and a tenth of a second is what it should take; some are passed on
    # to members that are about to leave, and come back.
    assert len(got) >= 20, sorted(got)
