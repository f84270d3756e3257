"""The Go-rules peer beats as the recorded servers did, and two of them hand a store over as the
original does.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.load import CHANNEL, Load
from tests.oracle.goheartbeat import (
    BadTime,
    Instant,
    decode_time,
    encode_time,
    heartbeat,
    read_heartbeat,
)
from tests.oracle.gostore import read_store
from tests.processes import CLUSTER, GROUP, READY, ROOT, STANDING_BY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Child, Nats, Stage

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "ft" / "heartbeats.json").read_text(encoding="utf-8")
)
SUBJECT = f"_STAN.ft.{CLUSTER}.{GROUP}"
ACTIVE = "STREAM: Server is active"


@pytest.fixture(autouse=True)
def _no_connection_stays_open() -> Iterator[None]:
    yield
    NatsConnection.close_all()


def server_id(member: Child) -> str:
    found = re.search(r"ServerID: (\w{22})", member.text())
    assert found is not None
    return found[1]


def go_pair(stage: Stage, nats: Nats, *words: str) -> tuple[Child, Child]:
    a = stage.go_member("go-a", nats, *words)
    a.wait_for(READY)
    b = stage.go_member("go-b", nats, *words)
    b.wait_for(STANDING_BY)
    return a, b


def stored(path: Path) -> dict[int, bytes]:
    return {n: message.data for n, message in read_store(path).channels[CHANNEL].messages.items()}


# Heartbeats


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: f"{row['recording']}-{row['server_id']}")
def test_a_recorded_heartbeat_is_made_again_byte_for_byte(row: dict[str, Any]) -> None:
    at = Instant(row["unix"], row["nanos"])
    payload = bytes.fromhex(row["payload"])
    assert heartbeat(row["server_id"].encode(), at, row["zone"] * 60) == payload
    read = read_heartbeat(payload)
    assert read is not None
    assert (read[0].decode(), decode_time(read[1])) == (row["server_id"], at)


@pytest.mark.parametrize("zone", [0, 3600, -3600, 19800, -34200, 1172, -1172])
def test_the_zone_does_not_change_the_instant(zone: int) -> None:
    at = Instant(1795166754, 875059227)
    data = encode_time(at, zone)
    assert decode_time(data) == at
    assert len(data) == (16 if zone % 60 else 15)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no data"),
        (b"\x03" + bytes(14), "unsupported version"),
        (b"\x01" + bytes(13), "invalid length"),
        (b"\x01" + bytes(15), "invalid length"),
        (b"\x02" + bytes(14), "invalid length"),
    ],
)
def test_an_activation_time_that_the_original_refuses_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(BadTime, match=f"^Time.UnmarshalBinary: {text}$"):
        decode_time(data)


@pytest.mark.parametrize("payload", [b"", b"\x08\x04", b"\xff", b"\x12\x05abc"])
def test_other_messages_on_the_subject_are_no_heartbeats(payload: bytes) -> None:
    assert read_heartbeat(payload) is None


def test_the_peer_knows_nothing_of_the_product() -> None:
    code = (
        "import sys, tests.oracle.gopeer; print(*(name for name in sys.modules if "
        "name.startswith('ftstan')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


# Two peers


@pytest.mark.processes
def test_an_active_peer_sends_the_same_bytes_until_it_ends(stage: Stage) -> None:
    nats = stage.nats()
    listener = NatsConnection(nats.port)
    heard: list[Arrived] = []
    listener.listen(SUBJECT, heard.append)
    listener.flush()
    a = stage.go_member("go-a", nats)
    listener.pump(lambda: len(heard) >= 3, "three heartbeats")
    assert len({beat.payload for beat in heard}) == 1
    read = read_heartbeat(heard[0].payload)
    assert read is not None
    assert read[0].decode() == server_id(a)
    assert a.lines()[2:] == [
        "[INF] STREAM: Starting in standby mode",
        "[INF] STREAM: Server is active",
        "[INF] STREAM: Recovering the state...",
        "[INF] STREAM: No recovered state",
        "[INF] STREAM: Message store is FILE",
        f"[INF] STREAM: Store location: {stage.store}",
        "[INF] STREAM: Streaming Server is ready",
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("end", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 0)]
)
def test_one_peer_takes_over_from_another_and_nothing_acked_is_lost(
    stage: Stage, end: signal.Signals, status: int
) -> None:
    nats = stage.nats()
    a, b = go_pair(stage, nats, "--slice-max-msgs", "300")
    client = StanClient(nats.port)
    client.connect()
    load = Load()
    load.join(client)
    load.run(700)
    a.signal(end)
    assert a.status() == status
    client.nats.flush()
    load.give_up()
    b.wait_for(READY)
    assert "[INF] STREAM: Recovered 1 channel(s)" in b.lines()
    load.run(100)
    load.settle()
    assert client.ping() == ""
    b.signal(signal.SIGTERM)
    assert b.status() == 143
    contents = stored(stage.store)
    assert list(contents) == list(range(1, len(contents) + 1))
    load.judge(contents)


@pytest.mark.processes
def test_a_standby_that_lacks_heartbeats_is_refused_the_lock_while_the_active_is_stopped(
    stage: Stage,
) -> None:
    a, b = go_pair(stage, stage.nats())
    a.signal(signal.SIGSTOP)
    b.wait_for("ft: unable to get store lock at this time, going back to standby")
    a.signal(signal.SIGCONT)
    assert ACTIVE not in b.text()
    assert a.running


@pytest.mark.processes
def test_of_two_actives_the_younger_dies_of_a_panic(stage: Stage) -> None:
    nats = stage.nats()
    a, b = go_pair(stage, nats)
    a.signal(signal.SIGSTOP)
    # What a lost lock of a network file system does: another may have it while the former owner is
    # away.
    (stage.store / ".rootdir.lck").unlink()
    b.wait_for(READY)
    a.signal(signal.SIGCONT)
    assert b.status() == 2
    assert f'panic: ft: serverID "{server_id(a)}" claims to be active, aborting' in b.text()
    a.wait_for(f'[ERR] STREAM: ft: serverID "{server_id(b)}" claims to be active')
    assert a.running


@pytest.mark.processes
def test_a_peer_refuses_what_the_original_refuses(stage: Stage) -> None:
    nats = stage.nats()
    stage.store.mkdir()
    (stage.store / "server.dat").write_bytes(b"\x01\x00\x00")
    a = stage.go_member("go-a", nats)
    assert a.status() == 1
    assert (
        'unable to recover server file "server.dat": unable to verify file version: unexpected EOF'
        in a.text()
    )
