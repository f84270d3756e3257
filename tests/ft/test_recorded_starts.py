"""Starts of the original with logins, TLS and external NATS servers, made again with whole servers.

The same exit status, telling line and answers to clients; every exception is named and argued in
``docs/compat/config.md``. A line of ours may go on where the original's ends: with the names of
files and servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.nats.binary import binary_path
from tests.certificates import Certificates
from tests.processes import HOST, PATIENCE_S, READY, ROOT, free_ports, until

if TYPE_CHECKING:
    from tests.processes import Child, Stage

pytestmark = pytest.mark.processes

DATA = Path(__file__).parent.parent / "data/cli"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for name, key in (
        ("auth-tls", "cases"),
        ("files", "invocations"),
        ("invocations", "invocations"),
    )
    for case in json.loads((DATA / f"{name}.json").read_text("utf-8"))[key]
} | {
    name: {
        **case,
        "id": name,
        "argv": [
            {"23960": "{port}", "23961": "{http}"}.get(word, word) for word in case["command_line"]
        ],
        "files": {name: (DATA / "config" / name).read_text("utf-8")},
    }
    for name, case in json.loads((DATA / "config.json").read_text("utf-8"))["files"].items()
}

#: What only a running server decides. The cases that are refused before are in
#: ``tests/unit/config/test_tls_recorded.py``.
PLAYED = (
    *("auth/flag-user-pass", "auth/flag-user-only", "auth/flag-pass-only", "auth/flag-token"),
    *(
        "auth/flag-user-pass-and-token",
        "auth/flag-special-characters",
        "auth/file-single-user-flag-overrides",
    ),
    *(
        "auth/file-users-none-for-server",
        "auth/file-users-flag",
        "auth/file-users-flag-unknown-user",
    ),
    *(
        "auth/file-users-flag-token",
        "auth/file-users-streaming-keys-mixed-with-flag",
        "auth/file-empty-users-array",
    ),
    *(
        "auth/bcrypt-users-flag",
        "auth/bcrypt-single-user",
        "auth/nkey-user-seed",
        "auth/nkey-user-wrong-seed",
    ),
    *(
        "tls/server-no-client-settings",
        "tls/server-client-ca",
        "tls/verify-client-complete",
        "tls/noip-server-name",
    ),
    *("tls/file-flag-tls-false", "tls/secure-no-server-tls", "precedence/tls-false-sc"),
    *(
        "external/user-in-url-wrong",
        "external/user-url-beats-flags",
        "external/token-in-url",
        "external/tls-ca-file",
    ),
    *("external/tls-name-in-url", "external/user-list-flags"),
    *(
        "store/file-dir-is-a-file",
        "store/file-dir-cannot-create",
        "store/other-cluster-id",
        "store/other-crc-poly",
    ),
    *("store/garbage-server-file", "store/truncate-twice"),
    *(
        "net/port-taken",
        "net/http-port-taken",
        "net/port-out-of-range",
        "net/port-minus-two",
        "net/bad-host",
    ),
    *("net/ns-unreachable", "net/ns-list-unreachable", "net/ns-user-unreachable"),
    *("key-nats-url-unreachable.conf", "key-secure.conf", "nats-max-payload-small.conf"),
    "nats-users-without-own.conf",
    *("net/ns-unreachable-with-monitoring", "net/ns-unreachable-pidfile"),
)

#: Where we differ on purpose, and what is said here; empty: it starts.
DIFFERENT = {
    "auth/nkey-seed-not-demanded": "",
    "tls/verify-client-ca-only": "[FTL] STREAM: Failed to start: remote error: tls: certificate "
    "required",
    "tls/noip-client-ca": "[FTL] STREAM: Failed to start: x509: cannot validate certificate for "
    "127.0.0.1 because",
    "tls/noip-wrong-server-name": "[FTL] STREAM: Failed to start: x509: certificate is not valid "
    "for other.example",
    "external/plain-tls-scheme": "[FTL] STREAM: Failed to start: nats: secure connection not "
    "available",
    "external/tls-ca-flag": "",
    "store/empty-server-file": "",
    "store/wrong-file-version": "",
}

LOGINS = {
    "no credentials": {},
    "user alice, password foo": {"user": "alice", "pass": "foo"},
    "user alice, password wrong": {"user": "alice", "pass": "wrong"},
    "user alice, no password": {"user": "alice", "pass": ""},
    "user bob, password bar": {"user": "bob", "pass": "bar"},
    "user carol, password baz": {"user": "carol", "pass": "baz"},
    "user nobody, password foo": {"user": "nobody", "pass": "foo"},
    "token tok": {"auth_token": "tok"},
    "token wrong": {"auth_token": "wrong"},
    "the same pair": {"user": "a@b:c", "pass": "p/q@r"},
    "plain connection, no TLS": {},
    "TLS": {},
    "TLS with client certificate": {},
    "TLS with a certificate of another CA": {},
}
CERTIFICATES = {
    "TLS with client certificate": "client",
    "TLS with a certificate of another CA": "badclient",
}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of the recordings, by their names there."""
    made = Certificates.make(tmp_path_factory.mktemp("recorded") / "tls")
    made.ca.server("noip", names="DNS:stan.example")
    made.other_ca.client("badclient")
    (made.directory / "garbage.pem").write_text("this is not a certificate\n")
    return made.directory


