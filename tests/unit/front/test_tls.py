"""TLS that ends in the listener: what clients can do to it, and to each other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.errors import ConfigError
from ftstan.config.options import NatsOptions, ServerOptions, ServerTlsOptions
from ftstan.front.listener import LOOPBACK
from ftstan.nats.direct_road import behind, why_not
from ftstan.nats.generated import NatsServerOptions
from ftstan.nats.listener_tls import make
from tests.memory import KEPT_BY_SANITIZER
from tests.tls_forged import HANDSHAKE, KEY_UPDATE, Forger
from tests.tls_pipe import TlsPipe, greeted, unverified
from tests.unit.front.sessions import LOGIN, PATIENCE_S, Peer, place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.certificates import Certificates
    from tests.unit.front.sessions import Place

HANDSHAKE_S = 2.0
#: More than the kernel takes for one connection.
MAX_PENDING = 24 << 20
#: Bytes that a connection with TLS may keep in the listener while nothing happens on it.
MOST_BYTES = 60_000


def options_of(certificates: Certificates, timeout: float = HANDSHAKE_S) -> ServerTlsOptions:
    pair = certificates.server
    return ServerTlsOptions(enabled=True, cert_file=pair.cert, key_file=pair.key, timeout=timeout)


@pytest.fixture
def here(tmp_path: Path, certificates: Certificates) -> Iterator[Place]:
    with place(tmp_path / "nats", max_pending=MAX_PENDING) as made:
        made.front.use_tls(make(options_of(certificates)))
        yield made


def connect(
    here: Place, context: ssl.SSLContext | None = None, *, login: bytes = LOGIN
) -> ssl.SSLSocket:
    """A client that has logged in, and whose PONG has come."""
    sock, _ = greeted(LOOPBACK, here.front.port)
    client = (context or unverified()).wrap_socket(sock)
    client.sendall(login + b"PING\r\n")
    hear(client, b"PONG\r\n")
    return client


def hear(client: ssl.SSLSocket, what: bytes) -> bytes:
    got = b""
    while what not in got:
        data = client.recv(1 << 16)
        assert data, got
        got += data
    return got


def soon(what: object) -> None:
    """Wait until it is true."""
    end = time.monotonic() + PATIENCE_S
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.processes
def test_a_publish_and_an_answer_go_directly(here: Place) -> None:
    core = here.core(b"SUB in.> 1\r\n")
    client = connect(here)
    client.sendall(b"SUB box 7\r\nPING\r\n")
    hear(client, b"PONG\r\n")
    client.sendall(b"PUB in.x box 5\r\nhello\r\n")
    core.wait_for(1)
    assert core.messages[0].payload == b"hello"
    core.send(b"PUB box 6\r\nanswer\r\n")
    hear(client, b"MSG box 7 6\r\nanswer\r\n")
    status = here.front.status()
    assert (status.direct_in, status.direct_out, status.encrypted) == (1, 1, 1)
    client.close()
    soon(lambda: here.front.status().encrypted == 0)


@pytest.mark.processes
def test_stuck_and_slow_handshakes_end_in_their_time_and_hold_up_nobody(here: Place) -> None:
    here.core(b"SUB in.> 1\r\n")
    bystander = connect(here)
    stuck = [greeted(LOOPBACK, here.front.port)[0] for _ in range(50)]
    for i, sock in enumerate(stuck):
        # Nothing, the first byte of a handshake, and a part of one.
        sock.sendall([b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"][i % 3])
    begin = time.monotonic()
    for _ in range(100):
        bystander.sendall(b"PING\r\n")
        hear(bystander, b"PONG\r\n")
    assert here.front.status().not_shaken == 0
    for sock in stuck:
        sock.settimeout(PATIENCE_S)
        assert sock.recv(1) == b""
        sock.close()
    assert time.monotonic() - begin > HANDSHAKE_S / 2
    soon(lambda: here.front.status().connections == 1)
    assert here.front.status().not_shaken == 50
    assert {kind for kind, _ in here.front.read_events()} == {"tls"}
    connect(here).close()


@pytest.mark.processes
def test_a_thousand_clients_leave_no_descriptor_and_no_memory(here: Place) -> None:
    context = unverified()

    def crowd() -> None:
        clients = [connect(here, context) for _ in range(250)]
        for client in clients[::2]:
            client.sendall(b"SUB box 1\r\nPING\r\n")
            hear(client, b"PONG\r\n")
        for i, client in enumerate(clients):
            if i % 3 == 0:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            elif i % 3 == 1:
                with contextlib.suppress(ssl.SSLError):  # there is an INFO that was not read
                    client.unwrap()
            client.close()
        soon(lambda: here.front.status().connections == 0)

    crowd()
    files_before, before = files(), resident()
    for _ in range(4):
        crowd()
    soon(lambda: files() <= files_before)
    assert resident() - before < 250 * MOST_BYTES // 4 + KEPT_BY_SANITIZER
    assert here.front.status().encrypted == 0


@pytest.mark.processes
def test_who_does_not_read_is_ended_alone(here: Place) -> None:
    core = here.core()
    slow, quick = connect(here), connect(here)
    for client in (slow, quick):
        client.sendall(b"SUB box 1\r\nPING\r\n")
        hear(client, b"PONG\r\n")
    message = b"PUB box 60000\r\n" + b"x" * 60000 + b"\r\n"
    for _ in range(1000):
        core.send(message)
        got = 0
        while got < 60000 + len(b"MSG box 1 60000\r\n\r\n"):
            got += len(quick.recv(1 << 17))
        if here.front.status().slow:
            break
    assert here.front.status().slow == 1
    soon(lambda: here.front.status().connections == 1)
    quick.sendall(b"PING\r\n")
    hear(quick, b"PONG\r\n")


@pytest.mark.processes
def test_what_waits_goes_out_whole_when_a_client_reads_again(here: Place) -> None:
    """Records that were begun and not taken go on where they were, however much has come since."""
    core = here.core()
    client = connect(here)
    client.sendall(b"SUB box 1\r\nPING\r\n")
    hear(client, b"PONG\r\n")
    wanted = b""
    for i in range(200):
        payload = os.urandom(500 + 997 * (i % 97))
        core.send(b"PUB box %d\r\n%b\r\n" % (len(payload), payload))
        wanted += b"MSG box 1 %d\r\n%b\r\n" % (len(payload), payload)
        time.sleep(0.002)
    got = bytearray()
    while len(got) < len(wanted):
        data = client.recv(16384)
        assert data
        got += data
        if len(got) >= len(wanted):
            # The NATS server asks whether it is there, now and then.
            got = got.replace(b"PING\r\n", b"")
    assert got[: len(wanted)] == wanted


@pytest.mark.processes
def test_a_client_is_not_read_while_much_waits_for_the_core(here: Place) -> None:
    core = here.core(b"SUB in.> 1\r\n")
    client = connect(here)
    message = b"PUB in.x 50000\r\n" + b"y" * 50000 + b"\r\n"
    client.settimeout(0.3)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 1000:
            client.sendall(message)
            sent += 1
    assert sent < 1000
    before = resident()
    core.wait_for(sent)
    assert resident() - before < 200 << 20


@pytest.mark.processes
def test_a_client_of_tls_1_2_cannot_renegotiate(here: Place, certificates: Certificates) -> None:
    bystander = connect(here)
    sock, _ = greeted(LOOPBACK, here.front.port)
    pipe = TlsPipe(sock, unverified(ssl.TLSVersion.TLSv1_2))
    pipe.settimeout(PATIENCE_S)
    pipe.sendall(LOGIN + b"PING\r\n")
    got = b""
    while b"PONG\r\n" not in got:
        got += pipe.recv(4096)
    # A ClientHello inside of what is encrypted is none, and ends it.
    sock.sendall(b"\x16\x03\x03\x00\x20" + os.urandom(32))
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        while pipe.recv(4096):
            pass
    bystander.sendall(b"PING\r\n")
    hear(bystander, b"PONG\r\n")
    soon(lambda: here.front.status().connections == 1)


@pytest.mark.processes
@pytest.mark.parametrize("at", [0, 3, 5, 20])
def test_a_broken_record_ends_its_client_alone(here: Place, at: int) -> None:
    bystander = connect(here)
    sock, _ = greeted(LOOPBACK, here.front.port)
    pipe = TlsPipe(sock)
    pipe.sendall(LOGIN + b"PING\r\n")
    while b"PONG\r\n" not in pipe.recv(4096):
        pass
    pipe.ssl.write(b"PUB in.x 1\r\nx\r\nPING\r\n")
    record = bytearray(pipe._out.read())
    record[at] ^= 0x40
    sock.sendall(bytes(record))
    sock.shutdown(socket.SHUT_WR)
    soon(lambda: here.front.status().connections == 1)
    bystander.sendall(b"PING\r\n")
    hear(bystander, b"PONG\r\n")
    sock.close()


@pytest.mark.processes
def test_a_farewell_is_answered_and_said(here: Place) -> None:
    client = connect(here)
    client.unwrap()
    client = connect(here)
    client.sendall(b"PUB\r\n")
    # The end is one of TLS: else this raises.
    while client.recv(4096):
        pass


@pytest.mark.processes
def test_the_end_of_the_nats_server_is_the_clients_end(here: Place) -> None:
    client = connect(here)
    shaking, _ = greeted(LOOPBACK, here.front.port)
    here.server.kill()
    here.server.wait()
    while client.recv(4096):
        pass
    shaking.settimeout(PATIENCE_S)
    assert shaking.recv(10) == b""
    soon(lambda: here.front.status().connections == 0)


@pytest.mark.processes
def test_a_renewed_certificate_is_shown_to_the_next_client(
    here: Place, certificates: Certificates
) -> None:
    def shown(client: ssl.SSLSocket) -> bytes | None:
        return client.getpeercert(binary_form=True)

    before = connect(here)
    fresh = certificates.ca.server("fresh")
    tls = replace(options_of(certificates), cert_file=fresh.cert, key_file=fresh.key)
    shaking, _ = greeted(LOOPBACK, here.front.port)
    here.front.use_tls(make(tls))
    after = connect(here)
    assert shown(before) != shown(after)
    assert shown(unverified().wrap_socket(shaking)) == shown(after)
    before.sendall(b"PING\r\n")
    hear(before, b"PONG\r\n")
    here.front.use_tls(0)
    plain = Peer(socket.create_connection((LOOPBACK, here.front.port)))
    plain.settle()
    after.sendall(b"PING\r\n")
    hear(after, b"PONG\r\n")
    plain.close()


def test_what_cannot_be_used_is_told(certificates: Certificates) -> None:
    for wrong in (
        replace(options_of(certificates), cert_file="/nowhere.pem"),
        replace(options_of(certificates), key_file=certificates.client.key),
        replace(options_of(certificates), key_file=certificates.server.cert),
    ):
        with pytest.raises(ConfigError, match="error parsing X509 certificate/key pair"):
            make(wrong)


def test_what_the_nats_server_has_to_judge_stays_with_it(certificates: Certificates) -> None:
    tls = options_of(certificates)

    def reason(**other: Any) -> str:
        return why_not(ServerOptions(nats=NatsOptions(tls=replace(tls, **other))))

    assert reason() == ""
    assert "verify" in reason(verify=True)
    assert "verify" in reason(verify_and_map=True)
    assert "TLS_RSA_WITH_RC4_128_SHA" in reason(cipher_suites=("TLS_RSA_WITH_RC4_128_SHA",))
    assert reason(cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",)) == ""
    assert reason(curve_preferences=("CurveP384", "X25519")) == ""
    for settings in ({"allow_non_tls": True}, {"authorization": {"timeout": "2s"}}):
        nats = NatsOptions(tls=tls, settings=settings)
        assert why_not(ServerOptions(nats=nats)) != ""


def test_an_openssl_without_a_function_leaves_tls_to_the_nats_server(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftstan.front.openssl._NAMES", ("SSL_new", "SSL_nothing"))
    options = ServerOptions(nats=NatsOptions(tls=options_of(certificates)))
    assert why_not(options).endswith("this Python's OpenSSL has no SSL_nothing")


@pytest.mark.processes
def test_a_nats_server_waits_for_a_login_behind_the_handshake(
    here: Place, certificates: Certificates
) -> None:
    options = NatsServerOptions("c", user="a", password="b", tls=options_of(certificates, 3))
    told = behind(options, here.front)
    assert told.settings["authorization"] == {"timeout": 7.0}
    assert not told.tls.enabled
    nobody = replace(options, user="", password="")
    assert "authorization" not in behind(nobody, here.front).settings
    own = replace(options, settings={"authorization": {"timeout": 1, "user": "a"}})
    assert behind(own, here.front).settings["authorization"] == {"timeout": 4.0, "user": "a"}


@pytest.mark.processes
@pytest.mark.parametrize("suite", ["ECDHE-ECDSA-AES256-SHA", "ECDHE-ECDSA-CHACHA20-POLY1305"])
def test_the_ciphers_and_curves_that_are_named_are_the_only_ones(
    here: Place, certificates: Certificates, suite: str
) -> None:
    tls = replace(
        options_of(certificates),
        cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",),
        curve_preferences=("CurveP384", "CurveP256"),
    )
    here.front.use_tls(make(tls))
    context = unverified(ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(f"{suite}:ECDHE-ECDSA-AES128-GCM-SHA256")
    with connect(here, context) as client:
        assert client.cipher() == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", 128)
    context.set_ciphers(suite)
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        connect(here, context)
    other = unverified()
    other.set_ecdh_curve("secp521r1")
    with pytest.raises(ssl.SSLError):
        connect(here, other)


def busy_s() -> float:
    """Seconds that the threads of this process have computed."""
    return time.process_time()


@pytest.mark.processes
def test_a_flood_of_key_updates_holds_up_nobody(here: Place, tmp_path: Path) -> None:
    """None of them is a byte of what a client says, so a reader that waits for one never returns:
    the listener's one thread must look at everybody else between two of them.
    """
    bystander = connect(here)
    sock, _ = greeted(LOOPBACK, here.front.port)
    forger = Forger(sock, tmp_path / "keys")
    flood = b"".join(forger.update() for _ in range(20_000))
    last = forger.record(LOGIN + b"PING\r\n")
    assert here.front.status().encrypted == 2
    heard = threading.Event()

    def take_part() -> None:
        sock.sendall(flood + last)
        got = b""
        while b"PONG\r\n" not in got:
            got += forger.pipe.recv(4096)
        heard.set()

    forger.pipe.settimeout(PATIENCE_S)
    flooding = threading.Thread(target=take_part)
    flooding.start()
    answers = 0
    while flooding.is_alive():
        bystander.sendall(b"PING\r\n")
        hear(bystander, b"PONG\r\n")
        answers += 1
    # All of them are taken, and what is behind them is heard.
    assert heard.is_set()
    assert answers > 50
    sock.close()


@pytest.mark.processes
def test_half_a_key_update_does_not_keep_the_listener_busy(here: Place, tmp_path: Path) -> None:
    """Nothing can be written until its other half has come: that is no reason to try again as long
    as the socket could be written to.
    """
    core = here.core()
    sock, _ = greeted(LOOPBACK, here.front.port)
    forger = Forger(sock, tmp_path / "keys")
    sock.sendall(forger.record(LOGIN + b"SUB box 1\r\nPING\r\n"))
    got = b""
    while b"PONG\r\n" not in got:
        got += forger.pipe.recv(4096)
    sock.sendall(forger.record(KEY_UPDATE[:4], HANDSHAKE))
    time.sleep(0.1)
    core.send(b"PUB box 5\r\nhello\r\n")
    core.settle()
    begin = busy_s()
    time.sleep(1)
    assert busy_s() - begin < 0.5
    rest = forger.record(KEY_UPDATE[4:], HANDSHAKE)
    sock.sendall(rest)
    got = b""
    while b"hello\r\n" not in got:
        got += forger.pipe.recv(4096)
    sock.close()


@pytest.mark.processes
def test_more_silent_clients_than_may_shake_keep_nobody_out(
    here: Place, certificates: Certificates
) -> None:
    here.front.use_tls(make(options_of(certificates, 60)))
    silent = [socket.create_connection((LOOPBACK, here.front.port)) for _ in range(1100)]
    try:
        # Those who have waited longest make room: their own time is a minute.
        begin = time.monotonic()
        connect(here).close()
        assert time.monotonic() - begin < PATIENCE_S
        assert here.front.status().not_shaken >= 1100 - 1024
    finally:
        for sock in silent:
            sock.close()


@pytest.mark.processes
def test_who_is_gone_before_the_greeting_does_not_keep_the_listener_busy(here: Place) -> None:
    os.kill(here.server.pid, signal.SIGSTOP)
    try:
        sock = socket.create_connection((LOOPBACK, here.front.port))
        soon(lambda: here.front.status().connections == 1)
        sock.sendall(b"\x16")
        time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
        begin = busy_s()
        time.sleep(1)
        assert busy_s() - begin < 0.5
    finally:
        os.kill(here.server.pid, signal.SIGCONT)
