"""Groups with members of both kinds: real servers of ours and Go-rules peers on one directory and one nats-server."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.mixed import MIXED_ON
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.oracle.gostore import read_store
from tests.processes import READY, STANDING_BY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Child, Nats, Server, Stage

pytestmark = pytest.mark.processes

ENDS = {signal.SIGKILL: -9, signal.SIGTERM: 143}
REFUSED = "ft: unable to get store lock at this time, going back to standby"


def ours(stage: Stage, name: str, nats: Nats, *words: str) -> Server:
    """One of our servers, standing by."""
    server = stage.member(name, "-ns", nats.url, *words)
    server.wait_for(STANDING_BY)
    return server


def original(stage: Stage, name: str, nats: Nats) -> Child:
    """A Go-rules peer, standing by."""
    peer = stage.go_member(name, nats, "--slice-max-msgs", "300")
    peer.wait_for(STANDING_BY)
    return peer


def read_by_original(store: Path) -> dict[int, bytes]:
    """What an original server would deliver from the files as they lie there."""
    return {n: message.data for n, message in read_store(store).channels[CHANNEL].messages.items()}


def end(server: Child, how: signal.Signals, load: Load) -> None:
    """End a server that is under load."""
    server.signal(how)
    assert server.status() == ENDS[how]
    load.read_rest()
    load.give_up()


@pytest.mark.parametrize("how", ENDS, ids=lambda how: how.name)
def test_the_store_goes_from_kind_to_kind_and_back_and_nothing_acked_is_lost(stage: Stage, how: signal.Signals) -> None:
    nats = stage.nats()
    go_1 = original(stage, "go-1", nats)
    go_1.wait_for(READY)
    ours_1 = ours(stage, "ours-1", nats)
    client = StanClient(nats.port)
    client.connect()
    load = Load()
    load.join(client)
    load.run(700)

    end(go_1, how, load)
    ours_1.wait_until_active()
    go_2 = original(stage, "go-2", nats)
    assert client.ping() == ""
    load.run(700)
    assert REFUSED not in go_2.text(), "the original standby missed our heartbeats"

    end(ours_1, how, load)
    load.judge(read_by_original(stage.store))
    go_2.wait_for(READY)
    ours_2 = ours(stage, "ours-2", nats)
    assert client.ping() == ""
    load.run(700)

    end(go_2, how, load)
    ours_2.wait_until_active()
    load.run(100)
    load.settle()
    reader = StanClient(nats.port, "reader")
    reader.connect()
    contents = reader.read_all(CHANNEL)
    load.judge(contents)
    assert [server.lines().count(f"[INF] STREAM: {MIXED_ON}") for server in (ours_1, ours_2)] == [1, 1]

    ours_2.signal(signal.SIGTERM)
    assert ours_2.status() == 143
    assert read_by_original(stage.store) == contents
