"""What a node does about itself, with real processes: storage frozen, NATS gone, the process
paused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.ft.lock import LOCK_NAME
from ftstan.ft.subjects import heartbeat_subject
from ftstan.ft.watch import WATCH_NAME, decode_watch
from tests.ft.client import Arrived, NatsConnection, StanClient
from tests.ft.test_pair import owner_of
from tests.processes import CLUSTER, GROUP, HOST, READY, STANDING_BY, children, until

if TYPE_CHECKING:
    from tests.ft.mounts import Frozen
    from tests.processes import Server, Stage

pytestmark = pytest.mark.processes

CHANNEL = b"orders"


def fatal(server: Server) -> list[str]:
    return [line for line in server.lines() if line.startswith("[FTL]")]


def connected(port: int, name: str = "me") -> StanClient:
    client = StanClient(port, name)
    client.connect()
    return client


# ---- a NATS server without room
# --------------------------------------------------------------------------------------------------


def test_a_standby_takes_over_where_clients_take_each_place_that_the_nats_server_has(
    stage: Stage,
) -> None:
    nats = stage.nats(settings="max_connections: 16\n")
    a, b = stage.pair_on(nats)
    client = connected(nats.port)
    client.publish(CHANNEL, b"before")
    crowd: list[socket.socket] = []

    def let_in() -> bool:
        """One more comes, if there is room."""
        one = socket.create_connection((HOST, nats.port))
        one.settimeout(10)
        one.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        said = b""
        while b"PONG" not in said and b"-ERR" not in said and (more := one.recv(4096)):
            said += more
        if b"PONG" not in said:
            one.close()
            return False
        crowd.append(one)
        return True

    while let_in():
        pass
    full = len(crowd)
    with ThreadPoolExecutor(1) as pool:
        over = threading.Event()

        def press() -> None:
            while not over.is_set():
                let_in()

        pressed = pool.submit(press)
        try:
            a.kill()
            b.wait_for(READY)
        finally:
            over.set()
        pressed.result()
    # They have taken what was the former owner's.
    assert len(crowd) > full > 0
    client.publish(CHANNEL, b"after")
    assert client.read_to(CHANNEL, 2) == {1: b"before", 2: b"after"}
    for one in crowd:
        one.close()


# ---- storage
# --------------------------------------------------------------------------------------------------


def test_an_idle_owner_whose_storage_hangs_says_so_and_ends_with_75(
    stage: Stage, frozen: Frozen
) -> None:
    server = stage.file_server("server", wrap=frozen.volume.wrap)
    server.wait_for(READY)
    frozen.freeze()
    server.wait_for("no heartbeats until it answers")
    server.wait_for("[FTL]")
    (line,) = fatal(server)
    assert "storage has not answered for 10s" in line
    # A thread that waits in a frozen file system keeps even a killed process: the kernel lets go of
    # it now.
    frozen.thaw()
    assert server.status() == 75
    assert len(fatal(server)) == 1


def test_an_owner_that_publishes_into_frozen_storage_acks_nothing_and_the_standby_has_every_ack(
    stage: Stage, frozen: Frozen
) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url, wrap=frozen.volume.wrap)
    a.wait_until_active()
    client = connected(nats.port)
    client.publish(CHANNEL, *(b"%d" % n for n in range(20)))
    frozen.freeze()
    lost = client.offer(CHANNEL, b"frozen")
    a.wait_for("[FTL]")
    frozen.thaw()
    assert a.status() == 75
    assert len(fatal(a)) == 1
    assert not set(lost) & set(client.acks)

    b = stage.member("b", "-ns", nats.url, wrap=frozen.volume.wrap)
    b.wait_until_active()
    client.publish(CHANNEL, b"after")
    contents = connected(nats.port, "reader").read_all(CHANNEL)
    assert {n: contents[n] for n in range(1, 21)} == {n + 1: b"%d" % n for n in range(20)}


def test_storage_that_hangs_for_a_moment_costs_heartbeats_and_nothing_else(
    stage: Stage, frozen: Frozen
) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url, wrap=frozen.volume.wrap)
    a.wait_until_active()
    client = connected(nats.port)
    client.publish(CHANNEL, b"one")
    observer = NatsConnection(nats.port)
    beats: list[Arrived] = []
    observer.listen(heartbeat_subject(CLUSTER, GROUP), beats.append)
    observer.pump(lambda: beats, "a heartbeat")
    frozen.freeze()
    late = client.offer(CHANNEL, b"two")
    a.wait_for("no heartbeats until it answers")
    observer.flush()
    beats.clear()
    # Longer than an interval, and no more than that: the process gives up by itself a few seconds
    # later.
    time.sleep(1.5)
    observer.flush()
    silent = len(beats)
    frozen.thaw()
    a.wait_for("storage answers again")
    assert silent == 0
    observer.pump(lambda: beats, "heartbeats again")
    client.settle(late)
    assert (a.running, a.ft_status, fatal(a)) == (True, 200, [])
    assert client.read_to(CHANNEL, 2) == {1: b"one", 2: b"two"}


def test_a_signal_to_an_owner_whose_storage_hangs_does_not_wait_for_ever(
    stage: Stage, frozen: Frozen
) -> None:
    server = stage.file_server("server", wrap=frozen.volume.wrap)
    server.wait_for(READY)
    connected(server.port).publish(CHANNEL, b"one")
    frozen.freeze()
    server.signal(signal.SIGTERM)
    server.wait_for("[FTL]")
    frozen.thaw()
    assert server.status() == 75
    assert len(fatal(server)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_node_that_waits_for_storage_while_it_starts(
    stage: Stage, frozen: Frozen, number: signal.Signals
) -> None:
    frozen.freeze()
    server = stage.file_server("server", wrap=frozen.volume.wrap)
    # It makes its lock file under the frozen root: that is where it hangs.
    until(lambda: "STREAM: Starting nats-streaming-server" in server.text(), "the first line")
    until(lambda: goes_on_waiting(server.pid), "a thread that waits in the file system")
    server.signal(number)
    server.wait_for("Shutting down.")
    server.wait_for("ending without it, nothing was written")
    frozen.thaw()
    assert server.status() == (143 if number == signal.SIGTERM else 0)


def goes_on_waiting(pid: int) -> bool:
    """Whether a thread is found waiting in the file system each time: reading a module makes it
    wait once, too.
    """
    for _ in range(20):
        if b"D" not in states(pid):
            return False
        time.sleep(0.01)
    return True


def states(pid: int) -> set[bytes]:
    """The states of all threads of a process, as the kernel shows them."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add((task / "stat").read_bytes().rpartition(b")")[2].split()[0])
    return found


