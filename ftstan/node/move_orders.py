"""What operators ask of one server about channels that move: to give one, to take one, to take a
move back, to remove what is left.

On the control thread. What is changed is judged again in the step of the data plane that changes
it, because the other server may have gone on meanwhile.

Source: ``docs/partitioning.md`` (moving a channel).
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import FencedError, RefusedError, StoreError
from ftstan.broker import managing
from ftstan.config.limits import Limits
from ftstan.config.options import ChannelLimits
from ftstan.ft.moves import Move, Step, as_written
from ftstan.node.move_target import MoveTarget
from ftstan.node.within import within
from ftstan.wire.patterns import PatternSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftstan.admin.protocol import Request
    from ftstan.broker.managing import Row
    from ftstan.broker.partition import Partition
    from ftstan.node.context import Context
    from ftstan.node.moving import Moving
    from ftstan.node.pipeline import Serving

_WITHIN_S: Final = 10.0
_TRANSFER_SIZE: Final = 16
_SECRET_SIZE: Final = 32


class MoveOrders:
    """Carries them out for one node."""

    def __init__(self, node: Context, moving: Moving) -> None:
        self._node = node
        self._moving = moving

    def rows(self, after: str) -> list[Row]:
        """Every move that this datastore knows of, for operators: channels behind ``after``."""
        rows = []
        for name, move in sorted(self._moving.moves.items()):
            if name <= after:
                continue
            target = self._moving.targets.get(_bytes(name))
            source = self._moving.sources.get(_bytes(name))
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
        partition = self._moving.partition()
        if partition is None or not self._moving.is_open:
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
        known = self._moving.moves.get(request.name)
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
            rules = Limits(self._moving.limits(self._node.options.limits)).rules_of(name)
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
            if name in self._moving.sources:
                await self._moving.sources[name].give_up("the move begins again")
        return row | {"step": str(Step.OFFERED)}

    def _row_of(self, name: bytes, serving: Serving) -> Row:
        """What a channel that may move is. Raises ``RefusedError``."""
        source = self._moving.sources.get(name)
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
        known = self._moving.moves.get(request.name)
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
        told = await MoveTarget(self._node, self._moving, name).look(move)
        if told["step"] != Step.OFFERED:
            raise RefusedError("the source does not offer the channel any more", hint="look again")
        if told["encrypted"] and self._node.ring is None:
            raise RefusedError(
                "the source encrypts payloads, and this server would store them plain",
                hint="give this server a key (-encrypt), and restart it",
            )
        move = replace(move, limits=ChannelLimits(**told["limits"]))
        if name in self._moving.targets:
            await self._moving.targets.pop(name).end()
        try:
            await self._change(partial(self._begin, name, known, move, comes_again=comes_again))
        finally:
            # Also if that was refused: what was under way still is.
            self._moving.drive(name)
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
        if not comes_again and name in self._moving.aside:
            # It was here before, and went: what it left is no copy of what it is now.
            self._remove(serving, name)
        self._moving.keep(name, move)
        serving.broker.elsewhere.add(name)
        serving.set_limits(self._moving.limits(self._node.options.limits))

    def _check_unchanged(self, name: bytes, known: Move | None) -> None:
        """Raise ``RefusedError`` unless the move is as it was when it was judged."""
        if self._moving.moves.get(_text(name)) != known:
            raise RefusedError("the move has gone on meanwhile", hint="look again")

    async def _replace(self, name: bytes, known: Move | None, move: Move | None) -> None:
        def replace_it() -> None:
            self._check_unchanged(name, known)
            self._moving.keep(name, move)

        await self._change(replace_it)

    async def undo(self, request: Request) -> str:
        """Take a move back, before its point of no return.

        ``force``: the source has taken it back.
        """
        name = _bytes(request.name)
        move = self._moving.moves.get(request.name)
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
            source = self._moving.sources.pop(name, None)
            if source is not None:
                await source.give_up("an operator has taken the move back")
            return "taken back: it is served here as before"
        if move.step is Step.READY and not request.force:
            raise RefusedError(
                "the copy is complete, and the source may have let go already",
                hint="take it back at the source first: ftstanctl channel move --undo asks both",
            )
        target = self._moving.targets.pop(name, None)
        if target is not None:
            await target.end()
        try:
            await self._change(partial(self._forget, name, self._moving.moves.get(request.name)))
        finally:
            self._moving.drive(name)
        return "taken back: the copy is removed"

    def _forget(self, name: bytes, known: Move | None) -> None:
        serving = self._node.plane.serving
        assert serving is not None
        self._check_unchanged(name, known)
        if known is None or known.step is Step.TAKEN:
            raise RefusedError("the channel has come here meanwhile", hint="look again")
        if name in self._moving.aside:
            # First: a record without a copy can be taken back, a copy without one is nobody's.
            self._remove(serving, name)
        self._moving.keep(name, None)
        serving.broker.elsewhere.discard(name)
        serving.set_limits(self._moving.limits(self._node.options.limits))

    def _remove(self, serving: Serving, name: bytes) -> None:
        serving.broker.store.delete_channel(name)
        del self._moving.aside[name]
        self._moving.subs.pop(name, None)

    async def clean(self, request: Request) -> str:
        """Remove what a channel that has gone has left here."""
        name = _bytes(request.name)
        move = self._moving.moves.get(request.name)
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
            if name in self._moving.aside:
                self._remove(serving, name)
            self._moving.keep(name, replace(move, cleaned=True))

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
