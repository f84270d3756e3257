"""Cut-overs and undos that were killed on the way, or do not know what became of a step: nobody is
left refused by both sides, and never do both sides take publishes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.errors import NatsError
from ftstan.bridge import compare, cutover, names
from ftstan.bridge.bridge import Bridge
from ftstan.bridge.cutover import Move
from ftstan.bridge.errors import BridgeError
from ftstan.bridge.marks import Item
from ftstan.bridge.mirror import Mirror, Stage
from ftstan.bridge.target import Target
from ftstan.nats.jetstream import ApiError, Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.bridge.feed import Feed
    from ftstan.client import Start
    from ftstan.nats.jetstream import JetStream

CHANNEL = "orders"
INLET = "orders_new"
CLUSTER = "cid"


@dataclass
class World:
    """JetStream, with streams as their settings, and the streaming server, with one channel.

    ``unanswered``: the next update is carried out after the one who asked has given up.
    """

    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    channel: int = 50
    is_marked: bool = False
    unanswered: bool = False
    refused: bool = False
    late: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    is_silent: bool = False
    link: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(info={}))

    # ---- JetStream

    def api(self, what: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        del seconds
        verb, _, stream = what.rpartition(".")
        if stream in {"INFO", "NAMES"}:
            return {}
        if verb == "STREAM.INFO":
            if stream not in self.streams:
                raise ApiError("stream not found", 10059)
            last = self.last[stream]
            state = {"first_seq": 1, "last_seq": last, "messages": last}
            return {"config": self.streams[stream], "state": state}
        if verb == "STREAM.CREATE":
            self.last[stream] = 0
        if stream == CHANNEL and self.refused:
            raise ApiError("no", 10052)
        if stream == CHANNEL and self.unanswered:
            self.late.append((stream, request))
            raise NatsError("JetStream did not answer")
        self.streams[stream] = request
        return {}

    def get(self, stream: str, first: int, *_: object) -> Batch:
        rows = [(n, CHANNEL, b"%d" % n) for n in range(first, self.last[stream] + 1)]
        return Batch(rows, 204, [{} for _ in rows])

    def settle(self) -> None:
        """What is late is carried out."""
        self.unanswered = False
        self.streams.update(self.late)

    @property
    def takers(self) -> set[str]:
        """Who takes publishes to the channel's name."""
        found = {name for name, config in self.streams.items() if config["subjects"] == [CHANNEL]}
        return found if self.is_marked else found | {"the channel"}

    # ---- the streaming server

    def is_moved(self, channel: str) -> bool:
        assert channel == CHANNEL
        return self.is_marked

    def look(self, channel: str) -> tuple[int, int]:
        assert channel == CHANNEL
        return self.channel, self.channel

    def mark(self, channel: str, *, on: bool) -> int:
        assert channel == CHANNEL
        self.is_marked = on
        return self.channel

    def read_one(self, channel: str, start: Start) -> Item | None:
        del channel, start
        return None if self.is_silent else Item(self.channel, 0, b"", b"%d" % self.channel)

    def items(self, channel: str, first: int, last: int) -> Iterator[list[Item]]:
        assert channel == CHANNEL
        if not self.is_silent:
            yield [Item(n, 0, b"", b"%d" % n) for n in range(first, last + 1)]


def made(world: World, *, is_two_way: bool = True) -> Target:
    """A level stream, and its inlet."""
    target = Target(cast("JetStream", world), CLUSTER, cast("Any", _Options()))
    world.streams[CHANNEL] = target.wanted(CHANNEL, CHANNEL, 1, two_way=is_two_way)
    world.last[CHANNEL] = world.channel
    if is_two_way:
        target.make_inlet(CHANNEL, CHANNEL)
    return target


@dataclass
class _Options:
    replicas: int = 1
    storage: str = "file"
    max_msgs: int = 0
    max_bytes: int = 0
    max_age: float = 0.0


def move(world: World, target: Target) -> Move:
    return Move(target, world, CHANNEL, CHANNEL, 1.0, lambda _: None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutover, "_QUIET_S", 0.0)
    monkeypatch.setattr(cutover, "_LOOK_S", 0.0)


def feed(world: World) -> Feed:
    return cast("Feed", world)


def test_a_cut_over_and_an_undo_leave_one_who_takes_publishes() -> None:
    world = World()
    target = made(world)
    assert world.takers == {INLET, "the channel"}
    assert move(world, target).cut_over() == 50
    assert world.takers == {CHANNEL}
    assert move(world, target).cut_over() == 50
    assert move(world, target).undo(feed(world)) == 50
    assert world.takers == {INLET, "the channel"}
    assert target.look(CHANNEL).moved is None  # type: ignore[union-attr]