def test_an_idle_owner_notices_that_its_lock_file_was_removed(stage: Stage) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    (stage.store / LOCK_NAME).unlink()
    assert server.status() == 75
    (line,) = fatal(server)
    assert "the lock file was removed" in line


def test_the_watch_leaves_its_word_in_the_datastore(stage: Stage) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    until(lambda: counter(stage.store) >= 2, "two probes")
    record = decode_watch((stage.store / WATCH_NAME).read_bytes())
    assert record is not None
    assert (record.server_id, record.epoch) == (
        server.serverz()["server_id"],
        owner_of(stage.store).epoch,
    )


def counter(store: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        record = decode_watch((store / WATCH_NAME).read_bytes())
        return record.counter if record is not None else 0
    return 0


def test_state_files_that_somebody_replaced_are_written_again_from_memory(stage: Stage) -> None:
    server = stage.file_server("server")
    server.wait_for(READY)
    client = connected(server.port)
    client.subscribe(CHANNEL, durable=b"audit")
    client.publish(CHANNEL, b"one")
    paths = [stage.store / name for name in ("server.dat", "clients.dat", "orders/subs.dat")]
    for path in paths:
        # What a former owner's late rename does: another file under the name, with an older
        # content.
        other = path.with_name("other")
        other.write_bytes(b"\x01\x00\x00\x00")
        other.rename(path)
    server.wait_for("was replaced by somebody: written again from memory", times=3)
    until(lambda: all(path.stat().st_size > 4 for path in paths), "the files with their contents")
    server.kill()

    later = stage.file_server("later", port=server.port)
    later.wait_for(READY)
    client.move(later.port)
    assert client.ping() == ""
    assert later.serverz()["subscriptions"] == 1


# ---- recovery
# --------------------------------------------------------------------------------------------------


def test_during_a_long_recovery_monitoring_answers_and_a_signal_ends_it(stage: Stage) -> None:
    # A quick machine has read a small store before the signal comes: then it gets a larger one.
    for size in (4_000, 16_000, 64_000):
        first = stage.file_server(f"first-{size}", "-mc", "0")
        first.wait_for(READY)
        connected(first.port).publish(b"c", *(b"%d" % n for n in range(size)))
        first.kill()
        # As many as are opened before a store serves; other names for the same bytes are damage,
        # and read slowly.
        for n in range(60):
            shutil.copytree(stage.store / "c", stage.store / f"c{n}", dirs_exist_ok=True)

        server = stage.member(f"server-{size}", "-mc", "0", port=first.port)
        server.wait_for("Recovering the state...")
        page = server.serverz()
        server.signal(signal.SIGTERM)
        assert (page["state"], page["ft_phase"]) == ("FT_STANDBY", "recovering")
        assert server.status() == 143
        assert fatal(server) == []
        if page["cluster_id"] == "" and "STREAM: Recovered" not in server.text():
            return
    pytest.fail("every store was recovered before the signal came")


# ---- the service manager
# ---------------------------------------------------------------------------------------------


def test_a_service_manager_is_told_how_the_node_is(stage: Stage) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(stage.directory / "notify"))
        manager.settimeout(60)
        words = ["env", f"NOTIFY_SOCKET={stage.directory}/notify", "WATCHDOG_USEC=2000000"]
        server = stage.member("server", wrap=words)
        heard: list[str] = []

        def wait_for(text: str) -> None:
            while text not in heard:
                heard.append(manager.recv(4096).decode())

        wait_for("READY=1")
        wait_for("STATUS=FT_ACTIVE: serving, epoch 1")
        for _ in range(3):
            heard.clear()
            before = counter(stage.store)
            wait_for("WATCHDOG=1")
        assert counter(stage.store) >= before > 0
        server.signal(signal.SIGTERM)
        wait_for("STOPPING=1")
        assert server.status() == 143


