"""A publisher that never waits for a single ack, and remembers what it was promised, over kills and
takeovers.

Each payload is unique, so a payload names its publish: what is read back is judged by payloads
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import NatsError

if TYPE_CHECKING:
    from tests.ft.client import StanClient

CHANNEL = b"orders"
_CHUNK = 64
_WINDOW = 1024
_SIZES = 600


class Load:
    """Publishes through one client after the other."""

    def __init__(self, channel: bytes = CHANNEL) -> None:
        self._channel = channel
        self._payloads: dict[bytes, bytes] = {}
        self._clients: list[StanClient] = []
        self._given_up = 0

    def join(self, client: StanClient) -> None:
        """Go on through ``client``, which is connected."""
        self._clients.append(client)

    def run(self, acks: int) -> None:
        """Publish until ``acks`` more have come, and return with many on their way."""
        client = self._clients[-1]
        goal = len(client.acks) + acks
        while len(client.acks) < goal:
            if self.unanswered < _WINDOW:
                self._offer(client)
            client.nats.read(0.001)
        # In the socket, applied, committed, or acked a moment ago: the server dies among all of
        # these.
        for _ in range(4):
            self._offer(client)

    def press(self, publishes: int) -> None:
        """Publish so many (whole chunks) and wait for nothing: who should answer may be paused."""
        for _ in range(0, publishes, _CHUNK):
            self._offer(self._clients[-1])

    def settle(self) -> None:
        """Take in every ack that the server owes for what it was sent before now."""
        client = self._clients[-1]
        last = self._offer(client)[-1]
        client.nats.pump(lambda: last in client.acks, "the last ack")

    def read_rest(self) -> None:
        """Take in what had left the server before it died; its NATS server lives."""
        self._clients[-1].nats.flush()

    @property
    def unanswered(self) -> int:
        """Publishes that nobody has acked, without those that were given up."""
        return len(self._payloads) - self._given_up - self._answered

    def give_up(self) -> None:
        """What is unanswered now may stay so: the server that had it was killed."""
        self._given_up = len(self._payloads) - self._answered

    def read_last_acks(self) -> None:
        """Take in what had left the server before it, and its NATS server, died."""
        try:
            while True:
                self._clients[-1].nats.read(1.0)
        except NatsError:
            self.give_up()

    def judge(self, contents: dict[int, bytes]) -> None:
        """Fail unless everything acked is among ``contents`` (sequence -> payload), each publish
        once.
        """
        stored = set(contents.values())
        assert len(stored) == len(contents), "one publish was stored twice"
        acked = [guid for client in self._clients for guid in client.acks]
        gone = [self._payloads[guid][:16] for guid in acked if self._payloads[guid] not in stored]
        assert not gone, (
            f"{len(gone)} of {len(acked)} acked publishes are gone, the first: {gone[:5]}"
        )
        for client in self._clients:
            assert not client.errors
            assert set(client.acks.values()) == {1}, "one publish was acked twice"

    def judge_at_least_once(self, contents: dict[int, bytes]) -> None:
        """Fail unless everything acked is among ``contents``; what was not may be there, too."""
        stored = set(contents.values())
        acked = [guid for client in self._clients for guid in client.acks]
        gone = [self._payloads[guid][:16] for guid in acked if self._payloads[guid] not in stored]
        assert acked
        assert not gone, f"{len(gone)} of {len(acked)} acked publishes are gone: {gone[:5]}"

    @property
    def _answered(self) -> int:
        return sum(len(client.acks) for client in self._clients)

    def _offer(self, client: StanClient) -> list[bytes]:
        first = len(self._payloads)
        payloads = [b"%d " % n + b"x" * (n % _SIZES) for n in range(first, first + _CHUNK)]
        guids = client.offer(self._channel, *payloads)
        self._payloads |= zip(guids, payloads, strict=True)
        return guids
