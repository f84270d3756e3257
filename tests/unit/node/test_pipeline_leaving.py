"""An owner that leaves in favour of another: what comes too late for whoever waited ends nobody."""

from __future__ import annotations

import pytest

from ftstan.base.errors import NatsError
from ftstan.nats.link import ConnectionLostError
from tests.unit.node.test_pipeline_pause import serving

_PONG = 4


def test_what_was_answered_is_named_when_nats_has_given_everything() -> None:
    node, server = serving()
    node.taken = [(b"conn\0guid", b"orders")]
    left = server.leave()
    server.turn(readable=True)
    assert not left.done()
    node.link_events.append((_PONG, b""))
    server.turn(readable=True)
    assert left.result(0) == [(b"conn\0guid", b"orders")]


def test_who_leaves_takes_no_orders_of_operators_from_then_on() -> None:
    node, server = serving()
    server.open_link()
    node.link_events.append((_PONG, b""))
    server.turn(readable=True)
    took = [server.ready]
    left = server.leave()
    took.append(server.ready)
    for goes_on in (True, False):
        node.goes_on = goes_on
        node.link_events.append((_PONG, b""))
        server.turn(readable=True)
        took.append(server.ready)
        assert left.done() is not goes_on
    assert took == [True, False, False, False]


def test_who_leaves_keeps_nothing_back_for_clients_that_are_late() -> None:
    node, server = serving()
    server.leave()
    assert node.done[:2] == ["give_up", "send"]


def test_a_commit_that_outlasts_the_patience_of_the_stop_does_not_end_the_process() -> None:
    node, server = serving()
    left = server.leave()

    def slow() -> None:
        # The stop has waited for two seconds by now, and goes on without the successor.
        assert left.cancel()

    node.on_commit = slow
    node.link_events.append((_PONG, b""))
    server.turn(readable=True)
    assert "conclude" in node.done
    node.on_commit = lambda: None
    server.turn(readable=True)


def test_requests_that_wait_do_not_keep_a_successor_waiting() -> None:
    """Thousands of clients may connect at once.

    Only publishes have to be answered before another one goes on.
    """
    node, server = serving()
    node.goes_on = True
    left = server.leave()
    server.turn(readable=True)
    node.link_events.append((_PONG, b""))
    server.turn(readable=True)
    assert not left.done()
    assert "give_up_waiting" not in node.done
    node.done.clear()
    node.clock.advance(0.25)
    server.turn(readable=True)
    assert left.done()
    # Publishes whose channels are still to be made are refused with the last of the answers.
    assert node.done[:4] == ["apply", "give_up_waiting", "timers", "stage"]


def test_readers_with_a_long_way_to_go_do_not_keep_a_successor_waiting() -> None:
    node, server = serving()
    node.budget = 1 << 20
    node.more = True
    left = server.leave()
    assert node.budget == 0
    node.link_events.append((_PONG, b""))
    server.turn(readable=True)
    assert left.done()


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_link_that_breaks_while_leaving_is_lost_as_always(*, cancelled: bool) -> None:
    node, server = serving()
    left = server.leave()
    if cancelled:
        left.cancel()
    node.lost = ConnectionLostError("nats: connection lost")
    server.turn(readable=True)
    assert "link_lost" in node.done
    if not cancelled:
        assert isinstance(left.exception(0), NatsError)


@pytest.mark.parametrize("breaks", ["before the end", "after the end"])
def test_who_has_handed_over_never_subscribes_again(breaks: str) -> None:
    node, server = serving()
    server.leave()
    if breaks == "after the end":
        node.link_events.append((_PONG, b""))
        server.turn(readable=True)
    else:
        node.lost = ConnectionLostError("nats: connection lost")
        server.turn(readable=True)
    node.connected = False
    node.done.clear()
    for _ in range(5):
        node.clock.advance(1)
        server.turn(readable=True)
    assert not {"connect", "send", "apply", "subscribe_lines"} & set(node.done)
    assert server.fileno() == -1
    with pytest.raises(NatsError, match="handed over"):
        server.open_link()
