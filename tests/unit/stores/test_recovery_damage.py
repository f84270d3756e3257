"""Damage: what a start cuts, what it serves around, what it quarantines, and what a quarantined
channel still gives.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import QuarantineError, RecoveryError
from ftstan.broker.broker import BrokerOptions
from ftstan.config.flags import parse
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.log import records
from ftstan.stores.file.recovery import damage
from ftstan.stores.file.recovery.damage import Bad
from ftstan.stores.file.state.state_recovery import MARKER
from ftstan.wire import messages
from ftstan.wire.block import MsgBlock
from tests.command_lines import to_options
from tests.compat.driver import SUBJECTS, Driver, sequences
from tests.filenode import Owner
from tests.oracle.damage import archived_tree
from tests.oracle.gostore import read_tree
from tests.sim.disk import CrashMode, SimDisk
from tests.sim.filestore import open_file_store
from tests.uncoded import uncoded
from tests.unit.stores.test_confirmed import contents_of_readable
from tests.unit.stores.test_slices import Node, contents, fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.oracle.goview import Tree

CRC = records.Crc()
GO = "v0.25.6/clean.tar.gz"
ORDERS = b"orders.eu.1"
TORN = b"\x18\0\0\0\1\2\3\4torn"


def record(sequence: int, data: bytes = b"data", channel: bytes = b"foo") -> bytes:
    """A record as it lies in a slice."""
    block = MsgBlock()
    block.append(sequence, channel, b"", data, 1_000_000_000)
    records.seal(block, CRC)
    return bytes(memoryview(block))


def left_by(node: Node, change: Callable[[Tree], None]) -> SimDisk:
    """What a node leaves behind, changed."""
    tree = node.disk.tree("/store")
    change(tree)
    disk = fresh()
    disk.add_tree("/store", tree)
    return disk


def written(*data: bytes) -> Node:
    """A killed node: its index is durable, there is no checkpoint and no ``confirmed.bin``."""
    node = Node(fresh())
    node.put(*data)
    return node


def after(node: Node, tail: bytes, *, index: bool = True) -> Node:
    """The successor of a node whose slice ends with ``tail``."""

    def change(tree: Tree) -> None:
        tree["foo/msgs.1.dat"] = (tree["foo/msgs.1.dat"] or b"") + tail
        if not index:
            del tree["foo/msgs.1.idx"]

    return node.successor(left_by(node, change))


def original(change: Callable[[Tree], None], options: FileStoreOptions | None = None) -> Node:
    """Our first start on a store of the original."""
    tree = archived_tree(GO)
    change(tree)
    disk = fresh()
    disk.add_tree("/store", tree)
    return Node(disk, Owner(2, ours_from=4097), options or FileStoreOptions())


def spoil(name: str, at: int, mask: int = 1) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        data = bytearray(tree[name] or b"")
        data[at] ^= mask
        tree[name] = bytes(data)

    return change


# ---- what may be cut
# -----------------------------------------------------------------------------------------------


def bad(rest: bytes, offset: int = 4, *, follows: bool = False, is_between: bool = False) -> Bad:
    following = len(rest) if follows else -1
    return Bad("foo/msgs.1.dat", offset, "bad: whatever", rest, following, is_between=is_between)


def test_a_header_that_is_there_says_how_long_its_record_is() -> None:
    header = (100).to_bytes(4, "little") + b"\1\2\3\4"
    assert bad(header).size == bad(header + b"more").size == 108
    assert bad(header[:-1]).size == bad(b"").size == 0


def test_what_nothing_whole_follows_may_be_cut() -> None:
    assert bad(b"x" * 600).unpromised
    assert not bad(b"x" * 600, follows=True).unpromised


@pytest.mark.parametrize(
    ("offset", "rest", "hole"),
    [
        (1000, bytes(24) + b"x" * 600, True),  # from its start to the boundary at 1024
        (1000, bytes(23) + b"x" * 600, False),
        (1024, bytes(512) + b"x" * 600, True),
        (
            1000,
            b"\xe8\3\0\0abcd" + b"x" * 16 + bytes(512) + b"x" * 500,
            True,
        ),  # the sector from 1024 to 1536
        (1000, b"\xe8\3\0\0abcd" + b"x" * 17 + bytes(512) + b"x" * 500, False),
        (
            1000,
            b"\x08\0\0\0abcd" + b"x" * 16 + bytes(512) + b"x" * 500,
            False,
        ),  # the record ended before it
    ],
)
def test_a_page_that_never_arrived_is_a_hole_on_sector_boundaries(
    offset: int, rest: bytes, *, hole: bool
) -> None:
    assert bad(rest, offset, follows=True).unpromised is hole
    # With a whole record right behind it, and where an index names it, only a hole at its start is.
    between = bad(rest, offset, follows=True, is_between=True)
    assert between.unpromised is (hole and not any(rest[:8]))


def test_a_hole_behind_the_next_whole_record_is_none_of_the_bad_one() -> None:
    rest = b"\xe8\3\0\0abcd" + b"x" * 500 + bytes(512)
    assert Bad("foo/msgs.1.dat", 4, "bad: whatever", rest, 1020).unpromised
    assert not Bad("foo/msgs.1.dat", 4, "bad: whatever", rest, 500).unpromised


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    "tail", [TORN, b"\x05\0\0\0\0\0\0\0hello and more", b"\1\2\3", record(3)[:-1]]
)
def test_a_torn_batch_is_cut_saved_and_said(
    tail: bytes, *, index: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    node = written(b"a", b"b")
    size = len(node.disk.tree("/store/foo")["msgs.1.dat"] or b"")
    new = after(node, tail, index=index)
    assert contents(new) == [(1, b"a"), (2, b"b")]
    tree = new.disk.tree("/store/foo")
    # The file stays as it is, a former owner may have it open: a slice of ours ends it.
    assert (tree["msgs.1.dat"] or b"").endswith(tail)
    assert "msgs.4097.dat" in tree
    assert tree[f"cut.2.msgs.1.dat.{size}"] == tail
    log = capfd.readouterr().err
    assert f'File "foo/msgs.1.dat" has been truncated to offset: {size}' in log
    assert "Recovery resumes..." in log
    assert new.put(b"c") == {}
    # Said once, saved once, and gone with a clean stop.
    again = new.successor()
    assert "Unexpected EOF" not in capfd.readouterr().err
    again.store.close()
    tree = again.disk.tree("/store/foo")
    assert sum(name.startswith("cut.") for name in tree) == 1
    assert not any(data and tail in data for name, data in tree.items() if name.startswith("msgs."))
    assert [data for _, data in contents(again.successor())] == [b"a", b"b", b"c"]


def test_zeros_at_the_end_are_cut_without_a_copy() -> None:
    node = written(b"a")
    new = after(node, bytes(5000))
    assert contents(new) == [(1, b"a")]
    assert not [name for name in new.disk.tree("/store/foo") if name.startswith("cut.")]


def test_a_batch_with_a_page_missing_is_cut_though_whole_records_follow() -> None:
    node = written(b"a")
    at = len(node.disk.tree("/store/foo")["msgs.1.dat"] or b"")
    batch = bytearray(record(2, b"x" * 1500) + record(3))
    start = -at % 512
    batch[start : start + 512] = bytes(512)
    new = after(node, bytes(batch))
    assert contents(new) == [(1, b"a")]
    assert new.store.quarantined == []


def test_bad_bytes_that_a_whole_record_follows_are_damage() -> None:
    node = written(b"a")
    spoilt = bytearray(record(2, b"two"))
    spoilt[-1] ^= 1
    new = after(node, bytes(spoilt) + record(3, b"three"))
    assert new.store.quarantined == ["foo"]
    assert contents_of_readable(new) == [1, 3]
    assert new.channel().last == 3


def test_what_is_cut_can_not_be_confused_with_a_store_file() -> None:
    node = original(
        lambda tree: tree.update(
            {"orders.eu.1/msgs.4.dat": (tree["orders.eu.1/msgs.4.dat"] or b"") + TORN}
        )
    )
    node.store.close()
    tree = node.disk.tree("/store")
    assert [name for name in tree if "/cut." in name]
    view = read_tree(tree)
    assert view.tree == tree
    assert list(view.channels[ORDERS].messages) == list(range(1, 36))
    assert contents(node.successor(), b"single")


def test_without_space_for_the_copy_nothing_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    node = written(b"a")
    disk = left_by(
        node, lambda tree: tree.update({"foo/msgs.1.dat": (tree["foo/msgs.1.dat"] or b"") + TORN})
    )
    before = disk.tree("/store/foo")["msgs.1.dat"]
    disk.volume.space = 0
    new = node.successor(disk)
    assert contents(new) == [(1, b"a")]
    assert disk.tree("/store/foo")["msgs.1.dat"] == before
    assert "no space for a copy" in capfd.readouterr().err


def test_cutting_what_follows_the_last_good_record_whatever_it_is_loses_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(damage.Bad, "unpromised", property(lambda _self: True))
    node = written(b"a")
    spoilt = bytearray(record(2, b"two"))
    spoilt[-1] ^= 1
    new = after(node, bytes(spoilt) + record(3, b"three"))
    # Broken on purpose: 3 is whole, and gone; its number would be given out again.
    assert (new.store.quarantined, new.channel().last) == ([], 1)


# ---- what was promised
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        spoil("foo/msgs.1.dat", -1),
        lambda tree: tree.update({"foo/msgs.1.dat": tree["foo/msgs.1.dat"][:-3]}),
        lambda tree: tree.update({"foo/msgs.1.dat": b"\1\0\0\0"}),
        lambda tree: tree.update({"foo/msgs.1.dat": b""}),
        lambda tree: tree.pop("foo/msgs.1.dat"),
    ],
)
def test_what_our_index_names_was_durable_and_its_loss_is_damage(
    change: Callable[[Tree], None],
) -> None:
    node = written(b"a", b"b")
    new = node.successor(left_by(node, change))
    if "foo" not in new.store.quarantined:
        raise AssertionError("acknowledged messages are gone and nobody says so")
    assert new.channel().last == 2


def test_without_syncs_an_index_proves_nothing() -> None:
    node = Node(fresh(), options=FileStoreOptions(sync=False))
    node.put(b"a", b"b")
    disk = left_by(
        node, lambda tree: tree.update({"foo/msgs.1.dat": (tree["foo/msgs.1.dat"] or b"")[:-3]})
    )
    new = node.successor(disk)
    assert (new.store.quarantined, contents_of_readable(new), new.channel().last) == ([], [1], 2)


def test_the_same_in_a_store_of_the_original_is_served_around() -> None:
    node = original(
        lambda tree: tree.update(
            {"orders.eu.1/msgs.4.dat": (tree["orders.eu.1/msgs.4.dat"] or b"")[:-4]}
        )
    )
    channel = node.channel(ORDERS)
    assert (node.store.quarantined, channel.count, channel.last) == ([], 34, 35)
    node.put(b"x", channel=ORDERS)
    assert channel.last == 36


def test_a_sequence_with_two_contents_in_one_slice_is_damage() -> None:
    node = written(b"a")
    same = node.successor(left_by(node, lambda tree: None))
    first = (same.disk.tree("/store/foo")["msgs.1.dat"] or b"")[4:]
    assert after(node, first).store.quarantined == []
    assert after(node, record(1, b"other")).store.quarantined == ["foo"]


def test_slices_of_the_original_that_overlap_are_merged_where_they_are_equal() -> None:
    def change(tree: Tree) -> None:
        two = tree["orders.eu.1/msgs.2.dat"] or b""
        tree["orders.eu.1/msgs.7.dat"] = two[:364]
        tree["orders.eu.1/msgs.8.dat"] = (tree["orders.eu.1/msgs.3.dat"] or b"") + (
            tree["orders.eu.1/msgs.4.dat"] or b""
        )[4:]

    node = original(change)
    assert (node.store.quarantined, node.channel(ORDERS).count) == ([], 35)
    assert [s for s, _ in enumerate(range(35), 1)] == contents_of(node, ORDERS)


def test_slices_of_the_original_that_overlap_with_other_contents_are_damage() -> None:
    def change(tree: Tree) -> None:
        tree["orders.eu.1/msgs.7.dat"] = b"\1\0\0\0" + record(12, b"other", ORDERS)

    node = original(change)
    assert node.store.quarantined == [ORDERS.decode()]
    assert contents_of(node, ORDERS) == list(range(1, 36))


def test_offsets_that_an_old_release_rebuilt_wrongly_are_found_and_the_data_is_read() -> None:
    def change(tree: Tree) -> None:
        index = (tree["orders.eu.1/msgs.2.idx"] or b"")[4:]
        shifted = b""
        for at in range(0, len(index), 32):
            sequence, offset, timestamp, size = records.entry(index, at // 32)
            body = b"".join(n.to_bytes(8, "little") for n in (sequence, offset + 321, timestamp))
            body += size.to_bytes(4, "little")
            shifted += body + CRC(body).to_bytes(4, "little")
        tree["orders.eu.1/msgs.2.idx"] = b"\1\0\0\0" + shifted

    assert contents_of(original(change), ORDERS) == list(range(1, 36))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("msgs.x.dat", "message log has an invalid name: msgs.x.dat"),
        ("msgs.dat", "message log has an invalid name: msgs.dat"),
        ("msgs..dat", "message log has an invalid name: msgs..dat"),
        ("msgs.9999999999999999999.dat", "message log has an invalid name"),
    ],
)
def test_a_slice_whose_name_is_no_number_is_damage(
    name: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    node = original(lambda tree: tree.update({f"orders.eu.1/{name}": b"\1\0\0\0"}))
    assert node.store.quarantined == [ORDERS.decode()]
    text = f'unable to recover message store for [orders.eu.1](file: "orders.eu.1/{name}"): {words}'
    assert text in capfd.readouterr().err


def test_a_version_that_we_do_not_know_is_damage(capfd: pytest.CaptureFixture[str]) -> None:
    disk = fresh()
    disk.add_tree("/store/foo", {"msgs.1.dat": b"\2\0\0\0"})
    assert Node(disk).store.quarantined == ["foo"]
    assert "unsupported file version: 2 (supports [1..1])" in capfd.readouterr().err


@pytest.mark.parametrize("number", ["01", "+1", "0", "-3"])
def test_slices_named_in_another_way_are_served_under_the_usual_name(number: str) -> None:
    def change(tree: Tree) -> None:
        tree[f"orders.eu.1/msgs.{number}.dat"] = tree.pop("orders.eu.1/msgs.1.dat")

    node = original(change)
    assert contents_of(node, ORDERS) == list(range(1, 36))
    assert f"msgs.{int(number)}.dat" in node.disk.tree("/store/orders.eu.1")


def test_two_files_that_say_the_same_number_are_damage() -> None:
    node = original(
        lambda tree: tree.update({"orders.eu.1/msgs.01.dat": tree["orders.eu.1/msgs.2.dat"]})
    )
    assert node.store.quarantined == [ORDERS.decode()]
    assert contents_of(node, ORDERS) == list(range(1, 36))


# ---- quarantine
# --------------------------------------------------------------------------------------------------


def contents_of(node: Node, name: bytes) -> list[int]:
    channel = node.channel(name)
    out = []
    at = node.channel(name).first
    while 0 < at <= channel.last and (block := channel.read(at, 7, 2000)) is not None:
        out += [block.sequence(i) for i in range(block.position(at), len(block))]
        at = out[-1] + 1
    return out


def test_damage_that_is_met_while_serving_quarantines_from_then_on() -> None:
    node = original(spoil("orders.eu.1/msgs.2.dat", 60))
    assert node.store.quarantined == []
    assert node.put(b"x", channel=ORDERS) == {}
    served = contents_of(node, ORDERS)
    assert len(served) == 35
    assert served[-1] == 36
    assert node.store.quarantined == [ORDERS.decode()]
    before = node.disk.tree("/store/orders.eu.1")
    failed = node.put(b"y", channel=ORDERS)
    assert isinstance(failed[ORDERS], QuarantineError)
    assert failed[ORDERS].text == 'channel "orders.eu.1" is quarantined: run ftstanctl store verify'
    node.store.tick(node.clock.wall_ns())
    assert node.disk.tree("/store/orders.eu.1") == before
    assert node.put(b"z", channel=b"single") == {}


def test_each_message_that_is_passed_over_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    node = original(spoil("orders.eu.1/msgs.2.dat", 60))
    for _ in range(3):
        contents_of(node, ORDERS)
    said = re.findall(
        r"orders\.eu\.1/msgs\.2\.dat: sequence 11 at offset 4 cannot be read",
        capfd.readouterr().err,
    )
    assert len(said) == 1


def test_an_index_that_is_lost_while_serving_is_read_from_the_data() -> None:
    node = original(lambda _tree: None)
    folder = node.disk.open_dir("/store/orders.eu.1")
    node.disk.ftruncate(node.disk.open(folder, "msgs.2.idx", 2), 40)
    assert contents_of(node, ORDERS) == list(range(1, 36))
    assert node.store.quarantined == []


def damaged_server() -> tuple[Driver, SimDisk]:
    """A broker on a killed one's store: ``foo`` is damaged, its durable has one message pending."""
    disk = SimDisk()
    disk.make_dirs("/store")
    clock = ManualClock()
    driver = Driver(open_file_store(disk, clock), BrokerOptions(), clock)
    driver.connect()
    driver.subscribe(durable=b"dur", ack_wait=1, max_in_flight=1)
    driver.publish(b"a", b"b", b"c")
    driver.publish(b"other", channel=b"bar")
    driver.store.tick(clock.wall_ns())
    tree = disk.tree("/store")
    data = bytearray(tree["foo/msgs.1.dat"] or b"")
    data[-1] ^= 1
    broken = SimDisk()
    broken.make_dirs("/store")
    broken.add_tree("/store", tree | {"foo/msgs.1.dat": bytes(data)})
    return Driver(open_file_store(broken, clock), BrokerOptions(), clock, {b"hb.me"}), broken


