"""The monitoring sections of both READMEs: what they ask for is asked of a server, and the pages
are compared.

The server is in the state that the documents show: a client that publishes, subscribers on two
channels, a durable that goes offline. Counts of messages and clients are those of the documents'
benchmark and differ.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from tests.ft.client import StanClient
from tests.processes import READY, Stage
from tests.reference.documents import V05, V10, differences, missing_lines
from tests.reference.moved import Moved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.certificates import Certificates
    from tests.processes import Server
    from tests.reference.documents import Document

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ONLINE = {
    "serverz": "serverz",
    "storez": "storez",
    "clients": "clientsz?limit=1&offset=1",
    "clients with subscriptions": "clientsz?limit=1&offset=1&subs=1",
    "a client": "clientsz?client=me&subs=1",
    "channels": "channelsz",
    "one channel of two": "channelsz?limit=1&offset=1",
    "channels with subscriptions": "channelsz?limit=1&offset=0&subs=1",
    "a channel": "channelsz?channel=foo",
    "a channel with subscriptions": "channelsz?channel=foo&subs=1",
}
OFFLINE = "a durable that is offline"

#: Block of the README -> what it shows.
PAGES_V10 = {
    **dict(zip(range(23, 33), ONLINE, strict=True)),
    33: "a channel with subscriptions",
    34: OFFLINE,
}

PAGES_V05 = dict(zip(range(11, 21), ONLINE, strict=True))
PAGES = [(V10, *page) for page in PAGES_V10.items()] + [(V05, *page) for page in PAGES_V05.items()]


def start(moved: Moved) -> Server:
    (command,) = V10.lines(21)
    return moved.start(command, add=["-a", "127.0.0.1", "-p", str(moved.port(4222))])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the server answered, by what was asked."""
    stage = Stage(tmp_path_factory.mktemp("pages"))
    try:
        yield asked(start(Moved(stage)))
    finally:
        stage.end()


def asked(server: Server) -> dict[str, Any]:
    server.wait_for(READY)
    clients = {
        name: StanClient(server.port, name)
        for name in ("benchmark-pub-0", "benchmark-sub-0", "me", "me2")
    }
    for client in clients.values():
        client.connect()
    me = clients["me"]
    me.subscribe(b"bar")
    me.subscribe(b"foo", durable=b"dur")
    subscriptions = [
        (clients[name], clients[name].subscribe(b"foo"))
        for name in ("benchmark-sub-0", "me", "me2")
    ]
    clients["benchmark-pub-0"].publish(b"foo", *(b"%d" % n for n in range(100)))
    for client, subscription in subscriptions:
        client.nats.pump(lambda: subscription.has(100), "all messages")  # noqa: B023 - awaited here
    for client in clients.values():
        client.settle_acks()
    found = {what: get(server, path) for what, path in ONLINE.items()}
    me.close()
    found[OFFLINE] = get(server, "channelsz?channel=foo&subs=1")
    for name, client in clients.items():
        if name != "me":
            client.nats.close()
    return found


def get(server: Server, path: str) -> Any:
    status, body = server.get(f"/streaming/{path}")
    assert status == 200, body
    return json.loads(body)


@V10.example(*PAGES_V10)
@V05.example(*PAGES_V05)
@pytest.mark.parametrize(("readme", "block", "what"), PAGES)
def test_a_page_has_the_documented_keys_and_values(
    pages: dict[str, Any], readme: Document, block: int, what: str
) -> None:
    assert differences(readme.json(block), pages[what]) == []


def test_the_counts_of_a_page_are_those_of_what_was_done(pages: dict[str, Any]) -> None:
    serverz = pages["serverz"]
    assert [serverz[key] for key in ("clients", "subscriptions", "channels", "total_msgs")] == [
        4,
        5,
        2,
        100,
    ]
    assert pages["clients"]["total"] == 4
    assert [pages["a channel"][key] for key in ("msgs", "first_seq", "last_seq")] == [100, 1, 100]
    assert [sub["last_sent"] for sub in pages["a channel with subscriptions"]["subscriptions"]] == [
        100
    ] * 4


@V10.example(19)
def test_every_page_takes_the_name_of_a_function_that_is_called_with_it(moved: Moved) -> None:
    server = start(moved)
    server.wait_for(READY)
    found = re.search(r"'http://localhost:8222(/[^?]+)\?callback=\?'", V10[19])
    assert found is not None
    # What jQuery makes of the question mark.
    status, body = server.get(f"{found[1]}?callback=jQuery123")
    assert status == 200
    assert body.startswith(b"jQuery123({")
    assert body.rstrip(b"\n").endswith((b"})", b"});"))


@V10.example(20)
@pytest.mark.parametrize("flag", ["-m", "--http_port", "-ms", "--https_port"])
def test_each_flag_of_monitoring_opens_the_pages(
    moved: Moved, certificates: Certificates, flag: str
) -> None:
    assert flag in shlex.split(V10[20].replace(",", " "))
    tls = ["-tls", "-tlscert", certificates.server.cert, "-tlskey", certificates.server.key]
    tls += ["-tls_client_cacert", certificates.ca.cert]
    words = [flag, str(moved.port(8222)), "-a", "127.0.0.1", "-p", str(moved.port(4222))]
    secure = "s" in flag.removeprefix("--http_port")
    server = moved.start("nats-streaming-server", add=[*words, *(tls if secure else [])])
    server.wait_for(READY)
    scheme = "https" if secure else "http"
    assert f"[INF] Starting {scheme} monitor on 127.0.0.1:{server.monitor}" in server.lines()
    assert (server.get("/streaming/serverz")[0] == 200) is not secure


@V10.example(21, 22)
@V05.example(9, 10)
def test_the_start_tells_of_the_pages(moved: Moved) -> None:
    server = start(moved)
    server.wait_for(READY)
    assert V05.lines(9) == V10.lines(21)
    documented = [line for line in V10.lines(22) + V05.lines(10) if line != "(...)"]
    # In no order: pages of ours are served by the streaming server, which starts behind the NATS
    # server.
    for line in documented:
        assert missing_lines([line], server.lines()) == []
    status, body = server.get("/streaming")
    assert (status, b"serverz" in body) == (200, True)
