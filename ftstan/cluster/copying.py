"""Copying the store of another node, for one that is behind what the log still has.

Messages do not change once they are stored, so they are copied while their node goes on. What does
change is small and taken at one moment, the *manifest*: the position of the log that it belongs to,
where each channel begins and ends, subscriptions with what they have not acknowledged, clients.
When the store holds all of it, its checkpoint says so, and the node reads the log from there.

A channel that is damaged here is deleted, and copied whole.

A copy can break off anywhere. From the manifest to its end the checkpoint says that the store holds
nothing for certain, and the next attempt keeps every message that the other node still has in that
place. Before the manifest is there nothing of the store is touched.

Answers come in pieces, each with the CRC of the piece and of the whole.

An answer of nothing says that the messages went by the limits, and is given for no other reason:
it comes from the process that has sent the manifest, named in every request, and only where the
channel begins behind them. Messages that a repair has found lost are named in the manifest, and
lost in the copy, too.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ftstan.base.errors import DamageError, FtstanError, StoreError
from ftstan.base.log import stream as log
from ftstan.cluster.entry import Op, Operation, Position, decode_operations, encode_operations
from ftstan.cluster.names import copy_subject
from ftstan.cluster.replica import BehindError
from ftstan.wire.block import PACKED_HEAD, MsgBlock, SubEvents, unpack_block
from ftstan.wire.nuid import Nuid

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from ftstan.cluster.replica import LocalChannel, Replica
    from ftstan.nats.jetstream import JetStream
    from ftstan.stores.interface import ChannelStore, StoredSub

_HEAD: Final = struct.Struct(">BIIQ")
_GIVEN: Final = 0
_REFUSED: Final = 1
_MANIFEST: Final = "manifest"
_MESSAGES: Final = "messages"
#: Bytes of a piece, and of messages read at once.
_PIECE: Final = 512 << 10
_ROOM: Final = 4 << 10
_MOST_MESSAGES: Final = 10_000
#: Manifests that a node keeps for those who copy: more than there are of them, because those that
#: broke off are kept, too.
_KEPT: Final = 4
_ASK_S: Final = 3.0
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class _Channel:
    """Where a channel begins and ends; ``name`` is hexadecimal. ``lost``: the first and the last
    sequence of each row of messages that a repair has found lost.
    """

    name: str
    first: int
    last: int
    last_timestamp: int
    lost: list[list[int]] = field(default_factory=list)

    def has_lost(self, first: int, last: int) -> bool:
        """Whether all messages of a row are lost, or there are none in it."""
        for low, high in sorted(self.lost):
            if low <= first <= high:
                first = high + 1
        return first > last


# ---- the node that is copied
# --------------------------------------------------------------------------------------------------


class CopySource:
    """Answers for ``replica``, on the thread that owns it.

    ``position()``: up to where the store is complete now, with everything that waits given to it;
    ``None`` while it cannot be copied. ``subs(channel)``: the subscriptions at that position.
    """

    def __init__(
        self,
        replica: Replica,
        position: Callable[[], Position | None],
        subs: Callable[[LocalChannel], Iterable[StoredSub]],
    ) -> None:
        self._replica = replica
        self._position = position
        self._subs = subs
        self._life = Nuid().next()
        """In the manifest: another server with the same node id knows it not."""

    def answer(self, request: bytes) -> bytes:
        """The answer to a request. Raises ``FencedError`` if this node leads no more."""
        try:
            asked = json.loads(request)
            offset = int(asked["offset"])
            most = min(max(int(asked["most"]), 1), _PIECE)
            whole = self._whole(asked)
            piece = whole[offset : offset + most]
            return _HEAD.pack(_GIVEN, zlib.crc32(piece), zlib.crc32(whole), len(whole)) + piece
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            return _refusal(f"a request that cannot be understood: {error}")
        except (StoreError, DamageError) as error:
            return _refusal(error.text)

    def _whole(self, asked: dict[str, Any]) -> bytes:
        manifests = self._replica.manifests
        token = str(asked["token"])
        incarnation = asked["incarnation"]
        found = manifests.pop(token, None)
        if found is not None:
            # The last one that was asked for is the last one to go.
            manifests[token] = found
        if self._replica.at.incarnation.hex() != incarnation:
            raise StoreError("this node has nothing to copy now")
        if asked["want"] == _MESSAGES:
            if found is None or asked["life"] != self._life:
                # It has begun anew since, or is another one with the same id: what it does not have
                # did not go by limits.
                raise StoreError("this node knows nothing of that copy")
            return self._given(
                bytes.fromhex(asked["channel"]), int(asked["from"]), int(asked["to"])
            )
        if found is None:
            at = self._position()
            if at is None:
                raise StoreError("this node has nothing to copy now")
            found = manifests[token] = self._manifest(at)
            while len(manifests) > _KEPT:
                del manifests[next(iter(manifests))]
        return found

    def _given(self, name: bytes, first: int, last: int) -> bytes:
        local = self._replica.find(name)
        if local is None:
            # It was deleted, which the log says behind the manifest.
            return b""
        held, packed = messages_of(local.store, first, last)
        # The read may have met damage, and passed over it.
        shown = name.decode("utf-8", "backslashreplace")
        if shown in self._replica.store.quarantined:
            raise StoreError(f'channel "{shown}" of this node is damaged')
        row = self._row(name, local.store)
        wanted = max(first, local.store.first, 1)
        for begins, ends in held or [(last + 1, last)]:
            if wanted <= last and not row.has_lost(wanted, begins - 1):
                raise StoreError(f'channel "{shown}" of this node lacks message {wanted}')
            wanted = ends + 1
        return packed

    def _row(self, name: bytes, store: ChannelStore) -> _Channel:
        lost = [[a, b] for a, b in self._replica.store.lost(name)]
        return _Channel(name.hex(), store.first, store.last, store.last_timestamp, lost)

    def _manifest(self, at: Position) -> bytes:
        replica = self._replica
        for name in list(replica.later):
            replica.find(name)
        if replica.refused:
            name, why = next(iter(replica.refused.items()))
            raise StoreError(f'channel "{name.decode("utf-8", "backslashreplace")}": {why}')
        channels = []
        operations = [
            Operation(Op.CLIENT_NEW, client.client_id, client)
            for client in replica.clients.values()
        ]
        operations += [
            Operation(Op.NODE, node.encode(), int(is_in)) for node, is_in in replica.nodes.items()
        ]
        if replica.info is not None:
            operations.append(Operation(Op.SERVER_INFO, b"", replica.info))
        for name, local in replica.channels.items():
            channels.append(self._row(name, local.store))
            operations += sub_operations(name, self._subs(local))
        if replica.remembered:
            window = dict(replica.remembered)
            operations.append(Operation(Op.REMEMBER, b"", (window, len(window))))
        head = json.dumps(
            {
                "position": asdict(at) | {"incarnation": at.incarnation.hex()},
                "life": self._life,
                "channels": [asdict(channel) for channel in channels],
            }
        ).encode()
        return head + b"\n" + encode_operations(operations)


def _refusal(why: str) -> bytes:
    return _HEAD.pack(_REFUSED, 0, 0, 0) + why.encode("utf-8", "backslashreplace")


def sub_operations(name: bytes, subs: Iterable[StoredSub]) -> list[Operation]:
    """Subscriptions of a channel, and what they have not acknowledged."""
    operations = []
    pending = SubEvents()
    for stored in subs:
        operations.append(Operation(Op.SUB_NEW, name, stored.state))
        for sequence in sorted(stored.pending):
            pending.sent(stored.state.sub_id, sequence)
    if len(pending):
        operations.append(Operation(Op.EVENTS, name, pending))
    return operations


def messages_of(store: ChannelStore, first: int, last: int) -> tuple[list[tuple[int, int]], bytes]:
    """Messages ``first`` to ``last``, or the first of them that are there, packed; and the first
    and the last sequence of each row of them without a hole.
    """
    block = store.read(first, _MOST_MESSAGES, _PIECE)
    if block is None:
        return [], b""
    start = block.position(first)
    end = block.position(last + 1)
    packed = block.pack()[
        start * PACKED_HEAD + block.sizes(0, start) : end * PACKED_HEAD + block.sizes(0, end)
    ]
    return _rows(block, start, end), packed


def _rows(block: MsgBlock, start: int, end: int) -> list[tuple[int, int]]:
    """The messages of a block from position ``start`` to before ``end``, as rows without a hole."""
    if start >= end:
        return []
    first = block.sequence(start)
    last = block.sequence(end - 1)
    if last - first == end - 1 - start:
        return [(first, last)]
    rows = []
    begins = ends = first
    for at in range(start + 1, end):
        sequence = block.sequence(at)
        if sequence != ends + 1:
            rows.append((begins, ends))
            begins = sequence
        ends = sequence
    return [*rows, (begins, ends)]


# ---- the node that copies
# --------------------------------------------------------------------------------------------------


class CopyError(FtstanError):
    """The copy broke off; another attempt may succeed."""


class Copy:
    """One attempt to copy the store of ``node`` into ``replica``.

    ``step`` makes one request at most, so that the thread can do other things in between.
    """

    def __init__(self, js: JetStream, replica: Replica, cluster_id: str, node: str) -> None:
        self._js = js
        self._replica = replica
        self.node = node
        self._subject = copy_subject(cluster_id, node)
        # In every request: only who has sent the manifest knows which messages belong to it.
        self._names = {"token": Nuid().next(), "incarnation": replica.at.incarnation.hex()}
        self.messages = 0
        """How many messages were fetched."""
        self._steps = self._run()

    def step(self) -> Position | None:
        """Go on; the position that was reached when everything is there and synced.

        Raises ``CopyError``, ``BehindError`` if the local store refuses, ``ConnectionLostError``.
        """
        try:
            next(self._steps)
        except StopIteration as end:
            at: Position = end.value
            return at
        except DamageError as error:
            raise CopyError(error.text, hint=error.hint) from error
        except StoreError as error:
            # What the store has lost of former batches with it, no later sync would tell.
            raise BehindError(error.text, hint=error.hint) from error
        except (ValueError, KeyError, TypeError) as error:
            raise CopyError(f"node {self.node} sent what cannot be read: {error}") from error
        return None

    def _run(self) -> Generator[None, None, Position]:
        replica = self._replica
        incarnation = replica.at.incarnation
        whole = yield from self._fetch({"want": _MANIFEST})
        line, _, rest = whole.partition(b"\n")
        said = json.loads(line)
        told = said["position"]
        self._names["life"] = str(said["life"])
        at = Position(incarnation, told["sequence"], told["crc"], told["epoch"], told["leader"])
        channels = {bytes.fromhex(row["name"]): _Channel(**row) for row in said["channels"]}
        # Not before: what this node has may be all that is left of it.
        replica.forsake()
        for name in (*replica.channels, *replica.later):
            if name not in channels:
                replica.drop(name)
        for name, channel in channels.items():
            yield from self._channel(name, channel)
        replica.adopt(decode_operations(rest), at)
        return at

    def _channel(self, name: bytes, channel: _Channel) -> Generator[None, None, None]:
        replica = self._replica
        local = replica.find(name)
        if local is not None and (
            name in replica.damaged or not (yield from self._goes_on(name, channel, local.store))
        ):
            replica.drop(name)
            local = None
        local = local or replica.channel(name)
        local.store.keep()
        due = max(channel.first, local.store.last + 1, 1)
        while due <= channel.last:
            block = unpack_block((yield from self._messages(name, due, channel.last)))
            if not len(block):
                # They went by the limits of that node meanwhile.
                break
            if local.store.last and not channel.has_lost(due, block.first - 1):
                replica.drop(name)
                local = replica.channel(name)
            due = block.last + 1
            self.messages += len(block)
            replica.fill(local, block)
        if local.store.first < channel.first <= local.store.last:
            # A purge that this node has missed.
            local.store.purge(channel.first - 1)
        if channel.lost and local.store.count:
            ends_lost = channel.has_lost(local.store.last + 1, channel.last)
            last = channel.last if ends_lost else local.store.last
            replica.accept_lost(name, [(low, high) for low, high in channel.lost], last)
        if local.store.last < channel.last:
            # Nothing is left, and the next message is still the one behind the last.
            mark = MsgBlock()
            mark.append(channel.last, name, b"", b"", channel.last_timestamp)
            replica.fill(local, mark)
            local.store.purge(channel.last)

    def _goes_on(
        self, name: bytes, channel: _Channel, store: ChannelStore
    ) -> Generator[None, None, bool]:
        """Whether what is here of the channel can stay: its last message is that node's, too."""
        last = store.last
        if not channel.first <= last <= channel.last:
            return False
        # What is lost there and not here must not be lost here, too: an earlier message tells.
        for low, high in sorted(channel.lost, reverse=True):
            if low <= last <= high:
                last = low - 1
        if last < max(channel.first, store.first):
            return False
        theirs = yield from self._messages(name, last, last)
        return bool(theirs) and theirs == messages_of(store, last, last)[1]

    def _messages(self, name: bytes, first: int, last: int) -> Generator[None, None, bytes]:
        asked = {"want": _MESSAGES, "channel": name.hex(), "from": first, "to": last}
        return (yield from self._fetch(asked))

    def _fetch(self, asked: dict[str, object]) -> Generator[None, None, bytes]:
        most = min(_PIECE, self._js.link.max_payload - _ROOM)
        pieces: list[bytes] = []
        got = 0
        first = None
        while True:
            request = json.dumps(asked | self._names | {"offset": got, "most": most}).encode()
            check, size, piece = self._ask(request)
            first = first or (check, size)
            if first != (check, size) or (not piece and got < size):
                raise CopyError(f"node {self.node} changed its answer")
            pieces.append(piece)
            got += len(piece)
            yield
            if got >= size:
                break
        whole = b"".join(pieces)
        if zlib.crc32(whole) != check:
            raise CopyError(f"what node {self.node} sent was damaged on the way")
        return whole

    def _ask(self, request: bytes) -> tuple[int, int, bytes]:
        for _ in range(_ATTEMPTS):
            answers = self._js.ask(self._subject, request, _ASK_S)
            if answers and answers[0].status:
                raise CopyError(f"node {self.node} does not answer")
            if not answers:
                continue
            payload = answers[0].payload
            if len(payload) < _HEAD.size:
                raise CopyError(f"node {self.node} sent an answer that is cut short")
            status, crc, check, size = _HEAD.unpack_from(payload)
            piece = payload[_HEAD.size :]
            if status != _GIVEN:
                raise CopyError(f"node {self.node}: {piece.decode('utf-8', 'replace')}")
            if zlib.crc32(piece) == crc:
                return check, size, piece
            log.warning(f"cluster: a piece of the copy from node {self.node} came damaged: again")
        raise CopyError(f"node {self.node} does not answer")
