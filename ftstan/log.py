"""The log: one line a record, in the layout that operators of the original already grep for, or as JSON.

``stream`` writes our own lines (prefix ``STREAM: ``), ``nats`` those folded in from nats-server (no prefix); both go to
the same place: a file, syslog, or standard error. This module must never raise because a line could not be written,
never stall whoever logs, and never print a secret. What a line carries beside its text (``channel``, ``epoch`` ...) is
seen in JSON only.

Source: ``docs/compat/logging.md``.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import stat
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from ftstan.clock import Clock, SystemClock
from ftstan.errors import ConfigError
from ftstan.logs.files import STDERR, LogFile, StandardError
from ftstan.logs.levels import BY_NAME, DEBUG, ERROR, FATAL, INFO, TRACE, WARNING, Level
from ftstan.logs.redact import redact, redact_url
from ftstan.logs.repeats import Repeats
from ftstan.logs.syslog import Address, Syslog, parse_address
from ftstan.logs.writer import Direct, Writer

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

    from ftstan.logs.writer import Sink

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
#: Levels of lines that need not be out before their writer goes on: there may be some for every message.
_HURRIED = (DEBUG, TRACE)


@dataclass(slots=True)
class _Half:
    """One of the two programs that share the log, and which of its verbose levels are on."""

    name: str
    prefix: str
    debug: bool = False
    trace: bool = False


class _Outlet:
    """Where lines go and how they look. Each level is a method: structlog hands the line to the one that was called."""

    def __init__(self) -> None:
        self.writer: Writer | Direct = Direct(StandardError())
        self.coloured = _is_terminal()
        self.timed = True
        self.json = False
        self.framed = False
        """Lines go to syslog, which has time, process id and level in its own frame."""
        self.clock: Clock = SystemClock()
        self.known: dict[str, object] = {}
        self.repeats = Repeats()
        self.limited: Counter[str] = Counter()
        self.counting = threading.Lock()

    def info(self, line: str) -> None:
        self._put(INFO, line)

    def warning(self, line: str) -> None:
        self._put(WARNING, line)

    def error(self, line: str) -> None:
        self._put(ERROR, line)

    def fatal(self, line: str) -> None:
        self._put(FATAL, line)

    def debug(self, line: str) -> None:
        self._put(DEBUG, line)

    def trace(self, line: str) -> None:
        self._put(TRACE, line)

    def _put(self, level: Level, line: str) -> None:
        self.writer.put(level, line, wait=level not in _HURRIED)

    def own_line(self, level: Level, text: str) -> str:
        """A line that the log writes about itself: nobody's half."""
        return _finished(level, "", "log", text, {})


class Logger(structlog.BoundLoggerBase):
    """The lines of one half. Safe to use from any thread; ``fields`` are shown in JSON.

    A call returns when its line is with the kernel, or after a moment if the log hangs; debug and trace lines do not
    wait.
    """

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

    def info(self, text: str, **fields: object) -> None:
        """Write an ``[INF]`` line."""
        self._proxy_to_logger("info", text, **fields)

    def warning(self, text: str, *, backs_off: bool | str = False, **fields: object) -> None:
        """Write a ``[WRN]`` line. ``backs_off``: one that somebody else can cause again and again.

        A string names the kind of lines that are limited together, whatever names of others they carry.
        """
        self._proxy_to_logger("warning", text, backs_off=backs_off, **fields)

    def error(self, text: str, *, backs_off: bool | str = False, **fields: object) -> None:
        """Write an ``[ERR]`` line; ``backs_off`` as in ``warning``."""
        self._proxy_to_logger("error", text, backs_off=backs_off, **fields)

    def fatal(self, text: str, **fields: object) -> None:
        """Write an ``[FTL]`` line; ending the process is the caller's business."""
        self._proxy_to_logger("fatal", text, **fields)

    def debug(self, text: str, **fields: object) -> None:
        """Write a ``[DBG]`` line if this half's debug flag is on."""
        if self.debug_on:
            self._proxy_to_logger("debug", text, **fields)

    def trace(self, text: str, **fields: object) -> None:
        """Write a ``[TRC]`` line if this half's trace flag is on."""
        if self.trace_on:
            self._proxy_to_logger("trace", text, **fields)


