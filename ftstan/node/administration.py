"""What operators ask of one server: its channels, clients and subscriptions, and to reload or to
drain.

Lives on the control thread. Each step on the data plane is short and bounded; what changes
something is answered when it is durable and the store was confirmed to be ours after that. Only a
server that serves answers for what is served.

Source: ``docs/admin.md``.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ftstan.admin.keys import MAX_GRACE_S, fingerprint, rotate_key_at
from ftstan.admin.protocol import Answer, Request, Verb
from ftstan.base.errors import FencedError, RefusedError, StoreError
from ftstan.base.sizes import count_of
from ftstan.broker import managing, views
from ftstan.broker.bounds import MAX_ID
from ftstan.config.units import SECOND, format_duration
from ftstan.node.within import within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    from ftstan.broker.broker import Broker
    from ftstan.broker.managing import Row
    from ftstan.node.context import ClusterPart, Context

T = TypeVar("T")

_WITHIN_S = 10.0
_MOST_ROWS = 200
#: Rows made in one visit to the data plane; a channel among them may have to be read first.
_A_VISIT = 16


class Administration:
    """Carries out requests.

    ``reload`` takes the configuration over anew; ``begin_drain`` starts the node's leaving.
    """

    def __init__(
        self,
        node: Context,
        reload: Callable[[], Coroutine[None, None, None]],
        begin_drain: Callable[[], None],
    ) -> None:
        self._node = node
        self._reload = reload
        self._begin_drain = begin_drain

    async def carry_out(self, request: Request) -> Answer:
        """Do what is asked.

        Raises ``RefusedError``: nothing has changed; ``StoreError``: see its text.
        """
        name = request.name.encode("utf-8", "surrogateescape")
        match request.verb:
            case Verb.RELOAD:
                await self._reload()
                return Answer(ok=True, note="reloaded")
            case Verb.DRAIN:
                self._begin_drain()
                return Answer(ok=True, note="draining")
            case Verb.STEP_DOWN:
                ready = await self._cluster().step_down(request.to)
                return Answer(ok=True, note=f"{ready} can lead")
            case Verb.ADD_NODE | Verb.REMOVE_NODE:
                return await self._change_node(request)
            case Verb.ROTATE:
                return await self._rotate(request.grace_s)
            case Verb.CHANNELS:
                return await self._list(request, views.channel_names, managing.channel_rows)
            case Verb.CLIENTS:
                return await self._list(request, views.client_names, managing.client_rows)
            case Verb.CLIENT:
                return _one(
                    await self._serve(lambda b: managing.client_row(managing.find_client(b, name)))
                )
            case Verb.KICK:
                await self._promised(lambda b: managing.kick(b, managing.find_client(b, name)))
                return Answer(ok=True, note="closed; its durable subscriptions stay")
            case Verb.SUBS:
                return await self._subs(request)
            case Verb.MOVES | Verb.MOVE_OUT | Verb.MOVE_IN | Verb.MOVE_UNDO | Verb.MOVE_CLEAN:
                return await self._move(request)
        return await self._channel(request, name)

    def _cluster(self) -> ClusterPart:
        if self._node.cluster is None:
            raise RefusedError(
                "this server is no node of a cluster",
                hint="start it with -clustered, or ask a node",
            )
        return self._node.cluster

    async def _change_node(self, request: Request) -> Answer:
        adds = request.verb is Verb.ADD_NODE
        await self._cluster().change_node(request.name, is_in=adds)
        return Answer(ok=True, note="added" if adds else "removed")

    async def _rotate(self, grace_s: int) -> Answer:
        """Replace the key of the administrators, as the owner of the datastore."""
        node = self._node
        owner = node.owner
        path = node.options.admin_key
        if not 0 <= grace_s <= MAX_GRACE_S:
            raise RefusedError(
                f"a former key cannot count for {grace_s} s",
                hint=f"give at most {MAX_GRACE_S // 86_400} days",
            )
        if owner is None or not owner.has_directory:
            now_ns = node.clock.wall_ns()
            work = partial(rotate_key_at, path, grace_s=grace_s, now_ns=now_ns)
        elif owner.present is None:
            raise RefusedError(
                "only the server that owns the datastore can replace its key",
                hint="ask the active server: ftstanctl ft status names it",
            )
        else:
            work = partial(owner.rotate_key, grace_s)
        try:
            keys = await within(node, _WITHIN_S, work)
        except FencedError as error:
            node.fenced(error)
        assert keys.current is not None
        row = {
            "key": fingerprint(keys.current),
            "old": fingerprint(keys.old) if keys.old is not None else "",
            "old_until_ns": keys.old_until_ns,
        }
        until = (
            f"the former one ({row['old']}) counts for {format_duration(grace_s * SECOND)} more"
            if keys.old is not None
            else "the former one counts no more"
        )
        return Answer(ok=True, rows=(row,), note=f"the key is {row['key']} now, {until}")

    async def _channel(self, request: Request, name: bytes) -> Answer:
        """Carry out a request about one channel."""
        if not await self._serve(lambda b: b.owns(name)):
            error = f"channel {request.name!r} belongs to another partition"
            return Answer(
                ok=False,
                error=error,
                hint="ask the server that lists it under channels",
                elsewhere=True,
            )
        match request.verb:
            case Verb.CREATE:
                await self._promised(lambda b: managing.create_channel(b, name))
                return Answer(ok=True, note="created")
            case Verb.DELETE:
                return await self._delete(request, name)
            case Verb.PURGE:
                return await self._purge(request, name)
            case Verb.MOVED:
                return await self._moved(request, name)
            case Verb.SUB:
                return _one(
                    await self._serve(
                        lambda b: managing.sub_row(managing.find_sub(b, name, request.sub_id))
                    )
                )
        return _one(
            await self._serve(lambda b: managing.channel_row(managing.find_channel(b, name)))
        )

    async def _move(self, request: Request) -> Answer:
        """Carry out a request about a move to another partition, or from one."""
        orders = self._node.partitioning.orders()
        if orders is None:
            if request.verb is Verb.MOVES:
                return Answer(ok=True)
            raise RefusedError(
                "this server is not partitioned: there is no other one to move a channel to",
                hint="a channel moves between servers with partitioning: true",
            )
        match request.verb:
            case Verb.MOVES:
                return Answer(ok=True, rows=tuple(orders.rows(request.after)))
            case Verb.MOVE_OUT:
                row = await orders.offer(request)
            case Verb.MOVE_IN:
                row = await orders.accept(request)
            case Verb.MOVE_UNDO:
                return Answer(ok=True, note=await orders.undo(request))
            case _:
                return Answer(ok=True, note=await orders.clean(request))
        return Answer(ok=True, rows=(row,), note=row["step"])

    async def _delete(self, request: Request, name: bytes) -> Answer:
        row = await self._serve(lambda b: managing.channel_row(managing.find_channel(b, name)))
        if request.force and row["subscriptions"]:
            await self._promised(
                lambda b: managing.end_subscriptions(b, managing.find_channel(b, name))
            )
        await self._serve(lambda b: managing.delete_channel(b, managing.find_channel(b, name)))
        return Answer(
            ok=True,
            note=f"deleted with {count_of(row['msgs'], 'message')} and "
            f"{count_of(row['subscriptions'], 'subscription')}",
        )

    async def _purge(self, request: Request, name: bytes) -> Answer:
        def work(broker: Broker) -> Row:
            channel = managing.find_channel(broker, name)
            return managing.purge_channel(broker, channel, keep=request.keep, up_to=request.up_to)

        row = await self._serve(work)
        note = (
            f"purged {count_of(row['purged'], 'message')}, {row['left']} are left, "
            f"the next one gets sequence {row['next']}"
        )
        return Answer(ok=True, rows=(row,), note=note)

    async def _moved(self, request: Request, name: bytes) -> Answer:
        if request.on and not self._node.options.allow_channel_move:
            raise RefusedError(
                "this server does not let channels be marked as moved",
                hint="set allow_channel_move to true, and reload",
            )
        mover = request.client.encode("utf-8", "surrogateescape") if request.on else None
        if mover is not None and len(mover) > MAX_ID:
            raise RefusedError(
                f"a client id of more than {MAX_ID} bytes", hint="no client has such an id"
            )

        def work(broker: Broker) -> int:
            return managing.set_moved(broker, managing.find_channel(broker, name), mover)

        last = await self._serve(work)
        note = f"moved; its last sequence is {last}" if request.on else "takes publishes again"
        return Answer(ok=True, rows=({"last_seq": last},), note=note)

    # ---- lists
    # ----------------------------------------------------------------------------------------------

    async def _list(
        self,
        request: Request,
        names_of: Callable[[Broker], list[bytes]],
        rows_of: Callable[[Broker, list[bytes]], list[Row]],
    ) -> Answer:
        names = sorted(await self._serve(names_of))
        start = (
            bisect_right(names, request.after.encode("utf-8", "surrogateescape"))
            if request.after
            else 0
        )
        rows: list[Row] = []
        while start < len(names) and len(rows) < _MOST_ROWS:
            portion = names[start : start + _A_VISIT]
            rows += await self._serve(lambda b, portion=portion: rows_of(b, portion))  # type: ignore[misc]
            start += len(portion)
        return Answer(ok=True, rows=tuple(rows), more=start < len(names))

    async def _subs(self, request: Request) -> Answer:
        """Subscriptions by channel and id, of one channel or client if one is named."""
        client = request.client.encode("utf-8", "surrogateescape")
        after = request.after.encode("utf-8", "surrogateescape")
        if request.name:
            names = [request.name.encode("utf-8", "surrogateescape")]
        else:
            names = [
                name for name in sorted(await self._serve(views.channel_names)) if name >= after
            ]
        behind = (after, request.after_id)
        rows: list[Row] = []
        for start in range(0, len(names), _A_VISIT):
            portion = names[start : start + _A_VISIT]
            left = _MOST_ROWS + 1 - len(rows)
            rows += await self._serve(
                lambda b, portion=portion, left=left: managing.sub_rows(
                    b, portion, client, behind, left
                )  # type: ignore[misc]
            )
            if len(rows) > _MOST_ROWS:
                break
        more = len(rows) > _MOST_ROWS
        del rows[_MOST_ROWS:]
        if request.ages:
            await self._add_ages(rows)
        return Answer(ok=True, rows=tuple(rows), more=more)

    async def _add_ages(self, rows: list[Row]) -> None:
        # In portions: each age may be a read from the store.
        for start in range(0, len(rows), _A_VISIT):
            portion = rows[start : start + _A_VISIT]
            now_ns = self._node.clock.wall_ns()
            await self._serve(
                lambda b, portion=portion, now_ns=now_ns: managing.add_ages(b, portion, now_ns)  # type: ignore[misc]
            )

    # ---- the data plane
    # ------------------------------------------------------------------------------------------

    async def _serve(self, function: Callable[[Broker], T]) -> T:
        """What ``function`` says between two batches.

        Raises ``RefusedError`` if this server does not serve.
        """

        def run() -> T:
            serving = self._node.plane.serving
            if serving is None or not serving.ready:
                raise RefusedError(
                    "this server does not serve clients now",
                    hint="ask the active server, or wait until it serves",
                )
            return function(serving.broker)

        try:
            return await within(self._node, _WITHIN_S, run)
        except FencedError as error:
            self._node.fenced(error)

    async def _promised(self, function: Callable[[Broker], Future[None]]) -> None:
        promise = await self._serve(function)
        try:
            async with asyncio.timeout(_WITHIN_S):
                await asyncio.wrap_future(promise)
        except TimeoutError:
            raise StoreError(
                f"not durable within {_WITHIN_S:g}s: it may still be carried out",
                hint="look again later; check the storage below the server's datastore",
            ) from None


def _one(row: Row) -> Answer:
    return Answer(ok=True, rows=(row,))
