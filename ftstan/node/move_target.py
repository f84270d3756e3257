"""The server that a channel comes to: it copies the log while the source serves, keeps what is
published while the source lets go, and serves when the source has said on storage that it never
will again.

A copy can break off anywhere, and goes on behind what is there: messages do not change. The
subscriptions are small and taken when the channel is frozen; those of an attempt that failed are
replaced by those of the next one. What is said to the source may be said twice.

On the control thread; what touches the store is posted to the data plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ftstan.base import log
from ftstan.base.errors import (
    FencedError,
    FtstanError,
    NatsError,
    RefusedError,
    StoreError,
    WireError,
)
from ftstan.broker import managing
from ftstan.broker.arrivals import Arrival
from ftstan.broker.lines import publish_rows
from ftstan.cluster.copying import messages_of
from ftstan.cluster.entry import Op, decode_operations
from ftstan.ft.moves import Move, Step
from ftstan.nats import tasks
from ftstan.node.move_source import REQUEST, same_clients
from ftstan.stores.interface import ClientInfo, StoredSub, SubState
from ftstan.wire.block import MsgBlock, SubEvents, unpack_block

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ftstan.cluster.entry import Operation
    from ftstan.node.context import Context
    from ftstan.node.move_part import MovePart
    from ftstan.node.pipeline import Serving
    from ftstan.stores.interface import ChannelStore

#: Messages that may be left to copy when the source is asked to freeze.
_NEAR: Final = 2_000
_MOST_ROUNDS: Final = 20
#: ... and that may be left then, if each round leaves as much as the one before.
_MOST_LEFT: Final = 20_000
#: How long other NATS servers have to learn that this one listens.
_SPREAD_S: Final = 0.25
#: Seconds until another attempt, at first and at most.
_AGAIN_S: Final = 0.5
_AGAIN_MOST_S: Final = 30.0
_WITHIN_S: Final = 10.0
_CANCEL_AGAIN_S: Final = 1.0
#: Clients that are registered in one go.
_LEARN_AT_ONCE: Final = 128
#: How long what was kept waits for the source's last word.
_PATIENCE_S: Final = 15.0


class MoveTarget:
    """The target's part in the move of one channel, until it serves it."""

    def __init__(self, node: Context, moving: MovePart, name: bytes) -> None:
        self._node = node
        self._moving = moving
        self.name = name
        self.copied = 0
        """Messages that were fetched."""
        self.of = 0
        """The last sequence of the source, as far as it was heard."""
        self.error = ""
        """Why the last attempt failed."""
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()
        self._incarnation = ""
        """Of the channel at the source in this attempt: the copy takes nothing of another one."""
        self._arrival: Arrival | None = None
        self._infos: list[ClientInfo] = []
        self._answered: dict[tuple[bytes, bytes], int] = {}
        self._carried_out: set[bytes] = set()
        """Reply subjects of the requests that the source has answered in this attempt."""

    @property
    def _shown(self) -> str:
        return self.name.decode("utf-8", "backslashreplace")

    @property
    def _move(self) -> Move:
        return self._moving.move(self.name)

    async def look(self, move: Move) -> dict[str, Any]:
        """What the source says of the channel, which nothing here knows of yet. Raises
        ``FtstanError``.
        """
        return _object(await self._moving.ask(move, {"do": "look"}))

    def start(self) -> None:
        """Bring the channel here, or try again now."""
        self._now.set()
        if self._task is None:
            self._task = tasks.spawn(self._run(), "move of a channel")

    async def end(self) -> None:
        """Try no more; what arrived is dropped."""
        task = self._task
        self._task = None
        if task is not None:
            await tasks.end(task, _CANCEL_AGAIN_S)
            await self._give_up_arrival()

    @property
    def _is_under_way(self) -> bool:
        with contextlib.suppress(RefusedError):
            return self._move.step in {Step.COPYING, Step.READY}
        return False

    async def _run(self) -> None:
        wait = _AGAIN_S
        while self._is_under_way:
            self._now.clear()
            try:
                await self._attempt()
            except FencedError as error:
                self._node.fenced(error)
            except (FtstanError, TimeoutError, KeyError, TypeError, ValueError) as failure:
                why = _said(failure)
                if why != self.error:
                    log.stream.warning(
                        f'Channel "{self._shown}" does not come here yet: {why}',
                        channel=self.name,
                    )
                self.error = why
                await self._give_up()
            else:
                self._task = None
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._now.wait()
            wait = min(wait * 2, _AGAIN_MOST_S)
        # Taken back, in a step that was given up for too slow.
        self._task = None

    async def _give_up(self) -> None:
        """This attempt has failed: let the source serve on at once, instead of soon."""
        await self._give_up_arrival()
        with contextlib.suppress(FtstanError):
            await self._ask_json(do="thaw")

    # ---- one attempt
    # ----------------------------------------------------------------------------------------------

    async def _attempt(self) -> None:
        look = await self._ask_json(do="look")
        is_gone = look["step"] == Step.GONE
        if self._move.step is Step.READY:
            if is_gone:
                await self._ask_clients()
                await self._take()
                return
            await self._step(Step.COPYING)
        await self._node.call(self._make)
        self._incarnation = str(look["incarnation"])
        look = await self._bring(look)
        freeze = ""
        if not is_gone:
            freeze, look = await self._freeze()
        if look["incarnation"] != self._incarnation:
            raise RefusedError("the source has another channel of that name by now")
        try:
            await self._complete(look, freeze)
            await self._step(Step.READY)
            await self._ask_json(do="let-go", freeze=freeze)
        except NatsError:
            if self._move.step is not Step.READY:
                raise
            # It may have let go: asked until it says so, or that it serves on.
            await self._find_out()
        await self._take()

    async def _ask_clients(self) -> None:
        """Whose the subscriptions are, if another process of this server was told."""
        if not self._infos:
            final = decode_operations(await self._ask({"do": "final", "freeze": ""}))
            self._infos = _read_final(self.name, final).infos
            await self._node.call(lambda: self._meet(self._infos))
            # One that is known as somebody else is asked first whether it lives.
            await asyncio.sleep(_SPREAD_S)

    async def _find_out(self) -> None:
        """Wait until the source says that it has let go. Raises ``RefusedError`` if it has not."""
        clock = self._node.clock
        end = clock.mono() + _PATIENCE_S
        while True:
            try:
                look = await self._ask_json(do="look")
            except NatsError as error:
                self.error = error.text
                if clock.mono() >= end:
                    # Their publishers have given up: stored now, they would be there twice.
                    await self._give_up_arrival()
                continue
            if look["step"] != Step.GONE:
                raise RefusedError("the source has not let go of the channel")
            return

    @property
    def _store(self) -> ChannelStore:
        """The copy, which may begin anew whenever something was fetched."""
        return self._moving.aside[self.name]

    def _make(self) -> None:
        """Make the copy, or go on with what there is of it. On the data plane, as what follows."""
        store = self._moving.aside.get(self.name)
        if store is None:
            broker = self._serving().broker
            limits = self._moving.limits_of(self.name)
            self._moving.aside[self.name] = broker.store.create_channel(self.name, limits)
            self._moving.subs[self.name] = []

    def _make_anew(self) -> None:
        """Begin anew: what is here is no beginning of what the source has."""
        broker = self._serving().broker
        broker.store.delete_channel(self.name)
        del self._moving.aside[self.name]
        self._make()

    async def _bring(self, look: dict[str, Any]) -> dict[str, Any]:
        """Copy until not much is left; returns what the source says of the channel then."""
        if self._store.last and not await self._goes_on(look):
            await self._node.call(self._make_anew)
        left = 0
        for _ in range(_MOST_ROUNDS):
            self.of = int(look["last"])
            await self._copy(int(look["first"]), self.of)
            look = await self._ask_json(do="look")
            left = int(look["last"]) - self._store.last
            if left <= _NEAR:
                break
        if left > _MOST_LEFT:
            # Publishers would wait for as long as that takes.
            raise RefusedError(
                f"it is published to as fast as it can be copied: {left} messages are left"
            )
        return look

    async def _goes_on(self, look: dict[str, Any]) -> bool:
        """Whether the copy can stay: its last message is the source's, too."""
        store = self._store
        last = store.last
        if not int(look["first"]) <= last <= int(look["last"]):
            return False
        theirs = await self._ask_messages(last, last)
        ours = await self._node.call(lambda: messages_of(store, last, last)[1])
        return bool(theirs) and theirs == ours

    async def _copy(self, first: int, last: int) -> None:
        """Fetch what is missing up to ``last``."""
        due = max(first, self._store.last + 1, 1)
        while due <= last:
            packed = await self._ask_messages(due, last)
            block = unpack_block(packed)
            if not len(block):
                # They went by the limits meanwhile; the last one is still to be said.
                return
            if block.first > due and self._store.last:
                await self._node.call(self._make_anew)
            await self._put(partial(self._store.append, block))
            due = block.last + 1
            self.copied += len(block)

    async def _ask_messages(self, first: int, last: int) -> bytes:
        which = {"incarnation": self._incarnation, "from": first, "to": last}
        return await self._ask({"do": "messages"} | which)

    async def _put(self, stage: Callable[[], None]) -> None:
        """Stage something in the copy, and wait until it is durable."""
        store = self._store

        def put() -> Future[None]:
            serving = self._serving()
            stage()
            serving.go_on()
            return managing.promise_store(serving.broker, store)

        # For as long as it takes: what is staged must not be staged again.
        await asyncio.wrap_future(await self._node.call(put))

    # ---- letting go
    # ----------------------------------------------------------------------------------------------

    async def _freeze(self) -> tuple[str, dict[str, Any]]:
        told = decode_operations(await self._ask({"do": "note"}))
        infos = [op.argument for op in told if isinstance(op.argument, ClientInfo)]

        for at in range(0, len(infos), _LEARN_AT_ONCE):
            some = infos[at : at + _LEARN_AT_ONCE]
            await self._node.call(partial(self._meet, some))
        done = await self._node.call(lambda: self._begin_arrival(self._serving()))
        async with asyncio.timeout(_WITHIN_S):
            await asyncio.wrap_future(done)
        await asyncio.sleep(_SPREAD_S)
        # Not before: what the source had answered when it began to note that is long behind us.
        await self._node.call(self._begin_requests)
        # Once more before the pause: what was published since.
        look = await self._ask_json(do="look")
        await self._copy(int(look["first"]), int(look["last"]))
        said = _object(await self._moving.ask(self._move, {"do": "freeze"}, once=True))
        return str(said["freeze"]), said

    def _meet(self, infos: list[ClientInfo]) -> None:
        self._serving().learn_clients(infos)

    def _begin_arrival(self, serving: Serving) -> Any:
        """Keep what is published from now on."""
        broker = serving.broker
        partition = broker.partition
        assert partition is not None
        sid = partition.sid_of(self.name)
        arrival = self._arrival = Arrival()
        broker.arriving = (broker.arriving or {}) | {sid: arrival.keep_publish}
        return serving.send(b"SUB %b %d\r\n" % (broker.publish_prefix + self.name, sid))

    def _begin_requests(self) -> None:
        """Keep what is asked from now on."""
        if self._arrival is not None:
            self._serving().broker.arrivals[self.name] = self._arrival

    async def _give_up_arrival(self) -> None:
        if self._arrival is None:
            return
        done = await self._node.call(self._drop_arrival)
        if done is not None:
            with contextlib.suppress(NatsError, TimeoutError):
                async with asyncio.timeout(_WITHIN_S):
                    await asyncio.wrap_future(done)
        await self._node.call(self._forget_arrival)

    def _drop_arrival(self) -> Future[None] | None:
        """Pass over what comes until NATS sends no more of it: the source answers it, and this
        server must not refuse it.
        """
        arrival = self._arrival
        self._arrival = None
        serving = self._node.plane.serving
        if arrival is None or serving is None:
            return None
        count = len(arrival.publishes) + arrival.dropped
        if count:
            log.stream.debug(f'Channel "{self._shown}": {count} publishes were kept for nothing')
        sid = self._end_keeping(serving)
        serving.broker.arriving = (serving.broker.arriving or {}) | {sid: _pass_over}
        with contextlib.suppress(NatsError):
            return serving.send(b"UNSUB %d\r\n" % sid)
        return None

    def _forget_arrival(self) -> None:
        serving = self._node.plane.serving
        if serving is None or self._arrival is not None:
            return
        self._end_keeping(serving)

    def _end_keeping(self, serving: Serving) -> int:
        broker = serving.broker
        assert broker.partition is not None
        sid = broker.partition.sid_of(self.name)
        broker.arrivals.pop(self.name, None)
        left = {key: keep for key, keep in (broker.arriving or {}).items() if key != sid}
        broker.arriving = left or None
        return sid

    async def _complete(self, look: dict[str, Any], freeze: str) -> None:
        """Everything that the source had when it was frozen, durable here."""
        final = decode_operations(await self._ask({"do": "final", "freeze": freeze}))
        first = int(look["first"])
        last = int(look["last"])
        count = int(look["count"])
        await self._copy(first, last)
        store = self._store
        if store.last < last and not count:
            await self._put(lambda: _append_end(store, last, int(look.get("timestamp", 0))))
        gone = first - 1 if count else last
        if store.count and store.first <= gone:
            await self._node.call(lambda: store.purge(gone))
        # Its limits may have removed messages from its front since, as those of the source do.
        held = store.last - store.first + 1 if store.count else 0
        if store.last != last or store.count != held:
            raise RefusedError(
                f"the copy ends at {store.last} and has {store.count} messages from {store.first} "
                f"on, and the source ends at {last}"
            )
        if store.count and not await self._goes_on(look):
            raise RefusedError(f"the copy has another message {last} than the source")
        told = _read_final(self.name, final)
        self._infos = told.infos
        self._answered = told.answered
        self._carried_out = told.carried_out
        await self._store_subs(store, list(told.subs.values()))
        if told.known:
            await self._node.call(lambda: self._remember(told.known))

    async def _store_subs(self, store: ChannelStore, subs: list[StoredSub]) -> None:
        """Put the subscriptions into the copy, in the place of those of an earlier attempt."""
        events = SubEvents()
        made: list[StoredSub] = []
        former = list(self._moving.subs[self.name])

        def records() -> None:
            for each in former:
                store.delete_sub(each.state.sub_id)
            number = store.next_sub_id
            for sub in subs:
                state = replace(sub.state, sub_id=number)
                store.add_sub(state)
                made.append(StoredSub(state, set(sub.pending)))
                for sequence in sorted(sub.pending):
                    events.sent(number, sequence)
                number += 1
            # Whatever storage says to it: any of them may be there from now on.
            self._moving.subs[self.name] = former + made
            store.keep()

        def sent() -> None:
            # With the next record of the channel, and so with the commit.
            if len(events):
                store.add_events(events)
            store.keep()

        store.snapshot = None
        await self._put(records)
        await self._put(sent)
        self._moving.subs[self.name] = made

    def _remember(self, known: dict[bytes, Any]) -> None:
        window = self._serving().broker.window
        if window is not None:
            window.learn(known)

    # ---- serving it
    # ----------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        """The source never serves it again: serve it."""

        def take() -> None:
            serving = self._serving()
            broker = serving.broker
            partition = broker.partition
            assert partition is not None
            self._moving.keep(self.name, self._move.to(Step.TAKEN))
            store = self._moving.aside.pop(self.name)
            subs = self._moving.subs.pop(self.name)
            broker.elsewhere.discard(self.name)
            channel = broker.take_over(store, subs, same_clients(broker, self._infos))
            sid = self._end_keeping(serving)
            partition.add(self.name)
            rows = publish_rows(broker.subjects.publish_all, partition)
            # To NATS, a sid that is in use goes on.
            serving.subscribe(b"".join(b"SUB %b %d\r\n" % row for row in rows if row[1] == sid))
            serving.leave_out(self._answered)
            arrival = self._arrival
            self._arrival = None
            if arrival is not None:
                for kept in arrival.publishes:
                    broker.publish_kept(*kept)
                arrival.carry_out(channel.by_inbox, self._carried_out)
            serving.go_on()

        await self._moving.change(take)
        self._moving.list_changed()
        self.error = ""
        log.stream.info(
            f'Channel "{self._shown}" has come here from {self._move.peer}: add it to the list of '
            "this server",
            channel=self.name,
        )

    # ---- small things
    # ----------------------------------------------------------------------------------------------

    def _serving(self) -> Serving:
        serving = self._node.plane.serving
        if serving is None or not serving.ready:
            raise RefusedError("this server does not serve clients now")
        return serving

    async def _step(self, step: Step) -> None:
        await self._moving.change(lambda: self._moving.keep(self.name, self._move.to(step)))

    async def _ask(self, asked: dict[str, Any]) -> bytes:
        return await self._moving.ask(self._move, asked)

    async def _ask_json(self, **asked: Any) -> dict[str, Any]:
        return _object(await self._ask(asked))


