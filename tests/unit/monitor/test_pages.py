"""The monitoring pages over a real socket, compared with captures of the original."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from ftstan.base.disk import Space
from ftstan.base.errors import NatsError, StoreError
from ftstan.base.histogram import Histogram
from ftstan.base.states import Clustering, ClusterRole, Lag, NodeState, NodeStatus, Phase, Recovery
from ftstan.broker.views import CensusRow, ChannelRow, ClientRow, Counters, SubRow
from ftstan.config.options import ChannelLimits, MonitorOptions, StoreLimits
from ftstan.front.listener import FrontStatus
from ftstan.monitor.answers import error_answer
from ftstan.monitor.http import Monitor
from ftstan.monitor.metrics import METRICS, NSS_LABELS, NodeFigures
from ftstan.monitor.zpages import Heading, Page, StoreView, format_time, format_uptime
from tests.unit.admin.test_protocol import STATUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import prometheus_client
    from aiohttp import web

    from ftstan.broker.state import Subscription
    from ftstan.monitor.http import Gate

ACTIVE = """{
  "cluster_id": "test-cluster",
  "server_id": "txlESbi9pZEEXrllAJizLx",
  "version": "0.25.6",
  "go": "go1.19.8",
  "state": "FT_ACTIVE",
  "now": "2026-11-21T13:07:43.523661017Z",
  "start_time": "2026-11-21T13:07:40.313187845Z",
  "uptime": "3s",
  "clients": 6,
  "subscriptions": 8,
  "channels": 6,
  "total_msgs": 8,
  "total_bytes": 510,
  "in_msgs": 9,
  "in_bytes": 276,
  "out_msgs": 13,
  "out_bytes": 315,
  "open_fds": 48,
  "max_fds": 20000
}"""


COUNTERS = Counters(
    clients=1, channels=3, in_msgs=9, in_bytes=276, out_msgs=13, out_bytes=315, redelivered=2
)
CHANNELS = [
    CensusRow(
        b"b", 2, 50, 7, 1, 4, 1, 5, quarantined=True, moved=False, limits=ChannelLimits(max_msgs=0)
    ),
    CensusRow(
        b"a",
        3,
        75,
        3,
        2,
        0,
        0,
        0,
        quarantined=False,
        moved=False,
        limits=ChannelLimits(max_msgs=4, max_bytes=80, max_subs=2),
    ),
    CensusRow(b"c", 1, 25, 9, 1, 2, 0, 3, quarantined=False, moved=False, limits=ChannelLimits()),
]
SUB = SubRow(b"me", b"in", b"ack", b"dur", b"", True, False, 10, 30_000_000_000, 3, 2, False)


SERVES = replace(
    STATUS,
    server="s",
    state=NodeState.ACTIVE,
    phase=Phase.ACTIVE,
    serving=True,
    epoch=4,
    holder_epoch=4,
    probe_age=0.5,
    warm_lag=Lag(3, 0.25),
    recovery=Recovery(3, 7),
)
STANDS_BY = replace(STATUS, state=NodeState.STANDBY, phase=Phase.LISTENING)
NEITHER = replace(SERVES, phase=Phase.RECOVERING, serving=False)


def figures() -> NodeFigures:
    """A node with something to say about everything."""
    took = Histogram()
    took.observe(0.003)
    return NodeFigures(
        status=SERVES,
        compatible="0.25.6",
        go="python3",
        start_time=1_795_166_644.5,
        now=1_795_166_650.25,
        probes=took,
        room=Space(3 << 30, 8 << 30, 0, 0),
        commits=took,
        failed_commits=2,
        undecryptable=4,
        unanswered=1,
        counters=COUNTERS,
        channels=CHANNELS,
        max_channels=100,
        takeovers={"silence": 1},
        takeover_tries={"granted": 1, "busy": 5},
        lock_attempts={"io": 1},
        reconnects={"general": 1, "ft": 2},
        connected={"general": True, "ft": False},
        refused={"malformed_publish": 3},
        front=FrontStatus(
            is_direct=True,
            connections=9,
            passing=2,
            direct_in=40,
            direct_out=30,
            passed_in=20,
            passed_out=10,
            slow=1,
            encrypted=3,
            not_shaken=1,
        ),
    )


LEADS = replace(
    SERVES,
    state=NodeState.CLUSTERED,
    role=ClusterRole.LEADER,
    serving=True,
    clustering=Clustering("leading", "a", 12, 10, 12, copies=3, epoch=7),
)


@dataclass
class FakeViews:
    values: dict[str, object] = field(default_factory=lambda: json.loads(ACTIVE))
    active: bool = True
    failure: StoreError | None = None
    subs: list[tuple[bytes, SubRow]] = field(default_factory=list)
    how: NodeStatus = SERVES
    doing: str = ""

    def heading(self) -> Heading:
        return Heading("test-cluster", "me", "2026-11-20T09:24:04Z")

    async def serverz(self) -> dict[str, object]:
        self._fail()
        return self.values

    def _fail(self) -> None:
        if self.failure:
            raise self.failure

    async def recovered(self) -> str:
        return self.doing

    async def store(self) -> StoreView:
        self._fail()
        return StoreView("MEMORY", StoreLimits(), 5, 117)

    async def clients(self, offset: int, limit: int) -> Page:
        return Page(1, [b"me"][offset : offset + limit])

    async def client_rows(self, names: Sequence[bytes]) -> list[ClientRow]:
        subs = [sub for _, sub in self.subs]
        return [
            ClientRow(name, b"hb", cast("list[Subscription]", subs))
            for name in names
            if name == b"me"
        ]

    async def channels(self, offset: int, limit: int) -> Page:
        return Page(3, [b"a", b"b", b"c"][offset : offset + limit])

    async def channel_rows(self, names: Sequence[bytes], *, subs: bool) -> list[ChannelRow]:
        self._fail()
        return [
            ChannelRow(row.name, row.msgs, row.size, 1, row.last, row.subs, [])
            for row in CHANNELS
            if row.name in names
        ]

    async def sub_rows(self, row: ChannelRow | ClientRow) -> list[tuple[bytes, SubRow]]:
        return self.subs

    async def ftz(self) -> dict[str, object]:
        return {"phase": "recovering", "recovery": {"channels": 3, "of": 7}}

    def status(self) -> NodeStatus:
        return self.how

    async def dashboard(self) -> dict[str, object]:
        return {"node": {"server": "me"}}

    def history(self, since_ms: int) -> dict[str, object]:
        return {"now_ms": 1, "step_s": 10.0, "points": [[since_ms + 1, 2.0, 3.0, None, 4]]}

    async def keep_history(self) -> None:
        await asyncio.Event().wait()

    async def figures(self) -> NodeFigures:
        return replace(figures(), status=self.how)

    async def channel_subs(self, names: Sequence[bytes]) -> list[tuple[bytes, SubRow]]:
        return [(name, SUB) for name in names]

    def idle_nats(self) -> dict[str, dict[str, object]]:
        return {"/varz": {"connections": 0}}

    def slow_clients(self) -> int:
        return 0

    def is_ft_active(self) -> bool:
        return self.active


@dataclass
class Answer:
    status: str
    headers: dict[str, str]
    body: str


def ask(
    views: FakeViews,
    target: str,
    method: str = "GET",
    *,
    options: MonitorOptions | None = None,
    gate: Gate | None = None,
    accept: str = "*/*",
    version: str = "1.1",
) -> Answer:
    """One request and its answer as they are on the wire."""

    async def exchange() -> bytes:
        monitor = Monitor(views, options or MonitorOptions(), gate)
        port = await monitor.start("127.0.0.1", -1)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"{method} {target} HTTP/{version}\r\nHost: h\r\nConnection: close\r\nAccept: "
                f"{accept}\r\n\r\n".encode()
            )
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer
        finally:
            await monitor.stop()

    head, _, body = asyncio.run(exchange()).decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return Answer(status, dict(line.split(": ", 1) for line in lines), body)


def test_serverz_is_the_page_of_the_original_byte_for_byte() -> None:
    shuffled = dict(sorted(json.loads(ACTIVE).items(), key=lambda item: item[0][::-1]))
    answer = ask(FakeViews(shuffled), "/streaming/serverz")
    assert answer.body == ACTIVE
    assert answer.status == "HTTP/1.1 200 OK"
    del answer.headers["Date"]
    assert answer.headers == {
        "Content-Type": "application/json",
        "Access-Control-Allow-Origin": "*",
        "X-Content-Type-Options": "nosniff",
        "Content-Length": str(len(ACTIVE)),
        "Connection": "close",
    }


def test_the_phase_of_a_member_stands_behind_everything_else() -> None:
    body = ask(
        FakeViews(json.loads(ACTIVE) | {"ft_phase": "recovering"}), "/streaming/serverz"
    ).body
    assert list(json.loads(body).items())[-1] == ("ft_phase", "recovering")


def test_the_progress_of_a_recovery_stands_behind_the_phase_while_there_is_one() -> None:
    values = json.loads(ACTIVE) | {"ft_phase": "recovering", "recovering": {"channels": 3, "of": 7}}
    body = ask(FakeViews(values), "/streaming/serverz").body
    assert list(json.loads(body).items())[-2:] == [
        ("ft_phase", "recovering"),
        ("recovering", {"channels": 3, "of": 7}),
    ]
    values["recovering"] = {}
    assert "recovering" not in json.loads(ask(FakeViews(values), "/streaming/serverz").body)


@pytest.mark.parametrize(
    "page",
    [
        "storez",
        "clientsz",
        "clientsz?client=me",
        "clientsz?subs=1",
        "channelsz",
        "channelsz?channel=a",
        "channelsz?channel=none",
        "channelsz?subs=1",
        "channelsz?callback=f",
    ],
)
def test_what_is_still_being_recovered_is_not_denied_but_to_be_asked_for_again(page: str) -> None:
    views = FakeViews(doing="recovering (3 of 7 channels)")
    answer = ask(views, f"/streaming/{page}")
    assert (answer.status, answer.body) == (
        "HTTP/1.1 503 Service Unavailable",
        "This server does not serve yet: recovering (3 of 7 channels)\n",
    )
    assert answer.headers["Retry-After"] == "1"
    assert ask(views, "/streaming/serverz").body == ACTIVE


def test_keys_of_a_cluster_and_unknown_figures_are_left_out() -> None:
    values: dict[str, Any] = json.loads(ACTIVE) | {
        "role": "",
        "node_id": "",
        "open_fds": 0,
        "max_fds": 0,
        "clients": 0,
    }
    keys = list(json.loads(ask(FakeViews(values), "/streaming/serverz").body))
    assert not {"role", "node_id", "open_fds", "max_fds"} & set(keys)
    assert "clients" in keys


def test_strings_are_escaped_as_by_the_original() -> None:
    answer = ask(FakeViews({"cluster_id": "a.>&<\u2028é"}), "/streaming/serverz")
    assert answer.body == '{\n  "cluster_id": "a.\\u003e\\u0026\\u003c\\u2028é"\n}'


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE"])
def test_the_method_is_not_looked_at(method: str) -> None:
    assert ask(FakeViews(), "/streaming/serverz", method).body == ACTIVE


def test_head_has_no_body() -> None:
    answer = ask(FakeViews(), "/streaming/serverz", "HEAD")
    assert (answer.status, answer.body) == ("HTTP/1.1 200 OK", "")


def test_a_callback_gives_jsonp_without_cors() -> None:
    answer = ask(FakeViews(), "/streaming/serverz?callback=app.f_1&callback=g")
    assert answer.body == f"app.f_1({ACTIVE})"
    assert answer.headers["Content-Type"] == "application/javascript"
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("name", ["f", "$", "_", "jQuery3600_17", "angular.callbacks._0", "a.b.c"])
def test_a_callback_is_a_name_of_a_javascript_function(name: str) -> None:
    assert ask(FakeViews(), f"/streaming/serverz?callback={name}").body == f"{name}({ACTIVE})"


@pytest.mark.parametrize("page", ["/streaming/serverz", "/varz", "/streaming/ftz"])
@pytest.mark.parametrize(
    "name",
    [
        "f%28x",
        "alert%281%29%2F%2F",
        "%3Cscript%3E",
        "1f",
        "a..b",
        ".a",
        "a.",
        "f%0A",
        "%FF",
        "%C3%A9",
    ],
)
def test_any_other_callback_is_refused_and_not_repeated(page: str, name: str) -> None:
    answer = ask(FakeViews(), f"{page}?callback={name}")
    assert answer.status == "HTTP/1.1 400 Bad Request"
    assert answer.body == "400 bad request: callback is no name of a JavaScript function\n"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


def test_pages_that_ask_for_a_login_take_no_callback() -> None:
    async def let_in(_request: web.Request) -> None:
        return None

    answer = ask(FakeViews(), "/streaming/serverz?callback=f", gate=let_in)
    assert (answer.status, answer.body) == (
        "HTTP/1.1 403 Forbidden",
        "403 forbidden: no callback is taken where the pages ask for a token or a certificate\n",
    )


@pytest.mark.parametrize(
    "target",
    [
        "/streaming",
        "/streaming/storez",
        "/streaming/isFTActive",
        "/metrics",
        "/dashboard",
        "/livez",
        "/varz",
        "/",
        "/no",
    ],
)
def test_no_browser_guesses_what_an_answer_is(target: str) -> None:
    assert ask(FakeViews(), target).headers["X-Content-Type-Options"] == "nosniff"


def test_the_last_hour_is_asked_for_from_a_time_on() -> None:
    answer = ask(FakeViews(), "/dashboard/history?since=41")
    assert json.loads(answer.body)["points"][0][0] == 42
    assert answer.headers["Cache-Control"] == "no-store"
    for none in ("", "?since=", "?since=x", "?since=-3"):
        assert json.loads(ask(FakeViews(), f"/dashboard/history{none}").body)["points"][0][0] == 1


def test_a_server_whose_history_fails_has_its_pages() -> None:
    class Broken(FakeViews):
        async def keep_history(self) -> None:
            raise ValueError("no")

    assert ask(Broken(), "/livez").status == "HTTP/1.1 200 OK"


def test_the_first_page_leads_to_the_dashboard() -> None:
    links = re.findall(r'href="([^"]+)"', ask(FakeViews(), "/").body)
    assert links == ["/dashboard", "/streaming", "/metrics", "./varz"]


@pytest.mark.parametrize("target", ["/streaming/serverz?callback=", "/streaming/serverz?subs=1"])
def test_other_parameters_change_nothing(target: str) -> None:
    assert ask(FakeViews(), target).body == ACTIVE


def test_is_ft_active_answers_200_on_the_active_member_without_a_body() -> None:
    answer = ask(FakeViews(active=True), "/streaming/isFTActive")
    assert (answer.status, answer.body) == ("HTTP/1.1 200 OK", "")
    assert answer.headers["Content-Length"] == "0"
    assert not {"Content-Type", "Server"} & set(answer.headers)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_is_ft_active_answers_204_everywhere_else(method: str) -> None:
    answer = ask(FakeViews(active=False), "/streaming/isFTActive", method)
    assert (answer.status, answer.body) == ("HTTP/1.1 204 No Content", "")
    assert not {"Content-Type", "Content-Length", "Server"} & set(answer.headers)


@pytest.mark.parametrize(
    "target", ["/foo", "/streaming/", "/streaming/serverz/", "/streaming/ServerZ", "/a/b?c=d"]
)
def test_any_other_path_is_not_found(target: str) -> None:
    answer = ask(FakeViews(), target)
    assert (answer.status, answer.body) == ("HTTP/1.1 404 Not Found", "404 page not found\n")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_view_that_fails_is_an_error_page() -> None:
    answer = ask(FakeViews(failure=StoreError("no such channel")), "/streaming/serverz?callback=f")
    assert answer.status == "HTTP/1.1 500 Internal Server Error"
    assert answer.body == "Error getting information about channels state: no such channel\n"


def start_error(host: str, port: int) -> str:
    async def start() -> str:
        monitor = Monitor(FakeViews(), MonitorOptions())
        try:
            await monitor.start(host, port)
        except NatsError as error:
            return str(error)
        finally:
            await monitor.stop()
        return ""

    return asyncio.run(start())


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert start_error("127.0.0.1", port) == (
            "Can't start monitoring: can't listen to the monitor port: "
            f"listen tcp 127.0.0.1:{port}: bind: address already in use"
        )


def test_a_port_that_does_not_exist_is_one_clear_line() -> None:
    assert start_error("127.0.0.1", 70000).endswith("listen tcp: address 70000: invalid port")


def test_a_host_that_does_not_exist_is_one_clear_line() -> None:
    assert start_error("256.1.1.1", 0).startswith(
        "Can't start monitoring: can't listen to the monitor port: "
    )


def test_stop_frees_the_port_and_may_be_repeated() -> None:
    async def twice() -> None:
        first = Monitor(FakeViews(), MonitorOptions())
        port = await first.start("127.0.0.1", -1)
        await first.stop()
        await first.stop()
        second = Monitor(FakeViews(), MonitorOptions())
        assert await second.start("127.0.0.1", port) == port
        await second.stop()

    asyncio.run(twice())


class Broken(FakeViews):
    """Views of a server that has a bug."""

    def status(self) -> NodeStatus:
        raise ValueError("odd")


def exchange(views: FakeViews, *requests: bytes) -> list[bytes]:
    """What each of these bytes is answered with, on connections of their own."""

    async def work() -> list[bytes]:
        monitor = Monitor(views, MonitorOptions())
        port = await monitor.start("127.0.0.1", -1)
        answers = []
        for request in requests:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            answers.append(await reader.read())
            writer.close()
        await monitor.stop()
        return answers

    return asyncio.run(work())


def test_a_malformed_request_is_refused_without_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    requests = (
        b"rubbish\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    )
    for answer in exchange(FakeViews(), *requests):
        assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert capfd.readouterr().err == ""


def test_requests_that_fail_are_one_line_and_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    request = b"GET /readyz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    for answer in exchange(Broken(), *[request] * 20):
        assert answer.startswith(b"HTTP/1.1 500 ")
    text = capfd.readouterr().err
    assert text.count("monitoring: a request failed: ValueError: odd (test_pages.py:") == 1
    assert "Traceback" not in text


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "wall_ns", "text"),
    [
        ("UTC", 1_795_166_644_262_261_069, "2026-11-20T09:24:04.262261069Z"),
        ("UTC", 1_795_166_644_526_396_630, "2026-11-20T09:24:04.52639663Z"),
        ("UTC", 1_795_166_644_000_000_000, "2026-11-20T09:24:04Z"),
        ("EST5", 1_795_166_644_000_000_001, "2026-11-20T04:24:04.000000001-05:00"),
        ("IST-5:30", 1_795_166_644_500_000_000, "2026-11-20T14:54:04.5+05:30"),
    ],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
def test_times_are_rfc_3339_in_the_zone_of_the_process(wall_ns: int, text: str) -> None:
    assert format_time(wall_ns) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.99, "59s"),
        (60, "1m0s"),
        (3_599, "59m59s"),
        (3_600, "1h0m0s"),
        (86_400, "1d0h0m0s"),
        (365 * 86_400 - 1, "364d23h59m59s"),
        (365 * 86_400, "1y0d0h0m0s"),
        (2 * 365 * 86_400 + 90_061, "2y1d1h1m1s"),
    ],
)
def test_uptime_drops_leading_zero_units(seconds: float, text: str) -> None:
    assert format_uptime(seconds) == text


def test_the_page_of_ours_is_json_in_the_same_layout_and_answers_during_recovery() -> None:
    answer = ask(FakeViews(), "/streaming/ftz")
    assert answer.status == "HTTP/1.1 200 OK"
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert json.loads(answer.body) == {"phase": "recovering", "recovery": {"channels": 3, "of": 7}}
    assert answer.body.startswith('{\n  "phase"')


# ---- paging and errors
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("/streaming/storez", "Error getting information about channels state: unable"),
        ("/streaming/channelsz?channel=b", 'Error getting information about channel "b": unable'),
        ("/streaming/channelsz?subs=1", 'Error getting information about channel "": unable'),
    ],
)
def test_a_channel_that_cannot_be_shown_is_an_error_page(target: str, text: str) -> None:
    answer = ask(FakeViews(failure=StoreError("unable")), target)
    assert (answer.status, answer.body) == ("HTTP/1.1 500 Internal Server Error", f"{text}\n")


@pytest.mark.parametrize(
    ("query", "offset", "limit"),
    [
        ("", 0, 1024),
        ("offset=2&limit=1", 2, 1),
        ("offset=-1&limit=0", 0, 1024),
        ("offset=%2B2&limit=%2B1", 2, 1),
        ("offset=+2&limit=1.5", 0, 1024),
        ("offset=abc&limit=", 0, 1024),
        ("limit=2&limit=3", 0, 2),
        ("offset=%D9%A2", 0, 1024),
        ("offset=99999999999999999999", (1 << 63) - 1, 1024),
        ("limit=" + "9" * 5000, 0, (1 << 63) - 1),
        ("limit=" + "0" * 5000 + "7", 0, 7),
        ("limit=-99999999999999999999", 0, 1024),
    ],
)
def test_paging_takes_what_is_a_number_and_the_default_for_all_else(
    query: str, offset: int, limit: int
) -> None:
    page = json.loads(ask(FakeViews(), f"/streaming/channelsz?{query}").body)
    assert (page["offset"], page["limit"], page["total"]) == (offset, limit, 3)
    assert page.get("names", []) == ["a", "b", "c"][offset : offset + limit]


def test_the_channels_of_a_client_are_sorted_and_its_subscriptions_of_one_stay_in_order() -> None:
    later = SUB._replace(inbox=b"later")
    views = FakeViews(subs=[(b"b", SUB), (b"a", SUB), (b"b", later)])
    page = json.loads(ask(views, "/streaming/clientsz?client=me&subs=1").body)
    assert page["subs_count"] == 3
    assert [
        (name, [sub["inbox"] for sub in subs]) for name, subs in page["subscriptions"].items()
    ] == [
        ("a", ["in"]),
        ("b", ["in", "later"]),
    ]


def test_large_pages_are_sent_in_chunks_and_small_ones_with_their_length() -> None:
    assert "Content-Length" in ask(FakeViews(), "/streaming/serverz").headers
    answer = ask(FakeViews({"cluster_id": "x" * 3000}), "/streaming/serverz")
    assert answer.headers["Transfer-Encoding"] == "chunked"
    assert "Content-Length" not in answer.headers


def test_readers_that_know_no_chunks_get_large_pages_whole() -> None:
    answer = ask(FakeViews({"cluster_id": "x" * 3000}), "/streaming/serverz", version="1.0")
    assert answer.status.endswith("200 OK")
    assert "Transfer-Encoding" not in answer.headers
    assert len(answer.body) > 3000


# ---- health
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "serves", "stands_by", "neither"),
    [
        ("/livez", 200, 200, 200),
        ("/readyz", 200, 200, 503),
        ("/active", 200, 503, 503),
        ("/standby", 503, 200, 503),
    ],
)
def test_health_says_in_its_status_what_a_load_balancer_asks(
    path: str, serves: int, stands_by: int, neither: int
) -> None:
    for how, status in ((SERVES, serves), (STANDS_BY, stands_by), (NEITHER, neither)):
        answer = ask(FakeViews(how=how), path)
        assert answer.status.split()[1] == str(status)
        assert answer.body == f"{how.phase}\n"
        assert answer.headers["Cache-Control"] == "no-store"


# ---- the seam for who may ask
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/streaming/serverz", "/metrics", "/livez", "/varz", "/nope"])
def test_the_gate_is_asked_before_every_page(path: str) -> None:
    async def gate(request: web.Request) -> web.StreamResponse | None:
        assert request.path == path
        return error_answer(401, "who are you")

    answer = ask(FakeViews(), path, gate=gate)
    assert (answer.status, answer.body) == ("HTTP/1.1 401 Unauthorized", "who are you\n")


def test_a_gate_that_lets_in_changes_nothing() -> None:
    async def gate(_request: web.Request) -> web.StreamResponse | None:
        return None

    assert ask(FakeViews(), "/streaming/serverz", gate=gate).body == ACTIVE


# ---- metrics
# --------------------------------------------------------------------------------------------------


def families(text: str) -> dict[str, prometheus_client.Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: prometheus_client.Metric, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in family.samples}


def test_prometheus_accepts_the_metrics_without_a_complaint() -> None:
    answer = ask(FakeViews(), "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert promtool(unchunked(answer)) == (0, "")


def test_promtool_complains_about_a_name_against_the_rules() -> None:
    wrong = "# HELP x_total a gauge\n# TYPE x_total gauge\nx_total 1\n"
    assert promtool(wrong)[0] == 3


def promtool(text: str) -> tuple[int, str]:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_who_asks_for_open_metrics_gets_them() -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    answer = ask(FakeViews(how=LEADS), "/metrics", accept=accept)
    assert answer.headers["Content-Type"].startswith(accept)
    parse: Callable[[str], Iterator[prometheus_client.Metric]] = open_metrics
    found = {family.name for family in parse(unchunked(answer))}
    assert {name.removesuffix("_total") for name in METRICS} <= found


def test_every_metric_of_the_list_is_exported_with_its_type_and_labels() -> None:
    found = families(unchunked(ask(FakeViews(how=LEADS), "/metrics")))
    for metric in METRICS.values():
        family = found[metric.name]
        assert family.type == metric.kind, metric.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), metric.name
    assert {name for name in found if name.startswith("ftstan_")} == set(METRICS)


def test_the_epoch_of_a_node_of_a_cluster_is_that_of_the_log() -> None:
    follows = replace(LEADS, role=ClusterRole.FOLLOWER, serving=False)
    for how, epoch in ((LEADS, 7), (follows, 0)):
        found = families(unchunked(ask(FakeViews(how=how), "/metrics")))
        assert found["ftstan_epoch"].samples[0].value == epoch
        assert found["ftstan_holder_epoch"].samples[0].value == 7
        assert found["ftstan_cluster_entry"].samples[0].value == 12
        assert ("ftstan_cluster_copies" in found) == bool(epoch)
    assert ask(FakeViews(how=follows), "/standby").status.split()[1] == "200"
    assert ask(FakeViews(how=follows), "/readyz").status.split()[1] == "200"
    stuck = replace(follows, clustering=Clustering("copying", "b", trouble="no node answers"))
    assert ask(FakeViews(how=stuck), "/standby").status.split()[1] == "503"


def test_channels_beyond_the_configured_number_are_one_series() -> None:
    found = families(
        unchunked(ask(FakeViews(), "/metrics", options=MonitorOptions(metrics_channels=1)))
    )
    assert values(found["ftstan_channel_messages"], "channel") == {"a": 3, ">": 3}
    assert values(found["ftstan_channel_pending_messages"], "channel") == {"a": 0, ">": 6}
    assert values(found["ftstan_channel_lag_messages"], "channel") == {"a": 0, ">": 5}
    assert found["ftstan_stored_messages"].samples[0].value == 6
    assert found["ftstan_quarantined_channels"].samples[0].value == 1
    assert found["ftstan_stalled_subscriptions"].samples[0].value == 1


def test_limits_are_shown_for_channels_with_series_of_their_own_and_for_no_others() -> None:
    found = families(
        unchunked(ask(FakeViews(), "/metrics", options=MonitorOptions(metrics_channels=2)))
    )
    assert values(found["ftstan_channel_max_messages"], "channel") == {"a": 4, "b": 0}
    assert values(found["ftstan_channel_max_bytes"], "channel") == {
        "a": 80,
        "b": ChannelLimits().max_bytes,
    }
    assert values(found["ftstan_channel_max_subscriptions"], "channel") == {
        "a": 2,
        "b": ChannelLimits().max_subs,
    }


def test_a_commit_latency_is_counted_in_its_bucket() -> None:
    found = families(unchunked(ask(FakeViews(), "/metrics")))
    buckets = {
        s.labels["le"]: s.value
        for s in found["ftstan_commit_seconds"].samples
        if s.name.endswith("_bucket")
    }
    assert (buckets["0.0025"], buckets["0.005"], buckets["+Inf"]) == (0, 1, 1)


def test_the_names_of_the_retired_exporter_come_only_when_asked_for() -> None:
    assert "nss_" not in unchunked(ask(FakeViews(), "/metrics"))
    found = families(
        unchunked(ask(FakeViews(), "/metrics", options=MonitorOptions(metrics_nss=True)))
    )
    for name, labels in NSS_LABELS.items():
        assert found[name].samples, name
        assert all(set(sample.labels) == set(labels) for sample in found[name].samples), name
    assert values(found["nss_chan_last_seq"], "channel") == {"a": 3, "b": 7, "c": 9}


def unchunked(answer: Answer) -> str:
    """The body of an answer that came in chunks of ASCII."""
    if answer.headers.get("Transfer-Encoding") != "chunked":
        return answer.body
    body = ""
    rest = answer.body
    while True:
        size, _, rest = rest.partition("\r\n")
        length = int(size, 16)
        if not length:
            return body
        body = body + rest[:length]
        rest = rest[length + 2 :]


def test_the_table_of_metrics_in_the_docs_is_the_list() -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        assert f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |" in page
    for name, names in NSS_LABELS.items():
        assert f"| `{name}` | {', '.join(f'`{label}`' for label in names)} |" in page
    listed = re.findall(r"^\| `((?:ftstan|nss)_\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted([*METRICS, *NSS_LABELS])
