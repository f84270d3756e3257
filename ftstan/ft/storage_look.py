"""Who owns a datastore, seen in its directory alone: for people, while NATS or the owner is silent.

Reads ``ft.epoch``, the claims, ``ft.watch`` and who holds the lock; takes, writes and creates
nothing. An owner that lives rewrites ``ft.watch`` once a second, so two looks tell whether it does.
Views only: no decision of a server rests on it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import StoreError
from ftstan.ft.direct import asking_disk
from ftstan.ft.epoch import read_state
from ftstan.ft.health import GroupVerdict, Health
from ftstan.ft.lock import is_held
from ftstan.ft.mounts import mount_of
from ftstan.ft.pause import paused_members
from ftstan.ft.watch import WATCH_NAME, WatchRecord, decode_watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.base.disk import Disk
    from ftstan.ft.epoch_records import EpochRecord

#: Seconds in which an owner that lives writes ``ft.watch`` for certain, and between two looks.
WITHIN_S: Final = 3.0
_LOOK_EVERY_S: Final = 0.1
_WHERE: Final = "give the directory that the servers have as -dir"


@dataclass(frozen=True, slots=True)
class StorageLook:
    """What a directory shows.

    ``claims``: numbers claimed and not recorded yet. ``lives``: ``ft.watch`` changed while it was
    looked at. ``watch``: what stands there, ``None`` if nothing that can be read. ``paused``: the
    members whose pause is kept.
    """

    owner: EpochRecord
    claims: tuple[int, ...]
    lock_held: bool
    lives: bool
    watch: WatchRecord | None
    paused: tuple[str, ...]


@contextlib.contextmanager
def reading(disk: Disk, path: str) -> Iterator[tuple[int, Disk]]:
    """The datastore directory ``path``, which is only read, and the disk that asks storage itself.

    Raises ``StoreError`` also for an ``OSError`` of the block.
    """
    try:
        root = disk.open_dir(path)
    except OSError as error:
        raise StoreError(f"datastore {path}: {error.strerror or error}", hint=_WHERE) from error
    try:
        yield root, asking_disk(disk, is_network=mount_of(root, path).is_network)
    except OSError as error:
        raise StoreError(
            f"datastore {path}: {error.strerror or error}",
            hint="run this as the servers' user, and check the storage",
        ) from error
    finally:
        disk.close(root)


def never_owned(path: str) -> StoreError:
    """What to raise for a directory without an epoch."""
    return StoreError(
        f"{path} holds no datastore that an ftstan server has owned: there is no epoch",
        hint=f"{_WHERE}, and check that it is mounted",
    )


def look_at(
    disk: Disk, path: str, sleep: Callable[[float], None], within_s: float = WITHIN_S
) -> StorageLook:
    """Look at the datastore ``path``, for up to ``within_s`` seconds at its owner.

    Raises ``StoreError``: it cannot be read, or nobody of ours ever owned it.
    """
    with reading(disk, path) as (root, asking):
        state = read_state(asking, root)
        if state.newest is None:
            raise never_owned(path)
        first = _watch(asking, root)
        data = first
        waited = 0.0
        while data == first and waited < within_s and is_held(disk, root):
            sleep(_LOOK_EVERY_S)
            waited += _LOOK_EVERY_S
            data = _watch(asking, root)
        return StorageLook(
            owner=state.newest,
            claims=tuple(n for n in state.claims if n > state.top),
            lock_held=is_held(disk, root),
            lives=data != first,
            watch=decode_watch(data),
            paused=tuple(paused_members(disk, root)),
        )


def judge_storage(look: StorageLook) -> GroupVerdict:
    """Does somebody serve, as far as storage shows?"""
    owner = look.owner.describe()
    if look.lock_held and look.lives:
        return GroupVerdict(Health.HEALTHY, ())
    if not look.lock_held:
        problem = f"nobody holds the lock; last: {owner}"
    elif look.owner.ft_mixed:
        problem = (
            f"the lock is held, perhaps by an original server, and no ftstan server answers; last: "
            f"{owner}"
        )
    else:
        problem = f"{owner} holds the lock, does not answer: ft.watch stays as it is"
    return GroupVerdict(Health.UNSERVED, (problem,))


def _watch(disk: Disk, root_fd: int) -> bytes:
    try:
        fd = disk.open(root_fd, WATCH_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    try:
        return disk.pread(fd, 4096, 0)
    finally:
        disk.close(fd)
