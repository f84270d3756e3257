"""Quarantine: what a channel with damaged files can still give.

Its files are read and never written; publishes and new subscriptions are refused; every message
that can be read is delivered to the subscriptions that were recovered. What cannot be read is said
once, with file and offset. Nothing is repaired here: ``ftstanctl store verify`` shows the damage,
``ftstanctl store repair`` ends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError, QuarantineError
from ftstan.base.log import stream as log
from ftstan.stores.file.log import records
from ftstan.stores.file.log.behind import next_whole
from ftstan.stores.file.log.view import Slice, dat_name, show
from ftstan.stores.file.recovery.damage import FOREIGN
from ftstan.stores.file.recovery.judging import sync
from ftstan.stores.file.recovery.measure import Found, Measured, entries_of
from ftstan.stores.file.regular import open_file

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.log.slices import SliceLog
    from ftstan.stores.file.log.view import SliceView
    from ftstan.stores.file.recovery.judging import ChannelVerdict
    from ftstan.wire.block import MsgBlock

_ENTRY = records.INDEX_SIZE


def refusal(channel: bytes) -> QuarantineError:
    """What a publisher or subscriber of the channel gets."""
    return QuarantineError(
        f'channel "{show(channel)}" is quarantined: run ftstanctl store verify',
        hint="ftstanctl store verify shows what is damaged, ftstanctl store repair --channel "
        f"{show(channel)} ends it",
    )


def announce(channel: bytes, file: str, words: str) -> None:
    """Write the two lines of a new quarantine: the original's words, and what it means here."""
    what = "subscription store" if file == "subs.dat" else "message store"
    where = "" if file == "subs.dat" else f'(file: "{show(channel)}/{file}")'
    log.error(f"unable to recover {what} for [{show(channel)}]{where}: {words}")
    log.error(
        f'channel "{show(channel)}" is quarantined: {show(channel)}/{file}: {words}. Nothing is '
        "written to it, "
        "publishes and subscriptions are refused, what can be read is delivered; run: ftstanctl "
        "store verify"
    )


def adopt_readable(env: FileEnv, slog: SliceLog, m: Measured, v: ChannelVerdict) -> None:
    """Give ``slog`` every message of a damaged channel that can be read. Raises ``OSError``."""
    ours = env.owner.ours_from
    # Where no record is the channel's own, somebody renamed or copied its directory: then they are
    # what there is.
    renamed = all(f.empty for f in m.found) and any(f.why == FOREIGN for f in m.found)
    channel = b"" if renamed else slog.name
    found = [(f, _readable(env, slog, f, channel)) for f in m.found]
    found = [(f, index) for f, index in found if index]
    end: int | None = None
    rows: list[tuple[Found, bytes]] = []
    seals = sorted((number, seal.first) for number, seal in v.seals.items())
    for f, whole in reversed(found):
        while seals and seals[-1][0] > f.number:
            # Its messages cannot be read, and what it ends was never acknowledged all the same.
            first = seals.pop()[1]
            end = first if end is None else min(end, first)
        index = whole
        first = _first(index)
        if f.number in v.hiding and m.confirmed is not None:
            # It counts from there on where nothing was confirmed below it.
            first = max(first, m.confirmed.sequence + 1)
            index = index[records.find_entry(index, first) * _ENTRY :]
        kept = index if end is None else index[: records.find_entry(index, end) * _ENTRY]
        if kept:
            rows.append((f, kept))
        if f.number >= ours:
            end = first if end is None else min(end, first)
    rows.sort(
        key=lambda row: (
            row[0].number >= ours,
            _first(row[1]) if row[0].number < ours else 0,
            row[0].number,
        )
    )
    slices: list[Slice] = []
    if rows and len(rows[-1][0].tail):
        # What its writer may not have synced is about to be delivered.
        sync(env, slog, rows[-1][0].number)
    for f, index in rows:
        kept = index[records.find_entry(index, slices[-1].last + 1) * _ENTRY :] if slices else index
        if kept:
            slices.append(_slice(f.number, kept))
    # Its indexes are read no more, and nobody is going to rely on them: there is nothing to sync.
    slog.adopt(slices, set(), m.highest, durable=True)
    slog.last = max(slog.last, v.last)
    if not slog.count:
        slog.first = slog.last + 1 if slog.last else 0


