"""The command line: argument words in, options out. It knows the syntax; what the flags are stands in ``table``.

Nothing is printed and nothing ends the process here: ``parse`` raises ``FlagSyntaxError`` for a malformed command line
(which the original answers with its help and exit status 0), ``to_options`` raises ``ConfigError`` (exit status 1).

Source: ``docs/compat/config.md`` (command line).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftstan.config.options import (
    ALL_INTERFACES,
    DEFAULT_PORT,
    ChannelLimits,
    FileOptions,
    FtOptions,
    NatsOptions,
    ServerOptions,
    StoreLimits,
)
from ftstan.config.table import BY_NAME, Flag, Kind, Value
from ftstan.config.units import parse_duration, parse_int, parse_size, quote
from ftstan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class FlagSyntaxError(ConfigError):
    """A word of the command line that is not a flag, or a value that its flag cannot take."""


@dataclass(slots=True)
class CommandLine:
    """A command line that was read: the values of the flags that were given, and the words behind them."""

    given: dict[str, Value] = field(default_factory=dict)
    """Flag key (``Flag.names[0]``) to value, the last one of any alias; sizes only after ``evaluate_sizes``."""
    spelled: dict[str, str] = field(default_factory=dict)
    """Flag key to the name that was used last, in the order of first appearance."""
    sizes: dict[str, str] = field(default_factory=dict)
    """Name as written to text, for flags of kind size."""
    leftover: tuple[str, ...] = ()

    def text(self, key: str) -> str:
        """Value of a string flag, or its default."""
        return str(self._value(key, Kind.STRING))

    def number(self, key: str) -> int:
        """Value of an integer, size (bytes) or duration (nanoseconds) flag, or its default."""
        return int(self._value(key, Kind.INT, Kind.SIZE, Kind.DURATION))

    def is_on(self, key: str) -> bool:
        """Value of a boolean flag, or its default."""
        return bool(self._value(key, Kind.BOOL))

    def _value(self, key: str, *kinds: Kind) -> Value:
        flag = BY_NAME[key]
        assert flag.kind in kinds
        return self.given.get(key, flag.default)


def parse(words: Sequence[str]) -> CommandLine:
    """Read the words behind the program's name.

    One or two dashes, ``-name value`` or ``-name=value``; booleans only ``-name`` or ``-name=value``; ``--``, a single
    ``-`` or any other word ends the flags. Raises ``FlagSyntaxError`` at the first word that is wrong.
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
            raise FlagSyntaxError(f"bad flag syntax: {word}")
        name, equals, text = body.partition("=")
        flag = BY_NAME.get(name)
        if flag is None:
            raise FlagSyntaxError(f"flag provided but not defined: -{name}")
        if not equals:
            if flag.kind is Kind.BOOL:
                text = "true"
            elif position == len(words):
                raise FlagSyntaxError(f"flag needs an argument: -{name}")
            else:
                text = words[position]
                position += 1
        _take(line, flag, name, text)
    line.leftover = tuple(words[position:])
    return line


def _take(line: CommandLine, flag: Flag, name: str, text: str) -> None:
    key = flag.names[0]
    line.spelled[key] = name
    match flag.kind:
        case Kind.STRING:
            line.given[key] = text
        case Kind.SIZE:
            line.sizes[name] = text
        case Kind.BOOL:
            if text not in _TRUE | _FALSE:
                raise FlagSyntaxError(f"invalid boolean value {quote(text)} for -{name}: parse error")
            line.given[key] = text in _TRUE
        case Kind.INT:
            try:
                line.given[key] = parse_int(text)
            except ConfigError as error:
                raise FlagSyntaxError(f"invalid value {quote(text)} for flag -{name}: {error}") from error
        case Kind.DURATION:
            try:
                line.given[key] = parse_duration(text)
            except ConfigError as error:
                raise FlagSyntaxError(f"invalid value {quote(text)} for flag -{name}: parse error") from error


def evaluate_sizes(line: CommandLine) -> None:
    """Turn the texts of size flags into bytes. Raises ``ConfigError`` for the first that is none.

    In alphabetical order of the names as written, whatever their order on the command line: ``-mb`` beats
    ``-max_bytes``, as in the original.
    """
    for name in sorted(line.sizes):
        line.given[BY_NAME[name].names[0]] = parse_size(name, line.sizes[name])


