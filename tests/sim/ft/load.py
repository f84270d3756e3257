"""What an owner of a simulated group does with its store: recover, then batches, as ``ftstan.serving`` runs them.

    stage -> commit -> confirm -> tell

``tell`` is where promises begin: only then the ledger hears of an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftstan.errors import FencedError, StoreError
from ftstan.stores.interface import CLIENTS, ClientInfo, SubState
from ftstan.wire.block import MsgBlock, SubEvents
from tests.sim.ft.ledger import Found, Recovery
from tests.sim.history import INFO
from tests.sim.model import Violation, read_all

if TYPE_CHECKING:
    from random import Random

    from ftstan.ft.ownership import StoreOwner
    from ftstan.stores.file.store import FileStore
    from ftstan.stores.interface import ChannelStore
    from tests.sim.ft.group import Group
    from tests.sim.ft.ledger import Generation

_TICK_S = 1.0


class Load:
    """One owner's store and its clients."""

    def __init__(self, group: Group, store: FileStore, owner: StoreOwner, epoch: int, rng: Random) -> None:
        self.group, self.store, self.owner, self.epoch, self.rng = group, store, owner, epoch, rng
        self.ledger = group.ledger
        self.ready = False
        self.batches = 0
        self.told: set[bytes] = set()
        """Channels in which a publisher of this owner has been told."""
        self._channels: dict[bytes, ChannelStore] = {}
        self._lives: dict[bytes, Generation] = {}
        self._subs: dict[bytes, dict[bytes, SubState]] = {}
        self._pending: dict[bytes, set[tuple[bytes, int]]] = {}
        self._clients: dict[bytes, ClientInfo] = {}
        self._next_ids: dict[bytes, int] = {}
        self._next_tick = 0.0
        self._published: list[tuple[bytes, int, bytes]] = []
        self._read: list[tuple[bytes, int, bytes]] = []
        self._made: dict[bytes, dict[bytes, SubState]] = {}
        self._removed: dict[bytes, set[bytes]] = {}
        self._joined: dict[bytes, ClientInfo] = {}
        self._left: set[bytes] = set()

    # ---- taking over ---------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the store, be confirmed, and let the ledger judge what was found."""
        try:
            found = self.store.recover()
            recovery = Recovery(
                self.epoch,
                {channel.name: self._look(channel) for channel in found.channels},
                {c.client_id: c for c in found.clients},
            )
        except (Violation, StoreError):
            # Whoever was superseded meanwhile has read what its successor is changing: that proves nothing.
            self._confirm()
            raise
        self._confirm()
        if found.refused:
            raise Violation(f"channels are refused: {found.refused}")
        self.ledger.recovered(recovery)
        self._channels = {channel.name: channel for channel in found.channels}
        self._lives = dict(recovery.lives) or {name: self.ledger.generation(name) for name in self._channels}
        self._clients = {c.client_id: c for c in found.clients}
        for channel in found.channels:
            subs = list(channel.recovered_subs())
            self._subs[channel.name] = {s.state.inbox: s.state for s in subs}
            self._pending[channel.name] = set(recovery.channels[channel.name].pending)
        if found.info is None:
            self.store.set_server_info(INFO)
            self._confirm()
        elif found.info != INFO:
            raise Violation(f"the server record is {found.info}")
        self._next_tick = self.group.clock.mono() + _TICK_S
        self.ready = True

    def _look(self, channel: ChannelStore) -> Found:
        subs = {s.state.inbox: s for s in channel.recovered_subs()}
        if channel.next_sub_id <= max((s.state.sub_id for s in subs.values()), default=0):
            raise Violation(f"channel {channel.name!r}: the next subscription id is in use")
        return Found(
            read_all(channel),
            channel.last,
            self.group.clock.wall_ns(),
            {inbox: _kept(s.state) for inbox, s in subs.items()},
            {(inbox, sequence) for inbox, s in subs.items() for sequence in s.pending},
        )

    def _confirm(self) -> None:
        """A confirm that began after somebody had taken a higher number must be refused."""
        top = self.ledger.top
        try:
            self.store.confirm()
        except FencedError:
            self.group.met["refused confirms"] += 1
            raise
        if top > self.epoch:
            raise Violation(f"epoch {self.epoch} was confirmed after {top} had been taken")
        self.group.met["confirms"] += 1

    # ---- serving -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One batch; once a second the rest."""
        self.batch()
        if self.group.clock.mono() >= self._next_tick:
            self._next_tick = self.group.clock.mono() + _TICK_S
            self._confirm()
            self.store.tick(self.group.clock.wall_ns())
            self.group.met["ticks"] += 1
            if self.group.shape.deletes and self._channels and self.rng.random() < 0.4:
                self._delete()

    def batch(self) -> None:
        """Stage, commit, confirm, tell."""
        for _ in range(self.rng.randint(1, 3)):
            self.rng.choice((self._publish, self._publish, self._subscribe, self._join, self._read_back))()
        failed = self.commit()
        self._tell(failed)
        self._deliver(failed)
        self.store.write_events()
        self.batches += 1

    def commit(self) -> dict[bytes, StoreError]:
        """The road between staging and telling."""
        failed = self.store.commit()
        self._confirm()
        if failed:
            raise Violation(f"epoch {self.epoch}: a confirmed batch failed without a fault: {failed}")
        return failed

    def stop(self) -> None:
        """A clean stop."""
        self._confirm()
        self.store.close()
        self.group.met["clean stops"] += 1

    def _tell(self, failed: dict[bytes, StoreError]) -> None:
        ledger, epoch = self.ledger, self.epoch
        for name, sequence, payload in self._published:
            if name not in failed:
                ledger.ack(self._lives[name], sequence, payload, epoch)
                self.told.add(name)
        for name, sequence, payload in self._read:
            ledger.fix(self._lives[name], sequence, payload, epoch)
        for name in sorted(self._made.keys() | self._removed.keys()):
            made, removed = self._made.get(name, {}), self._removed.get(name, set())
            ledger.answer_subs(self._lives[name], set(made), removed, epoch)
            self._subs.setdefault(name, {}).update(made)
            for inbox in removed:
                del self._subs[name][inbox]
        if CLIENTS not in failed:
            ledger.answer_clients(set(self._joined), self._left, epoch)
            self._clients.update(self._joined)
            for client_id in self._left:
                del self._clients[client_id]
        self._published.clear()
        self._read.clear()
        self._made.clear()
        self._removed.clear()
        self._joined.clear()
        self._left.clear()

    def _deliver(self, failed: dict[bytes, StoreError]) -> None:
        """Send durable messages to answered subscriptions, take acknowledgements."""
        for name, subs in self._subs.items():
            if name in failed or not subs or self.rng.random() < 0.5:
                continue
            channel, life = self._channels[name], self._lives[name]
            pending = self._pending.setdefault(name, set())
            events = SubEvents()
            for inbox, state in sorted(subs.items()):
                for sequence in range(max(channel.first, channel.last - 1), channel.last + 1):
                    if sequence and (inbox, sequence) not in life.sent:
                        life.sent.add((inbox, sequence))
                        pending.add((inbox, sequence))
                        events.sent(state.sub_id, sequence)
                mine = sorted(s for i, s in pending if i == inbox)
                for sequence in mine[: self.rng.randint(0, 2)]:
                    pending.discard((inbox, sequence))
                    events.acked(state.sub_id, sequence)
            if len(events):
                channel.add_events(events)

    # ---- what clients ask for ------------------------------------------------------------------------------------

    def _channel(self) -> tuple[ChannelStore, Generation]:
        name = b"channel.%d" % self.rng.randrange(self.group.shape.channels)
        if name not in self._channels:
            self._channels[name] = self.store.create_channel(name, self.group.shape.limits)
            self._lives[name] = self.ledger.generation(name)
        return self._channels[name], self._lives[name]

    def _publish(self) -> None:
        channel, life = self._channel()
        block = MsgBlock()
        staged = [s for name, s, _ in self._published if name == channel.name]
        start = max([channel.last, *staged]) + 1
        for sequence in range(start, start + self.rng.randint(1, 3)):
            data = b"%d:" % self.group.serial() + b"x" * self.rng.choice((0, 5, 300, 700))
            block.append(sequence, channel.name, b"", data, self.group.clock.wall_ns())
        for i in range(len(block)):
            sequence, payload = block.sequence(i), block.payload(i)
            self.ledger.offer(life, sequence, payload, block.timestamp(i))
            self._published.append((channel.name, sequence, payload))
        channel.append(block)

    def _subscribe(self) -> None:
        channel, life = self._channel()
        name = channel.name
        known = sorted(self._subs.get(name, {}).keys() - self._removed.get(name, set()))
        if known and self.rng.random() < 0.4:
            inbox = self.rng.choice(known)
            self._removed.setdefault(name, set()).add(inbox)
            life.subs.leaving.add(inbox)
            channel.delete_sub(self._subs[name][inbox].sub_id)
            return
        sub_id = max(channel.next_sub_id, self._next_ids.get(name, 1))
        self._next_ids[name] = sub_id + 1
        serial = self.group.serial()
        state = SubState(
            sub_id,
            b"client",
            inbox=b"inbox.%d" % serial,
            ack_inbox=b"acks.%d" % serial,
            max_in_flight=5,
            ack_wait_secs=30,
            durable_name=b"durable.%d" % serial,
            is_durable=True,
        )
        life.subs.values[state.inbox] = _kept(state)
        self._made.setdefault(name, {})[state.inbox] = state
        channel.add_sub(state)

    def _join(self) -> None:
        known = sorted(self._clients.keys() - self._left)
        if known and self.rng.random() < 0.4:
            client_id = self.rng.choice(known)
            self._left.add(client_id)
            self.ledger.clients.leaving.add(client_id)
            self.store.delete_client(client_id)
            return
        serial = self.group.serial()
        info = ClientInfo(b"client-%d" % serial, b"hb.%d" % serial, b"conn", 1, 5, 3)
        self.ledger.clients.values[info.client_id] = info
        self._joined[info.client_id] = info
        self.store.add_client(info)

    def _read_back(self) -> None:
        """A redelivery: what is read goes out with the next confirmed batch."""
        channel, _ = self._channel()
        if not channel.count:
            return
        sequence = self.rng.randint(channel.first, channel.last)
        block = channel.read(sequence, 1, 1000)
        if block is None or block.sequence(block.position(sequence)) != sequence:
            self._confirm()
            raise Violation(f"channel {channel.name!r}: sequence {sequence} cannot be read")
        self._read.append((channel.name, sequence, block.payload(block.position(sequence))))

    def _delete(self) -> None:
        """A channel is deleted, outside a batch, perhaps to be made again by the next one."""
        name = self.rng.choice(sorted(self._channels))
        self.ledger.deleting(name, self.epoch)
        self.store.delete_channel(name)
        self.ledger.deleted(self._lives[name], self.epoch)
        for known in (self._channels, self._lives, self._subs, self._pending, self._next_ids):
            known.pop(name, None)
        self.group.met["deletions"] += 1


def _kept(state: SubState) -> object:
    """What of a subscription must be found again: how far it was sent moves on."""
    return (state.sub_id, state.client_id, state.inbox, state.ack_inbox, state.max_in_flight, state.durable_name)
