"""Channels that nobody uses are deleted after ``max_inactivity`` (``docs/compat/protocol.md``, inactive channels).

In use is a channel with a live subscription; offline durables and groups without members do not count. A channel that
is not in use has one timer. A publish does not move the timer, only the time of the last activity: when the timer runs
and less than the limit has passed since then, it is set for the rest. What is due is deleted between two batches, when
nothing of the channel is on the road.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.errors import StoreError
from ftstan.log import stream as log

if TYPE_CHECKING:
    from ftstan.broker.broker import Broker
    from ftstan.broker.state import Channel


class Inactivity:
    """The timers of channels that are not in use."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limit = broker.options.limits.max_inactivity
        self._armed: set[bytes] = set()
        self._due: set[bytes] = set()

    def check(self, channel: Channel) -> None:
        """The channel is new, or has lost a subscription: its time begins if nobody uses it now."""
        if not self._limit or in_use(channel):
            return
        channel.active_at = self._broker.now
        self._arm(channel.name, self._broker.now + self._limit)

    def _arm(self, name: bytes, at: int) -> None:
        if name not in self._armed:
            self._armed.add(name)
            self._broker.timers.at(at, lambda: self._fire(name))

    def _fire(self, name: bytes) -> None:
        self._armed.discard(name)
        channel = self._broker.channels.get(name)
        if channel is None or in_use(channel):
            return
        if channel.active_at + self._limit > self._broker.now:
            self._arm(name, channel.active_at + self._limit)
        else:
            self._due.add(name)

    def delete_due(self) -> None:
        """Delete what is due and still unused. Call it between two batches. Raises ``FencedError``."""
        if not self._due:
            return
        broker = self._broker
        due, self._due = self._due, set()
        for name in sorted(due):
            channel = broker.channels.get(name)
            if channel is None or in_use(channel):
                continue
            if channel.active_at + self._limit > broker.now:
                self._arm(name, channel.active_at + self._limit)
                continue
            shown = name.decode("utf-8", "backslashreplace")
            try:
                broker.store.delete_channel(name)
            except StoreError as error:
                log.error(f'Error deleting channel "{shown}": {error.text}')
                self._arm(name, broker.now + self._limit)
                continue
            broker.drop_channel(channel)
            log.info(f'Channel "{shown}" has been deleted')


def in_use(channel: Channel) -> bool:
    """Whether the channel has a live subscription."""
    return bool(channel.subs) or any(group.size for group in channel.groups.values())
