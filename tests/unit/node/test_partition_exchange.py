"""One server's part in the exchange, on a real NATS server, with a peer that says what a test
wants.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import pytest
from nats.aio.client import Client

from ftstan.base.clock import SystemClock
from ftstan.base.errors import ConflictError, FtstanError, NatsError
from ftstan.config.options import ChannelLimits, LinkOptions, ServerOptions, StoreLimits
from ftstan.config.units import SECOND
from ftstan.nats import tasks
from ftstan.nats.embedded import NatsServerChild, NatsServerOptions
from ftstan.node import partition_exchange as module
from ftstan.node.partition_exchange import Exchange
from ftstan.node.partitioning import Partitioning
from ftstan.stores.interface import ClientInfo, ServerInfo
from ftstan.stores.protos import decode_client, encode_client
from ftstan.wire import partition as wire
from ftstan.wire.partition import Sender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.msg import Msg

    from ftstan.node.node import Node

pytestmark = pytest.mark.processes

PATIENCE_S = 30.0
OPTIONS = ServerOptions(cluster_id="c", partition_wait=20 * SECOND)
ME = Sender(b"me")
PEER = Sender(b"peer")
ALICE = ClientInfo(b"alice", b"hb.alice", b"conn.alice", 1, 5, 3)


@dataclass
class Server:
    """What an exchange told its node.

    ``clients`` are those that it knows, ``learned`` what it was told.
    """

    url: str
    names: list[bytes]
    clients: list[ClientInfo] = field(default_factory=list)
    learned: list[ClientInfo] = field(default_factory=list)
    conflicts: list[tuple[FtstanError, bool]] = field(default_factory=list)

    def exchange(self, options: ServerOptions = OPTIONS, sender: Sender = ME) -> Exchange:
        async def known() -> list[ClientInfo]:
            return self.clients

        async def learn(infos: list[ClientInfo]) -> None:
            self.learned += infos

        return Exchange(
            options,
            [self.url],
            sender,
            self.names,
            presented=LinkOptions(),
            inbox=f"_INBOX.{sender.server_id.decode()}",
            clock=SystemClock(),
            on_conflict=lambda error, late: self.conflicts.append((error, late)),
            known=known,
            learn=learn,
        )


class Peer:
    """A NATS client."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def listen(self, subject: str) -> list[Msg]:
        heard: list[Msg] = []

        async def take(message: Msg) -> None:
            heard.append(message)

        await self.client.subscribe(subject, cb=take)
        # A ping of nats-py overtakes what it has not written yet; the second one is behind that.
        await self.client.flush()
        await self.client.flush()
        return heard


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110  # what is waited for happens in several places
            await asyncio.sleep(0.005)


def run(work: Callable[[NatsServerChild, Peer], Awaitable[None]]) -> None:
    """Run a test between a NATS server's start and end."""

    async def life() -> None:
        child = NatsServerChild(NatsServerOptions(cluster_id="c", host="127.0.0.1", port=-1))
        await child.start()
        client = Client()
        await client.connect(child.client_url)
        try:
            await work(child, Peer(client))
        finally:
            await client.close()
            await child.stop()

    asyncio.run(life())


def test_an_objection_ends_the_wait_at_once() -> None:
    async def work(child: NatsServerChild, peer: Peer) -> None:
        lists = await peer.listen("_STAN.part.c")
        server = Server(child.client_url, [b"foo"])
        exchange = server.exchange()
        await exchange.start()
        await until(lambda: lists)
        await peer.client.publish(lists[0].reply, wire.reply(PEER, None))
        await peer.client.publish(lists[0].reply, wire.reply(PEER, b"foo"))
        with pytest.raises(
            ConflictError, match=r'^channel "foo" causes conflict with channels on server "peer"$'
        ):
            async with asyncio.timeout(PATIENCE_S):
                await exchange.settled(patient=False)
        assert [late for _, late in server.conflicts] == [False]
        await exchange.close()

    run(work)


