"""The log: one line a record, in the layout that operators of the original already grep for, or as
JSON.

``stream`` writes our own lines (prefix ``STREAM: ``), ``nats`` those folded in from nats-server (no
prefix); both go to the same place: a file, syslog, or standard error. This module must never raise
because a line could not be written, never stall whoever logs, and never print a secret. What a line
carries beside its text (``channel``, ``epoch`` ...) is seen in JSON only, but for the code of a
warning or an error (``ftstan/base/codes``), which ends the line elsewhere.

Source: ``docs/compat/logging.md``.
"""

from __future__ import annotations

import atexit
import os
import re
import stat
import sys
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base import codes
from ftstan.base.clock import Clock, SystemClock
from ftstan.base.errors import ConfigError
from ftstan.base.log.files import STDERR, LogFile, StandardError
from ftstan.base.log.layout import Layout
from ftstan.base.log.levels import BY_NAME, DEBUG, ERROR, FATAL, HURRIED, INFO, TRACE, WARNING
from ftstan.base.log.redact import redact_url
from ftstan.base.log.repeats import Repeats
from ftstan.base.log.syslog import Address, Syslog, parse_address
from ftstan.base.log.writer import Direct, Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.base.log.levels import Level
    from ftstan.base.log.writer import Sink

__all__ = [
    "Logger",
    "configure",
    "errno_text",
    "flush",
    "limited",
    "nats",
    "note",
    "redact_url",
    "reopen",
    "set_levels",
    "stream",
]

_EXIT_PATIENCE_S = 1.0
#: Lines of these levels end with a code.
_CODED = (WARNING, ERROR, FATAL)
#: What lines of nats-server about the same thing differ in: connections, names that clients chose,
#: and numbers.
_VARYING = re.compile(r'\S+ - [a-z_]+:\d+ - |"[^"]*"|\d+')


class Logger:
    """The lines of one of the two programs that share the log. Safe to use from any thread.

    ``fields`` are shown in JSON; ``code``, as ``FTS-1234``, is what a warning or an error has whose
    text has no code of its own. ``foreign``: another program wrote them, and decides how often. A
    call returns when its line is with the kernel, or after a moment if the log hangs; debug and
    trace lines do not wait.
    """

    def __init__(self, name: str, prefix: str, *, foreign: bool) -> None:
        self.name = name
        self.prefix = prefix
        self._foreign = foreign
        self.debug_on = False
        """Whether ``debug`` lines are written: ask before building an expensive text."""
        self.trace_on = False
        """Whether ``trace`` lines are written: ask before building a text for every message."""

    def info(self, text: str, **fields: object) -> None:
        """Write an ``[INF]`` line."""
        self._write(INFO, text, fields)

    def warning(self, text: str, *, backs_off: bool | str = False, **fields: object) -> None:
        """Write a ``[WRN]`` line. ``backs_off``: one that somebody else can cause again and again.

        A string names the kind of lines that are limited together, whatever names of others they
        carry.
        """
        self._write(WARNING, text, fields, backs_off)

    def error(
        self, text: str, *, backs_off: bool | str = False, times: int = 1, **fields: object
    ) -> None:
        """Write an ``[ERR]`` line; ``backs_off`` as in ``warning``, which counts this one for
        ``times``.
        """
        self._write(ERROR, text, fields, backs_off, times)

    def fatal(self, text: str, **fields: object) -> None:
        """Write an ``[FTL]`` line; ending the process is the caller's business."""
        self._write(FATAL, text, fields)

    def debug(self, text: str, **fields: object) -> None:
        """Write a ``[DBG]`` line if this half's debug flag is on."""
        if self.debug_on:
            self._write(DEBUG, text, fields)

    def trace(self, text: str, **fields: object) -> None:
        """Write a ``[TRC]`` line if this half's trace flag is on."""
        if self.trace_on:
            self._write(TRACE, text, fields)

    def _write(
        self,
        level: Level,
        text: str,
        fields: Mapping[str, object],
        backs_off: bool | str = False,
        times: int = 1,
    ) -> None:
        """Write a line; warnings and errors that somebody else causes come at a falling rate."""
        now = _outlet.layout.clock.mono()
        kind = (
            backs_off
            if isinstance(backs_off, str)
            else _VARYING.sub("", text)
            if self._foreign
            else text
        )
        key = (level.name, self.name, kind)
        for (name, component, _), last, count in _outlet.repeats.owed(now, key):
            _outlet.put(BY_NAME[name], _HALVES[component], last + _more(count), {})
        if level in (WARNING, ERROR) and (backs_off or self._foreign):
            if isinstance(backs_off, str):
                with _outlet.counting:
                    _outlet.limited[backs_off] += times
            left_out = _outlet.repeats.ask(key, text, now, times)
            if left_out is None:
                return
            text += _more(left_out) if left_out else ""
        _outlet.put(level, self, text, fields)


