"""Ports on loopback for servers that a rehearsal starts."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

LOOPBACK = "127.0.0.1"


def free_ports(
    count: int,
    first: int = 12_000,
    span: int = 4_000,
    *,
    but: Collection[int] = (),
) -> list[int]:
    """``count`` different loopback ports that nobody listens on, of the ``span`` from ``first`` on.

    From below the range that outgoing connections take theirs from: a node that was killed must get
    its port back.
    """
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(first, first + span)
        if port in but:
            continue
        with contextlib.suppress(OSError), socket.create_server((LOOPBACK, port)):
            found.add(port)
    return list(found)
