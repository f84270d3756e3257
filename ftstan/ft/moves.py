"""``ft.moves``: which channels of this datastore have moved to another partition or come from one,
and how far each move is.

One small file in the root, which the original ignores. It is replaced as a whole, durable before it
is visible, between two confirms, by the owner of the datastore alone; an owner that begins removes
what others have not finished first, and writes down anew what it finds. A step of one move only
goes forward; what a server serves follows from its configured list and from this file together, so
a restart with the list of before the move serves no channel twice and loses none.

What cannot be read ends a start: nobody could say which channels are another server's by now.

Source: ``docs/partitioning.md`` (moving a channel).
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import zlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ftstan.admin.keys import put_file, remove_unfinished
from ftstan.base.errors import RecoveryError, StoreError
from ftstan.config.options import ChannelLimits, DeliveryRules, StoreLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ftstan.base.disk import Disk

NAME: Final = "ft.moves"
_HEAD: Final = "ftstan moves 1 "
_LARGEST: Final = 16 << 20


class Step(enum.StrEnum):
    """How far a move is, as one of its two servers has it on storage."""

    OFFERED = "offered"
    """The source serves the channel, and lets the target copy it."""
    GONE = "gone"
    """The source has let go of it for good: the point of no return."""
    COPYING = "copying"
    """The target copies it."""
    READY = "ready"
    """The target has all of it, and does not serve it yet."""
    TAKEN = "taken"
    """The target serves it."""

    @property
    def is_source(self) -> bool:
        """Whether it is a step of the server that the channel leaves."""
        return self in {Step.OFFERED, Step.GONE}


#: Which step may follow which within one move. A target that was ready copies again if its source
#: served on.
_NEXT: Final = {
    Step.OFFERED: {Step.GONE},
    Step.GONE: set[Step](),
    Step.COPYING: {Step.READY},
    Step.READY: {Step.COPYING, Step.TAKEN},
    Step.TAKEN: set[Step](),
}


@dataclass(frozen=True, slots=True)
class Move:
    """One channel's latest move, as this datastore knows it.

    ``transfer``: names the move, in both servers' files. ``secret``: hexadecimal, proves that a
    message of the other server is about it. ``peer``: the other server, for people. ``limits`` and
    ``rules``: what holds for the channel where the configuration says nothing of it. ``keeps``: the
    channel is served here although the list may not name it, until it goes. ``cleaned``: nothing of
    it is left here.
    """

    transfer: str
    step: Step
    secret: str
    peer: str
    limits: ChannelLimits
    rules: DeliveryRules | None = None
    keeps: bool = False
    cleaned: bool = False

    def to(self, step: Step) -> Move:
        """The same move at its next step. Raises ``ValueError``: there is no way from here."""
        if step not in _NEXT[self.step]:
            raise ValueError(f"no move goes from {self.step} to {step}")
        keeps = (self.keeps and step is not Step.GONE) or step is Step.TAKEN
        return replace(self, step=step, keeps=keeps)

    @property
    def is_under_way(self) -> bool:
        """Whether something is still to be done about it."""
        return self.step in {Step.OFFERED, Step.COPYING, Step.READY}

    @property
    def is_elsewhere(self) -> bool:
        """Whether this server must not serve the channel, whatever its list says."""
        return self.step in {Step.GONE, Step.COPYING, Step.READY}


Moves = dict[str, Move]
"""By the channels' names, whose bytes that are no UTF-8 are surrogates."""


# ---- what is served
# --------------------------------------------------------------------------------------------------


def served_names(listed: Iterable[str], moves: Mapping[str, Move]) -> tuple[str, ...]:
    """The list of a server: what is configured, without what is elsewhere, and what came here."""
    names = [name for name in listed if name not in moves or not moves[name].is_elsewhere]
    names += [name for name, move in moves.items() if move.keeps and name not in names]
    return tuple(names)


def with_moved(limits: StoreLimits, moves: Mapping[str, Move]) -> StoreLimits:
    """The limits of a server: what is configured, and what came with a channel that the
    configuration does not name yet.
    """
    named = {name for name, _ in limits.channels}
    came = {
        name: move
        for name, move in moves.items()
        if name not in named and (move.keeps or not move.step.is_source)
    }
    if not came:
        return limits
    return replace(
        limits,
        channels=(*limits.channels, *((name, move.limits) for name, move in came.items())),
        deliveries=(
            *limits.deliveries,
            *((name, move.rules) for name, move in came.items() if move.rules is not None),
        ),
    )


