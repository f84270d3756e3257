"""A pair under load, and what operators, kernels and networks do to it: every ack survives, and one
owner serves.

``docs/ft.md``, faults, has the list; the faults that are not here have modules of their own.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.subjects import heartbeat_subject
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.load import CHANNEL, Load
from tests.ft.mounts import SmallDisk
from tests.ft.test_pair import owner_of
from tests.processes import CLUSTER, GROUP, READY, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.ft.mounts import Frozen
    from tests.processes import Nats, Server, Stage

pytestmark = pytest.mark.processes

REFUSED = "ft: unable to get store lock at this time"
NOT_THE_GROUPS = "ft: not the group's datastore"
NO_SPACE = "No space left on device"


def pair(stage: Stage, nats: Nats, *words: str, wrap: Sequence[str] = ()) -> tuple[Server, Server]:
    """Two members; the first is active."""
    a = stage.member("a", "-ns", nats.url, *words, wrap=wrap)
    a.wait_for(READY)
    b = stage.member("b", "-ns", nats.url, *words, wrap=wrap)
    b.wait_until_standing_by()
    return a, b


def loaded(nats: Nats) -> tuple[StanClient, Load]:
    """A client, and the load that it has begun to publish."""
    client = StanClient(nats.port)
    client.connect()
    load = Load()
    load.join(client)
    load.run(1000)
    return client, load


def judge(load: Load, nats: Nats) -> None:
    """Take in the last acks; then read the log from the start, and compare."""
    load.settle()
    reader = StanClient(nats.port, "reader")
    reader.connect()
    load.judge(reader.read_all(CHANNEL))


def fatal(server: Server) -> list[str]:
    return [line for line in server.lines() if line.startswith("[FTL]")]


# ---- pauses
# --------------------------------------------------------------------------------------------------


def test_an_owner_that_is_paused_under_load_and_keeps_its_lock_goes_on_and_answers_all(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = pair(stage, nats)
    _, load = loaded(nats)
    epoch = owner_of(stage.store).epoch

    a.signal(signal.SIGSTOP)
    load.press(2000)
    # Refused twice: the second time the standby has waited out a whole interval in which nobody was
    # heard.
    b.wait_for(REFUSED)
    load.press(2000)
    a.signal(signal.SIGCONT)

    load.settle()
    assert load.unanswered == 0
    assert (a.running, a.ft_status, b.ft_status) == (True, 200, 204)
    assert owner_of(stage.store).epoch == epoch
    judge(load, nats)


def test_an_owner_whose_lock_moved_while_it_was_paused_under_load_acks_nothing_any_more(
    stage: Stage,
) -> None:
    nats = stage.nats()
    # Only the confirm behind each batch is left to protect the log: the watch would look at the
    # lock file as well.
    a, b = pair(stage, nats, "-ft_probe_interval", "1h")
    _, load = loaded(nats)

    a.signal(signal.SIGSTOP)
    (stage.store / LOCK_NAME).unlink()
    b.wait_until_active()
    load.give_up()
    # NATS hands these to both: the former owner finds them in its socket when it wakes up.
    load.run(1000)
    a.signal(signal.SIGCONT)
    load.run(1000)

    assert a.status() == 75
    assert len(fatal(a)) == 1
    judge(load, nats)


def test_an_owner_that_nats_dropped_during_a_pause_comes_back_and_serves_on(stage: Stage) -> None:
    """NATS keeps so much for who does not read, and then closes the connection: what is published
    meanwhile is lost.
    """
    nats = stage.nats(settings='max_pending: 1MB\nwrite_deadline: "1s"\n')
    a, b = pair(stage, nats)
    _, load = loaded(nats)
    epoch = owner_of(stage.store).epoch

    a.signal(signal.SIGSTOP)

    def dropped() -> bool:
        load.press(2000)
        return "Slow Consumer" in nats.text()

    until(dropped, "NATS to drop the paused owner")
    a.signal(signal.SIGCONT)
    a.wait_for("reconnected to NATS Server")

    load.give_up()
    load.run(1000)
    assert (a.running, a.ft_status, b.ft_status) == (True, 200, 204)
    assert owner_of(stage.store).epoch == epoch
    judge(load, nats)


# ---- NATS
# --------------------------------------------------------------------------------------------------


def test_a_nats_server_that_is_killed_and_comes_back_changes_no_role(stage: Stage) -> None:
    nats = stage.nats()
    a, b = pair(stage, nats, "-ft_nats_timeout", "1m")
    client, load = loaded(nats)
    epoch = owner_of(stage.store).epoch

    nats.kill()
    load.read_last_acks()
    back = stage.nats("nats-again", nats.port)
    client.move(back.port)
    for member in (a, b):
        member.wait_for("reconnected to NATS Server")
    load.run(1000)

    assert (a.running, a.ft_status, b.ft_status) == (True, 200, 204)
    assert owner_of(stage.store).epoch == epoch
    judge(load, back)


def test_while_no_member_has_nats_nobody_takes_the_store_and_the_standby_does_when_it_is_back(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = pair(stage, nats, "-ft_nats_timeout", "1s")
    client, load = loaded(nats)
    epoch = owner_of(stage.store).epoch

    nats.kill()
    load.read_last_acks()
    assert a.status() == 75
    assert len(fatal(a)) == 1
    assert owner_of(stage.store).epoch == epoch
    assert (b.running, b.ft_status) == (True, 204)

    back = stage.nats("nats-again", nats.port)
    b.wait_for(READY)
    client.move(back.port)
    load.run(1000)
    assert owner_of(stage.store).epoch == epoch + 1
    judge(load, back)


# ---- the datastore
# --------------------------------------------------------------------------------------------------


def test_an_owner_whose_lock_file_is_removed_under_load_leaves_the_store_to_the_standby(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = pair(stage, nats)
    _, load = loaded(nats)

    (stage.store / LOCK_NAME).unlink()

    assert a.status() == 75
    assert len(fatal(a)) == 1
    b.wait_until_active()
    load.give_up()
    load.run(1000)
    judge(load, nats)


def test_an_empty_directory_in_its_place_is_nobodys_and_the_real_store_has_every_ack(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a, b = pair(stage, nats)
    _, load = loaded(nats)
    aside = stage.directory / "aside"
    stage.store.rename(aside)
    stage.store.mkdir()

    # The owner goes on in the directory that it has open, wherever that is now.
    load.run(1000)
    a.kill()
    b.wait_for(NOT_THE_GROUPS)
    assert b.ft_status == 204
    assert list(stage.store.iterdir()) == []

    stage.store.rmdir()
    aside.rename(stage.store)
    b.wait_until_active()
    load.give_up()
    load.run(1000)
    judge(load, nats)


def test_storage_that_freezes_under_load_costs_the_owner_its_store_and_nobody_an_ack(
    stage: Stage, frozen: Frozen
) -> None:
    nats = stage.nats()
    a, b = pair(stage, nats, wrap=frozen.volume.wrap)
    _, load = loaded(nats)

    frozen.freeze()
    load.press(1000)
    a.wait_for("no heartbeats until it answers")
    a.wait_for("[FTL]")
    # A thread that waits in a frozen file system keeps even a process that has ended, and its lock
    # with it.
    frozen.thaw()

    assert a.status() == 75
    assert len(fatal(a)) == 1
    b.wait_for(READY)
    load.give_up()
    load.run(1000)
    judge(load, nats)


class Publisher:
    """Publishes batches of large messages to two channels, and waits for each to be answered, well
    or not.
    """

    CHANNELS = (CHANNEL, b"bills")
    """Two, because errors of the storage itself on more than one channel would end the process."""

    def __init__(self, nats: Nats) -> None:
        self.client = StanClient(nats.port)
        self.client.connect()
        self._payloads: dict[bytes, bytes] = {}

    def offer(self, size: int) -> bool:
        """Publish 8 messages of ``size`` bytes to each channel; whether all were acked."""
        offered: list[bytes] = []
        for channel in self.CHANNELS:
            batch = [
                b"%b %d " % (channel, n) + bytes(size)
                for n in range(len(self._payloads), len(self._payloads) + 8)
            ]
            guids = self.client.offer(channel, *batch)
            self._payloads |= zip(guids, batch, strict=True)
            offered += guids
        self.client.settle(offered)
        return all(guid in self.client.acks for guid in offered)

    def fill(self) -> None:
        """Publish until nothing is accepted any more, not even small messages.

        The errors must say why.
        """
        for size in (30_000, 100):
            while self.offer(size):
                pass
        assert {
            text for texts in self.client.errors.values() for text in texts if NO_SPACE not in text
        } == set()

    def wait_for_room(self) -> None:
        """Publish until all is accepted again."""
        # A full disk is not asked again with every batch: it takes up to a second to be noticed.
        self.client.nats.pump(lambda: self.offer(100), "room to be noticed")

    def judge(self, nats: Nats, *, died: bool) -> None:
        """Everything acked is there once.

        What got an error is not, unless its owner ``died``: then it may be.
        """
        reader = StanClient(nats.port, "reader")
        reader.connect()
        stored = [
            data
            for channel in self.CHANNELS
            for data in list(reader.read_all(channel).values())[:-1]
        ]
        acked = {self._payloads[guid] for guid in self.client.acks}
        assert len(stored) == len(set(stored))
        assert acked <= set(stored) <= set(self._payloads.values())
        assert died or acked == set(stored)
        assert set(self.client.acks.values()) == {1}
        assert not set(self.client.acks) & set(self.client.errors)


def test_a_full_disk_is_an_error_for_publishers_and_no_reason_to_change_roles(stage: Stage) -> None:
    nats = stage.nats()
    disk = SmallDisk(stage)
    a, b = pair(stage, nats, wrap=disk.wrap)
    publisher = Publisher(nats)
    epoch = owner_of(disk.seen).epoch

    publisher.fill()
    # The standby goes on hearing the owner, for longer than it would wait for one that is silent.
    observer = NatsConnection(nats.port)
    beats: list[Arrived] = []
    observer.listen(heartbeat_subject(CLUSTER, GROUP), beats.append)
    observer.pump(lambda: len(beats) >= 4, "heartbeats from a full disk")
    assert not publisher.offer(100_000)
    assert (a.running, a.ft_status, b.ft_status) == (True, 200, 204)

    disk.make_room()
    publisher.wait_for_room()
    assert owner_of(disk.seen).epoch == epoch
    publisher.judge(nats, died=False)


def test_an_owner_that_dies_on_a_full_disk_is_replaced_when_there_is_room(stage: Stage) -> None:
    nats = stage.nats()
    disk = SmallDisk(stage)
    a, b = pair(stage, nats, wrap=disk.wrap)
    publisher = Publisher(nats)
    publisher.fill()
    # What the owner's end leaves free is gone before the standby can use it.
    b.signal(signal.SIGSTOP)
    a.kill()
    disk.fill()
    b.signal(signal.SIGCONT)

    b.wait_for("this server could not become active")
    assert NO_SPACE in b.text()
    assert (b.running, b.ft_status) == (True, 204)

    disk.make_room()
    b.wait_for(READY)
    publisher.wait_for_room()
    publisher.judge(nats, died=True)


def test_two_groups_on_one_directory_are_kept_apart_by_its_lock(stage: Stage) -> None:
    """A mistake of the operator: they hear nothing of each other."""
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_for(READY)
    _, load = loaded(nats)
    b = stage.file_server("b", "-ft_group", "another", "-ns", nats.url)
    b.wait_for(REFUSED)
    assert (a.ft_status, b.ft_status) == (200, 204)

    a.kill()
    b.wait_until_active()
    load.give_up()
    load.run(1000)
    judge(load, nats)
