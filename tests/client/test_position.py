"""How far a subscription has got: where the next session begins, and what is not handed out
twice.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.client.message import Message
from ftstan.client.options import Start, SubscribeOptions
from ftstan.client.position import REMEMBERED_FOR_EACH, Position, PositionVerdict, Stretches
from ftstan.wire.messages import StartPosition

HAND_OUT = PositionVerdict.HAND_OUT
ACK_AGAIN = PositionVerdict.ACK_AGAIN
OTHER = PositionVerdict.OTHER_CHANNEL


def message(sequence: int, *, life: int = 0) -> Message:
    """A message of one life of the channel: timestamps differ between two."""
    return Message("foo", sequence, b"", 1_000_000 * (life + 1) + sequence)


def plain(start: Start | None = None) -> Position:
    return Position(SubscribeOptions("foo", start=start or Start.first()))


def got(position: Position, *sequences: int, acked: bool = True) -> None:
    for sequence in sequences:
        assert position.received(message(sequence)) is HAND_OUT
        if acked:
            assert position.acked(message(sequence))


def test_what_was_acked_is_acked_again_and_what_was_not_is_handed_out_again() -> None:
    for options in (
        SubscribeOptions("foo"),
        SubscribeOptions("foo", durable="d"),
        SubscribeOptions("foo", queue="q"),
    ):
        position = Position(options)
        got(position, 1)
        got(position, 2, acked=False)
        assert position.received(message(1)) is ACK_AGAIN
        assert position.received(message(2)) is HAND_OUT


def test_only_the_first_ack_is_news() -> None:
    position = plain()
    got(position, 1)
    assert not position.acked(message(1))
    assert not position.acked(message(5))


def test_a_plain_subscription_begins_at_the_last_message_that_it_has_acked_without_a_gap() -> None:
    position = plain()
    got(position, 4, 5, 6, 7)
    assert position.start(0) == Start.sequence(7)
    got(position, 9)
    assert position.start(0) == Start.sequence(7), "8 may have been lost on its way"


def test_it_begins_at_what_is_not_acked_if_that_is_lower() -> None:
    position = plain()
    got(position, 1, 2)
    got(position, 3, acked=False)
    got(position, 4)
    assert position.start(0) == Start.sequence(2)
    position = plain()
    got(position, 1, acked=False)
    got(position, 2)
    assert position.start(0) == Start.sequence(1)


@pytest.mark.parametrize("start", [Start.first(), Start.sequence(5), Start.ago(60)])
def test_without_any_ack_it_begins_where_it_was_asked_to(start: Start) -> None:
    position = plain(start)
    got(position, 7, acked=False)
    assert position.start(0) == start


@pytest.mark.parametrize("start", [Start.new(), Start.last()])
def test_one_of_new_messages_begins_at_the_first_that_it_has_seen(start: Start) -> None:
    position = plain(start)
    got(position, 7, 8, acked=False)
    assert position.start(0) == Start.sequence(7)


def test_one_that_has_seen_nothing_gets_what_was_published_since_it_was_made() -> None:
    assert plain(Start.new()).start(5_000) == Start(StartPosition.TIME_DELTA_START, 5_000)
    assert plain(Start.last()).start(5_000) == Start(StartPosition.TIME_DELTA_START, 5_000)
    assert plain(Start.ago(1)).start(5_000) == Start(StartPosition.TIME_DELTA_START, 1_000_005_000)
    assert plain(Start.first()).start(5_000) == Start.first()
    assert plain(Start.sequence(3)).start(5_000) == Start.sequence(3)


def test_a_group_that_nobody_is_left_of_begins_behind_what_this_member_has_done() -> None:
    position = Position(SubscribeOptions("foo", queue="q"))
    got(position, 3, 5)
    assert position.start(0) == Start.sequence(6)
    got(position, 7, acked=False)
    assert position.start(0) == Start.sequence(7)


def test_a_channel_that_has_begun_anew_is_told_by_the_first_message() -> None:
    for sequence in (1, 3):
        position = plain()
        got(position, 1, 2, 3)
        position.resumed()
        assert position.received(message(sequence, life=1)) is OTHER
        position.begin_anew()
        assert position.received(message(1, life=1)) is HAND_OUT


def test_a_channel_that_is_the_same_goes_on() -> None:
    position = plain()
    got(position, 1, 2, 3)
    got(position, 4, acked=False)
    position.resumed()
    assert [position.received(message(n)) for n in (3, 4, 5)] == [ACK_AGAIN, HAND_OUT, HAND_OUT]


def test_a_channel_whose_old_messages_have_gone_meanwhile_is_the_same() -> None:
    position = plain()
    got(position, 1, 2, 3)
    position.resumed()
    assert position.received(message(50)) is HAND_OUT


def test_an_ack_of_a_message_of_the_former_channel_is_not_one_of_the_new() -> None:
    position = plain()
    got(position, 1, acked=False)
    position.begin_anew()
    assert position.received(message(1, life=1)) is HAND_OUT
    assert not position.acked(message(1))
    assert position.acked(message(1, life=1))


def test_a_durable_remembers_only_the_newest_acks() -> None:
    position = Position(SubscribeOptions("foo", durable="d", max_in_flight=2))
    got(position, *range(1, 2 + 2 * REMEMBERED_FOR_EACH))
    assert position.received(message(1)) is HAND_OUT
    assert position.received(message(2)) is ACK_AGAIN


@given(st.lists(st.integers(1, 40), unique=True))
def test_stretches_are_a_set_whose_first_end_is_the_last_before_a_gap(sequences: list[int]) -> None:
    stretches = Stretches()
    for sequence in sequences:
        assert sequence not in stretches
        stretches.add(sequence, 100 + sequence)
    assert [n for n in range(45) if n in stretches] == sorted(sequences)
    begins = [n for n in sequences if n - 1 not in sequences]
    assert len(stretches) == len(begins)
    if sequences:
        end = min(sequences)
        while end + 1 in sequences:
            end += 1
        assert stretches.first_end() == {end: 100 + end}
    else:
        assert stretches.first_end() == {}


def test_stretches_stay_few_and_what_was_never_added_is_never_in_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ftstan.client.position.STRETCHES", 3)
    stretches = Stretches()
    for sequence in (1, 3, 5, 7, 9):
        stretches.add(sequence, 0)
    assert [n for n in range(12) if n in stretches] == [1, 3, 5]
