"""One store's contents into another, whatever kinds they are: through the store interface alone.

Sequences, timestamps, payloads (as they are stored, encrypted or not), subscriptions with what they
have not acknowledged, clients, identity and remembered publishes come out the same. Subscription
ids are new: a database counts them for all channels together, a directory for each. Limits are not
copied: the server that serves the copy has its own.

Both stores are owned by the caller, and nobody else writes to them meanwhile.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ftstan.base.errors import DamageError, StoreError
from ftstan.config.limits import Limits
from ftstan.stores.interface import ChannelLimits
from ftstan.stores.sql.rows import block_of
from ftstan.wire.block import MsgBlock, SubEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ftstan.stores.interface import ChannelStore, Recovered, ServerInfo, Store, StoredSub

#: What expires is for the server to say.
UNLIMITED: Final = Limits.same(ChannelLimits(max_msgs=0, max_bytes=0, max_subs=0))

_MOST_MSGS: Final = 4096
_MOST_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class ChannelContents:
    """What a channel holds, in a form that can be compared.

    ``digest``: of every sequence, timestamp and payload, in their order. ``subs``: each
    subscription without its id, with its pending sequences.
    """

    name: bytes
    count: int
    last: int
    digest: str
    subs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a store holds."""

    info: ServerInfo | None
    clients: tuple[str, ...]
    channels: dict[bytes, ChannelContents]

    @property
    def messages(self) -> int:
        """Of all channels together."""
        return sum(channel.count for channel in self.channels.values())


def copy_store(
    source: Store,
    found: Recovered,
    target: Store,
    *,
    source_gaps: bool,
    target_gaps: bool,
    progress: Callable[[int], None] = lambda _messages: None,
) -> Contents:
    """Copy everything but the identity, which makes the copy a store: that comes last.

    ``found``: what ``source`` has recovered. ``target`` is empty and has recovered.
    ``source_gaps``, ``target_gaps``: whether its channels may lack sequences in between; where the
    source's may not, what is missing is damage. Returns what was read. Raises ``StoreError``
    (``DamageError`` if a message is missing); ``target`` is unfinished then.
    """
    gaps = _Gaps(in_source=source_gaps, in_target=target_gaps)
    for client in found.clients:
        target.add_client(client)
    _commit(target)
    channels = {}
    for channel in _channels(source, found):
        channels[channel.name] = _copy_channel(channel, target, gaps, progress)
    if found.remembered:
        target.remember(list(found.remembered), found.remembered)
        _commit(target)
    return Contents(found.info, _clients(found), channels)


def contents_of(
    store: Store, found: Recovered, progress: Callable[[int], None] = lambda _messages: None
) -> Contents:
    """Read everything back. Raises ``StoreError``."""
    channels = {}
    for channel in _channels(store, found):
        digest = _Digest()
        for block in _blocks(channel):
            digest.add(block)
            progress(len(block))
        channels[channel.name] = _contents(channel, digest)
    return Contents(found.info, _clients(found), channels)


def require_same(wanted: Contents, got: Contents, place: str) -> None:
    """Raise ``DamageError`` if a copy does not read back as what was copied."""
    if wanted == got:
        return
    what = "the identity" if wanted.info != got.info else "the clients"
    for name in sorted(wanted.channels.keys() | got.channels.keys()):
        if wanted.channels.get(name) != got.channels.get(name):
            what = f'channel "{_shown(name)}"'
            break
    raise DamageError(
        f"{place} reads back as something else: {what} differs",
        hint="the copy stays unfinished, and no server starts on it; check the storage, and copy "
        "again",
    )


# ---- one channel


def _channels(store: Store, found: Recovered) -> Iterator[ChannelStore]:
    """Every channel, opened when it is its turn. Raises ``DamageError`` for one that is damaged."""
    _require_sound(found)
    yield from found.channels
    for name in found.later:
        opened = store.open_channel(name)
        _require_sound(opened)
        yield from opened.channels


