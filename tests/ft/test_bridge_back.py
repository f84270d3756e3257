"""The way back and the cut-over: old and new publishers at once, the bridge killed, the channel
moved into its stream and back. Stream and channel hold the same all the time.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import ftstan.client
from ftstan.base.errors import NatsError
from ftstan.client import PublishRefusedError
from tests.ft.bridged import CHANNEL, STREAM, Sides
from tests.ft.operator import run
from tests.processes import CLUSTER, until

if TYPE_CHECKING:
    from tests.processes import Child, Stage

pytestmark = pytest.mark.processes

INLET = f"{STREAM}_new"


def start(sides: Sides, name: str, *words: str) -> Child:
    bridge = sides.start(name, "--dir", str(sides.stage.store), "--back", *words)
    until(lambda: has_inlet(sides), "the inlet to be made")
    return bridge


def has_inlet(sides: Sides) -> bool:
    return info(sides, INLET) != {}


def info(sides: Sides, stream: str) -> dict[str, int]:
    js = sides.js()
    try:
        state: dict[str, int] = js.api(f"STREAM.INFO.{stream}", {}, 5.0)["state"]
    except NatsError:
        return {}
    finally:
        js.link.close()
    return state


async def publish_one(sides: Sides) -> None:
    async with await ftstan.client.connect(CLUSTER, "one", servers=sides.nats.url) as client:
        await client.publish(CHANNEL, b"one")


class NewPublisher:
    """Publishes to the channel's name in JetStream, each until it is acknowledged."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self.taken: list[bytes] = []

    def publish(self, first: int, last: int) -> None:
        js = self._sides.js()
        for number in range(first, last + 1):
            data = b"new %d" % number

            def taken(data: bytes = data) -> bool:
                answers = js.ask(CHANNEL, data, 5.0)
                return bool(answers) and not answers[0].status and b'"seq"' in answers[0].payload

            until(taken, "JetStream to take a message")
            self.taken.append(data)
        js.link.close()


def news(sides: Sides) -> list[bytes]:
    return [data for _, data in sides.rows() if data.startswith(b"new ")]


def verified(sides: Sides) -> bool:
    said = sides.bridge("verify", "--channel", CHANNEL, "--output", "json")
    return said.status == 0 and json.loads(said.out)["channels"][0]["differs_at"] == 0


def is_level(sides: Sides) -> bool:
    said = sides.bridge("status", "--output", "json")
    rows = json.loads(said.out)["channels"] if said.out else []
    return bool(rows) and rows[0]["lag"] == 0 and rows[0]["waiting"] == 0


def move(sides: Sides, verb: str, *words: str) -> object:
    said = sides.bridge(
        *(verb, CHANNEL, "--dir", str(sides.stage.store), "--yes", "--output", "json", *words)
    )
    assert said.status == 0, said
    return said.json


def test_a_bridge_that_is_killed_again_and_again_repeats_and_skips_nothing(stage: Stage) -> None:
    sides = Sides(stage, 20)
    new = NewPublisher(sides)
    bridge = start(sides, "bridge0")
    old = threading.Thread(target=sides.publish, args=(21, 420))
    publishing = threading.Thread(target=new.publish, args=(1, 300))
    old.start()
    publishing.start()
    for turn in range(1, 4):
        until(lambda want=turn * 40: len(news(sides)) >= want, "new messages to come through")  # type: ignore[misc]
        bridge.kill()
        bridge = start(sides, f"bridge{turn}")
    publishing.join()
    old.join()
    until(lambda: len(news(sides)) >= 300 and is_level(sides), f"all to come; {bridge.tail()}")
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0
    assert news(sides) == new.taken
    assert len(sides.rows()) == 720
    assert verified(sides)


