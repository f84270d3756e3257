"""The bridge to JetStream on real servers: everything that a channel has is in its stream, once, at
its sequence, whoever is killed; and what is not its stream is left alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

import ftstan.client
from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.nats.jetstream import JetStream, headers_of
from ftstan.nats.link import Link
from tests.datastores import serving
from tests.ft.operator import run
from tests.processes import CLUSTER, READY, Nats, until

if TYPE_CHECKING:
    from tests.ft.operator import Said
    from tests.processes import Child, Server, Stage

pytestmark = pytest.mark.processes

CHANNEL = "orders.eu"
STREAM = "orders_eu"


class Sides:
    """A streaming server on a nats-server that has JetStream, with a store of ``count``."""

    def __init__(self, stage: Stage, count: int = 0, *words: str, settings: str = "") -> None:
        self.stage = stage
        if count:
            with serving(stage.store) as node:
                for first in range(1, count + 1, 1000):
                    last = min(first + 999, count)
                    node.publish(CHANNEL.encode(), *(payload(n) for n in range(first, last + 1)))
                node.stop()
        self._settings = settings or f'jetstream {{ store_dir: "{stage.directory}/js" }}\n'
        self.nats: Nats = stage.nats("nats", settings=self._settings)
        self.server: Server = stage.file_server("stan", "-ns", self.nats.url, *words)
        self.server.wait_for(READY)

    def js(self) -> JetStream:
        link = Link([self.nats.url], name="test", clock=SystemClock())
        js = JetStream(link, SystemClock())
        js.connect(5.0)
        return js

    def state(self) -> dict[str, Any]:
        """The state of the stream; empty if there is none."""
        js = self.js()
        try:
            state: dict[str, Any] = js.api(f"STREAM.INFO.{STREAM}", {}, 5.0)["state"]
        except NatsError:
            return {}
        finally:
            js.link.close()
        return state

    @property
    def last(self) -> int:
        return int(self.state().get("last_seq", 0))

    def rows(self) -> list[tuple[int, bytes]]:
        """Everything in the stream."""
        js = self.js()
        found: list[tuple[int, bytes]] = []
        while rows := js.get(STREAM, found[-1][0] + 1 if found else 1, 5000, 8 << 20, 5.0).rows:
            found += [(sequence, data) for sequence, _, data in rows]
        js.link.close()
        return found

    def headers(self, sequence: int) -> dict[str, str]:
        js = self.js()
        told = js.api(f"STREAM.MSG.GET.{STREAM}", {"seq": sequence}, 5.0)["message"]
        js.link.close()
        return headers_of(base64.b64decode(told["hdrs"]))[1]

    def words(self, verb: str, *words: str) -> list[str]:
        return ["bridge", verb, "--server", self.nats.url, "--cluster", CLUSTER, *words]

    def bridge(self, verb: str, *words: str) -> Said:
        """A bridge command in this process."""
        return run(*self.words(verb, *words))

    def once(self, *words: str) -> Said:
        return self.bridge("run", "--channel", CHANNEL, "--once", *words)

    def start(self, name: str, *words: str) -> Child:
        """A bridge that runs on, as a process."""
        words = (*self.words("run", "--channel", CHANNEL), *words)
        return self.stage.run(name, [sys.executable, "-m", "ftstan.cli.ctl", *words])

    def publish(self, first: int, last: int) -> None:
        async def work() -> None:
            async with await ftstan.client.connect(
                CLUSTER, "publisher", servers=self.nats.url
            ) as client:
                for number in range(first, last + 1):
                    await client.publish_async(CHANNEL, payload(number))

        asyncio.run(work())


def payload(number: int) -> bytes:
    return b"message %d" % number


def whole(last: int, first: int = 1) -> list[tuple[int, bytes]]:
    return [(number, payload(number)) for number in range(first, last + 1)]


def from_files(sides: Sides) -> tuple[str, ...]:
    return ("--dir", str(sides.stage.store))


def test_backlog_and_tail_have_no_gap_and_no_repeat(stage: Stage) -> None:
    sides = Sides(stage, 12_000)
    plan = sides.bridge("run", "--channel", CHANNEL, *from_files(sides), "--dry-run")
    assert "nothing was written" in plan.out
    assert sides.state() == {}
    bridge = sides.start("bridge", *from_files(sides))
    bridge.wait_for("on by the durable")
    sides.publish(12_001, 13_000)
    until(lambda: sides.last == 13_000, "the tail to be mirrored")
    assert sides.rows() == whole(13_000)
    headers = sides.headers(7)
    assert headers["nats-msg-id"] == f"{CHANNEL}:7"
    assert headers["ftstan-channel"] == CHANNEL
    assert headers["ftstan-reply"] == "reply.to"
    assert int(headers["ftstan-timestamp"]) > 1_600_000_000_000_000_000
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0
    shown = sides.bridge("status", "--output", "json")
    assert json.loads(shown.out)["channels"][0]["lag"] == 0
    verified = sides.bridge("verify", "--channel", CHANNEL, "--output", "json")
    assert verified.status == 0
    (row,) = json.loads(verified.out)["channels"]
    assert (row["channel_messages"], row["differs_at"]) == (13_000, 0)
    assert row["channel_crc"] == row["stream_crc"]


def test_a_bridge_that_was_killed_in_its_backlog_goes_on_where_the_stream_is(stage: Stage) -> None:
    sides = Sides(stage, 60_000)
    bridge = sides.start("bridge", *from_files(sides))
    until(lambda: sides.last > 500, "the bridge to begin")
    bridge.kill()
    assert sides.last < 60_000
    sides.publish(60_001, 60_100)
    assert sides.once(*from_files(sides)).status == 0
    assert sides.rows() == whole(60_100)


def test_a_nats_server_that_was_killed_loses_and_repeats_nothing(stage: Stage) -> None:
    sides = Sides(stage, 60_000)
    js = stage.nats("js", settings=f'jetstream {{ store_dir: "{stage.directory}/other" }}\n')
    bridge = sides.start("bridge", *from_files(sides), "--jetstream", js.url)
    stan, sides.nats = sides.nats, js
    until(lambda: sides.last > 500, "the bridge to begin")
    js.kill()
    sides.nats = stage.nats("js2", port=js.port, settings=(stage.directory / "js.conf").read_text())
    until(lambda: sides.last == 60_000, "the backlog to be mirrored")
    sides.nats = stan
    sides.publish(60_001, 60_050)
    sides.nats = js
    until(lambda: sides.last == 60_050, "the tail to be mirrored")
    assert sides.rows() == whole(60_050)
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0


def test_without_files_everything_comes_from_the_server(stage: Stage) -> None:
    sides = Sides(stage, 3000)
    assert sides.once().status == 0
    assert sides.rows() == whole(3000)
    sides.publish(3001, 3100)
    assert sides.once().status == 0
    assert sides.rows() == whole(3100)
