"""The driver of a group's member: feeds the pure machines of ``ft/`` with time, NATS and storage.

Lives on the control thread. It waits for nothing that storage must answer: attempts and activation are posted to the
data plane, and their results come back as events.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from ftstan import log
from ftstan.config.units import SECOND
from ftstan.errors import FencedError, FtstanError, NatsError
from ftstan.ft import active as act
from ftstan.ft import handover
from ftstan.ft import standby as sb
from ftstan.ft.attempt import attempt, see_store
from ftstan.ft.cadence import FtTiming
from ftstan.ft.heartbeat import BeatPhase, Heartbeat, decode_heartbeat
from ftstan.ft.states import NodeState
from ftstan.ft.subjects import Released, decode_released, encode_released, group_subject, heartbeat_subject
from ftstan.nats.control import Control
from ftstan.succession import Succession, no_successor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftstan.config.options import FtOptions
    from ftstan.ft.epoch import Activation
    from ftstan.ft.ownership import StoreOwner
    from ftstan.server import Node

_LOG = {
    sb.Level.INFO: log.stream.info,
    sb.Level.WARNING: log.stream.warning,
    sb.Level.ERROR: log.stream.error,
}


#: How long a stop waits for a standby that keeps what is published meanwhile; a switchover has more patience.
_STOP_FIND_S, _SWITCHOVER_S = 0.25, 2.0
_LOCAL_POLL_S, _NETWORK_POLL_S = 0.05, 0.5


def _timing(ft: FtOptions, *, is_network: bool) -> FtTiming:
    poll = ft.poll_interval / SECOND or (_NETWORK_POLL_S if is_network else _LOCAL_POLL_S)
    return FtTiming(
        hb_interval=ft.hb_interval / SECOND,
        hb_missed_interval=ft.hb_missed_interval / SECOND,
        poll_interval=poll,
        steal_after=ft.steal_after / SECOND,
    )


class FtGroup:
    """One member: stands by, takes over, beats."""

    def __init__(self, node: Node, urls: Sequence[str]) -> None:
        assert node.owner is not None
        self._node = node
        self._owner: StoreOwner = node.owner
        self._rng = random.Random()
        self._timing = _timing(node.options.ft, is_network=self._owner.is_network)
        self._standby = sb.Standby(node.server_id, self._rng, self._timing)
        self._active: act.Active | None = None
        self._activation: Activation | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        nats = node.options.nats
        self._control = Control(
            urls,
            cluster_id=node.options.cluster_id,
            user=nats.user,
            password=nats.password,
            token=nats.token,
            on_disconnect=self._nats_down,
            on_reconnect=self._nats_up,
        )
        self._succession = Succession(node, self._say)
        self._beats = heartbeat_subject(node.options.cluster_id, node.options.ft_group)
        self._ours = group_subject(node.options.cluster_id, node.options.ft_group)

    async def start(self) -> None:
        """Stand by. Returns at once; everything else comes as events."""
        self._node.state = NodeState.STANDBY
        await self._control.subscribe(self._beats, self._on_heartbeat)
        await self._control.subscribe(self._ours, self._on_group_message)
        self._event(sb.Started())
        await self._read_store()
        await self._control.start()
        self._spawn(self._wait_for_nats())

    async def _wait_for_nats(self) -> None:
        await self._control.established.wait()
        self._event(sb.NatsUp())

    # ---- events in -----------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._node.clock.mono()

    def _on_heartbeat(self, _subject: str, data: bytes) -> None:
        beat = decode_heartbeat(data)
        if beat is None:
            return
        if self._active is not None:
            self._drive(self._active.handle(sb.HeartbeatHeard(beat), self._now()))
        else:
            self._event(sb.HeartbeatHeard(beat))

    def _on_group_message(self, _subject: str, data: bytes) -> None:
        released = decode_released(data)
        if released is not None:
            if self._active is None:
                self._event(sb.ReleasedHeard(released))
            return
        message = handover.decode(data)
        if message is None:
            return
        ready = self._active is None and self._standby.may_succeed(message.store_id, self._now())
        match self._succession.heard(message, ready=ready):
            case None:
                pass
            case float(seconds):
                self._event(sb.YieldTo(seconds))
            case work:
                self._spawn(work)

    def _nats_down(self, error: NatsError) -> None:
        if self._node.stopping.is_set():
            return
        log.stream.error(f'connection "{self._control.name}" has been disconnected: {error.text}')
        self._event(sb.NatsDown())

    def _nats_up(self, url: str) -> None:
        log.stream.info(f'connection "{self._control.name}" reconnected to NATS Server at "{url}"')
        self._event(sb.NatsUp())

    def _fire(self) -> None:
        self._timer = None
        if self._active is not None:
            self._drive(self._active.handle(sb.TimerFired(), self._now()))
        else:
            self._event(sb.TimerFired())

    def _event(self, event: sb.Event) -> None:
        self._drive(self._standby.handle(event, self._now()))

    # ---- actions out ---------------------------------------------------------------------------------------------

    def _drive(self, actions: Sequence[sb.Action | act.Action]) -> None:
        for action in actions:
            match action:
                case sb.SetTimer(at):
                    self._set_timer(at)
                case sb.Log(level, text):
                    _LOG[level](text)
                case sb.TryLock():
                    self._spawn(self._try_lock(action))
                case sb.ReadStore():
                    self._spawn(self._read_store())
                case sb.ReleaseLock():
                    self._spawn(self._release())
                case sb.Activate():
                    self._spawn(self._activate())
                case sb.Steal():
                    self._spawn(self._activate(without_lock=True))
                case act.SendHeartbeat(payload):
                    self._spawn(self._send(payload))
                case act.ConfirmNow():
                    self._spawn(self._confirm())

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(at - self._now(), 0.0), self._fire)

    def _spawn(self, work: asyncio.Future[None] | object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._node.fail(
                error if isinstance(error, FtstanError) else FtstanError(f"{type(error).__name__}: {error}")
            )

    async def _try_lock(self, ask: sb.TryLock) -> None:
        self._event(await self._node.call(lambda: attempt(self._owner, ask)))

    async def _read_store(self) -> None:
        self._event(await self._node.call(lambda: see_store(self._owner)))

    async def _release(self) -> None:
        await self._node.call(self._owner.release)

    async def _send(self, payload: bytes) -> None:
        with contextlib.suppress(NatsError):
            # The link to NATS says that it is down by itself; nobody hears us then.
            await self._control.publish(self._beats, payload)

    async def _confirm(self) -> None:
        def confirm() -> None:
            self._owner.confirm()
            self._owner.verify_lock()

        try:
            await self._node.call(confirm)
        except FencedError as error:
            self._node.fenced(error)
        if self._active is not None:
            self._drive(self._active.handle(act.Confirmed(), self._now()))

    async def _activate(self, *, without_lock: bool = False) -> None:
        """The lock is ours, or not worth waiting for: claim, say so, recover, serve."""
        node = self._node
        try:
            activation = await node.call(lambda: self._owner.activate(without_lock=without_lock))
        except FencedError as error:
            await node.call(self._owner.release)
            self._event(sb.ActivationLost(error.text))
            return
        except FtstanError:
            self._event(sb.ActivationFailed())
            node.state = NodeState.FAILED
            raise
        self._activation = activation
        log.stream.info("Server is active")
        node.state = NodeState.ACTIVE
        beat = Heartbeat(
            server_id=node.server_id,
            activated_ns=activation.since_ns,
            epoch=activation.epoch,
            store_id=activation.store_id,
            has_lock=not without_lock,
        )
        self._active = act.Active(beat, self._rng, self._timing)
        self._drive(self._active.handle(sb.Started(), self._now()))
        if without_lock:
            self._spawn(self._regain_lock(self._active))
        try:
            await node.serve(lambda: self._succession.decide(activation))
        except FtstanError:
            node.state = NodeState.FAILED
            raise
        self._active.handle(act.PhaseChanged(BeatPhase.SERVING), self._now())

    async def _regain_lock(self, active: act.Active) -> None:
        """Take the lock once its former holder is gone, so that the others are kept out by it again."""
        while not self._node.stopping.is_set():
            if await self._node.call(self._owner.regain_lock):
                active.handle(act.LockRegained(), self._now())
                log.stream.info("ft: the store lock is free, and held by this server now")
                return
            await asyncio.sleep(self._timing.poll_interval)

    # ---- planned hand-over ---------------------------------------------------------------------------------------

    async def _say(self, payload: bytes) -> None:
        await self._control.publish(self._ours, payload)

    async def switchover(self, to: str = "") -> str:
        """Hand over to ``to`` (a server id; empty: to any standby that is ready) and end with status 75.

        Returns the successor's server id as soon as it is ready to follow. Raises ``FtstanError`` if this node does not
        serve, or if nobody is ready: it goes on serving then.
        """
        if self._activation is None or not self._node.is_ft_active():
            raise FtstanError("this member is not the active one", hint="ask the active: ftstanctl ft status names it")
        successor = await self._succession.find(self._activation, to, _SWITCHOVER_S)
        if not successor:
            raise no_successor(to)
        self._node.request_handover(successor)
        return successor

    async def hand_over(self) -> None:
        """Before the store is closed: let a standby keep what is published from now on, if there is one."""
        if self._activation is None or not self._node.is_ft_active():
            return
        with contextlib.suppress(NatsError):
            if await self._succession.find(self._activation, "", _STOP_FIND_S):
                await self._succession.leave()

    # ---- stopping ------------------------------------------------------------------------------------------------

    async def stopping(self) -> None:
        """No more attempts, no more beats."""
        self._event(sb.Stopped())
        if self._active is not None:
            self._active.handle(sb.Stopped(), self._now())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stopped(self, *, released: bool) -> None:
        """The store is closed and unlocked: tell the others to try now."""
        if not released or self._activation is None:
            return
        message = Released(self._node.server_id, self._activation.epoch, self._activation.store_id)
        with contextlib.suppress(NatsError):
            await self._control.publish(self._ours, encode_released(message))
            await self._control.flush()

    async def close(self) -> None:
        """End the connection."""
        for task in list(self._tasks):
            task.cancel()
        await self._control.close()
