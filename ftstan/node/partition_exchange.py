"""How servers tell each other which channels they serve, so that none is served twice.

A server asks when it starts to serve, when NATS names a server that it did not know of, and when
its connection comes back; it answers whoever asks. On the control thread, beside recovery, on a
connection of its own; a standby has none (``docs/compat/partitioning.md``, "The exchange").
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from ftstan.base import log
from ftstan.base.errors import ConflictError, FtstanError, NatsError, WireError
from ftstan.config.units import SECOND
from ftstan.nats import tasks
from ftstan.nats.control import Control
from ftstan.stores.protos import decode_client, encode_client
from ftstan.wire import partition as wire
from ftstan.wire.patterns import PatternSet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from ftstan.base.clock import Clock
    from ftstan.config.options import LinkOptions, ServerOptions
    from ftstan.stores.interface import ClientInfo
    from ftstan.wire.partition import Sender

#: A NATS server that has just come has to spread its subscriptions first.
SPREAD_S: Final = 0.5
#: How long a start waits until its list is sent.
SEND_WITHIN_S: Final = 4.0
#: How long one message of others may take.
_WORK_WITHIN_S: Final = 2.0
#: Messages of others that wait for their turn; what comes beyond that is dropped.
_MOST_WORK: Final = 1024
#: Bytes of a client's registration that others are told; an inbox so long is none of an official
#: client.
_LONGEST_CLIENT: Final = 1 << 12
#: Clients of others that are registered in one go: publishers must not wait for thousands.
_LEARN_AT_ONCE: Final = 128
_CANCEL_AGAIN_S: Final = 1.0
#: Ends the reply subject of a question that answers one: it is answered, and asked nothing back.
_BACK: Final = ".back"


class Exchange:
    """One server's part in it, from ``start`` to ``close``.

    ``names``: what this server serves; ``presented``: its login and TLS. ``on_conflict(error,
    late)`` is called once, with ``ConflictError`` or another ``FtstanError``: this server must end;
    ``late``: it was let go on by ``settled`` before. ``known`` gives the clients of this server;
    ``learn`` takes those of another, not too many at a time.
    """

    def __init__(
        self,
        options: ServerOptions,
        urls: Sequence[str],
        sender: Sender,
        names: Sequence[bytes],
        *,
        presented: LinkOptions,
        inbox: str,
        clock: Clock,
        on_conflict: Callable[[FtstanError, bool], None],
        known: Callable[[], Awaitable[list[ClientInfo]]],
        learn: Callable[[list[ClientInfo]], Awaitable[None]],
    ) -> None:
        self._control = Control(
            urls,
            cluster_id=options.cluster_id,
            options=presented,
            on_disconnect=self._down,
            on_reconnect=self._up,
            on_discovered=self._discovered,
            role="pc",
        )
        self._subject = wire.subject(options.cluster_id)
        self._sender = sender
        self._names = tuple(names)
        self._set = PatternSet(names)
        self._inbox = inbox
        self._clock = clock
        self._wait_s = options.partition_wait / SECOND
        self._on_conflict = on_conflict
        self._known = known
        self._learn = learn
        self._clients_subject = wire.clients_subject(options.cluster_id)
        self._clients_inbox = f"{inbox}.clients"
        self._back_inbox = f"{self._clients_inbox}{_BACK}"
        self._work: asyncio.Queue[Coroutine[None, None, None]] = asyncio.Queue(_MOST_WORK)
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = False
        self._asking_back = False
        self._sent = asyncio.Event()
        self._sent_at = 0.0
        self._problem: FtstanError | None = None
        self._ended = asyncio.Event()
        """There is a problem."""
        self._settled = False

    # ---- life
    # ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to ask and to answer. Returns at once."""
        await self._control.serve(self._subject, self._on_request)
        await self._control.subscribe(self._inbox, self._on_reply)
        await self._control.serve(self._clients_subject, self._on_clients_wanted)
        await self._control.subscribe(self._clients_inbox, self._on_clients)
        await self._control.subscribe(self._back_inbox, self._on_clients)
        await self._control.start()
        self._spawn(self._do_work())
        self._spawn(self._ask_first())

    @property
    def control(self) -> Control:
        """The connection, for what else partitions say to each other."""
        return self._control

    @property
    def inbox(self) -> str:
        """The subject of answers to us; what is below it but ``clients`` is free."""
        return self._inbox

    def change(self, names: Sequence[bytes]) -> None:
        """Another list from now on: a channel has moved, and its other server knows that."""
        self._names = tuple(names)
        self._set = PatternSet(names)

    def renew(self, presented: LinkOptions) -> None:
        """Present this login and TLS from the next connection on."""
        self._control.renew(presented)

    async def settled(self, *, patient: bool) -> None:
        """Return when nobody has objected in time: publishes may be taken.

        Raises ``FtstanError`` if somebody has.

        Time runs from when the list was sent. A list that cannot be sent is an error, or if
        ``patient`` a warning: it is sent as soon as NATS can be reached.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEND_WITHIN_S):
                await self._sent.wait()
        if not self._sent.is_set():
            error = NatsError(
                "unable to send channels list: nats: timeout",
                hint="check the connection to the NATS server",
            )
            if not patient:
                raise error
            log.stream.warning(f"{error.text}: other partitions have not been asked yet")
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    max(self._sent_at + self._wait_s - self._clock.mono(), 0.0)
                ):
                    await self._ended.wait()
        if self._problem is not None:
            raise self._problem
        self._settled = True

    async def close(self) -> None:
        """Neither ask nor answer any more."""
        for task in list(self._tasks):
            await tasks.end(task, _CANCEL_AGAIN_S)
        while not self._work.empty():
            self._work.get_nowait().close()
        await self._control.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = tasks.spawn(work, "partitioning", self._end)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- asking
    # ----------------------------------------------------------------------------------------------

    async def _ask_first(self) -> None:
        await self._control.established.wait()
        try:
            await self._send()
        except NatsError as error:
            # The connection comes back, and with it the question.
            self._complain(f"unable to send channels list: {error.text}")
        except FtstanError as error:
            self._end(error)

    def _ask_again(self) -> None:
        if not self._asking:
            self._asking = True
            self._spawn(self._ask_later())

    async def _ask_later(self) -> None:
        await asyncio.sleep(SPREAD_S)
        self._asking = False
        with contextlib.suppress(NatsError):
            await self._send()
            if self._settled:
                await self.ask_for_clients()

    async def _send(self) -> None:
        for payload in wire.requests(self._sender, self._names, self._control.max_payload):
            await self._control.publish(self._subject, payload, self._inbox)
        await self._control.flush()
        if not self._sent.is_set():
            self._sent_at = self._clock.mono()
            self._sent.set()

    def _on_reply(self, _subject: str, data: bytes) -> None:
        try:
            sender, offender = wire.decode(data)
        except WireError as error:
            text = f"unable to decode partitioning response: {error.text}"
            if self._settled:
                # Whoever sent it, it names no conflict, and a server that serves is worth more than
                # a bad message.
                self._complain(text)
            else:
                self._end(
                    NatsError(text, hint="see what else answers on the subjects of this cluster id")
                )
            return
        if offender and not sender.is_same_partition(self._sender):
            self._end(_conflict(offender, sender))

    def _end(self, error: FtstanError) -> None:
        if self._problem is None:
            self._problem = error
            self._ended.set()
            self._on_conflict(error, self._settled)

    # ---- answering
    # ----------------------------------------------------------------------------------------------

    def _on_request(self, data: bytes, reply: str) -> None:
        if data:
            self._put(self._answer_to(data, reply))

    async def _answer_to(self, data: bytes, reply: str) -> None:
        # In a thread: a list can be as long as a message, and heartbeats go out from this one.
        answer = await asyncio.to_thread(self._answer, data)
        if answer is None:
            return
        try:
            await self._control.publish(reply, answer)
        except NatsError as error:
            self._complain(f"Error sending reply to partitioning request: {error.text}")

    def _answer(self, data: bytes) -> bytes | None:
        """The answer to a request; ``None`` for our own. Raises ``WireError``."""
        sender, listed = wire.decode(data)
        if sender.server_id == self._sender.server_id:
            return None
        names = wire.decode_names(listed)
        same = sender.is_same_partition(self._sender)
        return wire.reply(self._sender, None if same else wire.offender(self._set, names))

    def _put(self, work: Coroutine[None, None, None]) -> None:
        """Have it done when what came before is done."""
        try:
            self._work.put_nowait(work)
        except asyncio.QueueFull:
            work.close()
            self._complain("Error processing partitioning request: too many at once")

    async def _do_work(self) -> None:
        while True:
            work = await self._work.get()
            try:
                async with asyncio.timeout(_WORK_WITHIN_S):
                    await work
            except FtstanError as error:
                self._complain(f"Error processing partitioning request: {error.text}")
            except TimeoutError:
                # Storage hangs, and with it whoever knows the clients: lists are answered all the
                # same.
                self._complain(
                    f"Error processing partitioning request: not done within {_WORK_WITHIN_S:g} s"
                )

    # ---- clients
    # ----------------------------------------------------------------------------------------------

    async def ask_for_clients(self) -> None:
        """Ask the other partitions for the clients that they know. Raises ``NatsError``."""
        await self._ask_for_clients(self._clients_inbox)

    async def _ask_for_clients(self, inbox: str) -> None:
        await self._control.publish(self._clients_subject, wire.reply(self._sender, None), inbox)
        await self._control.flush()

    def _ask_back(self) -> None:
        """Ask once for all who have asked lately: whoever was away may know clients that came while
        this partition was away, too, and nobody answered it then.
        """
        if not self._asking_back:
            self._asking_back = True
            self._spawn(self._ask_back_later())

    async def _ask_back_later(self) -> None:
        await asyncio.sleep(SPREAD_S)
        self._asking_back = False
        with contextlib.suppress(NatsError):
            await self._ask_for_clients(self._back_inbox)

    def _on_clients_wanted(self, data: bytes, reply: str) -> None:
        self._put(self._tell_clients(data, reply))

    def _on_clients(self, _subject: str, data: bytes) -> None:
        self._put(self._take_clients(data))

    async def _tell_clients(self, data: bytes, reply: str) -> None:
        sender, _ = wire.decode(data)
        if sender.server_id == self._sender.server_id:
            return
        if self._settled and not reply.endswith(_BACK):
            self._ask_back()
        infos = await self._known()
        most = self._control.max_payload

        def encode() -> list[bytes]:
            clients = (encode_client(info) for info in infos)
            return wire.requests(
                self._sender, [client for client in clients if len(client) < _LONGEST_CLIENT], most
            )

        for payload in await asyncio.to_thread(encode):
            await self._control.publish(reply, payload)

    async def _take_clients(self, data: bytes) -> None:
        def decode() -> list[ClientInfo]:
            _, encoded = wire.decode(data)
            return [decode_client(client) for client in wire.decode_names(encoded)]

        infos = await asyncio.to_thread(decode)
        for at in range(0, len(infos), _LEARN_AT_ONCE):
            await self._learn(infos[at : at + _LEARN_AT_ONCE])

    # ---- the connection
    # ------------------------------------------------------------------------------------------

    def _discovered(self) -> None:
        self._ask_again()

    def _down(self, error: NatsError) -> None:
        log.stream.error(f'connection "{self._control.name}" has been disconnected: {error.text}')

    def _up(self, url: str) -> None:
        log.stream.info(f'connection "{self._control.name}" reconnected to NATS Server at "{url}"')
        self._ask_again()

    def _complain(self, text: str) -> None:
        log.stream.error(text, backs_off="partitioning")


def _conflict(offender: bytes, sender: Sender) -> ConflictError:
    return ConflictError(
        wire.CONFLICT.format(
            channel=offender.decode("utf-8", "backslashreplace"),
            server_id=sender.server_id.decode("utf-8", "backslashreplace"),
        ),
        hint="list every channel on one partition only; wildcards of two lists must have no "
        "channel in common",
    )
