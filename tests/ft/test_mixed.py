"""Groups with members of both kinds: real servers of ours and Go-rules peers on one directory and
one nats-server.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.ft.epoch import read_owner
from ftstan.ft.epoch_records import Cause
from ftstan.ft.heartbeat import Heartbeat, decode_heartbeat
from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.mixed import MIXED_ON
from ftstan.ft.subjects import heartbeat_subject
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.operator import Operator
from tests.ft.test_admin import Admin
from tests.oracle.damage import archived_tree, write_tree
from tests.oracle.goheartbeat import Instant, heartbeat
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER, GROUP, READY, STANDING_BY

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from ftstan.ft.epoch_records import EpochRecord
    from tests.processes import Child, Nats, Server, Stage

pytestmark = pytest.mark.processes

ENDS = {signal.SIGKILL: -9, signal.SIGTERM: 143}
REFUSED = "ft: unable to get store lock at this time, going back to standby"


def ours(stage: Stage, name: str, nats: Nats, *words: str) -> Server:
    """One of our servers, standing by."""
    server = stage.member(name, "-ns", nats.url, *words)
    server.wait_for(STANDING_BY)
    return server


def original(stage: Stage, name: str, nats: Nats) -> Child:
    """A Go-rules peer, standing by."""
    peer = stage.go_member(name, nats, "--slice-max-msgs", "300")
    peer.wait_for(STANDING_BY)
    return peer


def read_by_original(store: Path) -> dict[int, bytes]:
    """What an original server would deliver from the files as they lie there."""
    return {n: message.data for n, message in read_store(store).channels[CHANNEL].messages.items()}


def stored_cluster(store: Path) -> str:
    info = read_store(store).info
    assert info is not None
    return info.cluster_id.decode()


def end(server: Child, how: signal.Signals, load: Load) -> None:
    """End a server that is under load."""
    server.signal(how)
    assert server.status() == ENDS[how]
    load.read_rest()
    load.give_up()


def hear_heartbeats(client: StanClient, count: int) -> None:
    """Let so many pass."""
    heard: list[Arrived] = []
    client.nats.listen(heartbeat_subject(CLUSTER, GROUP), heard.append)
    client.nats.pump(lambda: len(heard) >= count, f"{count} heartbeats")


@pytest.mark.parametrize("how", ENDS, ids=lambda how: how.name)
def test_the_store_goes_from_kind_to_kind_and_back_and_nothing_acked_is_lost(
    stage: Stage, how: signal.Signals
) -> None:
    nats = stage.nats()
    go_1 = original(stage, "go-1", nats)
    go_1.wait_for(READY)
    ours_1 = ours(stage, "ours-1", nats, "-ft_hb_interval", "200ms")
    client = StanClient(nats.port)
    client.connect()
    load = Load()
    load.join(client)
    load.run(700)

    end(go_1, how, load)
    ours_1.wait_until_active()
    go_2 = original(stage, "go-2", nats)
    assert client.ping() == ""
    load.run(700)
    hear_heartbeats(client, 15)
    assert REFUSED not in go_2.text(), "the original standby took our heartbeats for nothing"

    end(ours_1, how, load)
    load.judge(read_by_original(stage.store))
    go_2.wait_for(READY)
    ours_2 = ours(stage, "ours-2", nats)
    assert client.ping() == ""
    load.run(700)

    end(go_2, how, load)
    ours_2.wait_until_active()
    load.run(100)
    load.settle()
    reader = StanClient(nats.port, "reader")
    reader.connect()
    contents = reader.read_all(CHANNEL)
    load.judge(contents)
    assert [server.lines().count(f"[INF] STREAM: {MIXED_ON}") for server in (ours_1, ours_2)] == [
        1,
        1,
    ]

    ours_2.signal(signal.SIGTERM)
    assert ours_2.status() == 143
    assert read_by_original(stage.store) == contents


def test_what_was_purged_is_not_there_for_an_original_when_our_server_is_killed_straight_after(
    stage: Stage,
) -> None:
    nats = stage.nats()
    server = stage.member("a", "-ns", nats.url, "-ft_mixed", "on")
    server.wait_until_active()
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, *(b"%d" % i for i in range(1, 13)))
    operator = Admin(nats.port, "--dir", str(stage.store))
    assert (
        operator.change("channel", "purge", CHANNEL.decode(), "--up-to", "9", "--yes").status == 0
    )
    server.kill()
    assert read_by_original(stage.store) == {10: b"10", 11: b"11", 12: b"12"}


def pause_until_taken_over(stage: Stage, owner: Child, successor: Child) -> None:
    """Stop the owner, take its lock away as a file server may do, and wait until the other one
    serves.
    """
    owner.signal(signal.SIGSTOP)
    (stage.store / LOCK_NAME).unlink()
    successor.wait_for(READY, successor.lines().count(f"[INF] {READY}") + 1)


def test_an_original_that_wakes_up_dies_and_the_store_stays_ours(stage: Stage) -> None:
    nats = stage.nats()
    go = original(stage, "go", nats)
    go.wait_for(READY)
    server = ours(stage, "ours", nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, *(b"by go %d" % n for n in range(50)))

    pause_until_taken_over(stage, go, server)
    after = [b"by ours %d" % n for n in range(200)]
    client.publish(CHANNEL, *after[:100])
    go.signal(signal.SIGCONT)
    assert go.status() == 2
    assert (
        f'panic: ft: serverID "{server.serverz()["server_id"]}" claims to be active, aborting'
        in go.text()
    )
    client.publish(CHANNEL, *after[100:])

    contents = client.read_all(CHANNEL)
    assert list(contents.values())[:-1] == [*(b"by go %d" % n for n in range(50)), *after]
    server.signal(signal.SIGTERM)
    assert server.status() == 143
    assert read_by_original(stage.store) == contents


def test_our_server_that_wakes_up_leaves_the_store_to_an_original_and_writes_nothing(
    stage: Stage,
) -> None:
    nats = stage.nats()
    server = ours(stage, "ours", nats, "-ft_mixed", "on")
    server.wait_until_active()
    go = original(stage, "go", nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, *(b"by ours %d" % n for n in range(50)))

    pause_until_taken_over(stage, server, go)
    # These wait for the stopped server, too: it finds them when it wakes up.
    after = [b"by go %d" % n for n in range(200)]
    client.publish(CHANNEL, *after[:100])
    server.signal(signal.SIGCONT)
    assert server.status() == 75
    assert "the lock file was re" in server.text()
    client.publish(CHANNEL, *after[100:])
    assert set(client.acks.values()) == {1}

    assert go.running
    go.signal(signal.SIGTERM)
    assert go.status() == 143
    contents = read_by_original(stage.store)
    assert list(contents.values()) == [*(b"by ours %d" % n for n in range(50)), *after]
    again = ours(stage, "ours-again", nats)
    again.wait_until_active()
    assert client.read_to(CHANNEL, 250) == contents


def record(server: Server) -> EpochRecord:
    disk = LocalDisk()
    root = disk.open_dir(str(server.store))
    try:
        found = read_owner(disk, root)
    finally:
        disk.close(root)
    assert found is not None
    return found


class Flood:
    """Heartbeats without an epoch, a hundred a second, from somebody who may publish where the
    group beats.
    """

    def __init__(self, nats: Nats) -> None:
        self._link = NatsConnection(nats.port)
        self._thread = threading.Thread(target=self._send)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._link.close()

    def _send(self) -> None:
        payload = heartbeat(b"gogogogogogogogogogogo", Instant(1000, 0), 0)
        while not self._ended.wait(0.01):
            self._link.publish(heartbeat_subject(CLUSTER, GROUP), payload)
            self._link.flush()


def test_forged_heartbeats_without_an_epoch_record_nothing_and_keep_nobody_from_taking_over(
    stage: Stage,
) -> None:
    nats = stage.nats()
    active = ours(stage, "active", nats)
    active.wait_until_active()
    standby = ours(stage, "standby", nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"before")
    before = record(active)
    told = (
        'ft: serverID "gogogogogogogogogogogo" says without an epoch that it is active: this '
        "group is not mixed"
    )
    with Flood(nats):
        for server in (active, standby):
            server.wait_for(told)
        client.publish(CHANNEL, b"beside")
        assert record(active) == before
        active.kill()
        standby.wait_until_active()
        client.publish(CHANNEL, b"after")
        taken = record(standby)
    assert (taken.epoch, taken.ft_mixed, taken.cause) == (before.epoch + 1, False, Cause.LOCK_FREE)
    assert list(client.read_to(CHANNEL, 3).values()) == [b"before", b"beside", b"after"]
    for server in (active, standby):
        assert MIXED_ON not in server.text()


def test_the_operators_word_makes_the_group_mixed_in_the_record_and_in_every_member(
    stage: Stage,
) -> None:
    nats = stage.nats()
    active = ours(stage, "active", nats)
    active.wait_until_active()
    standby = ours(stage, "standby", nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"before")
    before = record(active)
    assert not before.ft_mixed
    heard: list[Arrived] = []
    client.nats.listen(heartbeat_subject(CLUSTER, GROUP), heard.append)

    operator = Operator(nats.url, stage.store)
    assert operator.change("mixed", "on").status == 0
    active.wait_for(MIXED_ON)
    standby.wait_for(MIXED_ON)
    active.wait_for("ft: mixed group: an original server can follow now: 1 channels are fit for it")
    client.publish(CHANNEL, b"after")
    after = record(active)
    assert (after.ft_mixed, after.epoch, after.store_id) == (
        True,
        before.epoch + 1,
        before.store_id,
    )
    assert [
        (node["mixed"], node["fit"]) for node in operator.status().json["nodes"] if node["epoch"]
    ] == [(True, True)]

    def last_beat() -> Heartbeat:
        beat = decode_heartbeat(heard[-1].payload)
        assert beat is not None
        return beat

    client.nats.publish(
        heartbeat_subject(CLUSTER, GROUP), heartbeat(b"gogogogogogogogogogogo", Instant(1000, 0), 0)
    )
    client.nats.pump(
        lambda: (
            last_beat().epoch == after.epoch and last_beat().activated_ns < 1000 * 1_000_000_000
        ),
        "a heartbeat with the new epoch that is older than that of the original",
    )

    active.kill()
    standby.wait_until_active()
    assert record(standby).ft_mixed
    assert list(client.read_to(CHANNEL, 2).values()) == [b"before", b"after"]


@pytest.mark.parametrize(("word", "expected"), [("auto", True), ("off", False)])
def test_a_group_on_a_store_of_the_original_is_mixed_unless_the_operator_says_otherwise(
    stage: Stage, word: str, *, expected: bool
) -> None:
    nats = stage.nats()
    write_tree(archived_tree("v0.25.6/clean.tar.gz"), stage.store)
    server = stage.member(
        "server", "-ns", nats.url, "-ft_mixed", word, cluster=stored_cluster(stage.store)
    )
    server.wait_for(READY)
    assert record(server).ft_mixed is expected
    assert (f"[INF] STREAM: {MIXED_ON}" in server.lines()) is expected
