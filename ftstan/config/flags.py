"""The command line: argument words in, options out. ``table`` knows the flags.

Nothing here prints or ends the process. ``parse`` raises ``FlagSyntaxError`` for a malformed
command line, which the original answers with its help and exit status 0. Everything else raises
``ConfigError`` (exit status 1).

Source: ``docs/compat/config.md`` (command line).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError
from ftstan.config.declaration import Group, Section, ValueKind
from ftstan.config.precedence import Settings
from ftstan.config.table import BY_FLAG, BY_KEY, FLAGS
from ftstan.config.units import parse_duration, parse_int, quote
from ftstan.config.validation import check_modes, refuse_empty_token, refuse_unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ftstan.config.declaration import Option, Value
    from ftstan.config.options import ServerOptions

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class FlagSyntaxError(ConfigError):
    """A word of the command line that is not a flag, or a value that its flag cannot take."""


@dataclass(slots=True)
class CommandLine:
    """A command line that was read: the values of the flags that were given, and the words behind
    them.
    """

    given: dict[str, Value] = field(default_factory=dict)
    """Flag key (``Option.key``) to value, the last one of any alias.

    Sizes only after ``evaluate_sizes``.
    """
    spelled: dict[str, str] = field(default_factory=dict)
    """Flag key to the name that was used last, in the order of first appearance."""
    sizes: dict[str, str] = field(default_factory=dict)
    """Name as written to text, for flags of kind size."""
    leftover: tuple[str, ...] = ()

    def text(self, key: str) -> str:
        """Value of a string flag, or its default."""
        return str(self._value(key, ValueKind.STRING, ValueKind.LIST))

    def number(self, key: str) -> int:
        """Value of an integer, size (bytes) or duration (nanoseconds) flag, or its default."""
        return int(self._value(key, ValueKind.INT, ValueKind.SIZE, ValueKind.DURATION))

    def is_on(self, key: str) -> bool:
        """Value of a boolean flag, or its default."""
        return bool(self._value(key, ValueKind.BOOL))

    def _value(self, key: str, *kinds: ValueKind) -> Value:
        flag = BY_KEY[key]
        assert flag.kind in kinds
        return self.given.get(key, flag.default)


def parse(words: Sequence[str]) -> CommandLine:
    """Read the words behind the program's name.

    One or two dashes, ``-name value`` or ``-name=value``; booleans only ``-name`` or
    ``-name=value``; ``--``, a single ``-`` or any other word ends the flags. Raises
    ``FlagSyntaxError`` at the first word that is wrong.
    """
    line = CommandLine()
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            position += 1
            break
        if len(word) < 2 or not word.startswith("-"):
            break
        position += 1
        body = word[2:] if word.startswith("--") else word[1:]
        if body.startswith(("-", "=")):
            raise FlagSyntaxError(
                f"bad flag syntax: {word}",
                hint="a flag is one or two dashes and its name; see -help",
            )
        name, equals, text = body.partition("=")
        flag = BY_FLAG.get(name)
        if flag is None:
            raise FlagSyntaxError(f"flag provided but not defined: -{name}", hint=_near(name))
        if not equals:
            if flag.kind is ValueKind.BOOL:
                text = "true"
            elif position == len(words):
                raise FlagSyntaxError(
                    f"flag needs an argument: -{name}",
                    hint=f"write -{name} {flag.kind.value}; {flag.help or flag.key}",
                )
            else:
                text = words[position]
                position += 1
        _take(line, flag, name, text)
    line.leftover = tuple(words[position:])
    return line


def _near(name: str) -> str:
    from ftstan.config.unknown_keys import nearest  # noqa: PLC0415  # late: few starts need it

    near = nearest(name, BY_FLAG)
    return f"did you mean -{near}?" if near else "-help lists all flags"


def _take(line: CommandLine, flag: Option, name: str, text: str) -> None:
    key = flag.key
    line.spelled[key] = name
    match flag.kind:
        case ValueKind.STRING | ValueKind.LIST:
            line.given[key] = text
        case ValueKind.SIZE:
            line.sizes[name] = text
        case ValueKind.BOOL:
            if text not in _TRUE | _FALSE:
                raise FlagSyntaxError(
                    f"invalid boolean value {quote(text)} for -{name}: parse error",
                    hint=f"write -{name} or -{name}=false",
                )
            line.given[key] = text in _TRUE
        case ValueKind.INT:
            try:
                line.given[key] = parse_int(text)
            except ConfigError as error:
                raise FlagSyntaxError(
                    f"invalid value {quote(text)} for flag -{name}: {error}",
                    hint="a whole number of 64 bits, such as 1000",
                ) from error
        case ValueKind.DURATION:
            try:
                line.given[key] = parse_duration(text)
            except ConfigError as error:
                raise FlagSyntaxError(
                    f"invalid value {quote(text)} for flag -{name}: parse error",
                    hint=f"{error.text}; {error.hint}",
                ) from error


def evaluate_sizes(line: CommandLine) -> None:
    """Turn the texts of size flags into bytes. Raises ``ConfigError`` for the first that is none.

    In alphabetical order of the names as written, whatever their order on the command line: ``-mb``
    beats ``-max_bytes``, as in the original.
    """
    if not line.sizes:
        return
    # Late: the language of files is loaded by who reads some of it.
    from ftstan.config.grammar import parse_size  # noqa: PLC0415

    for name in sorted(line.sizes):
        line.given[BY_FLAG[name].key] = parse_size(name, line.sizes[name])


def to_settings(line: CommandLine, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the files that the command line names, then apply its flags. Raises ``ConfigError``.

    ``environment`` (default: that of the process) has the values of variables in files.
    """
    if line.is_on("t") and not line.text("config"):
        raise ConfigError(
            "must specify [-c, --config] option to check configuration file syntax",
            hint="-check_config -c <file> shows what a file says, and starts nothing",
        )
    settings = Settings()
    both = line.text("config")
    streaming = line.text("stan_config")
    if both or streaming:
        from ftstan.config.file import apply_files  # noqa: PLC0415  # late, as above

        apply_files(settings, both, streaming, environment)
    if line.is_on("t"):
        settings.warnings.append(
            "-t has no effect but that this host alone is served; -check_config only checks"
        )
    _Applying(line, settings, late_file=bool(streaming) and not both).apply()
    if line.is_on("t"):
        # Whoever means to check a file does not mean to serve the network with it.
        for key in ("addr", "http_host"):
            settings.put(key, "127.0.0.1", "-t")
    return settings


