"""The driver of a group's member: feeds the pure machines of ``ft/`` with time, NATS and storage.

Lives on the control thread. It waits for nothing that storage must answer: attempts and activation
are posted to the data plane, and their results come back as events.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Protocol

from ftstan.base import log
from ftstan.base.disk import LocalDisk
from ftstan.base.errors import (
    FencedError,
    FtstanError,
    LockFaultError,
    NatsError,
    RefusedError,
    ReleasedError,
    StoreError,
)
from ftstan.base.ratelimit import RateLimit
from ftstan.base.states import NodeState
from ftstan.ft import active as act
from ftstan.ft import digest, handover
from ftstan.ft import standby as sb
from ftstan.ft.epoch_records import Cause, why_taken
from ftstan.ft.heartbeat import BeatPhase, Heartbeat, decode_heartbeat
from ftstan.ft.lock_attempt import attempt, see_store
from ftstan.ft.mixed import MIXED_OFF, MIXED_ON, not_mixed_line, too_slow_line, word_of
from ftstan.ft.subjects import (
    Released,
    decode_released,
    encode_released,
    group_subject,
    heartbeat_subject,
)
from ftstan.ft.timing import timing_of
from ftstan.ft.warm import NoWarm
from ftstan.nats import tasks
from ftstan.node.handover import SWITCHOVER_S, Handover, no_successor
from ftstan.node.peers import Peers
from ftstan.node.reserved_link import ReservedLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from ftstan.config.options import LinkOptions
    from ftstan.ft.epoch import Activation
    from ftstan.ft.epoch_records import EpochRecord
    from ftstan.ft.owned import Owner
    from ftstan.ft.timing import FtTiming
    from ftstan.ft.warm import Warm, WarmLag
    from ftstan.nats.control import Control
    from ftstan.node.context import Context
    from ftstan.node.handover_buffer import BufferedPublishes

_LOG = {
    sb.Level.INFO: log.stream.info,
    sb.Level.WARNING: log.stream.warning,
    sb.Level.ERROR: log.stream.error,
}
#: A takeover is told when the first publish was answered, or after so long without one.
_FIRST_ACK_WITHIN_S = 10.0
_LOOK_FOR_ACK_S = 0.05


def _time(ns: int) -> str:
    at = dt.datetime.fromtimestamp(ns // 1_000_000_000, tz=dt.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


class Life(Protocol):
    """What the owner of the store does with it."""

    async def serve(
        self, ahead: Callable[[], Awaitable[BufferedPublishes | None]] | None = None
    ) -> None:
        """Recover and open the server. Raises ``FtstanError``. ``ahead``: see ``Node.serve``."""
        ...

    def give_back(self) -> None:
        """On the data plane's thread: close what was opened, and free the lock for another node."""
        ...


class Operators(Protocol):
    """Listens for operators."""

    async def open(self, control: Control) -> None:
        """Listen on this connection."""
        ...

    def on_question(self, data: bytes, reply: str) -> None:
        """Answer a request for this server's status; ignore others."""
        ...


