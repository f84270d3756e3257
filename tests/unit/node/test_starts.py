"""Restarts after failed starts: counted in the service's runtime directory, waited for, forgotten
when all is well.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from ftstan.node import starts
from ftstan.node.starts import COUNT_NAME, LONGEST_WAIT_S, Starts, wait_after

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def service(tmp_path: Path) -> dict[str, str]:
    return {"RUNTIME_DIRECTORY": str(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each start waited, without waiting."""
    found: list[float] = []

    def wait(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(starts, "_stopped_within", wait)
    return found


def test_waits_double_up_to_the_longest() -> None:
    assert [wait_after(failed) for failed in (0, 1, 2, 3, 4, 5, 6, 1_000)] == [
        0,
        1,
        2,
        4,
        8,
        15,
        15,
        LONGEST_WAIT_S,
    ]


def test_the_first_start_does_not_wait_and_each_failed_one_makes_the_next_wait_longer(
    service: dict[str, str], waits: list[float]
) -> None:
    for _ in range(4):
        count = Starts.of(service)
        assert count.begin(service) is None
        count.ended(1)
    assert waits == [1, 2, 4]


@pytest.mark.parametrize("status", [0, 75, 143])
def test_an_end_that_is_no_failure_lets_the_next_start_go_at_once(
    service: dict[str, str], waits: list[float], status: int
) -> None:
    for end in (1, 1, status, 1):
        count = Starts.of(service)
        count.begin(service)
        count.ended(end)
    assert waits == [1, 2]


def test_a_server_that_was_up_for_a_while_starts_from_the_beginning(
    service: dict[str, str], waits: list[float]
) -> None:
    Starts.of(service).begin(service)
    count = Starts.of(service)
    count.begin(service)
    count.forget()
    count.ended(1)
    Starts.of(service).begin(service)
    assert waits == [1]


def test_a_process_that_was_killed_before_it_was_up_for_a_while_counts(
    service: dict[str, str], waits: list[float]
) -> None:
    for _ in range(3):
        Starts.of(service).begin(service)
    assert waits == [1, 2]


@pytest.mark.parametrize("missing", ["RUNTIME_DIRECTORY", "NOTIFY_SOCKET"])
def test_without_a_service_manager_nothing_is_counted(
    service: dict[str, str], waits: list[float], tmp_path: Path, missing: str
) -> None:
    del service[missing]
    for _ in range(3):
        count = Starts.of(service)
        assert count.begin(service) is None
        count.ended(1)
    assert waits == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "many", "-3", "\xff", "99999999999999999999"])
def test_a_count_that_is_none_is_no_reason_not_to_start(
    service: dict[str, str], waits: list[float], tmp_path: Path, content: str
) -> None:
    (tmp_path / COUNT_NAME).write_text(content, encoding="latin-1")
    assert Starts.of(service).begin(service) is None
    assert waits == ([LONGEST_WAIT_S] if content.startswith("9") else [])


def test_a_directory_that_is_not_there_is_no_reason_not_to_start(
    service: dict[str, str], waits: list[float]
) -> None:
    service["RUNTIME_DIRECTORY"] += "/none"
    count = Starts.of(service)
    assert count.begin(service) is None
    count.ended(0)
    assert waits == []


def test_the_manager_hears_why_it_waits_and_how_long(
    service: dict[str, str], waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(service["NOTIFY_SOCKET"])
        manager.settimeout(60)
        Starts.of(service).begin(service)
        Starts.of(service).begin(service)
        heard = [manager.recv(4096).decode() for _ in range(2)]
    assert waits == [1]
    assert heard[0].startswith("EXTEND_TIMEOUT_USEC=")
    assert int(heard[0].partition("=")[2]) > 1e6
    assert heard[1].startswith("STATUS=the last start failed: waiting 1s")
    assert "waiting 1s" in capsys.readouterr().err
    # The server itself still has to say that it is ready.
    assert "NOTIFY_SOCKET" in service


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_stop_ends_the_wait_and_the_count(
    service: dict[str, str], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    (tmp_path / COUNT_NAME).write_text("9")
    # To this thread: it is the one that waits; the mask of another would let the signal through.
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        signal.pthread_kill(threading.get_ident(), number)
        assert Starts.of(service).begin(service) == status
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    assert not os.path.exists(tmp_path / COUNT_NAME)
