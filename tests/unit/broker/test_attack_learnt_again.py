"""A client that has closed stays closed, whatever list of another partition is read meanwhile."""

from __future__ import annotations

from ftstan.broker.broker import BrokerOptions
from ftstan.broker.partition import Partition
from ftstan.wire import messages
from tests.compat.driver import SUBJECTS, Driver


def test_a_client_that_closes_is_not_learnt_again_when_it_has_closed() -> None:
    driver = Driver(options=BrokerOptions(partition=Partition([b"foo"])))
    driver.connect(b"c")
    # So many that its end takes some turns.
    for n in range(200):
        driver.subscribe(client_id=b"c", inbox=b"in.%d" % n)
    info = driver.broker.clients.get(b"c").info  # type: ignore[union-attr]
    driver.frame(
        SUBJECTS.close, messages.encode(messages.CloseRequest(client_id=b"c")), b"_INBOX.closed"
    )
    driver.turn()
    assert driver.broker.clients.get(b"c") is None
    # What another partition has said a moment before it heard of the close is read now.
    driver.broker.connections.learn([info])
    driver.run()
    closed = [out for out in driver.out if out.subject == b"_INBOX.closed"]
    assert messages.parse(messages.CloseResponse, closed[0].payload).error == b""
    assert driver.broker.clients.get(b"c") is None