class _Outlet:
    """Where lines go, how they look, and what was said lately."""

    def __init__(self) -> None:
        self.writer: Writer | Direct = Direct(StandardError())
        self.layout = Layout(coloured=_is_terminal())
        self.repeats = Repeats()
        self.limited: Counter[str] = Counter()
        self.counting = threading.Lock()

    def put(self, level: Level, half: Logger, text: str, fields: Mapping[str, object]) -> None:
        line = self.line(level, half, text, fields)
        self.writer.put(level, line, wait=level not in HURRIED)

    def line(self, level: Level, half: Logger, text: str, fields: Mapping[str, object]) -> str:
        """A line with its code."""
        code = ""
        if level in _CODED:
            otherwise = fields.get("code", "")
            fields = {name: value for name, value in fields.items() if name != "code"}
            found = codes.of(text, half.name)
            code = str(otherwise) if found is None else found
        return self.layout.line(level, half.prefix, half.name, text, fields, code=code)

    def own_line(self, level: Level, text: str) -> str:
        """A line that the log writes about itself: nobody's half."""
        code = (codes.of(text) or "") if level in _CODED else ""
        return self.layout.line(level, "", "log", text, {}, code=code)


def _more(count: int) -> str:
    return f" ({count} more like this were left out)"


def limited() -> dict[str, int]:
    """How often each kind of line was wanted that somebody else can cause, written or left out."""
    with _outlet.counting:
        return dict(_outlet.limited)


# ---- the log of this process
# -----------------------------------------------------------------------------------------


def _is_terminal() -> bool:
    try:
        return stat.S_ISCHR(os.fstat(STDERR).st_mode)
    except OSError:  # standard error is closed
        return False


def _is_journal() -> bool:
    """Whether standard error is the stream that systemd has connected to journald."""
    try:
        seen = os.fstat(STDERR)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{seen.st_dev}:{seen.st_ino}"


_outlet = _Outlet()

#: Our own lines.
stream = Logger("stream", "STREAM: ", foreign=False)
#: Lines of the nats-server child, folded in.
nats = Logger("nats", "", foreign=True)
_HALVES = {half.name: half for half in (stream, nats)}


