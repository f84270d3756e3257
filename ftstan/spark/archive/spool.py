"""A spool: where slices that a server has let go of wait for the archive job, each whole or not
visible at all.

A slice is a directory ``slices/<channel>/<number>-<digest>`` that holds both files and
``manifest.json``. It is made below ``incoming``, synced, and shown by one rename; only then are the
server's files removed. So whoever is killed at whatever moment leaves the slice where it was, or in
the spool, or in both, and the next call puts that in order. The digest is in the name: two slices
with the same number and other bytes stand side by side, and the same one handed over twice, by two
servers even, is there once.

Runs in the archive script, so it imports neither Spark nor Arrow. It never removes a slice that it
has not shown.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from ftstan.base.errors import FtstanError
from ftstan.spark.serverinfo import cluster_of, is_encrypted
from ftstan.stores.file.log import records
from ftstan.wire.subjects import valid_channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftstan.stores.file.log.records import Crc

MARKER = "spool.json"
MANIFEST = "manifest.json"
POLYNOMIAL = 0xEDB88320
"""The checksum polynomial of a store whose operator chose none."""

_VERSION = 1
_SLICES = "slices"
_INCOMING = "incoming"
_DAT = re.compile(r"msgs\.(-?[0-9]{1,19})\.dat(?:\.bak)?\Z", re.ASCII)
_CHUNK = 4 << 20
#: What a killed call on another host left is removed when it is this old.
_STALE_S = 86_400.0
#: A link is refused: other file system, too many links, no right to, not supported there.
_NO_LINK = {
    errno.EXDEV,
    errno.EMLINK,
    errno.EPERM,
    errno.EACCES,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EINVAL,
}

_ARGUMENTS = (
    "the arguments are CHANNEL PATH/msgs.N.dat.bak PATH/msgs.N.idx.bak, as the server gives them"
)


class ArchiveError(FtstanError):
    """A slice, a spool or an archive cannot be used as it is; nothing of it has been removed."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a slice held when it was taken.

    ``count`` messages with the sequences ``first`` to ``last`` and the times ``first_ns`` and
    ``last_ns`` (of those two messages); their records end at offset ``end`` of a file of ``size``
    bytes with the digest ``sha256``. Bytes behind ``end`` are what a former owner wrote too late,
    or damage: ``problem`` says so where it can be told already. ``cluster`` is empty if the store
    did not say it; ``store`` is ``host:directory``; ``taken_ns`` when it was taken.
    """

    channel: str
    slice: int
    first: int
    last: int
    count: int
    first_ns: int
    last_ns: int
    end: int
    size: int
    sha256: str
    index_size: int
    index_sha256: str
    cluster: str
    store: str
    taken_ns: int
    crc_polynomial: int = POLYNOMIAL
    problem: str = ""
    version: int = _VERSION
    encrypted: bool = False

    def to_json(self) -> str:
        """One line; names that are no UTF-8 come as escaped surrogates."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Raises ``ArchiveError``, which names ``where``."""
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if isinstance(values, dict):
            # Of a slice that was taken before stores said it.
            values.setdefault("encrypted", False)
        known = {f.name: type(getattr(_EXAMPLE, f.name)) for f in fields(cls)}
        if not isinstance(values, dict) or {n: type(v) for n, v in values.items()} != known:
            raise ArchiveError(
                f"{where}: the manifest cannot be read",
                hint="hand the two files beside it to the archive script again, then remove this "
                "directory",
            )
        if values["version"] != _VERSION:
            raise ArchiveError(
                f"{where}: manifest of version {values['version']}, this program knows {_VERSION}",
                hint="read the spool with the release that wrote it",
            )
        return cls(**values)


_EXAMPLE = Manifest("", 0, 0, 0, 0, 0, 0, 0, 0, "", 0, "", "", "", 0)