# ---- NATS
# --------------------------------------------------------------------------------------------------


def test_an_owner_cut_off_from_nats_leaves_cleanly_and_comes_back_as_a_standby(
    stage: Stage,
) -> None:
    nats_a = stage.nats("nats-a")
    nats_b = stage.nats("nats-b")
    a = stage.member("a", "-ns", nats_a.url, "-ft_nats_timeout", "1s")
    a.wait_until_active()
    client = connected(nats_a.port)
    client.publish(CHANNEL, b"one")
    b = stage.member("b", "-ns", nats_b.url)
    b.wait_for(STANDING_BY)

    nats_a.kill()

    assert a.status() == 75
    (line,) = fatal(a)
    assert "cut off from NATS" in line
    b.wait_until_active()
    assert connected(nats_b.port, "other").read_to(CHANNEL, 1) == {1: b"one"}

    again = stage.member("again", "-ns", nats_a.url)
    again.wait_for(STANDING_BY)
    stage.nats("nats-c", nats_a.port)
    until(lambda: again.ft_status == 204, "the standby")
    b.kill()
    again.wait_until_active()


def test_a_short_absence_of_nats_changes_nothing(stage: Stage) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url, "-ft_nats_timeout", "1m")
    a.wait_until_active()
    epoch = owner_of(stage.store).epoch
    nats.kill()
    a.wait_for("has been disconnected")
    stage.nats("nats-again", nats.port)
    a.wait_for("reconnected to NATS Server")
    until(lambda: a.ft_status == 200, "service")
    assert connected(nats.port).ping() == ""
    assert owner_of(stage.store).epoch == epoch


