"""The oracle agrees with the recorded behaviour of the real server, on whole stores and on damaged
ones.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.oracle.damage import (
    DATA,
    Recipe,
    archived_tree,
    damaged_tree,
    extract,
    recipes,
    write_tree,
)
from tests.oracle.goproto import ProtoError, decode
from tests.oracle.gostore import GoRefuses, load_tree, read_store, read_tree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.oracle.goview import GoChannel, GoSub, GoView, Tree

VERSIONS = ["v0.10.0", "v0.17.0", "v0.25.6"]
STORES = [(version, name) for version in VERSIONS for name in ("clean", "killed")]


def expected_view(version: str, name: str) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(
        (DATA / "expected" / version / f"{name}.json").read_text(encoding="utf-8")
    )
    return view


def message_rows(channel: GoChannel) -> list[dict[str, Any]]:
    return [
        {
            "seq": m.sequence,
            "timestamp": m.timestamp,
            "subject": m.subject.decode(),
            "reply": m.reply.decode(),
            "len": len(m.data),
            "sha1": hashlib.sha1(m.data).hexdigest(),
        }
        for m in channel.messages.values()
    ]


def sub_row(sub: GoSub) -> dict[str, Any]:
    return {
        "id": sub.sub_id,
        "client_id": sub.client_id.decode(),
        "queue": sub.queue.decode(),
        "inbox": sub.inbox.decode(),
        "ack_inbox": sub.ack_inbox.decode(),
        "max_inflight": sub.max_in_flight,
        "ack_wait": sub.ack_wait_secs,
        "durable": sub.durable_name.decode(),
        "last_sent": sub.last_sent,
        "is_durable": sub.is_durable,
        "is_closed": sub.is_closed,
        "pending": sorted(sub.pending),
    }


def ranges(sequences: list[int]) -> str:
    """``1-9,11-35``, as the recorded verdicts write them."""
    parts: list[list[int]] = []
    for seq in sequences:
        if parts and parts[-1][1] == seq - 1:
            parts[-1][1] = seq
        else:
            parts.append([seq, seq])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def verdict_row(channel: GoChannel) -> dict[str, Any]:
    return {
        "msgs": channel.msgs,
        "bytes": channel.bytes,
        "first_seq": channel.first,
        "last_seq": channel.last,
        "delivered": ranges(list(channel.messages)),
    }


def changed_sizes(before: Tree, after: Tree) -> dict[str, list[int | None]]:
    """Sizes before and after of the files whose contents changed."""

    def size(tree: Tree, name: str) -> int | None:
        data = tree.get(name)
        return None if data is None else len(data)

    names = sorted(set(before) | set(after))
    return {n: [size(before, n), size(after, n)] for n in names if before.get(n) != after.get(n)}


@pytest.mark.parametrize(("version", "name"), STORES)
def test_messages_of_a_real_store_are_what_the_server_delivered(
    tmp_path: Path, version: str, name: str
) -> None:
    view = read_store(extract(f"{version}/{name}.tar.gz", tmp_path), cluster_id=b"test-cluster")
    expected = expected_view(version, name)["channels"]
    assert {n.decode() for n in view.channels} == set(expected)
    for name_, channel in view.channels.items():
        row = expected[name_.decode()]
        seen = (channel.msgs, channel.bytes, channel.first, channel.last)
        assert seen == (row["msgs"], row["bytes"], row["first_seq"], row["last_seq"])
        assert message_rows(channel) == row["messages"]


@pytest.mark.parametrize(("version", "name"), STORES)
def test_clients_and_subscriptions_of_a_real_store_are_replayed(
    tmp_path: Path, version: str, name: str
) -> None:
    view = read_store(extract(f"{version}/{name}.tar.gz", tmp_path))
    expected = expected_view(version, name)
    assert sorted(c.decode() for c in view.clients) == sorted(c["id"] for c in expected["clients"])
    inboxes = {c["id"]: c["hb_inbox"] for c in expected["clients"]}
    assert {c.client_id.decode(): c.hb_inbox.decode() for c in view.clients.values()} == inboxes
    for channel, rows in expected["subs_files"].items():
        subs = view.channels[channel.encode()].subs
        assert [sub_row(subs[i]) for i in sorted(subs)] == sorted(rows, key=lambda row: row["id"])
        assert view.channels[channel.encode()].max_sub_id >= max(subs, default=0)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_acknowledged_message_of_a_killed_server_is_there(version: str) -> None:
    view = read_tree(archived_tree(f"{version}/killed.tar.gz"))
    ledger = json.loads((DATA / version / "killed.acked.json").read_text(encoding="utf-8"))
    assert len(ledger) == 114
    for acked in ledger:
        data = view.channels[acked["channel"].encode()].messages[acked["seq"]].data
        assert (len(data), hashlib.sha1(data).hexdigest()) == (acked["len"], acked["sha1"])


def test_reading_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    recipe = next(r for r in recipes() if r["name"] == "killed-all-torn")
    write_tree(damaged_tree(recipe), tmp_path / "DATASTORE")
    before = load_tree(tmp_path / "DATASTORE")
    view = read_store(tmp_path / "DATASTORE", truncate_bad_eof=True)
    assert load_tree(tmp_path / "DATASTORE") == before
    assert view.tree != before


def test_symbolic_links_in_the_root_are_not_channels(tmp_path: Path) -> None:
    root = extract("v0.25.6/clean.tar.gz", tmp_path)
    (root / "linked").symlink_to(root / "single")
    assert b"linked" not in read_store(root).channels


def test_there_are_enough_recipes_of_every_outcome() -> None:
    outcomes = [(r["plain"]["starts"], r["truncating"]["starts"]) for r in recipes()]
    assert len(outcomes) == 224
    assert outcomes.count((True, True)) > 100
    assert outcomes.count((False, True)) > 25
    assert outcomes.count((False, False)) > 40
    assert outcomes.count((True, False)) == 1


@pytest.mark.parametrize("recipe", recipes(), ids=lambda r: r["name"])
@pytest.mark.parametrize("start", ["plain", "truncating"])
def test_a_damaged_store_gets_the_verdict_of_the_real_server(recipe: Recipe, start: str) -> None:
    verdict = recipe[start]
    tree = damaged_tree(recipe)
    untouched = dict(tree)
    view, after, says = start_server(tree, truncate=start == "truncating")
    assert says == verdict.get("says", "")
    assert (view is not None) == verdict["starts"]
    assert tree == untouched
    # The server record that a start without one writes is not modelled.
    changed = {n: s for n, s in verdict.get("changed", {}).items() if n != "server.dat"}
    mine = {n: s for n, s in changed_sizes(tree, after).items() if n != "server.dat"}
    assert mine == changed
    if view is not None:
        compare_with_verdict(view, recipe["base"], verdict)


def start_server(tree: Tree, *, truncate: bool) -> tuple[GoView | None, Tree, str]:
    """View, files afterwards, and what the server says if it does not start."""
    try:
        view = read_tree(tree, truncate_bad_eof=truncate, cluster_id=b"test-cluster")
    except GoRefuses as refusal:
        return None, refusal.tree, refusal.text
    return view, view.tree, ""


def compare_with_verdict(view: GoView, base: str, verdict: Recipe) -> None:
    undamaged = read_tree(archived_tree(base))
    rows: dict[str, Any] = {n.decode(): verdict_row(c) for n, c in undamaged.channels.items()}
    rows |= verdict.get("channels", {})
    assert {n.decode(): verdict_row(c) for n, c in view.channels.items()} == {
        n: r for n, r in rows.items() if r
    }
    clients = verdict.get("clients", sorted(c.decode() for c in undamaged.clients))
    assert sorted(c.decode() for c in view.clients) == clients


def test_a_header_only_index_with_torn_data_cannot_be_repaired_in_one_start() -> None:
    tree = archived_tree("v0.25.6/clean.tar.gz")
    data = tree["single/msgs.1.dat"]
    assert data is not None
    tree["single/msgs.1.dat"] = data[:-4]
    tree["single/msgs.1.idx"] = data[:4]
    with pytest.raises(
        GoRefuses, match=r'msgs.1.idx"\): write DATASTORE/single/msgs.1.idx: file already closed'
    ) as e:
        read_tree(tree, truncate_bad_eof=True)
    assert "single/msgs.1.idx" not in e.value.tree
    with pytest.raises(GoRefuses, match="unexpected EOF"):
        read_tree(e.value.tree)


def test_a_store_without_server_record_and_channels_is_new() -> None:
    view = read_tree({"clients.dat": archived_tree("v0.25.6/clean.tar.gz")["clients.dat"]})
    assert (view.info, view.clients, view.channels) == (None, {}, {})


def test_the_server_record_is_decoded() -> None:
    info = read_tree(archived_tree("v0.25.6/clean.tar.gz")).info
    assert info is not None
    assert (info.cluster_id, info.publish) == (b"test-cluster", b"_STAN.pub.test-cluster")
    assert (info.acks_subs, info.node_id) == (b"_STAN.ack.test-cluster", b"")


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ("1205", "unexpected EOF"),
        ("1001", "proto: wrong wireType = 0 for field Blob"),
        ("0a00", "proto: wrong wireType = 2 for field Number"),
        ("08" + "ff" * 10 + "01", "proto: integer overflow"),
        ("00", "proto: illegal tag 0 (wire type 0)"),
        ("1b", "proto: illegal wireType 3"),
        ("1d0000", "unexpected EOF"),
    ],
)
def test_payloads_that_do_not_decode_are_refused(payload: str, text: str) -> None:
    with pytest.raises(ProtoError) as error:
        decode(bytes.fromhex(payload), {1: ("Number", "int32"), 2: ("Blob", "bytes")})
    assert str(error.value) == text


def test_numbers_keep_their_width_and_sign() -> None:
    fields = {1: ("A", "int32"), 2: ("B", "int64"), 3: ("C", "uint64"), 4: ("D", "bytes")}
    minus_one = "ff" * 9 + "01"
    values = decode(
        bytes.fromhex(f"08{minus_one}10{minus_one}18{minus_one}2201782a0161" + "220179"), fields
    )
    assert (values.num(1), values.num(2), values.num(3)) == (-1, -1, 2**64 - 1)
    assert values.blob(4) == b"y"
