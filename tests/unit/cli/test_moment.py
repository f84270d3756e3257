"""Times to come, as operators write them."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from ftstan.cli.words.servers import moment

DAY_S = 86_400


def test_a_duration_counts_from_now() -> None:
    before = time.time()
    assert before + 7200 <= moment("+2h") / 1e9 <= time.time() + 7200


def test_a_clock_time_is_the_next_one() -> None:
    for text in ("00:00", "3:07", "23:59"):
        at = moment(text) / 1e9
        assert -1 < at - time.time() <= DAY_S + 3600
        shown = dt.datetime.fromtimestamp(at).astimezone()
        assert f"{shown:%H:%M}" == text.zfill(5)


def test_a_date_may_say_its_zone() -> None:
    assert moment("2026-11-28T03:00Z") == 1_795_834_800 * 10**9
    assert moment("2026-11-28T03:00+01:00") == 1_795_831_200 * 10**9


@pytest.mark.parametrize("text", ["", "soon", "25:00", "3", "+", "+2x", "-1h", "2026-13-01"])
def test_anything_else_is_a_wrong_word(text: str) -> None:
    with pytest.raises(ValueError):  # argparse asks for no more
        moment(text)


@pytest.mark.parametrize(
    "text",
    ["1970-01-01T00:00Z", "1969-12-31T23:59Z", "0001-01-01", "9999-12-31T23:59", "+99999999999h"],
)
def test_a_time_that_no_server_can_be_told_is_a_wrong_word(text: str) -> None:
    with pytest.raises(ValueError):  # 0 would switch over at once, less end a plan
        moment(text)
