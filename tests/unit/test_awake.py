"""A thread of no priority keeps the data plane's processor awake, while batches come soon after each other."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.awake import Awake, has_quota

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WINDOW_S = 0.2


@pytest.fixture
def awake() -> Iterator[Awake]:
    keeper = Awake(WINDOW_S, 2)
    yield keeper
    keeper.close()


def thread() -> threading.Thread | None:
    return next((one for one in threading.enumerate() if one.name == "awake"), None)


def until(is_so: bool, keeper: Awake) -> None:
    end = time.monotonic() + 30
    while keeper.is_awake != is_so:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_one_batch_wakes_nobody_and_a_second_one_soon_after_it_does(awake: Awake) -> None:
    awake.touch()
    assert thread() is None
    time.sleep(2 * WINDOW_S)
    awake.touch()
    assert thread() is None
    awake.touch()
    assert thread() is not None
    until(True, awake)


def test_it_has_no_priority_and_stays_on_the_processor_of_the_last_batch(awake: Awake) -> None:
    os.sched_setaffinity(0, allowed := os.sched_getaffinity(0))
    awake.touch()
    awake.touch()
    found = thread()
    assert found is not None
    until(True, awake)
    end = time.monotonic() + 30
    while len(os.sched_getaffinity(found.native_id or 0)) > 1:
        awake.touch()
        assert time.monotonic() < end
        time.sleep(0.001)
    assert os.sched_getscheduler(found.native_id or 0) == os.SCHED_IDLE
    assert os.sched_getaffinity(found.native_id or 0) <= allowed
    # Nobody else's place has changed.
    assert os.sched_getaffinity(0) == allowed


def test_it_sleeps_when_no_batch_has_come_for_that_time_and_wakes_again(awake: Awake) -> None:
    for _ in range(3):
        awake.touch()
        awake.touch()
        until(True, awake)
        began = time.monotonic()
        until(False, awake)
        assert time.monotonic() - began < 30 * WINDOW_S
        before = time.process_time()
        time.sleep(WINDOW_S)
        assert time.process_time() - before < WINDOW_S / 2
    assert sum(one.name == "awake" for one in threading.enumerate()) == 1


def groups(root: Path, own: str, limits: dict[str, str]) -> tuple[str, str]:
    """A hierarchy of control groups, and the file that says which one is ours."""
    for name, text in limits.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cpu.max").write_text(text)
    (root / "own").write_text(own)
    return str(root), str(root / "own")


def test_a_quota_of_processor_time_is_seen_in_the_own_control_group_and_above_it(tmp_path: Path) -> None:
    free, some = "max 100000\n", "50000 100000\n"
    of_pod = groups(tmp_path / "1", "0::/pod/server\n", {"pod": some, "pod/server": free})
    of_none = groups(tmp_path / "2", "0::/pod/server\n", {"pod": free, "pod/server": free, "other": some})
    of_root = groups(tmp_path / "3", "0::/\n", {".": some})
    of_old = groups(tmp_path / "4", "4:cpu,cpuacct:/pod\n", {"pod": free})
    assert [has_quota(*where) for where in (of_pod, of_none, of_root, of_old)] == [True, False, True, False]
    assert not has_quota(str(tmp_path / "nothing"), str(tmp_path / "none"))


@pytest.mark.parametrize(("seconds", "processors"), [(0.0, 2), (WINDOW_S, 1)])
def test_there_is_none_without_time_for_it_or_on_one_processor(seconds: float, processors: int) -> None:
    keeper = Awake(seconds, processors)
    for _ in range(5):
        keeper.touch()
    assert thread() is None
    assert not keeper.is_awake
    keeper.close()


def test_after_its_end_there_is_no_thread_and_a_touch_does_nothing(awake: Awake) -> None:
    awake.touch()
    awake.touch()
    until(True, awake)
    awake.close()
    assert thread() is None
    awake.touch()
    awake.touch()
    assert thread() is None
