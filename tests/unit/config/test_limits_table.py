"""The table of limits and the other lines of a start, to the column."""

from __future__ import annotations

import pytest

from ftstan.config.banner import (
    effectless_lines,
    limits_table,
    recovered_line,
    starting_lines,
    store_lines,
)
from ftstan.config.options import ChannelLimits, FileOptions, ServerOptions, StoreLimits

DEFAULT_TABLE = """\
---------- Store Limits ----------
Channels:                  100 *
--------- Channels Limits --------
  Subscriptions:          1000 *
  Messages     :       1000000 *
  Bytes        :     976.56 MB *
  Age          :     unlimited *
  Inactivity   :     unlimited *
----------------------------------"""

SOME_SET = """\
---------- Store Limits ----------
Channels:                   10
--------- Channels Limits --------
  Subscriptions:          1000 *
  Messages     :         10000
  Bytes        :      10.00 MB
  Age          :        1h0m0s
  Inactivity   :     unlimited *
----------------------------------"""

ALL_SET = """\
---------- Store Limits ----------
Channels:                    1
--------- Channels Limits --------
  Subscriptions:             2
  Messages     :             3
  Bytes        :           4 B
  Age          :           5ms
  Inactivity   :           6µs
----------------------------------"""

UNLIMITED = """\
---------- Store Limits ----------
Channels:            unlimited
--------- Channels Limits --------
  Subscriptions:     unlimited
  Messages     :     unlimited
  Bytes        :     unlimited
  Age          :     unlimited *
  Inactivity   :     unlimited *
----------------------------------"""


@pytest.mark.parametrize(
    ("limits", "table"),
    [
        (StoreLimits(), DEFAULT_TABLE),
        (
            StoreLimits(
                10, ChannelLimits(max_msgs=10_000, max_bytes=10 << 20, max_age=3_600_000_000_000)
            ),
            SOME_SET,
        ),
        (
            StoreLimits(
                1,
                ChannelLimits(
                    max_subs=2, max_msgs=3, max_bytes=4, max_age=5_000_000, max_inactivity=6_000
                ),
            ),
            ALL_SET,
        ),
        (StoreLimits(0, ChannelLimits(max_subs=0, max_msgs=0, max_bytes=0)), UNLIMITED),
    ],
    ids=["defaults", "some set", "all set", "unlimited"],
)
def test_the_table_is_that_of_the_original(limits: StoreLimits, table: str) -> None:
    assert limits_table(limits) == table.split("\n")


def test_a_value_wider_than_its_column_pushes_the_line_out() -> None:
    table = limits_table(StoreLimits(channel=ChannelLimits(max_age=3_600_000_000_000_000 - 1000)))
    assert table[6] == "  Age          : 999h59m59.999999s"


def test_the_location_is_shown_whenever_a_directory_was_given() -> None:
    assert store_lines(ServerOptions())[0] == "Message store is MEMORY"
    assert store_lines(ServerOptions())[1] == limits_table(StoreLimits())[0]
    lines = store_lines(ServerOptions(dir="some/dir"))
    assert lines[:2] == ["Message store is MEMORY", "Store location: some/dir"]


def test_a_start_begins_with_four_lines() -> None:
    first, second, third, fourth = starting_lines("c", "15MnHGxnt47KdTmhwNqy1C")
    assert first == "Starting nats-streaming-server[c] version 0.25.6"
    assert second == "ServerID: 15MnHGxnt47KdTmhwNqy1C"
    assert third.startswith("Go version: python3.")
    assert fourth.startswith("Git commit: [ftstan ")


def test_recovery_says_how_many_channels_it_found() -> None:
    assert recovered_line(None) == "No recovered state"
    assert recovered_line(0) == "Recovered 0 channel(s)"


def test_flags_that_have_nothing_to_tune_here_are_named_when_they_are_given() -> None:
    assert effectless_lines(ServerOptions()) == []
    given = ServerOptions(io_batch_size=10, io_sleep_time=5, file=FileOptions(buffer_size=0))
    assert [line.split(" ")[0] for line in effectless_lines(given)] == [
        "-io_batch_size",
        "-io_sleep_time",
        "-file_buffer_size",
    ]