def test_a_takeover_and_a_cut_over_and_an_undo_lose_and_repeat_nothing(stage: Stage) -> None:
    sides = Sides(stage, 20, "-allow_channel_move", group=True)
    standby = stage.member("b", "-ns", sides.nats.url, "-allow_channel_move")
    standby.wait_until_standing_by()
    new = NewPublisher(sides)
    bridge = start(sides, "bridge")
    publishing = threading.Thread(target=new.publish, args=(1, 150))
    publishing.start()
    until(lambda: len(news(sides)) > 30, "new messages to come through")
    sides.server.kill()
    standby.wait_until_active()
    publishing.join()
    until(lambda: len(news(sides)) >= 150 and is_level(sides), f"all to come; {bridge.tail()}")

    told = move(sides, "cutover")
    assert told["channels"][0]["differs_at"] == 0  # type: ignore[index]
    moved_at = told["channels"][0]["moved_at"]  # type: ignore[index]
    assert moved_at == 170
    assert bridge.status() == 0
    with pytest.raises(PublishRefusedError, match="channel has moved"):
        asyncio.run(publish_one(sides))
    new.publish(151, 200)
    assert sides.last == 220
    assert news(sides) == new.taken

    assert move(sides, "undo") == {
        "channels": [{"channel": CHANNEL, "stream": STREAM, "last": 220}]
    }
    assert verified(sides)
    new.publish(201, 220)
    bridge = start(sides, "again")
    sides.publish(1001, 1010)
    until(lambda: sides.last >= 250 and is_level(sides), f"all to come; {bridge.tail()}")
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0
    assert news(sides) == new.taken
    assert verified(sides)


def channel_last(sides: Sides) -> int:
    where = ("--server", sides.nats.url, "--cluster", CLUSTER, "--timeout", "3")
    said = run("channel", "info", *where, CHANNEL, "--output", "json")
    return int(said.json["channel"]["last_seq"]) if said.status == 0 else 0


def test_an_undo_that_is_killed_goes_on_where_the_channel_is(stage: Stage) -> None:
    sides = Sides(stage, 20, "-allow_channel_move")
    new = NewPublisher(sides)
    bridge = start(sides, "bridge")
    until(lambda: sides.last == 20 and is_level(sides), f"the bridge to be level; {bridge.tail()}")
    move(sides, "cutover")
    assert bridge.status() == 0
    said = sides.bridge("run", "--channel", CHANNEL, "--back")
    assert said.status == 3
    assert f'has moved into the stream "{STREAM}" at 20' in said.err
    new.publish(1, 300)
    words = sides.words("undo", CHANNEL, "--dir", str(stage.store), "--yes")
    undo = stage.run("undo", [sys.executable, "-m", "ftstan.cli.ctl", *words])
    until(lambda: channel_last(sides) > 25, f"the undo to begin; {undo.tail()}")
    undo.kill()
    assert channel_last(sides) < 320
    with pytest.raises(PublishRefusedError, match="channel has moved"):
        asyncio.run(publish_one(sides))
    move(sides, "undo")
    assert channel_last(sides) == 320
    assert news(sides) == new.taken
    assert verified(sides)
    asyncio.run(publish_one(sides))
    assert channel_last(sides) == 321


def test_a_cut_over_without_a_bridge_is_taken_back(stage: Stage) -> None:
    sides = Sides(stage, 20, "-allow_channel_move")
    assert sides.once("--dir", str(stage.store)).status == 0
    sides.publish(21, 30)
    words = (CHANNEL, "--dir", str(stage.store), "--yes", "--wait", "2")
    said = sides.bridge("cutover", *words)
    assert said.status == 3
    assert "the stream ends at 20, the channel at 30" in said.err
    sides.publish(31, 31)
    assert sides.once("--dir", str(stage.store)).status == 0
    assert sides.last == 31


def test_copies_are_not_published_to_the_channel(stage: Stage) -> None:
    sides = Sides(stage, 5)
    bridge = start(sides, "bridge")
    js = sides.js()
    headers = b"NATS/1.0\r\nFtstan-Bridge: somebody\r\n\r\n"
    assert js.ask(CHANNEL, b"copy", 5.0, headers=headers)[0].status == 0
    js.link.close()
    NewPublisher(sides).publish(1, 1)
    until(lambda: sides.last == 6, f"the message to come; {bridge.tail()}")
    assert [data for _, data in sides.rows()][5:] == [b"new 1"]
    bridge.wait_for("is a copy that a bridge has made")
    bridge.signal(signal.SIGTERM)
    assert bridge.status() == 0
    said = sides.once()
    assert said.status == 3
    assert f"new publishers' messages come back from {INLET}: --back" in said.err


def test_moves_need_a_channel_and_a_key(stage: Stage) -> None:
    del stage
    assert run("bridge", "cutover", "--yes").status == 64
    assert run("bridge", "run", "--channel", CHANNEL, "--back", "--once").status == 64
    said = run("bridge", "undo", CHANNEL, "--yes", "--cluster", CLUSTER)
    assert said.status == 64
    assert "admin.key" in said.err