def as_written(limits: ChannelLimits) -> ChannelLimits:
    """An entry of the per-channel map that means ``limits`` whatever it would inherit: there, 0
    inherits and a negative number is no limit.
    """
    return ChannelLimits(**{name: value or -1 for name, value in asdict(limits).items()})


# ---- the file
# --------------------------------------------------------------------------------------------------


def read_moves(disk: Disk, root_fd: int) -> Moves:
    """What the file says; nothing if there is none. Raises ``RecoveryError`` and ``StoreError``."""
    try:
        try:
            fd = disk.open(root_fd, NAME, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return {}
        try:
            data = disk.pread(fd, _LARGEST + 1, 0)
        finally:
            disk.close(fd)
    except OSError as error:
        raise StoreError(
            f"{NAME} cannot be read: {error.strerror or error}", hint="check the storage"
        ) from error
    return decode_moves(data)


def write_moves(disk: Disk, root_fd: int, confirm: Callable[[], None], moves: Moves) -> None:
    """Put another file in its place, durable on return.

    ``confirm`` says that the store is ours, before the file is visible and when that is durable: no
    successor has read what was there before. Raises ``FencedError`` through it, and ``StoreError``:
    whether the file was replaced is not known then, see ``settle_moves``.
    """
    with _written():
        remove_unfinished(disk, root_fd, NAME, confirm)
        put_file(disk, root_fd, NAME, encode_moves(moves).decode(), confirm, base=NAME)
    confirm()


def settle_moves(disk: Disk, root_fd: int, confirm: Callable[[], None]) -> Moves:
    """What the file says for good: no rename that is under way, a former owner's or our own that
    was refused, can change it any more.

    ``confirm`` as of ``write_moves``. Raises ``FencedError`` through it, ``RecoveryError`` and
    ``StoreError``.
    """
    with _written():
        # Whoever confirmed before us has its file here: a late rename finds no source then.
        remove_unfinished(disk, root_fd, NAME, confirm)
        disk.fsync(root_fd)
    return read_moves(disk, root_fd)


def take_up_moves(disk: Disk, root_fd: int, confirm: Callable[[], None]) -> Moves:
    """``settle_moves`` for a new owner, before anything is served: what a former owner may not have
    made durable is durable on return.
    """
    moves = settle_moves(disk, root_fd, confirm)
    if moves:
        write_moves(disk, root_fd, confirm, moves)
    return moves


@contextlib.contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{NAME} cannot be written: {error.strerror or error}", hint="check the storage"
        ) from error


def encode_moves(moves: Mapping[str, Move]) -> bytes:
    """The file's bytes, without the end of its last line."""
    body = json.dumps({name: asdict(move) for name, move in moves.items()}).encode()
    return f"{_HEAD}{zlib.crc32(body):08x}\n".encode() + body


def decode_moves(data: bytes) -> Moves:
    """What the bytes of the file say. Raises ``RecoveryError``."""
    head, _, body = data.partition(b"\n")
    body = body.rstrip(b"\n")
    wanted = f"{_HEAD}{zlib.crc32(body):08x}".encode()
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        if head == wanted:
            return {name: _move(fields) for name, fields in json.loads(body).items()}
    is_later = head.startswith(b"ftstan moves ") and not head.startswith(_HEAD.encode())
    why = "is of a later release" if is_later else "is damaged"
    raise RecoveryError(
        f"{NAME} {why}: which channels have moved to another server is not known",
        hint="put it back from a backup; or, when the lists of all servers say again who serves "
        "which channel, remove it",
    )


def _move(fields: dict[str, Any]) -> Move:
    rules = fields["rules"]
    if rules is not None:
        again = rules["redelivery"]
        rules = DeliveryRules(**rules | {"redelivery": None if again is None else tuple(again)})
    return Move(
        **fields
        | {
            "step": Step(fields["step"]),
            "limits": ChannelLimits(**fields["limits"]),
            "rules": rules,
        }
    )
