"""A process that was paused asks storage before any timer fires and before anything that it read is
applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ftstan.base.clock import ManualClock
from ftstan.base.errors import FencedError, StoreError
from ftstan.node.pipeline import Serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.nats.link import ConnectionLostError

SUSPICION_S = 1.25


class Everything:
    """Broker, store and link in one, which note what is asked of them, in order."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.done: list[str] = []
        self.fenced = False
        self.on_commit: Callable[[], None] = lambda: None
        self.connected = True
        self.lost: ConnectionLostError | None = None
        self.taken: list[tuple[bytes, bytes]] | None = None
        self.replies = self.deliveries = self.acks = b""
        self.output_size = 0
        self.wire: list[bytes] = []
        self.leftover = b""
        self.max_payload = 1 << 20
        self.link_events: list[tuple[int, bytes]] = []
        self.later: list[object] = []
        self.has_work = False
        self.events_first = False
        self.answered = None
        self.budget = 0
        self.more = False
        self.window: Remembering | None = None
        self.closing = self.inactivity = self.pending_registrations = self.timers = self

    goes_on = is_full = acks_wait = False
    next = None

    def confirm(self) -> None:
        self.done.append("confirm")
        if self.fenced:
            raise FencedError("somebody else owns the store")

    def commit(self) -> dict[bytes, StoreError]:
        self.done.append("commit")
        self.on_commit()
        return {}

    def recv_into(self, _: memoryview) -> int:
        if self.lost is not None:
            raise self.lost
        return 0

    def send(self, data: bytes, _: float) -> None:
        self.done.append("send")
        self.wire.append(bytes(data))

    def subscribe_lines(self) -> bytes:
        return b""

    def feed(self, *_: object) -> int:
        self.done.append("apply")
        return 0

    def run_timers(self, *_: object) -> bool:
        self.done.append("timers")
        return True

    def unsubscribe_lines(self) -> bytes:
        return b""

    def conclude(self, _: object) -> bool:
        self.done.append("conclude")
        return self.more

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.done.append(name)


def serving() -> tuple[Everything, Serving]:
    clock = ManualClock()
    all_of_it = Everything(clock)
    return all_of_it, Serving(
        all_of_it,
        all_of_it,  # type: ignore[arg-type]
        all_of_it,  # type: ignore[arg-type]
        clock,
        "test",
        suspicion_s=SUSPICION_S,
    )


@pytest.mark.parametrize("readable", [True, False])
def test_after_a_pause_an_owner_that_was_replaced_applies_nothing_and_fires_no_timer(
    *, readable: bool
) -> None:
    node, server = serving()
    server.turn(readable=readable)
    node.done.clear()
    node.fenced = True
    node.clock.advance(SUSPICION_S + 0.01)
    with pytest.raises(FencedError):
        server.turn(readable=readable)
    assert node.done == ["confirm"]


def test_after_a_pause_an_owner_goes_on_when_storage_says_so() -> None:
    node, server = serving()
    node.clock.advance(3600)
    server.turn(readable=True)
    assert node.done[:3] == ["confirm", "apply", "timers"]


def test_without_a_pause_a_turn_asks_storage_once_behind_its_commit() -> None:
    node, server = serving()
    for _ in range(3):
        node.done.clear()
        node.clock.advance(0.2)
        server.turn(readable=True)
        assert node.done[:4] == ["apply", "timers", "stage", "commit"]
        assert node.done.count("confirm") == 1


def test_a_batch_is_published_from_before_its_commit_until_it_is_confirmed() -> None:
    node, server = serving()
    seen: list[float | None] = []
    node.on_commit = lambda: seen.append(server.batch_since)
    node.clock.advance(0.5)
    server.turn(readable=True)
    assert (seen, server.batch_since) == ([node.clock.mono()], None)


class Remembering:
    """A window with one publish that the batch has brought."""

    known: ClassVar[dict[bytes, int]] = {b"digest": 1}

    def __init__(self) -> None:
        self.failed: list[object] = []

    def staged(self) -> list[bytes]:
        return list(self.known)

    def committed(self, failed: object) -> None:
        self.failed.append(failed)


def test_a_publish_is_remembered_before_its_data_is_written_and_sent_after_a_confirm() -> None:
    """A crash between the two must not leave a message whose repeat looks new."""
    node, server = serving()
    window = node.window = Remembering()
    server.turn(readable=True)
    start = node.done.index("remember")
    assert node.done[start : start + 4] == ["remember", "commit", "confirm", "conclude"]
    assert window.failed == [{}]


# ---- acks that are in memory only
# ------------------------------------------------------------------------------------


def test_acks_that_no_file_says_gather_for_a_moment_and_wait_for_no_second() -> None:
    node, server = serving()
    node.acks_wait = True
    server.turn(readable=True)
    node.acks_wait = False
    assert server.timeout() == pytest.approx(0.2)
    node.clock.advance(0.15)
    server.turn(readable=True)
    assert "catch_up" not in node.done
    node.clock.advance(0.06)
    server.turn(readable=False)
    assert node.done[-1] == "catch_up"
    assert server.timeout() > 0.5


def test_a_stop_for_somebody_who_waits_leaves_no_acks_in_memory() -> None:
    node, server = serving()
    server.stop(tidy=False)
    assert node.done[-3:] == ["write_events", "catch_up", "abandon"]


def test_publishes_are_noted_until_the_last_one_who_wants_it_has_ended() -> None:
    """A hand-over may look for a successor while a channel moves."""
    node, server = serving()
    node.answered = None
    node.taken = None
    broker: Any = node
    server.note_taken("move", on=True)
    broker.taken.append((b"c\0g1", b"orders"))
    server.note_taken("hand-over", on=True)
    broker.taken.append((b"c\0g2", b"foo"))
    assert len(broker.taken) == 2
    server.note_taken("move", on=False)
    assert len(broker.taken) == 2
    assert server.is_noting
    server.note_taken("hand-over", on=False)
    assert broker.taken is None
    assert not server.is_noting
