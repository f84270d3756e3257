"""The way back against a server that fails at random: publishes are refused, lost, stored without
an answer or stored late, the process is killed; nothing is in the channel twice, and nothing is
missing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.bridge import marks, wayback
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.marks import Item, Mark
from ftstan.bridge.target import StreamMessage, StreamState
from ftstan.bridge.wayback import Inlet, WayBack
from ftstan.client import ClientError
from ftstan.nats.jetstream import Batch

if TYPE_CHECKING:
    from ftstan.bridge.feed import Feed
    from ftstan.bridge.target import Target
    from ftstan.client import Start

CHANNEL = "orders"
INLET = "orders_new"


@dataclass
class World:
    """A channel, its stream, and the inlet; ``pending``: a publish that may still be stored."""

    random: random.Random
    channel: list[tuple[bytes, bytes]] = field(default_factory=list)
    mirrored: int = 0
    inlet: list[bytes] = field(default_factory=list)
    purged: int = 0
    dropped: int = 0
    id: str = "one"
    pending: list[tuple[bytes, bytes]] = field(default_factory=list)
    failing: bool = True
    connected: bool = True

    def settle(self, *, ends: bool = False) -> None:
        """What is late is stored, or not; where the session ends it is now or never."""
        if self.pending and self.random.random() < 0.5:
            self.channel += self.pending
            self.pending.clear()
        if ends:
            self.pending.clear()

    # ---- the streaming server

    def publish(self, channel: str, data: bytes, reply: bytes) -> None:
        assert channel == CHANNEL
        self.settle()
        match self.random.randrange(8 if self.failing else 1):
            case 1:
                raise ClientError("refused")
            case 2:
                self.channel.append((data, reply))
                raise ClientError("no answer")
            case 3:
                self.pending.append((data, reply))
                raise ClientError("late")
        self.channel.append((data, reply))

    def renew(self) -> None:
        self.settle(ends=True)
        if self.failing and self.random.random() < 0.2:
            raise ClientError("nobody serves")

    def read_one(self, channel: str, start: Start) -> Item | None:
        del start
        assert channel == CHANNEL
        self.settle()
        if not self.channel or (self.failing and self.random.random() < 0.1):
            # It may only be slow.
            return None
        data, reply = self.channel[-1]
        return Item(len(self.channel), 0, reply, data)

    # ---- JetStream

    def mirror(self) -> None:
        self.mirrored = min(self.mirrored + self.random.randrange(3), len(self.channel))

    def look(self, stream: str) -> StreamState:
        self.mirror()
        if stream == INLET:
            left = len(self.inlet) - self.purged
            config = {"metadata": {"ftstan-inlet": self.id}}
            return StreamState(self.purged + 1, len(self.inlet), left, config, 10**18)
        left = self.mirrored - self.dropped
        return StreamState(self.dropped + 1, self.mirrored, left, {"first_seq": 1})

    def get(self, stream: str, first: int, most: int, *_: object) -> Batch:
        if stream == INLET:
            found = [
                (n, CHANNEL, self.inlet[n - 1])
                for n in range(max(first, self.purged + 1), len(self.inlet) + 1)
            ][: min(most, 3)]
            return Batch(found, 204, [{} for _ in found])
        numbers = range(max(first, self.dropped + 1), min(first + most - 1, self.mirrored) + 1)
        numbers = numbers[:5]
        rows = [(n, CHANNEL, self.channel[n - 1][0]) for n in numbers]
        headers = [{"ftstan-reply": self.channel[n - 1][1].decode()} for n in numbers]
        return Batch(rows, 204, headers)

    def purge_to(self, stream: str, sequence: int) -> None:
        assert stream == INLET
        self.purged = max(self.purged, sequence - 1)

    def message(self, stream: str, sequence: int) -> StreamMessage:
        assert stream == CHANNEL
        # It is younger than what is in the inlet.
        mark = Mark(CHANNEL, sequence, 2 * 10**18, "run")
        return StreamMessage(sequence, self.channel[sequence - 1][0], mark)

    @property
    def js(self) -> World:
        return self


def begun(world: World, said: list[str]) -> tuple[WayBack, Inlet]:
    """A process that begins: its session ends those of former ones."""
    world.settle(ends=True)
    inlet = Inlet(CHANNEL, CHANNEL)
    back = WayBack(
        *(cast("Target", world), cast("Feed", world), [inlet]),
        lambda _: (len(world.channel), len(world.channel)),
        said.append,
    )
    back._is_fresh = True
    return back, inlet


def news(world: World) -> list[bytes]:
    return [data for data, _ in world.channel if data.startswith(b"new")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wayback, "_AGAIN_S", 0.0)
    monkeypatch.setattr(wayback, "_IDLE_S", 0.0)


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_twice_and_nothing_is_missing(seed: int) -> None:
    world = World(random.Random(seed))
    said: list[str] = []
    back, inlet = begun(world, said)
    for step in range(300):
        match world.random.randrange(6):
            case 0:
                world.inlet.append(b"new %d" % len(world.inlet))
            case 1:
                world.channel.append((b"old", b""))
            case 2 if world.random.random() < 0.2:
                back, inlet = begun(world, said)
        if step > 250:
            world.failing = False
        back._guarded(inlet)
        assert inlet.error is None
    for _ in range(200):
        back._guarded(inlet)
    assert news(world) == world.inlet, f"seed {seed}"
    assert world.purged == len(world.inlet)


def test_where_the_stream_has_dropped_what_tells_the_place_it_stops() -> None:
    world = World(random.Random(1), failing=False)
    said: list[str] = []
    world.inlet = [b"new 0", b"new 1"]
    world.channel = [(b"new 0", marks.origin(f"{INLET}.one", 1)), (b"old", b""), (b"old", b"")]
    world.mirrored = 3
    world.dropped = 1
    back, inlet = begun(world, said)
    back._guarded(inlet)
    assert isinstance(inlet.error, BridgeError)
    assert "cannot be told" in inlet.error.text
    assert len(world.channel) == 3


def test_removed_messages_are_told() -> None:
    world = World(random.Random(1), failing=False)
    said: list[str] = []
    back, inlet = begun(world, said)
    back._guarded(inlet)
    world.inlet = [b"new 0", b"new 1", b"new 2"]
    world.purged = 2
    back._guarded(inlet)
    assert news(world) == [b"new 2"]
    assert "messages 1 to 2 of orders_new are gone" in said[0]


def test_an_inlet_that_was_made_anew_is_read_from_its_beginning() -> None:
    world = World(random.Random(1), failing=False)
    said: list[str] = []
    world.inlet = [b"new 0", b"new 1"]
    back, inlet = begun(world, said)
    for _ in range(20):
        back._guarded(inlet)
    assert news(world) == [b"new 0", b"new 1"]
    world.id = "two"
    world.inlet = [b"new 2"]
    world.purged = 0
    back._guarded(inlet)
    assert inlet.error is not None
    assert "is gone" in inlet.error.text
    back, inlet = begun(world, said)
    for _ in range(20):
        back._guarded(inlet)
    assert news(world) == [b"new 0", b"new 1", b"new 2"]


@pytest.mark.parametrize("lost", [[b"new 0"], [b"new 0", b"another"], [b"new 0", b"x", b"y"]])
def test_an_inlet_that_has_lost_messages_stops_the_way_back(lost: list[bytes]) -> None:
    world = World(random.Random(1), failing=False)
    said: list[str] = []
    world.inlet = [b"new 0", b"new 1"]
    back, inlet = begun(world, said)
    for _ in range(20):
        back._guarded(inlet)
    world.inlet = lost
    world.purged = 0
    back, inlet = begun(world, said)
    for _ in range(20):
        back._guarded(inlet)
    assert inlet.error is not None
    assert "has lost messages" in inlet.error.text
    assert news(world) == [b"new 0", b"new 1"]


class Expired(World):
    """The channel has no messages any more; ``is_new``: there is no stream."""

    is_new = True

    def read_one(self, channel: str, start: Start) -> Item | None:
        del channel, start
        return None

    def look(self, stream: str) -> StreamState:
        if stream == INLET or not self.is_new:
            return super().look(stream)
        return cast("StreamState", None)


def test_a_channel_whose_messages_have_expired_before_there_was_a_stream_goes_on() -> None:
    world = Expired(random.Random(1), failing=False)
    world.inlet = [b"new 0", b"new 1"]
    inlet = Inlet(CHANNEL, CHANNEL)
    back = WayBack(
        *(cast("Target", world), cast("Feed", world), [inlet]), lambda _: (0, 50), lambda _: None
    )
    back._is_fresh = True
    for _ in range(5):
        back._guarded(inlet)
    assert news(world) == [b"new 0", b"new 1"]


def test_messages_that_expired_before_they_were_mirrored_are_told() -> None:
    world = Expired(random.Random(1), failing=False)
    world.is_new = False
    world.inlet = [b"new 0"]
    said: list[str] = []
    inlet = Inlet(CHANNEL, CHANNEL)
    back = WayBack(
        *(cast("Target", world), cast("Feed", world), [inlet]), lambda _: (0, 50), said.append
    )
    back._is_fresh = True
    for _ in range(3):
        back._guarded(inlet)
    assert news(world) == []
    assert len(said) == 1
    assert 'the messages 1 to 50 of "orders" have expired' in said[0]
