"""Many files made durable at once: the syncs of one commit overlap on a few threads."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from ftstan.base.errors import StoreError
from ftstan.stores.file.log.view import show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ftstan.stores.file.dirty_channels import C, Unsynced
    from ftstan.stores.file.env import FileEnv

_THREADS = 4
#: Files that are replaced at once: threads that wait for storage, made when so many are first
#: wanted.
AT_ONCE = 64
T = TypeVar("T")
#: Storage that answers so to two channels is not a matter of one file.
_GONE = (errno.EIO, errno.ESTALE, errno.EROFS, errno.ENXIO, errno.ENODEV)


class Syncer:
    """The threads of one store; without ``parallel`` one file is synced after the other."""

    def __init__(self, env: FileEnv, *, parallel: bool) -> None:
        self._env = env
        self._pool = ThreadPoolExecutor(_THREADS, "sync") if parallel else None
        self._wide: ThreadPoolExecutor | None = None

    @property
    def parallel(self) -> bool:
        """Whether there are threads."""
        return self._pool is not None

    def sync(self, pending: Sequence[Unsynced[C]]) -> list[tuple[OSError, Unsynced[C]]]:
        """Sync all of them, unless the operator wants none synced; returns what storage refused."""
        if not pending or not self._env.options.sync:
            return []
        if len(pending) == 1:
            refused = self._attempt(pending[0])
            return [] if refused is None else [refused]
        results = (
            map(self._attempt, pending)
            if self._pool is None
            else self._pool.map(self._attempt, pending)
        )
        return [r for r in results if r is not None]

    def _attempt(self, item: Unsynced[C]) -> tuple[OSError, Unsynced[C]] | None:
        try:
            self._env.disk.fdatasync(item.fd)
        except OSError as error:
            return error, item
        return None

    def each(self, work: Callable[[T], None], items: Sequence[T]) -> None:
        """Do ``work`` with each of them, with as many as possible at once.

        Returns after the last one.

        What ``work`` raises passes through.
        """
        if self._pool is None or len(items) == 1:
            for item in items:
                work(item)
            return
        pool = self._pool
        if len(items) > _THREADS:
            pool = self._wide = self._wide or ThreadPoolExecutor(AT_ONCE, "replace")
        futures = [pool.submit(work, item) for item in items]
        # None is under way any more when one of them has failed.
        wait(futures)
        for future in futures:
            future.result()

    def close(self, *, wait: bool = True) -> None:
        """End the threads."""
        for pool in (self._pool, self._wide):
            if pool is not None:
                pool.shutdown(wait=wait)


class Broken:
    """Channels whose last write or sync failed as if the storage were gone."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()

    def note(self, name: bytes, error: OSError) -> None:
        """Storage refused this channel. Raises ``StoreError`` if it is not the only one."""
        if error.errno not in _GONE:
            return
        self._names.add(name)
        if len(self._names) > 1:
            names = ", ".join(f'"{show(n)}"' for n in sorted(self._names))
            raise StoreError(
                f"storage fails on channels {names}: {error.strerror}",
                hint="check the storage; a standby may see it in better shape",
            ) from error

    def forget(self, name: bytes) -> None:
        """A commit of this channel succeeded."""
        self._names.discard(name)
