"""Servers inside a program: several of them, started and stopped from anywhere, and none that harms
the program.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import ftstan
from ftstan import embed
from ftstan.base.clock import SystemClock
from ftstan.base.disk import LocalDisk, ShuttableDisk
from ftstan.base.errors import FencedError, FtstanError, NatsError
from ftstan.config.options import ChannelLimits, StoreLimits
from ftstan.ft import vital_signs
from ftstan.ft.epoch_records import Cause
from ftstan.ft.ownership import StoreOwner
from ftstan.stores.file.store import FileStore
from ftstan.wire.partition import Sender, reply
from ftstan.wire.partition import subject as lists_of
from tests.ft.client import NatsConnection, StanClient
from tests.ft.programs import run_to_end
from tests.ft.test_readme import network_of_its_own
from tests.processes import CLUSTER, HOST, PATIENCE_S, ROOT, Child, children, until, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ftstan import StanServer
    from ftstan.stores.interface import Recovered
    from tests.ft.client import Arrived

pytestmark = [pytest.mark.processes]

ANY_PORT = ftstan.NatsOptions(host=HOST, port=-1)


@pytest.fixture
def run() -> Iterator[Callable[..., StanServer]]:
    """Start servers on ports of their own; whatever still runs at the end is stopped."""
    servers: list[StanServer] = []

    def start(
        options: ftstan.ServerOptions | None = None,
        on_fenced: Callable[[FtstanError], None] | None = None,
    ) -> StanServer:
        server = ftstan.run_server_with(options, ANY_PORT, on_fenced=on_fenced)
        servers.append(server)
        return server

    yield start
    NatsConnection.close_all()
    for server in servers:
        server.stop()


def port(server: StanServer) -> int:
    return int(server.client_url.rpartition(":")[2])


def client(server: StanServer) -> StanClient:
    found = StanClient(port(server), cluster=server.options.cluster_id)
    found.connect()
    return found


def file_options(directory: Path, cluster: str = "test-cluster") -> ftstan.ServerOptions:
    return ftstan.ServerOptions(cluster_id=cluster, store="FILE", dir=str(directory))


def take(directory: Path) -> None:
    """Become the owner of a datastore, whoever serves it."""
    owner = StoreOwner(
        LocalDisk(), str(directory), server_id="other", clock=SystemClock(), in_group=False
    )
    owner.activate(cause=Cause.STOLEN, without_lock=True)
    owner.close()


def programs() -> list[tuple[str, str]]:
    """The programs of the page, and what each prints."""
    page = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    assert len(found) == page.count("```python")
    return found


@pytest.mark.parametrize(("program", "printed"), programs())
def test_each_program_of_the_page_prints_what_the_page_says(
    program: str, printed: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    before = network_of_its_own(" 4222 4223 8223 ")
    outcome = run_to_end(
        [*before, "env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "program.py"], tmp_path
    )
    assert (outcome.status, outcome.text) == (0, printed), outcome.shown()


def test_servers_in_one_process_serve_each_its_own_clients(
    run: Callable[..., StanServer], tmp_path: Path
) -> None:
    one = run()
    two = run(file_options(tmp_path, "two"))
    client(one).publish(b"channel", b"of one")
    client(two).publish(b"channel", b"of two")
    assert one.stop() == 0
    assert not one.is_running
    again = client(two)
    again.publish(b"channel", b"still")
    assert [*again.read_to(b"channel", 2).values()] == [b"of two", b"still"]


def test_a_fenced_server_ends_alone_and_says_so_once(
    run: Callable[..., StanServer], tmp_path: Path
) -> None:
    told: list[FtstanError] = []
    fenced = run(file_options(tmp_path, "fenced"), told.append)
    other = run()
    begun = children(os.getpid())
    client(fenced).publish(b"channel", b"acked")
    take(tmp_path)
    assert fenced.wait(PATIENCE_S) == 75
    assert [type(error) for error in told] == [FencedError]
    assert not fenced.is_running
    with pytest.raises(NatsError):
        _ = fenced.client_url
    assert len(set(begun) & set(children(os.getpid()))) == len(begun) - 1
    client(other).publish(b"channel", b"served")
    successor = run(file_options(tmp_path, "fenced"))
    assert client(successor).read_to(b"channel", 1) == {1: b"acked"}
    assert fenced.stop() == 75
    assert len(told) == 1


class HangingDisk(ShuttableDisk):
    """Storage whose writes hang while the gate is shut, as a hard NFS mount's do when its server is
    away.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.hanging = 0
        self.refused = 0

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        if not self.answers.is_set():
            self.hanging += 1
            assert self.answers.wait(PATIENCE_S)
        try:
            super().pwrite(fd, data, offset)
        except OSError as error:
            self.refused += error.errno == errno.ESHUTDOWN
            raise


