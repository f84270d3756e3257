"""Clients with TLS that ends in the listener hear what they hear from a nats-server with TLS."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING

import pytest

from ftstan.config.options import ServerTlsOptions
from tests.compat.roads import CORE, HOST, Play, Roads
from tests.compat.test_direct_road import LISTENS, REFUSED, SCENARIOS, A, pub
from tests.tls_pipe import greeted, unverified

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.certificates import Certificates

pytestmark = pytest.mark.processes

HANDSHAKE_S = 1.0


@pytest.fixture(scope="module")
def roads(certificates: Certificates) -> Iterator[Roads]:
    pair = certificates.server
    both = Roads(
        ServerTlsOptions(enabled=True, cert_file=pair.cert, key_file=pair.key, timeout=HANDSHAKE_S)
    )
    try:
        yield both
    finally:
        both.stop()


@pytest.mark.parametrize("name", SCENARIOS)
def test_clients_hear_the_same(roads: Roads, name: str) -> None:
    steps, direct = SCENARIOS[name]
    roads.compare(steps, direct=direct)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece", [1, 6])
def test_clients_hear_the_same_when_tls_comes_in_pieces(
    roads: Roads, version: ssl.TLSVersion, piece: int
) -> None:
    steps, direct = SCENARIOS["a request and its answer"]
    roads.compare(steps, direct=direct, context=unverified(version), piece=piece)


def test_clients_hear_the_same_when_each_byte_is_a_record(roads: Roads) -> None:
    steps, direct = SCENARIOS["limits with one message each way"]
    roads.compare([(*step, 1) if step[0] == "say" else step for step in steps], direct=direct)


@pytest.mark.parametrize("line", REFUSED[:6])
def test_what_is_no_protocol_is_refused_in_the_same_words(roads: Roads, line: bytes) -> None:
    roads.compare(
        [A, LISTENS, ("end", "a", pub("in.x", "before") + line + pub("in.x", "behind"))],
        patience=1,
    )


def test_messages_of_many_records_come_whole(roads: Roads) -> None:
    """More than one record, and more than one read of the listener, each way."""
    text = "y" * 1900
    roads.compare(
        [
            A,
            LISTENS,
            ("say", "a", b"SUB box 1\r\n"),
            *[("say", "a", pub("deep.a", text) * 300) for _ in range(3)],
            *[("say", CORE, pub("box", text) * 300) for _ in range(3)],
        ],
        direct=1800,
    )


def test_the_greeting_says_the_same(roads: Roads) -> None:
    keys = []
    for nats in (roads.straight, roads.behind):
        play = Play(nats, fronted=nats is roads.behind, tls=roads.tls)
        try:
            port = play.front.port if play.front is not None else nats.port
            sock, line = greeted(HOST, port)
            sock.close()
            info = json.loads(line[5:])
            assert info["tls_required"] is True
            wire = play.open("a")
            again = [
                json.loads(line[5:]) for line in wire.heard.split(b"\r\n") if line[:4] == b"INFO"
            ]
            assert all(info["tls_required"] is True for info in again)
            # Without PROXY the address is known before.
            keys.append([key for key in info if key not in {"client_ip", "connect_urls"}])
            keys.append([len(again)])
        finally:
            play.stop()
    assert keys[:2] == keys[2:]


#: What is no TLS, and what begins like it.
NO_TLS = [
    b"CONNECT {}\r\nPING\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"\x15\x03\x01\x00\x02\x01\x00",
    b"\x17\x03\x03\x00\x02ab",
    b"",
    b"\x16",
    b"\x16\x03\x01\x02",
]


@pytest.mark.parametrize("said", NO_TLS)
def test_who_does_not_speak_tls_is_ended_without_a_word(roads: Roads, said: bytes) -> None:
    for nats in (roads.straight, roads.behind):
        play = Play(nats, fronted=nats is roads.behind, tls=roads.tls)
        try:
            port = play.front.port if play.front is not None else nats.port
            sock, _ = greeted(HOST, port)
            with sock:
                sock.sendall(said)
                assert sock.recv(100) == b""
        finally:
            play.stop()


@pytest.mark.parametrize(
    "context",
    [
        ("DEFAULT@SECLEVEL=0", ssl.TLSVersion.TLSv1_1),
        ("ECDHE-ECDSA-AES256-SHA384", ssl.TLSVersion.TLSv1_2),
        ("AES128-GCM-SHA256", ssl.TLSVersion.TLSv1_2),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_and_weak_ciphers_are_refused(
    roads: Roads, context: tuple[str, ssl.TLSVersion]
) -> None:
    ciphers, version = context
    for nats in (roads.straight, roads.behind):
        play = Play(nats, fronted=nats is roads.behind, tls=roads.tls)
        try:
            play.context = unverified(version)
            play.context.set_ciphers(ciphers)
            with pytest.raises(ssl.SSLError, match="ALERT"):
                play.open("a")
        finally:
            play.stop()
