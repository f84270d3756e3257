"""The way back: after a clean stop or a handover the original server reads what we would have
served.

Judged by the reader of the original's rules (``tests/oracle``), its defects included, on stores of
many activations that were killed, with seals, tails, limits, expired heads, deleted subscriptions
and closed durables.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.cli import ctl
from ftstan.config.options import ChannelLimits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.wire import codec
from tests.datastores import durable, messages_of, serve, serving
from tests.oracle.damage import archived_tree, write_tree
from tests.oracle.gostore import load_tree, read_store
from tests.sim.filestore import open_file_store
from tests.sim.gojudge import go_judge
from tests.sim.history import kill_at_every_call, run_history

if TYPE_CHECKING:
    from pathlib import Path

    from tests.datastores import Serving

CHANNELS = (b"foo", b"bar.baz", b"quux")
LIMITS = ChannelLimits(max_msgs=40, max_bytes=0, max_age=60 * 1_000_000_000)
OPTIONS = FileStoreOptions(slice_max_msgs=9)
FREE = ChannelLimits(max_msgs=0, max_bytes=0)


def live(node: Serving, rng: Random, serial: int) -> None:
    """A life of a server: batches, subscriptions that come, change and go, deliveries,
    acknowledgements, time.
    """
    node.connect(b"client-%d" % serial)
    if serial % 3 == 2:
        node.store.delete_client(b"client-%d" % (serial - 2))
        node.commit()
    for name in CHANNELS:
        for _ in range(rng.randint(1, 5)):
            node.publish(
                name, *(rng.randbytes(rng.choice((0, 10, 700))) for _ in range(rng.randint(1, 4)))
            )
            if rng.random() < 0.4:
                node.clock.advance(rng.uniform(0, 8))
                node.tick()
        channel = node.channel(name)
        sub_id = channel.next_sub_id
        node.subscribe(name, sub_id)
        sequences = tuple(range(max(channel.first, channel.last - 3), channel.last + 1))
        node.deliver(name, sub_id, sent=sequences, acked=sequences[:1])
        node.tick()
        if sub_id > 2:
            channel.delete_sub(sub_id - 2)
            channel.update_sub(replace(durable(sub_id - 1), is_closed=True, last_sent=channel.last))
            node.commit()


def junk(store: Path, rng: Random) -> None:
    """What dead owners may still write: bytes behind their last slices, and indexes that lost their
    end.
    """
    for data in store.glob("*/msgs.*.dat"):
        later = [
            f
            for f in data.parent.glob("msgs.*.dat")
            if int(f.name.split(".")[1]) > int(data.name.split(".")[1])
        ]
        if later and rng.random() < 0.5:
            with open(data, "ab") as f:
                f.write(rng.randbytes(rng.randint(1, 60)))


def grown(store: Path, seed: int, lives: int = 6) -> dict[bytes, dict[int, bytes]]:
    """A store of ``lives`` activations that ended in all ways, the last one cleanly.

    Returns what it served.
    """
    rng = Random(seed)
    clock = ManualClock()
    served: dict[bytes, dict[int, bytes]] = {}
    for serial in range(lives):
        node = serve(store, clock, options=OPTIONS, limits=LIMITS)
        live(node, rng, serial)
        served = {name: messages_of(node, name) for name in CHANNELS}
        if serial == lives - 1 or rng.random() < 0.3:
            node.stop()
        else:
            node.die()
            junk(store, rng)
    return served


def check_identical(store: Path, served: dict[bytes, dict[int, bytes]]) -> None:
    """The original changes no file, and sees every message, subscription and client that we do."""
    view = read_store(store, cluster_id=b"test-cluster")
    assert view.tree == load_tree(store)
    with serving(store, options=OPTIONS, limits=FREE) as node:
        assert sorted(view.clients) == sorted(c.client_id for c in node.found.clients)
        assert sorted(view.channels) == sorted(served)
        for name, messages in served.items():
            seen = view.channels[name]
            assert seen.last == max(messages)
            delivered = {s: (m.timestamp, m.reply, m.data) for s, m in seen.messages.items()}
            decoded = {s: codec.decode_msg_proto(p) for s, p in messages.items()}
            # Removed messages of a slice that is still there come back with larger limits, here as
            # there.
            assert {s: delivered[s] for s in messages} == {
                s: (d[4], d[2], d[3]) for s, d in decoded.items()
            }
            assert delivered.keys() == set(range(seen.first, seen.last + 1))
            assert messages_of(node, name).keys() == delivered.keys()
            ours = {s.state.sub_id: s for s in node.channel(name).recovered_subs()}
            assert seen.subs.keys() == ours.keys()
            for sub_id, sub in seen.subs.items():
                state = ours[sub_id].state
                assert (sub.is_closed, sub.durable_name, sub.last_sent, sub.inbox) == (
                    state.is_closed,
                    state.durable_name,
                    state.last_sent,
                    state.inbox,
                )
                assert sub.pending == ours[sub_id].pending
            assert node.channel(name).next_sub_id == seen.max_sub_id + 1


def numbers(store: Path, channel: bytes) -> list[int]:
    return sorted(int(f.name.split(".")[1]) for f in (store / channel.decode()).glob("msgs.*.dat"))


@pytest.mark.parametrize("seed", range(8))
def test_after_a_clean_stop_the_original_reads_the_same(tmp_path: Path, seed: int) -> None:
    served = grown(tmp_path / "store", seed)
    check_identical(tmp_path / "store", served)


@pytest.mark.parametrize("seed", range(8))
def test_after_a_handover_the_original_reads_the_same_from_dense_slices(
    tmp_path: Path, seed: int
) -> None:
    store = tmp_path / "store"
    served = grown(store, seed)
    assert ctl.main(["store", "handover", str(store), "--slice-bytes", "4000"]) == 0
    for name in CHANNELS:
        assert numbers(store, name) == list(range(1, len(numbers(store, name)) + 1))
    check_identical(store, served)


def test_a_handover_copies_every_slice_that_a_dead_owner_may_still_write(tmp_path: Path) -> None:
    store = tmp_path / "store"
    grown(store, 3)
    # Descriptors that dead owners hold open.
    late = [open(f, "r+b") for f in store.glob("*/msgs.*.dat")]  # noqa: SIM115
    late += [open(f, "r+b") for f in store.glob("*/msgs.*.idx")]  # noqa: SIM115
    assert ctl.main(["store", "handover", str(store)]) == 0
    before = load_tree(store)
    for file in late:
        file.write(b"late bytes of a paused owner")
        file.close()
    assert load_tree(store) == before


def test_after_a_repair_and_a_handover_the_original_gives_no_sequence_twice(tmp_path: Path) -> None:
    """The original takes the last sequence from the last message: where that is lost, an empty one
    stands for it.
    """
    store = tmp_path / "store"
    node = serve(store)
    node.publish(b"foo", b"a", b"b", b"c")
    node.tick()
    node.stop()
    data = store / "foo" / "msgs.1.dat"
    content = bytearray(data.read_bytes())
    content[-3] ^= 0xFF
    data.write_bytes(content)
    assert ctl.main(["store", "repair", str(store)]) == 0
    assert ctl.main(["store", "handover", str(store)]) == 0
    seen = read_store(store).channels[b"foo"]
    assert {s: m.data for s, m in seen.messages.items()} == {1: b"a", 2: b"b", 3: b""}


def test_the_original_writes_on_and_we_come_back(tmp_path: Path) -> None:
    """Back and forth: what the original appends behind ours is served by our next activation, and
    handed over again.
    """
    store = tmp_path / "store"
    served = grown(store, 5, lives=3)
    assert ctl.main(["store", "handover", str(store)]) == 0
    for name in CHANNELS:
        append_as_the_original(store, name, b"theirs")
        served[name][max(served[name]) + 1] = b""
    with serving(store, options=OPTIONS, limits=FREE) as node:
        for name in CHANNELS:
            payload = messages_of(node, name)[max(served[name])]
            assert codec.decode_msg_proto(payload)[3] == b"theirs"
            assert node.publish(name, b"ours again") == [max(served[name]) + 1]
        node.stop()
    assert ctl.main(["store", "handover", str(store)]) == 0
    view = read_store(store)
    assert view.tree == load_tree(store)
    for name in CHANNELS:
        assert [m.data for m in view.channels[name].messages.values()][-2:] == [
            b"theirs",
            b"ours again",
        ]


def append_as_the_original(store: Path, name: bytes, data: bytes) -> None:
    """Go on in the highest slice, as a start of the original does."""
    folder = store / name.decode()
    seen = read_store(store).channels[name]
    number = numbers(store, name)[-1]
    crc = records.Crc()
    message = b"\x08" + varint(seen.last + 1) + b"\x12" + bytes([len(name)]) + name
    message += b"\x22" + bytes([len(data)]) + data + b"\x28" + varint(1_700_000_000_000_000_000)
    record = records.untyped_record(message, crc)
    at = (folder / f"msgs.{number}.dat").stat().st_size
    with open(folder / f"msgs.{number}.dat", "ab") as f:
        f.write(record)
    block, _, _ = records.scan_data(record, name, seen.last, crc)
    with open(folder / f"msgs.{number}.idx", "ab") as f:
        f.write(records.index_entries(block, 0, 1, at, crc))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("name", ["clean", "killed"])
@pytest.mark.parametrize("version", ["v0.10.0", "v0.17.0", "v0.25.6"])
def test_a_store_of_the_original_is_handed_back_with_everything_in_it(
    tmp_path: Path, version: str, name: str
) -> None:
    tree = archived_tree(f"{version}/{name}.tar.gz")
    write_tree(tree, tmp_path / "store")
    before = read_store(tmp_path / "store")
    assert ctl.main(["store", "handover", str(tmp_path / "store")]) == 0
    after = read_store(tmp_path / "store")
    assert after.tree == load_tree(tmp_path / "store")
    assert after.clients == before.clients
    for channel, seen in before.channels.items():
        found = after.channels[channel]
        assert (found.messages, found.subs) == (seen.messages, seen.subs)
        assert (found.first, found.last, found.msgs, found.bytes) == (
            seen.first,
            seen.last,
            seen.msgs,
            seen.bytes,
        )


def test_every_history_that_stops_cleanly_ends_readable_for_the_original() -> None:
    for seed in range(40):
        rng = Random(seed)
        kills = [rng.randint(5, 90) for _ in range(rng.randint(0, 5))]
        run_history(open_file_store, seed, kills=kills, judge=go_judge)


def test_wherever_a_process_died_before_the_next_clean_stop_is_readable_for_the_original() -> None:
    for seed in range(3):
        met = kill_at_every_call(open_file_store, seed, epoch=1, stride=9, judge=go_judge)
        assert met["stopped-cleanly"] > 0
