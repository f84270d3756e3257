"""A fault-tolerant pair as real processes: exactly one serves, the other takes over, the former
owner is fenced.
"""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.base.disk import LocalDisk
from ftstan.ft.epoch import read_owner
from ftstan.ft.heartbeat import BeatPhase, Heartbeat, decode_heartbeat, encode_heartbeat
from ftstan.ft.lock import LOCK_NAME, StoreLock
from ftstan.ft.subjects import Released, decode_released, group_subject, heartbeat_subject
from ftstan.wire import messages
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.load import CHANNEL, Load
from tests.processes import CLUSTER, GROUP

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.ft.epoch_records import EpochRecord
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

COUNTERS = ("clients", "subscriptions", "channels", "total_msgs", "in_msgs", "out_msgs")


def owner_of(store: Path) -> EpochRecord:
    disk = LocalDisk()
    root = disk.open_dir(str(store))
    try:
        owner = read_owner(disk, root)
    finally:
        disk.close(root)
    assert owner is not None
    return owner


def stream_lines(server: Server) -> list[str]:
    """What the streaming half logged.

    The nats-server's lines about routes come whenever they come.
    """
    start = "[INF] STREAM: "
    return [line.removeprefix(start) for line in server.lines() if line.startswith(start)]


def test_of_a_routed_pair_exactly_one_is_active_and_the_standby_shows_nothing_of_the_store(
    stage: Stage,
) -> None:
    a, b = stage.routed_pair()
    client = StanClient(b.port)
    client.connect()
    subscription = client.subscribe(CHANNEL)
    client.publish(CHANNEL, b"one", b"two")
    client.nats.pump(lambda: subscription.sequences == [1, 2], "two deliveries")

    assert (a.ft_status, b.ft_status) == (200, 204)
    active = a.serverz()
    standby = b.serverz()
    assert (active["state"], standby["state"]) == ("FT_ACTIVE", "FT_STANDBY")
    assert (active["ft_phase"], standby["ft_phase"]) == (
        "active",
        "listening for the active server",
    )
    assert (active["cluster_id"], standby["cluster_id"]) == (CLUSTER, "")
    assert active["server_id"] != standby["server_id"]
    assert {name: standby[name] for name in COUNTERS} == dict.fromkeys(COUNTERS, 0)
    assert {name: active[name] for name in COUNTERS} == {
        "clients": 1,
        "subscriptions": 1,
        "channels": 1,
        "total_msgs": 2,
        "in_msgs": 2,
        "out_msgs": 2,
    }


def test_the_other_node_serves_after_a_kill_and_a_client_of_its_nats_server_needs_nothing(
    stage: Stage,
) -> None:
    a, b = stage.routed_pair()
    client = StanClient(b.port)
    client.connect()
    plain = client.subscribe(CHANNEL)
    durable = client.subscribe(CHANNEL, durable=b"audit", acks=False, ack_wait=2)
    before = [b"before %d" % i for i in range(100)]
    client.publish(CHANNEL, *before)
    client.nats.pump(lambda: len(durable.received) == len(before), "deliveries to the durable")
    client.ack(durable, *range(1, 51))
    client.settle_acks()

    a.kill()
    b.wait_until_active()

    assert client.ping() == ""
    client.publish(CHANNEL, b"after")
    client.nats.pump(
        lambda: plain.sequences == list(range(1, 102)), "every message on the plain subscription"
    )
    # The pending ones come again after the ack wait, and only they.
    client.nats.pump(
        lambda: {m.sequence for m in durable.received if m.redelivered} >= set(range(51, 101)),
        "redeliveries",
    )
    assert not [m for m in durable.received if m.redelivered and m.sequence <= 50]
    client.nats.pump(lambda: 101 in durable.sequences, "the new message on the durable")
    contents = {m.sequence: m.data for m in durable.received}
    assert contents == dict(enumerate([*before, b"after"], 1))
    assert all(contents[m.sequence] == m.data for m in [*durable.received, *plain.received])
    assert set(client.acks.values()) == {1}
    assert (b.serverz()["state"], b.serverz()["cluster_id"]) == ("FT_ACTIVE", CLUSTER)
    assert b.serverz()["clients"] == 1


def test_every_acked_publish_survives_when_the_active_is_killed_under_load_again_and_again(
    stage: Stage,
) -> None:
    nats = stage.nats()
    active, standby = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    load = Load()
    load.join(client)
    for number in range(3):
        load.run(1000)
        active.kill()
        standby.wait_until_active()
        load.give_up()
        active = standby
        standby = stage.member(f"n{number}", "-ns", nats.url)
        standby.wait_until_standing_by()
    load.run(1000)
    reader = StanClient(nats.port, "reader")
    reader.connect()
    load.settle()
    load.judge(reader.read_all(CHANNEL))


def test_sigterm_hands_over_and_exits_143(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"one")

    a.signal(signal.SIGTERM)

    assert a.status() == 143
    b.wait_until_active()
    client.publish(CHANNEL, b"two")
    assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}
    assert (b.serverz()["state"], b.serverz()["cluster_id"]) == ("FT_ACTIVE", CLUSTER)


def test_an_owner_that_stops_says_so_only_after_it_has_unlocked(stage: Stage) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_until_active()
    server_id = a.serverz()["server_id"]
    epoch = owner_of(stage.store)
    observer = NatsConnection(nats.port)
    heard: list[Released] = []
    granted: list[bool] = []

    def on_message(arrived: Arrived) -> None:
        released = decode_released(arrived.payload)
        if released is None:
            return
        heard.append(released)
        disk = LocalDisk()
        root = disk.open_dir(str(stage.store))
        lock = StoreLock(disk, root, str(stage.store))
        lock.acquire()
        granted.append(lock.held)
        lock.release()
        disk.close(root)

    observer.listen(group_subject(CLUSTER, GROUP), on_message)
    observer.flush()
    a.signal(signal.SIGTERM)
    observer.pump(lambda: granted, "the message that the store is free")

    assert heard == [Released(server_id, epoch.epoch, epoch.store_id)]
    assert granted == [True]
    assert a.status() == 143


