"""What a node's start takes back of its datastore, and what it leaves as it found it."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import RecoveryError, RefusedError
from ftstan.cli import ctl
from ftstan.cli.store_owner import owning
from ftstan.cluster.access import ClusterAccess
from ftstan.cluster.checkpoint import CheckpointFile
from ftstan.cluster.members import without_others
from ftstan.cluster.seeding import leave, seed
from ftstan.config.limits import Limits
from ftstan.config.options import ClusterOptions, ServerOptions, StoreLimits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ServerInfo, StoreContext, SubState
from tests.processes import READY
from tests.unit.cluster.stream import FakeLink
from tests.unit.cluster.test_replica import FOO, block

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.nats.link import Link
    from tests.processes import Stage

INFO = ServerInfo("cid", "d", "p", "s", "u", "c", "sc", "a")


def serve(path: Path, first: int, last: int, *, tick: bool = True, close: bool = True) -> None:
    """A server without a cluster stores messages, and is killed unless ``close``."""
    with owning(str(path)) as (owner, _):
        store = FileStore(LocalDisk(), owner.root, owner, SystemClock())
        found = {channel.name: channel for channel in store.recover().channels}
        if FOO not in found:
            store.set_server_info(INFO)
        channel = found.get(FOO) or store.create_channel(FOO, Limits(StoreLimits()).of(FOO))
        channel.append(block(first, last))
        if FOO not in found:
            channel.add_sub(SubState(1, b"me", inbox=b"i", ack_inbox=b"a"))
        assert store.commit() == {}
        if tick:
            store.tick(0)
        if close:
            store.close()
        else:
            store.abandon()


def access(path: Path) -> ClusterAccess:
    options = ServerOptions(
        store="file",
        dir=str(path),
        cluster_id="cid",
        clustered=True,
        cluster=ClusterOptions(node_id="a", log_path=str(path.parent / "log")),
    )
    return ClusterAccess(StoreContext(options, "ME", SystemClock()))


def start(path: Path) -> tuple[int, frozenset[bytes]]:
    """A node starts, and is killed before it finds the log; returns the last message of the
    channel, and which channels are damaged.
    """
    node = access(path)
    try:
        node.owner.try_lock()
        node.activate()
        node.follow(cast("Link", FakeLink()), random.Random(1), lambda: None)
        assert node.replica is not None
        local = node.replica.find(FOO)
        assert local is not None
        return local.store.last, node.replica.damaged
    finally:
        if node._store is not None:
            node._store.abandon()
        node._inner.close()


def last_of(path: Path) -> int:
    """What is on the disk, for a server without a cluster."""
    with owning(str(path)) as (owner, _):
        store = FileStore(LocalDisk(), owner.root, owner, SystemClock(), FileStoreOptions())
        (channel,) = store.recover().channels
        store.abandon()
        return channel.last


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The datastore of a server without a cluster, with 50 messages."""
    path = tmp_path / "store"
    path.mkdir()
    serve(path, 1, 50)
    return path


def seeded(path: Path) -> None:
    with owning(str(path)) as (owner, _):
        seed(str(path), str(path.parent / "log"), "a", owner, SystemClock())


def left(path: Path) -> None:
    with owning(str(path)) as (owner, _):
        leave(str(path), str(path.parent / "log"), owner, SystemClock())


def a_nodes(path: Path) -> None:
    """A node has it, which was stopped."""
    seeded(path)
    node = access(path)
    node.owner.try_lock()
    node.activate()
    node.follow(cast("Link", FakeLink()), random.Random(1), lambda: None)
    assert node.replica is not None
    node.replica.seeds = False
    node.replica.checkpoint()
    node._log = None
    node.close()
    file = CheckpointFile(str(path.parent / "log"), str(path))
    found = file.read()
    assert found is not None
    assert found.ends
    file.amend(replace(found, clean=True, nodes=without_others((), "a")))


def original(path: Path, first: int, last: int) -> None:
    """An original server stores messages: it knows nothing of the files beside its own."""
    side = path / "foo" / "confirmed.bin"
    kept = side.read_bytes()
    serve(path, first, last)
    side.write_bytes(kept)


@pytest.mark.parametrize("who", ["original", "killed"])
def test_a_start_with_a_cluster_by_mistake_takes_nothing_from_a_datastore_that_has_left(
    alone: Path, who: str
) -> None:
    a_nodes(alone)
    left(alone)
    if who == "original":
        original(alone, 51, 60)
    else:
        serve(alone, 51, 60, tick=False, close=False)
    with pytest.raises(RecoveryError):
        start(alone)
    assert last_of(alone) == 60