def _first(index: bytes) -> int:
    return records.entry(index, 0)[0]


def _readable(env: FileEnv, slog: SliceLog, f: Found, channel: bytes) -> bytes:
    """Entries of every whole record of a slice, those behind bad ones too.

    Says which bytes are passed over.
    """
    index = entries_of(env, slog.dirfd, f)
    last = f.last
    rest = f.rest
    base = f.bad_at
    sums = records.Sums(rest, env.crc)
    found = [index]
    at = 0
    while at < len(rest):
        block, end, _ = records.scan_data(rest, channel, last, env.crc, start=at, sums=sums)
        if len(block):
            found.append(records.index_entries(block, 0, len(block), base + at, env.crc))
            last = block.last
        else:
            pos = next_whole(rest, at, channel, last, env.crc, base=base, named=f.named, sums=sums)
            end = len(rest) if pos < 0 else pos
            lost = f.size - base - at if pos < 0 else pos - at
            log.error(
                f"{show(slog.name)}/{dat_name(f.number)}: {lost} bytes at offset {base + at} "
                "cannot be read"
            )
        at = end
    return b"".join(found)


def _slice(number: int, index: bytes) -> Slice:
    """A slice whose records are wherever ``index`` says."""
    n = len(index) // _ENTRY
    first, _, first_ts, _ = records.entry(index, 0)
    last, _, last_ts, _ = records.entry(index, n - 1)
    size = sum(8 + records.entry(index, k)[3] for k in range(n))
    return Slice(
        number,
        first,
        last,
        first_ts,
        last_ts,
        n,
        records.VERSION_SIZE + size,
        contiguous=False,
        index=index,
    )


def rebuild_index(env: FileEnv, channel: bytes, dirfd: int, s: Slice) -> bytes:
    """Entries of what a slice's data holds between its first and last sequence, for an index that
    cannot be read.
    """
    fd = open_file(env.fresh, dirfd, dat_name(s.number))
    try:
        data = env.fresh.pread(fd, s.end - records.VERSION_SIZE, records.VERSION_SIZE)
    finally:
        env.fresh.close(fd)
    sums = records.Sums(data, env.crc)
    found = []
    last = s.first - 1
    at = 0
    while 0 <= at < len(data):
        block, end, _ = records.scan_data(data, channel, last, env.crc, start=at, sums=sums)
        found.append(
            records.index_entries(block, 0, len(block), records.VERSION_SIZE + at, env.crc)
        )
        last = max(last, block.last)
        at = next_whole(data, end, channel, last, env.crc, sums=sums)
    index = b"".join(found)
    return index[: records.find_entry(index, s.last + 1) * _ENTRY]


def met(channel: bytes, error: DamageError) -> None:
    """Write the line of a quarantine that begins while the channel is served."""
    log.error(
        f'{error.text}. channel "{show(channel)}" is quarantined: nothing more is written to it, '
        "publishes and "
        "subscriptions are refused, what can be read is delivered; run: ftstanctl store verify"
    )


def read_around(
    env: FileEnv, view: SliceView, sequence: int, *, max_msgs: int, max_bytes: int, told: set[int]
) -> MsgBlock | None:
    """Messages from the first readable one at or after ``sequence``.

    One error line for each that is passed over.

    ``told``: sequences that were passed over before. Raises ``OSError``.
    """
    block, passed = view.read_around(
        sequence, max_msgs, max_bytes, lambda s: rebuild_index(env, view.name, view.dirfd, s)
    )
    for lost in passed:
        if lost.sequence not in told:
            told.add(lost.sequence)
            log.error(
                f"{show(view.name)}/{lost.file}: sequence {lost.sequence} at offset "
                f"{lost.offset} cannot be read: "
                f"{lost.why}; it is passed over"
            )
    return block
