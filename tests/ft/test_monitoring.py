"""Monitoring of real servers: health of a pair through a takeover, metrics, and pages that wait for
nobody.
"""

from __future__ import annotations

import http
import json
import subprocess
import threading
import urllib.request
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import ftstan
from ftstan.base.errors import ConfigError
from ftstan.bridge.metrics import SERIES
from ftstan.config.options import MonitorOptions
from ftstan.ft.subjects import group_subject
from tests.ft.client import NatsConnection, StanClient
from tests.ft.operator import Operator
from tests.processes import CLUSTER, GROUP, HOST, Server, Stage, free_ports, until
from tests.unit.monitor.test_alerts import used

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path


T = TypeVar("T")

pytestmark = pytest.mark.processes


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    NatsConnection.close_all()
    stage.end()


def value(server: Server, name: str, **labels: str) -> float:
    """The one sample with these labels."""
    (found,) = [
        s.value for s in server.metrics()[name].samples if labels.items() <= s.labels.items()
    ]
    return found


def health(server: Server) -> list[int]:
    """What load balancers see: live, ready, active, standby."""
    return [server.get(path)[0] for path in ("/livez", "/readyz", "/active", "/standby")]


def test_load_balancers_follow_a_takeover_and_metrics_tell_of_it(stage: Stage) -> None:
    active, standby = stage.routed_pair()
    until(lambda: health(standby) == [200, 200, 503, 200], "the standby to be ready")
    assert health(active) == [200, 200, 200, 503]
    client = StanClient(active.port)
    client.connect()
    client.publish(b"orders", b"one", b"two")
    assert [value(server, "ftstan_standing_by") for server in (active, standby)] == [0, 1]
    assert value(active, "ftstan_nats_connected", connection="general") == 1
    assert value(standby, "ftstan_nats_connected", connection="ft") == 1
    assert value(active, "ftstan_epoch") == 1
    assert value(standby, "ftstan_epoch") == 0
    assert value(active, "ftstan_received_messages") == 2
    assert value(active, "ftstan_channel_messages", channel="orders") == 2
    assert value(active, "ftstan_commit_seconds", le="+Inf") >= 1
    until(lambda: value(active, "ftstan_probe_seconds", le="+Inf") >= 1, "a probe of storage")
    assert (
        0
        < value(active, "ftstan_datastore_free_bytes")
        <= value(active, "ftstan_datastore_size_bytes")
    )
    for server in (active, standby):
        _, body = server.get("/metrics")
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=body, capture_output=True, check=False
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
    active.kill()
    until(lambda: health(standby) == [200, 200, 200, 503], "the takeover")
    assert value(standby, "ftstan_epoch") == 2
    taken = standby.metrics()["ftstan_takeovers"].samples
    assert sum(sample.value for sample in taken) == 1
    assert value(standby, "ftstan_stored_messages") == 2


def test_every_metric_that_the_alerts_read_is_on_the_pages_of_a_pair(stage: Stage) -> None:
    pair = stage.routed_pair()
    client = StanClient(pair[0].port)
    client.connect()
    client.publish(b"orders", b"one")

    def exported() -> set[str]:
        return {
            sample.name
            for server in pair
            for family in server.metrics().values()
            for sample in family.samples
        }

    # Those of bridges are on pages of their own (tests/unit/monitor/test_alerts.py).
    wanted = used() - set(SERIES)
    # A probe of storage comes after a second, and so does what a standby reads ahead.
    until(lambda: wanted <= exported(), "every metric of the alert rules")


def test_a_paused_standby_is_alive_and_not_ready(stage: Stage) -> None:
    active, standby = stage.routed_pair()
    until(lambda: health(standby) == [200, 200, 503, 200], "the standby to be ready")
    operator = Operator(f"nats://{HOST}:{standby.port}", stage.store)
    server = standby.serverz()["server_id"]
    assert operator.change("pause", server).status == 0
    until(lambda: health(standby) == [200, 503, 503, 503], "the standby to hold back")
    assert value(standby, "ftstan_paused") == 1
    assert operator.change("resume", server).status == 0
    until(lambda: health(standby) == [200, 200, 503, 200], "the standby to be ready again")
    assert health(active) == [200, 200, 200, 503]


def test_the_owner_tells_who_is_there_and_a_standby_says_nothing_unasked(stage: Stage) -> None:
    active, standby = stage.routed_pair()
    wire = NatsConnection(standby.port)
    heard: list[tuple[bytes, dict[str, Any]]] = []
    wire.listen(
        group_subject(CLUSTER, GROUP), lambda m: heard.append((m.reply, json.loads(m.payload)))
    )

    def told() -> list[dict[str, Any]]:
        return next(
            (
                m["members"]
                for _, m in reversed(heard)
                if m["type"] == "members" and len(m["members"]) == 2
            ),
            [],
        )

    wire.pump(told, "the owner to tell of two members")
    servers = {server.serverz()["server_id"]: server for server in (active, standby)}
    assert {row["server"]: row["monitor"] for row in told()} == {
        server: node.url for server, node in servers.items()
    }
    assert {row["state"] for row in told()} == {"FT_ACTIVE", "FT_STANDBY"}
    owner = active.serverz()["server_id"]
    for reply, message in heard:
        # A question comes from the owner, and so does all else.
        assert message["type"] == "who" if reply else message["server"] == owner
    page = json.loads(standby.get("/dashboard/data")[1])
    assert {member["monitor"] for member in page["members"]} == {active.url, standby.url}
    assert page["channels"] == page["subscriptions"] == []