def test_without_an_objection_the_wait_ends_and_a_later_one_is_late() -> None:
    async def work(child: NatsServerChild, peer: Peer) -> None:
        lists = await peer.listen("_STAN.part.c")
        server = Server(child.client_url, [b"foo"])
        exchange = server.exchange(replace(OPTIONS, partition_wait=1))
        await exchange.start()
        await exchange.settled(patient=False)
        assert server.conflicts == []
        await until(lambda: lists)
        for _ in range(2):
            await peer.client.publish(lists[0].reply, wire.reply(PEER, b"foo"))
        await until(lambda: server.conflicts)
        assert [(str(error), late) for error, late in server.conflicts] == [
            ('channel "foo" causes conflict with channels on server "peer"', True)
        ]
        await exchange.close()

    run(work)


def test_every_piece_of_a_list_is_answered() -> None:
    async def work(child: NatsServerChild, peer: Peer) -> None:
        exchange = Server(child.client_url, [b"c7"]).exchange()
        await exchange.start()
        await until(exchange._sent.is_set)
        answers = await peer.listen("answers")
        pieces = wire.requests(PEER, [b"c%d" % i for i in range(10)], 30)
        for piece in pieces:
            await peer.client.publish("_STAN.part.c", piece, reply="answers")
        await until(lambda: len(answers) == len(pieces))
        told = [wire.decode(answer.data)[1] for answer in answers]
        assert len(pieces) > 2
        assert sorted(told) == [b""] * (len(pieces) - 1) + [b"c7"]
        await exchange.close()

    run(work)


def test_a_list_is_sent_again_when_the_connection_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPREAD_S", 0.01)

    async def work(child: NatsServerChild, peer: Peer) -> None:
        lists = await peer.listen("_STAN.part.c")
        exchange = Server(child.client_url, [b"foo"]).exchange()
        await exchange.start()
        await until(lambda: lists)
        connection = exchange._control._client
        assert connection is not None
        await connection.close()
        await until(lambda: len(lists) == 2)
        assert lists[0].data == lists[1].data
        await exchange.close()

    run(work)


def test_after_its_end_nothing_is_answered() -> None:
    async def work(child: NatsServerChild, peer: Peer) -> None:
        exchange = Server(child.client_url, [b"foo"]).exchange()
        await exchange.start()
        await until(exchange._sent.is_set)
        await exchange.close()
        answers = await peer.listen("answers")
        (piece,) = wire.requests(PEER, [b"foo"], 1 << 20)
        await peer.client.publish("_STAN.part.c", piece, reply="answers")
        await until(lambda: answers)
        # By the NATS server: nobody listens there.
        assert [(answer.headers or {}).get("Status") for answer in answers] == ["503"]

    run(work)


