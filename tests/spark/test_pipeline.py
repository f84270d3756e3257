"""``ftstan-pipeline`` as an operator types it, on real datastores and real servers."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.cli.pipeline import running
from ftstan.cli.pipeline.command import main
from tests.datastores import serving
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER, HOST, READY
from tests.spark.streaming import stored, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.processes import Server, Stage

pytestmark = pytest.mark.usefixtures("spark")

ORDERS = 120
PAYMENTS = 30


@dataclass(frozen=True, slots=True)
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Operator:
    """Somebody who types ``ftstan-pipeline``."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Said:
        self._capsys.readouterr()
        status = main([str(word) for word in words])
        return Said(status, *self._capsys.readouterr())


@pytest.fixture
def operator(capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(capsys)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two channels, each written by two activations."""
    path = tmp_path_factory.mktemp("pipeline") / "store"
    for half in range(2):
        with serving(path) as node:
            for name, count in ((b"orders", ORDERS), (b"payments", PAYMENTS)):
                first = half * count // 2 + 1
                node.publish(name, *(b'{"n": %d}' % n for n in range(first, first + count // 2)))
    return path


def messages(path: Path) -> dict[str, list[tuple[int, int, bytes, bytes]]]:
    """What the original reads."""
    return {
        name.decode(): [
            (s, m.timestamp, m.data, m.reply) for s, m in sorted(channel.messages.items())
        ]
        for name, channel in read_store(path).channels.items()
    }


def given(server: Server, channel: str) -> list[tuple[int, bytes]]:
    """What a client of a server is given from the first message on: sequence and data."""
    return [(m.sequence, m.data) for m in stored(url_of(server), channel)]


# ---- read
# --------------------------------------------------------------------------------------------------


def test_channels_are_counted(store: Path, operator: Operator) -> None:
    said = operator("read", store, "--count", "--output", "json")
    assert [
        (r["channel"], r["messages"], r["first"], r["last"]) for r in said.json["channels"]
    ] == [
        ("orders", ORDERS, 1, ORDERS),
        ("payments", PAYMENTS, 1, PAYMENTS),
    ]
    assert "ORDERS" not in operator("read", store, "--count").out
    assert "orders" in operator("read", store, "--count").out


def test_messages_are_shown_as_they_are(store: Path, operator: Operator) -> None:
    said = operator(
        "read",
        store,
        "--channel",
        "orders",
        "--where",
        "sequence BETWEEN 60 AND 62",
        "--output",
        "json",
    )
    expected = messages(store)["orders"][59:62]
    shown = sorted(
        (r["sequence"], r["timestamp_ns"], base64.b64decode(r["data"]), r["reply"].encode())
        for r in said.rows
    )
    assert shown == expected
    table = operator("read", store, "--channel", "orders", "--where", "sequence = 60").out
    assert '{"n": 60}' in table


def test_a_time_range_is_a_time_range(store: Path, operator: Operator) -> None:
    moment = "2023-11-14T22:13:20Z"
    after = operator("read", store, "--since", moment, "--count", "--output", "json").json[
        "channels"
    ]
    before = operator("read", store, "--until", moment, "--count", "--output", "json").json[
        "channels"
    ]
    assert sum(row["messages"] for row in after + before) == ORDERS + PAYMENTS
    assert after


def test_messages_are_exported_as_files(
    store: Path, operator: Operator, tmp_path: Path, spark: SparkSession
) -> None:
    said = operator(
        "read", store, "--pattern", "pay.*", "--export", tmp_path / "out", "--output", "json"
    )
    assert said.json == {"directory": str(tmp_path / "out"), "format": "parquet"}
    assert spark.read.parquet(str(tmp_path / "out")).count() == PAYMENTS
    again = operator("read", store, "--export", tmp_path / "out")
    assert (again.status, again.err.count("\n") <= 2) == (running.EXIT_FAILED, True)


def test_a_place_that_is_none_is_one_line(tmp_path: Path, operator: Operator) -> None:
    said = operator("read", tmp_path / "nothing")
    assert said.status == running.EXIT_FAILED
    assert str(tmp_path / "nothing") in said.err
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 2


def test_a_condition_that_is_no_sql_is_one_line(store: Path, operator: Operator) -> None:
    said = operator("read", store, "--where", "nothing = 1")
    assert said.status == running.EXIT_FAILED
    assert "nothing" in said.err
    assert len(said.err.splitlines()) <= 2


# ---- restore
# --------------------------------------------------------------------------------------------------


def test_a_dry_run_of_a_restore_says_what_there_is_and_writes_nothing(
    store: Path, operator: Operator, tmp_path: Path
) -> None:
    said = operator(
        "restore",
        store,
        "--to",
        tmp_path / "new",
        "--cluster",
        "c",
        "--dry-run",
        "--output",
        "json",
    )
    assert [(r["channel"], r["messages"]) for r in said.json["channels"]] == [
        ("orders", ORDERS),
        ("payments", PAYMENTS),
    ]
    assert not (tmp_path / "new").exists()


@pytest.mark.processes
def test_a_restored_datastore_is_served_as_the_one_that_it_was_made_of(
    store: Path, operator: Operator, stage: Stage
) -> None:
    said = operator(
        "restore",
        store,
        "--to",
        stage.store,
        "--cluster",
        CLUSTER,
        "--slice-msgs",
        "50",
        "--output",
        "json",
    )
    assert said.status == 0, said
    assert said.json["channels"]["orders"] == {"first": 1, "last": ORDERS, "messages": ORDERS}
    assert messages(stage.store) == messages(store)
    server = stage.file_server("restored")
    server.wait_for(READY)
    assert given(server, "orders") == [(s, data) for s, _, data, _ in messages(store)["orders"]]
    assert "WRN" not in server.text()
    assert "ERR" not in server.text()


def test_a_directory_in_use_or_full_is_not_restored_into(
    store: Path, operator: Operator, tmp_path: Path
) -> None:
    said = operator("restore", store, "--to", store, "--cluster", CLUSTER)
    assert said.status == running.EXIT_FAILED
    assert f"{store} is not empty" in said.err


# ---- replay
# --------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_replay_publishes_everything_once_however_often_it_is_run(
    store: Path, operator: Operator, stage: Stage
) -> None:
    server = stage.file_server("target", "-dedup_window", "10000")
    server.wait_for(READY)
    where = ["--server", f"nats://{HOST}:{server.port}", "--cluster", CLUSTER, "--output", "json"]
    words = ["replay", store, "--prefix", "again.", *where]
    dry = operator(*words, "--dry-run")
    assert [(r["target"], r["messages"]) for r in dry.json["channels"]] == [
        ("again.orders", ORDERS),
        ("again.payments", PAYMENTS),
    ]
    noted = [*words, "--checkpoint", stage.directory / "replay.json"]
    first = operator(*noted)
    assert (first.status, first.json["messages"]) == (0, ORDERS + PAYMENTS), first
    second = operator(*noted)
    assert (second.status, second.json["messages"], second.json["left_out"]) == (
        0,
        0,
        ORDERS + PAYMENTS,
    ), second
    # Without its checkpoint it publishes everything again, and the server knows it all.
    third = operator(*words)
    assert third.json["messages"] == ORDERS + PAYMENTS
    last = operator(
        "replay",
        store,
        "--to-channel",
        "again.orders",
        "--where",
        "sequence = 1",
        "--again",
        "x",
        *where,
    )
    assert last.json["messages"] == 2
    expected = [data for _, _, data, _ in messages(store)["orders"]]
    assert [data for _, data in given(server, "again.orders")] == [
        *expected,
        b'{"n": 1}',
        b'{"n": 1}',
    ]


def test_a_replay_to_nobody_is_one_line(store: Path, operator: Operator) -> None:
    said = operator(
        "replay",
        store,
        "--same-channels",
        "--server",
        "nats://127.0.0.1:1",
        "--connect-timeout",
        "0.5",
    )
    assert said.status == running.EXIT_FAILED
    assert "hint: " in said.err
    assert len(said.err.splitlines()) == 2
