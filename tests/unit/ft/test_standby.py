"""The standby's state machine: when it tries the lock, what it says, and what it never does."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.base.states import NodeState, Phase
from ftstan.ft.epoch_records import Cause, EpochRecord
from ftstan.ft.heartbeat import Heartbeat
from ftstan.ft.mixed import MIXED_ON
from ftstan.ft.standby import (
    Action,
    Activate,
    ActivationFailed,
    ActivationLost,
    Event,
    HeartbeatHeard,
    Level,
    Log,
    NatsDown,
    NatsUp,
    Paused,
    ReadStore,
    ReleasedHeard,
    ReleaseLock,
    Resumed,
    Retimed,
    SetTimer,
    Standby,
    Started,
    Steal,
    Stopped,
    StoreSeen,
    TimerFired,
    TryDone,
    TryLock,
    TryResult,
    YieldTo,
)
from ftstan.ft.subjects import Released
from ftstan.ft.timing import FtTiming
from ftstan.ft.watch import farewell

STORE = bytes(range(16))
OTHER_STORE = bytes(16)
ME = "ME"
PEER = Heartbeat("PEER", 1_700_000_000_000_000_000, epoch=5, store_id=STORE)
ORIGINAL = Heartbeat("GOPEER", 1_700_000_000_000_000_000)
RELEASED = Released("PEER", 5, STORE)
#: What a look under suspicion shows while PEER owns the store.
OWNER = EpochRecord(
    5, 5, "PEER", b"n" * 16, STORE, "host-p", 77, 1_700_000_000_000_000_000, 1, ft_mixed=False
)
SUSPICIOUS = TryLock(suspicious=True, expect=STORE)
BUSY = TryDone(TryResult.BUSY)
REFUSED = TryDone(TryResult.BUSY, STORE, owner=OWNER, watch=b"epoch 5, probe 1")
GRANTED = TryDone(TryResult.GRANTED, STORE)
#: What an owner leaves that stops before it has the lock that it took the store without.
GONE = replace(REFUSED, watch=farewell(OWNER.epoch, OWNER.server_id))
NOTICE = Log(Level.INFO, "ft: unable to get store lock at this time, going back to standby")
# Slow polling keeps histories readable where polling is not the point.
NO_POLL = FtTiming(poll_interval=1000.0, look_interval=1000.0)


class Node:
    """A machine with a clock: events happen at ``now``, the timer that it set can be waited for."""

    def __init__(
        self,
        timing: FtTiming | None = None,
        *,
        store: bytes | None = STORE,
        mixed: bool | None = None,
        seed: int = 1,
    ):
        self.machine = Standby(ME, random.Random(seed), timing, mixed=mixed, store_id=store)
        self.first_try = TryLock() if store else TryLock(suspicious=True)
        self.now = 100.0
        self.timer: float | None = None

    def on(self, event: Event) -> list[Action]:
        actions = self.machine.handle(event, self.now)
        for action in actions:
            if isinstance(action, SetTimer):
                self.timer = action.at
        return [action for action in actions if not isinstance(action, SetTimer)]

    def state(self) -> NodeState:
        return self.machine.state

    def phase(self) -> Phase:
        return self.machine.phase

    def mixed(self) -> bool:
        return self.machine.mixed

    def wait(self) -> list[Action]:
        """Let the timer fire."""
        assert self.timer is not None
        self.now = max(self.now, self.timer)
        self.timer = None
        return self.on(TimerFired())

    def stand_by(self) -> None:
        """Started, on NATS, and the first try was refused."""
        self.on(NatsUp())
        assert self.on(Started()) == [Log(Level.INFO, "Starting in standby mode")]
        assert self.wait() == [self.first_try]
        self.on(BUSY)


def test_a_starting_node_listens_briefly_and_then_tries() -> None:
    node = Node()
    node.on(NatsUp())
    node.on(Started())
    assert node.phase() is Phase.LISTENING
    assert node.wait() == [TryLock()]
    assert 0.09 <= node.now - 100.0 <= 0.11


def test_a_timer_is_set_when_it_is_another_one_and_never_to_no_time() -> None:
    machine = Standby(ME, random.Random(1), NO_POLL, store_id=STORE)
    assert machine.handle(Retimed(NO_POLL), 1.0) == []
    machine.handle(NatsUp(), 1.0)
    times = [a.at for a in machine.handle(Started(), 1.0) if isinstance(a, SetTimer)]
    assert len(times) == 1
    assert machine.handle(Retimed(NO_POLL), 1.01) == []
    # It has fired a hair too early, and is set again.
    assert machine.handle(TimerFired(), 1.02) == [SetTimer(times[0])]


@pytest.mark.parametrize("store", [b"", None], ids=["never used", "unreadable"])
def test_where_nothing_shows_the_groups_store_a_starting_node_hears_a_whole_interval_first(
    store: bytes | None,
) -> None:
    """A share that is not mounted looks like a new store.

    The group, if there is one, must have time to be heard.
    """
    node = Node(store=store)
    node.on(NatsUp())
    node.on(Started())
    assert node.wait() == [TryLock(suspicious=True, expect=None)]
    assert 1.125 <= node.now - 100.0 <= 1.375


def test_an_owner_that_is_heard_before_the_directory_could_be_read_is_waited_for() -> None:
    node = Node(NO_POLL, store=None)
    node.on(NatsUp())
    node.on(Started())
    node.now += 1.0
    assert node.on(HeartbeatHeard(PEER)) == [ReadStore()]
    assert node.timer is not None
    assert 1.125 <= node.timer - node.now <= 1.375


def test_a_granted_lock_activates() -> None:
    node = Node()
    node.on(NatsUp())
    node.on(Started())
    node.wait()
    assert node.state() is NodeState.STANDBY
    assert node.on(GRANTED) == [Activate()]
    assert node.state() is NodeState.ACTIVE
    assert node.phase() is Phase.ACTIVE


def test_nothing_is_tried_without_nats_and_the_start_is_repeated_when_it_comes() -> None:
    node = Node()
    node.on(Started())
    assert node.timer is None
    assert node.phase() is Phase.WAITING_FOR_NATS
    assert node.on(TimerFired()) == []
    node.now += 50
    node.on(NatsUp())
    assert node.wait() == [TryLock()]
    assert node.now < 150.2


def test_silence_for_the_missed_interval_makes_a_standby_try() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    started = node.now
    assert node.wait() == [SUSPICIOUS]
    assert node.phase() is Phase.TRYING
    assert 1.0 <= node.now - started <= 1.375


@given(st.integers())
def test_the_missed_interval_is_drawn_once_within_a_tenth(seed: int) -> None:
    node = Node(NO_POLL, seed=seed)
    node.stand_by()
    waits = []
    for _ in range(4):
        node.on(HeartbeatHeard(PEER))
        heard = node.now
        assert node.wait() == [SUSPICIOUS]
        waits.append(node.now - heard)
        node.on(BUSY)
    assert 1.125 <= waits[0] <= 1.375
    assert waits == pytest.approx([waits[0]] * 4)


def test_each_heartbeat_restarts_the_suspicion() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    for _ in range(20):
        node.now += 1.0
        assert node.on(HeartbeatHeard(PEER)) == []
        assert node.on(TimerFired()) == []
    last = node.now
    assert node.wait() == [SUSPICIOUS]
    assert node.now - last >= 1.125


@pytest.mark.parametrize(
    "beat",
    [
        replace(PEER, server_id=ME),
        replace(PEER, epoch=4),
        replace(PEER, time_error="Time.UnmarshalBinary: no data"),
        replace(PEER, store_id=OTHER_STORE),
        replace(ORIGINAL, time_error="Time.UnmarshalBinary: no data"),
    ],
    ids=["our echo", "a former owner", "malformed", "another datastore", "malformed original"],
)
def test_a_message_that_is_no_heartbeat_of_the_owner_restarts_nothing(beat: Heartbeat) -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    due = node.now + 1.375
    for _ in range(3):
        node.now += 0.3
        node.on(HeartbeatHeard(beat))
    assert node.wait() == [SUSPICIOUS]
    assert node.now <= due


def test_the_lock_is_polled_while_standing_by_without_notices() -> None:
    node = Node()
    node.stand_by()
    polls = []
    for _ in range(40):
        node.on(HeartbeatHeard(PEER))
        before = node.now
        assert node.wait() == [TryLock()]
        polls.append(node.now - before)
        assert node.phase() is Phase.LISTENING
        assert node.on(BUSY) == []
    assert 0.04 <= min(polls) < 0.05 < max(polls) <= 0.06


def test_the_lock_of_a_share_that_was_mounted_since_is_polled_as_one() -> None:
    node = Node()
    node.stand_by()
    node.on(Retimed(FtTiming(poll_interval=0.5)))
    # The one that was planned before still comes.
    assert node.wait() == [TryLock()]
    node.on(BUSY)
    assert node.timer is not None
    assert 0.4 <= node.timer - node.now <= 0.6


def test_a_dead_owner_is_replaced_at_the_next_poll_long_before_suspicion() -> None:
    node = Node()
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    died = node.now
    assert node.wait() == [TryLock()]
    assert node.on(GRANTED) == [Activate()]
    assert node.now - died <= 0.06


def test_a_mixed_group_is_not_polled() -> None:
    node = Node(mixed=True)
    node.stand_by()
    started = node.now
    assert node.wait() == [SUSPICIOUS]
    assert node.now - started >= 1.0


def test_in_a_mixed_group_an_original_server_counts_as_owner() -> None:
    node = Node(mixed=True)
    node.stand_by()
    node.now += 0.5
    node.on(HeartbeatHeard(ORIGINAL))
    heard = node.now
    assert node.wait() == [replace(SUSPICIOUS, served=True)]
    assert node.now - heard >= 1.125


def flood(node: Node, seconds: float, until: type[Action]) -> float:
    """Heartbeats without an epoch, a hundred a second, until the machine does that.

    The seconds until then.
    """
    began = node.now
    while node.now - began < seconds:
        node.now += 0.01
        assert not {TryLock, Steal} & {type(action) for action in node.on(HeartbeatHeard(ORIGINAL))}
        assert not node.mixed()
        while node.timer is not None and node.timer <= node.now:
            actions = node.wait()
            if until in {type(action) for action in actions}:
                return node.now - began
    raise AssertionError(f"nothing in {seconds} s")


@pytest.mark.parametrize(
    ("timing", "longest"), [(None, 0.08), (NO_POLL, 1.4)], ids=["polls", "suspects"]
)
def test_a_flood_of_heartbeats_without_an_epoch_delays_no_takeover(
    timing: FtTiming | None, longest: float
) -> None:
    node = Node(timing)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    assert flood(node, 40, TryLock) <= longest
    assert Activate in {type(action) for action in node.on(GRANTED)}


def test_beside_a_group_that_nobody_could_look_at_an_original_server_is_let_be() -> None:
    node = Node(store=None)
    node.on(NatsUp())
    node.on(Started())
    for _ in range(10):
        node.now += 0.9
        node.on(HeartbeatHeard(ORIGINAL))
    heard = node.now
    assert node.wait() == [TryLock(suspicious=True, served=True)]
    assert node.now - heard >= 1.125


def test_released_makes_a_standby_try_at_once() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    assert node.on(ReleasedHeard(RELEASED)) == [TryLock()]


def cause_of(actions: list[Action]) -> tuple[Cause, int]:
    (activate,) = [action for action in actions if isinstance(action, Activate)]
    return activate.cause, activate.after


def test_an_activation_says_that_the_lock_was_found_free_and_whose_it_was() -> None:
    node = Node()
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    assert node.wait() == [TryLock()]
    assert cause_of(node.on(GRANTED)) == (Cause.LOCK_FREE, PEER.epoch)


def test_an_activation_after_silence_says_so() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    assert node.wait() == [SUSPICIOUS]
    assert cause_of(node.on(GRANTED)) == (Cause.SILENCE, PEER.epoch)


def test_an_activation_names_the_epoch_that_was_released() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    node.on(ReleasedHeard(RELEASED))
    assert cause_of(node.on(GRANTED)) == (Cause.RELEASED, RELEASED.epoch)


def test_a_release_that_another_member_followed_is_not_the_cause_any_more() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(ReleasedHeard(RELEASED))
    node.on(BUSY)
    node.on(HeartbeatHeard(replace(PEER, epoch=RELEASED.epoch + 1)))
    assert node.wait() == [SUSPICIOUS]
    assert cause_of(node.on(GRANTED)) == (Cause.SILENCE, RELEASED.epoch + 1)


def test_released_during_a_try_makes_it_try_once_more() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.wait()
    assert node.on(ReleasedHeard(RELEASED)) == []
    assert node.on(BUSY) == [TryLock()]
    assert node.on(GRANTED) == [Activate()]


@pytest.mark.parametrize(
    "released",
    [
        replace(RELEASED, server_id=ME),
        replace(RELEASED, epoch=4),
        replace(RELEASED, store_id=OTHER_STORE),
    ],
    ids=["our own", "an older epoch", "another datastore"],
)
def test_a_release_that_is_not_the_owners_changes_nothing(released: Released) -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    assert node.on(ReleasedHeard(released)) == []


def test_refused_suspicions_are_noted_at_a_falling_rate() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    started = node.now
    notes = []
    for _ in range(60):
        assert node.wait() == [SUSPICIOUS]
        if NOTICE in node.on(BUSY):
            notes.append(node.now - started)
    assert len(notes) < 9
    gaps = [later - earlier for earlier, later in itertools.pairwise(notes)]
    assert gaps == sorted(gaps)


def test_the_notice_is_followed_by_who_took_the_store_last() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.wait()
    notice, holder = node.on(REFUSED)
    assert notice == NOTICE
    assert isinstance(holder, Log)
    assert holder.level is Level.INFO
    assert all(
        word in holder.text
        for word in ("epoch 5", "server PEER", "host host-p", "pid 77", "since 2023-11-14")
    )


def test_the_holder_of_a_store_that_was_never_ours_is_not_invented() -> None:
    node = Node(NO_POLL, store=b"")
    node.on(NatsUp())
    node.on(Started())
    node.wait()
    _, holder = node.on(TryDone(TryResult.BUSY, b"", watch=b""))
    assert isinstance(holder, Log)
    assert "no ftstan server ever owned it" in holder.text


def test_a_fault_comes_with_advice() -> None:
    node = Node()
    node.stand_by()
    node.wait()
    (line,) = node.on(
        TryDone(TryResult.FAULT, error="open /s/x: stale (ESTALE)", hint="remount the datastore")
    )
    assert isinstance(line, Log)
    assert line.text.endswith(
        "ft: fatal error getting the store lock: open /s/x: stale (ESTALE); remount the datastore"
    )


def test_a_fault_is_an_error_line_and_is_not_hammered() -> None:
    node = Node()
    node.stand_by()
    node.wait()
    fault = TryDone(TryResult.FAULT, error="open /s/.rootdir.lck: permission denied (EACCES)")
    assert node.on(fault) == [
        Log(
            Level.ERROR,
            "ft: error attempting to get the store lock: ft: fatal error getting the store lock: "
            "open /s/.rootdir.lck: permission denied (EACCES)",
        )
    ]
    failed = node.now
    assert node.wait() == [SUSPICIOUS]
    assert node.now - failed > 0.5
    assert node.state() is NodeState.STANDBY


def test_storage_that_does_not_answer_is_a_state_and_not_a_second_try() -> None:
    node = Node()
    node.stand_by()
    assert node.wait() == [TryLock()]
    since = node.now
    assert node.wait() == [
        Log(Level.WARNING, "ft: storage has not answered for 5s: waiting for storage lock")
    ]
    assert node.now == since + 5.0
    assert node.phase() is Phase.WAITING_FOR_STORAGE
    assert node.state() is NodeState.STANDBY
    for _ in range(10):
        assert TryLock() not in node.wait()
        assert TryLock() not in node.on(ReleasedHeard(RELEASED))
    assert node.on(GRANTED) == [Activate()]


def test_a_grant_after_nats_was_lost_is_given_back() -> None:
    node = Node()
    node.stand_by()
    node.wait()
    node.on(NatsDown())
    assert node.on(GRANTED) == [ReleaseLock()]
    assert node.state() is NodeState.STANDBY
    node.timer = None
    assert node.on(TimerFired()) == []


@pytest.mark.parametrize("event", [Paused(), Stopped(), ActivationFailed()])
def test_a_grant_to_a_node_that_may_not_serve_any_more_is_given_back(event: Event) -> None:
    node = Node()
    node.stand_by()
    node.wait()
    node.on(event)
    assert node.on(GRANTED) == [ReleaseLock()]


def test_a_grant_that_nobody_asked_for_is_given_back() -> None:
    node = Node()
    node.stand_by()
    assert node.on(GRANTED) == [ReleaseLock()]
    assert node.on(BUSY) == []


def test_after_nats_came_back_the_owner_has_time_to_be_heard_but_the_lock_is_looked_at() -> None:
    node = Node()
    node.stand_by()
    node.on(NatsDown())
    node.now += 10
    node.on(NatsUp())
    assert node.wait() == [TryLock()]
    assert node.on(BUSY) == []


def test_being_told_twice_that_nats_is_up_does_not_postpone_suspicion() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    due = node.timer
    node.now += 0.5
    node.on(NatsUp())
    assert node.timer == due


def test_a_paused_node_waits_for_its_operator() -> None:
    node = Node()
    node.stand_by()
    node.on(Paused())
    assert node.phase() is Phase.PAUSED
    node.now += 100
    assert node.on(TimerFired()) == []
    assert node.on(ReleasedHeard(RELEASED)) == []
    node.on(Resumed())
    assert node.wait() == [TryLock()]


def test_a_node_with_another_datastore_than_its_group_never_tries_and_says_so() -> None:
    node = Node(store=OTHER_STORE)
    node.stand_by()
    assert node.on(HeartbeatHeard(PEER)) == [ReadStore()]
    (complaint,) = node.on(StoreSeen(OTHER_STORE))
    assert isinstance(complaint, Log)
    assert complaint.level is Level.ERROR
    assert STORE.hex() in complaint.text
    assert OTHER_STORE.hex() in complaint.text
    assert node.phase() is Phase.WRONG_STORE
    lines = []
    for _ in range(20):
        assert node.wait() == [ReadStore()]
        lines += node.on(StoreSeen(OTHER_STORE))
    assert 0 < len(lines) < 8
    assert node.on(ReleasedHeard(replace(RELEASED, store_id=OTHER_STORE))) == []


def test_when_the_groups_datastore_appears_the_node_takes_part_again() -> None:
    node = Node(store=b"")
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    node.on(StoreSeen(b""))
    assert node.phase() is Phase.WRONG_STORE
    node.on(HeartbeatHeard(PEER))
    assert node.on(StoreSeen(STORE)) == []
    assert node.phase() is Phase.LISTENING
    assert node.wait() == [TryLock()]


def test_a_store_that_was_just_born_alarms_nobody() -> None:
    node = Node(store=b"")
    node.stand_by()
    assert node.on(HeartbeatHeard(PEER)) == [ReadStore()]
    assert node.on(HeartbeatHeard(PEER)) == []
    assert node.on(StoreSeen(STORE)) == []
    assert node.phase() is Phase.LISTENING


def test_a_grant_on_an_empty_directory_is_given_back_when_the_group_had_a_store() -> None:
    node = Node(store=None)
    node.stand_by()
    assert node.on(HeartbeatHeard(PEER)) == [ReadStore()]
    assert node.on(StoreSeen(None)) == []
    node.wait()
    complaint, given_back = node.on(TryDone(TryResult.GRANTED, b""))
    assert given_back == ReleaseLock()
    assert isinstance(complaint, Log)
    assert "shows none" in complaint.text
    assert node.phase() is Phase.WRONG_STORE


def test_forged_heartbeats_of_another_store_do_not_stop_a_member_that_heard_its_own() -> None:
    node = Node()
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    for _ in range(30):
        node.on(HeartbeatHeard(replace(PEER, server_id="FORGED", store_id=OTHER_STORE)))
        node.on(StoreSeen(STORE))
    assert node.phase() is Phase.LISTENING
    assert node.wait() == [TryLock()]
    assert node.on(GRANTED) == [Activate()]


def test_forged_heartbeats_of_our_own_store_do_not_keep_the_lock_from_being_looked_at() -> None:
    node = Node()
    node.stand_by()
    for _ in range(10):
        node.on(HeartbeatHeard(replace(PEER, server_id="FORGED", epoch=2**62)))
        assert node.wait() == [TryLock()]
        node.on(BUSY)
    node.wait()
    assert node.on(GRANTED) == [Activate()]


def test_a_lost_activation_goes_back_to_standby_and_gives_the_winner_time() -> None:
    node = Node()
    node.stand_by()
    node.wait()
    node.on(GRANTED)
    (line,) = node.on(ActivationLost("ft: epoch 6 was not obtained"))
    assert line == Log(Level.WARNING, "ft: going back to standby: ft: epoch 6 was not obtained")
    assert node.state() is NodeState.STANDBY
    lost = node.now
    assert node.wait() == [SUSPICIOUS]
    assert node.now - lost >= 1.125


def tries(actions: list[Action]) -> bool:
    return any(isinstance(action, TryLock) for action in actions)


def refused(node: Node) -> tuple[Log, float]:
    """Activate, and let storage refuse it; the line, and the pause until the next try."""
    (line,) = node.on(ActivationLost("server.dat is damaged; see docs", refused=True))
    assert isinstance(line, Log)
    since = node.now
    assert node.phase() is Phase.BACKING_OFF
    while not tries(node.wait()):
        pass
    return line, node.now - since


def test_an_activation_that_storage_refuses_is_tried_again_after_ever_longer_pauses() -> None:
    node = Node()
    node.stand_by()
    node.wait()
    pauses = []
    for _ in range(9):
        assert node.on(GRANTED) == [Activate()]
        line, pause = refused(node)
        assert line.level is Level.ERROR
        assert line.text.startswith(
            "ft: this server could not become active: server.dat is damaged; see docs; "
        )
        assert f"next try in {pause:.1f}s" in line.text
        pauses.append(pause)
    for pause, nominal in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert 0.8 * nominal <= pause <= 1.2 * nominal
    assert len({round(pause, 3) for pause in pauses[-3:]}) == 3


def test_while_backing_off_neither_silence_nor_released_makes_a_node_try() -> None:
    node = Node()
    node.stand_by()
    for _ in range(6):
        while not tries(node.wait()):
            pass
        node.on(GRANTED)
        node.on(ActivationLost("x", refused=True))
        assert not tries(node.on(ReleasedHeard(RELEASED)))
        assert not tries(node.on(NatsDown()))
        assert not tries(node.on(NatsUp()))
        assert node.phase() is Phase.BACKING_OFF


def test_the_end_states_are_shown() -> None:
    failed = Node()
    stopped = Node()
    failed.on(ActivationFailed())
    stopped.on(Stopped())
    assert (failed.state(), failed.phase()) == (NodeState.FAILED, Phase.FAILED)
    assert (stopped.state(), stopped.phase()) == (NodeState.SHUTDOWN, Phase.STOPPED)
    assert Node().phase() is Phase.STARTING


def test_a_timer_that_fires_too_early_is_set_again() -> None:
    node = Node()
    node.on(NatsUp())
    node.on(Started())
    due = node.timer
    node.timer = None
    assert node.on(TimerFired()) == []
    assert node.timer == due


def test_an_attempt_under_suspicion_says_which_datastore_it_expects() -> None:
    node = Node(NO_POLL, store=b"")
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    node.on(StoreSeen(STORE))
    assert node.wait() == [SUSPICIOUS]


def test_a_directory_that_is_emptied_while_standing_by_is_not_the_groups_store_any_more() -> None:
    """Nobody was ever heard; that it once showed a datastore is enough."""
    node = Node()
    node.stand_by()
    (line,) = node.on(StoreSeen(b""))
    assert isinstance(line, Log)
    assert line.level is Level.ERROR
    assert "this server stood by for the datastore " + STORE.hex() in line.text
    assert "shows none" in line.text
    assert node.phase() is Phase.WRONG_STORE
    for _ in range(20):
        assert TryLock() not in node.wait()
        assert node.phase() is Phase.WRONG_STORE
        node.on(StoreSeen(b""))
    assert node.on(StoreSeen(STORE)) == []
    assert node.phase() is Phase.LISTENING
    assert node.wait() == [TryLock()]


def test_an_attempt_that_was_not_made_leads_to_no_activation() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    assert node.wait() == [SUSPICIOUS]
    (line,) = node.on(TryDone(TryResult.NOT_ASKED, b""))
    assert isinstance(line, Log)
    assert node.phase() is Phase.WRONG_STORE
    assert node.wait() == [ReadStore()]


def test_another_store_in_the_directory_counts_only_when_its_owner_is_heard() -> None:
    node = Node()
    node.stand_by()
    node.on(StoreSeen(OTHER_STORE))
    assert node.phase() is Phase.WRONG_STORE
    node.on(HeartbeatHeard(replace(PEER, store_id=OTHER_STORE)))
    assert node.phase() is Phase.LISTENING
    assert node.wait() == [TryLock()]


def test_a_store_that_was_lost_stays_the_groups_store_for_a_member_that_heard_its_owner() -> None:
    node = Node()
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    node.on(HeartbeatHeard(replace(PEER, server_id="FORGED", store_id=OTHER_STORE)))
    node.now += 10
    (line,) = node.on(StoreSeen(b""))
    assert isinstance(line, Log)
    assert STORE.hex() in line.text
    node.on(StoreSeen(OTHER_STORE))
    assert node.phase() is Phase.WRONG_STORE


def test_beside_an_active_original_a_directory_that_nobody_served_from_is_not_the_groups() -> None:
    node = Node(store=None)
    node.on(NatsUp())
    node.on(Started())
    node.on(StoreSeen(b"", served=False))
    assert node.on(HeartbeatHeard(ORIGINAL))[-1:] == [ReadStore()]
    (line,) = node.on(StoreSeen(b"", served=False))
    assert isinstance(line, Log)
    assert "GOPEER" in line.text
    for _ in range(10):
        assert TryLock not in {type(action) for action in node.wait()}
        node.on(StoreSeen(b"", served=False))
    assert node.phase() is Phase.WRONG_STORE
    # It has just begun: its files appear a moment after its first heartbeat, and say what it is.
    assert node.on(StoreSeen(b"")) == [Log(Level.INFO, MIXED_ON)]
    assert node.wait() == [TryLock(suspicious=True, expect=None, served=True)]


def test_a_stranger_under_the_groups_name_is_told_and_stops_nobody() -> None:
    node = Node()
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    line, read = node.on(HeartbeatHeard(replace(PEER, server_id="STRANGER", store_id=OTHER_STORE)))
    assert isinstance(line, Log)
    assert line.level is Level.ERROR
    assert "STRANGER" in line.text
    assert read == ReadStore()
    assert node.phase() is Phase.LISTENING


def test_the_directory_is_looked_at_now_and_then_while_the_owner_is_well() -> None:
    node = Node(FtTiming(poll_interval=1000.0))
    node.stand_by()
    looks = []
    for _ in range(60):
        node.on(HeartbeatHeard(PEER))
        node.now += 1.0
        if node.on(TimerFired()) == [ReadStore()]:
            looks.append(node.now)
            node.on(StoreSeen(STORE))
    gaps = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert 4 <= len(looks) <= 8
    assert all(8.0 <= gap <= 13.0 for gap in gaps)


def test_a_standby_that_cannot_read_the_store_says_so_before_it_is_needed() -> None:
    node = Node()
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    lines = []
    for _ in range(20):
        lines += node.on(
            StoreSeen(None, error="ft.epoch: Input/output error; check the datastore's storage")
        )
        node.now += 1.0
    assert 0 < len(lines) < 8
    assert lines[0] == Log(
        Level.ERROR,
        "ft: this server could not take over now: ft.epoch: Input/output error; check the "
        "datastore's storage",
    )
    assert node.phase() is Phase.LISTENING


# --- stealing ---

STEAL = FtTiming(poll_interval=1e6, look_interval=1e6, steal_after=10.0)


def refuse(node: Node, done: TryDone, times: int) -> list[Action]:
    """So many suspicions, each refused with ``done``; the last answer's actions."""
    actions: list[Action] = []
    for _ in range(times):
        assert node.wait() == [SUSPICIOUS]
        actions = node.on(done)
    return actions


