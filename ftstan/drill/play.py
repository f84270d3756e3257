"""One drill from beginning to end: load, faults in their order, readings of the log, and a ledger
of all of it.

It acts and records, and waits for what must follow a fault; what the ledger proves is the judge's
business. An epoch here is the time during which one node serves, counted from 1. Whatever happens,
clients are closed and the driver is ended.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ftstan.base.errors import FtstanError
from ftstan.drill import ledger, setting
from ftstan.drill.errors import DrillError
from ftstan.drill.faults import KINDS, Expect
from ftstan.drill.judge import judge
from ftstan.drill.ledger import Ack, Fault, Takeover, Writer
from ftstan.drill.node_watch import Seen, Watchers, get, handover_age
from ftstan.drill.result import Result
from ftstan.drill.scenario import ACTIVE, REMOTE, STANDBY
from ftstan.drill.takeover_wait import POLL_S, Case, LateError, TakeoverWait
from ftstan.drill.workload import Clients

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.drill.driver import Driver
    from ftstan.drill.ledger import Record
    from ftstan.drill.scenario import Scenario, Step
    from ftstan.drill.setting import Setting

READY_S = 60.0
LEDGER = "ledger"

_SHOW_S = 0.1
_KEPT_ACKS = 50_000


class Told(Protocol):
    """Who hears how a drill goes."""

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def progress(self, text: str) -> None:
        """How things are just now."""
        ...


class Play:
    """Plays one scenario.

    ``directory`` exists and is the run's own; the ledger is made below it.
    """

    def __init__(
        self, scenario: Scenario, driver: Driver, directory: str, told: Told, run: str = ""
    ) -> None:
        self._scenario = scenario
        self._driver = driver
        self._directory = directory
        self._told = told
        self._run = run or secrets.token_hex(4)
        self._epoch = 0
        self._read_epochs: set[int] = set()
        self._failures: list[str] = []
        self._setting: Setting | None = None
        self._acks: deque[int] = deque(maxlen=_KEPT_ACKS)
        # The ledger's clock: that of the wall when the drill began, and even steps from there.
        self._wall_us = time.time_ns() // 1000
        self._mono = time.monotonic()

    async def run(self) -> Result:
        """Play it, and judge its ledger.

        Raises ``DrillError`` and ``ClientError`` if it could not be carried out.
        """
        place = os.path.join(self._directory, LEDGER)
        os.mkdir(place)
        self._writer = Writer(os.path.join(place, f"drill{ledger.SUFFIX}"))
        self._watchers = Watchers(
            *(self._driver.members, self._write, self.now_us),
            clustered=self._scenario.clustered,
        )
        began = self.now_us()
        clients: Clients | None = None
        try:
            await self._driver.prepare()
            self._watchers.start()
            clients = Clients(
                self._scenario.workload,
                self._driver.access,
                self._run,
                self._write,
                self.now_us,
                own_channels=self._scenario.driver == REMOTE,
            )
            self._clients = clients
            await self._begin(began)
            await self._steps()
            await self._finish()
        finally:
            if clients is not None:
                await clients.end()
            await self._watchers.end()
            await self._driver.end()
            self._writer.close()
        result = self._result(place, began)
        if result.passed:
            await self._forget()
        return result

    async def _forget(self) -> None:
        """Remove the drill's channels; what was proved does not depend on that."""
        try:
            await self._driver.forget(self._clients.channels)
        except DrillError as error:
            self._told.say(
                f"channels {', '.join(self._clients.channels)} stay: {error.text}; {error.hint}"
            )

    def now_us(self) -> int:
        """The ledger's clock: microseconds since 1970, never going back."""
        return self._wall_us + round((time.monotonic() - self._mono) * 1e6)

    def _write(self, record: Record) -> None:
        if isinstance(record, Ack):
            self._acks.append(record.t)
        self._writer.write(record)

    def _result(self, place: str, began: int) -> Result:
        verdict = judge(ledger.read(place))
        limit = self._scenario.max_unavailable_s
        for outage in verdict.outages:
            if limit and outage.ms is not None and outage.ms > limit * 1e3:
                text = (
                    f"{outage.fault} of {outage.node}: no ack for {outage.ms / 1e3:.2f} s, "
                    f"allowed are {limit:g} s"
                )
                self._failures.append(text)
        if limit and verdict.elsewhere_ms > limit * 1e3:
            # As a stall behind the first ack of a successor: no fault's, and no better for that.
            self._failures.append(
                f"between faults: no ack for {verdict.elsewhere_ms / 1e3:.2f} s under load, "
                f"allowed are {limit:g} s"
            )
        return Result(
            self._scenario.name,
            self._scenario.text,
            began,
            self.now_us(),
            verdict,
            tuple(self._failures),
            self._directory,
            self._setting,
        )

    # ---- chapters

    async def _begin(self, began: int) -> None:
        self._told.say(f"{self._scenario.name}: waiting for the group")
        await self._until(self._whole, "one active node and the others standing by", READY_S)
        active = self._active()
        self._setting = await setting.look(self._scenario, self._driver.members)
        setting.write(self._setting, self._directory)
        await self._clients.start()
        ack = await self._first_ack(active.active_us, READY_S)
        self._epoch = 1
        self._write(
            Takeover(
                active.active_us, 1, active.name, max(0, active.active_us - began), ack - began
            )
        )
        self._told.say(f"{active.name} serves; {self._scenario.workload.rate} messages a second")

    async def _steps(self) -> None:
        total = self._scenario.repeat * len(self._scenario.steps)
        steps = [step for _ in range(self._scenario.repeat) for step in self._scenario.steps]
        for number, step in enumerate(steps, 1):
            await self._read_epoch()
            await self._load(self._scenario.settle_s, f"[{number}/{total}] load before {step.kind}")
            try:
                if step.kind == "rolling-restart":
                    await self._roll(step)
                else:
                    await self._hurt(step)
            except LateError as error:
                # Nothing that follows would say anything; what there is is judged.
                self._failures.append(error.text)
                self._told.say(f"FAILED: {error.text}")
                return

    async def _finish(self) -> None:
        await self._read_epoch()
        self._told.say("no more publishes; waiting for acks and consumers")
        for missed in await self._clients.finish():
            self._failures.append(missed)
            self._told.say(f"FAILED: {missed}")
        self._told.say("reading the log once more")
        for channel in self._clients.channels:
            await self._clients.read(channel, "last", self._epoch, self._highest(channel))

    async def _read_epoch(self) -> None:
        """Read the log once in each epoch, up to what was seen when the reading begins."""
        if self._epoch in self._read_epochs:
            return
        self._read_epochs.add(self._epoch)
        for channel in self._clients.channels:
            await self._clients.read(
                channel, f"reader-{self._epoch}", self._epoch, self._highest(channel)
            )

    def _highest(self, channel: str) -> int:
        return self._clients.counts.highest.get(channel, 1)

    async def _load(self, seconds: float, text: str) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._show(text)
            await asyncio.sleep(min(_SHOW_S, max(0.0, end - time.monotonic())))

    def _show(self, text: str) -> None:
        counts = self._clients.counts
        self._told.progress(
            f"part {self._epoch}  acked {counts.acked:,}  delivered {counts.delivered:,}  {text}"
        )

    # ---- faults

    async def _roll(self, step: Step) -> None:
        """Stop and start every node, those that stand by first."""
        for node in [node.name for node in self._watchers.nodes.values() if not node.active]:
            await self._hurt(replace(step, kind="stop", node=node, expect=Expect.ANY))
        await self._hurt(replace(step, kind="stop", node=ACTIVE), shown=step.kind)

    async def _hurt(self, step: Step, shown: str = "") -> None:
        await self._until(
            self._whole, f"a whole group before {shown or step.kind}", max(READY_S, step.within_s)
        )
        former = self._active()
        victim = self._node(step)
        await self._driver.mark(list(self._watchers.nodes))
        self._told.say(
            f"{shown or step.kind} of {victim}{f' for {step.for_s:g} s' if step.for_s else ''}"
        )
        case = Case(step, shown or step.kind, victim, former, former.epoch, self.now_us())
        epoch = self._epoch
        try:
            heir = await self._carry_out(case)
            if heir is not None:
                await self._new_epoch(case, heir)
            await self._mend(step, victim, heir)
            # One that came later than the first acks, while nodes were coming back, is of this
            # fault all the same.
            late = self._wait_of(case).heir() if heir is None else None
            if late is not None:
                await self._new_epoch(case, late)
        finally:
            if self._epoch == epoch:
                self._write(Fault(case.began, epoch, victim, case.shown, ends_epoch=False))

    async def _carry_out(self, case: Case) -> Seen | None:
        """Do it, and wait for what follows: the node that took over, or ``None`` when the same one
        goes on.
        """
        self._watchers.eager = True
        asked: asyncio.Task[None] | None = None
        try:
            if case.step.kind == "switchover":
                asked = asyncio.create_task(self._driver.switchover(case.step.within_s))
            else:
                await self._begin_fault(case)
            heir = await self._wait_of(case).end(asked)
            if asked is not None:
                await asked
            return heir
        finally:
            self._watchers.eager = False
            if asked is not None and not asked.done():
                asked.cancel()

    def _wait_of(self, case: Case) -> TakeoverWait:
        return TakeoverWait(
            case,
            self._watchers,
            self._acks,
            self.now_us,
            finish=self._driver.finish,
            show=self._show,
        )

    async def _begin_fault(self, case: Case) -> None:
        """Do it, and show meanwhile how things are: an upgrade takes minutes."""
        doing = asyncio.create_task(self._driver.begin(case.step, case.victim))
        try:
            while not doing.done():
                self._show(f"{case.step.kind} of {case.victim}")
                await asyncio.wait([doing], timeout=_SHOW_S)
            await doing
        finally:
            if not doing.done():
                doing.cancel()
                await asyncio.wait([doing])

    async def _new_epoch(self, case: Case, heir: Seen) -> None:
        """Write down the fault that ended the epoch, and who took over."""
        ack = await self._first_ack(heir.active_us, READY_S)
        if case.step.kind == "switchover":
            case = replace(case, began=await self._asked_at(case, heir))
        active_us = heir.active_us - case.began
        ack_us = ack - case.began
        self._write(Fault(case.began, self._epoch, case.victim, case.shown))
        self._epoch += 1
        self._write(Takeover(heir.active_us, self._epoch, heir.name, active_us, ack_us))
        self._told.say(
            f"{heir.name} active after {active_us / 1e3:.0f} ms, next ack after "
            f"{ack_us / 1e3:.0f} ms"
        )
        if case.step.expect is Expect.SAME:
            self._failures.append(
                f"{case.step.kind} of {case.victim}: {heir.name} took over, and nobody should have"
            )

    async def _asked_at(self, case: Case, heir: Seen) -> int:
        """When the server got the request: the command that brings it takes most of a second to
        start. The successor says how long ago that was, so clocks need not agree; an original does
        not.
        """
        monitor = next(x.monitor for x in self._driver.members if x.name == heir.name)
        began = self.now_us()
        age = handover_age(await get(f"{monitor}/streaming/ftz"))
        # It was so old when the page was made, which is at most this long ago.
        asked = began - round(age * 1e6) if age is not None else 0
        return asked if case.began <= asked <= heir.active_us else case.began

    async def _mend(self, step: Step, victim: str, heir: Seen | None) -> None:
        """Bring back every node, so that the next fault meets a whole group."""
        kind = KINDS[step.kind]
        ended = kind.ends and not kind.boots and (heir is not None or victim != self._active().name)
        for node in self._watchers.nodes:
            await self._driver.revive(node, ended=ended and node == victim)
        await self._until(
            self._whole, f"every node to be back after {step.kind}", max(READY_S, step.within_s)
        )

    # ---- waiting

    def _node(self, step: Step) -> str:
        if step.node not in {ACTIVE, STANDBY}:
            return step.node
        active = self._active().name
        if step.node == ACTIVE:
            return active
        return next(name for name in self._watchers.nodes if name != active)

    def _active(self) -> Seen:
        active = self._watchers.active
        if active is None:
            raise DrillError(
                "no node is active between two faults", hint="see the logs of the nodes"
            )
        return active

    def _whole(self) -> bool:
        """Whether one serves and all others could. A fault before its epoch is in the ledger would
        take that evidence from the judge.
        """
        nodes = self._watchers.nodes.values()
        return sum(node.active for node in nodes) == 1 and all(
            node.recorded or node.standing_by for node in nodes
        )

    def _ack_after(self, since_us: int) -> bool:
        return bool(self._acks) and self._acks[-1] >= since_us

    async def _first_ack(self, since_us: int, within_s: float) -> int:
        await self._until(lambda: self._ack_after(since_us), "an ack", within_s)
        return next(t for t in self._acks if t >= since_us)

    async def _until(self, done: Callable[[], bool], what: str, within_s: float) -> None:
        end = time.monotonic() + within_s
        while not done():
            if time.monotonic() > end:
                said = ", ".join(
                    f"{node.name}: {node.told}" for node in self._watchers.nodes.values()
                )
                raise DrillError(
                    f"waited {within_s:g} s in vain for {what} ({said})",
                    hint="see the logs of the nodes",
                )
            await asyncio.sleep(POLL_S)


def play(scenario: Scenario, driver: Driver, directory: str, told: Told, run: str = "") -> Result:
    """Play a scenario in an event loop of its own. Raises ``FtstanError``.

    SIGTERM ends it as Ctrl-C does: with ``KeyboardInterrupt``, when nothing is left running.
    """

    async def interruptible() -> Result:
        this = asyncio.current_task()
        assert this is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        return await Play(scenario, driver, directory, told, run).run()

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except FtstanError:
        for line in driver.last_words():
            told.say(line)
        raise
