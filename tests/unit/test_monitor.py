"""The monitoring pages over a real socket, compared with captures of the original."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.errors import NatsError, StoreError
from ftstan.monitor.http import Monitor, format_time, format_uptime

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@dataclass
class FakeViews:
    values: dict[str, object] = field(default_factory=lambda: json.loads(ACTIVE))
    active: bool = True
    failure: StoreError | None = None

    async def serverz(self) -> dict[str, object]:
        if self.failure:
            raise self.failure
        return self.values

    async def ftz(self) -> dict[str, object]:
        return {"phase": "recovering", "recovery": {"channels": 3, "of": 7}}

    def is_ft_active(self) -> bool:
        return self.active


@dataclass
class Answer:
    status: str
    headers: dict[str, str]
    body: str


def ask(views: FakeViews, target: str, method: str = "GET") -> Answer:
    """One request and its answer as they are on the wire."""

    async def exchange() -> bytes:
        monitor = Monitor(views)
        port = await monitor.start("127.0.0.1", -1)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
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
        "Content-Length": str(len(ACTIVE)),
        "Connection": "close",
    }


def test_the_phase_of_a_member_stands_behind_everything_else() -> None:
    body = ask(FakeViews(json.loads(ACTIVE) | {"ft_phase": "recovering"}), "/streaming/serverz").body
    assert list(json.loads(body).items())[-1] == ("ft_phase", "recovering")


def test_keys_of_a_cluster_and_unknown_figures_are_left_out() -> None:
    values: dict[str, Any] = json.loads(ACTIVE) | {"role": "", "node_id": "", "open_fds": 0, "max_fds": 0, "clients": 0}
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
    answer = ask(FakeViews(), "/streaming/serverz?callback=f%28x&callback=g")
    assert answer.body == f"f(x({ACTIVE})"
    assert answer.headers["Content-Type"] == "application/javascript"
    assert "Access-Control-Allow-Origin" not in answer.headers


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
    "target", ["/", "/foo", "/streaming/", "/streaming/serverz/", "/streaming/ServerZ", "/a/b?c=d"]
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
        monitor = Monitor(FakeViews())
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
    assert start_error("256.1.1.1", 0).startswith("Can't start monitoring: can't listen to the monitor port: ")


def test_stop_frees_the_port_and_may_be_repeated() -> None:
    async def twice() -> None:
        first = Monitor(FakeViews())
        port = await first.start("127.0.0.1", -1)
        await first.stop()
        await first.stop()
        second = Monitor(FakeViews())
        assert await second.start("127.0.0.1", port) == port
        await second.stop()

    asyncio.run(twice())


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
