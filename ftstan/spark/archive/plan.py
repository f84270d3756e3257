"""Planning: which slices one task takes, and what of the table it has to look at for them.

Slices of a channel whose ranges of sequences overlap are one *stretch*: they must be merged by one
task, together with what the table has of that range. Stretches in a row are one *unit*, up to a
size; units are one *batch*, up to a size, and a batch is one commit. Pure computation: what is
planned is plain data that travels to the workers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol, TypeVar

from ftstan.spark.archive.slices import shown
from ftstan.spark.archive.table import PLAIN
from ftstan.spark.keys import NO_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ftstan.spark.archive.spool import Spooled
    from ftstan.spark.archive.stores import StoredChannel
    from ftstan.spark.archive.table import DataFile
    from ftstan.spark.keys import KeySource


class Sized(Protocol):
    """What is planned by its size."""

    @property
    def size(self) -> int:
        """About how many bytes it is."""


Item = TypeVar("Item", bound=Sized)


@dataclass(frozen=True, slots=True)
class Where:
    """Where and how a unit's files are written: ``staging`` is a directory of one run."""

    table: str
    staging: str
    format: str
    target_file_bytes: int
    compression_level: int
    batch: int
    unit: int = 0
    payloads: str = ""
    """The table's mark (``table.PLAIN``, ``table.ENCRYPTED``)."""
    keys: KeySource = NO_KEYS

    @property
    def opening(self) -> KeySource:
        """What decrypts payloads on their way into the table: nothing if it keeps them as they are
        stored.
        """
        return self.keys if self.payloads == PLAIN else NO_KEYS

    @property
    def refuses_encrypted(self) -> bool:
        """Whether payloads that look encrypted, and that nothing decrypts, have no place in it."""
        return self.payloads == PLAIN and not self.keys


@dataclass(frozen=True, slots=True)
class Stretch:
    """Slices whose ranges overlap, and what the table has between ``first`` and ``last``.

    ``files`` hold its messages, ``disputed`` sequences that are known to have several contents.
    """

    first: int
    last: int
    slices: tuple[Spooled, ...]
    files: tuple[DataFile, ...] = ()
    disputed: tuple[DataFile, ...] = ()
    stored: tuple[StoredChannel, ...] = ()
    """Channels of datastores, beside slices or instead of them."""

    @property
    def size(self) -> int:
        """Bytes of what is archived."""
        return sum(s.manifest.size for s in self.slices) + sum(s.size for s in self.stored)


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task does at a time: stretches of one channel, ascending.

    ``channel``: the name as the table has it.
    """

    channel: str
    stretches: tuple[Stretch, ...] = field(default=())

    @property
    def slices(self) -> list[Spooled]:
        """Every slice."""
        return [s for stretch in self.stretches for s in stretch.slices]

    @property
    def size(self) -> int:
        """Bytes of what is archived."""
        return sum(stretch.size for stretch in self.stretches)


def stretches(slices: Iterable[Spooled]) -> list[Stretch]:
    """One channel's slices, those that overlap together."""
    made: list[Stretch] = []
    for s in sorted(slices, key=lambda s: (s.manifest.first, s.manifest.slice, s.path)):
        m = s.manifest
        if made and m.first <= made[-1].last:
            made[-1] = replace(
                made[-1], last=max(made[-1].last, m.last), slices=(*made[-1].slices, s)
            )
        else:
            made.append(Stretch(m.first, m.last, (s,)))
    return made


def units(slices: Iterable[Spooled], unit_bytes: int) -> list[Unit]:
    """All slices as units of about ``unit_bytes``, by channel and sequence."""
    made: list[Unit] = []
    by_channel = sorted(slices, key=lambda s: shown(s.manifest.channel))
    for channel, group in groupby(by_channel, key=lambda s: shown(s.manifest.channel)):
        gathered: list[Stretch] = []
        size = 0
        for stretch in stretches(group):
            if gathered and size + stretch.size > unit_bytes:
                made.append(Unit(channel, tuple(gathered)))
                gathered = []
                size = 0
            gathered.append(stretch)
            size += stretch.size
        if gathered:
            made.append(Unit(channel, tuple(gathered)))
    return made


def units_of(stored: Iterable[StoredChannel]) -> list[Unit]:
    """A unit for each channel of a datastore."""
    return [Unit(s.channel, (Stretch(s.first, s.last, (), stored=(s,)),)) for s in stored]


def beside(
    units: Iterable[Unit], files: Iterable[DataFile], disputed: Iterable[DataFile]
) -> list[Unit]:
    """The same units, with what the table has of their ranges."""
    there = _by_channel(files)
    odd = _by_channel(disputed)
    return [
        replace(
            unit,
            stretches=tuple(
                replace(
                    s,
                    files=_between(there.get(unit.channel, ()), s),
                    disputed=_between(odd.get(unit.channel, ()), s),
                )
                for s in unit.stretches
            ),
        )
        for unit in units
    ]


def _by_channel(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    found: dict[str, list[DataFile]] = {}
    for file in files:
        found.setdefault(file.channel, []).append(file)
    return found


def _between(files: Iterable[DataFile], stretch: Stretch) -> tuple[DataFile, ...]:
    return tuple(
        file for file in files if file.first <= stretch.last and file.last >= stretch.first
    )


def packed(items: Iterable[Item], size: int) -> list[list[Item]]:
    """Items in a row, up to a size together; at least one in each."""
    made: list[list[Item]] = []
    used = 0
    for item in items:
        if not made or used + item.size > size:
            made.append([])
            used = 0
        made[-1].append(item)
        used += item.size
    return made


def tasks(units: Sequence[Unit], count: int) -> list[list[int]]:
    """Numbers of units for each of up to ``count`` tasks, as even as can be: the largest first, to
    who has least.
    """
    made: list[tuple[int, list[int]]] = [(0, []) for _ in range(max(min(count, len(units)), 1))]
    for k in sorted(range(len(units)), key=lambda k: -units[k].size):
        least = min(range(len(made)), key=lambda i: made[i][0])
        size, numbers = made[least]
        made[least] = (size + units[k].size, [*numbers, k])
    return [sorted(numbers) for _, numbers in made if numbers]
