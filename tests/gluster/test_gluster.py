"""A pair on GlusterFS, whose lock moves away from a host that lives: ``make test-gluster``.

The lock is the volume's, which gives it to the next host when the connection of the former one
broke. Whoever had it may live, with its file descriptors in order: what keeps it from acknowledging
anything is the epoch, which it reads past every cache.
"""

from __future__ import annotations

from signal import SIGCONT, SIGSTOP
from typing import TYPE_CHECKING

import pytest

from tests.ft.client import StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.network import NATS_PORT, NATS_URL, Network
from tests.gluster.volume import OFF, ON, PORTS, Volume
from tests.processes import GROUP, READY, STANDING_BY, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Server, Stage

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

#: As the volume should be, and the same with locks that outlive a connection in the client's eyes.
STRICT = {**dict.fromkeys(ON, "on"), **dict.fromkeys(OFF, "off")}
SETTINGS = {"strict locks": STRICT, "loose locks": {**STRICT, "client.strict-locks": "off"}}
EXIT_FENCED = 75


class Place:
    """Two hosts, their volume, and a client on the hub."""

    def __init__(self, stage: Stage, settings: dict[str, str]) -> None:
        self._stage = stage
        self.network = Network(stage, ["a", "b"], mounts=True)
        self.volume = Volume(stage, self.network, ["a", "b"], settings)
        self.network.nats()
        self.a = self.member("a")
        self.a.wait_for(READY)
        self.b = self.member("b")
        self.b.wait_for(STANDING_BY)
        self.load = Load()
        self.load.join(self.client("publisher"))

    def member(self, host: str) -> Server:
        store = str(self.volume.path / "store")
        words = ("-store", "file", "-dir", store, "-ft_group", GROUP, "-ns", NATS_URL)
        return self._stage.server(
            host, *words, "-ft_allow", "gluster", wrap=self.network.enter(host)
        )

    def client(self, name: str) -> StanClient:
        with self.network.on("hub"):
            client = StanClient(NATS_PORT, name)
        client.connect()
        return client

    def reads_on_a(self) -> bool:
        """Whether host a reads what is on the volume."""
        try:
            return bool(self.network.run("a", "ls", str(self.volume.path / "store")))
        except AssertionError:
            return False

    def judge(self) -> None:
        self.load.settle()
        self.load.judge(self.client("reader").read_all(CHANNEL))


@pytest.fixture(params=SETTINGS)
def place(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(stage, SETTINGS[request.param])
    yield made
    made.volume.close()


def test_an_owner_that_is_killed_is_followed(place: Place) -> None:
    place.load.run(500)
    place.a.kill()
    place.load.read_rest()
    place.load.give_up()
    place.b.wait_for(READY)
    place.load.run(500)
    place.judge()


def test_a_host_that_froze_and_lost_the_lock_acknowledges_nothing_when_it_wakes_up(
    place: Place,
) -> None:
    place.load.run(500)
    mount = place.volume.clients["a"]
    for process in (place.a, mount):
        process.signal(SIGSTOP)
    place.network.cut("a")
    place.load.press(64)
    place.b.wait_for(READY)
    place.load.give_up()
    place.load.run(500)
    place.network.heal("a")
    mount.signal(SIGCONT)
    until(place.reads_on_a, "the volume on the host that froze")
    # Its descriptors are in order, and the network brings it what was published meanwhile.
    place.a.signal(SIGCONT)
    assert place.a.status() == EXIT_FENCED
    assert "epoch 1 was superseded by epoch 2" in place.a.text()
    place.load.run(100)
    place.judge()


def test_an_owner_whose_way_to_the_volume_is_cut_gives_way(place: Place) -> None:
    place.load.run(500)
    place.network.cut_port("a", *PORTS)
    place.load.press(64)
    assert place.a.status() == EXIT_FENCED
    place.b.wait_for(READY)
    place.load.give_up()
    place.load.run(500)
    place.network.heal("a")
    place.judge()
