"""The log: one line a record, in the layout that operators of the original already grep for.

``stream`` writes our own lines (prefix ``STREAM: ``), ``nats`` those folded in from nats-server (no prefix); both go to
the same place, standard error or the file of ``-l``. This module must never raise because a line could not be written,
never print a secret, and never rotate or remove a file.

Source: ``docs/compat/logging.md``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from ftstan.clock import Clock, SystemClock
from ftstan.errors import ConfigError

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

_STDERR = 2

#: Method name -> level letters, colour on a terminal.
_LEVELS = {
    "info": ("INF", "\x1b[32m"),
    "warning": ("WRN", "\x1b[0;93m"),
    "error": ("ERR", "\x1b[31m"),
    "fatal": ("FTL", "\x1b[31m"),
    "debug": ("DBG", "\x1b[36m"),
    "trace": ("TRC", "\x1b[33m"),
}


@dataclass(slots=True)
class _Half:
    """One of the two programs that share the log, and which of its verbose levels are on."""

    prefix: str
    debug: bool = False
    trace: bool = False


class _Sink:
    """Where lines go. Each level is a method: structlog hands the line to the one that was called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd = _STDERR
        self._path = ""
        self.coloured = _is_terminal()
        self.timed = True
        self.clock: Clock = SystemClock()

    def write(self, line: str) -> None:
        """Append ``line`` and a line feed with one system call."""
        data = memoryview(f"{line}\n".encode("utf-8", "surrogateescape"))
        # A full disk or a closed pipe must not stop the server: the line is lost, as it is in the original.
        with self._lock, contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]

    info = warning = error = fatal = debug = trace = write

    def direct(self, path: str) -> None:
        """Send lines to the file ``path`` from now on (appending), or to standard error when it is empty."""
        fd = _open(path) if path else _STDERR
        with self._lock:
            old, self._fd, self._path = self._fd, fd, path
            self.coloured = not path and _is_terminal()
        if old != _STDERR:
            os.close(old)

    @property
    def path(self) -> str:
        """The log file; empty while lines go to standard error."""
        return self._path


class Logger(structlog.BoundLoggerBase):
    """The lines of one half. Safe to use from any thread; a call returns when its line is with the kernel."""

    @property
    def debug_on(self) -> bool:
        """Whether ``debug`` lines are written: ask before building an expensive text."""
        half: _Half = self._context["half"]
        return half.debug

    @property
    def trace_on(self) -> bool:
        """Whether ``trace`` lines are written: ask before building a text for every message."""
        half: _Half = self._context["half"]
        return half.trace

    def info(self, text: str) -> None:
        """Write an ``[INF]`` line."""
        self._proxy_to_logger("info", text)

    def warning(self, text: str) -> None:
        """Write a ``[WRN]`` line."""
        self._proxy_to_logger("warning", text)

    def error(self, text: str) -> None:
        """Write an ``[ERR]`` line."""
        self._proxy_to_logger("error", text)

    def fatal(self, text: str) -> None:
        """Write an ``[FTL]`` line; ending the process is the caller's business."""
        self._proxy_to_logger("fatal", text)

    def debug(self, text: str) -> None:
        """Write a ``[DBG]`` line if this half's debug flag is on."""
        if self.debug_on:
            self._proxy_to_logger("debug", text)

    def trace(self, text: str) -> None:
        """Write a ``[TRC]`` line if this half's trace flag is on."""
        if self.trace_on:
            self._proxy_to_logger("trace", text)


def _render(_logger: WrappedLogger, method: str, event: EventDict) -> str:
    """``[<pid>] YYYY/MM/DD hh:mm:ss.uuuuuu [<LVL>] <prefix><text>``, local time."""
    letters, colour = _LEVELS[method]
    level = f"{colour}{letters}\x1b[0m" if _sink.coloured else letters
    half: _Half = event["half"]
    return f"[{os.getpid()}] {_stamp()}[{level}] {half.prefix}{event['event']}"


def _stamp() -> str:
    if not _sink.timed:
        return ""
    seconds, nanos = divmod(_sink.clock.wall_ns(), 1_000_000_000)
    local = datetime.fromtimestamp(seconds)  # noqa: DTZ006  # the log is in local time
    return f"{local:%Y/%m/%d %H:%M:%S}.{nanos // 1000:06d} "


def _is_terminal() -> bool:
    try:
        return stat.S_ISCHR(os.fstat(_STDERR).st_mode)
    except OSError:  # standard error is closed
        return False


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o660)
    except OSError as error:
        raise ConfigError(
            f"error opening file: open {path}: {errno_text(error)}",
            hint="give -l the name of a file in an existing directory that this user may write",
        ) from error


_sink = _Sink()
_stream = _Half(prefix="STREAM: ")
_nats = _Half(prefix="")

#: Our own lines.
stream = Logger(_sink, [_render], {"half": _stream})
#: Lines of the nats-server child, folded in.
nats = Logger(_sink, [_render], {"half": _nats})


def configure(
    *,
    file: str = "",
    debug: bool = False,
    trace: bool = False,
    nats_debug: bool = False,
    nats_trace: bool = False,
    logtime: bool = True,
    clock: Clock | None = None,
) -> None:
    """Choose where lines go (``file``, or standard error when empty) and which verbose levels are written.

    ``logtime=False`` leaves date and time out. Raises ``ConfigError`` when the file cannot be opened; nothing has
    changed then. May be called again.
    """
    _sink.direct(file)
    _sink.timed = logtime
    _sink.clock = clock or SystemClock()
    _stream.debug, _stream.trace = debug, trace
    _nats.debug, _nats.trace = nats_debug, nats_trace


def reopen() -> None:
    """Open the log file anew (SIGUSR1, after logrotate has moved it away); says so in the log, never raises."""
    if not _sink.path:
        stream.info("File log re-open ignored, not a file logger")
        return
    try:
        _sink.direct(_sink.path)
    except ConfigError as error:
        stream.error(f"File log not re-opened, lines still go to the old file: {error}")
        return
    stream.info("File log re-opened")


# Greedy up to the last "@" before the next "://": a password may hold "@", "/" or ",".
_USER_INFO = re.compile(r"(://|^)(?:(?!://).)*@", re.DOTALL)


def redact_url(url: str) -> str:
    """``url`` (or a comma separated list of them) with user info replaced by ``[REDACTED]``."""
    return _USER_INFO.sub(r"\1[REDACTED]@", url)


def errno_text(error: OSError) -> str:
    """Return the system's words for an error, spelled as the original prints them: ``no such file or directory``."""
    text = os.strerror(error.errno) if error.errno is not None else str(error)
    return text[:1].lower() + text[1:]
