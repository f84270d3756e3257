"""Datastores read without their server and without a lock: what counts, how far, and what is said
of the rest.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, DamageError, StoreError
from ftstan.ft.lock import StoreLock
from ftstan.spark.log import Bounds, Store, read
from ftstan.spark.places import kind_of
from ftstan.spark.report import ReadingFinding, ReadingKind, ReadingReport, collected
from ftstan.spark.resolve import resolved
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from tests.compat.test_damage import channel_of, expected, is_refused, ranges
from tests.datastores import grow, messages_of, serve, serving
from tests.oracle.damage import damaged_tree, extract, recipes, write_tree
from tests.oracle.gostore import load_tree
from tests.oracle.test_gostore import STORES, expected_view
from tests.slicefiles import CRC, SECOND, START, Message, block_of, put_slice, series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.oracle.damage import Recipe

COLUMNS = (
    "channel",
    "sequence",
    "timestamp_ns",
    "data",
    "size",
    "reply",
    "crc_ok",
    "slice",
    "offset",
    "problem",
)

#: Slices whose every record is of another channel: a server in quarantine gives them out, a reader
#: of columns by channel must not.
FOREIGN = {"root-dir-odd-with-messages", "root-case-twin"}


def rows_of(
    root: Path,
    wanted: Mapping[str, Bounds] | list[str] | None = None,
    report: ReadingReport | None = None,
    *,
    bounds: Bounds | None = None,
    max_bytes: int = 1 << 27,
    columns: tuple[str, ...] = COLUMNS,
    allow_unconfirmed: bool = False,
) -> list[dict[str, Any]]:
    store = Store(str(root), allow_unconfirmed=allow_unconfirmed)
    parts = store.plan(wanted, bounds=bounds or Bounds(), max_bytes=max_bytes)
    found: list[dict[str, Any]] = []
    for part in pickle.loads(pickle.dumps(parts)):
        for batch in read(part, columns, report=report):
            found += batch.to_pylist()
    return found


def sequences(
    rows: Iterable[dict[str, Any]], channel: str = "orders", *, good: bool = True
) -> list[int]:
    return [r["sequence"] for r in rows if r["channel"] == channel and r["crc_ok"] is good]


def kinds(report: ReadingReport) -> Counter[str]:
    return Counter(f.kind for f in report.findings)


def only(report: ReadingReport, kind: ReadingKind) -> ReadingFinding:
    (found,) = [f for f in report.findings if f.kind is kind]
    return found


# ---- recorded datastores
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1 << 27, 700, 100])
@pytest.mark.parametrize(("version", "name"), STORES)
def test_a_store_of_a_real_server_is_read_as_that_server_showed_it(
    tmp_path: Path, version: str, name: str, max_bytes: int
) -> None:
    root = extract(f"{version}/{name}.tar.gz", tmp_path)
    before = load_tree(root)
    report = ReadingReport()
    rows = rows_of(root, report=report, max_bytes=max_bytes)
    view = expected_view(version, name)["channels"]
    for channel, row in view.items():
        mine = [r for r in rows if r["channel"] == channel]
        assert [
            {
                "seq": r["sequence"],
                "timestamp": r["timestamp_ns"],
                "subject": r["channel"],
                "reply": r["reply"],
                "len": r["size"],
                "sha1": hashlib.sha1(r["data"]).hexdigest(),
            }
            for r in mine
        ] == row["messages"]
        assert {r["crc_ok"] for r in mine} <= {True}
    assert Store(str(root)).channels() == sorted(view)
    assert report.findings == []
    assert load_tree(root) == before


@pytest.mark.parametrize(
    "recipe", [r for r in recipes() if not is_refused(r, truncating=False)], ids=lambda r: r["name"]
)
def test_of_a_damaged_store_everything_that_a_server_gives_out_is_read_and_the_rest_is_told(
    tmp_path: Path, recipe: Recipe
) -> None:
    root = tmp_path / "store"
    write_tree(damaged_tree(recipe), root)
    report = ReadingReport()
    rows = rows_of(root, report=report)
    there = expected(recipe)
    damaged = channel_of(recipe)
    for channel, (served, last) in there.items():
        if recipe["name"] in FOREIGN and channel == damaged:
            assert only(report, ReadingKind.DAMAGE).text.endswith("(record of another channel)")
            continue
        got = sequences(rows, channel)
        assert ranges(got) == served
        lost = sequences(rows, channel, good=False)
        assert not set(lost) & set(got)
        assert all(r["data"] is None and r["problem"] for r in rows if not r["crc_ok"])
        missing = set(range(1, last + 1)) - set(got) - set(lost)
        # What no row stands for is told, but for sequences below the first slice that is left.
        told = {f.channel for f in report.findings if f.kind is not ReadingKind.NOTE}
        assert not {n for n in missing if got and n > got[0]} or channel in told
    assert all(f.file for f in report.findings)


# ---- stores of ours
# --------------------------------------------------------------------------------------------------


def test_what_a_successor_sealed_and_copied_is_read_once(tmp_path: Path) -> None:
    held = grow(tmp_path, 6)
    report = ReadingReport()
    for max_bytes in (1 << 27, 150):
        rows = rows_of(tmp_path, report=report, max_bytes=max_bytes)
        for name, messages in held.items():
            assert sequences(rows, name.decode()) == sorted(messages)
    assert [f for f in report.findings if f.kind is not ReadingKind.NOTE] == []


def test_bytes_of_a_former_owner_behind_a_seal_are_nobodys(tmp_path: Path) -> None:
    node = serve(tmp_path)
    node.publish(b"orders", *(b"%d" % n for n in range(5)))
    node.die()
    node = serve(tmp_path)
    node.publish(b"orders", b"five", b"six")
    node.die()
    late = block_of(b"orders", [Message(n, b"late") for n in range(6, 10)])
    with (tmp_path / "orders" / "msgs.1.dat").open("ab") as file:
        file.write(bytes(memoryview(late)) + b"torn")
    report = ReadingReport()
    rows = rows_of(tmp_path, report=report)
    assert [r["data"] for r in rows] == [b"0", b"1", b"2", b"3", b"4", b"five", b"six"]
    assert report.findings == []


def test_a_live_store_is_read_up_to_what_was_confirmed(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.publish(b"orders", b"one", b"two")
        node.tick()
        node.publish(b"orders", b"three")
        store = Store(str(tmp_path))
        assert sequences(rows_of(tmp_path)) == [1, 2]
        assert store.ends() == {"orders": (1, 3)}
        assert sequences(rows_of(tmp_path, allow_unconfirmed=True)) == [1, 2, 3]
        node.tick()
        assert sequences(rows_of(tmp_path)) == [1, 2, 3]
        assert store.ends(["orders"]) == {"orders": (1, 4)}


def test_a_channel_of_a_live_store_that_was_never_confirmed_is_empty_yet(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.publish(b"orders", b"one")
        assert rows_of(tmp_path) == []
        assert Store(str(tmp_path)).ends() == {"orders": (1, 1)}


def test_a_plan_of_a_live_store_gives_the_same_rows_however_late_it_is_read(tmp_path: Path) -> None:
    with serving(tmp_path, options=FileStoreOptions(slice_max_msgs=3)) as node:
        node.publish(b"orders", *(b"%d" % n for n in range(8)))
        node.tick()
        parts = Store(str(tmp_path)).plan(max_bytes=100)
        node.publish(b"orders", *(b"%d" % n for n in range(8, 20)))
        node.tick()
        found = [
            r for part in parts for batch in read(part, ("sequence",)) for r in batch.to_pylist()
        ]
        assert [r["sequence"] for r in found] == list(range(1, 9))


def test_a_held_store_without_a_confirmation_is_read_only_when_told_to(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 3))
    (tmp_path / "server.dat").write_bytes(b"\1\0\0\0")
    disk = LocalDisk()
    root = disk.open_dir(str(tmp_path))
    lock = StoreLock(disk, root, str(tmp_path))
    lock.acquire()
    try:
        with pytest.raises(StoreError, match=r'channel "orders" has no confirmed.bin') as caught:
            rows_of(tmp_path)
        assert "allowUnconfirmed" in caught.value.hint
        assert sequences(rows_of(tmp_path, allow_unconfirmed=True)) == [1, 2, 3]
    finally:
        lock.release()
        disk.close(root)
    assert sequences(rows_of(tmp_path)) == [1, 2, 3]


def test_reading_takes_no_lock_and_writes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.publish(b"orders", b"one")
        node.tick()
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        rows_of(tmp_path)
        Store(str(tmp_path)).ends()
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        node.publish(b"orders", b"two")


@pytest.mark.parametrize("stop", [True, False])
def test_what_an_operator_has_purged_is_not_shown(tmp_path: Path, stop: bool) -> None:
    with serving(tmp_path, options=FileStoreOptions(slice_max_msgs=4)) as node:
        node.publish(b"orders", *(b"%d" % n for n in range(10)))
        node.publish(b"audit", b"a", b"b")
        node.channel(b"orders").purge(6)
        node.channel(b"audit").purge(2)
        node.tick()
        if stop:
            node.stop()
        report = ReadingReport()
        rows = rows_of(tmp_path, report=report)
        assert sequences(rows) == [7, 8, 9, 10]
        assert sequences(rows, "audit") == []
        assert Store(str(tmp_path)).ends() == {"orders": (7, 11), "audit": (3, 3)}
        assert [f for f in report.findings if f.kind is not ReadingKind.NOTE] == []


def test_a_damaged_mark_of_a_purge_is_told(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 3))
    (tmp_path / "orders" / "purged.bin").write_bytes(b"junk")
    report = ReadingReport()
    assert sequences(rows_of(tmp_path, report=report)) == [1, 2, 3]
    assert only(report, ReadingKind.DAMAGE).file == "orders/purged.bin"


def test_subscriptions_are_those_that_a_server_would_recover(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.publish(b"orders", b"one", b"two")
        node.subscribe(b"orders", 1)
        node.deliver(b"orders", 1, sent=(1, 2), acked=(1,))
        node.tick()
        (stored,) = Store(str(tmp_path)).subscriptions("orders").values()
    assert (stored.state.durable_name, stored.state.last_sent, stored.pending) == (b"dur.1", 2, {2})
    with pytest.raises(ConfigError, match='no channel "other"'):
        Store(str(tmp_path)).subscriptions("other")


# ---- plans
# --------------------------------------------------------------------------------------------------


def test_whatever_the_size_of_parts_every_message_is_in_one_of_them(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 400))
    put_slice(tmp_path, "orders", 2, series(401, 450))
    put_slice(tmp_path, "audit", 1, series(1, 7), index=False)
    for max_bytes in (64, 300, 1000, 4096, 1 << 20):
        parts = Store(str(tmp_path)).plan(max_bytes=max_bytes)
        rows = rows_of(tmp_path, max_bytes=max_bytes)
        assert sequences(rows) == list(range(1, 451))
        assert sequences(rows, "audit") == list(range(1, 8))
        big = [part for part in parts if part.size > max_bytes]
        # Only a slice without an index is not cut.
        assert all([r.number for share in part.shares for r in share.ranges] == [1] for part in big)
    assert len(Store(str(tmp_path)).plan(max_bytes=1 << 20)) == 1
    assert len(Store(str(tmp_path)).plan(min_parts=5)) >= 5


def test_bounds_choose_messages_by_sequence_and_time(tmp_path: Path) -> None:
    for number in range(5):
        put_slice(tmp_path, "orders", number + 1, series(number * 10 + 1, number * 10 + 10))
    assert sequences(rows_of(tmp_path, {"orders": Bounds(first=9, last=23)})) == list(range(9, 24))
    report = ReadingReport()
    rows = rows_of(tmp_path, {"orders": Bounds(first=31, last=31)}, report)
    assert sequences(rows) == [31]
    assert report.slices == 1
    since = START + 12 * SECOND
    until = START + 15 * SECOND - 1
    assert sequences(rows_of(tmp_path, bounds=Bounds(since=since, until=until))) == [12, 13, 14]
    assert rows_of(tmp_path, bounds=Bounds(first=5, last=4)) == []


def test_times_that_step_back_are_found_all_the_same(tmp_path: Path) -> None:
    times = [5, 6, 7, 1, 2, 6, 3]
    messages = [Message(n, b"", at * SECOND) for n, at in enumerate(times, 1)]
    put_slice(tmp_path, "orders", 1, messages[:4])
    put_slice(tmp_path, "orders", 2, messages[4:])
    assert sequences(rows_of(tmp_path, bounds=Bounds(since=6 * SECOND))) == [2, 3, 6]


def test_one_percent_of_the_time_of_one_channel_costs_two_percent_of_its_data_at_most(
    tmp_path: Path,
) -> None:
    for channel in ("orders", "audit"):
        for number in range(4):
            put_slice(
                tmp_path, channel, number + 1, series(number * 5000 + 1, number * 5000 + 5000, 128)
            )
    report = ReadingReport()
    wanted = {"orders": Bounds(since=START + 7000 * SECOND, until=START + 7200 * SECOND - 1)}
    assert len(rows_of(tmp_path, wanted, report)) == 200
    size = sum(path.stat().st_size for path in (tmp_path / "orders").glob("*.dat"))
    assert report.data_bytes <= size * 0.02
    assert report.index_bytes <= 20_000 * 32 * 1.01


def test_columns_of_the_index_cost_no_data(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 5000, 128))
    report = ReadingReport()
    rows = rows_of(tmp_path, report=report, columns=("channel", "sequence", "timestamp"))
    assert len(rows) == 5000
    assert report.data_bytes < 2000


def test_a_hole_is_told_once_wherever_parts_are_cut(tmp_path: Path) -> None:
    messages = [m for m in series(1, 40) if m.sequence not in (7, 8, 20, 33)]
    put_slice(tmp_path, "orders", 1, messages)
    for max_bytes in (1 << 20, 500, 130, 60):
        report = ReadingReport()
        rows = rows_of(tmp_path, report=report, max_bytes=max_bytes)
        assert sequences(rows) == [m.sequence for m in messages]
        assert sorted((f.kind, f.sequence, f.text) for f in report.findings) == [
            (ReadingKind.LOSS, 7, "sequences 7 to 8 are missing before this record"),
            (ReadingKind.LOSS, 20, "sequences 20 to 20 are missing before this record"),
            (ReadingKind.LOSS, 33, "sequences 33 to 33 are missing before this record"),
        ]


def test_a_channel_that_is_deleted_while_it_is_looked_at_is_one_line(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 4))
    store = Store(str(tmp_path))
    listing = store.look()
    shutil.rmtree(tmp_path / "orders")
    with pytest.raises(StoreError, match="No such file"):
        store.ends_of(listing.channels["orders"], listing.ours_from)
    with pytest.raises(StoreError, match="No such file"):
        store.plan({"orders": Bounds(first=2)}, listing=listing)


def test_what_is_no_datastore_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no datastore"):
        Store(str(tmp_path)).plan()
    with pytest.raises(ConfigError, match="No such file"):
        Store(str(tmp_path / "nowhere")).channels()
    put_slice(tmp_path, "orders", 1, series(1, 1))
    with pytest.raises(ConfigError, match='no channel "order"'):
        Store(str(tmp_path)).plan(["order"])
    assert kind_of(str(tmp_path)) == "store"


def test_the_ends_of_a_channel_are_its_first_sequence_and_the_one_behind_its_last(
    tmp_path: Path,
) -> None:
    put_slice(tmp_path, "orders", 4, series(7, 9))
    put_slice(tmp_path, "orders", 5, series(10, 12), index=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "subs.dat").write_bytes(b"\1\0\0\0")
    assert Store(str(tmp_path)).ends() == {"orders": (7, 13), "empty": (1, 1)}


# ---- bad input
# --------------------------------------------------------------------------------------------------


def test_a_slice_that_is_gone_when_it_is_read_is_an_error_or_a_finding(tmp_path: Path) -> None:
    for number in range(3):
        put_slice(tmp_path, "orders", number + 1, series(number * 10 + 1, number * 10 + 10))
    parts = Store(str(tmp_path)).plan()
    (tmp_path / "orders" / "msgs.1.dat").unlink()
    resolved.cache_clear()
    with pytest.raises(StoreError, match=r"orders/msgs.1.dat: the slice went away") as caught:
        list(read(parts[0], ("sequence",)))
    assert "failOnDataLoss=false" in caught.value.hint
    report = ReadingReport()
    rows = [
        r
        for b in read(parts[0], COLUMNS, report=report, fail_on_data_loss=False)
        for r in b.to_pylist()
    ]
    assert sequences(rows) == list(range(11, 31))
    assert only(report, ReadingKind.LOSS).file == "orders/msgs.1.dat"
    shutil.rmtree(tmp_path / "orders")
    resolved.cache_clear()
    with pytest.raises(StoreError, match="the channel's directory is gone"):
        list(read(parts[0], ("sequence",)))


def test_two_stores_that_were_merged_by_mistake_are_told_and_one_content_counts(
    tmp_path: Path,
) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 30))
    mine = [Message(n, b"other %d" % n) for n in range(11, 21)]
    put_slice(tmp_path, "orders", 2, mine)
    report = ReadingReport()
    rows = rows_of(tmp_path, report=report)
    assert sequences(rows) == list(range(1, 31))
    assert all(r["slice"] == 1 for r in rows)
    found = only(report, ReadingKind.CONFLICT)
    assert (found.file, found.offset, found.sequence) == ("orders/msgs.2.dat", 4, 11)
    assert "sequences 11 to 20 have another content than in msgs.1.dat" in found.text


def test_overlapping_slices_of_an_original_with_equal_records_are_merged(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 20))
    put_slice(tmp_path, "orders", 2, series(15, 30))
    put_slice(tmp_path, "orders", 3, series(3, 5))
    report = ReadingReport()
    assert sequences(rows_of(tmp_path, report=report)) == list(range(1, 31))
    assert report.findings == []


def test_a_slice_of_another_channel_is_damage_and_gives_no_rows(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 5))
    put_slice(tmp_path, "orders", 2, series(6, 9), subject="audit")
    report = ReadingReport()
    assert sequences(rows_of(tmp_path, report=report)) == [1, 2, 3, 4, 5]
    assert only(report, ReadingKind.DAMAGE).file == "orders/msgs.2.dat"


@pytest.mark.parametrize("index", [True, False])
def test_large_numbers_old_times_and_odd_names_are_read_as_they_are(
    tmp_path: Path, index: bool
) -> None:
    messages = [
        Message(2**53 + 1, b"a", -1),
        Message(2**53 + 2, b"b", -1_500_000_001),
        Message(2**60, b"c", 2**62),
    ]
    put_slice(tmp_path, "odd name [x] \N{SNOWMAN}", 7, messages, index=index)
    rows = rows_of(tmp_path)
    assert [(r["sequence"], r["timestamp_ns"], r["data"]) for r in rows] == [
        (m.sequence, m.at, m.data) for m in messages
    ]
    assert {r["channel"] for r in rows} == {"odd name [x] \N{SNOWMAN}"}


def test_a_name_that_is_no_text_is_shown_and_asked_for_with_escapes(tmp_path: Path) -> None:
    raw = os.fsdecode(b"caf\xe9")
    path = put_slice(tmp_path, "cafe", 1, series(1, 2), subject="cafe")
    shutil.move(path.parent, tmp_path / raw)
    report = ReadingReport()
    assert Store(str(tmp_path)).channels() == ["caf\\xe9"]
    rows_of(tmp_path, ["caf\\xe9"], report)
    assert only(report, ReadingKind.DAMAGE).channel == "caf\\xe9"


def test_foreign_files_and_directories_are_notes(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, series(1, 2))
    (tmp_path / "orders" / "notes.txt").write_text("hello")
    (tmp_path / "orders" / "msgs.first.dat").write_bytes(b"hello")
    (tmp_path / "orders" / "msgs.5.dat.bak").write_bytes(b"hello")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "a..b").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "orders")
    report = ReadingReport()
    assert sequences(rows_of(tmp_path, report=report)) == [1, 2]
    assert {f.file for f in report.findings if f.kind is ReadingKind.NOTE} == {"lost+found", "a..b"}
    assert only(report, ReadingKind.DAMAGE).file == "orders/msgs.first.dat"


def test_an_index_that_lies_in_its_middle_costs_nothing(tmp_path: Path) -> None:
    path = put_slice(tmp_path, "orders", 1, series(1, 100))
    index = path.with_suffix(".idx")
    data = bytearray(index.read_bytes())
    data[4 + 32 * 50 + 9] ^= 1
    index.write_bytes(data)
    report = ReadingReport()
    assert sequences(rows_of(tmp_path, report=report)) == list(range(1, 101))
    assert report.findings == []


def test_where_an_index_passes_over_a_record_that_a_killed_server_left_the_index_is_right(
    tmp_path: Path,
) -> None:
    path = put_slice(tmp_path, "orders", 1, series(1, 2))
    dead = block_of(b"orders", [Message(3, b"dead")])
    right = block_of(b"orders", [Message(3, b"right"), Message(4, b"next")])
    begins = path.stat().st_size + dead.nbytes
    with path.open("ab") as data, path.with_suffix(".idx").open("ab") as index:
        data.write(bytes(memoryview(dead)) + bytes(memoryview(right)))
        index.write(records.index_entries(right, 0, 2, begins, CRC))
    for max_bytes in (1 << 20, 40):
        rows = rows_of(tmp_path, max_bytes=max_bytes)
        assert [(r["sequence"], r["data"]) for r in rows[2:]] == [(3, b"right"), (4, b"next")]
        assert sequences(rows) == [1, 2, 3, 4]


def test_a_record_behind_damage_is_found_wherever_it_begins(tmp_path: Path) -> None:
    big = [Message(1, b"a"), Message(2, b"b" * 100), Message(3, b"c" * (5 << 20)), Message(4, b"d")]
    path = put_slice(tmp_path, "orders", 1, big, index=False)
    data = bytearray(path.read_bytes())
    data[60:64] = b"\xff\xff\xff\x0f"
    path.write_bytes(data)
    report = ReadingReport()
    rows = rows_of(tmp_path, report=report)
    assert sequences(rows) == [1, 3, 4]
    assert sequences(rows, good=False) == [2]
    assert only(report, ReadingKind.DAMAGE).sequence == 2


@pytest.mark.slow
def test_a_payload_of_64_megabytes_is_one_row_and_one_batch(tmp_path: Path) -> None:
    put_slice(
        tmp_path, "orders", 1, [Message(1, b"a"), Message(2, b"b" * (64 << 20)), Message(3, b"c")]
    )
    (part,) = Store(str(tmp_path)).plan()
    sizes = [size for b in read(part, ("size", "crc_ok")) for size in b.column("size").to_pylist()]
    assert sizes == [1, 64 << 20, 1]


def test_batches_are_cut_by_bytes(tmp_path: Path) -> None:
    put_slice(tmp_path, "orders", 1, [Message(n, b"x" * (1 << 20)) for n in range(1, 25)])
    (part,) = Store(str(tmp_path)).plan()
    batches = list(read(part, ("data",)))
    assert sum(b.num_rows for b in batches) == 24
    assert max(b.num_rows for b in batches) <= 8


def test_encrypted_payloads_are_told_or_refused(tmp_path: Path) -> None:
    aes = bytes.fromhex("015db4813b00000000000000017720e2eee679bdb60d7cb819a28e09cc189027e485")
    put_slice(tmp_path, "orders", 1, [Message(1, aes), Message(2, b"plain")])
    report = ReadingReport()
    assert [r["data"] for r in rows_of(tmp_path, report=report)] == [aes, b"plain"]
    assert (report.encrypted, only(report, ReadingKind.NOTE).file) == (1, "orders/msgs.1.dat")
    (part,) = Store(str(tmp_path)).plan()
    with pytest.raises(DamageError, match="1 payloads look encrypted"):
        list(read(part, ("data",), refuse_encrypted=True))


def test_a_strict_report_ends_at_the_first_damage_with_its_place(tmp_path: Path) -> None:
    path = put_slice(tmp_path, "orders", 1, series(1, 3))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DamageError, match=r"damage: orders/msgs.1.dat at offset [0-9]+ \(sequence 3\)"
    ):
        rows_of(tmp_path, report=ReadingReport(strict=True), columns=("data",))


def test_reports_of_tasks_add_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for n in range(3):
        report = ReadingReport(rows=10, data_bytes=100 * n)
        report.add(ReadingFinding(ReadingKind.LOSS, "orders", "orders/msgs.1.dat", "gone", 4, 7))
        report.save(str(tmp_path / "stats"))
    total = collected(str(tmp_path / "stats"))
    assert (total.rows, total.data_bytes, total.found) == (30, 300, 3)
    assert set(total.findings) == {
        ReadingFinding(ReadingKind.LOSS, "orders", "orders/msgs.1.dat", "gone", 4, 7)
    }
    assert (
        capfd.readouterr().err.count(
            "stan: loss: orders/msgs.1.dat at offset 4 (sequence 7): gone\n"
        )
        == 3
    )
    with pytest.raises(ConfigError, match="holds no reports"):
        collected(str(tmp_path))


def test_messages_are_those_that_the_server_itself_reads(tmp_path: Path) -> None:
    clock = ManualClock()
    with serving(tmp_path, clock, options=FileStoreOptions(slice_max_msgs=4)) as node:
        for n in range(10):
            node.publish(b"orders", b"%d" % n, b"x" * n * 100)
            clock.advance(1)
        node.tick()
        mine = messages_of(node, b"orders")
        node.stop()
    rows = rows_of(tmp_path)
    assert sequences(rows) == sorted(mine)
    assert {r["reply"] for r in rows} == {"reply.to"}
