"""Datastores that real servers left, clean and killed, are recovered to what those servers showed,
and served on.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.config.limits import Limits
from ftstan.stores.file.store import FileStore
from ftstan.wire import codec
from tests.compat.driver import Driver, PubAck, deliveries
from tests.oracle.damage import DATA, archived_tree, extract
from tests.oracle.gostore import load_tree, read_tree
from tests.oracle.test_gostore import STORES, VERSIONS, expected_view
from tests.sim.disk import SimDisk
from tests.sim.filestore import SimOwner, open_file_store
from tests.sim.history import STORE
from tests.sim.model import read_all

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.stores.interface import ChannelStore, Recovered, SubState

#: A moment after the recordings.
LATER = 1_800_000_000_000_000_000


def open_local(root: Path) -> FileStore:
    """A store of a new process, under a new epoch."""
    disk = LocalDisk()
    clock = ManualClock(LATER)
    handle = disk.open_dir(str(root))
    return FileStore(disk, handle, SimOwner(disk, handle, clock), clock, limits=Limits())


def message_rows(channel: ChannelStore) -> list[dict[str, Any]]:
    rows = []
    for payload in read_all(channel).values():
        sequence, subject, reply, data, timestamp, redelivered, count = codec.decode_msg_proto(
            payload
        )
        assert not redelivered
        assert count == 0
        rows.append(
            {
                "seq": sequence,
                "timestamp": timestamp,
                "subject": subject.decode(),
                "reply": reply.decode(),
                "len": len(data),
                "sha1": hashlib.sha1(data).hexdigest(),
            }
        )
    return rows


def sub_row(state: SubState, pending: set[int]) -> dict[str, Any]:
    return {
        "id": state.sub_id,
        "client_id": state.client_id.decode(),
        "queue": state.queue.decode(),
        "inbox": state.inbox.decode(),
        "ack_inbox": state.ack_inbox.decode(),
        "max_inflight": state.max_in_flight,
        "ack_wait": state.ack_wait_secs,
        "durable": state.durable_name.decode(),
        "last_sent": state.last_sent,
        "is_durable": state.is_durable,
        "is_closed": state.is_closed,
        "pending": sorted(pending),
    }


def sub_rows(channel: ChannelStore) -> list[dict[str, Any]]:
    rows = [sub_row(s.state, s.pending) for s in channel.recovered_subs()]
    return sorted(rows, key=lambda row: row["id"])


def by_name(found: Recovered) -> dict[str, ChannelStore]:
    return {c.name.decode(): c for c in found.channels}


def check(found: Recovered, expected: dict[str, Any]) -> None:
    """Channels, messages, clients and subscriptions are those of ``expected``."""
    channels = by_name(found)
    assert set(channels) == set(expected["channels"])
    for name, row in expected["channels"].items():
        channel = channels[name]
        seen = (channel.count, channel.size, channel.first, channel.last)
        assert seen == (row["msgs"], row["bytes"], row["first_seq"], row["last_seq"])
        assert message_rows(channel) == row["messages"]
        assert channel.last_timestamp == max((m["timestamp"] for m in row["messages"]), default=0)
    inboxes = {c["id"]: c["hb_inbox"] for c in expected["clients"]}
    assert {c.client_id.decode(): c.hb_inbox.decode() for c in found.clients} == inboxes
    for name, rows in expected["subs_files"].items():
        assert sub_rows(channels[name]) == sorted(rows, key=lambda row: row["id"])
    assert sum(len(rows) for rows in expected["subs_files"].values()) > 10


@pytest.mark.parametrize(("version", "name"), STORES)
def test_a_store_of_a_real_server_is_recovered_as_that_server_showed_it(
    tmp_path: Path, version: str, name: str
) -> None:
    root = extract(f"{version}/{name}.tar.gz", tmp_path)
    view = read_tree(load_tree(root))
    found = open_local(root).recover()
    check(found, expected_view(version, name))
    assert found.info is not None
    assert view.info is not None
    assert found.info.cluster_id == "test-cluster"
    for field in (
        "discovery",
        "publish",
        "subscribe",
        "unsubscribe",
        "close",
        "sub_close",
        "acks_subs",
    ):
        assert getattr(found.info, field).encode() == getattr(view.info, field)
    for channel in found.channels:
        assert channel.next_sub_id == view.channels[channel.name].max_sub_id + 1


def test_the_same_on_a_simulated_disk() -> None:
    disk = SimDisk()
    disk.add_tree(STORE, archived_tree("v0.25.6/killed.tar.gz"))
    check(open_file_store(disk, ManualClock(LATER)).recover(), expected_view("v0.25.6", "killed"))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_acknowledged_message_of_a_killed_server_is_there(
    tmp_path: Path, version: str
) -> None:
    channels = by_name(open_local(extract(f"{version}/killed.tar.gz", tmp_path)).recover())
    rows = {
        name: {row["seq"]: row for row in message_rows(channel)}
        for name, channel in channels.items()
    }
    ledger = json.loads((DATA / version / "killed.acked.json").read_text(encoding="utf-8"))
    assert len(ledger) == 114
    for acked in ledger:
        row = rows[acked["channel"]][acked["seq"]]
        assert (row["len"], row["sha1"], row["reply"]) == (
            acked["len"],
            acked["sha1"],
            acked["reply"],
        )


@pytest.mark.parametrize(("version", "name"), STORES)
def test_the_broker_has_the_clients_channels_and_live_subscriptions(
    tmp_path: Path, version: str, name: str
) -> None:
    expected = expected_view(version, name)
    driver = Driver(
        open_local(extract(f"{version}/{name}.tar.gz", tmp_path)), clock=ManualClock(LATER)
    )
    broker = driver.broker
    inboxes = {c["id"].encode(): c["hb_inbox"].encode() for c in expected["clients"]}
    assert {c.client_id: c.info.hb_inbox for c in broker.clients.values()} == inboxes
    for client in broker.clients.values():
        if client.info.conn_id:
            assert driver.ping(client.info.conn_id) == b""
    assert {c.name.decode() for c in broker.channels.values()} == set(expected["channels"])
    for channel in broker.channels.values():
        rows = expected["subs_files"][channel.name.decode()]
        live = {
            row["ack_inbox"].encode()
            for row in rows
            if not row["is_closed"] and row["client_id"].encode() in broker.clients
        }
        members = {m.ack_inbox: g.name for g in channel.groups.values() for m in g.members()}
        assert {s.ack_inbox for s in channel.subs} | members.keys() == live
        queues = {row["ack_inbox"].encode(): row["queue"].encode() for row in rows if row["queue"]}
        assert members == {a: queues[a] for a in live if a in queues}
        shadows = {
            g.shadow.sub_id: g.last_sent for g in channel.groups.values() if g.shadow is not None
        }
        assert shadows == {
            r["id"]: r["last_sent"] for r in rows if r["queue"] and not r["client_id"]
        }
        assert live <= set(driver.subs.values())
        assert {d.sub_id for d in channel.durables.values()} == {
            row["id"] for row in rows if row["durable"]
        }


@pytest.mark.parametrize(("version", "name"), STORES)
def test_publishing_goes_on_in_slices_of_our_own_and_leaves_the_old_ones_alone(
    tmp_path: Path, version: str, name: str
) -> None:
    root = extract(f"{version}/{name}.tar.gz", tmp_path)
    expected = expected_view(version, name)
    before = load_tree(root)
    old_slices = {n: d for n, d in before.items() if n.rpartition("/")[2].startswith("msgs.")}
    store = open_local(root)
    driver = Driver(store, clock=ManualClock(LATER))
    driver.connect(b"newcomer")
    for channel in expected["channels"]:
        for data in (b"one", b"two"):
            assert driver.publish(data, channel=channel.encode(), client_id=b"newcomer") == [
                PubAck(data)
            ]
    store.close()

    after = load_tree(root)
    assert {n: after[n] for n in old_slices} == old_slices
    new_slices = {n for n in after if n.rpartition("/")[2].startswith("msgs.")} - set(old_slices)
    assert new_slices == {
        f"{c}/msgs.4097.{ext}" for c in expected["channels"] for ext in ("dat", "idx")
    }

    found = open_local(root).recover()
    assert {c.client_id.decode() for c in found.clients} == {
        c["id"] for c in expected["clients"]
    } | {"newcomer"}
    for channel, store_of in by_name(found).items():
        row = expected["channels"][channel]
        rows = message_rows(store_of)
        assert rows[:-2] == row["messages"]
        last = row["last_seq"]
        hashes = [hashlib.sha1(data).hexdigest() for data in (b"one", b"two")]
        assert [(r["seq"], r["sha1"]) for r in rows[-2:]] == [
            (last + 1, hashes[0]),
            (last + 2, hashes[1]),
        ]
        check_subs(expected, channel, store_of)


def check_subs(expected: dict[str, Any], name: str, channel: ChannelStore) -> None:
    """All are there but for plain ones whose client was gone.

    Those to which nothing was sent are as they were.
    """
    clients = {c["id"] for c in expected["clients"]}
    rows = expected["subs_files"][name]
    kept = {r["id"]: r for r in rows if r["is_durable"] or r["queue"] or r["client_id"] in clients}
    seen = {r["id"]: r for r in sub_rows(channel)}
    assert seen.keys() == kept.keys()
    for sub_id, row in kept.items():
        served = not row["is_closed"] and row["client_id"] in clients
        if served and row["queue"]:
            # What one member had may be with another one by now.
            group = [r for r in seen.values() if r["queue"] == row["queue"]]
            assert set(row["pending"]) <= {sequence for r in group for sequence in r["pending"]}
        elif served:
            assert set(row["pending"]) <= set(seen[sub_id]["pending"])
            assert seen[sub_id]["last_sent"] >= row["last_sent"]
        else:
            assert seen[sub_id] == row


def test_a_durable_of_a_killed_server_gets_on_where_it_stopped(tmp_path: Path) -> None:
    root = extract("v0.25.6/killed.tar.gz", tmp_path)
    rows = expected_view("v0.25.6", "killed")["subs_files"]["durables"]
    offline = next(r for r in rows if r["durable"] == "dur-client-closed")
    driver = Driver(open_local(root), clock=ManualClock(LATER))
    driver.connect(b"gamma")
    driver.subscribe(
        b"durables", client_id=b"gamma", durable=b"dur-client-closed", max_in_flight=100
    )
    got = deliveries(driver.out)
    again = [d.sequence for d in got if d.redelivered]
    assert again == offline["pending"]
    assert [d.sequence for d in got if not d.redelivered] == list(
        range(offline["last_sent"] + 1, 18)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_original_server_would_read_the_store_back_after_a_clean_stop(
    tmp_path: Path, version: str
) -> None:
    root = extract(f"{version}/clean.tar.gz", tmp_path)
    store = open_local(root)
    driver = Driver(store, clock=ManualClock(LATER))
    driver.connect(b"newcomer")
    driver.publish(b"one", channel=b"single", client_id=b"newcomer")
    store.close()
    view = read_tree(load_tree(root), cluster_id=b"test-cluster")
    assert [m.data for m in view.channels[b"single"].messages.values()][-1] == b"one"
    assert b"newcomer" in view.clients


def test_a_store_can_be_opened_any_number_of_times_without_changing_a_file(tmp_path: Path) -> None:
    root = extract("v0.17.0/killed.tar.gz", tmp_path)
    before = load_tree(root)
    for _ in range(3):
        store = open_local(root)
        check(store.recover(), expected_view("v0.17.0", "killed"))
        store.abandon()
    after = {n: d for n, d in load_tree(root).items() if not n.startswith("ft.")}
    assert after == before
