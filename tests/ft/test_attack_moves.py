"""Moves of a channel that something comes in between of: a deletion, a restart, a second command,
short subscriptions, a hand-over of the source.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.ft.moves import Step, decode_moves, encode_moves
from tests.ft.load import CHANNEL, Load
from tests.ft.mortal_mover import FAILS, SLOW, STALLS
from tests.ft.operator import Said, run
from tests.ft.test_move import ALLOWED, NAME, Pair, client_of, read_on, served, two
from tests.processes import CLUSTER, READY, until

if TYPE_CHECKING:
    from tests.ft.client import StanClient, Subscription
    from tests.processes import Stage

pytestmark = pytest.mark.processes

_DONE = ["gone", "taken"]


def _steps(pair: Pair) -> list[str]:
    return [row["step"] for row in pair.moves()]


def _ask(pair: Pair, *words: str) -> Said:
    return run(*words, "--server", pair.nats.url, "--cluster", CLUSTER)


def _subscriptions(pair: Pair) -> list[dict[str, Any]]:
    said = _ask(pair, "sub", "ls", "--channel", NAME, "--output", "json")
    assert said.status == 0, said
    found: list[dict[str, Any]] = said.json["subscriptions"]
    return found


def _read_for(seconds: float, *readers: StanClient) -> None:
    """Let clients read, and answer heartbeats."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for reader in readers:
            reader.nats.read(0.05)


def _until_done(pair: Pair, *readers: StanClient) -> None:
    end = time.monotonic() + 90
    while _steps(pair) != _DONE:
        _read_for(0.2, *readers)
        assert time.monotonic() < end, pair.moves()


def _goes_on(pair: Pair, load: Load, reader: StanClient, durable: Subscription) -> None:
    """What is published from now on comes to the durable, and nothing twice as if it were new."""
    load.give_up()
    load.run(50)
    load.settle()
    contents = client_of(pair.nats, "judge").read_all(CHANNEL)
    load.judge(contents)
    read_on(reader, durable, contents)
    new = [message.sequence for message in durable.received if not message.redelivered]
    assert len(new) == len(set(new))


def _reader(pair: Pair, count: int) -> tuple[StanClient, Subscription]:
    """Somebody who has read and acknowledged so many messages with a durable."""
    reader = client_of(pair.nats, "reader")
    durable = reader.subscribe(CHANNEL, durable=b"dur")
    reader.nats.pump(lambda: durable.has(count), "what was published first")
    reader.settle_acks()
    return reader, durable


def test_a_channel_that_is_deleted_and_made_again_in_the_middle_moves_as_it_is_then(
    stage: Stage,
) -> None:
    pair = two(stage, dies=f"{SLOW}7")
    client = client_of(pair.nats, "publisher")
    client.publish(CHANNEL, *(b"old %d" % i for i in range(5)))
    pair.begin(*pair.to_b)
    until(lambda: [row for row in pair.moves() if row["copied"] == 5], "the copy")
    said = _ask(pair, "channel", "delete", NAME, "--yes", "--dir", str(stage.directory / "a"))
    assert said.status == 0, said
    new = [b"new %d" % i for i in range(6)]
    client.publish(CHANNEL, *new)
    _until_done(pair, client)
    contents = client_of(pair.nats, "judge").read_all(CHANNEL)
    assert [contents[i] for i in range(1, 7)] == new


def test_a_start_takes_away_what_a_former_owner_may_still_rename(stage: Stage) -> None:
    pair = two(stage, dies=STALLS)
    served(pair, 20)
    pair.begin(*pair.to_b)
    until(lambda: _steps(pair) == ["copying", "offered"], "the copy")
    pair.a.kill()
    file = stage.directory / "a" / "ft.moves"
    moves = decode_moves(file.read_bytes())
    gone = {name: replace(move, step=Step.GONE) for name, move in moves.items()}
    late = file.with_name("ft.moves.new.0123456789abcdef")
    late.write_bytes(encode_moves(gone) + b"\n")
    pair.start("a").wait_for(READY)
    assert not late.exists()
    assert decode_moves(file.read_bytes()) == moves


def test_a_target_that_starts_again_while_the_source_is_away_has_the_subscriptions(
    stage: Stage,
) -> None:
    pair = two(stage)
    load = served(pair, 100)
    reader, durable = _reader(pair, 100)
    plain = reader.subscribe(CHANNEL)
    pair.b.kill()
    pair.start("b", dies="before _take").wait_for(READY)
    child = pair.begin(*pair.to_b)
    until(lambda: not pair.b.running, "death of b")
    child.kill()
    pair.a.kill()
    pair.start("b").wait_for(READY)
    # Long enough for a store to write anew what it has found.
    _read_for(4, reader)
    pair.start("a").wait_for(READY)
    _until_done(pair, reader)
    _goes_on(pair, load, reader, durable)
    _read_for(1, reader)
    assert {m.sequence for m in plain.received} == {m.sequence for m in durable.received}