@pytest.mark.parametrize("phase", ["work of a second", "recovery"])
def test_one_file_that_hangs_outside_a_batch_ends_the_server_though_the_watch_passes(
    run: Callable[..., StanServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    hangs = threading.Event()
    goes_on = threading.Event()
    beside = LocalDisk.listdir

    def listdir(disk: LocalDisk, dirfd: int) -> list[tuple[str, bool]]:
        if hangs.is_set() and threading.current_thread().name != "watch":
            assert goes_on.wait(PATIENCE_S)
        return beside(disk, dirfd)

    def tick(store: FileStore, now_ns: int) -> bool:
        if phase == "work of a second":
            hangs.set()
            store._env.disk.listdir(store._env.root)
        return run_second(store, now_ns)

    def recover(store: FileStore) -> Recovered:
        if phase == "recovery":
            hangs.set()
            store._env.disk.listdir(store._env.root)
        return read(store)

    run_second, read = FileStore.tick, FileStore.recover
    monkeypatch.setattr(LocalDisk, "listdir", listdir)
    monkeypatch.setattr(FileStore, "tick", tick)
    monkeypatch.setattr(FileStore, "recover", recover)
    monkeypatch.setattr(vital_signs, "CALL_DIE_S", 2.0)
    told: list[FtstanError] = []
    if phase == "recovery":
        with pytest.raises(FtstanError, match="a call to the storage has not returned"):
            run(file_options(tmp_path, "hangs"), told.append)
    else:
        server = run(file_options(tmp_path, "hangs"), told.append)
        assert server.wait(PATIENCE_S) == 75
        assert "a call to the storage has not returned" in told[0].text
    assert hangs.is_set()
    goes_on.set()


def test_a_server_whose_storage_hangs_ends_without_it_and_writes_nothing_when_it_comes_back(
    run: Callable[..., StanServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks: list[HangingDisk] = []

    def new_disk() -> HangingDisk:
        disks.append(HangingDisk())
        return disks[-1]

    monkeypatch.setattr(embed, "ShuttableDisk", new_disk)
    told: list[FtstanError] = []
    server = run(file_options(tmp_path, "hangs"), told.append)
    other = run()
    disk = disks[0]
    publisher = client(server)
    publisher.publish(b"channel", b"acked")

    disk.answers.clear()
    # What is said about seconds stands in the budget; how many they are is not of interest here.
    monkeypatch.setattr(vital_signs, "PROBE_DIE_S", 0.5)
    lost = publisher.offer(b"channel", b"too late")
    assert server.wait(PATIENCE_S) == 75
    assert [type(error) for error in told] == [FencedError]
    assert "this server ends" in told[0].text
    assert disk.hanging
    client(other).publish(b"channel", b"served")

    disk.answers.set()
    until(lambda: disk.refused == disk.hanging, "the writes that hung to come back")
    assert not set(lost) & set(publisher.acks)
    successor = run(file_options(tmp_path, "hangs"))
    again = client(successor)
    again.publish(b"channel", b"later")
    assert again.read_to(b"channel", 2) == {1: b"acked", 2: b"later"}


def test_the_callback_of_a_fenced_server_may_wait_for_it_stop_it_and_start_its_successor(
    run: Callable[..., StanServer], tmp_path: Path
) -> None:
    seen: list[object] = []

    def start_again(_: FtstanError) -> None:
        seen.extend((fenced.wait(), fenced.stop(), fenced.is_running))
        seen.append(run(file_options(tmp_path, "fenced")))

    fenced = run(file_options(tmp_path, "fenced"), start_again)
    client(fenced).publish(b"channel", b"acked")
    take(tmp_path)
    until(lambda: len(seen) == 4, "the callback to come to its end")
    assert seen[:3] == [75, 75, False]
    successor = seen[3]
    assert isinstance(successor, ftstan.StanServer)
    assert client(successor).read_to(b"channel", 1) == {1: b"acked"}


def test_a_callback_that_fails_is_one_line_in_the_log(
    run: Callable[..., StanServer], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: FtstanError) -> None:
        raise ValueError("not today")

    fenced = run(file_options(tmp_path, "fenced"), fail)
    take(tmp_path)
    assert fenced.wait(PATIENCE_S) == 75
    fenced._thread.join(PATIENCE_S)
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "not today" in line)
    assert line.endswith("[ERR] STREAM: on_fenced failed: ValueError: not today [FTS-9004]")


def test_a_stopped_server_calls_nobody_and_leaves_no_thread_and_no_child(
    run: Callable[..., StanServer], tmp_path: Path
) -> None:
    told: list[FtstanError] = []
    before = set(threading.enumerate())
    begun = children(os.getpid())
    server = run(file_options(tmp_path), told.append)
    assert server.stop() == 0
    assert server.stop() == 0
    until(lambda: set(threading.enumerate()) <= before, "the end of the server's threads")
    assert children(os.getpid()) == begun
    assert told == []


def test_the_process_keeps_its_signals_its_limits_and_its_environment(
    run: Callable[..., StanServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
    before = [signal.getsignal(n) for n in numbers], resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        run()
        assert [signal.getsignal(n) for n in numbers] == before[0]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft - 1, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.environ["NOTIFY_SOCKET"] == "/nowhere"


def test_a_server_outlives_the_thread_that_started_it(run: Callable[..., StanServer]) -> None:
    servers: list[StanServer] = []
    thread = threading.Thread(target=lambda: servers.append(run()))
    thread.start()
    thread.join()
    client(servers[0]).publish(b"channel", b"served")


def test_a_start_that_fails_raises_and_leaves_nothing(run: Callable[..., StanServer]) -> None:
    begun = children(os.getpid())
    with socket.create_server((HOST, 0)) as taken:
        busy = ftstan.NatsOptions(host=HOST, port=taken.getsockname()[1])
        with pytest.raises(NatsError, match="address already in use"):
            ftstan.run_server_with(None, busy)
    with pytest.raises(FtstanError, match="unsupported store type"):
        run(ftstan.ServerOptions(store="PAPER"))
    assert children(os.getpid()) == begun


def test_a_loop_goes_on_while_a_server_starts_and_stops() -> None:
    async def main() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        turning = asyncio.create_task(turn())
        async with ftstan.StanServer(ftstan.ServerOptions(nats=ANY_PORT)) as server:
            assert server.is_serving
            begun = turns
        turning.cancel()
        assert not server.is_running
        return begun

    # Starting a child alone takes many turns of a loop that is free.
    assert asyncio.run(main()) > 10


PROGRAM = """
import ftstan, time
server = ftstan.run_server_with(None, ftstan.NatsOptions(host="127.0.0.1", port=-1))
time.sleep(3600)
"""


def test_the_nats_server_dies_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = Child([sys.executable, "-c", PROGRAM], tmp_path / "log")
    try:
        program.wait_for("Streaming Server is ready")
        (nats,) = children(program.pid)
        program.kill()
        wait_until_gone(nats)
    finally:
        program.end()


def test_partitions_in_one_program_and_the_end_of_one_that_another_objects_to_late(
    run: Callable[..., StanServer],
) -> None:
    def options(*channels: str) -> ftstan.ServerOptions:
        listed = tuple((channel, ChannelLimits(0, 0, 0, 0, 0)) for channel in channels)
        return ftstan.ServerOptions(
            partitioning=True, limits=StoreLimits(channels=listed), nats_servers=urls
        )

    urls: tuple[str, ...] = ()
    with pytest.raises(FtstanError, match="stan: no configured channel"):
        run(options())
    first = run(options("foo.*"))
    urls = (first.client_url,)
    second = run(options("bar"))
    with pytest.raises(
        FtstanError, match=r'channel "\*\.zed" causes conflict with channels on server "\w{22}"'
    ):
        run(options("*.zed"))
    client = StanClient(port(first), "me")
    client.connect()
    client.publish(b"foo.a", b"1")
    client.publish(b"bar", b"1")

    peer = NatsConnection(port(first))
    asked: list[Arrived] = []
    peer.listen(lists_of(CLUSTER), asked.append)
    peer.flush()
    second.stop()
    third = run(options("bar"))
    peer.pump(lambda: asked, "a list")
    peer.publish(asked[0].reply, reply(Sender(b"somebody"), b"bar"))
    peer.flush()
    assert third.wait(PATIENCE_S) == 1
    assert (first.is_serving, third.state) == (True, "SHUTDOWN")
