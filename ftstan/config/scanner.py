"""Reading single values of a configuration file: strings, numbers, sizes, dates.

``grammar`` puts them together.

A scanner knows a text and a position in it, and nothing of keys, maps or variables. Its errors are
those of the original, which names the line that it had come to when it noticed; the hint has the
place.

Source: ``docs/compat/config.md`` (grammar).
"""

from __future__ import annotations

import bisect
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.tree import Place
from ftstan.config.units import MAX_INT64, MIN_INT64

if TYPE_CHECKING:
    from ftstan.config.tree import Scalar

#: What ends a text; a NUL byte inside it does too.
END = "\0"
BLANKS = " \t"
NEWLINES = "\r\n"
SEPARATORS = "=:"

#: White space as the original sees it.
WHITE = (
    "\t\n\v\f\r \x85\xa0\u1680"
    + "".join(map(chr, range(0x2000, 0x200B)))
    + "\u2028\u2029\u202f\u205f\u3000"
)

_DIGITS = "0123456789"
_SIZE_LETTERS = "kmgtpeKMGTPE"
_BYTE_LETTERS = "bBiI"
_SUFFIX = re.compile(r"(?i:(?P<letter>[kmgtpe])(?P<tail>b|i|ib)?)")
_POWERS = {letter: power for power, letter in enumerate("kmgtpe", start=1)}
_BARE_ENDS = BLANKS + NEWLINES + END + ";,]}'"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}
_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True)
class Variable:
    """A reference to a value that stands elsewhere; ``name`` is without the dollar sign."""

    name: str


