"""The words that say which messages of which places: the same for ``read``, ``replay`` and
``restore``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftstan.base.environment import KEY_VARIABLE
from ftstan.base.errors import ConfigError
from ftstan.cli.pipeline.running import setting
from ftstan.spark.keys import KEY_FILE_OPTION
from ftstan.spark.selection import Selection, moment

if TYPE_CHECKING:
    import argparse
    import datetime as dt
    from collections.abc import Mapping, Sequence


def add_places(parser: argparse.ArgumentParser) -> None:
    """The words for places."""
    parser.add_argument(
        "places", nargs="+", metavar="PLACE", help="a datastore, a spool or an archive"
    )


def add_channels(parser: argparse.ArgumentParser) -> None:
    """The flags for channels, and for options of the data source."""
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        metavar="NAME",
        help="this channel only; may be repeated",
    )
    parser.add_argument(
        "--pattern", default="", metavar="REGEX", help="channels whose whole name matches"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=setting,
        metavar="KEY=VALUE",
        help="an option of the data source, such as allowUnconfirmed=true; may be repeated",
    )
    add_keys(parser)


def add_keys(parser: argparse.ArgumentParser) -> None:
    """The flag for the keys of encrypted payloads."""
    parser.add_argument(
        "--encryption-key-file",
        default="",
        metavar="FILE",
        help="keys that decrypt payloads, one a line, at the same path on every executor "
        f"(default: {KEY_VARIABLE})",
    )


def add_messages(parser: argparse.ArgumentParser) -> None:
    """The flags for messages."""
    add_channels(parser)
    parser.add_argument(
        "--since",
        default="",
        metavar="TIME",
        help="stored at this time or later: 2026-11-22T08:30:00Z, or 36h ago",
    )
    parser.add_argument("--until", default="", metavar="TIME", help="stored before this time")
    parser.add_argument(
        "--where",
        default="",
        metavar="SQL",
        help='a condition over the columns, such as "sequence > 1000"',
    )


def selected(arguments: argparse.Namespace) -> Selection:
    """What those words mean. Raises ``ConfigError``."""
    return Selection(
        paths=tuple(arguments.places),
        channels=channels(arguments),
        pattern=arguments.pattern,
        since=_moment(arguments.since),
        until=_moment(arguments.until),
        where=arguments.where,
        options=reading(arguments),
    )


def option_of(options: Mapping[str, str], name: str) -> str:
    """The value of an option of the data source, whose case does not count; empty without it."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), "")


def as_stored(selection: Selection) -> Selection:
    """The same messages, with payloads as they are stored unless an option says otherwise."""
    if option_of(selection.options, "failOnEncrypted"):
        return selection
    return replace(selection, options={**selection.options, "failOnEncrypted": "false"})


def reading(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the data source. Raises ``ConfigError``."""
    options = dict(arguments.option)
    if path := arguments.encryption_key_file:
        if any(name.lower() == KEY_FILE_OPTION.lower() for name in options):
            raise ConfigError(
                f"--encryption-key-file and the option {KEY_FILE_OPTION} were given",
                hint="give one of them",
            )
        options[KEY_FILE_OPTION] = path
    return options


def channels(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The channels that were named. Raises ``ConfigError``."""
    named: Sequence[str] = arguments.channel
    if named and arguments.pattern:
        raise ConfigError("--channel and --pattern were given", hint="give one of them")
    return tuple(named)


def _moment(text: str) -> dt.datetime | None:
    return moment(text) if text else None