def test_a_quarantined_channel_refuses_publishes_and_subscriptions_and_the_rest_serves() -> None:
    driver, disk = damaged_server()
    text = b'channel "foo" is quarantined: run ftstanctl store verify'
    assert [ack.error for ack in driver.publish(b"x")] == [text]
    request = messages.SubscriptionRequest(
        client_id=b"me", subject=b"foo", inbox=b"new", max_in_flight=1, ack_wait_in_secs=1
    )
    answer = messages.parse(
        messages.SubscriptionResponse,
        driver.call(SUBJECTS.subscribe, messages.encode(request)) or b"",
    )
    assert answer.error == text
    assert driver.broker.quarantined == [b"foo"]
    assert [ack.error for ack in driver.publish(b"x", channel=b"bar")] == [b""]
    driver.subscribe(channel=b"bar", inbox=b"bar")
    assert sequences(driver.out, b"bar") == [1, 2]
    del disk


def test_what_is_readable_is_delivered_to_recovered_subscriptions_and_nothing_is_written() -> None:
    driver, disk = damaged_server()
    before = {n: d for n, d in disk.tree("/store").items() if n.startswith("foo/")}
    driver.wait(2)
    (ack_inbox,) = {s.ack_inbox for s in driver.broker.by_sid.values() if s.channel.name == b"foo"}
    driver.ack(ack_inbox, 1)
    driver.ack(ack_inbox, 2)
    assert [s for s in sequences(driver.out) if s == 2]
    assert 3 not in sequences(driver.out)
    driver.store.tick(driver.clock.wall_ns())
    assert driver.close() == b""
    driver.store.close()
    assert {n: d for n, d in disk.tree("/store").items() if n.startswith("foo/")} == before


