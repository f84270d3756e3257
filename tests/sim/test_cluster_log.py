"""The road of a cluster's log with the real followers and appends, over a stream that loses
answers, takes appends late, and shows copies that are behind; with beats that are lost, nodes that
stand still and die, and two that believe to lead.

Held: what was confirmed stands in the log, once, and what one leader had confirmed in that order
(a leader that was replaced meanwhile may hear late that its last entry stands); and each node has
applied what the log has, in its order.
"""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace

import pytest

from ftstan.base.errors import FencedError
from ftstan.cluster import log as module
from ftstan.cluster.entry import HEAD_SIZE, Entry, Kind, Position
from ftstan.cluster.follower import Stage
from ftstan.cluster.log import settings
from ftstan.nats.jetstream import Answer
from tests.unit.cluster.stream import Stream
from tests.unit.cluster.test_follower import LOG, Node, Time

NAMES = ("a", "b", "c")
STEPS = 1500


class World:
    """Three nodes, one stream, and chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time = Time()
        self.stream = Stream(settings("cid", LOG))
        self.nodes = {name: Node(self.stream, name, self.time, Position(LOG)) for name in NAMES}
        self.asleep: dict[str, float] = {}
        self.staged: dict[str, Entry] = {}
        self.confirmed: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self.bodies = 0
        self.leaders = 0

    def step(self) -> None:
        """Something happens at one node."""
        chance = self.chance
        self.time.now += chance.choice((0.001, 0.01, 0.05, 0.1))
        if chance.random() < 0.05:
            self.stream.hidden = chance.choice((0, 0, 1, 2))
        if self.stream.late and chance.random() < 0.1:
            self.stream.deliver_late()
        name = chance.choice(NAMES)
        if self.time.now < self.asleep.get(name, 0.0):
            return
        what = chance.random()
        if what < 0.01:
            # It stands still, and believes afterwards what it believed before.
            self.asleep[name] = self.time.now + chance.uniform(0.5, 4.0)
        elif what < 0.016:
            self.die(name)
        else:
            self.turn(name)

    def turn(self, name: str) -> None:
        node = self.nodes[name]
        if node.stage() is not Stage.LEADING:
            node.js.reports = [
                Answer(0, {}, other.follower.report().encode())
                for other in self.nodes.values()
                if self.is_heard(other.name)
            ]
            before = node.elected
            node.follower.turn(readable=True)
            self.leaders += node.elected - before
            return
        if name not in self.staged:
            if self.chance.random() < 0.5:
                self.beat(node)
                return
            self.bodies += 1
            body = b"body %d of %s" % (self.bodies, name.encode())
            (self.staged[name],) = node.log.pieces(Kind.BATCH, body)
        self.append(node)

    def append(self, node: Node) -> None:
        """One attempt: an append that nobody answered is repeated with the same bytes."""
        entry = self.staged[node.name]
        data = entry.encode()
        fault = self.chance.choice(("", "", "", "", "lost", "dropped", "late"))
        self.stream.faults = deque([fault] if fault else [])
        try:
            is_taken = node.log.attempt(data)
        except FencedError:
            self.die(node.name)
            return
        finally:
            self.stream.faults.clear()
        if is_taken:
            del self.staged[node.name]
            node.replica.take(entry, node.log.at)
            self.confirmed[node.name].append(data)

    def beat(self, node: Node) -> None:
        for other in self.nodes.values():
            if other is not node and self.chance.random() < 0.7:
                other.js.waiting.append(node.follower.report().encode())

    def is_heard(self, name: str) -> bool:
        return self.time.now >= self.asleep.get(name, 0.0) and self.chance.random() < 0.8

    def die(self, name: str) -> None:
        """It starts again with its checkpoint, which is where its log was, or an earlier one."""
        old = self.nodes[name]
        self.staged.pop(name, None)
        at = self.chance.choice((old.log.at, Position(LOG)))
        node = self.nodes[name] = Node(self.stream, name, self.time, at)
        node.replica.seen = max(old.replica.seen, at.sequence)
        node.replica.taken = old.replica.taken[: at.sequence] if at.sequence else []

    def settle(self) -> None:
        """Let everything that is under way come to its end, and every node read it all."""
        self.stream.hidden = 0
        self.stream.deliver_late()
        for node in self.nodes.values():
            if node.stage() is Stage.LEADING:
                self.die(node.name)
        for node in self.nodes.values():
            self.nodes[node.name].js.reports = []
            self.nodes[node.name].run(2.5)


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(request.param)

    def sleep(seconds: float) -> None:
        made.time.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))
    for _ in range(STEPS):
        made.step()
    return made


def entries(taken: list[Entry]) -> list[bytes]:
    return [entry.body for entry in taken if entry.kind is Kind.BATCH]


@pytest.mark.parametrize("world", range(60), indirect=True)
def test_what_was_confirmed_stands_in_the_log_once_and_in_order(world: World) -> None:
    logged = [data for _, data in world.stream.entries]
    assert len(logged) == len(set(logged))
    for confirmed in world.confirmed.values():
        places = [logged.index(data) for data in confirmed]
        assert places == sorted(set(places))
    # The schedule did something.
    assert any(world.confirmed.values())
    assert world.leaders


@pytest.mark.parametrize("world", range(20), indirect=True)
def test_each_node_applies_the_log_in_its_order(world: World) -> None:
    world.settle()
    bodies = [data[HEAD_SIZE:] for _, data in world.stream.entries]
    for node in world.nodes.values():
        applied = entries(node.replica.taken)
        assert applied == [body for body in bodies if body.startswith(b"body")][: len(applied)]
        assert len(node.replica.taken) == node.log.at.sequence
    furthest = max(node.log.at.sequence for node in world.nodes.values())
    assert furthest == len(world.stream.entries)
