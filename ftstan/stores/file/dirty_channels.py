"""What channels tell their store: who has something to do, and which descriptors somebody waits
for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from ftstan.stores.expiry import Expiry

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.stores.file.log.slices import SliceLog
    from ftstan.stores.file.state.statefile import StateFile


class Registered(Protocol):
    """A channel as the work of each second sees it."""

    untouched: bool

    @property
    def name(self) -> bytes:
        """Its name."""

    @property
    def log(self) -> SliceLog:
        """Its messages."""


C = TypeVar("C", bound=Registered)


class Unsynced(NamedTuple, Generic[C]):
    """A descriptor whose writes somebody waits for.

    ``state``: the state file it belongs to, else it has messages.
    """

    fd: int
    channel: C | None = None
    state: StateFile | None = None


@dataclass(slots=True)
class Register(Generic[C]):
    """Channels of one store that have something to do: for the next commit, for ``write_events``,
    for the next tick.
    """

    staged: dict[bytes, C] = field(default_factory=dict)
    events: dict[bytes, C] = field(default_factory=dict)
    touched: dict[bytes, C] = field(default_factory=dict)
    acked: dict[bytes, C] = field(default_factory=dict)
    """Channels that know of acks which no file says, as theirs must be replaced first."""
    behind: dict[bytes, C] = field(default_factory=dict)
    """Other channels whose ``subs.dat`` must be replaced."""
    fresh: dict[bytes, None] = field(default_factory=dict)
    """Channels with news for standbys."""
    waste: dict[bytes, C] = field(default_factory=dict)
    """Channels that may have slices to remove."""
    expiry: Expiry = field(default_factory=Expiry)
    """When channels are looked at for messages that their limits no longer allow."""
    on_touch: Callable[[bytes], None] | None = None

    def late(self, channel: C, *, acked: bool) -> None:
        """The ``subs.dat`` of the channel must be replaced."""
        (self.acked if acked else self.behind)[channel.name] = channel

    def take_late(self, most: int) -> list[C]:
        """The next channels whose ``subs.dat`` to replace, those with acks first."""
        taken: dict[bytes, C] = {}
        for waiting in (self.acked, self.behind):
            for name in list(islice(waiting, most - len(taken))):
                taken[name] = waiting.pop(name)
        return list(taken.values())

    def wasteful(self) -> list[C]:
        """Channels with slices to remove.

        Looked at is only what changed: there may be tens of thousands.
        """
        self.waste = {name: channel for name, channel in self.waste.items() if channel.log.retired}
        return list(self.waste.values())

    def forget(self, name: bytes) -> None:
        """Forget a deleted channel."""
        for waiting in (
            self.staged,
            self.events,
            self.touched,
            self.acked,
            self.behind,
            self.waste,
        ):
            waiting.pop(name, None)
        self.expiry.forget(name)

    def touch(self, channel: C) -> None:
        """Note that the channel has data to write."""
        self.touched[channel.name] = channel
        self.fresh[channel.name] = None
        self.waste[channel.name] = channel
        channel.untouched = False
        if channel.log.limits.max_age:
            self.expiry.wake(channel.name)
        if self.on_touch is not None:
            self.on_touch(channel.name)
