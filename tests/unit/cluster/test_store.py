"""The store of a leader: the log first, then the local store, and nothing without proof."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.cluster import log as module
from ftstan.cluster.entry import Kind, Position, decode_operations, follow
from ftstan.cluster.log import ReplicatedLog, settings
from ftstan.cluster.replica import BehindError
from ftstan.cluster.store import ClusterStore
from ftstan.stores.interface import ChannelLimits, ClientInfo
from tests.unit.cluster.stream import FakeJetStream, Stream
from tests.unit.cluster.test_replica import FOO, LOG, Life, block, events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.nats.jetstream import JetStream

NO_LIMITS = ChannelLimits()


class Leader:
    """A node that leads, on a store of its own."""

    def __init__(self, path: Path) -> None:
        self.stream = Stream(settings("cid", LOG))
        self.clock = ManualClock()
        self.life = Life(path, 1)
        js = cast("JetStream", FakeJetStream(self.stream))
        self.log = ReplicatedLog(js, "cid", self.clock, threading.Event())
        self.log.begin(Position(LOG))
        assert self.log.attempt(self.log.leader_record("a"))
        self.life.replica.follows = False
        self.store = ClusterStore(self.life.replica, self.log, self.clock)
        self.store.recover()

    @property
    def logged(self) -> list[list[str]]:
        """The names of the operations of each batch in the log."""
        at = Position(LOG)
        found = []
        for number, (_, data) in enumerate(self.stream.entries, 1):
            entry, at = follow(data, number, at)
            if entry.kind is Kind.BATCH:
                found.append([o.op.name for o in decode_operations(entry.body)])
        return found

    def be_replaced(self) -> None:
        other = ReplicatedLog(self.log.js, "cid", self.clock, threading.Event())
        other.begin(Position(LOG))
        while other.read().entries:
            pass
        assert other.attempt(other.leader_record("b"))


@pytest.fixture
def leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)
    made = Leader(tmp_path)
    yield made
    made.life.kill()


def test_what_is_staged_is_in_the_log_and_then_readable(leader: Leader) -> None:
    store = leader.store
    store.add_client(ClientInfo(b"me", b"inbox"))
    channel = store.create_channel(FOO, NO_LIMITS)
    channel.append(block(1, 3))
    assert channel.last == 0
    assert store.commit() == {}
    assert leader.logged == [["CLIENT_NEW", "PUBLISH"]]
    assert channel.last == 3
    assert leader.life.messages() == [1, 2, 3]


def test_a_leader_that_was_replaced_commits_nothing_and_confirms_nothing(leader: Leader) -> None:
    channel = leader.store.create_channel(FOO, NO_LIMITS)
    leader.be_replaced()
    channel.append(block(1, 3))
    with pytest.raises(FencedError, match="another node leads"):
        leader.store.commit()
    assert leader.life.messages() == []
    with pytest.raises(FencedError):
        leader.store.confirm()
    assert leader.log.is_replaced


def test_silence_is_no_proof(leader: Leader) -> None:
    store = leader.store
    store.confirm()
    assert leader.logged == [[]]
    store.confirm()
    assert len(leader.logged) == 1
    leader.clock.advance(1.0)
    leader.be_replaced()
    with pytest.raises(FencedError):
        store.confirm()


def test_deliveries_and_acks_wait_for_the_next_batch_and_not_for_long(leader: Leader) -> None:
    store = leader.store
    channel = store.create_channel(FOO, NO_LIMITS)
    channel.append(block(1, 3))
    store.commit()
    told = events(("sent", 1, 1))
    channel.add_events(told)
    assert len(told) == 0
    store.commit()
    assert store.acks_wait
    assert len(leader.logged) == 1
    assert not store.catch_up()
    assert leader.logged[1:] == [["EVENTS"]]
    assert not store.acks_wait


def test_a_channel_that_the_file_system_refuses_never_reaches_the_log(leader: Leader) -> None:
    store = leader.store
    for name in (b"x" * 256, b"server.dat/x"):
        with pytest.raises(StoreError):
            store.create_channel(name, NO_LIMITS)
    assert store.commit() == {}
    assert leader.logged == []
    store.create_channel(FOO, NO_LIMITS).append(block(1, 1))
    store.commit()
    assert leader.life.messages() == [1]


@pytest.mark.parametrize("what", ["purge", "delete_channel", "commit"])
def test_a_local_store_that_falls_behind_ends_the_leader(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    channel = leader.store.create_channel(FOO, NO_LIMITS)
    channel.append(block(1, 3))
    leader.store.commit()

    def refuse(*_: object) -> None:
        raise StoreError("no space")

    inner = leader.life.replica.channels[FOO].store if what == "purge" else leader.life.store
    monkeypatch.setattr(type(inner), what, refuse)
    channel.append(block(4, 4))
    calls = {
        "purge": lambda: channel.purge(2),
        "delete_channel": lambda: leader.store.delete_channel(FOO),
        "commit": leader.store.commit,
    }
    with pytest.raises(BehindError, match="no space"):
        calls[what]()
    assert leader.life.replica.at.sequence < leader.log.at.sequence


def test_a_leader_that_stops_leaves_before_it_syncs_its_store(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = leader.store
    channel = store.create_channel(FOO, NO_LIMITS)
    channel.append(block(1, 3))
    happened: list[str] = []
    checkpoint = leader.life.replica.checkpoint

    def left() -> None:
        happened.append(f"left at {leader.life.replica.at.sequence}")

    def synced() -> None:
        happened.append("synced")
        checkpoint()

    before = leader.log.at.sequence
    monkeypatch.setattr(store, "_left", left)
    monkeypatch.setattr(leader.life.replica, "checkpoint", synced)
    store.close()
    assert happened == [f"left at {before + 1}", "synced"]


def test_purges_and_deletions_are_in_the_log_on_return(leader: Leader) -> None:
    channel = leader.store.create_channel(FOO, NO_LIMITS)
    channel.append(block(1, 3))
    leader.store.commit()
    channel.purge(2)
    assert leader.life.messages() == [3]
    leader.store.delete_channel(FOO)
    assert leader.logged[1:] == [["PURGE"], ["CHANNEL_DELETE"]]
    with pytest.raises(StoreError, match="not found"):
        leader.store.delete_channel(FOO)
    checkpoint = leader.life.file.read()
    assert checkpoint is not None
    assert checkpoint.at == leader.log.at


def test_a_leader_that_meets_damage_does_not_read_on_behind_it(
    leader: Leader, tmp_path: Path
) -> None:
    store = leader.store
    channel = store.create_channel(FOO, NO_LIMITS)
    channel.append(block(1, 100))
    store.commit()
    file = tmp_path / "store" / "foo" / "msgs.1.dat"
    held = bytearray(file.read_bytes())
    at = held.index(b"data 50")
    held[at : at + 4] = b"rott"
    file.write_bytes(held)
    assert channel.read(1, 49, 1 << 20) is not None
    leader.life.replica.checkpoint()
    with pytest.raises(BehindError, match=r'channel "foo" is damaged on this node'):
        channel.read(50, 100, 1 << 20)
    # It ends without a word more, and the next start knows.
    found = leader.life.file.read()
    assert found is not None
    assert found.damaged == {FOO}
