"""The log as JSON, and what journald sees."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from ftstan.base import log
from ftstan.base.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _default_log() -> Iterator[None]:
    yield
    log.note(epoch=None)
    log.configure()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.log"


def lines(path: Path) -> list[dict[str, Any]]:
    assert log.flush(60)
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]


def test_each_line_is_an_object_with_nanoseconds_level_component_message_and_pid(
    path: Path,
) -> None:
    log.configure(
        file=str(path), json_lines=True, clock=ManualClock(wall_ns=1_795_166_082_000_042_999)
    )
    log.stream.info("hello")
    log.nats.error("world")
    first, second = lines(path)
    assert first == {
        "time": "2026-11-20T09:14:42.000042999Z",
        "level": "info",
        "component": "stream",
        "message": "hello",
        "pid": os.getpid(),
    }
    assert (second["level"], second["component"], second["message"]) == ("error", "nats", "world")


def test_what_is_known_of_an_event_is_a_field_of_its_own(path: Path) -> None:
    log.configure(file=str(path), json_lines=True)
    log.stream.info("created", channel=b"orders", number=3)
    log.note(epoch=7)
    log.stream.info("later")
    log.note(epoch=None)
    log.stream.info("last")
    created, later, last = lines(path)
    assert (created["channel"], created["number"]) == ("orders", 3)
    assert later["epoch"] == 7
    assert "epoch" not in created
    assert "epoch" not in last


def test_no_field_takes_the_place_of_what_every_line_has(path: Path) -> None:
    log.configure(file=str(path), json_lines=True)
    log.stream.warning("text", level="info", pid=1)
    (line,) = lines(path)
    assert (line["level"], line["pid"]) == ("warning", os.getpid())


def test_fields_are_not_part_of_a_text_line(path: Path) -> None:
    log.configure(file=str(path), logtime=False)
    log.stream.info("created", channel="orders")
    assert log.flush(60)
    assert path.read_text() == f"[{os.getpid()}] [INF] STREAM: created\n"


def test_whatever_a_text_holds_it_is_one_line_that_can_be_parsed(path: Path) -> None:
    log.configure(file=str(path), json_lines=True)
    texts = [
        '"quoted"',
        "two\nlines",
        b"caf\xe9".decode("utf-8", "surrogateescape"),
        "\x00\x1b[31m",
        "ü \u2028",
        "half a \ud800 character",
    ]
    for text in texts:
        log.stream.info(text, name=text)
    written = [*texts[:2], "caf\\xe9", *texts[3:5], r"half a \ud800 character"]
    assert [line["message"] for line in lines(path)] == written
    assert [line["name"] for line in lines(path)] == written


def test_without_logtime_there_is_no_time(path: Path) -> None:
    log.configure(file=str(path), json_lines=True, logtime=False)
    log.stream.info("x")
    (line,) = lines(path)
    assert "time" not in line


def on_standard_error(path: Path) -> tuple[int, str]:
    """Let the file ``path`` be standard error.

    Returns the former one, and how systemd would name the new one.
    """
    former = os.dup(2)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 2)
    os.close(fd)
    seen = path.stat()
    return former, f"{seen.st_dev}:{seen.st_ino}"


@pytest.mark.parametrize("is_json", [False, True])
def test_journald_gets_a_priority_in_front_of_each_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, is_json: bool
) -> None:
    former, name = on_standard_error(path)
    try:
        monkeypatch.setenv("JOURNAL_STREAM", name)
        log.configure(debug=True, trace=True, json_lines=is_json)
        for level in ("info", "warning", "error", "fatal", "debug", "trace"):
            getattr(log.stream, level)("x")
        assert log.flush(60)
    finally:
        os.dup2(former, 2)
        os.close(former)
    assert [line[:3] for line in path.read_text().splitlines()] == [
        "<6>",
        "<4>",
        "<3>",
        "<2>",
        "<7>",
        "<7>",
    ]


def test_standard_error_that_is_not_journalds_gets_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A program that systemd started has sent our standard error elsewhere and left the variable as
    # it was.
    former, name = on_standard_error(path)
    try:
        monkeypatch.setenv("JOURNAL_STREAM", f"{name}0")
        log.configure()
        log.stream.info("x")
        assert log.flush(60)
    finally:
        os.dup2(former, 2)
        os.close(former)
    assert path.read_text().startswith(f"[{os.getpid()}]")
