"""Log files with a size limit, and logs that cannot be written: the server goes on, and says later
what is missing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log
from ftstan.base.clock import ManualClock
from ftstan.base.log import writer
from ftstan.base.log.files import LogFile
from ftstan.base.log.levels import ERROR, INFO, TRACE, WARNING, Level
from ftstan.base.log.writer import Writer

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60.0
PID = os.getpid()

pytestmark = pytest.mark.usefixtures("_utc_and_default_log")


def rendered(level: Level, text: str) -> str:
    return f"<{level.letters}> {text}"


# ---- rotation
# --------------------------------------------------------------------------------------------------


def test_the_write_that_makes_a_file_too_large_is_its_last_one(path: Path) -> None:
    clock = ManualClock(wall_ns=1_795_166_082_000_042_999)
    log.configure(file=str(path), size_limit=1000, logtime=False, clock=clock)
    line = f"[{PID}] [INF] STREAM: {{}}\n"
    short = ("x " * 250)[: 500 - len(line.format(""))]
    log.stream.info(short)
    log.stream.info(short)
    assert log.flush(PATIENCE_S)
    assert [p.name for p in path.parent.iterdir()] == ["x.log"]
    log.stream.info("one too many")
    log.stream.info("next")
    assert log.flush(PATIENCE_S)
    backup = path.with_name("x.log.2026.11.20.09.14.42.000042999")
    assert backup.read_text() == line.format(short) * 2 + line.format("one too many")
    assert path.read_bytes().decode() == (
        f'[{PID}] [INF] Rotated log, backup saved as "{backup}"\r\n' + line.format("next")
    )
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(backup.stat().st_mode)


def test_a_file_that_is_too_large_at_the_start_is_put_aside_at_once(path: Path) -> None:
    path.write_text("y" * 1001 + "\n")
    log.configure(file=str(path), size_limit=1000, logtime=False)
    log.stream.info("first")
    assert log.flush(PATIENCE_S)
    (backup,) = (p for p in path.parent.iterdir() if p != path)
    assert backup.read_text() == "y" * 1001 + f"\n[{PID}] [INF] Rotating logfile...\n"
    assert path.read_text().splitlines()[1:] == [f"[{PID}] [INF] STREAM: first"]


def test_no_backup_is_ever_overwritten_or_removed(path: Path) -> None:
    # The clock stands still: every backup wants the same name.
    log.configure(file=str(path), size_limit=10, logtime=False, clock=ManualClock())
    for n in range(3):
        log.stream.info(f"line {n}")
    assert log.flush(PATIENCE_S)
    text = "".join(p.read_text() for p in path.parent.iterdir())
    assert [text.count(f"STREAM: line {n}\n") for n in range(3)] == [1, 1, 1]


def test_a_file_that_cannot_be_put_aside_is_written_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    file = LogFile(str(path), 1000, rendered)
    monkeypatch.setattr(os, "rename", refuse)
    for _ in range(14):
        file.write(INFO, "x" * 100)
    monkeypatch.undo()
    file.close()
    lines = path.read_text().splitlines()
    assert lines.count("x" * 100) == 14
    assert sum("Unable to rotate logfile" in line for line in lines) == 1
    assert [p.name for p in path.parent.iterdir()] == ["x.log"]


def test_a_file_without_a_limit_grows(path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    for _ in range(50):
        log.stream.info("x " * 500)
    assert log.flush(PATIENCE_S)
    assert path.stat().st_size > 50_000
    assert [p.name for p in path.parent.iterdir()] == ["x.log"]


def test_reopening_a_file_that_is_too_large_by_then_puts_it_aside(path: Path) -> None:
    log.configure(file=str(path), size_limit=1000, logtime=False)
    path.rename(path.with_name("y.log"))
    path.write_text("z" * 1001)
    log.reopen()
    assert log.flush(PATIENCE_S)
    assert len(list(path.parent.iterdir())) == 3
    assert "File log re-opened" in path.read_text()


# ---- logs that do not work
# -------------------------------------------------------------------------------------------


class Gate:
    """A sink that hangs while it is shut, and refuses while it is broken."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Semaphore(0)
        self.broken = False
        self.written: list[str] = []

    def write(self, level: Level, text: str) -> None:
        self.reached.release()
        assert self.open.wait(PATIENCE_S)
        if self.broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written.append(text)

    def close(self) -> None:
        self.written.append("closed")


def test_a_hanging_log_holds_nobody_up_and_tells_later_what_was_lost() -> None:
    gate = Gate()
    log_writer = Writer(gate, rendered, capacity=3)
    gate.open.clear()
    log_writer.put(TRACE, "in its hands", wait=False)
    assert gate.reached.acquire(timeout=PATIENCE_S)
    for n in range(5):
        # Would hang for ever here if anybody waited for the sink.
        log_writer.put(ERROR, f"line {n}", wait=True)
    assert not log_writer.flush(0.01)
    gate.open.set()
    assert log_writer.flush(PATIENCE_S)
    lost = "<WRN> 2 log lines are lost: the log did not take them in time"
    assert [text for text in gate.written if text != lost] == [
        "in its hands",
        "line 0",
        "line 1",
        "line 2",
    ]
    log_writer.put(INFO, "after", wait=True)
    log_writer.close(PATIENCE_S)
    assert gate.written.count(lost) == 1
    assert gate.written[-2:] == ["after", "closed"]


