"""What channels tell their store: who has something to do, and which descriptors somebody waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ftstan.stores.expiry import Expiry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.file.statefile import StateFile


class Unsynced(NamedTuple):
    """A descriptor whose writes somebody waits for. ``state``: the state file it belongs to, else it has messages."""

    fd: int
    channel: FileChannel | None = None
    state: StateFile | None = None


@dataclass(slots=True)
class Register:
    """Channels of one store that have something to do: for the next commit, for ``write_events``, for the next tick."""

    staged: dict[bytes, FileChannel] = field(default_factory=dict)
    events: dict[bytes, FileChannel] = field(default_factory=dict)
    touched: dict[bytes, FileChannel] = field(default_factory=dict)
    fresh: dict[bytes, None] = field(default_factory=dict)
    """Channels with news for standbys."""
    waste: dict[bytes, FileChannel] = field(default_factory=dict)
    """Channels that may have slices to remove."""
    expiry: Expiry = field(default_factory=Expiry)
    """When channels are looked at for messages that their limits no longer allow."""
    on_touch: Callable[[bytes], None] | None = None

    def wasteful(self) -> list[FileChannel]:
        """Channels with slices to remove. Looked at is only what changed: there may be tens of thousands."""
        self.waste = {name: channel for name, channel in self.waste.items() if channel.log.retired}
        return list(self.waste.values())

    def touch(self, channel: FileChannel) -> None:
        """The channel has something to write."""
        self.touched[channel.name] = channel
        self.fresh[channel.name] = None
        self.waste[channel.name] = channel
        channel.untouched = False
        if channel.log.limits.max_age:
            self.expiry.wake(channel.name)
        if self.on_touch is not None:
            self.on_touch(channel.name)
