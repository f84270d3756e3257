"""A store that is copied from another node holds the same, however often the copy broke off."""

from __future__ import annotations

import json
import zlib
from collections import deque
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.errors import StoreError
from ftstan.cli import ctl
from ftstan.cluster.copying import Copy, CopyError, CopySource
from ftstan.cluster.entry import Op, Operation, Position
from ftstan.cluster.replica import BehindError
from ftstan.nats.jetstream import Answer
from ftstan.stores.interface import ClientInfo, ServerInfo, StoredAt, SubState
from ftstan.wire.block import MsgBlock
from tests.unit.cluster.stream import FakeLink
from tests.unit.cluster.test_replica import FOO, LOG, Life, block, events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ftstan.nats.jetstream import JetStream

BAR = b"bar"
INFO = ServerInfo("cid", "d", "p", "s", "u", "c", "sc", "a")


class Wire:
    """Carries requests to ``source``. ``faults``: what happens to the next answers, in turn:
    ``lost``, ``damaged``, ``gone`` (nobody listens), or nothing.
    """

    def __init__(self, source: CopySource) -> None:
        self.source = source
        self.link = FakeLink()
        self.faults: deque[str] = deque()
        self.asked: list[dict[str, object]] = []

    def ask(self, _subject: str, request: bytes, _seconds: float) -> list[Answer]:
        self.asked.append(json.loads(request))
        fault = self.faults.popleft() if self.faults else ""
        if fault == "lost":
            return []
        if fault == "gone":
            return [Answer(503, {}, b"")]
        answer = self.source.answer(request)
        if fault == "damaged":
            answer = answer[:-1] + bytes((answer[-1] ^ 1,))
        return [Answer(0, {}, answer)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Life, Life]]:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(Life(tmp_path / name, 1))
    yield made[0], made[1]
    for life in made:
        life.kill()


def wire(life: Life) -> Wire:
    replica = life.replica
    return Wire(CopySource(replica, lambda: replica.at, lambda local: local.stored_subs()))


def copy(life: Life, wire: Wire) -> Copy:
    return Copy(cast("JetStream", wire), life.replica, "cid", "a")


def run(made: Copy) -> Position:
    while True:
        at = made.step()
        if at is not None:
            return at


def fill(life: Life) -> None:
    life.leader()
    life.batch(
        Operation(Op.SERVER_INFO, b"", INFO),
        Operation(Op.CLIENT_NEW, b"c", ClientInfo(b"c", b"hb")),
        Operation(Op.PUBLISH, FOO, block(1, 2000)),
        Operation(Op.SUB_NEW, FOO, SubState(1, b"c", inbox=b"i", ack_inbox=b"a")),
        Operation(Op.REMEMBER, b"", ({b"k" * 16: StoredAt(3, 4)}, 1)),
        Operation(Op.KEEP, b"empty"),
        Operation(Op.NODE, b"d", 1),
        Operation(Op.NODE, b"c", 0),
    )
    sent = [("sent", 1, sequence) for sequence in range(1, 6)]
    life.batch(Operation(Op.EVENTS, FOO, events(*sent, ("acked", 1, 2))))
    large = MsgBlock()
    for sequence in range(1, 4):
        large.append(sequence, BAR, b"", b"x" * (700 << 10), sequence * 1000)
    life.batch(Operation(Op.PUBLISH, BAR, large))
    life.batch(Operation(Op.PUBLISH, b"gone", block(1, 9)))
    life.batch(Operation(Op.PURGE, b"gone", 9))


def state(life: Life) -> dict[str, object]:
    replica = life.replica
    channels = {}
    for name, local in replica.channels.items():
        store = local.store
        messages = []
        sequence = 1
        while (read := store.read(sequence, 1000, 1 << 20)) is not None:
            start = read.position(sequence)
            messages += [
                (read.sequence(i), read.timestamp(i), zlib.crc32(read.payload(i)))
                for i in range(start, len(read))
            ]
            sequence = messages[-1][0] + 1
        subs = [(sub.state, sub.pending) for sub in local.stored_subs()]
        channels[name] = (store.first, store.last, store.count, messages, subs)
    return {
        "channels": channels,
        "clients": replica.clients,
        "info": replica.info,
        "remembered": replica.remembered,
        "nodes": replica.nodes,
        "at": replica.at,
    }


