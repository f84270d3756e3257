"""What the archive job is asked for and what it says it did: plain data, loaded without Spark."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ftstan.spark.archive.spool import POLYNOMIAL, ArchiveError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMATS = ("delta", "parquet")
#: What an archive can hold, as people say it.
PAYLOADS = ("decrypted", "stored")


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """How slices become files.

    ``format``: ``delta`` or ``parquet``, for a new table; an existing one keeps its own, and asking
    for another is an error. ``target_file_bytes``: a file is closed when it has this size,
    compressed. ``batch_bytes``: slices of about this size together are one commit. ``channels``:
    only these, empty for all. ``keep_slices`` leaves slices in the spool after the commit.
    ``dry_run`` says what would be done and changes nothing. ``compression_level`` is zstd's.
    ``crc_polynomial``: of a datastore that is archived itself; slices say their own. ``cluster``:
    whose slices, where a spool has those of several and the table is new. ``partitions``: how many
    tasks run side by side, 0 for what the session says. ``payloads``: what a new table holds,
    ``decrypted`` (the default) or as they are ``stored``; a table keeps its mark. ``key_file``: the
    keys that decrypt; else those of the environment.
    """

    format: str = ""
    target_file_bytes: int = 256 << 20
    batch_bytes: int = 16 << 30
    channels: tuple[str, ...] = ()
    keep_slices: bool = False
    dry_run: bool = False
    compression_level: int = 3
    crc_polynomial: int = POLYNOMIAL
    cluster: str = ""
    partitions: int = 0
    payloads: str = ""
    key_file: str = ""

    def __post_init__(self) -> None:
        """Raises ``ArchiveError`` for a value that cannot be."""
        if self.format not in {"", *FORMATS}:
            raise ArchiveError(
                f'table format "{self.format}" is not known',
                hint=f"it is one of {', '.join(FORMATS)}",
            )
        if self.payloads not in {"", *PAYLOADS}:
            raise ArchiveError(
                f'payloads "{self.payloads}" are not known',
                hint=f"they are one of {', '.join(PAYLOADS)}",
            )
        for name, least in (
            ("target_file_bytes", 1),
            ("batch_bytes", 1),
            ("compression_level", 1),
            ("partitions", 0),
        ):
            if getattr(self, name) < least:
                raise ArchiveError(
                    f"{name} is {getattr(self, name)}", hint=f"{name} is at least {least}"
                )


@dataclass(frozen=True, slots=True)
class Failed:
    """A slice that was not archived and stays where it is: its path in the spool, and why, with
    file and offset.

    Of a datastore: a channel's directory.
    """

    path: str
    channel: str
    why: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Sequences of a channel that came with more than one content: how many, which, and where the
    variants are.

    ``archived``: how many of them have one of the variants in the table, from an earlier run; it
    was left there.
    """

    channel: str
    first: int
    last: int
    sequences: int
    archived: int


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What one run did. Everything that it did not archive is named.

    ``messages`` of ``slices`` were added to the table, in ``files`` files of ``bytes`` bytes, by
    ``commits`` commits; ``duplicates`` were there already or came more than once, with equal bytes.
    ``conflicts_known``: rows in the side table, of all runs.
    """

    spool: str
    table: str
    format: str
    slices: int = 0
    messages: int = 0
    duplicates: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    resumed: bool = False
    """A run before this one was ended between its decision and its end, and was finished first."""
    failed: list[Failed] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    conflicts_known: int = 0
    notes: list[str] = field(default_factory=list)
    """What an operator may want to know and need not act on."""
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether everything that waited is archived, and nothing came with two contents."""
        return not self.failed and not self.conflicts

    @property
    def status(self) -> int:
        """Exit status: 0 all is well, 1 something was left out or came with two contents."""
        return 0 if self.ok else 1

    def to_dict(self) -> Mapping[str, Any]:
        """For JSON."""
        return asdict(self) | {"ok": self.ok}