@dataclass(frozen=True, slots=True)
class Spooled:
    """One visible slice: ``path`` is its directory, relative to the spool's."""

    spool: str
    path: str
    manifest: Manifest

    @property
    def dat(self) -> str:
        """Path of the messages."""
        return os.path.join(self.spool, self.path, f"msgs.{self.manifest.slice}.dat")

    @property
    def idx(self) -> str:
        """Path of the index; the file may be absent."""
        return os.path.join(self.spool, self.path, f"msgs.{self.manifest.slice}.idx")


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a slice: ``path`` below the spool, empty if the file was gone already."""

    path: str
    manifest: Manifest | None
    again: bool = False
    """It was in the spool before."""
    others: int = 0
    """Slices with the same channel and number and other bytes that were there before."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a spool holds: ``broken`` are slices without a usable manifest, as ``(path, why)``."""

    slices: list[Spooled]
    broken: list[tuple[str, str]]


def create(path: str) -> None:
    """Make a spool, or do nothing if it is one. Raises ``ArchiveError``."""
    try:
        for name in (_SLICES, _INCOMING):
            os.makedirs(os.path.join(path, name), exist_ok=True)
        if not os.path.exists(os.path.join(path, MARKER)):
            temporary = os.path.join(path, _INCOMING, f"{_own_name()}.json")
            write_durably(
                temporary, json.dumps({"format": "ftstan-spool", "version": _VERSION}) + "\n"
            )
            os.replace(temporary, os.path.join(path, MARKER))
        sync_directory(path)
    except OSError as error:
        raise ArchiveError(
            f"spool {path} cannot be made: {error.strerror}",
            hint="check the path and who may write there",
        ) from error


def check(path: str) -> None:
    """Raises ``ArchiveError`` if ``path`` is no spool: a file system that is not mounted must not
    be written over.
    """
    try:
        with open(os.path.join(path, MARKER), encoding="utf-8") as file:
            found = json.load(file)
        usable = found["format"] == "ftstan-spool" and found["version"] == _VERSION
    except (OSError, ValueError, KeyError, TypeError):
        usable = False
    if not usable:
        raise ArchiveError(
            f"{path} is no spool: it has no {MARKER} of this version",
            hint=f"is its file system mounted? `ftstan-pipeline archive-script --spool {path}` "
            "makes a spool",
        )


def take(
    spool: str,
    channel: str,
    dat: str,
    idx: str,
    *,
    polynomial: int = POLYNOMIAL,
    copy: bool = False,
) -> Taken:
    """Move a slice into the spool.

    When this returns it is durable there, and ``dat`` and ``idx`` are gone.

    Bytes are copied only where the files cannot be linked, or with ``copy``. Raises
    ``ArchiveError``: then ``dat`` and ``idx`` are where they were. A ``dat`` that is not there was
    taken by another call, which is no error.
    """
    number = _number(dat)
    if not valid_channel(os.fsencode(channel)):
        raise ArchiveError(f'"{channel}" is no name of a channel', hint=_ARGUMENTS)
    check(spool)
    try:
        return _take(spool, channel, number, dat, idx, polynomial=polynomial, copy=copy)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        raise ArchiveError(
            f'msgs.{number} of channel "{channel}" was not taken into {spool}: '
            f"{error.strerror}{place}",
            hint=f"{dat} stays where it is and is tried again",
        ) from error


