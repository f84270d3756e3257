"""The replicated log over a stream whose answers are lost, late or wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from ftstan.base.clock import ManualClock, SystemClock
from ftstan.base.errors import FencedError, StoppedError
from ftstan.cluster import log as module
from ftstan.cluster.entry import Kind, Position, follow
from ftstan.cluster.log import (
    LogLostError,
    PurgedError,
    ReplicatedLog,
    differences,
    settings,
)
from ftstan.nats import jetstream
from ftstan.nats.jetstream import Appended, WrongLast
from tests.unit.cluster.stream import FakeJetStream, Stream

if TYPE_CHECKING:
    from ftstan.nats.jetstream import JetStream

LOG = bytes(range(16))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)


def node(stream: Stream) -> ReplicatedLog:
    js = cast("JetStream", FakeJetStream(stream))
    found = ReplicatedLog(js, "cid", SystemClock(), threading.Event())
    found.begin(Position(LOG))
    while found.read().entries:
        pass
    return found


def stream_of() -> Stream:
    return Stream(settings("cid", LOG))


def lead(log: ReplicatedLog, name: str) -> None:
    record = log.leader_record(name)
    while not log.attempt(record):
        pass


def test_an_append_whose_answer_was_lost_is_found_and_stands_once() -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    stream.faults.extend(["lost", "dropped", ""])
    log.append(b"one")
    log.append(b"two")
    assert [data[-3:] for _, data in stream.entries[1:]] == [b"one", b"two"]
    assert node(stream).at == log.at


def test_an_append_that_arrives_late_behind_its_repeat_is_refused_by_the_stream() -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    stream.faults.append("late")
    log.append(b"one")
    stream.deliver_late()
    assert len(stream.entries) == 2
    assert node(stream).at == log.at


def test_a_leader_that_was_replaced_cannot_append() -> None:
    stream = stream_of()
    old = node(stream)
    lead(old, "a")
    lead(node(stream), "b")
    with pytest.raises(FencedError, match="another node leads"):
        old.append(b"too late")
    assert not any(data.endswith(b"too late") for _, data in stream.entries)


def test_a_late_append_of_a_replaced_leader_is_refused() -> None:
    stream = stream_of()
    old = node(stream)
    lead(old, "a")
    stream.faults.append("late")
    assert not old.attempt(next(old.pieces(Kind.BATCH, b"late")).encode())
    lead(node(stream), "b")
    stream.deliver_late()
    assert not any(data.endswith(b"late") for _, data in stream.entries)


def test_of_two_candidates_one_leads() -> None:
    stream = stream_of()
    one = node(stream)
    other = node(stream)
    lead(one, "a")
    with pytest.raises(FencedError):
        lead(other, "b")


def test_what_is_larger_than_an_entry_goes_on_in_the_next_ones() -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    body = bytes(range(256)) * 5000
    log.append(body)
    assert max(len(data) for _, data in stream.entries) < 600_000
    at = Position(LOG)
    pieces = []
    for number, (_, data) in enumerate(stream.entries, 1):
        entry, at = follow(data, number, at)
        pieces.append((entry.body, entry.more))
    assert b"".join(piece for piece, _ in pieces[1:]) == body
    assert [more for _, more in pieces[1:]] == [True, True, False]


def test_behind_half_a_batch_nothing_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    attempt = log.attempt

    def stop_at_the_second(data: bytes) -> bool:
        if len(stream.entries) == 2:
            raise StoppedError("the server stops")
        return attempt(data)

    with monkeypatch.context() as patch:
        patch.setattr(log, "attempt", stop_at_the_second)
        with pytest.raises(StoppedError):
            log.append(bytes(600_000))
    with pytest.raises(FencedError, match="was broken off"):
        log.append(b"another batch")
    assert len(stream.entries) == 2


def test_a_server_that_takes_no_entry_is_refused() -> None:
    log = node(stream_of())
    log.js.link.max_payload = 4096
    with pytest.raises(LogLostError, match="payloads of 4096 bytes at most"):
        lead(log, "a")


def test_a_log_that_lost_its_end_is_not_appended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORT_S", 0.0)
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    log.append(b"acked")
    del stream.entries[-1]
    with pytest.raises(LogLostError, match="lost entries that were acknowledged"):
        log.append(b"next")


@pytest.mark.parametrize("between", ["an answer", "an entry"])
def test_a_log_that_was_short_for_a_moment_long_ago_is_waited_for_again(
    between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    stream = stream_of()
    log = ReplicatedLog(cast("JetStream", FakeJetStream(stream)), "cid", clock, threading.Event())
    log.begin(Position(LOG))
    lead(log, "a")
    log.append(b"acked")

    def says(last: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(stream, "append", lambda *_: WrongLast(last))
            assert not log.attempt(log.leader_record("a"))

    says(1)
    if between == "an answer":
        says(2)
    else:
        lead(node(stream), "b")
        assert log.read().entries
    clock.advance(600.0)
    says(1)
    clock.advance(3.0)
    with pytest.raises(LogLostError, match="lost entries that were acknowledged"):
        says(1)


def test_each_append_waits_for_a_log_that_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    stream = stream_of()
    log = ReplicatedLog(cast("JetStream", FakeJetStream(stream)), "cid", clock, threading.Event())
    log.begin(Position(LOG))
    lead(log, "a")
    append = stream.append

    def is_short_at_first(subject: str, data: bytes, last: int) -> Appended | WrongLast:
        monkeypatch.setattr(stream, "append", append)
        return WrongLast(last - 1)

    for body in (b"one", b"two"):
        monkeypatch.setattr(stream, "append", is_short_at_first)
        log._short_since = clock.mono()
        clock.advance(600.0)
        log.append(body)
    assert len(stream.entries) == 3


def test_a_log_that_lost_its_end_and_went_on_is_refused_by_who_had_read_it() -> None:
    stream = stream_of()
    reader = node(stream)
    first = node(stream)
    lead(first, "a")
    first.append(b"acked")
    while reader.read().entries:
        pass
    del stream.entries[-1]
    # Two leader records follow, as long as what was lost.
    lead(node(stream), "b")
    lead(node(stream), "c")
    with pytest.raises(LogLostError, match="lost entries that were acknowledged"):
        reader.read()
    behind = node(stream)
    behind.begin(reader.at)
    with pytest.raises(LogLostError, match="not the one that this node has read"):
        behind.check()


def test_a_stream_that_was_made_again_takes_no_append_of_the_old_leader() -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    again = settings("cid", bytes(16))
    stream.config = again
    stream.entries = [(again["subjects"][0], b"x")]
    assert not log.attempt(next(log.pieces(Kind.BATCH, b"old")).encode())
    assert len(stream.entries) == 1
    assert log.find() == bytes(16)


def test_a_stream_of_somebody_else_is_refused() -> None:
    stream = Stream({"name": "FTSTAN_cid", "subjects": ["x"], "metadata": {}})
    with pytest.raises(LogLostError, match="was not made by ftstan"):
        node(stream).find()


@pytest.mark.parametrize(
    "change",
    [
        {"num_replicas": 1},
        {"storage": "memory"},
        {"retention": "workqueue"},
        {"max_age": 1},
        {"max_msgs": 5},
        {"max_bytes": 5},
        {"discard": "old"},
        {"subjects": ["x"]},
        {"allow_direct": False},
        {"deny_purge": True},
        {"sealed": True},
        {"mirror": {"name": "x"}},
    ],
    ids=str,
)
def test_settings_that_were_changed_are_refused_by_name(change: dict[str, object]) -> None:
    wanted = settings("cid", LOG)
    assert differences(wanted, wanted) == []
    assert [line.split(" ")[0] for line in differences(wanted | change, wanted)] == list(change)
    stream = Stream(wanted | change)
    with pytest.raises(LogLostError, match=next(iter(change))):
        node(stream_of()).__class__(
            cast("JetStream", FakeJetStream(stream)), "cid", SystemClock(), threading.Event()
        ).find()


def test_a_node_that_is_behind_the_purge_is_told_and_one_at_its_edge_goes_on() -> None:
    stream = stream_of()
    log = node(stream)
    behind = node(stream)
    lead(log, "a")
    for body in (b"1", b"2", b"3"):
        log.append(body)
    edge = node(stream)
    assert edge.check()
    log.purge(3)
    assert log.bounds().first == 3
    assert edge.check()
    with pytest.raises(PurgedError, match="begins with entry 3, and this node has read 0"):
        behind.check()
    with pytest.raises(PurgedError):
        behind.read()
    # All of it gone: who has read it goes on, who has not does not.
    log.purge(5)
    assert edge.check()
    log.append(b"4")
    assert [entry.body for entry, _ in edge.read().entries] == [b"4"]


def test_a_hole_between_entries_is_no_purge() -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    behind = node(stream)
    log.append(b"1")
    log.append(b"2")
    js = cast("FakeJetStream", behind.js)
    whole = js.get
    js.get = lambda name, sequence, *rest: whole(name, sequence + 1, *rest)  # type: ignore[method-assign]
    with pytest.raises(LogLostError, match="entries are missing"):
        behind.read()


def test_a_leader_whose_unanswered_append_was_purged_behind_another_ends() -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    other = node(stream)
    lead(other, "b")
    other.append(b"b's")
    other.purge(3)
    with pytest.raises(FencedError, match="does not lead any more"):
        log.append(b"a's")


def test_a_log_whose_copies_elect_is_told_from_one_that_does_not_answer() -> None:
    stream = stream_of()
    log = node(stream)
    lead(log, "a")
    config, stream.config = stream.config, None
    entry = next(log.pieces(Kind.BATCH, b"one")).encode()
    assert (log.attempt(entry), log.is_leaderless) == (False, True)
    stream.config = config
    stream.faults.append("dropped")
    assert (log.attempt(entry), log.is_leaderless) == (False, False)
    stream.config = None
    assert not log.attempt(entry)
    stream.config = config
    assert (log.attempt(entry), log.is_leaderless) == (True, False)


@pytest.mark.parametrize("said", ["text", 7, ["x"], {"description": None, "err_code": "y"}, {}])
def test_an_error_of_an_odd_shape_is_an_error_in_words(said: object) -> None:
    text, code = jetstream._refusal(said)
    assert text
    assert code == 0
