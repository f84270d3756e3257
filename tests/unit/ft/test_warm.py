"""The digest and the reading ahead: hints that nothing depends on, whatever somebody sends."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.clock import ManualClock
from ftstan.ft import warm
from ftstan.ft.digest import PART_ROWS, Digest, decode_digest, encode_digest
from ftstan.ft.warm import Warm, WarmLag
from ftstan.stores.interface import ChannelEnd
from tests.filenode import FileNode, simulated
from tests.sim.disk import SimDisk

STORE_ID = bytes(range(16))
READING = {"open_dir", "open_dir_at", "listdir", "open", "fstat", "pread", "close"}

numbers = st.integers(0, (1 << 63) - 1)
names = st.sampled_from([b"foo", b"bar", b"gone", b"subs.dat", b"lost+found"])
ends = st.builds(ChannelEnd, names, numbers, numbers, numbers)


def filled() -> FileNode:
    """An owner with two channels in two slices each, one of them with a subscription."""
    node = FileNode(simulated())
    for name in (b"foo", b"bar"):
        node.put(b"a", b"b", channel=name)
    node.tick()
    node = node.successor()
    for name in (b"foo", b"bar"):
        node.put(b"c", channel=name)
    node.tick()
    return node


def disk_of(node: FileNode) -> SimDisk:
    assert isinstance(node.disk, SimDisk)
    return node.disk


def digest_of(node: FileNode) -> Digest:
    return Digest("owner", 2, STORE_ID, tuple(node.store.ends(100)))


def reader(disk: SimDisk) -> tuple[Warm, SimDisk]:
    """A standby's reader, on its own view of the same disk."""
    own = disk.sibling()
    return Warm(own, "/store", ManualClock()), own


def lag_of(warm_: Warm) -> WarmLag | None:
    return warm_.lag


def calls(disk: SimDisk, since: int = 0) -> list[str]:
    return [line.split()[0] for line in disk.log[since:]]


class TestDigest:
    def test_what_was_sent_is_what_is_read_in_as_many_messages_as_it_takes(self) -> None:
        sent = [ChannelEnd(b"c.%d\xff" % n, n, n + 1, n + 2) for n in range(2 * PART_ROWS + 1)]
        parts = [decode_digest(p) for p in encode_digest("me", 7, STORE_ID, sent)]
        assert [
            (p.server_id, p.epoch, p.store_id, len(p.ends)) for p in parts if p is not None
        ] == [("me", 7, STORE_ID, n) for n in (PART_ROWS, PART_ROWS, 1)]
        assert [end for p in parts if p is not None for end in p.ends] == sent

    @given(st.binary(max_size=300) | st.text().map(str.encode))
    def test_bytes_that_are_no_digest_are_none(self, payload: bytes) -> None:
        assert decode_digest(payload) is None

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=12,
        )
    )
    def test_fields_of_any_type_never_raise(self, value: object) -> None:
        fields = {"type": "digest", "server": "s", "epoch": 1, "store": STORE_ID.hex(), "ends": []}
        for key in ("server", "epoch", "store", "ends"):
            decode_digest(json.dumps(fields | {key: value}).encode())
        found = decode_digest(json.dumps(fields | {"ends": [value, ["foo", 1, 2, value]]}).encode())
        assert found is not None
        assert {end.name for end in found.ends} <= {b"foo"}

    @pytest.mark.parametrize(
        "name", ["..", ".", "", "../x", "a/b", "/etc", "a\0b", "x" * 256, "foo.*", "\ud800"]
    )
    def test_a_name_that_is_no_channels_is_left_out(self, name: str) -> None:
        fields = {"type": "digest", "server": "s", "epoch": 1, "store": STORE_ID.hex()}
        payload = json.dumps(fields | {"ends": [[name, 1, 1, 1], ["good", 1, 1, 1]]}).encode()
        found = decode_digest(payload)
        assert found is not None
        assert [end.name for end in found.ends] == [b"good"]


