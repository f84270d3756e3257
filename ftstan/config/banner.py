"""The lines of a start that operators read: who starts, where messages rest, which limits hold.

Pure functions: they give the text behind ``STREAM: ``, one list item a line; the caller logs them
at ``INF``.

Source: ``docs/compat/logging.md`` (start-up lines, limits table).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ftstan.config.limits import SHOWN, Limits, count
from ftstan.config.options import StoreLimits
from ftstan.config.precedence import field_value
from ftstan.config.table import OPTIONS
from ftstan.version import COMPATIBLE_VERSION, __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.config.limits import Entry
    from ftstan.config.options import ServerOptions

_TITLE = "---------- Store Limits ----------"
_CHANNEL_TITLE = "--------- Channels Limits --------"
_LIST_TITLE = " List of Channels "

READY = "Streaming Server is ready"


def runtime_version() -> str:
    """Return what stands where the original names its Go release (banner, ``serverz``):
    ``python3.11.2``.
    """
    return f"python{sys.version.split()[0]}"


def starting_lines(cluster_id: str, server_id: str) -> list[str]:
    """Return the first lines of every start."""
    return [
        f"Starting nats-streaming-server[{cluster_id}] version {COMPATIBLE_VERSION}",
        f"ServerID: {server_id}",
        f"Go version: {runtime_version()}",
        f"Git commit: [ftstan {__version__}]",
    ]


def effectless_lines(options: ServerOptions) -> list[str]:
    """Say which tuning flags were given that have nothing to tune here: accepted, and never
    silently.
    """
    return [
        f"-{option.key} has no effect: {option.effectless}"
        for option in OPTIONS
        if option.effectless and field_value(options, option) != option.default
    ]


def recovered_line(channels: int | None) -> str:
    """Say what recovery found; ``None`` for a store that never served."""
    return "No recovered state" if channels is None else f"Recovered {channels} channel(s)"


def store_lines(options: ServerOptions) -> list[str]:
    """Kind and place of the store, then the limits.

    The location is shown for any kind that was given a directory.
    """
    kind = f"RAFT_{options.store}" if options.clustered else options.store
    lines = [f"Message store is {kind}"]
    if options.dir:
        lines.append(f"Store location: {options.dir}")
    return lines + limits_table(options.limits)


def limits_table(limits: StoreLimits) -> list[str]:
    """Return the table of store limits; a star marks a global value that equals the default."""
    default = StoreLimits()
    own = limits.channel
    usual = default.channel
    lines = [
        _TITLE,
        (
            "Channels:        "
            f"{_cell(count(limits.max_channels), limits.max_channels == default.max_channels)}"
        ),
        _CHANNEL_TITLE,
    ]
    for name, label, show in SHOWN:
        value = getattr(own, name)
        lines.append(f"  {label:<13}: {_cell(show(value), value == getattr(usual, name))}")
    listed = _channel_lines(Limits(limits).entries)
    width = max(len(line) for line in (_TITLE, *listed))
    if listed:
        lines += [_dashed(_LIST_TITLE, width), *listed]
    return [*lines, "-" * width]


def _channel_lines(entries: Sequence[Entry]) -> list[str]:
    """Each entry with the limits that differ from what it would have inherited.

    All values end in one column.
    """
    deepest = max((entry.name.count(".") + 1 for entry in entries), default=0)
    lines = []
    for entry in entries:
        indent = " " * entry.level
        lines.append(f"{indent}{entry.name}")
        for name, label, show in SHOWN:
            value = getattr(entry.limits, name)
            if value != getattr(entry.parent, name):
                lines.append(
                    f"{indent} |-> {label:<14}{' ' * (deepest - entry.level)}{show(value):>13}"
                )
    return lines


def _dashed(title: str, width: int) -> str:
    left = (width - len(title)) // 2
    return "-" * left + title + "-" * (width - len(title) - left)


def _cell(text: str, is_default: bool) -> str:
    return f"{text:>13}{' *' if is_default else ''}"