def _require_sound(found: Recovered) -> None:
    for name, why in found.refused.items():
        raise DamageError(
            f'channel "{_shown(name)}" is damaged: {why}',
            hint="ftstanctl store verify says more; for a directory, ftstanctl store repair",
        )


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Which of both stores may lack sequences in between."""

    in_source: bool
    in_target: bool

    def check(self, channel: bytes, first: int, last: int) -> None:
        """Raise ``StoreError`` if a channel may not lack these sequences; there may be none."""
        if first > last or (self.in_source and self.in_target):
            return
        lacks = f'channel "{_shown(channel)}" lacks the sequences {first} to {last}'
        if not self.in_source:
            raise DamageError(
                f"{lacks}: a copy would hide that they are lost",
                hint="ftstanctl store verify says more; put the damaged files back from a backup",
            )
        raise StoreError(
            f"{lacks}, and a directory cannot hold such a channel",
            hint="purge it up to there: ftstanctl channel purge",
        )


def _copy_channel(
    channel: ChannelStore, target: Store, gaps: _Gaps, progress: Callable[[int], None]
) -> ChannelContents:
    # Before it is read: a directory that meets damage goes on without what it cannot read.
    count = channel.count
    made = target.create_channel(channel.name, UNLIMITED.of(channel.name))
    made.keep()
    _commit(target)
    digest = _Digest()
    at = channel.first
    for block in _blocks(channel):
        for i in range(len(block)):
            gaps.check(channel.name, at, block.sequence(i) - 1)
            at = block.sequence(i) + 1
        digest.add(block)
        made.append(block)
        _commit(target)
        progress(len(block))
    if count:
        gaps.check(channel.name, at, channel.last)
    if digest.count != count:
        raise DamageError(
            f'channel "{_shown(channel.name)}" has {count} messages, of which {digest.count} can '
            "be read",
            hint="ftstanctl store verify says more; put the damaged files back from a backup",
        )
    if channel.last > made.last:
        _keep_last(made, channel.last, target)
    _copy_subs(channel, made, target)
    if channel.mover is not None:
        # A store that cannot say so refuses: its server would take publishes again.
        made.set_moved(channel.mover)
    return _contents(channel, digest)


def _keep_last(made: ChannelStore, last: int, target: Store) -> None:
    """Let numbers of an empty channel go on behind ``last``, whose message is gone."""
    block = MsgBlock()
    block.append(last, made.name, b"", b"", 0)
    made.append(block)
    _commit(target)
    made.purge(last)


def _copy_subs(channel: ChannelStore, made: ChannelStore, target: Store) -> None:
    events = SubEvents()
    for sub in channel.recovered_subs():
        number = made.next_sub_id
        made.add_sub(replace(sub.state, sub_id=number))
        for sequence in _pending(channel, sub):
            events.sent(number, sequence)
    _commit(target)
    if len(events):
        # Only of subscriptions that are durable.
        made.add_events(events)
        target.write_events()


def _pending(channel: ChannelStore, sub: StoredSub) -> list[int]:
    return sorted(s for s in sub.pending if channel.first <= s <= channel.last)


def _blocks(channel: ChannelStore) -> Iterator[MsgBlock]:
    """The messages, each once, as they are stored."""
    at = max(channel.first, 1)
    while channel.count and at <= channel.last:
        found = channel.read(at, _MOST_MSGS, _MOST_BYTES)
        if found is None:
            return
        # It may begin before, and go on behind.
        wanted = [
            (found.sequence(i), found.timestamp(i), found.payload(i))
            for i in range(found.position(at), len(found))
            if at <= found.sequence(i) <= channel.last
        ]
        if not wanted:
            return
        yield block_of(wanted)
        at = wanted[-1][0] + 1


def _commit(target: Store) -> None:
    failed = target.commit()
    for name, error in failed.items():
        what = f'channel "{_shown(name)}"' if name else "clients"
        raise StoreError(f"{what}: {error.text}", hint=error.hint)


def _shown(channel: bytes) -> str:
    return channel.decode("utf-8", "backslashreplace")


# ---- what is compared


class _Digest:
    """Of the messages of one channel."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self.count = 0

    def add(self, block: MsgBlock) -> None:
        for i in range(len(block)):
            payload = block.payload(i)
            head = f"{block.sequence(i)} {block.timestamp(i)} {len(payload)}\n"
            self._sha.update(head.encode())
            self._sha.update(payload)
        self.count += len(block)

    def text(self) -> str:
        return self._sha.hexdigest()


def _contents(channel: ChannelStore, digest: _Digest) -> ChannelContents:
    subs = sorted(
        f"{replace(sub.state, sub_id=0)} {_pending(channel, sub)}"
        for sub in channel.recovered_subs()
    )
    return ChannelContents(channel.name, digest.count, channel.last, digest.text(), tuple(subs))


def _clients(found: Recovered) -> tuple[str, ...]:
    return tuple(sorted(str(client) for client in found.clients))
