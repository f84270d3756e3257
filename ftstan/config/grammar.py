"""The configuration language of NATS servers: text in, a tree of values with their places out.

Keys are followed by ``:``, ``=`` or nothing; maps ``{ }``, arrays ``[ ]``, strings in either quotes
or in none, blocks ``( )``, sizes such as ``10MB``, dates, booleans, comments ``#`` and ``//``,
variables ``$NAME``, and ``include``. The dialect is that of the newest original; where that one
fails on what an older one read (``[1,2,3]``), we read it.

An entry is read the way the original does it, with a stack of open maps and arrays and one of keys
that wait for their value: a key without value therefore has the same strange effects
(``docs/compat/config.md``, keys without value), and a warning each. Nothing but ``ConfigError`` is
raised for any text.
"""

from __future__ import annotations

import os
import select
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.base.log import errno_text
from ftstan.config.scanner import BLANKS, END, NEWLINES, SEPARATORS, WHITE, Scanner, Variable
from ftstan.config.tree import Document, Node, Place, Repeated, Value, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A bcrypt hash looks like a variable of this name.
_BCRYPT = "2a$"

#: Maps and arrays in each other; more is a mistake, or worse.
_MAX_DEPTH = 100

#: More is no configuration: a device without end, or a log.
_MOST_BYTES = 16 << 20

#: How long a pipe may be silent.
_PATIENCE_MS = 10_000

_INCLUDE_MISTAKES = {"[": "start of an array", "{": "start of a map", "(": "start of a block"}


def read_text(path: str) -> str:
    """The text of a configuration file; bytes that are not UTF-8 survive as surrogates.

    A pipe or a device is read as well, but neither without end (16 MiB) nor for ever (10 s without
    a byte). Raises ``ConfigError``.
    """
    hint = "give the path of a file that this user may read"
    try:
        # NONBLOCK: a pipe that nobody writes to holds up neither a start nor every later reload.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = _read(fd, path)
            if not data and stat.S_ISFIFO(os.fstat(fd).st_mode):
                raise ConfigError(f"read {path}: is a pipe that nobody writes to", hint=hint)
        finally:
            os.close(fd)
    except IsADirectoryError:
        raise ConfigError(f"read {path}: is a directory", hint=hint) from None
    except ValueError:
        raise ConfigError(f"open {path}: invalid argument", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"open {path}: {errno_text(error)}", hint=hint) from error
    return data.decode("utf-8", "surrogateescape")


def _read(fd: int, path: str) -> bytes:
    data = bytearray()
    while True:
        try:
            more = os.read(fd, 1 << 20)
        except BlockingIOError:
            waiting = select.poll()
            waiting.register(fd, select.POLLIN)
            if not waiting.poll(_PATIENCE_MS):
                raise ConfigError(
                    f"read {path}: nothing came for {_PATIENCE_MS // 1000} s",
                    hint="give the path of a file, or have the pipe's writer end",
                ) from None
            continue
        if not more:
            return bytes(data)
        data += more
        if len(data) > _MOST_BYTES:
            raise ConfigError(
                f"read {path}: has more than {_MOST_BYTES >> 20} MiB",
                hint="give the path of a configuration file",
            )


def parse(text: str, file: str, environment: Mapping[str, str] | None = None) -> Document:
    """Parse a text; ``file`` is its name in places, and includes are relative to its directory.

    ``environment`` (default: that of the process) is where variables come from that no key above
    them defines. Raises ``ConfigError``.
    """
    reader = _Reader(os.environ if environment is None else environment)
    entries = reader.read(text, file)
    # A name that only variables refer to may be given a new value on the way.
    repeated = (one for one in reader.repeated if one.first not in reader.used)
    return Document(entries, tuple(reader.warnings), frozenset(reader.used), tuple(repeated))


def parse_size(name: str, text: str, environment: Mapping[str, str] | None = None) -> int:
    """Bytes of a size on the command line, read as a value of this language.

    ``name`` is the flag in the error.

    ``1k`` is 1000, ``1KB`` and ``1Ki`` are 1024; a variable is looked up. Raises ``ConfigError``.
    """
    hint = "write a number of bytes with an optional suffix, such as 1024, 64KB or 1GB"
    try:
        value = parse(f"bytes: {text}", f"-{name}", environment).entries["bytes"].value
    except ConfigError as error:
        raise ConfigError(error.text, hint=hint) from error
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} should be a size, got '{shown(value)}'", hint=hint)
    return value


@dataclass(slots=True)
class _Open:
    """A map or an array that is being read.

    ``keys``: how many keys waited for their value when it was opened.
    """

    value: dict[str, Node] | list[Node]
    place: Place
    keys: int = 0


