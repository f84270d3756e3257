"""Self-protection: what a node does about itself when its storage hangs, NATS is gone, or it was
paused.

The driver of ``ft/vital_signs.py`` on the control loop, which never blocks. It feeds the judge with
what the watch thread and the data plane publish, and carries out the verdict: no heartbeats, a
clean stop, or the end. It also tells the service manager how the node is, and lets its watchdog
bark when the node is not well.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from ftstan.base import log
from ftstan.base.clock import Steps
from ftstan.base.errors import EndedError
from ftstan.config.units import SECOND
from ftstan.ft.deadlines import JUDGE_EVERY_S, WATCH_STOP_S
from ftstan.ft.owned import OwnedAccess
from ftstan.ft.vital_signs import Guard, GuardVerdict, Vitals
from ftstan.nats import tasks
from ftstan.node.notify import Notifier
from ftstan.node.process_exit import say

if TYPE_CHECKING:
    from ftstan.base.disk import Space
    from ftstan.base.histogram import Histogram
    from ftstan.ft.watch import Watch
    from ftstan.node.context import Context

#: The log may hang, too; the judge must go on.
_PATIENCE_S = 0.05
#: How long the service manager is asked to wait for a start at a time, and how often.
_EXTEND_S = 60.0
_EXTEND_EVERY_S = 10.0
#: Threads for which nothing waits that clients see: the watch, that of a former activation too, is
#: judged by its probes, and what the archive's keeps is not needed before its slice is removed.
_ASIDE = ("watch", "archive")


class Protection:
    """One node's. ``own`` and ``judge`` belong to the control loop, ``disown`` to any thread."""

    def __init__(self, node: Context, notifier: Notifier | None = None) -> None:
        self._node = node
        self._guard: Guard | None = None
        self._watch: Watch | None = None
        self._taker: Guard | None = None
        """Judges this member while it has the lock, or claims an epoch, and has no watch yet."""
        self._took_at = 0.0
        # In somebody's program the service manager's variables are that program's.
        self._notifier = notifier or Notifier(None if node.host.owns_process else {})
        self._task: asyncio.Task[None] | None = None
        self._ready = False
        self._barked = 0.0
        self._extended = -_EXTEND_EVERY_S
        self._passed = 0
        self._steps = Steps()

    def start(self) -> None:
        """Begin to judge; without effect before ``own``."""
        self._task = tasks.spawn(self._run(), "protection")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
        self._notifier.close()

    # ---- owning
    # ----------------------------------------------------------------------------------------------

    def own(self, access: object) -> None:
        """Watch the store, which is ours now."""
        ft = self._node.options.ft
        self._guard = Guard(
            ft.nats_timeout / SECOND if self._node.options.ft_group else 0.0,
            sees_calls=self._node.calls_of_storage is not None,
        )
        if isinstance(access, OwnedAccess):
            interval = ft.probe_interval / SECOND
            if self._notifier.watchdog_s:
                # The watchdog wants a fresh probe twice in its time.
                interval = min(interval, self._notifier.watchdog_s / 4)
            self._watch = access.watch(interval, self._node.storage_failed)
            self._watch.start()

    def disown(self) -> None:
        """The store is not ours any more, or will not be in a moment: what a probe would say now
        counts for nothing.
        """
        watch = self._watch
        self._watch = None
        self._guard = None
        if watch is not None:
            watch.stop(WATCH_STOP_S)

    @property
    def may_beat(self) -> bool:
        """Whether a heartbeat may be sent."""
        guard = self._guard
        return guard is None or not guard.quiet

    @property
    def probe_age(self) -> float | None:
        """Seconds since the end of the last successful probe.

        ``None`` if there was none in this activation.
        """
        watch = self._watch
        return (
            self._node.clock.mono() - watch.passed_at
            if watch is not None and watch.passed
            else None
        )

    @property
    def probes(self) -> Histogram | None:
        """How long the probes of this activation took, in seconds.

        ``None`` if nothing is watched.
        """
        return self._watch.took if self._watch is not None else None

    @property
    def room(self) -> Space | None:
        """On the datastore's file system, as of the last probe of this activation.

        ``None`` if nothing is watched.
        """
        return self._watch.room if self._watch is not None else None

    # ---- judging
    # ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        with contextlib.suppress(EndedError):
            while True:
                self.judge()
                await asyncio.sleep(JUDGE_EVERY_S)

    def judge(self) -> None:
        """Look once, and do what must be done."""
        now = self._node.clock.mono()
        if step := self._steps.look(self._node.clock.wall_ns(), now):
            say(log.stream.warning, step, _PATIENCE_S)
        guard = self._guard or self._guard_of_taker(now)
        verdict = GuardVerdict.FINE
        if guard is not None:
            judgement = guard.judge(self._vitals(), now)
            verdict = judgement.verdict
            match verdict:
                case GuardVerdict.DIE:
                    self._node.die(judgement.why)
                case GuardVerdict.LEAVE if not self._node.stopping.is_set():
                    self._node.leave(judgement.why)
                case GuardVerdict.QUIET | GuardVerdict.FINE if judgement.why:
                    write = log.stream.warning if verdict is GuardVerdict.QUIET else log.stream.info
                    say(write, judgement.why, _PATIENCE_S)
                case _:
                    pass
        self._tell(verdict, now)

    def _vitals(self) -> Vitals:
        node = self._node
        watch = self._watch
        serving = node.plane.serving
        return Vitals(
            probe_since=watch.since if watch is not None else None,
            batch_since=serving.batch_since if serving is not None else None,
            call=self._oldest_call() if self._guard is not None else None,
            reachable=serving.ready if serving is not None else node.hears_nats,
            taking_since=self._taking_since(),
        )

    def _oldest_call(self) -> tuple[float, int] | None:
        """Of those that the data plane, or who works for it, waits for."""
        calls = self._node.calls_of_storage
        if not calls:
            return None
        aside = {thread.ident for thread in threading.enumerate() if thread.name in _ASIDE}
        return min(
            ((since, thread) for thread, since in calls.copy().items() if thread not in aside),
            default=None,
        )

    def _guard_of_taker(self, now: float) -> Guard | None:
        """Nobody else can have the store while this member has the lock: a storage that hangs for
        it must not keep it for ever.
        """
        node = self._node
        owner = node.owner
        takes = node.owns or (owner is not None and owner.lock.held)
        if node.group is None or node.stopping.is_set() or not takes:
            self._taker = None
        elif self._taker is None:
            self._taker = Guard()
            self._took_at = now
        return self._taker

    def _taking_since(self) -> float | None:
        if self._guard is not None or self._taker is None:
            return None
        owner = self._node.owner
        answered = owner.answered_at if owner is not None else None
        return max(self._took_at, answered or 0.0)

    # ---- the service manager
    # -------------------------------------------------------------------------------------

    def _tell(self, verdict: GuardVerdict, now: float) -> None:
        node = self._node
        notifier = self._notifier
        if node.stopping.is_set():
            if self._ready:
                self._ready = False
                notifier.stopping()
            notifier.status(node.status.now().line)
            return
        notifier.status(node.status.now().line)
        if not self._ready:
            if not node.is_up:
                # This loop turns: what the start waits for is a long recovery, or storage. A
                # restart would only begin to wait once more.
                if now - self._extended >= _EXTEND_EVERY_S:
                    self._extended = now
                    notifier.extend(_EXTEND_S)
                return
            # Once and for all: a node that recovers, or looks for NATS, is still the service that
            # was started.
            self._ready = True
            notifier.ready()
        if (
            notifier.watchdog_s
            and now - self._barked >= notifier.watchdog_s / 2
            and self._is_well(verdict)
        ):
            self._barked = now
            notifier.alive()

    def _is_well(self, verdict: GuardVerdict) -> bool:
        """Whether anything has proven since the last time that this node works, and nothing speaks
        against it.
        """
        if verdict is not GuardVerdict.FINE:
            return False
        watch = self._watch
        if watch is None:
            # Standing by, or a store without storage: this loop turns, and NATS is heard or looked
            # for.
            return self._node.looks_for_nats
        before = self._passed
        self._passed = watch.passed
        return self._passed != before
