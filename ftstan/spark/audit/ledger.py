"""A ledger (``docs/ledger.md``) as a Spark table, read as strictly as by the small reader, in
pieces of many files.

The driver cuts the files into byte ranges at line ends; tasks parse them. A last line without its
line feed is left out; any other line that is no record makes the ledger unreadable. It never
judges.
"""

from __future__ import annotations

import io
import os
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json
from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  # its name everywhere
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ftstan.drill.ledger import MOST, SHAPES, LedgerError, parse, paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

#: A row that is no record; ``text`` says why.
BROKEN = "broken"

#: Fields that no rule looks at: they are checked and left out.
_UNJUDGED = frozenset({"guid", "number", "size", "commits", "took_us", "by"})

_ARROW = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}
_FIELDS = {name: of for shape in SHAPES.values() for name, of in shape.needed.items()} | {
    name: of for shape in SHAPES.values() for name, (of, _) in shape.optional.items()
}
_WHOLE = pa.schema(
    [("kind", pa.string()), *((name, _ARROW[kind]) for name, kind in _FIELDS.items())]
)
_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string()),
        *(pa.field(name, _ARROW[kind]) for name, kind in _FIELDS.items() if name not in _UNJUDGED),
        pa.field("place", pa.int64()),
    ]
)
_SPARK_NAMES = {pa.int64(): "bigint", pa.string(): "string", pa.bool_(): "boolean"}
_SPARK_SCHEMA = ", ".join(f"`{field.name}` {_SPARK_NAMES[field.type]}" for field in _SCHEMA)

_RANGE = 32 << 20
_PART = 8 << 20
#: Bytes that are parsed at once.
_BLOCK = 4 << 20

#: Bytes of a line that no record is shorter than.
_SHORTEST = 10

#: A place is one number, which Spark compares and keeps for less than a pair: the file's, and the
#: offset in so many bits of it.
_OFFSET_BITS = 44


