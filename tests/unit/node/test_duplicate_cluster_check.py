"""The guard: a server asks for its own cluster id as a client would, and what it makes of the
answers.
"""

from __future__ import annotations

import socket

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.node.duplicate_cluster_check import refuse_duplicates
from ftstan.wire import messages
from ftstan.wire.nuid import Nuid
from tests.compat.driver import SUBJECTS


class Network:
    """A link to a NATS server on which one other server may answer.

    ``sent`` is what was published.
    """

    max_payload = 1 << 20
    leftover = b""

    def __init__(self, answer: bytes | None) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.pending = False
        self._answer = answer
        self.sent: list[tuple[str, bytes]] = []

    def send(self, data: bytes, _deadline_s: float) -> None:
        _, found, rest = data.partition(b"PUB ")
        if not found:
            return
        words, _, behind = rest.partition(b"\r\n")
        subject, *reply, size = words.split(b" ")
        self.sent.append((subject.decode(), behind[: int(size)]))
        if reply and self._answer is not None:
            self._theirs.sendall(
                b"MSG %b 9 %d\r\n%b\r\n" % (reply[0], len(self._answer), self._answer)
            )

    def fileno(self) -> int:
        return self._ours.fileno()

    def recv_into(self, view: memoryview) -> int:
        try:
            return self._ours.recv_into(view)
        except BlockingIOError:
            return 0


def guard(network: Network) -> None:
    refuse_duplicates(network, SystemClock(), Nuid(), SUBJECTS.discovery, "tc")  # type: ignore[arg-type]


def test_the_guard_connects_with_the_cluster_id_and_starts_when_nobody_answers() -> None:
    network = Network(None)
    guard(network)
    ((subject, payload),) = network.sent
    request = messages.parse(messages.ConnectRequest, payload)
    assert subject == SUBJECTS.discovery
    assert request.client_id == b"tc"
    assert request.heartbeat_inbox


def test_a_server_that_accepts_the_guard_is_told_to_close_it_and_the_start_is_refused() -> None:
    accepted = messages.ConnectResponse(pub_prefix=b"p", close_requests=b"their.close")
    network = Network(messages.encode(accepted))
    with pytest.raises(
        NatsError, match=r'^discovered another streaming server with cluster ID "tc"$'
    ):
        guard(network)
    subject, payload = network.sent[-1]
    assert subject == "their.close"
    assert messages.parse(messages.CloseRequest, payload).client_id == b"tc"


@pytest.mark.parametrize(
    "answer", [messages.encode(messages.ConnectResponse(error=b"no")), b"\xff"]
)
def test_any_answer_refuses_the_start(answer: bytes) -> None:
    network = Network(answer)
    with pytest.raises(NatsError, match="discovered another streaming server"):
        guard(network)
    assert len(network.sent) == 1