class Scanner:
    """A text, and how far it was read."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.position = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]

    # ---- where
    # ----------------------------------------------------------------------------------------------

    def line_at(self, position: int) -> int:
        """Line of a position, from 1."""
        return bisect.bisect_left(self._newlines, position) + 1

    def place(self, position: int | None = None) -> Place:
        """Place of a position (default: this one)."""
        at = self.position if position is None else position
        line = self.line_at(at)
        start = self._newlines[line - 2] + 1 if line > 1 else 0
        return Place(self.file, line, at - start + 1)

    def error(self, text: str, at: int | None = None, hint: str = "") -> ConfigError:
        """The error of the original; ``at`` is where it stopped reading (default: here)."""
        stopped = min(self.position if at is None else at, len(self.text))
        where = self.place(max(stopped - 1, 0))
        return ConfigError(
            f"Parse error on line {self.line_at(stopped)}: '{text}'",
            hint=f"{where}: {hint}" if hint else f"look at {where}",
        )

    # ---- characters
    # ---------------------------------------------------------------------------------------------

    def at_end(self) -> bool:
        """Whether the whole text was read; a NUL byte inside it is not the end."""
        return self.position >= len(self.text)

    def peek(self, ahead: int = 0) -> str:
        """The next character, ``END`` behind the last one."""
        at = self.position + ahead
        return self.text[at] if at < len(self.text) else END

    def skip(self, characters: str) -> None:
        """Go on to the first character that is none of these."""
        while not self.at_end() and self.text[self.position] in characters:
            self.position += 1

    def skip_comment(self) -> bool:
        """Go on to the end of the line if a comment begins here; whether one did."""
        if self.peek() != "#" and not (self.peek() == "/" and self.peek(1) == "/"):
            return False
        while not self.at_end() and self.text[self.position] not in NEWLINES + END:
            self.position += 1
        return True

    # ---- values
    # ----------------------------------------------------------------------------------------------

    def key(self) -> str:
        """A key: quoted, raw to the same quote, or bare to white space, a separator or the end."""
        quote = self.peek()
        if quote in "\"'" and quote != END:
            return self._raw(quote)
        start = self.position
        while (char := self.peek()) != END and char not in WHITE + SEPARATORS:
            self.position += 1
        return self.text[start : self.position]

    def scalar(self) -> Scalar | Variable:
        """Read a value that is no map and no array."""
        char = self.peek()
        if char == '"':
            return self._double_quoted()
        if char == "'":
            return self._raw("'")
        if char == "(":
            return self._block()
        if char == ".":
            raise self.error(
                "Floats must start with a digit", self.position + 1, 'write 0.5, or ".5" for a text'
            )
        if char == "-":
            if self.peek(1) not in _DIGITS:
                self.position += 1
                raise self._unexpected(
                    "Expected a digit but got", ".", "put a text that begins with - in quotes"
                )
            return self._number()
        if char in _DIGITS:
            return self._number()
        return self._bare(self.position)

    def word(self) -> str:
        """A bare or quoted word, raw: the path of an include."""
        quote = self.peek()
        if quote in "\"'" and quote != END:
            return self._raw(quote)
        start = self.position
        while self.peek() not in BLANKS + NEWLINES + END + ";}":
            self.position += 1
        return self.text[start : self.position]

    def _raw(self, quote: str) -> str:
        start = self.position + 1
        end = self.text.find(quote, start)
        if end < 0 or END in self.text[start:end]:
            raise self._unterminated("Unexpected EOF.", "string")
        self.position = end + 1
        return self.text[start:end]

    def _unterminated(self, text: str, what: str) -> ConfigError:
        begin = self.place()
        self.position = len(self.text)
        return ConfigError(
            f"Parse error on line {self.line_at(self.position)}: '{text}'",
            hint=f"the {what} that begins at {begin} never ends",
        )

    def _double_quoted(self) -> str:
        begin = self.position
        self.position += 1
        parts: list[str] = []
        while (char := self.peek()) != '"':
            if char == END:
                self.position = begin
                raise self._unterminated("Unexpected EOF.", "string")
            parts.append(self._escape() if char == "\\" else char)
            self.position += char != "\\"
        self.position += 1
        return _joined(parts)

    def _escape(self) -> str:
        char = self.peek(1)
        if char == "x":
            digits = self.text[self.position + 2 : self.position + 4]
            if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                self.position += 2 + len(digits)
                raise self.error(rf"Expected two hexadecimal digits after '\x', but got '{digits}'")
            self.position += 4
            code = int(digits, 16)
            # A byte of its own; those that make up a character together are put together at the end
            # of the string.
            return chr(code) if code < 0x80 else chr(0xDC00 + code)
        if char not in _ESCAPES:
            self.position += 2
            raise self.error(
                f"Invalid escape character '{_character(char)}'. Only the following escape "
                "characters are allowed: "
                r"\xXX, \t, \n, \r, \", \\.",
                hint=r"write \\ for a backslash, or use single quotes",
            )
        self.position += 2
        return _ESCAPES[char]

    def _block(self) -> str:
        start = self.position + 1
        end = re.compile(r"(?<=\n)\)(?=\n|\0|\Z)").search(self.text, start)
        if end is None or END in self.text[start : end.start()]:
            raise self._unterminated("Unexpected EOF processing block.", "block")
        self.position = end.end()
        return self.text[start : end.start()]

    def _bare(self, start: int) -> Scalar | Variable:
        parts = [self.text[start : self.position]]
        escaped = False
        while (char := self.peek()) not in _BARE_ENDS:
            if char == "\\":
                escaped = True
                parts.append(self._escape())
            else:
                parts.append(char)
                self.position += 1
        text = _joined(parts)
        if self.peek() == "'":
            self.position += 1
            return text
        if escaped:
            return text
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        return Variable(text[1:]) if text.startswith("$") else text

    def _number(self) -> Scalar | Variable:
        start = self.position
        negative = self.peek() == "-"
        self.position += negative
        self.skip(_DIGITS)
        char = self.peek()
        if char == ".":
            return self._float(start, negative)
        if char == "-" and not negative:
            return self._date(start)
        suffix = ""
        if char in _SIZE_LETTERS:
            end = self.position + 1
            while end < len(self.text) and self.text[end] in _BYTE_LETTERS:
                end += 1
            if negative or self._ends_number(end, after_suffix=True):
                suffix = self.text[self.position : end]
                self.position = end
                return self._integer(start, suffix)
            # 10mins, 100ms: the letters are the beginning of a word.
            self.position = end
            return self._bare(start)
        if negative or self._ends_number(self.position, after_suffix=False):
            return self._integer(start, "")
        # What made it a text is part of it, whatever it is.
        self.position += 1
        return self._bare(start)

    def _ends_number(self, at: int, *, after_suffix: bool) -> bool:
        """Whether a number may end here: the newest original, and what the first one accepted where
        that fails.
        """
        char = self.text[at] if at < len(self.text) else END
        if char in BLANKS + NEWLINES + END + "};,":
            return True
        return not after_suffix and (char in "]#" or self.text[at : at + 2] == "//")

    def _integer(self, start: int, suffix: str) -> int:
        text = self.text[start : self.position]
        digits = text.removesuffix(suffix) if suffix else text
        # Python refuses to read numbers of thousands of digits.
        value = int(digits) if len(digits.lstrip("-0")) < 20 else MAX_INT64 + 1
        if suffix:
            found = _SUFFIX.fullmatch(suffix)
            if found is None:
                raise ConfigError(
                    f"size '{text}' has the unknown unit '{suffix}'",
                    hint=f"{self.place(start)}: units are k m g t p e (1000), kb ki kib and so "
                    "on (1024)",
                )
            value *= (1024 if found["tail"] else 1000) ** _POWERS[found["letter"].lower()]
        if not MIN_INT64 <= value <= MAX_INT64:
            raise ConfigError(
                f"integer '{text}' is out of the range",
                hint=f"{self.place(start)}: integers have 64 bits",
            )
        return value

    def _float(self, start: int, negative: bool) -> Scalar:
        self.position += 1
        if self.peek() not in _DIGITS:
            raise self._unexpected(
                "Floats must have a digit after the '.', but got", " instead.", "write 1.0 or 1"
            )
        self.skip(_DIGITS)
        if self.peek() == "." and not negative:
            self.skip(_DIGITS + ".:-")
            return self.text[start : self.position]
        text = self.text[start : self.position]
        value = float(text)
        if math.isinf(value):
            raise ConfigError(
                f"float '{text}' is out of the range", hint=f"look at {self.place(start)}"
            )
        return value

    def _date(self, start: int) -> datetime:
        quoted = "put it in quotes if it is no date"
        if self.position - start != 4:
            raise self.error(
                "All ISO8601 dates must be in full Zulu form.", self.position + 1, quoted
            )
        for sign in "-00-00T00:00:00Z":
            char = self.peek()
            if char not in _DIGITS if sign == "0" else char != sign:
                if sign == "T":
                    raise self._unexpected(
                        "Expected 'T' in ISO8601 datetime, but found", " instead.", quoted
                    )
                raise self.error(
                    "All ISO8601 dates must be in full Zulu form.", self.position + 1, quoted
                )
            self.position += 1
        text = self.text[start : self.position]
        try:
            return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            raise ConfigError(
                f"no such date: '{text}'", hint=f"look at {self.place(start)}; {quoted}"
            ) from None

    def _unexpected(self, text: str, end: str, hint: str) -> ConfigError:
        """An error about the next character, which the original has read by then."""
        char = self.peek()
        return self.error(f"{text} '{_character(char)}'{end}", self.position + 1, hint)

    def unexpected(self, text: str, end: str = " instead.", hint: str = "") -> ConfigError:
        """The error ``text '<next character>'end``."""
        return self._unexpected(text, end, hint)


def _character(char: str) -> str:
    """A character in a message: a line feed and the end of the file by name."""
    return {"\n": r"\n", END: "end of file"}.get(char, char)


def _joined(parts: list[str]) -> str:
    """The characters of a string, bytes that were written by number put together as UTF-8 where
    they are that.
    """
    text = "".join(parts)
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
