"""The driver of self-protection, on a node that notes what is asked of it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.config.options import FtOptions, ServerOptions
from ftstan.config.units import SECOND
from ftstan.ft.deadlines import CALL_DIE_S, JUDGE_EVERY_S
from ftstan.node import protection as module
from ftstan.node.protection import Protection
from tests.unit.admin.test_protocol import STATUS

if TYPE_CHECKING:
    from ftstan.base.states import NodeStatus

GROUP = ServerOptions(store="FILE", dir="/d", ft_group="g", ft=FtOptions(nats_timeout=5 * SECOND))
ALONE = ServerOptions(store="FILE", dir="/d", ft=FtOptions(nats_timeout=5 * SECOND))


@dataclass
class Serving:
    batch_since: float | None = None
    ready: bool = True


@dataclass
class Plane:
    serving: Serving | None = None


@dataclass
class Watch:
    since: float | None = None
    passed: int = 0
    passed_at: float = 0.0
    stopped: bool = False

    def start(self) -> None:
        """Not a thread here."""

    def stop(self, _: float) -> bool:
        self.stopped = True
        return True


@dataclass
class Access:
    """Access to a file store."""

    intervals: list[float] = field(default_factory=list)
    made: Watch = field(default_factory=Watch)

    def watch(self, interval: float, _: object) -> Watch:
        self.intervals.append(interval)
        return self.made


@dataclass
class Manager:
    watchdog_s: float = 0.0
    heard: list[str] = field(default_factory=list)
    extended: list[float] = field(default_factory=list)

    def extend(self, seconds: float) -> None:
        self.extended.append(seconds)

    def ready(self) -> None:
        self.heard.append("ready")

    def alive(self) -> None:
        self.heard.append("alive")

    def stopping(self) -> None:
        self.heard.append("stopping")

    def status(self, text: str) -> None:
        if text not in self.heard:
            self.heard.append(text)


class Source:
    """Where the status is made."""

    def now(self) -> NodeStatus:
        return STATUS


@dataclass
class Owner:
    """The right to the store, and its lock."""

    held: bool = False
    answered_at: float | None = None

    @property
    def lock(self) -> Owner:
        return self


@dataclass
class Node:
    options: ServerOptions = GROUP
    clock: ManualClock = field(default_factory=ManualClock)
    plane: Plane = field(default_factory=Plane)
    manager: Manager = field(default_factory=Manager)
    hears_nats: bool = True
    looks_for_nats: bool = True
    is_up: bool = False
    status: Source = field(default_factory=Source)
    ends: list[tuple[str, str]] = field(default_factory=list)
    owns: bool = False
    owner: Owner | None = None
    calls_of_storage: dict[int, float] | None = None

    def __post_init__(self) -> None:
        self.stopping = asyncio.Event()
        self.group = self if self.options is GROUP else None
        self.access = Access()
        self.protection = Protection(self, self.manager)  # type: ignore[arg-type]

    def leave(self, why: str) -> None:
        self.ends.append(("leave", why))
        self.stopping.set()

    def die(self, why: str) -> None:
        self.ends.append(("die", why))

    def storage_failed(self, error: BaseException) -> None:
        self.ends.append(("failed", str(error)))

    def own(self) -> Watch:
        self.protection.own(self.access)
        return self.access.made

    def beats(self) -> bool:
        return self.protection.may_beat

    def go_on(self, seconds: float) -> None:
        for _ in range(round(seconds / JUDGE_EVERY_S)):
            self.protection.judge()
            self.clock.advance(JUDGE_EVERY_S)
        self.protection.judge()


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []

    def note(_: Any, text: str, __: float) -> None:
        lines.append(text)

    monkeypatch.setattr(module, "OwnedAccess", Access)
    monkeypatch.setattr(module, "say", note)
    return lines


def test_a_hanging_probe_stops_heartbeats_and_an_answer_lets_them_go_on(said: list[str]) -> None:
    node = Node()
    watch = node.own()
    node.plane.serving = Serving()
    assert node.beats()
    watch.since = node.clock.mono()
    node.go_on(5)
    assert not node.beats()
    watch.since = None
    node.go_on(1)
    assert node.beats()
    assert [line.partition(" for")[0].partition(" after")[0] for line in said] == [
        "storage has not answered",
        "storage answers again",
    ]
    assert node.ends == []


@pytest.mark.parametrize("options", [GROUP, ALONE])
@pytest.mark.parametrize("what", ["probe", "batch"])
def test_storage_that_never_answers_is_the_end_of_every_owner(
    options: ServerOptions, what: str
) -> None:
    node = Node(options)
    watch = node.own()
    node.plane.serving = Serving()
    if what == "probe":
        watch.since = node.clock.mono()
    else:
        node.plane.serving.batch_since = node.clock.mono()
    node.go_on(60)
    assert node.ends[0][0] == "die"


def test_a_member_whose_clients_are_cut_off_leaves_and_a_standalone_server_stays() -> None:
    member = Node(GROUP)
    alone = Node(ALONE)
    for node in (member, alone):
        node.own()
        node.plane.serving = Serving(ready=False)
        node.go_on(60)
    assert [what for what, _ in member.ends] == ["leave"]
    assert alone.ends == []


def test_the_data_link_decides_whether_a_serving_member_is_reached() -> None:
    """Nobody is served without it, whatever the control connection says.

    And with it everybody is.
    """
    without_data = Node(hears_nats=True)
    without_control = Node(hears_nats=False)
    for node, ready in ((without_data, False), (without_control, True)):
        node.own()
        node.plane.serving = Serving(ready=ready)
        node.go_on(60)
    assert [what for what, _ in without_data.ends] == ["leave"]
    assert without_control.ends == []


def test_a_member_that_recovers_without_nats_leaves_too() -> None:
    node = Node(hears_nats=False)
    node.own()
    node.go_on(60)
    assert [what for what, _ in node.ends] == ["leave"]


def test_who_owns_nothing_is_not_judged() -> None:
    node = Node(hears_nats=False)
    node.go_on(60)
    watch = node.own()
    watch.since = node.clock.mono()
    node.protection.disown()
    node.go_on(60)
    assert (node.ends, watch.stopped, node.protection.may_beat) == ([], True, True)


def test_the_manager_hears_ready_once_and_then_only_while_probes_are_fresh() -> None:
    node = Node(manager=Manager(watchdog_s=4.0))
    watch = node.own()
    node.go_on(2)
    assert node.manager.heard == [STATUS.line]
    node.is_up = True
    node.plane.serving = Serving()
    for _ in range(4):
        watch.passed += 1
        node.go_on(2)
    assert node.manager.heard == [STATUS.line, "ready", *["alive"] * 4]
    # The probe that is under way does not come back: the dog barks before the process gives up by
    # itself.
    watch.since = node.clock.mono()
    node.go_on(8)
    assert node.manager.heard.count("alive") == 4


def test_a_start_that_takes_long_is_extended_until_it_is_ready_and_never_behind_that() -> None:
    node = Node()
    node.go_on(35)
    assert len(node.manager.extended) == 4
    assert min(node.manager.extended) > 35 / 3
    node.is_up = True
    node.go_on(60)
    assert len(node.manager.extended) == 4


def test_a_standby_is_alive_as_long_as_its_loop_turns() -> None:
    node = Node(manager=Manager(watchdog_s=4.0), is_up=True)
    node.go_on(20)
    assert node.manager.heard.count("ready") == 1
    assert node.manager.heard.count("alive") in {10, 11}


def test_a_standby_that_has_given_up_on_nats_is_not_alive() -> None:
    node = Node(manager=Manager(watchdog_s=4.0), is_up=True, looks_for_nats=False)
    node.go_on(20)
    assert "alive" not in node.manager.heard


def test_a_node_that_was_ready_and_looks_for_nats_or_recovers_is_still_alive() -> None:
    node = Node(ALONE, manager=Manager(watchdog_s=4.0), is_up=True)
    watch = node.own()
    node.plane.serving = Serving()
    node.go_on(1)
    node.plane.serving.ready = node.is_up = False
    before = node.manager.heard.count("alive")
    for _ in range(10):
        watch.passed += 1
        node.go_on(2)
    assert node.manager.heard.count("alive") == before + 10


def test_a_stop_is_told_once() -> None:
    node = Node(is_up=True)
    node.go_on(1)
    node.stopping.set()
    node.go_on(5)
    assert node.manager.heard == [STATUS.line, "ready", "stopping"]


@pytest.mark.parametrize(("watchdog", "interval"), [(0.0, 1.0), (60.0, 1.0), (2.0, 0.5)])
def test_the_watchdog_gets_a_fresh_probe_in_time(watchdog: float, interval: float) -> None:
    node = Node(manager=Manager(watchdog_s=watchdog))
    node.own()
    assert node.access.intervals == [interval]


@pytest.mark.parametrize("what", ["the lock", "a claim"])
def test_who_hangs_while_it_takes_the_store_ends_and_gives_up_the_lock(what: str) -> None:
    owner = Owner(held=what == "the lock")
    node = Node(owner=owner, owns=what == "a claim")
    node.go_on(29)
    assert node.ends == []
    # As each channel of a survey is.
    owner.answered_at = node.clock.mono()
    node.go_on(29)
    assert node.ends == []
    node.go_on(2)
    assert node.ends[0][0] == "die"


@pytest.mark.parametrize("why", ["no member", "stopping", "an owner", "given back"])
def test_only_a_member_that_takes_the_store_is_judged_for_it(why: str) -> None:
    node = Node(ALONE if why == "no member" else GROUP, owner=Owner(held=True), owns=True)
    if why == "stopping":
        node.stopping.set()
    if why == "given back":
        node.go_on(20)
        node.owner = Owner()
        node.owns = False
        node.go_on(1)
        node.owns = True
        node.go_on(20)
    elif why == "an owner":
        node.own()
        node.plane.serving = Serving()
        node.go_on(60)
    else:
        node.go_on(60)
    assert node.ends == []


def test_the_oldest_call_that_somebody_waits_for_ends_the_owner_and_not_those_of_its_watch() -> (
    None
):
    done = threading.Event()
    threads = {
        name: threading.Thread(target=done.wait, name=name, daemon=True)
        for name in ("watch", "archive", "sync_0", "data-plane")
    }
    for thread in threads.values():
        thread.start()
    idents = {name: thread.ident or 0 for name, thread in threads.items()}
    calls = {idents["watch"]: 1.0, idents["archive"]: 1.0}
    node = Node(calls_of_storage=calls)
    node.own()
    node.go_on(2 * CALL_DIE_S)
    assert (node.ends, node.beats()) == ([], True)
    calls[idents["data-plane"]] = 3.0
    node.go_on(CALL_DIE_S - 1)
    # A younger one does not begin it anew.
    calls[idents["sync_0"]] = 4.0
    assert (node.ends, node.beats()) == ([], False)
    node.go_on(2)
    assert [how for how, _ in node.ends][:1] == ["die"]
    assert "a call to the storage has not returned" in node.ends[0][1]
    done.set()


def test_a_call_of_who_does_not_own_the_store_ends_nobody() -> None:
    node = Node(calls_of_storage={threading.get_ident(): 1.0})
    node.go_on(2 * CALL_DIE_S)
    assert node.ends == []
