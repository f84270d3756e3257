"""Every step of ``docs/migrating.md``, played with real servers of ours and a peer that keeps the
original's rules.
"""

from __future__ import annotations

import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.mixed import MIXED_OFF, MIXED_ON
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL
from tests.ft.test_mixed import original, ours, read_by_original, record
from tests.processes import READY, ROOT

if TYPE_CHECKING:
    from tests.processes import Child, Stage

RECOVERED = "[INF] STREAM: Recovered 1 channel(s)"
PAGE = ROOT / "docs" / "migrating.md"


def stop(server: Child) -> None:
    """The guide's ``kill -TERM PID``."""
    server.signal(signal.SIGTERM)
    assert server.status() == 143
    assert "[INF] STREAM: Shutting down." in server.lines()


def tool(stage: Stage, *words: str) -> str:
    """Run ``ftstanctl store``; must succeed."""
    child = stage.run(
        "tool-" + words[0],
        [sys.executable, "-m", "ftstan.cli.ctl", "store", *words, str(stage.store)],
    )
    assert child.status() == 0, child.tail()
    return child.text()


def numbered(start: int, count: int) -> list[bytes]:
    return [b"message %d" % n for n in range(start, start + count)]


def test_every_step_names_a_test_of_this_module_and_every_test_plays_a_step() -> None:
    rows = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d", line)
    ]
    named = [row.rsplit("|", 2)[1].strip().strip("`") for row in rows]
    assert len(named) == 14
    assert set(named) == {name for name, test in globals().items() if hasattr(test, "pytestmark")}


def test_the_lines_that_the_guide_quotes_are_ours() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MIXED_ON.startswith("ft: mixed group: original servers may be members of it, ")
    assert "`ft: mixed group: original servers may be members of it, ...`" in text
    assert f"`{MIXED_OFF}`" in text


@pytest.mark.processes
def test_one_server_is_replaced_and_its_clients_go_on(stage: Stage) -> None:
    nats = stage.nats()
    go = original(stage, "go", nats)
    go.wait_for(READY)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, *numbered(0, 500))

    stop(go)
    tool(stage, "verify")
    server = stage.file_server("ours", "-ns", nats.url)
    server.wait_for(READY)
    assert RECOVERED in server.lines()
    assert server.serverz()["state"] == "STANDALONE"
    assert client.ping() == ""
    client.publish(CHANNEL, *numbered(500, 100))
    assert list(client.read_to(CHANNEL, 600).values()) == numbered(0, 600)


@pytest.mark.processes
def test_a_group_is_replaced_member_by_member(stage: Stage) -> None:
    nats = stage.nats()
    go_a = original(stage, "go-a", nats)
    go_a.wait_for(READY)
    go_b = original(stage, "go-b", nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, *numbered(0, 100))

    stop(go_b)
    ours_b = ours(stage, "ours-b", nats)
    ours_b.wait_for(MIXED_ON)
    client.publish(CHANNEL, *numbered(100, 100))

    stop(go_a)
    ours_b.wait_until_active()
    ours_b.wait_for(READY)
    assert RECOVERED in ours_b.lines()
    assert client.ping() == ""
    client.publish(CHANNEL, *numbered(200, 100))

    ours_a = ours(stage, "ours-a", nats, "-ft_mixed", "off")
    stop(ours_b)
    ours_a.wait_until_active()
    assert not record(ours_a).ft_mixed
    client.publish(CHANNEL, *numbered(300, 100))
    again = ours(stage, "ours-b-again", nats)
    assert MIXED_ON not in again.text()
    assert list(client.read_to(CHANNEL, 400).values()) == numbered(0, 400)


@pytest.mark.processes
def test_back_to_the_original_in_a_serving_group(stage: Stage) -> None:
    nats = stage.nats()
    ours_a = ours(stage, "ours-a", nats)
    ours_a.wait_until_active()
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, *numbered(0, 100))
    assert not record(ours_a).ft_mixed

    ours_b = ours(stage, "ours-b", nats, "-ft_mixed", "on")
    ours_b.wait_for(MIXED_ON)
    stop(ours_a)
    ours_b.wait_until_active()
    assert record(ours_b).ft_mixed
    client.publish(CHANNEL, *numbered(100, 100))
    go = original(stage, "go", nats)
    stop(ours_b)
    go.wait_for(READY)
    assert RECOVERED in go.lines()
    client.publish(CHANNEL, *numbered(200, 100))
    stop(go)
    assert list(read_by_original(stage.store).values()) == numbered(0, 300)


@pytest.mark.processes
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_back_to_the_original_by_handover(stage: Stage, how: signal.Signals) -> None:
    nats = stage.nats()
    for life in range(3):
        server = ours(stage, f"ours-{life}", nats)
        server.wait_until_active()
        client = StanClient(nats.port, f"client-{life}")
        client.connect()
        client.publish(CHANNEL, *numbered(100 * life, 100))
        server.signal(how)
        server.status()

    tool(stage, "handover")
    assert (stage.store / CHANNEL.decode() / "msgs.1.dat").exists()
    go = original(stage, "go", nats)
    go.wait_for(READY)
    assert RECOVERED in go.lines()
    client.publish(CHANNEL, *numbered(300, 50))
    stop(go)
    assert list(read_by_original(stage.store).values()) == numbered(0, 350)

    again = ours(stage, "ours-again", nats)
    again.wait_until_active()
    assert client.ping() == ""
    assert list(client.read_to(CHANNEL, 350).values()) == numbered(0, 350)
