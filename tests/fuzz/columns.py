"""What ``targets`` states about Spark's reader: the entries that it selects, and the rows that it
makes of a slice.
"""

from __future__ import annotations

import itertools

from ftstan.spark.decode import TYPES, Builder, beginning, ending, gaps, select
from ftstan.stores.file.log.crc import Crc
from tests.fuzz import models

#: Without the column of times, which has no Python value for times that are far away.
ALL = tuple(name for name in TYPES if name != "timestamp")
_CRC = Crc()
_MOST = 2**64 - 1


def signed(number: int) -> int:
    """64 bits as a number with a sign."""
    return number - 2**64 if number >> 63 else number


def selected(index: bytes, pick: int) -> None:
    """Runs, gaps and ends of records are those of the entries."""
    known = models.entries(index)
    low, high = sorted(known[(pick + k) % len(known)][0] for k in range(2)) if known else (0, _MOST)
    times = sorted(signed(known[(pick + k) % len(known)][2]) for k in range(2)) if known else [0, 0]
    runs = select(index, low, high, times[0], times[1])
    rows = [
        k
        for k, e in enumerate(known)
        if low <= e[0] <= high and times[0] <= signed(e[2]) <= times[1]
    ]
    assert [k for i, j in runs for k in range(i, j)] == rows
    assert all(a[1] < b[0] for a, b in itertools.pairwise(runs))
    after = known[0][0] - 1 if known and known[0][0] else 0
    if all(a[0] < b[0] for a, b in itertools.pairwise(known)):
        missing = [(a[0] + 1, b[0] - 1) for a, b in itertools.pairwise(known) if b[0] > a[0] + 1]
        assert gaps(index, after) == [gap for gap in missing if gap[0] > 1 or after]
    else:
        gaps(index, after)
    # Where a record begins, or within it.
    offset = known[pick % len(known)][1] + pick % 3 if known else pick
    offset = min(offset, _MOST)
    if all(a[1] + 8 + a[3] == b[1] for a, b in itertools.pairwise(known)):
        assert beginning(index, offset) == sum(e[1] < offset for e in known)
        assert ending(index, offset) == sum(e[1] + 8 + e[3] <= offset for e in known)
    else:
        assert 0 <= ending(index, offset) <= beginning(index, offset) <= len(known)


def built(index: bytes, data: bytes, base: int) -> None:
    """One row for each entry, with the message that it names, or with the reason why there is none.

    The channel is that of the first record that can be read.
    """
    known = models.entries(index)
    first = next(filter(None, models.read_through(data, index, base, None)), b"")
    channel = bytes((models.message(first) or {"subject": b"foo"})["subject"])
    good = list(models.read_through(data, index, base, channel))
    builder = Builder(ALL, _CRC)
    builder.begin(channel, "foo", 3)
    bad = builder.add(index, 0, len(known), data, base)
    builder.lost(1, base, "lost")
    assert [row[:2] for row in bad] == [
        e[:2] for e, payload in zip(known, good, strict=True) if payload is None
    ]
    batch = builder.finish()
    batch.validate(full=True)
    rows = batch.to_pylist()
    assert len(rows) == len(known) + 1
    for row, entry, payload in zip(rows, known, good, strict=False):
        sequence, offset, timestamp = map(signed, entry[:3])
        assert (row["sequence"], row["timestamp_ns"], row["offset"]) == (
            sequence,
            timestamp,
            offset,
        )
        assert row["crc_ok"] == (payload is not None) == (row["problem"] is None)
        fields = models.message(payload) if payload is not None else None
        if fields is None:
            assert row["data"] is row["size"] is row["reply"] is None
            continue
        assert (row["data"], row["size"]) == (fields["data"], len(bytes(fields["data"])))
        assert row["reply"] == bytes(fields["reply"]).decode("utf-8", "backslashreplace")
    stamps = Builder(("timestamp",), _CRC)
    stamps.add(index, 0, len(known), data, base)
    assert [at.value for at in stamps.finish().column(0)] == [signed(e[2]) // 1000 for e in known]
