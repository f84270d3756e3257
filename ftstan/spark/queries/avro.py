"""Avro payloads as rows, with the schema that they were written with.

A union of several types becomes text.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    Take = Callable[[Any], Any]

_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
    "null": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
}


def decoder(content: bytes, header: int) -> tuple[pa.DataType, Callable[[bytes], Any]]:
    """The type of rows of a schema, and what makes one of a payload behind ``header`` bytes.

    Raises ``ConfigError``.
    """
    try:
        schema = parse_schema(json.loads(content))
    except (ValueError, SchemaParseException, TypeError) as error:
        raise ConfigError(
            f"this is no Avro schema: {error}", hint="give the schema as JSON (.avsc)"
        ) from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(
            "the Avro schema is not that of a record", hint="columns are made of a record's fields"
        )
    named: dict[str, Any] = {}
    kind, take = _of(schema, named, frozenset())

    def decode(payload: bytes) -> Any:
        if len(payload) < header:
            raise ValueError(f"{len(payload)} bytes are less than the header")
        stream = io.BytesIO(payload)
        stream.seek(header)
        value = schemaless_reader(stream, schema, None)
        if left := len(payload) - stream.tell():
            raise ValueError(f"{left} bytes are left over")
        return take(value)

    return kind, decode


def _of(schema: Any, named: dict[str, Any], outer: frozenset[str]) -> tuple[pa.DataType, Take]:
    """The type of values of a schema, and what makes one of what the library gives."""
    if isinstance(schema, list):
        return _union(schema, named, outer)
    if isinstance(schema, str):
        if schema in _SIMPLE:
            return _SIMPLE[schema], _same
        if schema in outer:
            return pa.string(), _text
        return _of(named[schema], named, outer)
    kind = schema["type"]
    if "name" in schema:
        named[schema["name"]] = schema
    if "logicalType" in schema and kind != "record":
        return _logical(schema)
    if kind == "record":
        return _record(schema, named, outer | {schema["name"]})
    if kind == "array":
        item_kind, item = _of(schema["items"], named, outer)
        return pa.list_(item_kind), lambda values: [item(value) for value in values]
    if kind == "map":
        item_kind, item = _of(schema["values"], named, outer)
        return pa.map_(pa.string(), item_kind), lambda values: [
            (k, item(v)) for k, v in values.items()
        ]
    if kind in _SIMPLE:
        return _SIMPLE[kind], _same
    return _of(kind, named, outer)


def _union(
    schema: list[Any], named: dict[str, Any], outer: frozenset[str]
) -> tuple[pa.DataType, Take]:
    others = [one for one in schema if one != "null"]
    if len(others) != 1:
        for one in others:
            _of(one, named, outer)
        return pa.string(), lambda value: None if value is None else _text(value)
    kind, take = _of(others[0], named, outer)
    return kind, lambda value: None if value is None else take(value)


def _record(
    schema: dict[str, Any], named: dict[str, Any], outer: frozenset[str]
) -> tuple[pa.DataType, Take]:
    fields = [(field["name"], *_of(field["type"], named, outer)) for field in schema["fields"]]
    if not fields:
        return pa.string(), _text
    kind = pa.struct([(name, of_field) for name, of_field, _ in fields])
    return kind, lambda value: {name: take(value[name]) for name, _, take in fields}


def _logical(schema: dict[str, Any]) -> tuple[pa.DataType, Take]:
    logical = schema["logicalType"]
    if logical in _LOGICAL:
        return _LOGICAL[logical], _same
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0)), _same
    return pa.string(), _text


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
