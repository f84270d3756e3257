"""TLS of our links, against real nats-servers and against peers that do not keep to the rules."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import ssl
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import SystemClock
from ftstan.base.errors import NatsError
from ftstan.config.options import LinkOptions
from ftstan.nats.control import Control
from ftstan.nats.link import ConnectionLostError, Link
from tests.certificates import Authority, Certificates, replace_pair
from tests.unit.nats.ways import by_client, by_link

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Stage

_PATIENCE_S = 60.0


def link_to(url: str, options: LinkOptions) -> Link:
    return Link([url], name="test", clock=SystemClock(), options=options)


WAYS = [pytest.param(by_link, id="link"), pytest.param(by_client, id="nats-py")]


def read_until(link: Link, wanted: bytes) -> bytes:
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    chunk = bytearray(1 << 16)
    got = bytearray(link.leftover)
    while wanted not in got:
        if not link.pending:
            assert poll.poll(_PATIENCE_S * 1000), "nothing came"
        got += chunk[: link.recv_into(memoryview(chunk))]
    return bytes(got)


@pytest.fixture
def trusting(certificates: Certificates) -> LinkOptions:
    return LinkOptions(client_ca=certificates.ca.cert)


@pytest.mark.processes
@pytest.mark.parametrize("connect", WAYS)
class TestHandshake:
    def test_a_server_with_tls_is_reached_when_its_authority_is_named(
        self,
        stage: Stage,
        certificates: Certificates,
        trusting: LinkOptions,
        connect: Callable[..., None],
    ) -> None:
        connect(stage.nats(settings=certificates.server_lines()).url, trusting)

    def test_a_server_with_tls_is_verified_with_the_systems_authorities_when_nothing_is_set(
        self, stage: Stage, certificates: Certificates, connect: Callable[..., None]
    ) -> None:
        nats = stage.nats(settings=certificates.server_lines())
        for options in (LinkOptions(), LinkOptions(secure=True)):
            with pytest.raises(NatsError, match="x509: certificate signed by unknown authority"):
                connect(nats.url, options)

    def test_the_authority_that_did_not_sign_is_named(
        self, stage: Stage, certificates: Certificates, connect: Callable[..., None]
    ) -> None:
        nats = stage.nats(settings=certificates.server_lines())
        with pytest.raises(
            NatsError, match="x509: certificate signed by unknown authority"
        ) as caught:
            connect(nats.url, LinkOptions(client_ca=certificates.other_ca.cert))
        assert certificates.other_ca.cert in caught.value.hint + caught.value.text

    def test_an_expired_certificate_is_refused(
        self, stage: Stage, tmp_path: Path, connect: Callable[..., None]
    ) -> None:
        ca = Authority(tmp_path, "ca")
        old = ca.server("old", expired=True)
        nats = stage.nats(
            settings=f'tls {{ cert_file: "{old.cert}", key_file: "{old.key}", timeout: 10 }}\n'
        )
        with pytest.raises(NatsError, match="x509: certificate has expired or is not yet valid"):
            connect(nats.url, LinkOptions(client_ca=ca.cert))

    def test_a_certificate_for_another_name_is_refused_and_cured_by_the_name_or_by_not_verifying(
        self, stage: Stage, tmp_path: Path, connect: Callable[..., None]
    ) -> None:
        ca = Authority(tmp_path, "ca")
        named = ca.server("named", names="DNS:stan.example")
        nats = stage.nats(
            settings=f'tls {{ cert_file: "{named.cert}", key_file: "{named.key}", timeout: 10 }}\n'
        )
        trusting = LinkOptions(client_ca=ca.cert)
        with pytest.raises(
            NatsError,
            match=r"x509: cannot validate certificate for 127\.0\.0\.1 because it doesn't contain",
        ):
            connect(nats.url, trusting)
        with pytest.raises(NatsError, match=r"x509: certificate is not valid for other\.example"):
            connect(nats.url, replace(trusting, server_name="other.example"))
        connect(nats.url, replace(trusting, server_name="stan.example"))
        connect(nats.url, LinkOptions(insecure=True))

    def test_a_server_that_verifies_lets_in_its_own_clients_only_and_the_certificate_is_named(
        self,
        stage: Stage,
        certificates: Certificates,
        trusting: LinkOptions,
        connect: Callable[..., None],
    ) -> None:
        nats = stage.nats(settings=certificates.server_lines(verify=True))
        connect(
            nats.url,
            replace(
                trusting, client_cert=certificates.client.cert, client_key=certificates.client.key
            ),
        )
        with pytest.raises(NatsError, match="remote error: tls: "):
            connect(nats.url, trusting)
        stranger = certificates.stranger
        with pytest.raises(NatsError, match="remote error: tls: ") as caught:
            connect(nats.url, replace(trusting, client_cert=stranger.cert, client_key=stranger.key))
        assert stranger.cert in caught.value.hint + caught.value.text

    def test_a_server_without_tls_is_refused_by_any_setting_that_asks_for_it(
        self,
        stage: Stage,
        certificates: Certificates,
        trusting: LinkOptions,
        connect: Callable[..., None],
    ) -> None:
        nats = stage.nats()
        pair = certificates.client
        for options in (
            LinkOptions(secure=True),
            trusting,
            LinkOptions(server_name="localhost"),
            LinkOptions(insecure=True),
            LinkOptions(client_cert=pair.cert, client_key=pair.key),
        ):
            with pytest.raises(NatsError, match="nats: secure connection not available"):
                connect(nats.url, options)
        with pytest.raises(NatsError, match="nats: secure connection not available"):
            connect(nats.url.replace("nats://", "tls://"), LinkOptions())
        # A key alone is nothing, as in the original.
        connect(nats.url, LinkOptions(client_key=pair.key))

    def test_a_renewed_certificate_is_used_from_the_next_connection_on(
        self, stage: Stage, tmp_path: Path, connect: Callable[..., None]
    ) -> None:
        own = Certificates.make(tmp_path / "own")
        nats = stage.nats(settings=own.server_lines(verify=True))
        options = LinkOptions(
            client_ca=own.ca.cert, client_cert=own.stranger.cert, client_key=own.stranger.key
        )
        with pytest.raises(NatsError, match="remote error: tls: "):
            connect(nats.url, options)
        replace_pair(own.stranger, own.client)
        connect(nats.url, options)


@pytest.mark.parametrize("connect", WAYS)
class TestBadFiles:
    @pytest.mark.parametrize(
        "bad",
        [
            (
                {"client_ca": "none.pem"},
                "nats: error loading or parsing rootCA file: open none.pem: no such file",
            ),
            (
                {"client_ca": "GARBAGE"},
                r'nats: failed to parse root certificate from ".*garbage\.pem"',
            ),
            (
                {"client_cert": "CLIENT"},
                "nats: error loading client certificate: open : no such file or directory",
            ),
            (
                {"client_cert": "none.pem", "client_key": "none.key"},
                "nats: error loading client certificate: open none.pem: no such file or directory",
            ),
            (
                {"client_cert": "CLIENT", "client_key": "SERVERKEY"},
                (
                    r"nats: error loading client certificate: tls: private key does not match "
                    r"public "
                    r"key \(.*client\.pem, "
                ),
            ),
            (
                {"client_cert": "GARBAGE", "client_key": "SERVERKEY"},
                (
                    r"nats: error loading client certificate: tls: failed to find any PEM data "
                    r"in .* "
                    r"\(.*garbage\.pem\)"
                ),
            ),
        ],
    )
    @pytest.mark.processes
    def test_the_file_at_fault_is_named(
        self,
        stage: Stage,
        certificates: Certificates,
        connect: Callable[..., None],
        bad: tuple[dict[str, str], str],
    ) -> None:
        change, text = bad
        garbage = stage.directory / "garbage.pem"
        garbage.write_text("this is not a certificate\n")
        places = {
            "GARBAGE": str(garbage),
            "CLIENT": certificates.client.cert,
            "SERVERKEY": certificates.server.key,
        }
        options = LinkOptions(**{key: places.get(value, value) for key, value in change.items()})  # type: ignore[arg-type]
        with pytest.raises(NatsError, match=text):
            connect(stage.nats(settings=certificates.server_lines()).url, options)

    def test_no_password_is_sent_in_plain_text_when_tls_was_asked_for(
        self, connect: Callable[..., None]
    ) -> None:
        heard = bytearray()
        info = b"INFO " + json.dumps({"max_payload": 100, "auth_required": True}).encode() + b"\r\n"
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                peer = listener.accept()[0]
                with peer:
                    peer.sendall(info)
                    while chunk := peer.recv(1000):
                        heard.extend(chunk)

            thread = threading.Thread(target=serve)
            thread.start()
            url = f"nats://user:hunter2@127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(NatsError, match="nats: secure connection not available"):
                connect(url, LinkOptions(secure=True))
            thread.join()
        assert heard == b""


@pytest.mark.processes
class TestDataLink:
    def test_much_passes_both_ways_and_nothing_is_left_behind_in_the_tls_layer(
        self, stage: Stage, certificates: Certificates, trusting: LinkOptions
    ) -> None:
        nats = stage.nats(settings=certificates.server_lines())
        link = link_to(nats.url, trusting)
        link.connect(_PATIENCE_S)
        payload = bytes(range(256)) * 3900
        count = 20
        link.send(
            b"SUB a 1\r\n"
            + (b"PUB a %d\r\n%b\r\n" % (len(payload), payload)) * count
            + b"PING\r\n",
            60,
        )
        got = read_until(link, b"PONG")
        assert got.count(b"MSG a 1 %d\r\n%b\r\n" % (len(payload), payload)) == count
        link.close()

    def test_reading_into_little_room_says_that_more_is_there(
        self, stage: Stage, certificates: Certificates, trusting: LinkOptions
    ) -> None:
        nats = stage.nats(settings=certificates.server_lines())
        link = link_to(nats.url, trusting)
        link.connect(_PATIENCE_S)
        link.send(b"SUB a 1\r\nPUB a 9000\r\n" + bytes(9000) + b"\r\n", 60)
        poll = select.poll()
        poll.register(link.fileno(), select.POLLIN)
        assert poll.poll(_PATIENCE_S * 1000)
        little = memoryview(bytearray(10))
        assert link.recv_into(little) == 10
        assert link.pending
        link.close()

    def test_it_can_be_cut_from_another_thread_while_its_owner_sends(
        self, stage: Stage, certificates: Certificates, trusting: LinkOptions
    ) -> None:
        nats = stage.nats(settings=certificates.server_lines())
        link = link_to(nats.url, trusting)
        link.connect(_PATIENCE_S)
        lost: list[ConnectionLostError] = []

        def send_for_ever() -> None:
            try:
                while True:
                    link.send(b"PUB a 5\r\nhello\r\n" * 1000, 60)
            except ConnectionLostError as error:
                lost.append(error)

        sender = threading.Thread(target=send_for_ever)
        sender.start()
        link.cut()
        sender.join(_PATIENCE_S)
        assert lost
        assert not link.connected
        with pytest.raises(NatsError, match="cut"):
            link.connect(_PATIENCE_S)
        # Had a byte gone out in plain text, the server would have said so.
        assert "Unknown Protocol" not in nats.text()
        assert "bad record" not in nats.text()

    def test_a_server_that_ends_is_a_lost_connection(
        self, stage: Stage, certificates: Certificates, trusting: LinkOptions
    ) -> None:
        nats = stage.nats(settings=certificates.server_lines())
        link = link_to(nats.url, trusting)
        link.connect(_PATIENCE_S)
        assert link.recv_into(memoryview(bytearray(100))) == 0
        nats.kill()
        with pytest.raises(ConnectionLostError, match="lost: "):
            read_until(link, b"nothing of the kind")
        assert not link.connected

    def test_what_came_in_plain_text_behind_the_greeting_is_not_taken_for_the_servers_word(
        self, certificates: Certificates, trusting: LinkOptions
    ) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.server.cert, certificates.server.key)
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                raw = listener.accept()[0]
                # Somebody in between adds a message to what the server says in clear text.
                raw.sendall(b'INFO {"tls_required":true}\r\nPONG\r\nMSG a 1 4\r\nevil\r\n')
                with (
                    context.wrap_socket(raw, server_side=True) as peer,
                    peer.makefile("rb") as lines,
                ):
                    while lines.readline() != b"PING\r\n":
                        pass
                    peer.sendall(b"PONG\r\nMSG a 1 4\r\ngood\r\n")
                    lines.readline()

            thread = threading.Thread(target=serve)
            thread.start()
            link = link_to(f"nats://127.0.0.1:{listener.getsockname()[1]}", trusting)
            link.connect(_PATIENCE_S)
            got = read_until(link, b"good\r\n")
            link.close()
            thread.join()
        assert got == b"MSG a 1 4\r\ngood\r\n"


@pytest.mark.processes
def test_a_nats_server_has_read_everything_when_a_link_was_finished(
    stage: Stage, certificates: Certificates, trusting: LinkOptions
) -> None:
    nats = stage.nats(settings=certificates.server_lines())
    reader = link_to(nats.url, trusting)
    writer = link_to(nats.url, trusting)
    reader.connect(_PATIENCE_S)
    reader.send(b"SUB a 1\r\nPING\r\n", 10)
    read_until(reader, b"PONG\r\n")
    writer.connect(_PATIENCE_S)
    # It hears all of it, too, and reads nothing.
    writer.send(b"SUB a 1\r\n" + b"PUB a 4\r\nsome\r\n" * 50_000 + b"PUB a 4\r\nlast\r\n", 10)
    writer.finish(_PATIENCE_S)
    read_until(reader, b"last\r\n")
    reader.close()


@pytest.mark.processes
def test_the_control_link_speaks_tls_and_says_in_the_log_why_it_cannot(
    stage: Stage,
    certificates: Certificates,
    trusting: LinkOptions,
    capfd: pytest.CaptureFixture[str],
) -> None:
    nats = stage.nats(settings=certificates.server_lines())

    async def work() -> None:
        wrong = Control([nats.url], cluster_id="c", options=LinkOptions(secure=True))
        await wrong.start()
        right = Control([nats.url], cluster_id="c", options=trusting)
        arrived = asyncio.Event()
        await right.subscribe("a", lambda _subject, _data: arrived.set())
        await right.start()
        await asyncio.wait_for(right.established.wait(), _PATIENCE_S)
        await right.publish("a", b"hello")
        await right.flush()
        await asyncio.wait_for(arrived.wait(), _PATIENCE_S)
        said = ""
        while "x509" not in said:
            await asyncio.sleep(0.05)
            said += capfd.readouterr().err
        assert 'connection "_NSS-c-ft" cannot be made' in said
        assert "certificate signed by unknown authority" in said
        await wrong.close()
        await right.close()

    asyncio.run(asyncio.wait_for(work(), _PATIENCE_S))
