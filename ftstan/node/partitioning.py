"""A node's part in partitioning: which channels it serves, and its exchange with the other
partitions (``partition_exchange``), if there are any.

On the control thread, beside recovery (``docs/compat/partitioning.md``, "The exchange").
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ftstan.base import log
from ftstan.base.errors import FtstanError, NatsError
from ftstan.wire.subjects import Subjects

if TYPE_CHECKING:
    from types import TracebackType

    from ftstan.broker.partition import Partition
    from ftstan.config.options import LinkOptions, StoreLimits
    from ftstan.ft.moves import Moves
    from ftstan.node.context import Context
    from ftstan.node.move_orders import MoveOrders
    from ftstan.node.moving import Moving
    from ftstan.node.partition_exchange import Exchange
    from ftstan.stores.interface import ClientInfo, ServerInfo

EXIT_CONFLICT: Final = 1


class Partitioning:
    """Of one node: ``partition`` says what it serves, ``None`` if it serves every channel.

    As a context it begins to ask and to answer, and goes on with that if what is done in it
    succeeds.
    """

    def __init__(self, node: Context) -> None:
        options = node.options
        self.partition: Partition | None = None
        if options.partitioning:
            # Late, as below: most servers serve every channel.
            from ftstan.broker.partition import Partition  # noqa: PLC0415

            self.partition = Partition(
                name.encode("utf-8", "surrogateescape") for name, _ in options.limits.channels
            )
        self._node = node
        self._exchange: Exchange | None = None
        self.moving: Moving | None = None
        if self.partition is not None:
            from ftstan.node.moving import Moving  # noqa: PLC0415

            self.moving = Moving(node, lambda: self.partition)

    async def __aenter__(self) -> None:
        node = self._node
        if self.moving is None:
            return
        await node.call(lambda: self.look(owned=True))
        self.moving.tell_lists()
        assert self.partition is not None
        from ftstan.node.partition_exchange import Exchange  # noqa: PLC0415
        from ftstan.wire.partition import Sender  # noqa: PLC0415

        record = node.owner.present if node.owner is not None and node.group is not None else None
        store_id = record.store_id if record is not None else b""
        self._exchange = Exchange(
            node.options,
            node.nats_urls,
            Sender(node.server_id.encode(), store_id),
            self.partition.names,
            presented=node.presented,
            inbox=f"_INBOX.{node.nuid.next()}",
            clock=node.clock,
            on_conflict=self._on_conflict,
            known=self._known,
            learn=self._learn,
        )
        await self._exchange.start()
        assert self.moving is not None
        await self.moving.begin(self._exchange)

    def orders(self) -> MoveOrders | None:
        """What operators ask about channels that move; ``None``: there is no other partition."""
        if self.moving is None:
            return None
        from ftstan.node.move_orders import MoveOrders  # noqa: PLC0415

        return MoveOrders(self._node, self.moving)

    def look(self, *, owned: bool = False) -> None:
        """Let what the datastore says of moves change the list. On the data plane.

        Also before the store is ours (``owned``): for what is kept while its owner leaves. Raises
        ``RecoveryError`` and ``StoreError``, and ``FencedError`` if it is ours no more.
        """
        if self.moving is None:
            return
        from ftstan.broker.partition import Partition  # noqa: PLC0415

        self.moving.load(owned=owned)
        self.partition = Partition(
            self.moving.names(name for name, _ in self._node.options.limits.channels)
        )

    def moves(self) -> Moves:
        """What is known of channels that move."""
        return self.moving.moves if self.moving is not None else {}

    def limits(self, limits: StoreLimits) -> StoreLimits:
        """What holds on this server, if ``limits`` is what the configuration says."""
        return self.moving.limits(limits) if self.moving is not None else limits

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.end()

    async def settled(self) -> None:
        """Return when publishes may be taken.

        Raises ``FtstanError`` if another partition objects.
        """
        if self._exchange is not None:
            # In a group NATS may be away for a moment, and the next member would be no better off.
            await self._exchange.settled(patient=self._node.group is not None)

    async def meet(self) -> None:
        """This node serves: take over the clients that the other partitions know, who may have come
        before it.
        """
        if self._exchange is not None:
            with contextlib.suppress(NatsError):
                # When the connection is back it is asked again.
                await self._exchange.ask_for_clients()
        if self.moving is not None:
            self.moving.go_on()

    async def _known(self) -> list[ClientInfo]:
        serving = self._node.plane.serving
        return await self._node.call(serving.known_clients) if serving is not None else []

    async def _learn(self, infos: list[ClientInfo]) -> None:
        def learn() -> None:
            serving = self._node.plane.serving
            if serving is not None:
                serving.learn_clients(infos)

        await self._node.call(learn)

    async def end(self) -> None:
        """Stop asking and answering."""
        if self.moving is not None:
            await self.moving.end()
        exchange = self._exchange
        self._exchange = None
        if exchange is not None:
            await exchange.close()

    def renew(self, presented: LinkOptions) -> None:
        """Present this login and TLS to NATS from the next connection on."""
        if self._exchange is not None:
            self._exchange.renew(presented)

    def check(self, info: ServerInfo) -> None:
        """Warn of a store whose clients were told other subjects than those of the other
        partitions.
        """
        usual = Subjects.for_cluster(self._node.options.cluster_id)
        if self.partition is not None and info.publish != usual.publish:
            log.stream.warning(
                "partitioning: this datastore keeps the subjects of an old release "
                f"({info.publish}, not "
                f"{usual.publish}): clients that take them from another partition cannot reach "
                "this one"
            )

    def _on_conflict(self, error: FtstanError, late: bool) -> None:
        if late:
            self._node.leave(f"Partitioning error: {error.text}", EXIT_CONFLICT)
        else:
            self._node.fail(error)
