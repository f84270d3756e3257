"""The store lock and its directory as real processes see them: removed, replaced, held by an owner
that is gone.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.lock import LOCK_NAME
from tests.ft.client import StanClient
from tests.ft.load import CHANNEL
from tests.ft.mounts import LateShare
from tests.processes import STANDING_BY, free_ports, until

if TYPE_CHECKING:
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

REGAINED = "ft: the store lock is free, and held by this server now"
NOT_THE_GROUPS = "ft: not the group's datastore"


def fatal_lines(server: Server) -> list[str]:
    return [line for line in server.lines() if line.startswith("[FTL]")]


def test_a_standby_passes_a_paused_owner_whose_lock_file_was_removed(stage: Stage) -> None:
    """The standby waits on the removed file, where it would be refused for as long as the owner is
    paused.
    """
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"before")

    a.signal(signal.SIGSTOP)
    (stage.store / LOCK_NAME).unlink()
    b.wait_until_active()
    client.publish(CHANNEL, b"between")
    a.signal(signal.SIGCONT)

    assert a.status() == 75
    assert len(fatal_lines(a)) == 1
    client.publish(CHANNEL, b"after")
    assert client.read_to(CHANNEL, 3) == {1: b"before", 2: b"between", 3: b"after"}
    assert set(client.acks.values()) == {1}


def test_a_store_is_stolen_from_an_owner_that_is_silent_and_keeps_its_lock(stage: Stage) -> None:
    nats = stage.nats()
    words = ("-ns", nats.url, "-ft_steal_after", "3s")
    a = stage.member("a", *words)
    a.wait_until_active()
    b = stage.member("b", *words)
    b.wait_for(STANDING_BY)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"before")

    a.signal(signal.SIGSTOP)
    b.wait_until_active()
    (loud,) = [line for line in b.lines() if "TAKING THE DATASTORE WITHOUT ITS LOCK" in line]
    assert f"pid {a.pid}" in loud
    client.publish(CHANNEL, b"stolen")
    # One that starts now is neither granted the lock nor in a hurry.
    c = stage.member("c", *words)
    c.wait_for(STANDING_BY)
    assert REGAINED not in b.text()
    a.signal(signal.SIGCONT)

    assert a.status() == 75
    assert len(fatal_lines(a)) == 1
    b.wait_for(REGAINED)
    client.publish(CHANNEL, b"after")
    assert (b.ft_status, c.ft_status) == (200, 204)
    assert client.read_to(CHANNEL, 3) == {1: b"before", 2: b"stolen", 3: b"after"}
    assert set(client.acks.values()) == {1}
    # The lock keeps others out again: the next takeover is an ordinary one.
    b.kill()
    c.wait_until_active()
    assert client.read_to(CHANNEL, 3) == {1: b"before", 2: b"stolen", 3: b"after"}


def test_without_the_option_nothing_is_stolen_and_the_holder_is_named(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    a.signal(signal.SIGSTOP)

    b.wait_for("ft: unable to get store lock at this time, going back to standby")
    b.wait_for(
        "ft: the datastore's lock is held, and no owner is heard: it was taken last by epoch 1 "
        "of server"
    )

    (named,) = [line for line in b.lines() if "lock is held" in line]
    assert f"pid {a.pid}" in named
    assert b.ft_status == 204
    a.signal(signal.SIGCONT)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"served")


@pytest.mark.parametrize("left", ["an empty directory", "nothing"])
def test_a_standby_whose_directory_was_replaced_by_an_empty_one_stays_standby_and_leaves_it_empty(
    stage: Stage, left: str
) -> None:
    """What a share that is not mounted looks like: an empty directory in its place, or none."""
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"one")
    aside = stage.directory / "aside"
    stage.store.rename(aside)
    if left != "nothing":
        stage.store.mkdir()

    a.kill()
    b.wait_for(NOT_THE_GROUPS)
    (said,) = [line for line in b.lines() if NOT_THE_GROUPS in line][:1]
    assert said.startswith("[ERR]")
    assert b.ft_status == 204
    if left == "nothing":
        assert not stage.store.exists()
    else:
        assert os.listdir(stage.store) == []
        stage.store.rmdir()

    # The share is back.
    aside.rename(stage.store)
    b.wait_until_active()
    client.publish(CHANNEL, b"two")
    assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}


def test_a_member_on_an_empty_directory_beside_a_serving_group_does_not_become_active(
    stage: Stage,
) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url)
    a.wait_until_active()
    elsewhere = stage.directory / "elsewhere"

    b = stage.server(
        "b", "-store", "file", "-dir", str(elsewhere), "-ft_group", "test-group", "-ns", nats.url
    )
    b.wait_for(NOT_THE_GROUPS)
    a.kill()
    b.wait_for(NOT_THE_GROUPS, times=2)

    assert b.ft_status == 204
    assert os.listdir(elsewhere) == []


def test_a_standby_whose_directory_was_emptied_says_so_while_its_owner_serves(stage: Stage) -> None:
    nats = stage.nats()
    a, b = stage.pair_on(nats)
    aside = stage.directory / "aside"
    stage.store.rename(aside)
    stage.store.mkdir()

    b.wait_for(NOT_THE_GROUPS)

    assert (a.ft_status, b.ft_status) == (200, 204)


def test_a_member_that_starts_before_its_nats_server_stands_by_and_serves_when_it_comes(
    stage: Stage,
) -> None:
    (port,) = free_ports(1)
    a = stage.member("a", "-ns", f"nats://127.0.0.1:{port}")
    a.wait_for(STANDING_BY)
    until(lambda: a.ft_status == 204, "the standby's page")
    assert not (stage.store / LOCK_NAME).exists()

    nats = stage.nats(port=port)

    a.wait_until_active()
    client = StanClient(nats.port)
    client.connect()
    client.publish(CHANNEL, b"served")


def test_a_member_that_starts_before_its_share_is_mounted_asks_past_its_hosts_cache(
    stage: Stage,
) -> None:
    """A share that refuses to be asked like that is served by nobody, as at a start."""
    share = LateShare(stage)
    (port,) = free_ports(1)
    a = stage.member("a", "-ns", f"nats://127.0.0.1:{port}", wrap=share.wrap)
    a.wait_for(STANDING_BY)
    until(lambda: a.ft_status == 204, "the standby's page")
    assert "on ramfs" not in "".join(a.lines())
    share.mount()

    stage.nats(port=port)

    a.wait_for("nobody has tried a group on the file system ramfs")
    a.wait_for("ft: this server could not become active: ft.epoch: this file system refuses direct")
    assert a.ft_status == 204
    assert list(stage.store.iterdir()) == []


def test_a_mount_problem_that_does_not_exist_is_refused_by_name(stage: Stage) -> None:
    a = stage.member("a", "-ft_allow", "nolock,bogus")
    assert a.status() == 1
    (line,) = fatal_lines(a)
    assert 'ft_allow has no problem of the name "bogus"' in line
    assert not stage.store.exists()