def _take(
    spool: str, channel: str, number: int, dat: str, idx: str, *, polynomial: int, copy: bool
) -> Taken:
    name = _own_name()
    incoming = os.path.join(spool, _INCOMING, name)
    os.mkdir(incoming)
    try:
        new_dat, new_idx = (
            os.path.join(incoming, f"msgs.{number}.{kind}") for kind in ("dat", "idx")
        )
        if not _bring(dat, new_dat, copy=copy):
            _remove(idx)
            return Taken("", None)
        _bring(idx, new_idx, copy=copy)
        manifest = measure(
            channel,
            number,
            new_dat,
            new_idx,
            polynomial,
            root=os.path.dirname(os.path.dirname(dat)),
        )
        write_durably(os.path.join(incoming, MANIFEST), manifest.to_json())
        sync_directory(incoming)
        folder = os.path.join(spool, _SLICES, channel)
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            sync_directory(os.path.join(spool, _SLICES))
        path = os.path.join(_SLICES, channel, f"{number}-{manifest.sha256[:16]}")
        others = sum(
            n.startswith(f"{number}-") for n in os.listdir(folder) if n != os.path.basename(path)
        )
        again = not _show(incoming, os.path.join(spool, path))
        sync_directory(folder)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    # The data first: a start looks for that, and an index alone is nothing to it.
    _remove(dat)
    _remove(idx)
    _sweep(spool, os.path.dirname(dat))
    return Taken(path, manifest, again, others)


def _show(incoming: str, path: str) -> bool:
    """Make the slice visible; False if the same one is."""
    try:
        os.rename(incoming, path)
    except OSError as error:
        # The name has the digest of the bytes: what is there is this slice.
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST} and os.path.exists(
            os.path.join(path, MANIFEST)
        ):
            return False
        raise
    return True