@dataclass(slots=True)
class _Reader:
    """One reading of a file and what it includes."""

    environment: Mapping[str, str]
    warnings: list[str] = field(default_factory=list)
    used: set[Place] = field(default_factory=set)
    """Places of the keys that variables referred to."""
    repeated: list[Repeated] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """The files that are open, each included by the one before it."""
    variables: list[str] = field(default_factory=list)
    """Names of the environment that are being evaluated, each used by the one before it."""

    def read(self, text: str, file: str) -> dict[str, Node]:
        same = os.path.realpath(file) if file else ""
        if same and same in self.files:
            shown = [
                os.path.relpath(name) for name in [*self.files[self.files.index(same) :], same]
            ]
            raise ConfigError(
                f"include loop: {' -> '.join(shown)}", hint="take one of these includes out"
            )
        self.files.append(same)
        entries = _Parser(self, Scanner(text, file)).run()
        self.files.pop()
        return entries

    def environment_value(self, name: str, line: int) -> Value | None:
        """The value of an environment variable, None if there is none of that name."""
        text = self.environment.get(name)
        if text is None:
            return None
        reference = f"variable reference for '{name}' on line {line}"
        if name in self.variables:
            raise ConfigError(
                f"{reference} refers to itself", hint=f"look at the environment variable {name}"
            )
        self.variables.append(name)
        try:
            return _Parser(self, Scanner(f"value={text}", f"${name}")).run()["value"].value
        except ConfigError as error:
            raise ConfigError(
                f"{reference} could not be parsed: {error}",
                hint=f"put quotes around the value of {name}",
            ) from error
        finally:
            self.variables.pop()