def test_an_owner_that_is_silent_on_nats_and_storage_is_replaced_without_its_lock() -> None:
    node = Node(STEAL)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    heard = node.now
    actions: list[Action] = []
    while Steal() not in actions:
        actions = refuse(node, REFUSED, 1)
    line = actions[-2]
    assert isinstance(line, Log)
    assert line.level is Level.WARNING
    assert "WITHOUT ITS LOCK" in line.text
    assert "host host-p pid 77" in line.text
    assert 10.0 <= node.now - heard <= 10.0 + 3 * 1.375
    assert node.state() is NodeState.ACTIVE


def test_nothing_is_stolen_unless_the_operator_wants_it() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    for _ in range(500):
        assert Steal() not in refuse(node, REFUSED, 1)


def test_an_owner_that_writes_is_not_stolen_from() -> None:
    node = Node(STEAL)
    node.stand_by()
    for probe in range(100):
        assert Steal() not in refuse(node, replace(REFUSED, watch=b"probe %d" % (probe // 3)), 1)


def test_an_owner_that_is_heard_is_not_stolen_from() -> None:
    node = Node(STEAL)
    node.stand_by()
    for _ in range(100):
        assert Steal() not in refuse(node, REFUSED, 3)
        node.on(HeartbeatHeard(PEER))


def test_a_former_owner_that_still_talks_is_no_sign_of_life() -> None:
    node = Node(STEAL)
    node.stand_by()
    node.on(HeartbeatHeard(PEER))
    actions: list[Action] = []
    for _ in range(12):
        node.on(HeartbeatHeard(replace(PEER, epoch=4)))
        actions = refuse(node, REFUSED, 1)
        if Steal() in actions:
            return
    raise AssertionError(actions)


@pytest.mark.parametrize(
    "done",
    [
        replace(REFUSED, owner=replace(OWNER, ft_mixed=True)),
        replace(REFUSED, owner=None),
        replace(REFUSED, watch=None),
        BUSY,
    ],
    ids=["a mixed group", "never ours", "storage unreadable", "not looked at"],
)
def test_a_store_whose_holder_may_obey_no_epoch_or_cannot_be_seen_is_not_stolen(
    done: TryDone,
) -> None:
    node = Node(STEAL)
    node.stand_by()
    for _ in range(100):
        assert Steal() not in refuse(node, done, 1)


def test_no_member_steals_after_an_original_server_was_heard() -> None:
    node = Node(STEAL)
    node.stand_by()
    node.on(HeartbeatHeard(ORIGINAL))
    for _ in range(100):
        assert node.wait() == [replace(SUSPICIOUS, served=True)]
        assert Steal() not in node.on(REFUSED)


def test_a_store_that_one_of_ours_took_since_is_stolen_after_the_whole_silence_again() -> None:
    node = Node(STEAL)
    node.stand_by()
    node.on(StoreSeen(STORE, owner=OWNER))
    node.on(HeartbeatHeard(ORIGINAL))

    def suspect(done: TryDone) -> list[Action]:
        assert node.wait() == [replace(SUSPICIOUS, served=True)]
        return node.on(done)

    node.on(StoreSeen(STORE, owner=OWNER))
    for _ in range(20):
        assert Steal() not in suspect(REFUSED)
    younger = replace(OWNER, slot=6, epoch=6)
    node.on(StoreSeen(STORE, owner=younger))
    since = node.now
    while Steal() not in suspect(replace(REFUSED, owner=younger)):
        pass
    assert node.now - since >= 10.0


@pytest.mark.parametrize(("gone", "back"), [(NatsDown(), NatsUp()), (Paused(), Resumed())])
def test_a_node_that_could_not_hear_or_try_starts_to_count_anew(gone: Event, back: Event) -> None:
    node = Node(STEAL)
    node.stand_by()
    for _ in range(20):
        assert Steal() not in refuse(node, REFUSED, 5)
        node.on(gone)
        node.on(back)


def test_the_time_that_a_standby_slept_itself_is_not_the_owners_silence() -> None:
    node = Node(STEAL)
    node.stand_by()
    refuse(node, REFUSED, 2)
    node.now += 3600
    assert Steal() not in refuse(node, REFUSED, 1)
    assert Steal() not in refuse(node, REFUSED, 1)


def test_an_owner_that_stopped_without_its_lock_is_replaced_at_once() -> None:
    node = Node(STEAL)
    node.stand_by()
    node.on(HeartbeatHeard(replace(PEER, has_lock=False)))
    assert node.machine.may_follow(STORE, node.now)
    assert node.on(ReleasedHeard(RELEASED)) == [SUSPICIOUS]
    line, steal = node.on(GONE)
    assert isinstance(line, Log)
    assert "WITHOUT ITS LOCK" in line.text
    assert "stopped, and had no lock to give back" in line.text
    assert steal == Steal()


def test_without_a_word_of_storage_an_owner_said_to_have_stopped_is_not_stolen_from() -> None:
    """Words on NATS can be forged."""
    node = Node(STEAL)
    node.stand_by()
    node.on(HeartbeatHeard(replace(PEER, has_lock=False)))
    assert node.on(ReleasedHeard(RELEASED)) == [SUSPICIOUS]
    assert Steal() not in node.on(REFUSED)
    former = replace(REFUSED, watch=farewell(OWNER.epoch - 1, OWNER.server_id))
    for _ in range(3):
        assert Steal() not in refuse(node, former, 1)


@pytest.mark.parametrize(
    ("timing", "mixed"),
    [(NO_POLL, None), (STEAL, True)],
    ids=["the operator does not want it", "a mixed group"],
)
def test_who_takes_no_store_without_its_lock_follows_no_owner_without_it(
    timing: FtTiming, *, mixed: bool | None
) -> None:
    node = Node(timing, mixed=mixed)
    node.stand_by()
    node.on(HeartbeatHeard(replace(PEER, has_lock=False)))
    assert not node.machine.may_follow(STORE, node.now)
    node.on(ReleasedHeard(RELEASED))
    assert Steal() not in node.on(GONE)
    node.on(HeartbeatHeard(PEER))
    assert node.machine.may_follow(STORE, node.now)


def test_an_owner_without_the_lock_is_given_time_to_take_it() -> None:
    """Else its lock, freed at last by the one that it was stolen from, would go to whoever polls
    first.
    """
    node = Node()
    node.stand_by()
    node.on(HeartbeatHeard(replace(PEER, has_lock=False)))
    stolen = node.now
    node.wait()
    assert node.now - stolen >= 1.0
    node.on(BUSY)
    node.on(HeartbeatHeard(PEER))
    regained = node.now
    assert node.wait() == [TryLock()]
    assert node.now - regained <= 0.06


EVENTS = st.sampled_from([
    Started(), NatsUp(), NatsDown(), Paused(), Resumed(), Stopped(),
    ActivationFailed(), ActivationLost("x"), TimerFired(),
    HeartbeatHeard(PEER), HeartbeatHeard(ORIGINAL),
    HeartbeatHeard(replace(PEER, store_id=OTHER_STORE)),
    ReleasedHeard(RELEASED), StoreSeen(STORE), StoreSeen(b""), StoreSeen(None), GRANTED, BUSY,
    YieldTo(5.0), YieldTo(0.0), HeartbeatHeard(replace(PEER, has_lock=False)), GONE,
    REFUSED, TryDone(TryResult.NOT_ASKED, b""), TryDone(TryResult.GRANTED, OTHER_STORE),
    TryDone(TryResult.FAULT, error="x"),
])  # fmt: skip


@given(st.lists(st.tuples(EVENTS, st.floats(0, 3)), max_size=60))
def test_in_any_history_one_try_at_a_time_and_every_gate_open_at_activation(
    history: list[tuple[Event, float]],
) -> None:
    node = Node(FtTiming(steal_after=2.0), store=None)
    nats = paused = started = trying = ended = False
    for event, pause in history:
        node.now += pause
        nats = (nats or isinstance(event, NatsUp)) and not isinstance(event, NatsDown)
        paused = (paused or isinstance(event, Paused)) and not isinstance(event, Resumed)
        started = started or isinstance(event, Started)
        ended = ended or isinstance(event, (Stopped, ActivationFailed))
        active = node.state() is NodeState.ACTIVE
        actions = node.on(event)
        if isinstance(event, TryDone):
            granted = event.result is TryResult.GRANTED
            assert (Activate() in actions or ReleaseLock() in actions) == (granted and not active)
            assert not {Activate(), Steal()} & set(actions) or trying
            trying = False
        gates_open = nats and started and not paused and not ended
        tries = [action for action in actions if isinstance(action, TryLock)]
        assert gates_open or not (tries or {Activate(), Steal()} & set(actions))
        assert not (Steal() in actions and node.mixed())
        if tries:
            assert not trying
            trying = True


def test_a_member_that_was_not_named_holds_back_for_a_while() -> None:
    node = Node()
    node.stand_by()
    assert node.on(YieldTo(5.0)) == []
    assert node.on(ReleasedHeard(RELEASED)) == []
    assert not node.machine.may_succeed(STORE, node.now)
    since = node.now
    assert node.wait() == [SUSPICIOUS]
    assert 5.0 <= node.now - since < 5.1


def test_a_grant_that_comes_after_another_was_named_is_given_back() -> None:
    node = Node()
    node.on(NatsUp())
    node.on(Started())
    assert node.wait() == [TryLock()]
    node.on(YieldTo(5.0))
    assert node.on(GRANTED) == [ReleaseLock()]


def test_holding_back_ends_when_a_new_owner_is_heard() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(YieldTo(500.0))
    node.on(HeartbeatHeard(PEER))
    since = node.now
    assert node.wait() == [SUSPICIOUS]
    assert node.now - since < 2.0


def test_whoever_is_named_again_and_again_the_lock_is_tried_all_the_same() -> None:
    """Words of the group's own subject can be forged: they must not keep a dead owner's store from
    everybody.
    """
    node = Node()
    node.stand_by()
    tried = 0
    for _ in range(600):
        node.on(YieldTo(5.0))
        node.now += 0.1
        tried += sum(isinstance(action, TryLock) for action in node.on(TimerFired()))
        if node.machine._try_since is not None:
            assert node.on(YieldTo(5.0)) == []
            assert not [a for a in node.on(BUSY) if isinstance(a, ReleaseLock)]
    assert 3 <= tried <= 5


def test_a_grant_after_the_longest_time_of_holding_back_is_kept() -> None:
    node = Node()
    node.stand_by()
    while node.machine._try_since is None:
        node.on(YieldTo(5.0))
        node.now += 0.1
        node.on(TimerFired())
    node.on(YieldTo(5.0))
    assert Activate(Cause.SILENCE, PEER.epoch) in node.on(GRANTED)


def forged(node: Node, seconds: float, *words: Event) -> float:
    """Those words in turn, a hundred a second.

    The longest time between two attempts at the lock, all refused.
    """
    tried = node.now
    longest = 0.0
    end = node.now + seconds
    for word in itertools.cycle(words):
        node.now += 0.01
        for actions in (
            node.on(word),
            node.wait() if node.timer is not None and node.timer <= node.now else [],
        ):
            if any(isinstance(action, TryLock) for action in actions):
                longest = max(longest, node.now - tried)
                tried = node.now
                node.on(BUSY)
        if node.now >= end:
            return max(longest, node.now - tried)
    raise AssertionError


def rising(*, has_lock: bool) -> list[Event]:
    """Heartbeats of one new owner after the other, each of whom names a successor."""
    return [
        word
        for epoch in range(6, 6000)
        for word in (HeartbeatHeard(replace(PEER, epoch=epoch, has_lock=has_lock)), YieldTo(5.0))
    ]


LOCKLESS = HeartbeatHeard(replace(PEER, has_lock=False))


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([HeartbeatHeard(PEER), LOCKLESS], 1.6),
        ([HeartbeatHeard(PEER), LOCKLESS, YieldTo(5.0)], 16.0),
        ([HeartbeatHeard(PEER), YieldTo(0.0), YieldTo(5.0)], 16.0),
        (rising(has_lock=True), 16.0),
        (rising(has_lock=False), 16.0),
    ],
    ids=[
        "with and without the lock",
        "and names",
        "names and their end",
        "rising epochs",
        "rising, without the lock",
    ],
)
def test_no_words_keep_the_lock_from_being_tried_for_longer_than_said(
    words: list[Event], most: float
) -> None:
    node = Node()
    node.stand_by()
    assert forged(node, 58, *words) < most


def test_heartbeats_do_not_end_the_looking_at_the_lock_when_storage_has_failed_once() -> None:
    node = Node()
    node.stand_by()
    node.wait()
    node.on(TryDone(TryResult.FAULT, error="x"))
    tried = 0
    for _ in range(300):
        node.now += 0.1
        node.on(HeartbeatHeard(PEER))
        for action in node.on(TimerFired()):
            if isinstance(action, ReadStore):
                node.on(StoreSeen(STORE, owner=OWNER))
            if isinstance(action, TryLock):
                tried += 1
                node.on(BUSY)
    assert tried > 100


def test_whoever_is_not_named_any_more_may_follow() -> None:
    node = Node()
    node.stand_by()
    node.on(YieldTo(5.0))
    assert not node.machine.may_follow(STORE, node.now)
    node.on(YieldTo(0.0))
    assert node.machine.may_follow(STORE, node.now)
    assert node.wait() == [TryLock()]


def test_a_shorter_time_of_holding_back_ends_no_longer_one() -> None:
    node = Node()
    node.stand_by()
    node.on(YieldTo(5.0))
    node.on(YieldTo(0.5))
    since = node.now
    node.wait()
    assert node.now - since >= 5.0


def test_who_could_not_read_the_datastore_may_not_follow_until_it_can() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(StoreSeen(None, error="ft.epoch: Input/output error"))
    assert not node.machine.may_follow(STORE, node.now)
    node.on(StoreSeen(STORE))
    assert node.machine.may_follow(STORE, node.now)


def test_who_could_not_ask_for_the_lock_may_not_follow_until_it_can() -> None:
    node = Node()
    node.stand_by()
    assert node.wait() == [TryLock()]
    node.on(TryDone(TryResult.FAULT, error="x"))
    node.on(StoreSeen(STORE))
    assert not node.machine.may_follow(STORE, node.now)
    assert node.wait() == [TryLock()]
    node.on(BUSY)
    assert node.machine.may_follow(STORE, node.now)


def test_in_a_mixed_group_a_look_at_the_datastore_is_enough_to_follow_again() -> None:
    node = Node(mixed=True)
    node.stand_by()
    assert node.wait() == [SUSPICIOUS]
    node.on(TryDone(TryResult.FAULT, error="x"))
    assert not node.machine.may_follow(STORE, node.now)
    node.on(StoreSeen(STORE))
    assert node.machine.may_follow(STORE, node.now)


def test_members_hold_back_once_more_for_the_next_hand_over() -> None:
    node = Node(NO_POLL)
    node.stand_by()
    node.on(YieldTo(5.0))
    for _ in range(100):
        node.now += 1.0
        node.on(HeartbeatHeard(PEER))
    node.on(YieldTo(5.0))
    assert not node.machine.may_succeed(STORE, node.now)
