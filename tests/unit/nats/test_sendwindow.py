"""What is on its way to a NATS server is bounded by what it has read in time."""

from __future__ import annotations

import pytest

from ftstan.nats.sendwindow import LATE_S, NARROWEST, PIECE, WIDEST, SendWindow


def at_hand(distance: float = 0.0) -> SendWindow:
    """The window of a server that has answered once."""
    window = SendWindow()
    assert window.sent(PIECE, 0)
    window.answered(distance)
    return window


def fill(window: SendWindow, now: float = 0.0) -> int:
    """Send pieces while there is room; returns how many PINGs go with them."""
    pings = 0
    while window.room > 0:
        pings += window.sent(PIECE, now)
    return pings


def answer(window: SendWindow, pings: int, now: float = 0.0) -> None:
    for _ in range(pings):
        window.answered(now)


def widen(window: SendWindow, distance: float = 0.0) -> list[int]:
    """The width after each of some windows that are answered in time."""
    widths = []
    for turn in range(10):
        pings = fill(window, turn)
        window.looked(turn + distance)
        answer(window, pings, turn + distance)
        widths.append(window.room)
    return widths


def test_output_of_some_size_is_followed_by_a_ping_and_small_output_is_counted_up() -> None:
    window = SendWindow()
    assert window.sent(PIECE, 0)
    assert not window.sent(PIECE // 2, 0)
    assert window.sent(PIECE // 2, 0)


def test_a_full_window_has_room_again_when_a_piece_is_answered() -> None:
    window = at_hand()
    fill(window)
    assert window.room <= 0
    window.answered(0)
    assert window.room == PIECE


def test_a_server_that_answers_in_time_gets_more_until_the_window_is_at_its_widest() -> None:
    widths = widen(at_hand())
    assert widths == sorted(widths)
    assert widths[-1] == WIDEST


def test_a_server_that_does_not_answer_in_time_gets_less_down_to_a_bound() -> None:
    window = at_hand()
    width = window.room
    pings = fill(window)
    window.looked(LATE_S * 0.9)
    window.looked(LATE_S)
    # Once for each time that it had to answer.
    window.looked(LATE_S * 1.1)
    answer(window, pings)
    assert window.room == width // 2
    pings = fill(window)
    for i in range(2, 20):
        window.looked(LATE_S * i)
    answer(window, pings)
    assert window.room == NARROWEST
    # It reads again.
    assert widen(window)[-1] == WIDEST


@pytest.mark.parametrize("distance", [0.05, 0.3])
def test_a_server_that_is_far_away_is_not_late_and_gets_as_much_more_as_is_on_its_way(
    distance: float,
) -> None:
    widths = widen(at_hand(distance), distance)
    assert widths == sorted(widths)
    assert widths[-1] > 4 * WIDEST
