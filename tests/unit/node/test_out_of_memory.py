"""A server that gets no more memory, or loses a thread, says so in one line and ends with 75."""

from __future__ import annotations

import threading
from typing import NoReturn

import pytest

from ftstan.config.options import ServerOptions
from ftstan.node import node as server
from ftstan.node.context import EXIT_FENCED
from ftstan.node.dataplane import DataPlane
from ftstan.node.node import Node
from ftstan.node.runtime import ProcessHost


class Ended(BaseException):
    """Takes the place of the end of the process."""


class Host(ProcessHost):
    """Remembers why it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[str, int]] = []

    def end(self, why: str, status: int) -> NoReturn:
        self.ends.append((why, status))
        raise Ended


def test_a_lack_of_memory_on_the_control_thread(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main(_node: Node) -> int:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(Node, "main", main)
    assert server.run(ServerOptions()) == EXIT_FENCED
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("] STREAM: ")[2] for line in lines] == ["out of memory [FTS-2121]"]


def test_a_lack_of_memory_in_what_the_data_plane_was_asked_for_ends_it() -> None:
    ends: list[BaseException] = []
    plane = DataPlane(ends.append)
    plane.start()

    def work() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        plane.call(work).result(5)
    assert plane.stop(5)
    assert [type(error) for error in ends] == [MemoryError]
    plane.close()


def test_a_thread_that_fails_is_the_end_of_the_server() -> None:
    host = Host()
    node = Node(ServerOptions(), host=host)
    error = OSError(24, "Too many open files")
    failure = threading.ExceptHookArgs((OSError, error, None, threading.Thread(name="archive")))
    with pytest.raises(Ended):
        node.thread_failed(failure)
    assert host.ends == [
        ("the thread archive ended: OSError: [Errno 24] Too many open files", EXIT_FENCED)
    ]
