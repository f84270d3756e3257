"""Routes with and without their login, through real nats-servers: who joins, and where the password
does not show.
"""

from __future__ import annotations

import re
import socket
import ssl
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.ft.client import NatsConnection, StanClient
from tests.processes import GROUP, HOST, children, free_ports, until, wait_for_mesh

if TYPE_CHECKING:
    from tests.certificates import Certificates
    from tests.processes import Nats, Server, Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PASSWORD = "s3cret@of/routes"
STAN = "s3cret-of-stan"
#: What ``docs/security.md`` calls the least: who names no user may say everything but what servers
#: say.
USERS = f"""
authorization {{
  CLIENT = {{ publish: {{ deny: ["_STAN.ft.>", "_STAN.part.>", "_FTSTAN.>"] }}, subscribe: {{ deny: ["_STAN.ft.>", "_STAN.part.>", "_FTSTAN.>"] }} }}
  users: [ {{ user: stan, password: "{STAN}" }}, {{ user: client, password: c, permissions: $CLIENT }} ]
}}
no_auth_user: client
"""  # noqa: E501
LOGIN = f"authorization {{ user: routes, password: '{PASSWORD}' }}"
#: Every page, of ours and of the embedded NATS server.
PAGES = (
    *(
        "/varz",
        "/connz?subs=1&auth=1",
        "/routez?subs=1",
        "/subsz?subs=1",
        "/gatewayz",
        "/leafz",
        "/accountz",
        "/healthz",
    ),
    *(
        "/streaming/serverz",
        "/streaming/storez",
        "/streaming/clientsz?subs=1",
        "/streaming/channelsz?subs=1",
        "/metrics",
    ),
    *("/dashboard", "/livez", "/readyz"),
)


def member(
    stage: Stage, name: str, own: int, other: int, cluster: str = LOGIN, *words: str
) -> Server:
    """A member of the group whose configuration names the login of routes, if it does, in one
    place.
    """
    file = stage.directory / f"{name}.conf"
    listen = f'listen: "{HOST}:{own}", routes: ["nats://{HOST}:{other}"]'
    login = f"streaming {{ user: stan, password: {STAN}, ft_group: {GROUP} }}"
    file.write_text(f"{USERS}\ncluster {{ {listen}\n {cluster} }}\n{login}\n")
    return stage.file_server(name, "-c", str(file), *words, executed=True)


def stranger(stage: Stage, name: str, url: str, more: str = "") -> Nats:
    """A nats-server of somebody else, which asks nobody for anything and wants to be a route."""
    text = (
        f'cluster {{ name: "ftstan-test-cluster", listen: "{HOST}:-1", routes: ["{url}"]{more} }}\n'
    )
    return stage.nats(name, settings=text)


def joins(server: Server, *others: Server) -> None:
    """Wait until a stranger is a route beside ``others``."""
    known = {remote for other in others for remote, _ in other.routes()}
    until(
        lambda: {remote for remote, _ in server.routes()} - known,
        f"the stranger to join\n{server.tail()}",
    )


def refusals(server: Server) -> int:
    """How often its NATS server sent somebody away."""
    return len(re.findall("uthenticat|uthoriz", server.text()))


def more_refusals(server: Server, before: int) -> bool:
    return refusals(server) > before


def test_a_stranger_joins_a_listener_without_a_login_and_hears_and_says_what_clients_may_not(
    stage: Stage,
) -> None:
    """What the refusal is about: this is the member that starts with ``-ft_allow open_routes``
    alone.
    """
    own, other = free_ports(2)
    refused = member(stage, "refused", own, other, "")
    assert refused.status() == 1
    assert "[open_routes]" in refused.text()
    assert "Traceback" not in refused.text()
    assert not stage.store.exists()
    server = member(stage, "allowed", own, other, "", "-ft_allow", "open_routes")
    server.wait_until_active()
    assert server.text().count("(accepted by -ft_allow open_routes)") == 1
    nats = stranger(stage, "stranger", f"nats://{HOST}:{own}")
    joins(server)
    beats: list[bytes] = []
    listener = NatsConnection(nats.port)
    listener.listen("_STAN.ft.>", lambda arrived: beats.append(arrived.payload))
    listener.pump(lambda: beats, "a heartbeat of the member")