def test_only_the_first_line_waits_for_a_log_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    log_writer = Writer(gate, rendered)
    gate.open.clear()
    log_writer.put(ERROR, "the first", wait=True)
    # Whoever waited now would wait longer than any test may take.
    monkeypatch.setattr(writer, "PATIENCE_S", 3600.0)
    for n in range(100):
        log_writer.put(ERROR, f"{n}", wait=True)
    gate.open.set()
    assert log_writer.flush(PATIENCE_S)
    log_writer.close(PATIENCE_S)
    assert len(gate.written) == 102


def test_a_log_that_hung_is_waited_for_again_once_it_has_caught_up() -> None:
    gate = Gate()
    log_writer = Writer(gate, rendered)
    gate.open.clear()
    log_writer.put(ERROR, "hangs", wait=True)
    gate.open.set()
    assert log_writer.flush(PATIENCE_S)
    for n in range(100):
        log_writer.put(INFO, f"{n}", wait=True)
    assert log_writer.flush(PATIENCE_S)
    log_writer.close(PATIENCE_S)
    assert gate.written == ["hangs", *(f"{n}" for n in range(100)), "closed"]


def test_lines_that_a_full_disk_refuses_are_counted_and_told_when_there_is_room() -> None:
    gate = Gate()
    log_writer = Writer(gate, rendered)
    log_writer.put(INFO, "before", wait=True)
    gate.broken = True
    for n in range(3):
        log_writer.put(INFO, f"lost {n}", wait=True)
    assert log_writer.flush(PATIENCE_S)
    gate.broken = False
    log_writer.put(WARNING, "after", wait=True)
    log_writer.close(PATIENCE_S)
    assert gate.written == [
        "before",
        "<WRN> 3 log lines are lost: No space left on device",
        "after",
        "closed",
    ]


def test_a_line_that_was_cut_off_does_not_swallow_the_next_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LogFile(str(path), 0, rendered)
    real = os.write
    room = [4, 0]

    def write(fd: int, data: bytes) -> int:
        if not room:
            return real(fd, data)
        most = room.pop(0)
        if not most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[:most])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        file.write(INFO, "0123456789")
    file.write(INFO, "whole")
    file.close()
    assert path.read_text() == "0123\nwhole\n"


def test_a_pipe_that_nobody_reads_stalls_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log.configure(file=str(pipe), logtime=False)
    for n in range(300):
        log.stream.info(f"{n} " + "x" * 1000)
    assert not log.flush(0.01)
    # The writer gets on as soon as somebody reads, and no line of those that waited is missing.
    text = b""
    end = time.monotonic() + PATIENCE_S
    while b"299 x" not in text and time.monotonic() < end:
        try:
            text += os.read(reader, 1 << 16)
        except BlockingIOError:
            time.sleep(0.001)
    log.configure()
    os.close(reader)
    assert [int(n) for n in re.findall(rb"STREAM: (\d+) x", text)] == list(range(300))


# ---- what lines may hold
# ---------------------------------------------------------------------------------------------


def test_no_text_can_look_like_a_line_of_its_own(path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    log.stream.info("inbox=a\n[1] [INF] STREAM: forged\r\x1b[2J\tend")
    assert log.flush(PATIENCE_S)
    assert path.read_text() == (
        f"[{PID}] [INF] STREAM: inbox=a\\n[1] [INF] STREAM: forged\\r\\x1b[2J\tend\n"
    )


def test_a_warning_that_others_cause_comes_at_a_falling_rate_with_the_number_left_out(
    path: Path,
) -> None:
    clock = ManualClock()
    log.configure(file=str(path), logtime=False, clock=clock)
    for _ in range(100):
        log.stream.warning("again", backs_off=True)
    log.stream.warning("something else", backs_off=True)
    clock.advance(1.1)
    log.stream.warning("again", backs_off=True)
    clock.advance(1.1)
    log.stream.warning("again", backs_off=True)
    # Nobody says it any more: what was left out is told with the next line of any kind once its
    # time has come.
    clock.advance(10)
    log.stream.info("a quiet hour")
    assert log.flush(PATIENCE_S)
    assert [line.partition("] [")[2] for line in path.read_text().splitlines()] == [
        "WRN] STREAM: again",
        "WRN] STREAM: something else",
        "WRN] STREAM: again (99 more like this were left out)",
        "WRN] STREAM: again (1 more like this were left out)",
        "INF] STREAM: a quiet hour",
    ]


def test_the_same_error_of_many_connections_is_the_same(path: Path) -> None:
    log.configure(file=str(path), logtime=False, clock=ManualClock())
    for n in range(50):
        log.nats.error(f"127.0.0.1:{5000 + n} - cid:{n} - authentication error")
    assert log.flush(PATIENCE_S)
    assert path.read_text() == f"[{PID}] [ERR] 127.0.0.1:5000 - cid:0 - authentication error\n"


def test_what_a_server_says_of_itself_is_never_left_out(path: Path) -> None:
    # The description of a damaged record is many lines, and two of them may be the same but for the
    # file's name.
    log.configure(file=str(path), logtime=False, clock=ManualClock())
    for _ in range(5):
        log.stream.info("the same")
        log.stream.error("Record header:")
        log.nats.info("Server is ready")
    assert log.flush(PATIENCE_S)
    text = path.read_text()
    assert [text.count(line) for line in ("the same", "Record header:", "Server is ready")] == [
        5,
        5,
        5,
    ]
