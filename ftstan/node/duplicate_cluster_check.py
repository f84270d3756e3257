"""Refusing to serve a cluster id that another server answers for (``docs/compat/protocol.md``,
recovery).

Asked once, before a standalone server subscribes to anything: a connect request that any server of
that id answers.
"""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING

from ftstan.base.errors import FtstanError, NatsError
from ftstan.base.log import stream as log
from ftstan.broker.constants import ANOTHER_SERVER, GUARD_TIMEOUT, SID_GUARD
from ftstan.wire import messages
from ftstan.wire.frames import Parser

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.nats.link import Link
    from ftstan.wire.nuid import Nuid

_SEND_S = 2.0


class Guard:
    """The question of one server, and what it makes of the answer.

    ``lines`` asks: whoever sends them subscribes to nothing before them.
    """

    def __init__(self, nuid: Nuid, discovery: str, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        inbox = b"_INBOX." + nuid.next().encode()
        request = messages.encode(
            messages.ConnectRequest(
                client_id=cluster_id.encode(), heartbeat_inbox=b"_INBOX." + nuid.next().encode()
            )
        )
        self.size = len(request)
        self.lines = b"SUB %b %d\r\nPUB %b %b %d\r\n%b\r\n" % (
            inbox,
            SID_GUARD,
            discovery.encode(),
            inbox,
            self.size,
            request,
        )

    def refuse_duplicates(self, link: Link, clock: Clock) -> bytes:
        """Wait for the answer; returns all that was read meanwhile, which begins with
        ``link.leftover``.

        Raises ``NatsError`` if another server answers.
        """
        read, answer = _read_answer(link, clock, GUARD_TIMEOUT / 1e9)
        link.send(b"UNSUB %d\r\n" % SID_GUARD, _SEND_S)
        if answer is None:
            return read
        with contextlib.suppress(FtstanError):
            response = messages.parse(messages.ConnectResponse, answer)
            if response.close_requests:
                close = messages.encode(messages.CloseRequest(client_id=self._cluster_id.encode()))
                link.send(
                    b"PUB %b %d\r\n%b\r\n" % (response.close_requests, len(close), close), _SEND_S
                )
        raise NatsError(
            ANOTHER_SERVER.format(cluster_id=self._cluster_id),
            hint="stop the other server, or give this one another -cid",
        )


def refuse_duplicates(
    link: Link, clock: Clock, nuid: Nuid, discovery: str, cluster_id: str
) -> None:
    """Ask on a link that is up and not subscribed to anything.

    Raises ``NatsError`` if another server answers for ``cluster_id``.
    """
    guard = Guard(nuid, discovery, cluster_id)
    if guard.size > link.max_payload:
        raise NatsError(
            "request error detecting another server instance: nats: maximum payload exceeded",
            hint=f"max_payload of the NATS server is {link.max_payload} bytes: leave it out, or "
            "make it larger than any"
            " message",
        )
    link.send(guard.lines, _SEND_S)
    # Nothing else is listened to yet: what was read beside the answer says nothing.
    guard.refuse_duplicates(link, clock)
    tell_alone()


def tell_alone() -> None:
    """Log that nobody has answered, at the place in the log where the original says so."""
    log.debug("Did not detect another server instance")


def _read_answer(link: Link, clock: Clock, seconds: float) -> tuple[bytes, bytes | None]:
    """All that comes until the guard is answered, and the payload of the answer.

    No payload after the time, or if nobody listens.
    """
    parser = Parser(link.max_payload)
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    buffer = bytearray(65536)
    end = clock.mono() + seconds
    read = bytearray(link.leftover)
    events = parser.feed(link.leftover)
    while True:
        for event in events:
            if event[0] == "MSG" and event[2] == SID_GUARD:
                return bytes(read), bytes(event[4])
            if event[0] == "HMSG" and event[2] == SID_GUARD:
                return bytes(read), None
            if event[0] == "PING":
                link.send(b"PONG\r\n", _SEND_S)
        left = end - clock.mono()
        if left <= 0:
            return bytes(read), None
        poll.poll(0 if link.pending else left * 1000)
        events = []
        if n := link.recv_into(memoryview(buffer)):
            read += buffer[:n]
            events = parser.feed(memoryview(buffer)[:n])
