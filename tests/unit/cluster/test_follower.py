"""When a follower leads, and when it must not."""

from __future__ import annotations

import random
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from ftstan.cluster import follower as module
from ftstan.cluster.beats import Report, decode_report, report
from ftstan.cluster.copying import CopyError
from ftstan.cluster.entry import Entry, Kind, Position
from ftstan.cluster.follower import Follower, Stage
from ftstan.cluster.log import LogLostError, ReplicatedLog, settings
from ftstan.cluster.members import without_others
from ftstan.cluster.replica import BehindError, HoleError
from ftstan.cluster.silence import FIRST_S, LONGEST_S, SHORTEST_S, YIELD_S, Silence
from ftstan.cluster.time import LeaderClock
from ftstan.nats.jetstream import Answer
from tests.unit.cluster.stream import FakeJetStream, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import Clock
    from ftstan.cluster.replica import Replica
    from ftstan.nats.jetstream import JetStream

LOG = bytes(range(16))


@dataclass
class Time:
    now: float = 100.0

    def mono(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return round(self.now * 1e9)


class FakeStore:
    def __init__(self) -> None:
        self.ticks: list[int] = []

    def tick(self, now: int) -> bool:
        self.ticks.append(now)
        return False


@dataclass
class FakeReplica:
    at: Position = field(default_factory=lambda: Position(b""))
    seen: int = 0
    taken: list[Entry] = field(default_factory=list)
    follows: bool = True
    is_recorded: bool = True
    stored: int = 0
    store: FakeStore = field(default_factory=FakeStore)
    nodes: dict[str, bool] = field(default_factory=dict)
    unsound: bool = False
    emptied: int = 0
    hole_at: int = 0
    damaged: frozenset[bytes] = frozenset()
    lacking: frozenset[bytes] = frozenset()
    seeds: bool = False
    removed_at: int = 0
    """The entry that removes all nodes but another one."""

    def take(self, entry: Entry, at: Position) -> None:
        if at.sequence == self.hole_at:
            self.hole_at = 0
            raise HoleError("message 7 is missing in the local store")
        self.taken.append(entry)
        self.at = at
        if at.sequence == self.removed_at:
            self.nodes = without_others((), "a")

    def doubt(self) -> None:
        self.unsound = True
        self.at = Position(self.at.incarnation)

    def empty(self, at: Position, _seen: int) -> None:
        self.unsound = False
        self.emptied += 1
        self.at = at

    def start_at(self, at: Position, seen: int) -> None:
        self.at = at
        self.seen = max(seen, at.sequence)

    def hear(self, sequence: int) -> None:
        self.seen = max(self.seen, sequence)

    def checkpoint(self) -> None:
        pass

    def forsake(self) -> None:
        self.at = Position(self.at.incarnation)


class Node:
    """A follower with everything around it; ``run`` lets time go by in turns."""

    def __init__(self, stream: Stream, name: str, time: Time, at: Position | None = None) -> None:
        self.name = name
        self.time = time
        self.js = FakeJetStream(stream)
        self.replica = FakeReplica(at or Position(b""))
        self.elected = 0
        js = cast("JetStream", self.js)
        clock = cast("Clock", time)
        self.log = ReplicatedLog(js, "cid", clock, threading.Event())
        self.follower = Follower(
            *(self.log, cast("Replica", self.replica), clock, random.Random(1)),
            cluster_id="cid",
            node_id=name,
            founders=("a", "b", "c"),
            elected=self._elected,
            time=LeaderClock(clock),
        )
        self.js.on_message = self.follower.hear

    def _elected(self) -> None:
        self.elected += 1

    def stage(self) -> Stage:
        return self.follower.stage

    def was_elected(self) -> bool:
        return bool(self.elected)

    def run(self, seconds: float, beats: Node | None = None) -> None:
        """``beats``: a leader that is heard every tenth of a second."""
        end = self.time.now + seconds
        due = self.time.now
        while self.time.now < end and not self.elected:
            wait = min(self.follower.timeout(), end - self.time.now)
            if beats is not None:
                wait = min(wait, 0.1)
                if self.time.now >= due:
                    due += 0.1
                    self.js.waiting.append(beats.follower.report().encode())
            self.time.now += max(wait, 0.001)
            self.follower.turn(readable=True)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def stream() -> Stream:
    return Stream(settings("cid", LOG))


def said(who: Report) -> Answer:
    return Answer(0, {}, who.encode())


def leader(stream: Stream, time: Time) -> Node:
    node = Node(stream, "a", time)
    node.run(10.0)
    assert node.follower.stage is Stage.LEADING
    return node


def test_a_node_that_hears_nobody_leads(stream: Stream, time: Time) -> None:
    node = Node(stream, "a", time)
    began = time.now
    node.run(10.0)
    assert node.elected == 1
    assert time.now - began >= FIRST_S
    assert node.log.at.leader == "a"
    assert not node.replica.follows


def test_a_leader_that_is_heard_is_left_alone_and_a_silent_one_is_replaced(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(10.0, beats=first)
    assert not node.was_elected()
    began = time.now
    node.run(10.0)
    assert node.was_elected()
    assert SHORTEST_S <= time.now - began < LONGEST_S + 0.3


def test_beats_that_wait_unread_behind_a_long_turn_keep_the_leader(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    node.follower.timeout()
    # Busy for long; what the leader said meanwhile lies in the socket.
    time.now += 5.0
    node.js.waiting.append(first.follower.report().encode())
    node.follower.turn(readable=True)
    assert not node.was_elected()
    node.run(0.4)
    assert not node.was_elected()


def test_a_node_that_was_away_listens_anew(stream: Stream, time: Time) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    node.follower.timeout()
    time.now += 60.0
    node.follower.turn(readable=False)
    assert not node.was_elected()


def test_an_entry_of_the_log_counts_as_a_beat(stream: Stream, time: Time) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    for _ in range(10):
        first.log.append(b"")
        node.run(0.55)
    assert not node.was_elected()
    assert len([e for e in node.replica.taken if e.kind is Kind.BATCH]) >= 9


def test_who_says_that_it_leads_is_not_replaced_although_its_beats_are_lost(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.js.reports = [said(first.follower.report())]
    node.run(20.0)
    assert not node.was_elected()


def test_a_leader_that_steps_down_for_one_node_is_followed_by_it(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    nodes = [Node(stream, name, time) for name in ("b", "c")]
    for node in nodes:
        node.run(2.0, beats=first)
    farewell = replace(first.follower.report(), leaves=True, to="c").encode()
    for node in nodes:
        # It was heard a moment ago, so it waits for as long as after a beat.
        node.js.waiting.append(farewell)
        node.run(SHORTEST_S / 2)
    assert [node.was_elected() for node in nodes] == [False, True]
    # The one that is named may have to read for a while, and may never come.
    nodes[0].run(YIELD_S - 0.5)
    assert not nodes[0].was_elected()
    nodes[0].run(LONGEST_S + 1.0)
    assert nodes[0].was_elected()


def test_a_node_that_was_removed_does_not_lead_until_it_is_added_again(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    node.replica.nodes = {"b": False}
    node.run(20.0)
    assert not node.was_elected()
    assert node.follower.trouble == ""
    node.replica.nodes = {"b": True}
    node.run(10.0)
    assert node.was_elected()


def test_a_node_that_was_removed_with_what_it_had_not_read_yet_does_not_lead(
    stream: Stream, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)

    def append_meanwhile(*_: object) -> list[Report]:
        if not node.replica.removed_at:
            node.replica.removed_at = first.log.at.sequence + 1
            first.log.append(b"")
            # The machine is slow, or the answers are.
            time.now += 5.0
        return []

    monkeypatch.setattr(node.follower, "_ask_others", append_meanwhile)
    node.run(20.0)
    assert node.replica.removed_at
    assert not node.was_elected()


def test_a_former_leader_that_still_beats_keeps_nobody_quiet(stream: Stream, time: Time) -> None:
    old = leader(stream, time)
    second = Node(stream, "b", time)
    second.run(10.0)
    node = Node(stream, "c", time)
    node.run(10.0, beats=old)
    assert node.was_elected()


@pytest.mark.parametrize(
    ("other", "trouble"),
    [
        ({"sequence": 9, "seen": 9}, "and node b knows of entry 9"),
        ({"seen": 9}, "and node b knows of entry 9"),
        ({"incarnation": "00" * 16}, "node b has data of another log"),
        ({"crc": 1}, "node b has read other entries"),
    ],
)
def test_nobody_leads_a_log_that_lacks_what_another_node_knows(
    stream: Stream, time: Time, other: dict[str, Any], trouble: str
) -> None:
    first = leader(stream, time)
    node = Node(stream, "c", time)
    node.js.reports = [
        said(replace(report("b", first.log.at, 0, leads=False), **other)),
        Answer(0, {}, b"nonsense"),
    ]
    node.run(10.0)
    assert not node.was_elected()
    assert trouble in node.follower.trouble
    assert len(stream.entries) == 1


def test_nobody_leads_a_log_that_lacks_what_was_heard_before(stream: Stream, time: Time) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    first.log.append(b"acked")
    node.js.waiting.append(first.follower.report().encode())
    stream.hidden = 1
    node.run(0.05)
    stream.hidden = 0
    del stream.entries[-1]
    node.run(20.0)
    assert not node.was_elected()
    assert "this node has heard of entry 2" in node.follower.trouble


def test_a_log_that_ends_before_the_checkpoint_is_not_followed(stream: Stream, time: Time) -> None:
    first = leader(stream, time)
    first.log.append(b"acked")
    at = first.log.at
    del stream.entries[-1]
    node = Node(stream, "b", time, at)
    node.run(30.0)
    assert node.follower.stage is Stage.VERIFYING
    assert "lost entries that were acknowledged" in node.follower.trouble
    assert not node.was_elected()


def test_a_node_with_data_ends_where_the_stream_is_gone_or_another_one(
    stream: Stream, time: Time
) -> None:
    at = leader(stream, time).log.at
    stream.config = None
    with pytest.raises(LogLostError, match="is gone"):
        Node(stream, "b", time, at).run(5.0)
    stream.config = settings("cid", bytes(16))
    with pytest.raises(LogLostError, match="deleted and made again"):
        Node(stream, "b", time, at).run(5.0)


def test_a_cluster_is_founded_from_a_datastore_by_all_its_founders(time: Time) -> None:
    stream = Stream(None)
    seeded = Node(stream, "a", time, Position(LOG, 1))
    seeded.replica.seeds = True
    fresh = Node(stream, "b", time)
    # Not while a founder is away.
    seeded.js.reports = [said(fresh.follower.report())]
    seeded.run(5.0)
    assert not stream.exists()
    # A founder without data leaves it to the one with the datastore.
    fresh.js.reports = [
        said(seeded.follower.report()),
        said(report("c", Position(b""), 0, leads=False)),
    ]
    fresh.run(5.0)
    assert not stream.exists()
    assert fresh.follower.trouble == "node a makes the log from its datastore"
    seeded.js.reports.append(said(report("c", Position(b""), 0, leads=False)))
    seeded.run(1.0)
    assert stream.exists()
    assert seeded.follower.report().seeds is False
    seeded.js.reports = []
    seeded.run(20.0)
    assert seeded.was_elected()
    assert seeded.log.at.sequence == 2
    # Nobody reads the log without what came before it.
    fresh.js.reports = []
    fresh.run(5.0)
    assert fresh.stage() is Stage.COPYING


def test_two_datastores_found_no_cluster_and_none_joins_another_log(time: Time) -> None:
    stream = Stream(None)
    one = Node(stream, "a", time, Position(LOG, 1))
    other = Node(stream, "b", time, Position(bytes(16), 1))
    for node, beside in ((one, other), (other, one)):
        node.replica.seeds = True
        node.js.reports = [
            said(beside.follower.report()),
            said(report("c", Position(b""), 0, leads=False)),
        ]
    one.run(5.0)
    assert not stream.exists()
    assert one.follower.trouble == "there is no log, and node b has data of one"
    stream.config = settings("cid", bytes(16))
    with pytest.raises(LogLostError, match="has a log already"):
        one.run(1.0)


def test_a_cluster_is_founded_by_all_its_founders_and_by_nobody_beside_data(
    time: Time,
) -> None:
    stream = Stream()
    node = Node(stream, "a", time)
    node.run(5.0)
    assert stream.config is None
    fresh = Report("b", "", 0, 0, 0)
    node.js.reports = [said(fresh), said(Report("c", LOG.hex(), 5, 1, 1))]
    node.run(5.0)
    assert stream.config is None
    assert "node c has data" in node.follower.trouble
    node.js.reports = [said(fresh), said(replace(fresh, node="c"))]
    node.run(10.0)
    made: object = stream.__dict__["config"]
    assert made is not None
    assert node.was_elected()


def test_a_candidate_without_answers_gives_up_and_tries_again(
    stream: Stream, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STAND_S", 0.0)
    node = Node(stream, "a", time)
    node.run(5.0)
    assert not node.was_elected()
    monkeypatch.setattr(module, "_STAND_S", 3.0)
    node.run(5.0)
    assert node.was_elected()


def test_a_leader_that_stops_is_followed_at_once() -> None:
    silence = Silence(random.Random(1), 0.0)
    silence.heard(5.0)
    silence.leaves(5.0)
    assert silence.is_long(5.1)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b'{"node": 1}', b"[" * 100_000, b'{"node": "a"}']
)
def test_what_is_no_report_is_ignored(data: bytes) -> None:
    assert decode_report(data) is None


def test_a_node_whose_id_another_server_has_does_not_lead_and_says_so(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    twin = Node(stream, "a", time)
    twin.run(10.0, beats=first)
    assert not twin.was_elected()
    assert twin.follower.trouble == 'another server runs with the node id "a", too'
    other = Node(stream, "a", time)
    other.js.reports = [said(replace(first.follower.report(), leads=False))]
    other.run(10.0)
    assert not other.was_elected()
    assert "the node id" in other.follower.trouble


def test_two_emptied_nodes_do_not_found_a_log_without_the_third(time: Time) -> None:
    stream = Stream()
    node = Node(stream, "a", time)
    node.js.reports = [said(Report("b", "", 0, 0, 0))]
    node.run(10.0)
    assert stream.config is None


def test_who_founds_alone_hears_everybody_out(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(Stream(), "a", time)
    monkeypatch.setattr(node.follower, "_founders", ("a",))
    ended: list[bool] = []

    def ask(
        _subject: str, _body: bytes, _seconds: float, enough: Callable[[list[Answer]], bool]
    ) -> list[Answer]:
        own = said(Report("a", "", 0, 0, 0))
        ended.append(enough([own, own]))
        return [said(Report("c", LOG.hex(), 5, 1, 1))]

    monkeypatch.setattr(node.js, "ask", ask)
    node.run(1.0)
    assert ended[0] is False
    assert "node c has data" in node.follower.trouble


class FakeCopy:
    """A copy that breaks off once, and then ends at ``at``."""

    at = Position(LOG)
    chosen: ClassVar[list[str]] = []
    messages = 0

    def __init__(self, _js: object, _replica: object, _cluster_id: str, node: str) -> None:
        self.node = node
        self.chosen.append(node)

    def step(self) -> Position | None:
        if len(self.chosen) == 1:
            raise CopyError("node does not answer")
        return self.at


def test_a_node_behind_the_purge_copies_from_a_follower_and_does_not_lead_before(
    stream: Stream, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(stream, time)
    for _ in range(3):
        first.log.append(b"")
    first.log.purge(3)
    node = Node(stream, "c", time)
    # Nobody has it all: it waits, and says so.
    node.js.reports = [said(report("b", Position(LOG, 1, 0, 1), 1, leads=False))]
    node.run(20.0)
    assert node.stage() is Stage.COPYING
    assert not node.was_elected()
    assert "no node answers that has it all" in node.follower.trouble
    FakeCopy.at = first.log.at
    FakeCopy.chosen.clear()
    monkeypatch.setattr(module, "Copy", FakeCopy)
    node.js.reports = [
        said(first.follower.report()),
        said(report("b", first.log.at, 0, leads=False)),
    ]
    node.run(3.0)
    assert FakeCopy.chosen == ["b", "a"]
    assert node.stage() is Stage.FOLLOWING
    assert node.log.at == first.log.at
    assert node.follower.trouble == ""


def test_a_node_behind_the_purge_keeps_what_it_has_until_another_one_is_copied(
    stream: Stream, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(stream, time)
    node = Node(stream, "c", time)
    node.run(2.0, beats=first)
    before = node.replica.at
    assert before.sequence == 1
    for _ in range(5):
        first.log.append(b"")
    first.log.purge(4)
    node.run(20.0)
    assert node.stage() is Stage.COPYING
    assert node.replica.at == before
    said_now = node.follower.report()
    assert (said_now.sequence, said_now.crc) == (before.sequence, before.crc)

    class Taken(FakeCopy):
        def step(self) -> Position | None:
            node.replica.forsake()
            raise CopyError("node does not answer")

    monkeypatch.setattr(module, "Copy", Taken)
    node.js.reports = [said(first.follower.report())]
    node.run(2.0)
    # From now on its store holds nothing for certain, and it says so.
    assert node.follower.report().sequence == 0
    assert not node.was_elected()


def test_a_node_with_damage_copies_from_another_one_and_does_not_lead_before(
    stream: Stream, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(stream, time)
    node = Node(stream, "c", time)
    node.run(2.0, beats=first)
    node.replica.stored = 1
    assert node.follower.report().stored == 1
    node.replica.damaged = frozenset((b"foo",))
    # The log has everything, and the leader is silent.
    node.run(20.0)
    assert node.stage() is Stage.COPYING
    assert not node.was_elected()
    # No entry may go because this node has stored it: not all of it is there.
    assert node.follower.report().stored == 0
    assert 'channel "foo" is damaged on this node; no node answers' in node.follower.trouble
    FakeCopy.at = first.log.at
    FakeCopy.chosen.clear()

    class Healing(FakeCopy):
        def step(self) -> Position | None:
            node.replica.damaged = frozenset()
            return self.at

    monkeypatch.setattr(module, "Copy", Healing)
    node.js.reports = [said(report("b", first.log.at, 0, leads=False))]
    node.run(1.0, beats=first)
    assert (FakeCopy.chosen, node.stage()) == (["b"], Stage.FOLLOWING)
    assert node.follower.report().stored == 1
    node.js.reports = []
    node.run(20.0)
    assert node.was_elected()


def test_a_node_whose_store_refuses_an_entry_for_damage_does_not_end(
    stream: Stream, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(stream, time)
    node = Node(stream, "c", time)
    node.run(2.0, beats=first)
    first.log.append(b"x")

    def refuse(_entry: Entry, _at: Position) -> None:
        raise BehindError("the local store refused what the log has")

    monkeypatch.setattr(node.replica, "take", refuse)
    with pytest.raises(BehindError):
        node.run(2.0, beats=first)
    node.replica.damaged = frozenset((b"foo",))
    node.run(2.0, beats=first)
    assert node.stage() is Stage.COPYING


def test_a_stream_that_was_put_back_is_read_on_without_a_copy(stream: Stream, time: Time) -> None:
    first = leader(stream, time)
    node = Node(stream, "c", time)
    node.run(2.0, beats=first)
    for _ in range(5):
        first.log.append(b"")
    first.log.purge(4)
    node.run(5.0)
    assert node.stage() is Stage.COPYING
    stream.purged = 0
    node.run(2.0, beats=first)
    assert node.stage() is Stage.FOLLOWING
    assert node.log.at == first.log.at
    assert node.follower.trouble == ""


@pytest.mark.parametrize("purged", [0, 2])
def test_a_store_with_a_hole_is_emptied_only_when_it_can_be_filled_again(
    stream: Stream, time: Time, purged: int
) -> None:
    first = leader(stream, time)
    for _ in range(3):
        first.log.append(b"")
    node = Node(stream, "c", time)
    node.run(2.0, beats=first)
    stream.purged = purged
    node.replica.hole_at = 5
    first.log.append(b"")
    node.run(5.0, beats=first)
    if purged:
        assert node.stage() is Stage.COPYING
        assert (node.replica.unsound, node.replica.emptied) == (True, 0)
    else:
        assert node.stage() is Stage.FOLLOWING
        assert (node.replica.unsound, node.replica.emptied) == (False, 1)
        assert node.replica.at == first.log.at


def test_messages_of_a_follower_expire_by_the_clock_of_the_leader(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    # A leader of an earlier release does not say.
    assert set(node.replica.store.ticks) == {0}
    for theirs in (5_000, 4_000):
        beat = replace(first.follower.report(), time=theirs)
        node.replica.store.ticks.clear()
        for _ in range(30):
            node.js.waiting.append(beat.encode())
            node.run(0.05)
        assert set(node.replica.store.ticks[-1:]) == {theirs}
    assert not node.was_elected()


def test_a_node_with_data_says_so_before_it_has_found_the_stream(time: Time) -> None:
    stream = Stream()
    at = Position(LOG, 100, 5, 1, "a")
    started = [Node(stream, name, time, at).follower.report() for name in ("b", "c")]
    assert [(one.incarnation, one.sequence, one.crc) for one in started] == [
        (LOG.hex(), 100, 5)
    ] * 2
    # It is no node that could lead, or be copied.
    assert started[0].trouble == "looking for the log"
    founder = Node(stream, "a", time)
    founder.js.reports = [said(one) for one in started]
    founder.run(5.0)
    assert stream.config is None
    assert "node b has data" in founder.follower.trouble


def test_nobody_leads_a_log_that_lacks_what_a_node_knows_that_just_starts(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    first.log.append(b"acked")
    known = first.log.at
    del stream.entries[-1]
    node.js.reports = [said(Node(stream, "c", time, known).follower.report())]
    node.run(10.0)
    assert not node.was_elected()
    assert "node c knows of entry 2" in node.follower.trouble


def test_the_trouble_of_a_node_is_over_when_it_follows_a_leader(stream: Stream, time: Time) -> None:
    first = leader(stream, time)
    node = Node(stream, "b", time)
    node.run(2.0, beats=first)
    first.log.append(b"acked")
    node.js.waiting.append(first.follower.report().encode())
    stream.hidden = 1
    node.run(3.0)
    assert "this node has heard of entry 2" in node.follower.trouble
    stream.hidden = 0
    third = Node(stream, "c", time)
    third.run(10.0)
    assert third.was_elected()
    node.run(2.0, beats=third)
    assert node.log.at == third.log.at
    assert node.follower.report().trouble == ""


def test_a_node_keeps_its_trouble_while_it_follows_one_with_its_own_id(
    stream: Stream, time: Time
) -> None:
    first = leader(stream, time)
    twin = Node(stream, "a", time)
    twin.run(2.0, beats=first)
    first.log.append(b"")
    twin.run(0.05)
    assert twin.log.at == first.log.at
    assert "another server runs with the node id" in twin.follower.trouble


def test_nodes_whose_copy_breaks_off_are_asked_in_turn(
    stream: Stream, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = leader(stream, time)
    for _ in range(3):
        first.log.append(b"")
    first.log.purge(3)
    chosen: list[str] = []

    class Refused(FakeCopy):
        def step(self) -> Position | None:
            chosen.append(self.node)
            raise CopyError("a channel is damaged")

    monkeypatch.setattr(module, "Copy", Refused)
    node = Node(stream, "c", time)
    reports = [report(name, first.log.at, 0, leads=name == "a") for name in "abde"]
    # Of the first one a repair has found messages lost: it is the last one to be copied.
    reports[1] = replace(reports[1], lacks=True)
    node.js.reports = [said(one) for one in reports]
    node.run(6.0)
    assert chosen[:8] == ["d", "e", "a", "b", "d", "e", "a", "b"]


def test_a_report_of_somebody_with_half_a_character_for_a_name_is_none() -> None:
    said = Report("n1", "aa", 1, 2, 3, leads=True)
    assert decode_report(said.encode()) == said
    assert decode_report(replace(said, node="\ud800").encode()) is None
    assert decode_report(replace(said, life="a\nb").encode()) is None


@pytest.mark.parametrize("value", [-1, 1 << 63])
@pytest.mark.parametrize("field_", ["sequence", "seen", "epoch", "crc", "stored", "time"])
def test_a_report_with_a_number_that_no_log_has_is_none(field_: str, value: int) -> None:
    said: dict[str, Any] = asdict(Report("n1", "aa", 1, 2, 3, leads=True))
    assert decode_report(Report(**said).encode()) is not None
    assert decode_report(Report(**{**said, field_: value}).encode()) is None
