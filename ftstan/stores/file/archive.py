"""Archive: the operator's script that gets every slice that the limits removed.

The contract is the original's (``docs/compat/filestore.md``): three arguments, no shell, not waited
for. What is better: never two at once for one slice, a failure is tried again later, and slices
that nobody took are found at the next start. Scripts are started by one thread of ours and by
nobody else; when each may start is decided by the store, which confirms that the slice is still its
own before it hands the job to the thread, and once more in the thread, directly before the start. A
script inherits a lock on its data file, which lasts as long as the script does: a successor that
finds the slice waits until the script of a former server has ended, however that server ended.
Never removes, renames or reads a slice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import tempfile
import threading
from collections import deque
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from ftstan.base.environment import without_secrets
from ftstan.base.log import stream as log

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.base.clock import Clock

_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 600.0
#: Scripts that run at the same time: the first expiry of a large store would start thousands.
_AT_ONCE = 16
_OUTPUT_SHOWN = 64 << 10

# One byte far behind every record is locked, so that a script may lock the file for itself. The
# structure is that of ``fcntl(2)``: type, whence, start, length, process (0 for a lock of the open
# file), padding.
_LOCK = struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 1 << 62, 1, 0)


@dataclass(slots=True, eq=False)
class Job:
    """One slice that waits for its script, or whose script runs.

    ``due``: not before, in seconds of the clock.
    """

    channel: str
    dat: str
    idx: str
    due: float
    wait: float = 0.0
    running: bool = False


class Archivist:
    """The scripts of one store. All methods belong to the thread that uses the store."""

    def __init__(self, script: str, clock: Clock, may_start: Callable[[], bool]) -> None:
        """``may_start`` is asked in the thread that starts scripts, directly before each of
        them.
        """
        self._script = script
        self._clock = clock
        self._may_start = may_start
        self._jobs: dict[str, Job] = {}
        self._done: deque[tuple[Job, bool]] = deque()
        self._runner: _Runner | None = None

    def add(self, channel: str, dat: str, idx: str) -> None:
        """A slice has been set aside: ``dat`` and ``idx`` are the paths that the script gets."""
        self._jobs.setdefault(dat, Job(channel, dat, idx, self._clock.mono()))

    def forget(self, channel: str) -> None:
        """The channel is deleted with all its files: what waits for a script goes with it."""
        for dat, job in list(self._jobs.items()):
            if job.channel == channel and not job.running:
                del self._jobs[dat]

    @property
    def running(self) -> int:
        """Scripts that run now."""
        self._collect()
        return sum(job.running for job in self._jobs.values())

    @property
    def waiting(self) -> int:
        """Slices that no script has taken yet."""
        return len(self._jobs) - self.running

    def run_due(self, confirm: Callable[[], None]) -> None:
        """Start what is due; ``confirm`` is asked before each and may raise ``FencedError``."""
        free = _AT_ONCE - self.running
        now = self._clock.mono()
        for job in self._jobs.values():
            if free <= 0:
                return
            if job.running or job.due > now:
                continue
            confirm()
            runner = self._runner or self._start_runner(job)
            if runner is None:
                return
            job.running = True
            free -= 1
            runner.start(job)

    def _start_runner(self, first: Job) -> _Runner | None:
        """Start the thread; ``None`` if this host lets nobody: what waits is tried again later."""
        try:
            self._runner = _Runner(self._script, self._done, self._may_start)
        except (OSError, RuntimeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            _say_failed(self._script, first, f"no thread for it: {why}", "")
            for job in self._jobs.values():
                self._postpone(job)
        return self._runner

    def _collect(self) -> None:
        while self._done:
            job, ok = self._done.popleft()
            job.running = False
            if ok:
                self._jobs.pop(job.dat, None)
                continue
            self._postpone(job)

    def _postpone(self, job: Job) -> None:
        job.wait = min(max(job.wait * 2, _FIRST_RETRY_S), _LONGEST_RETRY_S)
        job.due = self._clock.mono() + job.wait

    def close(self, patience: float) -> None:
        """Wait for running scripts, ``patience`` seconds at most.

        Those that run longer are left alone, and named.
        """
        if self._runner is None:
            return
        if self.running:
            log.info(f"Waiting for {self.running} archive script(s), {patience:g}s at most")
        self._runner.finish(patience)
        self._collect()
        for job in self._jobs.values():
            if job.running:
                log.warning(
                    f'Archive script for "{job.channel}" still runs; whether it succeeds or not, '
                    f'"{job.dat}" is tried '
                    "again at the next start if it is still there"
                )

    def abandon(self) -> None:
        """Start nothing more, and wait for nothing: the store belongs to somebody else."""
        if self._runner is not None:
            self._runner.abandoned = True
            self._runner.finish(0)


class _Runner:
    """The thread that starts scripts, waits for them and reports."""

    def __init__(
        self, script: str, done: deque[tuple[Job, bool]], may_start: Callable[[], bool]
    ) -> None:
        """Raises ``OSError`` and ``RuntimeError`` if this host has no descriptor or thread left."""
        self._script = script
        self._done = done
        self._may_start = may_start
        self.abandoned = False
        """Whether what waits in the inbox is not to be started any more."""
        self._inbox: deque[Job | None] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._wake)
            raise

    def start(self, job: Job) -> None:
        self._post(job)

    def finish(self, patience: float) -> None:
        self._post(None)
        self._thread.join(patience)

    def _post(self, item: Job | None) -> None:
        self._inbox.append(item)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        running: dict[int, tuple[Job, subprocess.Popen[bytes], IO[bytes]]] = {}
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        stopping = False
        while not stopping or running:
            ready = {fd for fd, _ in poll.poll()}
            for fd in ready & running.keys():
                poll.unregister(fd)
                os.close(fd)
                self._ended(*running.pop(fd))
            if self._wake not in ready:
                continue
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            while self._inbox:
                job = self._inbox.popleft()
                if job is None:
                    stopping = True
                elif (started := self._spawn(job)) is not None:
                    try:
                        fd = os.pidfd_open(started[0].pid)
                    except OSError:
                        # Descriptors are short: it has the thread to itself until it has ended.
                        self._ended(job, *started)
                        continue
                    running[fd] = (job, *started)
                    poll.register(fd, select.POLLIN)

    def _spawn(self, job: Job) -> tuple[subprocess.Popen[bytes], IO[bytes]] | None:
        try:
            guard = _guard(job.dat)
        except FileNotFoundError:
            # The script of a former server took it, and ended after we had found it.
            self._done.append((job, True))
            return None
        except BlockingIOError:
            log.info(
                f'The archive script of a former server still works on "{job.dat}": looked at '
                "again later"
            )
            self._done.append((job, False))
            return None
        try:
            # Behind the lock: a successor that looks from now on finds it taken.
            if self.abandoned or not self._may_start():
                self._done.append((job, False))
                return None
            return self._popen(job, guard)
        finally:
            if guard >= 0:
                os.close(guard)

    def _popen(self, job: Job, guard: int) -> tuple[subprocess.Popen[bytes], IO[bytes]] | None:
        # A file and not a pipe: nobody has to read it for the script to go on.
        try:
            output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the script has ended
        except OSError as error:
            self._failed(job, f"no file for its output: {error.strerror or error}", "")
            return None
        try:
            process = subprocess.Popen(
                [self._script, job.channel, job.dat, job.idx],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(guard,) if guard >= 0 else (),
                env=without_secrets(os.environ),
            )
        except OSError as error:
            output.close()
            if isinstance(error, FileNotFoundError) and "/" not in self._script:
                self._failed(job, f'exec: "{self._script}": executable file not found in $PATH', "")
            else:
                self._failed(
                    job, f"fork/exec {self._script}: {(error.strerror or str(error)).lower()}", ""
                )
            return None
        return process, output

    def _ended(self, job: Job, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        status = process.wait()
        with output:
            output.seek(0)
            text = output.read(_OUTPUT_SHOWN).decode("utf-8", "backslashreplace").rstrip("\n")
        if status == 0:
            log.info(
                f"Output of archive script for {job.channel} ({job.dat} and {job.idx}): {text}"
            )
            self._done.append((job, True))
        elif status > 0:
            self._failed(job, f"exit status {status}", text)
        else:
            self._failed(
                job, f"signal: {(signal.strsignal(-status) or str(-status)).lower()}", text
            )

    def _failed(self, job: Job, why: str, output: str) -> None:
        _say_failed(self._script, job, why, output)
        self._done.append((job, False))


def _say_failed(script: str, job: Job, why: str, output: str) -> None:
    log.info(f'Error invoking archive script "{script}": {why} (output={output})')
    log.warning(
        f'"{job.dat}" and its index stay where they are; the archive script gets them again later'
    )


def _guard(dat: str) -> int:
    """A descriptor of the data file with a lock that lasts until every copy of the descriptor is
    closed.

    -1 where the storage has no locks. Raises ``FileNotFoundError`` if the file is gone,
    ``BlockingIOError`` if somebody has the lock.
    """
    try:
        fd = os.open(dat, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError:
        return -1
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError(error.errno, error.strerror, dat) from error
        return -1
    return fd
