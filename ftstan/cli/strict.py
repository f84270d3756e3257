"""``-check_config -strict``: what a start would take, and surely suffer from.

Each check looks at this host as it is: directories, and the login of the streaming server on its
own NATS server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftstan.base.errors import ConfigError, FtstanError
from ftstan.config.options import STORE_FILE
from ftstan.config.table import BY_KEY
from ftstan.config.validation import warnings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ftstan.config.options import ServerOptions
    from ftstan.config.precedence import Settings


def problems(
    settings: Settings, options: ServerOptions, made: Collection[str] = ()
) -> list[FtstanError]:
    """Everything that is wrong, in the order in which it should be mended.

    ``made``: directories that will be there at the start.
    """
    found: list[FtstanError] = [
        ConfigError(text, hint="take the key out, or correct it; without -strict it is a warning")
        for text in settings.unknown_keys
    ]
    found += [
        ConfigError(text, hint="leave one of them out; without -strict it is a warning")
        for text in settings.repeated_keys
    ]
    found += [
        ConfigError(text, hint="correct the value; without -strict it is a warning")
        for text in warnings_of(options)
    ]
    found += _directories(options, made)
    # Late: most of the program is needed for it.
    from ftstan.nats.login_check import check_own_login  # noqa: PLC0415

    try:
        check_own_login(options)
    except FtstanError as error:
        found.append(error)
    return found


def _directories(options: ServerOptions, made: Collection[str]) -> Iterator[ConfigError]:
    """A datastore is made by the first start, the directory above it by the operator."""
    places = [
        ("dir", _above(options.dir) if options.store == STORE_FILE else ""),
        ("log", _above(options.log.file)),
        ("pid", "" if options.nats_servers else _above(options.pid_file)),
        ("ports_file_dir", "" if options.nats_servers else options.ports_file_dir),
    ]
    for key, place in places:
        if place and place not in made and (wrong := _wrong(place)):
            yield ConfigError(
                f"{BY_KEY[key].names[0]}: the directory {place} {wrong}",
                hint="create it for the user of the server, mount it, or correct the path",
                option=key,
            )


def _above(path: str) -> str:
    """The directory that must be there; a datastore that is there is looked at itself."""
    if not path:
        return ""
    whole = os.path.abspath(path)
    return whole if os.path.isdir(whole) else os.path.dirname(whole)


def _wrong(place: str) -> str:
    if not os.path.exists(place):
        return "is not there"
    if not os.path.isdir(place):
        return "is no directory"
    return "" if os.access(place, os.W_OK | os.X_OK) else "may not be written by this user"
