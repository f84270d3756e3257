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
from tests.ft.mortal_mover import STALLS, STEPS
from tests.ft.operator import Said, run
from tests.processes import CLUSTER, READY, free_ports, until

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

    def start(
        self, name: str, channels: str = "", *words: str, dies: str = "", store: str = "file"
    ) -> Server:
        """Start a server (again) with its datastore, its ports and a list.

        ``a`` and ``a2`` have one datastore.

        ``dies``: the step of a move at which it kills itself.
        """
        channels = channels or {"a": f"{NAME},foo", "b": "baz"}[name[0]]
        entries = "\n".join(f'        "{entry}": {{}}' for entry in channels.split(","))
        file = self.stage.directory / f"{name}.conf"
        file.write_text(
            f"partitioning: true\nstore_limits: {{\n    channels: {{\n{entries}\n    }}\n}}\n"
        )
        self.starts += 1
        self.ports.setdefault(name, free_ports(1)[0])
        server = self.stage.server(
            f"{name}{self.starts}",
            *("-sc", str(file), "-ns", self.nats.url, "-store", store),
            *("-dir", str(self.stage.directory / name[0]), *(words or (ALLOWED,))),
            monitor=self.ports[name],
            program=("tests.ft.mortal_mover", dies) if dies else ("ftstan.cli.server",),
        )
        setattr(self, name, server)
        return server

    def words(self, *words: str) -> list[str]:
        """``ftstanctl channel move`` as an operator types it."""
        return [
            *("channel", "move", NAME, "--server", self.nats.url, "--cluster", CLUSTER),
            *("--timeout", "2", "--yes"),
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


def two(stage: Stage, *, dies: str = "") -> Pair:
    """A source and a target. ``dies``: the step at which the target does."""
    pair = Pair(stage, stage.nats(), None, None)  # type: ignore[arg-type]
    for name in ("a", "b"):
        step = dies if name == "b" else ""
        pair.start(name, dies=step).wait_for(READY)
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
        lambda: any(m.sequence == last for m in subscription.received[-1024:]),
        f"sequence {last} at the reader, who has {len(subscription.received)} messages",
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(6))
def test_a_server_that_is_killed_at_any_step_loses_and_repeats_nothing(
    stage: Stage, part: int
) -> None:
    """The channel goes there and back, and each time one of the two dies at another step."""
    pair = two(stage)
    load = Load()
    reader = client_of(pair.nats, "reader")
    durable = reader.subscribe(CHANNEL, durable=b"dur", ack_wait=1)
    load.join(client_of(pair.nats, "publisher"))
    load.run(200)
    source, target = "a", "b"
    for step in list(STEPS)[part::6]:
        victim = {"source": source, "target": target}[STEPS[step]]
        getattr(pair, victim).kill()
        dying = pair.start(victim, dies=step)
        dying.wait_for(READY)
        words = (
            *("--to", pair.name_of(getattr(pair, target))),
            *("--dir", str(stage.directory / source)),
            *("--to-dir", str(stage.directory / target)),
        )
        child = pair.begin(*words)
        end = time.monotonic() + 120
        while dying.running:
            assert time.monotonic() < end, f"nobody came to {step}\n{child.tail()}"
            if not child.running:
                # It was refused, by a machine that is too busy: an operator would try again.
                child = pair.begin(*words)
            load.press(64)
            pause = time.monotonic() + 0.2
            while time.monotonic() < pause:
                reader.nats.read(0.05)
        # With the list that it has always had: it serves what it must serve, and nothing else.
        pair.start(victim).wait_for(READY)
        load.press(64)
        said = pair.say(*words)
        assert said.status == 0, (step, said)
        child.kill()
        load.read_rest()
        load.give_up()
        load.run(100)
        load.settle()
        source, target = target, source
    contents = client_of(pair.nats, "judge").read_all(CHANNEL)
    load.judge(contents)
    read_on(reader, durable, contents)
    # And so do both after another start.
    for name in ("a", "b"):
        getattr(pair, name).kill()
        pair.start(name).wait_for(READY)
    load.give_up()
    load.run(100)
    load.settle()
    load.judge(client_of(pair.nats, "judge2").read_all(CHANNEL))
    assert [row["step"] for row in pair.moves()] == ["gone", "taken"]


# ---- what operators do
# --------------------------------------------------------------------------------------------------


def served(pair: Pair, count: int = 100) -> Load:
    """Publish so many messages, all of which are answered."""
    load = Load()
    load.join(client_of(pair.nats, "publisher"))
    load.run(count)
    load.settle()
    return load


def test_a_dry_run_says_what_would_be_and_changes_nothing(stage: Stage) -> None:
    pair = two(stage)
    load = served(pair)
    said = pair.say(*pair.to_b, "--dry-run")
    assert said.status == 0, said
    assert "can move from" in said.out
    assert f'add to channels: "{NAME}": {{ max_msgs: 1000000' in said.out
    assert pair.moves() == []
    load.run(10)
    load.settle()


def test_a_move_is_taken_back_while_it_is_under_way_and_not_afterwards(stage: Stage) -> None:
    pair = two(stage, dies=STALLS)
    load = served(pair)
    child = pair.begin(*pair.to_b)
    until(lambda: [row for row in pair.moves() if row["copied"]], "the copy")
    assert [row["step"] for row in pair.moves()] == ["copying", "offered"]
    said = pair.say("--undo")
    assert said.status == 0, said
    assert "the copy is removed" in said.out
    assert pair.moves() == []
    load.run(10)
    load.settle()
    child.kill()
    pair.b.kill()
    pair.start("b").wait_for(READY)
    assert pair.say(*pair.to_b).status == 0
    said = pair.say("--undo")
    assert said.status == 1
    assert "for good" in said.err
    load.run(10)
    load.settle()
    load.judge(client_of(pair.nats, "judge").read_all(CHANNEL))


