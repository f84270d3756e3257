"""The README of nats-streaming-server v0.10.0, example by example, in its order.

Each code block has a number (``tests/data/reference/v0.10.txt``) and a test: commands are run,
configurations loaded, printed lines and pages compared; hosts, ports and paths are moved
(``moved.py``). What belongs to SQL is here as refused by name, and so is clustering without
``-cluster_preview``: with it the chapter is played in ``test_reference_clustering.py``. The pages
of the monitoring section are in ``test_reference_pages.py``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from ftstan.base.errors import FtstanError, NatsError
from ftstan.config.flags import parse
from ftstan.wire import messages
from ftstan.wire.subjects import Subjects
from tests.command_lines import to_options
from tests.doc_tests import wrong_with
from tests.ft.client import StanClient
from tests.processes import (
    CLUSTER,
    HOST,
    READY,
    ROOT,
    STANDING_BY,
    free_ports,
    until,
    wait_for_mesh,
)
from tests.reference.documents import V10 as README
from tests.reference.documents import missing_lines

if TYPE_CHECKING:
    from tests.certificates import Certificates
    from tests.processes import Server
    from tests.reference.moved import Moved

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PLANNED = "is not supported by this version of ftstan (planned)"


def client_of(server: Server, name: str = "me", **more: str) -> StanClient:
    client = StanClient(server.port, name, **more)
    client.connect()
    return client


def unanswered(client: StanClient, *channels: bytes) -> bool:
    """Whether nobody says anything to publishes on channels that nobody serves."""
    guids = [guid for channel in channels for guid in client.offer(channel, b"nobody")]
    # Twice there and back behind them: an answer would have come by now.
    client.settle_acks()
    return not any(guid in client.acks or guid in client.errors for guid in guids)


# ---- Important changes: databases
# ----------------------------------------------------------------------------------


@README.example(1, 2, 3, 4)
@pytest.mark.parametrize("driver", ["mysql", "postgres"])
def test_a_database_that_is_not_there_is_one_line(moved: Moved, driver: str) -> None:
    source = {
        "mysql": "nss:password@tcp(127.0.0.1:1)/nss_db",
        "postgres": "postgres://nss:password@127.0.0.1:1/nss_db",
    }[driver]
    ended = moved.run(
        f"nats-streaming-server -store sql -sql_driver {driver} -sql_source {source}",
        add=["-a", HOST, "-p", str(free_ports(1)[0])],
    )
    assert ended.status == 1
    assert "Failed to start: " in ended.text
    assert "password" not in ended.text
    assert "Traceback" not in ended.text


# ---- Clustering: refused
# -------------------------------------------------------------------------------------------


@README.example(5, 6, 10)
@pytest.mark.parametrize("command", [*README.lines(5), *README.lines(6), *README.lines(10)])
def test_a_command_of_clustering_is_refused_by_the_name_of_a_flag(
    moved: Moved, command: str
) -> None:
    ended = moved.run(command)
    assert ended.refusal() == f"-clustered {PLANNED}"
    assert not list(moved.stage.directory.glob("store-*"))


@README.example(7, 8, 9)
@pytest.mark.parametrize(("block", "host"), [(7, "host1"), (8, "host2"), (9, "host3")])
def test_a_configuration_of_clustering_is_refused_by_name_and_place(
    moved: Moved, block: int, host: str
) -> None:
    moved.file("server.conf", README[block], host)
    ended = moved.run("nats-streaming-server -c server.conf")
    assert ended.refusal() == f'server.conf:10:3: "cluster" {PLANNED}'
    assert not moved.path("store").exists()


@README.example(11)
def test_a_place_for_the_replication_log_is_refused_before_anything_could_miss_in_it(
    moved: Moved,
) -> None:
    ended = moved.run(
        "nats-streaming-server -store file -dir /nss/store -cluster_log_path /nss/mycluster/a"
    )
    assert ended.refusal() == f"-cluster_log_path {PLANNED}"


# ---- Fault tolerance
# -----------------------------------------------------------------------------------------------


@README.example(12)
def test_two_servers_on_one_host_are_a_group(moved: Moved) -> None:
    first, second = README.lines(12)
    a = moved.start(first, name="a", ports=(4222, 8222), add=["-m", str(moved.port(8222))])
    a.wait_until_active()
    b = moved.start(second, name="b", ports=(4223, 8223), add=["-m", str(moved.port(8223))])
    b.wait_for(STANDING_BY)
    client = client_of(b)
    client.publish(b"foo", b"acked")
    a.kill()
    b.wait_until_active()
    # The new one serves what the first acknowledged, to the client that it knew.
    assert client.ping() == ""
    assert client.read_to(b"foo", 1) == {1: b"acked"}
    back = moved.start(first, name="back", ports=(4222, 8222), add=["-m", str(moved.port(8222))])
    back.wait_for(STANDING_BY)
    assert (b.ft_status, back.ft_status) == (200, 204)


# ---- Partitioning
# --------------------------------------------------------------------------------------------------


def partition(moved: Moved, block: int) -> Server:
    moved.file("server.conf", README[block])
    server = moved.start("nats-streaming-server -sc server.conf", add=moved.here())
    server.wait_for(READY)
    return server


@README.example(13)
def test_a_partition_serves_the_channels_of_its_list_and_no_others(moved: Moved) -> None:
    client = client_of(partition(moved, 13))
    for channel in (b"foo", b"bar", b"baz.one", b"baz.two"):
        client.publish(channel, channel)
        assert client.read_to(channel, 1) == {1: channel}
    assert unanswered(client, b"baz", b"baz.one.two", b"foo.bar", b"other")


@README.example(14)
def test_wildcards_of_a_list_match_as_documented(moved: Moved) -> None:
    client = client_of(partition(moved, 14))
    for channel in (b"foo.bar", b"bar.baz", b"bar.baz.bat"):
        client.publish(channel, channel)
        assert client.read_to(channel, 1) == {1: channel}
    ignored = (b"foo", b"foo.bar.baz", b"bar", b"some.other.channel")
    assert unanswered(client, *ignored)
    for channel in ignored:
        request = messages.SubscriptionRequest(
            client_id=b"me", subject=channel, inbox=b"in", max_in_flight=1, ack_wait_in_secs=30
        )
        subject = Subjects.for_cluster(CLUSTER).subscribe
        assert client.nats.request(subject, messages.encode(request), 0.5) is None


@README.example(15, 16, 17, 18)
def test_two_partitions_each_a_pair_on_two_hosts(moved: Moved) -> None:
    servers = four_servers(moved, README[15], README[16], [*README.lines(17), *README.lines(18)])
    use_four_servers(moved, servers)


Four = dict[tuple[str, str], "Server"]
"""Servers by group and host."""


def four_servers(moved: Moved, foo: str, bar: str, commands: list[str]) -> Four:
    """Start the documented commands, and wait until the NATS servers are one network."""
    moved.path("/nss/datastore").mkdir(parents=True)
    moved.file("foo.conf", foo)
    moved.file("bar.conf", bar)
    servers: Four = {}
    for line in commands:
        host, command = line.split("$ ")
        group = "foo" if "-ft_group_name foo" in command else "bar"
        port, monitor = (4222, 8222) if group == "foo" else (4223, 8223)
        flags = [
            "-a",
            HOST,
            "-p",
            str(moved.port(port, host)),
            "-m",
            str(moved.port(monitor, host)),
        ]
        one = moved.start(
            command, host=host, name=f"{group}-{host}", ports=(port, monitor), add=flags
        )
        servers[group, host] = one
        if host == "host1":
            one.wait_until_active()
        else:
            one.wait_for(STANDING_BY)
    wait_for_mesh(list(servers.values()))
    return servers


def use_four_servers(moved: Moved, servers: Four) -> None:
    """Every application sees one cluster, wherever it connects, also when one of the servers has
    died.
    """
    for number, server in enumerate(servers.values()):
        client = client_of(server, f"me-{number}")
        for channel in (b"foo.x", b"bar.x"):
            client.publish(channel, b"from %d" % number)
            assert b"from %d" % number in client.read_all(channel).values()
    assert moved.path("/nss/datastore/foodata/foo.x").is_dir()
    assert moved.path("/nss/datastore/bardata/bar.x").is_dir()
    servers["foo", "host1"].kill()
    servers["foo", "host2"].wait_until_active()
    assert servers["bar", "host1"].ft_status == 200
    client_of(servers["bar", "host2"], "after").publish(b"foo.x", b"on")


# ---- Running
# --------------------------------------------------------------------------------------------------

#: Lines of the NATS server that is vendored there; ours is a newer one that says the same in other
#: words, and its pages are served by the streaming server, which starts behind it
#: (docs/compat/logging.md).
ELSEWHERE = (
    "[INF] Starting nats-server version",
    "[INF] Git commit",
    "[INF] Starting http monitor",
)


def said(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("[") and not line.startswith(ELSEWHERE)]


@README.example(35)
def test_a_server_without_arguments_says_what_is_documented(moved: Moved) -> None:
    command = README.lines(35)[0].removeprefix("> ")
    server = moved.start(command, add=["-a", HOST, "-p", str(moved.port(4222))])
    server.wait_for(READY)
    assert missing_lines(said(README.lines(35)), server.lines()) == []
    assert any(line.startswith("[INF] Starting nats-server") for line in server.lines())
    client = client_of(server)
    client.publish(b"foo", b"in memory")
    assert list(moved.stage.directory.glob("*/")) == []


# ---- Embedding
# --------------------------------------------------------------------------------------------------

EMBEDDING = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")


@README.example(36, 37, 38, 39, 40, 41, 42, 43)
@pytest.mark.parametrize(
    ("block", "ours"),
    [
        (37, 'ftstan.run_server("mystreamingserver")'),
        (39, 'ftstan.ServerOptions(store="FILE", dir="datastore")'),
        (40, "ftstan.run_server_with(None, ftstan.NatsOptions("),
        (42, "port=4223"),
        (43, 'nats_servers=("nats://localhost:4223",)'),
        (43, "monitor=ftstan.MonitorOptions(http_port=8223)"),
    ],
)
def test_each_example_of_embedding_has_its_counterpart_which_is_run(block: int, ours: str) -> None:
    assert README[block]
    programs = re.findall(r"```python\n(.*?)```", EMBEDDING, re.DOTALL)
    assert any(ours in program for program in programs)
    # One import is enough for all of it, and there are no second copies of types that could not be
    # passed on (41).
    assert all("import ftstan\n" in program for program in programs)
    assert (
        wrong_with(
            "tests/ft/test_embedding.py::test_each_program_of_the_page_prints_what_the_page_says"
        )
        == ""
    )


# ---- Command line
# --------------------------------------------------------------------------------------------------

VALUES = {
    "string": ["x"],
    "int": ["5"],
    "size": ["1024", "1KB"],
    "duration": ["1h", "20s", "1h30m", "1.5h"],
}
REFUSED = re.compile(r"-(clustered|cluster_(?!id)\w+)")
SPECIAL = {"-c": "s.conf", "-config": "s.conf", "-sc": "s.conf", "-stan_config": "s.conf"} | {
    **dict.fromkeys(("-st", "-store"), "FILE"),
    **dict.fromkeys(("-ns", "-nats_server", "-cluster", "-routes"), "nats://127.0.0.1:4222"),
    **dict.fromkeys(("-r", "-remote_syslog"), "udp://localhost:514"),
}
#: Flags that make sense with others only.
WITH = {
    flag: ["-tlscert", "x", "-tlskey", "x"] for flag in ("-tls", "-tlsverify", "-tlscacert")
} | {
    "-tlscert": ["-tlskey", "x"],
    "-tlskey": ["-tlscert", "x"],
    "-ft_group": ["-store", "file", "-dir", "x"],
    "-clustered": ["-store", "file", "-dir", "x"],
}
ANSWERED = {"-h", "-help", "-v", "-version", "-help_tls"}


def written(lines: list[str]) -> list[tuple[str, str]]:
    """Every flag of the usage text in every written form, with its type; ``""`` has no value."""
    found = []
    for line in lines:
        names, _, kind = re.sub(r"=?<|>", "<", line).partition("<")
        kind = kind.strip("<").split(",")[0]
        found += [(f"-{name}", kind) for name in re.findall(r"-+(\w+)", names)]
    return found


def refusal(words: list[str]) -> str:
    """What a start with these words would be refused with; empty for none."""
    try:
        to_options(parse(words))
    except FtstanError as error:
        return error.text
    return ""


@README.example(44)
@pytest.mark.parametrize(("flag", "kind"), written(README.lines(44)))
def test_a_documented_flag_is_taken_in_each_written_form_or_refused_by_name(
    flag: str, kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("flags"))
    with open("s.conf", "w", encoding="utf-8") as file:
        file.write("streaming { }\n")
    for dashes in ("", "-"):
        if kind in {"bool", ""}:
            forms = (
                [[f"{dashes}{flag}"], [f"{dashes}{flag}=false"]] if kind else [[f"{dashes}{flag}"]]
            )
        else:
            values = [SPECIAL[flag]] if flag in SPECIAL else VALUES[kind]
            forms = [[f"{dashes}{flag}", value] for value in values]
        for words in forms:
            text = refusal([*words, *WITH.get(flag, [])])
            if REFUSED.fullmatch(flag) and not words[-1].endswith("=false"):
                assert text == f"{flag} {PLANNED}"
            else:
                assert text == ""


@pytest.mark.parametrize("flag", sorted(ANSWERED))
def test_a_flag_that_asks_something_is_answered_and_starts_nothing(moved: Moved, flag: str) -> None:
    ended = moved.run(f"nats-streaming-server {flag}")
    assert (ended.status, "FTL" in ended.text, len(ended.lines) > 0) == (0, False, True)


# ---- Configuration file
# --------------------------------------------------------------------------------------------


@README.example(45)
def test_one_file_configures_tls_of_both_halves(moved: Moved, certificates: Certificates) -> None:
    for place, pair in (("server", certificates.server), ("client", certificates.client)):
        directory = moved.path(f"/path/to/{place}")
        directory.mkdir(parents=True)
        shutil.copy(pair.cert, directory / "cert_file")
        shutil.copy(pair.key, directory / "key_file")
    moved.file("server.conf", README[45])
    # Neither half names an authority: both trust those of the system, which this is.
    trusted = {"SSL_CERT_FILE": certificates.ca.cert, "SSL_CERT_DIR": ""}
    server = moved.start(
        "nats-streaming-server -c server.conf", ports=(5222, 8222), environment=trusted
    )
    server.wait_for(READY)
    assert "Starting nats-streaming-server[my_cluster]" in server.text()
    pair = certificates.client
    login = {"client_ca": certificates.ca.cert, "client_cert": pair.cert, "client_key": pair.key}
    client_of(server, cluster="my_cluster", **login).publish(b"foo", b"x")
    with pytest.raises(NatsError):
        client_of(server, "no-certificate", cluster="my_cluster", client_ca=certificates.ca.cert)


@README.example(46)
def test_a_channel_may_have_a_limit_of_its_own(moved: Moved) -> None:
    moved.file("server.conf", f"store_limits: {{\n{README[46]}\n}}\n")
    server = moved.start("nats-streaming-server -sc server.conf", add=moved.here())
    server.wait_for(READY)
    client = client_of(server)
    for channel in (b"foo", b"other"):
        client.publish(channel, *(b"%d" % n for n in range(150)))
    got = {channel: client.subscribe(channel) for channel in (b"foo", b"other")}
    client.nats.pump(
        lambda: all(sub.sequences[-1:] == [150] for sub in got.values()), "the last messages"
    )
    assert (got[b"foo"].sequences[0], got[b"other"].sequences[0]) == (51, 1)


# ---- Store limits
# --------------------------------------------------------------------------------------------------


def entries(lines: list[str]) -> dict[str, list[str]]:
    """What is printed of each channel, by its name as it is indented."""
    found: dict[str, list[str]] = {}
    for line in lines:
        text = line.removeprefix("[INF] STREAM: ")
        if "|->" in text:
            found[list(found)[-1]].append(text)
        else:
            found[text] = []
    return found


@README.example(47, 48)
def test_the_limits_of_the_example_are_printed_line_by_line(moved: Moved) -> None:
    moved.file("server.conf", README[47].replace("...", ""))
    server = moved.start("nats-streaming-server -sc server.conf", add=moved.here())
    server.wait_for(READY)
    documented = said(README.lines(48))
    lines = server.lines()
    begin = next(n for n, line in enumerate(documented) if "List of Channels" in line)
    assert missing_lines(documented[: begin + 1], lines) == []
    start = lines.index(documented[begin])
    end = lines.index(documented[-1], start)
    shown = entries(lines[start + 1 : end])
    theirs = entries(documented[begin + 1 : -1])
    # The original prints channels in no order, and its README leaves one out: foo, which is in the
    # configuration.
    foo = shown.pop("foo")
    assert [line.split() for line in foo] == [
        ["|->", "Subscriptions", "50"],
        ["|->", "Messages", "300"],
    ]
    assert shown == theirs
    names = list(shown)
    assert names.index(" foo.bar.>") == names.index("foo.>") + 1
    assert any("Starting http monitor on" in line for line in lines)


@README.example(47)
def test_the_limits_of_the_example_hold(moved: Moved) -> None:
    moved.file("server.conf", README[47].replace("...", ""))
    server = moved.start("nats-streaming-server -sc server.conf", add=moved.here())
    server.wait_for(READY)
    client = client_of(server)
    # Of bar 1 KB holds no 50 messages of this size.
    kept = {b"foo": 300, b"bar": 44, b"baz": 420, b"foo.x": 400, b"foo.bar.x": 400}
    for channel in kept:
        client.publish(channel, *(b"%d" % n for n in range(420)))
    got = {channel: client.subscribe(channel) for channel in kept}
    client.nats.pump(
        lambda: all(sub.sequences[-1:] == [420] for sub in got.values()), "the last messages"
    )
    assert {channel: len(sub.sequences) for channel, sub in got.items()} == kept
    page = json.loads(server.get("/streaming/channelsz?channel=bar")[1])
    assert 1024 - page["bytes"] / 44 < page["bytes"] <= 1024


# ---- Securing
# --------------------------------------------------------------------------------------------------


@README.example(49, 50, 51)
def test_with_several_users_the_server_must_be_told_which_it_is(moved: Moved) -> None:
    moved.file("server.cfg", README[49])
    (without,), (with_user,) = README.lines(50), README.lines(51)
    ended = moved.run(without)
    assert ended.status == 1
    assert "Authorization Violation" in ended.fatal()
    server = moved.start(with_user, ports=(4233, 8233))
    server.wait_for(READY)
    assert server.serverz()["state"] == "STANDALONE"
    for user, password in (("alice", "foo"), ("bob", "bar")):
        client_of(server, user, user=user, password=password).publish(b"foo", b"x")
    with pytest.raises(NatsError, match="Authorization Violation"):
        client_of(server, "carol", user="carol", password="foo")


@README.example(52, 53, 54)
def test_tls_of_both_sides_on_the_command_line(moved: Moved, certificates: Certificates) -> None:
    for name, source in (
        ("client-cert.pem", certificates.client.cert),
        ("client-key.pem", certificates.client.key),
        ("server-cert.pem", certificates.server.cert),
        ("server-key.pem", certificates.server.key),
        ("ca.pem", certificates.ca.cert),
    ):
        shutil.copy(source, moved.path(name))
    (command,) = README.lines(54)
    for line in (*README.lines(52), *README.lines(53)):
        assert f" {re.findall(r'-tls_?[a-z]+_?[a-z]*', line)[0]} " in command
    server = moved.start(command, add=moved.here())
    server.wait_for(READY)
    client_of(server, client_ca=certificates.ca.cert).publish(b"foo", b"x")
    with pytest.raises(NatsError):
        client_of(server, "other", client_ca=certificates.other_ca.cert)


# ---- Persistence
# --------------------------------------------------------------------------------------------------


@README.example(55)
def test_a_file_store_makes_the_documented_files_and_keeps_the_documented_limits(
    moved: Moved,
) -> None:
    (command,) = README.lines(55)
    limits = ["-max_channels", "2", "-max_subs", "1", "-max_msgs", "3"]
    server = moved.start(command, add=[*moved.here(), *limits])
    server.wait_for(READY)
    store = moved.path("datastore")
    assert "server.dat" in os.listdir(store)
    client = client_of(server)
    # Made with its first client here, at the first start there (docs/compat/filestore.md).
    assert b"me" in (store / "clients.dat").read_bytes()
    client.subscribe(b"foo")
    assert {"subs.dat"} <= set(os.listdir(store / "foo"))
    client.publish(b"foo", *(b"%d" % n for n in range(5)))
    assert {"msgs.1.dat", "msgs.1.idx"} <= set(os.listdir(store / "foo"))
    with pytest.raises(AssertionError, match="too many subscriptions"):
        client.subscribe(b"foo")
    client.publish(b"bar", b"x")
    (guid,) = client.offer(b"third", b"x")
    client.settle([guid])
    assert client.errors[guid] == ["too many channels"]
    # The oldest messages go, and nobody gets an error.
    assert (server.serverz()["total_msgs"], len(client.errors)) == (4, 1)


SCRIPT = """\
#!/bin/sh
echo "$@" >> "$(dirname "$0")/called"
rm "$2" "$3"
"""


@README.example(56)
def test_a_script_is_called_with_the_channel_and_the_files_of_a_slice_that_goes(
    moved: Moved,
) -> None:
    script, channel, data, index = README[56].split()
    place = moved.path(script)
    place.parent.mkdir(parents=True)
    place.write_text(SCRIPT)
    place.chmod(0o755)
    command = (
        f"nats-streaming-server -store file -dir datastore -file_slice_archive_script {script}"
    )
    server = moved.start(command, add=[*moved.here(), "-mm", "4", "--file_slice_max_msgs", "2"])
    server.wait_for(READY)
    client_of(server).publish(channel.encode(), *(b"%d" % n for n in range(6)))
    called = place.parent / "called"
    until(lambda: called.exists() and called.read_text().endswith("\n"), "the script to be called")
    # The README misprints the index file's number: it is that of the data file.
    assert called.read_text().split()[:3] == [channel, data, index.replace("msgs.2", "msgs.1")]
    until(lambda: not moved.path(data).exists(), "the script to remove what it was given")


@README.example(57, 58)
def test_the_sql_store_wants_to_know_its_driver(moved: Moved) -> None:
    ended = moved.run("nats-streaming-server -st SQL -sql_source nss:password@/nss_db")
    assert ended.status == 1
    assert 'Failed to start: sql: unknown driver "" (forgotten import?)' in ended.text
