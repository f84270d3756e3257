"""The tour of the README, word for word: its commands are run in a scratch directory, and what it
promises comes true.

Only the pauses are longer than a reader's. The ports are the README's own: where the kernel lets
us, the tour has a network of its own, with a loopback interface only; elsewhere it waits until the
ports are free.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.ft.programs import run_to_end
from tests.processes import HOST, ROOT, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.node, pytest.mark.timeout(400)]

PATIENT = 'sleep() { command sleep "$((4 * $1))"; }'
UNSHARE = ["unshare", "--map-root-user", "--net"]
LOOPBACK_UP = """\
import fcntl, os, socket, struct, sys
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
os.execvp(sys.argv[1], sys.argv[1:])
"""
MARK = "--- the next block of commands ---"


@dataclass(frozen=True, slots=True)
class Tour:
    """What each of the two blocks printed, and the directory in which they ran."""

    server: list[str]
    pair: list[str]
    directory: Path


#: Under the sanitizer build everything is started with its runtime preloaded, and curl hangs with
#: that.
UNSANITIZED = 'curl() { env -u LD_PRELOAD curl "$@"; }'


def blocks(page: str) -> list[str]:
    """The commands of the section about the tour, block by block."""
    section = re.search(r"^## A tour by hand\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^```sh\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)


def free(port: int) -> bool:
    """Whether nobody listens on a port of the loopback address."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def network_of_its_own(script: str) -> list[str]:
    """What to put before a command so that the ports that ``script`` names are free."""
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0:
        return [*UNSHARE, sys.executable, "-c", LOOPBACK_UP]
    ports = {int(word) for word in re.findall(r"\b[4-8]22\d\b", script)}
    until(
        lambda: all(map(free, ports)), f"the ports of the README's tour to be free: {sorted(ports)}"
    )
    return []


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    if shutil.which("curl") is None:
        pytest.fail("curl was not found in PATH: install the package curl", pytrace=False)
    home = tmp_path_factory.mktemp("home")
    (home / ".venv").symlink_to(sys.prefix)
    (home / "node_modules").symlink_to(ROOT / "node_modules")
    server, pair = blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    script = "\n".join([PATIENT, UNSANITIZED, server, f"echo '{MARK}'", pair])

    outcome = run_to_end([*network_of_its_own(script), "bash", "-c", script], home)

    printed = outcome.lines
    assert MARK in printed, outcome.shown()
    between = printed.index(MARK)
    print(outcome.shown())
    return Tour(printed[:between], printed[between + 1 :], home / "tour")


def received(lines: list[str]) -> list[tuple[int, str]]:
    """Sequence and text of what a subscriber printed."""
    found = (re.fullmatch(r"received (\d+) (.*)", line) for line in lines)
    return [(int(line[1]), line[2]) for line in found if line is not None]


def statuses(lines: list[str]) -> list[tuple[int, int]]:
    """What the monitoring ports answered, as (port, status), in order."""
    found = (re.fullmatch(r"(\d+): (\d{3})", line) for line in lines)
    return [(int(line[1]), int(line[2])) for line in found if line is not None]


def test_a_client_publishes_three_messages_and_reads_them_and_the_first_three_again_the_second_time(
    tour: Tour,
) -> None:
    orders = ["order 1", "order 2", "order 3"]
    assert received(tour.server) == [*enumerate(orders, 1), *enumerate(orders + orders, 1)]
    guids = [line for line in tour.server if re.fullmatch(r"acked [0-9A-Za-z]{22}", line)]
    assert len(set(guids)) == 6


def test_the_monitoring_page_counts_what_was_published(tour: Tour) -> None:
    page = json.loads("\n".join(tour.server[tour.server.index("{") :]))
    assert (page["cluster_id"], page["state"], page["channels"]) == (
        "test-cluster",
        "STANDALONE",
        1,
    )
    assert page["total_msgs"] == 6


def test_the_standby_takes_over_and_the_killed_node_comes_back_as_a_standby(tour: Tour) -> None:
    before, (at_once, taken), after = (part := statuses(tour.pair))[:2], part[2:4], part[4:]
    assert before == [(8222, 200), (8223, 204)]
    # A quick takeover may be there before the first look.
    assert at_once in {(8223, 204), (8223, 200)}
    assert taken == (8223, 200)
    assert after == [(8222, 204), (8223, 200)]


def test_every_acknowledged_order_is_there_after_the_takeover(tour: Tour) -> None:
    acked = [
        line.removeprefix("acked ") for line in tour.pair if re.fullmatch(r"acked order \d+", line)
    ]
    assert acked
    log = received(tour.pair)
    assert [sequence for sequence, _ in log] == list(range(1, len(log) + 1))
    assert set(acked) <= {text for _, text in log}


def test_the_log_shows_the_takeover_in_the_words_that_operators_know(tour: Tour) -> None:
    lines = [
        line.partition("STREAM: ")[2]
        for line in (tour.directory / "b.log").read_text().splitlines()
    ]
    told = [
        line
        for line in lines
        if line in {"Starting in standby mode", "Server is active", "Shutting down."}
    ]
    assert told == ["Starting in standby mode", "Server is active", "Shutting down."]
