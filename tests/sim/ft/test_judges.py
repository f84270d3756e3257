"""The judges of what groups leave for others: readers of the live store, and an original server
behind a clean stop.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.clock import ManualClock
from ftstan.stores.file.log import records
from ftstan.stores.file.state.confirmed import NAME, Confirmed, encode
from ftstan.wire.block import MsgBlock
from tests.sim.disk import SimDisk
from tests.sim.ft.cleanstop import judge_clean_stop
from tests.sim.ft.ledger import Found, Ledger, Recovery
from tests.sim.ft.readers import LiveReader
from tests.sim.model import Violation

if TYPE_CHECKING:
    from tests.sim.ft.group import Group

FOO = "/foo"


class Reader:
    """A live store of one channel, of which only ``confirmed.bin`` is there."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.ledger = Ledger()
        self.life = self.ledger.generation(b"foo")
        self.reader = LiveReader(self.ledger)

    def shown(self, sequence: int, epoch: int) -> None:
        slot = encode(Confirmed(epoch, 1, sequence, 100, sequence), 1)
        self.disk.add_tree(FOO, {NAME: slot + slot})
        self.reader.look(self.disk.volume)

    def recovered(self, last: int, epoch: int) -> None:
        self.ledger.took(epoch, epoch - 1)
        self.ledger.recovered(Recovery(epoch, {b"foo": Found({}, last, 0, {}, set())}, {}))


def test_a_reader_that_is_shown_more_and_more_is_content() -> None:
    r = Reader()
    for sequence, epoch in ((3, 1), (3, 2), (5, 2)):
        r.shown(sequence, epoch)
    r.recovered(5, 3)


def test_a_channel_does_not_end_before_what_a_reader_was_shown() -> None:
    r = Reader()
    r.shown(5, 2)
    with pytest.raises(Violation, match="had been shown 5"):
        r.shown(3, 1)


def test_what_storage_may_forget_may_go_back() -> None:
    r = Reader()
    r.shown(5, 2)
    r.reader.storage_went_down()
    r.shown(3, 1)


def test_a_channel_that_begins_anew_is_shown_from_its_beginning() -> None:
    r = Reader()
    r.shown(5, 1)
    r.ledger.deleted(r.life, 1)
    r.ledger.generation(b"foo")
    r.shown(1, 1)


def test_what_a_reader_was_shown_is_found_by_the_next_owner() -> None:
    r = Reader()
    r.shown(5, 1)
    with pytest.raises(Violation, match="shown 5 under epoch 1, it ends at 4 under 2"):
        r.recovered(4, 2)


def test_what_a_former_owner_shows_late_was_found_by_its_successor() -> None:
    r = Reader()
    r.recovered(4, 2)
    with pytest.raises(Violation, match="shown 5 under epoch 1, it ends at 4 under 2"):
        r.shown(5, 1)


def waiting(*messages: bytes) -> tuple[Ledger, Recovery]:
    """A channel whose messages were acknowledged under epoch 1, and that the owner of epoch 2 has
    not read yet.
    """
    ledger = Ledger()
    life = ledger.generation(b"foo")
    for i, payload in enumerate(messages):
        ledger.offer(life, i + 1, payload, 0)
        ledger.fix(life, i + 1, payload, 1)
    ledger.took(2, 1)
    recovery = Recovery(2, {}, {}, waiting={b"foo", b"torn"})
    ledger.recovered(recovery)
    return ledger, recovery


def test_a_channel_that_is_opened_later_is_judged_then() -> None:
    whole = {i + 1: stored(i + 1) for i in range(2)}
    ledger, recovery = waiting(*whole.values())
    ledger.opened(recovery, b"torn", None)
    ledger.opened(recovery, b"foo", Found(whole, 2, 0, {}, set()))
    # What a former owner tells somebody now was among it.
    with pytest.raises(
        Violation, match=r"\[3\] were acked or delivered and are gone under epoch 2"
    ):
        ledger.ack(recovery.lives[b"foo"], 3, stored(3), 1)


