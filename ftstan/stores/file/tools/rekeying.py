"""Payloads encrypted anew with the first key of a ring, for ``rekey``; and which of them no key
decrypts, for ``verify``.

A slice that has anything to change is copied under its own number, on a store that we own and that
is exact. Its index goes first: data without one is read as it is, and the offsets of the old index
are wrong for the new data. Each step is durable before the next one, and comes after a confirm. So
a slice is at any moment the old one or the new one, and who runs this again goes on with the first
slice that has something to change. Every payload is looked at before the first change: what is
refused changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.errors import DamageError
from ftstan.stores.encryption import payloads
from ftstan.stores.encryption.cipher import NONCE_SIZE
from ftstan.stores.encryption.renewal import (
    ADD_THE_KEY,
    Marks,
    decrypted,
    is_told_plain,
    refusal,
    require_plainly_plain,
)
from ftstan.stores.file.log import records
from ftstan.stores.file.log.exact import append_block, empty, put_file
from ftstan.stores.file.log.slices import show
from ftstan.stores.file.recovery.damage import SAVED
from ftstan.stores.file.state.confirmed import Confirmed, ConfirmedFile, epoch_of
from ftstan.stores.file.state.remembered import Remembered
from ftstan.stores.file.state.serverfile import ServerFile
from ftstan.stores.file.tools.changing import rewrite, source_of
from ftstan.stores.file.tools.reading import ChannelFiles, channel_names
from ftstan.stores.file.tools.rewriting import check_exact
from ftstan.stores.file.tools.verifying import DefectKind, StoreFinding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.encryption.cipher import ChannelKeys, KeyRing
    from ftstan.stores.file.env import FileEnv
    from ftstan.stores.file.tools.reading import SliceFile
    from ftstan.stores.file.tools.source import Source
    from ftstan.stores.interface import StoredAt
    from ftstan.wire.block import MsgBlock

_ALL = 1 << 62


def rekey_store(
    env: FileEnv,
    ring: KeyRing,
    *,
    to_plain: bool = False,
    only: bytes | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> list[tuple[bytes, int]]:
    """Encrypt every payload with the first key, of the channel ``only`` or of all.

    ``to_plain``: decrypt everything instead, and take the mark from ``server.dat`` in the end.
    Returns the channels with how many messages were changed. Raises ``DamageError`` for a message
    that no key decrypts, before anything is changed, ``OSError`` and ``FtstanError``.
    """
    run = _Rekeying(ring, to_plain=to_plain)
    run.check(env, only)
    done = rewrite(env, run.work, only=only, max_bytes=0, progress=progress)
    run.finish(env, everything=only is None)
    return done


class _Rekeying:
    """One run: ``check`` everything, let ``work`` change each channel, then ``finish``."""

    def __init__(self, ring: KeyRing, *, to_plain: bool = False) -> None:
        self._ring = ring
        self._to_plain = to_plain
        self._remarked: dict[bytes, StoredAt] | None = None
        """What is to be remembered of publishes, if it is other than what is."""
        self._begun = False
        self._payloads = 0

    def check(self, env: FileEnv, only: bytes | None) -> None:
        """Look at every payload, of the channel ``only`` or of all, before anything is changed.

        Raises ``DamageError`` for one that cannot be rewritten.
        """
        source = source_of(env)
        remembered = Remembered(env)
        marks = Marks(remembered.load(), self._ring, to_plain=self._to_plain)
        remembered.close()
        for name in channel_names(source)[0] if only is None else [only]:
            keys = self._ring.channel(name)
            with ChannelFiles(source, name) as files:
                for s in files.slices:
                    for block, _ in files.blocks(s):
                        self._check_block(name, block, keys, marks)
        self._remarked = marks.changed()

    def _check_block(self, name: bytes, block: MsgBlock, keys: ChannelKeys, marks: Marks) -> None:
        plain = decrypted(name, block, keys)
        self._payloads += payloads.count_others(plain, _is_nothing)
        if self._to_plain:
            require_plainly_plain(name, plain)
        marks.look(plain)

    def work(
        self, env: FileEnv, files: ChannelFiles, max_bytes: int, progress: Callable[[int], None]
    ) -> int:
        """Rewrite a channel; returns how many messages were changed.

        Raises ``DamageError`` for a message that no key decrypts, ``OSError`` and ``StoreError``.
        """
        del max_bytes
        check_exact(files)
        keys = self._ring.channel(files.name)
        is_right = is_told_plain if self._to_plain else keys.is_of_first_key
        changed = 0
        for s in files.slices:
            old = sum(payloads.count_others(block, is_right) for block in _readable(files, s))
            if old:
                if not changed:
                    self._begin(env, files)
                self._rewrite(env, files, s, keys)
            changed += old
            progress(s.dat_size)
        if not self._to_plain:
            _remove_cuts(env, files.dirfd)
        return changed

    def _begin(self, env: FileEnv, files: ChannelFiles) -> None:
        """What must be durable before the first slice of a channel changes."""
        if not self._begun:
            self._begun = True
            self._remark(env)
            # A run that ends early leaves encrypted payloads behind in either direction.
            set_mark(env, encrypted=True)
        if (known := files.confirmed) is not None:
            # The length that it says of a slice is about to be wrong; the last sequence stays.
            ConfirmedFile(env).replace(
                files.dirfd, Confirmed(epoch_of(env), 0, 0, 0, max(known.last, files.last))
            )

    def _remark(self, env: FileEnv) -> None:
        """Make the check values of remembered publishes with the first key: with it alone, those
        made with another would not be known, and a repeat would be stored twice.
        """
        if self._remarked is None:
            return
        remembered = Remembered(env)
        remembered.load()
        remembered.write([], self._remarked)
        remembered.close()

    def _rewrite(self, env: FileEnv, files: ChannelFiles, s: SliceFile, keys: ChannelKeys) -> None:
        index = bytearray(records.VERSION)

        def write_data(fd: int) -> None:
            end = records.VERSION_SIZE
            env.disk.pwrite(fd, records.VERSION, 0)
            for block in _readable(files, s):
                made, _, error = payloads.unseal(block, 0, _ALL, _ALL, keys.decrypt, fast=keys.fast)
                if error is not None:
                    raise error
                if not self._to_plain:
                    nonces = os.urandom(NONCE_SIZE * len(made))
                    made = payloads.seal(made, keys.code, keys.encrypt, nonces, keys.fast)
                records.seal(made, env.crc)
                end = append_block(env, fd, index, made, end)

        # A message that no key decrypts is met before anything is changed.
        for block in _readable(files, s):
            if (found := _first_bad(block, 0, keys)) is not None:
                raise refusal(files.name, *found, ADD_THE_KEY)
        put_file(env, files.dirfd, s.idx, empty)
        put_file(env, files.dirfd, s.dat, write_data)
        put_file(env, files.dirfd, s.idx, lambda fd: env.disk.pwrite(fd, index, 0))

    def finish(self, env: FileEnv, *, everything: bool) -> None:
        """Set or take the mark, when every channel has been worked on; ``everything``: and not only
        one of them.
        """
        if not self._begun:
            self._remark(env)
        if not self._to_plain:
            if self._payloads:
                set_mark(env, encrypted=True)
        elif everything:
            set_mark(env, encrypted=False)


def _remove_cuts(env: FileEnv, dirfd: int) -> None:
    """Remove what starts have cut off the files of a channel: it holds payloads as they were
    stored.
    """
    cuts = [x for x, is_dir in env.disk.listdir(dirfd) if x.startswith(SAVED) and not is_dir]
    if cuts:
        # What a successor has saved since is all that is left of what it cut.
        env.owner.confirm()
    for name in cuts:
        env.disk.unlink(dirfd, name)
    if cuts:
        env.disk.fsync(dirfd)


def set_mark(env: FileEnv, *, encrypted: bool) -> None:
    """Have ``server.dat`` say whether the store is encrypted, durable on return.

    Raises ``RecoveryError``, ``StoreError`` and ``OSError``. A store without the file gets it from
    its next server.
    """
    file = ServerFile(env)
    info = file.read()
    if info is not None and info.encrypted != encrypted:
        env.owner.confirm()
        file.write(replace(info, encrypted=encrypted))


def _is_nothing(data: bytes) -> bool:
    del data
    return False


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
    _, sequence, error = payloads.unseal(block, after + 1, _ALL, _ALL, keys.decrypt, fast=keys.fast)
    return None if error is None else (sequence, error.text)


def _readable(files: ChannelFiles, s: SliceFile) -> Iterator[MsgBlock]:
    for block, bad in files.blocks(s):
        if bad:
            raise DamageError(
                f'channel "{show(files.name)}" slice {s.dat}: {bad[0].why} at offset '
                f"{bad[0].start}",
                hint=f"run: ftstanctl store repair --channel {show(files.name)}",
            )
        yield block
