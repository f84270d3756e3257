"""Codes in the log: at the end of a line, as a field of JSON, and never on the original's lines."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from ftstan.base import codes, log
from ftstan.base.clock import ManualClock
from ftstan.base.log.levels import WARNING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUPERSEDED = "ft: epoch 7 was superseded by epoch 8 of server b"


@pytest.fixture(autouse=True)
def _default_log() -> Iterator[None]:
    yield
    log.configure()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.log"


def written(path: Path) -> list[str]:
    assert log.flush(60)
    return path.read_text("utf-8").splitlines()


def test_a_line_of_ours_ends_with_its_code(path: Path) -> None:
    log.configure(file=str(path))
    log.stream.fatal(SUPERSEDED)
    log.stream.error("clients.dat cannot be compacted: no space left on device")
    log.stream.warning("Hint: look")
    log.stream.info(SUPERSEDED)
    ends = [line.partition("STREAM: ")[2] for line in written(path)]
    assert ends == [
        f"{SUPERSEDED} [FTS-2104]",
        "clients.dat cannot be compacted: no space left on device [FTS-4105]",
        "Hint: look",
        SUPERSEDED,
    ]


def test_in_json_the_code_is_a_field_and_the_message_is_as_it_was(path: Path) -> None:
    log.configure(file=str(path), json_lines=True)
    log.stream.fatal(SUPERSEDED)
    log.stream.error('Unexpected EOF for file "x"')
    first, second = map(json.loads, written(path))
    assert (first["message"], first["code"]) == (SUPERSEDED, "FTS-2104")
    assert "code" not in second


def test_a_refused_start_has_the_code_of_its_reason(path: Path) -> None:
    log.configure(file=str(path))
    log.stream.fatal("Failed to start: datastore /d is in use by another server")
    log.stream.fatal('Failed to start: sql: unknown driver "" (forgotten import?)')
    first, second = written(path)
    assert first.endswith("by another server [FTS-1002]")
    assert second.endswith("(forgotten import?)")


def test_a_code_that_is_given_counts_where_the_text_has_none(path: Path) -> None:
    log.configure(file=str(path))
    log.stream.fatal("the moon is in the way", code="FTS-2199")
    log.stream.fatal(SUPERSEDED, code="FTS-2199")
    log.stream.fatal("Partitioning error: x", code="FTS-2199")
    codes_seen = [re.findall(r"FTS-\d+", line) for line in written(path)]
    assert codes_seen == [["FTS-2199"], ["FTS-2104"], []]


def test_lines_of_the_nats_server_have_none_whatever_they_say(path: Path) -> None:
    log.configure(file=str(path))
    log.nats.error(SUPERSEDED)
    log.nats.error("nats-server (pid 7) ended unexpectedly (exit status 1); starting it again")
    first, second = written(path)
    assert first.endswith(SUPERSEDED)
    assert second.endswith("[FTS-3001]")


def test_lines_that_are_limited_have_it_behind_the_number_of_those_left_out(path: Path) -> None:
    clock = ManualClock()
    log.configure(file=str(path), clock=clock)
    for _ in range(50):
        log.stream.warning("monitoring: a connection was refused: x", backs_off="refused")
    clock.advance(3600)
    log.stream.info("later")
    lines = [line for line in written(path) if "refused" in line]
    assert len(lines) > 1
    assert all(line.endswith("[FTS-6102]") for line in lines)
    assert "were left out) [FTS-6102]" in lines[-1]


def test_a_line_that_is_cut_keeps_its_code(path: Path) -> None:
    log.configure(file=str(path))
    log.stream.warning("ft: a control request was refused: " + "so many words " * 2000)
    (line,) = written(path)
    assert line.endswith(" [FTS-6001]")
    assert len(line) < 9000


def test_what_the_log_says_of_itself_has_codes_too(path: Path) -> None:
    log.configure(file=str(path))
    assert log._outlet.own_line(WARNING, "3 log lines are lost: full").endswith("[FTS-1302]")
    moved = path.rename(path.with_name("moved"))
    path.mkdir()
    log.reopen()
    (line,) = written(moved)
    assert "File log not re-opened" in line
    assert line.endswith("[FTS-1301]")


@pytest.mark.parametrize("words", ["FTS-2104", "fts-2104", "2104", "[FTS-2104]"])
def test_a_code_is_found_however_it_is_written(words: str) -> None:
    code = codes.find(words)
    assert code is not None
    assert code.name == "FTS-2104"


def test_what_is_no_code_is_not_found() -> None:
    assert codes.find("FTS-9999") is None
    assert codes.find("") is None
