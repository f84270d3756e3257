"""A partition under attack: what is not its own, who comes late, storage that fails, and an owner
that is replaced.

Of every publish one thing is true: it is stored once and acked well, or refused and not stored, or,
where the server or its link ended meanwhile, neither acked nor refused.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ftstan.base.errors import FencedError
from ftstan.broker.broker import BrokerOptions
from ftstan.broker.partition import Partition
from ftstan.stores.interface import ClientInfo
from tests.compat.driver import SUBJECTS, Driver, connect_request, deliveries, pub_acks, pub_msg
from tests.unit.broker.test_failures import RefusingStore
from tests.unit.broker.test_order import Road, publish_frame

PUBLISH = SUBJECTS.publish.encode()
OWN = (b"foo", b"in.*", b"*.zed", b"deep.>")
OURS = [b"foo", b"in.a", b"in.zed", b"b.zed", b"deep.x.y"]
FOREIGN = [b"bar", b"foo.x", b"in.a.b", b"deep", b"zed"]
CLIENTS = [b"a", b"b", b"c"]


def offer(driver: Driver, guid: bytes, channel: bytes, client_id: bytes, subject: bytes) -> None:
    """A publish for ``channel`` on the subject of another one, or the same."""
    payload = pub_msg(guid, channel, guid, client_id=client_id, conn_id=b"conn." + client_id)
    driver.frame(PUBLISH + b"." + subject, payload, b"_STAN.acks." + client_id)


def contents(driver: Driver) -> dict[bytes, list[bytes]]:
    """Channel -> payloads in their order, as somebody who reads everything gets them."""
    driver.connect(b"reader")
    found = {}
    for channel in [c.name for c in driver.broker.channels.values()]:
        driver.subscribe(
            channel, client_id=b"reader", inbox=b"all." + channel, max_in_flight=100_000
        )
        found[channel] = [d.data for d in deliveries(driver.out, b"all." + channel)]
    return found


def storm(
    rng: Random, driver: Driver, store: RefusingStore, *, link: bool
) -> tuple[dict[bytes, bytes], set[bytes]]:
    """Publishes of every kind while clients come, are learned, and go.

    Guid -> channel, and those that are foreign.
    """
    sent: dict[bytes, bytes] = {}
    foreign: set[bytes] = set()
    for step in range(120):
        store.broken = {rng.choice(OURS)} if rng.random() < 0.15 else set()
        for i in range(rng.randrange(4)):
            guid = b"%d.%d" % (step, i)
            client_id = rng.choice(CLIENTS)
            channel = rng.choice(OURS)
            subject = channel
            if rng.random() < 0.2:
                channel = rng.choice(FOREIGN)
                subject = rng.choice([channel, rng.choice(OURS)])
                foreign.add(guid)
            sent[guid] = channel
            offer(driver, guid, channel, client_id, subject)
        draw = rng.random()
        client_id = rng.choice(CLIENTS)
        if draw < 0.2:
            driver.frame(
                SUBJECTS.discovery,
                connect_request(client_id, b"hb." + client_id, b"conn." + client_id),
                driver.reply(),
            )
        elif draw < 0.3:
            driver.broker.connections.learn(
                [ClientInfo(client_id, b"hb." + client_id, b"conn." + client_id, 1, 5, 3)]
            )
        elif draw < 0.4 and (client := driver.broker.clients.get(client_id)) is not None:
            driver.broker.connections.remove(client)
        lost = link and rng.random() < 0.1
        driver.run(lost=lost)
        if lost:
            driver.open_link()
        store.broken = set()
        if rng.random() < 0.3:
            driver.wait(rng.choice([0.1, 0.6, 1.1]))
    driver.broker.pending_registrations.give_up()
    driver.wait(2)
    return sent, foreign


@pytest.mark.parametrize("link", [False, True], ids=["link holds", "link breaks"])
@pytest.mark.parametrize("seed", range(6))
def test_a_publish_is_stored_once_and_acked_or_refused_and_not_stored_whoever_sends_it_when(
    seed: int, *, link: bool
) -> None:
    store = RefusingStore()
    driver = Driver(store, BrokerOptions(partition=Partition(OWN)))
    sent, foreign = storm(Random(seed), driver, store, link=link)
    answers = Counter(a.guid for a in pub_acks(driver.out))
    acked = {a.guid for a in pub_acks(driver.out) if not a.error}
    refused = {a.guid for a in pub_acks(driver.out) if a.error}
    found = contents(driver)
    assert set(found) <= set(OURS)
    for channel, payloads in found.items():
        assert max(Counter(payloads).values(), default=1) == 1
        assert all(sent[guid] == channel for guid in payloads)
    kept = {guid for payloads in found.values() for guid in payloads}
    assert acked <= kept
    assert not kept & (refused | foreign)
    assert acked
    assert refused - foreign
    assert max(answers.values()) == 1
    if not link:
        assert acked == kept
        # On a subject that is ours everybody is answered; the others do not even arrive.
        silent = sent.keys() - answers.keys()
        assert silent <= foreign
    assert sum(map(len, found.values())) == len(kept)


# ---- on the road of a real server
# ----------------------------------------------------------------------------------


CONNECT = SUBJECTS.discovery, b"reply.connect", connect_request(b"me", b"hb", b"conn.me")


@pytest.fixture
def road() -> Road:
    return Road(options=BrokerOptions(partition=Partition([b"foo"])))


def stored(road: Road) -> int:
    channel = road.serving.broker.channels.get(b"foo")
    return 0 if channel is None else channel.store.last


def test_what_waited_is_acked_only_when_it_is_synced_and_confirmed(road: Road) -> None:
    assert road.turn(publish_frame(b"a"), publish_frame(b"b")) == b""
    assert stored(road) == 0
    sent = road.turn(CONNECT)
    assert sent.count(b"PUB _STAN.acks.me ") == 2
    before = road.happened[: road.happened.index("send")]
    synced = max(i for i, name in enumerate(before) if name in ("fsync", "fdatasync"))
    assert "pwrite" in before[:synced]
    assert "confirm" in before[synced:]
    assert stored(road) == 2


def test_what_waited_is_not_acked_if_the_store_is_somebody_elses_when_its_client_comes(
    road: Road,
) -> None:
    road.turn(publish_frame(b"a"))
    road.fenced = True
    with pytest.raises(FencedError):
        road.turn(CONNECT)
    assert road.sent == b""


def test_what_waits_too_long_is_not_refused_either_by_an_owner_that_was_replaced(
    road: Road,
) -> None:
    road.turn(publish_frame(b"a"))
    road.fenced = True
    road.clock.advance(1.1)
    with pytest.raises(FencedError):
        road.turn()
    assert road.sent == b""


def test_what_waited_has_an_error_if_it_cannot_be_made_durable(road: Road) -> None:
    road.turn(CONNECT)
    road.turn(publish_frame(b"first"))
    late = (
        f"{SUBJECTS.publish}.foo",
        b"_STAN.acks.late",
        pub_msg(b"g", b"foo", b"x", conn_id=b"conn.late"),
    )
    assert road.turn(late) == b""
    road.disk.volume.space = 0
    sent = road.turn(
        (SUBJECTS.discovery, b"reply.late", connect_request(b"late", b"hb.late", b"conn.late"))
    )
    (line,) = [part for part in sent.split(b"PUB ") if part.startswith(b"_STAN.acks.late ")]
    assert b"No space left on device" in line
    assert stored(road) == 1


def test_a_stop_in_that_second_stores_nothing_of_what_waits_and_acks_nothing(road: Road) -> None:
    road.turn(CONNECT)
    road.turn(publish_frame(b"first"))
    late = (
        f"{SUBJECTS.publish}.foo",
        b"_STAN.acks.late",
        pub_msg(b"g", b"foo", b"x", conn_id=b"conn.late"),
    )
    road.turn(late)
    road.sent = b""
    road.serving.stop()
    assert b"_STAN.acks.late" not in road.sent
    assert stored(road) == 1
