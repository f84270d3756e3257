"""The end of this process when it must not wait for anybody: one line that says why, and out.

Whoever decides to die must not hang on the storage that it dies of: not in a clean-up, and not in
the log either, which may lie on that storage. Only one thread ends the process; the others stop
where they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from functools import partial
from typing import NoReturn

from ftstan.base import log
from ftstan.base.environment import without_secrets
from ftstan.ft.deadlines import LAST_WORDS_S

_ending = threading.Lock()


def end_quietly(status: int) -> NoReturn:
    """Out, when everything is closed and only lines of the log may be left."""
    log.flush(LAST_WORDS_S)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)


def end_process(why: str, status: int) -> NoReturn:
    """Log one line and exit at once."""
    _last_words(why)
    os._exit(status)


def pause_and_end(why: str, status: int, seconds: int) -> NoReturn:
    """One line, and everything is given up at once.

    Whoever restarts this process has to wait for ``seconds``.

    The process goes on as a shell that only sleeps: so the lock, the files and the sockets are free
    for a standby while the pause lasts, and no thread that hangs in storage has to be asked.
    """
    _last_words(f"{why} (exit in {seconds}s)")
    with contextlib.suppress(OSError):
        words = ["sh", "-c", f"sleep {seconds}; exit {status}"]
        os.execve("/bin/sh", words, without_secrets(os.environ))  # noqa: S606  # it is a shell
    os._exit(status)


def say(write: object, text: str, patience: float) -> None:
    """Write one log line, waiting at most ``patience`` seconds for the log.

    ``write`` is a method of ``log.stream``.
    """
    assert callable(write)

    def speak() -> None:
        write(text)
        log.flush(patience)

    speaker = threading.Thread(target=speak, name="last words", daemon=True)
    try:
        speaker.start()
    except (RuntimeError, MemoryError):
        # No thread can be had. The log's own thread writes; what waits for it has a bound as well.
        with contextlib.suppress(MemoryError):
            speak()
    else:
        speaker.join(patience)


def _last_words(why: str) -> None:
    if not _ending.acquire(blocking=False):
        # Another thread is ending the process: its line is the one that counts, and this one must
        # not go on.
        threading.Event().wait()
    say(partial(log.stream.fatal, code="FTS-2199"), why, LAST_WORDS_S)
