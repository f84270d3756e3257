"""What a node asks of a store that has an owner, beyond what it asks of every store.

Apart from ``access``, which has it all: a store without an owner needs nothing of that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.ft.ownership import StoreOwner
    from ftstan.ft.watch import Watch


class OwnedAccess(ABC):
    """The access to a store whose owner has an epoch."""

    owner: StoreOwner

    @abstractmethod
    def watch(self, interval: float, on_failure: Callable[[BaseException], None]) -> Watch:
        """A watch over the present activation, not started; ``interval`` in seconds."""
