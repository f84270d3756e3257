"""One session: a client id that is registered with the streaming server, its heartbeats and its
pings.

A session begins with an accepted connect request and ends when the server says that it does not
know it any more, when no ping has been answered for ``ping_interval * (ping_max_out + 1)`` seconds,
or when it is closed. It is bound to neither a NATS connection nor a server process: both may go and
come back meanwhile (``docs/clients.md``).

While it lasts it is *served* or it waits: a NATS connection that is lost, or an answer that nobody
listens, make it wait and ping at short intervals; the first good answer to a ping makes it served
again. So what is sent while a group changes its active member is kept instead of being lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Final, TypeVar

from ftstan.base.errors import WireError
from ftstan.client.errors import (
    CLIENT_ID_TAKEN,
    ClientIdTakenError,
    ConnectionLostError,
    ConnectRefusedError,
    ReplacedError,
    RequestRefusedError,
    RequestTimeoutError,
)
from ftstan.client.link import NobodyError
from ftstan.client.withdrawals import Withdrawals
from ftstan.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.client.link import Arrived, Late, Link
    from ftstan.client.options import SessionOptions

#: Between two tries of what reached nobody, and between two pings while nobody serves; seconds.
AGAIN_S: Final = 0.2
#: A connect or subscribe request that nobody has answered for so long is sent again: its server may
#: have died with it.
SILENT_S: Final = 2.0

_TAKE_BACK_WITHIN_S = 10.0

A = TypeVar("A", messages.CloseResponse, messages.SubscriptionResponse)


class Session:
    """A registered session.

    ``on_served()`` is called when it is served again, ``on_waiting()`` when it is not.
    """

    def __init__(
        self,
        link: Link,
        options: SessionOptions,
        *,
        on_served: Callable[[], None],
        on_waiting: Callable[[], None],
    ) -> None:
        self._link = link
        self._options = options
        self._on_served = on_served
        self._on_waiting = on_waiting
        self._heartbeat_inbox = link.inbox()
        self._ping_inbox = link.inbox()
        self.conn_id = link.unique().encode()
        self.subjects = messages.ConnectResponse()
        self.served = False
        self.services = 0
        """How often it has become served."""
        self._registered = False
        self.lost: asyncio.Future[ConnectionLostError] = asyncio.get_running_loop().create_future()
        self._unanswered = 0
        self._next_ping = 0.0
        self._look = asyncio.Event()
        self.withdrawals = Withdrawals(self._take_back)
        self._pinging: asyncio.Task[None] | None = None

    async def open(self, within: float) -> None:
        """Register, trying again while nobody answers; seconds.

        An owner can die between taking a request and answering it. Its successor may know us then,
        from the store: ftstan answers the very same request again, and the original finds out by a
        heartbeat whether that client is alive, which it is not before it has an answer.

        Raises ``ConnectRefusedError``, ``ClientIdTakenError``, ``RequestTimeoutError`` (also if
        NATS is away).
        """
        options = self._options
        await self._link.listen(self._heartbeat_inbox, self._on_heartbeat)
        await self._link.listen(self._ping_inbox, self._on_ping_answer)
        request = messages.ConnectRequest(
            client_id=options.client_id.encode(),
            heartbeat_inbox=self._heartbeat_inbox.encode(),
            protocol=messages.PROTOCOL,
            conn_id=self.conn_id,
            ping_interval=options.ping_interval,
            ping_max_out=options.ping_max_out,
        )
        try:
            self.subjects = await self._register(messages.encode(request), within)
        except BaseException:
            await self.leave()
            raise
        self._registered = True
        self._begin_service()
        if self.subjects.protocol >= 1 and self.subjects.ping_interval > 0:
            self._pinging = asyncio.create_task(self._ping(), name=f"pings of {options.client_id}")
            self._pinging.add_done_callback(self._ping_ended)
        else:
            await self._link.drop(self._ping_inbox)

    async def _register(self, request: bytes, within: float) -> messages.ConnectResponse:
        loop = asyncio.get_running_loop()
        began = loop.time()
        taken_at = 0.0
        while True:
            left = max(began + within - loop.time(), 0.001)
            try:
                return self._accepted(
                    await self.ask(self._options.discovery, request, left, SILENT_S)
                )
            except ClientIdTakenError:
                # Perhaps by ourselves: a request of ours that was not answered may have been
                # carried out. Then the server finds out soon that nobody answers its heartbeats.
                now = loop.time()
                taken_at = taken_at or now
                if (
                    now - began < SILENT_S
                    or now - taken_at > SILENT_S
                    or now + AGAIN_S >= began + within
                ):
                    raise
            await asyncio.sleep(AGAIN_S)

    async def ask(
        self,
        subject: str,
        payload: bytes,
        within: float,
        again: float = math.inf,
        late: Late | None = None,
    ) -> bytes:
        """Ask, again while it reaches nobody, and give the answer; seconds.

        Raises ``RequestTimeoutError``.

        ``again``, ``late``: as of ``Link.request``; the former for what does no harm if it is asked
        twice.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while True:
            try:
                return await self._link.request(
                    subject, payload, max(end - loop.time(), 0.001), again, late
                )
            except NobodyError as error:
                if loop.time() + AGAIN_S >= end:
                    raise RequestTimeoutError(
                        f"{error.text}, for {within:.3g} s",
                        hint="is a streaming server active, and is this its cluster id? "
                        "`ftstanctl ft status` shows it",
                    ) from None
            await asyncio.sleep(AGAIN_S)

    async def close(self, within: float) -> None:
        """Tell the server. Raises ``RequestRefusedError``, ``RequestTimeoutError``."""
        request = messages.encode(messages.CloseRequest(client_id=self._options.client_id.encode()))
        answer = await self.ask(self.subjects.close_requests.decode(), request, within)
        check_answer(messages.CloseResponse, answer)

    async def _take_back(self, request: bytes) -> None:
        subject = self.subjects.sub_close_requests.decode()
        await self.ask(subject, request, _TAKE_BACK_WITHIN_S, SILENT_S)

    async def leave(self) -> None:
        """Stop to ping and to answer heartbeats: for everybody else this session is dead."""
        self.withdrawals.stop()
        if self._pinging is not None:
            self._pinging.cancel()
        await self._link.drop(self._heartbeat_inbox)
        await self._link.drop(self._ping_inbox)

    def link_up(self) -> None:
        """NATS is there again: find out whether we are still known."""
        if self._pinging is None:
            self._serve()
        else:
            self.wait(0)

    def link_down(self) -> None:
        """NATS is away."""
        self.wait(AGAIN_S)

    def wait(self, ping_in: float) -> None:
        """Nobody serves at the moment, or it is not known: ping after ``ping_in`` seconds, and
        until somebody does.
        """
        if self.served:
            self.served = False
            self._on_waiting()
        self._next_ping = min(self._next_ping, asyncio.get_running_loop().time() + ping_in)
        self._look.set()

    def nobody_listens(self) -> None:
        """NATS says that what was sent to the server reached nobody."""
        if self._pinging is not None:
            self.wait(AGAIN_S)

    def _accepted(self, answer: bytes) -> messages.ConnectResponse:
        try:
            response = messages.parse(messages.ConnectResponse, answer)
        except WireError as error:
            raise ConnectRefusedError(
                f"the answer to the connect request is not understood: {error.text}",
                hint="is something else listening on the discovery subject?",
            ) from error
        error_text = response.error.decode("utf-8", "replace")
        if error_text == CLIENT_ID_TAKEN:
            raise ClientIdTakenError(error_text)
        if error_text:
            raise ConnectRefusedError(error_text)
        return response

    async def _ping(self) -> None:
        interval = self.subjects.ping_interval
        max_out = self.subjects.ping_max_out
        loop = asyncio.get_running_loop()
        subject = self.subjects.ping_requests.decode()
        payload = messages.encode(messages.Ping(conn_id=self.conn_id))
        due = self._next_ping = loop.time() + interval
        while True:
            while (left := self._next_ping - loop.time()) > 0:
                self._look.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._look.wait()
            # While nobody serves there are more pings; only one in each interval counts.
            if loop.time() >= due:
                due = loop.time() + interval
                self._unanswered += 1
                if self._unanswered > max_out:
                    break
            await self._link.publish(subject, payload, self._ping_inbox)
            self._next_ping = due if self.served else min(due, loop.time() + AGAIN_S)
        self._lose(
            ConnectionLostError(
                "stan: connection lost due to PING failure: no answer for "
                f"{interval * (max_out + 1)} s",
                hint="is a streaming server active? `ftstanctl ft status` shows it",
            )
        )

    def _ping_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nobody would find out any more whether the session is known.
            lost = ConnectionLostError(f"pings have failed: {error!r}")
            lost.__cause__ = error
            self._lose(lost)

    async def _on_heartbeat(self, arrived: Arrived) -> None:
        if arrived.reply and self._registered:
            await self._link.publish(arrived.reply, b"")

    async def _on_ping_answer(self, arrived: Arrived) -> None:
        if arrived.nobody:
            self.nobody_listens()
            return
        try:
            error = messages.parse(messages.PingResponse, arrived.payload).error
        except WireError:
            return
        if error:
            self._lose(ReplacedError(error.decode("utf-8", "replace")))
            return
        self._unanswered = 0
        self._serve()

    def _serve(self) -> None:
        if not self.served:
            self._begin_service()
            self._on_served()

    def _begin_service(self) -> None:
        self.served = True
        self.services += 1

    def _lose(self, reason: ConnectionLostError) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)


def check_answer(cls: type[A], payload: bytes) -> A:
    """The answer to a request.

    Raises ``RequestRefusedError`` if it is an error, or not understood.
    """
    try:
        answer = messages.parse(cls, payload)
    except WireError as error:
        raise RequestRefusedError(f"the answer is not understood: {error.text}") from error
    if answer.error:
        raise RequestRefusedError(answer.error.decode("utf-8", "replace"))
    return answer