def test_sigint_hands_over_and_exits_0(stage: Stage) -> None:
    a, b = stage.routed_pair()
    a.signal(signal.SIGINT)
    assert a.status() == 0
    b.wait_until_active()


def test_a_standby_leaves_without_touching_the_active(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    heard: list[Arrived] = []
    observer = NatsConnection(nats.port)
    observer.listen(group_subject(CLUSTER, GROUP), heard.append)
    observer.flush()

    b.signal(signal.SIGTERM)

    assert b.status() == 143
    observer.flush()
    # The owner asks now and then who is there.
    assert [
        message
        for message in heard
        if json.loads(message.payload).get("type") not in {"who", "members"}
    ] == []
    assert (a.running, a.ft_status) == (True, 200)


def test_a_paused_owner_whose_lock_moved_is_fenced_and_acks_nothing(stage: Stage) -> None:
    """The worst that an operator can do: delete the lock file while its holder is paused, and start
    another node.
    """
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_until_active()
    client = StanClient(nats.port)
    client.connect()
    before = client.publish(CHANNEL, *(b"before %d" % i for i in range(50)))

    a.signal(signal.SIGSTOP)
    (stage.store / LOCK_NAME).unlink()
    b = stage.member("b", "-ns", nats.url)
    b.wait_until_active()
    # NATS keeps these for the paused owner too: it finds them when it wakes up, with no idea of
    # what happened.
    offered = [b"between %d" % i for i in range(50)]
    between = client.publish(CHANNEL, *offered)
    a.signal(signal.SIGCONT)

    assert a.status() == 75
    fatal = [line for line in a.lines() if line.startswith("[FTL]")]
    assert len(fatal) == 1
    assert "epoch" in fatal[0]
    after = client.publish(CHANNEL, b"after")
    # One ack for each publish: the former owner, which had them all in its socket, sent none.
    client.nats.flush()
    assert client.acks == dict.fromkeys([*before, *between, *after], 1)
    assert not client.errors
    expected = dict(enumerate([*(b"before %d" % i for i in range(50)), *offered, b"after"], 1))
    assert client.read_to(CHANNEL, 101) == expected

    # What the former owner wrote late is not part of the log, now and for whoever comes next.
    b.kill()
    c = stage.member("c", "-ns", nats.url)
    c.wait_until_active()
    again = StanClient(nats.port, "again")
    again.connect()
    assert again.read_to(CHANNEL, 101) == expected


def test_an_owner_that_wakes_up_and_finds_its_lock_file_gone_leaves_the_store_to_the_standby(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"before")

    a.signal(signal.SIGSTOP)
    (stage.store / LOCK_NAME).unlink()
    # Longer than the missed-heartbeat interval, so that the owner has reason to doubt.
    time.sleep(3)
    a.signal(signal.SIGCONT)

    assert a.status() == 75
    assert len([line for line in a.lines() if line.startswith("[FTL]")]) == 1
    b.wait_until_active()
    client.publish(CHANNEL, b"after")
    assert client.read_to(CHANNEL, 2) == {1: b"before", 2: b"after"}
    assert set(client.acks.values()) == {1}


def test_a_forged_heartbeat_with_a_higher_epoch_stops_nobody(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    owner = owner_of(stage.store)
    forged = Heartbeat(
        "forged", time.time_ns(), owner.epoch + 1000, owner.store_id, BeatPhase.SERVING
    )
    for _ in range(20):
        client.nats.publish(heartbeat_subject(CLUSTER, GROUP), encode_heartbeat(forged))
        client.publish(CHANNEL, b"served")

    assert (a.ft_status, b.ft_status) == (200, 204)
    assert owner_of(stage.store) == owner
    a.kill()
    # The standby that heard them, too, still looks at the lock.
    b.wait_until_active()
    client.publish(CHANNEL, b"served by the other")


def test_heartbeats_on_the_wire_are_those_of_the_original_with_fields_that_it_skips(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_until_active()
    observer = NatsConnection(nats.port)
    heard: list[Arrived] = []
    observer.listen(heartbeat_subject(CLUSTER, GROUP), heard.append)
    observer.pump(lambda: len(heard) >= 2, "two heartbeats")

    owner = owner_of(stage.store)
    server_id = a.serverz()["server_id"]
    for arrived in heard:
        assert arrived.reply == b""
        control = messages.parse(messages.CtrlMsg, arrived.payload)
        assert (control.msg_type, control.server_id) == (
            messages.CtrlMsg.FT_HEARTBEAT,
            server_id.encode(),
        )
        assert (len(control.data), control.data[0]) == (15, 1)
        beat = decode_heartbeat(arrived.payload)
        assert beat is not None
        assert (beat.epoch, beat.store_id, beat.activated_ns) == (
            owner.epoch,
            owner.store_id,
            owner.since_ns,
        )


def test_the_lines_of_a_member_are_those_that_operators_know(stage: Stage) -> None:
    a, b = stage.routed_pair()
    assert stream_lines(b)[-1] == "Starting in standby mode"
    shown = stream_lines(a)
    start = shown.index("Starting in standby mode")
    assert shown[start : start + 5] == [
        "Starting in standby mode",
        "Server is active",
        "Recovering the state...",
        "No recovered state",
        "Message store is FILE",
    ]
    assert shown[-1] == "Streaming Server is ready"
