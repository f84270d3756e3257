"""Refusing to serve a cluster id that another server answers for (``docs/compat/protocol.md``, recovery).

Asked once, before a standalone server subscribes to anything: a connect request that any server of that id answers.
"""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING

from ftstan.base.errors import FtstanError, NatsError
from ftstan.base.log import stream as log
from ftstan.broker.constants import ANOTHER_SERVER, GUARD_TIMEOUT, SID_INBOX
from ftstan.wire import messages
from ftstan.wire.frames import Parser

if TYPE_CHECKING:
    from ftstan.base.clock import Clock
    from ftstan.nats.link import Link
    from ftstan.wire.nuid import Nuid
    from ftstan.wire.subjects import Subjects

_SEND_S = 2.0


def refuse_rivals(link: Link, clock: Clock, nuid: Nuid, subjects: Subjects, cluster_id: str) -> None:
    """Raise ``NatsError`` if another server answers for ``cluster_id``."""
    inbox = b"_INBOX." + nuid.next().encode()
    request = messages.encode(
        messages.ConnectRequest(client_id=cluster_id.encode(), heartbeat_inbox=b"_INBOX." + nuid.next().encode())
    )
    if len(request) > link.max_payload:
        raise NatsError(
            "request error detecting another server instance: nats: maximum payload exceeded",
            hint=f"max_payload of the NATS server is {link.max_payload} bytes: leave it out, or make it larger than any"
            " message",
        )
    discovery = subjects.discovery.encode()
    link.send(
        b"SUB %b %d\r\nPUB %b %b %d\r\n%b\r\n" % (inbox, SID_INBOX, discovery, inbox, len(request), request), _SEND_S
    )
    answer = _first_message(link, clock, GUARD_TIMEOUT / 1e9)
    link.send(b"UNSUB %d\r\n" % SID_INBOX, _SEND_S)
    if answer is None:
        log.debug("Did not detect another server instance")
        return
    with contextlib.suppress(FtstanError):
        response = messages.parse(messages.ConnectResponse, answer)
        if response.close_requests:
            close = messages.encode(messages.CloseRequest(client_id=cluster_id.encode()))
            link.send(b"PUB %b %d\r\n%b\r\n" % (response.close_requests, len(close), close), _SEND_S)
    raise NatsError(
        ANOTHER_SERVER.format(cluster_id=cluster_id),
        hint="stop the other server, or give this one another -cid",
    )


def _first_message(link: Link, clock: Clock, seconds: float) -> bytes | None:
    """The payload of the first message that comes; ``None`` after the time, or if nobody listens."""
    parser = Parser(link.max_payload)
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    buffer = bytearray(65536)
    end = clock.mono() + seconds
    events = parser.feed(link.leftover)
    while True:
        for event in events:
            if event[0] == "MSG":
                return bytes(event[4])
            if event[0] == "HMSG":
                return None
            if event[0] == "PING":
                link.send(b"PONG\r\n", _SEND_S)
        left = end - clock.mono()
        if left <= 0:
            return None
        poll.poll(0 if link.pending else left * 1000)
        events = []
        if n := link.recv_into(memoryview(buffer)):
            events = parser.feed(memoryview(buffer)[:n])
