"""What can be wrong with a mirror."""

from __future__ import annotations

from ftstan.base.errors import FtstanError


class BridgeError(FtstanError):
    """A channel cannot be mirrored, or not any further; nothing more is written to its stream."""


class SecondBridgeError(BridgeError):
    """Another bridge appends to the same stream."""
