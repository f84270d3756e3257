"""The columns of the log in Spark's words, and which of them a query reads.

Spark tells a Python source nothing of the columns that a query uses: ``.schema(...)`` does.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Columns of every kind of reading; the order is that of a reader without ``.schema(...)``.
SCHEMA: Final = (
    "channel string, sequence bigint, timestamp timestamp, timestamp_ns bigint, data binary, "
    "size int, reply string, "
    "crc_ok boolean, slice int"
)

#: Those, and three that say where a row comes from and what is wrong with it, for whoever asks for
#: them.
COLUMNS: Final[dict[str, DataType]] = {
    "channel": StringType(),
    "sequence": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ns": LongType(),
    "data": BinaryType(),
    "size": IntegerType(),
    "reply": StringType(),
    "crc_ok": BooleanType(),
    "slice": IntegerType(),
    "file": StringType(),
    "offset": LongType(),
    "problem": StringType(),
}


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Names of the columns of a schema.

    Raises ``ConfigError`` for one that is not ours, or of another type.
    """
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            near = difflib.get_close_matches(field.name, COLUMNS, 1)
            hint = f"did you mean {near[0]}?" if near else f"columns are: {', '.join(COLUMNS)}"
            raise ConfigError(f'stan: there is no column "{field.name}"', hint=hint)
        if field.dataType != expected:
            raise ConfigError(
                f'stan: column "{field.name}" is {expected.simpleString()}, not '
                f"{field.dataType.simpleString()}",
                hint="read it as it is and cast it in the query",
            )
    return tuple(field.name for field in schema.fields)
