"""Channels that nobody uses are deleted after ``max_inactivity`` (``docs/compat/protocol.md``,
inactive channels).

In use is a channel with a live subscription; offline durables and groups without members do not
count. A channel that is not in use has one timer. A publish does not move the timer, only the time
of the last activity: when the timer runs and less than the limit has passed since then, it is set
for the rest. What is due is deleted between two batches, when nothing of the channel is in the
pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.base.log import stream as log

if TYPE_CHECKING:
    from ftstan.broker.base import BrokerBase
    from ftstan.broker.state import Channel


class ChannelExpiry:
    """The timers of channels that are not in use."""

    def __init__(self, broker: BrokerBase) -> None:
        self._broker = broker
        self._armed: dict[bytes, int] = {}
        """When the timer of a channel runs; another one that was set for it does nothing."""
        self._due: set[bytes] = set()

    def check(self, channel: Channel) -> None:
        """The channel is new, has lost a subscription, or has another limit: its time begins if
        nobody uses it now.
        """
        limit = channel.store.limits.max_inactivity
        if not limit:
            self._armed.pop(channel.name, None)
        elif not in_use(channel):
            channel.active_at = self._broker.now
            self._arm(channel.name, self._broker.now + limit)

    def _arm(self, name: bytes, at: int) -> None:
        """Run the timer at that time, or earlier if it is set for earlier: it is set for the rest
        then.
        """
        if self._armed.get(name, at + 1) > at:
            self._armed[name] = at
            self._broker.timers.at(at, lambda: self._fire(name, at))

    def _fire(self, name: bytes, at: int) -> None:
        if self._armed.get(name) != at:
            return
        del self._armed[name]
        channel = self._broker.channels.get(name)
        if channel is None or in_use(channel):
            return
        if (rest := _time_left(channel, self._broker.now)) > 0:
            self._arm(name, self._broker.now + rest)
        else:
            self._due.add(name)

    def delete_due(self) -> None:
        """Delete what is due and still unused. Call it between two batches.

        Raises ``FencedError``.
        """
        if not self._due:
            return
        broker = self._broker
        due = self._due
        self._due = set()
        for name in sorted(due):
            channel = broker.channels.get(name)
            if channel is None or in_use(channel):
                continue
            if channel.mover is not None:
                # A publisher that does not know of the move would make it anew.
                self._arm(name, broker.now + channel.store.limits.max_inactivity)
                continue
            limit = channel.store.limits.max_inactivity
            if not limit:
                continue
            if (rest := _time_left(channel, broker.now)) > 0:
                self._arm(name, broker.now + rest)
                continue
            shown = name.decode("utf-8", "backslashreplace")
            try:
                broker.store.delete_channel(name)
            except StoreError as error:
                log.error(f'Error deleting channel "{shown}": {error.text}')
                self._arm(name, broker.now + limit)
                continue
            broker.drop_channel(channel)
            log.info(f'Channel "{shown}" has been deleted', channel=shown)


def in_use(channel: Channel) -> bool:
    """Whether the channel has a live subscription."""
    return bool(channel.subs) or any(group.size for group in channel.groups.values())


def _time_left(channel: Channel, now: int) -> int:
    """Nanoseconds until the channel has been inactive for as long as it may be."""
    return channel.active_at + channel.store.limits.max_inactivity - now
