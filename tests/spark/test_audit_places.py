"""Audits of real datastores: what is wrong is found where it is, and what a ledger says was acked
is looked for.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import ConfigError
from ftstan.drill.ledger import Ack, Publish, Read
from ftstan.spark.audit import AuditError, AuditKind, AuditOptions, Rule, ledger, run
from ftstan.spark.audit.checks import COLUMNS
from ftstan.spark.audit.matching import match
from ftstan.spark.audit.terminal import print_report
from tests.archive.archives import Archive, in_process
from tests.archived_slices import messages, name_cluster, slice_bytes
from tests.datastores import serving
from tests.spark import ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("quick")

ORDERS = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the payloads of ledgers in "orders", and a few in "other"."""
    path = tmp_path_factory.mktemp("store")
    with serving(path, ManualClock()) as node:
        node.publish(b"orders", *(ledgers.payload(f"{n}.1") for n in range(1, ORDERS + 1)))
        node.publish(b"other", b"one", b"two")
        node.stop()
    return path


def _damaged(store: Path, path: Path) -> Path:
    """A copy of the store with one flipped bit in sequence 3 of "orders"."""
    shutil.copytree(store, path)
    (file,) = (path / "orders").glob("msgs.*.dat")
    data = bytearray(file.read_bytes())
    at = data.index(b"payload of 3.1")
    data[at] ^= 1
    file.write_bytes(data)
    return path


def _ledger(path: Path, ids: list[str], *, sequences: bool = True) -> str:
    records: list[Publish | Ack | Read] = []
    for sequence, name in enumerate(ids, start=1):
        digest = ledgers.digest(name)
        records += [
            Publish(sequence, name, sequence, 1, f"g{name}", 9, digest),
            Ack(sequence + 5, name, f"g{name}", 5),
        ]
        if sequences:
            records.append(Read(sequence + 9, "reader", 1, sequence, name, digest))
    ledgers.write(path, list(records))
    return str(path)


def test_a_store_and_its_damaged_copy(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = _damaged(store, tmp_path / "copy")
    stages: list[str] = []
    report = run(spark, [str(store), str(copy)], progress=stages.append)
    assert report.exit_code == 1
    assert {kind: count for kind, count in report.counts.items() if count} == {AuditKind.CRC: 1}
    (finding,) = report.findings
    assert (finding.channel, finding.first, finding.places) == ("orders", 3, (str(copy),))
    assert "offset" in finding.text
    orders, other = report.channels
    assert (orders.name, orders.messages, orders.first, orders.last, orders.missing) == (
        "orders",
        ORDERS,
        1,
        ORDERS,
        0,
    )
    assert (other.messages, other.copies) == (2, 2)
    assert len(report.days) == 4
    assert stages == ["reading 2 places"]
    print_report(report)
    out = capsys.readouterr().out
    assert "error: a record whose checksum does not match: 1" in out
    assert out.endswith("not clean\n")
    report.write_json(str(tmp_path / "audit.json"))
    report.write_parquet(str(tmp_path / "tables"))
    assert json.loads((tmp_path / "audit.json").read_text())["counts"]["crc"] == 1
    rows = pq.read_table(tmp_path / "tables" / "findings.parquet").to_pylist()
    assert [(row["kind"], row["channel"], row["first"]) for row in rows] == [("crc", "orders", 3)]
    assert pq.read_table(tmp_path / "tables" / "days.parquet").num_rows == 4


def test_what_was_acked_is_looked_for_in_the_store(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    ids = [f"{n}.1" for n in range(1, ORDERS + 1)]
    book = ledger.read(spark, _ledger(tmp_path / "good", ids))
    whole = spark.read.format("stan").schema(COLUMNS).option("path", str(store)).load()
    found, breaches = match(book, [("store", whole)], "orders")
    assert (found.found, found.expired, breaches) == (ORDERS, 0, ())
    # Without what is below 4, as after a limit.
    found, breaches = match(book, [("store", whole.where("sequence > 3"))], "orders")
    assert (found.found, found.expired, breaches) == (ORDERS - 3, 3, ())
    book.forget()


def test_what_is_not_in_the_store_or_is_another_message_is_a_breach(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    ids = [f"{n}.1" for n in range(1, ORDERS + 1)]
    ids[4] = "lost.1"
    ids[6] = "7.2"
    options = AuditOptions(ledger=_ledger(tmp_path / "bad", ids), channels=("orders",))
    verdict = run(spark, [str(store)], options).ledger
    assert verdict is not None
    assert verdict.match is not None
    assert verdict.match.found == ORDERS - 2
    found = {breach.rule: (breach.count, breach.examples) for breach in verdict.breaches}
    assert found[Rule.IN_STORE] == (2, ("id lost.1", "id 7.2"))
    count, examples = found[Rule.SAME_IN_STORE]
    assert count == 2
    assert examples[0].startswith(
        f"sequence 5, id lost.1: sha1 {ledgers.digest('lost.1')}, stored "
    )


def test_what_ends_a_reading_is_told_in_one_line(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy = _damaged(store, tmp_path / "copy")
    with pytest.raises(
        AuditError, match=r"^Spark ended the audit: damage: orders/msgs\..*sequence 3"
    ) as caught:
        run(spark, [str(copy)], AuditOptions(reading={"mode": "FAILFAST"}))
    assert "\n" not in str(caught.value)


def test_a_ledger_about_a_channel_that_has_to_be_named(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    path = _ledger(tmp_path / "ledger", ["1.1"])
    with pytest.raises(AuditError, match="which channel") as caught:
        run(spark, [str(store)], AuditOptions(ledger=path))
    assert caught.value.hint == "name it; channels there: orders, other"
    with pytest.raises(AuditError, match='no channel "invoices"'):
        run(spark, [str(store)], AuditOptions(ledger=path, ledger_channel="invoices"))


def test_an_audit_of_nothing_and_of_one_place_twice_is_refused(
    spark: SparkSession, store: Path
) -> None:
    with pytest.raises(AuditError, match="nothing to audit"):
        run(spark, [])
    with pytest.raises(AuditError, match="named twice"):
        run(spark, [str(store), str(store)])


def test_a_place_that_is_not_there_is_told_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        run(spark, [str(tmp_path / "nowhere")])


def test_a_store_its_spool_and_its_archive_are_one_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    archive = Archive(tmp_path)
    rows = messages(1, 30)
    archive.put("foo", 1, rows[:10])
    archive.run()
    archive.put("foo", 2, rows[8:20])
    store = tmp_path / "live"
    name_cluster(store, "test-cluster")
    (store / "foo").mkdir()
    # 21 and 22 are nowhere, 24 is another message in the store than in the spool.
    kept = [rows[22], rows[23]._replace(data=b"other"), *rows[24:]]
    for kind, data in zip(("dat", "idx"), slice_bytes("foo", kept), strict=True):
        (store / "foo" / f"msgs.3.{kind}").write_bytes(data)
    archive.put("foo", 3, rows[23:24])
    places = [str(store), str(archive.spool), str(archive.table)]
    report = run(spark, places)
    told = {(f.kind, f.first, f.last): f.places for f in report.findings}
    assert told == {
        (AuditKind.GAP, 21, 22): (places[0], places[1]),
        (AuditKind.CONFLICT, 24, 24): (places[0], places[1]),
    }
    (channel,) = report.channels
    assert (channel.messages, channel.first, channel.last, channel.missing, channel.copies) == (
        28,
        1,
        30,
        2,
        3,
    )