@pytest.mark.parametrize("who", ["original", "killed"])
def test_a_seeded_datastore_keeps_what_a_server_without_a_cluster_stores_before_the_log_is_made(
    alone: Path, who: str
) -> None:
    a_nodes(alone)
    # As an earlier release left it: the side files go on saying that they are a node's.
    kept = (alone / "foo" / "confirmed.bin").read_bytes()
    left(alone)
    (alone / "foo" / "confirmed.bin").write_bytes(kept)
    seeded(alone)
    (alone / "foo" / "confirmed.bin").write_bytes(kept)
    if who == "original":
        original(alone, 51, 60)
    else:
        serve(alone, 51, 60, tick=False, close=False)
    assert start(alone)[0] == 60


def test_a_datastore_of_a_node_that_is_served_without_a_cluster_is_no_nodes_from_its_start_on(
    alone: Path,
) -> None:
    a_nodes(alone)
    serve(alone, 51, 60, tick=False, close=False)
    assert start(alone)[0] == 60


@pytest.mark.processes
def test_a_node_does_not_start_on_a_datastore_that_was_served_without_a_cluster(
    alone: Path, stage: Stage
) -> None:
    a_nodes(alone)
    server = stage.server("alone", "-store", "file", "-dir", str(alone), cluster="cid")
    server.wait_for("it is that no more")
    server.wait_for(READY)
    server.kill()
    with pytest.raises(RecoveryError, match="was served without -clustered"):
        start(alone)
    assert last_of(alone) == 50


def test_an_older_copy_of_a_datastore_stays_as_it_is_until_another_node_can_fill_it(
    alone: Path,
) -> None:
    a_nodes(alone)
    original(alone, 51, 60)
    (alone / "cluster.mark").unlink()
    assert start(alone)[0] == 60


@pytest.mark.parametrize("file", ["msgs.*.dat", "subs.dat"])
def test_a_damaged_channel_that_was_repaired_is_sound_again(alone: Path, file: str) -> None:
    a_nodes(alone)
    path = min((alone / "foo").glob(file))
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes(3) + data[middle + 3 :] + data[4:])
    path.with_suffix(".idx").unlink(missing_ok=True)
    assert start(alone)[1] == {FOO}
    checkpoint = CheckpointFile(str(alone.parent / "log"), str(alone))
    found = checkpoint.read()
    assert found is not None
    checkpoint.amend(replace(found, damaged=frozenset((FOO,))))
    assert start(alone)[1] == {FOO}
    aside = str(alone.parent / "aside")
    assert ctl.main(["store", "repair", str(alone), "--aside", aside]) == 0
    assert start(alone)[1] == frozenset()


def test_a_channel_whose_directory_was_taken_from_a_stopped_node_is_missed(alone: Path) -> None:
    a_nodes(alone)
    shutil.move(alone / "foo", alone.parent / "foo")
    node = access(alone)
    node.owner.try_lock()
    node.activate()
    node.follow(cast("Link", FakeLink()), random.Random(1), lambda: None)
    assert node.replica is not None
    assert node.replica.damaged == {FOO}
    assert node._store is not None
    node._store.abandon()
    node._inner.close()
    shutil.move(alone.parent / "foo", alone / "foo")
    assert start(alone) == (50, frozenset())


@pytest.mark.parametrize("way", ["repaired", "as it is"])
def test_messages_missing_in_front_are_found_by_verify_and_a_repair_says_that_they_are_lost(
    alone: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(alone, 51, 60)
    a_nodes(alone)
    numbers = sorted(int(path.name.split(".")[1]) for path in (alone / "foo").glob("msgs.*.dat"))
    assert len(numbers) > 1
    for path in (alone / "foo").glob(f"msgs.{numbers[0]}.*"):
        path.unlink()
    assert start(alone)[1] == {FOO}
    assert ctl.main(["store", "verify", str(alone)]) == 1
    assert "sequences 1 to 50 are missing in front" in capsys.readouterr().out
    if way == "repaired":
        aside = str(alone.parent / "aside")
        assert ctl.main(["store", "repair", str(alone), "--aside", aside]) == 0
        assert "50 messages are lost: sequences 1 to 50" in capsys.readouterr().out
        assert ctl.main(["store", "verify", str(alone)]) == 0
    assert start(alone)[1] == (frozenset() if way == "repaired" else {FOO})


def test_a_channel_that_a_former_life_found_damaged_stays_so_without_a_repair(alone: Path) -> None:
    a_nodes(alone)
    checkpoint = CheckpointFile(str(alone.parent / "log"), str(alone))
    found = checkpoint.read()
    assert found is not None
    checkpoint.amend(replace(found, damaged=frozenset((FOO, b"gone"))))
    assert start(alone)[1] == {FOO, b"gone"}


def test_a_node_that_does_not_leave_keeps_the_word_about_what_it_had_synced(alone: Path) -> None:
    a_nodes(alone)
    checkpoint = CheckpointFile(str(alone.parent / "log"), str(alone))
    found = checkpoint.read()
    assert found is not None
    checkpoint.amend(replace(found, clean=False))
    side = (alone / "foo" / "confirmed.bin").read_bytes()
    with pytest.raises(RefusedError, match="was killed"):
        left(alone)
    assert (alone / "foo" / "confirmed.bin").read_bytes() == side