def test_a_quarantined_channel_is_not_deleted() -> None:
    node = original(spoil("durables/subs.dat", 975))
    before = node.disk.tree("/store/durables")
    with pytest.raises(QuarantineError):
        node.store.delete_channel(b"durables")
    assert node.disk.tree("/store/durables") == before


# ---- subs.dat and clients.dat
# --------------------------------------------------------------------------------------


def test_a_torn_end_of_subs_dat_is_cut_saved_and_said(capfd: pytest.CaptureFixture[str]) -> None:
    node = original(
        lambda tree: tree.update({"durables/subs.dat": (tree["durables/subs.dat"] or b"")[:-2]})
    )
    assert node.store.quarantined == []
    tree = node.disk.tree("/store/durables")
    assert len(tree["subs.dat"] or b"") == 1750
    assert "cut.2.subs.dat.1750" in tree
    log = capfd.readouterr().err
    assert 'Unexpected EOF for file "durables/subs.dat"' in log
    assert re.search(r" Type: [45]\n", log)


def test_damage_in_subs_dat_quarantines_and_keeps_what_can_be_read(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = original(spoil("durables/subs.dat", 975))
    assert node.store.quarantined == ["durables"]
    assert len(list(node.channel(b"durables").recovered_subs())) == 5
    assert (
        "unable to recover subscription store for [durables]: corrupted data"
        in capfd.readouterr().err
    )


def test_damage_in_clients_dat_costs_the_clients_in_it_and_is_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tree = archived_tree(GO)
    spoil("clients.dat", 16)(tree)
    disk = fresh()
    disk.add_tree("/store", tree)
    clock = ManualClock()
    found = open_file_store(disk, clock).recover()
    assert {c.client_id for c in found.clients} == {
        b"beta",
        b"delta",
        b"epsilon",
        b"omega",
        b"publisher-1",
    }
    saved = [n for n in disk.tree("/store") if n.startswith("cut.")]
    assert [disk.tree("/store")[n] for n in saved] == [tree["clients.dat"]]
    log = capfd.readouterr().err
    assert re.search(r'"clients\.dat": the record at offset 4 cannot be read \(corrupted data', log)


def test_a_damaged_server_dat_refuses_in_the_originals_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(
        RecoveryError, match=r'unable to recover server file "server\.dat": corrupted data'
    ):
        original(spoil("server.dat", 20))
    log = capfd.readouterr().err
    assert 'Server file "server.dat" corrupted: corrupted data' in log
    assert "Follow instructions in documentation in order to recover from this" in log


def with_crc(payload: bytes, size: int | None = None) -> bytes:
    """An untyped record whose header says ``size``."""
    head = (len(payload) if size is None else size).to_bytes(4, "little")
    return b"\1\0\0\0" + head + CRC(payload).to_bytes(4, "little") + payload


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\2\0\0\0" + with_crc(b"x")[4:], "unsupported file version: 2 (supports [1..1])"),
        (b"\0\0\0\0" + with_crc(b"x")[4:], "unsupported file version: 0 (supports [1..1])"),
        (b"\1\0\0\0" + b"\5\0\0", "unexpected EOF"),
        (with_crc(b"abc", 9), "unexpected EOF"),
        (b"\1\0\0\0" + bytes(20), "end of file padded with zeros"),
        (with_crc(b"abcdef", 4), "incorrect file size, expected 16 bytes, got 18 bytes"),
        (
            with_crc(b"abc")[:-1] + b"d",
            "corrupted data, expected crc to be 0x352441c2, got 0xab40d461",
        ),
    ],
)
def test_a_server_dat_that_cannot_be_read_refuses_the_start_in_the_originals_words(
    content: bytes, words: str
) -> None:
    with pytest.raises(RecoveryError) as refused:
        original(lambda tree: tree.update({"server.dat": content}))
    assert refused.value.text == f'unable to recover server file "server.dat": {words}'
    assert "backup" in refused.value.hint