def test_an_advertised_address_is_what_others_are_told(stage: Stage) -> None:
    server = stage.server("alone", "-http_advertise", "stan.example:80")
    until(lambda: server.get("/active")[0] == http.HTTPStatus.OK, "the server")
    assert json.loads(server.get("/streaming/ftz")[1])["monitor"] == "http://stan.example:80"


def test_a_message_that_nobody_acknowledges_is_seen_as_pending_stalled_lagging_and_sent_again(
    stage: Stage,
) -> None:
    server = stage.server("alone")
    until(lambda: server.get("/active")[0] == http.HTTPStatus.OK, "the server")
    client = StanClient(server.port)
    client.connect()
    client.publish(b"orders", *(b"%d" % i for i in range(5)))
    subscription = client.subscribe(b"orders", max_in_flight=2, ack_wait=1, acks=False)
    client.nats.pump(
        lambda: any(message.redelivered for message in subscription.received),
        "a message sent again",
    )
    assert value(server, "ftstan_pending_messages") == 2
    assert value(server, "ftstan_stalled_subscriptions") == 1
    assert value(server, "ftstan_channel_lag_messages", channel="orders") == 3
    assert value(server, "ftstan_redelivered_messages") >= 1


def test_a_link_that_was_made_again_is_counted(stage: Stage) -> None:
    nats = stage.nats()
    server = stage.server("alone", "-ns", nats.url)
    until(lambda: server.get("/active")[0] == http.HTTPStatus.OK, "the server")
    port = nats.port
    nats.kill()
    until(
        lambda: server.get("/readyz")[0] == http.HTTPStatus.SERVICE_UNAVAILABLE,
        "the server to notice",
    )
    assert value(server, "ftstan_nats_connected", connection="general") == 0
    assert server.get("/livez")[0] == http.HTTPStatus.OK
    stage.nats("again", port)
    until(lambda: server.get("/readyz")[0] == http.HTTPStatus.OK, "the server to be back")
    assert value(server, "ftstan_nats_reconnects", connection="general") == 1


# ---- in this process, where a test can hold the data plane
# ---------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ftstan.StanServer]:
    (port,) = free_ports(1)
    options = ftstan.ServerOptions(
        monitor=MonitorOptions(host=HOST, http_port=port),
        limits=ftstan.StoreLimits(channel=ftstan.ChannelLimits(max_subs=0)),
    )
    started = ftstan.run_server_with(options, ftstan.NatsOptions(host=HOST, port=-1))
    yield started
    NatsConnection.close_all()
    started.stop()


def page(server: ftstan.StanServer, path: str) -> Any:
    with urllib.request.urlopen(
        f"http://{HOST}:{server.options.monitor.http_port}{path}", timeout=60
    ) as answer:
        return json.load(answer)


def connected(server: ftstan.StanServer) -> StanClient:
    client = StanClient(int(server.client_url.rpartition(":")[2]))
    client.connect()
    return client


def test_no_page_waits_for_a_data_plane_that_is_busy(server: ftstan.StanServer) -> None:
    client = connected(server)
    client.publish(b"orders", b"one")
    client.subscribe(b"orders")
    go_on = threading.Event()
    held = threading.Event()
    node = server._node
    assert node is not None

    def hold() -> None:
        held.set()
        go_on.wait(120)

    done = node.plane.call(hold)
    held.wait(60)
    try:
        assert page(server, "/streaming/serverz")["total_msgs"] == 1
        assert page(server, "/streaming/storez")["total_msgs"] == 1
        assert page(server, "/streaming/clientsz?subs=1")["clients"][0]["subs_count"] == 1
        assert len(page(server, "/streaming/channelsz?subs=1")["channels"][0]["subscriptions"]) == 1
        assert not done.done()
    finally:
        go_on.set()
        done.result(60)


def test_a_long_page_visits_the_data_plane_in_portions(server: ftstan.StanServer) -> None:
    client = connected(server)
    for _ in range(600):
        client.subscribe(b"orders")
    node = server._node
    assert node is not None
    visits: list[object] = []
    call = node.plane.call

    def noted(function: Callable[[], T], *, may_lose: bool = False) -> Future[T]:
        visits.append(function)
        return call(function, may_lose=may_lose)

    node.plane.call = noted  # type: ignore[method-assign]
    found = page(server, "/streaming/channelsz?channel=orders&subs=1")
    assert len(found["subscriptions"]) == found["subs_count"] == 600
    # One for the channel, three for its subscriptions.
    assert len(visits) == 4


# ---- starts that are refused
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monitor", "text"),
    [
        (
            MonitorOptions(host=HOST, http_port=1, https_port=2),
            "Can't start monitoring: can't specify both HTTP (1) and HTTPs (2) ports",
        ),
        (
            MonitorOptions(host=HOST, https_port=2),
            "Can't start monitoring: TLS cert and key required for HTTPS",
        ),
    ],
)
def test_ports_that_do_not_go_together_refuse_the_start_in_the_words_of_the_original(
    monitor: MonitorOptions, text: str
) -> None:
    with pytest.raises(ConfigError) as error:
        ftstan.run_server_with(
            ftstan.ServerOptions(monitor=monitor), ftstan.NatsOptions(host=HOST, port=-1)
        )
    assert error.value.text == text
    assert error.value.hint