def test_a_copy_holds_what_the_other_node_has_and_says_so_on_disk(
    nodes: tuple[Life, Life],
) -> None:
    theirs, ours = nodes
    fill(theirs)
    made = copy(ours, wire(theirs))
    assert run(made) == theirs.replica.at
    assert state(ours) == state(theirs)
    found = ours.file.read()
    assert found is not None
    assert found.at == theirs.replica.at
    # The next message of a channel whose messages are all gone follows the last one.
    at = theirs.replica.at
    for life in nodes:
        life.at = at
        life.batch(Operation(Op.PUBLISH, b"gone", block(10, 12)))
    assert state(ours) == state(theirs)


def test_what_was_there_already_is_not_fetched_again(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    ours.leader()
    ours.batch(
        Operation(Op.PUBLISH, FOO, block(1, 1500)),
        Operation(Op.SUB_NEW, FOO, SubState(7, b"x", inbox=b"i", ack_inbox=b"a")),
        Operation(Op.CLIENT_NEW, b"x", ClientInfo(b"x", b"hb")),
        Operation(Op.PUBLISH, b"deleted", block(1, 3)),
    )
    fill(theirs)
    made = copy(ours, wire(theirs))
    run(made)
    assert state(ours) == state(theirs)
    assert made.messages == 500 + 3


def test_messages_of_a_former_life_of_the_channel_do_not_stay(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    ours.leader()
    other = MsgBlock()
    for sequence in range(1, 11):
        other.append(sequence, FOO, b"", b"of another life", sequence)
    ours.batch(Operation(Op.PUBLISH, FOO, other))
    fill(theirs)
    run(copy(ours, wire(theirs)))
    assert state(ours) == state(theirs)


def test_messages_that_the_other_node_does_not_have_any_more_are_not_kept_before_a_hole(
    nodes: tuple[Life, Life],
) -> None:
    theirs, ours = nodes
    ours.leader()
    ours.batch(Operation(Op.PUBLISH, FOO, block(1, 100)))
    fill(theirs)
    theirs.batch(Operation(Op.PURGE, FOO, 300))
    run(copy(ours, wire(theirs)))
    assert ours.messages()[0] == 301
    assert state(ours) == state(theirs)


def test_messages_that_were_purged_meanwhile_do_not_come_back(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    ours.leader()
    ours.batch(Operation(Op.PUBLISH, FOO, block(1, 100)))
    fill(theirs)
    theirs.batch(Operation(Op.PURGE, FOO, 50))
    run(copy(ours, wire(theirs)))
    assert ours.messages()[0] == 51
    assert state(ours) == state(theirs)


def test_a_copy_that_broke_off_is_no_complete_store_and_goes_on_where_it_was(
    nodes: tuple[Life, Life],
) -> None:
    theirs, ours = nodes
    ours.leader()
    ours.batch(Operation(Op.PUBLISH, FOO, block(1, 3)))
    ours.replica.checkpoint()
    fill(theirs)
    road = wire(theirs)
    broken = copy(ours, road)
    road.faults.extend(["", "", "", "", "gone"])
    with pytest.raises(CopyError, match="does not answer"):
        run(broken)
    found = ours.file.read()
    assert found is not None
    assert found.at.sequence == 0
    again = copy(ours, road)
    run(again)
    assert broken.messages + again.messages == 2000 - 3 + 3
    assert broken.messages
    assert state(ours) == state(theirs)


def test_pieces_that_are_lost_or_damaged_are_asked_for_again(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    fill(theirs)
    road = wire(theirs)
    road.faults.extend(["damaged", "lost", "", "", "damaged"])
    run(copy(ours, road))
    assert state(ours) == state(theirs)


def test_damage_at_the_other_node_is_never_taken_for_messages_that_are_gone(
    nodes: tuple[Life, Life], tmp_path: Path
) -> None:
    theirs, ours = nodes
    fill(theirs)
    theirs.replica.checkpoint()
    file = tmp_path / "a" / "store" / "foo" / "msgs.1.dat"
    data = bytearray(file.read_bytes())
    at = data.index(b"data 1999")
    data[at : at + 4] = b"rott"
    file.write_bytes(data)
    with pytest.raises(CopyError, match="is damaged"):
        run(copy(ours, wire(theirs)))


def test_a_copy_goes_on_while_the_other_node_takes_more(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    fill(theirs)
    made = copy(ours, wire(theirs))
    before = theirs.replica.at
    made.step()
    theirs.batch(
        Operation(Op.PUBLISH, FOO, block(2001, 2100)),
        Operation(Op.EVENTS, FOO, events(("acked", 1, 1))),
        Operation(Op.PUBLISH, b"new", block(1, 3)),
    )
    assert run(made) == before
    assert ours.messages()[-1] == 2000
    assert ours.replica.channels[FOO].subs[1].pending == {1, 3, 4, 5}
    assert b"new" not in ours.replica.channels


@pytest.mark.parametrize("request_", [b"", b"[]", b"{}", b"\xff", b'{"offset": 0, "most": 1}'])
def test_requests_that_make_no_sense_are_refused(nodes: tuple[Life, Life], request_: bytes) -> None:
    answer = wire(nodes[0]).source.answer(request_)
    assert answer[0] == 1


def test_a_node_of_another_log_gives_nothing(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    fill(theirs)
    ours.replica.start_at(Position(bytes(16)), 0)
    with pytest.raises(CopyError, match="nothing to copy"):
        run(copy(ours, wire(theirs)))


def test_nothing_is_given_up_before_the_manifest_is_there(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    fill(theirs)
    ours.leader()
    ours.batch(Operation(Op.PUBLISH, FOO, block(1, 9)))
    ours.replica.checkpoint()
    before = state(ours)
    cut = wire(theirs)
    cut.faults.append("gone")
    with pytest.raises(CopyError):
        run(copy(ours, cut))
    assert state(ours) == before
    found = ours.file.read()
    assert found is not None
    assert found.at == ours.at
    # Behind it the checkpoint says that nothing is certain, until all is there.
    cut = wire(theirs)
    cut.faults.extend(("", "gone"))
    with pytest.raises(CopyError):
        run(copy(ours, cut))
    found = ours.file.read()
    assert found is not None
    assert found.at == Position(LOG)
    run(copy(ours, wire(theirs)))
    assert state(ours) == state(theirs)


def test_a_store_in_doubt_is_filled_anew_and_says_so_if_that_breaks_off(
    nodes: tuple[Life, Life],
) -> None:
    theirs, ours = nodes
    fill(theirs)
    ours.leader()
    ours.batch(Operation(Op.PUBLISH, FOO, block(1, 9)), Operation(Op.PUBLISH, BAR, other()))
    ours.replica.checkpoint()
    at = ours.at
    ours.replica.doubt()
    # What a stop leaves is the checkpoint of before.
    ours.replica.checkpoint()
    found = ours.file.read()
    assert found is not None
    assert (found.at, found.unsound) == (at, False)
    made = copy(ours, wire(theirs))
    made.step()
    made.step()
    assert ours.messages() in ([], list(range(1, 2001)))
    assert not ours.replica.unsound
    run(made)
    assert state(ours) == state(theirs)


def other() -> MsgBlock:
    made = MsgBlock()
    made.append(1, BAR, b"", b"another one", 7)
    return made


def begun(theirs: Life, ours: Life) -> tuple[Copy, Wire]:
    """A copy that has fetched some messages."""
    fill(theirs)
    road = wire(theirs)
    made = copy(ours, road)
    while not any(asked["want"] == "messages" for asked in road.asked):
        assert made.step() is None
    return made, road


def test_a_node_that_begins_anew_under_a_copy_is_no_node_whose_messages_expired(
    nodes: tuple[Life, Life], tmp_path: Path
) -> None:
    theirs, ours = nodes
    made, road = begun(theirs, ours)
    (tmp_path / "empty").mkdir()
    empty = Life(tmp_path / "empty", 1)
    road.source = wire(empty).source
    with pytest.raises(CopyError, match="knows nothing of that copy"):
        run(made)
    empty.kill()
    found = ours.file.read()
    assert found is not None
    assert found.at == Position(LOG)


def damage(path: Path, data: bytes) -> None:
    file = path / "store" / "foo" / "msgs.1.dat"
    held = bytearray(file.read_bytes())
    at = held.index(data)
    held[at : at + 4] = b"rott"
    file.write_bytes(held)


@pytest.mark.parametrize("at", ["the start", "a read", "a read of the life before"])
def test_a_damaged_channel_is_copied_anew_and_the_others_stay(
    nodes: tuple[Life, Life], tmp_path: Path, at: str
) -> None:
    theirs, _ = nodes
    fill(theirs)
    (tmp_path / "c").mkdir()
    before = Life(tmp_path / "c", 1)
    run(copy(before, wire(theirs)))
    before.kill()
    damage(tmp_path / "c", b"data 2000" if at == "the start" else b"data 1000")
    ours = Life(tmp_path / "c", 2)
    if at != "the start":
        assert ours.replica.damaged == frozenset()
        ours.replica.channels[FOO].store.read(1000, 1000, 1 << 20)
    assert ours.replica.damaged == {FOO}
    with pytest.raises(BehindError, match=r'channel "foo" is damaged on this node'):
        ours.replica.check_sound(FOO)
    if at == "a read of the life before":
        ours.replica.checkpoint()
        ours.kill()
        # No start finds it without reading everything.
        ours = Life(tmp_path / "c", 3)
        assert ours.replica.store.quarantined == []
        found = ours.file.read()
        assert found is not None
        ours.replica.found_damaged = found.damaged
    assert ours.replica.damaged == {FOO}
    made = copy(ours, wire(theirs))
    run(made)
    assert state(ours) == state(theirs)
    assert made.messages == 2000
    assert ours.replica.damaged == frozenset()
    found = ours.file.read()
    assert found is not None
    assert found.damaged == frozenset()
    ours.kill()


def lossy(path: Path, *lost: tuple[int, int]) -> Life:
    """A node with 40 messages, of which a repair has found some lost."""
    path.mkdir()
    life = Life(path, 1, 10)
    life.leader()
    life.batch(Operation(Op.PUBLISH, FOO, block(1, 40)))
    life.replica.checkpoint()
    life.kill()
    for first, last in lost:
        for number in range((first + 9) // 10, last // 10 + 1):
            for name in (f"msgs.{number}.dat", f"msgs.{number}.idx"):
                (path / "store" / "foo" / name).unlink()
    assert ctl.main(["store", "repair", str(path / "store"), "--aside", str(path / "aside")]) == 0
    life = Life(path, 3, 10)
    assert life.replica.damaged == frozenset()
    return life


@pytest.mark.parametrize("lost", [((11, 20),), ((11, 20), (31, 40)), ((31, 40),)])
def test_a_channel_of_which_a_repair_has_found_messages_lost_can_be_copied(
    nodes: tuple[Life, Life], tmp_path: Path, lost: tuple[tuple[int, int], ...]
) -> None:
    _, ours = nodes
    theirs = lossy(tmp_path / "c", *lost)
    run(copy(ours, wire(theirs)))
    assert state(ours) == state(theirs)
    gone = {n for first, last in lost for n in range(first, last + 1)}
    assert ours.messages() == [n for n in range(1, 41) if n not in gone]
    assert ours.replica.lacking == {FOO} == theirs.replica.lacking
    assert ours.replica.damaged == frozenset()
    # Whoever was copied from it goes on behind the last one, and may be copied itself.
    at = theirs.replica.at
    for life in (theirs, ours):
        life.at = at
        life.batch(Operation(Op.PUBLISH, FOO, block(41, 43)))
    assert state(ours) == state(theirs)
    ours.replica.checkpoint()
    ours.kill()
    again = Life(tmp_path / "b", 2)
    assert again.replica.damaged == frozenset()
    assert again.messages()[-3:] == [41, 42, 43]
    (tmp_path / "d").mkdir()
    third = Life(tmp_path / "d", 1)
    run(copy(third, wire(again)))
    assert third.messages() == again.messages()
    third.kill()
    theirs.kill()


def test_what_a_node_has_does_not_go_because_the_one_that_is_copied_has_lost_it(
    nodes: tuple[Life, Life], tmp_path: Path
) -> None:
    _, ours = nodes
    ours.leader()
    ours.batch(Operation(Op.PUBLISH, FOO, block(1, 17)))
    theirs = lossy(tmp_path / "c", (11, 20))
    made = copy(ours, wire(theirs))
    run(made)
    assert ours.messages() == [*range(1, 18), *range(21, 41)]
    assert ours.replica.damaged == frozenset()
    theirs.kill()


def test_a_message_that_no_repair_has_found_lost_is_missed_beside_one_that_has(
    nodes: tuple[Life, Life], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = nodes
    theirs = lossy(tmp_path / "c", (11, 20))
    store = theirs.replica.channels[FOO].store
    read = store.read

    def without_the_30th(first: int, most: int, size: int) -> MsgBlock | None:
        found = read(first, most, size)
        kept = MsgBlock()
        for at in range(len(found) if found is not None else 0):
            assert found is not None
            sequence = found.sequence(at)
            if sequence != 30:
                kept.append(sequence, FOO, b"", b"data %d" % sequence, found.timestamp(at))
        return kept

    monkeypatch.setattr(store, "read", without_the_30th)
    with pytest.raises(CopyError, match="lacks message 30"):
        run(copy(ours, wire(theirs)))
    theirs.kill()


def test_a_second_server_with_the_same_id_is_no_node_whose_messages_expired(
    nodes: tuple[Life, Life], tmp_path: Path
) -> None:
    theirs, ours = nodes
    made, road = begun(theirs, ours)
    (tmp_path / "twin").mkdir()
    twin = Life(tmp_path / "twin", 1)
    other = wire(twin).source
    # It has heard the question for the manifest, too, and follows: with no messages yet.
    first = next(asked for asked in road.asked if asked["want"] == "manifest")
    assert other.answer(json.dumps(first).encode())[0] == 0
    road.source = other
    with pytest.raises(CopyError, match="knows nothing of that copy"):
        run(made)
    twin.kill()


def test_messages_that_a_node_lacks_did_not_expire(
    nodes: tuple[Life, Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = nodes
    made, _ = begun(theirs, ours)
    store = theirs.replica.channels[BAR].store
    read = store.read
    monkeypatch.setattr(store, "read", lambda first, most, size: read(first + 1, most, size))
    with pytest.raises(CopyError, match="lacks message"):
        run(made)


@pytest.mark.parametrize("how", ["forsake", "doubt", "empty"])
def test_a_copy_of_a_store_that_is_given_up_breaks_off(nodes: tuple[Life, Life], how: str) -> None:
    theirs, ours = nodes
    made, _ = begun(theirs, ours)
    replica = theirs.replica
    if how == "empty":
        replica.empty(Position(LOG), 0)
    elif how == "doubt":
        replica.doubt()
    else:
        replica.forsake()
    with pytest.raises(CopyError, match="knows nothing of that copy"):
        run(made)


def test_copies_that_broke_off_end_none_that_goes_on(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    fill(theirs)
    road = wire(theirs)
    made = copy(ours, road)
    done = None
    while done is None:
        for number in range(3):
            asked = {"want": "manifest", "token": f"{len(road.asked)}-{number}"}
            known = asked | {"incarnation": LOG.hex(), "offset": 0, "most": 1}
            assert road.source.answer(json.dumps(known).encode())[0] == 0
        done = made.step()
    assert state(ours) == state(theirs)


def test_a_node_whose_store_refuses_what_is_copied_ends(nodes: tuple[Life, Life]) -> None:
    theirs, ours = nodes
    fill(theirs)

    def refuse() -> None:
        # What it has not synced of former batches may be gone with it.
        raise StoreError("no space")

    ours.store.sync_all = refuse  # type: ignore[method-assign]
    made = copy(ours, wire(theirs))
    with pytest.raises(BehindError, match="no space"):
        run(made)
    del ours.store.sync_all
    ours.store.commit = lambda: {FOO: StoreError("no space")}  # type: ignore[method-assign]
    made = copy(ours, wire(theirs))
    with pytest.raises(BehindError, match="no space"):
        run(made)
