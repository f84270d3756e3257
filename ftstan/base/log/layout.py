"""How a line looks: as the original writes it, or as JSON.

Never with a secret, or with a line break in it.

Source: ``docs/compat/logging.md`` (lines).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ftstan.base.clock import Clock, SystemClock
from ftstan.base.log.levels import HURRIED
from ftstan.base.log.redact import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftstan.base.log.levels import Level

#: Somebody else's name may be as long as a message. Bytes that are shown of a word, and letters of
#: a whole line.
_LONGEST_WORD = 256
_LONGEST_LINE = 8192
_LONG = re.compile(rf"\S{{{_LONGEST_WORD // 4},}}")
_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), 127) if n != ord("\t")} | {10: "\\n", 13: "\\r"}

#: Halves of characters, but for those that stand for bytes which are no UTF-8.
_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")


@dataclass(frozen=True, slots=True)
class Layout:
    """``framed``: lines go to syslog, which has time, process id and level in its own frame.

    ``known``: fields of every JSON line.
    """

    json: bool = False
    timed: bool = True
    coloured: bool = False
    framed: bool = False
    clock: Clock = field(default_factory=SystemClock)
    known: Mapping[str, object] = field(default_factory=dict)

    def line(
        self,
        level: Level,
        prefix: str,
        component: str,
        text: str,
        fields: Mapping[str, object],
        *,
        code: str = "",
    ) -> str:
        """``[<pid>] YYYY/MM/DD hh:mm:ss.uuuuuu [<LVL>] <prefix><text> [<code>]``, local time.

        Or one JSON object.
        """
        text = redact(text)
        if not text.isprintable():
            text = _writable(text)
        if level not in HURRIED:
            text = _cut(text)
            fields = {
                name: _cut(value) if isinstance(value, str | bytes) else value
                for name, value in fields.items()
            }
        if self.json:
            shown = {"code": code} if code else {}
            return self._as_json(level, component, text, {**shown, **self.known, **fields})
        if not text.isprintable():
            # A client chooses its inbox: no line of it may look like a line of ours.
            text = text.translate(_CONTROLS)
        if code:
            # Behind what was cut: whoever looks for a code finds it.
            text = f"{text} [{code}]"
        if self.framed:
            return f"{prefix}{text}"
        letters = f"{level.colour}{level.letters}\x1b[0m" if self.coloured else level.letters
        return f"[{os.getpid()}] {self._stamp()}[{letters}] {prefix}{text}"

    def _stamp(self) -> str:
        if not self.timed:
            return ""
        seconds, nanos = divmod(self.clock.wall_ns(), 1_000_000_000)
        local = datetime.fromtimestamp(seconds)  # noqa: DTZ006  # the log is in local time
        return f"{local:%Y/%m/%d %H:%M:%S}.{nanos // 1000:06d} "

    def _as_json(
        self, level: Level, component: str, text: str, fields: Mapping[str, object]
    ) -> str:
        line: dict[str, object] = {}
        if self.timed:
            seconds, nanos = divmod(self.clock.wall_ns(), 1_000_000_000)
            line["time"] = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"
        line |= {"level": level.name, "component": component, "message": text, "pid": os.getpid()}
        # No field may take the place of what every line has.
        line |= {name: value for name, value in fields.items() if name not in line}
        readable = {name: _readable(value) for name, value in line.items()}
        return json.dumps(readable, ensure_ascii=False, separators=(",", ":"), default=str)


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


def _readable(value: object) -> object:
    """Bytes that are no UTF-8 cannot be in JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        data = _writable(value).encode("utf-8", "surrogateescape")
        return data.decode("utf-8", "backslashreplace")
    return value


def _writable(text: str) -> str:
    """JSON of others may name halves of characters, which no file takes."""
    return _HALVES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
