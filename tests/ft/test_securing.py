"""Logins and TLS of whole servers: alone, in a group, embedded and external, and for who asks them
questions.
"""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.errors import NatsError
from ftstan.config.options import (
    FileOptions,
    LinkOptions,
    NatsOptions,
    ServerOptions,
    ServerTlsOptions,
)
from ftstan.embed import StanServer
from tests.certificates import Certificates, replace_pair
from tests.ft.client import StanClient
from tests.ft.operator import Operator
from tests.processes import (
    CLUSTER,
    GROUP,
    HOST,
    PATIENCE_S,
    READY,
    ROOT,
    free_ports,
    until,
)

if TYPE_CHECKING:
    from tests.certificates import Pair
    from tests.processes import Child, Stage

pytestmark = pytest.mark.processes

SEED = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y"
USER = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"


def client_flags(certificates: Certificates) -> list[str]:
    pair = certificates.client
    return [
        "-tls_client_cacert",
        certificates.ca.cert,
        "-tls_client_cert",
        pair.cert,
        "-tls_client_key",
        pair.key,
    ]


def server_flags(certificates: Certificates) -> list[str]:
    return ["-tls", "-tlscert", certificates.server.cert, "-tlskey", certificates.server.key]


def as_client(certificates: Certificates) -> dict[str, Any]:
    pair = certificates.client
    return {"client_ca": certificates.ca.cert, "client_cert": pair.cert, "client_key": pair.key}


def configured(stage: Stage, name: str, text: str, *words: str) -> Any:
    file = stage.directory / f"{name}.conf"
    file.write_text(text)
    return stage.server(name, "-c", str(file), *words)


def failure(server: Child) -> str:
    """The line with which a start failed; nothing of a traceback stands in the log."""
    assert server.status() == 1, server.tail()
    assert "Traceback" not in server.text()
    lines = [line for line in server.lines() if "[FTL]" in line]
    assert len(lines) == 1, server.tail()
    return lines[0].removeprefix("[FTL] ")


