"""What operators read when a channel's limits bite. Text only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.config.units import format_bytes

if TYPE_CHECKING:
    from ftstan.config.options import ChannelLimits


def reached_limits(channel: str, count: int, size: int, limits: ChannelLimits) -> str:
    """The warning of the first time that messages are dropped (``docs/compat/filestore.md``)."""
    return (
        f'Reached limits for store "{channel}" (msgs={count}/{limits.max_msgs} '
        f"bytes={format_bytes(size)}/{format_bytes(limits.max_bytes)}), dropping old messages to "
        "make room for new ones"
    )