def test_a_command_that_is_given_again_leaves_no_subscriptions_of_the_first_attempt(
    stage: Stage,
) -> None:
    pair = two(stage)
    load = served(pair, 100)
    reader, durable = _reader(pair, 100)
    pair.a.kill()
    pair.start("a", dies="before gone").wait_for(READY)
    child = pair.begin(*pair.to_b)
    until(lambda: not pair.a.running, "death of a")
    child.kill()
    for _ in range(4):
        # Until the target waits for a while between its attempts, so that the command is first.
        pair.start("a", dies="before gone")
        until(lambda: not pair.a.running, "another death of a")
    pair.start("a").wait_for(READY)
    said = pair.say(*pair.to_b)
    assert said.status == 0, said
    pair.b.kill()
    pair.start("b").wait_for(READY)
    assert len(_subscriptions(pair)) == 1
    _goes_on(pair, load, reader, durable)


@pytest.mark.parametrize("durable", [b"dur", b""])
def test_a_subscription_that_ended_within_the_hand_over_does_not_come_back(
    stage: Stage, durable: bytes
) -> None:
    pair = two(stage)
    served(pair, 20)
    reader = client_of(pair.nats, "reader")
    child = pair.begin(*pair.to_b)
    end = time.monotonic() + 60
    while child.running and time.monotonic() < end:
        made = reader.subscribe(CHANNEL, durable=durable)
        assert reader.end_subscription(CHANNEL, made, durable) == ""
    time.sleep(1)
    assert [row for row in _subscriptions(pair) if not row["is_offline"]] == []
    reader.subscribe(CHANNEL, durable=durable or b"other")


def test_a_client_that_came_back_while_the_target_was_away_is_delivered_to(stage: Stage) -> None:
    pair = two(stage)
    load = served(pair, 20)
    old = client_of(pair.nats, "reader")
    pair.b.kill()
    old.nats.close()
    reader, durable = _reader(pair, 20)
    pair.start("b").wait_for(READY)
    _read_for(1, reader)
    child = pair.begin(*pair.to_b)
    while child.running:
        _read_for(0.1, reader)
    _goes_on(pair, load, reader, durable)


def test_a_source_that_stops_in_the_middle_stores_nothing_twice(stage: Stage) -> None:
    pair = Pair(stage, stage.nats(), None, None)  # type: ignore[arg-type]
    group = (ALLOWED, "-ft_group", "pair")
    pair.start("a", "", *group).wait_until_active()
    pair.start("b", dies=f"{SLOW}1.6").wait_for(READY)
    publisher = client_of(pair.nats, "publisher")
    load = Load()
    load.join(publisher)
    load.run(50)
    pair.begin(*pair.to_b)
    until(lambda: [row for row in pair.moves() if row["copied"]], "the copy")
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        load.run(16)
    pair.a.signal(signal.SIGTERM)
    end = time.monotonic() + 8
    while time.monotonic() < end:
        if load.unanswered < 900:
            load.press(64)
        _read_for(0.05, publisher)
    pair.start("a", "", *group).wait_until_active()
    _until_done(pair)
    load.read_rest()
    contents = client_of(pair.nats, "judge").read_all(CHANNEL)
    assert len(set(contents.values())) == len(contents)


def test_an_attempt_that_fails_refuses_nothing_that_the_source_answers(stage: Stage) -> None:
    pair = two(stage, dies=FAILS)
    publisher = client_of(pair.nats, "publisher")
    load = Load()
    load.join(publisher)
    load.run(50)
    pair.begin(*pair.to_b)
    end = time.monotonic() + 30
    while _steps(pair) != _DONE and time.monotonic() < end:
        for _ in range(200):
            # More than a publisher waits for: something is always on its way.
            if load.unanswered < 20_000:
                load.press(64)
            publisher.nats.read(0.001)
    _until_done(pair, publisher)
    assert "not this time" in pair.b.text()
    assert not publisher.errors


def test_a_group_that_has_given_a_channel_away_does_not_become_mixed(stage: Stage) -> None:
    pair = Pair(stage, stage.nats(), None, None)  # type: ignore[arg-type]
    pair.start("a", "", ALLOWED, "-ft_group", "pair").wait_until_active()
    pair.start("b").wait_for(READY)
    served(pair, 20)
    assert pair.say(*pair.to_b).status == 0
    said = _ask(pair, "ft", "mixed", "on", "--group", "pair", "--dir", str(stage.directory / "a"))
    assert said.status == 1
    assert "has moved to another partition" in said.err
