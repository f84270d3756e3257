"""The table that slices become: where its files lie, what is in it, and how a batch of files joins
it at once.

Two formats with one layout, ``channel=<c>/date=<d>/part-*.parquet``: Delta, whose log says what
belongs to the table, and plain Parquet, for which ``_ftstan/log`` says it. Below ``_ftstan`` lies
what only the archive job needs. Files become part of the table in one step, ``commit``, which does
nothing if the batch of that number is in the table already. No path in either log is absolute: the
directory can be moved. Nothing here reads or writes rows.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ftstan.spark.archive.report import FORMATS
from ftstan.spark.archive.spool import ArchiveError, sync_directory, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OURS = "_ftstan"
#: Sequences with several contents, as Parquet files.
CONFLICTS = os.path.join(OURS, "conflicts")
#: Under this name the table knows which batches it has.
APPLICATION = "ftstan-archive"
#: Columns of a file; channel and date are in its place.
ROWS = pa.schema(
    [
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ns", pa.int64()),
        ("data", pa.binary()),
        ("size", pa.int32()),
        ("reply", pa.string()),
        ("slice", pa.int32()),
    ]
)
PARTITIONS = ("channel", "date")
#: The channel's name in the metadata of each file: a directory can be too short for it.
CHANNEL_KEY = b"ftstan.channel"
#: What a file's payloads are, in its metadata: a mark of those below.
PAYLOADS_KEY = b"ftstan.payloads"
#: Payloads as clients sent them.
PLAIN = "PLAIN"
#: Payloads as they were stored: encrypted ones, and those from before encryption was on.
ENCRYPTED = "ENCRYPTED"

_WHOLE = pa.schema([("channel", pa.string()), ("date", pa.date32()), *ROWS])
_VERSION = 1
#: Bytes that a directory's name can have, and room for what a partition's name has in front.
_LONGEST = 200
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file: ``path`` relative to the table, sequences ``first`` to ``last``, times ``least_ns``
    to ``most_ns``.

    ``rows`` is -1 where the log does not tell; then the four bounds are as wide as can be.
    """

    path: str
    channel: str
    date: str
    rows: int
    size: int
    first: int
    last: int
    least_ns: int
    most_ns: int


_WIDEST = (-1, -(1 << 63), (1 << 63) - 1, -(1 << 63), (1 << 63) - 1)


class Log(Protocol):
    """What belongs to a table."""

    def files(self) -> list[DataFile]:
        """Every file of the table."""

    def batch(self) -> int:
        """Number of the latest batch that is in the table, 0 if none is."""

    def commit(self, batch: int, files: Sequence[DataFile]) -> None:
        """Add files, at once and durably; nothing if ``batch`` is in the table already."""


def metadata_of(channel: str, payloads: str) -> dict[bytes, bytes]:
    """The metadata of a file: its channel, and the table's mark if it has one."""
    marked = {PAYLOADS_KEY: payloads.encode()} if payloads else {}
    return {CHANNEL_KEY: channel.encode(), **marked}


def directory_of(channel: str, date: str, form: str) -> str:
    """Where files of a channel's day lie below the table.

    Plain Parquet escapes a name as Hive does, so that every reader finds it; a name too long for
    that, and in Delta, whose log has the name itself, every unusual one, is shortened and gets a
    digest.
    """
    name = channel if _PLAIN_NAME.match(channel) else ""
    if not name and form == "parquet":
        name = quote(channel, safe=" !$&()+,;@~").replace("__HIVE", "%5F_HIVE")
    if not name or len(name) > _LONGEST:
        digest = hashlib.sha256(channel.encode()).hexdigest()[:16]
        name = f"{re.sub(r'[^A-Za-z0-9.-]', '_', channel)[:60]}-{digest}"
    return f"channel={name}/date={date}"


def kind_of(path: str) -> str:
    """``delta`` or ``parquet`` where ``path`` is a table of ours or any Delta table, else
    nothing.
    """
    if os.path.isdir(os.path.join(path, "_delta_log")):
        return "delta"
    if os.path.isdir(os.path.join(path, OURS, "log")):
        return "parquet"
    with contextlib.suppress(OSError):
        if any(
            name.startswith("channel=") or name.endswith(".parquet") for name in os.listdir(path)
        ):
            return "parquet"
    return ""


def open_log(path: str, form: str) -> Log:
    """The log of a table that is there."""
    return DeltaLog(path) if form == "delta" else PlainLog(path)


# ---- Delta
# --------------------------------------------------------------------------------------------------