def test_a_clients_dat_of_an_unknown_version_refuses_the_start_in_the_originals_words() -> None:
    with pytest.raises(RecoveryError) as refused:
        original(lambda tree: tree.update({"clients.dat": b"\7\0\0\0"}))
    words = "unsupported file version: 7 (supports [1..1])"
    assert refused.value.text == f'unable to recover client file "clients.dat": {words}'


def typed(kind: int, payload: bytes) -> bytes:
    return bytes([len(payload), 0, 0, kind]) + CRC(payload).to_bytes(4, "little") + payload


def test_records_of_types_that_do_not_exist_are_told_in_the_originals_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    strange = typed(9, b"\x08\x01")
    good = typed(5, b"\x08\x01\x10\x01")
    original(
        lambda tree: tree.update(
            {
                "clients.dat": (tree["clients.dat"] or b"") + strange + typed(1, b"\x0a\x03new"),
                "durables/subs.dat": (tree["durables/subs.dat"] or b"") + strange + good,
            }
        )
    )
    log = capfd.readouterr().err
    assert "invalid client record type: 9" in log
    assert "unable to recover subscription store for [durables]: unexpected record type: 9" in log


# ---- the log block
# -------------------------------------------------------------------------------------------------


def test_the_log_describes_a_bad_record_as_the_original_does(
    capfd: pytest.CaptureFixture[str],
) -> None:
    node = written(b"a")
    at = len(node.disk.tree("/store/foo")["msgs.1.dat"] or b"")
    after(node, TORN)
    said = uncoded(capfd.readouterr().err)
    lines = [re.sub(r"^.*\] STREAM: ", "", line) for line in said.splitlines()]
    start = lines.index('Unexpected EOF for file "foo/msgs.1.dat"')
    assert lines[start : start + 12] == [
        'Unexpected EOF for file "foo/msgs.1.dat"',
        "Record header:",
        " Bytes:",
        " 18 00 00 00 01 02 03 04" + " " * 38 + "........",
        " Size: 24",
        " CRC : 0x04030201",
        "Record payload:",
        " 74 6f 72 6e" + " " * 50 + "torn",
        f'File "foo/msgs.1.dat" has been truncated to offset: {at}',
        (
            f'The 12 bytes behind it were saved as "cut.2.msgs.1.dat.{at}" beside it; it may be '
            "removed"
        ),
        "Recovery resumes...",
        lines[start + 11],
    ]


