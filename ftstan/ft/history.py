"""The history of a datastore's owners, made of its epoch records. Views only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.admin.protocol import EpochEntry
from ftstan.ft.epoch import read_records
from ftstan.ft.epoch_records import TOOL_NAME, Cause, Ending, why_taken
from ftstan.ft.storage_look import never_owned, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.base.disk import Disk
    from ftstan.ft.epoch_records import EpochRecord

_UNREADABLE = "unreadable"


def history_of(records: Sequence[tuple[int, EpochRecord | None]]) -> tuple[EpochEntry, ...]:
    """Give each activation (slot and record, newest first) the time at which the next one began."""
    entries: list[EpochEntry] = []
    until = ended = 0
    for slot, record in records:
        if record is None:
            entries.append(EpochEntry(slot, "", "", 0, 0, until, _UNREADABLE, 0, mixed=False))
            until = ended = 0
            continue
        entries.append(
            EpochEntry(
                epoch=record.epoch,
                server=record.server_id,
                host=record.host,
                pid=record.pid,
                since_ns=record.since_ns,
                until_ns=until,
                cause=record.cause.name.lower(),
                after=record.after,
                mixed=record.ft_mixed,
                name=record.name,
                ended_ns=record.since_ns if _is_of_tool(record) else ended,
                left=record.left.name.lower() if record.left else "",
            )
        )
        until = record.since_ns
        # An owner that raised its own epoch, or that said nothing, served until the next one began.
        ended = record.left_ns
    return tuple(entries)


def _is_of_tool(record: EpochRecord) -> bool:
    return record.name == TOOL_NAME and record.cause in {Cause.TOOL, Cause.MIXED_SWITCHED}


def cause_text(entry: EpochEntry) -> str:
    """For people. A cause that only a later release knows is shown as it is called there."""
    if entry.cause == _UNREADABLE:
        return "its record cannot be read"
    known = Cause.__members__.get(entry.cause.upper())
    if known is None:
        return entry.cause
    left = Ending.__members__.get(entry.left.upper(), Ending.UNSAID)
    return why_taken(known, entry.after, left)


def open_history(disk: Disk, path: str, count: int) -> tuple[EpochEntry, ...]:
    """The newest ``count`` epochs of the datastore directory ``path``, which is only read.

    Raises ``StoreError``.
    """
    with reading(disk, path) as (root, asking):
        records = read_records(asking, root, count)
    if not records:
        raise never_owned(path)
    return history_of(records)
