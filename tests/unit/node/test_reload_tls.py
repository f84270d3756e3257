"""Renewed logins and certificates in a server that runs: from the next connection on, all or
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import FtstanError, NatsError
from ftstan.config.options import (
    LinkOptions,
    MonitorOptions,
    NatsOptions,
    ServerOptions,
    ServerTlsOptions,
)
from ftstan.front.listener import Front
from ftstan.monitor.gate import gate_of
from ftstan.monitor.http import Monitor
from ftstan.nats.control import Control
from ftstan.nats.link import Link
from ftstan.node.node import Node
from ftstan.node.pages import Pages
from tests.certificates import Certificates, replace_pair
from tests.processes import HOST, free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from ftstan.nats.embedded import NatsServerChild
    from ftstan.nats.generated import NatsServerOptions
    from tests.processes import Stage


def tls_of(certificates: Certificates) -> ServerTlsOptions:
    pair = certificates.server
    return ServerTlsOptions(enabled=True, cert_file=pair.cert, key_file=pair.key)


@pytest.mark.processes
def test_a_link_that_could_not_connect_does_with_renewed_options(
    stage: Stage, certificates: Certificates
) -> None:
    nats = stage.nats(settings=certificates.server_lines())
    right = LinkOptions(client_ca=certificates.ca.cert)
    link = Link(
        [nats.url],
        name="test",
        clock=SystemClock(),
        options=LinkOptions(client_ca=certificates.other_ca.cert),
    )
    with pytest.raises(NatsError, match="x509"):
        link.connect(30)
    link.renew(right)
    link.connect(30)
    link.close()

    async def control() -> None:
        control = Control([nats.url], cluster_id="c", options=LinkOptions(secure=True))
        await control.start()
        control.renew(right)
        await asyncio.wait_for(control.established.wait(), 60)
        await control.close()

    asyncio.run(control())


def test_the_pages_show_a_renewed_certificate(tmp_path: Path) -> None:
    own = Certificates.make(tmp_path / "own")
    fresh = Certificates.make(tmp_path / "fresh")
    tls = tls_of(own)

    def shown(port: int, authority: str) -> str:
        return ssl.get_server_certificate((HOST, port), ca_certs=authority, timeout=60)

    async def work() -> None:
        (port,) = free_ports(1)
        options = MonitorOptions(host=HOST, https_port=port)
        monitor = Monitor(Pages(Node(ServerOptions())), options, gate_of(options))
        await monitor.open(tls, None)
        before = await asyncio.to_thread(shown, port, own.ca.cert)
        replace_pair(own.server, fresh.server)
        monitor.renew(tls)
        assert await asyncio.to_thread(shown, port, fresh.ca.cert) != before
        await monitor.stop()

    asyncio.run(work())


def test_authorities_of_visitors_that_are_gone_are_found_before_anything_is_changed(
    certificates: Certificates, tmp_path: Path
) -> None:
    authority = tmp_path / "visitors.pem"
    shutil.copy(certificates.ca.cert, authority)

    async def work() -> None:
        (port,) = free_ports(1)
        options = MonitorOptions(host=HOST, https_port=port, client_ca=str(authority))
        monitor = Monitor(Pages(Node(ServerOptions())), options, gate_of(options))
        tls = tls_of(certificates)
        await monitor.open(tls, None)
        monitor.check(tls)
        authority.unlink()
        with pytest.raises(FtstanError):
            monitor.check(tls)
        await monitor.stop()

    asyncio.run(work())


def test_a_file_that_cannot_be_used_changes_nothing(
    certificates: Certificates, tmp_path: Path
) -> None:
    async def work() -> None:
        options = ServerOptions(
            nats=NatsOptions(tls=tls_of(certificates)), link=LinkOptions(user="old")
        )
        node = Node(options)
        garbage = tmp_path / "garbage.pem"
        garbage.write_text("nothing\n")
        for bad in (
            replace(options, link=LinkOptions(user="new", client_ca=str(garbage))),
            replace(options, link=LinkOptions(user="new", nkey_seed_file=str(garbage))),
            replace(
                options,
                link=LinkOptions(user="new"),
                nats=NatsOptions(tls=replace(options.nats.tls, key_file=certificates.client.key)),
            ),
        ):
            with pytest.raises(FtstanError):
                await node.reloader.reload_tls(bad)
            assert node.presented.user == "old"
        await node.reloader.reload_tls(replace(options, link=LinkOptions(user="new")))
        assert node.presented.user == "new"

    asyncio.run(work())


class Turning:
    """Stands in for the NATS server, from whose TLS a reload changes to that of the listener."""

    def __init__(self, front: Front, *, refuses: bool) -> None:
        self._front = front
        self._refuses = refuses
        self.server = socket.create_server((HOST, front.server_port))
        self.server.settimeout(60)

    async def reload(self, _: NatsServerOptions) -> None:
        """It speaks plainly from now on, and the listener does not ask for TLS yet."""
        self.late = socket.create_connection((HOST, self._front.port), 60)
        self.server.settimeout(0.3)
        with pytest.raises(TimeoutError):
            # Whom it greeted now would send its login in clear.
            await asyncio.to_thread(self.server.accept)
        self.server.settimeout(60)
        if self._refuses:
            raise NatsError("no")

    def greet(self) -> bytes:
        """What the client is told that came while the configuration was changed."""
        up, _ = self.server.accept()
        up.recv(1000)
        up.sendall(b'INFO {"max_payload":1000}\r\n')
        self.late.settimeout(60)
        with up, self.late:
            return self.late.recv(1000)


@pytest.mark.processes
@pytest.mark.parametrize("refuses", [False, True])
def test_nobody_is_greeted_while_tls_goes_over_to_the_listener(
    certificates: Certificates, *, refuses: bool
) -> None:
    tls = replace(tls_of(certificates), verify=True, ca_file=certificates.ca.cert)
    old = ServerOptions(nats=NatsOptions(tls=tls), link=LinkOptions(client_ca=certificates.ca.cert))
    new = replace(old, nats=NatsOptions(tls=tls_of(certificates)))
    front = Front(HOST, 0, max_line=0, max_pending=1 << 20)
    child = Turning(front, refuses=refuses)
    with contextlib.closing(child.server):
        front.serve(on=True)
        front.listen()
        early = socket.create_connection((HOST, front.port), 60)
        up, _ = child.server.accept()
        node = Node(old)
        node.front = front
        reload = node.reloader._reload_child(cast("NatsServerChild", child), front, new)
        with pytest.raises(NatsError) if refuses else contextlib.nullcontext():
            asyncio.run(reload)
        # It may have been greeted by either, and has not been heard by the listener yet.
        assert early.recv(1000) == b""
        assert (b'"tls_required":true' in child.greet()) is not refuses
        early.close()
        up.close()
        front.stop()


def test_a_reload_that_is_cancelled_while_it_pauses_leaves_nobody_paused(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = ServerOptions(
        nats=NatsOptions(tls=tls_of(certificates)), link=LinkOptions(client_ca=certificates.ca.cert)
    )
    ordered: list[str] = []
    dropped: list[int] = []
    monkeypatch.setattr("ftstan.node.reload.make_tls", lambda _: 7)
    monkeypatch.setattr("ftstan.node.reload.drop_tls", dropped.append)

    class Pausing:
        """A listener that is cancelled while it is waited for."""

        def begin_pause(self) -> None:
            ordered.append("pause")

        def finish_pause(self) -> None:
            raise asyncio.CancelledError

        def pause(self) -> None:
            self.begin_pause()
            self.finish_pause()

        def resume(self) -> None:
            ordered.append("resume")

    async def work() -> None:
        node = Node(new)
        with pytest.raises(asyncio.CancelledError):
            await node.reloader._reload_child(
                cast("NatsServerChild", None), cast("Front", Pausing()), new
            )

    asyncio.run(work())
    assert ordered == ["pause", "resume"]
    assert dropped == [7]