def ported(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"\{(port[23]?|http2?|route)\}", lambda found: ports[found[1]], text)


def external(stage: Stage, tls: Path, port: str, words: list[str]) -> None:
    """The NATS server of the case: the original's flags are its own, but for those of the streaming
    half.
    """
    end = next((n for n, word in enumerate(words) if word.startswith("-tls_client_")), len(words))
    path = [str(tls.parent / word) if word.startswith("tls/") else word for word in words[:end]]
    stage.run("nats", [binary_path(), "-a", HOST, "-p", port, *path]).wait_for("Server is ready")


def started(stage: Stage, name: str, words: list[str]) -> Child:
    command = [
        "env",
        "-C",
        str(stage.directory),
        sys.executable,
        "-P",
        "-m",
        "ftstan.cli.server",
        *words,
    ]
    return stage.run(name, command, {**os.environ, "PYTHONPATH": str(ROOT)})


def answers(port: int, client: str, tls: Path) -> list[str]:
    """What a NATS client is answered to CONNECT and PING."""
    with socket.create_connection((HOST, port), timeout=PATIENCE_S) as plain:
        stream = plain
        stream.recv(65536)  # INFO
        try:
            if client.startswith("TLS"):
                context = ssl.create_default_context(cafile=str(tls / "ca.pem"))
                if name := CERTIFICATES.get(client, ""):
                    context.load_cert_chain(tls / f"{name}.pem", tls / f"{name}.key")
                stream = context.wrap_socket(plain, server_hostname="localhost")
            login = {"verbose": True, "pedantic": False, **LOGINS[client]}
            stream.sendall(f"CONNECT {json.dumps(login)}\r\nPING\r\n".encode())
            said = b""
            while not said.endswith(b"PONG\r\n") and (piece := stream.recv(65536)):
                said += piece
        except OSError:
            return []
        finally:
            stream.close()
    return [line for line in said.decode().splitlines() if "Secure Connection" not in line]


def telling(server: Child) -> str:
    """The first line that tells why it did not start, without pid and time."""
    lines = [re.sub(r"^\[\d+\] \S+ \S+ ", "", line) for line in server.lines()]
    lines = [line for line in lines if line and not re.match(r"\[(INF|WRN|ERR)\] |hint: ", line)]
    return lines[0]


def ended(stage: Stage, name: str, words: list[str]) -> Child:
    """A server that has started or failed to."""
    server = started(stage, name, words)
    until(lambda: READY in server.text() or not server.running, f"the start of {name}")
    return server


def played(case: dict[str, Any], ports: dict[str, str], stage: Stage, tls: Path) -> Child:
    for name, text in case.get("files", {}).items():
        file = stage.directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(ported(text, ports))
    (stage.directory / "tls").symlink_to(tls)
    if "external_nats_server_options" in case:
        external(stage, tls, ports["port"], case["external_nats_server_options"])
    before = case.get("earlier_starts", [])
    if case["id"] == "store/truncate-twice":
        # The recording was made behind another one, in the same directory.
        before = [case["argv"]]
    for number, words in enumerate(before):
        ended(stage, f"before{number}", [ported(word, ports) for word in words]).end()
    return ended(
        stage, case["id"].replace("/", "-"), [ported(word, ports) for word in case["argv"]]
    )


@pytest.fixture
def ports() -> dict[str, str]:
    return dict(
        zip(
            ("port", "port2", "port3", "http", "http2", "route"),
            map(str, free_ports(6)),
            strict=True,
        )
    )


def unported(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"<(port[23]?|http2?)>", lambda found: ports[found[1]], text)


@pytest.mark.parametrize("name", PLAYED)
def test_a_recorded_start_ends_as_that_of_the_original(
    name: str, stage: Stage, tls: Path, ports: dict[str, str]
) -> None:
    case = CASES[name]
    with contextlib.ExitStack() as stack:
        if name.endswith("port-taken"):
            stack.enter_context(
                socket.create_server((HOST, int(ports["http" if "http" in name else "port"])))
            )
        server = played(case, ports, stage, tls)
    if case["started"]:
        assert server.running, server.tail()
        for probe in case.get("probes", []):
            assert answers(int(ports["port"]), probe["client"], tls) == probe["answer"], probe[
                "client"
            ]
        server.signal(signal.SIGINT)
    else:
        expected = case.get("line") or next(line for line in case["stderr"] if "[FTL]" in line)
        expected = re.sub(r"^\[<pid>\] <time> ", "", unported(expected, ports))
        pattern = re.escape(expected).replace("<crc>", "(?:0x)?[0-9a-f]+")
        assert re.match(pattern, telling(server)), f"{expected}\n{server.tail()}"
        assert "Traceback" not in server.text()
    assert server.status() == case["exit"], server.tail()


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_start_that_differs_on_purpose_ends_as_the_page_says(
    name: str, stage: Stage, tls: Path, ports: dict[str, str]
) -> None:
    server = played(CASES[name], ports, stage, tls)
    if DIFFERENT[name]:
        assert telling(server).startswith(DIFFERENT[name])
        assert server.status() == 1
    else:
        assert server.running, server.tail()


def test_every_exception_is_explained() -> None:
    page = (ROOT / "docs/compat/config.md").read_text("utf-8")
    assert [name for name in sorted(DIFFERENT) if name not in page] == []
