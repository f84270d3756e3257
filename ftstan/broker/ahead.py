"""A channel whose newest message is stamped with a time that is still to come: told once, when it
is recovered.

The times of a channel never go back, so every later message gets that time until the clock has come
to it, ``max_age`` removes none of them, and a subscription that begins at a time gets all of them
or none. What is stored is never changed for it: only a person knows whether a clock was wrong once,
or is wrong now.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ftstan.base.log import stream as log
from ftstan.broker import constants as c
from ftstan.broker.malformed import quoted
from ftstan.stores.interface import AHEAD_NS

if TYPE_CHECKING:
    from ftstan.stores.interface import ChannelStore


def tell_ahead(store: ChannelStore, wall: int) -> None:
    """Write a line if the newest message of the channel is far ahead of ``wall`` (Unix ns)."""
    ahead = store.last_timestamp - wall
    if ahead <= AHEAD_NS:
        return
    when = datetime.fromtimestamp(store.last_timestamp // c.SECOND, UTC)
    log.warning(
        f"channel {quoted(store.name)}: message {store.last} has the time "
        f"{when:%Y-%m-%d %H:%M:%SZ}, "
        f"{ahead // c.SECOND // 86_400} days from now: until then new messages get that time, "
        "and max_age removes none "
        "of them. If this host's clock is right, move what is needed to another channel and "
        "delete this one "
        "(docs/operate.md, when a clock was wrong)",
        channel=store.name,
    )
