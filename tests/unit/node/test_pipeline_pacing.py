"""Deliveries are written no faster than the NATS server reads, for acks wait behind them."""

from __future__ import annotations

from ftstan.nats.pulse import Pulse
from ftstan.nats.sendwindow import NARROWEST, WIDEST
from tests.unit.node.test_pipeline_pause import Everything, serving

_PONG = 4


def busy(node: Everything) -> None:
    """Deliver as much as a turn may, in each turn."""

    def conclude() -> None:
        node.output_size = max(node.budget, 0)
        node.deliveries = bytes(node.output_size)

    node.has_work = node.more = True
    node.on_commit = conclude


def pings(node: Everything) -> int:
    return node.wire.count(b"PING\r\n")


def test_a_nats_server_that_does_not_read_gets_no_more_deliveries_and_nobody_spins() -> None:
    node, server = serving()
    server.most_delivered = 1 << 30
    busy(node)
    for _ in range(20):
        server.turn(readable=False)
    assert node.budget == -1
    assert 0 < sum(map(len, node.wire)) <= WIDEST
    assert server.timeout() > 0
    # What clients ask for goes on.
    node.done.clear()
    server.turn(readable=True)
    assert "apply" in node.done
    assert "commit" in node.done


def test_deliveries_go_on_when_it_has_read() -> None:
    node, server = serving()
    server.most_delivered = 1 << 30
    busy(node)
    for _ in range(3):
        server.turn(readable=False)
    assert node.budget == -1
    node.on_commit = lambda: None
    node.output_size = 0
    node.link_events.extend([(_PONG, b"")] * pings(node))
    server.turn(readable=True)
    assert node.budget > 0
    assert server.timeout() == 0


def test_the_slower_it_reads_the_less_is_on_its_way() -> None:
    node, server = serving()
    # Else it would be given up for its silence.
    server._pulse = Pulse(node.clock.mono(), 60.0)
    server.most_delivered = 1 << 30
    busy(node)
    for _ in range(20):
        node.clock.advance(0.5)
        server.turn(readable=True)
    node.wire.clear()
    node.link_events.extend([(_PONG, b"")] * 20)
    server.turn(readable=True)
    assert 0 < sum(map(len, node.wire)) <= NARROWEST + len(b"PING\r\n")


def test_its_answers_to_pieces_say_nothing_about_subscriptions() -> None:
    node, server = serving()
    server.most_delivered = 1 << 30
    server.open_link()
    node.wire.clear()
    busy(node)
    server.turn(readable=False)
    assert (pings(node), server.ready) == (1, False)
    for _ in range(2):
        node.link_events.append((_PONG, b""))
        server.turn(readable=True)
        assert server.ready
