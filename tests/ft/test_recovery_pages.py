"""What the pages of a real server say while it recovers a store that is there."""

from __future__ import annotations

import http
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.ft.client import StanClient
from tests.ft.hung import Hanging
from tests.processes import HOST, PATIENCE_S, READY, Server, until

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes

CHANNELS = [b"orders.%d" % n for n in range(5)]
NAMES = [name.decode() for name in CHANNELS]
#: Pages of what is being recovered.
ASKED = (
    "storez",
    "clientsz",
    "clientsz?client=me",
    "channelsz",
    "channelsz?subs=1",
    "channelsz?channel=orders.4&subs=1",
)


def ask(server: Server, page: str) -> tuple[int, str | None, Any]:
    """Status, ``Retry-After`` and the page, or its text if it is an error."""
    connection = http.client.HTTPConnection(HOST, server.monitor, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"/streaming/{page}")
        answer = connection.getresponse()
        body = answer.read().decode()
    finally:
        connection.close()
    good = answer.status == http.HTTPStatus.OK
    return answer.status, answer.getheader("Retry-After"), json.loads(body) if good else body


def told(server: Server) -> dict[str, Any]:
    """What the pages say of the node, each in its way."""
    page = server.serverz()
    metrics = server.metrics()
    (state,) = [s.labels["state"] for s in metrics["ftstan_state"].samples if s.value]
    (phase,) = [s.labels["phase"] for s in metrics["ftstan_phase"].samples if s.value]
    own = json.loads(server.get("/streaming/ftz")[1])
    assert (own["state"], own["phase"]) == (page["state"], phase) == (state, phase)
    return {
        "state": state,
        "phase": phase,
        "page": {key: page[key] for key in ("ft_phase", "recovering") if key in page},
        "serving": metrics["ftstan_serving"].samples[0].value,
        "health": [server.get(path)[0] for path in ("/livez", "/readyz", "/active", "/standby")],
        "isFTActive": server.ft_status,
    }


@pytest.mark.parametrize("in_group", [False, True])
def test_until_a_server_serves_no_page_says_that_it_does_or_denies_what_is_stored(
    stage: Stage, in_group: bool
) -> None:
    nats = stage.nats()
    start = stage.member if in_group else stage.file_server
    first = start("first", "-ns", nats.url)
    first.wait_for(READY)
    client = StanClient(nats.port)
    client.connect()
    for channel in CHANNELS:
        client.publish(channel, b"one", b"two")
    client.subscribe(CHANNELS[-1], durable=b"reader")
    first.kill()

    storage = Hanging(stage.directory, channels=2)
    server = start("second", "-ns", nats.url, wrap=storage.wrap)
    server.wait_for("Recovering the state...")
    # A server that stands alone opens its pages beside its recovery.
    until(lambda: server.get("/streaming/serverz")[0] == http.HTTPStatus.OK, "pages")
    until(lambda: server.serverz().get("recovering") == {"channels": 2, "of": 5}, "two channels")
    assert told(server) == {
        "state": "FT_STANDBY",
        "phase": "recovering",
        "page": {"ft_phase": "recovering", "recovering": {"channels": 2, "of": 5}},
        "serving": 0,
        "health": [200, 503, 503, 503],
        "isFTActive": 204,
    }
    with ThreadPoolExecutor(len(ASKED)) as visitors:
        answers = list(visitors.map(lambda page: ask(server, page), ASKED))
    line = "This server does not serve yet: recovering (2 of 5 channels)\n"
    assert answers == [(503, "1", line)] * len(ASKED)

    # Who goes on asking sees nothing but refusals, and then all of it.
    seen: dict[str, list[tuple[int, str | None, Any]]] = {page: [] for page in ASKED}

    def insist(page: str) -> Any:
        while not seen[page] or seen[page][-1][0] == http.HTTPStatus.SERVICE_UNAVAILABLE:
            seen[page].append(ask(server, page))
        status, _, values = seen[page][-1]
        assert status == http.HTTPStatus.OK, seen[page]
        return values

    with ThreadPoolExecutor(len(ASKED)) as visitors:
        asking = [visitors.submit(insist, page) for page in ASKED]
        storage.answer()
        store, clients, one_client, names, channels, one = [
            asked.result(PATIENCE_S) for asked in asking
        ]
    assert store["total_msgs"] == 10
    assert [client["id"] for client in clients["clients"]] == ["me"] == [one_client["id"]]
    assert names["names"] == NAMES
    assert [channel["msgs"] for channel in channels["channels"]] == [2] * 5
    assert (one["last_seq"], one["subscriptions"][0]["durable_name"]) == (2, "reader")

    until(lambda: server.get("/active")[0] == http.HTTPStatus.OK, "the server to serve")
    assert told(server) == {
        "state": "FT_ACTIVE" if in_group else "STANDALONE",
        "phase": "active",
        "page": {"ft_phase": "active"} if in_group else {},
        "serving": 1,
        "health": [200, 200, 200, 503],
        "isFTActive": 200 if in_group else 204,
    }
