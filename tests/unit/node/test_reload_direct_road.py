"""A reload that ends the direct road, keeps it or cannot bring it back; and the longest line."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ftstan.base import log
from ftstan.base.errors import FtstanError, NatsError, UnansweredError
from ftstan.config.options import (
    LinkOptions,
    NatsOptions,
    ServerOptions,
    ServerTlsOptions,
)
from ftstan.front.listener import LOOPBACK
from ftstan.nats.direct_road import open_front
from ftstan.nats.embedded import NatsServerChild
from ftstan.nats.generated import child_options
from ftstan.node.node import Node
from ftstan.node.reload import Reloader
from tests.processes import until
from tests.tls_pipe import greeted
from tests.unit.front.sessions import CORE, LOGIN, Peer, Place, place, pub

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from ftstan.front.listener import Front
    from ftstan.nats.generated import NatsServerOptions
    from tests.certificates import Certificates

pytestmark = pytest.mark.processes

_USER = b'CONNECT {"verbose":false,"pedantic":false,"user":"a","pass":"b"}\r\n'
_TOO_LONG = b"-ERR 'maximum control line exceeded'"
_ALONE = "[WRN] Clients are served by the NATS server alone: "
_NEXT_START = "the direct road, which the configuration allows again, comes with the next start"
_BACK = "[INF] Clients are served directly again: the configuration allows it"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    log.configure(file=str(tmp_path / "x.log"), logtime=False)
    yield tmp_path / "x.log"
    log.configure()


def lines(path: Path) -> list[str]:
    assert log.flush(60)
    said = (line.partition("] ")[2] for line in path.read_text().splitlines())
    return [line.partition(" [FTS-")[0] for line in said if "[WRN]" in line or "[ERR]" in line]


class Standing:
    """A NATS server with the listener in front of it, a core, and reloads."""

    def __init__(self, options: ServerOptions, front: Front, child: NatsServerChild) -> None:
        self.front = front
        self._child = child
        self._peers: list[Peer] = []
        self._node = cast("Any", SimpleNamespace(options=options, front=front, link=None))
        self._reloader = Reloader(self._node, None, lambda _: None)

    def core(self, lines: bytes, login: bytes = LOGIN) -> Peer:
        server = socket.create_connection((LOOPBACK, self.front.server_port))
        core = Peer(self.front.attach(server), login)
        core.send(lines)
        core.settle()
        self._peers.append(core)
        return core

    def client(self, login: bytes = LOGIN) -> Peer:
        client = Peer(socket.create_connection((LOOPBACK, self.front.port)), login)
        client.settle()
        self._peers.append(client)
        return client

    async def reload(self, new: ServerOptions) -> None:
        await self._reloader._reload_child(self._child, self.front, new)
        self._node.options = new

    def leave(self) -> None:
        for peer in self._peers:
            peer.close()


def standing(options: ServerOptions, work: Callable[[Standing], Awaitable[None]]) -> None:
    async def stand() -> None:
        front = open_front(options)
        child = NatsServerChild(child_options(options), front=front)
        await child.start()
        front.be_direct(on=True)
        front.listen()
        here = Standing(options, front, child)
        try:
            await work(here)
        finally:
            here.leave()
            await child.stop()
            front.stop()

    asyncio.run(stand())


def options_of(settings: dict[str, object], **nats: Any) -> ServerOptions:
    return ServerOptions(nats=NatsOptions(host=LOOPBACK, port=-1, settings=settings, **nats))


def test_a_reload_that_the_nats_server_refuses_leaves_the_direct_road(path: Path) -> None:
    async def work(here: Standing) -> None:
        core, client = here.core(CORE), here.client()
        refused: list[dict[str, object]] = [{"max_subscriptions": 5}, {"leafnodes": {"port": -1}}]
        for settings in refused:
            with pytest.raises(NatsError, match="not supported"):
                await here.reload(options_of(settings))
        client.send(pub(b"core.a", b"1"))
        core.wait_for(1)
        status = here.front.status()
        assert (status.is_direct, status.direct_in, status.passing) == (True, 1, 0)

    standing(options_of({}), work)
    assert lines(path) == []


def test_clients_go_over_to_the_nats_server_alone_and_come_back(path: Path) -> None:
    async def work(here: Standing) -> None:
        core, client, other = here.core(CORE), here.client(), here.client()
        client.send(b"SUB in.1 1\r\n")
        client.settle()
        count = 0

        def exchange() -> None:
            """One message each way, of two clients."""
            nonlocal count
            count += 1
            client.send(pub(b"core.a", b"%d" % count))
            other.send(pub(b"acks.1", b""))
            core.send(pub(b"in.1", b"%d" % count))
            core.wait_for(2 * count)
            client.wait_for(count)

        exchange()
        before = here.front.status()
        assert (before.direct_in, before.direct_out, before.passing) == (2, 1, 0)
        await here.reload(options_of({"mappings": {"x": "y"}}))
        exchange()
        # As if a standby became active.
        here.front.be_direct(on=True)
        await here.reload(options_of({"mappings": {"x": "z"}}))
        exchange()
        late = here.client()
        late.send(b"SUB in.1 1\r\n" + pub(b"acks.2", b""))
        late.settle()
        core.wait_for(7)
        status = here.front.status()
        assert (status.direct_in, status.direct_out) == (2, 1)
        assert (status.is_direct, status.passing, status.connections) == (False, 3, 3)
        await here.reload(options_of({}))
        late.send(pub(b"acks.2", b""))
        client.send(pub(b"core.a", b"4"))
        core.wait_for(9)
        core.send(pub(b"in.1", b"4"))
        client.wait_for(4)
        late.wait_for(1)
        status = here.front.status()
        assert (status.direct_in, status.direct_out) == (4, 3)
        assert (status.is_direct, status.passing, status.connections) == (True, 0, 3)
        # Once more.
        await here.reload(options_of({"mappings": {"x": "y"}}))
        await here.reload(options_of({}))
        client.send(pub(b"core.a", b"5"))
        core.wait_for(10)
        assert here.front.status().direct_in == 5
        assert [m.payload for m in client.messages] == [b"1", b"2", b"3", b"4"]
        assert [client.lines, other.lines] == [[], []]
        assert not any(peer.is_over for peer in (core, client, other, late))

    standing(options_of({}), work)
    # A line that comes again soon is not written again.
    assert lines(path) == [f'{_ALONE}the NATS server has "mappings"']
    assert _BACK in path.read_text()


def test_permissions_that_a_reload_brings_hold_for_who_has_been_there() -> None:
    async def work(here: Standing) -> None:
        core, client = here.core(CORE, _USER), here.client(_USER)
        client.send(pub(b"core.a", b"1"))
        core.wait_for(1)
        user = {"user": "a", "password": "b", "permissions": {"publish": {"deny": "core.>"}}}
        await here.reload(options_of({"authorization": {"users": [user]}}))
        client.send(pub(b"core.a", b"2") + pub(b"acks.1", b"3"))
        client.settle()
        assert any(b"Permissions Violation for Publish" in line for line in client.lines)
        core.wait_for(2)
        core.settle()
        assert [m.payload for m in core.messages] == [b"1", b"3"]

    standing(options_of({}, user="a", password="b"), work)


def test_who_connects_with_a_certificate_behind_a_reload_is_served(
    certificates: Certificates,
) -> None:
    """TLS is between the client and the NATS server then; who was there before stays."""
    pair = certificates.server
    tls = ServerTlsOptions(
        enabled=True,
        cert_file=pair.cert,
        key_file=pair.key,
        verify=True,
        ca_file=certificates.ca.cert,
    )
    context = ssl.create_default_context(cafile=certificates.ca.cert)
    context.check_hostname = False
    context.load_cert_chain(pair.cert, pair.key)
    old = options_of({})
    new = replace(
        old, nats=replace(old.nats, tls=tls), link=LinkOptions(client_ca=certificates.ca.cert)
    )

    async def work(here: Standing) -> None:
        core, early = here.core(CORE), here.client()
        await here.reload(new)
        plain, _ = greeted(LOOPBACK, here.front.port)
        late = Peer(context.wrap_socket(plain))
        late.send(b"SUB in.1 1\r\n")
        late.settle()
        payload = bytes(range(256)) * 200
        late.send(pub(b"core.a", payload))
        core.wait_for(1)
        core.send(pub(b"in.1", payload))
        late.wait_for(1)
        assert core.messages[0].payload == late.messages[0].payload == payload
        early.send(pub(b"core.a", b"2"))
        core.wait_for(2)
        late.close()

    standing(old, work)


class Deciding:
    """Stands in for the NATS server, which takes its time. ``core`` hears nothing meanwhile."""

    def __init__(self, here: Place, outcome: BaseException | None) -> None:
        self.core = here.core(CORE)
        self._client = here.client()
        self._client.settle()
        self._outcome = outcome

    async def reload(self, _: NatsServerOptions) -> None:
        self._client.send(pub(b"core.a", b"meanwhile"))
        await asyncio.sleep(0.2)
        self.core.settle()
        assert self.core.messages == []
        if self._outcome is not None:
            raise self._outcome


@pytest.mark.parametrize(
    ("outcome", "direct", "passed"),
    [
        (None, 0, 1),
        (NatsError("no"), 1, 0),
        (UnansweredError("?"), 0, 1),
        (asyncio.CancelledError(), 0, 1),
    ],
)
def test_what_is_published_while_a_reload_may_end_the_direct_road_waits_for_its_outcome(
    tmp_path: Path, outcome: BaseException | None, direct: int, passed: int
) -> None:
    old = options_of({})
    with place(tmp_path / "nats") as here:
        child = Deciding(here, outcome)
        node = cast("Any", SimpleNamespace(options=old, front=here.front, link=None))
        reload = Reloader(node, None, lambda _: None)._reload_child(
            cast("NatsServerChild", child), here.front, options_of({"mappings": {"x": "y"}})
        )
        with contextlib.suppress(FtstanError, asyncio.CancelledError):
            asyncio.run(reload)
        child.core.wait_for(1)
        status = here.front.status()
        assert (status.direct_in, status.passed_in) == (direct, passed)
        assert status.is_direct is (direct == 1)


def test_a_listener_that_gave_up_the_direct_road_by_itself_does_not_say_that_it_has_it(
    tmp_path: Path,
) -> None:
    with place(tmp_path / "nats") as here:
        core, client = here.core(CORE), here.client()
        # One message suits more subscriptions than the listener looks at.
        client.send(b"".join(b"SUB in.1 group%d %d\r\n" % (n, n) for n in range(65)))
        client.settle()
        core.send(pub(b"in.1", b""))
        client.wait_for(65)
        until(lambda: not here.front.status().is_direct, "it says so")
        here.front.be_direct(on=True)
        assert not here.front.status().is_direct
        # Nor does a reload change that.
        here.front.forbid()
        here.front.allow()
        client.settle()
        assert not here.front.status().is_direct
        assert here.front.is_forbidden_for_good


def longest(client: Peer, size: int) -> bool:
    """Whether a line with an argument of so many bytes is taken, and reaches the core directly."""
    client.send(b"PUB core.a " + b"r" * (size - 9) + b" 0\r\n\r\n")
    client.settle()
    assert client.is_over is (_TOO_LONG in client.lines)
    return not client.is_over


@pytest.mark.parametrize("configured", [0, 200, 9000])
def test_lines_are_as_long_as_configured_at_the_start_and_behind_a_reload(configured: int) -> None:
    async def work(here: Standing) -> None:
        core, old = here.core(CORE), here.client()
        count = 0

        def check(most: int, client: Peer) -> None:
            nonlocal count
            assert longest(client, most)
            count += 1
            core.wait_for(count)
            assert here.front.status().direct_in == count
            assert not longest(here.client(), most + 1)
            core.settle()
            assert len(core.messages) == count

        check(configured or 4096, old)
        for other in (12_000, 300, 0):
            await here.reload(options_of({"max_control_line": other}))
            check(other or 4096, old)
            check(other or 4096, here.client())
        with pytest.raises(NatsError):
            await here.reload(options_of({"max_control_line": 8000, "max_subscriptions": 5}))
        check(4096, old)

    standing(options_of({"max_control_line": configured}), work)


def test_a_reload_that_is_cancelled_while_it_reads_certificates_keeps_nothing_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, goes_on = threading.Event(), threading.Event()
    dropped: list[int] = []

    def make(_: NatsOptions) -> int:
        reading.set()
        assert goes_on.wait(60)
        return 7

    monkeypatch.setattr("ftstan.node.reload.make_tls", make)
    monkeypatch.setattr("ftstan.node.reload.drop_tls", dropped.append)

    async def work() -> None:
        node = Node(ServerOptions())
        reload = asyncio.create_task(
            node.reloader._reload_child(
                cast("NatsServerChild", None), cast("Front", SimpleNamespace()), ServerOptions()
            )
        )
        await asyncio.to_thread(reading.wait, 60)
        reload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reload
        goes_on.set()

    # Its end waits for the thread.
    asyncio.run(work())
    assert dropped == [7]
