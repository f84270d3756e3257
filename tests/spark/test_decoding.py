"""Payloads as columns: what can be decoded is, what cannot says why, and no row goes."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ftstan.base.errors import ConfigError
from ftstan.spark.queries.decoding import Avro, Json, Protobuf, decode

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.usefixtures("quick")


def _table(spark: SparkSession, *payloads: bytes | None) -> DataFrame:
    return spark.createDataFrame(list(enumerate(payloads)), "n int, data binary")


def _rows(table: DataFrame) -> list[Row]:
    rows = table.orderBy("n").collect()
    assert [row["n"] for row in rows] == list(range(len(rows)))
    return rows


JSON = (b'{"id": 1, "who": {"name": "a"}}', b'{"id": 2}', b"not json", b"[1, 2]", b"\xff\xfe", None)


def test_json_with_the_schema_of_what_is_there(spark: SparkSession) -> None:
    rows = _rows(decode(_table(spark, *JSON), Json()))
    assert [row["payload"] and row["payload"].asDict(True) for row in rows] == [
        {"id": 1, "who": {"name": "a"}}, {"id": 2, "who": None}, None, None, None, None,
    ]  # fmt: skip
    assert [row["payload_error"] is None for row in rows] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert rows[5]["payload_error"] == "the record cannot be read"


def test_json_with_a_schema_that_is_given(spark: SparkSession) -> None:
    rows = _rows(decode(_table(spark, *JSON[:3]), Json("id BIGINT")))
    assert [row["payload"] and row["payload"]["id"] for row in rows] == [1, 2, None]
    with pytest.raises(ConfigError, match="schema: "):
        decode(_table(spark, b"{}"), Json("id WHAT"))
    with pytest.raises(ConfigError, match="no payload is a JSON object"):
        decode(_table(spark, b"text"), Json())


def _shop() -> descriptor_pb2.FileDescriptorSet:
    """An order with a field of every shape: repeated, map, enum, nested, optional, and itself."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    enum = file.enum_type.add(name="Colour")
    enum.value.add(name="RED", number=0)
    enum.value.add(name="BLUE", number=1)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    for number, (name, kind, label, of) in enumerate(
        [
            ("id", kinds.TYPE_UINT64, kinds.LABEL_OPTIONAL, ""),
            ("tags", kinds.TYPE_STRING, kinds.LABEL_REPEATED, ""),
            ("counts", kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".shop.Order.CountsEntry"),
            ("colour", kinds.TYPE_ENUM, kinds.LABEL_OPTIONAL, ".shop.Colour"),
            ("parent", kinds.TYPE_MESSAGE, kinds.LABEL_OPTIONAL, ".shop.Order"),
            ("raw", kinds.TYPE_BYTES, kinds.LABEL_OPTIONAL, ""),
            ("price", kinds.TYPE_DOUBLE, kinds.LABEL_OPTIONAL, ""),
        ],
        start=1,
    ):
        field = order.field.add(name=name, number=number, type=kind, label=label)
        if of:
            field.type_name = of
    return descriptor_pb2.FileDescriptorSet(file=[file])


def test_protobuf_by_its_descriptor(spark: SparkSession, tmp_path: Path) -> None:
    files = _shop()
    path = tmp_path / "shop.desc"
    path.write_bytes(files.SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    one = order(
        id=2**64 - 1,
        tags=["a", "b"],
        counts={"x": 3},
        colour=1,
        parent=order(id=7),
        raw=b"\0",
        price=1.5,
    )
    how = Protobuf(str(path), "shop.Order")
    good, empty, bad = _rows(decode(_table(spark, one.SerializeToString(), b"", b"\xff"), how))
    assert good["payload"].asDict(True) == {
        "id": Decimal(2**64 - 1), "tags": ["a", "b"], "counts": {"x": 3}, "colour": "BLUE",
        "parent": '{"id": "7"}', "raw": bytearray(b"\0"), "price": 1.5,
    }  # fmt: skip
    assert (empty["payload"]["tags"], empty["payload"]["parent"], empty["payload"]["colour"]) == (
        [],
        None,
        "RED",
    )
    assert bad["payload"] is None
    assert bad["payload_error"].startswith("DecodeError")
    with pytest.raises(ConfigError, match=r"no message shop\.Invoice") as caught:
        decode(_table(spark, b""), Protobuf(str(path), "shop.Invoice"))
    assert caught.value.hint == "there are: shop.Order"
    path.write_bytes(b"\xff\xff")
    with pytest.raises(ConfigError, match="no descriptor set"):
        decode(_table(spark, b""), how)
    with pytest.raises(ConfigError, match="No such file"):
        decode(_table(spark, b""), Protobuf(str(tmp_path / "none"), "x"))


LINE = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "first", "type": "Line"},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "parent", "type": ["null", "Order"]},
        {"name": "odd", "type": ["null", "int", "string"]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("header", [0, 5])
def test_avro_with_its_schema(spark: SparkSession, tmp_path: Path, header: int) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(SCHEMA))
    out = io.BytesIO()
    value = {
        "id": 7, "note": None, "at": 1_700_000_000_000_000, "price": Decimal("12.50"),
        "lines": [{"n": 1}, {"n": 2}],
        "first": {"n": 9}, "counts": {"x": 3}, "parent": None, "odd": 5,
    }  # fmt: skip
    fastavro.schemaless_writer(out, SCHEMA, value)
    payload = b"\0" * header + out.getvalue()
    good, longer, bad = _rows(
        decode(_table(spark, payload, payload + b"!", b"\x01"), Avro(str(path), header))
    )
    row = good["payload"].asDict(True)
    assert row.pop("at").timestamp() == 1_700_000_000
    assert row == {
        "id": 7, "note": None, "price": Decimal("12.50"), "lines": [{"n": 1}, {"n": 2}],
        "first": {"n": 9},
        "counts": {"x": 3}, "parent": None, "odd": "5",
    }  # fmt: skip
    assert longer["payload_error"] == "ValueError: 1 bytes are left over"
    assert bad["payload"] is None
    assert bad["payload_error"]
    path.write_text('"string"')
    with pytest.raises(ConfigError, match="not that of a record"):
        decode(_table(spark, b""), Avro(str(path)))
    path.write_text("{")
    with pytest.raises(ConfigError, match="no Avro schema"):
        decode(_table(spark, b""), Avro(str(path)))
