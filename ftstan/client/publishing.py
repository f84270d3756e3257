"""Publishing: what was sent and not acknowledged, how much of it there may be, and what is sent
again.

Every publish has a guid that begins with ``ft1.``, one of its own unless its caller names the
message: a server whose ``dedup_window`` still has it recognises a repeat by it and stores the
message once (``docs/client.md``, restarts and failovers). What was never handed to a NATS
connection that stood, because nobody served, is sent as soon as somebody serves; what was handed
over and not acknowledged is sent again only with ``republish``, under the same guid: when service
comes back, and every ``republish_after`` seconds.

An ack says its guid and nothing else, and names are used again: in another channel, or after a
timeout. So the ack of a named publish comes on a subject of its own, behind the connection's; an
ack that comes late, or again, answers no other publish.

A publish whose caller has gone (cancelled) is not sent again, and keeps its place in the window
until it is answered or its time is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import WireError
from ftstan.client.errors import (
    INVALID_PUBLISH,
    ConnectionClosedError,
    InvalidArgumentError,
    PublishRefusedError,
    PublishTimeoutError,
    PublishUnknownError,
)
from ftstan.client.link import DENIED_HINT
from ftstan.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.client.errors import ClientError
    from ftstan.client.link import Arrived, Link
    from ftstan.client.options import SessionOptions
    from ftstan.client.session import Session

#: Guids of publishes that a server with ``dedup_window`` may look at.
GUID_PREFIX: Final = "ft1."

#: After so many publishes, or messages handed out, in a row others get their turn on the event
#: loop.
YIELD_EVERY: Final = 64

_LOOK_EVERY_S = 0.1
_REPEAT_HINT = (
    "publish again if a second copy does no harm; republish=True (ftstanctl pub --republish) does "
    "so by itself"
)


@dataclass(slots=True, eq=False)
class _Publish:
    """One publish that was not answered yet. Times are those of the event loop."""

    guid: str
    own: str
    """The end of the subject that its acks come on, if that is one of its own; else they come on
    the connection's, and its guid, which nothing else has, tells them apart.
    """
    channel: str
    data: bytes
    reply: bytes
    answer: asyncio.Future[str]
    begun: float
    sent: float = 0.0
    """When it was handed to NATS; 0 if it was not yet."""
    subject: str = ""
    """Where it was sent."""
    refused_by: Session | None = None
    """The session that the server did not know when this publish came."""

    @property
    def known_by(self) -> str:
        return self.own or self.guid


class Publisher:
    """The publishes of one connection, over all its sessions.

    ``on_failed`` is given the task that looks after them, when that has ended.
    """

    def __init__(
        self,
        link: Link,
        options: SessionOptions,
        *,
        on_failed: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._link = link
        self._options = options
        self._on_failed = on_failed
        self._room = _Room(options.max_in_flight, options.max_in_flight_bytes)
        self._acks = f"_STAN.acks.{link.unique()}"
        # By what their acks are known by, in the order of their first sending.
        self._waiting: dict[str, _Publish] = {}
        self._names: set[tuple[str, str]] = set()
        """Channels and guids of the named ones of them."""
        self._count = 0
        self._session: Session | None = None
        self._resuming = asyncio.Lock()
        self._resumed: tuple[Session, int] | None = None
        """The session, and which of its times of service, for which all that had waited was sent:
        only then is anything sent past it.
        """
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._watching: asyncio.Task[None] | None = None
        self._deaf: dict[str, str] = {}
        """Subjects that this connection to NATS does not let us hear acks on, and why."""

    @property
    def in_flight(self) -> int:
        """How many publishes are not answered."""
        return len(self._waiting)

    async def start(self) -> None:
        """Listen for acks."""
        for subject in (self._acks, self._own_acks):
            await self._link.listen(subject, self._on_ack)
        self._watching = asyncio.create_task(self._watch(), name="publishes without an answer")
        self._watching.add_done_callback(self._on_failed)

    async def publish(
        self, channel: str, data: bytes, reply: bytes, name: str
    ) -> asyncio.Future[str]:
        """Send when there is room; the future is the answer: the guid, or a ``PublishError``.

        ``name``: the guid, without its prefix; empty for one of its own.
        """
        number = self._count = self._count + 1
        await self._room.take(len(data))
        guid = GUID_PREFIX + (name or self._link.unique())
        if name:
            if (channel, guid) in self._names:
                self._room.give(len(data))
                raise InvalidArgumentError(
                    f"{guid} is on its way to {channel} already", hint="wait for its ack first"
                )
            self._names.add((channel, guid))
        loop = asyncio.get_running_loop()
        entry = _Publish(
            guid,
            f".{number}" if name else "",
            channel,
            data,
            reply,
            loop.create_future(),
            loop.time(),
        )
        self._waiting[entry.known_by] = entry
        self._idle.clear()
        self._some.set()
        try:
            if self._sends_at_once:
                await self._send(entry)
            else:
                # Its caller is told now, and not when it is sent.
                self._link.check_size(self._message(entry, self._link.unique().encode()))
        except BaseException:
            self._forget(entry)
            raise
        if number % YIELD_EVERY == 0:
            # While there is room nothing above waits: without a pause a loop of publishes would
            # starve heartbeats. Behind it all, for a later one must not be sent meanwhile.
            try:
                await asyncio.sleep(0)
            except BaseException:
                entry.answer.cancel()
                raise
        return entry.answer

    async def resume(self, session: Session) -> None:
        """Somebody serves (again), ``session`` is ours: send what has waited for it, in its order,
        and what is published meanwhile behind it.
        """
        self._session = session
        async with self._resuming:
            resumed = session, session.services
            looked_at: set[str] = set()
            while more := [
                entry for entry in self._waiting.values() if entry.known_by not in looked_at
            ]:
                for entry in more:
                    looked_at.add(entry.known_by)
                    if entry.known_by in self._waiting and (
                        not entry.sent or self._may_repeat(entry)
                    ):
                        await self._send_or_end(entry)
            self._resumed = resumed

    def pause(self) -> None:
        """The session has ended; nothing is sent until the next one stands."""
        self._session = None

    def hears_again(self) -> None:
        """Another connection to NATS is being made: what the last one denied may be allowed."""
        self._deaf.clear()

    def denied(self, text: str, subject: str) -> None:
        """NATS does not let this login publish, or subscribe, there: whose publish can get no ack
        is told now. Both are in lower case.

        It is not known how many of several publishes NATS took before: none of them is said to be
        refused.
        """
        # Told is the subject as permissions have to name it.
        for acks in (self._acks, self._own_acks):
            if subject == acks.lower():
                self._deaf[acks] = text.replace(subject, acks)
        for entry in list(self._waiting.values()):
            deaf = self._deaf_to(entry)
            if entry.sent and (deaf or entry.subject.lower() == subject):
                said = deaf or text.replace(subject, entry.subject)
                self._end(entry, _not_allowed(entry, said))

    async def flush(self) -> None:
        """Wait until every publish was answered or given up."""
        await self._idle.wait()

    def stop(self, reason: ClientError) -> None:
        """Give up everything: nothing will be answered any more."""
        if self._watching is not None:
            self._watching.cancel()
        # First: nobody who waits for room shall get that of the others now.
        self._room.close(reason)
        for entry in list(self._waiting.values()):
            self._end(
                entry,
                PublishUnknownError(
                    f"not acknowledged when the connection ended: {reason.text}",
                    channel=entry.channel,
                    guid=entry.guid,
                    hint=_REPEAT_HINT,
                ),
            )

    @property
    def _own_acks(self) -> str:
        """The subjects that acks of named publishes come on."""
        return f"{self._acks}.*"

    def _deaf_to(self, entry: _Publish) -> str:
        """Why no ack of it can reach us; empty if one can."""
        return self._deaf.get(self._own_acks if entry.own else self._acks, "")

    @property
    def _sends_at_once(self) -> bool:
        """Whether somebody serves, and nothing waits to be sent before what is published now."""
        session = self._session
        return (
            session is not None and session.served and self._resumed == (session, session.services)
        )

    def _may_repeat(self, entry: _Publish) -> bool:
        return self._options.republish and not entry.answer.done()

    async def _send_or_end(self, entry: _Publish) -> None:
        """Send one that has waited. The next NATS server may carry less than the one that its
        caller had: that ends this publish, and not those behind it.
        """
        try:
            await self._send(entry)
        except InvalidArgumentError as error:
            self._end(entry, _sent_and_unknown(entry, error) if entry.sent else error)

    async def _send(self, entry: _Publish) -> None:
        """Send one if somebody serves. Raises ``InvalidArgumentError`` (too large)."""
        session = self._session
        if session is None or not session.served:
            return
        conn_id = session.conn_id if session.subjects.protocol >= 1 else b""
        message = self._message(entry, conn_id)
        entry.subject = f"{session.subjects.pub_prefix.decode()}.{entry.channel}"
        if deaf := self._deaf_to(entry):
            self._end(entry, _not_allowed(entry, deaf))
        elif await self._link.publish(entry.subject, message, self._acks + entry.own):
            entry.sent = asyncio.get_running_loop().time()

    def _message(self, entry: _Publish, conn_id: bytes) -> bytes:
        return messages.encode(
            messages.PubMsg(
                client_id=self._options.client_id.encode(),
                guid=entry.guid.encode(),
                subject=entry.channel.encode(),
                reply=entry.reply,
                data=entry.data,
                conn_id=conn_id,
            )
        )

    async def _on_ack(self, arrived: Arrived) -> None:
        if arrived.nobody:
            # It does not say which publish it was.
            if self._session is not None:
                self._session.nobody_listens()
            return
        try:
            ack = messages.parse(messages.PubAck, arrived.payload)
        except WireError:
            return
        own = arrived.subject[len(self._acks) :]
        entry = self._waiting.get(own or ack.guid.decode("utf-8", "replace"))
        if entry is None:
            return
        error = ack.error.decode("utf-8", "replace")
        if error == INVALID_PUBLISH and self._next_session_may_succeed(entry):
            return
        if error:
            self._end(entry, PublishRefusedError(error, channel=entry.channel, guid=entry.guid))
        else:
            self._end(entry, None)

    def _next_session_may_succeed(self, entry: _Publish) -> bool:
        """Keep a publish that was refused because the server does not know our session.

        The next ping says whether.
        """
        session = self._session
        if (
            not (self._options.republish and self._options.reconnect)
            or session is None
            or entry.refused_by is session
        ):
            return False
        entry.refused_by = session
        entry.sent = 0.0
        session.wait(0)
        return True

    def _end(self, entry: _Publish, error: Exception | None) -> None:
        self._forget(entry)
        if entry.answer.done():
            return
        if error is None:
            entry.answer.set_result(entry.guid)
        else:
            entry.answer.set_exception(error)

    def _forget(self, entry: _Publish) -> None:
        if self._waiting.pop(entry.known_by, None) is not None:
            self._names.discard((entry.channel, entry.guid))
            self._room.give(len(entry.data))
        if not self._waiting:
            self._idle.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(_LOOK_EVERY_S)
            now = loop.time()
            self._give_up(now)
            if self._options.republish:
                for entry in list(self._waiting.values()):
                    if (
                        entry.sent
                        and now - entry.sent >= self._options.republish_after
                        and self._may_repeat(entry)
                    ):
                        await self._send_or_end(entry)

    def _give_up(self, now: float) -> None:
        timeout = self._options.ack_timeout
        if timeout is None:
            return
        # The oldest come first.
        for entry in list(self._waiting.values()):
            if now - entry.begun < timeout:
                break
            what = (
                "sent, and not acknowledged" if entry.sent else "nobody served, so it was not sent"
            )
            self._end(
                entry,
                PublishTimeoutError(
                    f"publish to {entry.channel}: {what} within {timeout:g} s",
                    channel=entry.channel,
                    guid=entry.guid,
                    hint=_REPEAT_HINT,
                ),
            )


def _not_allowed(entry: _Publish, text: str) -> PublishUnknownError:
    return PublishUnknownError(
        f"NATS refuses: {text}",
        channel=entry.channel,
        guid=entry.guid,
        hint=DENIED_HINT,
    )


def _sent_and_unknown(entry: _Publish, error: InvalidArgumentError) -> PublishUnknownError:
    return PublishUnknownError(
        f"sent, and not acknowledged; cannot be sent again: {error.text}",
        channel=entry.channel,
        guid=entry.guid,
        hint=error.hint,
    )


class _Room:
    """How many messages, and bytes of them, may be on their way.

    Who waits is served in order of arrival.
    """

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = self._all = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waking = 0
        """How many have got room and do not know it yet: nobody takes any before they go on."""
        self._closed: ClientError | None = None

    async def take(self, size: int) -> None:
        """Wait for room for one message. Raises what ``close`` was given."""
        self._check_open()
        if not self._waiting and not self._waking and self._fits(size):
            self._count = self._count - 1
            self._size = self._size - size
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (size, future)
        self._waiting.append(item)
        try:
            await future
            # It may have been closed since there was room.
            self._check_open()
        except BaseException:
            if item in self._waiting:
                self._waiting.remove(item)
                # Whoever stood behind a message that did not fit may fit now.
                self._serve()
            elif not future.cancelled() and future.exception() is None:
                self._waking -= 1
                self.give(size)
            raise
        self._waking -= 1
        # Whoever came meanwhile was not looked at.
        self._serve()

    def give(self, size: int) -> None:
        """A message was answered."""
        self._count = self._count + 1
        self._size = self._size + size
        self._serve()

    def close(self, reason: ClientError) -> None:
        """Refuse everybody."""
        self._closed = reason
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ConnectionClosedError(reason.text, hint=reason.hint))

    def _check_open(self) -> None:
        if self._closed is not None:
            raise ConnectionClosedError(self._closed.text, hint=self._closed.hint)

    def _fits(self, size: int) -> bool:
        # One message alone always fits, however large.
        return self._count > 0 and (self._size >= size or self._size == self._all)

    def _serve(self) -> None:
        while self._waiting:
            size, future = self._waiting[0]
            if not future.done():
                if not self._fits(size):
                    return
                self._count = self._count - 1
                self._size = self._size - size
                self._waking += 1
                future.set_result(None)
            self._waiting.popleft()
