"""The server that a channel leaves: what its target may copy, and how it lets go.

While the channel is offered this server serves it. Asked to *freeze*, it takes no publishes of it
any more, answers those that had arrived, and says where the channel ends, with its subscriptions
and the publishes that it has answered meanwhile. Asked then to *let go*, it puts that on storage
first: from there on it never serves the channel again. A freeze is in memory only: it ends by
itself if the target is not heard of, and with the process, and this server serves on.

On the control thread; what touches the broker is posted to the data plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ftstan.base import log
from ftstan.base.errors import NatsError, RefusedError, StoreError
from ftstan.broker import managing
from ftstan.broker.lines import ack_lines
from ftstan.broker.records import all_subs
from ftstan.cluster.copying import messages_of, sub_operations
from ftstan.cluster.entry import Op, Operation, encode_operations
from ftstan.ft.moves import Step
from ftstan.nats import tasks
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Container

    from ftstan.broker.broker import Broker
    from ftstan.broker.state import Channel
    from ftstan.ft.moves import Move
    from ftstan.node.context import Context
    from ftstan.node.move_part import MovePart
    from ftstan.node.pipeline import Serving
    from ftstan.stores.interface import ChannelStore, ClientInfo, StoredSub

#: How long a channel stays frozen without a word of its target.
FROZEN_S: Final = 10.0
_WITHIN_S: Final = 5.0
_CANCEL_AGAIN_S: Final = 1.0
#: How long what was delivered may still be acknowledged before the channel is let go of.
_ACKS_S: Final = 0.1
_LOOK_EVERY_S: Final = 0.005
#: How long publishes of clients that are not registered yet may wait: nothing of them may be stored
#: behind the end.
_REGISTERED_S: Final = 1.2
#: What the name of an answered request begins with: its reply subject follows.
REQUEST: Final = b"\1"
#: For whom publishes are noted.
_USER: Final = "move"


@dataclass(slots=True)
class Frozen:
    """A channel that takes nothing now. ``id``: of this freeze. ``incarnation``: of the channel.
    ``final``: what its target is told of its end.
    """

    id: str
    incarnation: str
    store: ChannelStore
    subs: list[StoredSub]
    infos: list[ClientInfo]
    final: bytes


class MoveSource:
    """The source's part in the move of one channel."""

    def __init__(self, node: Context, moving: MovePart, name: bytes) -> None:
        self._node = node
        self._moving = moving
        self.name = name
        self.frozen: Frozen | None = None
        self._noting = False
        self._until = 0.0
        """How long (seconds) notes are taken, and the channel stays frozen, without a word of the
        target.
        """
        self._lock = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._final = b""
        """Of a channel that is gone: what was said last."""
        self._known: ChannelStore | None = None
        self._incarnation = ""
        """Of the channel as this process has it: another one if it was deleted and made again."""

    @property
    def _shown(self) -> str:
        return self.name.decode("utf-8", "backslashreplace")

    async def answer(self, move: Move, asked: dict[str, Any]) -> bytes:
        """Do what the target asks; returns the whole answer.

        Raises ``RefusedError`` and other ``FtstanError``.
        """
        self._until = self._node.clock.mono() + FROZEN_S
        match asked.get("do"):
            case "messages":
                first = _number(asked, "from")
                last = _number(asked, "to")
                which = asked.get("incarnation")
                return await self._node.call(lambda: self._messages(which, first, last))
            case "look":
                return await self._node.call(lambda: self._look(move))
        async with self._lock:
            match asked.get("do"):
                case "note":
                    self._watch = self._watch or tasks.aside(self._watch_over(), "frozen channel")
                    return await self._node.call(self._note)
                case "freeze":
                    return await self._freeze()
                case "final":
                    return await self._node.call(lambda: self._say_final(move, asked))
                case "thaw":
                    await self.thaw("its target gave this attempt up")
                    return b"{}"
                case "let-go":
                    return await self._let_go(move, asked)
        raise RefusedError("this release does not know that question")

    # ---- on the data plane
    # ----------------------------------------------------------------------------------------------

    def _serving(self) -> Serving:
        serving = self._node.plane.serving
        if serving is None or not serving.ready:
            raise RefusedError("this server does not serve clients now")
        return serving

    def _store(self, broker: Broker) -> ChannelStore:
        if self.frozen is not None:
            return self.frozen.store
        aside = self._moving.aside.get(self.name)
        return aside if aside is not None else managing.find_channel(broker, self.name).store

    def _incarnation_of(self, store: ChannelStore) -> str:
        if self._known is not store:
            self._known = store
            self._incarnation = Nuid().next()
        return self._incarnation

    def _look(self, move: Move) -> bytes:
        # As it is now: the question may have waited behind one that changed it.
        move = self._now(move)
        serving = self._serving()
        store = self._store(serving.broker)
        return _json(
            step=move.step,
            incarnation=self._incarnation_of(store),
            first=store.first,
            last=store.last,
            count=store.count,
            bytes=store.size,
            limits=asdict(move.limits),
            encrypted=self._node.ring is not None,
            freeze=self.frozen.id if self.frozen is not None else "",
        )

    def _now(self, move: Move) -> Move:
        """How far that move is by now. Raises ``RefusedError`` if it was taken back."""
        now = self._moving.move(self.name)
        if now.transfer != move.transfer:
            raise RefusedError("the move was taken back")
        return now

    def _messages(self, incarnation: object, first: int, last: int) -> bytes:
        store = self._store(self._serving().broker)
        if incarnation != self._incarnation_of(store):
            # What the target has is no beginning of it, or may be none.
            raise RefusedError("there is another channel of that name by now, or another server")
        held, packed = messages_of(store, first, last)
        wanted = max(first, store.first, 1)
        for begins, ends in held or [(last + 1, last)]:
            if wanted <= last and begins > wanted:
                raise RefusedError(f'channel "{self._shown}" lacks message {wanted}')
            wanted = ends + 1
        return packed

    def _note(self) -> bytes:
        """From now on every publish that is taken is noted; returns the clients of the channel."""
        serving = self._serving()
        channel = managing.find_channel(serving.broker, self.name)
        if not self._noting:
            if serving.is_noting:
                raise RefusedError(
                    "this server is about to hand over, or another channel leaves it"
                )
            serving.note_taken(_USER, on=True)
            serving.broker.carried_out[self.name] = set()
            self._noting = True
        return encode_operations(_clients(_infos(serving.broker, channel)))

    def _end_noting(self, serving: Serving | None) -> None:
        if self._noting and serving is not None:
            serving.note_taken(_USER, on=False)
            serving.broker.carried_out.pop(self.name, None)
        self._noting = False

    # ---- freezing
    # ----------------------------------------------------------------------------------------------

    async def _freeze(self) -> bytes:
        if self.frozen is not None:
            await self.thaw("its target began again")
            raise RefusedError("the channel was still frozen for an earlier attempt")
        if not self._noting:
            raise RefusedError("publishes are not noted")
        node = self._node
        try:
            async with asyncio.timeout(_WITHIN_S):
                closed = await node.call(self._close)
                await asyncio.wrap_future(closed)
                await self._settle()
                await asyncio.wrap_future(await node.call(self._close_acks))
                frozen = await node.call(self._detach)
        except (TimeoutError, NatsError, RefusedError, StoreError) as error:
            # Also if nobody has waited for the end of a step: it comes behind that.
            await node.call(self._reopen)
            if isinstance(error, TimeoutError):
                raise RefusedError("the channel could not be frozen in time") from None
            raise
        log.stream.info(
            f'Channel "{self._shown}" is frozen for its move at sequence {frozen.store.last}',
            channel=self.name,
        )
        store = frozen.store
        return _json(
            freeze=frozen.id,
            incarnation=frozen.incarnation,
            first=store.first,
            last=store.last,
            count=store.count,
            timestamp=store.last_timestamp,
        )

    def _close(self) -> Any:
        """Listen for publishes of the channel no more."""
        serving = self._serving()
        partition = serving.broker.partition
        assert partition is not None
        managing.find_channel(serving.broker, self.name)
        sid = partition.sid_of(self.name)
        done = serving.send(b"UNSUB %d\r\n" % sid)
        # Also of a new connection.
        partition.remove(self.name)
        return done

    async def _settle(self) -> None:
        """Wait for what may still be stored, and for acknowledgements that are on their way."""
        clock = self._node.clock
        began = clock.mono()

        def left() -> tuple[bool, bool]:
            broker = self._serving().broker
            channel = managing.find_channel(broker, self.name)
            live = [sub for sub in all_subs(channel) if sub.client is not None]
            waits = bool(broker.pending_registrations) or bool(broker.closing)
            return waits, any(len(sub.pending) for sub in live)

        while True:
            waits, unacknowledged = await self._node.call(left)
            age = clock.mono() - began
            if not (waits and age < _REGISTERED_S) and not (unacknowledged and age < _ACKS_S):
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    def _close_acks(self) -> Any:
        serving = self._serving()
        channel = managing.find_channel(serving.broker, self.name)
        sids = [sub.sid for sub in channel.by_ack_inbox.values()]
        return serving.send(b"".join(b"UNSUB %d\r\n" % sid for sid in sids))

    def _detach(self) -> Frozen:
        """Take the channel out of the broker: nothing of it is under way."""
        serving = self._serving()
        broker = serving.broker
        channel = managing.find_channel(broker, self.name)
        if channel.refused is not None or channel.mover is not None:
            raise RefusedError("the channel takes no publishes any more")
        if channel.applied != channel.store.last or broker.closing or broker.taken is None:
            raise RefusedError("the channel is in use")
        infos = _infos(broker, channel)
        known = broker.window.proven(self.name) if broker.window is not None else {}
        answered = [key for key, channel in broker.taken if channel in {self.name, b""}]
        store = channel.store
        subs = broker.let_go(channel)
        broker.elsewhere.add(self.name)
        final = [
            *sub_operations(self.name, subs),
            *_clients(infos),
            *(Operation(Op.KEEP, key) for key in answered),
            *(
                Operation(Op.KEEP, REQUEST + reply)
                for reply in broker.carried_out.get(self.name, ())
            ),
        ]
        if known:
            final.append(Operation(Op.REMEMBER, b"", (known, len(known))))
        self._end_noting(serving)
        # Here, and not by who asked: it may have given up in this moment.
        self.frozen = Frozen(
            Nuid().next(),
            self._incarnation_of(store),
            store,
            subs,
            infos,
            encode_operations(final),
        )
        return self.frozen

    def _say_final(self, move: Move, asked: dict[str, Any]) -> bytes:
        frozen = self.frozen
        if frozen is not None and asked.get("freeze") == frozen.id:
            return frozen.final
        if self._now(move).step is not Step.GONE:
            raise RefusedError("the channel is not frozen any more")
        if self._final:
            return self._final
        # It has gone before the start of this process.
        broker = self._serving().broker
        subs = self._moving.subs.get(self.name, [])
        ids = sorted({sub.state.client_id for sub in subs if not sub.state.is_closed})
        known = (broker.clients.get(client_id) for client_id in ids)
        clients = [client.info for client in known if client is not None]
        return encode_operations([*sub_operations(self.name, subs), *_clients(clients)])

    # ---- the ways out
    # ----------------------------------------------------------------------------------------------

    async def thaw(self, why: str) -> None:
        """Serve the channel again, if it is frozen; note nothing any more."""
        if self.frozen is None:
            if self._noting:
                await self._node.call(lambda: self._end_noting(self._node.plane.serving))
            return
        await self._node.call(self._reopen)
        log.stream.warning(
            f'Channel "{self._shown}" did not move, and is served again: {why}', channel=self.name
        )

    async def give_up(self, why: str) -> None:
        """``thaw``, by who is not the target."""
        async with self._lock:
            await self.thaw(why)

    def _reopen(self) -> None:
        serving = self._node.plane.serving
        frozen = self.frozen
        self.frozen = None
        self._end_noting(serving)
        if serving is None or self._has_gone():
            return
        broker = serving.broker
        partition = broker.partition
        assert partition is not None
        if frozen is not None:
            broker.elsewhere.discard(self.name)
            broker.take_over(frozen.store, frozen.subs, same_clients(broker, frozen.infos))
        if not partition.owns(self.name):
            partition.add(self.name)
        rows = [row for row in broker.publish_rows if row[1] == partition.sid_of(self.name)]
        channel = broker.channels.get(self.name)
        acks = ack_lines(channel.by_ack_inbox.values()) if channel is not None else b""
        serving.subscribe(acks + b"".join(b"SUB %b %d\r\n" % row for row in rows))
        serving.go_on()

    def _has_gone(self) -> bool:
        with contextlib.suppress(RefusedError):
            return self._moving.move(self.name).step is Step.GONE
        # Taken back.
        return False

    async def _watch_over(self) -> None:
        """Serve on if the target is not heard of."""
        while True:
            left = self._until - self._node.clock.mono()
            if left > 0:
                await asyncio.sleep(left)
                continue
            async with self._lock:
                if self._until <= self._node.clock.mono():
                    self._watch = None
                    await self.thaw(f"its target was not heard of for {FROZEN_S:g}s")
                    return

    async def _end_watch(self) -> None:
        watch = self._watch
        self._watch = None
        if watch is not None:
            await tasks.end(watch, _CANCEL_AGAIN_S)

    async def _let_go(self, move: Move, asked: dict[str, Any]) -> bytes:
        """The point of no return."""
        # As it is now: it may have waited behind the same question, asked before.
        move = self._now(move)
        if move.step is Step.GONE:
            return b"{}"
        frozen = self.frozen
        if frozen is None or asked.get("freeze") != frozen.id:
            raise RefusedError("the channel is not frozen any more")

        def go() -> None:
            if self.frozen is not frozen or self._moving.move(self.name) != move:
                raise RefusedError("the channel is not frozen any more")
            self._moving.keep(self.name, move.to(Step.GONE))
            # At once: whatever fails from here on, nothing leads back.
            self.frozen = None
            self._final = frozen.final
            self._moving.aside[self.name] = frozen.store
            self._moving.subs[self.name] = frozen.subs
            with contextlib.suppress(StoreError, RefusedError):
                # Should anybody lose the record, the channel takes nothing here all the same. The
                # next start tries again.
                frozen.store.set_moved(b"")

        await self._moving.change(go)
        await self._end_watch()
        self._moving.list_changed()
        log.stream.warning(
            f'Channel "{self._shown}" has moved to {move.peer} behind sequence '
            f"{frozen.store.last}: take it out of the list of this server",
            channel=self.name,
        )
        return b"{}"

    async def end(self) -> None:
        """This server stops."""
        await self._end_watch()


def same_clients(broker: Broker, infos: list[ClientInfo]) -> Container[bytes]:
    """Ids of the clients that are still the ones that are told of."""
    return {
        info.client_id
        for info in infos
        if (client := broker.clients.get(info.client_id)) is not None
        and (client.info.conn_id, client.info.hb_inbox) == (info.conn_id, info.hb_inbox)
    }


def _infos(broker: Broker, channel: Channel) -> list[ClientInfo]:
    ids = {sub.client_id for sub in all_subs(channel) if sub.client is not None}
    clients = (broker.clients.get(client_id) for client_id in sorted(ids))
    return [client.info for client in clients if client is not None]


def _clients(infos: list[ClientInfo]) -> list[Operation]:
    return [Operation(Op.CLIENT_NEW, info.client_id, info) for info in infos]


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _number(asked: dict[str, Any], name: str) -> int:
    value = asked.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise RefusedError(f"the question has no {name}")
    return value
