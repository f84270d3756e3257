"""What may be seen in a channel's directory at any moment, after any death: judged on the files
alone.

A slice is never visible without a whole record, and an index entry that can be believed never
without its record. Knows the format and nothing of the store's code; damage that a test made on
purpose is not for this judge.
"""

from __future__ import annotations

import re
import zlib

from tests.sim.model import Violation

_SLICE = re.compile(r"([^/]+/msgs\.[0-9]+)\.(dat|idx)\Z")
_VERSION = b"\1\0\0\0"
_ENTRY = 32


def check_image(tree: dict[str, bytes | None]) -> None:
    """Raise ``Violation`` if a file of ``tree`` (relative path -> bytes) shows what must never be
    seen.
    """
    for name, data in tree.items():
        found = _SLICE.match(name)
        if found is None or data is None:
            continue
        if found[2] == "dat":
            if not data.startswith(_VERSION) or not _record_ends(data, 4):
                raise Violation(f"{name} is visible and holds no whole record")
        elif data.startswith(_VERSION):
            # An index may be lost as a whole: its data has everything. Without data it is an
            # orphan, to be removed.
            _check_index(name, data, tree.get(f"{found[1]}.dat"))


def _record_ends(data: bytes, at: int) -> int:
    """Where the record at ``at`` ends, 0 if there is no whole one."""
    size = int.from_bytes(data[at : at + 4], "little")
    crc = int.from_bytes(data[at + 4 : at + 8], "little")
    payload = data[at + 8 : at + 8 + size]
    return at + 8 + size if size and len(payload) == size and zlib.crc32(payload) == crc else 0


def _check_index(name: str, index: bytes, data: bytes | None) -> None:
    end = 4
    for at in range(4, len(index) - _ENTRY + 1, _ENTRY):
        entry = index[at : at + _ENTRY]
        offset = int.from_bytes(entry[8:16], "little")
        size = int.from_bytes(entry[24:28], "little")
        if zlib.crc32(entry[:28]) != int.from_bytes(entry[28:], "little") or offset != end:
            return
        end = offset + 8 + size
        if data is not None and _record_ends(data, offset) != end:
            raise Violation(f"{name} names a record at offset {offset} that is not in the data")
