"""Nothing of a former owner lands behind a takeover, and a landed transaction is never done again:
two owners on real servers, stopped at every step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import FencedError, LockBusyError, StoreError
from ftstan.config.limits import Limits
from ftstan.ft.sqlaccess import SqlOwner
from ftstan.stores.contract.place import FREE, block_of, messages
from ftstan.stores.sql import fence
from ftstan.stores.sql.connecting import connect
from ftstan.stores.sql.fence import Fence
from ftstan.stores.sql.session import LOCK_WAIT_MS, LostError
from ftstan.stores.sql.store import SqlStore
from tests.contract.sqlplaces import empty
from tests.unit.stores.sql.hooked import Hooked, Steps

if TYPE_CHECKING:
    from ftstan.stores.sql.channel import SqlChannel
    from ftstan.stores.sql.source import Source


class Owner:
    """One owner with a store of one channel."""

    def __init__(self, source: Source, *, steps: Steps | None = None) -> None:
        self.owner = SqlOwner(source, server_id="me", clock=SystemClock())
        if steps is not None:
            self.owner.fence = Fence(lambda: Hooked(source, steps))  # type: ignore[arg-type,return-value]
        self.owner.lock.seize()
        self.owner.activate()
        self.store = SqlStore(self.owner.fence, SystemClock(), events_s=0.0)
        self.store.set_limits(Limits.same(FREE))
        found = {c.name: c for c in self.store.recover().channels}
        self.channel: SqlChannel = found.get(b"foo") or self.store.create_channel(b"foo", FREE)  # type: ignore[assignment]

    def put(self, *data: bytes) -> dict[bytes, StoreError]:
        self.channel.append(block_of(self.channel, *data))
        return self.store.commit()

    def close(self) -> None:
        self.store.abandon()
        self.owner.close()


@pytest.fixture
def source(sql_source: Source) -> Source:
    empty(sql_source)
    return sql_source


def _rows(source: Source) -> list[int]:
    session = connect(source)
    found = [row[0] for row in session.query("SELECT seq FROM Messages ORDER BY seq")]
    session.close()
    return found


@pytest.mark.parametrize("step", Steps.ALL)
def test_a_successor_takes_over_while_the_owner_is_frozen_at_any_step(
    source: Source, step: str
) -> None:
    steps = Steps()
    former = Owner(source, steps=steps)
    assert former.put(b"a") == {}
    former.store.confirm()
    successors: list[Owner] = []
    seen: list[list[int]] = []

    def take_over(_session: Hooked) -> None:
        began = time.monotonic()
        successors.append(Owner(source))
        # It waits for no row that the frozen one has locked.
        assert time.monotonic() - began < LOCK_WAIT_MS / 1000
        seen.append([s for s, _ in messages(successors[0].channel)])
        assert successors[0].put(b"successor") == {}
        successors[0].store.confirm()

    steps.at(step, take_over)
    landed = step == "after commit"
    if landed:
        # The successor has read it.
        assert former.put(b"late", b"later") == {}
        former.store.confirm()
    with pytest.raises(FencedError):
        former.put(b"late", b"later")
    assert seen == [[1, 2, 3] if landed else [1]]
    assert _rows(source) == ([1, 2, 3, 4] if landed else [1, 2])
    with pytest.raises(FencedError):
        former.store.confirm()
    successors[0].close()
    former.close()


@pytest.mark.parametrize("sql_text", ["postgres"], indirect=True)
@pytest.mark.parametrize("step", Steps.AT_ONCE)
def test_a_statement_with_the_fence_in_it_writes_nothing_behind_a_takeover(
    source: Source, step: str
) -> None:
    steps = Steps(at_once=True)
    former = Owner(source, steps=steps)
    assert former.put(b"a") == {}
    former.store.confirm()
    # The channel is there: from here on one statement does it.
    steps.calls.clear()
    assert former.put(b"b") == {}
    former.store.confirm()
    assert steps.calls == ["before at once", "after at once"]
    successors: list[Owner] = []
    seen: list[list[int]] = []

    def take_over(_session: Hooked) -> None:
        successors.append(Owner(source))
        seen.append([s for s, _ in messages(successors[0].channel)])
        assert successors[0].put(b"successor") == {}

    steps.at(step, take_over)
    landed = step == "after at once"
    if landed:
        assert former.put(b"late", b"later") == {}
    with pytest.raises(FencedError):
        former.put(b"late", b"later")
    assert seen == [[1, 2, 3, 4] if landed else [1, 2]]
    assert _rows(source) == ([1, 2, 3, 4, 5] if landed else [1, 2, 3])
    with pytest.raises(FencedError):
        former.store.confirm()
    successors[0].close()
    former.close()


@pytest.mark.parametrize("sql_text", ["postgres"], indirect=True)
@pytest.mark.parametrize("step", Steps.AT_ONCE)
def test_a_statement_with_the_fence_in_it_is_done_once_whenever_its_connection_ends(
    source: Source, step: str
) -> None:
    steps = Steps(at_once=True)
    owner = Owner(source, steps=steps)
    assert owner.put(b"a") == {}
    steps.at(step, Hooked.lose)
    assert owner.put(b"b", b"c") == {}
    owner.store.confirm()
    assert owner.put(b"d") == {}
    assert [s for s, _ in messages(owner.channel)] == [1, 2, 3, 4] == _rows(source)
    owner.close()


@pytest.mark.parametrize("sql_text", ["postgres"], indirect=True)
def test_an_original_that_has_taken_the_row_stops_a_statement_with_the_fence_in_it(
    source: Source,
) -> None:
    owner = Owner(source, steps=Steps(at_once=True))
    assert owner.put(b"a") == {}
    session = connect(source)
    session.execute("UPDATE StoreLock SET id = 'an original server'")
    session.close()
    with pytest.raises(FencedError, match="StoreLock"):
        owner.put(b"b")
    assert _rows(source) == [1]
    owner.close()


def test_a_landed_commit_that_did_not_answer_is_not_done_again(source: Source) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    steps.at("after commit", Hooked.lose)
    steps.calls.clear()
    assert owner.put(b"a", b"b") == {}
    assert steps.calls.count("after insert") == 1
    owner.store.confirm()
    assert owner.put(b"c") == {}
    assert [s for s, _ in messages(owner.channel)] == [1, 2, 3] == _rows(source)
    owner.close()


@pytest.mark.parametrize("step", ["before begin", "after begin", "after fence", "before commit"])
def test_a_transaction_that_was_cut_off_before_its_commit_is_done_once(
    source: Source, step: str
) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    steps.at(step, Hooked.lose)
    assert owner.put(b"a", b"b") == {}
    assert owner.put(b"c") == {}
    assert [s for s, _ in messages(owner.channel)] == [1, 2, 3] == _rows(source)
    owner.close()


def test_an_outcome_that_a_takeover_makes_unknowable_ends_the_owner(source: Source) -> None:
    steps = Steps()
    former = Owner(source, steps=steps)

    def cut(session: Hooked) -> None:
        Owner(source).close()
        session.lose()

    steps.at("after commit", cut)
    with pytest.raises(FencedError):
        former.put(b"a")
    former.close()


def test_a_database_that_lacks_acknowledged_transactions_is_refused(source: Source) -> None:
    owner = Owner(source)
    assert owner.put(b"a") == {}
    owner.store.confirm()
    session = connect(source)
    session.execute("UPDATE ftstan_epoch SET done = done - 1")
    session.close()
    with pytest.raises(FencedError, match="lacks transactions that were acknowledged"):
        owner.store.confirm()
    with pytest.raises(FencedError):
        owner.put(b"b")
    owner.close()


@pytest.mark.parametrize("lost", ["a transaction", "an epoch", "everything"])
def test_a_member_serves_no_database_that_shows_less_than_it_has_seen(
    source: Source, lost: str
) -> None:
    """A replica that was behind takes the place of the primary: both connections end."""
    owner = Owner(source)
    assert owner.put(b"a") == {}
    standby = SqlOwner(source, server_id="standby", clock=SystemClock())
    with pytest.raises(LockBusyError):
        standby.try_lock()
    owner.owner.lock.release()
    session = connect(source)
    session.execute(
        {
            "a transaction": "UPDATE ftstan_epoch SET done = done - 1",
            "an epoch": "UPDATE ftstan_epoch SET epoch = epoch - 1, done = done + 7",
            "everything": "DELETE FROM ftstan_epoch",
        }[lost]
    )
    if lost != "a transaction":
        session.execute("DELETE FROM ftstan_history")
    session.close()
    standby.fence.drop()
    standby.try_lock()
    for _ in range(2):
        with pytest.raises(StoreError, match="lacks transactions that were committed") as caught:
            standby.activate()
    assert "restart this server to serve what is left" in caught.value.hint
    standby.close()
    # Whoever has not seen them cannot know.
    another = Owner(source)
    assert another.put(b"b") == {}
    another.close()
    with pytest.raises(FencedError):
        owner.put(b"c")
    owner.close()


def test_the_row_of_an_original_server_in_storelock_fences_us(source: Source) -> None:
    owner = Owner(source)
    assert owner.put(b"a") == {}
    session = connect(source)
    session.execute("UPDATE StoreLock SET id = 'an original server'")
    session.close()
    with pytest.raises(FencedError, match="StoreLock"):
        owner.put(b"b")
    assert _rows(source) == [1]
    owner.close()


@pytest.mark.parametrize("column", ["epoch", "done"])
def test_the_epoch_row_alone_fences_a_writer(source: Source, column: str) -> None:
    # Whatever StoreLock says, and though nobody has ended this owner's session.
    owner = Owner(source)
    assert owner.put(b"a") == {}
    owner.store.confirm()
    session = connect(source)
    session.execute(f"UPDATE ftstan_epoch SET {column} = {column} + 1")
    session.close()
    with pytest.raises(FencedError):
        owner.put(b"b")
    assert _rows(source) == [1]
    with pytest.raises(FencedError):
        owner.store.confirm()
    owner.close()


def test_a_session_that_was_ended_is_replaced(source: Source) -> None:
    owner = Owner(source)
    assert owner.put(b"a") == {}
    session = connect(source)
    assert session.end_holder(owner.owner.fence.look().token)  # type: ignore[union-attr]
    session.close()
    owner.store.confirm()
    owner.store.confirm()
    assert owner.put(b"b") == {}
    assert _rows(source) == [1, 2]
    owner.close()


def test_the_word_about_original_servers_takes_an_epoch_of_its_own_while_the_owner_serves(
    source: Source,
) -> None:
    owner = Owner(source)
    epoch = owner.owner.activation.epoch
    assert owner.put(b"a") == {}
    owner.owner.set_mixed(on=True)
    owner.owner.set_mixed(on=True)
    assert owner.put(b"b") == {}
    owner.store.confirm()
    owner.owner.set_mixed(on=False)
    assert owner.put(b"c") == {}
    owner.store.confirm()
    records = [record for _, record in owner.owner.read_records(3) if record is not None]
    assert [(r.epoch - epoch, r.ft_mixed, r.cause.name) for r in records[:2]] == [
        (2, False, "MIXED_SWITCHED"),
        (1, True, "MIXED_SWITCHED"),
    ]
    # Originals may have served behind the epoch that let them in, and behind none since.
    assert records[0].originals_through == epoch + 1
    owner.close()
    successor = Owner(source)
    assert successor.owner.activation.epoch == epoch + 3
    assert not successor.owner.activation.ft_mixed
    assert successor.owner.activation.originals_through == epoch + 1
    assert [s for s, _ in messages(successor.channel)] == [1, 2, 3] == _rows(source)
    successor.close()


@pytest.mark.parametrize("step", ["before begin", "after fence", "before commit", "after commit"])
def test_an_epoch_that_a_lost_connection_cut_is_taken_once(source: Source, step: str) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    epoch = owner.owner.activation.epoch
    assert owner.put(b"a") == {}
    steps.at(step, Hooked.lose)
    owner.owner.set_mixed(on=True)
    assert owner.put(b"b") == {}
    owner.store.confirm()
    assert owner.owner.activation.epoch == epoch + 1 == owner.owner.read_records(1)[0][0]
    owner.close()


def test_an_owner_that_cannot_find_out_whether_its_epoch_is_taken_does_not_go_on(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    owner = Owner(source, steps=steps)
    assert owner.put(b"a") == {}

    def lose(session: Hooked) -> None:
        monkeypatch.setattr(owner.owner.fence, "_connect", session.lose)
        session.lose()

    monkeypatch.setattr(fence, "_REACH_S", 0.5)
    steps.at("after commit", lose)
    with pytest.raises(LostError, match="cannot be found out"):
        owner.owner.set_mixed(on=True)
    monkeypatch.undo()
    # The database is there again; the operator who asked is not the one who must end.
    with pytest.raises(FencedError, match="cannot be found out"):
        owner.store.confirm()
    with pytest.raises(FencedError, match="cannot be found out"):
        owner.put(b"b")
    owner.close()


@pytest.mark.parametrize("step", Steps.ALL)
def test_whoever_froze_while_it_took_its_next_epoch_does_not_own_behind_a_successor(
    source: Source, step: str
) -> None:
    steps = Steps()
    former = Owner(source, steps=steps)
    assert former.put(b"a") == {}
    successors: list[Owner] = []

    def take_over(_session: Hooked) -> None:
        successors.append(Owner(source))
        assert successors[0].put(b"successor") == {}

    steps.at(step, take_over)
    if step in {"before insert", "after insert"}:
        # There are no messages in it.
        former.owner.set_mixed(on=True)
        assert successors == []
        former.close()
        return
    if step == "after commit":
        former.owner.set_mixed(on=True)
    else:
        with pytest.raises(FencedError):
            former.owner.set_mixed(on=True)
    with pytest.raises(FencedError):
        former.put(b"late")
    with pytest.raises(FencedError):
        former.store.confirm()
    assert successors[0].owner.activation.ft_mixed == (step == "after commit")
    assert _rows(source) == [1, 2]
    successors[0].close()
    former.close()


def test_a_pause_outlasts_the_process(source: Source) -> None:
    def member(name: str) -> SqlOwner:
        return SqlOwner(source, server_id=name, clock=SystemClock(), name=name)

    # Before any owner has made tables of ours.
    first, other = member("a"), member("b")
    assert not first.is_paused()
    first.end_pause()
    first.keep_pause("paused by me")
    first.keep_pause("paused by somebody else")
    first.close()
    again = member("a")
    assert again.is_paused()
    assert not other.is_paused()
    again.end_pause()
    again.end_pause()
    assert not again.is_paused()
    for owner in (again, other):
        owner.close()
