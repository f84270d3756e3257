"""The ledger: what clients and faults did, as JSON lines that a judge can read without having been
there.

It defines the records and reads and writes them; it never judges. The format is a contract with
later readers: ``docs/ledger.md``.
"""

from __future__ import annotations

import json
import os
from dataclasses import MISSING, dataclass, fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from ftstan.base.errors import FtstanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUFFIX = ".jsonl"

#: No number of a record is this far from zero: JSON's readers agree on what lies below.
MOST = 1 << 53

_BLOCK = 4096


class LedgerError(FtstanError):
    """A line that is not a ledger record, or a ledger that is not there."""


@dataclass(frozen=True, slots=True)
class Publish:
    """One attempt to publish one payload; ``id`` is new for every attempt, ``number`` is not."""

    kind: ClassVar[str] = "publish"
    t: int
    id: str
    number: int
    attempt: int
    guid: str
    size: int
    sha1: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Ack:
    """The server said that attempt ``id`` is stored; ``latency_us`` since its publish call."""

    kind: ClassVar[str] = "ack"
    t: int
    id: str
    guid: str
    latency_us: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Something a client reported as an error.

    With an ``id`` it means that this attempt's fate is unknown.
    """

    kind: ClassVar[str] = "error"
    t: int
    by: str
    id: str
    guid: str
    text: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a durable subscription received."""

    kind: ClassVar[str] = "deliver"
    t: int
    subscription: str
    sequence: int
    id: str
    sha1: str
    redelivered: bool
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A message met while reading the log from sequence 1.

    One ``reader`` is one reading of the log.
    """

    kind: ClassVar[str] = "read"
    t: int
    reader: str
    epoch: int
    sequence: int
    id: str
    sha1: str
    channel: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to ``node``, as a rule the active one, which ends ``epoch`` unless
    ``ends_epoch`` says no.

    ``fault``: ``kill`` (SIGKILL), ``stop`` (SIGTERM), ``switchover`` (``ftstanctl ft switchover``),
    or another word of ``docs/drills.md``.
    """

    kind: ClassVar[str] = "fault"
    t: int
    epoch: int
    node: str
    fault: str
    ends_epoch: bool = True


@dataclass(frozen=True, slots=True)
class Takeover:
    """``node`` serves: it begins ``epoch``.

    Times in microseconds since the fault (epoch 1: since the first start).
    """

    kind: ClassVar[str] = "takeover"
    t: int
    epoch: int
    node: str
    active_us: int
    ack_us: int


@dataclass(frozen=True, slots=True)
class Owner:
    """What ``node`` said: it owns ``epoch`` (the datastore's number).

    Its process has confirmed ``commits`` batches.

    It was asked at ``t``, and the answer was there ``took_us`` later.
    """

    kind: ClassVar[str] = "owner"
    t: int
    node: str
    epoch: int
    commits: int
    took_us: int = 0


Record = Publish | Ack | Failure | Delivery | Read | Fault | Takeover | Owner

_TYPES: dict[str, type] = {"int": int, "str": str, "bool": bool}


@dataclass(frozen=True, slots=True)
class Shape:
    """How one kind is taken out of its JSON object, in one step: a ledger has a million lines.

    ``needed``: fields by name; ``optional``: those that may be missing, and what they are then.
    """

    make: Callable[..., Record]
    needed: dict[str, type]
    pick: itemgetter[Any]
    types: tuple[type, ...]
    optional: dict[str, tuple[type, object]]


def _shape(cls: type[Record]) -> Shape:
    needed: dict[str, type] = {}
    optional: dict[str, tuple[type, object]] = {}
    for field in fields(cls):
        of = _TYPES[str(field.type)]
        if field.default is MISSING:
            needed[field.name] = of
        else:
            optional[field.name] = of, field.default
    return Shape(cls, needed, itemgetter(*needed), tuple(needed.values()), optional)


#: What a record of each kind has.
SHAPES = {cls.kind: _shape(cls) for cls in get_args(Record)}


def parse(line: str | bytes) -> Record:
    """Return the record in ``line``. Fields that the kind does not have are ignored.

    Raises :class:`LedgerError` for anything that is not one JSON object of a known kind with all
    its fields.
    """
    try:
        row = json.loads(line)
        shape = SHAPES[row["kind"]]
        values = shape.pick(row)
        more = {name: row[name] for name in shape.optional if name in row}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LedgerError(f"not a ledger record ({type(error).__name__}: {error})") from error
    if (
        tuple(map(type, values)) != shape.types
        or any(type(more[name]) is not shape.optional[name][0] for name in more)
        or any(type(x) is int and not -MOST < x < MOST for x in (*values, *more.values()))
    ):
        known = shape.needed | {name: of for name, (of, _) in shape.optional.items()}
        wanted = ", ".join(f"{name}: {of.__name__}" for name, of in known.items())
        why = f"a {row['kind']!r} has a field of another type, or one that reaches 2^53"
        raise LedgerError(f"not a ledger record: {why} (wanted {wanted})")
    return shape.make(*values, **more)


def encode(record: Record) -> str:
    """Return ``record`` as one line, without the line feed.

    An optional field is left out where it says nothing new.
    """
    shape = SHAPES[record.kind]
    row = {"kind": record.kind} | {name: getattr(record, name) for name in shape.needed}
    row |= {
        name: value
        for name, (_, usual) in shape.optional.items()
        if (value := getattr(record, name)) != usual
    }
    return json.dumps(row, separators=(",", ":"))


def read_file(path: str) -> Iterator[Record]:
    """Yield the records of one file.

    A last line without its line feed is still being written, or was cut by a crash: it is left out.
    Raises :class:`LedgerError`, with file and line, for any other line that is no record.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield parse(line)
            except LedgerError as error:
                raise LedgerError(
                    f"{path}, line {number}: {error}", hint="docs/ledger.md"
                ) from error


def read(directory: str) -> Iterator[Record]:
    """Yield the records of every file of a ledger, file by file.

    The order between files means nothing.
    """
    for path in paths(directory):
        yield from read_file(path)


def paths(directory: str) -> list[str]:
    """The files of a ledger, in order. Raises :class:`LedgerError` when there is none."""
    names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    if not names:
        raise LedgerError(
            f"{directory} holds no ledger: there is no *{SUFFIX} file in it",
            hint="give the directory of its files",
        )
    return [os.path.join(directory, name) for name in names]


class Tail:
    """Follows a file that somebody else is writing."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115  # lives until close()

    def skip(self) -> None:
        """Go to the end: ``new`` begins with the line that is being written, or the next one."""
        place = self._file.seek(0, os.SEEK_END)
        block = b""
        while place > 0 and b"\n" not in block:
            step = min(place, _BLOCK)
            place -= step
            self._file.seek(place)
            block = self._file.read(step)
        self._file.seek(place + block.rfind(b"\n") + 1)

    def new(self) -> Iterator[Record]:
        """Yield the records whose lines have been completed since."""
        while line := self._complete_line():
            yield parse(line)

    def _complete_line(self) -> bytes:
        begin = self._file.tell()
        line = self._file.readline()
        if line.endswith(b"\n"):
            return line
        self._file.seek(begin)
        return b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Writer:
    """Appends records to one file, each written through at once: for the few that a runner
    makes.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  # lives until close()

    def write(self, record: Record) -> None:
        """Append ``record``."""
        self._file.write(encode(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Sync and close."""
        os.fsync(self._file.fileno())
        self._file.close()
