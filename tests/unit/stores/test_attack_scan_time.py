"""Attack: a payload of record headers, each of which claims all that follows, and whole records
between them: a search through it takes no longer than through any other.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ftstan.stores.file.log import records
from tests.unit.stores.test_recovery_damage import left_by, record, written

if TYPE_CHECKING:
    from tests.oracle.goview import Tree

CRC = records.Crc()
SIZE = 2 << 20


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def stub(claims: int) -> bytes:
    """The beginning of a message of so many bytes."""
    body = b"\x08\xff\xff\xff\x7f\x12\x03foo\x22"
    rest = claims - len(body) - len(varint(claims))
    return claims.to_bytes(4, "little") + b"\1\2\3\4" + body + varint(rest)


STUBS = (stub(SIZE // 2) * SIZE)[:SIZE]


def test_a_search_takes_no_longer_for_what_a_client_has_made_up() -> None:
    data = bytes(512) + record(3, STUBS)[512:]
    began = time.monotonic()
    assert records.next_record(data, 1, b"foo", 2, CRC) == -1
    assert records.next_typed(data, 1, 5, CRC) == -1
    assert time.monotonic() - began < 2


def test_a_start_without_an_index_ends_whatever_was_published() -> None:
    """Each whole record between the stubs begins the search anew."""
    # Its fields do not fill the size that its header says: they do not tell where it ends.
    wrong = b"\xff" + stub(SIZE // 2)[1:]
    pieces = b"".join(record(n, b"forged") + wrong for n in range(3, 30_000))
    node = written(b"one", b"two")
    began = time.monotonic()

    def change(tree: Tree) -> None:
        data = tree["foo/msgs.1.dat"] or b""
        tree["foo/msgs.1.dat"] = data + b"?" * 512 + pieces + b"?" * SIZE
        del tree["foo/msgs.1.idx"]

    new = node.successor(left_by(node, change))
    assert new.store.quarantined == ["foo"]
    assert new.channel().last == 29_999
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("crc", [CRC, records.Crc(fold=False), records.Crc(0x82F63B78)])
@pytest.mark.parametrize("size", [100, 8000, 8180, 8192, 8200, 12_288, 70_000])
def test_a_record_of_any_size_is_found_at_any_place(crc: records.Crc, size: int) -> None:
    body = bytearray(record(3, bytes(range(256)) * (size // 256 + 1)))
    body[4:8] = crc(bytes(body[8:])).to_bytes(4, "little")
    for at in (0, 1, 4095, 4096, 4097, 10_000):
        data = b"x" * at + bytes(body) + b"y" * 50
        sums = records.Sums(data, crc)
        for kept in (None, sums, sums):
            assert records.next_record(data, 0, b"foo", 2, crc, kept) == at
        wrong = data[: at + 60] + b"?" + data[at + 61 :]
        assert records.next_record(wrong, 0, b"foo", 2, crc) == -1


def test_sums_are_those_of_their_data() -> None:
    sums = records.Sums(b"data", CRC)
    with pytest.raises(ValueError, match="other data"):
        records.next_record(b"other", 0, b"foo", 2, CRC, sums)
    with pytest.raises(ValueError, match="other data"):
        records.scan_data(b"other", b"foo", 2, CRC, sums=sums)
