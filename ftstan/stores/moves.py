"""Where a channel cannot be marked as one that has moved."""

from __future__ import annotations

from ftstan.base.errors import RefusedError


def no_moves(where: str) -> RefusedError:
    """The refusal of a store that keeps no such mark; ``where`` names it."""
    return RefusedError(
        f"{where} cannot mark a channel as moved",
        hint="stop the channel's publishers by hand; file and memory stores can",
    )
