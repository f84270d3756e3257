"""Members whose network is cut, in both directions or in one, with the shared storage at hand all
the time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.network import NATS_PORT, NATS_URL, Network
from tests.processes import READY, STANDING_BY

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

PATIENT = ("-ft_nats_timeout", "2s")


def pair(stage: Stage, network: Network) -> tuple[Server, Server]:
    a = stage.member("a", "-ns", NATS_URL, *PATIENT, wrap=network.enter("a"))
    a.wait_for(READY)
    b = stage.member("b", "-ns", NATS_URL, *PATIENT, wrap=network.enter("b"))
    b.wait_for(STANDING_BY)
    return a, b


def client_on(network: Network, host: str, name: str = "me", port: int = NATS_PORT) -> StanClient:
    with network.on(host):
        client = StanClient(port, name)
    client.connect()
    return client


@pytest.mark.parametrize(("hears", "speaks"), [(False, False), (True, False), (False, True)])
def test_an_active_that_is_cut_off_gives_way_and_nothing_acked_is_lost(
    stage: Stage, *, hears: bool, speaks: bool
) -> None:
    network = Network(stage, ["a", "b"])
    network.nats()
    a, b = pair(stage, network)
    client = client_on(network, "hub")
    load = Load()
    load.join(client)
    load.run(1000)
    network.cut("a", hears=hears, speaks=speaks)
    assert a.status() == 75
    assert len([line for line in a.lines() if line.startswith("[FTL]") and "NATS" in line]) == 1
    b.wait_for(READY)
    load.give_up()
    load.run(500)
    network.heal("a")
    back = stage.member("a2", "-ns", NATS_URL, *PATIENT, wrap=network.enter("a"))
    back.wait_for(STANDING_BY)
    load.settle()
    load.judge(client_on(network, "hub", "reader").read_all(CHANNEL))


def test_a_standby_that_is_cut_off_takes_nothing_and_is_a_standby_again_afterwards(
    stage: Stage,
) -> None:
    network = Network(stage, ["a", "b"])
    network.nats()
    a, b = pair(stage, network)
    client = client_on(network, "hub")
    network.cut("b")
    for number in range(40):
        client.publish(CHANNEL, b"%d" % number)
        time.sleep(0.1)
    assert (a.running, b.running, "Server is active" in b.text()) == (True, True, False)
    network.heal("b")
    a.kill()
    b.wait_for(READY)
    client.publish(CHANNEL, b"after")
    assert list(client.read_to(CHANNEL, 41)) == list(range(1, 42))


def test_a_short_cut_changes_nobodys_role(stage: Stage) -> None:
    network = Network(stage, ["a", "b"])
    network.nats()
    a, b = pair(stage, network)
    client = client_on(network, "hub")
    client.publish(CHANNEL, b"before")
    network.cut("a")
    time.sleep(0.5)
    network.heal("a")
    client.publish(CHANNEL, b"after")
    assert (a.running, b.running, "Server is active" in b.text()) == (True, True, False)
    assert client.read_to(CHANNEL, 2) == {1: b"before", 2: b"after"}


def test_of_a_routed_pair_that_cannot_talk_the_owner_serves_its_side_and_the_other_takes_nothing(
    stage: Stage,
) -> None:
    network = Network(stage, ["a", "b"])
    routes = {host: f"nats://{network.addresses[host]}:6222" for host in ("a", "b")}
    a = stage.member("a", "-cluster", routes["a"], "-routes", routes["b"], wrap=network.enter("a"))
    a.wait_for(READY)
    b = stage.member("b", "-cluster", routes["b"], "-routes", routes["a"], wrap=network.enter("b"))
    b.wait_for(STANDING_BY)
    client = client_on(network, "a", port=a.port)
    client.publish(CHANNEL, b"before")
    network.cut("b")
    for number in range(40):
        client.publish(CHANNEL, b"%d" % number)
        time.sleep(0.1)
    assert (a.running, b.running, "Server is active" in b.text()) == (True, True, False)
    network.heal("b")
    a.kill()
    b.wait_for(READY)
    reader = client_on(network, "b", "reader", b.port)
    assert len(reader.read_to(CHANNEL, 41)) == 41
