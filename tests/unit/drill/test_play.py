"""How a drill is played, with nodes and clients that are made up: what it writes down when things
come late.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ftstan.client import NatsLogin
from ftstan.drill import ledger, play, takeover_wait
from ftstan.drill.errors import DrillError
from ftstan.drill.judge import judge
from ftstan.drill.ledger import Ack, Delivery, Fault, Publish, Read, Takeover
from ftstan.drill.node_watch import Seen, Watchers
from ftstan.drill.scenario import Member, read
from ftstan.drill.workload import Access

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ftstan.drill.ledger import Record
    from ftstan.drill.result import Result

SCENARIO = """\
driver: remote
cluster: c
group: g
servers: [nats://a]
nodes: [{name: a, monitor: "http://a"}, {name: b, monitor: "http://b"}]
settle: 0s
commands: {restart-storage: "true"}
faults: [{do: restart-storage, within: {within}s}]
"""


class Nodes(Watchers):
    """Nodes whose pages say what a test says."""

    def start(self) -> None:
        self.nodes["a"] = Seen(
            "a", answers=True, active_us=self._now_us(), state="FT_ACTIVE", epoch=1
        )
        self.nodes["b"] = Seen("b", answers=True, state="FT_STANDBY")
        asyncio.get_running_loop().call_later(0.2, self.look)

    def look(self) -> None:
        """Figures of both."""
        for node in self.nodes.values():
            node.figures_us = self._now_us()

    def take_over(self) -> None:
        """The second node serves, the first one stands by."""
        self.nodes["a"].active_us = 0
        self.nodes["a"].state = "FT_STANDBY"
        self.nodes["b"].active_us = self._now_us()
        self.nodes["b"].state = "FT_ACTIVE"
        self.nodes["b"].epoch = 2
        self.look()


class Load:
    """Clients whose publishes are all acknowledged at once, and read by everybody.

    ``missed``: what they say was not.
    """

    missed: ClassVar[list[str]] = []

    def __init__(
        self,
        load: object,
        access: object,
        run: str,
        write: Callable[[Record], None],
        now: Any,
        **_: object,
    ) -> None:
        self.channels = ("drill",)
        self.counts = SimpleNamespace(acked=0, delivered=0, highest={})
        self._write = write
        self._now = now
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        while True:
            self.counts.acked += 1
            number = self.counts.acked
            now = self._now()
            self._write(Publish(now, f"{number}.1", number, 1, "", 1, _sha1(number), "drill"))
            self._write(Ack(now + 1, f"{number}.1", "", 1))
            self._write(
                Delivery(now + 1, "durable", number, f"{number}.1", _sha1(number), False, "drill")
            )
            self.counts.highest["drill"] = number
            await asyncio.sleep(0.01)

    async def finish(self) -> list[str]:
        await self.end()
        return self.missed

    async def read(self, channel: str, reader: str, epoch: int, stop: int) -> None:
        for number in range(1, stop + 1):
            self._write(
                Read(self._now(), reader, epoch, number, f"{number}.1", _sha1(number), channel)
            )

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _sha1(number: int) -> str:
    return hashlib.sha1(str(number).encode(), usedforsecurity=False).hexdigest()


class Driver:
    """Does nothing; ``revived`` is called when nodes are to come back."""

    access = Access(["nats://a"], "c", "g", NatsLogin())

    def __init__(
        self, revived: Callable[[], None], forgotten: Callable[[], None] = lambda: None
    ) -> None:
        self.members: tuple[Member, ...] = ()
        self._revived = revived
        self._forgotten = forgotten

    async def prepare(self) -> None: ...
    async def mark(self, nodes: object) -> None: ...
    async def begin(self, step: object, node: str) -> None: ...
    async def finish(self, step: object, node: str) -> None: ...
    async def switchover(self, within_s: float) -> None: ...
    async def end(self) -> None: ...
    def last_words(self) -> list[str]:
        return []

    async def forget(self, channels: object) -> None:
        self._forgotten()

    async def revive(self, node: str, *, ended: bool) -> None:
        self._revived()


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, text: str) -> None: ...


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Nodes]:
    """The watchers of the play that runs."""
    found: list[Nodes] = []

    def watchers(*words: Any, clustered: bool) -> Nodes:
        assert not clustered
        found.append(Nodes(*words))
        return found[-1]

    monkeypatch.setattr(play, "Watchers", watchers)
    monkeypatch.setattr(play, "Clients", Load)
    monkeypatch.setattr(takeover_wait, "_CALM_S", 0.05)
    return found


def played(tmp_path: Path, revived: Callable[[], None], within_s: int) -> Result:
    scenario = read(SCENARIO.replace("{within}", str(within_s)), "s.yaml")
    return asyncio.run(play.Play(scenario, Driver(revived), str(tmp_path), Told(), "r").run())


def written(tmp_path: Path, kind: type[Record]) -> list[Record]:
    return [record for record in ledger.read(str(tmp_path / "ledger")) if isinstance(record, kind)]


def test_a_takeover_that_comes_while_nodes_come_back_is_of_the_fault_before_it(
    tmp_path: Path, made: list[Nodes]
) -> None:
    result = played(tmp_path, lambda: made[0].take_over(), 60)  # noqa: PLW0108  # it is there later
    assert result.passed, result
    (fault,) = written(tmp_path, Fault)
    assert isinstance(fault, Fault)
    assert (fault.fault, fault.epoch, fault.ends_epoch) == ("restart-storage", 1, True)
    assert [(switch.epoch, switch.node) for switch in result.verdict.switches] == [
        (1, "a"),
        (2, "b"),
    ]


def switched_over(
    tmp_path: Path, made: list[Nodes], monkeypatch: pytest.MonkeyPatch, page: bytes
) -> Fault:
    """The fault of a drill whose command takes 0.4 s until the server has its request."""

    class Slow(Driver):
        async def switchover(self, within_s: float) -> None:
            await asyncio.sleep(0.4)
            made[0].take_over()

    async def get(_url: str) -> tuple[int, bytes]:
        return 200, page

    monkeypatch.setattr(play, "get", get)
    text = SCENARIO.replace("{do: restart-storage, within: {within}s}", "switchover")
    text = text.replace('commands: {restart-storage: "true"}\n', "")
    driver = Slow(lambda: None)
    driver.members = tuple(Member(name, f"http://{name}") for name in "ab")
    asyncio.run(play.Play(read(text, "s.yaml"), driver, str(tmp_path), Told(), "r").run())
    (fault,) = written(tmp_path, Fault)
    assert isinstance(fault, Fault)
    return fault


def test_a_switchover_is_timed_from_the_request_that_the_server_got(
    tmp_path: Path, made: list[Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = switched_over(tmp_path, made, monkeypatch, b'{"handover_age": 0.05}')
    *_, takeover = written(tmp_path, Takeover)
    assert isinstance(takeover, Takeover)
    # The command had begun long before.
    assert takeover.t - fault.t == takeover.active_us <= 50_000
    assert takeover.ack_us >= takeover.active_us


@pytest.mark.parametrize(
    "page", [b"404", b"[]", b'{"handover_age": true}', b'{"handover_age": 99}']
)
def test_what_no_server_says_or_none_could_is_not_believed(
    tmp_path: Path, made: list[Nodes], monkeypatch: pytest.MonkeyPatch, page: bytes
) -> None:
    fault = switched_over(tmp_path, made, monkeypatch, page)
    *_, takeover = written(tmp_path, Takeover)
    assert takeover.t - fault.t >= 400_000


def test_a_drill_whose_consumer_got_nothing_and_is_in_no_ledger_has_failed(
    tmp_path: Path, made: list[Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made == []
    missed = "queue did not get 7 acknowledged messages of channel drill"
    monkeypatch.setattr(Load, "missed", [missed])
    result = played(tmp_path, lambda: None, 60)
    assert result.verdict.clean
    assert (result.passed, result.failures) == (False, (missed,))


def test_a_stall_between_faults_counts_against_the_limit_as_well(
    tmp_path: Path, made: list[Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made == []
    monkeypatch.setattr(play, "judge", lambda records: replace(judge(records), elsewhere_ms=3000.0))
    text = SCENARIO.replace("{within}", "60") + "max_unavailable: 2s\n"
    result = asyncio.run(
        play.Play(read(text, "s.yaml"), Driver(lambda: None), str(tmp_path), Told(), "r").run()
    )
    assert result.failures == ("between faults: no ack for 3.00 s under load, allowed are 2 s",)


def test_no_fault_comes_before_the_owners_epoch_is_in_the_ledger(
    tmp_path: Path, made: list[Nodes]
) -> None:
    assert played(tmp_path, lambda: None, 60).passed
    (fault,) = written(tmp_path, Fault)
    assert isinstance(fault, Fault)
    owner = made[0].nodes["a"]
    assert owner.active_us < owner.figures_us <= fault.t


def test_a_fault_after_which_nodes_stay_away_is_written_down_all_the_same(
    tmp_path: Path, made: list[Nodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        monkeypatch.setattr(play, "READY_S", 0.0)
        made[0].nodes["b"].answers = False

    with pytest.raises(
        DrillError, match=r"every node to be back after restart-storage \(a: active, b: no answer\)"
    ):
        played(tmp_path, gone, 6)
    (fault,) = written(tmp_path, Fault)
    assert isinstance(fault, Fault)
    assert not fault.ends_epoch
    assert len(written(tmp_path, Takeover)) == 1


def test_a_channel_that_cannot_be_removed_is_told_and_the_verdict_stands(
    tmp_path: Path, made: list[Nodes]
) -> None:
    def refused() -> None:
        raise DrillError("refused", hint="clocks differ")

    assert made == []
    told = Told()
    driver = Driver(lambda: None, refused)
    scenario = read(SCENARIO.replace("{within}", "60"), "s.yaml")
    assert asyncio.run(play.Play(scenario, driver, str(tmp_path), told, "r").run()).passed
    assert told.lines[-1] == "channels drill stay: refused; clocks differ"
