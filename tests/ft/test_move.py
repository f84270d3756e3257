"""A channel moves from one partition to another while it is published to and read."""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.mortal_mover import STEPS
from tests.ft.operator import Said, run
from tests.processes import CLUSTER, READY, free_ports

if TYPE_CHECKING:
    from tests.ft.client import Subscription
    from tests.processes import Child, Nats, Server, Stage

pytestmark = pytest.mark.processes

ALLOWED = "-allow_channel_move"
NAME = CHANNEL.decode()


@dataclass
class Pair:
    """Two partitions, ``a`` with the channel; ``words`` of each are kept for another start."""

    stage: Stage
    nats: Nats
    a: Server
    b: Server
    starts: int = 0
    ports: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, channels: str = "", *words: str, dies: str = "") -> Server:
        """Start a server (again) with its datastore, its ports and a list.

        ``dies``: the step of a move at which it kills itself.
        """
        channels = channels or {"a": f"{NAME},foo", "b": "baz"}[name]
        entries = "\n".join(f'        "{entry}": {{}}' for entry in channels.split(","))
        file = self.stage.directory / f"{name}.conf"
        file.write_text(
            f"partitioning: true\nstore_limits: {{\n    channels: {{\n{entries}\n    }}\n}}\n"
        )
        self.starts += 1
        self.ports.setdefault(name, free_ports(1)[0])
        server = self.stage.server(
            f"{name}{self.starts}",
            *("-sc", str(file), "-ns", self.nats.url, "-store", "file"),
            *("-dir", str(self.stage.directory / name), ALLOWED, *words),
            monitor=self.ports[name],
            program=("tests.ft.mortal_mover", dies) if dies else ("ftstan.cli.server",),
        )
        setattr(self, name, server)
        return server

    def words(self, *words: str) -> list[str]:
        """``ftstanctl channel move`` as an operator types it."""
        return [
            *("channel", "move", NAME, "--server", self.nats.url, "--cluster", CLUSTER),
            *("--timeout", "0.5", "--yes"),
            *("--dir", str(self.stage.directory / "a")),
            *("--to-dir", str(self.stage.directory / "b"), *words),
        ]

    def say(self, *words: str) -> Said:
        """Have it done."""
        return run(*self.words(*words))

    def begin(self, *words: str) -> Child:
        """The same beside the test."""
        command = [sys.executable, "-m", "ftstan.cli.ctl", *self.words(*words)]
        return self.stage.run("ctl", command)

    def moves(self) -> list[dict[str, Any]]:
        """What the servers know of moves."""
        said = self.say("--status", "--output", "json")
        assert said.status == 0, said
        return sorted(said.json["moves"], key=lambda row: row["step"])

    @property
    def to_b(self) -> tuple[str, str]:
        return "--to", self.name_of(self.b)

    @staticmethod
    def name_of(server: Server) -> str:
        """What a server is called by its monitoring port."""
        return f"{socket.gethostname()}:{server.monitor}"


def two(stage: Stage, *words: str, dies: str = "") -> Pair:
    pair = Pair(stage, stage.nats(), None, None)  # type: ignore[arg-type]
    for name in ("a", "b"):
        step = dies if dies and STEPS[dies] == name else ""
        pair.start(name, "", *words, dies=step).wait_for(READY)
    return pair


def client_of(nats: Nats, name: str) -> StanClient:
    client = StanClient(nats.port, name)
    client.connect()
    return client


def load_until(load: Load, reader: StanClient, child: Child) -> None:
    """Publish and read until the command has ended."""
    end = time.monotonic() + 60
    while child.running and time.monotonic() < end:
        load.run(64)
        reader.nats.read(0.001)
    assert child.status() == 0, child.tail()


def read_on(reader: StanClient, subscription: Subscription, contents: dict[int, bytes]) -> None:
    """Let the reader come to the end, and hold what it got to the log."""
    last = max(contents)
    reader.nats.pump(
        lambda: last in set(subscription.sequences[-1024:]), f"sequence {last} at the reader"
    )
    got = {message.sequence: message.data for message in subscription.received}
    assert got == contents


def test_a_channel_moves_under_its_publishers_and_readers(stage: Stage) -> None:
    pair = two(stage)
    load = Load()
    reader = client_of(pair.nats, "reader")
    durable = reader.subscribe(CHANNEL, durable=b"dur")
    load.join(client_of(pair.nats, "publisher"))
    load.run(5000)
    child = pair.begin(*pair.to_b)
    load_until(load, reader, child)
    load.run(2000)
    load.settle()
    contents = client_of(pair.nats, "judge").read_all(CHANNEL)
    load.judge(contents)
    read_on(reader, durable, contents)
    again = [m.sequence for m in durable.received if m.redelivered]
    assert len(durable.received) - len(contents) == len(again)
    assert "has moved to" in pair.a.text()
    assert "served by" in child.text()
    assert f'take out of channels: "{NAME}"' in child.text()


@pytest.mark.parametrize("step", STEPS)
def test_a_server_that_is_killed_at_any_step_loses_and_repeats_nothing(
    stage: Stage, step: str
) -> None:
    victim = STEPS[step]
    pair = two(stage, dies=step)
    load = Load()
    reader = client_of(pair.nats, "reader")
    durable = reader.subscribe(CHANNEL, durable=b"dur", ack_wait=1)
    load.join(client_of(pair.nats, "publisher"))
    load.run(500)
    child = pair.begin(*pair.to_b)
    dying = getattr(pair, victim)
    end = time.monotonic() + 60
    while dying.running:
        assert time.monotonic() < end, f"nobody came to that step\n{child.tail()}"
        load.press(64)
        reader.nats.read(0.005)
    # With the list of before the move: it serves what it must serve, and nothing else.
    pair.start(victim).wait_for(READY)
    load.press(64)
    said = pair.say(*pair.to_b)
    assert said.status == 0, said
    load.give_up()
    load.run(200)
    load.settle()
    contents = client_of(pair.nats, "judge").read_all(CHANNEL)
    load.judge(contents)
    read_on(reader, durable, contents)
    # And so do both after another start.
    for name in ("a", "b"):
        getattr(pair, name).kill()
        pair.start(name).wait_for(READY)
    load.give_up()
    load.run(200)
    load.settle()
    load.judge(client_of(pair.nats, "judge2").read_all(CHANNEL))
    assert [row["step"] for row in pair.moves()] == ["gone", "taken"]