def test_a_list_that_cannot_be_sent_ends_a_standalone_start_and_not_that_of_a_member(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SEND_WITHIN_S", 0.01)

    async def work() -> None:
        exchange = Server("nats://127.0.0.1:1", [b"foo"]).exchange()
        await exchange.start()
        with pytest.raises(NatsError, match=r"^unable to send channels list: nats: timeout$"):
            await exchange.settled(patient=False)
        await exchange.settled(patient=True)
        await exchange.close()

    asyncio.run(work())
    assert (
        "unable to send channels list: nats: timeout: other partitions have not been asked yet"
        in (capfd.readouterr().err)
    )


def test_one_that_serves_tells_its_clients_and_takes_those_of_others() -> None:
    async def work(child: NatsServerChild, peer: Peer) -> None:
        other = Sender(b"other")
        old = Server(
            child.client_url, [b"foo"], clients=[ALICE, replace(ALICE, hb_inbox=b"x" * 5000)]
        )
        new = Server(child.client_url, [b"bar"])
        exchanges = [old.exchange(), new.exchange(sender=other)]
        for exchange in exchanges:
            await exchange.start()
            await until(exchange._sent.is_set)
        asked = await peer.listen("_FTSTAN.part.c")
        await exchanges[0].ask_for_clients()
        await exchanges[1].ask_for_clients()
        await until(lambda: new.learned)
        assert (new.learned, old.learned) == ([ALICE], [])
        await until(lambda: {wire.decode(message.data)[0] for message in asked} == {ME, other})
        questions = {wire.decode(message.data)[0]: message for message in asked}
        # What is none is told in a line, and ends nothing.
        await peer.client.publish(questions[other].reply, b"\x0f")
        (told,) = wire.requests(PEER, [encode_client(replace(ALICE, client_id=b"bob"))], 1 << 20)
        await peer.client.publish(questions[other].reply, told)
        await until(lambda: len(new.learned) == 2)
        for exchange in exchanges:
            await exchange.close()

    run(work)


def test_who_serves_asks_back_once_whoever_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were away in turn: the one that asked first had nobody to ask."""
    monkeypatch.setattr(module, "SPREAD_S", 0.05)

    async def work(child: NatsServerChild, peer: Peer) -> None:
        first = Server(child.client_url, [b"foo"])
        late = Server(child.client_url, [b"bar"], clients=[ALICE])
        options = replace(OPTIONS, partition_wait=SECOND // 100)
        exchanges = [first.exchange(options), late.exchange(options, Sender(b"other"))]
        for exchange in exchanges:
            await exchange.start()
            await exchange.settled(patient=False)
        asked = await peer.listen("_FTSTAN.part.c")
        await exchanges[1].ask_for_clients()
        await until(lambda: first.learned)
        assert first.learned == [ALICE]
        # An answer to that, and nothing more.
        await asyncio.sleep(0.5)
        senders = [wire.decode(message.data)[0].server_id for message in asked]
        assert senders == [b"other", b"me"]
        for exchange in exchanges:
            await exchange.close()

    run(work)


def test_lists_are_answered_while_whoever_knows_the_clients_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_WORK_WITHIN_S", 0.05)

    async def work(child: NatsServerChild, peer: Peer) -> None:
        server = Server(child.client_url, [b"foo"])
        exchange = server.exchange()
        exchange._known = asyncio.Event().wait  # type: ignore[assignment]
        await exchange.start()
        await until(exchange._sent.is_set)
        answers = await peer.listen("answers")
        (piece,) = wire.requests(PEER, [b"foo"], 1 << 20)
        await peer.client.publish("_FTSTAN.part.c", wire.reply(PEER, None), reply="answers")
        await peer.client.publish("_STAN.part.c", piece, reply="answers")
        await until(lambda: answers)
        assert [wire.decode(answer.data)[1] for answer in answers] == [b"foo"]
        await exchange.close()

    run(work)


def test_what_nobody_thought_of_ends_the_server_with_its_name() -> None:
    async def work(child: NatsServerChild, peer: Peer) -> None:
        server = Server(child.client_url, [b"foo"])
        ends: list[str] = []
        tasks.end_server_with(ends.append)
        exchange = server.exchange()

        async def broken() -> list[ClientInfo]:
            raise KeyError("odd")

        exchange._known = broken
        await exchange.start()
        await until(exchange._sent.is_set)
        await peer.client.publish("_FTSTAN.part.c", wire.reply(PEER, None), reply="answers")
        await until(lambda: ends)
        assert ends[0].startswith(
            "the task partitioning ended: KeyError: 'odd' (test_partition_exchange.py:"
        )
        await exchange.close()

    run(work)


def test_a_registration_is_read_as_it_was_written() -> None:
    assert decode_client(encode_client(ALICE)) == ALICE


@dataclass
class FakeNode:
    options: ServerOptions


@pytest.mark.parametrize(
    ("prefix", "lines"), [("_STAN.pub.c", 0), ("_STAN.pub.Gv6m3Rpu8U4wfDhDbjJHq5", 1)]
)
def test_a_store_with_subjects_of_an_old_release_is_warned_of(
    prefix: str, lines: int, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = StoreLimits(channels=(("foo", ChannelLimits()),))
    node = FakeNode(ServerOptions(cluster_id="c", partitioning=True, limits=limits))
    info = ServerInfo("c", "d", prefix, "s", "u", "c", "sc", "a")
    Partitioning(cast("Node", node)).check(info)
    Partitioning(cast("Node", FakeNode(ServerOptions(cluster_id="c")))).check(info)
    assert capfd.readouterr().err.count("keeps the subjects of an old release") == lines