def refuse_unsupported(line: CommandLine) -> None:
    """Raise ``ConfigError`` for the first flag that this version does not carry out and that is not at its default."""
    for key, name in line.spelled.items():
        flag = BY_NAME[key]
        if not flag.supported and line.given[key] != flag.default:
            raise ConfigError(
                f"-{name} is not supported by this version of ftstan (planned)",
                hint="start without it; -help shows which flags are supported",
            )


def to_options(line: CommandLine) -> ServerOptions:
    """Make the server's options. Raises ``ConfigError`` for sizes that are none and for flags not supported yet."""
    evaluate_sizes(line)
    if line.is_on("t") and not line.text("config"):
        raise ConfigError("must specify [-c, --config] option to check configuration file syntax")
    refuse_unsupported(line)
    # -SDV is applied after -SD and -SV and beats them in both directions; -DV comes before -D and -V and loses.
    both = line.given.get("SDV")
    return ServerOptions(
        cluster_id=line.text("cluster_id"),
        store=line.text("store").upper(),
        dir=line.text("dir"),
        ft_group=line.text("ft_group"),
        nats_servers=_split(line.text("nats_server")),
        hb_interval=line.number("hb_interval"),
        hb_timeout=line.number("hb_timeout"),
        hb_fail_count=line.number("hb_fail_count"),
        replace_durable=line.is_on("replace_durable"),
        limits=StoreLimits(
            max_channels=line.number("max_channels"),
            channel=ChannelLimits(
                max_msgs=line.number("max_msgs"),
                max_bytes=line.number("max_bytes"),
                max_age=line.number("max_age"),
                max_subs=line.number("max_subs"),
                max_inactivity=line.number("max_inactivity"),
            ),
        ),
        file=_file_options(line),
        ft=_ft_options(line),
        nats=_nats_options(line),
        dedup_window=line.number("dedup_window"),
        debug=line.is_on("stan_debug") if both is None else bool(both),
        trace=line.is_on("stan_trace") if both is None else bool(both),
        log_file=line.text("log"),
        log_time=line.is_on("logtime"),
        pid_file=line.text("pid"),
        io_batch_size=line.number("io_batch_size"),
        io_sleep_time=line.number("io_sleep_time"),
    )


def _file_options(line: CommandLine) -> FileOptions:
    return FileOptions(
        compact_enabled=line.is_on("file_compact_enabled"),
        compact_fragmentation=line.number("file_compact_frag"),
        compact_interval=line.number("file_compact_interval"),
        compact_min_size=line.number("file_compact_min_size"),
        buffer_size=line.number("file_buffer_size"),
        crc=line.is_on("file_crc"),
        crc_poly=line.number("file_crc_poly"),
        sync=line.is_on("file_sync"),
        slice_max_msgs=line.number("file_slice_max_msgs"),
        slice_max_bytes=line.number("file_slice_max_bytes"),
        slice_max_age=line.number("file_slice_max_age"),
        slice_archive_script=line.text("file_slice_archive_script"),
        fds_limit=line.number("file_fds_limit"),
        parallel_recovery=line.number("file_parallel_recovery"),
        truncate_bad_eof=line.is_on("file_truncate_bad_eof"),
        read_buffer_size=line.number("file_read_buffer_size"),
        auto_sync=line.number("file_auto_sync"),
        sync_index=line.is_on("file_sync_index"),
        sync_subs=line.is_on("file_sync_subs"),
    )


def _ft_options(line: CommandLine) -> FtOptions:
    return FtOptions(
        hb_interval=line.number("ft_hb_interval"),
        hb_missed_interval=line.number("ft_hb_missed_interval"),
        nats_timeout=line.number("ft_nats_timeout"),
        probe_interval=line.number("ft_probe_interval"),
        poll_interval=line.number("ft_poll_interval"),
        steal_after=line.number("ft_steal_after"),
        mixed=line.text("ft_mixed"),
        allow=_split(line.text("ft_allow")),
    )


def _nats_options(line: CommandLine) -> NatsOptions:
    both = line.is_on("DV")
    return NatsOptions(
        host=line.text("addr") or ALL_INTERFACES,
        port=line.number("port") or DEFAULT_PORT,
        http_port=line.number("http_port"),
        cluster_listen=line.text("cluster"),
        routes=_split(line.text("routes")),
        user=line.text("user"),
        password=line.text("pass"),
        token=line.text("auth"),
        debug=bool(line.given.get("debug", both)),
        trace=bool(line.given.get("trace", both)),
    )


def _split(urls: str) -> tuple[str, ...]:
    """Return the items of a comma separated list, without the blanks around them; nothing for an empty text."""
    return tuple(item.strip() for item in urls.split(",")) if urls else ()
