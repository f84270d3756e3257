"""``docs/examples``: every configuration is checked and started, groups as groups, and carries a
message.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import NatsError
from tests.ft.client import NatsConnection, StanClient
from tests.processes import HOST, READY, ROOT, STANDING_BY, until, wait_for_mesh

if TYPE_CHECKING:
    from tests.certificates import Certificates
    from tests.processes import Server
    from tests.reference.moved import Moved

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

EXAMPLES = ROOT / "docs" / "examples"
CONFIGURATIONS = sorted(
    str(path.relative_to(EXAMPLES))
    for path in EXAMPLES.rglob("*.conf")
    # The secured pair has a test of its own: it needs keys that its page makes.
    if path.stem != "keepalived" and path.parent.name != "secure-pair"
)
CLUSTER = "orders"
SECRETS = {
    "STAN_PASSWORD": "s3cret-of-stan",
    "ROUTES_PASSWORD": "s3cret-of-routes",
    "MONITOR_TOKEN": "s3cret-of-pages",
    "OPERATOR_PASSWORD": "s3cret-of-ops",
    "CLIENT_PASSWORD": "s3cret-of-app",
    "PUBLISHER_PASSWORD": "s3cret-of-pub",
}
#: Subjects on which only servers speak, and those on which operators do, too.
OF_SERVERS = ("_STAN.ft.orders.orders", "_STAN.part.orders")
OF_OPERATORS = ("_FTSTAN.ft.orders.orders", "_FTSTAN.ctl.orders.who")
GROUPS = sorted(
    name for name in CONFIGURATIONS if "ft_group" in (EXAMPLES / name).read_text(encoding="utf-8")
)


def host_of(name: str) -> str:
    found = re.search(r"host\d", name)
    return "" if found is None else found[0]


def placed(moved: Moved, name: str) -> str:
    """The example in the test's directory, with what it relies on; the command that starts it."""
    for place in ("/var/lib/ftstan", "/var/log/ftstan", "/run/ftstan", "/nss"):
        moved.path(place).mkdir(parents=True, exist_ok=True)
    path = moved.file(name, (EXAMPLES / name).read_text(encoding="utf-8"), host_of(name))
    return f"ftstan -c {path}"


def start(moved: Moved, name: str) -> Server:
    command = placed(moved, name)
    environment = {**os.environ, **SECRETS}
    server = moved.start(
        command, host=host_of(name), name=name.replace("/", "-"), environment=environment
    )
    server.token = SECRETS["MONITOR_TOKEN"] if name in GROUPS else ""
    return server


def round_trip(port: int, name: str, *channels: bytes) -> StanClient:
    client = StanClient(port, name, cluster=CLUSTER)
    client.connect()
    for channel in channels:
        client.publish(channel, b"there and back")
        assert b"there and back" in client.read_all(channel).values()
    return client


@pytest.fixture
def keys(moved: Moved, certificates: Certificates) -> Certificates:
    """The certificates that ``secure.conf`` names, where it looks for them."""
    place = moved.path("/etc/ftstan")
    place.mkdir(parents=True)
    for name, source in (
        ("ca.pem", certificates.ca.cert),
        ("server.pem", certificates.server.cert),
        ("server.key", certificates.server.key),
        ("client.pem", certificates.client.cert),
        ("client.key", certificates.client.key),
    ):
        shutil.copy(source, place / name)
    return certificates


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_example_has_no_error_and_no_key_that_nobody_knows(
    moved: Moved, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)
    done = moved.run(placed(moved, name), add=["-check_config", "-strict"])
    assert (done.status, done.lines[-1]) == (0, "The configuration is valid."), done.text
    assert not any(secret in done.text for secret in SECRETS.values())
    assert os.listdir(moved.path("/nss")) == os.listdir(moved.path("/var/lib/ftstan")) == []


def refused(link: NatsConnection, subject: str) -> bool:
    """Whether the NATS server takes no message of ours there."""
    link.publish(subject, b"")
    try:
        link.flush()
    except AssertionError as error:
        if f'Permissions Violation for Publish to "{subject}"' not in str(error):
            raise
        return True
    return False


def test_every_example_of_a_group_has_users() -> None:
    assert len(GROUPS) == 8
    for name in GROUPS:
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        servers = '{ deny: ["_STAN.ft.>", "_STAN.part.>", "_FTSTAN.>"] }'
        assert f"CLIENT = {{ publish: {servers}, subscribe: {servers} }}" in text
        assert "\nno_auth_user: client\n" in text


@pytest.mark.parametrize("name", GROUPS)
def test_an_example_whose_routes_had_no_login_would_be_refused(
    moved: Moved, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)
    command = placed(moved, name)
    path = Path(command.rpartition(" ")[2])
    text = path.read_text(encoding="utf-8")
    login = "  authorization { user: routes, password: $ROUTES_PASSWORD }\n"
    assert text.count(login) == 1
    path.write_text(text.replace(login, ""), encoding="utf-8")
    done = moved.run(command, add=["-check_config"])
    assert done.status == 1
    assert "[open_routes]" in done.text


