"""One subscription as its user sees it, over all the sessions that it lives through.

Messages that have come wait here, in order, until they are handed out: to the callback, one at a
time, in a task of the subscription's own, or to whoever iterates. So however slow or broken a
callback is, heartbeats, pings and the other subscriptions go on. The server bounds what waits: it
sends ``max_in_flight`` messages and then waits for acks.

Automatic acks say *handled*: a message is acknowledged after its callback has returned, or when the
next one is asked for by the loop that got it. A callback that raises, and a loop that is left,
acknowledge nothing; the message comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Self

from ftstan.base.errors import WireError
from ftstan.client.errors import (
    DUPLICATE_DURABLE,
    DrainTimeoutError,
    HandlerError,
    RequestError,
    RequestRefusedError,
    RequestTimeoutError,
    SubscriptionClosedError,
    SubscriptionLostError,
)
from ftstan.client.message import Message
from ftstan.client.options import Start
from ftstan.client.position import Position, PositionVerdict
from ftstan.client.publishing import YIELD_EVERY
from ftstan.client.session import AGAIN_S, SILENT_S, check_answer
from ftstan.wire import messages
from ftstan.wire.codec import decode_msg_proto

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ftstan.client.errors import ClientError
    from ftstan.client.link import Arrived, Link
    from ftstan.client.options import SubscribeOptions
    from ftstan.client.session import Session

_ANEW_WITHIN_S = 10.0


class Subscription:
    """A subscription; made by ``Connection.subscribe``.

    Without a callback it is an asynchronous iterator, that ends when the subscription does; it
    raises what ended it unless that was its own user. Also a context manager that closes it.
    """

    def __init__(
        self,
        link: Link,
        options: SubscribeOptions,
        client_id: str,
        handler: Callable[[Message], Awaitable[None]] | None,
        *,
        on_error: Callable[[ClientError], None],
        on_end: Callable[[Subscription], None],
    ) -> None:
        self._link = link
        self.options = options
        self._client_id = client_id.encode()
        self._handler = handler
        self._on_error = on_error
        self._on_end = on_end
        self._position = Position(options)
        self._begun_ns = time.monotonic_ns()
        self._session: Session | None = None
        self._inbox = ""
        self._ack_inbox = ""
        self._doubtful: list[bytes] = []
        """Inboxes of requests that were under way when their session was lost."""
        self._owed: dict[int, None] = {}
        self._queue: dict[tuple[int, int], Message] = {}
        self._changed = asyncio.Event()
        self._handled: Message | None = None
        self._busy = False
        self._handed_out = 0
        self._accepting = True
        self._anew: asyncio.Task[None] | None = None
        self._ended = False
        self._reason: ClientError | None = None
        self._task: asyncio.Task[None] | None = None
        if handler is not None:
            self._task = asyncio.create_task(
                self._feed(handler), name=f"subscription to {options.channel}"
            )

    @property
    def channel(self) -> str:
        """The channel."""
        return self.options.channel

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._ended

    @property
    def pending(self) -> int:
        """How many messages have come and were not handed out yet."""
        return len(self._queue)

    # What the connection does

    async def open(self, session: Session, within: float, start: Start | None = None) -> None:
        """Ask the server for it, in this session; seconds.

        An owner can die between taking a request and answering it, with the subscription stored or
        not. So a request that is not answered is taken back first: when the server says that there
        is no such subscription any more, it is asked for anew, on another inbox. A server that is
        merely slow does the same, and gets longer each time.

        Raises ``RequestRefusedError``, ``RequestTimeoutError``.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        end = began + within
        silent = SILENT_S
        begin = start or self.options.start
        if start is None and self._inbox:
            # An earlier session was asked for it, and was lost.
            begin = begin.asked(time.monotonic_ns() - self._begun_ns)
        # The next session has the same client id: what was asked for in the name of the last one
        # may have been carried out in its own.
        doubtful = self._doubtful
        self._doubtful = []
        for inbox in doubtful:
            self._take_back(session, inbox)
        while not self._ended:
            await session.withdrawals.settled(self.channel, end - loop.time())
            left = end - loop.time()
            # Where the next one would have less time than this one, this one has all.
            is_last = left < 2 * silent
            try:
                await self._request(session, begin, left if is_last else silent)
            except RequestTimeoutError:
                if is_last:
                    raise
            except RequestRefusedError as error:
                # A server that takes nothing back by its inbox has our own request as the other.
                if error.text != DUPLICATE_DURABLE or silent == SILENT_S or is_last:
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                break
            silent *= 2
            begin = (start or self.options.start).asked(round((loop.time() - began) * 1e9))
        await self.send_owed_acks()

    async def _request(self, session: Session, begin: Start, within: float) -> None:
        """One request, on an inbox of its own."""
        options = self.options
        inbox = self._link.inbox()
        await self._link.listen(inbox, self._on_message)
        request = messages.SubscriptionRequest(
            client_id=self._client_id,
            subject=options.channel.encode(),
            q_group=options.queue.encode(),
            inbox=inbox.encode(),
            max_in_flight=options.max_in_flight,
            ack_wait_in_secs=options.ack_wait,
            durable_name=options.durable.encode(),
            start_position=begin.position,
            start_sequence=begin.number
            if begin.position == messages.StartPosition.SEQUENCE_START
            else 0,
            start_time_delta=begin.delta(time.time_ns()),
        )
        self._inbox = inbox
        self._ack_inbox = ""
        self._session = session
        try:
            answer = await session.ask(
                session.subjects.sub_requests.decode(),
                messages.encode(request),
                within,
                late=partial(self._answered_late, session),
            )
            self._ack_inbox = check_answer(messages.SubscriptionResponse, answer).ack_inbox.decode()
            self._changed.set()
            if session.lost.done():
                self._doubtful.append(inbox.encode())
        except BaseException as error:
            await self._link.drop(inbox)
            if isinstance(error, RequestTimeoutError | asyncio.CancelledError):
                # It may have been carried out: by the inbox, since no ack inbox is known.
                self._take_back(session, inbox.encode())
            raise
        if self._ended:
            # Its user has closed it meanwhile, when there was nothing yet to be closed.
            await self._link.drop(inbox)
            self._take_back(session, self._ack_inbox.encode())

    def _take_back(self, session: Session, inbox: bytes) -> None:
        if session.lost.done():
            self._doubtful.append(inbox)
            return
        session.withdrawals.add(self.channel, self._withdrawal(inbox))

    async def _answered_late(self, session: Session, payload: bytes) -> None:
        """A subscription that nobody waits for any more was made behind its withdrawal: servers of
        the original take the two in any order.
        """
        with contextlib.suppress(RequestRefusedError):
            answer = check_answer(messages.SubscriptionResponse, payload)
            self._take_back(session, answer.ack_inbox)

    async def resume(self, session: Session, within: float) -> None:
        """Go on in a new session. Raises as ``open``."""
        if self._anew is not None:
            self._anew.cancel()
            await asyncio.wait([self._anew])
            self._anew = None
        await self._link.drop(self._inbox)
        if self.options.plain:
            # The server has forgotten what it sent; what is still waiting here comes once more.
            self._owed.clear()
        start = self._position.start(time.monotonic_ns() - self._begun_ns)
        self._position.resumed()
        await self.open(session, within, start)

    async def send_owed_acks(self) -> None:
        """Send the acks that could not be sent when they were given."""
        while self._owed and self._ack_inbox:
            sequence = next(iter(self._owed))
            if not await self._send_ack(sequence):
                return
            self._owed.pop(sequence, None)

    def end(self, reason: ClientError | None = None) -> None:
        """Hand nothing out any more.

        Whoever iterates gets ``reason``, or the end of the iteration.
        """
        if self._ended:
            return
        self._ended = True
        self._reason = reason
        self._changed.set()
        if self._anew is not None:
            self._anew.cancel()
        self._on_end(self)

    @property
    def feeding(self) -> asyncio.Task[None] | None:
        """The task that the callback runs in."""
        return self._task

    # What its user does

    async def ack(self, message: Message) -> None:
        """Acknowledge a message of this subscription; see ``Message.ack``."""
        if self._ended:
            raise SubscriptionClosedError(
                f"message {message.sequence} of {self.channel}: its subscription has ended",
                hint="what was not acknowledged comes again to a durable, or to the other "
                "members of the group",
            )
        if self._position.acked(message):
            await self._settle(message.sequence)

    async def close(self, within: float = 5.0) -> None:
        """End it and keep what the server knows of a durable; seconds.

        Messages that have come and were not handled are left to the server. A callback that is
        running goes on, and its message is not acknowledged. Raises ``RequestRefusedError``,
        ``RequestTimeoutError``; closing twice does nothing.
        """
        await self._leave("close", within)

    async def unsubscribe(self, within: float = 5.0) -> None:
        """End it and have the server forget it, a durable with its position too; seconds.

        Of a durable queue group only its last member ends the group. A durable whose session was
        lost is forgotten in the next one: it is waited for, and hands nothing out meanwhile; if it
        does not come in time the server keeps the durable, and ``RequestTimeoutError`` says so. As
        ``close`` in everything else.
        """
        if self._ended:
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        if self.options.durable:
            self._accepting = False
            self._queue.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    while not (self._is_open or self._ended):
                        self._changed.clear()
                        await self._changed.wait()
            if not self._is_open:
                self.end()
                await self._link.drop(self._inbox)
                raise RequestTimeoutError(
                    f"the session of {self.channel} was lost, and not made again within "
                    f"{within:.3g} s: the server keeps the durable {self.options.durable}",
                    hint="subscribe to it once more and unsubscribe then",
                )
        await self._leave("unsubscribe", max(end - loop.time(), AGAIN_S))

    async def drain(self, within: float = 30.0) -> None:
        """Take no new messages, wait until those that have come are handled and acknowledged, then
        close; seconds.

        With manual acks it waits until they are handed out. A loop that iterates is waited for
        until it asks for the next message. Raises ``DrainTimeoutError`` when the time is over (it
        is closed then, too), and as ``close``.
        """
        late = False
        try:
            async with asyncio.timeout(within):
                await self._link.settle(self._inbox, within)
                self._accepting = False
                while (self._queue or self._busy or self._handled) and not self._ended:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            late = True
        await self.close()
        if late:
            raise DrainTimeoutError(
                f"messages of {self.channel} were not handled within {within:g} s",
                hint="what was not acknowledged comes again to a durable, or to the other "
                "members of the group",
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._handler is not None:
            raise SubscriptionClosedError(
                f"the subscription to {self.channel} has a callback",
                hint="subscribe without one to iterate",
            )
        if self._handled is not None:
            handled = self._handled
            self._handled = None
            if not self._ended:
                await self.ack(handled)
            self._changed.set()
        message = await self._next()
        if not self.options.manual_acks:
            self._handled = message
        return message

    async def next(self, within: float | None = None) -> Message:
        """The next message, as the iterator gives it.

        ``TimeoutError`` if none comes in so many seconds.
        """
        async with asyncio.timeout(within):
            try:
                return await self.__anext__()
            except StopAsyncIteration:
                raise SubscriptionClosedError(
                    f"the subscription to {self.channel} has ended"
                ) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # Handing out

    async def _feed(self, handler: Callable[[Message], Awaitable[None]]) -> None:
        while True:
            try:
                message = await self._next()
            except (StopAsyncIteration, SubscriptionClosedError):
                return
            self._busy = True
            try:
                await handler(message)
            except Exception as error:  # noqa: BLE001  # it is the user's code
                told = HandlerError(
                    f"the callback of {self.channel} failed at message {message.sequence}: "
                    f"{error!r}",
                    hint=f"the message comes again after {self.options.ack_wait} s",
                )
                told.__cause__ = error
                self._on_error(told)
            else:
                if not self.options.manual_acks and not self._ended:
                    await self.ack(message)
            finally:
                self._busy = False
                self._changed.set()

    async def _next(self) -> Message:
        if self._handed_out % YIELD_EVERY == 0:
            # A callback that never waits would starve heartbeats.
            await asyncio.sleep(0)
        while not self._queue or self._ended:
            if self._ended:
                if self._reason is not None:
                    raise SubscriptionClosedError(
                        self._reason.text, hint=self._reason.hint
                    ) from self._reason
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        message = self._queue.pop(next(iter(self._queue)))
        self._handed_out += 1
        self._changed.set()
        return message

    # Arriving

    async def _on_message(self, arrived: Arrived) -> None:
        if self._ended or not self._accepting or arrived.subject != self._inbox:
            return
        try:
            sequence, channel, reply, data, timestamp, redelivered, count = decode_msg_proto(
                arrived.payload
            )
        except WireError:
            return
        message = Message(
            channel.decode("utf-8", "replace"),
            sequence,
            data,
            timestamp,
            redelivered,
            count,
            reply,
            self,
        )
        match self._position.received(message):
            case PositionVerdict.ACK_AGAIN:
                await self._settle(sequence)
            case PositionVerdict.OTHER_CHANNEL:
                self._begin_anew()
            case PositionVerdict.HAND_OUT:
                # One that still waits here has come again because nobody got to it within the ack
                # wait: it is enough to hand it out once.
                self._queue[sequence, timestamp] = message
                self._changed.set()

    def _begin_anew(self) -> None:
        """The channel is not the one that we knew: everything in it is new to us."""
        self._position.begin_anew()
        self._owed.clear()
        inbox = self._inbox
        self._inbox = ""
        self._anew = asyncio.create_task(
            self._subscribe_anew(inbox), name=f"{self.channel} from its beginning"
        )

    async def _subscribe_anew(self, inbox: str) -> None:
        session = self._session
        assert session is not None
        await self._link.drop(inbox)
        self._take_back(session, self._ack_inbox.encode() or inbox.encode())
        try:
            await self.open(session, _ANEW_WITHIN_S, Start.first())
        except RequestError as error:
            self.end(
                SubscriptionLostError(
                    f"subscription to {self.channel}: {error.text}", hint=error.hint
                )
            )

    # Requests

    @property
    def _is_open(self) -> bool:
        """Whether the server has it in a session that is not lost."""
        session = self._session
        return session is not None and not session.lost.done() and bool(self._ack_inbox)

    async def _leave(self, how: str, within: float) -> None:
        if self._ended:
            return
        session = self._session
        ack_inbox = self._ack_inbox
        is_open = self._is_open
        self.end()
        await self._link.drop(self._inbox)
        if session is None or not is_open:
            # What the server has of it ends with its session, or is taken back.
            return
        subjects = session.subjects
        subject = subjects.sub_close_requests if how == "close" else subjects.unsub_requests
        answer = await session.ask(subject.decode(), self._withdrawal(ack_inbox.encode()), within)
        check_answer(messages.SubscriptionResponse, answer)

    def _withdrawal(self, inbox: bytes) -> bytes:
        return messages.encode(
            messages.UnsubscribeRequest(
                client_id=self._client_id,
                subject=self.options.channel.encode(),
                inbox=inbox,
                durable_name=self.options.durable.encode(),
            )
        )

    async def _settle(self, sequence: int) -> None:
        if not self._ack_inbox or not await self._send_ack(sequence):
            self._owed[sequence] = None

    async def _send_ack(self, sequence: int) -> bool:
        ack = messages.encode(
            messages.Ack(subject=self.options.channel.encode(), sequence=sequence)
        )
        return await self._link.publish(self._ack_inbox, ack)
