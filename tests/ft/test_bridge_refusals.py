"""What the bridge refuses, before it writes or instead of writing: one line each."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

import ftstan.client
from tests.ft.bridged import CHANNEL, STREAM, Sides, fill, from_files, whole
from tests.ft.operator import run
from tests.processes import CLUSTER, READY, Stage, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.ft.operator import Said

pytestmark = pytest.mark.processes

OTHERS = """
authorization {{
  users: [
    {{ user: all, password: x }}
    {{ user: deaf, password: x, permissions: {{ publish: {{ deny: ["$JS.API.>"] }} }} }}
    {{ user: reader, password: x, permissions: {{ publish: {{ deny: ["{channel}"] }} }} }}
  ]
}}
jetstream {{ store_dir: "{directory}/small", max_file_store: 200KB }}
max_payload: 2KB
"""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    stage = Stage(tmp_path_factory.mktemp("bridge"))
    try:
        yield Sides(stage, 3000)
    finally:
        stage.end()


@pytest.fixture(autouse=True)
def _no_stream_is_left(sides: Sides) -> Iterator[None]:
    yield
    drop(sides)


def drop(sides: Sides) -> None:
    js = sides.js()
    for name in js.api("STREAM.NAMES", {}, 5.0)["streams"] or []:
        js.api(f"STREAM.DELETE.{name}", {}, 5.0)
    js.link.close()


def api(sides: Sides, what: str, **request: Any) -> None:
    js = sides.js()
    js.api(what, request, 5.0)
    js.link.close()


def refused(said: Said, *texts: str) -> None:
    """It ended with one line that says so, and its hint."""
    assert said.status in (1, 3, 64), said
    told = said.out if said.status == 1 else said.err
    assert "Traceback" not in told
    if said.status != 1:
        assert [line[:5] for line in said.err.splitlines()[1:]] == ["hint:"], said
    for text in texts:
        assert text in told, said


def test_a_nats_server_without_jetstream(sides: Sides) -> None:
    plain = sides.stage.nats("plain")
    refused(sides.once("--jetstream", plain.url), "nobody answers for JetStream")


def test_a_stream_of_somebody_else_is_not_touched(sides: Sides) -> None:
    api(sides, f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=[CHANNEL])
    refused(sides.once(), f'the stream "{STREAM}"', "it was not made by a bridge")
    assert sides.state()["messages"] == 0


def test_a_stream_with_other_limits(sides: Sides) -> None:
    assert sides.once(*from_files(sides)).status == 0
    refused(sides.once("--max-msgs", "50"), "max_msgs is -1, not 50")
    refused(sides.once("--storage", "memory"), 'storage is "file", not "memory"')


def test_a_subject_that_another_stream_has(sides: Sides) -> None:
    api(sides, "STREAM.CREATE.other", name="other", subjects=["orders.>"])
    refused(sides.once(), 'the stream "other" has the subject')
    assert sides.state() == {}


def test_the_stream_of_another_channel(sides: Sides) -> None:
    assert sides.once(*from_files(sides)).status == 0
    said = sides.bridge("run", "--channel", "orders", "--stream", f"orders={STREAM}", "--once")
    refused(said, f'it mirrors the channel "{CHANNEL}"')


def test_two_channels_of_one_name(sides: Sides) -> None:
    said = sides.bridge("run", "--channel", "a.b", "--channel", "a_b")
    assert said.status == 64
    assert 'the channels "a.b" and "a_b" would share the stream "a_b"' in said.err


def test_somebody_else_publishes_to_the_stream(sides: Sides) -> None:
    assert sides.once(*from_files(sides)).status == 0
    js = sides.js()
    js.publish(CHANNEL, b"not from the channel")
    js.link.close()
    until(lambda: sides.last == 3001, "the stranger's message")
    shown = sides.bridge("status", "--output", "json")
    assert shown.status == 1
    (row,) = json.loads(shown.out)["channels"]
    assert (row["state"], row["lag"], row["stream_last"]) == ("foreign", 0, 3001)
    refused(sides.once(*from_files(sides)), "somebody else publishes to it")
    assert sides.last == 3001


def test_a_login_without_rights(sides: Sides) -> None:
    settings = OTHERS.format(channel=CHANNEL, directory=sides.stage.directory)
    other = sides.stage.nats("others", settings=settings)
    words = ("--jetstream", other.url, "--jetstream-pass", "x", "--jetstream-user")
    refused(sides.once(*words, "nobody"), "Authorization Violation")
    refused(sides.once(*words, "deaf"), "Permissions Violation")
    refused(sides.once(*words, "reader"), "Permissions Violation")
    # Where that login may publish, the room ends.
    refused(sides.once(*words, "all", *from_files(sides)), "JetStream says", "stopped at")


def test_a_message_that_is_too_large_there(sides: Sides) -> None:
    async def publish() -> None:
        async with await ftstan.client.connect(CLUSTER, "large", servers=sides.nats.url) as client:
            await client.publish("large", b"x" * 3000)

    asyncio.run(publish())
    small = f'jetstream {{ store_dir: "{sides.stage.directory}/tiny" }}\nmax_payload: 2KB\n'
    other = sides.stage.nats("tiny", settings=small)
    said = sides.bridge("run", "--channel", "large", "--once", "--jetstream", other.url)
    refused(said, 'message 1 of "large" has 3000 bytes', "takes 2048")


def test_a_second_bridge_is_refused(sides: Sides) -> None:
    first = sides.start("first", *from_files(sides))
    first.wait_for("on by the durable")
    refused(sides.once(), 'the client id "ftstan-bridge" is taken')
    first.signal(signal.SIGTERM)
    assert first.status() == 0


def test_a_second_bridge_under_another_name_is_refused_by_the_sequence(sides: Sides) -> None:
    first = sides.start("one", "--client-id", "one")
    until(lambda: sides.last >= 3000, "the first bridge to be level")
    second = sides.start("two", "--client-id", "two")
    until(lambda: "durable" in second.text() or sides.last >= 3000, "the second bridge to begin")
    begun = sides.last + 1

    def one_has_ended() -> bool:
        sides.publish(sides.last + 1, sides.last + 5)
        return not (first.running and second.running)

    until(one_has_ended, "one of the two to end")
    loser = second if first.running else first
    assert loser.status() == 1
    assert "another bridge mirrors" in loser.text()
    winner = first if loser is second else second
    winner.signal(signal.SIGTERM)
    assert winner.status() == 0
    assert [row[0] for row in sides.rows()] == list(range(1, sides.last + 1))
    assert sides.last > begun


def test_a_stream_that_is_deleted_meanwhile_is_said_and_one_that_is_purged_goes_on(
    stage: Stage,
) -> None:
    sides = Sides(stage, 100)
    bridge = sides.start("bridge", *from_files(sides))
    until(lambda: sides.last == 100, "the backlog")
    api(sides, f"STREAM.PURGE.{STREAM}")
    sides.publish(101, 110)
    until(lambda: sides.last == 110, "the tail")
    assert sides.rows() == whole(110, 101)
    api(sides, f"STREAM.DELETE.{STREAM}")
    sides.publish(111, 120)
    assert bridge.status() == 1
    assert f'the stream "{STREAM}" is gone' in bridge.text()
    assert sides.once().status == 0
    assert sides.rows() == whole(120)


def test_a_channel_that_has_begun_anew(stage: Stage) -> None:
    sides = Sides(stage, 100)
    assert sides.once(*from_files(sides)).status == 0
    sides.server.signal(signal.SIGTERM)
    sides.server.status()
    stage.store.rename(stage.directory / "former")
    fill(stage, 1, 150, b" of another channel")
    sides.server = stage.file_server("again", "-ns", sides.nats.url)
    sides.server.wait_for(READY)
    refused(sides.once(*from_files(sides)), "the channel has begun anew")
    refused(sides.once(), "the channel has begun anew")
    assert sides.last == 100


def test_a_memory_server_that_was_started_anew_is_noticed_however_far_it_is(stage: Stage) -> None:
    sides = Sides(stage, memory=True)
    sides.publish(1, 100)
    bridge = sides.start("bridge")
    until(lambda: sides.last == 100, "the first hundred")
    sides.server.kill()
    sides.server = stage.server("again", "-ns", sides.nats.url)
    sides.server.wait_for(READY)
    sides.publish(1, 300)
    assert bridge.status() == 1
    assert "the channel has begun anew" in bridge.text()
    assert sides.rows() == whole(100)


def test_messages_that_expired_before_they_were_mirrored(stage: Stage) -> None:
    sides = Sides(stage, 100, "-max_msgs", "100")
    assert sides.once(*from_files(sides)).status == 0
    sides.publish(101, 250)
    said = sides.once()
    refused(said, "has no messages 101 to 150", "ends at 100")
    assert sides.rows() == whole(100)
    assert sides.once("--purge-at-gap").status == 0
    assert sides.rows() == whole(250, 151)
    shown = sides.bridge("verify", "--channel", CHANNEL, "--output", "json")
    assert json.loads(shown.out)["channels"][0]["differs_at"] == 0


def test_what_the_limits_removed_and_the_files_still_have_is_mirrored(stage: Stage) -> None:
    sides = Sides(stage, 100, "-max_msgs", "100")
    assert sides.once(*from_files(sides)).status == 0
    sides.publish(101, 250)
    assert sides.once(*from_files(sides)).status == 0
    assert sides.rows() == whole(250)
    shown = sides.bridge("verify", "--channel", CHANNEL, "--output", "json")
    assert shown.json["channels"][0]["older_in_stream"] == 150
    assert shown.status == 0


def test_a_new_stream_begins_where_the_channel_does(stage: Stage) -> None:
    sides = Sides(stage, 100, "-max_msgs", "100")
    sides.publish(101, 130)
    assert sides.once().status == 0
    assert sides.rows() == whole(130, 31)


def test_directories_that_are_of_no_use(sides: Sides) -> None:
    empty = sides.stage.directory / "empty"
    empty.mkdir()
    refused(sides.once("--dir", str(empty)), "holds no datastore")
    refused(sides.once("--dir", str(empty / "none")), "No such file")
    said = sides.bridge("run", "--channel", "none", *from_files(sides))
    refused(said, 'has no channel "none"')
    words = [*sides.words("run", "--channel", CHANNEL, *from_files(sides)), "--cluster", "other"]
    refused(run(*words), "is of the cluster")


def test_a_channel_of_which_nothing_is_there_yet(sides: Sides) -> None:
    assert sides.bridge("run", "--channel", "empty", "--once").status == 0