def limited() -> dict[str, int]:
    """How often each kind of line was wanted that somebody else can cause, written or left out."""
    with _outlet.counting:
        return dict(_outlet.limited)


# ---- what is done with a line ----------------------------------------------------------------------------------------


def _back_off(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Warnings and errors that somebody else causes come at a falling rate: all of those of the NATS server."""
    half: _Half = event["half"]
    now = _outlet.clock.mono()
    backs_off = event.pop("backs_off", False)
    text = str(event["event"])
    kind = backs_off if isinstance(backs_off, str) else _VARYING.sub("", text) if half is _nats else text
    key = (method, half.name, kind)
    for (name, component, _), last, count in _outlet.repeats.owed(now, key):
        level = BY_NAME[name]
        line = _finished(level, _HALVES[component].prefix, component, last + _more(count), {})
        _outlet.writer.put(level, line, wait=True)
    if method not in ("warning", "error") or not (backs_off or half is _nats):
        return event
    if isinstance(backs_off, str):
        with _outlet.counting:
            _outlet.limited[backs_off] += 1
    left_out = _outlet.repeats.ask(key, text, now)
    if left_out is None:
        raise structlog.DropEvent
    if left_out:
        event["event"] += _more(left_out)
    return event


def _more(count: int) -> str:
    return f" ({count} more like this were left out)"


def _render(_logger: WrappedLogger, method: str, event: EventDict) -> str:
    """Turn what was said into a finished line."""
    half: _Half = event.pop("half")
    text = str(event.pop("event"))
    return _finished(BY_NAME[method], half.prefix, half.name, text, event)


def _finished(level: Level, prefix: str, component: str, text: str, fields: EventDict) -> str:
    """``[<pid>] YYYY/MM/DD hh:mm:ss.uuuuuu [<LVL>] <prefix><text>``, local time; or one JSON object."""
    text = redact(text)
    if level not in _HURRIED:
        text = _cut(text)
        fields = {name: _cut(value) if isinstance(value, str | bytes) else value for name, value in fields.items()}
    if _outlet.json:
        return _as_json(level, component, text, {**_outlet.known, **fields})
    if not text.isprintable():
        # A client chooses its inbox: no line of it may look like a line of ours.
        text = text.translate(_CONTROLS)
    if _outlet.framed:
        return f"{prefix}{text}"
    letters = f"{level.colour}{level.letters}\x1b[0m" if _outlet.coloured else level.letters
    return f"[{os.getpid()}] {_stamp()}[{letters}] {prefix}{text}"


#: What lines of nats-server about the same thing differ in: connections, names that clients chose, and numbers.
_VARYING = re.compile(r'\S+ - [a-z_]+:\d+ - |"[^"]*"|\d+')
#: Somebody else's name may be as long as a message. Bytes that are shown of a word, and letters of a whole line.
_LONGEST_WORD, _LONGEST_LINE = 256, 8192
_LONG = re.compile(rf"\S{{{_LONGEST_WORD // 4},}}")
_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), 127) if n != ord("\t")} | {10: "\\n", 13: "\\r"}


def _cut(text: str | bytes) -> str:
    """The text with long words cut, and cut itself."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    return _LONG.sub(_cut_word, text[:_LONGEST_LINE]) if len(text) > _LONGEST_WORD // 4 else text


def _cut_word(found: re.Match[str]) -> str:
    data = found[0].encode("utf-8", "surrogatepass")
    if len(data) <= _LONGEST_WORD:
        return found[0]
    return data[:_LONGEST_WORD].decode("utf-8", "ignore") + f"... ({len(data)} bytes)"


def _stamp() -> str:
    if not _outlet.timed:
        return ""
    seconds, nanos = divmod(_outlet.clock.wall_ns(), 1_000_000_000)
    local = datetime.fromtimestamp(seconds)  # noqa: DTZ006  # the log is in local time
    return f"{local:%Y/%m/%d %H:%M:%S}.{nanos // 1000:06d} "


def _as_json(level: Level, component: str, text: str, fields: EventDict) -> str:
    line: dict[str, object] = {}
    if _outlet.timed:
        seconds, nanos = divmod(_outlet.clock.wall_ns(), 1_000_000_000)
        line["time"] = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"
    line |= {"level": level.name, "component": component, "message": text, "pid": os.getpid()}
    # No field may take the place of what every line has.
    line |= {name: value for name, value in fields.items() if name not in line}
    readable = {name: _readable(value) for name, value in line.items()}
    return json.dumps(readable, ensure_ascii=False, separators=(",", ":"), default=str)


def _readable(value: object) -> object:
    """Bytes that are no UTF-8 cannot be in JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


# ---- the log of this process -----------------------------------------------------------------------------------------


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
_stream = _Half("stream", "STREAM: ")
_nats = _Half("nats", "")
_HALVES = {half.name: half for half in (_stream, _nats)}

#: Our own lines.
stream = Logger(_outlet, [_back_off, _render], {"half": _stream})
#: Lines of the nats-server child, folded in.
nats = Logger(_outlet, [_back_off, _render], {"half": _nats})


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

    The first that is given: ``file`` (put aside behind ``size_limit`` bytes, 0: never), ``remote_syslog`` (a URL),
    local ``syslog``, else standard error. ``syslog_name``: the tag there, by default the program's name.
    ``json_lines``: one object a line. ``logtime=False`` leaves date and time out. Raises ``ConfigError`` when the file
    or the daemon cannot be had; nothing has changed then. May be called again.
    """
    clock = clock or SystemClock()
    sink = _open(file, size_limit, remote_syslog, syslog_name, clock, syslog=syslog)
    old = _outlet.writer
    old.flush(_EXIT_PATIENCE_S)
    _outlet.framed = isinstance(sink, Syslog)
    _outlet.coloured = isinstance(sink, StandardError) and not json_lines and _is_terminal()
    _outlet.json, _outlet.timed, _outlet.clock = json_lines, logtime, clock
    _outlet.repeats = Repeats()
    _outlet.writer = Writer(sink, _outlet.own_line)
    old.close(_EXIT_PATIENCE_S)
    if isinstance(sink, LogFile):
        _outlet.writer.run(sink.begin)
    set_levels(debug=debug, trace=trace, nats_debug=nats_debug, nats_trace=nats_trace)


def _open(file: str, size_limit: int, remote_syslog: str, syslog_name: str, clock: Clock, *, syslog: bool) -> Sink:
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
    _stream.debug, _stream.trace = debug, trace
    _nats.debug, _nats.trace = nats_debug, nats_trace


def note(**fields: object) -> None:
    """Let every JSON line from now on carry these fields; ``None`` takes one away."""
    known = {**_outlet.known, **fields}
    _outlet.known = {name: value for name, value in known.items() if value is not None}


def flush(patience: float = _EXIT_PATIENCE_S) -> bool:
    """Wait until every line so far is out, at most ``patience`` seconds; returns whether they are."""
    return _outlet.writer.flush(patience)


def reopen() -> None:
    """Open the log file anew (SIGUSR1, after logrotate has moved it away); says so in the log, never raises."""
    sink = _outlet.writer.sink
    if not isinstance(sink, LogFile):
        stream.info("File log re-open ignored, not a file logger")
        return

    def job() -> None:
        try:
            sink.reopen()
            level, text = INFO, "File log re-opened"
        except OSError as error:
            why = f"error opening file: open {sink.path}: {errno_text(error)}"
            level, text = ERROR, f"File log not re-opened, lines still go to the old file: {why}"
        _say(sink, level, text)

    _outlet.writer.run(job)


def _say(sink: Sink, level: Level, text: str) -> None:
    """Write a line of ours on the log's own thread, which must not wait for itself."""
    try:
        sink.write(level, _finished(level, _stream.prefix, _stream.name, text, {}))
    except OSError:
        return


atexit.register(flush)


def errno_text(error: OSError) -> str:
    """Return the system's words for an error, spelled as the original prints them: ``no such file or directory``."""
    text = os.strerror(error.errno) if error.errno is not None else str(error)
    return text[:1].lower() + text[1:]
