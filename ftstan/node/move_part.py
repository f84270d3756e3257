"""What the source and the target of a move share with the rest of their node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.config.options import ChannelLimits
    from ftstan.ft.moves import Move
    from ftstan.stores.interface import ChannelStore, StoredSub


class MovePart(Protocol):
    """What the node keeps of moves (``moving.Moving``), for the two parts of one."""

    aside: dict[bytes, ChannelStore]
    """Channels of the store that are not served: what has gone, and what comes. The data plane's.
    """
    subs: dict[bytes, list[StoredSub]]
    """The subscriptions that those may have on storage, some of them of attempts that failed. The
    data plane's.
    """

    def move(self, name: bytes) -> Move:
        """The latest move of that channel. Raises ``RefusedError``: it was taken back."""
        ...

    def keep(self, name: bytes, move: Move | None) -> None:
        """Write down how far a move is. On the data plane. Raises ``FencedError`` and
        ``StoreError``.
        """
        ...

    async def change(self, function: Callable[[], None]) -> None:
        """Have the data plane carry it out in one step. Raises what it raises."""
        ...

    def limits_of(self, name: bytes) -> ChannelLimits:
        """What holds for a channel that comes."""
        ...

    def list_changed(self) -> None:
        """Other partitions are told another list from now on."""
        ...

    async def ask(self, move: Move, asked: dict[str, Any], *, once: bool = False) -> bytes:
        """What the source answers. ``once``: it takes its time, and must not be asked twice.

        Raises ``NatsError``, ``RefusedError`` and ``WireError``.
        """
        ...
