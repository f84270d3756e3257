"""``ftstan-pipeline --remote``: the commands on a real Spark Connect server, which is another
process than theirs.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.datastores import serving
from tests.lateness import SPARK_LATE
from tests.processes import HOST, Stage, free_ports
from tests.spark.programs import SPARK_HOME, START_S, environment, finished, pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes

_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

STREAM = """\
import sys
from pyspark.errors import StreamingQueryException
from ftstan.spark.session import remote_session

url, store, place, late = sys.argv[1:]
spark = remote_session(url)
rows = spark.readStream.format("stan").option("path", store).option("startingOffsets", "earliest").load()
def run():
    query = (
        rows.writeStream.format("parquet").option("path", f"{place}/rows")
        .option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(300)

for _ in range(5):
    try:
        run()
        break
    except StreamingQueryException as failure:
        # Spark gives a worker ten seconds to start, and a stream goes on from its checkpoint.
        if late not in str(failure):
            raise
else:
    run()
found = spark.read.parquet(f"{place}/rows").selectExpr("channel", "sequence", "CAST(data AS STRING)")
print(sorted(tuple(row) for row in found.collect()))
"""  # noqa: E501


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server with two cores, in a time zone of its own."""
    stage = Stage(tmp_path_factory.mktemp("connect"))
    port = free_ports(1)[0]
    settings = {
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.local.dir": str(stage.directory / "local"),
        "spark.sql.warehouse.dir": str(stage.directory / "warehouse"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 "
        f"-Dderby.system.home={stage.directory}",
    }
    words = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", _CLASS, "--master", "local[2]"]
    words += ["--driver-memory", "768m"]
    words += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    try:
        server = stage.run("server", words, environment(TMPDIR=str(stage.directory)))
        server.wait_for("Spark Connect server started", within=START_S)
        yield f"sc://{HOST}:{port}"
    finally:
        stage.end()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with serving(tmp_path / "store") as node:
        node.publish(b"orders", b"one", b"two", b"three")
        node.publish(b"payments", b"four")
    return tmp_path / "store"


def test_the_log_is_read_queried_and_audited(remote: str, store: Path, tmp_path: Path) -> None:
    def ask(*words: object) -> list[dict[str, object]]:
        done = finished(pipeline(*words, "--output", "json", "--remote", remote), tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    (counted,) = ask("read", store, "--count")
    assert counted["channels"] == [
        {"channel": "orders", "messages": 3, "bytes": 11, "first": 1, "last": 3}
        | {"since": "2023-11-14 22:13:20", "until": "2023-11-14 22:13:20"},
        {"channel": "payments", "messages": 1, "bytes": 4, "first": 1, "last": 1}
        | {"since": "2023-11-14 22:13:20", "until": "2023-11-14 22:13:20"},
    ]
    shown = ask("read", store, "--channel", "orders", "--where", "sequence > 1")
    assert [(row["sequence"], row["data"]) for row in shown] == [(2, "dHdv"), (3, "dGhyZWU=")]
    words = (
        "SELECT channel, CAST(data AS STRING) AS text FROM messages WHERE size = 4 ORDER BY channel"
    )
    assert ask("query", words, store) == [{"channel": "payments", "text": "four"}]
    (report,) = ask("audit", store)
    assert (report["clean"], report["notes"]) == (True, [])


def test_what_is_archived_is_restored(remote: str, store: Path, tmp_path: Path) -> None:
    for words in (
        ["archive", store, tmp_path / "archive"],
        ["restore", tmp_path / "archive", "--to", tmp_path / "restored", "--cluster", "x"],
    ):
        done = finished(pipeline(*words, "--output", "json", "--remote", remote), tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["messages"] == 4
    done = finished(
        pipeline("read", tmp_path / "restored", "--output", "json", "--remote", remote), tmp_path
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((row["channel"], row["sequence"]) for row in rows) == [
        ("orders", 1), ("orders", 2), ("orders", 3), ("payments", 1),
    ]  # fmt: skip


def test_a_stream_goes_on_where_it_stopped(remote: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", STREAM, remote, tmp_path / "store", tmp_path]
    words.append(SPARK_LATE)
    with serving(tmp_path / "store") as node:
        node.publish(b"orders", b"one", b"two")
    done = finished(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[('orders', 1, 'one'), ('orders', 2, 'two')]\n"
    with serving(tmp_path / "store") as node:
        node.publish(b"orders", b"three")
    done = finished(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[('orders', 1, 'one'), ('orders', 2, 'two'), ('orders', 3, 'three')]\n"


def test_a_place_that_is_on_the_server_only_is_one_line(remote: str, tmp_path: Path) -> None:
    for words in (
        ["audit", "there"],
        ["query", "rate", "there"],
        ["archive", "there", "x"],
        ["judge", "there"],
    ):
        done = finished(pipeline(*words, "--remote", remote), tmp_path)
        assert (done.returncode, done.stdout) == (64, "")
        first, hint = done.stderr.splitlines()
        assert first.startswith(
            "there is not on this machine: this command looks into it from here, too"
        )
        assert hint.startswith("hint: mount it here at the same path")
