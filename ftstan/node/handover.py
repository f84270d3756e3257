"""Both ends of a planned hand-over, as the driver of a member runs them (``docs/ft.md``, planned
hand-over).

The owner that leaves: find a successor, stop listening, name what was answered. The successor: keep
what arrives, and decide when the store is ours whether that may be used. On the control thread;
what touches the link is posted to the data plane.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from ftstan.base import log
from ftstan.base.errors import NatsError, RecoveryError, RefusedError, StoreError
from ftstan.base.states import NodeState
from ftstan.broker.lines import publish_rows
from ftstan.config.member import member_name
from ftstan.ft.deadlines import FINISH_S
from ftstan.ft.epoch_records import Cause
from ftstan.ft.handover import (
    LONGEST_KEY,
    Following,
    Leaving,
    Message,
    Subscribed,
    TakenElsewhere,
    Took,
    encode,
    part_bytes,
    split_keys,
)
from ftstan.node.handover_buffer import BufferedPublishes, HandoverBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from ftstan.ft.epoch import Activation
    from ftstan.ft.handover import PublishKey
    from ftstan.node.context import Context

#: How long a successor waits for the whole ``Took`` after it said ``Subscribed``.
TOOK_WITHIN_S: Final = 0.5
#: How long what was kept may wait for the store: the owner closes it in this time, or has failed
#: to.
OURS_WITHIN_S: Final = 10.0
#: How long members that were not named hold back.
YIELD_S: Final = 5.0
#: How often the successor says that it is on its way (before a member that starts tries the lock),
#: and for how long that is good.
_FOLLOW_EVERY_S: Final = 0.05
_FOLLOW_YIELD_S: Final = 0.5
_LEAVE_WITHIN_S: Final = 2.0
_ASK_EVERY_S: Final = 0.1
_LOOK_AGAIN_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.005
#: How long a stop waits, serving on, for a standby that keeps what is published; a switchover has
#: more patience.
_STOP_FIND_S: Final = 1.0
SWITCHOVER_S: Final = 2.0
#: For whom publishes are noted.
_USER: Final = "hand-over"


class Handover:
    """One member's part in hand-overs.

    ``send`` publishes on the group's own subject, ``max_payload`` says how much NATS carries; both
    raise ``NatsError``.
    """

    def __init__(
        self,
        node: Context,
        send: Callable[[bytes], Coroutine[None, None, None]],
        max_payload: Callable[[], int],
    ) -> None:
        self._node = node
        self._send = send
        self._max_payload = max_payload
        self._asking: Leaving | None = None
        self._found: asyncio.Future[str] | None = None
        self._searching = asyncio.Lock()
        self._searches = 0
        self.successor = ""
        """Server id of the member that was chosen to follow us; empty while there is none."""
        self.successor_name = ""
        """The same for people."""
        self._taken: TakenElsewhere | None = None
        self._named: Leaving | Took | None = None
        """What named another member last, so that we hold back."""
        self.opens = False
        """Whether what was kept is on its way to the broker, which does not serve yet."""
        self._whole = asyncio.Event()
        self._since = 0.0
        self._asked: tuple[int, int, float] | None = None
        """The owner's epoch and its search for a switchover that was heard last, and when."""

    # ---- the owner that leaves
    # -----------------------------------------------------------------------------------

    async def find(
        self, activation: Activation, to: str, within_s: float, *, switchover: bool = False
    ) -> str:
        """Ask for a successor (``to``: a server id, empty for anybody).

        Returns its server id, or empty if none came.

        ``switchover``: because an operator asked for it.

        From now on every publish that is taken is noted. Raises ``NatsError`` if nobody can be
        asked.
        """
        # One search at a time: a stop may come while an operator's switchover looks for somebody.
        async with self._searching:
            return await self._find(activation, to, within_s, switchover=switchover)

    async def _find(
        self, activation: Activation, to: str, within_s: float, *, switchover: bool
    ) -> str:
        serving = self._node.plane.serving
        if self.successor or serving is None:
            return self.successor
        await self._node.call(lambda: serving.note_taken(_USER, on=True))
        self._found = asyncio.get_running_loop().create_future()
        publishes = serving.broker.subjects.publish_all
        self._searches += 1
        self._asking = Leaving(
            self._node.server_id,
            activation.epoch,
            activation.store_id,
            publishes,
            to,
            switchover,
            self._searches,
        )
        try:
            async with asyncio.timeout(within_s):
                while not self._found.done():
                    # Again and again: a member that has just started may not have heard it.
                    await self._send(encode(self._asking))
                    await asyncio.wait([self._found], timeout=_ASK_EVERY_S)
            self.successor = self._found.result()
        except TimeoutError:
            pass
        finally:
            self._found = None
            if not self.successor:
                # It serves on, perhaps for months: nothing is noted any more.
                await self._node.call(lambda: serving.note_taken(_USER, on=False))
        return self.successor

    @property
    def leaves(self) -> bool:
        """Whether this owner looks for a successor, or has one, which knows it by its epoch."""
        return self._found is not None or bool(self.successor)

    async def find_any(self, activation: Activation) -> bool:
        """Before a stop: let any standby follow; returns whether there is one."""
        with contextlib.suppress(NatsError):
            return bool(await self.find(activation, "", _STOP_FIND_S))
        return False

    async def leave(self) -> None:
        """Stop listening and name what was answered to the successor.

        What goes wrong here costs publishers an ack, nothing else.
        """
        serving = self._node.plane.serving
        asking = self._asking
        if serving is None or asking is None or not self.successor:
            return
        waits_for = "what had come was not stored and answered"
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                left = await self._node.call(serving.leave)
                keys_taken: list[PublishKey] = await asyncio.wrap_future(left)
                waits_for = "NATS did not take the list of what was answered"
                parts = split_keys(_nameable(keys_taken), part_bytes(self._max_payload()))
                for i, keys in enumerate(parts):
                    took = Took(
                        self._node.server_id,
                        asking.epoch,
                        asking.store_id,
                        self.successor,
                        i,
                        len(parts),
                        tuple(keys),
                        asking.search,
                    )
                    await self._send(encode(took))
        except (NatsError, TimeoutError) as error:
            why = (
                error.text
                if isinstance(error, NatsError)
                else f"{waits_for} within {_LEAVE_WITHIN_S:g} s"
            )
            log.stream.warning(
                f"ft: the hand-over is not seamless, publishers have to repeat: {why}"
            )

    # ---- the successor
    # -------------------------------------------------------------------------------------------

    def heard(self, message: Message, *, ready: bool) -> list[Coroutine[None, None, None] | float]:
        """Take a message.

        Returns what to do: work, or for how many seconds to hold back (0: no longer).

        ``ready``: whether this member would take over that store now.
        """
        me = self._node.server_id
        if message.server_id == me:
            return []
        match message:
            case Leaving():
                if message.switchover and (self._asked or ())[:2] != (
                    message.epoch,
                    message.search,
                ):
                    self._asked = message.epoch, message.search, self._node.clock.mono()
                if message.to and message.to != me:
                    self._named = message
                    return [YIELD_S]
                todo: list[Coroutine[None, None, None] | float] = []
                if self._named is not None and _is_later(message, self._named):
                    # Whoever was named does not follow. The question comes again, when we do not
                    # hold back any more.
                    self._named = None
                    todo.append(0.0)
                if not ready or (self._taken is not None and self._taken.leaving == message):
                    return todo
                # At once, and not when the task begins: the question is asked again and again, and
                # two of them may be read together. A second one would drop what is kept since the
                # first.
                former = self._taken
                self._taken = TakenElsewhere(message)
                self._whole.clear()
                self._since = self._node.clock.mono()
                return [*todo, self._follow(self._taken, again=former is not None)]
            case Subscribed():
                asked = self._asking
                if (
                    self._found is not None
                    and not self._found.done()
                    and asked is not None
                    and (message.epoch, message.store_id, message.search)
                    == (asked.epoch, asked.store_id, asked.search)
                    and asked.to in {"", message.server_id}
                ):
                    self.successor_name = message.name or message.server_id
                    self._found.set_result(message.server_id)
            case Took():
                return self._took(message)
            case Following():
                return [_FOLLOW_YIELD_S]
        return []

    def hear_original(self) -> None:
        """Somebody says without an epoch that it is active."""
        if self._taken is not None:
            self._taken.heard_original = True

    def asked_ago(self, epoch: int) -> float | None:
        """Seconds since the owner of ``epoch`` was asked to hand over; ``None`` if it was not.

        It looks for a successor as soon as it has the request.
        """
        if self._asked is None or self._asked[0] != epoch:
            return None
        return round(self._node.clock.mono() - self._asked[2], 4)

    @property
    def takes_over(self) -> bool:
        """Whether an owner that leaves counts on this member, which does not serve yet."""
        if self._node.role is NodeState.FAILED:
            return False
        return self._taken is not None or (self.opens and not self._node.is_serving())

    async def finish(self) -> None:
        """Wait until what was kept is answered, for as long as that may become true soon."""
        node = self._node
        end = node.clock.mono() + FINISH_S
        while self.takes_over and node.hears_nats and not node.ends and node.clock.mono() < end:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)

    async def give_up(self, why: str) -> None:
        """Stop following, and drop the publishes that were kept."""
        if self._taken is not None:
            self._taken = None
            await self._drop(why)

    def _took(self, took: Took) -> list[Coroutine[None, None, None] | float]:
        todo: list[Coroutine[None, None, None] | float] = []
        if took.successor != self._node.server_id:
            self._named = took
            todo.append(YIELD_S)
        taken = self._taken
        if taken is not None:
            before = taken.successor
            taken.add(took)
            if taken.successor == self._node.server_id != before:
                todo.append(self._say_who_follows(taken))
            if taken.successor not in {"", self._node.server_id}:
                self._taken = None
                todo.append(self._drop("another member was chosen"))
            elif taken.is_whole:
                self._whole.set()
        return todo

    async def _say_who_follows(self, taken: TakenElsewhere) -> None:
        """Members that start now have not heard whom the owner named.

        The owner itself may be the first of them.
        """
        node = self._node
        leaving = taken.leaving
        following = encode(
            Following(node.server_id, leaving.epoch, leaving.store_id, leaving.search)
        )
        end = node.clock.mono() + YIELD_S
        with contextlib.suppress(NatsError):
            while (
                self._taken is taken
                and node.role is NodeState.STANDBY
                and self._goes_on(leaving)
                and node.clock.mono() < end
            ):
                await self._send(following)
                await asyncio.sleep(_FOLLOW_EVERY_S)

    def _goes_on(self, leaving: Leaving) -> bool:
        """Whether nothing keeps this member from taking over; storage may have refused it by now,
        or an operator.
        """
        group = self._node.group
        if group is None:
            return False
        standby = group.standby
        takes = standby.state is NodeState.ACTIVE
        return takes or standby.may_succeed(leaving.store_id, self._node.clock.mono())

    async def _follow(self, taken: TakenElsewhere, *, again: bool) -> None:
        """Keep publishes from now on, and say so.

        ``again``: something may be kept since an earlier question.
        """
        if again:
            await self._drop("the owner began again")
        if self._taken is not taken:
            return
        node = self._node
        leaving = taken.leaving
        assert node.link is not None
        if node.partitioning.partition is not None:
            # The owner may serve other channels than its configuration says.
            with contextlib.suppress(StoreError, RecoveryError):
                await node.call(node.partitioning.look)
            if self._taken is not taken:
                return
        buffer = HandoverBuffer(
            node.link, node.clock, publish_rows(leaving.publishes, node.partitioning.partition)
        )

        def opened() -> None:
            if node.plane.reserved is not None:
                node.plane.reserved.hand_on()
            buffer.open()
            node.plane.handover_buffer = buffer
            # Nobody else reads the link until it serves, or is given back.
            node.plane.reserved = None

        try:
            await node.call(opened)
            if self._taken is not taken:
                # Whoever gave it up has dropped, or drops, what is kept: the owner must not count
                # on it.
                return
            self._since = node.clock.mono()
            await self._send(
                encode(
                    Subscribed(
                        node.server_id,
                        leaving.epoch,
                        leaving.store_id,
                        leaving.search,
                        member_name(node.options),
                    )
                )
            )
            async with asyncio.timeout(TOOK_WITHIN_S):
                await self._whole.wait()
            await asyncio.sleep(OURS_WITHIN_S)
            while node.owns and self._taken is taken:  # noqa: ASYNC110  # nobody waits for it
                # It did, and what follows is our own recovery.
                await asyncio.sleep(_LOOK_AGAIN_S)
            why = f"the owner did not let go of the store within {OURS_WITHIN_S:g}s"
        except TimeoutError:
            why = "the owner did not say what it had answered"
        except NatsError as error:
            why = error.text
        if self._taken is taken:
            self._taken = None
            await self._drop(why)

    def cause_of(self, cause: Cause, after: int) -> tuple[Cause, int]:
        """Why the epoch that we are about to take is taken: what the owner that we follow said,
        else as given.
        """
        if self._taken is None or self._taken.leaving.epoch < after:
            return cause, after
        leaving = self._taken.leaving
        return (Cause.SWITCHOVER if leaving.switchover else Cause.RELEASED), leaving.epoch

    async def _drop(self, why: str) -> None:
        await self._count_dropped(why)

    async def _count_dropped(self, why: str) -> int:
        """Let go of what was kept; returns how many publishes that were, as the log says, too."""

        def drop() -> int:
            plane = self._node.plane
            buffer = plane.handover_buffer
            plane.handover_buffer = None
            if buffer is None:
                return 0
            # Who serves already has the link for itself.
            if plane.serving is None:
                plane.reserved = buffer.leave_link()
            return buffer.give_up(why)

        self._node.unbridged += (dropped := await self._node.call(drop))
        if dropped:
            log.stream.warning(
                f"ft: {dropped} publishes that arrived during a hand-over are not answered: {why}"
            )
        return dropped

    async def decide(self, activation: Activation) -> BufferedPublishes | None:
        """What may be used of what was kept, now that the store is ours.

        Waits for the former owner's last word.
        """
        self.opens = self._taken is not None
        ahead = await self._decide(activation)
        self.opens = ahead is not None
        return ahead

    async def _decide(self, activation: Activation) -> BufferedPublishes | None:
        taken = self._taken
        if taken is None:
            return None
        left = self._since + TOOK_WITHIN_S - self._node.clock.mono()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left, 0.0)):
                await self._whole.wait()
        if self._taken is not taken:
            return None
        self._taken = None
        why = ""
        if not taken.is_whole:
            why = "the owner did not say what it had answered"
        elif activation.predecessor[0] != taken.leaving.epoch:
            why = "somebody else has owned the store since"
        elif taken.successor != self._node.server_id:
            why = "another member was chosen"
        elif activation.was_mixed or activation.ft_mixed or taken.heard_original:
            # It records no epoch: it may have answered some of what was kept, and left again.
            why = "an original server may have owned the store since"
        if why:
            await self._drop(why)
            return None

        def hand_on() -> BufferedPublishes | str:
            bridge = self._node.plane.handover_buffer
            if bridge is None or bridge.broken:
                return bridge.broken if bridge is not None else "the link was lost"
            self._node.plane.handover_buffer = None
            return bridge.hand_on(taken.counts())

        ahead = await self._node.call(hand_on)
        if isinstance(ahead, str):
            if await self._count_dropped(ahead):
                return None
            # What was lost with the link cannot be counted.
            log.stream.warning(
                f"ft: publishes that arrived during the hand-over are not answered: {ahead}"
            )
            return None
        return ahead


def _is_later(asked: Leaving, named: Leaving | Took) -> bool:
    """Whether an owner of the same store asks anew, behind the search in which somebody was
    named.
    """
    return asked.store_id == named.store_id and (asked.epoch, asked.search) > (
        named.epoch,
        named.search,
    )


def _nameable(keys: list[PublishKey]) -> list[PublishKey]:
    """Raise ``NatsError`` for a publish that no message can name.

    No client library makes such ones.
    """
    if any(len(part) > LONGEST_KEY for key in keys for part in key):
        raise NatsError("a publish had a name that is too long to be told")
    return keys


def no_successor(to: str) -> RefusedError:
    """The error of a switchover that found no standby."""
    return RefusedError(
        f"no standby is ready to take over{f' as {to}' if to else ''}",
        hint="ftstanctl ft status shows the members; start one, resume it, or name another",
    )
