"""Slices that an original server may have written to since we last owned the store: what of them
can be believed.

An original server claims no epoch. After one of our activations it goes on in our highest slice and
opens the next numbers, and it writes index entries before their data is synced. So where one may
have been, an entry proves nothing, except of what we confirmed ourselves: the data is synced first,
then read; the index only says where to read on when its records do not follow each other. That
happens where a killed server left a record without an entry: the original takes the index for the
whole truth and appends behind that record. Reads only (``docs/store.md``, foreign writes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.stores.file.log import records

if TYPE_CHECKING:
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.state.confirmed import Confirmed
    from ftstan.wire.block import MsgBlock

_ENTRY = records.INDEX_SIZE


def confirmed_entries(
    index: bytes, proven: records.IndexScan, number: int, confirmed: Confirmed | None
) -> bytes:
    """The entries of slice ``number`` whose messages were confirmed: durable, whoever wrote behind
    them.
    """
    if confirmed is None or number != confirmed.slice_number:
        return b""
    whole = index[: proven.count * _ENTRY]
    return whole[: records.find_entry(whole, confirmed.sequence + 1) * _ENTRY]


def follow(
    env: FileEnv, channel: bytes, data: bytes, *, start: int, last: int, index: bytes
) -> tuple[MsgBlock, int, str, bool]:
    """Read the records of ``data``, which begins at ``start`` in its file, behind the sequence
    ``last``.

    ``index``: the entries behind those that count already. Gives the messages, how many bytes of
    ``data`` they end at, what ends them, and whether some bytes between them were passed over
    because the index says so.
    """
    check = env.options.check_crc
    found, used, why = records.scan_data(data, channel, last, env.crc, check)
    block = found
    at = 0
    scattered = False
    out: MsgBlock | None = None
    while True:
        same = _agreeing(records.index_entries(block, 0, len(block), start + at, env.crc), index)
        expected = block.sequence(same - 1) + 1 if same else last + 1
        agreed = records.span(block, 0, same) if same else (0, 0)
        there = _elsewhere(env, index, same, expected, start + at + agreed[1] - agreed[0])
        ahead: MsgBlock | None = None
        if there:
            ahead, more, ends = records.scan_data(
                data[there - start :], channel, expected - 1, env.crc, check
            )
        if ahead is None or not len(ahead) or ahead.first != expected:
            return (block if out is None else _joined(out, block)), used, why, scattered
        if same:
            kept = records.cut(block, expected - 1)
            out = kept if out is None else _joined(out, kept)
        index = index[same * _ENTRY :]
        block = ahead
        at = there - start
        last = expected - 1
        scattered = True
        used = at + more
        why = ends


def _joined(out: MsgBlock, block: MsgBlock) -> MsgBlock:
    out.extend(block)
    return out


def _agreeing(made: bytes, index: bytes) -> int:
    """How many entries from the front are the same in both."""
    low = 0
    high = min(len(made), len(index)) // _ENTRY
    while low < high:
        middle = (low + high + 1) // 2
        if made[: middle * _ENTRY] == index[: middle * _ENTRY]:
            low = middle
        else:
            high = middle - 1
    return low


def _elsewhere(env: FileEnv, index: bytes, k: int, sequence: int, here: int) -> int:
    """Where entry ``k`` says that ``sequence`` begins, if that is a place behind ``here``.

    Else 0.
    """
    raw = index[k * _ENTRY : (k + 1) * _ENTRY]
    if len(raw) < _ENTRY or env.crc(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        return 0
    named, offset, _, _ = records.entry(raw, 0)
    return offset if named == sequence and offset > here else 0
