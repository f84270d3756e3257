"""Which stream a channel is mirrored into.

A stream's name must not hold a dot, a blank, a slash or a wildcard: every character but letters,
digits, dash and underscore becomes an underscore. Two channels may so come to one name, which is
refused: a stream holds one channel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]")
#: What nats-server takes at most.
_LONGEST: Final = 255


def stream_name(channel: str, prefix: str = "") -> str:
    """The stream of a channel."""
    return prefix + _REFUSED.sub("_", channel)


def inlet_name(stream: str) -> str:
    """The stream that takes what new publishers send, until the cut-over."""
    return f"{stream}_new"


def private_subject(channel: str) -> str:
    """Where the bridge appends while the channel's name is the subject of the inlet."""
    return f"_ftstan.bridge.{channel}"


def closed_subject(channel: str) -> str:
    """The subject of an inlet that takes nothing: a stream must have one."""
    return f"_ftstan.closed.{channel}"


def stream_names(
    channels: Iterable[str], prefix: str = "", given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The stream of each channel; ``given`` names some of them.

    Raises ``ConfigError`` if two channels come to one stream, or a name cannot be one.
    """
    given = given or {}
    found: dict[str, str] = {}
    taken: dict[str, str] = {}
    for channel in channels:
        name = given.get(channel) or stream_name(channel, prefix)
        if _REFUSED.search(name) or not 0 < len(name) <= _LONGEST:
            raise ConfigError(
                f'JetStream takes no stream "{name}" for the channel "{channel}"',
                hint="letters, digits, - and _, at most 255; see --stream and --stream-prefix",
            )
        other = taken.setdefault(name, channel)
        if other != channel:
            raise ConfigError(
                f'the channels "{other}" and "{channel}" would share the stream "{name}"',
                hint=f"name another one: --stream {channel}=NAME",
            )
        found[channel] = name
    unknown = sorted(set(given) - set(found))
    if unknown:
        raise ConfigError(
            f'--stream names the channel "{unknown[0]}", which --channel does not',
            hint="give both, or neither",
        )
    return found