class TestTls:
    def test_a_server_that_demands_certificates_serves_who_has_one(
        self, stage: Stage, certificates: Certificates
    ) -> None:
        verify = ["-tlsverify", "-tlscacert", certificates.ca.cert]
        server = stage.file_server(
            "server", *server_flags(certificates), *verify, *client_flags(certificates)
        )
        server.wait_for(READY)
        client = StanClient(server.port, **as_client(certificates))
        client.connect()
        payloads = [b"%d" % n + bytes(20_000) for n in range(200)]
        client.publish(b"foo", *payloads)
        got = client.subscribe(b"foo")
        client.nats.pump(lambda: got.has(200), "all of it")
        assert got.sequences == list(range(1, 201))
        client.close()

    def test_both_maps_of_a_file_say_the_same(
        self, stage: Stage, certificates: Certificates
    ) -> None:
        ca = certificates.ca.cert
        pair = certificates.client
        ours = f'client_ca: "{ca}", client_cert: "{pair.cert}", client_key: "{pair.key}"'
        text = f"{certificates.server_lines(verify=True)}streaming {{ tls {{ {ours} }} }}\n"
        server = configured(stage, "server", text)
        server.wait_for(READY)
        StanClient(server.port, **as_client(certificates)).connect()
        # Off by the flag, whatever the file says: then our own settings have nothing to hold on to.
        off = configured(stage, "off", text, "-tls=false")
        assert failure(off).startswith(
            "STREAM: Failed to start: nats: secure connection not available"
        )
        plain = configured(stage, "plain", certificates.server_lines(verify=True), "-tls=false")
        plain.wait_for(READY)
        StanClient(plain.port).connect()

    @pytest.mark.parametrize(
        ("ours", "text"),
        [
            ([], "x509: certificate signed by unknown authority"),
            (["-secure"], "x509: certificate signed by unknown authority"),
            (["-tls_client_cacert", "OTHER"], "x509: certificate signed by unknown authority"),
            (
                ["-tls_client_cacert", "none.pem"],
                (
                    "nats: error loading or parsing rootCA file: open none.pem: no such file or "
                    "directory"
                ),
            ),
            (
                ["-tls_client_cacert", "CA", "-tls_client_cert", "CERT"],
                "nats: error loading client certificate: open : no such file or directory",
            ),
        ],
    )
    def test_a_start_that_cannot_be_trusted_fails_in_one_line(
        self, stage: Stage, certificates: Certificates, ours: list[str], text: str
    ) -> None:
        places = {
            "OTHER": certificates.other_ca.cert,
            "CA": certificates.ca.cert,
            "CERT": certificates.client.cert,
        }
        server = stage.file_server(
            "server", *server_flags(certificates), *(places.get(word, word) for word in ours)
        )
        assert failure(server).startswith(f"STREAM: Failed to start: {text}")
        # Files are read before anything is touched.
        assert text.startswith("x509") or not stage.store.exists()

    def test_a_server_without_its_key_or_with_that_of_another_does_not_start(
        self, stage: Stage, certificates: Certificates
    ) -> None:
        for words, text in (
            (["-tlskey", certificates.client.key], "tls: private key does not match public key"),
            (["-tlskey", "none.key"], "open none.key: no such file or directory"),
        ):
            server = stage.file_server(
                "server", "-tls", "-tlscert", certificates.server.cert, *words
            )
            assert server.status() == 1, server.tail()
            # Before a log exists: as in the original the line stands alone.
            assert server.lines()[0].startswith(f"error parsing X509 certificate/key pair: {text}")
        assert not stage.store.exists()

    @pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated:DeprecationWarning")
    def test_ciphers_and_the_least_version_are_those_of_the_file_and_a_certificate_names_its_user(
        self, stage: Stage, certificates: Certificates
    ) -> None:
        ca = certificates.ca.cert
        pair = certificates.client
        server = certificates.server
        text = (
            f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{ca}", '
            "verify_and_map: true\n"
            '  cipher_suites: ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]\n'
            '  curve_preferences: ["CurveP384"], timeout: 10 }\n'
            'authorization { users: [ { user: "CN=client" } ] }\n'
            f'streaming {{ tls {{ client_ca: "{ca}", client_cert: "{pair.cert}", client_key: '
            f'"{pair.key}" }} }}\n'
        )
        running = configured(stage, "server", text)
        running.wait_for(READY)
        StanClient(running.port, **as_client(certificates)).connect()
        # Of the same authority, but no user.
        with pytest.raises(NatsError, match="Authorization Violation"):
            StanClient(running.port, client_ca=ca, client_cert=server.cert, client_key=server.key)

        def greet(version: ssl.TLSVersion, ciphers: str = "ALL:@SECLEVEL=0") -> str:
            context = ssl.create_default_context(cafile=ca)
            context.load_cert_chain(pair.cert, pair.key)
            context.set_ciphers(ciphers)
            context.minimum_version = context.maximum_version = version
            with socket.create_connection((HOST, running.port), PATIENCE_S) as raw:
                raw.recv(65536)
                with context.wrap_socket(raw, server_hostname=HOST) as secured:
                    return (secured.cipher() or ("",))[0]

        assert greet(ssl.TLSVersion.TLSv1_2) == "ECDHE-ECDSA-AES256-GCM-SHA384"
        with pytest.raises(ssl.SSLError):
            greet(ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-GCM-SHA256")
        with pytest.raises(ssl.SSLError):
            greet(ssl.TLSVersion.TLSv1_1)

    def test_a_server_that_does_not_verify_says_so(
        self, stage: Stage, certificates: Certificates
    ) -> None:
        server = configured(
            stage,
            "server",
            "streaming { tls { skip_verify: true } }\n",
            *server_flags(certificates),
        )
        server.wait_for(READY)
        assert (
            "[WRN] STREAM: TLS certificate chain and hostname will not be verified. DO NOT USE "
            "IN PRODUCTION!" in (server.lines())
        )


class TestLogins:
    USERS = (
        "authorization { users = [ { user: alice, password: foo }, { user: bob, password: bar } "
        "] }\n"
    )

    def test_with_several_users_the_server_must_be_told_which_it_is(self, stage: Stage) -> None:
        nobody = configured(stage, "nobody", self.USERS)
        assert failure(nobody).startswith("STREAM: Failed to start: nats: Authorization Violation")
        for name, text, words in (
            ("flags", self.USERS, ["-user", "alice", "-pass", "foo"]),
            ("keys", f"{self.USERS}streaming {{ user: alice, password: foo }}\n", []),
            # Each value by itself: the user of the flag, the password of the file.
            (
                "mixed",
                f"{self.USERS}streaming {{ user: alice, password: bar }}\n",
                ["-user", "bob"],
            ),
        ):
            server = configured(stage, name, text, *words)
            server.wait_for(READY)
            StanClient(server.port, user="bob", password="bar").connect()
            server.end()
        wrong = configured(
            stage, "wrong", f"{self.USERS}streaming {{ user: alice, password: bar }}\n"
        )
        assert failure(wrong).startswith("STREAM: Failed to start: nats: Authorization Violation")

    def test_a_seed_file_lets_the_server_in_and_a_bad_one_is_told_before_anything_is_touched(
        self, stage: Stage
    ) -> None:
        users = f"authorization {{ users = [ {{ nkey: {USER} }} ] }}\n"
        seed = stage.directory / "seed"
        text = f'{users}streaming {{ nkey_seed_file: "{seed}" }}\n'
        missing = configured(stage, "missing", text)
        assert (
            failure(missing)
            == f"STREAM: Failed to start: nats: open {seed}: no such file or directory"
        )
        seed.write_text("not a seed\n")
        assert (
            failure(configured(stage, "bad", text)) == "STREAM: Failed to start: no nkey seed found"
        )
        seed.write_text(SEED)
        server = configured(stage, "good", text)
        server.wait_for(READY)
        StanClient(server.port, nkey_seed_file=str(seed)).connect()
        assert SEED not in server.text()


def test_a_group_takes_over_and_is_asked_and_steered_through_tls_and_a_login(
    stage: Stage, certificates: Certificates
) -> None:
    nats = stage.nats(
        settings=certificates.server_lines(verify=True)
        + "authorization { user: stan, password: hunter2 }\n"
    )
    words = ["-ns", nats.url, "-user", "stan", "-pass", "hunter2", *client_flags(certificates)]
    a = stage.member("a", *words)
    a.wait_until_active()
    b = stage.member("b", *words)
    b.wait_for("STREAM: Starting in standby mode")
    pair = certificates.client
    flags = ["--user", "stan", "--pass", "hunter2", "--tlsca", certificates.ca.cert]
    flags += ["--tlscert", pair.cert, "--tlskey", pair.key]
    operator = Operator(nats.url, stage.store)
    assert operator.status("--expect", "2", "--timeout", "60", *flags).status == 0
    refused = operator.ft("status", "--user", "stan", "--pass", "hunter2")
    assert refused.status == 3
    assert "x509: certificate signed by unknown authority" in refused.err
    client = StanClient(nats.port, user="stan", password="hunter2", **as_client(certificates))
    client.connect()
    client.publish(b"foo", b"1")
    a.kill()
    b.wait_until_active()
    until(lambda: client.ping() == "", "the successor to know the client")
    client.publish(b"foo", b"2")
    got = client.subscribe(b"foo")
    client.nats.pump(lambda: got.has(2), "both messages")
    assert [message.data for message in got.received] == [b"1", b"2"]
    assert "hunter2" not in a.text() + b.text()


def test_a_renewed_certificate_of_ours_is_used_when_the_link_comes_back(
    stage: Stage, tmp_path: Path
) -> None:
    own = Certificates.make(tmp_path / "own")
    settings = own.server_lines(verify=True)
    nats = stage.nats(settings=settings)
    server = stage.file_server("server", "-ns", nats.url, *client_flags(own))
    server.wait_for(READY)
    # The authority is replaced, and with it everything it signed: the old certificate opens nothing
    # any more.
    fresh = Certificates.make(tmp_path / "fresh")
    nats.kill()
    replace_pair(own.server, fresh.server)
    replace_pair(own.client, fresh.client)
    own_ca = own.directory / "ca.pem"
    fresh_ca = fresh.directory / "ca.pem"
    own_ca.write_bytes(fresh_ca.read_bytes())
    stage.nats("again", port=nats.port, settings=settings)
    server.wait_for("reconnected to NATS Server")
    client = StanClient(nats.port, **as_client(fresh))
    client.connect()
    client.publish(b"foo", b"1")


def test_a_reload_shows_renewed_certificates_to_clients_and_visitors_and_a_bad_file_changes_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    own = Certificates.make(tmp_path / "own")
    fresh = Certificates.make(tmp_path / "fresh")
    (pages,) = free_ports(1)
    text = f'{own.server_lines()}streaming {{ tls {{ client_ca: "{own.ca.cert}" }} }}\n'
    server = configured(stage, "server", text, "-m", "0", "-ms", str(pages))
    server.wait_for(READY)

    def shown(port: int) -> str:
        with socket.create_connection((HOST, port), PATIENCE_S) as raw:
            if port != pages:
                raw.recv(65536)
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            with context.wrap_socket(raw) as secured:
                return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"")

    def certificate(pair: Pair) -> str:
        return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(Path(pair.cert).read_text()))

    old = certificate(own.server)
    assert (shown(server.port), shown(pages)) == (old, old)
    key = Path(own.server.key)
    good = key.read_bytes()
    key.write_text("nothing\n")
    server.signal(signal.SIGHUP)
    server.wait_for("server.conf:1:1: error parsing X509 certificate/key pair")
    assert own.server.key in server.text()
    assert (shown(server.port), shown(pages)) == (old, old)
    key.write_bytes(good)
    Path(own.ca.cert).write_bytes(Path(own.ca.cert).read_bytes() + Path(fresh.ca.cert).read_bytes())
    replace_pair(own.server, fresh.server)
    server.signal(signal.SIGHUP)
    new = certificate(fresh.server)
    until(lambda: (shown(server.port), shown(pages)) == (new, new), "the renewed certificate")
    client = StanClient(server.port, client_ca=fresh.ca.cert)
    client.connect()
    client.publish(b"foo", b"1")


