"""The monitoring pages against the recorded answers of the original: same operations, same
requests, same letters.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import ftstan
from ftstan.config.options import MonitorOptions, ServerTlsOptions
from tests.compat.monitorplay import Answer, Player, ask, recorded_answer, recording, steady
from tests.ft.client import NatsConnection
from tests.processes import HOST, Stage, free_ports, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

SECOND = 1_000_000_000
OWN = ftstan.ChannelLimits(max_msgs=0, max_bytes=0, max_subs=0)
#: The ``s.conf`` of the recordings.
LIMITS = ftstan.StoreLimits(
    max_channels=50,
    channel=ftstan.ChannelLimits(max_age=86_400 * SECOND),
    channels=(
        ("foo", replace(OWN, max_msgs=10)),
        ("baz.>", replace(OWN, max_bytes=-1, max_inactivity=3600 * SECOND)),
        ("tiny", replace(OWN, max_msgs=2)),
    ),
)

#: What the recorded binary did not send yet (docs/compat/monitoring.md, CORS), and what is ours
#: alone.
OURS_BEHIND = '  "ft_phase": '
#: How clients reach the core, behind all that the original's page has.
OUR_ROAD = re.compile(r',\n  "direct_road": \{[^{}]*\}')


@contextmanager
def server(
    options: ftstan.ServerOptions | None = None, monitor: MonitorOptions | None = None, **nats: Any
) -> Iterator[tuple[ftstan.StanServer, int]]:
    """A server with a monitoring port, of HTTP unless ``monitor`` says something else."""
    (port,) = free_ports(1)
    monitor = monitor or MonitorOptions(http_port=1)
    monitor = replace(
        monitor,
        host=HOST,
        http_port=port if monitor.http_port else 0,
        https_port=port if monitor.https_port else 0,
    )
    started = ftstan.run_server_with(
        replace(options or ftstan.ServerOptions(), monitor=monitor),
        ftstan.NatsOptions(host=HOST, port=-1, **nats),
    )
    try:
        yield started, port
    finally:
        NatsConnection.close_all()
        started.stop()


def client_port(started: ftstan.StanServer) -> int:
    return int(started.client_url.rpartition(":")[2])


def compare(port: int, recorded: dict[str, Any]) -> None:
    """Every recorded request gets the recorded answer."""
    for capture in recorded["captures"]:
        request = capture["request"]
        response = capture["response"]
        answer = ask(port, request)
        if "status_line" not in response:
            # The original overflows and drops the connection; the page is that of the nearest
            # possible numbers.
            assert answer.status == "HTTP/1.1 200 OK", request
            continue
        target = request["target"]
        if "callback=a%2Eb%28%29" in target:
            # The original writes any text in front of the page.
            assert answer.status == "HTTP/1.1 400 Bad Request", request
            continue
        if not target.startswith("/streaming"):
            compare_nats(target, answer, recorded_answer(response))
        elif response.get("html"):
            compare_html(answer, response)
        else:
            compare_page(request, answer, recorded_answer(response))


def compare_page(request: dict[str, Any], answer: Answer, theirs: Answer) -> None:
    assert answer.status == theirs.status, request
    assert without_ours(steady(answer.body)) == steady(theirs.body), request
    assert answer.headers["x-content-type-options"] == "nosniff", request
    names = set(answer.headers) - {"access-control-allow-origin"}
    # The original sends it with errors alone.
    names -= {"x-content-type-options"} - set(theirs.headers)
    if "ft_phase" in answer.body or "direct_road" in answer.body:
        # More lines may be what makes it one that is sent in chunks.
        names -= {"content-length", "transfer-encoding"}
        assert names == set(theirs.headers) - {"content-length", "transfer-encoding"}, request
    else:
        assert names == set(theirs.headers), request
    assert answer.headers.get("content-type") == theirs.headers.get("content-type"), request


def without_ours(body: str) -> str:
    body = OUR_ROAD.sub("", body, count=1)
    lines = body.split("\n")
    for at, line in enumerate(lines):
        if line.startswith(OURS_BEHIND):
            del lines[at]
            lines[at - 1] = lines[at - 1].removesuffix(",")
            break
    return "\n".join(lines)


def compare_html(answer: Answer, response: dict[str, Any]) -> None:
    assert answer.status == response["status_line"]
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    if answer.body:
        links = [link for link in response["html"]["links"] if link.startswith("./")]
        places = [answer.body.index(f'href="{link}"') for link in links]
        assert places == sorted(places)


def compare_nats(target: str, answer: Answer, theirs: Answer) -> None:
    if target == "/healthz":
        # The recorded binary had an older NATS server inside.
        assert answer.body == '{"status":"ok"}'
        return
    assert (answer.status, answer.headers["content-type"]) == (
        theirs.status,
        theirs.headers["content-type"],
    ), target
    if theirs.status != "HTTP/1.1 200 OK":
        assert answer.body == theirs.body
    elif theirs.body.startswith("{"):
        assert set(json.loads(theirs.body)) - NEWER_NATS <= set(json.loads(answer.body)), target


#: Keys of the recorded NATS server that the one of today does not send, or only when they say
#: something.
NEWER_NATS = {
    "go",
    "mem",
    "cores",
    "gomaxprocs",
    "cpu",
    "http_host",
    "http_port",
    "https_port",
    "http_base_path",
} | {
    "http_req_stats",
    "config_load_time",
}


def test_a_fresh_server_answers_every_page_as_the_original() -> None:
    with server(ftstan.ServerOptions()) as (_, port):
        compare(port, recording("memory-fresh"))


@pytest.mark.parametrize(
    ("name", "store"), [("memory-workload", "MEMORY"), ("file-workload", "FILE")]
)
def test_after_the_same_operations_every_page_has_the_same_letters(
    name: str, store: str, tmp_path: Path
) -> None:
    recorded = recording(name)
    options = ftstan.ServerOptions(
        store=store, dir=str(tmp_path) if store == "FILE" else "", limits=LIMITS
    )
    with server(options) as (started, port):
        Player(client_port(started), "test-cluster").play(recorded["operations"])
        compare(port, recorded)


def test_after_a_restart_on_the_same_directory_every_page_has_the_same_letters(
    tmp_path: Path,
) -> None:
    recorded = recording("file-recovered")
    options = ftstan.ServerOptions(store="FILE", dir=str(tmp_path), limits=LIMITS)
    with server(options) as (started, _):
        Player(client_port(started), "test-cluster").play(recorded["operations"])
    with server(options) as (_, port):
        compare(port, recorded)


def test_odd_names_are_escaped_as_by_the_original() -> None:
    recorded = recording("odd-names")
    with server(ftstan.ServerOptions(cluster_id="my<&>id")) as (started, port):
        Player(client_port(started), "my<&>id").play(recorded["operations"])
        compare(port, recorded)


def test_with_an_external_nats_server_its_pages_are_those_of_one_that_nobody_uses(
    tmp_path: Path,
) -> None:
    recorded = recording("external-nats")
    with ExitStack() as stack:
        stage = Stage(tmp_path)
        stack.callback(stage.end)
        nats = stage.nats()
        _, port = stack.enter_context(
            server(ftstan.ServerOptions(nats_servers=(nats.url,), limits=LIMITS))
        )
        Player(nats.port, "test-cluster").play(recorded["operations"])
        compare(port, recorded)


def test_a_group_shows_its_store_on_the_active_and_nothing_on_the_standby(tmp_path: Path) -> None:
    options = ftstan.ServerOptions(store="FILE", dir=str(tmp_path), ft_group="ft", limits=LIMITS)
    routes = [f"nats://{HOST}:{port}" for port in free_ports(2)]
    recorded = recording("ft-active")
    with ExitStack() as later:
        standby_port = 0
        with server(options, cluster_listen=routes[0], routes=(routes[1],)) as (
            active,
            active_port,
        ):
            until(lambda: active.is_serving, "the active")
            _, standby_port = later.enter_context(
                server(options, cluster_listen=routes[1], routes=(routes[0],))
            )
            Player(client_port(active), "test-cluster").play(recorded["operations"])
            compare(active_port, recorded)
            compare(standby_port, recording("ft-standby"))
        until(lambda: ask(standby_port, FT_ACTIVE).status.endswith("200 OK"), "the takeover")
        compare(standby_port, recording("ft-standby-took-over"))


FT_ACTIVE = {"method": "GET", "target": "/streaming/isFTActive"}


def test_a_base_path_stands_in_front_of_the_nats_servers_pages_only() -> None:
    with server(monitor=MonitorOptions(http_port=1, base_path="/mon")) as (_, port):
        for capture in recording("base-path")["captures"]:
            request = capture["request"]
            theirs = recorded_answer(capture["response"])
            assert ask(port, request).status == theirs.status, request
        page = json.loads(ask(port, {"method": "GET", "target": "/mon/varz"}).body)
    assert (page["http_host"], page["http_port"], page["https_port"]) == (HOST, port, 0)
    assert page["http_base_path"] == "/mon"


@pytest.fixture
def certificate(tmp_path: Path) -> ServerTlsOptions:
    """A certificate for loopback, made here."""
    key = tmp_path / "server.key"
    cert = tmp_path / "server.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
            ),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return ServerTlsOptions(cert_file=str(cert), key_file=str(key), ca_file=str(cert))


def test_over_https_the_pages_are_the_same_and_plain_http_is_told_so(
    certificate: ServerTlsOptions,
) -> None:
    context = ssl.create_default_context(cafile=certificate.ca_file)
    with server(monitor=MonitorOptions(https_port=1), tls=certificate) as (_, port):
        for capture in recording("https")["captures"]:
            answer = ask(port, capture["request"], context)
            compare_page(capture["request"], answer, recorded_answer(capture["response"]))
        assert plain_request(port) == (
            b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
        )
        assert (
            ask(port, {"method": "GET", "target": "/streaming/serverz"}, context).status
            == "HTTP/1.1 200 OK"
        )


def plain_request(port: int) -> bytes:
    with socket.create_connection((HOST, port), timeout=30) as connection:
        connection.sendall(b"GET /streaming/serverz HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = b""
        while more := connection.recv(4096):
            answer += more
    return answer


def test_expired_messages_leave_a_channel_that_knows_where_it_was() -> None:
    recorded = recording("expired")
    limits = ftstan.StoreLimits(
        channels=(
            ("foo", replace(OWN, max_age=SECOND)),
            ("away", replace(OWN, max_inactivity=SECOND)),
        )
    )
    with server(ftstan.ServerOptions(limits=limits)) as (started, port):
        Player(client_port(started), "test-cluster").play(recorded["operations"])
        gone = {"method": "GET", "target": "/streaming/channelsz?channel=away"}
        until(lambda: ask(port, gone).status.startswith("HTTP/1.1 404"), "the end of the channel")
        compare(port, recorded)
