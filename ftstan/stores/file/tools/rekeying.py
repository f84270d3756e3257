"""Payloads encrypted anew with the first key of a ring, for ``rekey``; and which of them no key
decrypts, for ``verify``.

A slice that has anything to change is copied under its own number, on a store that we own and that
is exact. Its index goes first: data without one is read as it is, and the offsets of the old index
are wrong for the new data. Each step is durable before the next one, and comes after a confirm. So
a slice is at any moment the old one or the new one, and who runs this again goes on with the first
slice that has something to change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError
from ftstan.stores.encryption import payloads
from ftstan.stores.encryption.cipher import NONCE_SIZE
from ftstan.stores.file.log import records
from ftstan.stores.file.log.exact import append_block, put_file
from ftstan.stores.file.log.slices import show
from ftstan.stores.file.state.confirmed import Confirmed, ConfirmedFile, epoch_of
from ftstan.stores.file.tools.reading import ChannelFiles
from ftstan.stores.file.tools.rewriting import check_exact, empty
from ftstan.stores.file.tools.verifying import DefectKind, StoreFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.encryption.cipher import ChannelKeys, KeyRing
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.tools.changing import Work
    from ftstan.stores.file.tools.reading import SliceFile
    from ftstan.stores.file.tools.source import Source
    from ftstan.wire.block import MsgBlock

_ALL = 1 << 62


def rekeying(ring: KeyRing) -> Work:
    """What encrypts a channel anew, and returns how many messages it changed.

    It raises ``DamageError`` for a message that no key decrypts, ``OSError`` and ``StoreError``.
    """

    def work(
        env: FileEnv, files: ChannelFiles, max_bytes: int, progress: Callable[[int], None]
    ) -> int:
        del max_bytes
        return _rekey_channel(env, files, ring, progress)

    return work


def check_payloads(source: Source, name: bytes, ring: KeyRing) -> Iterator[StoreFinding]:
    """The messages of a channel that no key decrypts. Raises ``OSError`` and ``FtstanError``."""
    keys = ring.channel(name)
    with ChannelFiles(source, name) as files:
        for s in files.slices:
            for block, _ in files.blocks(s):
                after = 0
                while (found := _first_bad(block, after, keys)) is not None:
                    after, why = found
                    yield StoreFinding(
                        DefectKind.DAMAGE,
                        name,
                        f"{show(name)}/{s.dat}",
                        f"sequence {after}: {why}",
                        by_hand=True,
                    )


def _first_bad(block: MsgBlock, after: int, keys: ChannelKeys) -> tuple[int, str] | None:
    if not len(block) or after >= block.last:
        return None
    _, sequence, error = payloads.unseal(block, after + 1, _ALL, _ALL, keys.decrypt)
    return None if error is None else (sequence, error.text)


def _rekey_channel(
    env: FileEnv, files: ChannelFiles, ring: KeyRing, progress: Callable[[int], None]
) -> int:
    check_exact(files)
    keys = ring.channel(files.name)
    changed = 0
    for s in files.slices:
        old = sum(
            payloads.count_others(block, keys.is_of_first_key) for block in _readable(files, s)
        )
        if old:
            if not changed and (known := files.confirmed) is not None:
                # The length that it says of a slice is about to be wrong; the last sequence stays.
                ConfirmedFile(env).replace(
                    files.dirfd, Confirmed(epoch_of(env), 0, 0, 0, max(known.last, files.last))
                )
            _rewrite(env, files, s, keys)
        changed += old
        progress(s.dat_size)
    return changed


def _readable(files: ChannelFiles, s: SliceFile) -> Iterator[MsgBlock]:
    for block, bad in files.blocks(s):
        if bad:
            raise DamageError(
                f'channel "{show(files.name)}" slice {s.dat}: {bad[0].why} at offset '
                f"{bad[0].start}",
                hint=f"run: ftstanctl store repair --channel {show(files.name)}",
            )
        yield block


def _rewrite(env: FileEnv, files: ChannelFiles, s: SliceFile, keys: ChannelKeys) -> None:
    index = bytearray(records.VERSION)

    def write_data(fd: int) -> None:
        end = records.VERSION_SIZE
        env.disk.pwrite(fd, records.VERSION, 0)
        for block in _readable(files, s):
            plain, _, error = payloads.unseal(block, 0, _ALL, _ALL, keys.decrypt)
            if error is not None:
                raise error
            nonces = os.urandom(NONCE_SIZE * len(plain))
            sealed = payloads.seal(plain, keys.code, keys.encrypt, nonces)
            records.seal(sealed, env.crc)
            end = append_block(env, fd, index, sealed, end)

    # A message that no key decrypts is met before anything is changed.
    for block in _readable(files, s):
        if (found := _first_bad(block, 0, keys)) is not None:
            raise DamageError(
                f'channel "{show(files.name)}" message {found[0]}: {found[1]}',
                hint="this slice and those behind it are as they were; add the key that wrote the "
                "message to the file, and run this again",
            )
    put_file(env, files.dirfd, s.idx, empty)
    put_file(env, files.dirfd, s.dat, write_data)
    put_file(env, files.dirfd, s.idx, lambda fd: env.disk.pwrite(fd, index, 0))