def test_damage_that_is_torn_comes_with_advice_and_what_is_missing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    original(
        lambda tree: tree.update(
            {"orders.eu.1/msgs.2.dat": (tree["orders.eu.1/msgs.2.dat"] or b"")[:-4]}
        )
    )
    log = capfd.readouterr().err
    assert 'Unexpected EOF for file "orders.eu.1/msgs.2.dat"' in log
    assert "ContinueOnUnexpectedEOF" in log
    assert re.search(r"record payload expected to be \d+ bytes, only read \d+", log)
    assert 'channel "orders.eu.1" is quarantined' in log


# ---- -file_truncate_bad_eof
# ----------------------------------------------------------------------------------------

TRUNCATING = FileStoreOptions(truncate_bad_eof=True)


def test_the_truncating_option_is_a_flag() -> None:
    assert to_options(parse(["-file_truncate_bad_eof"])).file.truncate_bad_eof
    assert not to_options(parse([])).file.truncate_bad_eof


def test_the_truncating_option_cuts_what_is_torn_wherever_it_is() -> None:
    node = original(
        lambda tree: tree.update(
            {"orders.eu.1/msgs.2.dat": (tree["orders.eu.1/msgs.2.dat"] or b"")[:-4]}
        ),
        TRUNCATING,
    )
    assert node.store.quarantined == []
    assert contents_of(node, ORDERS) == [*range(1, 20), *range(21, 36)]
    assert node.put(b"x", channel=ORDERS) == {}


