"""Who sees the monitoring pages of a real server: with a token, with a certificate, and load
balancers.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.processes import HOST, PATIENCE_S, READY, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.certificates import Certificates, Pair
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

TOKEN = "hunter2 ü"
PAGES = ("/streaming/serverz", "/streaming/channelsz", "/metrics", "/varz", "/nothing")
_NATS_PAGES = (
    "varz",
    "connz?subs=1",
    "routez?subs=1",
    "subsz?subs=1",
    "gatewayz",
    "leafz",
    "accountz",
    "accstatz",
    "jsz",
)
_OWN_PAGES = ("serverz", "storez", "clientsz?subs=1", "channelsz?subs=1", "ftz")
HEALTH = ("/livez", "/readyz", "/active", "/standby", "/streaming/isFTActive")


def ask(
    server: Server,
    path: str,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    method: str = "GET",
) -> tuple[int, dict[str, str]]:
    status, found, _ = asked(server, path, headers, context, method)
    return status, found


def asked(
    server: Server,
    path: str,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    method: str = "GET",
) -> tuple[int, dict[str, str], bytes]:
    """The same with the body."""
    port = server.monitor
    connection = (
        http.client.HTTPConnection(HOST, port, timeout=PATIENCE_S)
        if context is None
        else http.client.HTTPSConnection(HOST, port, timeout=PATIENCE_S, context=context)
    )
    try:
        connection.request(
            method, path, headers={name: value.encode() for name, value in (headers or {}).items()}
        )
        answer = connection.getresponse()
        # Of a header that comes twice, both.
        names = dict.fromkeys(answer.headers)
        found = {name: "\n".join(answer.headers.get_all(name, [])) for name in names}
        return answer.status, found, answer.read()
    finally:
        connection.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def protected(stage: Stage, *words: str) -> Server:
    server = stage.server("server", "-monitor_token", TOKEN, *words)
    server.wait_for(READY)
    return server


def test_nobody_sees_a_page_without_the_token(stage: Stage) -> None:
    server = protected(stage)
    for path in (*PAGES, *HEALTH, "/streaming/serverz?token=" + "hunter2"):
        status, headers = ask(server, path)
        assert status == 401, path
        # Two headers: a browser that does not know the first scheme reads on only then.
        schemes = [line.split()[0] for line in headers["WWW-Authenticate"].splitlines()]
        assert schemes == ["Bearer", "Basic"]
    for wrong in (
        bearer(""),
        bearer("hunter2"),
        bearer(TOKEN + "x"),
        basic(TOKEN, ""),
        {"Authorization": "Basic %%%"},
    ):
        assert ask(server, "/streaming/serverz", wrong)[0] == 401, wrong
    assert TOKEN not in server.text()


def test_the_token_opens_every_page_as_a_header_or_as_a_browsers_password(stage: Stage) -> None:
    server = protected(stage)
    for shown in (bearer(TOKEN), basic("anybody", TOKEN), basic("", TOKEN)):
        assert ask(server, "/streaming/serverz", shown)[0] == 200
    assert ask(server, "/nothing", bearer(TOKEN))[0] == 404


def test_a_script_of_another_site_gets_no_page_with_the_login_that_a_browser_keeps(
    stage: Stage,
) -> None:
    server = protected(stage)
    for page in ("/streaming/clientsz", "/varz", "/dashboard/data"):
        status, headers, body = asked(server, f"{page}?callback=f", basic("anybody", TOKEN))
        assert (status, headers["X-Content-Type-Options"]) == (403, "nosniff"), page
        assert body.startswith(b"403 forbidden: no callback is taken"), page
    assert ask(server, "/streaming/clientsz?callback=f")[0] == 401


def test_load_balancers_are_answered_without_a_token_where_the_operator_says_so(
    stage: Stage,
) -> None:
    server = protected(stage, "-monitor_open_health")
    for path in HEALTH:
        assert ask(server, path)[0] in {200, 204, 503}, path
    for path in PAGES:
        assert ask(server, path)[0] == 401, path


def test_no_client_id_and_no_inbox_is_on_a_page_that_is_open_beside_a_token(stage: Stage) -> None:
    """They are all that somebody needs to close a client, or to speak in its place."""
    server = protected(stage, "-monitor_open_health")
    client = StanClient(server.port, "me-and-nobody-else")
    client.connect()
    client.subscribe(b"orders", durable=b"mine")
    pages = [f"/{page}" for page in _NATS_PAGES] + [f"/streaming/{page}" for page in _OWN_PAGES]
    pages += ["/", "/streaming", "/metrics", "/dashboard", "/dashboard/data", *HEALTH, "/healthz"]
    told = {page: asked(server, page)[2] for page in pages}
    for secret in (b"me-and-nobody-else", b"_INBOX", b"mine"):
        assert [page for page, body in told.items() if secret in body] == []
    # With the token they are where operators look for them.
    for page, secret in (("/streaming/clientsz?subs=1", b"_INBOX"), ("/subsz?subs=1", b"_INBOX.")):
        assert secret in asked(server, page, bearer(TOKEN))[2], page


def test_a_page_of_another_member_may_ask_whether_to_send_the_token_and_learns_nothing_else(
    stage: Stage,
) -> None:
    server = protected(stage)
    status, headers = ask(server, "/streaming/serverz", method="OPTIONS")
    assert (status, headers["Access-Control-Allow-Headers"]) == (204, "Authorization")


def test_a_client_certificate_opens_the_pages_and_that_of_another_authority_does_not(
    stage: Stage, certificates: Certificates
) -> None:
    pair = certificates.server
    ca = certificates.ca.cert
    words = [
        "-tls",
        "-tlscert",
        pair.cert,
        "-tlskey",
        pair.key,
        "-tls_client_cacert",
        ca,
        "-monitor_client_ca",
        ca,
    ]
    (port,) = free_ports(1)
    server = stage.server("server", *words, "-m", "0", "-ms", str(port))
    server.wait_for(READY)
    server.monitor = port

    def context(shown: Pair | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=ca)
        if shown is not None:
            made.load_cert_chain(shown.cert, shown.key)
        return made

    assert ask(server, "/streaming/serverz", context=context(certificates.client))[0] == 200
    assert ask(server, "/streaming/serverz", context=context(None))[0] == 401
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(server, "/streaming/serverz", context=context(certificates.stranger))


def test_certificates_cannot_be_asked_for_without_https(
    stage: Stage, certificates: Certificates
) -> None:
    server = stage.server("server", "-monitor_client_ca", certificates.ca.cert)
    assert server.status() == 1
    assert "monitor_client_ca needs HTTPS" in server.text()
