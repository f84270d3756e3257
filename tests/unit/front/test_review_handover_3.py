"""A listener whose NATS server has routes: what the core sends to a client of another NATS server
reaches that client, whoever listens here for the same.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.processes import free_ports
from tests.unit.front.sessions import CORE, PATIENCE_S, Place, place, pub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.front.sessions import Peer

pytestmark = pytest.mark.processes

INBOX = b"_INBOX.ABCDEFGHIJKLMNOPQRSTUV"
ACKS = b"_STAN.acks.ABCDEFGHIJKLMNOPQRSTUV"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Place]]:
    """Two listeners; their NATS servers know each other."""
    directory = tmp_path_factory.mktemp("routed")
    ports = free_ports(2)

    def started(name: str, own: int, other: int) -> Place:
        listen = f'listen: "127.0.0.1:{own}", routes: ["nats://127.0.0.1:{other}"]'
        return place(directory / name, settings=f"cluster {{ name: c, {listen} }}")

    with started("here", *ports) as here, started("there", *reversed(ports)) as there:
        yield here, there


@pytest.fixture
def pair(places: tuple[Place, Place]) -> Iterator[tuple[Place, Place]]:
    yield places
    for one in places:
        one.leave()


def listener(where: Place, subject: bytes) -> Peer:
    client = where.client()
    client.send(b"SUB %b 1\r\n" % subject)
    client.settle()
    return client


def hears(client: Peer, sender: Peer, subject: bytes, within: float = PATIENCE_S) -> bool:
    """Whether what is sent reaches the client; routes may take a moment."""
    end = time.monotonic() + within
    before = len(client.messages)
    while len(client.messages) == before and time.monotonic() < end:
        sender.send(pub(subject, b"hello"))
        sender.settle()
        client.settle()
    return len(client.messages) > before


def asked(core: Peer, client: Peer, reply: bytes) -> None:
    """A request of the client reaches the core."""
    before = len(core.messages)
    end = time.monotonic() + PATIENCE_S
    while len(core.messages) == before and time.monotonic() < end:
        client.send(pub(b"core.request", b"", reply))
        client.settle()
        core.settle()
    assert core.messages[before].reply == reply


@pytest.mark.parametrize("tap", [">", "_INBOX.>", "_STAN.acks.*"])
def test_a_tap_here_takes_no_answer_from_a_client_elsewhere(
    pair: tuple[Place, Place], tap: str
) -> None:
    here, there = pair
    core = here.core(CORE)
    taps = listener(here, tap.encode())
    for reply in (INBOX, ACKS):
        client = listener(there, reply)
        asked(core, client, reply)
        assert hears(client, core, reply)
    taps.settle()
    assert taps.messages


def test_what_is_left_of_a_client_that_has_gone_elsewhere_takes_nothing_from_it(
    pair: tuple[Place, Place],
) -> None:
    here, there = pair
    core = here.core(CORE)
    former = listener(here, INBOX)
    former.send(b"SUB %b 2\r\n" % ACKS)
    former.send(pub(b"core.request", b"", ACKS))
    former.settle()
    core.wait_for(1)
    assert hears(former, core, INBOX)
    # Its host is gone, and nobody here has found out.
    client = listener(there, INBOX)
    client.send(b"SUB %b 2\r\n" % ACKS)
    asked(core, client, ACKS)
    assert hears(client, core, ACKS)
    assert hears(client, core, INBOX)


def test_who_listens_here_alone_hears_directly_whatever_others_ask_for(
    pair: tuple[Place, Place],
) -> None:
    here, there = pair
    core = here.core(CORE)
    own = listener(here, INBOX)
    other = listener(there, ACKS)
    listener(here, b"_STAN.acks.>")
    asked(core, other, ACKS)
    before = here.front.status().direct_out
    assert hears(own, core, INBOX)
    assert here.front.status().direct_out == before + 1


def test_what_is_left_of_a_client_that_went_while_this_one_was_on_standby(
    pair: tuple[Place, Place],
) -> None:
    here, there = pair
    core = here.core(CORE)
    here.front.be_direct(on=False)
    former = listener(here, INBOX)
    former.send(pub(b"core.request", b"", INBOX))
    former.settle()
    core.wait_for(1)
    # It is active from now on; the client's host is gone, and nobody here has found out.
    here.front.be_direct(on=True)
    client = listener(there, INBOX)
    # Something of the former one might still be on its way for some seconds.
    end = time.monotonic() + 2 * PATIENCE_S
    while not client.messages and time.monotonic() < end:
        asked(core, client, INBOX)
        hears(client, core, INBOX, 0.5)
    assert client.messages