def configure(
    *,
    file: str = "",
    size_limit: int = 0,
    syslog: bool = False,
    remote_syslog: str = "",
    syslog_name: str = "",
    json_lines: bool = False,
    debug: bool = False,
    trace: bool = False,
    nats_debug: bool = False,
    nats_trace: bool = False,
    logtime: bool = True,
    clock: Clock | None = None,
) -> None:
    """Choose where lines go, how they look, and which verbose levels are written.

    The first that is given: ``file`` (put aside behind ``size_limit`` bytes, 0: never),
    ``remote_syslog`` (a URL), local ``syslog``, else standard error. ``syslog_name``: the tag
    there, by default the program's name. ``json_lines``: one object a line. ``logtime=False``
    leaves date and time out. Raises ``ConfigError`` when the file or the daemon cannot be had;
    nothing has changed then. May be called again.
    """
    clock = clock or SystemClock()
    sink = _open(file, size_limit, remote_syslog, syslog_name, clock, syslog=syslog)
    old = _outlet.writer
    old.flush(_EXIT_PATIENCE_S)
    _outlet.layout = Layout(
        json=json_lines,
        timed=logtime,
        coloured=isinstance(sink, StandardError) and not json_lines and _is_terminal(),
        framed=isinstance(sink, Syslog),
        clock=clock,
        known=_outlet.layout.known,
    )
    _outlet.repeats = Repeats()
    _outlet.writer = Writer(sink, _outlet.own_line)
    old.close(_EXIT_PATIENCE_S)
    if isinstance(sink, LogFile):
        _outlet.writer.run(sink.begin)
    set_levels(debug=debug, trace=trace, nats_debug=nats_debug, nats_trace=nats_trace)


def _open(
    file: str, size_limit: int, remote_syslog: str, syslog_name: str, clock: Clock, *, syslog: bool
) -> Sink:
    if file:
        try:
            return LogFile(file, size_limit, _outlet.own_line, clock.wall_ns)
        except OSError as error:
            raise ConfigError(
                f"error opening file: open {file}: {errno_text(error)}",
                hint="give -l the name of a file in an existing directory that this user may write",
            ) from error
    if remote_syslog or syslog:
        address = parse_address(remote_syslog) if remote_syslog else Address()
        return Syslog(address, syslog_name or _program())
    return StandardError(journal=_is_journal())


def _program() -> str:
    """The name under which this process was started; that of the command where it is a module."""
    name = os.path.basename(sys.argv[0])
    return "ftstan" if not name or name.startswith("-") or name.endswith(".py") else name


def set_levels(*, debug: bool, trace: bool, nats_debug: bool, nats_trace: bool) -> None:
    """Switch the verbose levels of each half on or off."""
    stream.debug_on = debug
    stream.trace_on = trace
    nats.debug_on = nats_debug
    nats.trace_on = nats_trace


def set_time(*, shown: bool) -> None:
    """Begin lines with date and time from now on, or leave them out."""
    _outlet.layout = replace(_outlet.layout, timed=shown)


def note(**fields: object) -> None:
    """Let every JSON line from now on carry these fields; ``None`` takes one away."""
    known = {**_outlet.layout.known, **fields}
    known = {name: value for name, value in known.items() if value is not None}
    _outlet.layout = replace(_outlet.layout, known=known)


def flush(patience: float = _EXIT_PATIENCE_S) -> bool:
    """Wait until every line so far is out, at most ``patience`` seconds.

    Returns whether they are.
    """
    return _outlet.writer.flush(patience)


def reopen() -> None:
    """Open the log file anew (SIGUSR1, after logrotate has moved it away).

    Says so in the log, never raises.
    """
    sink = _outlet.writer.sink
    if not isinstance(sink, LogFile):
        stream.info("File log re-open ignored, not a file logger")
        return

    def job() -> None:
        try:
            sink.reopen()
            level = INFO
            text = "File log re-opened"
        except OSError as error:
            why = f"error opening file: open {sink.path}: {errno_text(error)}"
            level = ERROR
            text = f"File log not re-opened, lines still go to the old file: {why}"
        _say(sink, level, text)

    _outlet.writer.run(job)


def _say(sink: Sink, level: Level, text: str) -> None:
    """Write a line of ours on the log's own thread, which must not wait for itself."""
    try:
        sink.write(level, _outlet.line(level, stream, text, {}))
    except OSError:
        return


atexit.register(flush)


def errno_text(error: OSError) -> str:
    """Return the system's words for an error, spelled as the original prints them: ``no such file
    or directory``.
    """
    text = os.strerror(error.errno) if error.errno is not None else str(error)
    return text[:1].lower() + text[1:]
