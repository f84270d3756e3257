"""The ends and ranges of channels as a client sees them, from a server that loses what the test
tells it to lose.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

import ftstan.client
from ftstan.client import RequestRefusedError, Start
from ftstan.spark import following
from ftstan.spark.following import RangeReader, ServerSilentError, Tails
from ftstan.spark.losses import DataLossError, Losses
from ftstan.spark.offsets import FIRST, Range
from ftstan.wire.messages import StartPosition
from tests.client.fake import FakeNats, FakeStan, on_a_loop, until
from tests.processes import CLUSTER, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftstan.spark.offsets import Offsets
    from tests.compat.players.natswire import Operation


class Logged(FakeStan):
    """It has a log of sequences, and loses what ``losing`` says on the way: for each subscription
    in turn, some.
    """

    def __init__(self, nats: FakeNats, log: Iterable[int], losing: Iterable[set[int]] = ()) -> None:
        super().__init__(nats)
        self.log = sorted(log)
        self._losing = list(losing)
        self._left: list[list[int]] = []

    def _on_subscribe(self, operation: Operation) -> None:
        super()._on_subscribe(operation)
        request = self.of("subscribe")[-1]
        if not self.answers_subscribes or self.subscribe_error:
            return
        start = {
            StartPosition.SEQUENCE_START: request.start_sequence,
            StartPosition.LAST_RECEIVED: self.log[-1] if self.log else 0,
            StartPosition.FIRST: 0,
            StartPosition.NEW_ONLY: sys.maxsize,
        }[request.start_position]
        lost = self._losing.pop(0) if self._losing else set()
        left = [sequence for sequence in self.log if sequence >= start and sequence not in lost]
        self._left.append(left)
        for _ in range(min(request.max_in_flight, len(left))):
            self._send(-1)

    def publish(self, sequence: int) -> None:
        """Store a message, and send it to the newest subscription if all that it was sent is
        acknowledged.
        """
        self.log.append(sequence)
        self._left[-1].append(sequence)
        if len(self.acks[self.ack_inboxes[-1]]):
            self._send(-1)

    def _send(self, number: int) -> None:
        self.deliver(self._left[number].pop(0), inbox=number)

    def _on_ack(self, operation: Operation) -> None:
        super()._on_ack(operation)
        number = self.ack_inboxes.index(operation.subject)
        if self._left[number]:
            self._send(number)


async def logged(log: Iterable[int], losing: Iterable[set[int]] = ()) -> Logged:
    nats = FakeNats()
    await nats.open()
    return Logged(nats, log, losing)


async def read(server: Logged, wanted: Range, *, fail: bool = False, **more: Any) -> list[int]:
    """The sequences that a reader gives, in its order."""
    found = []
    async with await ftstan.client.connect(
        CLUSTER, "me", servers=server.nats.url, request_timeout=5
    ) as client:
        usual: dict[str, Any] = {"max_in_flight": 64, "patience": 60.0, "lost": Losses(fail).gone}
        reader = RangeReader(client, wanted, **usual | more)
        while messages := await reader.batch():
            found += [message.sequence for message in messages]
    await server.nats.close()
    return found


async def changed(tails: Tails, former: Offsets) -> Offsets:
    """What the ends are when they are not any more what they were."""
    async with asyncio.timeout(PATIENCE_S):
        while (found := await tails.latest()) == former:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)
    return found


@on_a_loop
async def test_a_range_is_read_to_its_end_and_not_beyond() -> None:
    server = await logged(range(1, 40))
    assert await read(server, Range("foo", 5, 30)) == list(range(5, 30))
    assert len(server.of("subscribe")) == 1
    assert server.of("subscribe")[0].max_in_flight == 25


@on_a_loop
async def test_what_was_lost_on_its_way_is_asked_for_again() -> None:
    server = await logged(range(1, 20), losing=[{7, 8}, {12}])
    assert await read(server, Range("foo", 1, 20), fail=True) == list(range(1, 20))


@on_a_loop
async def test_a_first_message_that_was_lost_on_its_way_is_no_gap() -> None:
    server = await logged(range(1, 20), losing=[{5}])
    assert await read(server, Range("foo", 5, 10), fail=True) == list(range(5, 10))


@on_a_loop
async def test_messages_that_expired_are_a_loss_that_is_said_and_read_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = await logged([*range(8, 12), *range(15, 20)])
    assert await read(server, Range("foo", 5, 20)) == [*range(8, 12), *range(15, 20)]
    said = capsys.readouterr().err
    assert "foo: messages 5 to 7 are gone" in said
    assert "foo: messages 12 to 14 are gone" in said


@on_a_loop
async def test_messages_that_expired_end_a_strict_reader() -> None:
    server = await logged(range(8, 12))
    with pytest.raises(DataLossError, match="messages 5 to 7 are gone"):
        await read(server, Range("foo", 5, 12), fail=True)
    await server.nats.close()


@on_a_loop
async def test_where_a_channel_begins_is_no_loss() -> None:
    server = await logged(range(8, 12))
    assert await read(server, Range("foo", FIRST, 12), fail=True) == list(range(8, 12))


@on_a_loop
async def test_a_range_of_which_nothing_is_left_is_a_loss_and_has_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(following, "_LONG_SILENCE_S", 0.3)
    server = await logged([])
    assert await read(server, Range("foo", 5, 12)) == []
    assert "foo: messages 5 to 11 are gone" in capsys.readouterr().err
    assert len(server.of("subscribe")) == 2


@on_a_loop
async def test_a_server_that_does_not_answer_for_too_long_is_an_error_and_no_loss() -> None:
    server = await logged(range(1, 5))
    server.answers_subscribes = False
    with pytest.raises(ServerSilentError, match="nobody has answered for 1 s"):
        await read(server, Range("foo", 1, 5), patience=1)
    await server.nats.close()


@on_a_loop
async def test_a_server_that_refuses_for_good_is_told_in_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "_REFUSED_S", 0.2)
    server = await logged([])
    server.subscribe_error = "too many channels"
    with pytest.raises(RequestRefusedError, match="too many channels"):
        await read(server, Range("foo", 1, 5))
    await server.nats.close()


@on_a_loop
async def test_while_nothing_is_published_nothing_is_asked() -> None:
    server = await logged([3, 4, 5])
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        tails = Tails(client, ["foo"], 60.0)
        for _ in range(5):
            assert await tails.latest() == {"foo": 6}
        assert len(server.of("subscribe")) == 1
        assert await tails.firsts(["foo"], Start.first()) == {"foo": 3}
    await server.nats.close()


@on_a_loop
async def test_when_something_was_published_the_end_is_asked_for_again() -> None:
    server = await logged([3, 4, 5])
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        tails = Tails(client, ["foo"], 60.0)
        assert await tails.latest() == {"foo": 6}
        await until(
            lambda: server.acks[server.ack_inboxes[-1]] == [5], "the ack that asks for more"
        )
        server.publish(6)
        server.log.append(7)
        assert await changed(tails, {"foo": 6}) == {"foo": 8}
        assert len(server.of("subscribe")) == 2
    await server.nats.close()


@on_a_loop
async def test_a_channel_without_messages_has_no_end_until_its_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "SILENCE_S", 0.2)
    server = await logged([])
    async with await ftstan.client.connect(CLUSTER, "me", servers=server.nats.url) as client:
        tails = Tails(client, ["foo"], 60.0)
        assert await tails.latest() == {}
        assert await tails.latest() == {}
        # The second one only asked whether the server had its turn with the first.
        assert len(server.of("subscribe")) == 2
        server.log.append(1)
        server.deliver(1, inbox=0)
        assert await changed(tails, {}) == {"foo": 2}
    await server.nats.close()