def to_options(line: CommandLine, environment: Mapping[str, str] | None = None) -> ServerOptions:
    """Make the server's options.

    Raises ``ConfigError`` for files and sizes that are wrong, and for what is refused.
    """
    settings = to_settings(line, environment)
    check_modes(settings)
    refuse_unsupported(settings)
    refuse_empty_token(settings)
    return settings.options()


#: Server TLS as a whole: one of these flags replaces the map of a file.
_TLS_FLAGS = tuple(flag.key for flag in FLAGS if flag.group is Group.TLS)
#: Read before the file in the original, so that the file wins.
_EARLY = ("cluster_peers", "encryption_key")
#: Applied only after the pass over the file of -c: what the file of -sc alone says wins.
_MIDDLE = ("routes", "DV", "DVV")


class _Applying:
    """The flags that were given, put over what the files said, with the exceptions that the
    original has.
    """

    def __init__(self, line: CommandLine, settings: Settings, *, late_file: bool) -> None:
        self._line = line
        self._settings = settings
        self._late_file = late_file

    def apply(self) -> None:
        """Apply all of them. Raises ``ConfigError``."""
        line = self._line
        self._both("DV", ("debug", "trace"))
        self._both("DVV", ("debug", "trace", "VV"))
        if line.given.get("VV"):
            self._put("trace", True, "VV")
        if "tls" in line.given or any(key in line.given for key in _TLS_FLAGS):
            self._tls()
        if line.given.get("clustered") is False:
            self._settings.forget(Section.CLUSTER)
        for key, value in line.given.items():
            if BY_KEY[key].section and key not in _TLS_FLAGS:
                self._flag(key, value)
        for key in ("encryption_key", "encryption_key_file"):
            if line.text(key) and not self._settings.value("encrypt"):
                self._put("encrypt", True, key)
        # Applied after -SD and -SV, and beats them in both directions.
        self._both("SDV", ("stan_debug", "stan_trace"))
        evaluate_sizes(line)
        for name in sorted(line.sizes):
            key = BY_FLAG[name].key
            self._put(key, line.given[key], key)

    def _put(self, key: str, value: object, flag: str) -> None:
        spelled = self._line.spelled[flag]
        self._settings.put(key, value, f"-{spelled}", spelled)

    def _both(self, flag: str, keys: tuple[str, ...]) -> None:
        if flag in self._line.given:
            for key in keys:
                if not (self._late_file and flag in _MIDDLE and key in self._settings.given):
                    self._put(key, self._line.given[flag], flag)

    def _flag(self, key: str, value: Value) -> None:
        said = key in self._settings.given
        if said and (key in _EARLY or (self._late_file and key in _MIDDLE)):
            return
        self._put(key, value, key)

    def _tls(self) -> None:
        line = self._line
        settings = self._settings
        if line.given.get("tls") is False:
            if not (self._late_file and "tls" in settings.given):
                settings.forget(Section.NATS_TLS)
                self._put("tls", False, "tls")
            return
        settings.forget(Section.NATS_TLS)
        first = next(key for key in _TLS_FLAGS if key in line.given)
        self._put("tls", True, first)
        for key in _TLS_FLAGS[1:]:
            if key in line.given:
                self._put(key, line.given[key], key)
        if not settings.value("tlscert"):
            raise ConfigError(
                "TLS Server certificate must be present and valid", hint="add -tlscert <file.pem>"
            )
        if not settings.value("tlskey"):
            raise ConfigError(
                "TLS Server private key must be present and valid", hint="add -tlskey <file.pem>"
            )
