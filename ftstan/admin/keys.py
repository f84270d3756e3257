"""``admin.key``: the secret of a datastore that an operator's requests are sealed with.

The only module that knows it.

64 hexadecimal digits and a line feed, mode 0600, made by the first owner that finds none, and never
printed. Whoever may read the datastore may steer the group; nobody else. ``rotate_key`` replaces
it; the one before then counts as well, until the time that ``admin.key.old`` says:

    <64 hexadecimal digits> until <seconds since 1970>

Both files are renamed into place, so there is no moment without a key, or with half of one. What
cannot be read as an old key is none.

All calls may block on storage.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftstan.base.disk import LocalDisk
from ftstan.base.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.base.disk import Disk

KEY_NAME = "admin.key"
KEY_SIZE = 32
OLD_SUFFIX = ".old"
MAX_GRACE_S = 30 * 86_400
"""For so long a former key may count at most."""

_OLD_TEXT = re.compile(rb"([0-9a-f]{%d}) until ([0-9]{1,12})\n\Z" % (2 * KEY_SIZE))
_FINGERPRINT_DOMAIN = b"ftstan admin key fingerprint 1\0"
_TEXT = re.compile(rb"([0-9a-f]{%d})\n?\Z" % (2 * KEY_SIZE))
_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class Keys:
    """The key, and the one before it with the time (Unix nanoseconds) until which it counts.

    ``current`` is ``None`` while there is none: then nothing counts.
    """

    current: bytes | None
    old: bytes | None = None
    old_until_ns: int = 0

    def accepted(self, now_ns: int) -> tuple[bytes, ...]:
        """The keys that count at ``now_ns``, the present one first."""
        if self.current is None:
            return ()
        if self.old is None or now_ns >= self.old_until_ns:
            return (self.current,)
        return (self.current, self.old)


def fingerprint(key: bytes) -> str:
    """What tells one key from another, and says nothing about it."""
    return hashlib.sha256(_FINGERPRINT_DOMAIN + key).hexdigest()[:16]


def read_key(disk: Disk, root_fd: int, name: str = KEY_NAME) -> bytes | None:
    """Read the key, ``None`` if there is none.

    Raises ``StoreError``: unreadable, not a key, or open to others.
    """
    data = _read(disk, root_fd, name)
    if data is None:
        return None
    match = _TEXT.match(data)
    if match is None:
        raise StoreError(
            f"{name} holds no key",
            hint=f"remove {name}: the next owner of the datastore makes another",
        )
    return bytes.fromhex(match[1].decode())


def read_keys(disk: Disk, root_fd: int, name: str = KEY_NAME) -> Keys:
    """Read the key and the old one. Raises ``StoreError`` as ``read_key``, about the present one.

    An old key that cannot be read, or is open to others, is none: it can only be missed.
    """
    current = read_key(disk, root_fd, name)
    while True:
        old = None
        with contextlib.suppress(StoreError):
            old = _OLD_TEXT.match(_read(disk, root_fd, name + OLD_SUFFIX) or b"")
        before = current
        current = read_key(disk, root_fd, name)
        if current == before:
            break
        # Replaced in between: what was read as the old one belongs to another key.
    if old is None:
        return Keys(current)
    return Keys(current, bytes.fromhex(old[1].decode()), int(old[2]) * 1_000_000_000)


def _read(disk: Disk, root_fd: int, name: str) -> bytes | None:
    """What is in a file of keys, ``None`` without one.

    Raises ``StoreError``: unreadable, or open to others.
    """
    try:
        # NONBLOCK: a pipe of that name must not hold up the thread that serves.
        fd = disk.open(root_fd, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(name, error) from error
    try:
        mode = disk.fstat(fd).mode
        data = disk.pread(fd, 4 * KEY_SIZE, 0)
    except OSError as error:
        raise _unreadable(name, error) from error
    finally:
        disk.close(fd)
    if mode & _OTHERS:
        raise StoreError(
            f"{name} is open to other users (mode {mode:04o})", hint=f"run: chmod 600 {name}"
        )
    return data


def read_key_at(path: str) -> bytes | None:
    """Read the key in the file ``path``, ``None`` if there is none. Raises ``StoreError``."""
    return read_keys_at(path).current


def read_keys_at(path: str) -> Keys:
    """Read the key in the file ``path``, and the old one beside it. Raises ``StoreError``."""
    with _folder_of(path) as (disk, directory, name):
        return read_keys(disk, directory, name)


def rotate_key_at(path: str, *, grace_s: int, now_ns: int) -> Keys:
    """``rotate_key`` of the file ``path``. Raises ``StoreError``."""
    with _folder_of(path) as (disk, directory, name):
        return rotate_key(disk, directory, lambda: None, grace_s=grace_s, now_ns=now_ns, name=name)


@contextlib.contextmanager
def _folder_of(path: str) -> Iterator[tuple[Disk, int, str]]:
    folder, name = os.path.split(os.path.abspath(path))
    disk = LocalDisk()
    try:
        directory = disk.open_dir(folder)
    except OSError as error:
        raise _unreadable(os.path.join(folder, name), error) from error
    try:
        yield disk, directory, name
    finally:
        disk.close(directory)


def ensure_key(
    disk: Disk,
    root_fd: int,
    confirm: Callable[[], None],
    *,
    secret: bytes | None = None,
    name: str = KEY_NAME,
) -> None:
    """Make the key if there is none, durable on return; ``confirm`` says that the store is ours.

    A file that is there is left alone, whatever it holds. ``secret``: 32 bytes, random by default.
    Raises ``FencedError`` through ``confirm``, and ``StoreError``.
    """
    try:
        try:
            disk.stat(root_fd, name)
        except FileNotFoundError:
            pass
        else:
            return
        remove_unfinished(disk, root_fd, name, confirm)
        put_file(disk, root_fd, name, (secret or os.urandom(KEY_SIZE)).hex(), confirm, base=name)
    except OSError as error:
        raise StoreError(
            f"{name} cannot be made: {error.strerror or error}",
            hint="check the storage; until there is a key, ftstanctl ft can look and not change",
        ) from error


def rotate_key(
    disk: Disk,
    root_fd: int,
    confirm: Callable[[], None],
    *,
    grace_s: int,
    now_ns: int,
    secret: bytes | None = None,
    name: str = KEY_NAME,
) -> Keys:
    """Replace the key, durable on return; the one before counts for ``grace_s`` seconds more.

    What was old before counts no more. ``confirm`` and ``secret`` as of ``ensure_key``. Raises
    ``FencedError`` through ``confirm``, and ``StoreError``: the key that counted still does.
    """
    current = read_key(disk, root_fd, name)
    if current is None:
        raise StoreError(f"{name} does not exist", hint="the next owner of the datastore makes one")
    new = secret or os.urandom(KEY_SIZE)
    until_s = now_ns // 1_000_000_000 + grace_s
    old_name = name + OLD_SUFFIX
    try:
        remove_unfinished(disk, root_fd, name, confirm)
        # The old one first: a crash between the two leaves one key twice, and never none.
        if grace_s > 0:
            put_file(
                disk, root_fd, old_name, f"{current.hex()} until {until_s}", confirm, base=name
            )
        else:
            confirm()
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(root_fd, old_name)
                disk.fsync(root_fd)
        put_file(disk, root_fd, name, new.hex(), confirm, base=name)
    except OSError as error:
        raise StoreError(
            f"{name} cannot be replaced: {error.strerror or error}",
            hint="check the storage, and see which key counts: ftstanctl key show",
        ) from error
    if grace_s <= 0:
        return Keys(new)
    return Keys(new, current, until_s * 1_000_000_000)


def put_file(
    disk: Disk, root_fd: int, name: str, text: str, confirm: Callable[[], None], *, base: str
) -> None:
    """Make or replace the file ``name``, durably and at once. Raises ``OSError``.

    ``base``: the key's own name, with which files begin that are not finished.
    """
    # A name of its own: a former owner's late rename must not take a file that is not finished.
    new = f"{base}.new.{os.urandom(8).hex()}"
    fd = disk.open(root_fd, new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        disk.pwrite(fd, text.encode() + b"\n", 0)
        disk.fsync(fd)
    finally:
        disk.close(fd)
    confirm()
    disk.rename(root_fd, new, name)
    disk.fsync(root_fd)


def remove_unfinished(disk: Disk, root_fd: int, name: str, confirm: Callable[[], None]) -> None:
    """Files that owners who died have begun: their bytes may be anything."""
    left = [
        found
        for found, is_dir in disk.listdir(root_fd)
        if found.startswith(f"{name}.new") and not is_dir
    ]
    if left:
        # Listed, then confirmed: so none of them is a successor's.
        confirm()
    for found in left:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(root_fd, found)


def _unreadable(name: str, error: OSError) -> StoreError:
    return StoreError(
        f"{name} cannot be read: {error.strerror or error}",
        hint=f"{name} belongs to the user that the servers run as; run as that user",
    )
