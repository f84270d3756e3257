"""The protocol trace (``-SV``): lines for every message, as the original writes them.

Called by the core only while tracing is on, so it costs nothing otherwise. Pure: lines go to the
log.

Source: ``docs/compat/logging.md`` (trace).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.log import stream as log

if TYPE_CHECKING:
    from collections.abc import Container

    from ftstan.broker.state import Subscription


class Tracing:
    """Trace lines of the batch that is under way."""

    def __init__(self) -> None:
        self._taken: list[tuple[bytes, bytes, bytes]] = []

    def received(self, client: bytes, channel: bytes, guid: bytes) -> None:
        """Trace a publish that arrived."""
        log.trace(
            f"[Client:{_show(client)}] Received message from publisher subj={_show(channel)} "
            f"guid={_show(guid)}",
            client=client,
            channel=channel,
        )

    def taken(self, client: bytes, channel: bytes, guid: bytes) -> None:
        """Trace a publish that will be acknowledged when its batch is durable."""
        self._taken.append((client, channel, guid))

    def committed(self, failed: Container[bytes]) -> None:
        """The batch is durable, but for the channels that ``failed``: acks go out."""
        taken = self._taken
        self._taken = []
        for client, channel, guid in taken:
            if channel not in failed:
                log.trace(
                    f"[Client:{_show(client)}] Acking Publisher subj={_show(channel)} "
                    f"guid={_show(guid)}",
                    client=client,
                    channel=channel,
                )

    def lost(self) -> None:
        """Forget the acks of this batch: they were never sent."""
        self._taken.clear()

    def sent(self, sub: Subscription, sequence: int, *, again: bool) -> None:
        """Trace a delivery."""
        self._of(sub, sequence, f"{'Redelivering' if again else 'Delivering'} msg to")

    def acknowledged(self, sub: Subscription, sequence: int) -> None:
        """Trace an ack of a subscriber."""
        self._of(sub, sequence, "Processing ack for")

    def resumed(self, sub: Subscription, sequence: int) -> None:
        """A subscription that comes back gets what it has not acknowledged."""
        log.trace(
            f"[Client:{_show(sub.client_id)}] Redelivering to subid={sub.sub_id}, seq={sequence}",
            client=sub.client_id,
            channel=sub.channel.name,
        )

    @staticmethod
    def _of(sub: Subscription, sequence: int, what: str) -> None:
        channel = sub.channel.name
        log.trace(
            f"[Client:{_show(sub.client_id)}] {what} subid={sub.sub_id}, "
            f"subject={_show(channel)}, seq={sequence}",
            client=sub.client_id,
            channel=channel,
        )


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