class DeltaLog:
    """A Delta table's own log, through ``deltalake``: no JVM is needed for it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _table(self) -> Any:
        """The table as it is now, ``None`` if there is none."""
        from deltalake import DeltaTable  # noqa: PLC0415  # slow to import, and a plain table does without
        from deltalake.exceptions import DeltaError, TableNotFoundError  # noqa: PLC0415

        try:
            table = DeltaTable(self._path)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise ArchiveError(
                f"{self._path}: the Delta log cannot be read: {str(error).splitlines()[0]}",
                hint="restore _delta_log from a copy",
            ) from error
        if [field.name for field in table.schema().fields] != _WHOLE.names:
            raise ArchiveError(
                f"{self._path} is a Delta table of something else", hint="name another directory"
            )
        return table

    def files(self) -> list[DataFile]:
        """Every file of the table."""
        table = self._table()
        found = []
        if table is None:
            return []
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            bounds = [row.get("num_records"), *(row.get(key) for key in _BOUNDS)]
            rows, first, last, least, most = (
                bounds if all(value is not None for value in bounds) else _WIDEST
            )
            date = row.get("partition.date")
            found.append(
                DataFile(
                    unquote(row["path"]),
                    row.get("partition.channel") or "",
                    date.isoformat() if isinstance(date, dt.date) else "",
                    rows,
                    row["size_bytes"],
                    first,
                    last,
                    least,
                    most,
                )
            )
        return found

    def batch(self) -> int:
        """Number of the latest batch that is in the table, 0 if none is."""
        table = self._table()
        return 0 if table is None else _latest(table)

    def commit(self, batch: int, files: Sequence[DataFile]) -> None:
        """Add files, at once and durably; nothing if ``batch`` is in the table already."""
        from deltalake import DeltaTable  # noqa: PLC0415
        from deltalake.exceptions import DeltaError  # noqa: PLC0415
        from deltalake.transaction import AddAction, CommitProperties, Transaction  # noqa: PLC0415

        table = self._table()
        if table is None:
            table = DeltaTable.create(
                self._path, schema=_WHOLE, partition_by=list(PARTITIONS), name="ftstan archive"
            )
        if _latest(table) < batch:
            actions = [
                AddAction(
                    path=file.path,
                    size=file.size,
                    partition_values={"channel": file.channel, "date": file.date},
                    modification_time=int(
                        os.stat(os.path.join(self._path, file.path)).st_mtime * 1000
                    ),
                    data_change=True,
                    stats=_statistics(file),
                )
                for file in files
            ]
            try:
                table.create_write_transaction(
                    actions,
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(PARTITIONS),
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(APPLICATION, batch)]
                    ),
                )
            except DeltaError as error:
                raise ArchiveError(
                    f"{self._path}: the Delta log refuses the files: {str(error).splitlines()[0]}",
                    hint="nothing is lost: run the job again",
                ) from error
        # deltalake does not sync; sources are removed next.
        folder = os.path.join(self._path, "_delta_log")
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                _sync_file(os.path.join(folder, name))
        sync_directory(folder)
        sync_directory(self._path)


def _latest(table: Any) -> int:
    return table.transaction_version(APPLICATION) or 0


_BOUNDS = ("min.sequence", "max.sequence", "min.timestamp_ns", "max.timestamp_ns")


def _statistics(file: DataFile) -> str:
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {"sequence": file.first, "timestamp_ns": file.least_ns},
            "maxValues": {"sequence": file.last, "timestamp_ns": file.most_ns},
            "nullCount": dict.fromkeys(
                ("sequence", "timestamp", "timestamp_ns", "data", "size", "reply"), 0
            ),
        }
    )


# ---- plain Parquet
# -----------------------------------------------------------------------------------------------


class PlainLog:
    """One JSON file a batch below ``_ftstan/log``.

    Without that, every file that lies there counts.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.path.join(path, OURS, "log")

    def files(self) -> list[DataFile]:
        """Every file of the table."""
        if not os.path.isdir(self._folder):
            return [described(self._path, name) for name in _parquet_files(self._path)]
        found = []
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(".json"):
                try:
                    with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                        found += [DataFile(**row) for row in json.load(file)["files"]]
                except (OSError, ValueError, KeyError, TypeError) as error:
                    raise ArchiveError(
                        f"{self._folder}/{name} cannot be read",
                        hint="restore it from a copy of the archive",
                    ) from error
        return found

    def batch(self) -> int:
        """Number of the latest batch that is in the table, 0 if none is."""
        with contextlib.suppress(FileNotFoundError):
            return max(
                (int(name[:-5]) for name in os.listdir(self._folder) if name.endswith(".json")),
                default=0,
            )
        return 0

    def commit(self, batch: int, files: Sequence[DataFile]) -> None:
        """Add files, at once and durably; nothing if ``batch`` is in the table already."""
        name = os.path.join(self._folder, f"{batch:020d}.json")
        os.makedirs(self._folder, exist_ok=True)
        if not os.path.exists(name):
            replace_durably(
                name, json.dumps({"batch": batch, "files": [asdict(file) for file in files]}) + "\n"
            )


