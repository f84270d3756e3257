"""The lines of a start that operators read: who starts, where messages rest, which limits hold.

Pure functions: they give the text behind ``STREAM: ``, one list item a line; the caller logs them at ``INF``.

Source: ``docs/compat/logging.md`` (start-up lines, limits table).
"""

from __future__ import annotations

import platform

from ftstan import COMPATIBLE_VERSION, __version__
from ftstan.config.options import ServerOptions, StoreLimits
from ftstan.config.units import format_bytes, format_duration

_TITLE = "---------- Store Limits ----------"
_CHANNEL_TITLE = "--------- Channels Limits --------"

READY = "Streaming Server is ready"


def runtime_version() -> str:
    """Return what stands where the original names its Go release (banner, ``serverz``): ``python3.11.2``."""
    return f"python{platform.python_version()}"


def starting_lines(cluster_id: str, server_id: str) -> list[str]:
    """Return the first lines of every start."""
    return [
        f"Starting nats-streaming-server[{cluster_id}] version {COMPATIBLE_VERSION}",
        f"ServerID: {server_id}",
        f"Go version: {runtime_version()}",
        f"Git commit: [ftstan {__version__}]",
    ]


def effectless_lines(options: ServerOptions) -> list[str]:
    """Say which tuning flags were given that have nothing to tune here: accepted, and never silently."""
    usual = ServerOptions()
    return [
        f"-{flag} has no effect: {why}"
        for flag, value, default, why in (
            (
                "io_batch_size",
                options.io_batch_size,
                usual.io_batch_size,
                "a batch is what one read of the link brings",
            ),
            (
                "io_sleep_time",
                options.io_sleep_time,
                usual.io_sleep_time,
                "a batch is what one read of the link brings",
            ),
            ("file_buffer_size", options.file.buffer_size, usual.file.buffer_size, "a batch is one write per channel"),
        )
        if value != default
    ]


def recovered_line(channels: int | None) -> str:
    """Say what recovery found; ``None`` for a store that never served."""
    return "No recovered state" if channels is None else f"Recovered {channels} channel(s)"


def store_lines(options: ServerOptions) -> list[str]:
    """Kind and place of the store, then the limits. The location is shown for any kind that was given a directory."""
    lines = [f"Message store is {options.store}"]
    if options.dir:
        lines.append(f"Store location: {options.dir}")
    return lines + limits_table(options.limits)


def limits_table(limits: StoreLimits) -> list[str]:
    """Return the table of store limits; a star marks a value that equals the default."""
    default = StoreLimits()
    own, usual = limits.channel, default.channel
    return [
        _TITLE,
        f"Channels:        {_cell(_count(limits.max_channels), limits.max_channels == default.max_channels)}",
        _CHANNEL_TITLE,
        f"  Subscriptions: {_cell(_count(own.max_subs), own.max_subs == usual.max_subs)}",
        f"  Messages     : {_cell(_count(own.max_msgs), own.max_msgs == usual.max_msgs)}",
        f"  Bytes        : {_cell(_bytes(own.max_bytes), own.max_bytes == usual.max_bytes)}",
        f"  Age          : {_cell(_duration(own.max_age), own.max_age == usual.max_age)}",
        f"  Inactivity   : {_cell(_duration(own.max_inactivity), own.max_inactivity == usual.max_inactivity)}",
        "-" * len(_TITLE),
    ]


def _cell(text: str, is_default: bool) -> str:
    return f"{text:>13}{' *' if is_default else ''}"


def _count(value: int) -> str:
    return str(value) if value else "unlimited"


def _bytes(value: int) -> str:
    return format_bytes(value) if value else "unlimited"


def _duration(value: int) -> str:
    return format_duration(value) if value else "unlimited"
