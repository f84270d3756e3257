"""A datastore becomes that of a node, and that of a server without a cluster again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, RefusedError
from ftstan.cli.store_owner import owning
from ftstan.cluster.checkpoint import CheckpointFile
from ftstan.cluster.entry import Position
from ftstan.cluster.members import without_others
from ftstan.cluster.seeding import Seeded, leave, seed
from ftstan.config.limits import Limits
from ftstan.config.options import StoreLimits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ClientInfo, ServerInfo, SubState
from tests.sim.model import read_all
from tests.unit.cluster.test_replica import FOO, block, events

if TYPE_CHECKING:
    from pathlib import Path

INFO = ServerInfo("cid", "d", "p", "s", "u", "c", "sc", "a")


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The datastore of a server without a cluster, which was stopped."""
    path = tmp_path / "store"
    path.mkdir()
    with owning(str(path)) as (owner, _):
        store = FileStore(LocalDisk(), owner.root, owner, SystemClock())
        store.recover()
        store.set_server_info(INFO)
        store.add_client(ClientInfo(b"me", b"inbox"))
        channel = store.create_channel(FOO, Limits(StoreLimits()).of(FOO))
        channel.append(block(1, 50))
        channel.add_sub(SubState(1, b"me", inbox=b"i", ack_inbox=b"a", durable_name=b"d"))
        channel.add_events(events(("sent", 1, 7)))
        assert store.commit() == {}
        store.write_events()
        store.close()
    return path


def seeded(path: Path, node: str = "a") -> Seeded:
    with owning(str(path)) as (owner, _):
        return seed(str(path), str(path.parent / "log"), node, owner, SystemClock())


def left(path: Path, *, not_last: bool = False) -> Seeded:
    with owning(str(path)) as (owner, _):
        log = str(path.parent / "log")
        return leave(str(path), log, owner, SystemClock(), not_last=not_last)


def contents(path: Path) -> tuple[object, ...]:
    with owning(str(path)) as (owner, _):
        store = FileStore(LocalDisk(), owner.root, owner, SystemClock(), FileStoreOptions())
        found = store.recover()
        (channel,) = found.channels
        held = read_all(channel)
        subs = [(sub.state, sub.pending) for sub in channel.recovered_subs()]
        store.abandon()
        return found.clients, channel.last, held, subs


def test_a_datastore_becomes_a_nodes_and_is_one_no_more_with_everything_in_it(alone: Path) -> None:
    before = contents(alone)
    assert seeded(alone) == Seeded("cid", "a", 1, 1, 50, 1)
    file = CheckpointFile(str(alone.parent / "log"), str(alone))
    found = file.read()
    assert found is not None
    assert (found.at.sequence, found.at.epoch, found.at.crc) == (1, 0, 0)
    assert (found.seeds, found.ends, found.clean, found.unsound) == (True, False, True, False)
    assert file.is_marked(found)
    assert (alone / "cluster.id").read_text() == "a\n"
    assert contents(alone) == before
    assert left(alone) == Seeded("cid", "a", 1, 1, 50, 1)
    assert file.read() is None
    assert not (alone / "cluster.id").exists()
    assert not (alone / "cluster.mark").exists()
    assert contents(alone) == before


def test_what_cannot_be_seeded_is_refused_and_stays_as_it_is(alone: Path) -> None:
    (alone.parent / "log" / "jetstream").mkdir(parents=True)
    with pytest.raises(RefusedError, match="is that of a node already"):
        seeded(alone)
    (alone.parent / "log" / "jetstream").rmdir()
    with pytest.raises(ConfigError, match="cannot be part of a subject"):
        seeded(alone, "a.b")
    file = alone / "foo" / "msgs.1.dat"
    held = file.read_bytes()
    file.write_bytes(held[:100])
    with pytest.raises(RefusedError, match='channel "foo"'):
        seeded(alone)
    file.write_bytes(held)
    seeded(alone)
    with pytest.raises(RefusedError, match="is that of a node already"):
        seeded(alone)


def test_what_a_repair_has_found_lost_keeps_no_datastore_from_a_cluster_or_from_leaving_it(
    alone: Path,
) -> None:
    with owning(str(alone)) as (owner, _):
        store = FileStore(LocalDisk(), owner.root, owner, SystemClock())
        (channel,) = store.recover().channels
        channel.append(block(61, 70))
        assert store.commit() == {}
        store.close()
    with pytest.raises(RefusedError, match="lacks messages between others"):
        seeded(alone)
    (alone / "foo" / "repaired.json").write_text('{"missing": [[51, 60]]}')
    assert seeded(alone).messages == 60
    assert left(alone).messages == 60


def test_a_channel_that_has_moved_is_not_given_to_a_cluster_which_would_serve_it(
    alone: Path,
) -> None:
    with owning(str(alone)) as (owner, _):
        store = FileStore(LocalDisk(), owner.root, owner, SystemClock())
        (channel,) = store.recover().channels
        channel.set_moved(b"bridge")
        store.close()
    with pytest.raises(RefusedError, match='channel "foo" has moved'):
        seeded(alone)
    assert CheckpointFile(str(alone.parent / "log"), str(alone)).read() is None
    assert not (alone / "cluster.id").exists()


def test_a_node_leaves_that_was_stopped_when_all_others_were_removed(alone: Path) -> None:
    seeded(alone)
    file = CheckpointFile(str(alone.parent / "log"), str(alone))
    found = file.read()
    assert found is not None
    nodes = without_others(("a", "b", "c"), "a")
    file.write(replace(found, seeds=False, nodes=nodes))
    # A log path that was put back from an older copy does not speak for its datastore.
    newer = replace(found.at, sequence=5)
    file.write(replace(found, seeds=False, nodes=nodes, at=newer, seen=5))
    file.amend(replace(found, seeds=False, nodes=nodes))
    with pytest.raises(RefusedError, match="has not led last"):
        left(alone)
    file.write(replace(found, seeds=False, nodes=nodes, at=newer, seen=5))
    assert left(alone).entry == 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"unsound": True}, "does not hold what the log"),
        ({"damaged": frozenset((b"foo",))}, "does not hold what the log"),
        ({"store_id": "another"}, "does not hold what the log"),
        ({"at": Position(bytes(16))}, "does not hold what the log"),
        ({"seen": 9}, "has not led last"),
        ({"at": Position(bytes(16), 5, 1, 2, "b")}, "has not led last"),
        ({"clean": False}, "was killed, or others could lead after it"),
        # As an earlier preview left it, beside nodes that did not answer.
        ({"seeds": False}, "was killed, or others could lead after it"),
        ({"seeds": False, "nodes": {"b": False, "a": True}}, "others could lead after it"),
        ({"seeds": False, "nodes": {"": False, "a": True, "b": True}}, "others could lead"),
    ],
)
def test_a_node_that_may_lack_something_does_not_leave(
    alone: Path, change: dict[str, object], text: str
) -> None:
    seeded(alone)
    file = CheckpointFile(str(alone.parent / "log"), str(alone))
    found = file.read()
    assert found is not None
    file.write(replace(found, **change))  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=text):
        left(alone)
    assert file.read() is not None
    if "lead" in text or "led" in text:
        assert left(alone, not_last=True).messages == 50
