"""Where a channel ends, for whoever is about to publish to it and must not do so twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError
from ftstan.client import Start

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.bridge.feed import Feed

    #: Messages and last sequence of a channel, as the server tells administrators.
    Looking = Callable[[str], tuple[int, int]]


def channel_end(feed: Feed, channel: str, look: Looking) -> int:
    """The channel's last sequence, 0 for one that never had a message.

    Raises as ``look_at_end``.
    """
    return look_at_end(feed, channel, look)[0]


def look_at_end(feed: Feed, channel: str, look: Looking) -> tuple[int, bool]:
    """The channel's last sequence, 0 for one that never had a message, and whether it has any now.

    Read by a subscription of the session, which makes the channel if need be: a server that has
    lost its store could not answer that. A channel without messages is silent, as a server that is
    slow is: then the server is asked.
    Raises ``NatsError`` if it cannot be told now, ``ClientError``.
    """
    newest = feed.read_one(channel, Start.last())
    if newest is not None:
        return newest.sequence, True
    count, last = look(channel)
    if count:
        raise NatsError(f'the last message of the channel "{channel}" has not come in time')
    return last, False
