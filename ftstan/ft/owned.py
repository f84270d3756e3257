"""What a node asks of a store that has an owner, beyond what it asks of every store.

Apart from ``access`` and ``sqlaccess``, which have it all: a store without an owner needs nothing
of that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.admin.keys import Keys
    from ftstan.ft.epoch import Activation
    from ftstan.ft.epoch_records import Cause, Ending, EpochRecord
    from ftstan.ft.lockfaults import LockCounts
    from ftstan.ft.moves import Moves
    from ftstan.ft.ownership import StoreLook
    from ftstan.ft.watch import Watch


class OwnersLock(Protocol):
    """The lock of a store that has an owner."""

    counts: LockCounts

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        ...

    def renew(self) -> bool:
        """Ask for the lock that others would find now; returns whether that is another one."""
        ...


class Owner(Protocol):
    """The right of this process to write to one store: ``ft.ownership.StoreOwner`` for a directory,
    ``ft.sqlaccess.SqlOwner`` for a database.
    """

    path: str
    """What is owned, for people."""
    has_directory: bool
    """Whether ``path`` is a directory: with files to read ahead, and the administrators' key."""
    is_network: bool
    """Whether a poll of the lock is expensive."""
    answered_at: float | None
    """When the store last answered (seconds of ``Clock.mono``), ``None``: never."""
    holder: EpochRecord | None
    """The newest activation that was read."""
    ending: Ending
    """How it ends: whoever stops it on purpose says so before ``release``."""
    is_fit: Callable[[int], bool]
    """Whether an original server could follow the owner of an epoch."""

    @property
    def lock(self) -> OwnersLock:
        """The lock."""
        ...

    @property
    def present(self) -> Activation | None:
        """The present activation, if there is one. Any thread may ask."""
        ...

    def look(self) -> StoreLook:
        """Look at the store; nothing is created. Raises ``StoreError``."""
        ...

    def read_watch(self) -> bytes | None:
        """What an owner changes once a second; empty if there is nothing, ``None`` if it cannot be
        read.
        """
        ...

    def try_lock(self, *, create: bool = True) -> None:
        """Try the lock once. Raises as ``Lock.acquire`` does."""
        ...

    def read_owner(self) -> EpochRecord | None:
        """The newest activation, ``None`` if there was none. Raises ``StoreError``."""
        ...

    def read_records(self, count: int) -> list[tuple[int, EpochRecord | None]]:
        """The newest ``count`` activations, newest first. Raises ``StoreError``."""
        ...

    def read_keys(self) -> Keys:
        """The keys that operators prove themselves with, of a directory. Raises ``StoreError``."""
        ...

    def rotate_key(self, grace_s: int) -> Keys:
        """Replace that key: see ``StoreOwner.rotate_key``."""
        ...

    def read_moves(self) -> Moves:
        """Which channels have moved to or from this store. Raises ``RecoveryError`` and
        ``StoreError``.
        """
        ...

    def take_up_moves(self) -> Moves:
        """The same for the owner that begins: from now on no former owner can change it.

        Raises ``FencedError`` too.
        """
        ...

    def settle_moves(self) -> Moves:
        """The same behind a write that was refused: it comes no more.

        Raises ``FencedError`` too.
        """
        ...

    def write_moves(self, moves: Moves) -> None:
        """Replace that, durable on return. Raises ``FencedError`` and ``StoreError``."""
        ...

    @property
    def name(self) -> str:
        """The member's name."""
        ...

    def is_paused(self) -> bool:
        """Whether a pause of this member is kept. Raises ``StoreError``."""
        ...

    def keep_pause(self, line: str) -> None:
        """Keep a pause of this member over restarts. Raises ``StoreError``."""
        ...

    def end_pause(self) -> None:
        """Keep it no more. Raises ``StoreError``."""
        ...

    def activate(
        self,
        *,
        cause: Cause = ...,
        after: int = 0,
        ft_mixed: bool | None = None,
        without_lock: bool = False,
        heard_under: int | None = 0,
    ) -> Activation:
        """Take the next epoch: see ``StoreOwner.activate``."""
        ...

    def tidy(self) -> None:
        """What nobody waits for, after an activation. Raises ``FencedError``."""
        ...

    def confirm(self) -> None:
        """Raise ``FencedError`` unless the store says that it is ours."""
        ...

    def confirm_anew(self) -> None:
        """As ``confirm``, and also as others would ask now. Raises ``FencedError``."""
        ...

    def verify_lock(self) -> None:
        """Raise ``FencedError`` if the lock is not ours any more, or if others would find another
        store than we have.
        """
        ...

    def set_mixed(self, *, on: bool) -> None:
        """Record whether original servers may be members.

        Raises ``FencedError`` and ``StoreError``.
        """
        ...

    def regain_lock(self) -> bool:
        """Try for the lock that the store was taken without; returns whether it is held."""
        ...

    def release(self) -> None:
        """Give the lock back."""
        ...


class OwnedAccess(ABC):
    """The access to a store whose owner has an epoch."""

    owner: Owner

    @abstractmethod
    def watch(self, interval: float, on_failure: Callable[[BaseException], None]) -> Watch:
        """A watch over the present activation, not started; ``interval`` in seconds."""
