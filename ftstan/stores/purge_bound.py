"""Up to which sequence a purge goes: the words of operators, for a running server and for a store
that nobody serves.
"""

from __future__ import annotations

from typing import Protocol

from ftstan.base.errors import RefusedError


class Kept(Protocol):
    """What is asked of a channel, with ``ChannelStore``'s meanings."""

    @property
    def first(self) -> int:
        """Sequence of the first available message."""
        ...

    @property
    def last(self) -> int:
        """Sequence of the last message."""
        ...

    @property
    def count(self) -> int:
        """Available messages."""
        ...


def bound(channel: Kept, *, keep: int = 0, up_to: int = 0) -> int:
    """The last sequence that goes if the newest ``keep`` messages stay, or those behind ``up_to``.

    0 as an argument: without that bound, everything goes. Returns 0 if nothing does. Raises
    ``RefusedError``.
    """
    if keep < 0 or up_to < 0 or (keep and up_to):
        raise RefusedError(
            f"cannot purge all but {keep} messages and up to sequence {up_to}",
            hint="one bound, above 0, or none: all",
        )
    if keep:
        # Where sequences are missing some more are kept, never fewer.
        return channel.first - 1 + channel.count - keep if channel.count > keep else 0
    return min(up_to, channel.last) if up_to else channel.last
