"""What can still be read of a damaged slice when its index cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.log import records
from ftstan.stores.file.log.view import Slice
from ftstan.stores.file.recovery.quarantine import rebuild_index
from tests.unit.stores.test_measure import Channel
from tests.unit.stores.test_recovery_slices import CRC, VERSION, block_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What lies in a slice: sequences of whole records, or bytes that are none.
Part = list[int] | bytes
ENTRY = records.INDEX_SIZE


class Data:
    """A slice, and the entries of its records where they lie."""

    def __init__(self, *parts: Part) -> None:
        self.bytes = VERSION
        self.entries: dict[int, bytes] = {}
        for part in parts:
            if isinstance(part, bytes):
                self.bytes += part
                continue
            block = block_of(part, "x")
            made = records.index_entries(block, 0, len(block), len(self.bytes), CRC)
            for k, sequence in enumerate(part):
                self.entries[sequence] = made[k * ENTRY : (k + 1) * ENTRY]
            self.bytes += bytes(memoryview(block))

    def rebuilt(self, first: int, last: int, *, end: int = 0) -> bytes:
        """The index that is made for the messages from ``first`` to ``last``."""
        channel = Channel({"foo/msgs.1.dat": self.bytes})
        before = channel.disk.open_handles
        s = Slice(1, first, last, 0, 0, 1, end or len(self.bytes))
        found = rebuild_index(channel.env, b"foo", channel.fd, s)
        assert channel.disk.open_handles == before
        return found

    def named(self, sequences: Sequence[int]) -> bytes:
        return b"".join(self.entries[sequence] for sequence in sequences)


def test_all_of_a_slice_is_found_in_its_data() -> None:
    data = Data([1, 2, 3])
    assert data.rebuilt(1, 3) == data.named([1, 2, 3])


@pytest.mark.parametrize("junk", [b"j", b"junk" * 200, bytes(700)], ids=["a byte", "junk", "zeros"])
def test_records_behind_bytes_that_are_none_are_found_where_they_lie(junk: bytes) -> None:
    data = Data([1, 2], junk, [4, 5], junk + b"k", [9])
    assert data.rebuilt(1, 9) == data.named([1, 2, 4, 5, 9])


def test_junk_at_both_ends_is_passed_over() -> None:
    data = Data(b"junk", [3, 4], b"junk")
    assert data.rebuilt(3, 4) == data.named([3, 4])


def test_what_the_slice_does_not_count_is_not_named() -> None:
    data = Data([1, 2, 3, 4, 5, 6])
    assert data.rebuilt(3, 4) == data.named([3, 4])
    assert data.rebuilt(1, 5) == data.named([1, 2, 3, 4, 5])


def test_what_lies_behind_its_end_is_not_read() -> None:
    data = Data([1, 2])
    end = len(data.bytes)
    more = Data([1, 2], [3])
    assert more.rebuilt(1, 9, end=end) == data.named([1, 2])
    # Also where it is another record's beginning.
    assert more.rebuilt(1, 9, end=end + 10) == data.named([1, 2])
    assert more.rebuilt(1, 9, end=len(more.bytes) - 4) == data.named([1, 2])


def test_a_record_that_goes_back_is_none() -> None:
    whole = Data([1, 2, 3], [4])
    back = Data([1, 2, 3], [2], [4])
    assert back.rebuilt(1, 4) == whole.named([1, 2, 3]) + back.named([4])


def test_where_nothing_is_whole_nothing_is_named() -> None:
    assert Data(b"junk" * 50).rebuilt(1, 9) == b""
    assert Data().rebuilt(1, 9) == b""
