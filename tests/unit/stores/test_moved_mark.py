"""The file that says whether a channel has moved: what cannot be read counts as moved."""

from __future__ import annotations

import struct
import zlib

import pytest

from ftstan.stores.file.log.moved_mark import NOBODY, decode


def mark(body: bytes, magic: bytes = b"FTSTMOV1") -> bytes:
    return magic + struct.pack("<I", zlib.crc32(body)) + body


def test_a_mark_names_who_may_still_publish() -> None:
    assert decode(mark(struct.pack("<QB", 7, 1) + b"bridge")) == (b"bridge", "")
    assert decode(mark(struct.pack("<QB", 7, 1))) == (b"", "")
    assert decode(mark(struct.pack("<QB", 7, 0))) == (None, "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FTSTMOV1",
        mark(struct.pack("<QB", 7, 0))[:-1],
        mark(struct.pack("<QB", 7, 0)) + b"x",
        b"x" + mark(struct.pack("<QB", 7, 0))[1:],
    ],
)
def test_a_damaged_mark_lets_nobody_publish(data: bytes) -> None:
    mover, wrong = decode(data)
    assert mover == NOBODY
    assert "damaged" in wrong


def test_a_mark_of_another_release_lets_nobody_publish() -> None:
    mover, wrong = decode(mark(struct.pack("<QB", 7, 0), b"FTSTMOV2"))
    assert mover == NOBODY
    assert "another release" in wrong
