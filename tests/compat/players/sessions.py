"""Plays many recorded sessions side by side, each with its own servers, while tests wait for
theirs.

What a session says about time is worth nothing when the machine itself stood still. So a session in
which something does not hold is played again, alone, if a statement about time failed, or the clock
of this program was late, or servers took long to start; what the last play shows is what counts. A
statement that fails for another reason on a machine that kept time is final, and when many fail it
is not the machine.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.compat.players import recordings
from tests.compat.players.judge import Judge
from tests.compat.players.replay import Replay
from tests.compat.players.stage import UnplayableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.compat.players.lines import Line
    from tests.compat.players.recordings import Item

SIDE_BY_SIDE = 4
PLAYS = 3
_AGAIN = 12
"""How many plays there are beyond the first ones of all sessions together."""
_LATE_S = 0.1
_SLOWER_S = 0.5
_BEAT_S = 0.01
_LIMIT_S = 120.0
PATIENCE_S = 900.0
"""How long a test waits for its session: for all of them, on a busy machine."""

PROGRAM = " (program)"
"""Behind the name of a scenario: its client program runs, instead of its recorded lines."""


@dataclass(slots=True)
class Outcome:
    """What a session was like. ``unplayable``: why it could not be played to its end.

    ``slower``: how much longer one of our servers took to start than the recorded one, the first of
    all not counted. How fast an interpreter starts is no part of the protocol, so what is expected
    may come so much later.
    """

    lines: list[Line]
    unplayable: str = ""
    plays: int = 1
    late: float = 0.0
    slower: float = 0.0
    judge: Judge = field(init=False)

    def __post_init__(self) -> None:
        self.judge = Judge(self.lines, self.slower)

    def problem(self, item: Item) -> str:
        """What is wrong with a statement, empty if it holds."""
        if self.unplayable:
            return self.unplayable
        found = self.judge.problem(item.parts)
        return f"{item.text}: {found} (play {self.plays})" if found else ""


def scenario_of(session: str) -> recordings.Scenario:
    """The recorded scenario that a session plays."""
    return recordings.scenarios()[session.removesuffix(PROGRAM)]


class Sessions:
    """``judged(session)``: the statements that must hold there."""

    def __init__(
        self, directory: Path, names: Iterable[str], judged: Callable[[str], Iterable[Item]]
    ) -> None:
        self._directory = directory
        self._judged = judged
        self._waiting = deque(dict.fromkeys(names))
        self._outcomes: dict[str, Future[Outcome]] = {name: Future() for name in self._waiting}
        self._running = 0
        self._again_left = _AGAIN
        self._thread = threading.Thread(target=lambda: asyncio.run(self._play_all()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Play nothing more, and wait for what is being played."""
        self._waiting.clear()
        self._thread.join(PATIENCE_S)

    def outcome(self, name: str) -> Outcome:
        """Wait for a session."""
        return self._outcomes[name].result(PATIENCE_S)

    async def _play_all(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._ended = asyncio.Event()
        self._alone = asyncio.Lock()
        await asyncio.gather(*(self._play_some() for _ in range(SIDE_BY_SIDE)))

    async def _play_some(self) -> None:
        while self._waiting:
            await self._open.wait()
            if not self._waiting:
                break
            name = self._waiting.popleft()
            try:
                self._outcomes[name].set_result(await self._play_until_it_counts(name))
            except Exception as error:  # noqa: BLE001  # it belongs to the tests of this session
                self._outcomes[name].set_exception(error)

    async def _play_until_it_counts(self, name: str) -> Outcome:
        self._running += 1
        try:
            outcome = await self._play(name, 1)
        finally:
            self._running -= 1
            self._ended.set()
        return await self._play_alone(name, outcome) if self._again(name, outcome) else outcome

    async def _play_alone(self, name: str, outcome: Outcome) -> Outcome:
        async with self._alone:
            self._open.clear()
            while self._running:
                self._ended.clear()
                await self._ended.wait()
            try:
                while outcome.plays < PLAYS and self._again(name, outcome):
                    self._again_left -= 1
                    outcome = await self._play(name, outcome.plays + 1)
            finally:
                self._open.set()
        return outcome

    def _again(self, name: str, outcome: Outcome) -> bool:
        if outcome.unplayable or not self._again_left:
            return False
        failed = [item for item in self._judged(name) if outcome.problem(item)]
        stood_still = outcome.late > _LATE_S or outcome.slower > _SLOWER_S
        return any(stood_still or {"within", "not_before"} & set(item.parts) for item in failed)

    async def _play(self, name: str, number: int) -> Outcome:
        replay = Replay(
            scenario_of(name),
            self._directory / f"{name.split(maxsplit=1)[0]}-{number}-{len(name)}",
            programs=name.endswith(PROGRAM),
        )
        clock = asyncio.create_task(_worst_delay())
        unplayable = ""
        try:
            await asyncio.wait_for(replay.run(), _LIMIT_S)
        except UnplayableError as error:
            unplayable = str(error)
        except TimeoutError:
            unplayable = f"not at its end after {_LIMIT_S:g} s"
        finally:
            clock.cancel()
        return Outcome(replay.transcript.lines, unplayable, number, await clock, replay.slower)


async def _worst_delay() -> float:
    """Until it is cancelled: how late this loop was at worst, in seconds."""
    loop = asyncio.get_running_loop()
    worst = 0.0
    try:
        while True:
            due = loop.time() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            worst = max(worst, loop.time() - due)
    except asyncio.CancelledError:
        return worst