def test_a_standalone_server_looks_for_nats_for_ever(stage: Stage) -> None:
    nats = stage.nats()
    server = stage.file_server("server", "-ns", nats.url, "-ft_nats_timeout", "100ms")
    server.wait_for(READY)
    nats.kill()
    server.wait_for("has been disconnected")
    before = counter(stage.store)
    until(lambda: counter(stage.store) >= before + 3, "three probes without NATS")
    assert server.running
    stage.nats("nats-again", nats.port)
    server.wait_for("reconnected to NATS Server")
    connected(nats.port).publish(CHANNEL, b"served")


def test_an_embedded_nats_server_that_does_not_come_back_counts_as_gone(stage: Stage) -> None:
    a = stage.member("a", "-ft_nats_timeout", "2s", "-direct=false")
    a.wait_until_active()
    (child,) = (
        pid
        for pid in children(a.pid)
        if b"nats-server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(child, signal.SIGKILL)
    # Somebody else takes its port before it is started again.
    taken = None
    while taken is None and a.running:
        with contextlib.suppress(OSError):
            taken = socket.create_server((HOST, a.port))
    assert taken is not None
    with taken:
        a.wait_for("could not be started again")
        assert a.status() == 75
    assert "cut off from NATS" in fatal(a)[0]


# ---- pauses
# --------------------------------------------------------------------------------------------------


def test_a_pause_is_no_silence_of_storage_and_no_absence_of_nats(stage: Stage) -> None:
    nats = stage.nats()
    a = stage.member("a", "-ns", nats.url, "-ft_nats_timeout", "1s")
    a.wait_until_active()
    client = connected(nats.port)
    for _ in range(3):
        a.signal(signal.SIGSTOP)
        offered = client.offer(CHANNEL, b"x")
        # Longer than the suspicion interval and the NATS timeout.
        time.sleep(2)
        a.signal(signal.SIGCONT)
        client.settle(offered)
    assert (a.running, fatal(a)) == (True, [])


# ---- activations that storage refuses
# --------------------------------------------------------------------------------


def test_a_store_that_refuses_every_member_costs_no_process_and_few_epochs(stage: Stage) -> None:
    nats = stage.nats()
    first = stage.file_server("first", "-ns", nats.url)
    first.wait_for(READY)
    connected(nats.port).publish(CHANNEL, b"one")
    first.signal(signal.SIGTERM)
    assert first.status() == 143
    whole = (stage.store / "server.dat").read_bytes()
    (stage.store / "server.dat").write_bytes(whole[:8] + b"XXXX" + whole[12:])

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(stage.directory / "notify"))
        manager.settimeout(60)
        told = ["env", f"NOTIFY_SOCKET={stage.directory}/notify"]
        members = [
            stage.member("a", "-ns", nats.url, wrap=told),
            stage.member("b", "-ns", nats.url),
        ]
        for member in members:
            member.wait_for("could not become active")
        members[0].wait_for("next try in", times=2)
        status = ""
        while not status.startswith("STATUS=FT_STANDBY: backing off after"):
            status = manager.recv(4096).decode()
        assert "unable to recover server file" in status
    assert [(member.running, member.ft_status, fatal(member)) for member in members] == [
        (True, 204, [])
    ] * 2

    (stage.store / "server.dat").write_bytes(whole)
    until(
        lambda: [member.ft_status for member in members].count(200) == 1, "service after the repair"
    )
    assert connected(nats.port, "reader").read_to(CHANNEL, 1) == {1: b"one"}


def test_a_wrong_cluster_id_is_a_mistake_of_the_operator_and_ends_a_member(stage: Stage) -> None:
    first = stage.file_server("first")
    first.wait_for(READY)
    first.signal(signal.SIGTERM)
    assert first.status() == 143
    member = stage.member("member", cluster="another")
    assert member.status() == 1
    assert 'cluster ID "another" does not match' in fatal(member)[0]
