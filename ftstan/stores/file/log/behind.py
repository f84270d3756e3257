"""What lies behind a bad record: where the next whole one begins.

Where an index of the file says how far the bad record goes, nothing is looked for within it: what a
client has put there is nobody's message. Elsewhere its own fields say it (``records.search_from``).
Pure computation on buffers.
"""

from __future__ import annotations

from bisect import bisect_right

from ftstan.stores.file.log import records

_ENTRY = records.INDEX_SIZE


def next_whole(
    data: bytes,
    at: int,
    channel: bytes,
    after: int,
    crc: records.Crc,
    *,
    base: int = 0,
    named: bytes = b"",
    sums: records.Sums | None = None,
) -> int:
    """Where a whole record of ``channel`` with a sequence above ``after`` begins behind the bad one
    at ``at`` in ``data``; -1: nowhere.

    ``named``: entries that are a chain, of an index that may be another file's; ``base``: the
    offset in the file at which ``data`` begins. They count where one of them behind the bad record
    holds, the one before it names what lies there, or they end where the file does. ``sums``: those
    of ``data``, of a caller that asks more than once.
    """
    count = len(named) // _ENTRY
    k = bisect_right(range(count), base + at, key=lambda i: records.entry(named, i)[1]) - 1
    end = _end_of(named, count) - base
    if k < 0 or end <= at:
        return _searched(data, at, channel, after, crc, sums=sums)
    for i in range(k + 1, count):
        sequence, offset, _, size = records.entry(named, i)
        start = offset - base
        if start >= len(data):
            break
        piece = data[start : start + records.HEADER_SIZE + size]
        block, _, _ = records.scan_data(piece, channel, after, crc)
        if len(block) and block.first == sequence:
            return start
    is_ours = (
        end == len(data)
        or (records.entry(named, k)[1] == base + at and k > 0 and _sequence(named, k - 1) == after)
        or _is_whole(data, end, channel, after, crc)
    )
    if not is_ours:
        return _searched(data, at, channel, after, crc, sums=sums)
    if end >= len(data):
        return -1
    if _is_whole(data, end, channel, after, crc):
        return end
    return _searched(data, end, channel, after, crc, sums=sums)


def _sequence(named: bytes, k: int) -> int:
    return records.entry(named, k)[0]


def _end_of(named: bytes, count: int) -> int:
    """The offset in the file behind the record of the last entry."""
    if not count:
        return 0
    _, offset, _, size = records.entry(named, count - 1)
    return offset + records.HEADER_SIZE + size


def _is_whole(data: bytes, at: int, channel: bytes, after: int, crc: records.Crc) -> bool:
    if at + records.HEADER_SIZE > len(data):
        return False
    size = int.from_bytes(data[at : at + 4], "little")
    piece = data[at : at + records.HEADER_SIZE + size]
    return records.next_record(piece, 0, channel, after, crc) == 0


def _searched(
    data: bytes, at: int, channel: bytes, after: int, crc: records.Crc, *, sums: records.Sums | None
) -> int:
    """What the bytes alone say: ``next_whole`` without an index."""
    behind = records.search_from(data, at, channel, after, crc, sums)
    return records.next_record(data, behind, channel, after, crc, sums)
