"""The log: its lines, where they go, what is never in them."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ftstan.base import log
from ftstan.base.clock import ManualClock
from ftstan.base.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PID = os.getpid()

pytestmark = pytest.mark.usefixtures("_utc_and_default_log")


def test_a_line_has_pid_local_time_level_and_prefix(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(clock=ManualClock(wall_ns=1_795_166_082_000_042_999))
    log.stream.info("hello")
    log.nats.warning("world")
    assert capfd.readouterr().err == (
        f"[{PID}] 2026/11/20 09:14:42.000042 [INF] STREAM: hello\n[{PID}] 2026/11/20 "
        "09:14:42.000042 [WRN] world\n"
    )


def test_times_follow_the_time_zone_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    log.configure(clock=ManualClock(wall_ns=1_795_166_082_000_000_000))
    log.stream.info("hello")
    assert "2026/11/20 04:14:42.000000" in capfd.readouterr().err


def test_logtime_false_leaves_date_and_time_out(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(logtime=False)
    log.stream.error("a")
    log.stream.fatal("b")
    assert capfd.readouterr().err == f"[{PID}] [ERR] STREAM: a\n[{PID}] [FTL] STREAM: b\n"


def test_debug_and_trace_are_switched_on_for_each_half_by_itself(path: Path) -> None:
    log.configure(file=str(path), debug=True, nats_trace=True, logtime=False)
    assert (log.stream.debug_on, log.stream.trace_on) == (True, False)
    assert (log.nats.debug_on, log.nats.trace_on) == (False, True)
    for half in (log.stream, log.nats):
        half.debug("d")
        half.trace("t")
    assert log.flush(60)
    assert path.read_text() == f"[{PID}] [DBG] STREAM: d\n[{PID}] [TRC] t\n"


@pytest.mark.parametrize(
    ("level", "coloured"),
    [
        ("info", "\x1b[32mINF\x1b[0m"),
        ("warning", "\x1b[0;93mWRN\x1b[0m"),
        ("error", "\x1b[31mERR\x1b[0m"),
        ("fatal", "\x1b[31mFTL\x1b[0m"),
        ("debug", "\x1b[36mDBG\x1b[0m"),
        ("trace", "\x1b[33mTRC\x1b[0m"),
    ],
)
def test_levels_are_coloured_on_a_terminal_and_never_in_a_file(
    level: str, coloured: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, terminal = os.openpty()
    standard_error = os.dup(2)
    try:
        os.dup2(terminal, 2)
        log.configure(debug=True, trace=True, logtime=False)
        getattr(log.stream, level)("x")
        assert os.read(parent, 100).decode() == f"[{PID}] [{coloured}] STREAM: x\r\n"
        log.configure(file=str(path), debug=True, trace=True)
        getattr(log.stream, level)("x")
        assert "\x1b" not in path.read_text()
    finally:
        os.dup2(standard_error, 2)
        for fd in (standard_error, parent, terminal):
            os.close(fd)


def test_a_file_is_appended_to_and_made_for_owner_and_group(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mask = os.umask(0o022)
    try:
        log.configure(file=str(path), logtime=False)
    finally:
        os.umask(mask)
    log.stream.info("one")
    log.configure(file=str(path), logtime=False)
    log.stream.info("two")
    assert path.read_text() == f"[{PID}] [INF] STREAM: one\n[{PID}] [INF] STREAM: two\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert capfd.readouterr().err == ""


def test_a_file_that_cannot_be_opened_changes_nothing(tmp_path: Path, path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    with pytest.raises(
        ConfigError, match=r"^error opening file: open .*/no/x\.log: no such file or directory$"
    ):
        log.configure(file=str(tmp_path / "no/x.log"))
    log.stream.info("still here")
    assert path.read_text() == f"[{PID}] [INF] STREAM: still here\n"


def test_reopen_goes_on_in_a_new_file_when_the_old_one_was_moved_away(path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    log.stream.info("before")
    old = path.rename(path.with_name("y.log"))
    log.stream.info("between")
    log.reopen()
    log.nats.info("after")
    assert old.read_text() == f"[{PID}] [INF] STREAM: before\n[{PID}] [INF] STREAM: between\n"
    assert path.read_text() == f"[{PID}] [INF] STREAM: File log re-opened\n[{PID}] [INF] after\n"


def test_reopen_is_ignored_without_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    log.configure(logtime=False)
    log.reopen()
    assert (
        capfd.readouterr().err
        == f"[{PID}] [INF] STREAM: File log re-open ignored, not a file logger\n"
    )


def test_reopen_keeps_the_old_file_when_the_new_one_cannot_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    log.configure(file=str(folder / "x.log"))
    moved = folder.rename(tmp_path / "e")
    log.reopen()
    assert "[ERR] STREAM: File log not re-opened" in (moved / "x.log").read_text()


def test_a_line_that_cannot_be_written_is_lost_and_stops_nobody() -> None:
    log.configure(file="/dev/full")
    log.stream.info("x")


def test_text_that_is_not_utf8_is_written_as_it_came(path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    log.stream.info(b"caf\xe9".decode("utf-8", "surrogateescape"))
    assert path.read_bytes().endswith(b"STREAM: caf\xe9\n")


def test_half_a_character_is_written_by_its_number(path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    log.stream.info(json.loads(r'"node \ud800 leads"'))
    log.stream.info("next")
    assert log.flush(60)
    assert path.read_text().splitlines()[0].endswith(r"STREAM: node \ud800 leads")
    assert path.read_text().splitlines()[1].endswith("STREAM: next")


def test_lines_of_many_threads_do_not_mix(path: Path) -> None:
    def write(letter: str) -> None:
        for _ in range(50):
            log.stream.info(f"{letter} " * 2500)

    log.configure(file=str(path), logtime=False)
    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [line.removeprefix(f"[{PID}] [INF] STREAM: ") for line in path.read_text().splitlines()]
    assert sorted(texts) == sorted(f"{c} " * 2500 for c in "abcd" for _ in range(50))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://h:4222", "nats://h:4222"),
        ("nats://u:p@h:4222", "nats://[REDACTED]@h:4222"),
        ("nats://token@h:4222", "nats://[REDACTED]@h:4222"),
        ("nats://u:p@ss/w,ord@h:1", "nats://[REDACTED]@h:1"),
        (
            "nats://u:p@a:1, nats://b:2,nats://v:q@c:3",
            "nats://[REDACTED]@a:1, nats://b:2,nats://[REDACTED]@c:3",
        ),
        ("u:p@h", "[REDACTED]@h"),
        ("", ""),
    ],
)
def test_user_info_is_never_shown(url: str, shown: str) -> None:
    assert log.redact_url(url) == shown


def test_long_words_of_others_are_cut_and_say_how_long_they_were(path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    log.stream.warning(f"{'c' * 1000} did something in {'ü' * 500} {'d' * 256}")
    log.flush(5)
    text = path.read_text().removeprefix(f"[{PID}] [WRN] STREAM: ").rstrip()
    assert (
        text
        == f"{'c' * 256}... (1000 bytes) did something in {'ü' * 128}... (1000 bytes) {'d' * 256}"
    )


def test_lines_of_one_kind_are_limited_together_and_counted(path: Path) -> None:
    clock = ManualClock()
    log.configure(file=str(path), logtime=False, clock=clock)
    for n in range(100):
        log.stream.error(f"refused: {n}", backs_off="refusal")
    for n in range(100):
        log.nats.error(f'127.0.0.1:{n} - cid:{n} - authentication error - User "{n}"')
    clock.advance(1.5)
    log.stream.info("next")
    log.flush(5)
    texts = [
        line.removeprefix(f"[{PID}] [ERR] ").removeprefix(f"[{PID}] [INF] ")
        for line in path.read_text().splitlines()
    ]
    assert texts == [
        "STREAM: refused: 0",
        '127.0.0.1:0 - cid:0 - authentication error - User "0"',
        "STREAM: refused: 99 (99 more like this were left out)",
        (
            '127.0.0.1:99 - cid:99 - authentication error - User "99" (99 more like this were left '
            "out)"
        ),
        "STREAM: next",
    ]


def test_a_line_that_stands_for_many_is_counted_for_as_many(path: Path) -> None:
    clock = ManualClock()
    log.configure(file=str(path), logtime=False, clock=clock)
    before = log.limited().get("flood", 0)
    for n in range(3):
        log.stream.error(f"refused: {n}", backs_off="flood", times=10)
    clock.advance(1.5)
    log.stream.info("next")
    log.flush(5)
    texts = [line.rpartition("STREAM: ")[2] for line in path.read_text().splitlines()]
    assert texts == [
        "refused: 0 (9 more like this were left out)",
        "refused: 2 (20 more like this were left out)",
        "next",
    ]
    assert log.limited()["flood"] == before + 30
