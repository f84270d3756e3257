"""What lies in a datastore, by listing and stat alone: channels, slices, how far each may be read.

Takes no lock, opens nothing for writing, and reads no message. A store that a server holds is read
up to what ``confirmed.bin`` of each channel says; what is decided here is a snapshot, so a query
does not see what comes later.
"""

from __future__ import annotations

import contextlib
import gc
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import ConfigError, StoreError
from ftstan.ft.epoch import read_state
from ftstan.ft.epoch_loss import find_epochs
from ftstan.ft.lock import is_held
from ftstan.spark.report import ReadingFinding, ReadingKind
from ftstan.stores.file.log import purge_mark
from ftstan.stores.file.log.view import dat_name, show
from ftstan.stores.file.recovery.measure import holds_channel, slice_numbers
from ftstan.stores.file.state.confirmed import Confirmed, read_confirmed
from ftstan.stores.file.tools.reading import NEVER_OURS
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ftstan.stores.file.log.purge_mark import Mark

#: Files of a root, one of which a datastore has even without channels.
ROOT_FILES = frozenset({"server.dat", "clients.dat", "ft.epoch", ".rootdir.lck"})


class SliceFile(NamedTuple):
    """One slice: its number, how many bytes of its messages may be read, the name of the file if it
    is an odd one.
    """

    number: int
    size: int
    indexed: bool = True
    odd: str = ""

    @property
    def dat(self) -> str:
        """File name of the messages."""
        return self.odd or dat_name(self.number)


@dataclass(frozen=True, slots=True)
class Listed:
    """A channel's directory as it was when somebody looked.

    ``slices`` by number. ``limit``: the last sequence that may be read, ``None`` without a limit.
    ``confirmed``: what the channel's owner wrote, ``None`` if nothing. ``orphans``: numbers of
    indexes without data. ``mark``: what an operator has purged.
    """

    name: bytes
    slices: tuple[SliceFile, ...]
    confirmed: Confirmed | None = None
    limit: int | None = None
    orphans: tuple[int, ...] = ()
    mark: Mark | None = None

    @property
    def purged(self) -> int:
        """Up to which sequence an operator has purged the channel, 0 if nobody has."""
        return self.mark.sequence if self.mark is not None else 0

    @property
    def shown(self) -> str:
        """The channel's name as text."""
        return show(self.name)


@dataclass(slots=True)
class Listing:
    """A look at the store: its channels by name, and what was strange.

    ``live``: a server holds it.
    """

    channels: dict[str, Listed] = field(default_factory=dict)
    findings: list[ReadingFinding] = field(default_factory=list)
    live: bool = False
    ours_from: int = NEVER_OURS


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: it would walk a million slices again and again, and none of them
    is garbage.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@uncollected()
def look(
    path: str, names: Iterable[str] | None = None, *, allow_unconfirmed: bool = False
) -> Listing:
    """List the channels ``names`` of the datastore at ``path``, or all of them.

    Raises ``ConfigError`` if that is no datastore, and ``StoreError`` if it cannot be read, or not
    yet.
    """
    disk = LocalDisk()
    try:
        root = disk.open_dir(path)
    except OSError as error:
        raise ConfigError(
            f"datastore {path}: {error.strerror or error}",
            hint="give the directory that the server has as -dir",
        ) from error
    try:
        wanted = None if names is None else set(names)
        found = _look(disk, root, path, wanted, allow_unconfirmed)
        if not found.live and is_held(disk, root):
            # A server came meanwhile: what was listed may hold what it has not confirmed.
            found = _look(disk, root, path, wanted, allow_unconfirmed)
    except OSError as error:
        raise StoreError(
            f"datastore {path}: {error.strerror or error}",
            hint="check its permissions and the storage below it",
        ) from error
    else:
        return found
    finally:
        disk.close(root)


def channel_names(path: str) -> list[str]:
    """Names of everything in ``path`` that may be a channel, without a look inside."""
    with os.scandir(path) as entries:
        found = [os.fsencode(e.name) for e in entries if e.is_dir(follow_symlinks=False)]
    return sorted(show(name) for name in found if valid_channel(name))


def _look(
    disk: LocalDisk, root: int, path: str, wanted: set[str] | None, allow_unconfirmed: bool
) -> Listing:
    # Asked first: a server that comes later than this only adds what we have not listed.
    found = Listing(live=is_held(disk, root))
    state = read_state(disk, root)
    if state.newest is not None:
        found.ours_from = state.newest.ours_from
    elif state.present or state.claims:
        found.ours_from = _shown_epochs(disk, root)
    top = disk.listdir(root)
    for name, is_dir in sorted(top):
        raw = os.fsencode(name)
        if not is_dir or (wanted is not None and show(raw) not in wanted):
            continue
        if not valid_channel(raw):
            found.findings.append(
                ReadingFinding(ReadingKind.NOTE, "", show(raw), "a directory that is no channel")
            )
            continue
        listed = None
        # Deleted since.
        with contextlib.suppress(FileNotFoundError):
            listed = _channel(disk, root, raw, found, allow_unconfirmed)
        if listed is not None:
            found.channels[listed.shown] = listed
            if listed.confirmed is not None and found.ours_from == NEVER_OURS:
                # Ours was here, and its epochs are lost.
                found.ours_from = _shown_epochs(disk, root)
    if wanted is None and not found.channels and not ROOT_FILES & {name for name, _ in top}:
        raise ConfigError(
            f"{path} holds no datastore", hint="give the directory that the server has as -dir"
        )
    return found


