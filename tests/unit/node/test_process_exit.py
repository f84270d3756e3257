"""The end of a process: one line, one thread, and no waiting for a log that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def run(script: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **{name: str(value) for name, value in more.items()}},
    )


def test_of_many_threads_that_end_the_process_one_has_the_last_word() -> None:
    done = run("""
        import threading
        from ftstan.node.process_exit import end_process
        together = threading.Barrier(8)
        def end(number):
            together.wait()
            end_process(f"thread {number}", 75)
        for number in range(8):
            threading.Thread(target=end, args=(number,)).start()
        threading.Event().wait()
    """)
    assert done.returncode == 75
    assert done.stderr.count("[FTL]") == 1


def test_the_line_is_said_where_no_thread_can_be_had(tmp_path: Path) -> None:
    done = run(
        """
        import os, threading
        from ftstan.base import log
        from ftstan.node.process_exit import end_process
        log.configure(file=os.environ["LOG"])
        def start(thread):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = start
        end_process("out of memory", 75)
        """,
        LOG=tmp_path / "log",
    )
    assert done.returncode == 75
    assert "[FTL] STREAM: out of memory" in (tmp_path / "log").read_text(encoding="utf-8")
    assert not done.stderr


@pytest.mark.slow
def test_a_log_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    # Somebody holds the other end open and reads nothing: a write blocks as soon as the pipe is
    # full.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = run(
            """
            import os
            from ftstan.base import log
            from ftstan.node.process_exit import end_process
            log.configure(file=os.environ["PIPE"])
            fd = os.open(os.environ["PIPE"], os.O_WRONLY | os.O_NONBLOCK)
            try:
                while True:
                    os.write(fd, b"x" * 4096)
            except BlockingIOError:
                pass
            end_process("why", 75)
            """,
            PIPE=pipe,
        )
    finally:
        os.close(reader)
    assert done.returncode == 75
