"""One publish at a time, in turns, message by message: over bare NATS, with a sync, and to the file
store.

As a process (``python -m benchmarks.turns URL SUBJECT [FILE]``) it stands in the server's place: it
answers each message, after one write and ``fdatasync`` if there is a file. So each of the three
exchanges wakes the same number of processes, which have slept as long, and what the file store
takes longer than the second is its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import sys
import time
from subprocess import PIPE
from typing import TYPE_CHECKING

from benchmarks.load import Client, Publisher, Wire
from ftstan.wire.frames import pub_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.processes import Server

_WARM = 100
_SIZE = 128
#: What is written for a message of that size, and what is sent for it.
_RECORD = b"x" * 161
_SENT = b"x" * 188
_ANSWER = b"x" * 24


def measure(server: Server, directory: str, count: int) -> tuple[float, float, float]:
    """Medians of ``count`` exchanges each, in microseconds: bare, bare with a sync on that disk,
    file store.
    """
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(_responder(server.url, "turns.bare", _WARM + count))
        synced = stack.enter_context(
            _responder(server.url, "turns.synced", _WARM + count, f"{directory}/synced")
        )
        client = stack.enter_context(contextlib.closing(Client(server.url, b"turns", 1)))
        stored = _Turns(client, client.frames(b"turns", _WARM + count, _SIZE))
        rows = [(bare.once(), synced.once(), stored.once()) for _ in range(_WARM + count)][_WARM:]
    first, second, third = (statistics.median(column) * 1e6 for column in zip(*rows, strict=True))
    return first, second, third


class _Turns:
    def __init__(self, publisher: Publisher, frames: Sequence[bytes]) -> None:
        self._publisher = publisher
        self._frames = iter(frames)
        self._poll = select.poll()
        self._poll.register(publisher.fileno(), select.POLLIN)

    def once(self) -> float:
        """Seconds from sending one message to its answer."""
        frame = next(self._frames)
        began = time.perf_counter()
        self._publisher.write(frame)
        while not self._publisher.count():
            if not self._poll.poll(60_000):
                raise TimeoutError("no answer")
        return time.perf_counter() - began


@contextlib.contextmanager
def _responder(url: str, subject: str, count: int, *words: str) -> Iterator[_Turns]:
    replies = f"{subject}.answers".encode()
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.turns", url, subject, *words], stdout=PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with contextlib.closing(Publisher(url, replies, 1)) as publisher:
                yield _Turns(publisher, [pub_frame(subject.encode(), replies, _SENT)] * count)
        finally:
            process.terminate()


def _respond(url: str, subject: str, file: str = "") -> None:
    wire = Wire(url)
    wire.listen(subject.encode())
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if file else -1
    answer = pub_frame(subject.encode() + b".answers", b"", _ANSWER)
    poll = select.poll()
    poll.register(wire.fileno(), select.POLLIN)
    print("ready", flush=True)
    while True:
        poll.poll()
        if count := wire.count():
            if fd >= 0:
                os.write(fd, _RECORD)
                os.fdatasync(fd)
            wire.write(answer * count)


if __name__ == "__main__":
    _respond(*sys.argv[1:])
