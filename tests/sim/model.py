"""What a store has promised, and whether what is found in it keeps every promise.

The model remembers over all epochs: what was offered, what was acknowledged or could be delivered
(its content is fixed for ever from then on), which requests were answered. It judges a recovered
store through ``ftstan.stores.interface`` alone and must never look at files.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from ftstan.stores.interface import CLIENTS, ChannelLimits

if TYPE_CHECKING:
    from ftstan.stores.interface import (
        ChannelStore,
        ClientInfo,
        Recovered,
        ServerInfo,
        StoredSub,
        SubState,
    )


UNLIMITED = ChannelLimits(max_msgs=0, max_bytes=0)
#: What the limits count for a message beside its encoded bytes.
OVERHEAD = 40


class Violation(AssertionError):  # noqa: N818 - what was violated is the point
    """A promise was broken; the text says which one, and in which channel."""


@dataclass(slots=True)
class SubModel:
    """``versions``: the state that was last answered for, then those staged since.

    ``None`` stands for no subscription.

    Sequences sent and acknowledged: ever, and those that a crash may not take back any more.
    """

    versions: list[SubState | None] = field(default_factory=lambda: [None])
    pending: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    kept_sent: set[int] = field(default_factory=set)
    kept_acked: set[int] = field(default_factory=set)

    def check(self, where: str, found: StoredSub | None, last: int) -> None:
        if found is None:
            if None not in self.versions:
                raise Violation(f"{where}: it was answered and is gone")
            return
        state = replace(found.state, last_sent=0)
        if state not in [None if v is None else replace(v, last_sent=0) for v in self.versions]:
            raise Violation(f"{where}: {found.state} is none of {self.versions}")
        if not found.pending <= self.sent:
            raise Violation(f"{where}: pending {sorted(found.pending - self.sent)} were never sent")
        if found.pending & self.kept_acked:
            raise Violation(
                f"{where}: pending {sorted(found.pending & self.kept_acked)} were acknowledged "
                "durably"
            )
        if lost := self.kept_sent - self.acked - found.pending:
            raise Violation(
                f"{where}: {sorted(lost)} were sent durably, not acknowledged, and are not pending"
            )
        beyond = max(found.state.last_sent, *found.pending, 0)
        if beyond > last:
            raise Violation(f"{where}: it names sequence {beyond}, the log ends at {last}")


@dataclass(slots=True)
class ChannelModel:
    """``offered``: contents ever staged for a sequence.

    ``fixed``: contents acknowledged, delivered or read.

    ``purged``: up to where a purge was answered; ``purging``: up to where one was asked for, which
    may come true. ``gone``: the contents that were fixed when a purge took them. ``stamps``: when
    each content was stamped, in nanoseconds; only needed under an age limit.
    """

    name: bytes
    limits: ChannelLimits = UNLIMITED
    stamps: dict[bytes, int] = field(default_factory=dict)
    offered: dict[int, set[bytes]] = field(default_factory=dict)
    fixed: dict[int, bytes] = field(default_factory=dict)
    staged: list[tuple[int, bytes]] = field(default_factory=list)
    subs: dict[int, SubModel] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    purged: int = 0
    purging: int = 0
    gone: dict[int, bytes] = field(default_factory=dict)

    def ask_purge(self, sequence: int) -> None:
        """A purge was asked for: what it may take may be missing from now on."""
        self.purging = max(self.purging, sequence)

    def answer_purge(self, sequence: int) -> None:
        """A purge was answered: what it took must never be seen again."""
        self.purged = max(self.purged, sequence)
        self._take([s for s in self.fixed if s <= self.purged])

    def _take(self, sequences: list[int]) -> None:
        for sequence in sequences:
            self.gone[sequence] = self.fixed.pop(sequence)

    def offer(self, sequence: int, payload: bytes, timestamp: int = 0) -> None:
        """A message was staged."""
        self.stamps[payload] = timestamp
        self.offered.setdefault(sequence, set()).add(payload)
        self.staged.append((sequence, payload))

    def fix(self, sequence: int, payload: bytes) -> None:
        """A content was acknowledged or can have been delivered."""
        before = self.fixed.setdefault(sequence, payload)
        if before != payload:
            raise Violation(f"{self}: sequence {sequence} had {before!r} and now has {payload!r}")

    def stage_sub(self, sub_id: int, state: SubState | None) -> None:
        """A subscription was added, replaced, or (``None``) removed."""
        sub = self.subs.setdefault(sub_id, SubModel())
        if sub.versions[-1] is None:
            # The id of a subscription that is gone: nothing is promised about the old one's events
            # any more.
            sub.kept_sent.clear()
            sub.kept_acked.clear()
        sub.versions.append(state)
        self.touched.add(sub_id)

    def live_subs(self) -> dict[int, SubState]:
        """Subscriptions as this process's store knows them."""
        return {i: state for i, sub in self.subs.items() if (state := sub.versions[-1]) is not None}

    def answered(self) -> None:
        """Everything staged was committed and confirmed, and its publishers and subscribers were
        told.
        """
        for sequence, payload in self.staged:
            self.fix(sequence, payload)
        for sub_id in self.touched:
            del self.subs[sub_id].versions[:-1]
        self.staged.clear()
        self.touched.clear()

    def failed(self) -> None:
        """The commit of this channel failed: what was staged is unknown, the store goes on with
        what was answered.
        """
        for sub_id in self.touched:
            versions = self.subs[sub_id].versions
            versions.append(versions[0])
        self.staged.clear()
        self.touched.clear()

    def check_channel(
        self, found: ChannelStore, subs: list[StoredSub], now_ns: int = 0
    ) -> dict[int, bytes]:
        """Judge a recovered channel at the time ``now_ns``; returns its messages."""
        messages = read_all(found)
        if back := [s for s in messages if s <= self.purged]:
            raise Violation(f"{self}: {back} were purged and are back")
        self._take([s for s in self.fixed if s <= self.purging and s < found.first])
        if missing := self.missing(messages, found.last, now_ns):
            raise Violation(f"{self}: {missing} were acknowledged or delivered and are gone")
        if found.last < self.purged:
            raise Violation(f"{self}: {self.purged} was purged, and the log ends at {found.last}")
        for sequence, payload in messages.items():
            if payload not in self.offered.get(sequence, ()):
                raise Violation(f"{self}: nobody published {payload!r} as sequence {sequence}")
            before = self.fixed.get(sequence, self.gone.get(sequence, payload))
            if before != payload:
                raise Violation(f"{self}: sequence {sequence} had {before!r}, now {payload!r}")
        by_id = {sub.state.sub_id: sub for sub in subs}
        if len(by_id) != len(subs):
            raise Violation(f"{self}: two subscriptions with one id")
        if strangers := by_id.keys() - self.subs.keys():
            raise Violation(f"{self}: nobody made the subscriptions {sorted(strangers)}")
        if found.next_sub_id <= max(by_id, default=0):
            raise Violation(f"{self}: next subscription id {found.next_sub_id} is in use")
        for sub_id, sub in self.subs.items():
            sub.check(f"{self}: subscription {sub_id}", by_id.get(sub_id), found.last)
        return messages

    def missing(self, messages: dict[int, bytes], last: int, now_ns: int) -> list[int]:
        """Fixed sequences that are not among ``messages`` though no limit explains it.

        The log ends at ``last``.
        """
        gone = self.fixed.keys() - messages.keys()
        if not gone:
            return []
        # Limits take from the front only, and never the log's end.
        stays = {s for s in gone if s > min([*messages, last])}
        limits = self.limits
        behind = 0
        for sequence in range(last, min(gone) - 1, -1):
            payload = messages.get(sequence, self.fixed.get(sequence, b""))
            # A batch that was cut short may have left messages that nobody was told of: they count
            # until they go, too.
            sizes = (
                [len(payload)]
                if payload
                else [len(offered) for offered in self.offered.get(sequence, ())]
            )
            behind += max(sizes) + OVERHEAD if sizes else 0
            old = limits.max_age and self.stamps.get(payload, now_ns) + limits.max_age <= now_ns
            many = limits.max_msgs and sequence <= last - limits.max_msgs
            large = limits.max_bytes and behind > limits.max_bytes and sequence < last
            if sequence in gone and not (old or many or large):
                stays.add(sequence)
        return sorted(stays)

    def check_limits(self, found: ChannelStore, now_ns: int) -> None:
        """Judge whether the limits were applied, which a start does before it serves."""
        limits = self.limits
        if limits.max_msgs and found.count > limits.max_msgs:
            raise Violation(f"{self}: holds {found.count} messages, allowed are {limits.max_msgs}")
        if limits.max_bytes and found.count > 1 and found.size > limits.max_bytes:
            raise Violation(f"{self}: holds {found.size} bytes, allowed are {limits.max_bytes}")
        if limits.max_age and found.count:
            block = found.read(found.first, 1, 1)
            assert block is not None
            if block.timestamp(block.position(found.first)) + limits.max_age <= now_ns:
                raise Violation(
                    f"{self}: sequence {found.first} is older than the limit and still there"
                )

    def go_on_from(self, subs: list[StoredSub]) -> None:
        """A new process starts from what was recovered; what was not answered stays uncertain."""
        by_id = {sub.state.sub_id: sub for sub in subs}
        self.staged.clear()
        self.touched.clear()
        for sub_id, sub in self.subs.items():
            found = by_id.get(sub_id)
            sub.versions.append(None if found is None else found.state)
            sub.pending = set() if found is None else set(found.pending)

    def __str__(self) -> str:
        return f"channel {self.name.decode()!r}"


