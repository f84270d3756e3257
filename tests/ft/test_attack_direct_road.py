"""What the direct road must not change: who owns the store, what was acknowledged, and what
strangers can take from the server.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import NatsConnection, StanClient
from tests.ft.load import Load
from tests.processes import HOST, READY, children, free_ports, until, wait_for_mesh

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

FILES = 256


def direct_in(server: Server) -> int:
    """Messages of clients that it got directly."""
    return int(
        sum(
            sample.value
            for sample in server.metrics()["ftstan_client_messages"].samples
            if sample.labels["road"] == "direct" and sample.labels["direction"] == "in"
        )
    )


def joined(port: int, name: str) -> tuple[StanClient, Load]:
    client = StanClient(port, name)
    client.connect()
    load = Load(name.encode())
    load.join(client)
    return client, load


def judge(port: int, loads: dict[str, Load]) -> None:
    reader = StanClient(port, "reader")
    reader.connect()
    for name, load in loads.items():
        load.judge(reader.read_all(name.encode()))


def is_started(server: Server, times: int) -> bool:
    return server.text().count("[INF] Server is ready") >= times


def test_a_planned_hand_over_loses_and_doubles_nothing_on_either_listener(stage: Stage) -> None:
    a, b = stage.routed_pair()
    _, there = joined(a.port, "there")
    client, here = joined(b.port, "here")
    for _ in range(4):
        there.run(300)
        here.run(300)
    assert direct_in(a) > 1000
    there.press(2000)
    a.signal(signal.SIGTERM)
    here.run(1500)
    there.read_last_acks()
    assert a.status() == 143
    b.wait_until_active()
    here.run(1500)
    here.settle()
    client.nats.flush()
    assert direct_in(b) > 500
    judge(b.port, {"there": there, "here": here})
    assert here.unanswered == 0


@pytest.mark.parametrize("tap", [">", "_INBOX.>"])
def test_a_tap_on_the_active_keeps_no_client_of_another_member_from_its_answers(
    stage: Stage, tap: str
) -> None:
    a, b = stage.routed_pair()
    seen: list[bytes] = []
    taps = NatsConnection(a.port)
    taps.listen(tap, lambda arrived: seen.append(arrived.subject))
    taps.flush()
    _, there = joined(b.port, "there")
    there.run(100)
    there.settle()
    assert there.unanswered == 0
    judge(b.port, {"there": there})
    taps.flush()
    assert seen


def test_an_owner_that_was_paused_over_a_takeover_answers_nobody(stage: Stage) -> None:
    route_a, route_b = (f"nats://{HOST}:{port}" for port in free_ports(2))
    steals = ("-ft_steal_after", "3s")
    a = stage.member("a", "-cluster", route_a, "-routes", route_b, *steals)
    a.wait_until_active()
    b = stage.member("b", "-cluster", route_b, "-routes", route_a, *steals)
    b.wait_until_standing_by()
    wait_for_mesh([a, b])
    client, there = joined(a.port, "there")
    there.run(1000)
    assert direct_in(a) > 500
    a.signal(signal.SIGSTOP)
    # What lies in the sockets of a listener that stands still is read when it goes on.
    there.press(1000)
    b.wait_until_active()
    a.signal(signal.SIGCONT)
    there.read_last_acks()
    assert a.status() == 75
    assert client.acks
    judge(b.port, {"there": there})


def test_a_nats_server_that_is_killed_under_load_costs_nothing_that_was_acknowledged(
    stage: Stage,
) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    loads: dict[str, Load] = {}
    for n in range(4):
        _, load = joined(server.port, f"c{n}")
        loads[f"c{n}"] = load
        load.run(1000)
        load.press(500)
        (nats,) = children(server.pid)
        os.kill(nats, signal.SIGKILL)
        load.read_last_acks()
        until(partial(is_started, server, n + 2), "the next one")
    assert direct_in(server) > 3000
    judge(server.port, loads)


@pytest.mark.parametrize("road", ["true", "false"])
def test_a_nats_server_that_stands_still_for_a_while_keeps_its_link_and_every_publish(
    stage: Stage, road: str
) -> None:
    server = stage.file_server("server", f"-direct={road}")
    server.wait_for(READY)
    _, load = joined(server.port, "c")
    load.run(200)
    (nats,) = children(server.pid)
    os.kill(nats, signal.SIGSTOP)
    # A link of a group would be given up within 3 s; one that stands still for 5 s is replaced.
    time.sleep(4)
    os.kill(nats, signal.SIGCONT)
    load.run(200)
    load.settle()
    assert load.unanswered == 0
    assert "connection lost" not in server.text()
    assert is_started(server, 1)
    assert "reconnected" not in server.text()
    judge(server.port, {"c": load})


def test_strangers_leave_descriptors_for_storage_and_for_the_nats_server(stage: Stage) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
    client = StanClient(server.port)
    client.connect()
    client.publish(b"before", b"1")
    (nats,) = children(server.pid)
    strangers = [socket.create_connection((HOST, server.port), timeout=10) for _ in range(400)]
    try:
        until(lambda: "too many open files" in server.text(), "a refusal")
        for n in range(20):
            client.publish(b"new.%d" % n, b"1")
        os.kill(nats, signal.SIGKILL)
        server.wait_for("nats-server is running again")
    finally:
        for stranger in strangers:
            stranger.close()


def test_the_page_of_a_server_shows_the_direct_road(stage: Stage) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    assert "direct_road" in server.serverz()


def test_reloads_under_load_end_the_direct_road_bring_it_back_and_cost_nothing_acknowledged(
    stage: Stage,
) -> None:
    conf = stage.directory / "conf"
    conf.write_text("")
    server = stage.file_server("server", "-c", str(conf))
    server.wait_for(READY)
    loads: dict[str, Load] = {}

    def reload_under_load(name: str, settings: str, said: str) -> int:
        """Returns how many messages came directly behind the reload."""
        _, load = joined(server.port, name)
        loads[name] = load
        load.run(500)
        load.press(500)
        conf.write_text(settings)
        os.kill(server.pid, signal.SIGHUP)
        load.settle()
        server.wait_for(said)
        before = direct_in(server)
        load.run(500)
        return direct_in(server) - before

    assert (
        reload_under_load("refused", "max_subscriptions: 5\n", "not supported for MaxSubs") >= 500
    )
    alone = "Clients are served by the NATS server alone: "
    assert (
        reload_under_load("ended", "mappings { x: y }\n", f'{alone}the NATS server has "map') == 0
    )
    assert not server.serverz()["direct_road"]["is_direct"]
    assert reload_under_load("back", "", "Clients are served directly again") >= 500
    judge(server.port, loads)
