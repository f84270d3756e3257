"""Where one member answers operators: opens their requests, refuses what it must, and has the rest
done.

Lives on the control loop and knows neither socket nor storage: the member below it does what may
block, each with a deadline of its own. Nothing here decides who may own the datastore; a request
can only ask a member to stop, to hold back, or to say something.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ftstan.admin.keys import Keys
from ftstan.admin.protocol import Answer, Request, Verb, encode_answer
from ftstan.admin.signing import Recipient, RequestVerifier, is_sealed
from ftstan.base.errors import FtstanError, RefusedError, WireError
from ftstan.base.log import stream as log

if TYPE_CHECKING:
    from ftstan.admin.member import Member
    from ftstan.base.clock import Clock

_KEY_FOR_S = 1.0
"""How long a key that was read counts: one that was replaced opens nothing any more, and a flood
reads it once.
"""


class AdminService:
    """Answers for one member."""

    def __init__(self, member: Member, recipient: Recipient, clock: Clock) -> None:
        self._member = member
        self._seals = RequestVerifier(recipient)
        self._clock = clock
        self._keys = Keys(None)
        self._key_error: FtstanError | None = None
        self._key_until = self._again_from = float("-inf")
        self._reading = asyncio.Lock()

    async def who(self) -> bytes:
        """Answer the question to all members."""
        return encode_answer(Answer(ok=True, status=await self._member.status()))

    async def answer(self, payload: bytes) -> bytes:
        """Carry out a request, or say why not."""
        opened = False
        try:
            request = await self._open(payload)
            opened = not request.verb.changes
            return encode_answer(await self._carry_out(request))
        except (RefusedError, WireError) as error:
            if opened:
                # Who looked for what is not there has mistyped a name: nothing for an alert.
                log.debug(f"a question was answered with no: {error.text}")
                return encode_answer(Answer(ok=False, error=error.text, hint=error.hint))
            log.warning(
                f"ft: a control request was refused: {error.text}",
                backs_off="control request refused",
            )
            return encode_answer(Answer(ok=False, error=error.text, hint=error.hint))
        except FtstanError as error:
            log.error(
                f"ft: a control request failed: {error.text}", backs_off="control request failed"
            )
            return encode_answer(Answer(ok=False, error=error.text, hint=error.hint))

    async def _open(self, payload: bytes) -> Request:
        if is_sealed(payload):
            async with self._reading:
                await self._refresh_key()
            if self._key_error is not None:
                raise self._key_error
        try:
            return self._unseal(payload)
        except RefusedError:
            # Perhaps the key was replaced since it was read: nobody should have to ask twice.
            if not is_sealed(payload) or not await self._has_other_keys():
                raise
        return self._unseal(payload)

    def _unseal(self, payload: bytes) -> Request:
        now_ns = self._clock.wall_ns()
        return self._seals.open(payload, keys=self._keys.accepted(now_ns), now_ns=now_ns)

    async def _has_other_keys(self) -> bool:
        """Read the keys again, unless that was done just now; returns whether they are others."""
        before = self._keys
        async with self._reading:
            now = self._clock.mono()
            if now >= self._again_from:
                # Once a second, however many there are that no key opens.
                self._again_from = now + _KEY_FOR_S
                self._key_until = float("-inf")
                await self._refresh_key()
        return self._key_error is None and self._keys != before

    async def _refresh_key(self) -> None:
        if self._clock.mono() < self._key_until:
            return
        self._keys = Keys(None)
        self._key_error = None
        try:
            self._keys = await self._member.read_keys()
        except FtstanError as error:
            self._key_error = error
        self._key_until = self._clock.mono() + _KEY_FOR_S

    async def _carry_out(self, request: Request) -> Answer:
        member = self._member
        if request.verb.administers:
            if not request.verb.changes:
                return await member.administer(request)
            answer = await self._audited(request)
            if request.verb is Verb.ROTATE:
                self._key_until = float("-inf")
            return answer
        if request.verb.changes:
            asked = f" by {request.by}" if request.by else ""
            log.info(f"ft: asked{asked} for: {request.verb}{_details(request)}")
        match request.verb:
            case Verb.STATUS:
                pass
            case Verb.HISTORY:
                return Answer(ok=True, history=await member.history(request.count))
            case Verb.SWITCHOVER:
                await member.switchover(request.to)
            case Verb.PLAN:
                await member.plan_switchover(request.to, request.at_ns)
            case Verb.PAUSE:
                await member.pause(request.by)
            case Verb.RESUME:
                await member.resume()
            case Verb.MIXED:
                await member.set_mixed(on=request.on)
        return Answer(ok=True, status=await member.status())

    async def _audited(self, request: Request) -> Answer:
        """Carry out a change of what is served; whatever comes of it is a line in the log."""
        what = f"audit: {request.by or 'somebody'} asked for: {request.verb}{_details(request)}"
        try:
            answer = await self._member.administer(request)
        except FtstanError as error:
            log.warning(
                f"{what}: {'refused' if isinstance(error, RefusedError) else 'failed'}: "
                f"{error.text}"
            )
            return Answer(ok=False, error=error.text, hint=error.hint)
        if answer.ok:
            log.info(f"{what}: {answer.note}")
        else:
            log.warning(f"{what}: refused: {answer.error}")
        return answer


def _details(request: Request) -> str:
    if request.verb is Verb.MOVED:
        shown = request.name.encode("unicode_escape").decode()
        return f' "{shown}" {"on" if request.on else "off"}'
    if request.verb in {Verb.MOVE_OUT, Verb.MOVE_IN}:
        shown = request.name.encode("unicode_escape").decode()
        way = "to" if request.verb is Verb.MOVE_OUT else "from"
        return f' "{shown}" {way} {request.to}{"" if request.on else ", to see whether it can"}'
    if request.verb is Verb.MIXED:
        return " on" if request.on else " off"
    if request.verb.administers and not request.to:
        shown = request.name.encode("unicode_escape").decode()
        return (f' "{shown}"' if request.name else "") + (
            " with its subscriptions"
            if request.force
            else f" but its newest {request.keep}"
            if request.keep
            else f" up to sequence {request.up_to}"
            if request.up_to
            else ""
        )
    return f" to {request.to}" if request.to else ""
