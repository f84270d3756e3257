"""What a drill waits for behind a fault: another node that serves, or acks from the same one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.drill.errors import DrillError
from ftstan.drill.faults import KINDS, Expect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ftstan.drill.node_watch import Seen, Watchers
    from ftstan.drill.scenario import Step

POLL_S: Final = 0.01
#: How long acks must have come again before a fault without a takeover counts as over.
_CALM_S: Final = 1.0


class LateError(DrillError):
    """What a fault must lead to did not come in time."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fault under way, told as ``shown``.

    ``former`` served when it ``began`` (microseconds), epoch ``before``.
    """

    step: Step
    shown: str
    victim: str
    former: Seen
    before: int
    began: int


class TakeoverWait:
    """The wait for what follows ``case``.

    ``acks`` are the times of the last ones, in microseconds of ``now_us``. ``finish`` ends a fault
    that lasts; ``show`` tells people that it goes on.
    """

    def __init__(
        self,
        case: Case,
        watchers: Watchers,
        acks: Sequence[int],
        now_us: Callable[[], int],
        *,
        finish: Callable[[Step, str], Awaitable[None]],
        show: Callable[[str], None],
    ) -> None:
        self._case = case
        self._watchers = watchers
        self._acks = acks
        self._now_us = now_us
        self._finish = finish
        self._show = show

    async def end(self, asked: asyncio.Task[None] | None) -> Seen | None:
        """Wait; returns the node that took over, or ``None`` when the same one goes on.

        ``asked``: the hand-over that was asked for, if it is one. Raises ``LateError``.
        """
        step = self._case.step
        victim = self._case.victim
        ends_us = self._case.began + round(step.for_s * 1e6)
        deadline = ends_us + round(step.within_s * 1e6)
        lasting = KINDS[step.kind].lasts
        # The command of a fault may take a while: acks that came meanwhile came before it, or
        # through it.
        calm_since = self._now_us()
        try:
            while True:
                now = self._now_us()
                if lasting and now >= ends_us:
                    lasting = False
                    await self._finish(step, victim)
                    calm_since = self._now_us()
                if asked is not None and asked.done() and asked.exception() is not None:
                    await asked
                heir = self.heir()
                if heir is not None and not lasting and self._acked_since(heir.active_us):
                    return heir
                if (
                    heir is None
                    and step.expect is not Expect.TAKEOVER
                    and not lasting
                    and self._calm(calm_since)
                ):
                    return None
                if now > deadline:
                    is_missing = step.expect is Expect.TAKEOVER and heir is None
                    what = "no takeover" if is_missing else "no ack"
                    raise LateError(f"{step.kind} of {victim}: {what} within {step.within_s:g} s")
                self._show(f"{step.kind} of {victim}")
                await asyncio.sleep(POLL_S)
        finally:
            if lasting:
                await self._finish(step, victim)

    def heir(self) -> Seen | None:
        """Who became active since the fault: another node, or the same one with another epoch."""
        case = self._case
        active = self._watchers.active
        if active is None or active.active_us <= case.began:
            return None
        if active.name != case.former.name:
            return active
        # One that only did not answer for a while is no heir. Its epoch tells; an original has
        # none, so it must have ended.
        ended = KINDS[case.step.kind].ends and case.victim == case.former.name
        return active if (active.epoch > case.before if case.before else ended) else None

    def _calm(self, since_us: int) -> bool:
        """Whether a node serves and acks have come for a while, up to now."""
        now = self._now_us()
        fresh = self._acked_since(int(max(since_us, now - _CALM_S * 1e6)) + 1)
        return fresh and self._watchers.active is not None and now - since_us > _CALM_S * 1e6

    def _acked_since(self, since_us: int) -> bool:
        return bool(self._acks) and self._acks[-1] >= since_us
