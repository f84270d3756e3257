"""Attacks on what the next owner knows: acknowledgements, groups that are split over a switch,
repeats behind several switches.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import BrokerOptions
from tests.compat.driver import SUBJECTS, Driver, PubAck, deliveries
from tests.filenode import FileNode, simulated
from tests.sim.disk import SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE
from tests.sim.model import read_all
from tests.unit.stores.test_remembered_crashes import publish, serving

if TYPE_CHECKING:
    from ftstan.broker.state import Channel, Subscription

pytestmark = pytest.mark.usefixtures("quiet")

IDS = (b"a", b"b", b"c", b"d")
DURABLE_GROUP, GROUP, DURABLE, PLAIN = b"durable-group", b"group", b"durable", b"plain"
KINDS = (DURABLE_GROUP, GROUP, DURABLE, PLAIN)


class Readers:
    """Clients of one channel that read in every way, join, leave and acknowledge, while owners hand
    over to each other.

    A reader is a queue group, or one client's subscription. Nothing crashes: what a reader has
    acknowledged must never come to it again.
    """

    def __init__(self, seed: int, *, opens_late: bool) -> None:
        self.rng = Random(seed)
        self.disk = SimDisk()
        self.disk.make_dirs(STORE)
        self.clock = ManualClock()
        self.opens_late = opens_late
        self.serial = 0
        self.subs: dict[tuple[bytes, bytes], bytes] = {}
        self.acked: defaultdict[object, set[int]] = defaultdict(set)
        self.open: defaultdict[tuple[bytes, bytes], set[int]] = defaultdict(set)
        self.start()

    def start(self) -> None:
        """The next owner."""
        store = open_file_store(self.disk, self.clock, most_at_once=0 if self.opens_late else None)
        alive = {b"hb." + who for who in IDS}
        self.driver = Driver(store, BrokerOptions(), self.clock, alive)
        self.seen = 0
        self.open.clear()

    def switch(self) -> None:
        """A stop that somebody follows, or one that leaves the files tidy."""
        driver = self.driver
        store = driver.store
        driver.broker.closing.finish()
        driver.run()
        self.look()
        if self.rng.random() < 0.5:
            store.write_events()
            while store.catch_up():
                pass
            store.abandon()
        else:
            while driver.broker.later:
                driver.broker.open_next()
            driver.run()
            self.look()
            store.close()
        self.clock.advance(self.rng.choice((0.05, 1, 40)))
        self.start()

    @property
    def channel(self) -> Channel | None:
        return self.driver.broker.channels.get(b"foo")

    @staticmethod
    def reader(who: bytes, kind: bytes) -> object:
        return kind if kind in {DURABLE_GROUP, GROUP} else (who, kind)

    def look(self) -> None:
        """What was delivered since the last look."""
        for out in self.driver.out[self.seen :]:
            if out.subject.startswith(b"in."):
                _, who, kind = out.subject.split(b".")
                for delivery in deliveries([out], out.subject):
                    assert delivery.sequence not in self.acked[self.reader(who, kind)]
                    self.open[who, kind].add(delivery.sequence)
        self.seen = len(self.driver.out)
        self.forget()

    def forget(self) -> None:
        """A reader that is no more begins anew when it comes again."""
        channel = self.channel
        if channel is None:
            return
        there: set[object] = {(who, DURABLE) for who, _ in channel.durables}
        there |= {key for key in self.subs if key[1] == PLAIN}
        there |= {DURABLE_GROUP if group.durable else GROUP for group in channel.groups.values()}
        for reader in list(self.acked):
            if reader not in there:
                del self.acked[reader]

    def step(self) -> None:
        rng = self.rng
        driver = self.driver
        who = rng.choice(IDS)
        if who not in driver.broker.clients:
            driver.connect(who)
        match rng.randrange(8):
            case 0 | 1:
                some = [b"m%d" % (self.serial + i) for i in range(rng.randint(1, 4))]
                self.serial += len(some)
                driver.publish(*some, client_id=who)
            case 2 | 3:
                self.join(who, rng.choice(KINDS))
            case 4 if self.subs:
                who, kind = rng.choice(sorted(self.subs))
                ends = rng.choice((SUBJECTS.unsubscribe, SUBJECTS.sub_close, SUBJECTS.sub_close))
                assert not driver.leave(ends, self.subs.pop((who, kind)), client_id=who).error
            case 5 if rng.random() < 0.4:
                driver.close(who)
                self.subs = {key: ack for key, ack in self.subs.items() if key[0] != who}
            case 6:
                for key in list(self.subs):
                    self.acknowledge(*key)
            case _:
                driver.broker.open_next()
                driver.wait(rng.choice((0.1, 2, 6)))
                driver.store.tick(self.clock.wall_ns())
        self.look()

    def join(self, who: bytes, kind: bytes) -> None:
        if (who, kind) in self.subs:
            return
        self.subs[who, kind] = self.driver.subscribe(
            client_id=who,
            inbox=b"in." + who + b"." + kind,
            durable=b"dur" if kind in {DURABLE_GROUP, DURABLE} else b"",
            queue=b"queue" if kind in {DURABLE_GROUP, GROUP} else b"",
            max_in_flight=self.rng.choice((1, 2, 10)),
            ack_wait=self.rng.choice((1, 5)),
        )

    def acknowledge(self, who: bytes, kind: bytes) -> None:
        channel = self.channel
        sub = channel.by_ack_inbox.get(self.subs[who, kind]) if channel is not None else None
        if sub is None:
            return
        # An ack of what another member has by now counts; one of what was given up does not.
        members: list[Subscription] = sub.group.members() if sub.group is not None else [sub]
        some = {
            sequence
            for sequence in self.open[who, kind]
            if self.rng.random() < 0.5 and any(sequence in member.pending for member in members)
        }
        self.look()
        self.open[who, kind] -= some
        self.driver.ack(self.subs[who, kind], *sorted(some))
        self.acked[self.reader(who, kind)] |= some
        self.look()


@pytest.mark.parametrize("opens_late", [False, True], ids=["", "opens late"])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_reader_has_acknowledged_comes_not_again_behind_any_number_of_hand_overs(
    seed: int, *, opens_late: bool
) -> None:
    readers = Readers(seed, opens_late=opens_late)
    for _ in range(6):
        for _ in range(readers.rng.randint(1, 30)):
            readers.step()
        for _ in range(readers.rng.choice((1, 1, 2))):
            readers.switch()


def test_a_repeat_is_known_behind_an_owner_that_stored_nothing_and_one_that_did() -> None:
    node = FileNode(simulated())
    publish(serving(node), b"ft1.a")
    # It owns the store and takes no publish.
    node = node.successor()
    serving(node)
    node = node.successor()
    driver = serving(node)
    assert publish(driver, b"ft1.a", b"ft1.b") == [PubAck(b"ft1.a"), PubAck(b"ft1.b")]
    node = node.successor()
    driver = serving(node)
    assert publish(driver, b"ft1.b", b"ft1.a") == [PubAck(b"ft1.b"), PubAck(b"ft1.a")]
    assert list(read_all(node.successor().channel())) == [1, 2]
