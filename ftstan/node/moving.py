"""Channels that move between partitions, as one node takes part in it: what its datastore says of
them, and what the other server is asked and answered.

The list of channels that a partitioned server serves is its configured one, changed by ``ft.moves``
(``ft/moves.py``). A move has a source (``move_source``) and a target (``move_target``); the target
drives it. On the control thread, on the connection of the exchange with other partitions; what
touches the datastore or the broker is posted to the data plane.

Source: ``docs/partitioning.md`` (moving a channel).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
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
from ftstan.config.limits import Limits
from ftstan.ft.moves import Move, Step, served_names, with_moved
from ftstan.nats import tasks
from ftstan.node.move_source import MoveSource
from ftstan.node.move_target import MoveTarget
from ftstan.wire import transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ftstan.broker.broker import Broker
    from ftstan.broker.partition import Partition
    from ftstan.config.options import ChannelLimits, StoreLimits
    from ftstan.ft.moves import Moves
    from ftstan.node.context import Context
    from ftstan.node.partition_exchange import Exchange
    from ftstan.stores.interface import ChannelStore, Recovered, Store, StoredSub

_ANSWER_S: Final = 2.0
_ATTEMPTS: Final = 3
_WITHIN_S: Final = 10.0
_TRANSFER_SIZE: Final = 16
_SECRET_SIZE: Final = 32

_NO_ANSWER: Final = "the other server does not answer"


class Moving:
    """Of one node. ``load`` comes before its channels are recovered, ``begin`` before it serves."""

    def __init__(self, node: Context, partition: Callable[[], Partition | None]) -> None:
        self._node = node
        self.partition = partition
        self.moves: Moves = {}
        """Replaced as a whole, on the data plane; other threads may read it."""
        self.aside: dict[bytes, ChannelStore] = {}
        """Channels of the store that are not served: what has gone, and what comes. The data
        plane's.
        """
        self.subs: dict[bytes, list[StoredSub]] = {}
        """The subscriptions that those may have on storage, some of them of attempts that failed.
        The data plane's.
        """
        self.sources: dict[bytes, MoveSource] = {}
        self.targets: dict[bytes, MoveTarget] = {}
        self._exchange: Exchange | None = None
        self._waiting: dict[str, asyncio.Future[bytes]] = {}

    # ---- what the datastore says
    # ----------------------------------------------------------------------------------------------

    def load(self, *, owned: bool) -> None:
        """Read it, on the data plane. ``owned``: the datastore is ours, and no former owner is to
        change it any more.

        Raises ``RecoveryError`` and ``StoreError``, and ``FencedError`` if it is ours no more.
        """
        owner = self._node.owner
        if owner is not None and owner.has_directory:
            self.moves = owner.take_up_moves() if owned else owner.read_moves()

    def names(self, listed: Iterable[str]) -> tuple[bytes, ...]:
        """What this server serves."""
        return tuple(map(_bytes, served_names(tuple(dict.fromkeys(listed)), self.moves)))

    def tell_lists(self) -> None:
        """Say where the configuration should say something else."""
        listed = {name for name, _ in self._node.options.limits.channels}
        for name, move in self.moves.items():
            if move.step is Step.GONE and name in listed:
                log.stream.warning(
                    f'Channel "{_shown(name)}" has moved to {move.peer}: take it out of the list '
                    "of this server"
                )
            elif move.keeps and name not in listed:
                log.stream.warning(
                    f'Channel "{_shown(name)}" has come here from {move.peer}: add it to the list '
                    "of this server"
                )

    def limits(self, limits: StoreLimits) -> StoreLimits:
        """What holds here, if ``limits`` is what the configuration says."""
        return with_moved(limits, self.moves)

    def limits_of(self, name: bytes) -> ChannelLimits:
        """What holds for a channel that comes."""
        return Limits(self.limits(self._node.options.limits)).of(name)

    def set_aside(self, store: Store, recovered: Recovered) -> Recovered:
        """Take out of what was recovered what is not served here. Raises ``StoreError``."""
        names = {_bytes(name) for name, move in self.moves.items() if move.is_elsewhere}
        if not names:
            return recovered
        found = {channel.name: channel for channel in recovered.channels if channel.name in names}
        for name in names.intersection(recovered.later):
            found |= {channel.name: channel for channel in store.open_channel(name).channels}
        self.aside = found
        # Now: a store says what it has found only until it has written the file anew.
        self.subs = {name: list(channel.recovered_subs()) for name, channel in found.items()}
        for name, channel in found.items():
            move = self.moves[_text(name)]
            if move.step is Step.GONE and channel.mover is None and name not in recovered.refused:
                # A crash between the two.
                with contextlib.suppress(RefusedError):
                    channel.set_moved(b"")
        return replace(
            recovered,
            channels=[channel for channel in recovered.channels if channel.name not in names],
            later=[name for name in recovered.later if name not in names],
            refused={name: why for name, why in recovered.refused.items() if name not in names},
        )

    def tell(self, broker: Broker) -> None:
        """Let the broker make no channel of those that are elsewhere."""
        broker.elsewhere |= {_bytes(name) for name, m in self.moves.items() if m.is_elsewhere}

    def move(self, name: bytes) -> Move:
        """The latest move of that channel. Raises ``RefusedError``: it was taken back."""
        move = self.moves.get(_text(name))
        if move is None:
            raise RefusedError("the move was taken back")
        return move

    def keep(self, name: bytes, move: Move | None) -> None:
        """Write down how far a move is, ``None``: there is none. On the data plane.

        Raises ``FencedError``, and ``StoreError``: nothing has changed.
        """
        owner = self._node.owner
        assert owner is not None
        moves = dict(self.moves)
        if move is None:
            moves.pop(_text(name), None)
        else:
            moves[_text(name)] = move
        try:
            owner.write_moves(moves)
        except StoreError as error:
            if not self._is_unchanged():
                # It may count or not, after a crash. The next start reads what holds.
                self._node.storage_failed(error)
            raise
        self.moves = moves

    def _is_unchanged(self) -> bool:
        owner = self._node.owner
        assert owner is not None
        try:
            return owner.settle_moves() == self.moves
        except FencedError:
            raise
        except FtstanError:
            return False

    async def change(self, function: Callable[[], None]) -> None:
        """Change what is kept, and what is served with it, in one step of the data plane.

        Raises ``RefusedError`` and ``StoreError``: nothing has changed.
        """
        try:
            await self._node.call(function)
        except FencedError as error:
            self._node.fenced(error)

    # ---- life
    # ----------------------------------------------------------------------------------------------

    async def begin(self, exchange: Exchange) -> None:
        """Hear the targets of channels that leave."""
        self._exchange = exchange
        control = exchange.control
        await control.serve(transfers.subject(self._node.options.cluster_id), self._on_question)
        await control.subscribe(f"{exchange.inbox}.moves.*", self._on_answer)

    def go_on(self) -> None:
        """This server serves: go on with the channels that were on their way here."""
        for name in self.moves:
            self.drive(_bytes(name))

    def drive(self, name: bytes) -> None:
        """Go on with that channel, if it is on its way here."""
        move = self.moves.get(_text(name))
        if move is not None and move.step in {Step.COPYING, Step.READY}:
            self.target(name).start()

    async def end(self) -> None:
        """Ask and answer no more."""
        self._exchange = None
        for target in self.targets.values():
            await target.end()
        for source in self.sources.values():
            await source.end()

    @property
    def is_open(self) -> bool:
        """Whether other partitions can be asked, and are answered."""
        return self._exchange is not None

    def list_changed(self) -> None:
        """Other partitions are told another list from now on."""
        partition = self.partition()
        if self._exchange is not None and partition is not None:
            self._exchange.change(partition.names)

    def source(self, name: bytes) -> MoveSource:
        """This server's part as the one that the channel leaves."""
        return self.sources.setdefault(name, MoveSource(self._node, self, name))

    def target(self, name: bytes) -> MoveTarget:
        """This server's part as the one that the channel comes to."""
        return self.targets.setdefault(name, MoveTarget(self._node, self, name))

    # ---- the other server
    # ----------------------------------------------------------------------------------------------

    async def ask(self, move: Move, asked: dict[str, Any], *, once: bool = False) -> bytes:
        """What the source answers. ``once``: it takes its time, and must not be asked twice.

        Raises ``NatsError``, ``RefusedError`` and ``WireError``.
        """
        parts: list[bytes] = []
        got = 0
        whole: tuple[int, int] | None = None
        while whole is None or got < whole[0]:
            exchange = self._exchange
            if exchange is None:
                raise RefusedError("this server stops")
            most = min(transfers.PIECE, exchange.control.max_payload - transfers.ROOM)
            piece, told = await self._ask_once(
                exchange, move, asked | {"offset": got, "most": max(most, 1)}, once=once
            )
            whole = whole or told
            if whole != told or (not piece and got < whole[0]):
                raise WireError("the other server has changed its answer")
            parts.append(piece)
            got += len(piece)
        data = b"".join(parts)
        transfers.check_whole(data, whole)
        return data

    async def _ask_once(
        self, exchange: Exchange, move: Move, asked: dict[str, Any], *, once: bool
    ) -> tuple[bytes, tuple[int, int]]:
        secret = bytes.fromhex(move.secret)
        for _ in range(1 if once else _ATTEMPTS):
            nonce = self._node.nuid.next()
            reply = f"{exchange.inbox}.moves.{nonce}"
            question = transfers.encode_question(
                secret, asked | {"transfer": move.transfer, "nonce": nonce}
            )
            answer = self._waiting[reply] = asyncio.get_running_loop().create_future()
            try:
                await exchange.control.publish(
                    transfers.subject(self._node.options.cluster_id), question, reply
                )
                async with asyncio.timeout(_ANSWER_S * (_ATTEMPTS if once else 1)):
                    return transfers.decode_answer(secret, nonce, await answer)
            except (TimeoutError, WireError):
                continue
            finally:
                del self._waiting[reply]
        raise NatsError(
            _NO_ANSWER, hint="see whether it runs, and whether both are in one NATS network"
        )

    def _on_answer(self, subject: str, data: bytes) -> None:
        answer = self._waiting.get(subject)
        if answer is not None and not answer.done():
            answer.set_result(data)

    def _on_question(self, data: bytes, reply: str) -> None:
        try:
            asked = transfers.read_question(data)
        except WireError as error:
            log.stream.debug(error.text)
            return
        for name, move in self.moves.items():
            if move.step.is_source and move.transfer == asked["transfer"]:
                if transfers.is_proven(bytes.fromhex(move.secret), data):
                    tasks.aside(self._reply(_bytes(name), move, asked, reply), "move of a channel")
                return

    async def _reply(self, name: bytes, move: Move, asked: dict[str, Any], reply: str) -> None:
        secret = bytes.fromhex(move.secret)
        nonce = str(asked.get("nonce"))
        offset = asked.get("offset")
        most = asked.get("most")
        try:
            whole = await self.source(name).answer(move, asked)
            if not isinstance(offset, int) or not isinstance(most, int):
                raise RefusedError("the question does not say which piece it asks for")
            answer = transfers.encode_answer(
                secret, nonce, whole, max(offset, 0), min(max(most, 1), transfers.PIECE)
            )
        except FencedError as error:
            self._node.fenced(error)
        except FtstanError as error:
            answer = transfers.encode_refusal(secret, nonce, error.text)
        exchange = self._exchange
        if exchange is not None:
            with contextlib.suppress(NatsError):
                await exchange.control.publish(reply, answer)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _shown(name: str) -> str:
    return _bytes(name).decode("utf-8", "backslashreplace")
