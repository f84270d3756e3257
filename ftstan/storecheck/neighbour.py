"""Another process of this host on the same directory: it locks, reads and writes when told to, and
can be killed.

Run as ``python -m ftstan.storecheck.neighbour DIR [network]``: on standard input a JSON list a
line, ``[verb, argument ...]``, and a JSON value a line back. Bytes travel as Latin-1 text. An error
of storage comes back as its errno, any other as its text and hint.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any, Protocol

from ftstan.base.disk import LocalDisk
from ftstan.base.environment import without_secrets
from ftstan.base.errors import FtstanError, LockBusyError, StoreError
from ftstan.ft.direct import asking_disk
from ftstan.ft.lock import LOCK_NAME, StoreLock

if TYPE_CHECKING:
    from portalocker.portalocker import BaseLocker

    from ftstan.base.disk import Disk

_END_S = 10.0


class Neighbour(Protocol):
    """What the other process does. Every method may raise ``OSError`` and ``FtstanError``."""

    def lock(self) -> bool:
        """Try the store lock, without waiting; whether it was granted."""
        ...

    def lock_as_original(self) -> bool:
        """Try the kind of lock that original servers take, and give it back."""
        ...

    def unlock(self) -> None:
        """Give the lock back."""
        ...

    def read(self, name: str, size: int, offset: int) -> bytes | None:
        """Read through a new handle, past caches on network storage.

        ``None`` where the name does not exist.
        """
        ...

    def write(self, name: str, data: bytes, offset: int) -> None:
        """Write into a file, made if need be, and sync it."""
        ...

    def create(self, name: str) -> bool:
        """Make a file that must not exist; whether this made it."""
        ...

    def kill(self) -> None:
        """End with SIGKILL, without giving anything back."""
        ...


class Deputy:
    """The verbs of a neighbour, carried out in this process on ``disk``.

    ``asking`` is the disk that asks storage.
    """

    def __init__(
        self, disk: Disk, asking: Disk, dirfd: int, path: str, locker: BaseLocker | None = None
    ) -> None:
        self._disk = disk
        self._asking = asking
        self._dirfd = dirfd
        self._lock = StoreLock(disk, dirfd, path, locker)

    def lock(self) -> bool:
        """Try the store lock."""
        try:
            self._lock.acquire()
        except LockBusyError:
            return False
        return True

    def lock_as_original(self) -> bool:
        """Try a POSIX record lock over the whole file."""
        fd = self._disk.open(self._dirfd, LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        finally:
            self._disk.close(fd)
        return True

    def unlock(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def read(self, name: str, size: int, offset: int) -> bytes | None:
        """Read through a new handle."""
        try:
            fd = self._asking.open(self._dirfd, name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return self._asking.pread(fd, size, offset)
        finally:
            self._asking.close(fd)

    def write(self, name: str, data: bytes, offset: int) -> None:
        """Write and sync."""
        fd = self._disk.open(self._dirfd, name, os.O_RDWR | os.O_CREAT)
        try:
            self._disk.pwrite(fd, data, offset)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)

    def create(self, name: str) -> bool:
        """Make a file exclusively."""
        try:
            fd = self._disk.open(self._dirfd, name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        self._disk.close(fd)
        return True

    def kill(self) -> None:
        """Give back what a process that ends loses."""
        self._lock.release()


class NeighbourProcess:
    """A neighbour that really is another process. ``end`` ends it, killed or not."""

    def __init__(self, path: str, *, is_network: bool) -> None:
        words = [
            sys.executable,
            "-m",
            "ftstan.storecheck.neighbour",
            path,
            *(["network"] if is_network else []),
        ]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            text=True,
            env=without_secrets(os.environ),
        )

    def lock(self) -> bool:
        """Try the store lock."""
        return bool(self._ask("lock"))

    def lock_as_original(self) -> bool:
        """Try the original's kind of lock."""
        return bool(self._ask("lock_as_original"))

    def unlock(self) -> None:
        """Give the lock back."""
        self._ask("unlock")

    def read(self, name: str, size: int, offset: int) -> bytes | None:
        """Read in the other process."""
        data = self._ask("read", name, size, offset)
        return None if data is None else str(data).encode("latin-1")

    def write(self, name: str, data: bytes, offset: int) -> None:
        """Write in the other process."""
        self._ask("write", name, data.decode("latin-1"), offset)

    def create(self, name: str) -> bool:
        """Make a file in the other process."""
        return bool(self._ask("create", name))

    def kill(self) -> None:
        """Send SIGKILL and reap it."""
        self._process.kill()
        self._process.wait(_END_S)

    def end(self) -> None:
        """End it, and close its pipes."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, *words: object) -> Any:
        stdin, stdout = _pipes(self._process)
        try:
            stdin.write(json.dumps(words) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise StoreError(
                "the second process of the check ended by itself", hint="its last words stand above"
            )
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise StoreError(answer["error"], hint=answer["hint"])
        if isinstance(answer, dict):
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return answer


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def serve(path: str, *, is_network: bool) -> None:
    """Carry out what standard input says, until it ends."""
    disk = LocalDisk()
    deputy = Deputy(disk, asking_disk(disk, is_network=is_network), disk.open_dir(path), path)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            answer: object = _do(deputy, verb, arguments)
        except OSError as error:
            answer = {"errno": error.errno}
        except FtstanError as error:
            answer = {"error": error.text, "hint": error.hint}
        print(json.dumps(answer), flush=True)


def _do(deputy: Deputy, verb: str, arguments: list[Any]) -> object:
    match verb:
        case "lock":
            return deputy.lock()
        case "lock_as_original":
            return deputy.lock_as_original()
        case "unlock":
            deputy.unlock()
            return None
        case "read":
            data = deputy.read(*arguments)
            return None if data is None else data.decode("latin-1")
        case "write":
            name, text, offset = arguments
            deputy.write(name, text.encode("latin-1"), offset)
            return None
        case "create":
            return deputy.create(*arguments)
    raise AssertionError(verb)


if __name__ == "__main__":
    serve(sys.argv[1], is_network=sys.argv[2:] == ["network"])
