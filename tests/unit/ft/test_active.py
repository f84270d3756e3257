"""What an active does with heartbeats: it sends them, it never obeys one."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.ft.active import (
    Action,
    Active,
    Confirmed,
    ConfirmNow,
    EpochRaised,
    Event,
    LockRegained,
    PhaseChanged,
    SendHeartbeat,
)
from ftstan.ft.heartbeat import BeatPhase, Heartbeat, decode_heartbeat
from ftstan.ft.standby import HeartbeatHeard, Level, Log, SetTimer, Started, Stopped, TimerFired

STORE = bytes(range(16))
NOW_NS = 1_700_000_000_000_000_000
MINE = Heartbeat("ME", NOW_NS, epoch=5, store_id=STORE)
PEER = replace(MINE, server_id="PEER")
ORIGINAL = Heartbeat("GOPEER", NOW_NS + 5)


class Node:
    def __init__(self) -> None:
        self.machine = Active(MINE, random.Random(3))
        self.now = 10.0
        self.timer = 0.0
        self.sent: list[Heartbeat] = []

    def on(self, event: Event) -> list[Action]:
        """Everything but the timer; what was sent is decoded into ``sent`` too."""
        actions = self.machine.handle(event, self.now)
        for action in actions:
            if isinstance(action, SetTimer):
                self.timer = action.at
            if isinstance(action, SendHeartbeat):
                beat = decode_heartbeat(action.payload)
                assert beat is not None
                self.sent.append(beat)
        return [action for action in actions if not isinstance(action, SetTimer)]

    def heard_original(self) -> bool:
        return self.machine.heard_original

    def wait(self, late: float = 0.0) -> list[Action]:
        self.now = self.timer + late
        return self.on(TimerFired())


@pytest.fixture
def node() -> Node:
    node = Node()
    node.on(Started())
    assert node.sent == [replace(MINE, phase=BeatPhase.ACTIVATING)]
    return node


def test_the_first_heartbeat_is_sent_at_once_and_the_others_at_one_interval(node: Node) -> None:
    times = [node.now]
    for _ in range(4):
        assert len(node.wait()) == 1
        times.append(node.now)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 0.9 <= gaps[0] <= 1.1
    assert gaps == pytest.approx([gaps[0]] * 4)
    assert node.sent == [node.sent[0]] * 5


def test_an_epoch_that_was_raised_while_serving_is_told_with_the_next_heartbeat(node: Node) -> None:
    assert node.on(EpochRaised(6)) == []
    node.wait()
    assert node.sent[-1].epoch == 6
    node.on(PhaseChanged(BeatPhase.SERVING))
    node.wait()
    assert node.sent[-1] == replace(MINE, epoch=6, phase=BeatPhase.SERVING)
    assert node.on(HeartbeatHeard(replace(PEER, epoch=6))) != [ConfirmNow()]


def test_the_phase_is_told_with_the_next_heartbeat(node: Node) -> None:
    assert node.on(PhaseChanged(BeatPhase.SERVING)) == []
    node.wait()
    assert node.sent[-1] == replace(MINE, phase=BeatPhase.SERVING)


def test_an_owner_that_stole_the_store_tells_when_it_has_the_lock() -> None:
    node = Node()
    node.machine = Active(replace(MINE, has_lock=False), random.Random(3))
    node.on(Started())
    assert node.on(PhaseChanged(BeatPhase.SERVING)) == []
    node.wait()
    assert node.on(LockRegained()) == []
    node.wait()
    assert [beat.has_lock for beat in node.sent] == [False, False, True]
    assert node.sent[-1].phase is BeatPhase.SERVING


def test_our_own_echo_does_not_disturb_the_cadence(node: Node) -> None:
    due = node.timer
    node.now += 0.5
    assert node.on(HeartbeatHeard(MINE)) == []
    assert node.timer == due
    node.now = due - 0.2
    assert node.on(TimerFired()) == []
    assert node.timer == due


def test_a_higher_epoch_makes_us_ask_storage_and_nothing_else(node: Node) -> None:
    node.now += 0.5
    assert node.on(HeartbeatHeard(replace(PEER, epoch=6))) == [ConfirmNow()]


def test_after_storage_said_ours_a_forged_epoch_has_changed_nothing(node: Node) -> None:
    for _ in range(20):
        node.now += 0.3
        node.on(HeartbeatHeard(replace(PEER, epoch=2**60)))
        node.on(Confirmed())
    assert len(node.sent) > 5
    assert node.sent[-1].epoch == 5


def test_no_heartbeat_is_sent_while_storage_has_not_answered(node: Node) -> None:
    node.now += 0.5
    assert node.on(HeartbeatHeard(replace(PEER, epoch=6))) == [ConfirmNow()]
    assert node.wait() == []
    assert node.wait() == []
    node.now += 0.1
    assert isinstance(node.on(Confirmed())[0], SendHeartbeat)


def test_a_former_owner_is_answered_at_once_and_named(node: Node) -> None:
    node.now += 0.5
    line, answer = node.on(HeartbeatHeard(replace(PEER, epoch=4)))
    assert line == Log(Level.ERROR, 'ft: serverID "PEER" claims to be active')
    assert isinstance(answer, SendHeartbeat)


def test_a_member_with_another_store_is_named_and_not_answered(node: Node) -> None:
    node.now += 0.5
    (line,) = node.on(HeartbeatHeard(replace(PEER, epoch=9, store_id=bytes(16))))
    assert isinstance(line, Log)
    assert "another datastore" in line.text


@pytest.mark.parametrize("peer_ns", [NOW_NS - 10**15, NOW_NS, NOW_NS + 10**15])
def test_after_an_original_server_was_heard_and_storage_confirmed_ours_is_the_older_time(
    node: Node, peer_ns: int
) -> None:
    node.now += 0.5
    assert not node.heard_original()
    assert node.on(HeartbeatHeard(replace(ORIGINAL, activated_ns=peer_ns))) == [
        Log(Level.ERROR, 'ft: serverID "GOPEER" claims to be active'),
        ConfirmNow(),
    ]
    assert node.heard_original()
    assert len(node.sent) == 1
    node.on(Confirmed())
    assert node.sent[-1].activated_ns < peer_ns


def test_a_forged_time_at_the_end_of_the_range_breaks_nothing(node: Node) -> None:
    node.now += 0.5
    oldest = -(2**63) * 1_000_000_000
    node.on(HeartbeatHeard(replace(ORIGINAL, activated_ns=oldest)))
    node.on(Confirmed())
    assert node.sent[-1].activated_ns == -62_135_596_800 * 1_000_000_000


def test_an_unreadable_time_is_logged_in_the_original_words_and_answered(node: Node) -> None:
    node.now += 0.5
    line, answer = node.on(
        HeartbeatHeard(replace(ORIGINAL, time_error="Time.UnmarshalBinary: no data"))
    )
    assert line == Log(Level.ERROR, "Error decoding activation time: Time.UnmarshalBinary: no data")
    assert isinstance(answer, SendHeartbeat)


def test_a_flood_is_neither_answered_by_a_flood_nor_logged_as_one(node: Node) -> None:
    answers: list[Action] = []
    for _ in range(1000):
        node.now += 0.001
        answers += node.on(HeartbeatHeard(replace(PEER, epoch=4)))
        answers += node.on(HeartbeatHeard(replace(PEER, epoch=6)))
        answers += node.on(Confirmed())
    assert len([a for a in answers if isinstance(a, SendHeartbeat)]) <= 12
    assert len([a for a in answers if isinstance(a, ConfirmNow)]) <= 12
    assert len([a for a in answers if isinstance(a, Log)]) == 1


def test_a_flood_without_an_epoch_costs_two_confirms_in_an_interval_and_no_heartbeat(
    node: Node,
) -> None:
    actions: list[Action] = []
    for _ in range(1000):
        node.now += 0.01
        actions += node.on(HeartbeatHeard(ORIGINAL))
        actions += node.on(Confirmed())
        if node.now >= node.timer:
            actions += node.on(TimerFired())
    assert len([a for a in actions if isinstance(a, ConfirmNow)]) <= 2 * 10 / 0.9 + 1
    assert len(node.sent) >= 10


def test_a_process_that_slept_asks_storage_before_it_says_active_again(node: Node) -> None:
    assert node.wait(late=2.0) == [ConfirmNow()]
    assert len(node.sent) == 1
    node.on(Confirmed())
    assert len(node.sent) == 2


def test_who_has_not_started_says_nothing() -> None:
    node = Node()
    for event in (TimerFired(), Confirmed(), HeartbeatHeard(PEER), HeartbeatHeard(ORIGINAL)):
        assert node.on(event) == []
    assert node.sent == []


def test_a_confirmation_that_nobody_asked_for_sends_nothing(node: Node) -> None:
    node.now += 0.8
    assert node.on(Confirmed()) == []
    assert node.on(HeartbeatHeard(replace(PEER, epoch=6))) == [ConfirmNow()]
    node.on(Stopped())
    node.now += 0.8
    assert node.on(Confirmed()) == []
    assert len(node.sent) == 1


def test_a_stopped_node_is_silent(node: Node) -> None:
    node.on(Stopped())
    node.now += 5
    assert node.on(TimerFired()) == []
    assert node.on(HeartbeatHeard(ORIGINAL)) == []
    assert node.on(Confirmed()) == []


@given(
    st.lists(
        st.tuples(st.sampled_from([4, 5, 6, 2**60]), st.integers(-(2**70), 2**70), st.booleans()),
        max_size=20,
    )
)
def test_whatever_is_heard_heartbeats_go_on_while_storage_confirms(
    heard: list[tuple[int, int, bool]],
) -> None:
    node = Node()
    node.on(Started())
    for epoch, time_ns, ours in heard:
        node.now += 0.01
        beat = replace(PEER, epoch=epoch) if ours else replace(ORIGINAL, activated_ns=time_ns)
        node.on(HeartbeatHeard(beat))
        node.on(Confirmed())
    before = len(node.sent)
    node.wait()
    node.on(Confirmed())
    assert len(node.sent) == before + 1