def _bring(source: str, target: str, *, copy: bool) -> bool:
    """Link or copy a file, durably; False if it is not there."""
    try:
        if copy:
            raise OSError(errno.EXDEV, "")  # noqa: TRY301  # the same way as where a link is refused
        os.link(source, target)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:
            return False
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    return True


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sweep(spool: str, folder: str) -> None:
    """Remove what killed calls left: unfinished slices, and indexes whose data was taken.

    Never fails.
    """
    host = socket.gethostname()
    with contextlib.suppress(OSError):
        for entry in os.scandir(os.path.join(spool, _INCOMING)):
            owner, _, rest = entry.name.rpartition("@")
            pid = rest.partition(".")[0]
            dead = owner == host and pid.isdigit() and not os.path.exists(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                if dead or time.time() - entry.stat().st_mtime > _STALE_S:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    _remove(entry.path)
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if re.fullmatch(r"msgs\.-?[0-9]+\.idx\.bak", name):
                data = os.path.join(folder, name.replace(".idx.", ".dat."))
                # In this order: a server renames the data from the first name to the second.
                if not os.path.exists(data.removesuffix(".bak")) and not os.path.exists(data):
                    _remove(os.path.join(folder, name))


def _own_name() -> str:
    return f"{socket.gethostname()}@{os.getpid()}.{os.urandom(4).hex()}"


def _number(dat: str) -> int:
    found = _DAT.match(os.path.basename(dat))
    if found is None:
        raise ArchiveError(f"{dat} is no data file of a slice", hint=_ARGUMENTS)
    return int(found[1])


# ---- manifests
# --------------------------------------------------------------------------------------------------


def measure(
    channel: str, number: int, dat: str, idx: str, polynomial: int, *, root: str
) -> Manifest:
    """Describe a slice by its index, or by its data where the index does not fit.

    Raises ``OSError``.

    ``root``: the datastore's directory, which tells the cluster.
    """
    size, digest = _digest(dat)
    index_size, index_digest = _digest(idx) if os.path.exists(idx) else (0, "")
    crc = records.Crc(polynomial)
    span = _by_index(dat, idx, size, crc) if index_size else None
    problem = ""
    if span is None:
        span, problem = _by_data(dat, size, os.fsencode(channel), crc)
        problem = f"{'no index' if not index_size else 'the index does not fit'}{problem}"
    first, last, count, first_ns, last_ns, end = span
    return Manifest(
        channel,
        number,
        first,
        last,
        count,
        first_ns,
        last_ns,
        end,
        size,
        digest,
        index_size,
        index_digest,
        cluster_of(root),
        f"{socket.gethostname()}:{os.path.abspath(root)}",
        time.time_ns(),
        polynomial,
        problem,
        encrypted=is_encrypted(root),
    )


_Span = tuple[int, int, int, int, int, int]


def _by_index(dat: str, idx: str, size: int, crc: Crc) -> _Span | None:
    """First and last sequence, count, first and last time, and end, if the whole index names what
    is in the data.
    """
    with open(idx, "rb") as file:
        data = file.read()
    entries = data[records.VERSION_SIZE :]
    found = records.scan_index(entries, crc)
    if (
        data[: records.VERSION_SIZE] != records.VERSION
        or not found.clean
        or not found.count
        or found.end > size
    ):
        return None
    with open(dat, "rb") as file:
        for k in (0, found.count - 1):
            sequence, offset, _, length = records.entry(entries, k)
            block, _, _ = records.scan_data(
                os.pread(file.fileno(), 8 + length, offset), b"", sequence - 1, crc
            )
            # An index of another file names other sequences; a record with a wrong checksum is for
            # the job to judge.
            if len(block) and block.first != sequence:
                return None
    return found.first, found.last, found.count, found.first_ts, found.last_ts, found.end


def _by_data(dat: str, size: int, channel: bytes, crc: Crc) -> tuple[_Span, str]:
    """The same by reading the data, and what ends the records."""
    first = last = count = first_ns = last_ns = 0
    end = records.VERSION_SIZE
    window = _CHUNK
    why = ""
    with open(dat, "rb") as file:
        while end < size:
            data = os.pread(file.fileno(), window, end)
            block, used, why = records.scan_data(data, channel, last, crc)
            if len(block):
                if not count:
                    first = block.first
                    first_ns = block.timestamp(0)
                last = block.last
                last_ns = block.timestamp(len(block) - 1)
                count += len(block)
            end += used
            if why and (why != "torn" or end + len(data) - used >= size):
                break
            why = ""
            if not used:
                window *= 2
    return (first, last, count, first_ns, last_ns, end), f"; {why} at offset {end}" if why else ""


def _digest(path: str) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


# ---- reading
# --------------------------------------------------------------------------------------------------


def slices(path: str) -> Listing:
    """Every visible slice by channel, first sequence and number. Raises ``ArchiveError``."""
    check(path)
    found: list[Spooled] = []
    broken: list[tuple[str, str]] = []
    for folder in _directories(os.path.join(path, _SLICES)):
        for inner in _directories(folder):
            where = os.path.relpath(inner, path)
            try:
                with open(os.path.join(inner, MANIFEST), encoding="utf-8") as file:
                    manifest = Manifest.from_json(file.read(), where)
            except FileNotFoundError:
                # Removed by a job meanwhile, or not made by us.
                if os.path.isdir(inner):
                    broken.append((where, f"{where}: no {MANIFEST}"))
            except (OSError, UnicodeDecodeError, ArchiveError) as error:
                broken.append((where, str(error)))
            else:
                found.append(Spooled(path, where, manifest))
    found.sort(key=lambda s: (s.manifest.channel, s.manifest.first, s.manifest.slice, s.path))
    return Listing(found, broken)


def discard(spool: str, path: str) -> None:
    """Remove a visible slice, in one step for whoever looks. Raises ``OSError``."""
    trash = os.path.join(spool, _INCOMING, _own_name())
    folder = os.path.dirname(os.path.join(spool, path))
    try:
        os.rename(os.path.join(spool, path), trash)
    except FileNotFoundError:
        return
    sync_directory(folder)
    shutil.rmtree(trash, ignore_errors=True)


def _directories(path: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(path))
    except FileNotFoundError:
        return
    for name in names:
        inner = os.path.join(path, name)
        if os.path.isdir(inner):
            yield inner


# ---- durable files
# -----------------------------------------------------------------------------------------------


def write_durably(path: str, text: str) -> None:
    """A new file with ``text``, synced; the directory is not."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