def test_embedded_servers_route_to_each_other_through_tls_and_take_over(
    certificates: Certificates, tmp_path: Path
) -> None:
    pair = certificates.server
    tls = ServerTlsOptions(
        enabled=True, cert_file=pair.cert, key_file=pair.key, ca_file=certificates.ca.cert
    )
    route_tls = {
        "cert_file": pair.cert,
        "key_file": pair.key,
        "ca_file": certificates.ca.cert,
        "timeout": 10,
    }
    route_a, route_b = (f"nats://{HOST}:{port}" for port in free_ports(2))

    def member(listen: str, other: str) -> StanServer:
        nats = NatsOptions(
            host=HOST,
            port=-1,
            cluster_listen=listen,
            routes=(other,),
            tls=tls,
            settings={"cluster": {"tls": route_tls}},
        )
        options = ServerOptions(
            cluster_id=CLUSTER, store="FILE", dir=str(tmp_path / "store"), ft_group=GROUP, nats=nats
        )
        return StanServer(
            replace(options, file=FileOptions(), link=LinkOptions(client_ca=certificates.ca.cert))
        )

    with member(route_a, route_b) as first:
        until(lambda: first.state == "FT_ACTIVE" and first.is_serving, "the first to serve")
        with member(route_b, route_a) as second:
            until(lambda: second.state == "FT_STANDBY", "the second to stand by")
            port = int(second.client_url.rpartition(":")[2])
            # Through the standby's own NATS server, and so through the route.
            client = StanClient(port, client_ca=certificates.ca.cert)
            until(lambda: client.ask_to_connect().error == b"", "the route to stand")
            client.publish(b"foo", b"1")
            first.stop()
            until(lambda: second.is_serving, "the second to serve")
            client.publish(b"foo", b"2")


def test_no_command_over_tls_prints_what_asyncio_says_about_its_streams(
    stage: Stage, certificates: Certificates
) -> None:
    nats = stage.nats(settings=certificates.server_lines(verify=True))
    server = stage.file_server("server", "-ns", nats.url, *client_flags(certificates))
    server.wait_for(READY)
    pair = certificates.client
    flags = ["--server", nats.url, "--cluster", CLUSTER, "--tlsca", certificates.ca.cert]
    flags += ["--tlscert", pair.cert, "--tlskey", pair.key]
    for words in (
        ["pub", "foo", "text"],
        ["sub", "foo", "--first", "--count", "1"],
        ["server", "ls"],
    ):
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-m", "ftstan.cli.ctl", *words, *flags],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, "eof_received" in done.stderr) == (0, False), done
    nats.kill()
    server.wait_for("has been disconnected")
    assert "eof_received" not in server.text()
