"""A server with dead letters dies at every storage call: no message is in neither place.

The story: a durable is sent three messages and acknowledges one; the others are delivered again,
become dead letters, and a fourth message is published beside them. The server dies before one of
its storage calls, and the power may fail. Its successor must find each message that was
acknowledged to its publisher, and not by the durable, in flight, still to be sent, or among the
dead letters; goes on; and in the end each is among the dead letters, at most twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base.clock import ManualClock
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.dead_letters import DeadLetters
from ftstan.config.options import DeliveryRules
from ftstan.wire import codec
from ftstan.wire.origin import parse_origin
from tests.compat.driver import Driver, pub_acks
from tests.sim.disk import CrashMode, Killed, SimDisk
from tests.sim.filestore import open_file_store
from tests.sim.history import STORE
from tests.sim.model import Violation

if TYPE_CHECKING:
    from ftstan.broker.state import Subscription

OPTIONS = BrokerOptions(deliveries=(("foo", DeliveryRules(2, "dead")),))
POISON = (b"one", b"three", b"four")
MODES = (CrashMode.LOST, CrashMode.ORDERED, CrashMode.UNORDERED, CrashMode.KEPT)
DUR = (b"me", b"dur")


@dataclass
class Life:
    """One process: what it has told its publishers, and where it died."""

    disk: SimDisk
    clock: ManualClock
    driver: Driver | None = None

    def tell(self) -> None:
        driver = Driver(open_file_store(self.disk, self.clock), OPTIONS, clock=self.clock)
        self.driver = driver
        driver.connect()
        inbox = driver.subscribe(durable=b"dur", ack_wait=10)
        driver.publish(b"one", b"two", b"three")
        driver.ack(inbox, 2)
        self._second()
        driver.wait(15)
        self._second()
        driver.offer(b"four")
        driver.wait(20)
        self._second()
        driver.wait(20)
        self._second()

    def _second(self) -> None:
        assert self.driver is not None
        self.driver.broker.tick()
        self.driver.store.tick(self.clock.wall_ns())

    def told(self) -> set[bytes]:
        """The messages whose publishers were answered; all of them, if it lived so long."""
        if self.driver is None:
            return set()
        return {ack.guid for ack in pub_acks(self.driver.out) if not ack.error}


def dead(driver: Driver) -> Counter[bytes]:
    """Payloads of the dead letters, each with the origin that it must have."""
    found: Counter[bytes] = Counter()
    channel = driver.broker.known_channel(b"dead")
    for sequence in range(1, 1 + (0 if channel is None else channel.store.last)):
        assert channel is not None
        encoded = driver.broker.encoded(channel, sequence)
        if encoded is None:
            raise Violation(f"dead letter {sequence} is gone")
        _, _, reply, data, *_ = codec.decode_msg_proto(encoded)
        origin = parse_origin(reply)
        if origin is None or (origin.channel, origin.durable) != (b"foo", b"dur"):
            raise Violation(f"dead letter {sequence} has the origin {reply!r}")
        found[data] += 1
    return found


def durable(driver: Driver) -> Subscription | None:
    channel = driver.broker.known_channel(b"foo")
    return None if channel is None else channel.durables.get(DUR)


def payload_of(driver: Driver, sequence: int) -> bytes:
    channel = driver.broker.known_channel(b"foo")
    assert channel is not None
    encoded = driver.broker.encoded(channel, sequence)
    assert encoded is not None
    return codec.decode_msg_proto(encoded)[3]


def judge(left: SimDisk, clock: ManualClock, told: set[bytes]) -> Counter[str]:
    """What the next process finds, and how it ends. Raises ``Violation``."""
    met: Counter[str] = Counter()
    driver = Driver(open_file_store(left, clock), OPTIONS, clock=clock, alive={b"hb.me"})
    sub = durable(driver)
    letters = dead(driver)
    wanted = {one for one in told if one in POISON}
    if sub is None:
        if told:
            raise Violation("the durable is gone")
        return met
    channel = driver.broker.known_channel(b"foo")
    assert channel is not None
    held = {payload_of(driver, sequence) for sequence in sub.pending.sequences()}
    to_come = {
        payload_of(driver, sequence)
        for sequence in range(sub.last_sent + 1, channel.store.last + 1)
    }
    for one in wanted:
        if one not in held | to_come and not letters[one]:
            raise Violation(f"{one!r} is in neither place")
        met["both"] += one in held and bool(letters[one])
        met["stored"] += bool(letters[one])
    for _ in range(8):
        driver.wait(10)
    letters = dead(driver)
    for one in wanted:
        if not 1 <= letters[one] <= 2:
            raise Violation(f"{one!r} is stored {letters[one]} times")
        met["twice"] += letters[one] == 2
    if sub.pending.sequences():
        raise Violation("something is in flight for ever")
    return met


def calls_of_a_life() -> int:
    disk = SimDisk()
    disk.make_dirs(STORE)
    life = Life(disk, ManualClock())
    life.tell()
    calls = disk.calls
    assert life.told() == {b"one", b"two", b"three", b"four"}
    assert life.driver is not None
    assert dead(life.driver) == Counter(POISON)
    return calls


def kill_everywhere() -> Counter[str]:
    """A death before each storage call; of the machine too, in every way."""
    met: Counter[str] = Counter()
    for call in range(1, calls_of_a_life() + 1):
        disk = SimDisk()
        disk.make_dirs(STORE)
        life = Life(disk, ManualClock())
        fate = Random(f"dead letters {call}")
        torn = fate.choice((0, fate.randint(1, 600)))

        def hook(number: int, _name: str, _of: object, at: int = call, torn: int = torn) -> None:
            if number == at:
                raise Killed(torn)

        disk.on_call = hook
        with pytest.raises(Killed):
            life.tell()
        told = life.told()
        left = [disk.crash(process_only=True)] if torn else []
        left += [] if torn else [disk.crash(fate, mode) for mode in MODES]
        for one in left:
            clock = ManualClock()
            clock.advance(life.clock.mono() - clock.mono())
            try:
                met += judge(one, clock, told)
            except Violation as violation:
                raise Violation(f"{violation} [call={call}, torn={torn}]") from violation
            met["lives"] += 1
    return met


@pytest.mark.timeout(600)
def test_a_server_that_dies_at_any_call_has_no_message_in_neither_place() -> None:
    met = kill_everywhere()
    assert met["lives"] > 100
    # The deaths between the two steps were met.
    assert met["both"]
    assert met["twice"]
    assert met["stored"] > met["both"]


@pytest.mark.timeout(600)
def test_an_acknowledgement_before_the_store_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = DeadLetters._copy

    def acknowledging(self: DeadLetters, letter: Any) -> int:
        size = copy(self, letter)
        sub, sequence = letter
        self._broker.note_implied_ack(sub, sequence)
        self._broker.write_events()
        self._broker.store.write_events()
        self._broker.store.tick(0)
        return size

    monkeypatch.setattr(DeadLetters, "_copy", acknowledging)
    with pytest.raises(Violation, match="in neither place"):
        kill_everywhere()
