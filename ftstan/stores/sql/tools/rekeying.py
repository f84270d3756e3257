"""Payloads of a database encrypted anew with the first key of a ring, for ``rekey``.

Rows are changed some at a time, in transactions of the database's owner, and a row tells by trial
which key wrote it: whoever runs this again goes on with the rows that have something to change, and
in between the store can be served with all the keys. Every payload is looked at before the first
change: what is refused changes nothing. All rows of a channel count, also those that no reader
gets any more.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import DamageError
from ftstan.stores.encryption import payloads
from ftstan.stores.encryption.cipher import NONCE_SIZE, OVERHEAD
from ftstan.stores.encryption.renewal import (
    Marks,
    decrypted,
    is_told_plain,
    refusal,
    require_plainly_plain,
)
from ftstan.stores.sql.rows import block_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ftstan.stores.encryption.cipher import KeyRing
    from ftstan.stores.interface import Recovered, ServerInfo, StoredAt
    from ftstan.stores.sql.fence import Fence
    from ftstan.stores.sql.session import Row
    from ftstan.stores.sql.store import SqlStore
    from ftstan.wire.block import MsgBlock

#: Of one transaction.
_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 4 << 20
#: What the length of a longer payload may take more.
_LENGTH: Final = 4

_SIZES: Final = (
    "SELECT seq, COALESCE(OCTET_LENGTH(data), 0) FROM Messages WHERE id = %s AND seq >= %s"
    " ORDER BY seq LIMIT %s"
)
_ROWS: Final = (
    "SELECT seq, COALESCE(timestamp, 0), COALESCE(data, '') FROM Messages WHERE id = %s"
    " AND seq >= %s AND seq <= %s ORDER BY seq"
)
_CHANGE: Final = "UPDATE Messages SET data = %s, size = %s WHERE id = %s AND seq = %s"
_REMARK: Final = "UPDATE ftstan_remembered SET mark = %s WHERE digest = %s"


def rekey_database(
    fence: Fence,
    store: SqlStore,
    found: Recovered,
    ring: KeyRing,
    *,
    to_plain: bool = False,
    only: bytes | None = None,
    progress: Callable[[int], None] = lambda _messages: None,
) -> list[tuple[bytes, int]]:
    """Encrypt every payload with the first key, of the channel ``only`` or of all.

    ``found``: what ``store`` has recovered of the database that ``fence`` owns. ``to_plain``:
    decrypt everything instead, and take the mark in the end. Returns the channels with how many
    messages were changed. Raises ``DamageError`` for a message that cannot be changed, before
    anything is, and ``FtstanError``.
    """
    return _Rekeying(fence, store, found, ring, to_plain=to_plain).run(only, progress)


class _Rekeying:
    """One run."""

    def __init__(
        self, fence: Fence, store: SqlStore, found: Recovered, ring: KeyRing, *, to_plain: bool
    ) -> None:
        self._fence = fence
        self._store = store
        self._info = found.info
        self._remembered = found.remembered
        self._channels = {c.name: store.number_of(c.name) for c in found.channels}
        self._ring = ring
        self._to_plain = to_plain
        self._payloads = 0

    def run(self, only: bytes | None, progress: Callable[[int], None]) -> list[tuple[bytes, int]]:
        names = sorted(self._channels) if only is None else [only]
        marks = Marks(self._remembered, self._ring, to_plain=self._to_plain)
        wrong = {name: self._check(name, marks) for name in names}
        remarked = marks.changed()
        if remarked is not None:
            # With what comes next a server that has all the keys knows either value.
            self._remark(remarked)
        if any(wrong.values()) or (self._payloads and not self._to_plain):
            # A run that ends early leaves encrypted payloads behind in either direction.
            self._set_mark(encrypted=True)
        done = [(name, self._change(name, progress) if wrong[name] else 0) for name in names]
        # What channels have left that were deleted is gone, too, whatever key it had.
        while self._store.tick(0):
            pass
        if self._to_plain and only is None:
            self._set_mark(encrypted=False)
        return done

    def _is_right(self, name: bytes) -> Callable[[bytes], bool]:
        return is_told_plain if self._to_plain else self._ring.channel(name).is_of_first_key

    def _check(self, name: bytes, marks: Marks) -> int:
        """Look at every payload of a channel; how many are to be changed. Raises
        ``DamageError``.
        """
        keys = self._ring.channel(name)
        is_right = self._is_right(name)
        most = self._fence.read(lambda session: session.most_data)
        count = 0
        for block in self._blocks(name):
            plain = decrypted(name, block, keys)
            self._payloads += payloads.count_others(plain, lambda _data: False)
            if self._to_plain:
                require_plainly_plain(name, plain)
            marks.look(plain)
            wrong = payloads.count_others(block, is_right)
            count += wrong
            if wrong and not self._to_plain:
                _require_room(name, plain, most)
        return count

    def _change(self, name: bytes, progress: Callable[[int], None]) -> int:
        keys = self._ring.channel(name)
        is_right = self._is_right(name)
        number = self._channels[name]
        count = 0
        for block in self._blocks(name):
            wrong = [
                (block.sequence(i), block.timestamp(i), block.payload(i))
                for i in range(len(block))
                if (data := payloads.stored_data(block, i)) and not is_right(data)
            ]
            if wrong:
                made = decrypted(name, block_of(wrong), keys)
                if not self._to_plain:
                    nonces = os.urandom(NONCE_SIZE * len(made))
                    made = payloads.seal(made, keys.code, keys.encrypt, nonces, keys.fast)
                self._write(number, made)
            count += len(wrong)
            progress(len(block))
        return count

    def _write(self, number: int, made: MsgBlock) -> None:
        rows: list[Sequence[object]] = []
        for i in range(len(made)):
            data = made.payload(i)
            rows.append((data, len(data), number, made.sequence(i)))
        self._fence.transaction(lambda session: session.execute_many(_CHANGE, rows))

    def _remark(self, window: Mapping[bytes, StoredAt]) -> None:
        rows = [
            (at.mark, digest)
            for digest, at in window.items()
            if at.mark != self._remembered[digest].mark
        ]
        self._fence.transaction(lambda session: session.execute_many(_REMARK, rows))

    def _set_mark(self, *, encrypted: bool) -> None:
        info: ServerInfo | None = self._info
        if info is not None and info.encrypted != encrypted:
            self._info = replace(info, encrypted=encrypted)
            self._store.set_server_info(self._info)

    def _blocks(self, name: bytes) -> Iterator[MsgBlock]:
        """Every row of a channel. Raises ``DamageError`` for one that is no message."""
        number = self._channels[name]
        at = 0
        while sizes := self._sizes(number, at):
            end = int(sizes[0][0])
            total = 0
            for sequence, size in sizes:
                total += int(size)
                if total > _MOST_BYTES and sequence != sizes[0][0]:
                    break
                end = int(sequence)
            block = block_of(self._rows(number, at, end))
            for i in range(len(block)):
                try:
                    payloads.stored_data(block, i)
                except DamageError as error:
                    raise refusal(
                        name, block.sequence(i), error.text, "purge it, or put it back"
                    ) from error
            yield block
            at = end + 1

    def _sizes(self, number: int, at: int) -> list[Row]:
        return self._fence.read(lambda s: s.query(_SIZES, (number, at, _MOST_ROWS)))

    def _rows(self, number: int, at: int, end: int) -> list[Row]:
        return self._fence.read(lambda s: s.query(_ROWS, (number, at, end)))


def _require_room(name: bytes, plain: MsgBlock, most: int) -> None:
    """Raise ``DamageError`` if a message would not fit into its column when it is encrypted."""
    for i in range(len(plain)):
        if len(plain.payload(i)) + OVERHEAD + _LENGTH > most:
            raise refusal(
                name,
                plain.sequence(i),
                f"is too large for its column, of {most} bytes, when it is encrypted",
                "ALTER TABLE Messages MODIFY data LONGBLOB",
            )