def test_a_stranger_does_not_join_a_listener_with_a_login_and_who_knows_it_does(
    stage: Stage,
) -> None:
    own, other = free_ports(2)
    server = member(stage, "server", own, other)
    server.wait_until_active()
    for name, login in (("nobody", ""), ("wrong", "routes:wrong@"), ("user", f"stan:{STAN}@")):
        before = refusals(server)
        stranger(stage, name, f"nats://{login}{HOST}:{own}")
        until(partial(more_refusals, server, before), "the refusal")
        assert server.routes() == []
    stranger(stage, "member", f"nats://routes:{quote(PASSWORD, safe='')}@{HOST}:{own}")
    joins(server)


@pytest.mark.parametrize("verify", ["", ", verify: false"])
def test_a_stranger_without_a_certificate_does_not_join_a_listener_with_authorities(
    stage: Stage, certificates: Certificates, verify: str
) -> None:
    pair = certificates.server
    ca = certificates.ca.cert
    tls = (
        f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", ca_file: "{ca}", timeout: 10 '
        f"{verify} }}"
    )
    own, other = free_ports(2)
    server = member(stage, "server", own, other, tls)
    server.wait_until_active()
    context = ssl.create_default_context(cafile=ca)
    plain = socket.create_connection((HOST, own), 30)
    with (
        plain,
        pytest.raises(ssl.SSLError, match="certificate"),
        context.wrap_socket(plain, server_hostname=HOST) as link,
    ):
        link.recv(1)
    until(lambda: "TLS" in server.text(), "the refusal")
    assert server.routes() == []
    stranger(stage, "member", f"nats://{HOST}:{own}", f", {tls}")
    joins(server)


def test_a_pair_says_the_login_once_and_it_shows_nowhere(stage: Stage) -> None:
    route_a, route_b = free_ports(2)
    a = member(stage, "a", route_a, route_b, LOGIN, "-SDV", "-DVV")
    a.wait_until_active()
    b = member(stage, "b", route_b, route_a, LOGIN, "-SDV", "-DVV")
    b.wait_until_standing_by()
    wait_for_mesh([a, b])
    client = StanClient(b.port)
    client.connect()
    client.publish(b"foo", b"1")
    secrets = (PASSWORD, quote(PASSWORD, safe=""), STAN)
    for server in (a, b):
        pages = {page: server.get(page) for page in PAGES}
        assert {
            page: status for page, (status, _) in pages.items() if status == HTTPStatus.NOT_FOUND
        } == {}
        assert b'"routes"' in pages["/routez?subs=1"][1]
        assert [
            page for page, (_, body) in pages.items() if any(s.encode() in body for s in secrets)
        ] == []
        lines = [
            Path(f"/proc/{pid}/cmdline").read_text() for pid in (server.pid, *children(server.pid))
        ]
        assert any("nats-server" in line and "nats.conf" in line for line in lines), lines
        assert not any(secret in line for line in lines for secret in secrets)
        # The trace of both sides of the route is there.
        assert "rid:" in server.text()
        assert not any(secret in server.text() for secret in secrets)


def test_members_get_a_login_one_after_the_other(stage: Stage) -> None:
    """One that has it already shows it to one that asks nobody: the group is together while it is
    given out.
    """
    route_a, route_b = free_ports(2)
    a = member(stage, "a", route_a, route_b, "", "-ft_allow", "open_routes")
    a.wait_until_active()
    b = member(stage, "b", route_b, route_a)
    b.wait_until_standing_by()
    wait_for_mesh([a, b])
    assert a.routes()
    assert b.routes()
