"""Publishers who send as fast as they can share the core: nobody of them waits for all the others,
whenever who came.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.wire import messages
from ftstan.wire.frames import pub_frame
from tests.ft.client import StanClient
from tests.processes import READY

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes

CLIENTS = 32
SECONDS = 8.0


def test_of_many_publishers_all_get_their_acks(stage: Stage) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    clients = [StanClient(server.port, f"c{n}") for n in range(CLIENTS)]
    ends: dict[int, tuple[int, socket.socket]] = {}
    blocks = []
    for n, client in enumerate(clients):
        client.connect()
        publish = messages.PubMsg(
            client_id=client.client_id,
            conn_id=client.conn_id,
            guid=b"g" * 22,
            subject=b"ch%d" % n,
            data=b"x" * 100,
        )
        subject = b"%b.ch%d" % (client._subjects.publish.encode(), n)
        blocks.append(pub_frame(subject, client._acks_inbox, messages.encode(publish)) * 256)
        end = socket.socket(fileno=client.nats._link.fileno())
        end.setblocking(False)
        ends[end.fileno()] = n, end
    poll = select.poll()
    for fd in ends:
        poll.register(fd, select.POLLIN | select.POLLOUT)
    end_at = time.monotonic() + SECONDS
    got = [0] * CLIENTS
    at = [0] * CLIENTS
    while time.monotonic() < end_at:
        for fd, events in poll.poll(100):
            n, end = ends[fd]
            if events & select.POLLIN:
                got[n] += len(end.recv(1 << 20))
            if events & select.POLLOUT:
                at[n] = (at[n] + end.send(memoryview(blocks[n])[at[n] :])) % len(blocks[n])
    for _, end in ends.values():
        end.detach()
    assert min(got) > max(got) / 4, got
