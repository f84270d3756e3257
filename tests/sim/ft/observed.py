"""The file store of a simulated process, seen by the ledger: what is offered, what a recovery
finds, what was kept.

Everything is done by the real store; this only looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.base.errors import StoreError
from ftstan.stores.file.recovery.damage import SAVED
from ftstan.stores.file.store import FileStore
from ftstan.wire.pb import stan_pb2 as pb
from tests.sim.ft.ledger import Found, Recovery
from tests.sim.model import Violation, read_all
from tests.sim.volume import DirNode

if TYPE_CHECKING:
    from ftstan.stores.file.channel import FileChannel
    from ftstan.stores.interface import ChannelLimits, ChannelStore, Recovered, SubState
    from ftstan.wire.block import MsgBlock, SubEvents
    from tests.sim.ft.ledger import Generation
    from tests.sim.ft.nodes import Node


class ObservedStore(FileStore):
    """The real store of one activation of ``process``."""

    process: Node

    def observe(self, process: Node) -> None:
        """Whose store it is; before anything else."""
        self.process = process
        self._applied: set[object] = set()
        self._noted: set[object] = set()
        self._in_round = False

    # ---- what a recovery finds
    # -----------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        process = self.process
        ledger = self.process.group.ledger
        epoch = process.epoch
        try:
            found = super().recover()
            recovery = Recovery(
                epoch,
                {channel.name: self._look(channel) for channel in found.channels},
                {c.client_id: c for c in found.clients},
                waiting=set(found.later),
            )
        except Violation as violation:
            # Whoever was superseded meanwhile has read what its successor is changing: that proves
            # nothing.
            self.confirm()
            process.broken(f"{process}: {violation}")
        except StoreError:
            self.confirm()
            raise
        self.confirm()
        if found.refused:
            process.broken(f"channels are refused: {found.refused}")
        try:
            ledger.recovered(recovery)
        except Violation as violation:
            process.broken(f"{process}: {violation}")
        for channel in found.channels:
            self._hook(channel, recovery.lives.get(channel.name))
        process.recovered = True
        process.group.met["torn ends read around"] += self._has_saved()
        self._recovery = recovery
        return found

    def open_channel(self, name: bytes) -> Recovered:
        process = self.process
        recovery = self._recovery
        waited = name in self._later
        try:
            opened = super().open_channel(name)
            found = {channel.name: self._look(channel) for channel in opened.channels}
        except Violation as violation:
            self.confirm()
            process.broken(f"{process}: {violation}")
        except StoreError:
            self.confirm()
            raise
        self.confirm()
        if opened.refused:
            process.broken(f"channels are refused: {opened.refused}")
        if waited:
            process.group.met["channels opened later"] += 1
            try:
                process.group.ledger.opened(recovery, name, found.get(name))
            except Violation as violation:
                process.broken(f"{process}: {violation}")
        for channel in opened.channels:
            self._hook(channel, recovery.lives.get(name))
        return opened

    def _has_saved(self) -> bool:
        """Whether this start has met the torn end of a slice."""
        folders = [
            node
            for node in self.process.group.volume.root.entries.values()
            if isinstance(node, DirNode)
        ]
        return any(
            name.startswith(f"{SAVED}{self.process.epoch}.msgs.")
            for folder in folders
            for name in folder.entries
        )

    def _look(self, channel: ChannelStore) -> Found:
        subs = {s.state.inbox: s for s in channel.recovered_subs()}
        if channel.next_sub_id <= max((s.state.sub_id for s in subs.values()), default=0):
            raise Violation(f"channel {channel.name!r}: the next subscription id is in use")
        # An original syncs an index as it likes: what it names behind the data is a hole that
        # nobody was told of.
        messages = read_there(channel) if self._env.owner.originals_through else read_all(channel)
        return Found(
            messages,
            channel.last,
            self.process.group.clock.wall_ns(),
            {inbox: kept(s.state) for inbox, s in subs.items()},
            {(inbox, sequence) for inbox, s in subs.items() for sequence in s.pending},
            {inbox: s.state.last_sent for inbox, s in subs.items()},
        )

    def close(self) -> None:
        super().close()
        self.process.tidy = True

    # ---- what is offered
    # -----------------------------------------------------------------------------------------

    def create_channel(self, name: bytes, limits: ChannelLimits) -> FileChannel:
        channel = super().create_channel(name, limits)
        self._hook(channel, None)
        return channel

    def delete_channel(self, name: bytes) -> None:
        super().delete_channel(name)
        process = self.process
        life = process.lives.get(name)
        if life is not None:
            process.group.met["deletions"] += 1
            try:
                process.group.ledger.deleted(life, process.epoch)
            except Violation as violation:
                process.broken(f"{process}: {violation}")

    def _hook(self, channel: ChannelStore, life: Generation | None) -> None:
        ledger = self.process.group.ledger
        process = self.process
        life = life or ledger.generation(channel.name)
        process.speaks_of(channel.name, life)
        append = channel.append
        add_events = channel.add_events
        purge = channel.purge

        def offered(block: MsgBlock) -> None:
            for i in range(len(block)):
                payload = block.payload(i)
                ledger.offer(life, block.sequence(i), payload, block.timestamp(i))
                ledger.place(
                    life, pb.MsgProto.FromString(payload).data, block.sequence(i), payload, process
                )
            append(block)

        def sent(events: SubEvents) -> None:
            items = events.items()
            inboxes = {}
            if channel.snapshot is not None:
                inboxes = {s.state.sub_id: s.state.inbox for s in channel.snapshot()}
            for what, sub_id, sequence in items:
                if what == "sent" and sub_id in inboxes:
                    life.sent.add((inboxes[sub_id], sequence))
            add_events(events)

        def purged(sequence: int) -> None:
            life.purging = max(life.purging, sequence)
            purge(sequence)

        channel.purge = purged  # type: ignore[method-assign]
        channel.append = offered  # type: ignore[method-assign]
        channel.add_events = sent  # type: ignore[method-assign]

    # ---- what is kept
    # --------------------------------------------------------------------------------------------

    def write_events(self) -> None:
        super().write_events()
        process = self.process
        serving = process.product.plane.serving
        if serving is not None and serving._start == serving._end:
            # Everything that was read has been applied.
            self._applied.update(process.acks_read)
            process.acks_read.clear()

    def tick(self, now_ns: int) -> bool:
        if not self._in_round:
            self._in_round = True
            self._noted = set(self._applied)
        more = super().tick(now_ns)
        if not more:
            # A whole round of what is done once a second lies behind them.
            self._in_round = False
            self._applied -= self._noted
            if not self.process.faulty:
                for ack in self._noted:
                    self.process.group.ledger.keep(ack, self.process.epoch)
        return more


def read_there(channel: ChannelStore) -> dict[int, bytes]:
    """Every message that can be read."""
    messages: dict[int, bytes] = {}
    at = max(channel.first, 1)
    while at <= channel.last and (block := channel.read(at, 7, 2000)) is not None:
        for i in range(len(block)):
            messages[block.sequence(i)] = block.payload(i)
        if block.last < at:
            break
        at = block.last + 1
    return messages


def kept(state: SubState) -> object:
    """What of a subscription must be found again: how far it was sent moves on."""
    return (state.client_id, state.inbox, state.max_in_flight, state.durable_name)
