"""A streaming server and a JetStream for tests of the bridge between them."""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import TYPE_CHECKING, Any

import ftstan.client
from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.nats.jetstream import JetStream, headers_of
from ftstan.nats.link import Link
from tests.datastores import serving
from tests.ft.operator import run
from tests.processes import CLUSTER, READY, Nats

if TYPE_CHECKING:
    from tests.ft.operator import Said
    from tests.processes import Child, Server, Stage

CHANNEL = "orders.eu"
STREAM = "orders_eu"


class Sides:
    """A streaming server on a nats-server that has JetStream, with a store of ``count``."""

    def __init__(
        self,
        stage: Stage,
        count: int = 0,
        *words: str,
        settings: str = "",
        group: bool = False,
        memory: bool = False,
    ) -> None:
        self.stage = stage
        if count:
            fill(stage, 1, count)
        self._settings = settings or f'jetstream {{ store_dir: "{stage.directory}/js" }}\n'
        self.nats: Nats = stage.nats("nats", settings=self._settings)
        begin = stage.member if group else stage.server if memory else stage.file_server
        self.server: Server = begin("stan", "-ns", self.nats.url, *words)
        self.server.wait_for(READY)

    def js(self, server: Nats | None = None) -> JetStream:
        link = Link([(server or self.nats).url], name="test", clock=SystemClock())
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
                CLUSTER, "publisher", servers=self.nats.url, republish=True
            ) as client:
                for number in range(first, last + 1):
                    await client.publish_async(CHANNEL, payload(number))

        asyncio.run(work())


def fill(stage: Stage, first: int, last: int, behind: bytes = b"") -> None:
    """Put messages into the channel's log while no server runs."""
    with serving(stage.store) as node:
        for begin in range(first, last + 1, 1000):
            end = min(begin + 999, last)
            node.publish(CHANNEL.encode(), *(payload(n) + behind for n in range(begin, end + 1)))
        node.stop()


def payload(number: int) -> bytes:
    return b"message %d" % number


def whole(last: int, first: int = 1) -> list[tuple[int, bytes]]:
    return [(number, payload(number)) for number in range(first, last + 1)]


def from_files(sides: Sides) -> tuple[str, ...]:
    return ("--dir", str(sides.stage.store))
