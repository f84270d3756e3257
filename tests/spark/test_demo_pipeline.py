"""The pipeline's demo: what makes it fail. ``tests/ft/test_demo_pipeline.py`` plays it whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.pipeline.__main__ import EXIT_AGREED, EXIT_DIFFERENT, _judge
from demo.pipeline.publishing import Publisher, read_all
from demo.pipeline.scenario import CHANNELS, Places, Sizes, Story
from demo.pipeline.tally import Tally
from demo.processes import CLUSTER, DemoError
from demo.screen import Screen
from ftstan.base.clock import SystemClock
from tests.processes import READY, until
from tests.spark.streaming import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.processes import Stage


def tally(*numbers: int) -> Tally:
    found = Tally()
    for channel in CHANNELS:
        for number in numbers:
            found.add(channel, b"%s %d" % (channel.encode(), number))
    return found


def story(directory: Path, **places: Tally) -> Story:
    (directory / "run").mkdir()
    told = Story(Places(str(directory / "run")), Screen(SystemClock()), Sizes(3000))
    told.counted.update(places)
    told._compare(tally(1, 2, 3))
    return told


def test_a_demo_whose_places_agree_exits_0_and_leaves_nothing(tmp_path: Path) -> None:
    told = story(tmp_path, archive=tally(3, 2, 1), restored=tally(1, 2, 3))
    assert _judge(told, keep=False) == EXIT_AGREED
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [tally(1, 2), tally(1, 2, 3, 3), tally(1, 2, 4), Tally()])
def test_a_demo_with_a_message_lost_doubled_or_changed_exits_1_names_the_place_and_keeps_all(
    wrong: Tally, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = story(tmp_path, archive=tally(1, 2, 3), replayed=wrong)
    assert _judge(told, keep=False) == EXIT_DIFFERENT
    shown = capsys.readouterr().out
    assert "replayed: orders differs from what was published" in shown
    assert "archive: " not in shown
    assert "NOT THE SAME" in shown
    assert (tmp_path / "run").exists()


def test_spark_counts_as_the_publisher_does(spark: SparkSession) -> None:
    rows = [(channel, b"%s %d" % (channel.encode(), n)) for channel in CHANNELS for n in (1, 2, 3)]
    assert Tally.of(spark.createDataFrame(rows, "channel string, data binary")) == tally(1, 2, 3)


def test_slices_roll_often_enough_and_the_stream_is_never_outrun() -> None:
    for messages in (1500, 18_000, 1_000_000):
        sizes = Sizes(messages)
        kept = sizes.kept * len(CHANNELS)
        assert messages > 3 * kept
        assert sizes.ahead < kept


@pytest.mark.processes
def test_the_publisher_counts_what_a_client_is_given(stage: Stage) -> None:
    server = stage.server("demo", cluster=CLUSTER)
    server.wait_for(READY)
    publisher = Publisher([url_of(server)], CHANNELS, 100)
    publisher.start()
    publisher.allow(40)
    until(lambda: publisher.acked.messages == 40, "40 acks")
    assert not publisher.done
    publisher.allow(1000)
    until(lambda: publisher.done, "the end of the publisher")
    assert read_all(url_of(server), CLUSTER, publisher.acked, 60.0) == publisher.acked


@pytest.mark.processes
def test_a_publisher_that_cannot_go_on_says_so() -> None:
    publisher = Publisher(["nats://127.0.0.1:1"], CHANNELS, 10, connect_within=0.5)

    publisher.start()
    until(lambda: publisher.failure is not None, "the publisher to give up")
    with pytest.raises(DemoError, match="a publish failed: "):
        _ = publisher.done


@pytest.mark.processes
def test_a_reader_gives_up_where_messages_are_missing(stage: Stage) -> None:
    server = stage.server("demo", cluster=CLUSTER)
    server.wait_for(READY)
    assert read_all(url_of(server), CLUSTER, tally(1), 0.2) == Tally()