def _pass_over(*_: bytes) -> None:
    """What another server answers."""


def _object(data: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(data)
        if isinstance(said, dict):
            return said
    raise WireError("the source sent what cannot be read")


def _said(failure: Exception) -> str:
    if isinstance(failure, FtstanError):
        return failure.text
    if isinstance(failure, TimeoutError):
        return f"NATS has not answered for {_WITHIN_S:g}s"
    return f"the source sent what cannot be read: {failure!r}"


def _append_end(store: ChannelStore, last: int, timestamp: int) -> None:
    """Nothing is left of the channel, and its next message is still the one behind ``last``."""
    mark = MsgBlock()
    mark.append(last, store.name, b"", b"", timestamp)
    store.append(mark)


@dataclass(slots=True)
class _Final:
    """What a source says of the end of a channel: subscriptions by their ids, their clients,
    publishes and requests that were answered, and what is remembered.
    """

    subs: dict[int, StoredSub] = field(default_factory=dict)
    infos: list[ClientInfo] = field(default_factory=list)
    answered: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    carried_out: set[bytes] = field(default_factory=set)
    known: dict[bytes, Any] = field(default_factory=dict)


def _read_final(name: bytes, operations: list[Operation]) -> _Final:
    told = _Final()
    for operation in operations:
        match operation.op, operation.argument:
            case Op.SUB_NEW, SubState() as state:
                told.subs[state.sub_id] = StoredSub(state)
            case Op.EVENTS, SubEvents() as events:
                for _, sub_id, sequence in events.items():
                    told.subs[sub_id].pending.add(sequence)
            case Op.CLIENT_NEW, ClientInfo() as info:
                told.infos.append(info)
            case Op.KEEP, None if operation.name.startswith(REQUEST):
                told.carried_out.add(operation.name.removeprefix(REQUEST))
            case Op.KEEP, None:
                # What has no names is called by a digest, and belongs to no channel.
                unnamed = operation.name.startswith(b"\0")
                told.answered[operation.name, b"" if unnamed else name] += 1
            case Op.REMEMBER, (dict() as fresh, _):
                told.known |= fresh
            case _:
                raise StoreError("the source sent what does not belong to a channel")
    return told
