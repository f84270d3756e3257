"""What a stream answers when Spark asks it: where it begins, how far a batch goes, what it does
about a loss.

The readers are asked as Spark's process beside the driver asks them; no session is needed for that.
"""

from __future__ import annotations

import itertools
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import RecordBatch
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructField, StructType

from ftstan.base.errors import ConfigError
from ftstan.spark import filestream, stream
from ftstan.spark.columns import COLUMNS
from ftstan.spark.losses import DataLossError
from ftstan.spark.source import StanSource
from tests.processes import Stage, until
from tests.spark.streaming import address, publish, serve, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import DataSourceStreamReader

    from ftstan.spark.offsets import Offsets
    from tests.processes import Server

pytestmark = pytest.mark.processes

ALL = ReadAllAvailable()

SERVED = [name for name in COLUMNS if name not in {"file", "offset", "problem"}]

_count = itertools.count()


def schema(*names: str) -> StructType:
    return StructType([StructField(name, COLUMNS[name]) for name in names])


class Readers:
    """Readers of both kinds, for two channels of one server that are this test's own.

    All are stopped in the end.
    """

    def __init__(self, server: Server, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self._made: list[DataSourceStreamReader] = []

    def make(self, mode: str, **options: str) -> DataSourceStreamReader:
        where = {"path": str(self.server.store)} if mode == "files" else address(self.server)
        usual = {} if "subscribePattern" in options else {"subscribe": self.names("foo,bar")}
        reader = StanSource({**where, **usual, **options}).streamReader(schema(*SERVED))
        self._made.append(reader)
        return reader

    def names(self, text: str) -> str:
        """``text`` with the channels' names for ``foo``, ``bar`` and ``later``."""
        return re.sub("foo|bar|later", lambda name: f"{self.prefix}{name[0]}", text)

    def offsets(self, **offsets: int) -> Offsets:
        return {self.prefix + channel: at for channel, at in offsets.items()}

    def messages(self, channel: str, first: int, last: int) -> list[tuple[str, int, bytes]]:
        return [
            (self.prefix + channel, number, b"%d" % number) for number in range(first, last + 1)
        ]

    def publish(self, channel: str, first: int, last: int) -> None:
        publish(
            url_of(self.server),
            self.prefix + channel,
            (b"%d" % number for number in range(first, last + 1)),
        )

    def stop(self) -> None:
        for reader in self._made:
            reader.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that keeps 21 messages of a channel."""
    stage = Stage(tmp_path_factory.mktemp("readers"))
    try:
        yield serve(stage, "-mm", "21", "-file_slice_max_msgs", "3")
    finally:
        stage.end()


@pytest.fixture
def readers(server: Server) -> Iterator[Readers]:
    """``foo`` has messages 10 to 30, and ``bar`` 1 to 3."""
    found = Readers(server, f"test-{next(_count)}.")
    found.publish("foo", 1, 30)
    found.publish("bar", 1, 3)
    files = found.make("files", startingOffsets="latest")
    until(
        lambda: files.initialOffset() == found.offsets(bar=4, foo=31),
        "the confirmation of what was published",
    )
    yield found
    found.stop()


def batch(
    reader: DataSourceStreamReader, start: Offsets, end: Offsets
) -> list[tuple[str, int, bytes]]:
    """Channel, sequence and payload of everything that the tasks of a batch read."""
    found = []
    for partition in reader.partitions(start, end):
        for rows in reader.read(partition):
            assert isinstance(rows, RecordBatch)
            columns: dict[str, list[Any]] = rows.to_pydict()
            found += list(
                zip(columns["channel"], columns["sequence"], columns["data"], strict=True)
            )
    return sorted(found)


@pytest.mark.parametrize("mode", ["files", "server"])
def test_where_a_stream_begins_and_how_far_its_batches_go(mode: str, readers: Readers) -> None:
    latest = readers.offsets(bar=4, foo=31)
    earliest = readers.offsets(bar=1, foo=10)
    assert readers.make(mode).initialOffset() == latest
    assert readers.make(mode, startingOffsets="earliest").initialOffset() == earliest
    named = readers.names('{"foo": 17, "later": 5}')
    assert readers.make(mode, startingOffsets=named).initialOffset() == readers.offsets(
        bar=1, foo=17, later=5
    )
    named = readers.names('{"foo": -1, "bar": -2}')
    assert readers.make(mode, startingOffsets=named).initialOffset() == readers.offsets(
        bar=1, foo=31
    )
    assert readers.make(mode, startingTimestamp="1999-12-31").initialOffset() == earliest

    reader = readers.make(mode, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    first = reader.latestOffset(earliest, limit)
    assert batch(reader, earliest, first) == [
        *readers.messages("bar", 1, 1),
        *readers.messages("foo", 10, 16),
    ]
    assert reader.latestOffset(first, ALL) == latest == reader.reportLatestOffset()
    assert batch(reader, first, latest) == [
        *readers.messages("bar", 2, 3),
        *readers.messages("foo", 17, 30),
    ]
    assert list(reader.partitions(latest, latest)) == []
    assert len(readers.make(mode, minPartitions="4").partitions(earliest, latest)) >= 3


@pytest.mark.parametrize("mode", ["files", "server"])
def test_a_stream_that_starts_at_a_time_starts_behind_what_is_older(
    mode: str, readers: Readers
) -> None:
    time.sleep(0.01)
    between = datetime.now(UTC).isoformat()
    # A server is told how long ago that was: what the request is under way counts, too, seconds on
    # a busy machine.
    time.sleep(5 if mode == "server" else 0.01)
    readers.publish("bar", 4, 4)
    reader = readers.make(mode, startingTimestamp=between, subscribe=readers.names("bar"))
    until(lambda: reader.latestOffset({}, ALL) == readers.offsets(bar=5), "the message")
    assert reader.initialOffset() == readers.offsets(bar=4)


@pytest.mark.parametrize("mode", ["files", "server"])
def test_a_query_for_what_is_there_now_ends_there(mode: str, readers: Readers) -> None:
    wanted = readers.names("foo,bar,later")
    reader = readers.make(mode, startingOffsets="earliest", subscribe=wanted)
    reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    start = reader.initialOffset()
    there = readers.offsets(bar=4, foo=31)
    readers.publish("foo", 31, 31)
    readers.publish("later", 1, 1)
    other = readers.make(mode, subscribe=wanted)
    until(
        lambda: other.latestOffset({}, ALL) == readers.offsets(bar=4, foo=32, later=2),
        "the new messages",
    )
    assert reader.latestOffset(start, ALL) == there
    assert reader.latestOffset(there, ALL) == there


@pytest.mark.parametrize("mode", ["files", "server"])
def test_a_channel_that_has_appeared_is_read_from_its_first_message(
    mode: str, readers: Readers
) -> None:
    choice = "subscribePattern" if mode == "files" else "subscribe"
    wanted = readers.names("foo|later.*") if mode == "files" else readers.names("foo,later.on")
    reader = readers.make(mode, **{choice: wanted})
    start = reader.initialOffset()
    assert start == readers.offsets(foo=31)
    readers.publish("later.on", 1, 2)
    end = start | readers.offsets(**{"later.on": 3})
    until(lambda: reader.latestOffset(start, ALL) == end, "the new channel")
    assert batch(reader, start, end) == readers.messages("later.on", 1, 2)


@pytest.mark.parametrize("mode", ["files", "server"])
def test_what_is_gone_is_an_error_or_read_over(
    mode: str, readers: Readers, capsys: pytest.CaptureFixture[str]
) -> None:
    says = readers.names("foo: messages 5 to 9 are gone")
    start = readers.offsets(foo=5)
    end = readers.offsets(foo=12)
    with pytest.raises(DataLossError, match=f"{says}.*failOnDataLoss=false"):
        batch(readers.make(mode), start, end)
    reader = readers.make(mode, failOnDataLoss="false")
    assert batch(reader, start, end) == readers.messages("foo", 10, 11)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["files", "server"])
def test_a_channel_that_ends_before_its_place_has_begun_anew(
    mode: str, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BACK_WITHIN_S", 0.1)
    start = readers.offsets(foo=100)
    end = readers.offsets(foo=31)
    with pytest.raises(DataLossError, match="foo: it was read up to message 99 and ends at 30 now"):
        readers.make(mode).latestOffset(start, ALL)
    reader = readers.make(mode, failOnDataLoss="false", subscribe=readers.names("foo"))
    assert reader.latestOffset(start, ALL) == end
    assert batch(reader, start, end) == readers.messages("foo", 10, 30)


def test_a_batch_whose_channel_is_gone_from_the_store_is_a_loss(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filestream, "BACK_WITHIN_S", 0.1)
    reader = readers.make("files")
    # As after a channel was deleted, or with another store mounted.
    with pytest.raises(DataLossError, match="gone: messages 2 to 3 are gone"):
        reader.partitions(readers.offsets(gone=2), readers.offsets(gone=4))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"servers": "nats://127.0.0.1:1", "clusterId": "x"}, "which channels"),
        ({"servers": "nats://127.0.0.1:1", "subscribe": "a"}, "clusterId is missing"),
        (
            {"servers": "nats://127.0.0.1:1", "path": "/nss", "subscribe": "a"},
            'has no option "path"',
        ),
        (
            {"servers": "nats://127.0.0.1:1", "subscribePattern": "a.*"},
            'has no option "subscribePattern"',
        ),
        ({"path": "/nss", "endingOffsets": "latest"}, 'has no option "endingOffsets"'),
        ({"path": "/nss", "maxOffsetsPerTrigger": "few"}, "maxOffsetsPerTrigger is 'few'"),
        ({"subscribe": "a"}, "which datastore"),
    ],
)
def test_options_that_a_stream_cannot_have_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StanSource(options).streamReader(schema("data"))


def test_a_server_is_not_asked_for_what_only_files_tell() -> None:
    options = {"servers": "nats://127.0.0.1:1", "clusterId": "x", "subscribe": "a"}
    with pytest.raises(ConfigError, match='does not tell "offset"'):
        StanSource(options).streamReader(schema("data", "offset"))
