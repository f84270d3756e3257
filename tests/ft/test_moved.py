"""A channel that an operator has marked as moved: publishes are refused, by every later owner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import ftstan.client
from ftstan.client import PublishRefusedError
from tests.ft.operator import Said, run
from tests.processes import CLUSTER, GROUP

if TYPE_CHECKING:
    from tests.processes import Nats, Stage

pytestmark = pytest.mark.processes

CHANNEL = "orders.eu"
ALLOWED = "-allow_channel_move"


def publish(nats: Nats, client_id: str = "publisher") -> None:
    """Publish one message; raises what the server answers."""

    async def work() -> None:
        async with await ftstan.client.connect(
            CLUSTER, client_id, servers=nats.url, timeout=20
        ) as client:
            await client.publish(CHANNEL, b"one")

    asyncio.run(work())


def channel(stage: Stage, nats: Nats, verb: str, *words: str) -> Said:
    where = ("--server", nats.url, "--cluster", CLUSTER, "--timeout", "3")
    key = () if verb == "info" else ("--dir", str(stage.store), "--yes")
    return run("channel", verb, *where, *key, CHANNEL, *words)


def last(stage: Stage, nats: Nats) -> int:
    sequence: int = channel(stage, nats, "info", "--output", "json").json["channel"]["last_seq"]
    return sequence


def test_a_mark_outlives_the_owner_that_made_it(stage: Stage) -> None:
    nats = stage.nats("nats")
    first = stage.member("a", "-ns", nats.url, ALLOWED)
    first.wait_until_active()
    publish(nats)
    second = stage.member("b", "-ns", nats.url, ALLOWED)
    second.wait_until_standing_by()
    said = channel(stage, nats, "moved", "on", "--mover", "bridge")
    assert said.status == 0, said
    with pytest.raises(PublishRefusedError, match="stan: channel has moved"):
        publish(nats)
    first.kill()
    second.wait_until_active()
    with pytest.raises(PublishRefusedError, match="stan: channel has moved"):
        publish(nats)
    assert last(stage, nats) == 1
    assert channel(stage, nats, "info", "--output", "json").json["channel"]["moved"]
    publish(nats, "bridge")
    assert channel(stage, nats, "moved", "off").status == 0
    publish(nats)
    assert last(stage, nats) == 3


def test_without_the_option_and_in_a_mixed_group_no_channel_is_marked(stage: Stage) -> None:
    nats = stage.nats("nats")
    server = stage.member("a", "-ns", nats.url)
    server.wait_until_active()
    publish(nats)
    said = channel(stage, nats, "moved", "on")
    assert said.status == 1
    assert "does not let channels be marked as moved" in said.err
    server.kill()
    server = stage.member("b", "-ns", nats.url, ALLOWED)
    server.wait_until_active()
    group = ("--server", nats.url, "--cluster", CLUSTER, "--group", GROUP)
    where = (*group, "--dir", str(stage.store))
    assert run("ft", "mixed", *where, "--timeout", "3", "on").status == 0
    said = channel(stage, nats, "moved", "on")
    assert said.status == 1
    assert "in a mixed group no channel can be marked" in said.err
    assert run("ft", "mixed", *where, "--timeout", "3", "off").status == 0
    assert channel(stage, nats, "moved", "on").status == 0
    said = run("ft", "mixed", *where, "--timeout", "3", "on")
    assert said.status == 1
    assert "has moved: an original server would serve it" in said.err
