"""Threads of no priority keep processors awake while little batches come soon after answers, and
then sleep.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ftstan.node.awake import Awake, has_quota
from tests.processes import until

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW_S = 0.2


@pytest.fixture
def awake() -> Iterator[Awake]:
    keeper = Awake(WINDOW_S, 2)
    yield keeper
    keeper.close()


def threads() -> list[int]:
    """Threads of this process that do nothing else, by their kernel numbers."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text() == "awake\n":
                found.append(int(task.name))
    return found


def until_there(count: int) -> list[int]:
    """So many of them; a new thread gets its name when it runs first."""
    until(lambda: len(threads()) >= count, f"{count} threads")
    return threads()


def batch(keeper: Awake, size: int = 200, fd: int = -1) -> None:
    keeper.begin(size, fd)
    keeper.end()


def wake(keeper: Awake) -> None:
    """Batches, until they have woken it: without a priority it may have to wait for a processor."""

    def is_awake() -> bool:
        batch(keeper)
        return keeper.is_awake

    until(is_awake, "the keeper to wake")


def until_asleep(keeper: Awake) -> None:
    until(lambda: not keeper.is_awake, "the keeper to sleep")


def test_a_batch_alone_wakes_nobody_and_one_soon_after_an_answer_does(awake: Awake) -> None:
    batch(awake)
    time.sleep(2 * WINDOW_S)
    batch(awake)
    assert threads() == []
    batch(awake)
    assert len(until_there(1)) == 1


def test_batches_of_many_messages_wake_nobody(awake: Awake) -> None:
    for _ in range(5):
        batch(awake, 100_000)
    assert threads() == []


def test_it_has_no_priority_and_stays_on_the_processor_of_the_last_batch(awake: Awake) -> None:
    allowed = os.sched_getaffinity(0)
    wake(awake)
    (found,) = until_there(1)

    def has_moved() -> bool:
        batch(awake)
        return len(os.sched_getaffinity(found)) == 1

    until(has_moved, "the thread to move")
    assert os.sched_getscheduler(found) == os.SCHED_IDLE
    assert os.sched_getaffinity(found) <= allowed
    # Nobody else's place has changed.
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.slow
def test_who_sends_from_another_processor_is_kept_awake_there(awake: Awake) -> None:
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.fail("this test needs two processors")
    here, there = processors[:2]
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    os.sched_setaffinity(0, {here})
    try:
        code = f"import os; os.sched_setaffinity(0, {{{there}}}); os.write({sender.fileno()}, b'x')"

        def both_are_kept() -> bool:
            # The kernel may hand what was sent to another processor now and then.
            subprocess.run([sys.executable, "-c", code], check=True, pass_fds=[sender.fileno()])
            assert receiver.recv(1) == b"x"
            batch(awake, 1, receiver.fileno())
            batch(awake, 1, receiver.fileno())
            return sorted(map(sorted, map(os.sched_getaffinity, threads()))) == [[here], [there]]

        until(both_are_kept, "a thread on each of both processors")
        (theirs,) = (one for one in threads() if os.sched_getaffinity(one) == {there})

        def ticks() -> list[str]:
            return (
                Path(f"/proc/self/task/{theirs}/stat").read_text().rpartition(")")[2].split()[11:13]
            )

        def is_left() -> bool:
            # From nowhere, or from our processor: the other one is not needed, though batches go
            # on.
            before = ticks()
            for _ in range(50):
                batch(awake)
                time.sleep(WINDOW_S / 20)
            return ticks() == before

        until(is_left, "the thread on the other processor to sleep")
    finally:
        os.sched_setaffinity(0, processors)
        for one in (sender, receiver, listener):
            one.close()


@pytest.mark.slow
def test_it_sleeps_when_no_batch_comes_and_wakes_again(awake: Awake) -> None:
    for _ in range(3):
        wake(awake)
        until_asleep(awake)
        before = time.process_time()
        time.sleep(WINDOW_S)
        assert time.process_time() - before < WINDOW_S / 2
    assert len(threads()) == 1


def test_storage_that_takes_long_is_not_waited_for_in_this_way(awake: Awake) -> None:
    wake(awake)
    for _ in range(3):
        awake.begin(200, -1)
        until_asleep(awake)
        time.sleep(0.01)
        awake.end()
        assert not awake.is_awake


def groups(root: Path, own: str, limits: dict[str, str]) -> tuple[str, str]:
    """A hierarchy of control groups, and the file that says which one is ours."""
    for name, text in limits.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cpu.max").write_text(text)
    (root / "own").write_text(own)
    return str(root), str(root / "own")


def test_a_quota_of_processor_time_is_seen_in_the_own_control_group_and_above_it(
    tmp_path: Path,
) -> None:
    free = "max 100000\n"
    some = "50000 100000\n"
    of_pod = groups(tmp_path / "1", "0::/pod/server\n", {"pod": some, "pod/server": free})
    of_none = groups(
        tmp_path / "2", "0::/pod/server\n", {"pod": free, "pod/server": free, "other": some}
    )
    of_root = groups(tmp_path / "3", "0::/\n", {".": some})
    assert [has_quota(*where) for where in (of_pod, of_none, of_root)] == [True, False, True]
    assert not has_quota(str(tmp_path / "nothing"), str(tmp_path / "none"))


@pytest.mark.parametrize(("quota", "is_one"), [("-1\n", False), ("50000\n", True)])
def test_a_quota_of_the_first_version_is_seen_too(
    tmp_path: Path, quota: str, *, is_one: bool
) -> None:
    top = tmp_path / "cpu,cpuacct"
    top.mkdir()
    (top / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "own").write_text(
        "9:name=systemd:/\n4:memory:/m\n3:cpu,cpuacct:/docker/of-the-host\n0::/\n"
    )
    assert has_quota(str(tmp_path), str(tmp_path / "own")) == is_one


@pytest.mark.parametrize(("seconds", "processors"), [(0.0, 2), (WINDOW_S, 1)])
def test_there_is_none_without_time_for_it_or_on_one_processor(
    seconds: float, processors: int
) -> None:
    keeper = Awake(seconds, processors)
    for _ in range(5):
        batch(keeper)
    assert threads() == []
    assert not keeper.is_awake
    keeper.close()


def test_after_its_end_there_is_no_thread_and_a_batch_makes_none(awake: Awake) -> None:
    wake(awake)
    awake.close()
    assert threads() == []
    batch(awake)
    batch(awake)
    assert threads() == []


def test_a_processor_that_was_taken_from_this_process_is_left_alone() -> None:
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.fail("this test needs two processors")
    os.sched_setaffinity(0, processors[:1])
    try:
        keeper = Awake(WINDOW_S, 2)
        os.sched_setaffinity(0, processors[1:])
        for _ in range(5):
            batch(keeper)
        assert not keeper.is_awake
        keeper.close()
    finally:
        os.sched_setaffinity(0, processors)


def test_a_process_that_was_forked_waits_for_no_thread_of_its_parent(awake: Awake) -> None:
    wake(awake)
    until_there(1)
    child = os.fork()
    if child == 0:
        awake.close()
        os._exit(0)
    try:
        until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, "the child to end")
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