def _shown_epochs(disk: LocalDisk, root: int) -> int:
    """The first slice number of ours where no record of epochs says it: that costs a look at every
    channel.
    """
    facts = find_epochs(disk, root)
    return NEVER_OURS if facts.ours_from is None else facts.ours_from


def _channel(
    disk: LocalDisk, root: int, name: bytes, store: Listing, allow_unconfirmed: bool
) -> Listed | None:
    dirfd = disk.open_dir_at(root, os.fsdecode(name))
    try:
        # First: everything that it names is then in the listing, unless the limits have removed it.
        confirmed = read_confirmed(disk, dirfd)
        mark, wrong = purge_mark.read(disk, dirfd)
        sizes, indexes, odd, known = _files(dirfd)
    finally:
        disk.close(dirfd)
    shown = show(name)
    if not known:
        store.findings.append(
            ReadingFinding(ReadingKind.NOTE, "", shown, "a directory without files of a channel")
        )
        return None
    if wrong:
        store.findings.append(
            ReadingFinding(ReadingKind.DAMAGE, shown, f"{shown}/{purge_mark.NAME}", wrong)
        )
    for file in odd.wrong:
        store.findings.append(
            ReadingFinding(
                ReadingKind.DAMAGE,
                shown,
                f"{shown}/{file}",
                f"message log has an invalid name: {file}",
            )
        )
    slices = [
        SliceFile(number, size, number in indexes, odd.names.get(number, ""))
        for number, size in sorted(sizes.items())
    ]
    limit = None
    if store.live and not allow_unconfirmed:
        slices, limit = _up_to(slices, confirmed, shown, store.ours_from)
    orphans = () if store.live else tuple(sorted(indexes - sizes.keys()))
    return Listed(name, tuple(slices), confirmed, limit, orphans, mark)


def _up_to(
    slices: list[SliceFile], confirmed: Confirmed | None, shown: str, ours_from: int
) -> tuple[list[SliceFile], int]:
    """The slices of a live store as far as they were confirmed, and the last sequence that was."""
    if confirmed is None:
        if all(s.number >= ours_from for s in slices):
            # A new channel: within a second there is a first confirmation.
            return [], 0
        raise StoreError(
            f'channel "{shown}" has no confirmed.bin, and a server holds the store: how far to '
            "read is not known",
            hint="stop the server, or read it with the option allowUnconfirmed=true",
        )
    kept = []
    for s in slices:
        if s.number < confirmed.slice_number:
            kept.append(s)
        elif s.number == confirmed.slice_number:
            kept.append(SliceFile(s.number, min(s.size, confirmed.valid_length), s.indexed, s.odd))
    return kept, confirmed.sequence


@dataclass(slots=True)
class _Odd:
    """Names that are not as servers write them: of slices by number, and of no slice."""

    names: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def _files(dirfd: int) -> tuple[dict[int, int], set[int], _Odd, bool]:
    """Sizes of slices by number, numbers of indexes, odd names, and whether this is a channel at
    all.
    """
    sizes: dict[int, int] = {}
    indexes: set[int] = set()
    strange: dict[str, int] = {}
    known = False
    # A descriptor of its own: scandir moves the position of the one it is given.
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dirfd)
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith("msgs."):
                    known = known or holds_channel([(name, False)])
                    continue
                known = True
                digits = name[5:-4]
                kind = name[-4:]
                if kind == ".idx" and digits.isdecimal():
                    indexes.add(int(digits))
                elif kind == ".dat":
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        # The limits removed it between the listing and now.
                        continue
                    if not stat.S_ISREG(found.st_mode):
                        continue
                    if digits.isdecimal() and digits[0] != "0" and digits.isascii():
                        sizes[int(digits)] = found.st_size
                    else:
                        strange[name] = found.st_size
    finally:
        os.close(fd)
    odd = _Odd()
    if strange:
        usual = [(dat_name(number), False) for number in sizes]
        numbers, odd.wrong = slice_numbers([*usual, *((name, False) for name in strange)])
        for number, name in numbers.items():
            if name in strange:
                odd.names[number] = name
                sizes[number] = strange[name]
    return sizes, indexes, odd, known
