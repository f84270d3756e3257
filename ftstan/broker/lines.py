"""SUB lines: what a server listens to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.broker import constants as c
from ftstan.wire.subjects import publishable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.broker.partition import Partition
    from ftstan.broker.state import Subscription


def publish_rows(publish_all: str, partition: Partition | None) -> list[tuple[bytes, int]]:
    """The subjects on which publishes come, with their sids, in the order in which they are
    subscribed to.

    ``publish_all``: what a server subscribes to that is not partitioned.
    """
    if partition is None:
        return [(publish_all.encode(), c.SID_PUBLISH)]
    return partition.rows(publish_all.encode().removesuffix(b".>"))


def ack_lines(subs: Iterable[Subscription]) -> bytes:
    """The SUB lines of the ack inboxes of live subscriptions."""
    return b"".join(
        b"SUB %b %d\r\n" % (s.ack_inbox, s.sid) for s in subs if publishable(s.ack_inbox)
    )
