"""What ``nats-server`` prints, line by line, as levels and texts for our own log.

Its prefix is taken off (our log writes its own), its level kept. Lines about what the operator did
not ask for and cannot use (the generated configuration, the private monitor port) are left out: the
original, whose NATS server lives inside the process, prints none of them. Never holds the pipe up:
a line of any length is accepted. Never hands a secret on: the values of logins in traced protocol
lines are replaced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from ftstan.base.log.redact import redact, redact_pairs

Level = Literal["info", "warning", "error", "fatal", "debug", "trace"]

_LEVELS: dict[str, Level] = {
    "INF": "info",
    "WRN": "warning",
    "ERR": "error",
    "FTL": "fatal",
    "DBG": "debug",
    "TRC": "trace",
}
_LINE = re.compile(
    r"\[\d+\] (?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? )?\[([A-Z]{3})\] (.*)", re.DOTALL
)
#: What follows these words is about the generated file.
_DIGEST = re.compile(r"(Reloaded server configuration) \(sha256:[0-9a-f]+\)")
RELOADED = "Reloaded server configuration"
NOT_RELOADED = "Failed to reload server configuration: "
_OURS = (
    "Using configuration file: ",
    "Starting http monitor on 127.0.0.1:",
    "Error cleaning up ports file ",
    'Trapped "',
    # Of the listener in front of it, which is all that it serves.
    "PROXY protocol enabled for client connections",
)
#: Of routes, gateways and leaf nodes.
_OF_SERVERS = re.compile(r" - [rgl]id:\d+ - ")
_LIMITED = ("info", "warning", "error")
LISTENING = "Listening for client connections on "
NOT_LISTENING = "Error listening on port: "
#: What follows that line if the NATS server has TLS.
TLS_REQUIRED = "TLS required for client connections"


class LogSink(Protocol):
    """Where lines go: one method a level, each taking the text without prefix."""

    def info(self, text: str) -> None:
        """``[INF]``."""
        ...

    def warning(self, text: str) -> None:
        """``[WRN]``."""
        ...

    def error(self, text: str) -> None:
        """``[ERR]``."""
        ...

    def debug(self, text: str) -> None:
        """``[DBG]``."""
        ...

    def trace(self, text: str) -> None:
        """``[TRC]``."""
        ...


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the child.

    ``level`` is None for a line without prefix (usage errors, a Go panic).
    """

    level: Level | None
    text: str

    @property
    def wanted(self) -> bool:
        """Whether the line says something that the operator should see."""
        return bool(self.text) and not self.text.startswith(_OURS)


def parse_line(raw: bytes) -> Line:
    """One line as the child wrote it, without its newline.

    Bytes that are not UTF-8 are replaced.
    """
    text = raw.decode("utf-8", "replace")
    found = _LINE.fullmatch(text)
    if found is None or found[1] not in _LEVELS:
        return Line(None, redact(redact_pairs(text)))
    # Its trace shows the logins that clients and routes present; how much of them it hides differs
    # by version. Here and not only in the log: a program that has a server in it gets the last
    # words as an error.
    return Line(_LEVELS[found[1]], redact(redact_pairs(_DIGEST.sub(r"\1", found[2]))))


class ServerLines:
    """Lets lines about connections of other servers through at a bounded rate: whoever reaches such
    a port makes two with each connection.

    ``now`` is monotonic seconds. A burst of ``BURST`` lines passes, then one a second.
    """

    BURST = 100

    def __init__(self) -> None:
        self._room = float(self.BURST)
        self._seen = 0.0
        self.left_out = 0
        """Lines that were left out since the last one that passed."""

    def allows(self, line: Line, now: float) -> bool:
        """Whether the line may be written."""
        if line.level not in _LIMITED or _OF_SERVERS.search(line.text) is None:
            return True
        self._room = min(self._room + now - self._seen, self.BURST)
        self._seen = now
        if self._room < 1:
            self.left_out += 1
            return False
        self._room -= 1
        return True

    def take_left_out(self) -> int:
        """How many lines were left out, once."""
        count = self.left_out
        self.left_out = 0
        return count


class LineSplitter:
    """Cuts chunks read from a pipe into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that ``chunk`` completes, without newlines.

        An empty chunk is the end of the stream.
        """
        if not chunk:
            rest = self._rest
            self._rest = b""
            return [rest] if rest else []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.rstrip(b"\r") for line in lines]


def write(sink: LogSink, line: Line) -> None:
    """Hand a line to the sink at its level.

    One without prefix is an error (the child prints them when it fails).
    """
    match line.level:
        case "info":
            sink.info(line.text)
        case "warning":
            sink.warning(line.text)
        case "debug":
            sink.debug(line.text)
        case "trace":
            sink.trace(line.text)
        case _:
            sink.error(line.text)
