"""One channel on its way: whatever order messages come in and wherever the stream is found to be,
they are sent in order, each once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftstan.bridge.marks import Item
from ftstan.bridge.mirror import WINDOW, Gap, Mirror, Stage
from ftstan.client import Message

if TYPE_CHECKING:
    from collections.abc import Iterable


def item(sequence: int) -> Item:
    return Item(sequence, sequence, b"", b"%d" % sequence)


def mirror(*sequences: int, last: int = 0) -> Mirror:
    made = Mirror(0, "orders", "orders")
    made.stage = Stage.TAIL
    made.begin_at(last)
    for sequence in sequences:
        made.take_delivery(item(sequence), 0.0)
    return made


def sent(made: Mirror) -> list[int]:
    found = []
    while made.ahead:
        found += [one.sequence for one in made.to_send(3)]
    return found


def deliver(made: Mirror, sequences: Iterable[int]) -> None:
    for sequence in sequences:
        message = Message("orders", sequence, b"", sequence)
        made.take_delivery(item(sequence), 0.0)
        made.deliveries.setdefault(sequence, []).append(message)


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8)))
def test_a_tail_in_any_order_with_repeats_is_sent_in_order_and_once(
    order: list[int], repeats: list[int]
) -> None:
    assert sent(mirror(*order[:4], *repeats[:3], *order[4:], *repeats[3:])) == list(range(1, 9))


def test_what_comes_early_is_held() -> None:
    made = mirror(1, 3)
    assert sent(made) == [1]
    assert list(made.held) == [3]
    made.take_delivery(item(2), 0.0)
    assert sent(made) == [2, 3]


def test_a_hole_in_the_log_is_told() -> None:
    made = mirror()
    with pytest.raises(Gap) as caught:
        made.take([item(1), item(4), item(5)])
    assert (caught.value.first, caught.value.found) == (2, 4)
    assert sent(made) == [1]


def test_what_the_stream_has_already_is_passed_over() -> None:
    made = mirror(last=2)
    made.take([item(1), item(2), item(3)])
    made.take([item(4), item(5)])
    assert sent(made) == [3, 4, 5]


def test_an_answer_proves_everything_before_it() -> None:
    made = mirror()
    deliver(made, range(1, 6))
    sent(made)
    assert [message.sequence for message in made.confirm(3)] == [1, 2, 3]
    assert made.acked == 3
    assert [one.sequence for one in made.window] == [4, 5]


@pytest.mark.parametrize("last", range(9))
def test_whatever_the_stream_has_the_rest_is_sent_again_and_nothing_else(last: int) -> None:
    made = mirror()
    deliver(made, [1, 2, 3, 4, 5, 8])
    made.to_send(3)
    acknowledged = [message.sequence for message in made.rewind(last)]
    assert acknowledged == [n for n in (1, 2, 3, 4, 5, 8) if n <= last]
    again = sent(made)
    # What was held for a missing message is sent once that is in the stream, or has come.
    deliver(made, [n for n in (6, 7) if n > last])
    assert again + sent(made) == list(range(last + 1, 9))


def test_the_window_is_bounded() -> None:
    made = mirror(*range(1, WINDOW + 2))
    while made.has_room:
        made.to_send(1000)
    assert made.sent == WINDOW
    made.confirm(1)
    assert made.has_room


def test_a_gap_that_was_bridged_goes_on_with_what_was_held() -> None:
    made = mirror(1, 5, 6, 9)
    sent(made)
    made.confirm(1)
    made.skip_to(5)
    assert sent(made) == [5, 6]
    assert list(made.held) == [9]