def test_a_move_that_is_carried_out_late_is_not_taken_back() -> None:
    world = World(unanswered=True)
    target = made(world)
    with pytest.raises(BridgeError, match="it is not known whether"):
        move(world, target).cut_over()
    world.settle()
    assert world.takers == {CHANNEL}
    assert move(world, target).cut_over() == 50


def test_a_move_that_jetstream_refuses_is_taken_back() -> None:
    world = World(refused=True)
    target = made(world)
    with pytest.raises(ApiError):
        move(world, target).cut_over()
    assert world.takers == {INLET, "the channel"}


def test_a_cut_over_that_cannot_be_taken_back_says_what_failed_and_what_to_do() -> None:
    class Down(World):
        def mark(self, channel: str, *, on: bool) -> int:
            raise NatsError(f"nobody marks {channel}")

        def is_moved(self, channel: str) -> bool:
            raise NatsError(f"nobody has {channel}")

    world = Down()
    said: list[str] = []
    broken = Move(made(world), world, CHANNEL, CHANNEL, 1.0, said.append)
    with pytest.raises(NatsError, match="nobody marks"):
        broken.cut_over()
    assert "could not be taken back: nobody has orders" in said[-1]
    assert "ftstanctl bridge undo orders" in said[-1]


def test_after_an_undo_that_was_killed_only_an_undo_goes_on() -> None:
    world = World()
    target = made(world)
    move(world, target).cut_over()
    state = target.look(CHANNEL)
    assert state is not None
    target.set_two_way(state, CHANNEL)
    target.open_inlet(CHANNEL, CHANNEL)
    with pytest.raises(BridgeError, match="an undo has begun"):
        move(world, target).cut_over()
    world.is_marked = False
    world.channel = 53
    with pytest.raises(BridgeError, match="an undo has begun"):
        move(world, target).cut_over()
    assert move(world, target).undo(feed(world)) == 53
    assert world.takers == {INLET, "the channel"}


def test_an_undo_that_cannot_bring_back_what_the_stream_has_says_so() -> None:
    world = World()
    target = made(world)
    move(world, target).cut_over()
    world.last[CHANNEL] = 60
    world.is_marked = False
    with pytest.raises(BridgeError, match="what is behind 50 is not in the channel"):
        move(world, target).undo(feed(world))
    assert target.look(CHANNEL).moved == 50  # type: ignore[union-attr]


def test_an_undo_opens_the_inlet_that_a_killed_cut_over_has_closed() -> None:
    world = World()
    target = made(world)
    target.close_inlet(CHANNEL, CHANNEL)
    assert world.takers == {"the channel"}
    assert move(world, target).undo(feed(world)) == 50
    assert world.takers == {INLET, "the channel"}
    with pytest.raises(BridgeError, match="has not moved into"):
        move(world, target).undo(feed(world))


@pytest.mark.parametrize("is_two_way", [True, False])
def test_a_bridge_that_starts_during_the_cut_over_leaves_the_stream_its_name(
    *, is_two_way: bool
) -> None:
    world = World()
    target = made(world, is_two_way=is_two_way)
    mirror = Mirror(0, CHANNEL, CHANNEL, two_way=True)
    mirror.exists = True
    bridge = Bridge.__new__(Bridge)
    bridge._target = target
    bridge._say = lambda _: None
    move(world, target).cut_over()
    bridge._make_two_way(mirror)
    assert mirror.stage is Stage.STOPPED
    assert world.takers == {CHANNEL}
    assert (names.inlet_name(CHANNEL) in world.streams) is is_two_way


def test_a_channel_that_is_silent_is_not_called_equal() -> None:
    world = World()
    target = made(world)
    assert compare.compare(target, feed(world), None, CHANNEL, CHANNEL, look=world.look).is_equal
    world.is_silent = True
    with pytest.raises(NatsError, match="have not come in time"):
        compare.compare(target, feed(world), None, CHANNEL, CHANNEL, look=world.look)
    world.channel = 0
    assert compare.compare(target, feed(world), None, CHANNEL, CHANNEL, look=world.look).older == 50


def test_a_channel_that_has_moved_does_not_keep_a_bridge_from_the_others() -> None:
    world = World()
    target = made(world)
    move(world, target).cut_over()
    moved = Mirror(0, CHANNEL, CHANNEL, two_way=True)
    other = Mirror(1, "other", "other", two_way=True)
    said: list[str] = []
    bridge = Bridge.__new__(Bridge)
    bridge._target = target
    bridge._files = None
    bridge._say = said.append
    bridge._mirrors = [moved, other]
    bridge.prepare()
    assert (moved.is_live, other.is_live) == (False, True)
    assert "orders: has moved into the stream orders at 50" in said[0]
    bridge._mirrors = [moved]
    with pytest.raises(BridgeError, match="has moved into the stream"):
        bridge.prepare()
