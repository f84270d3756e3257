"""Which release this is, and which NATS server is in it."""

from __future__ import annotations

from ftstan.nats.binary import binary_version
from ftstan.version import COMPATIBLE_VERSION


def say_version() -> None:
    """Print both. Raises ``NatsError``."""
    print(f"nats-streaming-server version {COMPATIBLE_VERSION}, nats-server: v{binary_version()}")