def disputed(path: str) -> list[DataFile]:
    """The files of the side table of sequences with several contents."""
    names = _parquet_files(os.path.join(path, CONFLICTS))
    return [described(path, os.path.join(CONFLICTS, name)) for name in names]


def _parquet_files(path: str) -> Iterator[str]:
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        for name in sorted(names):
            if name.endswith(".parquet") and name[0] not in "._":
                yield os.path.relpath(os.path.join(folder, name), path)


def described(path: str, name: str) -> DataFile:
    """A file by its own footer and place. Raises ``ArchiveError``."""
    where = os.path.join(path, name)
    try:
        footer = pq.read_metadata(where)
        size = os.path.getsize(where)
    except (OSError, pa.ArrowException) as error:
        raise ArchiveError(
            f"{where}: {error}", hint="remove the file, or restore it from a copy"
        ) from error
    parts = dict(part.split("=", 1) for part in name.split("/")[:-1] if "=" in part)
    channel = (footer.metadata or {}).get(CHANNEL_KEY)
    shown = channel.decode() if channel is not None else unquote(parts.get("channel", ""))
    made = DataFile(name, shown, parts.get("date", ""), footer.num_rows, size, *_WIDEST[1:])
    found = {}
    for column in ("sequence", "timestamp_ns"):
        index = footer.schema.to_arrow_schema().get_field_index(column)
        groups = [
            footer.row_group(k).column(index).statistics for k in range(footer.num_row_groups)
        ]
        if index < 0 or not groups or any(g is None or not g.has_min_max for g in groups):
            return made
        found[column] = (min(g.min for g in groups), max(g.max for g in groups))
    (first, last), (least, most) = found["sequence"], found["timestamp_ns"]
    return replace(made, first=first, last=last, least_ns=least, most_ns=most)


# ---- what is the job's own
# ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """``table.json``: the format, the cluster whose slices are here (empty until one said its
    own), and what the payloads are.

    ``payloads``: ``PLAIN`` or ``ENCRYPTED``, the same for all files; empty for a table that was
    made before there were marks.
    """

    format: str
    cluster: str = ""
    version: int = _VERSION
    payloads: str = ""


def identity_of(path: str) -> Identity | None:
    """What the archive job wrote about the table; ``None`` if it never saw it.

    Raises ``ArchiveError``.
    """
    name = os.path.join(path, OURS, "table.json")
    try:
        with open(name, encoding="utf-8") as file:
            found = Identity(**json.load(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ArchiveError(
            f"{name} cannot be read", hint="restore it from a copy of the archive"
        ) from error
    if found.payloads not in {"", PLAIN, ENCRYPTED}:
        raise ArchiveError(
            f"{name} names payloads {found.payloads!r}, which this program does not know",
            hint="use the release that wrote the archive",
        )
    if found.version != _VERSION or found.format not in FORMATS:
        raise ArchiveError(
            f"{name} is of version {found.version}, this program knows {_VERSION}",
            hint="use the release that wrote the archive",
        )
    return found


def write_identity(path: str, identity: Identity) -> None:
    """Replace ``table.json``."""
    replace_durably(os.path.join(path, OURS, "table.json"), json.dumps(asdict(identity)) + "\n")


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Be the only archive job of the table. Raises ``ArchiveError`` if another one is."""
    folder = os.path.join(path, OURS)
    try:
        os.makedirs(folder, exist_ok=True)
        fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ArchiveError(
            f"archive {path} cannot be written: {error.strerror}",
            hint="check the path and who may write there",
        ) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another job is archiving into {path}",
                hint="wait for its end; a killed one holds nothing",
            ) from None
        yield
    finally:
        os.close(fd)


def replace_durably(path: str, text: str) -> None:
    """A file with ``text`` in the place of ``path``, whole at every moment."""
    temporary = f"{path}.tmp"
    write_durably(temporary, text)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