@dataclass(frozen=True, slots=True)
class Range:
    """Whole lines of one file: bytes ``begin`` to ``end``; the last line of a file may be cut."""

    file: int
    path: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a channel by one reader.

    ``epoch`` and ``t``: of its start, the lowest; ``place``: of its first record; ``last``: its
    highest sequence; ``many``: different ones from 1 on, ``below``: other ones.
    """

    channel: str
    reader: str
    epoch: int
    t: int
    place: int
    last: int
    many: int
    below: int


class LedgerSource(DataSource):
    """The data source that reads a ledger: option ``path`` is its directory.

    A broken line is a row of its own.
    """

    @classmethod
    def name(cls) -> str:
        """Its name in Spark."""
        return "stan-ledger"

    def schema(self) -> str:
        """Columns of all kinds, see :func:`read`."""
        return _SPARK_SCHEMA

    def reader(self, schema: StructType) -> LedgerReader:
        """The reader of the directory; Spark passes the schema by name."""
        del schema
        return LedgerReader(self.options["path"])


class Piece(InputPartition):
    """One range of one file."""

    def __init__(self, value: Range) -> None:
        super().__init__(value)
        self.value: Range = value


class LedgerReader(DataSourceReader):
    """Reads the ranges of :func:`plan`, each in a task."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def partitions(self) -> Sequence[InputPartition]:
        """Whole lines of files."""
        return [Piece(piece) for piece in plan(self._directory)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a range."""
        assert isinstance(partition, Piece)
        return _batches(partition.value)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger that was read: its records, kept in Spark's cache (``forget`` it), and what counting
    them showed.

    ``table``: a column for every field that is judged, null where the kind has none; ``place``
    gives the order in which a reader of one file after the other meets the records. ``readings``:
    by name. ``deliveries``: how many, by channel and durable. ``parts``: in so many pieces it is
    judged.
    """

    directory: str
    table: DataFrame
    readings: tuple[Reading, ...]
    deliveries: dict[tuple[str, str], int]
    redelivered: int
    retried: int
    failed: int
    parts: int

    @property
    def final(self) -> dict[str, str]:
        """For each channel the reading that was started last.

        Of two with one start, the one that was met first.
        """
        found = sorted(self.readings, key=lambda r: (-r.epoch, -r.t, r.place), reverse=True)
        return {reading.channel: reading.reader for reading in found}

    @property
    def durables(self) -> list[str]:
        """The durables that any channel has, sorted."""
        return sorted({name for _, name in self.deliveries})

    def forget(self) -> None:
        """Give back what Spark keeps of it."""
        self.table.unpersist()


def read(spark: SparkSession, directory: str) -> Ledger:
    """The records of all files of a ledger.

    Raises :class:`LedgerError`, with file and line, for a line that is no record and for a
    directory without a ledger.
    """
    pieces = plan(directory)  # here what is wrong with the directory is an error of ours
    spark.dataSource.register(LedgerSource)
    source = (
        spark.read.format(LedgerSource.name()).option("path", os.path.abspath(directory)).load()
    )
    table = source.persist(StorageLevel.MEMORY_AND_DISK)
    # Only what a hash table of numbers can hold: anything else would sort the ledger.
    groups = (
        table.groupBy("kind", "channel", "subscription", "reader")
        .agg(
            F.count("*").alias("records"),
            F.count_if(F.col("attempt") > 1).alias("retried"),
            F.count_if("redelivered").alias("redelivered"),
            F.min("epoch").alias("epoch"),
            F.max("epoch").alias("last_epoch"),
            F.min("t").alias("t"),
            F.min("place").alias("place"),
            F.max("sequence").alias("last"),
        )
        .orderBy("kind", "channel", "subscription", "reader")
        .collect()
    )
    if any(group["kind"] == BROKEN for group in groups):
        try:
            raise _unreadable(table, pieces)
        finally:
            table.unpersist()
    return Ledger(
        directory=directory,
        table=table,
        readings=tuple(_readings(table, [group for group in groups if group["kind"] == "read"])),
        deliveries={
            (group["channel"], group["subscription"]): group["records"]
            for group in groups
            if group["kind"] == "deliver"
        },
        redelivered=sum(group["redelivered"] for group in groups),
        retried=sum(group["retried"] for group in groups),
        failed=sum(group["records"] for group in groups if group["kind"] == "error"),
        parts=1 + sum(piece.end - piece.begin for piece in pieces) // _PART,
    )


def _unreadable(table: DataFrame, pieces: Sequence[Range]) -> LedgerError:
    (first,) = (
        table.where(F.col("kind") == BROKEN)
        .orderBy("place")
        .select("place", "text")
        .limit(1)
        .collect()
    )
    path = next(piece.path for piece in pieces if piece.file == first["place"] >> _OFFSET_BITS)
    line = _line_at(path, first["place"] & ((1 << _OFFSET_BITS) - 1))
    return LedgerError(f"{path}, line {line}: {first['text']}", hint="docs/ledger.md")


def _readings(table: DataFrame, groups: Sequence[Row]) -> Iterator[Reading]:
    """The readings, of which ``groups`` has one each."""
    reads = table.where(F.col("kind") == "read")
    of = ("channel", "reader")
    sequences = reads.select(*of, "sequence").distinct().groupBy(*of)
    counted = sequences.agg(
        F.count_if(F.col("sequence") >= 1), F.count_if(F.col("sequence") < 1)
    ).collect()
    different = {(row[0], row[1]): (row[2], row[3]) for row in counted} if groups else {}
    starts: dict[tuple[str, str], int] = {}
    if any(group["epoch"] < group["last_epoch"] for group in groups):
        # The time that counts is the lowest one of the lowest epoch.
        first = reads.groupBy(*of).agg(F.min(F.struct("epoch", "t")).alias("start")).collect()
        starts = {(row[0], row[1]): row["start"]["t"] for row in first}
    for group in groups:
        name = (group["channel"], group["reader"])
        t = starts.get(name, group["t"])
        yield Reading(*name, group["epoch"], t, group["place"], group["last"], *different[name])


def plan(directory: str, size: int = _RANGE) -> list[Range]:
    """Cut a ledger's files into ranges of about ``size`` bytes. Raises :class:`LedgerError`."""
    try:
        names = paths(os.path.abspath(directory))
    except OSError as error:
        raise LedgerError(
            f"ledger {directory}: {error.strerror}", hint="give the directory of its files"
        ) from error
    found = []
    for number, path in enumerate(names):
        try:
            found += [Range(number, path, begin, end) for begin, end in _cut(path, size)]
        except OSError as error:
            raise LedgerError(
                f"ledger {path}: {error.strerror}", hint="its files must be readable"
            ) from error
    return found


def _cut(path: str, size: int) -> Iterator[tuple[int, int]]:
    with open(path, "rb") as file:
        whole = os.fstat(file.fileno()).st_size
        begin = 0
        while whole - begin > size:
            file.seek(begin + size)
            file.readline()
            end = min(file.tell(), whole)
            yield begin, end
            begin = end
        yield begin, whole


def _batches(piece: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range."""
    with open(piece.path, "rb") as file:
        file.seek(piece.begin)
        offset = piece.begin
        while offset < piece.end and (lines := _lines(file, min(_BLOCK, piece.end - offset))):
            place = piece.file << _OFFSET_BITS | offset
            quick = quickly(lines, place)
            yield from strictly(lines, place) if quick is None else [quick]
            offset += len(lines)


def _lines(file: IO[bytes], size: int) -> bytes:
    """Whole lines, about ``size`` bytes.

    Nothing at the end of the file or before a line that was cut.
    """
    found = file.read(size)
    if not found.endswith(b"\n"):
        found += file.readline()
    return found[: found.rfind(b"\n") + 1]


def quickly(lines: bytes, place: int) -> pa.RecordBatch | None:
    """The records of whole lines, parsed all at once.

    ``None`` where one of them is not plainly a record.

    Then :func:`strictly` decides: this one never takes what that would not, or otherwise.
    ``place``: of the first.
    """
    lengths = [len(line) + 1 for line in lines[:-1].split(b"\n")]
    if b"null" in lines or min(lengths) < _SHORTEST:
        return None
    try:
        table = read_json(
            pa.BufferReader(lines),
            read_options=ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=ParseOptions(explicit_schema=_WHOLE, unexpected_field_behavior="ignore"),
        )
        table.validate(full=True)
    except pa.ArrowException:
        return None
    columns = {name: table.column(name).combine_chunks() for name in _WHOLE.names}
    if (
        table.num_rows != len(lengths)
        or not _within(columns)
        or not _complete(columns, table.num_rows)
    ):
        return None
    columns["place"] = pa.array(
        accumulate(lengths[:-1], initial=place), pa.int64(), size=len(lengths)
    )
    return pa.RecordBatch.from_arrays([columns[name] for name in _SCHEMA.names], schema=_SCHEMA)


def _within(columns: dict[str, pa.Array]) -> bool:
    """Whether numbers are below 2^53."""
    for name, column in columns.items():
        if _WHOLE.field(name).type == pa.int64():
            ends = pc.min_max(column).as_py()
            if ends["min"] is not None and not -MOST < ends["min"] <= ends["max"] < MOST:
                return False
    return True


def _complete(columns: dict[str, pa.Array], rows: int) -> bool:
    """Whether each row has a known kind and what belongs to it, nothing else.

    Puts in what may be left out.
    """
    known = 0
    for kind, shape in SHAPES.items():
        mine = pc.fill_null(pc.equal(columns["kind"], kind), fill_value=False)
        count = mine.true_count
        known += count
        usual = shape.optional
        for name in columns if count else ():
            there = pc.and_(mine, pc.is_valid(columns[name])).true_count
            if name in usual:
                left_out = pc.and_(mine, pc.is_null(columns[name]))
                columns[name] = pc.if_else(
                    left_out, pa.scalar(usual[name][1], columns[name].type), columns[name]
                )
            elif there != (count if name in shape.needed or name == "kind" else 0):
                return False
    return known == rows


def strictly(lines: bytes, place: int) -> Iterator[pa.RecordBatch]:
    """The records of whole lines, those of one kind together: most columns of a batch are then
    empty as a whole.
    """
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in io.BytesIO(lines):
        row = _row(line)
        row["place"] = place
        rows.setdefault(row["kind"], []).append(row)
        place += len(line)
    yield from map(_batch, rows.values())


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows of one kind."""
    columns = []
    for field in _SCHEMA:
        if field.name in rows[0]:
            columns.append(pa.array([row[field.name] for row in rows], field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _row(line: bytes) -> dict[str, Any]:
    """The fields of one line, ``kind`` among them."""
    try:
        record = parse(line)
    except LedgerError as error:
        return {"kind": BROKEN, "text": error.text}
    row = {"kind": record.kind} | asdict(record)
    for name, value in row.items():
        if isinstance(value, str) and not value.isascii():
            # JSON can name half of a character, which no column of text can hold.
            row[name] = value.encode("utf-8", "backslashreplace").decode()
    return row


def _line_at(path: str, offset: int) -> int:
    with open(path, "rb") as file:
        left = offset
        lines = 1
        while left:
            block = file.read(min(left, 1 << 20))
            if not block:
                break
            lines += block.count(b"\n")
            left -= len(block)
    return lines
