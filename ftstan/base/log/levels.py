"""The levels of a log line, and what each is called wherever lines go."""

from __future__ import annotations

from typing import NamedTuple


class Level(NamedTuple):
    """``name``: of the method and in JSON; ``letters``: in a line; ``colour``: on a terminal.

    ``severity``: that of the original in syslog; ``priority``: for journald, on standard error.
    """

    name: str
    letters: str
    colour: str
    severity: int
    priority: int


INFO = Level("info", "INF", "\x1b[32m", 5, 6)
WARNING = Level("warning", "WRN", "\x1b[0;93m", 5, 4)
ERROR = Level("error", "ERR", "\x1b[31m", 3, 3)
FATAL = Level("fatal", "FTL", "\x1b[31m", 2, 2)
DEBUG = Level("debug", "DBG", "\x1b[36m", 7, 7)
TRACE = Level("trace", "TRC", "\x1b[33m", 5, 7)

BY_NAME = {level.name: level for level in (INFO, WARNING, ERROR, FATAL, DEBUG, TRACE)}
#: Levels of lines that need not be out before their writer goes on: there may be some for every
#: message.
HURRIED = (DEBUG, TRACE)
