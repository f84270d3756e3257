"""An answer that came in time counts, also if it waits for its turn in the queue of answers."""

from __future__ import annotations

from ftstan.broker.request_queue import ANSWERS
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver, connect_request


def test_a_client_that_answered_in_time_keeps_its_id_however_many_answers_came_before() -> None:
    driver = Driver()
    for n in range(2 * ANSWERS):
        driver.connect(b"c%d" % n, alive=False)
    driver.connect(b"me", alive=False)
    first = driver.broker.clients.get(b"me")
    # The heartbeats of all of them are out, ...
    asked = [out for out in driver.wait(32) if out.subject.startswith(b"hb.c")]
    assert len(asked) >= 2 * ANSWERS
    # ... and somebody asks for the id of one.
    driver.frame(SUBJECTS.discovery, connect_request(b"me", b"hb.2", b"c2"), b"r2")
    probe = next(out for out in driver.run() if out.subject == b"hb.me")
    # All answer at once, in 0.1 s; storage is busy for a little more than half a second.
    for out in asked[-2 * ANSWERS :]:
        driver.frame(out.reply, b"")
    driver.frame(probe.reply, b"")
    driver.clock.advance(0.6)
    answers = [out for out in driver.run() if out.subject == b"r2"]
    assert driver.broker.clients.get(b"me") is first
    assert [messages.parse(messages.ConnectResponse, out.payload).error for out in answers] == [
        b"stan: clientID already registered"
    ]
