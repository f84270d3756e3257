"""A connection to a streaming server that outlives sessions: what ``connect`` gives.

It has one session at a time. When that one is lost, ``on_connection_lost`` is told, and unless
``reconnect`` is off the connection makes another one under the same client id, makes its
subscriptions again and sends what was never sent. It gives up only when another living process has
taken the client id.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from ftstan.client.errors import (
    DUPLICATE_DURABLE,
    ClientError,
    ClientIdTakenError,
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    ConnectTimeoutError,
    DrainTimeoutError,
    InvalidArgumentError,
    NotAllowedError,
    ReplacedError,
    RequestError,
    RequestRefusedError,
    RequestTimeoutError,
    SubscriptionLostError,
)
from ftstan.client.link import Link
from ftstan.client.options import SessionOptions, Start, SubscribeOptions, check_channel, check_name
from ftstan.client.publishing import Publisher
from ftstan.client.session import AGAIN_S, SILENT_S, Session
from ftstan.client.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from ftstan.client.message import Message
    from ftstan.client.options import NatsLogin

_TRIES_WHILE_TAKEN = 5
_NEXT_TRY_S = 1.0
#: So many subscriptions are made again side by side.
_SIDE_BY_SIDE = 256


class Connection:
    """Made by ``ftstan.client.connect``.

    As a context manager it waits for its publishes and closes in the end.
    """

    def __init__(
        self, servers: Sequence[str], login: NatsLogin, options: SessionOptions, name: str
    ) -> None:
        self._options = options
        self._link = Link(
            servers,
            login,
            name=name,
            on_up=self._on_link_up,
            on_down=self._on_link_down,
            on_denied=self._on_denied,
        )
        self._publisher = Publisher(self._link, options, on_failed=self._end_if_failed)
        self._session: Session | None = None
        self._ready = asyncio.Event()
        self._subscriptions: dict[Subscription, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming: set[asyncio.Task[None]] = set()
        self._supervisor: asyncio.Task[None] | None = None
        self._over: ClientError | None = None

    @property
    def client_id(self) -> str:
        """The client id."""
        return self._options.client_id

    @property
    def cluster_id(self) -> str:
        """The cluster id."""
        return self._options.cluster_id

    @property
    def connected(self) -> bool:
        """Whether a server has our session and answers, as far as is known."""
        return self._session is not None and self._session.served and self._link.up

    @property
    def closed(self) -> bool:
        """Whether it is over for good."""
        return self._over is not None

    @property
    def nats_server(self) -> str:
        """``host:port`` of the NATS server in use; empty without one."""
        return self._link.server

    @property
    def in_flight(self) -> int:
        """How many publishes are not acknowledged yet."""
        return self._publisher.in_flight

    async def open(self) -> None:
        """Make the first session.

        Raises ``ConnectError`` and what is below it; nothing is left behind then.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.timeout
        try:
            await self._link.open(self._options.timeout)
            session = self._new_session()
            try:
                await session.open(max(end - loop.time(), AGAIN_S))
            except RequestTimeoutError as error:
                raise ConnectTimeoutError(
                    f"stan: connect request timeout: {error.text}", hint=error.hint
                ) from error
            await self._publisher.start()
        except BaseException:
            await self._link.close()
            raise
        await self._serve(session)
        self._supervisor = asyncio.create_task(
            self._supervise(), name=f"session of {self.client_id}"
        )
        self._supervisor.add_done_callback(self._end_if_failed)

    # Publishing

    async def publish(
        self, channel: str, data: bytes, *, reply: bytes = b"", name: str = ""
    ) -> str:
        """Publish and wait until it is stored; gives the guid.

        ``data``: at most what the NATS servers carry (1 MiB by default) less some bytes of
        wrapping; ``reply`` is stored with it. ``name``: what tells this message from every other
        that was ever published to the channel; the guid is made of it, so a server with
        ``-dedup_window`` stores one name once, whoever publishes it.

        Waits for room first, see ``max_in_flight``. Raises ``PublishRefusedError``,
        ``PublishTimeoutError``, ``InvalidArgumentError``, ``ConnectionClosedError``. Cancelled: the
        message may be stored all the same.
        """
        return await (await self.publish_async(channel, data, reply=reply, name=name))

    async def publish_async(
        self, channel: str, data: bytes, *, reply: bytes = b"", name: str = ""
    ) -> asyncio.Future[str]:
        """Publish, and wait only for room.

        The future that it gives is what ``publish`` would have given or raised.

        So many publishes can be under way at once. They are stored in the order of the calls,
        except those that had to be sent again.
        """
        self._check_open()
        check_channel(channel)
        check_name(name)
        return await self._publisher.publish(channel, data, reply, name)

    async def flush(self) -> None:
        """Wait until every publish was acknowledged, refused, or given up after ``ack_timeout``."""
        await self._publisher.flush()

    # Subscribing

    async def subscribe(
        self,
        channel: str,
        callback: Callable[[Message], Awaitable[None]] | None = None,
        *,
        start: Start | None = None,
        durable: str = "",
        queue: str = "",
        max_in_flight: int = 1024,
        ack_wait: int = 30,
        manual_acks: bool = False,
    ) -> Subscription:
        """Subscribe to a channel.

        Gives an asynchronous iterator, or feeds ``callback``, a coroutine function.

        ``start``: where it begins, by default at what is published from now on; a durable or a
        group that exists goes on where it was. ``durable``: the name under which the server keeps
        the position of this client id; with ``queue`` it keeps that of the whole group. ``queue``:
        the group to which each message is given once. ``max_in_flight``: how many messages the
        server sends before it waits for acks; ``ack_wait``: whole seconds until it sends a message
        again; ``manual_acks``: nothing is acknowledged but by ``Message.ack``.

        Raises ``InvalidArgumentError``, ``RequestRefusedError``, ``RequestTimeoutError``,
        ``ConnectionClosedError``.
        """
        options = SubscribeOptions(
            channel, queue, durable, start or Start.new(), max_in_flight, ack_wait, manual_acks
        )
        if callback is not None and not inspect.iscoroutinefunction(callback):
            raise InvalidArgumentError(
                f"the callback of {channel} is no coroutine function",
                hint="define it with `async def`; put blocking work into asyncio.to_thread",
            )
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.request_timeout
        session = await self._current(self._options.request_timeout)
        subscription = Subscription(
            self._link,
            options,
            self.client_id,
            callback,
            on_error=self._report,
            on_end=self._forget,
        )
        if subscription.feeding is not None:
            self._keep(subscription.feeding)
        try:
            while not await self._open_in(session, subscription, end - loop.time()):
                session = await self._current(end - loop.time())
            # The answer may have come right before the end, which has not met this subscription.
            self._check_open()
        except BaseException:
            subscription.end()
            raise
        self._subscriptions[subscription] = None
        if self._session is not session and self._session is not None:
            # The session was lost while the answer was on its way.
            await asyncio.wait([self._begin_resuming(subscription, self._session)])
        return subscription

    # Ending

    async def close(self) -> None:
        """Close the session and everything of it. Closing twice does nothing.

        Durables keep their position; publishes without an answer end with ``PublishUnknownError``
        (see ``flush``). Raises ``RequestRefusedError`` or ``RequestTimeoutError`` if the server did
        not confirm; it is closed then, too.
        """
        if self._over is not None:
            return
        session = self._session
        failure: RequestError | None = None
        if session is not None and not session.lost.done():
            await self._stop_supervising()
            for subscription in list(self._subscriptions):
                subscription.end()
            try:
                await session.close(self._options.request_timeout if self._link.up else AGAIN_S)
            except RequestError as error:
                failure = error
            finally:
                await self._finish(ConnectionClosedError("the connection was closed"))
        else:
            await self._finish(ConnectionClosedError("the connection was closed"))
        if failure is not None:
            raise failure

    async def drain(self, within: float = 30.0) -> None:
        """Handle what has come, acknowledge it, wait for the answers to what was published, then
        close; seconds.

        Raises ``DrainTimeoutError`` when not everything was done in time (it is closed then, too),
        and as ``close``.
        """
        late: ClientError | None = None
        results = await asyncio.gather(
            self._flush_within(within),
            *(subscription.drain(within) for subscription in list(self._subscriptions)),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, ClientError):
                late = late or result
            elif isinstance(result, BaseException):
                await self.close()
                raise result
        await self.close()
        if late is not None:
            raise late

    async def _flush_within(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await self.flush()
        except TimeoutError:
            raise DrainTimeoutError(
                f"{self.in_flight} publishes were not acknowledged within {within:g} s",
                hint="it is not known whether they were stored",
            ) from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and not self.closed:
            await self.flush()
        await self.close()

    # Sessions

    def _new_session(self) -> Session:
        return Session(
            self._link, self._options, on_served=self._on_served, on_waiting=lambda: None
        )

    async def _serve(self, session: Session) -> None:
        self._session = session
        self._ready.set()
        await self._publisher.resume(session)

    async def _open_in(self, session: Session, subscription: Subscription, within: float) -> bool:
        """Open a subscription in a session; seconds. Returns false if the session was lost before
        it answered: its request must not be carried out in the name of the next one, which has the
        same client id.

        Raises as ``Subscription.open``.
        """
        opening = asyncio.create_task(
            subscription.open(session, max(within, AGAIN_S)), name=f"{subscription.channel}"
        )
        try:
            ends: set[asyncio.Future[Any]] = {opening, session.lost}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_open = opening.done()
            opening.cancel()
            await asyncio.wait([opening])
        if is_open:
            opening.result()
        return is_open

    async def _current(self, within: float) -> Session:
        """The session, waiting for one; seconds.

        Raises ``RequestTimeoutError``, ``ConnectionClosedError``.
        """
        self._check_open()
        try:
            async with asyncio.timeout(max(within, 0)):
                await self._ready.wait()
        except TimeoutError:
            raise RequestTimeoutError(
                f"no session within {self._options.request_timeout:g} s",
                hint="the client is reconnecting",
            ) from None
        self._check_open()
        assert self._session is not None
        return self._session

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            session = self._session
            assert session is not None
            made = loop.time()
            reason = await session.lost
            self._ready.clear()
            self._publisher.pause()
            await self._stop_resuming()
            await session.leave()
            if self._options.on_connection_lost is not None:
                self._tell(self._options.on_connection_lost(reason))
            if not self._options.reconnect:
                self._spawn(self._finish(reason))
                return
            # Two processes that take one client id from each other must not do so as fast as they
            # can.
            await asyncio.sleep(max(made + _NEXT_TRY_S - loop.time(), 0))
            try:
                renewed = await self._renew()
            except ConnectError as error:
                taken = ReplacedError(f"{reason.text}; connecting again: {error.text}")
                if self._options.on_connection_lost is not None:
                    self._tell(self._options.on_connection_lost(taken))
                self._spawn(self._finish(taken))
                return
            # From here on a close ends this one; nothing is sent by it until its subscriptions
            # stand, but for those that nobody answers.
            self._session = renewed
            await self._resume_all(renewed)
            await self._serve(renewed)
            if self._options.on_reconnected is not None:
                self._tell(self._options.on_reconnected())

    async def _renew(self) -> Session:
        """A new session under our client id, however long it takes.

        Raises ``ClientIdTakenError``.
        """
        taken = 0
        while True:
            session = self._new_session()
            try:
                await session.open(self._options.timeout)
            except ClientIdTakenError:
                # A request of ours that was not answered may be what it is taken by, or a probe of
                # it under way.
                taken += 1
                if taken == _TRIES_WHILE_TAKEN:
                    raise
            except (ConnectError, RequestTimeoutError) as error:
                self._report(error)
            else:
                return session
            await asyncio.sleep(_NEXT_TRY_S)

    async def _resume_all(self, session: Session) -> None:
        """Make all subscriptions again.

        Those that nobody answers go on by themselves meanwhile: the partition of one may be down,
        and the others' is not.
        """
        left = deque(self._subscriptions)
        running: set[asyncio.Task[None]] = set()
        while left or running:
            while left and len(running) < _SIDE_BY_SIDE:
                running.add(self._begin_resuming(left.popleft(), session))
            done, running = await asyncio.wait(
                running, timeout=SILENT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                running = set()

    def _begin_resuming(self, subscription: Subscription, session: Session) -> asyncio.Task[None]:
        task = asyncio.create_task(
            self._resume(subscription, session), name=f"{subscription.channel} once more"
        )
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)
        task.add_done_callback(self._end_if_failed)
        return task

    async def _stop_resuming(self) -> None:
        tasks = list(self._resuming)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _resume(self, subscription: Subscription, session: Session) -> None:
        """Make a subscription again, as long as that can succeed."""
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        while not subscription.closed and not session.lost.done():
            try:
                await subscription.resume(session, self._options.request_timeout)
            except RequestTimeoutError as error:
                self._report(error)
            except (RequestRefusedError, NotAllowedError) as error:
                # The former session is closed before its durables are offline, and a request may
                # have been carried out whose answer was lost; anything else will not change.
                if error.text != DUPLICATE_DURABLE:
                    lost = SubscriptionLostError(
                        f"subscription to {subscription.channel}: {error.text}", hint=error.hint
                    )
                    self._report(lost)
                    subscription.end(lost)
                    return
                if loop.time() - told_at >= self._options.request_timeout:
                    told_at = loop.time()
                    self._report(error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    def _on_link_up(self) -> None:
        if self._session is not None:
            self._session.link_up()

    def _on_denied(self, text: str, subject: str) -> None:
        self._publisher.denied(text, subject)

    def _on_link_down(self) -> None:
        self._publisher.hears_again()
        if self._session is not None:
            self._session.link_down()

    def _on_served(self) -> None:
        session = self._session
        if session is not None and self._ready.is_set():
            going_on = asyncio.create_task(self._go_on(session))
            going_on.add_done_callback(self._end_if_failed)
            self._keep(going_on)

    async def _go_on(self, session: Session) -> None:
        for subscription in list(self._subscriptions):
            await subscription.send_owed_acks()
        if not session.lost.done():
            await self._publisher.resume(session)

    # Ends and errors

    async def _stop_supervising(self) -> None:
        task = self._supervisor
        self._supervisor = None
        while task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task], timeout=1)
        await self._stop_resuming()

    async def _finish(self, reason: ClientError) -> None:
        """Everything ends for good."""
        if self._over is not None:
            return
        self._over = reason
        await self._stop_supervising()
        for subscription in list(self._subscriptions):
            subscription.end(reason if isinstance(reason, ConnectionLostError) else None)
        self._publisher.stop(reason)
        if self._session is not None:
            await self._session.leave()
        await self._link.close()
        self._ready.set()
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    def _check_open(self) -> None:
        if self._over is not None:
            raise ConnectionClosedError(self._over.text, hint=self._over.hint) from self._over

    def _report(self, error: ClientError) -> None:
        if self._options.on_error is not None:
            self._tell(self._options.on_error(error))
        else:
            context = {
                "message": f"{error.text}" + (f" ({error.hint})" if error.hint else ""),
                "exception": error,
            }
            asyncio.get_running_loop().call_exception_handler(context)

    def _tell(self, told: Awaitable[None]) -> None:
        """Run a callback of the user; what it raises goes to the loop's handler of exceptions."""

        async def run() -> None:
            try:
                await told
            except Exception as error:  # noqa: BLE001  # it is the user's code
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a callback of the connection failed", "exception": error}
                )

        self._spawn(run())

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        self._keep(asyncio.create_task(work))

    def _end_if_failed(self, task: asyncio.Task[None]) -> None:
        """One of the tasks without which nothing goes on has ended: everything ends with it if it
        has failed, and its user is told.
        """
        if task.cancelled() or (error := task.exception()) is None or self._over is not None:
            return
        asyncio.get_running_loop().call_exception_handler(
            {"message": "the streaming client has failed", "exception": error, "task": task}
        )
        reason = ConnectionLostError(
            f"the client has failed: {error!r}",
            hint="connect again; this is a defect of the client, please report it",
        )
        reason.__cause__ = error
        if self._options.on_connection_lost is not None:
            self._tell(self._options.on_connection_lost(reason))
        self._spawn(self._finish(reason))

    def _keep(self, task: asyncio.Task[None]) -> None:
        """It ends with the connection."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