@dataclass(slots=True)
class Model:
    """All promises of one store.

    ``deleting``: channels whose deletion was asked for and not answered.
    """

    now_ns: int = 0
    info: ServerInfo | None = None
    clients: dict[bytes, list[ClientInfo | None]] = field(default_factory=dict)
    touched: set[bytes] = field(default_factory=set)
    channels: dict[bytes, ChannelModel] = field(default_factory=dict)
    deleting: set[bytes] = field(default_factory=set)

    def copied(self) -> Model:
        """Another one, for a judgement: ``check`` settles what was unknown."""
        # Several times as quick as copy.deepcopy, and made thousands of times.
        return cast("Model", pickle.loads(pickle.dumps(self)))

    def deleted(self, name: bytes) -> None:
        """The deletion of a channel was answered: nothing of it may ever be seen again."""
        self.deleting.discard(name)
        del self.channels[name]

    def stage_client(self, client_id: bytes, info: ClientInfo | None) -> None:
        """A client was registered or (``None``) removed."""
        self.clients.setdefault(client_id, [None]).append(info)
        self.touched.add(client_id)

    def live_clients(self) -> list[bytes]:
        return [i for i, versions in self.clients.items() if versions[-1] is not None]

    def answered(self, failed: set[bytes]) -> None:
        """A batch was committed and confirmed, but for what ``failed``: channels, or
        ``CLIENTS``.
        """
        if CLIENTS not in failed:
            # A registration that failed is unknown, as its error says; so is one that could not be
            # ended.
            for client_id in self.touched:
                del self.clients[client_id][:-1]
        self.touched.clear()
        for name, channel in self.channels.items():
            if name in failed:
                channel.failed()
            else:
                channel.answered()

    def check(self, found: Recovered) -> dict[bytes, dict[int, bytes]]:
        """Judge what was recovered.

        Returns the messages of every channel, which may now be delivered.
        """
        if self.info is not None and found.info != self.info:
            raise Violation(f"the server record was {self.info} and is {found.info}")
        clients = {c.client_id: c for c in found.clients}
        if len(clients) != len(found.clients):
            raise Violation("a client id is registered twice")
        for client_id in clients.keys() | self.clients.keys():
            versions = self.clients.get(client_id, [None])
            if clients.get(client_id) not in versions:
                raise Violation(
                    f"client {client_id!r}: {clients.get(client_id)} is none of {versions}"
                )
        channels = {c.name: c for c in found.channels}
        for name in self.deleting - channels.keys():
            # It went as a whole; else all of it must be there.
            del self.channels[name]
        self.deleting.clear()
        if strangers := channels.keys() - self.channels.keys():
            raise Violation(f"nobody made the channels {sorted(strangers)}")
        messages: dict[bytes, dict[int, bytes]] = {}
        subs: dict[bytes, list[StoredSub]] = {}
        for name, model in self.channels.items():
            channel = channels.get(name)
            if channel is None:
                if model.fixed or any(None not in sub.versions for sub in model.subs.values()):
                    raise Violation(f"{model}: it is gone")
                continue
            subs[name] = list(channel.recovered_subs())
            messages[name] = model.check_channel(channel, subs[name], self.now_ns)
        self.touched.clear()
        for client_id, versions in self.clients.items():
            versions.append(clients.get(client_id))
        for name, model in self.channels.items():
            model.go_on_from(subs.get(name, []))
        return messages


def read_all(channel: ChannelStore) -> dict[int, bytes]:
    """Every durable message, encoded.

    The sequences must run from ``first`` to ``last`` without a gap.
    """
    name = channel.name.decode()
    messages: dict[int, bytes] = {}
    wanted = range(channel.first, channel.last + 1) if channel.last else range(0)
    at = wanted.start
    while at < wanted.stop:
        block = channel.read(at, 7, 2000)
        if block is None or block.position(at) >= len(block):
            raise Violation(
                f"channel {name!r}: nothing at or after {at}, though the log ends at {channel.last}"
            )
        for i in range(block.position(at), len(block)):
            if block.sequence(i) != at:
                raise Violation(f"channel {name!r}: {block.sequence(i)} where {at} should be")
            if at < wanted.stop:
                messages[at] = block.payload(i)
                at += 1
    if channel.count != len(messages):
        raise Violation(f"channel {name!r}: count {channel.count}, but {len(messages)} messages")
    return messages
