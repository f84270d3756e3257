"""The bridge to JetStream on real servers: everything that a channel has is in its stream, once, at
its sequence, whoever is killed.
"""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

import ftstan.client
from tests.ft.bridged import CHANNEL, STREAM, Sides, from_files, whole
from tests.ft.operator import run
from tests.processes import CLUSTER, PATIENCE_S, until

if TYPE_CHECKING:
    from tests.processes import Stage

pytestmark = pytest.mark.processes


def test_backlog_and_tail_have_no_gap_and_no_repeat(stage: Stage) -> None:
    sides = Sides(stage, 12_000)
    plan = sides.bridge("run", "--channel", CHANNEL, *from_files(sides), "--dry-run")
    assert "nothing was written" in plan.out
    assert sides.state() == {}
    measures = stage.directory / "bridge.prom"
    running = sides.start("bridge", *from_files(sides), "--metrics-file", str(measures))
    running.wait_for("on by the durable")
    sides.publish(12_001, 13_000)
    until(lambda: sides.last == 13_000, "the tail to be mirrored")
    assert sides.rows() == whole(13_000)
    headers = sides.headers(7)
    assert headers["nats-msg-id"] == f"{CHANNEL}:7"
    assert headers["ftstan-channel"] == CHANNEL
    assert headers["ftstan-reply"] == "reply.to"
    assert int(headers["ftstan-timestamp"]) > 1_600_000_000_000_000_000
    running.signal(signal.SIGTERM)
    assert running.status() == 0
    (mirrored,) = [
        sample.value
        for family in text_string_to_metric_families(measures.read_text())
        for sample in family.samples
        if sample.name == "ftstan_bridge_messages_total"
        and sample.labels == {"channel": CHANNEL, "stream": STREAM}
    ]
    assert mirrored == 13_000
    shown = sides.bridge("status", "--output", "json")
    assert json.loads(shown.out)["channels"][0]["lag"] == 0
    verified = sides.bridge("verify", "--channel", CHANNEL, "--output", "json")
    assert verified.status == 0
    (row,) = json.loads(verified.out)["channels"]
    assert (row["channel_messages"], row["differs_at"]) == (13_000, 0)
    assert row["channel_crc"] == row["stream_crc"]


def test_without_files_everything_comes_from_the_server(stage: Stage) -> None:
    sides = Sides(stage, 3000)
    assert sides.once().status == 0
    assert sides.rows() == whole(3000)
    sides.publish(3001, 3100)
    assert sides.once().status == 0
    assert sides.rows() == whole(3100)


def test_a_durable_becomes_a_consumer_that_goes_on_where_it_was(stage: Stage) -> None:
    sides = Sides(stage, 20)
    assert sides.once(*from_files(sides)).status == 0

    async def read(count: int, unacked: int) -> None:
        async with (
            await ftstan.client.connect(CLUSTER, "me", servers=sides.nats.url) as client,
            await client.subscribe(
                CHANNEL,
                start=ftstan.client.Start.first(),
                durable="audit",
                max_in_flight=count,
                ack_wait=60,
                manual_acks=True,
            ) as subscription,
        ):
            for _ in range(count):
                message = await subscription.next(PATIENCE_S)
                if message.sequence != unacked:
                    await message.ack()

    asyncio.run(read(8, 6))
    words = ("--channel", CHANNEL, *from_files(sides), "--output", "json")

    def position() -> tuple[int, int]:
        (row,) = sides.bridge("consumers", *words, "--dry-run").json["consumers"]
        return row["start"], row["pending"]

    # The server writes acks within a second; it may have sent one more than was read.
    until(lambda: position()[0] == 6, "the acks to be written")
    assert sides.bridge("consumers", *words).json["consumers"][0]["state"] == "made"
    assert sides.bridge("consumers", *words).json["consumers"][0]["state"] == "there"
    js = sides.js()
    told = js.api(f"CONSUMER.INFO.{STREAM}.me_audit", {}, 5.0)
    js.link.close()
    assert told["config"]["opt_start_seq"] == 6
    assert told["num_pending"] == 15


def test_without_files_there_are_no_positions() -> None:
    said = run("bridge", "consumers", "--channel", CHANNEL)
    assert said.status == 64
    assert "are read from the files" in said.err
