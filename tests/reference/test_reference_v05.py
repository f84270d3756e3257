"""The README of nats-streaming-server v0.5.0: what the one of v0.10.0 repeats word for word, and
what it does not.

Its code blocks are in ``tests/data/reference/v0.5.txt``. The pages of its monitoring section are in
``test_reference_pages.py``; where v0.10.0 has the same command or configuration, the test is that
of v0.10.0.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.processes import HOST, READY, ROOT
from tests.reference.documents import V05 as README
from tests.reference.documents import V10
from tests.reference.test_reference_v10 import client_of, entries, refusal, said, written

if TYPE_CHECKING:
    from tests.certificates import Certificates
    from tests.reference.moved import Moved

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

#: Block here -> the block of v0.10.0 that says the same.
REPEATED = {
    1: 12,
    2: 13,
    3: 14,
    4: 15,
    5: 16,
    6: 17,
    7: 18,
    8: 20,
    9: 21,
    26: 49,
    27: 50,
    28: 51,
    29: 52,
    30: 53,
    31: 54,
    32: 55,
    33: 56,
}


def words(text: str) -> list[str]:
    return text.split()


@README.example(*REPEATED)
@pytest.mark.parametrize(("block", "later"), REPEATED.items())
def test_what_a_later_readme_repeats_is_tested_there(block: int, later: int) -> None:
    assert words(README[block]) == words(V10[later])


def plain(lines: list[str]) -> list[str]:
    """Lines without their columns: those of this README were lost."""
    return [" ".join(line.split()) for line in lines]


@README.example(21)
def test_a_server_without_arguments_says_what_is_documented(moved: Moved) -> None:
    command, *documented = README.lines(21)
    server = moved.start(command.removeprefix("> "), add=["-a", HOST, "-p", str(moved.port(4222))])
    server.wait_for(READY)
    lines = plain(server.lines())
    table = documented[documented.index("[INF] STREAM: Message store is MEMORY") :]
    # Inactivity came with a later release; the line stands between the last two.
    there = [line for line in lines[lines.index(table[0]) :] if line in table]
    assert there == table
    for line in (
        "[INF] Server is ready",
        f"[INF] Listening for client connections on {HOST}:{server.port}",
    ):
        assert line in lines


@README.example(22)
def test_the_flag_that_later_releases_have_no_more_is_unknown_as_it_is_to_them(
    moved: Moved,
) -> None:
    later = written(V10.lines(44))
    assert [one for one in written(README.lines(22)) if one not in later] == [("-ack_subs", "int")]
    ended = moved.run("nats-streaming-server -ack_subs 5")
    # The recorded answer of 0.25.6 to a flag that it does not know, status included
    # (docs/compat/config.md).
    assert (ended.status, ended.lines[0]) == (0, "flag provided but not defined: -ack_subs")


def test_every_other_flag_is_tested_with_those_of_v10() -> None:
    both = set(written(README.lines(22))) & set(written(V10.lines(44)))
    assert len(both) == len(set(written(README.lines(22)))) - 1
    assert refusal(["-hbi", "10s"]) == ""


@README.example(23)
def test_the_annotated_configuration_starts_a_server_that_does_what_it_says(
    moved: Moved, certificates: Certificates
) -> None:
    directory = moved.path("/path/to/client")
    directory.mkdir(parents=True)
    for name, source in (
        ("cert_file", certificates.client.cert),
        ("key_file", certificates.client.key),
        ("ca_file", certificates.ca.cert),
    ):
        shutil.copy(source, directory / name)
    script = moved.path("/home/nats-streaming/archive/script.sh")
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    moved.stage.nats(port=moved.port(4222), settings=certificates.server_lines(verify=True))
    # As it stands it lists no channel, and partitioning is on.
    moved.file("server.conf", README[23])
    ended = moved.run("nats-streaming-server -sc server.conf")
    assert (ended.status, ended.fatal()) == (
        1,
        "STREAM: Failed to start: stan: no configured channel",
    )
    moved.file(
        "server.conf",
        README[23].replace('max_age: "24h"\n}', 'max_age: "24h"\nchannels: { "foo": {} }\n}', 1),
    )
    server = moved.start("nats-streaming-server -sc server.conf", add=["-m", str(moved.port(8222))])
    server.wait_for(READY)
    lines = plain(server.lines())
    assert any("ack_subs_pool_size" in line for line in lines)
    for line in (
        "[INF] STREAM: Starting nats-streaming-server[my_cluster_name] version 0.25.6",
        "[INF] STREAM: Message store is FILE",
        "[INF] STREAM: Subscriptions: 100",
        "[INF] STREAM: Messages : 10000",
        "[INF] STREAM: Age : 24h0m0s",
    ):
        assert line in lines
    pair = certificates.client
    login = {"client_ca": certificates.ca.cert, "client_cert": pair.cert, "client_key": pair.key}
    client_of(server, cluster="my_cluster_name", **login).publish(b"foo", b"x")
    assert moved.path("/path/to/storage/foo/msgs.1.dat").exists()


def test_the_annotated_configuration_is_the_one_that_the_loader_is_tested_with() -> None:
    text = (ROOT / "tests" / "data" / "cli" / "readme-0.5.conf").read_text(encoding="utf-8")
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    assert lines == README.lines(23)


@README.example(24, 25)
def test_the_limits_of_the_example_are_printed_line_by_line(moved: Moved) -> None:
    moved.file("server.conf", README[24])
    server = moved.start("nats-streaming-server -sc server.conf", add=moved.here())
    server.wait_for(READY)
    documented = said(README.lines(25))
    lines = plain(server.lines())
    begin = next(n for n, line in enumerate(documented) if "List of Channels" in line)
    head = documented[: begin + 1]
    assert [
        line for line in lines[lines.index(head[0]) : lines.index(head[-1]) + 1] if line in head
    ] == head
    start = lines.index(documented[begin])
    end = lines.index(documented[-1], start)
    shown = entries(lines[start + 1 : end])
    theirs = entries(documented[begin + 1 : -1])
    # Left out of the README: foo, which is in the configuration.
    assert shown.pop("foo") == ["|-> Subscriptions 50", "|-> Messages 300"]
    assert shown == theirs