def test_a_command_that_is_killed_leaves_a_move_that_goes_on(stage: Stage) -> None:
    pair = two(stage)
    load = served(pair, 3000)
    child = pair.begin(*pair.to_b)
    until(pair.moves, "the move to begin")
    child.kill()
    until(lambda: [row["step"] for row in pair.moves()] == ["gone", "taken"], "its end")
    load.run(10)
    load.settle()
    load.judge(client_of(pair.nats, "judge").read_all(CHANNEL))
    assert pair.say(*pair.to_b).status == 0


def test_a_channel_goes_back_and_its_files_at_the_former_server_are_removed(stage: Stage) -> None:
    pair = two(stage)
    load = served(pair)
    reader = client_of(pair.nats, "reader")
    durable = reader.subscribe(CHANNEL, durable=b"dur")
    back = ("--dir", str(stage.directory / "b"), "--to-dir", str(stage.directory / "a"))
    for words in (pair.to_b, ("--to", pair.name_of(pair.a), *back), pair.to_b):
        said = pair.say(*words)
        assert said.status == 0, said
        load.run(100)
        load.settle()
    said = pair.say("--remove-copy")
    assert said.status == 0, said
    assert not list((stage.directory / "a").glob(f"{NAME}/msgs.*"))
    assert pair.say("--remove-copy").status == 1
    for name in ("a", "b"):
        getattr(pair, name).kill()
        pair.start(name).wait_for(READY)
    load.give_up()
    load.run(100)
    load.settle()
    contents = client_of(pair.nats, "judge").read_all(CHANNEL)
    load.judge(contents)
    read_on(reader, durable, contents)


def test_lists_that_were_put_right_serve_the_same(stage: Stage) -> None:
    pair = two(stage)
    load = served(pair)
    assert pair.say(*pair.to_b).status == 0
    for name, channels in (("a", "foo"), ("b", f"baz,{NAME}")):
        getattr(pair, name).kill()
        pair.start(name, channels).wait_for(READY)
        assert "the list of this server" not in getattr(pair, name).text()
    load.give_up()
    load.run(100)
    load.settle()
    load.judge(client_of(pair.nats, "judge").read_all(CHANNEL))


def test_what_cannot_move_is_refused_by_name(stage: Stage) -> None:
    pair = Pair(stage, stage.nats(), None, None)  # type: ignore[arg-type]
    key = str(stage.directory / "b.key")
    pair.start("a", "*,foo.*").wait_for(READY)
    pair.start("b", "bar.>", ALLOWED, "-admin_key", key, store="memory").wait_for(READY)
    served(pair, 10)

    def refused(*words: str) -> str:
        said = pair.say(*words)
        assert said.status == 1, said
        assert said.err.count("\n") <= 2
        return said.err

    assert 'served by the entry "*"' in refused(*pair.to_b)
    assert "no server nowhere answered" in refused("--to", "nowhere")
    assert "no move of channel orders is under way" in refused("--undo")
    pair.a.kill()
    pair.start("a").wait_for(READY)
    by_file = ("--to-dir", "", "--to-admin-key", key)
    assert "a MEMORY store cannot keep what has moved" in refused(*pair.to_b, *by_file)
    pair.b.kill()
    pair.start("b", "", "-D").wait_for(READY)
    assert "does not let channels move" in refused(*pair.to_b)
    pair.b.kill()
    pair.start("b").wait_for(READY)
    assert pair.say(*pair.to_b).status == 0


def test_a_pair_whose_active_dies_gives_the_channel_away_and_each_uses_its_key(
    stage: Stage,
) -> None:
    pair = Pair(stage, stage.nats(), None, None)  # type: ignore[arg-type]
    group = (ALLOWED, "-ft_group", "pair", "-encrypt", "-encryption_key", "k" * 32)
    first = pair.start("a", "", *group, dies="after _detach")
    first.wait_until_active()
    second = pair.start("a2", "", *group)
    second.wait_until_standing_by()
    plain = pair.start("b")
    plain.wait_for(READY)
    load = Load()
    load.join(client_of(pair.nats, "publisher"))
    load.run(300)
    said = pair.say(*pair.to_b)
    assert said.status == 1
    assert "would store them plain" in said.err
    plain.kill()
    pair.start("b", "", ALLOWED, "-encrypt", "-encryption_key", "q" * 32).wait_for(READY)
    child = pair.begin(*pair.to_b)
    end = time.monotonic() + 60
    while first.running:
        assert time.monotonic() < end, child.tail()
        load.press(64)
        load.read_rest()
        time.sleep(0.2)
    second.wait_until_active()
    assert pair.say(*pair.to_b).status == 0
    load.give_up()
    load.run(200)
    load.settle()
    load.judge(client_of(pair.nats, "judge").read_all(CHANNEL))
    assert [row["step"] for row in pair.moves()] == ["gone", "taken"]
    third = pair.start("a", "", *group)
    third.wait_until_standing_by()
    second.kill()
    third.wait_until_active()
    load.give_up()
    load.run(200)
    load.settle()
    load.judge(client_of(pair.nats, "judge2").read_all(CHANNEL))
