"""The demo as it is started by hand, short: its verdict is clean, and would not be if an acked
message were missing.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from demo.__main__ import EXIT_CLEAN, EXIT_VIOLATION, _judge
from demo.scenario import FAULTS, SWITCHOVER, Places
from demo.screen import Screen
from ftstan.base.clock import SystemClock
from ftstan.drill import ledger
from ftstan.drill.ledger import Ack, Delivery, Read
from ftstan.drill.rules import Rule
from tests.ft.programs import Outcome, run_to_end
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.node, pytest.mark.timeout(1300)]

SECONDS = 12


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the demo, and the directory that it kept."""

    outcome: Outcome
    directory: Path


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    outcome = run_to_end([sys.executable, "-m", "demo", "--seconds", str(SECONDS)])
    place = re.search(r"datastore, ledger and logs in (\S+)", outcome.text)
    assert place is not None, outcome.shown()
    directory = ROOT / place[1]
    try:
        yield Run(outcome, directory)
    finally:
        shutil.rmtree(directory)


def row(text: str, name: str) -> str:
    """The value of one row of the demo's table."""
    found = re.search(rf"^{name:<20}(.*)$", text, re.MULTILINE)
    assert found is not None, text
    return found[1]


def written_by(run: Run, name: str) -> Iterator[ledger.Record]:
    """The records of one file of the run's ledger."""
    return ledger.read_file(str(run.directory / "ledger" / (name + ledger.SUFFIX)))


def doctored(run: Run, directory: Path, keep: Callable[[ledger.Record], bool]) -> Places:
    """A copy of a run whose ledger holds only the records to ``keep``."""
    places = Places.make(str(directory / "run"))
    for file in (run.directory / "ledger").iterdir():
        records = filter(keep, ledger.read_file(str(file)))
        lines = "".join(ledger.encode(record) + "\n" for record in records)
        (directory / "run" / "ledger" / file.name).write_text(lines, encoding="utf-8")
    return places


def judged(places: Places) -> int:
    """The exit status of a demo that has just made this ledger."""
    return _judge(places, Screen(SystemClock()), keep=True)


def test_a_short_demo_is_clean_over_every_kind_of_takeover(run: Run) -> None:
    text = run.outcome.text
    assert run.outcome.status == EXIT_CLEAN, run.outcome.shown()
    assert row(text, "violations") == "0"
    assert row(text, "takeovers") == str(len(FAULTS))
    assert int(row(text, "acked").replace(",", "")) > 0
    table = text[text.index("-" * 72) :]
    assert tuple(
        len(re.findall(rf"^ +{what} +[AB] -> [AB] ", table, re.MULTILINE))
        for what in ("kill -9", "SIGTERM", "switchover")
    ) == tuple(FAULTS.count(fault) for fault in ("kill", "stop", SWITCHOVER))
    assert all(FAULTS.count(fault) for fault in ("kill", "stop", SWITCHOVER))


def test_a_demo_shows_what_operators_see_of_the_pair(run: Run) -> None:
    text = run.outcome.text
    assert text.count("  healthy\n") == 2
    assert len(re.findall(r"(?m)  \S+ +active +\S+ +\d+ +-(?: |$)", text)) == 2
    assert len(re.findall(r"serves since [\d.]+ s after the request \(epoch 5\)", text)) == 1


def test_a_demo_leaves_its_ledger_and_logs_and_no_datastore(run: Run) -> None:
    assert {entry.name for entry in run.directory.iterdir()} == {"ledger", "logs"}


def test_a_demo_that_has_lost_the_last_acked_message_exits_1_and_names_it(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, last = (record for record in written_by(run, "last-reader") if isinstance(record, Read))
    assert last.id in {
        record.id for record in written_by(run, "publisher") if isinstance(record, Ack)
    }

    def keep(record: ledger.Record) -> bool:
        return not (isinstance(record, Read | Delivery) and record.id == last.id)

    assert judged(doctored(run, tmp_path, keep)) == EXIT_VIOLATION
    shown = capsys.readouterr().out
    assert row(shown, "violations") == "2"
    assert f"{Rule.STORED.value}: 1\n" in shown
    assert f"{Rule.DELIVERED.value}: 1\n" in shown
    assert last.id in shown
    assert "NOT CLEAN" in shown
