"""The local store of a node: applying twice changes nothing, and what does not fit is an error."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError
from ftstan.cluster.checkpoint import Checkpoint, CheckpointFile
from ftstan.cluster.entry import (
    Entry,
    Kind,
    LeaderRecord,
    Op,
    Operation,
    Position,
    encode_operations,
)
from ftstan.cluster.replica import BehindError, HoleError, Replica, behind
from ftstan.config.limits import Limits
from ftstan.config.options import ChannelLimits, StoreLimits
from ftstan.stores.file.env import FileStoreOptions
from ftstan.stores.file.store import FileStore
from ftstan.stores.interface import ClientInfo, SubState
from ftstan.wire.block import MsgBlock, SubEvents
from tests.filenode import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOG = bytes(range(16))
FOO = b"foo"


def block(first: int, last: int) -> MsgBlock:
    made = MsgBlock()
    for sequence in range(first, last + 1):
        made.append(sequence, FOO, b"", b"data %d" % sequence, sequence * 1000)
    return made


def events(*happened: tuple[str, int, int]) -> SubEvents:
    made = SubEvents()
    for what, sub_id, sequence in happened:
        (made.sent if what == "sent" else made.acked)(sub_id, sequence)
    return made


class Life:
    """One life of a node on a directory; ``kill`` leaves it as a killed process does."""

    def __init__(self, path: Path, epoch: int, slice_max_msgs: int = 0) -> None:
        store = path / "store"
        store.mkdir(exist_ok=True)
        self.root = os.open(store, os.O_RDONLY | os.O_DIRECTORY)
        self.file = CheckpointFile(str(path / "log"), str(store))
        found = self.file.read()
        self.store = FileStore(
            *(LocalDisk(), self.root, Owner(epoch), ManualClock()),
            FileStoreOptions(
                sync=False,
                slice_max_msgs=slice_max_msgs,
                replayed=True,
                replayed_before=found is not None and found.ends,
            ),
        )
        limits = Limits(StoreLimits())
        self.store.set_limits(limits)
        self.replica = Replica(
            *(self.store, self.store.recover(), limits),
            node_id="a",
            file=self.file,
            store_id="id",
        )
        at = found.at if found is not None else Position(LOG)
        self.replica.start_at(at, 0)
        self.at = at

    def leader(self) -> None:
        at = self.at
        record = LeaderRecord("a", bytes(16), at.epoch, at.sequence)
        self._take(Entry(Kind.LEADER, LOG, at.sequence + 1, 0, 0, record.encode()))

    def batch(self, *operations: Operation) -> None:
        self.body(encode_operations(operations))

    def body(self, body: bytes, *, more: bool = False) -> None:
        self._take(Entry(Kind.BATCH, LOG, self.at.sequence + 1, 1, 0, body, more))

    def _take(self, entry: Entry) -> None:
        self.at = Position(LOG, entry.position, 0, 1, "a")
        self.replica.take(entry, self.at)

    def messages(self) -> list[int]:
        local = self.replica.find(FOO)
        if local is None:
            return []
        found: list[int] = []
        sequence = 1
        while (read := local.store.read(sequence, 1000, 1 << 20)) is not None:
            found += [read.sequence(i) for i in range(read.position(sequence), len(read))]
            sequence = found[-1] + 1
        return found

    def kill(self) -> None:
        self.store.abandon()
        os.close(self.root)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[list[Life]]:
    born: list[Life] = []
    yield born
    for life in born[-1:]:
        life.kill()


def live(
    lives: list[Life],
    path: Path,
    slice_max_msgs: int = 0,
    killed: Callable[[], None] = lambda: None,
) -> Life:
    """The next life of the node. ``killed``: what happens to its files in between."""
    if lives:
        lives[-1].kill()
    killed()
    lives.append(Life(path, len(lives) + 1, slice_max_msgs))
    return lives[-1]


HISTORY = (
    (Operation(Op.CLIENT_NEW, b"me", ClientInfo(b"me", b"inbox")),),
    (Operation(Op.PUBLISH, FOO, block(1, 5)),),
    (Operation(Op.SUB_NEW, FOO, SubState(1, b"me", inbox=b"i", ack_inbox=b"a")),),
    (
        Operation(Op.EVENTS, FOO, events(("sent", 1, 1), ("sent", 1, 2), ("acked", 1, 1))),
        Operation(Op.PUBLISH, FOO, block(6, 7)),
        Operation(Op.PUBLISH, FOO, block(8, 9)),
    ),
    (Operation(Op.PURGE, FOO, 3),),
)


def encoded() -> list[bytes]:
    """Once: an operation is used up when it is applied."""
    return [encode_operations(operations) for operations in HISTORY]


BODIES = encoded()


@pytest.mark.parametrize("checkpoint", range(len(BODIES) + 1))
def test_what_is_applied_again_behind_a_checkpoint_changes_nothing(
    lives: list[Life], tmp_path: Path, checkpoint: int
) -> None:
    life = live(lives, tmp_path)
    for number, body in enumerate(BODIES):
        if number == checkpoint:
            life.replica.checkpoint()
        life.body(body)
    if checkpoint == len(BODIES):
        life.replica.checkpoint()
    life = live(lives, tmp_path)
    for body in BODIES[life.at.sequence :]:
        life.body(body)
    assert life.messages() == [4, 5, 6, 7, 8, 9]
    (sub,) = life.replica.channels[FOO].stored_subs()
    assert (sub.state.sub_id, sub.state.last_sent, sub.pending) == (1, 2, {2})
    assert list(life.replica.clients) == [b"me"]


def test_a_channel_that_was_deleted_and_made_again_has_its_new_messages_alone(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    bodies = [
        encode_operations([Operation(Op.PUBLISH, FOO, block(1, 50))]),
        encode_operations([Operation(Op.CHANNEL_DELETE, FOO)]),
        encode_operations([Operation(Op.PUBLISH, FOO, block(1, 3))]),
    ]
    for body in bodies:
        life.body(body)
    life = live(lives, tmp_path)
    assert life.at.sequence == 1
    for body in bodies[life.at.sequence :]:
        life.body(body)
    assert life.messages() == [1, 2, 3]


def test_a_hole_is_an_error_and_the_store_can_be_filled_anew(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 3)))
    with pytest.raises(HoleError, match="message 5 follows message 3"):
        life.batch(Operation(Op.PUBLISH, FOO, block(5, 6)))
    life.replica.clear()
    life.replica.start_at(Position(LOG), 0)
    life.replica.apply([Operation(Op.PUBLISH, FOO, block(1, 6))], Position(LOG, 1))
    assert life.messages() == [1, 2, 3, 4, 5, 6]


def zero(path: Path, start: int, end: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(len(data[start:end])) + data[end:])


def spoil(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def cut_both(dat: Path, size: int, idx: Path, entries: int) -> None:
    cut(dat, size)
    cut(idx, entries)


#: What a power cut may leave of what was not synced. ``dat`` and ``idx`` are the files of the slice
#: that the checkpoint knows, whole up to ``size`` and ``entries``.
POWER_CUTS: dict[str, Callable[[Path, int, Path, int], None]] = {
    "nothing was lost": lambda _dat, _size, _idx, _entries: None,
    "the messages are zeros": lambda dat, size, _idx, _entries: zero(dat, size, 1 << 20),
    "the messages are gone": lambda dat, size, _idx, _entries: cut(dat, size),
    "the messages end within one": lambda dat, size, _idx, _entries: cut(dat, size + 4000),
    "a page is zeros": lambda dat, size, _idx, _entries: zero(dat, size + 4096, size + 8192),
    "bytes are wrong": lambda dat, size, _idx, _entries: zero(dat, size + 40, size + 43),
    "the index is gone": lambda _dat, _size, idx, entries: cut(idx, entries),
    "the index has a page of zeros": lambda _dat, _size, idx, entries: zero(
        idx, entries + 4096, entries + 8192
    ),
    "both are gone": cut_both,
}


@pytest.mark.parametrize("way", POWER_CUTS)
@pytest.mark.parametrize("slices", [0, 300])
def test_what_a_power_cut_took_from_behind_the_checkpoint_comes_again_from_the_log(
    lives: list[Life], tmp_path: Path, way: str, slices: int
) -> None:
    life = live(lives, tmp_path, slices)
    bodies = [encode_operations([Operation(Op.PUBLISH, FOO, block(1, 500))])]
    bodies += [
        encode_operations([Operation(Op.PUBLISH, FOO, block(first, first + 49))])
        for first in range(501, 2001, 50)
    ]
    life.body(bodies[0])
    life.replica.checkpoint()
    directory = tmp_path / "store" / "foo"
    dat = max(directory.glob("msgs.*.dat"))
    idx = dat.with_suffix(".idx")
    sizes = dat.stat().st_size, idx.stat().st_size
    for body in bodies[1:]:
        life.body(body)
    life.store.tick(0)
    life = live(lives, tmp_path, slices, lambda: POWER_CUTS[way](dat, sizes[0], idx, sizes[1]))
    assert life.replica.refused == {}
    assert life.at.sequence == 1
    for body in bodies[1:]:
        life.body(body)
    assert life.messages() == list(range(1, 2001))
    assert life.store.quarantined == []
    life.replica.checkpoint()
    life = live(lives, tmp_path, slices)
    assert life.at.sequence == len(bodies)
    assert life.messages() == list(range(1, 2001))


def test_a_channel_that_no_checkpoint_knows_comes_again_from_the_log(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    life.batch(Operation(Op.CLIENT_NEW, b"me", ClientInfo(b"me", b"inbox")))
    life.replica.checkpoint()
    body = encode_operations([Operation(Op.PUBLISH, FOO, block(1, 500))])
    life.body(body)
    dat = tmp_path / "store" / "foo" / "msgs.1.dat"
    life = live(lives, tmp_path, killed=lambda: zero(dat, 100, 103))
    assert life.replica.refused == {}
    life.body(body)
    assert life.messages() == list(range(1, 501))


def test_what_a_server_without_a_cluster_has_stored_is_not_taken_back(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    life.body(encode_operations([Operation(Op.PUBLISH, FOO, block(1, 5))]))
    life.replica.checkpoint()
    life.kill()
    root = os.open(tmp_path / "store", os.O_RDONLY | os.O_DIRECTORY)
    store = FileStore(*(LocalDisk(), root, Owner(2), ManualClock()), FileStoreOptions())
    (channel,) = store.recover().channels
    channel.append(block(6, 9))
    assert store.commit() == {}
    store.tick(0)
    store.abandon()
    os.close(root)
    lives[:] = [Life(tmp_path, 3)]
    assert lives[0].messages() == list(range(1, 10))


@pytest.mark.parametrize("left", [b"", bytes(1024)])
def test_a_channel_whose_side_file_is_damaged_keeps_its_messages(
    lives: list[Life], tmp_path: Path, left: bytes
) -> None:
    life = live(lives, tmp_path)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 10)))
    life.replica.checkpoint()
    side = tmp_path / "store" / "foo" / "confirmed.bin"
    life = live(lives, tmp_path, killed=lambda: spoil(side, left))
    assert life.messages() == list(range(1, 11))
    assert life.replica.damaged == frozenset()


@pytest.mark.parametrize("way", ["a slice is gone", "a slice ends early", "a repair said so"])
def test_a_channel_that_lacks_messages_between_others_is_damaged(
    lives: list[Life], tmp_path: Path, way: str
) -> None:
    life = live(lives, tmp_path, 10)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 10)))
    second = encode_operations([Operation(Op.PUBLISH, FOO, block(11, 20))])
    life.body(second)
    life.batch(Operation(Op.PUBLISH, FOO, block(21, 35)))
    life.replica.checkpoint()
    assert life.replica.damaged == frozenset()

    def lose() -> None:
        dat = tmp_path / "store" / "foo" / "msgs.2.dat"
        if way == "a slice ends early":
            size = (dat.stat().st_size - 4) // 10 * 4
            cut(dat, 4 + size)
            return
        dat.unlink()
        dat.with_suffix(".idx").unlink()
        if way == "a repair said so":
            (dat.parent / "repaired.json").write_text('{"missing": [[11, 20]]}')

    life = live(lives, tmp_path, 10, lose)
    assert len(life.messages()) in (25, 29)
    if way == "a repair said so":
        assert life.replica.damaged == frozenset()
        life.replica.check_sound(FOO)
    else:
        assert life.replica.damaged == {FOO}
        with pytest.raises(BehindError, match="is damaged"):
            life.replica.check_sound(FOO)
    life.batch(Operation(Op.CHANNEL_DELETE, FOO))
    assert life.replica.damaged == frozenset()


@pytest.mark.parametrize("way", ["a slice", "its index too", "found by a read"])
def test_a_channel_that_lacks_messages_in_front_of_all_others_is_damaged(
    lives: list[Life], tmp_path: Path, way: str
) -> None:
    life = live(lives, tmp_path, 10)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 35)))
    life.replica.checkpoint()
    dat = tmp_path / "store" / "foo" / "msgs.1.dat"

    def lose() -> None:
        dat.unlink()
        if way != "a slice":
            dat.with_suffix(".idx").unlink()

    if way == "found by a read":
        life.store.abandon()
        lose()
        with pytest.raises(StoreError):
            life.messages()
        with pytest.raises(BehindError, match="is damaged"):
            life.replica.check_sound(FOO)
        return
    life = live(lives, tmp_path, 10, lose)
    assert life.messages() == list(range(11, 36))
    assert life.replica.damaged == {FOO}
    # A checkpoint says nothing else.
    life.replica.checkpoint()
    life = live(lives, tmp_path, 10)
    life.replica.found_damaged -= {FOO}
    life = live(lives, tmp_path, 10)
    assert life.replica.damaged == {FOO}


@pytest.mark.parametrize("way", ["purged", "limits", "limits and a crash", "everything"])
def test_messages_that_went_by_limits_or_a_purge_are_not_missed(
    lives: list[Life], tmp_path: Path, way: str
) -> None:
    life = live(lives, tmp_path, 10)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 35)))
    life.replica.checkpoint()
    if way.startswith("limits"):
        life.replica.set_limits(Limits(StoreLimits(channel=ChannelLimits(max_msgs=12))))
    else:
        life.batch(Operation(Op.PURGE, FOO, 35 if way == "everything" else 23))
    while life.store.tick(0):
        pass
    names = {path.name for path in (tmp_path / "store" / "foo").iterdir()}
    assert "msgs.1.dat" not in names
    if "crash" not in way:
        life.replica.checkpoint()
    held = life.messages()
    life = live(lives, tmp_path, 10)
    assert life.replica.damaged == frozenset()
    assert life.messages()[-len(held) :] == held


def test_a_channel_whose_directory_is_gone_is_missed_until_it_is_copied_or_deleted(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 5)), Operation(Op.KEEP, b"bar"))
    life.replica.checkpoint()
    life.batch(Operation(Op.PUBLISH, b"later", block(1, 5)))

    def lose() -> None:
        shutil.rmtree(tmp_path / "store" / "foo")
        shutil.rmtree(tmp_path / "store" / "later")

    life = live(lives, tmp_path, killed=lose)
    life.replica.expect(life.file.read_channels("id"))
    # What no checkpoint had comes again from the log.
    assert life.replica.damaged == {FOO}
    life.replica.checkpoint()
    life = live(lives, tmp_path)
    life.replica.expect(life.file.read_channels("id"))
    assert life.replica.damaged == {FOO}
    life.batch(Operation(Op.CHANNEL_DELETE, FOO))
    assert life.replica.damaged == frozenset()
    # Deleted on purpose, and killed before the next checkpoint.
    life.batch(Operation(Op.CHANNEL_DELETE, b"bar"))
    life = live(lives, tmp_path)
    life.replica.expect(life.file.read_channels("id"))
    assert life.replica.damaged == frozenset()


def test_the_list_of_channels_of_another_datastore_or_a_damaged_one_says_nothing(
    tmp_path: Path,
) -> None:
    file = CheckpointFile(str(tmp_path / "log"), str(tmp_path))
    assert file.read_channels("id") == frozenset()
    file.write_channels("id", [b"foo", b"\xff"])
    assert file.read_channels("id") == {b"foo", b"\xff"}
    assert file.read_channels("other") == frozenset()
    path = tmp_path / "log" / "channels.json"
    path.write_text(path.read_text().replace("id", "di"))
    assert file.read_channels("di") == frozenset()


def test_another_message_than_the_log_has_is_not_thrown_away(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 5)))
    other = MsgBlock()
    other.append(5, FOO, b"", b"another one", 5000)
    with pytest.raises(BehindError, match="message 5 of the local store is not") as raised:
        life.replica.apply([Operation(Op.PUBLISH, FOO, other)], Position(LOG, 2))
    assert not isinstance(raised.value, HoleError)


def test_a_batch_whose_leader_was_replaced_half_way_counts_for_nothing(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    body = encode_operations([Operation(Op.PUBLISH, FOO, block(1, 3))])
    life.body(body[:20], more=True)
    life.replica.checkpoint()
    assert life.file.read() is None
    life.leader()
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 1)))
    assert life.messages() == [1]


def test_a_batch_in_pieces_is_applied_with_its_last_one(lives: list[Life], tmp_path: Path) -> None:
    life = live(lives, tmp_path)
    body = encode_operations([Operation(Op.PUBLISH, FOO, block(1, 3))])
    life.body(body[:20], more=True)
    assert life.messages() == []
    life.body(body[20:])
    assert life.messages() == [1, 2, 3]


def test_a_store_that_refuses_must_not_be_served(
    lives: list[Life], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = live(lives, tmp_path)
    monkeypatch.setattr(life.store, "commit", lambda: {FOO: StoreError("no space")})
    with pytest.raises(BehindError, match='channel "foo": no space'):
        life.batch(Operation(Op.PUBLISH, FOO, block(1, 3)))
    assert life.replica.at.sequence == 0


def test_what_lies_behind_a_sequence_is_cut_out_of_a_block() -> None:
    cut = behind(block(3, 9), 6)
    assert (cut.first, cut.last, len(cut)) == (7, 9, 3)


def test_a_checkpoint_comes_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    file = CheckpointFile(str(tmp_path / "log"), str(tmp_path))
    assert file.read() is None
    checkpoint = Checkpoint("store", Position(LOG, 5, 6, 1, "a"), 9)
    file.write(checkpoint)
    assert file.read() == checkpoint
    path = tmp_path / "log" / "checkpoint.json"
    path.write_text(path.read_text().replace('"sequence": 5', '"sequence": 6'))
    with pytest.raises(StoreError, match="is damaged"):
        file.read()


def test_a_datastore_older_than_its_checkpoint_is_found_out(tmp_path: Path) -> None:
    log, store = tmp_path / "log", tmp_path / "store"
    file = CheckpointFile(str(log), str(store))
    file.write(Checkpoint("id", Position(LOG, 5)))
    older = (store / "cluster.mark").read_bytes()
    newer = Checkpoint("id", Position(LOG, 9))
    file.write(newer)
    assert file.is_marked(newer)
    assert file.marked() == 9
    # A crash between the two files leaves a mark that is ahead.
    assert file.is_marked(Checkpoint("id", Position(LOG, 5)))
    (store / "cluster.mark").write_bytes(older)
    assert not file.is_marked(newer)
    (store / "cluster.mark").unlink()
    assert not file.is_marked(newer)


def test_a_word_about_a_datastore_does_not_vouch_for_it(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    file = CheckpointFile(str(tmp_path / "log"), str(tmp_path / "store"))
    older = Checkpoint("id", Position(LOG, 5, 1, 1, "a"), 5)
    file.write(older)
    mark = (tmp_path / "store" / "cluster.mark").read_bytes()
    now = replace(older, at=Position(LOG, 9, 1, 1, "a"), clean=True)
    file.write(now)
    # Somebody puts an older copy of the datastore back.
    (tmp_path / "store" / "cluster.mark").write_bytes(mark)
    file.amend(replace(now, clean=False, damaged=frozenset((FOO,))))
    found = file.read()
    assert found is not None
    assert not found.clean
    assert found.damaged == {FOO}
    assert not file.is_marked(found)


def test_nodes_that_were_added_and_removed_are_in_the_checkpoint(
    lives: list[Life], tmp_path: Path
) -> None:
    life = live(lives, tmp_path)
    life.batch(Operation(Op.NODE, b"c", 0), Operation(Op.NODE, b"d", 1))
    life.replica.checkpoint()
    life.batch(Operation(Op.NODE, b"c", 1))
    assert life.replica.nodes == {"c": True, "d": True}
    life = live(lives, tmp_path)
    found = life.file.read()
    assert found is not None
    assert found.nodes == {"c": False, "d": True}


def test_a_checkpoint_of_an_earlier_release_has_no_nodes(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    file = CheckpointFile(str(tmp_path / "log"), str(tmp_path / "store"))
    file.write(Checkpoint("id", Position(LOG, 3, 4, 1, "a")))
    line = json.loads((tmp_path / "log" / "checkpoint.json").read_text().splitlines()[0])
    del line["nodes"]
    text = json.dumps(line)
    whole = f"{text}\n{zlib.crc32(text.encode()):08x}\n"
    (tmp_path / "log" / "checkpoint.json").write_text(whole)
    assert file.read() == Checkpoint("id", Position(LOG, 3, 4, 1, "a"))


def test_a_store_that_was_half_emptied_says_so_at_the_next_start(
    lives: list[Life], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = live(lives, tmp_path)
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 5)))
    life.replica.checkpoint()

    def refuse() -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(life.replica, "clear", refuse)
        with pytest.raises(BehindError):
            life.replica.empty(Position(LOG), 0)
    found = life.file.read()
    assert found is not None
    assert (found.at, found.unsound) == (Position(LOG), True)
    life.replica.empty(Position(LOG), 0)
    found = life.file.read()
    assert found is not None
    assert not found.unsound
    assert life.messages() == []
