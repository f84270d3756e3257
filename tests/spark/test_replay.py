"""Replay without Spark: order, pace, checkpoint and what is refused, against a connection that the
test holds.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base.errors import ConfigError, DamageError
from ftstan.client import PublishRefusedError
from ftstan.spark import replay
from ftstan.spark.replay import (
    Checkpoint,
    Pace,
    ReplayError,
    ReplayOptions,
    ReplayReport,
    Row,
    identity_of,
)
from ftstan.spark.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ftstan.client import Connection

OPTIONS = ReplayOptions("test-cluster")


class Log:
    """A connection that stores what is published.

    ``refuse`` names data that is refused, ``hold`` data never acked.
    """

    def __init__(self, refuse: bytes = b"", hold: bytes = b"none") -> None:
        self.stored: list[tuple[str, bytes, bytes]] = []
        self.names: list[str] = []
        self._refuse = refuse
        self._hold = hold

    async def publish_async(
        self, channel: str, data: bytes, *, reply: bytes, name: str
    ) -> asyncio.Future[str]:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.names.append(name)
        if data == self._refuse:
            answer.set_exception(PublishRefusedError("too large", channel=channel, guid=name))
        else:
            self.stored.append((channel, data, reply))
            if data != self._hold:
                answer.set_result(name)
        return answer

    async def flush(self) -> None:
        await asyncio.sleep(0)


def rows(channel: str, first: int, last: int) -> list[Row]:
    return [
        Row(channel, n, b"%d" % n, "to" if n % 2 else "", crc_ok=True)
        for n in range(first, last + 1)
    ]


def publish(
    given: Iterable[Row],
    log: Log,
    options: ReplayOptions = OPTIONS,
    checkpoint: Checkpoint | None = None,
) -> ReplayReport:
    connection = cast("Connection", log)
    return asyncio.run(replay.publish(given, connection, options, checkpoint or Checkpoint("id")))


def test_messages_are_published_in_order_with_their_data_and_reply() -> None:
    log = Log()
    report = publish([*rows("a", 1, 600), *rows("b", 5, 6)], log)
    expected = [("a", b"%d" % n, b"to" if n % 2 else b"") for n in range(1, 601)]
    assert log.stored == [*expected, ("b", b"5", b"to"), ("b", b"6", b"")]
    assert report.messages == 602
    assert report.channels["b"] == {"target": "b", "messages": 2, "size": 2}


@pytest.mark.parametrize(
    ("options", "target"),
    [
        (ReplayOptions("c", channel="all"), "all"),
        (ReplayOptions("c", prefix="again."), "again.a"),
        (ReplayOptions("c"), "a"),
    ],
)
def test_messages_go_to_one_channel_or_to_names_with_a_prefix_or_to_the_same(
    options: ReplayOptions, target: str
) -> None:
    log = Log()
    publish(rows("a", 1, 2), log, options)
    assert {channel for channel, _, _ in log.stored} == {target}


def test_a_message_has_the_same_name_in_the_next_run_and_no_other_message_has_it() -> None:
    first = Log()
    second = Log()
    again = Log()
    elsewhere = Log()
    publish(rows("a", 1, 50), first)
    publish(rows("a", 1, 50), second)
    publish(rows("a", 1, 50), again, ReplayOptions("c", again="twice"))
    publish(rows("b", 1, 50), elsewhere)
    assert first.names == second.names
    assert len(set(first.names + again.names + elsewhere.names)) == 150


def test_the_checkpoint_says_up_to_where_everything_was_acknowledged(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    checkpoint = Checkpoint.load(path, "id")
    with pytest.raises(ReplayError):
        publish(rows("a", 1, 9), Log(refuse=b"7"), checkpoint=checkpoint)
    assert Checkpoint.load(path, "id").channels == {"a": 6}


def test_what_follows_a_message_without_an_ack_does_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    report = publish(rows("a", 1, 9), Log(hold=b"4"), checkpoint=Checkpoint.load(path, "id"))
    assert report.messages == 3
    assert Checkpoint.load(path, "id").channels == {"a": 3}


def test_a_refusal_names_the_message_and_the_reason() -> None:
    with pytest.raises(ReplayError, match=r"sequence 7 of 'a' was not stored in 'b.a': too large"):
        publish(rows("a", 1, 9), Log(refuse=b"7"), ReplayOptions("c", prefix="b."))


def test_what_lies_in_two_places_is_published_once() -> None:
    log = Log()
    report = publish([row for row in rows("a", 1, 30) for _ in range(2)], log)
    assert (len(log.stored), report.duplicates) == (30, 30)


def test_one_sequence_with_two_contents_ends_the_replay() -> None:
    two = [*rows("a", 1, 2), Row("a", 2, b"other", "", crc_ok=True)]
    with pytest.raises(DamageError, match=r"channel 'a': sequence 2 has two contents"):
        publish(two, Log())


def test_a_damaged_message_is_not_published_and_left_out_only_on_request() -> None:
    damaged = [*rows("a", 1, 2), Row("a", 3, b"?", "", crc_ok=False), *rows("a", 4, 5)]
    with pytest.raises(DamageError, match=r"channel 'a': sequence 3 is damaged"):
        publish(damaged, Log())
    log = Log()
    report = publish(damaged, log, ReplayOptions("c", skip_damaged=True))
    assert [data for _, data, _ in log.stored] == [b"1", b"2", b"4", b"5"]
    assert report.damaged == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", json.dumps({"format": 1, "identity": "id"})])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is no checkpoint of a replay"):
        Checkpoint.load(str(path), "id")


def test_a_checkpoint_of_another_replay_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    Checkpoint("mine", path=path).save()
    with pytest.raises(ConfigError, match="belongs to another replay"):
        Checkpoint.load(path, "yours")


@pytest.mark.parametrize(
    "other",
    [{"channel": "x"}, {"prefix": "x"}, {"cluster_id": "x"}, {"again": "x"}],
)
def test_another_target_is_another_replay(other: dict[str, Any]) -> None:
    selection = Selection(("store",))
    assert identity_of(selection, OPTIONS) == identity_of(
        selection, ReplayOptions("test-cluster", rate=5.0)
    )
    assert identity_of(selection, OPTIONS) != identity_of(
        selection, ReplayOptions(**{"cluster_id": "c", **other})
    )
    assert identity_of(selection, OPTIONS) != identity_of(Selection(("other",)), OPTIONS)


def test_the_pace_is_even_and_does_not_make_up_for_a_pause() -> None:
    pace = Pace(10.0)
    assert [round(pace.wait(100.0), 6) for _ in range(4)] == [0.0, 0.1, 0.2, 0.3]
    assert pace.wait(200.0) == 0.0
    assert round(pace.wait(200.0), 6) == 0.1


def test_without_a_rate_nothing_waits() -> None:
    assert Pace(0.0).wait(5.0) == 0.0