def test_the_truncating_option_works_once_and_again_after_a_start_without_it() -> None:
    node = original(lambda _tree: None, TRUNCATING)
    assert MARKER in node.disk.tree("/store")
    with pytest.raises(RecoveryError) as refused:
        node.successor()
    assert refused.value.text == (
        "file store should not be opened consecutively with the TruncateUnexpectedEOF option set "
        "to true"
    )
    node.options = FileStoreOptions()
    plain = node.successor()
    assert MARKER not in plain.disk.tree("/store")
    plain.options = TRUNCATING
    assert MARKER in plain.successor().disk.tree("/store")


def test_a_store_that_is_made_and_not_opened_touches_no_marker() -> None:
    node = original(lambda _tree: None, TRUNCATING)
    open_file_store(node.disk.sibling(), node.clock)
    assert MARKER in node.disk.tree("/store")


# ---- after many kills
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_start_after_thirty_kills_is_as_well_as_the_first(seed: int) -> None:
    node = Node(fresh())
    expected = []
    modes = list(CrashMode)
    for i in range(30):
        data = [b"%d.%d" % (i, k) for k in range(1 + (i + seed) % 3)]
        assert node.put(*data) == {}
        expected += data
        if i % 3 == 0:
            node.store.tick(node.clock.wall_ns())
        if i % 4 == 1:
            node.disk.fail_next("fdatasync", errno.EIO)
            node.put(b"refused")
        process_only = (i + seed) % 2 == 0
        node = node.successor(
            node.disk.crash(mode=modes[(i + seed) % len(modes)], process_only=process_only)
        )
        assert node.store.quarantined == []
        # What was answered with an error may be there all the same.
        assert [d for _, d in contents(node) if d != b"refused"] == expected