@pytest.mark.parametrize("name", GROUPS)
def test_no_client_of_a_group_can_speak_for_its_members(moved: Moved, name: str) -> None:
    server = start(moved, name)
    server.wait_until_active()
    users: dict[str, dict[str, str]] = {"nobody": {}} | {
        user: {"user": user, "password": SECRETS[f"{user.upper()}_PASSWORD"]}
        for user in ("client", "operator", "stan")
    }
    may = {
        (user, subject)
        for user, login in users.items()
        for subject in (*OF_SERVERS, *OF_OPERATORS, "anything.else")
        if not refused(NatsConnection(server.port, **login), subject)
    }
    everything = {(user, "anything.else") for user in users}
    assert may == everything | {("stan", s) for s in (*OF_SERVERS, *OF_OPERATORS)} | {
        ("operator", subject) for subject in OF_OPERATORS
    }
    # The member itself beats, and its group hears it: nothing that it needs was taken from it.
    beats: list[bytes] = []
    listener = NatsConnection(server.port, **users["operator"])
    listener.listen("_STAN.ft.>", lambda arrived: beats.append(arrived.payload))
    listener.pump(lambda: len(beats) > 1, "its heartbeats")
    assert "Permissions Violation" not in server.text()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_example_says_at_its_top_what_it_is_for_and_what_to_change(name: str) -> None:
    head = (EXAMPLES / name).read_text(encoding="utf-8").partition("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    for what in ("Start:", "Change:", "More:"):
        assert f"# {what} " in head
    assert f"ftstan -c {name.rpartition('/')[2]}" in head
    for page in re.findall(r"docs/[a-z]+\.md", head):
        assert (ROOT / page).is_file(), page


def test_the_page_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in CONFIGURATIONS:
        assert f"]({name.partition('/')[0]})" in page
    assert "`tests/reference/test_examples.py`" in page


def test_the_single_server_keeps_what_its_limits_say(moved: Moved) -> None:
    server = start(moved, "single.conf")
    log = moved.path("/var/log/ftstan/ftstan.log")
    until(
        lambda: log.exists() and READY in log.read_text(),
        f"the server to be ready\n{server.tail()}",
    )
    round_trip(server.port, "me", b"new").close()
    lines = [
        " ".join(line.partition("STREAM: ")[2].split()) for line in log.read_text().splitlines()
    ]
    for entry in ("audit.>", "|-> Age 8760h0m0s", "reply.>", "|-> Inactivity 1h0m0s"):
        assert entry in lines
    assert moved.path("/run/ftstan/ftstan.pid").read_text().strip() == str(server.pid)
    assert moved.path("/var/lib/ftstan/orders/new/msgs.1.dat").exists()
    assert server.serverz()["cluster_id"] == CLUSTER


@pytest.mark.parametrize("directory", ["ft-pair", "load-balancer"])
def test_a_pair_starts_as_a_group_and_the_second_takes_over(moved: Moved, directory: str) -> None:
    first = start(moved, f"{directory}/host1.conf")
    first.wait_until_active()
    second = start(moved, f"{directory}/host2.conf")
    second.wait_for(STANDING_BY)
    # A client of the standby's host reaches the active through the route.
    client = round_trip(second.port, "me", b"new")
    until(lambda: second.get("/readyz")[0] == 200, "the second is ready to take over")
    assert (first.get("/active")[0], second.get("/active")[0]) == (200, 503)
    first.kill()
    until(lambda: second.get("/active")[0] == 200, f"the second to take over\n{second.tail()}")
    again = StanClient(second.port, "again", cluster=CLUSTER)
    again.connect()
    assert b"there and back" in again.read_all(b"new").values()
    client.nats.close()
    assert second.serverz()["state"] == "FT_ACTIVE"
    second.token = ""
    assert second.get("/streaming/serverz")[0] == 401


def test_four_hosts_are_two_partitions_and_one_cluster(moved: Moved) -> None:
    servers = {}
    for number in (1, 3, 2, 4):
        servers[number] = start(moved, f"partitions/host{number}.conf")
        if number % 2:
            servers[number].wait_until_active()
        else:
            servers[number].wait_for(STANDING_BY)
    wait_for_mesh(list(servers.values()))
    for number in (4, 2):
        # Both partitions are reached from any of the four.
        round_trip(servers[number].port, f"me-{number}", b"foo.orders", b"bar.orders")
    assert sorted(os.listdir(moved.path("/nss"))) == ["bardata", "foodata"]
    assert moved.path("/nss/foodata/foo.orders").is_dir()
    assert moved.path("/nss/bardata/bar.orders").is_dir()
    servers[1].kill()
    servers[2].wait_until_active()
    round_trip(servers[4].port, "after", b"foo.orders", b"bar.orders")
    assert servers[3].ft_status == 200


def test_three_hosts_are_a_cluster_that_serves_without_one_of_them(moved: Moved) -> None:
    hosts = (1, 2, 3)
    servers = {}
    for number in hosts:
        name = f"cluster/host{number}.conf"
        command = placed(moved, name)
        path = Path(command.rpartition(" ")[2])
        # On their own hosts they have a disk each.
        text = path.read_text(encoding="utf-8").replace(
            "/var/lib/ftstan/", f"/var/lib/ftstan/{number}/"
        )
        path.write_text(text, encoding="utf-8")
        servers[number] = moved.start(
            command,
            host=f"host{number}",
            name=f"node-{number}",
            environment={**os.environ, **SECRETS},
        )
    leader = serving(servers)
    (other, third) = (number for number in hosts if number != leader)
    round_trip(servers[other].port, "me", b"new")
    assert servers[other].get("/readyz")[0] == 200
    # What clients may say reaches neither the log nor what nodes say to each other.
    assert refused(NatsConnection(servers[other].port), "_FTSTAN.cluster.orders.beat")
    assert b"not enabled" in answer_of(NatsConnection(servers[other].port), "$JS.API.INFO")
    servers[leader].kill()
    assert serving({number: servers[number] for number in (other, third)}) != leader
    again = StanClient(servers[other].port, "again", cluster=CLUSTER)
    again.connect()
    assert b"there and back" in again.read_all(b"new").values()
    assert not any(secret in servers[other].text() for secret in SECRETS.values())


def serving(servers: dict[int, Server]) -> int:
    """The one that serves, waited for."""

    def found() -> list[int]:
        return [n for n, server in servers.items() if server.get("/active")[0] == 200]

    until(lambda: bool(found()), "a node to serve", 90.0)
    return found()[0]


def answer_of(link: NatsConnection, subject: str) -> bytes:
    """What is answered there, waited for."""
    inbox = link.inbox()
    heard: list[bytes] = []
    link.listen(inbox, lambda arrived: heard.append(arrived.payload))
    link.publish(subject, b"", inbox)
    link.pump(lambda: len(heard) > 0, "an answer")
    return heard[0]


def test_the_secure_server_asks_for_a_certificate_a_login_and_a_right(
    moved: Moved, keys: Certificates
) -> None:
    server = start(moved, "secure.conf")
    server.wait_for(READY)
    tls = {
        "client_ca": keys.ca.cert,
        "client_cert": keys.client.cert,
        "client_key": keys.client.key,
    }
    client = StanClient(
        server.port, cluster=CLUSTER, user="client", password=SECRETS["CLIENT_PASSWORD"], **tls
    )
    client.connect()
    client.publish(b"new.one", b"1")
    publisher = StanClient(
        server.port,
        "pub",
        cluster=CLUSTER,
        user="publisher",
        password=SECRETS["PUBLISHER_PASSWORD"],
        **tls,
    )
    publisher.connect()
    publisher.publish(b"new.two", b"2")
    assert client.read_to(b"new.two", 1) == {1: b"2"}
    for user, name in (("client", "CLIENT_PASSWORD"), ("publisher", "PUBLISHER_PASSWORD")):
        for subject in (*OF_SERVERS, *OF_OPERATORS):
            assert refused(
                NatsConnection(server.port, user=user, password=SECRETS[name], **tls), subject
            )
    publisher.offer(b"old", b"3")
    with pytest.raises(AssertionError, match="Permissions Violation"):
        publisher.nats.flush()
    with pytest.raises(NatsError, match="Authorization Violation"):
        StanClient(server.port, cluster=CLUSTER, user="client", password="wrong", **tls)
    with pytest.raises(NatsError):
        StanClient(server.port, cluster=CLUSTER, user="client", password=SECRETS["CLIENT_PASSWORD"])
    pages = f"https://{HOST}:{server.monitor}"
    context = ssl.create_default_context(cafile=keys.ca.cert)
    assert urllib.request.urlopen(f"{pages}/livez", context=context).status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{pages}/streaming/serverz", context=context)
    context.load_cert_chain(keys.client.cert, keys.client.key)
    assert urllib.request.urlopen(f"{pages}/streaming/serverz", context=context).status == 200
    assert not any(secret in server.text() for secret in SECRETS.values())


def test_the_balancer_asks_pages_that_answer_what_it_expects(moved: Moved) -> None:
    text = (EXAMPLES / "load-balancer" / "haproxy.cfg").read_text(encoding="utf-8")
    asked = re.findall(r"option httpchk GET (/\S+)\n    http-check expect status (\d+)", text)
    assert asked == [("/readyz", "200"), ("/active", "200")]
    server = start(moved, "load-balancer/host1.conf")
    server.wait_until_active()
    # It has no token.
    server.token = ""
    assert [server.get(page)[0] for page, _ in asked] == [200, 200]
    # Every server that it names listens where it says.
    for host, port in re.findall(r"server \w+ (host\d):(\d+)", text):
        configuration = (EXAMPLES / "load-balancer" / f"{host}.conf").read_text(encoding="utf-8")
        assert f':{port}"' in configuration