class FtGroup:
    """One member: stands by, takes over, beats. ``urls``: where its connection goes."""

    def __init__(
        self, node: Context, life: Life, operators: Operators, urls: Sequence[str]
    ) -> None:
        assert node.owner is not None
        self._node = node
        self._life = life
        self._operators = operators
        self._owner: Owner = node.owner
        self._rng = node.random_class()
        self._timing = self._timing_now()
        self._word = word_of(node.options.ft)
        self._standby = sb.Standby(node.server_id, self._rng, self._timing, mixed=self._word)
        self._original_ns: int | None = (
            None  # the oldest activation time of an original that was heard
        )
        self._heard_epoch = 0
        self._reads = self._read_again = False
        self._unexpected = RateLimit()
        self._active: act.Active | None = None
        self._activation: Activation | None = None
        self._suspected_at: float | None = None
        """Since when (seconds) nobody is heard, and the lock is tried for that."""
        self._tried_at = 0.0
        self._steered = False
        """Whether an operator has paused or resumed this process: what is kept is older."""
        self.switchover_at_ns = 0
        self._plan: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why storage refused the last activation."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._control = node.control_class(
            urls,
            cluster_id=node.options.cluster_id,
            options=node.presented,
            on_disconnect=self._nats_down,
            on_reconnect=self._nats_up,
        )
        self._handover = Handover(node, self._say, lambda: self._control.max_payload)
        self._warm = self._new_warm()
        self._beats = heartbeat_subject(node.options.cluster_id, node.options.ft_group)
        self._ours = group_subject(node.options.cluster_id, node.options.ft_group)
        self.peers = Peers(node, self._say, self._ask)
        """What is known of the other members."""
        self._tries = dict.fromkeys(sb.TryResult, 0)
        # Epochs taken, by cause (a series exists before it counts); times that NATS came back.
        self.takeovers = {cause.name.lower(): 0 for cause in Cause}
        self.reconnects = 0

    @property
    def mixed(self) -> bool:
        """Whether original servers may be members: what an owner has recorded, else what is
        believed.
        """
        if self._activation is None:
            return self._standby.mixed
        return self._activation.ft_mixed

    @property
    def standby(self) -> sb.Standby:
        """The state machine of a standby."""
        return self._standby

    @property
    def activated(self) -> bool:
        """Whether this member took an epoch."""
        return self._activation is not None

    @property
    def tries(self) -> dict[str, int]:
        """Attempts at the store lock, counted by outcome."""
        return {result.name.lower(): count for result, count in self._tries.items()}

    def renew(self, options: LinkOptions) -> None:
        """Present ``options`` to NATS from the next connection on."""
        self._control.renew(options)

    async def start(self) -> None:
        """Stand by. Returns at once; everything else comes as events."""
        self._node.role = NodeState.STANDBY
        await self._control.subscribe(self._beats, self._on_heartbeat)
        await self._control.subscribe(self._ours, self._on_group_message)
        await self._control.serve(self._ours, self._operators.on_question)
        await self._operators.open(self._control)
        self._event(sb.Started())
        if self._standby.mixed:
            log.stream.info(MIXED_ON)
        await self._read_store()
        if self._standby.mixed and (line := too_slow_line(self._node.options.ft)):
            log.stream.warning(line)
        await self._control.start()
        await self._reserve_link()
        self._warm.start()
        self._spawn(self._wait_for_nats())

    def _new_warm(self) -> Warm | NoWarm:
        if not self._owner.has_directory:
            return NoWarm()
        return self._node.warm_class(LocalDisk(), self._owner.path, self._node.clock)

    async def _reserve_link(self) -> None:
        """Keep the connection on which this member would serve."""
        node = self._node

        def reserve() -> None:
            assert node.link is not None
            if node.plane.reserved is not None or node.plane.handover_buffer is not None:
                return
            # Nobody would read what somebody has subscribed to on it.
            node.link.close()
            node.plane.reserved = ReservedLink(node.link, node.clock)

        await node.call(reserve)

    async def _wait_for_nats(self) -> None:
        await self._control.established.wait()
        self._event(sb.NatsUp())

    # ---- events in
    # ----------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._node.clock.mono()

    def _on_heartbeat(self, _subject: str, data: bytes) -> None:
        beat = decode_heartbeat(data)
        if beat is None:
            return
        if not beat.is_ours and not beat.time_error:
            self._handover.hear_original()
            heard = self._original_ns
            self._original_ns = (
                beat.activated_ns if heard is None else min(heard, beat.activated_ns)
            )
            if not self.mixed and self._unexpected.allow(self._now()):
                log.stream.warning(not_mixed_line(beat.server_id))
        if self._active is not None:
            self._drive(self._active.handle(sb.HeartbeatHeard(beat), self._now()))
            return
        self._suspected_at = None
        self._event(sb.HeartbeatHeard(beat))
        if beat.is_ours and beat.epoch != self._heard_epoch:
            # The owner has raised its epoch, perhaps because the operator switched the mixed group
            # on or off.
            self._heard_epoch = beat.epoch
            self._spawn(self._read_store())

    def _on_group_message(self, _subject: str, data: bytes) -> None:
        released = decode_released(data)
        if released is not None:
            if self._active is None:
                self._event(sb.ReleasedHeard(released))
            return
        told = digest.decode_digest(data) if self._active is None else None
        if self._active is None and (members := digest.decode_members(data)) is not None:
            if self._standby.may_succeed(members.store_id, self._now()):
                self.peers.hear(members)
            return
        if told is not None:
            if self._standby.may_succeed(told.store_id, self._now()):
                self._warm.take(told)
            return
        message = handover.decode(data)
        if message is None:
            return
        ready = self._active is None and self._standby.may_follow(message.store_id, self._now())
        # Who has been asked to stop finishes what it has begun, and begins nothing.
        ready = ready and not self._node.stopping.is_set()
        for work in self._handover.heard(message, ready=ready):
            if isinstance(work, float):
                self._event(sb.YieldTo(work))
            else:
                self._spawn(work)

    def _nats_down(self, error: NatsError) -> None:
        if self._node.stopping.is_set():
            return
        log.stream.error(f'connection "{self._control.name}" has been disconnected: {error.text}')
        self._event(sb.NatsDown())

    def _nats_up(self, url: str) -> None:
        self.reconnects += 1
        log.stream.info(f'connection "{self._control.name}" reconnected to NATS Server at "{url}"')
        self._event(sb.NatsUp())

    def _fire(self) -> None:
        self._timer = None
        if self._active is not None:
            self.note_epoch()
            self._drive(self._active.handle(sb.TimerFired(), self._now()))
        else:
            self._event(sb.TimerFired())

    def note_epoch(self) -> None:
        """An owner can take a higher epoch while it serves: say that one from now on."""
        before = self._activation
        now = self._owner.present
        if self._active is None or before is None or now is None or now.epoch == before.epoch:
            return
        self._activation = now
        self._node.note_epoch()
        self._active.handle(act.EpochRaised(now.epoch), self._now())
        if now.ft_mixed != before.ft_mixed:
            log.stream.info(MIXED_ON if now.ft_mixed else MIXED_OFF)

    def _event(self, event: sb.Event) -> None:
        self._drive(self._standby.handle(event, self._now()))

    # ---- actions out
    # ---------------------------------------------------------------------------------------------

    def _drive(self, actions: Sequence[sb.Action | act.Action]) -> None:
        for action in actions:
            match action:
                case sb.SetTimer(at):
                    self._set_timer(at)
                case sb.Log(level, text):
                    _LOG[level](text)
                case sb.TryLock():
                    self._tried_at = self._now()
                    if action.suspicious and self._suspected_at is None:
                        self._suspected_at = self._tried_at
                    self._spawn(self._try_lock(action))
                case sb.ReadStore():
                    self._spawn(self._read_store())
                case sb.ReleaseLock():
                    self._spawn(self._release())
                case sb.Activate(cause, after):
                    self._spawn(self._activate(cause, after))
                case sb.Steal():
                    holder = self._owner.holder
                    after = holder.epoch if holder is not None else 0
                    self._spawn(self._activate(Cause.STOLEN, after, without_lock=True))
                case act.SendHeartbeat(payload):
                    if self._node.protection.may_beat:
                        self._spawn(self._send(payload))
                case act.ConfirmNow():
                    self._spawn(self._confirm())

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(at - self._now(), 0.0), self._fire)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = tasks.spawn(work, "group", self._node.fail)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try_lock(self, ask: sb.TryLock) -> None:
        def work() -> tuple[sb.TryDone, bool]:
            done = attempt(self._owner, ask)
            # The directory may be another one than at the start: one with a pause gives it back.
            return done, done.result is sb.TryResult.GRANTED and self._finds_pause()

        done, paused = await self._node.call(work)
        self._retime()
        self._tries[done.result] += 1
        if paused:
            self._pause_found()
        self._event(done)

    async def _read_store(self) -> None:
        """Look at the datastore, and once more if that is asked for meanwhile.

        Words bring it about, and words can be forged: however many come, one look at a time stands
        between the lock and the next poll of it.
        """
        self._read_again = True
        if self._reads:
            return
        self._reads = True
        try:
            while self._read_again:
                self._read_again = False
                seen, paused = await self._node.call(
                    lambda: (see_store(self._owner), self._finds_pause())
                )
                self._retime()
                if paused:
                    self._pause_found()
                self._event(seen)
        finally:
            self._reads = False

    def _timing_now(self) -> FtTiming:
        return timing_of(self._node.options.ft, is_network=self._owner.is_network)

    def _retime(self) -> None:
        """A look may have followed the path to a share, where each poll of the lock is a request,
        or away from one.
        """
        timing = self._timing_now()
        if timing != self._timing:
            self._timing = timing
            self._event(sb.Retimed(timing))

    def _finds_pause(self) -> bool:
        """On the data plane's thread: whether the datastore keeps a pause that was not ended."""
        if self._steered or self._standby.paused:
            return False
        with contextlib.suppress(StoreError):
            return self._owner.is_paused()
        return False

    def _pause_found(self) -> None:
        if self._steered or self._standby.paused:
            return
        self._event(sb.Paused())
        log.stream.warning(
            f"ft: this member ({self._owner.name}) is paused since before its start, and will not "
            f"become active; to end that, run: ftstanctl ft resume {self._owner.name}"
        )

    async def _release(self) -> None:
        await self._node.call(self._owner.release)

    async def _send(self, payload: bytes) -> None:
        with contextlib.suppress(NatsError):
            # The link to NATS says that it is down by itself; nobody hears us then.
            await self._control.publish(self._beats, payload)

    async def _confirm(self) -> None:
        def confirm() -> None:
            self._owner.confirm_anew()
            self._owner.verify_lock()

        try:
            await self._node.call(confirm)
        except ReleasedError:
            return
        except FencedError as error:
            self._node.fenced(error)
        if self._active is not None:
            self._drive(self._active.handle(act.Confirmed(), self._now()))

    async def _activate(self, cause: Cause, after: int, *, without_lock: bool = False) -> None:
        """The lock is ours, or not worth waiting for: claim, say so, recover, serve."""
        node = self._node
        # Whatever was read before may be old: nothing of it is kept from here on.
        self._warm.stop()
        node.owns = True
        cause, after = self._handover.cause_of(cause, after)
        suspected = self._tried_at if self._suspected_at is None else self._suspected_at
        former = self._owner.holder
        try:
            heard = self._standby.heard_under
            activation = await node.call(
                lambda: self._owner.activate(
                    cause=cause,
                    after=after,
                    without_lock=without_lock,
                    ft_mixed=self._word,
                    heard_under=heard,
                ),
                may_lose=True,
            )
        except FencedError as error:
            await node.call(self._life.give_back)
            await self._reserve_link()
            self._warm = self._new_warm()
            self._warm.start()
            self._event(sb.ActivationLost(error.text))
            return
        except FtstanError as error:
            await self._not_activated(error)
            return
        self._activation = activation
        self.takeovers[cause.name.lower()] += 1
        log.stream.info("Server is active")
        node.role = NodeState.ACTIVE
        beat = Heartbeat(
            server_id=node.server_id,
            activated_ns=activation.since_ns,
            epoch=activation.epoch,
            store_id=activation.store_id,
            has_lock=not without_lock,
        )
        self._active = act.Active(beat, self._rng, self._timing, original_ns=self._original_ns)
        self._drive(self._active.handle(sb.Started(), self._now()))
        if without_lock:
            self._spawn(self._regain_lock(self._active))
        try:
            await self._life.serve(lambda: self._handover.decide(activation))
        except FtstanError as error:
            await self._not_activated(error)
            return
        finally:
            self._handover.opens = False
        self._active.handle(act.PhaseChanged(BeatPhase.SERVING), self._now())
        self._spawn(self.peers.tell(activation))
        if activation.cause is not Cause.FIRST_START:
            self._spawn(self._tell_takeover(activation, former, suspected))

    async def _tell_takeover(
        self, activation: Activation, former: EpochRecord | None, suspected: float
    ) -> None:
        """One line for people: which epoch, why, after whom, and how long publishers waited."""
        served = self._now()
        while (serving := self._node.plane.serving) is not None:
            acked = serving.first_ack_at
            if acked is not None or self._now() - served > _FIRST_ACK_WITHIN_S:
                why = why_taken(activation.cause, activation.after, activation.left)
                waited = (
                    f"serving after {(served - suspected) * 1e3:.0f} ms, no publish came within "
                    f"{_FIRST_ACK_WITHIN_S:g} s"
                    if acked is None
                    else f"first ack {(acked - suspected) * 1e3:.0f} ms after suspicion"
                )
                log.stream.info(
                    f"ft: takeover: epoch {activation.epoch}, cause: {why}, predecessor: "
                    f"{former.describe() if former is not None else 'none'}, {waited}"
                )
                return
            await asyncio.sleep(_LOOK_FOR_ACK_S)

    @property
    def warm_lag(self) -> WarmLag | None:
        """How far a standby's reading ahead is behind the owner.

        ``None`` if this node has heard no digest.
        """
        return self._warm.lag

    async def _not_activated(self, error: FtstanError) -> None:
        """Storage refuses: give everything back and wait, for it may be the same for every member.

        Others: raise.
        """
        node = self._node
        if node.stopping.is_set() or not isinstance(error, (StoreError, LockFaultError)):
            self._event(sb.ActivationFailed())
            node.role = NodeState.FAILED
            raise error
        self._active = self._activation = None
        node.role = NodeState.STANDBY
        await node.call(self._life.give_back)
        await self._reserve_link()
        self._warm = self._new_warm()
        self._warm.start()
        self.trouble = error.text
        self._event(
            sb.ActivationLost(
                f"{error.text}; {error.hint}" if error.hint else error.text, refused=True
            )
        )

    async def _regain_lock(self, active: act.Active) -> None:
        """Take the lock once its former holder is gone, so that the others are kept out by it
        again.
        """
        while self._active is active and not self._node.stopping.is_set():
            if await self._node.call(self._owner.regain_lock):
                active.handle(act.LockRegained(), self._now())
                log.stream.info("ft: the store lock is free, and held by this server now")
                return
            await asyncio.sleep(self._timing.poll_interval)

    # ---- views
    # ----------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the control connection stands."""
        return self._control.connected

    @property
    def looks_for_nats(self) -> bool:
        """Whether this member has a connection to NATS, or tries to have one."""
        return self._control.running

    # ---- operators
    # ----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Do not take over until ``resume``."""
        self._steered = True
        self._event(sb.Paused())
        log.stream.info("ft: paused by the operator")

    def resume(self) -> None:
        """Take over again when it is time."""
        self._steered = True
        self._event(sb.Resumed())
        log.stream.info("ft: resumed by the operator")

    # ---- planned hand-over
    # ---------------------------------------------------------------------------------------

    async def _say(self, payload: bytes) -> None:
        await self._control.publish(self._ours, payload)

    async def _ask(self, payload: bytes, seconds: float) -> list[bytes]:
        return await self._control.ask(self._ours, payload, seconds)

    async def switchover(self, to: str = "") -> str:
        """Hand over to ``to`` (a server id; empty: to any standby that is ready) and end with
        status 75.

        Returns the successor's server id as soon as it is ready to follow. Raises ``FtstanError``
        if this node does not serve, or if nobody is ready: it goes on serving then.
        """
        if self._activation is None or not self._node.is_ft_active():
            raise RefusedError(
                "this member is not the active one",
                hint="ask the active: ftstanctl ft status names it",
            )
        self.note_epoch()
        successor = await self._handover.find(self._activation, to, SWITCHOVER_S, switchover=True)
        if not successor:
            raise no_successor(to)
        if to and successor != to:
            raise RefusedError(
                f"this server hands over to {self._handover.successor_name} already",
                hint="see ftstanctl ft status for who takes over",
            )
        self._node.request_handover(self._handover.successor_name)
        return successor

    @property
    def handover_age(self) -> float | None:
        """Seconds since the owner before this one was asked to hand over.

        ``None`` if it was not, and on a standby.
        """
        if self._activation is None:
            return None
        return self._handover.asked_ago(self._activation.predecessor[0])

    @property
    def leaves(self) -> bool:
        """Whether this owner looks for a successor, or has one."""
        return self._handover.leaves

    def plan_switchover(self, to: str, at_ns: int) -> None:
        """Hand over to ``to`` at ``at_ns`` (Unix nanoseconds); 0 or less: not any more.

        The plan is in the memory of this owner, and ends with it. Raises ``RefusedError`` if there
        is no plan to end.
        """
        if self._plan is None and at_ns <= 0:
            raise RefusedError("no switchover is planned", hint="see ftstanctl ft status")
        if self._plan is not None:
            self._plan.cancel()
            self._plan = None
        self.switchover_at_ns = max(at_ns, 0)
        if at_ns <= 0:
            log.stream.info("ft: the planned switchover was cancelled by the operator")
            return
        log.stream.info(f"ft: switchover planned for {_time(at_ns)}{f' to {to}' if to else ''}")
        self._plan = tasks.aside(self._switch_later(to, at_ns), "planned switchover")

    async def _switch_later(self, to: str, at_ns: int) -> None:
        # In small steps: the wall clock decides, and may be set.
        while (left := (at_ns - self._node.clock.wall_ns()) / 1e9) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, 1.0))
        self.switchover_at_ns = 0
        self._plan = None
        try:
            await self.switchover(to)
        except FtstanError as error:
            log.stream.error(
                f"ft: the planned switchover was not carried out: {error.text}"
                + (f"; {error.hint}" if error.hint else "")
            )

    async def finish_takeover(self) -> None:
        """Before a stop: let a takeover go on until what was kept is answered.

        Not for long, and not without NATS.
        """
        await self._handover.finish()

    async def find_successor(self) -> bool:
        """Before the store is closed: let a standby keep what is published from now on.

        Returns whether one does.
        """
        await self._handover.give_up("this server stops")
        if self._activation is None or not self._node.is_ft_active():
            return False
        self.note_epoch()
        return await self._handover.find_any(self._activation)

    async def hand_over(self) -> None:
        """Answer what NATS still has for us and name it."""
        await self._handover.leave()

    # ---- stopping
    # ----------------------------------------------------------------------------------------------

    async def stopping(self) -> None:
        """Make no more attempts and send no more heartbeats."""
        self._event(sb.Stopped())
        if self._active is not None:
            self.note_epoch()
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
        if self._plan is not None:
            self._plan.cancel()
        self._warm.stop()
        for task in list(self._tasks):
            task.cancel()
        await self._control.close()
