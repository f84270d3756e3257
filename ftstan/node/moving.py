"""Channels that move between partitions, as one node takes part in it: what its datastore says of
them, what operators ask, and what the other server is asked and answered.

The list of channels that a partitioned server serves is its configured one, changed by ``ft.moves``
(``ft/moves.py``). A move has a source (``move_source``) and a target (``move_target``); the target
drives it. On the control thread, on the connection of the exchange with other partitions; what
touches the datastore or the broker is posted to the data plane.

Source: ``docs/partitioning.md`` (moving a channel).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import asdict, replace
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
from ftstan.config.limits import Limits
from ftstan.config.options import ChannelLimits
from ftstan.ft.moves import Move, Step, as_written, served_names, with_moved
from ftstan.nats import tasks
from ftstan.node.move_source import MoveSource
from ftstan.node.move_target import MoveTarget
from ftstan.node.within import within
from ftstan.wire import transfers
from ftstan.wire.patterns import PatternSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ftstan.admin.protocol import Request
    from ftstan.broker.broker import Broker
    from ftstan.broker.managing import Row
    from ftstan.broker.partition import Partition
    from ftstan.config.options import StoreLimits
    from ftstan.ft.moves import Moves
    from ftstan.node.context import Context
    from ftstan.node.partition_exchange import Exchange
    from ftstan.node.pipeline import Serving
    from ftstan.stores.interface import ChannelStore, Recovered, Store

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
        self._partition = partition
        self.moves: Moves = {}
        """Replaced as a whole, on the data plane; other threads may read it."""
        self.aside: dict[bytes, ChannelStore] = {}
        """Channels of the store that are not served: what has gone, and what comes. The data
        plane's.
        """
        self._sources: dict[bytes, MoveSource] = {}
        self._targets: dict[bytes, MoveTarget] = {}
        self._exchange: Exchange | None = None
        self._waiting: dict[str, asyncio.Future[bytes]] = {}

    # ---- what the datastore says
    # ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read it, on the data plane. Raises ``RecoveryError`` and ``StoreError``."""
        owner = self._node.owner
        if owner is not None and owner.has_directory:
            self.moves = owner.read_moves()

    def names(self, listed: Iterable[str]) -> tuple[bytes, ...]:
        """What this server serves."""
        return tuple(map(_bytes, served_names(tuple(dict.fromkeys(listed)), self.moves)))

    def tell_lists(self) -> None:
        """Say where the configuration should say something else."""
        listed = self._listed()
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
        for name, channel in found.items():
            move = self.moves[_text(name)]
            if move.step is Step.GONE and channel.mover is None and name not in recovered.refused:
                # A crash between the two.
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
        with contextlib.suppress(FtstanError):
            found = owner.read_moves()
            return found == self.moves
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
        for name, move in self.moves.items():
            if move.step in {Step.COPYING, Step.READY}:
                self._target(_bytes(name)).start()

    async def end(self) -> None:
        """Ask and answer no more."""
        self._exchange = None
        for target in self._targets.values():
            await target.end()
        for source in self._sources.values():
            await source.end()

    def list_changed(self) -> None:
        """Other partitions are told another list from now on."""
        partition = self._partition()
        if self._exchange is not None and partition is not None:
            self._exchange.change(partition.names)

    def _source(self, name: bytes) -> MoveSource:
        return self._sources.setdefault(name, MoveSource(self._node, self, name))

    def _target(self, name: bytes) -> MoveTarget:
        return self._targets.setdefault(name, MoveTarget(self._node, self, name))

    # ---- the other server
    # ----------------------------------------------------------------------------------------------

    async def ask(self, move: Move, asked: dict[str, Any]) -> bytes:
        """What the source answers. Raises ``NatsError``, ``RefusedError`` and ``WireError``."""
        parts: list[bytes] = []
        got = 0
        whole: tuple[int, int] | None = None
        while whole is None or got < whole[0]:
            exchange = self._exchange
            if exchange is None:
                raise RefusedError("this server stops")
            most = min(transfers.PIECE, exchange.control.max_payload - transfers.ROOM)
            piece, told = await self._ask_once(
                exchange, move, asked | {"offset": got, "most": max(most, 1)}
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
        self, exchange: Exchange, move: Move, asked: dict[str, Any]
    ) -> tuple[bytes, tuple[int, int]]:
        secret = bytes.fromhex(move.secret)
        for _ in range(_ATTEMPTS):
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
                async with asyncio.timeout(_ANSWER_S):
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
        secret, nonce = bytes.fromhex(move.secret), str(asked.get("nonce"))
        offset, most = asked.get("offset"), asked.get("most")
        try:
            whole = await self._source(name).answer(move, asked)
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

    # ---- operators
    # ----------------------------------------------------------------------------------------------

    def rows(self, after: str) -> list[Row]:
        """Every move that this datastore knows of, for operators: channels behind ``after``."""
        rows = []
        for name, move in sorted(self.moves.items()):
            if name <= after:
                continue
            target = self._targets.get(_bytes(name))
            source = self._sources.get(_bytes(name))
            rows.append(
                {
                    "name": name,
                    "step": str(move.step),
                    "side": "source" if move.step.is_source else "target",
                    "peer": move.peer,
                    "transfer": move.transfer,
                    "copied": target.copied if target is not None else 0,
                    "of": target.of if target is not None else 0,
                    "frozen": source is not None and source.frozen is not None,
                    "error": target.error if target is not None else "",
                    "serves": move.keeps or move.step is Step.OFFERED,
                    "cleaned": move.cleaned,
                    "listed": name in self._listed(),
                    "limits": _limits_row(move),
                }
            )
        return rows

    def _listed(self) -> set[str]:
        return {name for name, _ in self._node.options.limits.channels}

    def _check_able(self) -> Partition:
        """Raise ``RefusedError`` if no channel can move to or from this server."""
        node = self._node
        partition = self._partition()
        if partition is None or self._exchange is None:
            raise RefusedError(
                "this server is not partitioned, or does not serve now",
                hint="a channel moves between servers with partitioning: true",
            )
        if not node.options.allow_channel_move:
            raise RefusedError(
                "this server does not let channels move",
                hint="set allow_channel_move to true, and reload",
            )
        if node.owner is None or not node.owner.has_directory or node.options.store != "FILE":
            raise RefusedError(
                f"a {node.options.store} store cannot keep what has moved",
                hint="only channels of file stores move; see docs/partitioning.md",
            )
        if node.group is not None and node.group.mixed:
            raise RefusedError(
                "in a mixed group no channel can move: an original server would serve it all the "
                "same",
                hint="when the last original member has gone: ftstanctl ft mixed off",
            )
        return partition

    async def offer(self, request: Request) -> Row:
        """Let a target have a channel (``on``), or say what that would be.

        Raises ``RefusedError`` and other ``FtstanError``.
        """
        partition = self._check_able()
        name = _bytes(request.name)
        known = self.moves.get(request.name)
        if known is not None and known.step is Step.GONE and known.peer == request.to:
            return {"name": request.name, "step": str(Step.GONE), "transfer": known.transfer}
        if known is not None and known.step in {Step.COPYING, Step.READY}:
            raise RefusedError(
                f"the channel is on its way here from {known.peer}",
                hint="ftstanctl channel move --status shows how far it is",
            )
        if known is not None and known.step is Step.OFFERED and known.peer != request.to:
            raise RefusedError(
                f"the channel is on its way to {known.peer}",
                hint="first: ftstanctl channel move --undo",
            )
        if not partition.owns(name):
            raise RefusedError(
                "the channel belongs to another partition",
                hint="ask the server that lists it under channels",
            )
        if not partition.names_alone(name):
            entry = next((e for e in partition.entries if PatternSet([e]).match(name)), b"").decode(
                "utf-8", "backslashreplace"
            )
            raise RefusedError(
                f'the channel is served by the entry "{entry}": only one that an entry names, and '
                "no other covers, can move",
                hint="list the channels of this server by their names, and restart it",
            )
        row: Row = await self._serve(partial(self._row_of, name))
        if request.on:
            rules = Limits(self.limits(self._node.options.limits)).rules_of(name)
            move = Move(
                _hexadecimal(request.transfer, _TRANSFER_SIZE),
                Step.OFFERED,
                _hexadecimal(request.secret, _SECRET_SIZE),
                request.to,
                ChannelLimits(**row["limits"]),
                rules,
                keeps=known is not None and known.keeps,
            )
            await self._replace(name, known, move)
            if name in self._sources:
                await self._sources[name].thaw("the move begins again")
        return row | {"step": str(Step.OFFERED)}

    def _row_of(self, name: bytes, serving: Serving) -> Row:
        """What a channel that may move is. Raises ``RefusedError``."""
        source = self._sources.get(name)
        if source is not None and source.frozen is not None:
            raise RefusedError("the channel is just being handed over", hint="look again")
        broker = serving.broker
        channel = managing.find_channel(broker, name)
        store = channel.store
        if channel.refused is not None:
            raise RefusedError(
                channel.refused.decode("utf-8", "backslashreplace"),
                hint="ftstanctl store repair ends the damage",
            )
        if channel.mover is not None:
            raise RefusedError(
                "the channel has moved elsewhere, and takes no publishes",
                hint="first: ftstanctl channel moved CHANNEL off, or ftstanctl bridge undo",
            )
        if store.count and store.count != store.last - store.first + 1:
            raise RefusedError(
                "messages in the channel are missing between others",
                hint="purge it up to the last one that is missing: ftstanctl channel purge",
            )
        rules = broker.limits.rules_of(name)
        shown = _text(name)
        if (rules is not None and rules.max_deliveries > 0) or (
            shown in broker.limits.dead_letter_channels
        ):
            raise RefusedError(
                "the channel has dead letters, or takes those of others: both have to be on one "
                "server",
                hint="take dead_letter out of the configuration, and reload, before it moves",
            )
        return managing.channel_row(channel) | {
            "limits": asdict(as_written(broker.limits.of(name))),
            "encrypted": self._node.ring is not None,
        }

    async def accept(self, request: Request) -> Row:
        """Bring a channel here (``on``), or say whether that can be done."""
        partition = self._check_able()
        name = _bytes(request.name)
        known = self.moves.get(request.name)
        if known is not None and known.step is Step.OFFERED:
            raise RefusedError(
                f"the channel is on its way from here to {known.peer}",
                hint="ftstanctl channel move --status shows how far it is",
            )
        if partition.owns(name):
            raise RefusedError(
                "this server serves the channel, or lists an entry that covers it",
                hint="ftstanctl channel info says who serves it",
            )
        comes_again = known is not None and known.step in {Step.COPYING, Step.READY}
        await self._serve(partial(self._check_new, name, comes_again=comes_again))
        if not request.on:
            return {"name": request.name, "step": "possible"}
        move = Move(
            _hexadecimal(request.transfer, _TRANSFER_SIZE),
            Step.COPYING,
            _hexadecimal(request.secret, _SECRET_SIZE),
            request.to,
            ChannelLimits(),
        )
        told = await MoveTarget(self._node, self, name).look(move)
        if told["step"] != Step.OFFERED:
            raise RefusedError("the source does not offer the channel any more", hint="look again")
        if told["encrypted"] and self._node.ring is None:
            raise RefusedError(
                "the source encrypts payloads, and this server would store them plain",
                hint="give this server a key (-encrypt), and restart it",
            )
        move = replace(move, limits=ChannelLimits(**told["limits"]))
        if name in self._targets:
            await self._targets.pop(name).end()
        await self._change(partial(self._begin, name, known, move, comes_again=comes_again))
        self._target(name).start()
        return {"name": request.name, "step": str(Step.COPYING)}

    @staticmethod
    def _check_new(name: bytes, serving: Serving, *, comes_again: bool) -> None:
        broker = serving.broker
        if name in broker.channels or name in broker.later:
            raise RefusedError(
                "this server's datastore has a channel of that name, from a time when it was "
                "listed here",
                hint="list it here and nowhere else, delete it, and take it out of the list again",
            )
        if comes_again or name in broker.elsewhere:
            return
        try:
            broker.check_new(name)
        except StoreError as error:
            raise RefusedError(error.text, hint=error.hint or "see max_channels") from error

    def _begin(self, name: bytes, known: Move | None, move: Move, *, comes_again: bool) -> None:
        serving = self._node.plane.serving
        assert serving is not None
        self._check_unchanged(name, known)
        if not comes_again and name in self.aside:
            # It was here before, and went: what it left is no copy of what it is now.
            serving.broker.store.delete_channel(name)
            del self.aside[name]
        self.keep(name, move)
        serving.broker.elsewhere.add(name)
        serving.set_limits(self.limits(self._node.options.limits))

    def _check_unchanged(self, name: bytes, known: Move | None) -> None:
        """Raise ``RefusedError`` unless the move is as it was when it was judged."""
        if self.moves.get(_text(name)) != known:
            raise RefusedError("the move has gone on meanwhile", hint="look again")

    async def _replace(self, name: bytes, known: Move | None, move: Move | None) -> None:
        def replace_it() -> None:
            self._check_unchanged(name, known)
            self.keep(name, move)

        await self._change(replace_it)

    async def undo(self, request: Request) -> str:
        """Take a move back, before its point of no return.

        ``force``: the source has taken it back.
        """
        name = _bytes(request.name)
        move = self.moves.get(request.name)
        if move is None or not (move.is_under_way or move.step is Step.GONE):
            return "no move of it is under way here"
        if move.step is Step.GONE:
            raise RefusedError(
                f"the channel has moved to {move.peer} for good",
                hint="move it back: ftstanctl channel move CHANNEL --to this server",
            )
        if move.step is Step.OFFERED:
            await self._replace(name, move, replace(move, step=Step.TAKEN) if move.keeps else None)
            # Nobody can ask it to let go any more.
            source = self._sources.pop(name, None)
            if source is not None:
                await source.thaw("an operator has taken the move back")
            return "taken back: it is served here as before"
        if move.step is Step.READY and not request.force:
            raise RefusedError(
                "the copy is complete, and the source may have let go already",
                hint="take it back at the source first: ftstanctl channel move --undo asks both",
            )
        target = self._targets.pop(name, None)
        if target is not None:
            await target.end()
        await self._change(partial(self._forget, name, self.moves.get(request.name)))
        return "taken back: the copy is removed"

    def _forget(self, name: bytes, known: Move | None) -> None:
        serving = self._node.plane.serving
        assert serving is not None
        self._check_unchanged(name, known)
        if known is None or known.step is Step.TAKEN:
            raise RefusedError("the channel has come here meanwhile", hint="look again")
        if name in self.aside:
            # First: a record without a copy can be taken back, a copy without one is nobody's.
            serving.broker.store.delete_channel(name)
            del self.aside[name]
        self.keep(name, None)
        serving.broker.elsewhere.discard(name)
        serving.set_limits(self.limits(self._node.options.limits))

    async def clean(self, request: Request) -> str:
        """Remove what a channel that has gone has left here."""
        name = _bytes(request.name)
        move = self.moves.get(request.name)
        if move is None or move.step is not Step.GONE:
            raise RefusedError(
                "no channel of that name has moved away from here",
                hint="ftstanctl channel move --status shows what has",
            )
        if not request.force:
            raise RefusedError(
                f"{move.peer} has not said that it serves the channel",
                hint="ftstanctl channel move --remove-copy asks it first",
            )

        def remove() -> None:
            serving = self._node.plane.serving
            assert serving is not None
            self._check_unchanged(name, move)
            if name in self.aside:
                serving.broker.store.delete_channel(name)
                del self.aside[name]
            self.keep(name, replace(move, cleaned=True))

        await self._change(remove)
        return "removed what it had left here"

    async def _serve(self, function: Callable[[Serving], Any]) -> Any:
        def run() -> Any:
            serving = self._node.plane.serving
            if serving is None or not serving.ready:
                raise RefusedError(
                    "this server does not serve clients now",
                    hint="ask the active server, or wait until it serves",
                )
            return function(serving)

        try:
            return await within(self._node, _WITHIN_S, run)
        except FencedError as error:
            self._node.fenced(error)

    async def _change(self, function: Callable[[], None]) -> None:
        await self._serve(lambda _: function())


def new_transfer() -> tuple[str, str]:
    """A name and a secret for a move, as they stand in requests."""
    return os.urandom(_TRANSFER_SIZE).hex(), os.urandom(_SECRET_SIZE).hex()


def _hexadecimal(text: str, size: int) -> str:
    with contextlib.suppress(ValueError):
        if len(bytes.fromhex(text)) == size:
            return text
    raise RefusedError(
        "the request names no move", hint="use an ftstanctl of this server's release"
    )


def _limits_row(move: Move) -> dict[str, int]:
    return {name: value for name, value in asdict(move.limits).items() if value > 0}


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _shown(name: str) -> str:
    return _bytes(name).decode("utf-8", "backslashreplace")
