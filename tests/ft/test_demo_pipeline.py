"""The pipeline's demo as it is started by hand, short: every place holds the same messages though a
node was killed.
"""

from __future__ import annotations

import re
import sys

import pytest

from demo.pipeline.__main__ import EXIT_AGREED, LEAST
from demo.pipeline.scenario import CHANNELS
from tests.ft.programs import run_to_end
from tests.processes import ROOT

#: Several times what it takes on a busy machine: a minute on a quiet one.
LIMIT_S = 1500.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(LIMIT_S + 100)]

PLACES = (
    "published and acknowledged",
    "counted by the stream",
    "archive and datastore",
    "replayed",
    "restored",
    "delivered from the restored",
)


def test_a_short_demo_agrees_in_every_place_though_its_active_is_killed() -> None:
    outcome = run_to_end(
        [sys.executable, "-m", "demo.pipeline", "--messages", str(LEAST)], limit=LIMIT_S
    )
    assert outcome.status == EXIT_AGREED, outcome.shown()
    assert len(re.findall(r"kill -9 of [AB], the active node, under load", outcome.text)) == 1
    assert re.search(r"archived [\d,]+ messages of [1-9]\d* slices", outcome.text)
    assert "the audit is clean: 3 channels" in outcome.text
    cell = r" +(\d+) ([0-9a-f]{6})"
    rows = {
        place: re.findall(rf"^{place:<30}{cell * len(CHANNELS)} *$", outcome.text, re.MULTILINE)
        for place in PLACES
    }
    ((published,),) = {tuple(found) for found in rows.values()}
    assert [int(count) for count in published[::2]] == [LEAST // len(CHANNELS)] * len(CHANNELS)
    place = re.search(r"datastore, spool, archive and logs in (\S+)", outcome.text)
    assert place is not None
    assert not (ROOT / place[1]).exists()