@pytest.mark.parametrize(
    ("name", "found", "why"),
    [
        (b"foo", None, "it is gone under epoch 2"),
        (b"foo", Found({}, 0, 0, {}, set()), r"\[1, 2\] were acked or delivered and are gone"),
        (b"torn", Found({}, 0, 0, {}, set()), "it is there, and nobody made it"),
    ],
)
def test_what_is_missing_from_a_channel_that_is_opened_later_is_noticed(
    name: bytes, found: Found | None, why: str
) -> None:
    ledger, recovery = waiting(stored(1), stored(2))
    with pytest.raises(Violation, match=why):
        ledger.opened(recovery, name, found)


def test_what_is_told_while_a_channel_waits_must_be_there_when_it_is_opened() -> None:
    ledger, recovery = waiting(stored(1))
    ledger.ack(recovery.lives[b"foo"], 2, stored(2), 1)
    with pytest.raises(Violation, match=r"\[2\] were acked or delivered and are gone"):
        ledger.opened(recovery, b"foo", Found({1: stored(1)}, 1, 0, {}, set()))


def stored(sequence: int) -> bytes:
    """The bytes of a message."""
    block = MsgBlock()
    block.append(sequence, b"foo", b"", b"%d" % sequence, 0)
    return block.payload(0)


class Stopped:
    """What a clean stop left of one channel with messages 1 to 3, all promised."""

    def __init__(self) -> None:
        self.crc = records.Crc()
        self.ledger = Ledger()
        life = self.ledger.generation(b"foo")
        block = self.block(1, 2, 3)
        for i in range(3):
            self.ledger.offer(life, i + 1, block.payload(i), 0)
            self.ledger.fix(life, i + 1, block.payload(i), 1)
        self.tree: dict[str, bytes | None] = {
            "msgs.1.dat": records.VERSION + bytes(memoryview(block)),
            "msgs.1.idx": records.VERSION + records.index_entries(block, 0, 3, 4, self.crc),
            "subs.dat": records.VERSION,
        }

    def block(self, *sequences: int, text: bytes = b"text") -> MsgBlock:
        block = MsgBlock()
        for sequence in sequences:
            block.append(sequence, b"foo", b"", b"%b %d" % (text, sequence), 1)
        records.seal(block, self.crc)
        return block

    def judge(self) -> None:
        disk = SimDisk()
        disk.add_tree(FOO, self.tree)
        disk.add_tree("/", {"clients.dat": records.VERSION, "server.dat": records.VERSION})
        group = SimpleNamespace(
            seed=0,
            ledger=self.ledger,
            volume=disk.volume,
            clock=ManualClock(),
            met={"clean stops read by an original": 0},
        )
        judge_clean_stop(cast("Group", group))


def test_a_store_that_is_exact_passes() -> None:
    Stopped().judge()


def test_bytes_behind_the_index_of_a_slice_are_found() -> None:
    s = Stopped()
    s.tree["msgs.1.dat"] = (s.tree["msgs.1.dat"] or b"") + bytes(memoryview(s.block(4)))
    with pytest.raises(Violation, match="an index does not say what its data holds"):
        s.judge()


def test_another_content_is_found() -> None:
    s = Stopped()
    block = s.block(1, 2, 3, text=b"best")
    s.tree["msgs.1.dat"] = records.VERSION + bytes(memoryview(block))
    s.tree["msgs.1.idx"] = records.VERSION + records.index_entries(block, 0, 3, 4, s.crc)
    with pytest.raises(Violation, match=r"another content of \[1, 2, 3\]"):
        s.judge()


def test_messages_that_two_slices_hold_are_found() -> None:
    s = Stopped()
    block = s.block(3)
    s.tree["msgs.2.dat"] = records.VERSION + bytes(memoryview(block))
    s.tree["msgs.2.idx"] = records.VERSION + records.index_entries(block, 0, 1, 4, s.crc)
    with pytest.raises(Violation, match="counts 4 messages"):
        s.judge()