class TestReading:
    def test_everything_that_a_takeover_reads_is_read_and_nothing_is_opened_to_be_written(
        self,
    ) -> None:
        node = filled()
        warm_, disk = reader(disk_of(node))
        warm_.take(digest_of(node))
        warm_.read_ahead()
        assert set(calls(disk)) <= READING
        opened = [line.split() for line in disk.log if line.startswith("open ")]
        for name in ("msgs.1.idx", "msgs.4097.idx", "msgs.4097.dat", "confirmed.bin"):
            assert sum(name in str(line) for line in opened) == 2, name
        flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        assert not any(int(line[3]) & flags for line in opened)
        assert disk.open_handles == 0

    def test_a_sealed_slice_is_read_once_and_the_newest_one_again(self) -> None:
        node = filled()
        warm_, disk = reader(disk_of(node))
        warm_.take(digest_of(node))
        warm_.read_ahead()
        node.put(b"d")
        node.tick()
        before = len(disk.log)
        warm_.take(digest_of(node))
        warm_.read_ahead()
        again = [line for line in disk.log[before:] if line.startswith("open ")]
        assert [line for line in again if "msgs.4097.idx" in line]
        assert not [line for line in again if "msgs.1." in line]

    def test_the_lag_is_what_the_digest_is_ahead_and_for_how_long(self) -> None:
        node = filled()
        clock = ManualClock()
        warm_ = Warm(disk_of(node).sibling(), "/store", clock)
        assert lag_of(warm_) is None
        warm_.take(digest_of(node))
        clock.advance(3)
        assert lag_of(warm_) == WarmLag(6, 3.0)
        warm_.read_ahead()
        assert lag_of(warm_) == WarmLag(0, 0.0)
        node.put(b"d", b"e")
        warm_.take(digest_of(node))
        assert lag_of(warm_) == WarmLag(2, 0.0)

    def test_what_is_kept_in_mind_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(warm, "MOST_CHANNELS", 10)
        warm_, _ = reader(disk_of(filled()))
        for n in range(100):
            warm_.take(Digest("x", 1, STORE_ID, (ChannelEnd(b"c%d" % n, 1, 1, 1),)))
        assert lag_of(warm_) == WarmLag(10, 0.0)

    def test_once_stopped_it_knows_nothing_and_opens_nothing(self) -> None:
        node = filled()
        warm_, disk = reader(disk_of(node))
        warm_.take(digest_of(node))
        warm_.stop()
        before = len(disk.log)
        warm_.take(digest_of(node))
        warm_.read_ahead()
        assert warm_.lag is None
        assert not [line for line in disk.log[before:] if line.startswith(("open ", "open_dir_at"))]

    def test_a_store_that_is_not_there_and_storage_that_fails_do_no_harm(self) -> None:
        node = filled()
        gone = Warm(disk_of(node).sibling(), "/nowhere", ManualClock())
        gone.take(digest_of(node))
        gone.read_ahead()
        warm_, disk = reader(disk_of(node))

        def refuse(_call: int, name: str, _arguments: tuple[object, ...]) -> None:
            if name == "pread":
                raise OSError(5, "Input/output error")

        disk.on_call = refuse
        warm_.take(digest_of(node))
        warm_.read_ahead()
        assert lag_of(warm_) == WarmLag(0, 0.0)

    @pytest.mark.slow
    @given(st.lists(st.lists(ends, max_size=4), max_size=4))
    def test_no_digest_changes_what_a_takeover_finds(self, told: list[list[ChannelEnd]]) -> None:
        node = filled()
        tree = disk_of(node).tree("/store")
        warm_, _ = reader(disk_of(node))
        for rows in told:
            warm_.take(Digest("somebody", 1, STORE_ID, tuple(rows)))
            warm_.read_ahead()
        assert disk_of(node).tree("/store") == tree
        node.put(b"late")
        after = node.successor()
        assert after.sequences() == [1, 2, 3, 4]
        assert after.sequences(b"bar") == [1, 2, 3]
