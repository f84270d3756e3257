"""Payloads as columns: JSON by Spark itself, Protobuf and Avro by their libraries, one batch of
payloads a call.

No row goes: where a payload cannot be decoded, ``payload`` is null and ``payload_error`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

from ftstan.base.errors import ConfigError
from ftstan.spark.installed import missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_CORRUPT = "_corrupt"
_UNREADABLE = "the record cannot be read"
_DDL = 'write it as "id BIGINT, name STRING"'


@dataclass(frozen=True, slots=True)
class Json:
    """Payloads that are JSON objects.

    ``schema``: their columns in Spark's words; empty: taken from all payloads.
    """

    schema: str = ""


@dataclass(frozen=True, slots=True)
class Protobuf:
    """Payloads that are messages of type ``message`` (its full name).

    ``descriptor``: a file made by ``protoc --include_imports --descriptor_set_out=FILE``.
    """

    descriptor: str
    message: str


@dataclass(frozen=True, slots=True)
class Avro:
    """Payloads that were written with the schema in the file ``schema``.

    ``header``: bytes before each: 0, 5 (those of a schema registry), or 10 (Avro's single-object
    encoding).
    """

    schema: str
    header: int = 0


def decode(table: DataFrame, how: Json | Protobuf | Avro) -> DataFrame:
    """The table with two more columns: ``payload``, a struct, and ``payload_error``, null where all
    is well.

    ``table`` has the column ``data``. Raises ``ConfigError`` for a schema that cannot be used.
    """
    match how:
        case Json():
            return _json(table, how)
        case Protobuf():
            content = _content(how.descriptor, "descriptor")
            _protobuf(content, how.message)
            return _by_batches(table, _protobuf, content, how.message)
        case Avro():
            content = _content(how.schema, "schema")
            _avro(content, how.header)
            return _by_batches(table, _avro, content, how.header)


# ---- JSON
# --------------------------------------------------------------------------------------------------


def _json(table: DataFrame, how: Json) -> DataFrame:
    text = F.when(F.is_valid_utf8(F.col("data").cast("string")), F.col("data").cast("string"))
    schema = _given(how.schema) if how.schema else _inferred(table.select(text.alias("value")))
    whole = T.StructType([*schema.fields, T.StructField(_CORRUPT, T.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    good = F.col("decoded").isNotNull() & F.col(f"decoded.{_CORRUPT}").isNull()
    payload = F.struct(*(F.col("decoded").getField(name) for name in schema.names))
    return (
        table.withColumn("decoded", F.from_json(text, whole, options))
        .withColumn("payload", F.when(good, payload))
        .withColumn(
            "payload_error",
            F.when(F.col("data").isNull(), _UNREADABLE).when(
                ~good, "no JSON object of this schema"
            ),
        )
        .drop("decoded")
    )


def _given(schema: str) -> T.StructType:
    try:
        found = T.DataType.fromDDL(schema)
    except ParseException as error:
        raise ConfigError(f"schema: {error}".splitlines()[0], hint=_DDL) from error
    if not isinstance(found, T.StructType):
        raise ConfigError(f"schema: {schema} has no columns", hint=_DDL)
    return found


def _inferred(texts: DataFrame) -> T.StructType:
    found = texts.sparkSession.read.json(
        texts.where("value IS NOT NULL"), columnNameOfCorruptRecord=_CORRUPT
    ).schema
    fields = [field for field in found.fields if field.name != _CORRUPT]
    if not fields:
        raise ConfigError(
            "no payload is a JSON object with a field", hint="give the schema, or another format"
        )
    return T.StructType(fields)


# ---- formats with a library
# ------------------------------------------------------------------------------------------


def _content(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"{what} {path}: {error.strerror}", hint="give a file that can be read"
        ) from error


@lru_cache(maxsize=8)
def _protobuf(content: bytes, message: str) -> tuple[pa.DataType, Callable[[bytes], Any]]:
    from ftstan.spark.queries.protobuf import decoder  # noqa: PLC0415  only where it is used

    return decoder(content, message)


@lru_cache(maxsize=8)
def _avro(content: bytes, header: int) -> tuple[pa.DataType, Callable[[bytes], Any]]:
    try:
        from ftstan.spark.queries.avro import decoder  # noqa: PLC0415  its library may be missing
    except ModuleNotFoundError as error:
        raise missing(error.name or "a module") from error
    return decoder(content, header)


def _by_batches(
    table: DataFrame,
    make: Callable[[bytes, Any], tuple[pa.DataType, Callable[[bytes], Any]]],
    content: bytes,
    argument: Any,
) -> DataFrame:
    kind, _ = make(content, argument)
    whole = pa.struct([("payload", kind), ("payload_error", pa.string())])

    def decoded(values: pa.Array) -> pa.Array:
        # Made again in each worker, once.
        _, take = make(content, argument)
        return pa.array([_one(value, take) for value in values.to_pylist()], type=whole)

    # Its stubs want a type of function, and it warns of one where the annotations say it already.
    take_all = arrow_udf(decoded, spark_type(whole))  # type: ignore[call-overload]
    column = take_all(F.col("data"))
    return table.withColumn("decoded", column).select(
        *table.columns, "decoded.payload", "decoded.payload_error"
    )


def _one(value: bytes | None, take: Callable[[bytes], Any]) -> dict[str, Any]:
    if value is None:
        return {"payload": None, "payload_error": _UNREADABLE}
    try:
        return {"payload": take(value), "payload_error": None}
    except Exception as error:  # noqa: BLE001  whatever a library makes of strange bytes is this row's error
        return {"payload": None, "payload_error": f"{type(error).__name__}: {error}"}


_SIMPLE: dict[pa.DataType, T.DataType] = {
    pa.bool_(): T.BooleanType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.timestamp("us", "UTC"): T.TimestampType(),
}


def spark_type(kind: pa.DataType) -> T.DataType:
    """Spark's name of an Arrow type that the decoders use."""
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(field.name, spark_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    return _SIMPLE[kind]