class _Parser:
    def __init__(self, reader: _Reader, scanner: Scanner) -> None:
        self._reader = reader
        self._scan = scanner
        self._root: dict[str, Node] = {}
        self._open = [_Open(self._root, scanner.place())]
        self._keys: list[tuple[str, Place]] = []

    def run(self) -> dict[str, Node]:
        """Read to the end."""
        while self._step():
            pass
        return self._root

    def _step(self) -> bool:
        """Read one entry, item, or the beginning or end of a container.

        False at the end of the text.
        """
        if len(self._open) == 1:
            return self._top()
        if isinstance(self._open[-1].value, dict):
            self._in_map()
        else:
            self._in_array()
        return True

    # ---- top level
    # ----------------------------------------------------------------------------------------------

    def _top(self) -> bool:
        scan = self._scan
        while not scan.at_end() and (scan.peek() in WHITE + "{"):
            scan.position += 1
        if scan.at_end():
            return False
        if scan.skip_comment():
            return True
        if scan.peek() in ("/", END):
            raise scan.error("Unexpected EOF.", scan.position + 1, "a key should begin here")
        if not self._key(""):
            return True
        if scan.peek() in SEPARATORS and not scan.at_end():
            scan.position += 1
        elif scan.at_end():
            key, place = self._keys.pop()
            if key != "}":
                raise ConfigError(
                    f"config is invalid ({place})", hint=f'the key "{key}" has no value'
                )
            return False
        scan.skip(BLANKS)
        if scan.peek() in NEWLINES and not scan.at_end():
            scan.position += 1
            raise scan.error(
                "Expected value but found new line",
                hint='the value stands on the line of its key; "" for none',
            )
        self._value()
        return True

    def _key(self, stop: str) -> bool:
        """Read a key and what may stand before its separator.

        False when it was an include, which is done then.
        """
        scan = self._scan
        if scan.peek() in SEPARATORS:
            raise scan.unexpected("Unexpected key separator", stop, "a key should stand before it")
        place = scan.place()
        bare = scan.peek() not in "\"'"
        key = scan.key()
        if bare and key.lower() == "include" and scan.peek() in WHITE:
            self._include()
            return False
        self._keys.append((key, place))
        scan.skip(WHITE)
        return True

    # ---- maps and arrays
    # ----------------------------------------------------------------------------------------

    def _in_map(self) -> None:
        scan = self._scan
        scan.skip(WHITE)
        if scan.skip_comment():
            return
        if scan.peek() == END:
            raise self._unterminated("Unexpected EOF processing map.", "map")
        if scan.peek() == "}":
            self._close()
            return
        if scan.peek() == "]":
            raise scan.error("Unexpected array end ']' processing map.", scan.position + 1)
        if not self._key("."):
            return
        if scan.peek() in SEPARATORS:
            scan.position += 1
        scan.skip(WHITE)
        if scan.peek() == ",":
            raise scan.error(
                'Unexpected map value terminator ",".',
                scan.position + 1,
                'the key has no value; write "" for none',
            )
        if scan.peek() == END:
            raise self._unterminated("Unexpected EOF processing map.", "map")
        if scan.peek() == "}":
            self._close()
        else:
            self._value()

    def _in_array(self) -> None:
        scan = self._scan
        scan.skip(WHITE)
        if scan.skip_comment():
            return
        if scan.peek() == ",":
            raise scan.unexpected(
                "Unexpected array value terminator", ".", "a value is missing before the comma"
            )
        if scan.peek() == END:
            raise scan.unexpected(
                _ENDS["array"], hint=f"the array that begins at {self._open[-1].place} never ends"
            )
        if scan.peek() == "]":
            self._close()
        else:
            self._value()

    def _unterminated(self, text: str, what: str) -> ConfigError:
        scan = self._scan
        return ConfigError(
            f"Parse error on line {scan.line_at(len(scan.text))}: '{text}'",
            hint=f"the {what} that begins at {self._open[-1].place} never ends",
        )

    def _close(self) -> None:
        closed = self._open.pop()
        self._scan.position += 1
        for key, place in self._keys[closed.keys :]:
            self._reader.warnings.append(
                f'{place}: the key "{key}" has no value: as in the original it takes the map '
                "around it for one; "
                f'write {key}: "" for none'
            )
        self._set(Node(closed.value, closed.place))
        self._end_of_value()

    # ---- values
    # ----------------------------------------------------------------------------------------------

    def _value(self) -> None:
        scan = self._scan
        place = scan.place()
        if scan.peek() in "[{" and not scan.at_end():
            if len(self._open) > _MAX_DEPTH:
                raise ConfigError(
                    f"{place}: more than {_MAX_DEPTH} maps and arrays in each other",
                    hint="close some",
                )
            container: dict[str, Node] | list[Node] = {} if scan.peek() == "{" else []
            scan.position += 1
            self._open.append(_Open(container, place, len(self._keys)))
            return
        value = scan.scalar()
        if isinstance(value, Variable):
            self._set(self._resolve(value, place))
        else:
            self._set(Node(value, place))
        self._end_of_value()

    def _set(self, node: Node) -> None:
        container = self._open[-1].value
        if isinstance(container, list):
            container.append(node)
            return
        if self._keys:
            key, key_place = self._keys.pop()
            # The last of two equal keys wins, and has its place among the others.
            former = container.pop(key, None)
            # What an include says may be said anew on purpose: that is another file.
            if former is not None and former.place.file == key_place.file:
                self._reader.repeated.append(Repeated(key, former.place, key_place))
            container[key] = replace(node, place=key_place)

    def _resolve(self, variable: Variable, place: Place) -> Node:
        if variable.name.startswith(_BCRYPT):
            return Node(f"${variable.name}", place)
        for container in reversed(self._open):
            if isinstance(container.value, dict) and variable.name in container.value:
                node = container.value[variable.name]
                self._reader.used.add(node.place)
                return replace(node, place=place)
        value = self._reader.environment_value(variable.name, place.line)
        if value is None:
            raise ConfigError(
                f"variable reference for '{variable.name}' on line {place.line} can not be found",
                hint=f"{place}: define it above this line or in the environment (-unit UNIT: that "
                "of a service), or put the text in quotes",
            )
        return Node(value, place, variable.name)

    def _end_of_value(self) -> None:
        """Read what ends an entry or an item: one character, except for what closes the
        container.
        """
        scan = self._scan
        container = self._open[-1].value
        kind = "top" if len(self._open) == 1 else "map" if isinstance(container, dict) else "array"
        scan.skip(BLANKS)
        while scan.skip_comment() or (kind == "top" and scan.peek() == "/"):
            if scan.peek() == "/":
                scan.position += 1
            scan.skip(BLANKS)
        char = scan.peek()
        if kind == "top" and scan.at_end():
            return
        if (
            char
            in {"top": NEWLINES + END + ";,}", "map": NEWLINES + ";,/", "array": NEWLINES + ",/"}[
                kind
            ]
        ):
            scan.position += 1
        elif char != {"top": "", "map": "}", "array": "]"}[kind]:
            raise scan.unexpected(_ENDS[kind], hint=_HINTS[kind])

    # ---- includes
    # ----------------------------------------------------------------------------------------------

    def _include(self) -> None:
        scan = self._scan
        place = scan.place()
        scan.skip(BLANKS)
        char = scan.peek()
        what = _INCLUDE_MISTAKES.get(char) or ("start of a number" if char in "0123456789-" else "")
        if what:
            article = "a number" if "number" in what else what
            raise scan.error(
                f"Expected include value but found {article}",
                scan.position + 1,
                "write include 'file'",
            )
        if char in NEWLINES + END:
            raise scan.error(
                "Expected include value but found new line",
                scan.position + 1,
                "write include 'file'",
            )
        path = scan.word()
        # Relative to the including file also when it begins with a slash, as in the original.
        target = os.path.join(os.path.dirname(scan.file), path.lstrip("/"))
        if self._reader.variables:
            raise ConfigError(
                "an environment variable cannot include a file", hint="include it in the file"
            )
        try:
            entries = self._reader.read(read_text(target), target)
        except ConfigError as error:
            relative = ", relative to the including file" if path.startswith("/") else ""
            raise ConfigError(
                f"error parsing include file '{path}', {error}",
                hint=f"included at {place}{relative}; {error.hint}",
            ) from error
        container = self._open[-1].value
        assert isinstance(container, dict)
        for key, node in entries.items():
            container.pop(key, None)
            container[key] = node
        self._end_of_value()


_ENDS = {
    "top": "Expected a top-level value to end with a new line, comment or EOF, but got",
    "map": 'Expected a map value terminator "," or a map terminator "}", but got',
    "array": 'Expected an array value terminator "," or an array terminator "]", but got',
}
_HINTS = {
    "top": "one key and value a line; texts with blanks need quotes",
    "map": "separate entries by commas or new lines; texts with blanks need quotes",
    "array": "separate items by commas or new lines; texts with blanks need quotes",
}
